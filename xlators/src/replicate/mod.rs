//! Keeps a copy of everything on each brick of a set, and makes every change on all of them or says which missed it.
//!
//! A set of one brick goes through here too: it is what takes the leases.
//!
//! Changes run under exclusive leases, go to every connected copy at once, and succeed when a quorum did the same; a
//! copy that missed one is blamed on the others before the caller hears of success. Reads run under shared leases and
//! are answered by one copy that nobody blames. See `transaction.rs` for the first and `read.rs` for the second; the locks
//! of programs are in `lock.rs`.
//!
//! Invariant: no answer of success leaves this layer while a copy that missed the change is unblamed; and no answer
//! comes from a copy that is blamed for what it answers.

mod acquire;
mod copies;
mod entry;
mod finish;
mod gather;
mod give_back;
mod held;
mod lease;
mod lock;
mod members;
mod open;
pub mod pending;
mod quorum;
mod read;
mod relock;
mod spread;
mod steps;
mod transaction;
mod undo;
mod verdict;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::watch;

use self::copies::{COPIES_MAX, Copy, CopySet, SharedSet};
use self::held::HeldLocks;
use self::lease::Cache;
use self::quorum::Rule;
use crate::ctx::{Caller, Ctx};
use crate::effect::Effect;
use crate::error::{Errno, FopError, Result};
use crate::fop::{Fop, Open};
use crate::graph::{BrickSpec, Quorum};
use crate::reply::Reply;
use crate::types::ClientId;
use crate::xlator::{Health, Notice, Subvol, Upcall, Xlator};

/// How long a message that the layer sends for itself may take.
const OWN_DEADLINE: Duration = Duration::from_secs(10);

/// What can be chosen for one set.
#[derive(Clone, Copy, Debug)]
pub struct ReplicateOptions {
    /// Leases kept before the oldest are given back; the brick allows a session 65,536.
    pub leases_max: usize,
    /// How often it is looked for changed objects that every copy has and that were left alone since.
    pub settle_every: Duration,
}

impl Default for ReplicateOptions {
    fn default() -> Self {
        Self { leases_max: 32_768, settle_every: Duration::from_secs(1) }
    }
}

/// Keeps a copy of everything on each brick of a set.
#[derive(Debug)]
pub struct Replicate {
    me: Weak<Self>,
    name: String,
    copies: Vec<Copy>,
    rule: Rule,
    options: ReplicateOptions,
    upcall: Arc<dyn Upcall>,
    client: ClientId,
    runtime: Handle,
    /// Copies that are connected and know our open files.
    up: SharedSet,
    /// Copies that came back not long ago without what they knew of us: they may have been restarted.
    young: SharedSet,
    /// Copies that hold, or may hold, marks against others: until there are none, attributes of an object that is not
    /// leased are compared over all copies.
    blamers: SharedSet,
    cache: Cache,
    opens: Mutex<HashMap<u64, Open>>,
    /// Locks of programs.
    held: HeldLocks,
    /// Which life each copy is in: what it was told in another it may have forgotten.
    lives: Box<[AtomicU64]>,
    health: watch::Sender<Health>,
    /// Held while it is judged what copies did that do not agree, until that is noted of their leases.
    disputes: Mutex<()>,
    settling: AtomicBool,
    trimming: AtomicBool,
    own_requests: AtomicU64,
    /// Counts blames, so that who asks for them notices those that came meanwhile.
    blames: AtomicU64,
}

impl Replicate {
    /// The set of `bricks`, in the order of the volume file. `notices` hear what each of them says unasked; `upcall`
    /// is told before a lease goes. Must be called inside a tokio runtime.
    ///
    /// # Panics
    ///
    /// Without bricks, with more than 64, or with a brick id that cannot be part of the name of an xattr: the volume
    /// file was not checked.
    pub fn new(
        name: String,
        bricks: Vec<(BrickSpec, Subvol)>,
        quorum: Quorum,
        options: ReplicateOptions,
        notices: Vec<UnboundedReceiver<Notice>>,
        upcall: Arc<dyn Upcall>,
        client: ClientId,
    ) -> Arc<Self> {
        assert!((1..=COPIES_MAX).contains(&bricks.len()), "a set has 1 to {COPIES_MAX} bricks");
        assert_eq!(notices.len(), bricks.len(), "every brick is heard");
        let copy = |(spec, subvol): (BrickSpec, Subvol)| Copy {
            subvol,
            key: pending::key(&spec.id).expect("the volume file was checked"),
            arbiter: spec.arbiter,
        };
        let copies: Vec<_> = bricks.into_iter().map(copy).collect();
        let rule = Rule::new(quorum, copies.len());
        let replicate = Arc::new_cyclic(|me| Self {
            me: me.clone(),
            name,
            rule,
            options,
            upcall,
            client,
            runtime: Handle::current(),
            up: SharedSet::default(),
            young: SharedSet::default(),
            blamers: SharedSet::default(),
            cache: Cache::new(copies.len(), rule),
            held: HeldLocks::default(),
            lives: copies.iter().map(|_| AtomicU64::new(1)).collect(),
            copies,
            opens: Mutex::default(),
            health: watch::Sender::new(Health::Down),
            disputes: Mutex::default(),
            settling: AtomicBool::new(false),
            trimming: AtomicBool::new(false),
            own_requests: AtomicU64::new(1 << 63),
            blames: AtomicU64::new(0),
        });
        replicate.watch_members();
        notices.into_iter().enumerate().for_each(|(copy, notices)| replicate.serve_notices(copy, notices));
        replicate
    }

    fn all(&self) -> CopySet {
        CopySet::first(self.copies.len())
    }

    /// The connected copies, if they are a quorum.
    fn live(&self) -> Result<CopySet> {
        let up = self.up.get();
        if self.rule.holds(up) { Ok(up) } else { Err(FopError::Refused(Errno::NOTCONN)) }
    }

    fn shared(&self) -> Arc<Self> {
        self.me.upgrade().expect("a layer that is called is held by somebody")
    }

    /// For a message that the layer sends for itself.
    fn own_ctx(&self) -> Ctx {
        let id = self.own_requests.fetch_add(1, Ordering::Relaxed);
        Ctx::new(id, self.client, Caller::root(), Instant::now() + OWN_DEADLINE)
    }
}

impl Xlator for Replicate {
    fn name(&self) -> &str {
        &self.name
    }

    fn call<'a>(&'a self, ctx: &'a Ctx, fop: Fop) -> BoxFuture<'a, Result<Reply>> {
        match fop {
            Fop::Lookup(fop) => self.lookup(ctx, fop).boxed(),
            Fop::Readdir(fop) => self.readdir(ctx, fop).boxed(),
            Fop::Getattr(fop) => self.getattr(ctx, fop).boxed(),
            Fop::Statfs(fop) => self.statfs(ctx, fop).boxed(),
            Fop::Backlog(fop) => self.backlog(ctx, fop).boxed(),
            Fop::Lk(fop) => self.lk(ctx, fop).boxed(),
            other => match other.effect() {
                Effect::Read => self.read(ctx, other).boxed(),
                Effect::Session => self.tell(ctx, other).boxed(),
                Effect::Inode { .. } | Effect::Entry { .. } => self.transaction(ctx, other).boxed(),
            },
        }
    }

    fn health(&self) -> watch::Receiver<Health> {
        self.health.subscribe()
    }
}
