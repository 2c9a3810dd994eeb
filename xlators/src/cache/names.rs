//! What is known of the names in directories, as long as their leases hold: in those that this client has made, every
//! name; in those that it has listed, which names lead to which file.
//!
//! Invariant: a name that is in a complete directory is in its list. A name in the list need not be there (any more),
//! unless it has a gfid: then it leads to that inode.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};

use foldhash::fast::RandomState;
use lru::LruCache;
use parking_lot::Mutex;

use crate::reply::DirEntry;
use crate::types::{Cover, Gfid, Kind, Name};

/// Names that are remembered, of all directories together: some megabytes.
const NAMES_MAX: usize = 65_536;

/// Counters of changes that directories share: two that are worked on at a time seldom meet.
const COUNTERS: usize = 64;

#[derive(Debug, Default)]
struct Directory {
    complete: bool,
    /// The names are copies: those of requests may be parts of large buffers.
    names: HashMap<Box<[u8]>, Option<Gfid>, RandomState>,
}

#[derive(Debug)]
struct Known {
    directories: LruCache<Gfid, Directory, RandomState>,
    names: usize,
}

/// The names in directories.
#[derive(Debug)]
pub(super) struct Names {
    known: Mutex<Known>,
    changes: Box<[AtomicU64]>,
    hasher: RandomState,
}

/// How many changes of names there had been.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Changes(u64);

impl Names {
    pub(super) fn new() -> Self {
        let directories = LruCache::unbounded_with_hasher(RandomState::default());
        Self {
            known: Mutex::new(Known { directories, names: 0 }),
            changes: (0..COUNTERS).map(|_| AtomicU64::new(0)).collect(),
            hasher: RandomState::default(),
        }
    }

    fn counter(&self, directory: Gfid) -> &AtomicU64 {
        &self.changes[(self.hasher.hash_one(directory) >> 32) as usize % COUNTERS]
    }

    /// Take this before asking for a listing.
    pub(super) fn changes(&self, directory: Gfid) -> Changes {
        Changes(self.counter(directory).load(Ordering::Acquire))
    }

    /// A directory was made, and is empty, if nobody else can have been in it since.
    pub(super) fn born(&self, directory: Gfid, still_ours: impl FnOnce() -> bool) {
        let mut known = self.known.lock();
        if still_ours() {
            known.put(directory, Directory { complete: true, ..Directory::default() });
            known.trim();
        }
    }

    /// A name may come into a directory.
    pub(super) fn add(&self, directory: Gfid, name: &Name) {
        let mut known = self.known.lock();
        self.counter(directory).fetch_add(1, Ordering::AcqRel);
        if let Some(at) = known.directories.get_mut(&directory)
            && (at.complete || at.names.contains_key(name.as_bytes()))
            && at.names.insert(name.as_bytes().into(), None).is_none()
        {
            known.names += 1;
            known.trim();
        }
    }

    /// A listing showed these, unless this client has changed names since, or others (`still_ours`) may have.
    ///
    /// Covered names in a listing lead to files whose content is where the name belongs.
    pub(super) fn listed(
        &self,
        directory: Gfid,
        entries: &[DirEntry],
        then: Changes,
        still_ours: impl FnOnce() -> bool,
    ) {
        let covered = |entry: &&DirEntry| {
            entry.kind != Kind::Dir && entry.found.as_ref().is_some_and(|found| found.cover.contains(Cover::NAME))
        };
        let mut files = entries.iter().filter(covered).peekable();
        if files.peek().is_none() {
            return;
        }
        let mut known = self.known.lock();
        if self.changes(directory) != then || !still_ours() {
            return;
        }
        if !known.directories.contains(&directory) {
            known.put(directory, Directory::default());
        }
        let mut more = 0;
        if let Some(at) = known.directories.get_mut(&directory) {
            for entry in files {
                let new = at.names.insert(entry.name.as_bytes().into(), Some(entry.gfid)).is_none();
                more += usize::from(new);
            }
        }
        known.names += more;
        known.trim();
    }

    /// The file that a name leads to for certain. It is about to lead there no more.
    pub(super) fn take(&self, directory: Gfid, name: &Name) -> Option<Gfid> {
        let mut known = self.known.lock();
        self.counter(directory).fetch_add(1, Ordering::AcqRel);
        known.directories.get_mut(&directory)?.names.get_mut(name.as_bytes())?.take()
    }

