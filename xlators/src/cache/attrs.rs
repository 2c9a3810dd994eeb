//! Attributes that a lease of this client covers: a question for them needs no message.
//!
//! The kernel keeps attributes, too, but throws them away more often than they change: of a directory with every name
//! that is made or removed, of a file when it has been read. The answer to what this client changes brings the new ones.
//!
//! Invariant: what is kept is at least as new as every change of this client that has been answered. Two changes of one
//! inode at a time leave nothing to keep, as nobody knows which answer is the newer.

use std::hash::BuildHasher;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use foldhash::fast::RandomState;
use lru::LruCache;
use parking_lot::{Mutex, MutexGuard};

use crate::types::{Gfid, Iatt};

/// Power of two, enough that two threads seldom meet in one shard.
const SHARDS: usize = 16;
/// Inodes per shard: with all shards about as many as leases are held, some megabytes.
const SHARD_MAX: NonZeroUsize = NonZeroUsize::new(2048).expect("not zero");

/// When a question was asked, among the changes of this client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Asked(u64);

#[derive(Debug)]
struct Known {
    iatt: Option<Iatt>,
    /// The last change.
    changed: Asked,
    /// Changes that have not been answered.
    running: u32,
}

#[derive(Debug)]
struct Shard {
    inodes: LruCache<Gfid, Known, RandomState>,
    /// The last change of any inode that was thrown out: an answer that was asked for before it may be old.
    forgotten: Asked,
}

/// The attributes of inodes.
#[derive(Debug)]
pub(super) struct Attrs {
    shards: Vec<Mutex<Shard>>,
    hasher: RandomState,
    changes: AtomicU64,
}

impl Attrs {
    pub(super) fn new() -> Self {
        let shard = || {
            let inodes = LruCache::with_hasher(SHARD_MAX, RandomState::default());
            Mutex::new(Shard { inodes, forgotten: Asked(0) })
        };
        let shards = (0..SHARDS).map(|_| shard()).collect();
        Self { shards, hasher: RandomState::default(), changes: AtomicU64::new(0) }
    }

    fn shard(&self, gfid: Gfid) -> MutexGuard<'_, Shard> {
        let hash = self.hasher.hash_one(gfid) >> 32;
        self.shards[hash as usize % SHARDS].lock()
    }

    /// Take this before asking for attributes.
    pub(super) fn now(&self) -> Asked {
        Asked(self.changes.load(Ordering::Acquire))
    }

    fn next(&self) -> Asked {
        Asked(self.changes.fetch_add(1, Ordering::AcqRel) + 1)
    }

    /// The attributes, if they are known.
    pub(super) fn get(&self, gfid: Gfid) -> Option<Iatt> {
        self.shard(gfid).inodes.get(&gfid).and_then(|known| known.iatt)
    }

    /// Keeps an answer, unless something has changed since it was asked for, here or (`still_ours`) elsewhere. Says
    /// whether it has been kept: else nobody may rely on it.
    pub(super) fn keep(&self, iatt: &Iatt, asked: Asked, still_ours: impl FnOnce() -> bool) -> bool {
        let mut shard = self.shard(iatt.gfid);
        let unchanged = match shard.inodes.peek(&iatt.gfid) {
            Some(known) => known.changed <= asked && known.running == 0,
            None => shard.forgotten <= asked,
        };
        let keep = unchanged && still_ours();
        if keep {
            shard.known(iatt.gfid).iatt = Some(*iatt);
        }
        keep
    }

    /// It has changed in a way that no answer shows.
    pub(super) fn changed(&self, gfid: Gfid) {
        let mut shard = self.shard(gfid);
        let changed = self.next();
        let known = shard.known(gfid);
        (known.iatt, known.changed) = (None, changed);
    }

    /// Others may change these from now on. Answers to questions that are on their way are told by `still_ours`, those to
    /// changes find that something came between.
    pub(super) fn forget(&self, gfids: &[Gfid]) {
        for gfid in gfids {
            let mut shard = self.shard(*gfid);
            let forgotten = self.next();
            if let Some(known) = shard.inodes.peek_mut(gfid) {
                (known.iatt, known.changed) = (None, forgotten);
            }
        }
    }

    /// A change is about to be sent. What the guard is not told, it counts as unknown.
    pub(super) fn begin(self: &Arc<Self>, gfid: Gfid) -> Change {
        let mut shard = self.shard(gfid);
        let begun = self.next();
        let known = shard.known(gfid);
        known.running += 1;
        if known.running > 1 {
            known.iatt = None;
        }
        known.changed = begun;
        Change { attrs: Arc::clone(self), gfid, begun, after: None }
    }

    fn end(&self, change: &Change) {
        let mut shard = self.shard(change.gfid);
        let ended = self.next();
        // What was thrown out meanwhile comes back without a count; it then counts from below, and keeps nothing.
        let Some(known) = shard.inodes.peek_mut(&change.gfid) else { return };
        known.running = known.running.saturating_sub(1);
        let alone = known.changed == change.begun && known.running == 0;
        known.changed = ended;
        known.iatt = match (known.iatt, &change.after) {
            (_, Some(After::Inode(now))) if alone => Some(*now),
            (Some(old), Some(After::Names(now))) if alone => Some(Iatt {
                size: now.size,
                blocks: now.blocks,
                mtime: old.mtime.max(now.mtime),
                ctime: old.ctime.max(now.ctime),
                ..old
            }),
            _ => None,
        };
    }
}

