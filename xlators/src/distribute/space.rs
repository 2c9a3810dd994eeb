//! How full the subvolumes are: the sum for clients, and where new files go when one is nearly full.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::ctx::Ctx;
use crate::distribute::Core;
use crate::distribute::sets::{Sets, as_ourselves};
use crate::error::{FopError, Result};
use crate::fop::Statfs;
use crate::reply::Space;

/// How old what is known of the space may become before it is asked for again, in the background.
const KNOWN_FOR: Duration = Duration::from_secs(5);

/// A subvolume with fewer of its inodes free is nearly full, too.
const INODES_FREE_PERCENT_MIN: u64 = 5;

/// How full each subvolume is, as last heard.
#[derive(Debug)]
pub(super) struct Fullness {
    /// A subvolume with less of its space free is nearly full.
    free_percent_min: u64,
    /// Bytes free to clients on a subvolume; 0 for one that is nearly full.
    room: Box<[AtomicU64]>,
    /// When it was last asked for.
    asked: Mutex<Option<Instant>>,
}

impl Fullness {
    pub(super) fn new(sets: usize, free_percent_min: u8) -> Self {
        Self {
            free_percent_min: free_percent_min.into(),
            // Until something is known there is room.
            room: (0..sets).map(|_| AtomicU64::new(u64::MAX)).collect(),
            asked: Mutex::new(None),
        }
    }

    /// A better subvolume for a new file than a nearly full one: that with the most room. `None` if it is not nearly
    /// full, or all are.
    pub(super) fn instead_of(&self, set: usize, sets: &Sets) -> Option<usize> {
        if self.room[set].load(Ordering::Relaxed) > 0 {
            return None;
        }
        let room = |other: &usize| self.room[*other].load(Ordering::Relaxed);
        sets.others(set).filter(|&other| sets.is_up(other)).max_by_key(room).filter(|other| room(other) > 0)
    }

    /// A file did not fit.
    pub(super) fn ran_full(&self, set: usize) {
        self.room[set].store(0, Ordering::Relaxed);
    }

    fn heard(&self, set: usize, space: &Space) {
        let enough =
            |free: u64, all: u64, percent: u64| u128::from(free) * 100 >= u128::from(all) * u128::from(percent);
        // Some file systems count no inodes.
        let has_inodes = space.files == 0 || enough(space.files_free, space.files, INODES_FREE_PERCENT_MIN);
        let nearly_full = !enough(space.blocks_available, space.blocks, self.free_percent_min) || !has_inodes;
        let bytes = space.blocks_available.saturating_mul(space.block_bytes);
        self.room[set].store(if nearly_full { 0 } else { bytes }, Ordering::Relaxed);
    }

    fn is_due(&self) -> bool {
        let mut asked = self.asked.lock();
        let now = Instant::now();
        let due = asked.is_none_or(|asked| now.duration_since(asked) >= KNOWN_FOR);
        if due {
            *asked = Some(now);
        }
        due
    }
}

impl Core {
    /// The sum over all subvolumes that answer, in the largest of their units.
    pub(super) async fn statfs(&self, ctx: &Ctx) -> Result<Space> {
        let mut spaces = Vec::with_capacity(self.sets.count());
        let mut last = FopError::Unreachable;
        for (set, answer) in self.sets.ask_all(ctx, &Statfs).await {
            match answer {
                Ok(space) => {
                    self.space.heard(set, &space);
                    spaces.push(space);
                }
                Err(error) => last = error,
            }
        }
        sum(&spaces).ok_or(last)
    }

    /// Ask for the space again if what is known has become old; nobody waits for it.
    pub(super) fn refresh_space(self: &Arc<Self>, ctx: &Ctx) {
        if self.space.is_due() {
            let (core, ctx) = (Arc::clone(self), as_ourselves(ctx));
            tokio::spawn(async move {
                // Who does not answer keeps the room it had.
                let _ = core.statfs(&ctx).await;
            });
        }
    }
}

fn sum(spaces: &[Space]) -> Option<Space> {
    let block_bytes = spaces.iter().map(|space| space.block_bytes).max()?.max(1);
    let blocks = |of: fn(&Space) -> u64| {
        let bytes: u128 = spaces.iter().map(|space| u128::from(of(space)) * u128::from(space.block_bytes)).sum();
        u64::try_from(bytes / u128::from(block_bytes)).unwrap_or(u64::MAX)
    };
    let files = |of: fn(&Space) -> u64| spaces.iter().fold(0, |all: u64, space| all.saturating_add(of(space)));
    Some(Space {
        block_bytes,
        blocks: blocks(|space| space.blocks),
        blocks_free: blocks(|space| space.blocks_free),
        blocks_available: blocks(|space| space.blocks_available),
        files: files(|space| space.files),
        files_free: files(|space| space.files_free),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space(block_bytes: u64, blocks: u64, blocks_available: u64) -> Space {
        Space { block_bytes, blocks, blocks_free: blocks_available, blocks_available, files: 0, files_free: 0 }
    }

    #[test]
    fn space_is_summed_in_the_largest_unit() {
        let all = sum(&[space(4096, 1000, 10), space(512, 800, 8)]).unwrap();
        assert_eq!((all.block_bytes, all.blocks, all.blocks_available), (4096, 1100, 11));
        assert_eq!(sum(&[]), None);
        assert!(sum(&[space(u64::MAX, u64::MAX, 1), space(1, 1, 1)]).is_some());
    }

    #[test]
    fn nearly_full_is_below_the_mark() {
        let fullness = Fullness::new(2, 10);
        for (available, full) in [(100, false), (99, true), (0, true), (1000, false)] {
            fullness.heard(0, &space(4096, 1000, available));
            assert_eq!(fullness.room[0].load(Ordering::Relaxed) == 0, full, "{available}");
        }
    }
}
