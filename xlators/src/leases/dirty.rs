//! Where a brick notes which objects have changes that may not be on every copy.

use std::fmt::Debug;

use crate::error::Errno;
use crate::types::Gfid;

/// The brick's list of objects that were changed and not yet reported equal on every copy (`indices/dirty`).
///
/// The leases layer decides when an object enters and leaves the list; who implements this only writes it down.
/// All methods are short system calls at most, except `sync` and `clear`, which are called on the blocking pool.
///
/// Invariant: one object is never in `mark_dirty` and in a batch of `clear` at the same time.
pub trait DirtyJournal: Debug + Send + Sync + 'static {
    /// Note an object, before its first change. Noting it twice is fine.
    fn mark_dirty(&self, gfid: Gfid) -> Result<(), Errno>;

    /// Make durable what was written so far to any object.
    fn sync(&self) -> Result<(), Errno>;

    /// Take settled objects off the list. `sync` came first. Objects that are not on it are skipped.
    fn clear(&self, batch: &[Gfid]) -> Result<(), Errno>;

    /// The object was on the list already when the brick started, and has not been cleared since.
    fn left_dirty(&self, gfid: Gfid) -> bool;

    /// The brick holds pending marks against other copies, of whatever object. Asked before an object's own marks
    /// are looked up: a healthy brick answers `false` and saves the work.
    fn blames_any(&self) -> bool;
}
