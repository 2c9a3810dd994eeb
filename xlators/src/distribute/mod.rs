//! Spreads names over subvolumes, as GlusterFS does: no table says where a file is, its name does.
//!
//! Reading order: `hash` and `layout` say where a name belongs; `lookup` what it leads to; `create`, `remove` and
//! `rename` change names; `dirs` keeps the parts of a directory together; `linkto` makes the link files; `readdir`
//! makes one listing of many; `hold` makes one step of many; `inode` sends the rest to where the file is.
//!
//! Invariant: distribute has no state that is not asked for again. Where several subvolumes must change, their directories
//! are held still (`hold`), the subvolume that the name belongs to decides, and every state in between is one that
//! `lookup` understands, in case the client dies there.

mod create;
mod dirs;
pub mod hash;
mod hold;
mod inode;
pub mod layout;
mod linkto;
mod lookup;
mod memory;
mod merge;
mod readdir;
mod remove;
mod rename;
mod sets;
pub mod single;
mod space;

use std::sync::Arc;

use futures::future::{BoxFuture, select_all};
use tokio::sync::{OnceCell, watch};
use tokio::task::AbortHandle;

use crate::ctx::Ctx;
use crate::error::{Errno, FopError, Result};
use crate::fop::Fop;
use crate::reply::{Reply, Waiting};
use crate::types::{Fd, Gfid};
use crate::xlator::{Health, Subvol, Xlator, answer};

use hold::Locks;
use memory::Memory;
use sets::Sets;
use space::Fullness;

/// What can be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// New files go elsewhere when less of a subvolume's space is free, in percent.
    pub free_percent_min: u8,
}

impl Default for Options {
    fn default() -> Self {
        Self { free_percent_min: 10 }
    }
}

/// Spreads names over subvolumes.
#[derive(Debug)]
pub struct Distribute {
    name: String,
    core: Arc<Core>,
    health: watch::Receiver<Health>,
    watcher: AbortHandle,
}

/// What the fops work on; shared with those that must not stop half way.
#[derive(Debug)]
struct Core {
    sets: Sets,
    memory: Memory,
    locks: Locks,
    /// Read once from the root.
    commit: OnceCell<u32>,
    space: Fullness,
}

impl Distribute {
    /// Over at least two subvolumes, in the order of the volume file. Must be called within a runtime.
    pub fn new(name: impl Into<String>, subvols: Vec<Subvol>, options: Options) -> Arc<Self> {
        assert!(subvols.len() > 1, "a volume of one subvolume has no distribute");
        let receivers: Vec<_> = subvols.iter().map(|subvol| subvol.health()).collect();
        let (sender, health) = watch::channel(together(&receivers));
        let watcher = tokio::spawn(watch_all(receivers, sender)).abort_handle();
        let space = Fullness::new(subvols.len(), options.free_percent_min);
        let core = Core {
            sets: Sets::new(subvols),
            memory: Memory::new(),
            locks: Locks::new(),
            commit: OnceCell::new(),
            space,
        };
        Arc::new(Self { name: name.into(), core: Arc::new(core), health, watcher })
    }
}

impl Drop for Distribute {
    fn drop(&mut self) {
        self.watcher.abort();
    }
}

/// The volume serves wholly when all subvolumes do.
fn together(receivers: &[watch::Receiver<Health>]) -> Health {
    let mut sessions = 0_u64;
    for receiver in receivers {
        match *receiver.borrow() {
            Health::Down => return Health::Down,
            Health::Up { session } => sessions = sessions.wrapping_add(session),
        }
    }
    Health::Up { session: sessions }
}

async fn watch_all(receivers: Vec<watch::Receiver<Health>>, sender: watch::Sender<Health>) {
    let mut watched = receivers.clone();
    while !watched.is_empty() {
        let changes = watched.iter_mut().map(|receiver| Box::pin(receiver.changed()));
        let (changed, which, _) = select_all(changes).await;
        if changed.is_err() {
            // A layer that never changes needs no sender. What it said last still counts.
            watched.swap_remove(which);
        }
        let now = together(&receivers);
        sender.send_if_modified(|health| std::mem::replace(health, now) != now);
    }
}

