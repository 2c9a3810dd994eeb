//! The last part of the disk, which ordinary clients may not fill: healing and rebalancing need room to work.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use rustix::fs::StatVfs;
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};

use crate::ctx::Ctx;
use crate::reply::Space;

/// How many writes may go by on one look at the clock.
const CHECKS_PER_LOOK: u64 = 64;

/// The share of the disk that is kept free, and what was last seen of the disk.
#[derive(Debug)]
pub(super) struct Reserve {
    percent: u8,
    checks: AtomicU64,
    /// The second of the last look.
    looked: AtomicI64,
    /// Blocks free beyond the reserve, less than zero when below it.
    left: AtomicI64,
}

impl Reserve {
    pub(super) fn new(percent: u8) -> Self {
        Self { percent, checks: AtomicU64::new(0), looked: AtomicI64::new(i64::MIN), left: AtomicI64::new(0) }
    }

    /// `ENOSPC` where an ordinary client would eat into the reserve. The disk is looked at about once a second.
    pub(super) fn check(&self, ctx: &Ctx, root: BorrowedFd<'_>) -> Result<(), Errno> {
        if self.percent == 0 || ctx.caller.is_internal() {
            return Ok(());
        }
        if self.left.load(Ordering::Relaxed) < 0 {
            // Space may have been freed since: nobody is refused for what was.
            self.look(&rustix::fs::fstatvfs(root)?);
        } else if self.checks.fetch_add(1, Ordering::Relaxed).is_multiple_of(CHECKS_PER_LOOK) {
            let now = clock_gettime(ClockId::MonotonicCoarse).tv_sec;
            if self.looked.swap(now, Ordering::Relaxed) != now {
                self.look(&rustix::fs::fstatvfs(root)?);
            }
        }
        if self.left.load(Ordering::Relaxed) < 0 { Err(Errno::NOSPC) } else { Ok(()) }
    }

    fn look(&self, disk: &StatVfs) {
        let left =
            i64::try_from(disk.f_bfree).unwrap_or(i64::MAX) - i64::try_from(self.blocks(disk)).unwrap_or(i64::MAX);
        self.left.store(left, Ordering::Relaxed);
    }

    fn blocks(&self, disk: &StatVfs) -> u64 {
        disk.f_blocks / 100 * u64::from(self.percent)
    }

    /// The disk as clients see it.
    pub(super) fn space(&self, disk: &StatVfs) -> Space {
        let kept = self.blocks(disk);
        Space {
            block_bytes: disk.f_frsize,
            blocks: disk.f_blocks,
            blocks_free: disk.f_bfree.saturating_sub(kept),
            blocks_available: disk.f_bavail.saturating_sub(kept),
            files: disk.f_files,
            files_free: disk.f_ffree,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reserve_is_not_shown_as_free() {
        let mut disk = rustix::fs::fstatvfs(std::fs::File::open("/").unwrap()).unwrap();
        (disk.f_blocks, disk.f_bfree, disk.f_bavail) = (1000, 15, 5);
        let space = Reserve::new(1).space(&disk);
        assert_eq!((space.blocks, space.blocks_free, space.blocks_available), (1000, 5, 0));
    }
}
