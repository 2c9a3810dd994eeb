//! Holds directories still while a change is made in steps.
//!
//! What changes names on several subvolumes holds the directories of these names on all subvolumes that it touches: for
//! everybody else, its steps are one. `Lease`, sent to a subvolume, takes the exclusive leases of the directories there
//! and keeps them; the steps between run under them (`Turn::Held`). Within this client a lock by directory does the same.
//!
//! Nobody ever waits crosswise:
//! - The locks of this client come first, in ascending order. Who waits for one holds no lease.
//! - Then the subvolumes in ascending order; on one of them all directories at once, which means that none is kept
//!   while another is waited for. All of a holder's directories are held on all of its subvolumes. So who holds
//!   directories waits only for those of a higher subvolume, and the one that got furthest waits for nobody.
//! - Where there are many subvolumes the leases are fetched from all at once first, and each let go as soon as it is
//!   there: who then holds them in order finds most in its hands, and waits for one round instead of one for each.
//! - A fop of its own uses one subvolume, and keeps no lease while it waits for another.
//! - A step waits for no directory of the holder where it is not held: [`Grip`] sees to that. What it does wait for
//!   are the leases of inodes, which lie below the directories. Who holds those either runs a fop, or holds them as
//!   directories by the same rules and has none of ours.
//!
//! A step takes milliseconds, and a brick fences only who does nothing for five seconds. A holder that was fenced all
//! the same (its machine slept) has the next step refused with `Fenced`, before it does anything. It then begins anew,
//! and finds what it left half done to be what a client leaves that dies: something that `lookup` understands.

use std::hash::BuildHasher;
use std::sync::Arc;

use foldhash::fast::RandomState;
use futures::FutureExt;
use futures::future::join_all;
use smallvec::{SmallVec, smallvec};
use tokio::runtime::Handle;
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};
use tokio::time::{Instant, timeout_at};

use crate::ctx::Ctx;
use crate::distribute::Core;
use crate::error::{Errno, FopError, Result};
use crate::fop::{Lease, Settled, Unlease};
use crate::types::{Epoch, Gfid, LeaseMode};

/// How often a change is begun anew because its leases were lost in the middle. Each time a brick has waited five seconds
/// in vain: more often than this, the client cannot be helped.
pub(super) const FENCES_MAX: usize = 4;

/// From how many subvolumes on leases are fetched before they are held.
const MANY: usize = 3;

/// How many locks directories are spread over: more than a client changes at a time.
const LOCKS: usize = 64;

/// Some of the subvolumes, in ascending order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reach(SmallVec<[usize; 4]>);

impl Reach {
    pub(super) fn of(sets: impl IntoIterator<Item = usize>) -> Self {
        let mut sets: SmallVec<[usize; 4]> = sets.into_iter().collect();
        sets.sort_unstable();
        sets.dedup();
        Self(sets)
    }

    pub(super) fn has(&self, set: usize) -> bool {
        self.0.contains(&set)
    }

    /// With one more, or with all.
    pub(super) fn wider(&self, core: &Core, more: Option<usize>) -> Self {
        match more {
            Some(set) => Self::of(self.0.iter().copied().chain([set])),
            None => Self::of(core.sets.all()),
        }
    }
}

/// The locks of this client.
#[derive(Debug)]
pub(super) struct Locks {
    slots: Box<[Arc<RwLock<()>>]>,
    hasher: RandomState,
}

impl Locks {
    pub(super) fn new() -> Self {
        Self { slots: (0..LOCKS).map(|_| Arc::default()).collect(), hasher: RandomState::default() }
    }

    fn slot(&self, directory: Gfid) -> usize {
        (self.hasher.hash_one(directory) >> 32) as usize % LOCKS
    }

    /// Keep others of this client from holding the directory.
    pub(super) async fn share(&self, ctx: &Ctx, directory: Gfid) -> Result<OwnedRwLockReadGuard<()>> {
        in_time(ctx, Arc::clone(&self.slots[self.slot(directory)]).read_owned()).await
    }

    async fn hold(&self, ctx: &Ctx, directories: &[Gfid]) -> Result<SmallVec<[OwnedRwLockWriteGuard<()>; 2]>> {
        let slots = Reach::of(directories.iter().map(|&directory| self.slot(directory)));
        let mut held = SmallVec::new();
        for slot in slots.0 {
            held.push(in_time(ctx, Arc::clone(&self.slots[slot]).write_owned()).await?);
        }
        Ok(held)
    }
}

async fn in_time<T>(ctx: &Ctx, lock: impl Future<Output = T>) -> Result<T> {
    timeout_at(Instant::from_std(ctx.deadline), lock).await.map_err(|_| FopError::Refused(Errno::TIMEDOUT))
}