impl Shard {
    fn known(&mut self, gfid: Gfid) -> &mut Known {
        if !self.inodes.contains(&gfid) {
            let fresh = Known { iatt: None, changed: self.forgotten, running: 0 };
            if let Some((_, old)) = self.inodes.push(gfid, fresh) {
                self.forgotten = self.forgotten.max(old.changed);
            }
        }
        self.inodes.get_mut(&gfid).expect("it was just put there")
    }
}

/// What a change has left behind.
#[derive(Clone, Copy, Debug)]
enum After {
    /// All attributes.
    Inode(Iatt),
    /// Those of a directory on the subvolume that has the name; times and size count.
    Names(Iatt),
}

/// A change that has not been answered.
#[derive(Debug)]
pub(super) struct Change {
    attrs: Arc<Attrs>,
    gfid: Gfid,
    begun: Asked,
    after: Option<After>,
}

impl Change {
    /// It worked, and this is how the inode is now.
    pub(super) fn is(mut self, now: &Iatt) {
        self.after = (now.gfid == self.gfid).then_some(After::Inode(*now));
    }

    /// A name was made or removed, and touched no more of the directory than its times and its size.
    pub(super) fn has_names(mut self, now: &Iatt) {
        self.after = Some(After::Names(*now));
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        self.attrs.end(self);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::types::{Kind, Lacks, Time};

    pub(in crate::cache) fn at(sec: i64) -> Iatt {
        let time = Time { sec, nsec: 0 };
        Iatt {
            gfid: Gfid::ROOT,
            kind: Kind::Dir,
            mode: 0o755,
            nlink: 2,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            blocks: 0,
            atime: time,
            mtime: time,
            ctime: time,
            lacks: Lacks::empty(),
        }
    }

    /// What is known of the root after `steps`, as its time.
    fn known_after(steps: impl FnOnce(&Arc<Attrs>)) -> Option<i64> {
        let attrs = Arc::new(Attrs::new());
        attrs.keep(&at(1), attrs.now(), || true);
        steps(&attrs);
        attrs.get(Gfid::ROOT).map(|iatt| iatt.mtime.sec)
    }

    #[test]
    fn an_answer_is_kept_until_the_inode_changes() {
        assert_eq!(known_after(|_| {}), Some(1));
        assert_eq!(known_after(|attrs| attrs.changed(Gfid::ROOT)), None);
        assert_eq!(known_after(|attrs| attrs.forget(&[Gfid::ROOT])), None);
        assert_eq!(known_after(|attrs| drop(attrs.begin(Gfid::ROOT))), None, "nobody knows how it ended");
    }

    #[test]
    fn the_answer_to_a_change_is_kept() {
        assert_eq!(known_after(|attrs| attrs.begin(Gfid::ROOT).is(&at(2))), Some(2));
        assert_eq!(known_after(|attrs| attrs.begin(Gfid::ROOT).has_names(&at(2))), Some(2));
        let two = |attrs: &Arc<Attrs>| {
            let (first, second) = (attrs.begin(Gfid::ROOT), attrs.begin(Gfid::ROOT));
            second.is(&at(3));
            first.is(&at(2));
        };
        assert_eq!(known_after(two), None, "nobody knows which was the last");
    }

    #[test]
    fn an_answer_that_was_asked_for_before_a_change_or_a_recall_is_not_kept() {
        let late = |attrs: &Arc<Attrs>| {
            let asked = attrs.now();
            attrs.changed(Gfid::ROOT);
            attrs.keep(&at(2), asked, || true);
        };
        assert_eq!(known_after(late), None);
        let recalled = |attrs: &Arc<Attrs>| {
            attrs.forget(&[Gfid::ROOT]);
            attrs.keep(&at(2), attrs.now(), || false);
        };
        assert_eq!(known_after(recalled), None);
        let recalled_in_a_change = |attrs: &Arc<Attrs>| {
            let change = attrs.begin(Gfid::ROOT);
            attrs.forget(&[Gfid::ROOT]);
            change.is(&at(2));
        };
        assert_eq!(known_after(recalled_in_a_change), None);
        let running = |attrs: &Arc<Attrs>| {
            let change = attrs.begin(Gfid::ROOT);
            attrs.keep(&at(2), attrs.now(), || true);
            drop(change);
        };
        assert_eq!(known_after(running), None);
    }

    #[test]
    fn what_was_thrown_out_is_not_known_anew_from_an_old_answer() {
        let thrown_out = |attrs: &Arc<Attrs>| {
            let asked = attrs.now();
            attrs.changed(Gfid::ROOT);
            for number in 0..(SHARDS * SHARD_MAX.get() * 2) as u128 {
                attrs.changed(Gfid::from_bytes((number + 2).to_be_bytes()));
            }
            attrs.keep(&at(2), asked, || true);
        };
        assert_eq!(known_after(thrown_out), None);
    }
}
