//! Answers what a client knows by itself, and keeps back for a moment what nobody else can see yet: the top of a client's
//! graph.
//!
//! Two things, both under leases that this client holds, and only until they are recalled:
//! - `names`: in a directory that this client has made, every name is its own, so one that it did not make is absent,
//!   and asking for it needs no message.
//! - `behind`: a file that this client has just made is nobody else's to see ([`Cover::OWNED`]). What is written to it and
//!   what is set on it (tar: content, owner, mode, times) is put together, and goes to the bricks as one fop when the
//!   file is closed, when anything else is asked of it, when the lease is recalled, or after a second.
//!
//! Names themselves are never kept back: a create is on the bricks when it is answered. What is kept back is what a
//! local file system would have in memory only: a client that dies loses it, `close` and `fsync` say if it failed.
//!
//! Invariant: what is kept back of an object is on the bricks before anybody else is granted a lease on it, and before
//! any fop of this client that could see the difference.

mod behind;
mod flush;
mod names;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::sync::watch;

use self::behind::Files;
use self::names::Names;
use crate::ctx::{Ctx, Turn};
use crate::effect::Target;
use crate::error::Result;
use crate::fop::{Create, Flush, Fop, Lookup, Mkdir, Release, Setattr, Unlink, Write};
use crate::reply::{Changed, Done, Looked, Made, Reply, Written};
use crate::types::{ClientId, Cover, Fd, Gfid};
use crate::xlator::{Health, Subvol, Upcall, Xlator};

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
    names: Names,
    files: Files,
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
            names: Names::new(),
            files: Files::new(),
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

    async fn create(&self, ctx: &Ctx, fop: Create) -> Result<Made> {
        let moment = self.books.moment();
        let place = (fop.parent, fop.name.clone());
        self.books.names.add(place.0, &place.1);
        let made = self.next.send(ctx, fop).await?;
        if made.cover.contains(Cover::OWNED) {
            self.books.files.born(place, &made.iatt, || self.books.moment() == moment);
        }
        Ok(made)
    }

    async fn mkdir(&self, ctx: &Ctx, fop: Mkdir) -> Result<Made> {
        let moment = self.books.moment();
        self.books.names.add(fop.parent, &fop.name);
        let made = self.next.send(ctx, fop).await?;
        if made.cover.contains(Cover::ATTRS) {
            self.books.names.born(made.iatt.gfid, || self.books.moment() == moment);
        }
        Ok(made)
    }

    async fn lookup(&self, ctx: &Ctx, fop: Lookup) -> Result<Looked> {
        if self.books.names.lacks(fop.parent, &fop.name) {
            return Ok(Looked { found: None, cover: Cover::NAME });
        }
        let looked = self.next.send(ctx, fop.clone()).await?;
        match &looked.found {
            Some(found) if self.books.files.keeps(found.iatt.gfid) => {
                self.books.hand_over(found.iatt.gfid, Turn::Waits).await;
                self.next.send(ctx, fop).await
            }
            _ => Ok(looked),
        }
    }

    async fn write(&self, ctx: &Ctx, fop: Write) -> Result<Written> {
        if let Some(written) = self.books.files.keep_write(ctx, &fop) {
            self.books.look_after();
            return Ok(written);
        }
        self.books.flush(fop.gfid).await?;
        if let Some(written) = self.books.files.keep_write(ctx, &fop) {
            self.books.look_after();
            return Ok(written);
        }
        let written = self.next.send(ctx, fop).await?;
        self.books.files.changed(&written.iatt);
        Ok(written)
    }

    async fn setattr(&self, ctx: &Ctx, fop: Setattr) -> Result<Changed> {
        if let Some(changed) = self.books.files.keep_setattr(ctx, &fop) {
            self.books.look_after();
            return Ok(changed);
        }
        self.books.flush(fop.gfid).await?;
        let changed = self.next.send(ctx, fop).await?;
        self.books.files.changed(&changed.iatt);
        Ok(changed)
    }

    async fn close(&self, fop: Flush) -> Result<Done> {
        self.books.close(fop.gfid).await.map(|()| Done)
    }

    async fn release(&self, ctx: &Ctx, fop: Release) -> Result<Done> {
        if let Err(error) = self.books.close(fop.fd.gfid).await {
            tracing::warn!(ctx.id, gfid = %fop.fd.gfid, %error, "what was written before a file was closed is lost");
        }
        self.next.send(ctx, fop).await
    }

    async fn unlink(&self, ctx: &Ctx, fop: Unlink) -> Result<Reply> {
        if let Some(gfid) = self.books.files.made_at(fop.parent, &fop.name) {
            self.books.files.disown(&[gfid]);
            self.books.hand_over(gfid, Turn::Waits).await;
        }
        self.next.call(ctx, fop.into()).await
    }

    /// A fop that could see the difference between what is on the bricks and what is kept back.
    async fn after_all(&self, ctx: &Ctx, fop: Fop) -> Result<Reply> {
        self.books.hand_over_all().await;
        self.next.call(ctx, fop).await
    }

    /// The same, of certain files. After a change that is not understood here nothing more is kept back of them.
    async fn after(&self, ctx: &Ctx, gfids: [Option<Gfid>; 2], fop: Fop) -> Result<Reply> {
        for gfid in gfids.into_iter().flatten() {
            if fop.effect().changes_disk() {
                self.books.files.disown(&[gfid]);
            }
            self.books.flush(gfid).await?;
        }
        self.next.call(ctx, fop).await
    }

    /// The files whose content or attributes a fop asks for or changes.
    fn touched(fop: &Fop) -> [Option<Gfid>; 2] {
        match (fop, fop.target()) {
            (Fop::CopyRange(f), _) => [Some(f.to), Some(f.from)],
            (Fop::Link(f), _) => [Some(f.gfid), None],
            (_, Target::Inode(gfid)) => [Some(gfid), None],
            (_, Target::Entry(..) | Target::Volume) => [None, None],
        }
    }
}

