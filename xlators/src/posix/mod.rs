//! The bottom of a brick: fops as system calls on one directory, in the on-disk format of GlusterFS.
//!
//! This file is the fop table once more, in synchronous Rust; each file beside it reads like the man pages of its fops.
//! What ends in microseconds runs where it was asked for, since to change the thread costs more; what may wait for the
//! disk runs on one bounded pool of threads.
//!
//! Read in this order: `handle` (names of handles), `dirs` (the held descriptors), `store` (what fops work on), `entry`,
//! `birth`, `names`, `rename`, `inode`, `data`, `dir`, `xattr`; `brick` and `clean` are about the start.
//!
//! Invariant: no name from the wire and no text on the disk leads out of the brick; no symbolic link is followed.

mod acl;
mod at;
mod birth;
mod brick;
mod clean;
mod data;
mod dir;
mod dirs;
mod entry;
mod files;
mod gfid2path;
mod handle;
mod inode;
mod marks;
mod mdata;
mod nameless;
mod names;
mod rename;
mod reserve;
mod stopped;
mod store;
mod sys;
#[cfg(test)]
mod tests;
mod xattr;

use std::path::Path;
use std::sync::Arc;

use futures::future::BoxFuture;
use tokio::sync::{Semaphore, watch};
use uuid::Uuid;

use crate::ctx::Ctx;
use crate::error::{Errno, Result};
use crate::fop::{Fop, Read, Write};
use crate::reply::{Done, Reply};
use crate::types::ClientId;
use crate::xlator::{Health, Xlator};
use data::ReadStep;
use store::Store;

pub use brick::{BrickError, create_brick, prepare_process};

/// A write that is larger may wait for the disk to take earlier ones.
const WRITE_INLINE_BYTES_MAX: usize = 256 << 10;

/// How a brick is served.
#[derive(Clone, Debug)]
pub struct PosixOptions {
    /// What the layer is called in logs.
    pub name: String,
    /// Keep names and attributes only.
    pub arbiter: bool,
    /// The most names of one inode; what the file system allows where `None`.
    pub hardlinks_max: Option<u32>,
    /// This share of the disk, in percent, is not for ordinary clients (`storage.reserve`).
    pub reserve_percent: u8,
    /// The most directories kept open, beside the 256 of the first level.
    pub dirs_open_max: usize,
    /// The most inodes whose times are remembered; one takes about 150 bytes.
    pub inodes_remembered_max: usize,
    /// The most files that clients have open.
    pub open_files_max: usize,
    /// The most threads that wait for this brick's disk at one time.
    pub waiting_threads_max: usize,
}

impl Default for PosixOptions {
    fn default() -> Self {
        Self {
            name: "posix".into(),
            arbiter: false,
            hardlinks_max: None,
            reserve_percent: 1,
            dirs_open_max: 4096,
            inodes_remembered_max: 65_536,
            open_files_max: 65_536,
            waiting_threads_max: 16,
        }
    }
}

/// A brick's directory, served.
#[derive(Debug)]
pub struct Posix {
    store: Arc<Store>,
    waiting: Arc<Semaphore>,
    health: watch::Sender<Health>,
    last_life: LastLife,
}

/// How the brick stopped before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastLife {
    /// In order, with no client left; or there was none.
    Ended,
    /// With clients that may not know it.
    Broke,
}

impl Posix {
    /// Serve the brick at `path`, if it is one, whole, and of this volume.
    pub fn open(path: &Path, volume_id: Uuid, options: PosixOptions) -> Result<Arc<Self>, BrickError> {
        let dirs = brick::open(path, volume_id, &options)?;
        let waiting = Arc::new(Semaphore::new(options.waiting_threads_max.max(1)));
        let store = Arc::new(Store::new(dirs, options));
        store.count_hidden_dirs(volume_id);
        // A file that cannot be taken away proves nothing.
        let ended = stopped::take(&store.dirs).unwrap_or(false);
        let last_life = if ended { LastLife::Ended } else { LastLife::Broke };
        Ok(Arc::new(Self { store, waiting, health: watch::Sender::new(Health::Up { session: 0 }), last_life }))
    }

    /// How the brick stopped before.
    pub fn last_life(&self) -> LastLife {
        self.last_life
    }

    /// The brick stops in order, and no client is left.
    pub fn end_in_order(&self) -> Result<()> {
        Ok(stopped::leave(&self.store.dirs.glusterfs)?)
    }

    /// A client is gone for good: close what it had open.
    pub fn client_gone(&self, client: ClientId) {
        self.store.client_gone(client);
    }

