//! Refuses every change that does not run under a current lease, and keeps the list of who holds which.
//!
//! The brick's side of the only lock there is. A client asks with `Lease`, gives back with `Unlease`; what another
//! client wants is recalled from the holder, and taken from it when it does nothing for five seconds. The layer also
//! keeps the dirty journal: an object enters it before its first change under a lease, and leaves it when its client
//! has said (`Settle`, `Unlease`) that every copy has all changes.
//!
//! Invariant: a changing fop reaches `next` only under the exclusive lease epoch that is current for each object it
//! changes, and no other session is granted that object before the fop has ended.
//!
//! Whoever calls must not drop a changing fop half way: the layer would take it for ended.

mod admission;
mod clear;
mod dirty;
mod nameless;
mod recall;
mod table;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

pub use dirty::DirtyJournal;

use self::nameless::Nameless;
use self::table::{Asked, Keep, Park, Session, Table, Want};
use crate::ctx::Ctx;
use crate::effect::Effect;
use crate::error::{Errno, FopError, Result};
use crate::fop::{Fop, Getattr, LEASE_OBJECTS_MAX, Lease, Settle, Settled, Unlease};
use crate::reply::{Done, Grant, Granted, Reply};
use crate::types::{AttrMask, ClientId, Gfid, LeaseMode};
use crate::xlator::{Health, Notice, Notices, Subvol, Xlator};

/// Sessions that a brick serves at the same time.
const SESSIONS_MAX: usize = 4096;

/// How the leases of one brick behave.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// How long after a start with `forgot_leases` no new exclusive lease is given: the term of a session.
    pub term: Duration,
    /// The brick may have given leases in an earlier life whose holders still trust them.
    pub start: Start,
    /// Greater than every epoch of earlier lives, such as the time in nanoseconds.
    pub first_epoch: u64,
    /// How long a recalled holder may do nothing.
    pub recall_patience: Duration,
    /// How long settled objects wait to leave the dirty journal together.
    pub clear_every: Duration,
}

/// What a starting brick knows of its earlier life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// No lease can be out there: a new brick, or one that stopped when no session was left.
    Fresh,
    /// Leases were forgotten.
    Forgot,
}

impl Config {
    /// What a brick uses.
    pub fn new(start: Start, first_epoch: u64) -> Self {
        Self {
            term: Duration::from_secs(10),
            start,
            first_epoch,
            recall_patience: Duration::from_secs(5),
            clear_every: Duration::from_secs(1),
        }
    }
}

/// Refuses every change that does not run under a current lease.
#[derive(Debug)]
pub struct Leases {
    me: Weak<Self>,
    next: Subvol,
    journal: Arc<dyn DirtyJournal>,
    config: Config,
    table: Table,
    nameless: Nameless,
    sessions: Mutex<HashMap<ClientId, Arc<Session>>>,
    /// The size of `sessions`, to be read without the lock.
    session_count: AtomicU32,
    /// Until then no new exclusive lease.
    grace_until: Option<Instant>,
    clearing: AtomicBool,
    cleared: Notify,
    /// What the sessions were told last about marks on this brick.
    blaming: AtomicBool,
}

