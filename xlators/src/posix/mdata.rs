//! `trusted.glusterfs.mdata`: the times of an inode as its clients set them, the same on every copy.
//!
//! Where an inode has the xattr it is the authority, and the times of the brick's file system mean nothing. Ordinary
//! changes move each time forward only; a program that sets times sets them unconditionally.

use std::num::NonZeroUsize;

use lru::LruCache;
use parking_lot::Mutex;

use crate::types::{Gfid, Kind, Lacks, Time};

/// The name of the xattr.
pub(super) const KEY: &std::ffi::CStr = c"trusted.glusterfs.mdata";

/// Version, flags, and three times of 16 bytes.
pub(super) const MDATA_BYTES: usize = 57;

const VERSION: u8 = 1;
const NSEC_MAX: u64 = 999_999_999;

/// The three times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct Mdata {
    pub(super) ctime: Time,
    pub(super) mtime: Time,
    pub(super) atime: Time,
}

/// Which times an ordinary change moves forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Touch {
    /// Attributes changed, or names of the inode.
    Ctime,
    /// Content changed, or names in the directory.
    CtimeMtime,
}

impl Mdata {
    /// All three the same: a new inode, or one whose first change this is.
    pub(super) fn born(when: Time) -> Self {
        Self { ctime: when, mtime: when, atime: when }
    }

    /// The 57 bytes. Seconds before 1970 are stored as their two's complement.
    pub(super) fn encode(&self) -> [u8; MDATA_BYTES] {
        let mut bytes = [0; MDATA_BYTES];
        bytes[0] = VERSION;
        for (index, time) in [self.ctime, self.mtime, self.atime].into_iter().enumerate() {
            let at = 9 + 16 * index;
            bytes[at..at + 8].copy_from_slice(&time.sec.to_be_bytes());
            bytes[at + 8..at + 16].copy_from_slice(&u64::from(time.nsec).to_be_bytes());
        }
        bytes
    }

    /// Read the 57 bytes; `None` for another version. Nanoseconds beyond a second come from a damaged disk and are
    /// cut to the last one.
    pub(super) fn decode(bytes: &[u8; MDATA_BYTES]) -> Option<Self> {
        if bytes[0] != VERSION {
            return None;
        }
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_be_bytes(word)
        };
        let time = |at: usize| {
            let nsec = u32::try_from(word(at + 8).min(NSEC_MAX)).expect("less than a thousand million");
            Time { sec: word(at).cast_signed(), nsec }
        };
        Some(Self { ctime: time(9), mtime: time(25), atime: time(41) })
    }

    /// After an ordinary change: each time it concerns is the later of what was and what is.
    pub(super) fn touched(mut self, touch: Touch, when: Time) -> Self {
        self.ctime = self.ctime.max(when);
        if touch == Touch::CtimeMtime {
            self.mtime = self.mtime.max(when);
        }
        self
    }

    /// After another copy's times were learned: the later of each.
    pub(super) fn merged(self, other: Self) -> Self {
        Self {
            ctime: self.ctime.max(other.ctime),
            mtime: self.mtime.max(other.mtime),
            atime: self.atime.max(other.atime),
        }
    }
}

/// What is remembered of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Known {
    /// Its times; `None` where it has no xattr.
    pub(super) times: Option<Mdata>,
    /// What it is.
    pub(super) form: Form,
    /// Xattrs of programs that it has not; `None` where nobody has looked.
    pub(super) lacks: Option<Lacks>,
}

/// What an inode is, as far as it decides how it is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// A directory: its handle is a symbolic link.
    Directory,
    /// A regular file: it can be opened.
    File,
    /// Something else: it must not be opened.
    Special,
    /// No directory; more was not looked at.
    NotADirectory,
}

impl From<Kind> for Form {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Dir => Self::Directory,
            Kind::File => Self::File,
            Kind::Symlink | Kind::Fifo | Kind::Socket | Kind::Char | Kind::Block => Self::Special,
        }
    }
}

/// Few enough that an idle brick stays small, enough that two cores seldom meet.
const SHARDS: usize = 8;

