//! Which subvolume takes which names of a directory: the 16 bytes of `trusted.glusterfs.dht`, and what they add up to.
//!
//! A directory exists on every subvolume, and carries on each the range of hashes that belongs there. Together the
//! ranges must cover every hash once.
//!
//! Everything here is a pure function of what the subvolumes said. Subvolumes are named by their index.

use crate::distribute::hash;
use crate::types::{Gfid, RawLayout};

/// The commit hash that says: names of this directory may be anywhere.
pub const COMMIT_INVALID: u32 = 1;

/// The layout of every directory on a volume of one subvolume.
pub const WHOLE: RawLayout = RawLayout([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]);

/// What one subvolume has of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// The directory with a range, bounds included.
    Range {
        /// Which state of the volume the range belongs to.
        commit: u32,
        /// The first hash.
        start: u32,
        /// The last hash.
        stop: u32,
    },
    /// The directory without a range: it takes no new names.
    Nothing,
    /// No such directory there.
    Missing,
    /// No answer.
    Unknown,
}

impl Share {
    /// Read what an existing directory carries. What is no layout counts as none.
    pub fn of_directory(raw: Option<RawLayout>) -> Self {
        let Some(RawLayout(bytes)) = raw else { return Self::Nothing };
        let [commit, kind, start, stop] = words(&bytes);
        let empty = (start, stop) == (0, 0);
        if kind > 1 || start > stop || empty { Self::Nothing } else { Self::Range { commit, start, stop } }
    }

    /// The bytes on disk; for a directory without a range those that say so.
    pub fn to_raw(self) -> RawLayout {
        let (commit, start, stop) = match self {
            Self::Range { commit, start, stop } => (commit, start, stop),
            Self::Nothing | Self::Missing | Self::Unknown => (0, 0, 0),
        };
        let mut bytes = [0; 16];
        bytes[0..4].copy_from_slice(&commit.to_be_bytes());
        bytes[8..12].copy_from_slice(&start.to_be_bytes());
        bytes[12..16].copy_from_slice(&stop.to_be_bytes());
        RawLayout(bytes)
    }
}

fn words(bytes: &[u8; 16]) -> [u32; 4] {
    let word = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    [word(0), word(4), word(8), word(12)]
}

/// Whether the ranges cover every hash once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cover {
    /// They do.
    Whole,
    /// A hash belongs to nobody, or to two.
    Broken,
}

/// Which subvolume takes which names of one directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    shares: Box<[Share]>,
    /// The ranges in ascending order: last hash, first hash, subvolume.
    ranges: Box<[(u32, u32, usize)]>,
    cover: Cover,
}

impl Layout {
    /// The layout that these shares add up to, one for each subvolume.
    pub fn new(shares: impl Into<Box<[Share]>>) -> Self {
        let shares = shares.into();
        let mut ranges: Box<[_]> = shares
            .iter()
            .enumerate()
            .filter_map(|(set, share)| match *share {
                Share::Range { start, stop, .. } => Some((stop, start, set)),
                Share::Nothing | Share::Missing | Share::Unknown => None,
            })
            .collect();
        ranges.sort_unstable_by_key(|&(stop, start, set)| (start, stop, set));
        let cover = if covers_all(&ranges) { Cover::Whole } else { Cover::Broken };
        Self { shares, ranges, cover }
    }

    /// Which subvolume the name belongs to; `None` when it falls into a hole.
    pub fn set_of(&self, name: &[u8]) -> Option<usize> {
        self.set_of_hash(hash::place(name))
    }

    fn set_of_hash(&self, hash: u32) -> Option<usize> {
        match self.cover {
            Cover::Whole => Some(self.ranges[self.ranges.partition_point(|&(stop, ..)| stop < hash)].2),
            Cover::Broken => {
                self.ranges.iter().find(|&&(stop, start, _)| (start..=stop).contains(&hash)).map(|&(_, _, set)| set)
            }
        }
    }

    /// Whether the ranges cover every hash once.
    pub fn cover(&self) -> Cover {
        self.cover
    }

    /// What each subvolume has.
    pub fn shares(&self) -> &[Share] {
        &self.shares
    }

    /// A subvolume gave no answer when this was put together.
    pub fn is_partial(&self) -> bool {
        self.shares.contains(&Share::Unknown)
    }

    /// The directory exists on every subvolume, and every hash belongs to one.
    pub fn is_sound(&self) -> bool {
        self.cover == Cover::Whole && !self.shares.iter().any(|share| matches!(share, Share::Missing | Share::Unknown))
    }