    /// There is no such name, for certain.
    pub(super) fn lacks(&self, directory: Gfid, name: &Name) -> bool {
        let lacks = |at: &Directory| at.complete && !at.names.contains_key(name.as_bytes());
        self.known.lock().directories.get(&directory).is_some_and(lacks)
    }

    /// Others may be in these directories from now on.
    pub(super) fn forget(&self, directories: &[Gfid]) {
        let mut known = self.known.lock();
        for directory in directories {
            known.pop(*directory);
        }
    }
}

impl Known {
    /// An empty directory counts, too.
    fn put(&mut self, gfid: Gfid, directory: Directory) {
        self.names += 1;
        if let Some(old) = self.directories.put(gfid, directory) {
            self.names -= old.names.len() + 1;
        }
    }

    fn pop(&mut self, directory: Gfid) {
        if let Some(old) = self.directories.pop(&directory) {
            self.names -= old.names.len() + 1;
        }
    }

    fn trim(&mut self) {
        while self.names > NAMES_MAX
            && let Some((_, old)) = self.directories.pop_lru()
        {
            self.names -= old.names.len() + 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::attrs::tests::at;
    use crate::reply::Found;
    use crate::types::{AttrMask, Iatt};

    const DIRECTORY: Gfid = Gfid::from_bytes([9; 16]);

    fn name(text: &str) -> Name {
        Name::new(text.as_bytes().to_vec()).unwrap()
    }

    #[test]
    fn what_was_never_put_into_a_new_directory_is_not_there() {
        let names = Names::new();
        assert!(!names.lacks(DIRECTORY, &name("a")), "an unknown directory");
        names.born(DIRECTORY, || true);
        names.add(DIRECTORY, &name("a"));
        assert!(!names.lacks(DIRECTORY, &name("a")) && names.lacks(DIRECTORY, &name("b")));
        names.forget(&[DIRECTORY]);
        assert!(!names.lacks(DIRECTORY, &name("b")));
        assert_eq!(names.known.lock().names, 0);
    }

    fn listed(text: &str, cover: Cover) -> DirEntry {
        let gfid = Gfid::from_bytes([7; 16]);
        let iatt = Iatt { gfid, kind: Kind::File, ..at(1) };
        let found = Found { iatt, exact: AttrMask::all(), cover, layout: None, linkto: None, marks: Vec::new() };
        DirEntry { name: name(text), gfid, kind: Kind::File, cookie: 1, found: Some(Box::new(found)) }
    }

    #[test]
    fn a_name_of_a_listing_is_certain_once_and_until_something_happens() {
        let names = Names::new();
        let (entries, then) = ([listed("a", Cover::NAME), listed("b", Cover::empty())], names.changes(DIRECTORY));
        names.listed(DIRECTORY, &entries, then, || true);
        assert_eq!(names.take(DIRECTORY, &name("b")), None, "others may change it");
        assert_eq!(names.take(DIRECTORY, &name("a")), Some(entries[0].gfid));
        assert_eq!(names.take(DIRECTORY, &name("a")), None, "it is on its way out");
        names.listed(DIRECTORY, &entries, then, || true);
        assert_eq!(names.take(DIRECTORY, &name("a")), None, "the listing may be older than the removal");
        names.listed(DIRECTORY, &entries, names.changes(DIRECTORY), || false);
        assert_eq!(names.take(DIRECTORY, &name("a")), None, "a recall came between");
        names.listed(DIRECTORY, &entries, names.changes(DIRECTORY), || true);
        names.add(DIRECTORY, &name("a"));
        assert_eq!(names.take(DIRECTORY, &name("a")), None, "it may have been replaced");
        assert!(!names.lacks(DIRECTORY, &name("c")), "a listing may be one page");
        names.forget(&[DIRECTORY]);
        assert_eq!(names.known.lock().names, 0);
    }

    #[test]
    fn a_recall_on_the_way_leaves_a_directory_unknown() {
        let names = Names::new();
        names.born(DIRECTORY, || false);
        assert!(!names.lacks(DIRECTORY, &name("a")));
    }

    #[test]
    fn the_oldest_directories_are_given_up() {
        let names = Names::new();
        names.born(DIRECTORY, || true);
        let other = Gfid::from_bytes([8; 16]);
        names.born(other, || true);
        for number in 0..NAMES_MAX {
            names.add(other, &name(&number.to_string()));
        }
        assert!(!names.lacks(DIRECTORY, &name("a")));
        assert!(names.known.lock().names <= NAMES_MAX);
    }
}