/// Where the numbers of requests begin that the cache makes by itself.
const OWN_IDS: u64 = 1 << 62;

impl Books {
    fn moment(&self) -> u64 {
        self.recalls.load(Ordering::Acquire)
    }

    /// A name comes into a directory.
    fn note_name(&self, fop: &Fop) {
        match fop {
            Fop::Mknod(f) => self.names.add(f.parent, &f.name),
            Fop::Symlink(f) => self.names.add(f.parent, &f.name),
            Fop::Link(f) => self.names.add(f.parent, &f.name),
            Fop::Rename(f) => {
                self.names.add(f.to_parent, &f.to_name);
                // What an exchange brings back was here before, so its name is known.
            }
            _ => {}
        }
    }
}

impl Xlator for Cache {
    fn name(&self) -> &str {
        self.next.name()
    }

    fn call<'a>(&'a self, ctx: &'a Ctx, fop: Fop) -> BoxFuture<'a, Result<Reply>> {
        match fop {
            Fop::Create(fop) => self.create(ctx, fop).map(|made| made.map(Reply::Create)).boxed(),
            Fop::Mkdir(fop) => self.mkdir(ctx, fop).map(|made| made.map(Reply::Mkdir)).boxed(),
            Fop::Lookup(fop) => self.lookup(ctx, fop).map(|looked| looked.map(Reply::Lookup)).boxed(),
            Fop::Write(fop) if self.books.files.knows(fop.gfid) => {
                self.write(ctx, fop).map(|written| written.map(Reply::Write)).boxed()
            }
            Fop::Setattr(fop) if self.books.files.knows(fop.gfid) => {
                self.setattr(ctx, fop).map(|changed| changed.map(Reply::Setattr)).boxed()
            }
            Fop::Flush(fop) => self.close(fop).map(|done| done.map(Reply::Flush)).boxed(),
            Fop::Release(fop) if self.books.files.knows(fop.fd.gfid) => {
                self.release(ctx, fop).map(|done| done.map(Reply::Release)).boxed()
            }
            Fop::Unlink(fop) => self.unlink(ctx, fop).boxed(),
            Fop::Unlease(ref unlease) if unlease.objects.is_empty() => self.after_all(ctx, fop).boxed(),
            Fop::Readdir(ref readdir) if readdir.attrs => self.after_all(ctx, fop).boxed(),
            Fop::Rename(_) => {
                self.books.note_name(&fop);
                // It may be one of them that moves, or that loses its name.
                self.books.files.disown(&self.books.files.all());
                self.after_all(ctx, fop).boxed()
            }
            other => {
                self.books.note_name(&other);
                let touched = Self::touched(&other);
                if touched.iter().flatten().any(|gfid| self.books.files.knows(*gfid)) {
                    return self.after(ctx, touched, other).boxed();
                }
                self.next.call(ctx, other)
            }
        }
    }

    fn health(&self) -> watch::Receiver<Health> {
        self.next.health()
    }
}

impl Upcall for Books {
    fn uncover<'a>(&'a self, objects: &'a [Gfid]) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            self.recalls.fetch_add(1, Ordering::AcqRel);
            self.names.forget(objects);
            self.hand_over_last(self.files.disown(objects)).await;
            self.above.uncover(objects).await;
        })
    }

    fn lock_lost(&self, gfid: Gfid, through: &[Fd]) {
        self.above.lock_lost(gfid, through);
    }

    fn lets_go(&self, object: Gfid) -> bool {
        self.files.let_go(object) && self.above.lets_go(object)
    }
}
