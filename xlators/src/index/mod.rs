//! What must be healed: pending marks on objects, and the indices that list the objects which have some.
//!
//! Sits on the brick directly above `posix`. An object with a mark against another copy has a link in
//! `.glusterfs/indices/xattrop`, one that is dirty has one in `indices/dirty`; the link is made before the mark and
//! removed after it, so what is not listed is healthy. The lists are read when the brick starts and kept in memory:
//! to know that an object is healthy costs nothing.
//!
//! The dirty index is also the journal of the leases layer: an object enters it before its first change under a lease.
//! Only if the brick dies before it leaves again does the object get the `trusted.afr.dirty` mark that GlusterFS
//! writes for every burst of writes, at the next start.
//!
//! Invariant: a mark that is not zero is listed, on the disk and in memory.

mod links;
mod nameless;
mod objects;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use futures::future::BoxFuture;
use tokio::sync::watch;

use crate::ctx::Ctx;
use crate::error::{Errno, Result};
use crate::fop::{Fop, Mark};
use crate::leases::DirtyJournal;
use crate::posix::Posix;
use crate::reply::{Entries, Found, Looked, Marked, Reply, Waiting};
use crate::types::{Counters, Gfid, Iatt, Kind, Pending, XattrName};
use crate::xlator::{Health, Xlator};
use links::Links;
use objects::{Objects, State};

const DIRTY_KEY: &[u8] = b"trusted.afr.dirty";

/// The indices of one brick.
#[derive(Debug)]
pub struct Index {
    name: String,
    posix: Arc<Posix>,
    xattrop: Links,
    dirty: Links,
    objects: Objects,
}

impl Index {
    /// Read the indices of a brick. What was being changed when it went down is marked dirty.
    pub fn open(posix: Arc<Posix>) -> Result<Arc<Self>, Errno> {
        let (xattrop, pending) = Links::open(&posix, "xattrop")?;
        let (dirty, left) = Links::open(&posix, "dirty")?;
        let name = format!("{}-index", posix.name());
        let index = Self { name, posix, xattrop, dirty, objects: Objects::new() };
        for gfid in pending.gfids {
            index.objects.change(gfid, |state| state | State::PENDING);
        }
        for gfid in &left.gfids {
            if let Err(errno) = index.replay(*gfid) {
                tracing::warn!(%gfid, %errno, "dirty object not marked");
            }
        }
        nameless::drop_in_background(&index.posix, left);
        Ok(Arc::new(index))
    }

    /// An object that was listed as dirty when the brick went down.
    fn replay(&self, gfid: Gfid) -> Result<(), Errno> {
        let kind = match self.posix.kind(gfid) {
            // It was never made, or is gone.
            Err(Errno::STALE) => return self.dirty.remove(gfid),
            kind => kind?,
        };
        let key = XattrName::new(DIRTY_KEY).expect("a short name without NUL");
        let mut mark = Pending { key, counters: Counters::default() };
        if self.posix.counters(gfid, &mark)?.is_zero() {
            mark.counters = may_be_dirty(kind);
            self.posix.add_marks(gfid, &[mark], || Ok(()), |_| Ok(()))?;
        }
        self.objects.change(gfid, |state| state | State::DIRTY | State::LEFT);
        Ok(())
    }

    /// Whether any object has marks against other copies, and the event when that changes.
    pub fn blames(&self) -> watch::Receiver<bool> {
        self.objects.blames()
    }

    /// Add to pending counters.
    fn mark(&self, fop: &Mark) -> Result<Marked, Errno> {
        let set = |mark: &&Pending| !mark.counters.is_zero();
        let dirty = |mark: &&Pending| mark.key.as_bytes() == DIRTY_KEY;
        let (gfid, deltas) = (fop.gfid, &fop.deltas);
        let before = || {
            let touches_dirty = deltas.iter().filter(set).any(|mark| dirty(&mark));
            let touches_pending = deltas.iter().filter(set).any(|mark| !dirty(&mark));
            self.list(gfid, touches_pending, touches_dirty)
        };
        let after = |marks: &[Pending]| {
            let named_dirty = marks.iter().any(|mark| dirty(&mark));
            let named_pending = marks.iter().any(|mark| !dirty(&mark));
            let any_dirty = marks.iter().filter(set).any(|mark| dirty(&mark));
            let any_pending = marks.iter().filter(set).any(|mark| !dirty(&mark));
            // What was zero and is not (a mark that GlusterFS left unlisted) is listed here.
            self.list(gfid, any_pending, any_dirty)?;
            let mut healthy = State::empty();
            healthy.set(State::PENDING, named_pending && !any_pending);
            healthy.set(State::DIRTY | State::LEFT, named_dirty && !any_dirty);
            self.unlist(gfid, healthy)
        };
        Ok(Marked { marks: self.posix.add_marks(gfid, deltas, before, after)? })
    }

    /// See that an object is listed where it must be. The caller holds the lock of the inode.
    fn list(&self, gfid: Gfid, pending: impl Into<bool>, dirty: impl Into<bool>) -> Result<(), Errno> {
        let mut add = State::empty();
        add.set(State::PENDING, pending.into());
        add.set(State::DIRTY, dirty.into());
        let state = self.objects.get(gfid);
        if add.contains(State::PENDING) && !state.contains(State::PENDING) {
            self.xattrop.add(gfid)?;
        }
        if add.contains(State::DIRTY) && !state.intersects(State::IN_DIRTY) {
            self.dirty.add(gfid)?;
        }
        self.objects.change(gfid, |state| state | add);
        Ok(())
    }

