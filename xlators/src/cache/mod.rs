//! Answers what a client knows by itself, and keeps back for a moment what nobody else can see yet: the top of a client's
//! graph.
//!
//! Four things, all under leases that this client holds, and only until they are recalled:
//! - `attrs`: attributes that were answered stay what they are until this client changes them.
//! - `names`: in a directory that this client has made, every name is its own, so one that it did not make is absent,
//!   and asking for it needs no message.
//! - `behind`: a file that this client has just made is nobody else's to see ([`Cover::OWNED`](crate::types::Cover::OWNED)). What is written to it and
//!   what is set on it (tar: content, owner, mode, times) is put together, and goes to the bricks as one fop when the
//!   file is closed, when anything else is asked of it, when the lease is recalled, or after a second.
//!
//! - `removals`: a file whose name is certain to be there, and the last one, is removed behind the program's back.
//!
//! New names are never kept back: a create is on the bricks when it is answered. What is kept back is what a
//! local file system would have in memory only: a client that dies loses it, `close` and `fsync` say if it failed.
//!
//! Invariant: what is kept back of an object is on the bricks before anybody else is granted a lease on it, and before
//! any fop of this client that could see the difference.

mod attrs;
mod behind;
mod change;
mod flush;
mod look;
mod names;
mod removals;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::sync::watch;

use self::attrs::Attrs;
use self::behind::Files;
use self::names::Names;
use self::removals::Removals;
use crate::ctx::Ctx;
use crate::effect::{Effect, Target};
use crate::error::Result;
use crate::fop::Fop;
use crate::reply::Reply;
use crate::types::{ClientId, Cover, Fd, Gfid, LeaseMode};
use crate::xlator::{Health, Subvol, Upcall, Xlator, answer};

/// The top of a client's graph.
#[derive(Debug)]
pub struct Cache {
    next: Subvol,
    books: Arc<Books>,
}

/// What is known and what is kept back; heard of recalls by the layers below, which it does not keep alive.
#[derive(Debug)]
struct Books {
    me: Weak<Self>,
    attrs: Arc<Attrs>,
    names: Names,
    files: Files,
    removals: Removals,
    /// Counts recalls: what was answered before one must not be noted after it.
    recalls: AtomicU64,
    next: OnceLock<Weak<dyn Xlator>>,
    above: Arc<dyn Upcall>,
    client: ClientId,
    runtime: Handle,
    next_id: AtomicU64,
    /// Somebody looks after what has been kept back for long.
    looking: AtomicBool,
}

impl Cache {
    /// A cache over the layers that `below` makes; they are to tell what it gets before a lease goes. `above` hears of it
    /// after the cache. Must be called inside a runtime.
    pub fn over(client: ClientId, above: Arc<dyn Upcall>, below: impl FnOnce(&Arc<dyn Upcall>) -> Subvol) -> Arc<Self> {
        let books = Arc::new_cyclic(|me| Books {
            me: me.clone(),
            attrs: Arc::new(Attrs::new()),
            names: Names::new(),
            files: Files::new(),
            removals: Removals::new(),
            recalls: AtomicU64::new(0),
            next: OnceLock::new(),
            above,
            client,
            runtime: Handle::current(),
            next_id: AtomicU64::new(OWN_IDS),
            looking: AtomicBool::new(false),
        });
        let upcall: Arc<dyn Upcall> = Arc::<Books>::clone(&books);
        let next = below(&upcall);
        books.next.set(Arc::downgrade(&next)).expect("set once, here");
        Arc::new(Self { next, books })
    }

    /// The client leaves.
    async fn leave(&self, ctx: &Ctx, fop: Fop) -> Result<Reply> {
        self.books.hand_over_all().await;
        self.next.call(ctx, fop).await
    }

    /// A fop that asks for the content of a file, or is about its durability.
    async fn after(&self, ctx: &Ctx, gfid: Gfid, fop: Fop) -> Result<Reply> {
        self.books.flush(gfid).await?;
        self.next.call(ctx, fop).await
    }
}

/// Where the numbers of requests begin that the cache makes by itself.
const OWN_IDS: u64 = 1 << 62;