    /// All names are where this layout says, or have a link file there: the directory has not changed its layout
    /// since the volume last moved its files.
    pub fn is_committed(&self, volume_commit: u32) -> bool {
        let agrees = |share: &Share| match *share {
            Share::Range { commit, .. } => commit == volume_commit,
            Share::Nothing => true,
            Share::Missing | Share::Unknown => false,
        };
        volume_commit != COMMIT_INVALID && self.cover == Cover::Whole && self.shares.iter().all(agrees)
    }
}

fn covers_all(ranges: &[(u32, u32, usize)]) -> bool {
    let mut next = Some(0);
    for &(stop, start, _) in ranges {
        if next != Some(start) {
            return false;
        }
        next = stop.checked_add(1);
    }
    next.is_none() && !ranges.is_empty()
}

/// What one hash range each of a new directory is worth: all subvolumes alike.
///
/// GlusterFS weighs by size and begins at the hash of the path. Any cover is valid, and this layer knows gfids only; so
/// that two clients which repair one directory write the same, the ranges depend on nothing but the gfid.
///
/// `order` holds the subvolumes in the order of their names (as `strcmp` has it: 10 before 2).
pub fn assign(gfid: Gfid, order: &[usize], commit: u32) -> Layout {
    let count = order.len();
    let begin = if gfid == Gfid::ROOT { hash::place(b"/") } else { hash::place(gfid.to_string().as_bytes()) };
    let begin = begin as usize % count;
    let width = (f64::from(u32::MAX) / count as f64) as u32;
    let mut shares = vec![Share::Nothing; count];
    let mut start = 0;
    for step in 0..count {
        let last = step + 1 == count;
        let stop = if last { u32::MAX } else { start + (width - 1) };
        shares[order[(begin + step) % count]] = Share::Range { commit, start, stop };
        start = stop.wrapping_add(1);
    }
    Layout::new(shares)
}

/// The whole layout that an incomplete one should become, with as little change as possible.
///
/// Ranges that exist are kept where the rest can be told: the others are what this directory began with, or a single
/// subvolume lacks its range and a single range is free. Otherwise all ranges are dealt out anew, and marked as such:
/// names may then be anywhere.
pub fn repaired(layout: &Layout, gfid: Gfid, order: &[usize]) -> Layout {
    let commits: Vec<u32> = layout
        .shares
        .iter()
        .filter_map(|share| if let Share::Range { commit, .. } = share { Some(*commit) } else { None })
        .collect();
    let commit = commits.iter().max().copied().filter(|max| commits.iter().all(|commit| commit == max));
    let Some(commit) = commit else { return assign(gfid, order, COMMIT_INVALID) };
    let ideal = assign(gfid, order, commit);
    let kept = |(old, new): (&Share, &Share)| old == new || !matches!(old, Share::Range { .. });
    if layout.shares.iter().zip(&ideal.shares).all(kept) {
        return ideal;
    }
    filled(layout, commit).unwrap_or_else(|| assign(gfid, order, COMMIT_INVALID))
}