    /// These things are no longer the matter with an object. The caller holds the lock of the inode.
    fn unlist(&self, gfid: Gfid, healthy: State) -> Result<(), Errno> {
        if healthy.is_empty() {
            return Ok(());
        }
        let state = self.objects.get(gfid);
        if healthy.contains(State::PENDING) {
            self.xattrop.remove(gfid)?;
        }
        if healthy.intersects(State::IN_DIRTY) && !state.difference(healthy).intersects(State::IN_DIRTY) {
            self.dirty.remove(gfid)?;
        }
        self.objects.change(gfid, |state| state.difference(healthy));
        Ok(())
    }

    /// An inode is gone: nothing of it is to be healed.
    fn forget(&self, gfid: Gfid) {
        let matters = State::PENDING | State::DIRTY | State::LEFT;
        let _inode = self.posix.lock_inode(gfid);
        if self.objects.is_marked(gfid)
            && let Err(errno) = self.unlist(gfid, matters)
        {
            tracing::warn!(%gfid, %errno, "removed object left in an index");
        }
    }

    fn forget_if_gone(&self, iatt: &Iatt) {
        if iatt.nlink == 0 {
            self.forget(iatt.gfid);
        }
    }

    /// Put the marks into what is said of an inode.
    fn add_marks(&self, found: &mut Found) -> Result<(), Errno> {
        if self.objects.is_marked(found.iatt.gfid) {
            found.marks = self.posix.marks(found.iatt.gfid)?;
        }
        Ok(())
    }

    /// Put marks where they belong, if some object has some.
    fn dress(&self, mut reply: Reply) -> Result<Reply> {
        match &mut reply {
            Reply::Lookup(Looked { found: Some(found), .. }) => self.add_marks(found)?,
            Reply::Getattr(found) => self.add_marks(found)?,
            Reply::Readdir(Entries { entries, .. }) => {
                for found in entries.iter_mut().filter_map(|entry| entry.found.as_mut()) {
                    self.add_marks(found)?;
                }
            }
            Reply::Unlink(removed) | Reply::Rmdir(removed) => self.forget_if_gone(&removed.iatt),
            Reply::Rename(renamed) => {
                if let Some(replaced) = &renamed.replaced {
                    self.forget_if_gone(replaced);
                }
            }
            _ => {}
        }
        Ok(reply)
    }

    /// Make an inode that a copy is known to miss: it is listed before it has its name.
    async fn make(&self, ctx: &Ctx, fop: Fop, gfid: Gfid) -> Result<Reply> {
        {
            let _inode = self.posix.lock_inode(gfid);
            self.list(gfid, true, false)?;
        }
        let made = self.posix.call(ctx, fop).await;
        if made.is_err() {
            // Unless the gfid is that of another object, which has marks of its own.
            let _inode = self.posix.lock_inode(gfid);
            if self.posix.marks(gfid)?.is_empty() {
                self.unlist(gfid, State::PENDING)?;
            }
        }
        made
    }
}

/// The marks of an object that may have changed in any way.
fn may_be_dirty(kind: Kind) -> Counters {
    match kind {
        Kind::File => Counters([1, 1, 0]),
        Kind::Dir => Counters([0, 1, 1]),
        Kind::Symlink | Kind::Fifo | Kind::Socket | Kind::Char | Kind::Block => Counters([0, 1, 0]),
    }
}

/// The gfid of a new inode that is born with marks.
fn born_marked(fop: &Fop) -> Option<Gfid> {
    let birth = match fop {
        Fop::Create(f) => &f.birth,
        Fop::Mknod(f) => &f.birth,
        Fop::Mkdir(f) => &f.birth,
        Fop::Symlink(f) => &f.birth,
        _ => return None,
    };
    birth.pending.iter().any(|mark| !mark.counters.is_zero()).then_some(birth.gfid)
}

impl Xlator for Index {
    fn name(&self) -> &str {
        &self.name
    }

    fn call<'a>(&'a self, ctx: &'a Ctx, fop: Fop) -> BoxFuture<'a, Result<Reply>> {
        match fop {
            Fop::Mark(f) => Box::pin(async move { Ok(Reply::Mark(self.mark(&f)?)) }),
            Fop::Backlog(_) => {
                let (pending, dirty) = self.objects.backlog();
                Box::pin(async move { Ok(Reply::Backlog(Waiting { pending, dirty })) })
            }
            fop => match born_marked(&fop) {
                Some(gfid) => Box::pin(self.make(ctx, fop, gfid)),
                None if self.objects.any_marked() => {
                    Box::pin(async move { self.dress(self.posix.call(ctx, fop).await?) })
                }
                None => self.posix.call(ctx, fop),
            },
        }
    }

    fn health(&self) -> watch::Receiver<Health> {
        self.posix.health()
    }
}

impl DirtyJournal for Index {
    fn mark_dirty(&self, gfid: Gfid) -> Result<(), Errno> {
        let _inode = self.posix.lock_inode(gfid);
        let (before, _) = self.objects.change(gfid, |state| state | State::CHANGING);
        if before.intersects(State::IN_DIRTY) {
            return Ok(());
        }
        self.dirty.add(gfid).inspect_err(|_| {
            self.objects.change(gfid, |state| state.difference(State::CHANGING));
        })
    }

    fn sync(&self) -> Result<(), Errno> {
        self.posix.sync_all()
    }

    fn clear(&self, batch: &[Gfid]) -> Result<(), Errno> {
        batch.iter().try_for_each(|gfid| {
            let _inode = self.posix.lock_inode(*gfid);
            self.unlist(*gfid, State::CHANGING)
        })
    }

    fn left_dirty(&self, gfid: Gfid) -> bool {
        self.objects.get(gfid).contains(State::LEFT)
    }

    fn blames_any(&self) -> bool {
        self.objects.blames_any()
    }
}
