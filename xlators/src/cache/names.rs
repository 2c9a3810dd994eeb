//! Directories of which every name is known: those that this client has made, as long as their leases hold.
//!
//! Invariant: a name that is in such a directory is in its list. A name in the list need not be there (any more).

use std::collections::HashSet;

use foldhash::fast::RandomState;
use lru::LruCache;
use parking_lot::Mutex;

use crate::types::{Gfid, Name};

/// Names that are remembered, of all directories together: some megabytes.
const NAMES_MAX: usize = 65_536;

#[derive(Debug)]
struct Known {
    /// The names are copies: those of requests may be parts of large buffers.
    directories: LruCache<Gfid, HashSet<Box<[u8]>, RandomState>, RandomState>,
    names: usize,
}

/// The directories of which every name is known.
#[derive(Debug)]
pub(super) struct Names {
    known: Mutex<Known>,
}

impl Names {
    pub(super) fn new() -> Self {
        let directories = LruCache::unbounded_with_hasher(RandomState::default());
        Self { known: Mutex::new(Known { directories, names: 0 }) }
    }

    /// A directory was made, and is empty, if nobody else can have been in it since.
    pub(super) fn born(&self, directory: Gfid, still_ours: impl FnOnce() -> bool) {
        let mut known = self.known.lock();
        if still_ours() {
            known.directories.put(directory, HashSet::default());
            // An empty directory counts, too.
            known.names += 1;
            known.trim();
        }
    }

    /// A name may come into a directory.
    pub(super) fn add(&self, directory: Gfid, name: &Name) {
        let mut known = self.known.lock();
        if let Some(names) = known.directories.get_mut(&directory)
            && names.insert(name.as_bytes().into())
        {
            known.names += 1;
            known.trim();
        }
    }

    /// There is no such name, for certain.
    pub(super) fn lacks(&self, directory: Gfid, name: &Name) -> bool {
        self.known.lock().directories.get(&directory).is_some_and(|names| !names.contains(name.as_bytes()))
    }

    /// Others may be in these directories from now on.
    pub(super) fn forget(&self, directories: &[Gfid]) {
        let mut known = self.known.lock();
        for directory in directories {
            if let Some(names) = known.directories.pop(directory) {
                known.names -= names.len() + 1;
            }
        }
    }
}

impl Known {
    fn trim(&mut self) {
        while self.names > NAMES_MAX
            && let Some((_, names)) = self.directories.pop_lru()
        {
            self.names -= names.len() + 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