impl Core {
    /// Run what must not stop half way when the caller no longer waits.
    async fn to_the_end<T, F>(self: &Arc<Self>, ctx: &Ctx, work: impl FnOnce(Arc<Self>, Ctx) -> F) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        match tokio::spawn(work(Arc::clone(self), ctx.clone())).await {
            Ok(answer) => answer,
            Err(stopped) if stopped.is_panic() => std::panic::resume_unwind(stopped.into_panic()),
            // The runtime ends.
            Err(_) => Err(FopError::Unreachable),
        }
    }

    /// The client leaves: every subvolume gives its leases back, as far as it can.
    async fn leave(&self, ctx: &Ctx, unlease: crate::fop::Unlease) -> Result<crate::reply::Done> {
        self.sets.ask_all(ctx, &unlease).await;
        Ok(crate::reply::Done)
    }

    /// The sum of what waits on all subvolumes.
    async fn backlog(&self, ctx: &Ctx, backlog: crate::fop::Backlog) -> Result<Waiting> {
        let mut sum = Waiting { pending: 0, dirty: 0 };
        for (_, answer) in self.sets.ask_all(ctx, &backlog).await {
            let waiting = answer?;
            sum.pending += waiting.pending;
            sum.dirty += waiting.dirty;
        }
        Ok(sum)
    }
}

impl Xlator for Distribute {
    fn name(&self) -> &str {
        &self.name
    }

    #[deny(clippy::wildcard_enum_match_arm)]
    fn call<'a>(&'a self, ctx: &'a Ctx, fop: Fop) -> BoxFuture<'a, Result<Reply>> {
        use crate::fop::{self as f};
        let core = &self.core;
        let inode = |gfid: Gfid, fd: Option<Fd>, fop: Fop| core.on_inode(ctx, gfid, fd, fop);
        match fop {
            Fop::Lookup(fop) => answer::<f::Lookup>(core.lookup(ctx, fop)),
            Fop::Create(fop) => {
                core.refresh_space(ctx);
                answer::<f::Create>(core.create(ctx, fop))
            }
            Fop::Mknod(fop) => answer::<f::Mknod>(core.mknod(ctx, fop)),
            Fop::Mkdir(fop) => {
                answer::<f::Mkdir>(core.to_the_end(ctx, async move |core, ctx| core.mkdir(&ctx, fop).await))
            }
            Fop::Symlink(fop) => answer::<f::Symlink>(core.symlink(ctx, fop)),
            Fop::Link(fop) => answer::<f::Link>(core.link(ctx, fop)),
            Fop::Unlink(fop) => answer::<f::Unlink>(core.unlink(ctx, fop)),
            Fop::Rmdir(fop) => {
                answer::<f::Rmdir>(core.to_the_end(ctx, async move |core, ctx| core.rmdir(&ctx, fop).await))
            }
            Fop::Rename(fop) => answer::<f::Rename>(core.rename(ctx, fop)),
            Fop::Readdir(fop) => answer::<f::Readdir>(core.readdir(ctx, fop)),
            Fop::Statfs(_) => answer::<f::Statfs>(core.statfs(ctx)),
            Fop::Release(fop) => answer::<f::Release>(core.release(ctx, fop)),
            Fop::CopyRange(fop) => answer::<f::CopyRange>(core.copy_range(ctx, fop)),
            Fop::Backlog(fop) => answer::<f::Backlog>(core.backlog(ctx, fop)),
            Fop::Getattr(ref f) => inode(f.gfid, f.fd, fop),
            Fop::Readlink(ref f) => inode(f.gfid, None, fop),
            Fop::Setattr(ref f) => inode(f.gfid, f.fd, fop),
            Fop::Truncate(ref f) => inode(f.gfid, f.fd, fop),
            Fop::Fallocate(ref f) => inode(f.gfid, f.fd, fop),
            Fop::Open(ref f) => inode(f.fd.gfid, None, fop),
            Fop::Read(ref f) => inode(f.gfid, f.fd, fop),
            Fop::Write(ref f) => inode(f.gfid, f.fd, fop),
            Fop::Seek(ref f) => inode(f.gfid, f.fd, fop),
            Fop::Flush(ref f) => inode(f.gfid, None, fop),
            Fop::Fsync(ref f) => inode(f.gfid, f.fd, fop),
            Fop::Getxattr(ref f) => inode(f.gfid, None, fop),
            Fop::Setxattr(ref f) => inode(f.gfid, None, fop),
            Fop::Removexattr(ref f) => inode(f.gfid, None, fop),
            Fop::Listxattr(ref f) => inode(f.gfid, None, fop),
            Fop::Lk(ref f) => inode(f.gfid, f.fd, fop),
            Fop::Unlease(fop) if fop.objects.is_empty() => answer::<f::Unlease>(core.leave(ctx, fop)),
            // Leases and marks are between replicate and its bricks.
            Fop::Lease(_) | Fop::Unlease(_) | Fop::Settle(_) | Fop::Mark(_) => {
                Box::pin(async { Err(Errno::INVAL.into()) })
            }
        }
    }

    fn health(&self) -> watch::Receiver<Health> {
        self.health.clone()
    }
}
