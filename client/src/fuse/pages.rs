//! The pages of files that the kernel has, and how they are dropped where another client may write.
//!
//! A `read` needs none of this: the kernel asks for the attributes first, and drops the pages of a file that has changed. A
//! mapping asks for nothing. So the pages of a file that is open here (every mapping keeps it open) go before the lease
//! does, and what was written through a mapping under an exclusive lease is handed over with them. What is written through a
//! mapping while other clients read the file is on the bricks after msync, and may take the rest of its page with it: the
//! kernel does not tell us of a page that is about to be written to. Nor do the pages go where the kernel does not believe the
//! attributes: where nobody has asked for them here since another client last wanted the file.
//!
//! The kernel waits for pages that are being read or written, and those requests for us: while pages are being dropped,
//! they run under the lease that is on its way back. A write that waits for a lease that is not held may have its page
//! locked as long as it waits, perhaps for the client that recalls this one: then nobody waits for the kernel, which goes
//! on dropping.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::join_all;
use mortar_xlators::ctx::Ctx;
use mortar_xlators::error::{self, FopError};
use mortar_xlators::fop::{Operation, Read, Write};
use mortar_xlators::reply::{Data, Written};
use mortar_xlators::types::Gfid;
use mortar_xlators::xlator::Xlator;
use parking_lot::Mutex;
use rustix::io::Errno;
use tokio::sync::Notify;

use super::transport::notify::{Notifier, Stale};

/// How long a lease waits for pages to be dropped: enough to hand over some megabytes that were written through a mapping,
/// well below the time after which a brick fences.
const PAGES_TIME: Duration = Duration::from_millis(500);

/// What stands in the way of dropping the pages of a file, and who drops them.
#[derive(Clone, Copy, Debug, Default)]
struct Busy {
    dropping: u32,
    /// Writes that may wait for a lease.
    writing: u32,
}

/// Files with pages that are being dropped or written.
#[derive(Debug, Default)]
pub(crate) struct Pages {
    busy: Mutex<HashMap<Gfid, Busy, foldhash::fast::RandomState>>,
    /// How many files' pages are being dropped, to be looked at without the lock.
    dropping: AtomicUsize,
    /// A write begins to wait for a lease although pages of the file are being dropped.
    in_the_way: Notify,
}

/// Pages of this file are being dropped until this is.
#[derive(Debug)]
struct Dropping<'a>(&'a Pages, Gfid);

/// A write may wait for a lease until this is dropped.
#[derive(Debug)]
struct Writing<'a>(&'a Pages, Gfid);

impl Pages {
    fn change(&self, gfid: Gfid, change: impl FnOnce(&mut Busy)) {
        let mut files = self.busy.lock();
        let busy = files.entry(gfid).or_default();
        change(busy);
        if (busy.dropping, busy.writing) == (0, 0) {
            files.remove(&gfid);
        }
    }

    fn begin_dropping(&self, gfid: Gfid) -> Dropping<'_> {
        self.dropping.fetch_add(1, Ordering::AcqRel);
        self.change(gfid, |busy| busy.dropping += 1);
        Dropping(self, gfid)
    }

    fn are_dropped(&self, gfid: Gfid) -> bool {
        self.dropping.load(Ordering::Acquire) > 0 && self.busy.lock().get(&gfid).is_some_and(|busy| busy.dropping > 0)
    }

    fn are_written(&self, gfid: Gfid) -> bool {
        self.busy.lock().get(&gfid).is_some_and(|busy| busy.writing > 0)
    }

    /// Has the kernel forget the attributes and the pages of these files, by its numbers for them.
    ///
    /// Both at once: the kernel does not take in the answer to a GETATTR that it sent before it was told to forget, and a
    /// program would go on to read with the size of before. Answers those that the kernel does not know (yet).
    pub(super) async fn forget(&self, notifier: &Notifier, files: &[(Gfid, u64)]) -> Vec<u64> {
        let forgotten = files.iter().map(|&(gfid, nodeid)| async move {
            let outcome = self.forget_one(notifier, gfid, nodeid).await;
            (outcome == Err(Errno::NOENT)).then_some(nodeid)
        });
        join_all(forgotten).await.into_iter().flatten().collect()
    }

    async fn forget_one(&self, notifier: &Notifier, gfid: Gfid, nodeid: u64) -> Result<(), Errno> {
        let _dropping = self.begin_dropping(gfid);
        let mut dropped = tokio::task::spawn_blocking({
            let notifier = notifier.clone();
            move || notifier.inval_inode(nodeid, Stale::Data { offset: 0, length: 0 })
        });
        let all_dropped = async {
            loop {
                let in_the_way = self.in_the_way.notified();
                tokio::pin!(in_the_way);
                in_the_way.as_mut().enable();
                if self.are_written(gfid) {
                    return None;
                }
                tokio::select! {
                    outcome = &mut dropped => return outcome.ok(),
                    () = in_the_way => {}
                }
            }
        };
        match tokio::time::timeout(PAGES_TIME, all_dropped).await {
            Ok(Some(outcome)) => outcome,
            // Nobody knows whether the other thread has come as far as this.
            Ok(None) | Err(_) => notifier.inval_inode(nodeid, Stale::Attributes),
        }
    }

    /// Reads what the kernel wants to have in its pages.
    pub(super) async fn read(&self, volume: &dyn Xlator, ctx: &Ctx, read: Read) -> error::Result<Data> {
        match self.send_last(volume, ctx, read.gfid, &read).await {
            Some(answer) => answer,
            None => volume.send(ctx, read).await,
        }
    }

    /// The answer under a lease that is on its way back; `None` if there is no such lease, or no longer.
    async fn send_last<O: Operation + Clone>(
        &self,
        volume: &dyn Xlator,
        ctx: &Ctx,
        gfid: Gfid,
        operation: &O,
    ) -> Option<error::Result<O::Reply>> {
        if !self.are_dropped(gfid) {
            return None;
        }
        let answer = volume.send(&ctx.last(), operation.clone()).await;
        Some(answer).filter(|answer| !matches!(answer, Err(FopError::Fenced)))
    }

    /// Writes what may be in the kernel's pages already.
    pub(super) async fn write(&self, volume: &dyn Xlator, ctx: &Ctx, write: Write) -> error::Result<Written> {
        if let Some(answer) = self.send_last(volume, ctx, write.gfid, &write).await {
            return answer;
        }
        self.change(write.gfid, |busy| busy.writing += 1);
        let _writing = Writing(self, write.gfid);
        if self.dropping.load(Ordering::Acquire) > 0 {
            self.in_the_way.notify_waiters();
        }
        volume.send(ctx, write).await
    }
}

impl Drop for Dropping<'_> {
    fn drop(&mut self) {
        self.0.change(self.1, |busy| busy.dropping -= 1);
        self.0.dropping.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.0.change(self.1, |busy| busy.writing -= 1);
    }
}