impl Leases {
    /// The layer above `next`, without any session.
    pub fn new(next: Subvol, journal: Arc<dyn DirtyJournal>, config: Config) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            next,
            table: Table::new(config.first_epoch.max(1), Arc::clone(&journal)),
            nameless: Nameless::new(),
            journal,
            config,
            sessions: Mutex::default(),
            session_count: AtomicU32::new(0),
            grace_until: (config.start == Start::Forgot).then(|| Instant::now() + config.term),
            clearing: AtomicBool::new(false),
            cleared: Notify::new(),
            blaming: AtomicBool::new(false),
        })
    }

    /// A client came, or came back on a new connection: recalls for it go to `notices`. Open recalls are repeated.
    /// `EAGAIN` when the brick has too many clients already.
    pub fn attach(&self, client: ClientId, notices: Notices) -> Result<()> {
        let session = {
            let mut sessions = self.sessions.lock();
            if !sessions.contains_key(&client) && sessions.len() >= SESSIONS_MAX {
                return Err(Errno::AGAIN.into());
            }
            let fresh = || {
                self.session_count.fetch_add(1, Ordering::AcqRel);
                Arc::new(Session { client, notices: Mutex::new(notices.clone()), held: AtomicU32::new(0) })
            };
            Arc::clone(sessions.entry(client).or_insert_with(fresh))
        };
        *session.notices.lock() = notices;
        self.table.repeat_recalls(&session);
        if self.journal.blames_any() {
            session.tell(Notice::Blames { any: true });
        }
        Ok(())
    }

    /// A client's session ended: its leases and requests are gone, what it left dirty stays dirty.
    pub fn client_gone(&self, client: ClientId) {
        if self.sessions.lock().remove(&client).is_some() {
            self.session_count.fetch_sub(1, Ordering::AcqRel);
            self.table.forget_session(client);
        }
    }

    fn session(&self, client: ClientId) -> Result<Arc<Session>> {
        self.sessions.lock().get(&client).cloned().ok_or(FopError::Fenced)
    }

    async fn mark(&self, ctx: &Ctx, fop: Fop) -> Result<Reply> {
        let marked = self.next.call(ctx, fop).await;
        self.tell_blames();
        marked
    }

    /// Marks may have come or gone: tell the sessions, before the one that caused it has its answer.
    pub(super) fn tell_blames(&self) {
        let any = self.journal.blames_any();
        if self.blaming.swap(any, Ordering::AcqRel) != any {
            self.sessions.lock().values().for_each(|session| session.tell(Notice::Blames { any }));
        }
    }

    async fn lease(&self, ctx: &Ctx, fop: Lease) -> Result<Reply> {
        if fop.gfids.len() > LEASE_OBJECTS_MAX {
            return Err(Errno::INVAL.into());
        }
        let session = self.session(ctx.client)?;
        let plain = ctx.under(Default::default());
        let mut grants = Vec::with_capacity(fop.gfids.len());
        for &gfid in &fop.gfids {
            let held = self.acquire(ctx, &session, gfid, &fop).await;
            // Attributes that another client may have changed by now are worse than none; who that might be, a brick that
            // has forgotten its leases does not know.
            let kept_back = held.is_err() && self.table.is_kept_back(ctx.client, gfid);
            let attrs = fop.attrs && !kept_back && self.grace().is_none();
            grants.push(self.describe(&plain, gfid, held, attrs).await);
        }
        Ok(Reply::Lease(Granted { grants }))
    }

    async fn acquire(
        &self,
        ctx: &Ctx,
        session: &Arc<Session>,
        gfid: Gfid,
        fop: &Lease,
    ) -> std::result::Result<table::Held, Errno> {
        if fop.mode == LeaseMode::Exclusive && !fop.reclaim {
            self.outlast_grace(ctx, fop.wait).await?;
        }
        let park = if fop.wait { Park::Yes } else { Park::No };
        match self.table.ask(session, gfid, Want::Lease(fop.mode), park) {
            Asked::Held(held) => Ok(held),
            Asked::Busy | Asked::Full => Err(Errno::AGAIN),
            Asked::Parked(answer) => self.parked(ctx, gfid, answer).await,
        }
    }

    /// What goes with a grant: marks if the brick has any, attributes if asked for.
    async fn describe(
        &self,
        ctx: &Ctx,
        gfid: Gfid,
        held: std::result::Result<table::Held, Errno>,
        attrs: bool,
    ) -> Grant {
        let mut grant = Grant {
            gfid,
            epoch: held.map(|h| h.epoch),
            unsettled: held.is_ok_and(|h| h.unsettled),
            // Looked at after the grant: what is removed from here on recalls it first.
            nameless: self.nameless.has(gfid),
            marks: vec![],
            found: None,
        };
        if attrs || self.journal.blames_any() {
            let found = self.next.send(ctx, Getattr { gfid, fd: None, exact: AttrMask::all() }).await;
            match found {
                Ok(found) => {
                    grant.marks.clone_from(&found.marks);
                    grant.found = attrs.then(|| Box::new(found));
                }
                // The lease is good all the same: an open file that lost its last name is still changed under one.
                Err(error) => tracing::debug!(ctx.id, %gfid, %error, "no attributes to go with a lease"),
            }
        }
        grant
    }

    fn settle(&self, ctx: &Ctx, fop: &Settle) -> Result<Reply> {
        if fop.objects.len() > LEASE_OBJECTS_MAX {
            return Err(Errno::INVAL.into());
        }
        let any = fop.objects.iter().filter(|&&s| self.table.settle(ctx.client, s).is_some()).count();
        self.clear_soon(any);
        Ok(Reply::Settle(Done))
    }

    fn unlease(&self, ctx: &Ctx, fop: &Unlease) -> Result<Reply> {
        if fop.objects.len() > LEASE_OBJECTS_MAX {
            return Err(Errno::INVAL.into());
        }
        let keep = if fop.keep_shared { Keep::Shared } else { Keep::Nothing };
        let settled = |object: &&Settled| self.table.give_back(ctx.client, **object, keep).is_some();
        let any = fop.objects.iter().filter(settled).count();
        self.clear_soon(any);
        Ok(Reply::Unlease(Done))
    }
}

impl Xlator for Leases {
    fn name(&self) -> &str {
        self.next.name()
    }

    fn call<'a>(&'a self, ctx: &'a Ctx, fop: Fop) -> BoxFuture<'a, Result<Reply>> {
        match fop {
            Fop::Lease(fop) => self.lease(ctx, fop).boxed(),
            Fop::Unlease(fop) => std::future::ready(self.unlease(ctx, &fop)).boxed(),
            Fop::Settle(fop) => std::future::ready(self.settle(ctx, &fop)).boxed(),
            Fop::Mark(_) => self.mark(ctx, fop).boxed(),
            other => match other.effect() {
                Effect::Session => self.next.call(ctx, other),
                Effect::Read if self.may_read(ctx) => self.next.call(ctx, other),
                Effect::Read => std::future::ready(Err(FopError::Fenced)).boxed(),
                Effect::Inode { .. } | Effect::Entry { .. } => self.change(ctx, other).boxed(),
            },
        }
    }

    fn health(&self) -> watch::Receiver<Health> {
        self.next.health()
    }
}
