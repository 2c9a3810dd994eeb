//! Locks again at a copy that forgot us what programs hold, before the copy is used; and tells who lost a lock.
//!
//! As long as a quorum of the other copies knows of a lock, and says so now, nobody else can have got it, and the copy is
//! told again.
//! Else the copy takes it back only while it gives nothing new to anybody. If it does not, somebody else may have had
//! the lock meanwhile: the open files through which it was taken fail from then on, and it is let go of everywhere.

use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::future::join_all;
use futures::{StreamExt, stream};
use tokio::time::sleep;

use super::Replicate;
use super::copies::CopySet;
use super::held::{Held, Life};
use crate::fop::{Claim, Lk, LkWhat};
use crate::ranges::Span;
use crate::reply::Lockable;
use crate::types::{Gfid, LockOwner};

/// Files whose locks are taken again at the same time.
const FILES_AT_ONCE: usize = 32;

/// How often a copy is asked again that has given a lock of ours to somebody who cannot have it: it is being given back.
const ATTEMPTS: usize = 20;

/// The pause between two of them.
const PAUSE: Duration = Duration::from_millis(100);

/// What became of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Again {
    Told,
    /// The copy knows of another's lock.
    Taken,
    /// It gives locks to others already.
    Late,
    /// The copy went away.
    Gone,
}

impl Replicate {
    /// Which life of a copy this is.
    pub(super) fn life(&self, copy: usize) -> Life {
        self.lives[copy].load(Ordering::Acquire)
    }

    fn lives(&self) -> Vec<Life> {
        (0..self.copies.len()).map(|copy| self.life(copy)).collect()
    }

    /// What a copy was told counts no longer.
    pub(super) fn next_life(&self, copy: usize) {
        self.lives[copy].fetch_add(1, Ordering::AcqRel);
    }

    /// Tell one copy of every lock that it does not know.
    pub(super) async fn lock_again(&self, copy: usize) {
        let files = stream::iter(self.held.files());
        files.for_each_concurrent(FILES_AT_ONCE, |gfid| self.lock_file_again(gfid, copy)).await;
    }

    async fn lock_file_again(&self, gfid: Gfid, copy: usize) {
        let mut turn = self.held.turn(gfid).await;
        let owners: Vec<LockOwner> = turn.owners().keys().copied().collect();
        for owner in owners {
            let Some(held) = turn.owners().get_mut(&owner) else { continue };
            if !held.at(&self.lives()).has(copy) && self.lock_owner_again(gfid, owner, held, copy).await == Kept::No {
                let lost = turn.owners().remove(&owner);
                self.lose(gfid, owner, lost.unwrap_or_default(), copy).await;
            }
        }
    }

    async fn lock_owner_again(&self, gfid: Gfid, owner: LockOwner, held: &mut Held, copy: usize) -> Kept {
        for _ in 0..ATTEMPTS {
            let life = self.life(copy);
            let vouched = self.is_vouched_for(gfid, owner, held).await;
            let claim = if vouched { Claim::Vouched } else { Claim::Again };
            match self.tell_again(gfid, owner, held, (copy, claim)).await {
                Again::Told => {
                    held.note_told(copy, life);
                    return Kept::Yes;
                }
                Again::Gone => return Kept::Yes,
                Again::Taken | Again::Late if !vouched => return Kept::No,
                Again::Taken | Again::Late => {}
            }
            sleep(PAUSE).await;
        }
        tracing::warn!(set = self.name, %gfid, copy, "a copy keeps a lock for another that a quorum gave to us");
        Kept::Yes
    }

    /// A quorum says that the owner has its locks. What was noted is not enough: those sessions, too, may have ended.
    async fn is_vouched_for(&self, gfid: Gfid, owner: LockOwner, held: &Held) -> bool {
        let noted = held.at(&self.lives());
        if !self.rule.holds(noted) {
            return false;
        }
        let ask = |copy: usize| async move {
            let told = self.tell_again(gfid, owner, held, (copy, Claim::Again)).await;
            (told == Again::Told).then_some(copy)
        };
        self.rule.holds(join_all(noted.iter().map(ask)).await.into_iter().flatten().collect())
    }

    async fn tell_again(&self, gfid: Gfid, owner: LockOwner, held: &Held, (copy, claim): (usize, Claim)) -> Again {
        let ctx = self.own_ctx();
        let lk = |what, span| Lk { gfid, fd: held.fds.first().copied(), owner, pid: held.pid, what, span };
        for locked in held.ranges.iter() {
            let set = lk(LkWhat::Set(locked.mode, claim), locked.span);
            let again = match self.copies[copy].subvol.send(&ctx, set).await {
                Ok(Lockable::Free) => continue,
                Ok(Lockable::Held { .. } | Lockable::Grace) => Again::Taken,
                Ok(Lockable::Late) => Again::Late,
                Err(error) => {
                    tracing::debug!(copy, %gfid, %error, "could not lock again");
                    return Again::Gone;
                }
            };
            // Half of it is of no use.
            let unlocked = self.copies[copy].subvol.send(&ctx, lk(LkWhat::Unlock, Span::ALL)).await;
            return if unlocked.is_ok() { again } else { Again::Gone };
        }
        Again::Told
    }

    /// Somebody else may have had the lock: its owner must not go on as if nothing had happened.
    async fn lose(&self, gfid: Gfid, owner: LockOwner, lost: Held, copy: usize) {
        tracing::warn!(set = self.name, %gfid, ?owner, fds = ?lost.fds, copy, "a lock is lost: its open files fail");
        self.upcall.lock_lost(gfid, &lost.fds);
        let fd = lost.fds.first().copied();
        let unlock = Lk { gfid, fd, owner, pid: lost.pid, what: LkWhat::Unlock, span: Span::ALL };
        self.tell_for_sure(&self.own_ctx(), &unlock, self.up.get().without(CopySet::only(copy))).await;
    }
}

/// Whether a lock is still its owner's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kept {
    Yes,
    No,
}
