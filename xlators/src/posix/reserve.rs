//! The last part of the disk, which ordinary clients may not fill: healing and rebalancing need room to work.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use rustix::fs::StatVfs;
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};

use crate::ctx::Ctx;
use crate::reply::Space;

/// How many changes may go by on one look at the clock.
const CHECKS_PER_LOOK: u64 = 64;
/// What a change takes besides content, for names, attributes and marks: a few blocks.
const COST: u64 = 16 << 10;
/// More than this is not counted of one change: far beyond a disk.
const BYTES_MAX: i64 = 1 << 50;
/// How much of what is left may be used up before the disk is looked at again. Other bricks, and programs that know
/// nothing of us, may use the same disk: this much of it by each of half a dozen still leaves something.
const PART_PER_LOOK: i64 = 8;

/// The share of the disk that is kept free, and what was last seen of the disk.
#[derive(Debug)]
pub(super) struct Reserve {
    percent: u8,
    checks: AtomicU64,
    /// The second of the last look.
    looked: AtomicI64,
    /// Bytes free beyond the reserve at the last look, less than zero when below it.
    left: AtomicI64,
    /// Bytes that may be used before the next look.
    until_look: AtomicI64,
}

impl Reserve {
    pub(super) fn new(percent: u8) -> Self {
        Self {
            percent,
            checks: AtomicU64::new(0),
            looked: AtomicI64::new(i64::MIN),
            left: AtomicI64::new(0),
            until_look: AtomicI64::new(0),
        }
    }

    /// `ENOSPC` where an ordinary client would eat into the reserve. The disk is looked at about once a second, and the
    /// more often the fuller it is, as is known from the content that this brick is asked to take.
    pub(super) fn check(&self, ctx: &Ctx, root: BorrowedFd<'_>, content: u64) -> Result<(), Errno> {
        if self.percent == 0 || ctx.caller.is_internal() {
            return Ok(());
        }
        let bytes = i64::try_from(content.saturating_add(COST)).unwrap_or(i64::MAX).min(BYTES_MAX);
        if self.until_look.fetch_sub(bytes, Ordering::Relaxed) < bytes || self.looked_long_ago() {
            self.look(&rustix::fs::fstatvfs(root)?);
        }
        if self.left.load(Ordering::Relaxed) <= 0 { Err(Errno::NOSPC) } else { Ok(()) }
    }

    fn looked_long_ago(&self) -> bool {
        let look_at_clock = self.checks.fetch_add(1, Ordering::Relaxed).is_multiple_of(CHECKS_PER_LOOK);
        look_at_clock && self.looked.load(Ordering::Relaxed) != second()
    }

    fn look(&self, disk: &StatVfs) {
        let signed = |blocks: u64| i64::try_from(blocks.saturating_mul(disk.f_frsize)).unwrap_or(i64::MAX);
        let left = signed(disk.f_bfree) - signed(self.blocks(disk));
        self.left.store(left, Ordering::Relaxed);
        self.until_look.store(left / PART_PER_LOOK, Ordering::Relaxed);
        self.looked.store(second(), Ordering::Relaxed);
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

fn second() -> i64 {
    clock_gettime(ClockId::MonotonicCoarse).tv_sec
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(free: u64) -> StatVfs {
        let mut disk = rustix::fs::fstatvfs(std::fs::File::open("/").unwrap()).unwrap();
        (disk.f_frsize, disk.f_blocks, disk.f_bfree) = (4096, 100_000, free);
        disk
    }

    #[test]
    fn the_fuller_a_disk_the_sooner_it_is_looked_at() {
        let reserve = Reserve::new(1);
        let until_look = || reserve.until_look.load(Ordering::Relaxed);
        reserve.look(&disk(9000));
        assert_eq!(until_look(), 8000 * 4096 / 8);
        reserve.look(&disk(1001));
        assert_eq!(until_look(), 4096 / 8);
        reserve.look(&disk(0));
        assert!(until_look() < 0, "at every change");
    }

    #[test]
    fn the_reserve_is_not_shown_as_free() {
        let mut disk = rustix::fs::fstatvfs(std::fs::File::open("/").unwrap()).unwrap();
        (disk.f_blocks, disk.f_bfree, disk.f_bavail) = (1000, 15, 5);
        let space = Reserve::new(1).space(&disk);
        assert_eq!((space.blocks, space.blocks_free, space.blocks_available), (1000, 5, 0));
    }
}