/// Directories that stand still for everybody else, until it is dropped.
#[derive(Debug)]
pub(super) struct Hold<'a> {
    core: &'a Core,
    /// What the steps are asked with.
    pub(super) ctx: Ctx,
    directories: SmallVec<[Gfid; 2]>,
    held: Reach,
    _locks: SmallVec<[OwnedRwLockWriteGuard<()>; 2]>,
}

impl Hold<'_> {
    pub(super) fn has(&self, directory: Gfid) -> bool {
        self.directories.contains(&directory)
    }

    pub(super) fn is_whole(&self) -> bool {
        self.held.0.len() == self.core.sets.count()
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        for &set in &self.held.0 {
            let (subvol, ctx) = (Arc::clone(self.core.sets.get(set)), self.ctx.clone());
            let unlease = Unlease { objects: self.directories.iter().map(back).collect(), keep_shared: false };
            let mut release = async move { subvol.send(&ctx, unlease).await.map(drop) }.boxed();
            // A subvolume that takes its time is told all the same. What refuses it has no leases, or no client.
            if release.as_mut().now_or_never().is_none()
                && let Ok(runtime) = Handle::try_current()
            {
                runtime.spawn(release);
            }
        }
    }
}

impl Core {
    /// Hold these directories on these subvolumes.
    pub(super) async fn hold(&self, ctx: &Ctx, directories: &[Gfid], reach: &Reach) -> Result<Hold<'_>> {
        // Asked for once, of the root; that must not be while a part of it is held.
        self.volume_commit(ctx).await?;
        let mut gfids: SmallVec<[Gfid; 2]> = SmallVec::from_slice(directories);
        gfids.sort_unstable();
        gfids.dedup();
        let locks = self.locks.hold(ctx, &gfids).await?;
        let held = Reach(smallvec![]);
        let mut hold = Hold { core: self, ctx: ctx.held(), directories: gfids, held, _locks: locks };
        let gfids = hold.directories.iter().copied().collect();
        let lease = Lease { gfids, mode: LeaseMode::Exclusive, wait: true, reclaim: false, attrs: false };
        if reach.0.len() >= MANY {
            join_all(reach.0.iter().map(|&set| self.fetch(ctx, set, &lease))).await;
        }
        for &set in &reach.0 {
            match self.sets.ask(ctx, set, lease.clone()).await {
                // A store without leases serves this client alone.
                Ok(_) | Err(FopError::Refused(Errno::OPNOTSUPP)) => hold.held.0.push(set),
                Err(error) => return Err(error),
            }
        }
        Ok(hold)
    }

    /// Get leases from a subvolume without holding them. What goes wrong goes wrong again when they are held.
    async fn fetch(&self, ctx: &Ctx, set: usize, lease: &Lease) {
        if self.sets.ask(ctx, set, lease.clone()).await.is_ok() {
            let objects = lease.gfids.iter().map(back).collect();
            let _ = self.sets.ask(ctx, set, Unlease { objects, keep_shared: false }).await;
        }
    }
}

/// What says that a directory is no longer held.
fn back(&gfid: &Gfid) -> Settled {
    Settled { gfid, epoch: Epoch(0), changes: None }
}

/// What became of one attempt at a change.
#[derive(Debug)]
pub(super) enum Attempt<T> {
    Done(T),
    /// Nothing was done: the directories must be held on this subvolume, too, or on all.
    Beyond(Option<usize>),
    /// Nothing was done: this directory must be held, too, and all of them on all subvolumes.
    With(Gfid),
}

/// What stands still while a name is looked at.
#[derive(Clone, Copy, Debug)]
pub(super) enum Grip<'a> {
    /// Nothing.
    Free,
    /// The directory that the name is in, as far as it is held. Nothing else of it may be looked at.
    Held(&'a Hold<'a>),
}

impl Grip<'_> {
    /// The subvolume may be asked about the directory.
    pub(super) fn reaches(self, set: usize) -> bool {
        match self {
            Self::Free => true,
            Self::Held(hold) => hold.held.has(set),
        }
    }

    /// All may be asked.
    pub(super) fn reaches_all(self) -> bool {
        match self {
            Self::Free => true,
            Self::Held(hold) => hold.is_whole(),
        }
    }

    /// What does not fit together now will not do so later: it is left over.
    pub(super) fn is_whole(self) -> bool {
        matches!(self, Self::Held(hold) if hold.is_whole())
    }

    /// As [`Self::is_whole`], and this directory stands still, too.
    pub(super) fn is_whole_of(self, directory: Gfid) -> bool {
        matches!(self, Self::Held(hold) if hold.is_whole() && hold.has(directory))
    }
}
