//! The advisory locks that programs of this client hold, with the copies that know of them.
//!
//! Nothing here sends a message: `lock.rs` and `relock.rs` do.
//!
//! Invariant: of one file, one request at a time changes anything, here or at the copies ([`Turn`]).

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;
use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::sync::OwnedMutexGuard;

use super::copies::CopySet;
use crate::fop::Lk;
use crate::ranges::{LockMode, Ranges};
use crate::types::{Fd, Gfid, LockOwner};

/// Which life of a copy: it may have forgotten what it was told in another.
pub(super) type Life = u64;

/// What one owner holds of one file.
#[derive(Clone, Debug, Default)]
pub(super) struct Held {
    pub(super) pid: i32,
    pub(super) ranges: Ranges,
    /// Through which open files it locked.
    pub(super) fds: SmallVec<[Fd; 1]>,
    /// In which life each copy was told of all ranges.
    told: SmallVec<[Life; 3]>,
}

impl Held {
    /// The copies that know of all, when `lives` are the lives of today.
    pub(super) fn at(&self, lives: &[Life]) -> CopySet {
        let knows = |copy: &usize| self.told.get(*copy) == Some(&lives[*copy]);
        (0..lives.len()).filter(knows).collect()
    }

    /// A copy knows all, since this life.
    pub(super) fn note_told(&mut self, copy: usize, life: Life) {
        if self.told.len() <= copy {
            self.told.resize(copy + 1, 0);
        }
        self.told[copy] = life;
    }
}

/// The owners of one file's locks.
pub(super) type Owners = HashMap<LockOwner, Held, RandomState>;

/// The locks of this client, by file.
#[derive(Debug, Default)]
pub(super) struct HeldLocks {
    files: Mutex<HashMap<Gfid, Arc<tokio::sync::Mutex<Owners>>, RandomState>>,
}

/// The right to change the locks of one file, and what they are.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    all: &'a HeldLocks,
    gfid: Gfid,
    owners: Option<OwnedMutexGuard<Owners>>,
}

impl HeldLocks {
    /// Wait until nobody else changes the locks of this file.
    pub(super) async fn turn(&self, gfid: Gfid) -> Turn<'_> {
        let file = Arc::clone(self.files.lock().entry(gfid).or_default());
        Turn { all: self, gfid, owners: Some(file.lock_owned().await) }
    }

    /// The files of which something is locked, or is being locked.
    pub(super) fn files(&self) -> Vec<Gfid> {
        self.files.lock().keys().copied().collect()
    }
}

impl Turn<'_> {
    pub(super) fn owners(&mut self) -> &mut Owners {
        self.owners.as_mut().expect("a turn has the owners until it ends")
    }

    /// What an owner has locked.
    pub(super) fn ranges(&mut self, owner: LockOwner) -> Ranges {
        self.owners().get(&owner).map(|held| held.ranges.clone()).unwrap_or_default()
    }

    /// These copies have locked what was asked for.
    pub(super) fn note_locked(&mut self, lk: &Lk, mode: LockMode, granted: &[(usize, Life)]) {
        let held = self.owners().entry(lk.owner).or_default();
        let fresh = held.ranges.is_empty();
        held.ranges.lock(lk.span, mode);
        held.pid = lk.pid;
        if let Some(fd) = lk.fd
            && !held.fds.contains(&fd)
        {
            held.fds.push(fd);
        }
        let told = std::mem::take(&mut held.told);
        for &(copy, life) in granted {
            // Who missed an earlier one still misses it.
            if fresh || told.get(copy) == Some(&life) {
                held.note_told(copy, life);
            }
        }
    }

    /// What was asked to be unlocked is no longer to be locked again.
    pub(super) fn note_unlocked(&mut self, lk: &Lk) {
        if let Some(held) = self.owners().get_mut(&lk.owner) {
            held.ranges.unlock(lk.span);
            if held.ranges.is_empty() {
                self.owners().remove(&lk.owner);
            }
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let idle = self.owners.take().is_some_and(|owners| owners.is_empty());
        if idle {
            let mut files = self.all.files.lock();
            // Who waits for a turn holds the file, too, and clears up when it ends.
            if files.get(&self.gfid).is_some_and(|file| Arc::strong_count(file) == 1) {
                files.remove(&self.gfid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fop::{Claim, LkWhat};
    use crate::ranges::Span;
    use crate::types::LockFamily;

    fn lk(start: u64) -> Lk {
        Lk {
            gfid: Gfid::ROOT,
            fd: Some(Fd { id: 3, gfid: Gfid::ROOT }),
            owner: LockOwner { family: LockFamily::Posix, id: 1 },
            pid: 5,
            what: LkWhat::Set(LockMode::Write, Claim::New),
            span: Span { start, end: start },
        }
    }

    #[tokio::test]
    async fn a_copy_that_missed_one_lock_does_not_count_until_it_was_told_of_all() {
        let locks = HeldLocks::default();
        let mut turn = locks.turn(Gfid::ROOT).await;
        turn.note_locked(&lk(1), LockMode::Write, &[(0, 1), (1, 1)]);
        turn.note_locked(&lk(5), LockMode::Write, &[(0, 1), (1, 1), (2, 1)]);
        let held = turn.owners().get_mut(&lk(1).owner).unwrap();
        assert_eq!(held.at(&[1, 1, 1]), [0, 1].into_iter().collect());
        assert_eq!(held.at(&[2, 1, 1]), CopySet::only(1), "a new life knows nothing");
        held.note_told(2, 1);
        assert_eq!(held.at(&[1, 1, 1]), CopySet::first(3));
        assert_eq!(held.fds.len(), 1);
    }

    #[tokio::test]
    async fn nothing_is_left_of_a_file_without_locks() {
        let locks = HeldLocks::default();
        locks.turn(Gfid::ROOT).await.note_locked(&lk(1), LockMode::Write, &[(0, 1)]);
        assert_eq!(locks.files(), [Gfid::ROOT]);
        locks.turn(Gfid::ROOT).await.note_unlocked(&Lk { span: Span::ALL, what: LkWhat::Unlock, ..lk(0) });
        assert!(locks.files().is_empty());
    }
}