/// A bounded memory of inodes, so that neither times nor kinds are read twice.
///
/// Losing an entry costs one system call.
pub(super) struct Memory {
    shards: [Mutex<LruCache<Gfid, Known>>; SHARDS],
}

impl Memory {
    pub(super) fn new(inodes_max: usize) -> Self {
        let each = NonZeroUsize::new(inodes_max / SHARDS).unwrap_or(NonZeroUsize::MIN);
        Self { shards: std::array::from_fn(|_| Mutex::new(LruCache::sparse(each))) }
    }

    fn shard(&self, gfid: Gfid) -> &Mutex<LruCache<Gfid, Known>> {
        &self.shards[usize::from(gfid.as_bytes()[15]) % SHARDS]
    }

    pub(super) fn get(&self, gfid: Gfid) -> Option<Known> {
        self.shard(gfid).lock().get(&gfid).copied()
    }

    pub(super) fn put(&self, gfid: Gfid, known: Known) {
        self.shard(gfid).lock().put(gfid, known);
    }

    pub(super) fn forget(&self, gfid: Gfid) {
        self.shard(gfid).lock().pop(&gfid);
    }
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Memory").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn time(sec: i64, nsec: u32) -> Time {
        Time { sec, nsec }
    }

    #[test]
    fn the_bytes_of_a_live_brick_are_read_and_written() {
        let times = Mdata {
            ctime: time(0x6b0d_9c25, 0x0705_fc4a),
            mtime: time(0x6b0d_9c25, 0x0705_fc4a),
            atime: time(0x6b0d_9c25, 0x06e4_9539),
        };
        let mut expected = vec![1, 0, 0, 0, 0, 0, 0, 0, 0];
        for (sec, nsec) in [(0x6b0d_9c25u64, 0x0705_fc4au64), (0x6b0d_9c25, 0x0705_fc4a), (0x6b0d_9c25, 0x06e4_9539)] {
            expected.extend_from_slice(&sec.to_be_bytes());
            expected.extend_from_slice(&nsec.to_be_bytes());
        }
        assert_eq!(times.encode().as_slice(), expected);
        assert_eq!(Mdata::decode(&times.encode()), Some(times));
    }

    #[test]
    fn another_version_is_not_read() {
        assert_eq!(Mdata::decode(&[0; MDATA_BYTES]), None);
        assert_eq!(Mdata::decode(&[2; MDATA_BYTES]), None);
    }

    #[test]
    fn nanoseconds_of_a_damaged_disk_stay_below_a_second() {
        let mut bytes = [0xff; MDATA_BYTES];
        bytes[0] = 1;
        assert_eq!(Mdata::decode(&bytes).unwrap().ctime, time(-1, 999_999_999));
    }

    #[test]
    fn an_ordinary_change_never_moves_a_time_back() {
        let (early, late) = (time(5, 0), time(9, 1));
        let rows = [
            (Touch::Ctime, Mdata { ctime: late, ..Mdata::born(early) }),
            (Touch::CtimeMtime, Mdata { atime: early, ..Mdata::born(late) }),
        ];
        for (touch, expected) in rows {
            assert_eq!(Mdata::born(early).touched(touch, late), expected);
            assert_eq!(Mdata::born(late).touched(touch, early), Mdata::born(late));
        }
    }

    proptest! {
        #[test]
        fn every_time_comes_back_as_it_went(c: i64, m: i64, a: i64, nsec in 0..1_000_000_000u32) {
            let times = Mdata { ctime: time(c, nsec), mtime: time(m, 0), atime: time(a, nsec) };
            prop_assert_eq!(Mdata::decode(&times.encode()), Some(times));
        }

        #[test]
        fn no_bytes_make_it_fail(bytes in proptest::collection::vec(any::<u8>(), MDATA_BYTES)) {
            let bytes: [u8; MDATA_BYTES] = bytes.try_into().expect("as long as asked for");
            if let Some(times) = Mdata::decode(&bytes) {
                prop_assert!(times.ctime.nsec < 1_000_000_000);
            }
        }
    }
}