    /// Run what may wait for the disk. It goes on to its end even if nobody waits for the answer any more.
    async fn wait<T: Send + 'static>(&self, work: impl FnOnce(&Store) -> T + Send + 'static) -> Result<T> {
        let turn = self.waiting.clone().acquire_owned().await.expect("nobody closes the semaphore");
        let store = self.store.clone();
        let done = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            work(&store)
        });
        // A panic there is a defect of ours, which one fop may pay for but not the brick.
        done.await.map_err(|_| Errno::IO.into())
    }

    /// As [`Self::wait`], for a fop.
    async fn wait_fop<T: Send + 'static>(
        &self,
        ctx: &Ctx,
        fop: impl FnOnce(&Store, &Ctx) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let ctx = ctx.clone();
        self.wait(move |store| fop(store, &ctx)).await?
    }

    /// Drop what takes long to free, without anybody waiting for it.
    fn free_later<T: Send + 'static>(&self, thing: Option<T>) {
        if let Some(thing) = thing {
            tokio::task::spawn_blocking(move || drop(thing));
        }
    }

    async fn read(&self, ctx: &Ctx, fop: Read) -> Result<Reply> {
        match self.store.read(ctx, &fop)? {
            ReadStep::Done(data) => Ok(Reply::Read(data)),
            ReadStep::Disk(file, data) => {
                let read = self.wait(move |store| store.read_disk(&file, &fop, data)).await?;
                read.map(Reply::Read)
            }
        }
    }

    async fn write(&self, ctx: &Ctx, fop: Write) -> Result<Reply> {
        if fop.sync || fop.data.len() > WRITE_INLINE_BYTES_MAX {
            return self.wait_fop(ctx, move |store, ctx| store.write_then(ctx, &fop)).await.map(Reply::Write);
        }
        self.store.write_then(ctx, &fop).map(Reply::Write)
    }

    /// What may wait for the disk, or leaves something behind that does.
    async fn call_waiting(&self, ctx: &Ctx, fop: Fop) -> Result<Reply> {
        match fop {
            Fop::Unlink(f) => {
                let (removed, large) = self.store.unlink(ctx, &f)?;
                self.free_later(large);
                Ok(Reply::Unlink(removed))
            }
            Fop::Release(f) => {
                self.free_later(self.store.release(ctx.client, &f));
                Ok(Reply::Release(Done))
            }
            Fop::Read(f) => self.read(ctx, f).await,
            Fop::Write(f) => self.write(ctx, f).await,
            Fop::Readdir(f) if self.store.readdir_may_wait(ctx, &f) => {
                self.wait_fop(ctx, move |store, ctx| store.readdir(ctx, &f)).await.map(Reply::Readdir)
            }
            Fop::Readdir(f) => self.store.readdir(ctx, &f).map(Reply::Readdir),
            Fop::Fallocate(f) => {
                self.wait_fop(ctx, move |store, ctx| store.fallocate(ctx, &f)).await.map(Reply::Fallocate)
            }
            Fop::CopyRange(f) => {
                self.wait_fop(ctx, move |store, ctx| store.copy_range(ctx, &f)).await.map(Reply::CopyRange)
            }
            Fop::Fsync(f) => self.wait_fop(ctx, move |store, ctx| store.fsync(ctx, &f)).await.map(Reply::Fsync),
            _ => Err(Errno::OPNOTSUPP.into()),
        }
    }
}

impl Xlator for Posix {
    fn name(&self) -> &str {
        &self.store.options.name
    }

    #[deny(clippy::wildcard_enum_match_arm)]
    fn call<'a>(&'a self, ctx: &'a Ctx, fop: Fop) -> BoxFuture<'a, Result<Reply>> {
        let store = &self.store;
        Box::pin(async move {
            match fop {
                Fop::Lookup(f) => store.lookup(ctx, &f).map(Reply::Lookup),
                Fop::Getattr(f) => store.getattr(ctx, &f).map(Reply::Getattr),
                Fop::Create(f) => store.create(ctx, &f).map(Reply::Create),
                Fop::Mknod(f) => store.mknod(ctx, &f).map(Reply::Mknod),
                Fop::Mkdir(f) => store.mkdir(ctx, &f).map(Reply::Mkdir),
                Fop::Symlink(f) => store.symlink(ctx, &f).map(Reply::Symlink),
                Fop::Link(f) => store.link(ctx, &f).map(Reply::Link),
                Fop::Rmdir(f) => store.rmdir(ctx, &f).map(Reply::Rmdir),
                Fop::Rename(f) => store.rename(ctx, &f).map(Reply::Rename),
                Fop::Readlink(f) => store.readlink(&f).map(Reply::Readlink),
                Fop::Setattr(f) => store.setattr(ctx, &f).map(Reply::Setattr),
                Fop::Truncate(f) => store.truncate(ctx, &f).map(Reply::Truncate),
                Fop::Open(f) => store.open(ctx, &f).map(Reply::Open),
                Fop::Seek(f) => store.seek(ctx, &f).map(Reply::Seek),
                Fop::Getxattr(f) => store.getxattr(ctx, &f).map(Reply::Getxattr),
                Fop::Setxattr(f) => store.setxattr(ctx, &f).map(Reply::Setxattr),
                Fop::Removexattr(f) => store.removexattr(ctx, &f).map(Reply::Removexattr),
                Fop::Listxattr(f) => store.listxattr(ctx, &f).map(Reply::Listxattr),
                Fop::Statfs(_) => store.statfs().map(Reply::Statfs),
                Fop::Unlink(_) | Fop::Release(_) | Fop::Read(_) | Fop::Write(_) | Fop::Readdir(_) => {
                    self.call_waiting(ctx, fop).await
                }
                Fop::Fallocate(_) | Fop::CopyRange(_) | Fop::Fsync(_) => self.call_waiting(ctx, fop).await,
                // Nothing is kept back here.
                Fop::Flush(_) => Ok(Reply::Flush(Done)),
                // Answered by the layers above.
                Fop::Lease(_) | Fop::Unlease(_) | Fop::Settle(_) | Fop::Mark(_) | Fop::Backlog(_) | Fop::Lk(_) => {
                    Err(Errno::OPNOTSUPP.into())
                }
            }
        })
    }

    fn health(&self) -> watch::Receiver<Health> {
        self.health.subscribe()
    }
}