/// Give the only free range to the only subvolume without one.
fn filled(layout: &Layout, commit: u32) -> Option<Layout> {
    let mut without =
        layout.shares.iter().enumerate().filter(|(_, share)| !matches!(share, Share::Range { .. })).map(|(set, _)| set);
    let set = without.next().filter(|_| without.next().is_none())?;
    let mut gaps = Vec::new();
    let mut next = 0_u64;
    for &(stop, start, _) in &layout.ranges {
        if next < u64::from(start) {
            gaps.push((u32::try_from(next).ok()?, start - 1));
        }
        next = u64::from(stop) + 1;
    }
    if let Ok(start) = u32::try_from(next) {
        gaps.push((start, u32::MAX));
    }
    let &[(start, stop)] = gaps.as_slice() else { return None };
    let mut shares = layout.shares.clone();
    shares[set] = Share::Range { commit, start, stop };
    Some(Layout::new(shares)).filter(|whole| whole.cover == Cover::Whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u32, stop: u32) -> Share {
        Share::Range { commit: 0, start, stop }
    }

    fn bounds(layout: &Layout) -> Vec<(u32, u32)> {
        layout.ranges.iter().map(|&(stop, start, _)| (start, stop)).collect()
    }

    #[test]
    fn equal_shares_are_those_of_glusterfs() {
        let table: [&[(u32, u32)]; 5] = [
            &[(0, 0xffff_ffff)],
            &[(0, 0x7fff_fffe), (0x7fff_ffff, 0xffff_ffff)],
            &[(0, 0x5555_5554), (0x5555_5555, 0xaaaa_aaa9), (0xaaaa_aaaa, 0xffff_ffff)],
            &[(0, 0x3fff_fffe), (0x3fff_ffff, 0x7fff_fffd), (0x7fff_fffe, 0xbfff_fffc), (0xbfff_fffd, 0xffff_ffff)],
            &[
                (0, 0x3333_3332),
                (0x3333_3333, 0x6666_6665),
                (0x6666_6666, 0x9999_9998),
                (0x9999_9999, 0xcccc_cccb),
                (0xcccc_cccc, 0xffff_ffff),
            ],
        ];
        for (count, expected) in (1..).zip(table) {
            let order: Vec<usize> = (0..count).collect();
            assert_eq!(bounds(&assign(Gfid::ROOT, &order, 1)), expected);
        }
    }

    #[test]
    fn the_root_of_two_subvolumes_is_laid_out_as_glusterfs_does() {
        let root = assign(Gfid::ROOT, &[0, 1], COMMIT_INVALID);
        let first = [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0x7f, 0xff, 0xff, 0xfe];
        let second = [0, 0, 0, 1, 0, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff];
        assert_eq!(root.shares().iter().map(|share| share.to_raw().0).collect::<Vec<_>>(), [first, second]);
        assert!(root.is_sound() && !root.is_committed(0));
        assert_eq!(Share::of_directory(Some(WHOLE)), range(0, u32::MAX));
    }

    #[test]
    fn any_number_of_subvolumes_is_covered_from_any_beginning() {
        for count in 1..80 {
            for seed in 0..20 {
                let order: Vec<usize> = (0..count).rev().collect();
                let layout = assign(Gfid::from_random([seed; 16]), &order, 0);
                assert!(layout.is_sound() && layout.is_committed(0), "{count} {seed}");
                for hash in [0, 1, 0x7fff_ffff, u32::MAX] {
                    assert!(layout.set_of_hash(hash).is_some());
                }
            }
        }
    }

    #[test]
    fn what_is_no_layout_counts_as_none() {
        let cases = [[0xff; 16], [0; 16], {
            let mut reversed = WHOLE.0;
            reversed[8] = 1;
            reversed[12] = 0;
            reversed
        }];
        for bytes in cases {
            assert_eq!(Share::of_directory(Some(RawLayout(bytes))), Share::Nothing);
        }
        assert_eq!(Share::of_directory(None), Share::Nothing);
    }

    #[test]
    fn holes_and_overlaps_are_seen() {
        let broken: [&[Share]; 6] = [
            &[],
            &[Share::Nothing],
            &[range(0, 5)],
            &[range(1, u32::MAX)],
            &[range(0, 5), range(5, u32::MAX)],
            &[range(0, 5), range(7, u32::MAX)],
        ];
        for shares in broken {
            assert_eq!(Layout::new(shares).cover(), Cover::Broken, "{shares:?}");
        }
        let hole = Layout::new([range(0, 5), range(7, u32::MAX)]);
        assert_eq!((hole.set_of_hash(5), hole.set_of_hash(6), hole.set_of_hash(7)), (Some(0), None, Some(1)));
    }

    #[test]
    fn repair_keeps_what_can_be_kept() {
        let gfid = Gfid::from_random([7; 16]);
        let ideal = assign(gfid, &[0, 1, 2], 0);
        let mut shares = ideal.shares().to_vec();
        shares[1] = Share::Missing;
        assert_eq!(repaired(&Layout::new(shares.clone()), gfid, &[0, 1, 2]), ideal);
        shares[2] = Share::Nothing;
        assert_eq!(repaired(&Layout::new(shares), gfid, &[0, 1, 2]), ideal);

        let foreign = Layout::new([range(0, 9), Share::Nothing, range(100, u32::MAX)]);
        assert_eq!(repaired(&foreign, gfid, &[0, 1, 2]).shares()[1], range(10, 99));
        let hopeless = Layout::new([range(0, 9), Share::Nothing, Share::Missing]);
        assert_eq!(repaired(&hopeless, gfid, &[0, 1, 2]), assign(gfid, &[0, 1, 2], COMMIT_INVALID));
        let empty = Layout::new([Share::Nothing; 3]);
        assert_eq!(repaired(&empty, gfid, &[0, 1, 2]), assign(gfid, &[0, 1, 2], COMMIT_INVALID));
    }
}
