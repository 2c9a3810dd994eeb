//! What distribute remembers of directories and files. All of it may be forgotten at any time; it then asks again.

use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::num::NonZeroUsize;
use std::sync::Arc;

use lru::LruCache;
use parking_lot::Mutex;
use xxhash_rust::xxh64::xxh64;

use crate::distribute::layout::Layout;
use crate::types::{Gfid, Name};

/// Where the content of an inode is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// A directory: everywhere.
    Everywhere,
    /// A file: on this subvolume. It stays there as long as it lives.
    On(usize),
}

/// What a name led to when it was last looked at. Only used to choose the cheaper of two correct ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hint {
    Directory(Gfid),
    /// A file whose content is not where the name belongs but on this subvolume.
    Linked(usize),
}

/// How many directories' layouts are kept: a large source tree, at some 100 bytes for each.
const LAYOUTS_MAX: usize = 65_536;
/// How many inodes' places are kept: what a client works on for minutes, at some 64 bytes for each.
const PLACES_MAX: usize = 262_144;
/// How many names of directories and linked files are kept.
const HINTS_MAX: usize = 65_536;

/// Everything that is remembered.
pub(super) struct Memory {
    pub(super) layouts: Shards<Gfid, Arc<Layout>>,
    pub(super) places: Shards<Gfid, Place>,
    hints: Shards<(Gfid, u64), Hint>,
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").finish_non_exhaustive()
    }
}

impl Memory {
    pub(super) fn new() -> Self {
        Self { layouts: Shards::new(LAYOUTS_MAX), places: Shards::new(PLACES_MAX), hints: Shards::new(HINTS_MAX) }
    }

    pub(super) fn hint(&self, parent: Gfid, name: &Name) -> Option<Hint> {
        self.hints.get(&hint_key(parent, name))
    }

    pub(super) fn set_hint(&self, parent: Gfid, name: &Name, hint: Hint) {
        self.hints.put(hint_key(parent, name), hint);
    }

    pub(super) fn drop_hint(&self, parent: Gfid, name: &Name) {
        self.hints.remove(&hint_key(parent, name));
    }
}

/// A number for the name: two names that share it share a hint, which then is wrong for one. Hints may be wrong.
fn hint_key(parent: Gfid, name: &Name) -> (Gfid, u64) {
    (parent, xxh64(name.as_bytes(), 0))
}

/// How many locks a map is spread over, so that the threads of a mount seldom meet.
const SHARDS: usize = 16;

/// A bounded map that forgets what was used least recently.
pub(super) struct Shards<K, V> {
    shards: Box<[Mutex<LruCache<K, V, foldhash::fast::RandomState>>]>,
    hasher: foldhash::fast::RandomState,
}

impl<K: Hash + Eq, V: Clone> Shards<K, V> {
    fn new(entries_max: usize) -> Self {
        let per_shard = NonZeroUsize::new(entries_max / SHARDS).expect("the bounds above exceed the number of shards");
        // Unbounded at first, so that memory is taken as entries come.
        let shard = || Mutex::new(LruCache::unbounded_with_hasher(foldhash::fast::RandomState::default()));
        let shards: Box<[Mutex<LruCache<K, V, _>>]> = (0..SHARDS).map(|_| shard()).collect();
        for shard in &shards {
            shard.lock().resize(per_shard);
        }
        Self { shards, hasher: foldhash::fast::RandomState::default() }
    }

    fn shard(&self, key: &K) -> &Mutex<LruCache<K, V, foldhash::fast::RandomState>> {
        let hash = self.hasher.hash_one(key);
        &self.shards[(hash % SHARDS as u64) as usize]
    }

    pub(super) fn get(&self, key: &K) -> Option<V> {
        self.shard(key).lock().get(key).cloned()
    }

    pub(super) fn put(&self, key: K, value: V) {
        self.shard(&key).lock().put(key, value);
    }

    pub(super) fn remove(&self, key: &K) {
        self.shard(key).lock().pop(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_never_grows_beyond_its_bound() {
        let map = Shards::new(160);
        for key in 0..10_000 {
            map.put(key, key);
        }
        let kept: usize = map.shards.iter().map(|shard| shard.lock().len()).sum();
        assert!((100..=160).contains(&kept), "{kept}");
        assert_eq!(map.get(&9_999), Some(9_999));
    }
}