impl Books {
    fn recalls(&self) -> u64 {
        self.recalls.load(Ordering::Acquire)
    }
}

impl Xlator for Cache {
    fn name(&self) -> &str {
        self.next.name()
    }

    fn call<'a>(&'a self, ctx: &'a Ctx, fop: Fop) -> BoxFuture<'a, Result<Reply>> {
        match fop {
            fop if self.books.removals.any() && !matches!(fop, Fop::Unlink(_)) => self.when_settled(ctx, fop).boxed(),
            fop => self.serve(ctx, fop),
        }
    }

    fn health(&self) -> watch::Receiver<Health> {
        self.next.health()
    }
}

impl Cache {
    async fn when_settled(&self, ctx: &Ctx, fop: Fop) -> Result<Reply> {
        if let Fop::Getattr(getattr) = &fop
            && let Some(iatt) = self.books.removals.directory(getattr.gfid)
        {
            return Ok(Reply::Getattr(look::known(iatt, Cover::empty())));
        }
        self.books.removals.settled(ctx, &fop).await?;
        self.serve(ctx, fop).await
    }

    fn serve<'a>(&'a self, ctx: &'a Ctx, fop: Fop) -> BoxFuture<'a, Result<Reply>> {
        use crate::fop as f;
        match fop {
            Fop::Getattr(fop) => answer::<f::Getattr>(self.getattr(ctx, fop)),
            Fop::Lookup(fop) => answer::<f::Lookup>(self.lookup(ctx, fop)),
            Fop::Readdir(fop) => answer::<f::Readdir>(self.readdir(ctx, fop)),
            Fop::Create(fop) => answer::<f::Create>(self.create(ctx, fop)),
            Fop::Mknod(fop) => answer::<f::Mknod>(self.mknod(ctx, fop)),
            Fop::Mkdir(fop) => answer::<f::Mkdir>(self.mkdir(ctx, fop)),
            Fop::Symlink(fop) => answer::<f::Symlink>(self.symlink(ctx, fop)),
            Fop::Link(fop) => answer::<f::Link>(self.link(ctx, fop)),
            Fop::Unlink(fop) => answer::<f::Unlink>(self.unlink(ctx, fop)),
            Fop::Rmdir(fop) => answer::<f::Rmdir>(self.rmdir(ctx, fop)),
            Fop::Rename(fop) => answer::<f::Rename>(self.rename(ctx, fop)),
            Fop::Write(fop) => answer::<f::Write>(self.write(ctx, fop)),
            Fop::Setattr(fop) => answer::<f::Setattr>(self.setattr(ctx, fop)),
            Fop::Flush(fop) => answer::<f::Flush>(self.flush(fop)),
            Fop::Release(fop) => answer::<f::Release>(self.release(ctx, fop)),
            Fop::Unlease(ref unlease) if unlease.objects.is_empty() => self.leave(ctx, fop).boxed(),
            other => match (other.effect(), other.target()) {
                (Effect::Inode { .. }, _) => self.change(ctx, other).boxed(),
                (_, Target::Inode(gfid)) if self.books.files.knows(gfid) => self.after(ctx, gfid, other).boxed(),
                _ => self.next.call(ctx, other),
            },
        }
    }
}

impl Upcall for Books {
    fn uncover<'a>(&'a self, objects: &'a [Gfid], wanted: LeaseMode) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            self.recalls.fetch_add(1, Ordering::AcqRel);
            self.attrs.forget(objects);
            self.names.forget(objects);
            self.hand_over_last(self.files.disown(objects)).await;
            self.above.uncover(objects, wanted).await;
        })
    }

    fn lock_lost(&self, gfid: Gfid, through: &[Fd]) {
        self.above.lock_lost(gfid, through);
    }

    fn forgotten(&self) {
        self.files.disown(&self.files.all());
        let books = self.shared();
        self.runtime.spawn(async move { books.hand_over_all().await });
        self.above.forgotten();
    }

    fn lets_go(&self, object: Gfid) -> bool {
        self.files.let_go(object) && self.above.lets_go(object)
    }
}
