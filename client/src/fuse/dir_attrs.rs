//! Attributes of directories that a lease covers, kept here because the kernel will not.
//!
//! With every name made or removed the kernel throws away all it knows of the directory, and asks for its attributes
//! before it lets the next name be made: once for each file of an untar. The answer to what made the name brings the
//! directory's new times, so that question needs no message.
//!
//! Invariant: what is kept is at least as new as every change of this client that has been answered. Two changes of one
//! directory at a time leave nothing to keep, as nobody knows which answer is the newer.

use std::num::NonZeroUsize;

use lru::LruCache;
use mortar_xlators::types::{Gfid, Iatt};

/// Enough for the directories that programs work in; one takes about 200 bytes.
const DIRS_MAX: NonZeroUsize = NonZeroUsize::new(4096).expect("not zero");

/// A state of one directory as this client has changed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Version(u64);

#[derive(Debug)]
struct Dir {
    iatt: Option<Iatt>,
    version: Version,
    /// Changes that have not been answered.
    running: u32,
}

/// What is kept.
#[derive(Debug)]
pub(crate) struct DirAttrs {
    dirs: LruCache<Gfid, Dir, foldhash::fast::RandomState>,
    last: u64,
}

impl DirAttrs {
    /// Nothing is kept.
    pub(crate) fn new() -> Self {
        Self { dirs: LruCache::with_hasher(DIRS_MAX, foldhash::fast::RandomState::default()), last: 0 }
    }

    fn next(&mut self) -> Version {
        self.last += 1;
        Version(self.last)
    }

    fn dir(&mut self, gfid: Gfid) -> &mut Dir {
        let fresh = Dir { iatt: None, version: Version(self.last), running: 0 };
        self.dirs.get_or_insert_mut(gfid, || fresh)
    }

    /// What is known of a directory.
    pub(crate) fn get(&mut self, gfid: Gfid) -> Option<Iatt> {
        self.dirs.get(&gfid).and_then(|dir| dir.iatt)
    }

    /// The version that an answer to a question of now belongs to.
    pub(crate) fn version(&mut self, gfid: Gfid) -> Version {
        self.dir(gfid).version
    }

    /// Keeps an answer, unless something has changed since it was asked for.
    pub(crate) fn keep(&mut self, gfid: Gfid, asked: Version, iatt: Iatt) {
        let dir = self.dir(gfid);
        if dir.version == asked && dir.running == 0 {
            dir.iatt = Some(iatt);
        }
    }

    /// Nothing may be believed any more.
    pub(crate) fn drop_one(&mut self, gfid: Gfid) {
        let version = self.next();
        if let Some(dir) = self.dirs.peek_mut(&gfid) {
            (dir.iatt, dir.version) = (None, version);
        }
    }

    /// A change is about to be sent.
    pub(crate) fn begin(&mut self, gfid: Gfid) -> Version {
        let version = self.next();
        let dir = self.dir(gfid);
        dir.running += 1;
        if dir.running > 1 {
            dir.iatt = None;
        }
        dir.version = version;
        version
    }

    /// It has been answered, with the directory as it is now if only its times and its size can have changed.
    pub(crate) fn end(&mut self, gfid: Gfid, begun: Version, now: Option<&Iatt>) {
        let version = self.next();
        // What was thrown out meanwhile comes back without a count; it then counts from below, and keeps nothing.
        let Some(dir) = self.dirs.peek_mut(&gfid) else { return };
        dir.running = dir.running.saturating_sub(1);
        let alone = dir.version == begun && dir.running == 0;
        dir.version = version;
        dir.iatt = match (dir.iatt, now) {
            (Some(old), Some(now)) if alone => Some(Iatt {
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

#[cfg(test)]
mod tests {
    use mortar_xlators::types::{Kind, Lacks, Time};

    use super::*;

    fn at(sec: i64) -> Iatt {
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

    fn kept_after(steps: impl FnOnce(&mut DirAttrs)) -> Option<i64> {
        let mut dirs = DirAttrs::new();
        let asked = dirs.version(Gfid::ROOT);
        dirs.keep(Gfid::ROOT, asked, at(1));
        steps(&mut dirs);
        dirs.get(Gfid::ROOT).map(|iatt| iatt.mtime.sec)
    }

    #[test]
    fn a_change_brings_the_new_times() {
        assert_eq!(
            kept_after(|dirs| {
                let begun = dirs.begin(Gfid::ROOT);
                dirs.end(Gfid::ROOT, begun, Some(&at(5)));
            }),
            Some(5)
        );
    }

    #[test]
    fn two_changes_at_once_leave_nothing() {
        assert_eq!(
            kept_after(|dirs| {
                let (first, second) = (dirs.begin(Gfid::ROOT), dirs.begin(Gfid::ROOT));
                dirs.end(Gfid::ROOT, second, Some(&at(6)));
                dirs.end(Gfid::ROOT, first, Some(&at(5)));
            }),
            None
        );
    }

    #[test]
    fn a_failed_change_leaves_nothing() {
        assert_eq!(
            kept_after(|dirs| {
                let begun = dirs.begin(Gfid::ROOT);
                dirs.end(Gfid::ROOT, begun, None);
            }),
            None
        );
    }

    #[test]
    fn an_answer_from_before_a_change_is_not_kept() {
        assert_eq!(
            kept_after(|dirs| {
                let asked = dirs.version(Gfid::ROOT);
                let begun = dirs.begin(Gfid::ROOT);
                dirs.end(Gfid::ROOT, begun, Some(&at(5)));
                dirs.keep(Gfid::ROOT, asked, at(2));
            }),
            Some(5)
        );
    }

    #[test]
    fn an_answer_from_before_a_recall_is_not_kept() {
        assert_eq!(
            kept_after(|dirs| {
                let asked = dirs.version(Gfid::ROOT);
                dirs.drop_one(Gfid::ROOT);
                dirs.keep(Gfid::ROOT, asked, at(2));
            }),
            None
        );
    }
}
