//! Inodes that lost their last name on this brick a moment ago.
//!
//! A removal reaches the copies one after the other. A lease that is granted while one copy has removed the file and the
//! others have not is no promise that the file is still there to be opened, so that a brick says of such an inode that it
//! is nameless, and the client keeps nothing under the lease.

use std::num::NonZeroUsize;

use foldhash::fast::RandomState;
use lru::LruCache;
use parking_lot::Mutex;

use crate::types::Gfid;

/// Removals that are remembered: all that many clients have under way on one brick, many times over.
const REMEMBERED_MAX: NonZeroUsize = NonZeroUsize::new(16_384).expect("not zero");

/// The last inodes that lost their last name here.
#[derive(Debug)]
pub(super) struct Nameless(Mutex<LruCache<Gfid, (), RandomState>>);

impl Nameless {
    pub(super) fn new() -> Self {
        Self(Mutex::new(LruCache::with_hasher(REMEMBERED_MAX, RandomState::default())))
    }

    /// It has no name any more.
    pub(super) fn note(&self, gfid: Gfid) {
        self.0.lock().put(gfid, ());
    }

    /// It has a name: an inode that was removed is made again by who takes a removal back.
    pub(super) fn named(&self, gfid: Gfid) {
        self.0.lock().pop(&gfid);
    }

    pub(super) fn has(&self, gfid: Gfid) -> bool {
        self.0.lock().contains(&gfid)
    }
}
