//! The byte ranges of one file that one owner has locked: set, split, merged and taken away.
//!
//! The brick keeps one list for each owner, and a client keeps the same, to lock again at a brick that forgot.
//!
//! Invariant: the ranges are in order, do not overlap, and two that touch have different modes.

use std::iter::once;

use smallvec::SmallVec;

/// How a lock shares its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LockMode {
    /// With other readers.
    Read,
    /// With nobody.
    Write,
}

impl LockMode {
    /// Whether two owners can not have both.
    pub fn conflicts(self, other: Self) -> bool {
        self == Self::Write || other == Self::Write
    }
}

/// Some bytes of a file: those from `start` to `end`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    /// The first.
    pub start: u64,
    /// The last; `Span::END` for whatever is there.
    pub end: u64,
}

impl Span {
    /// The last byte that a file can have, which stands for the end of the file wherever that will be.
    pub const END: u64 = i64::MAX.unsigned_abs();

    /// Everything.
    pub const ALL: Self = Self { start: 0, end: Self::END };

    /// The bytes from `start` to `end`, if there are such.
    pub fn new(start: u64, end: u64) -> Option<Self> {
        (start <= end && end <= Self::END).then_some(Self { start, end })
    }

    /// What is in both.
    fn and(self, other: Self) -> Option<Self> {
        Self::new(self.start.max(other.start), self.end.min(other.end))
    }

    fn before(self, start: u64) -> Option<Self> {
        if self.start < start { Self::new(self.start, self.end.min(start - 1)) } else { None }
    }

    fn after(self, end: u64) -> Option<Self> {
        if self.end > end { Self::new(self.start.max(end + 1), self.end) } else { None }
    }
}

/// One locked range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Locked {
    /// Where.
    pub span: Span,
    /// How.
    pub mode: LockMode,
}

/// What one owner has locked of one file.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Ranges(Vec<Locked>);

impl Ranges {
    /// Lock this, whatever was locked there before.
    pub fn lock(&mut self, span: Span, mode: LockMode) {
        self.replace(span, Some(mode));
    }

    /// Unlock this.
    pub fn unlock(&mut self, span: Span) {
        self.replace(span, None);
    }

    fn replace(&mut self, span: Span, mode: Option<LockMode>) {
        let (before, after) = (span.start, span.end);
        // Those that overlap, and those that touch: they may become one with it.
        let first = self.0.partition_point(|held| held.span.end + 1 < before);
        let end = self.0.partition_point(|held| held.span.start <= after + 1);
        let old = &self.0[first..end];
        let left = old.iter().filter_map(|held| held.span.before(before).map(|span| Locked { span, ..*held }));
        let right = old.iter().filter_map(|held| held.span.after(after).map(|span| Locked { span, ..*held }));
        let middle = mode.map(|mode| Locked { span, mode });
        let mut new: SmallVec<[Locked; 3]> = SmallVec::new();
        for next in left.chain(middle).chain(right) {
            match new.last_mut() {
                Some(last) if last.mode == next.mode && last.span.end + 1 == next.span.start => {
                    last.span.end = next.span.end;
                }
                _ => new.push(next),
            }
        }
        self.0.splice(first..end, new);
    }

    /// What is locked, in order.
    pub fn iter(&self) -> impl Iterator<Item = Locked> + '_ {
        self.0.iter().copied()
    }

    /// The first locked range that keeps another owner from locking this.
    pub fn conflict(&self, span: Span, mode: LockMode) -> Option<Locked> {
        let first = self.0.partition_point(|held| held.span.end < span.start);
        let overlap = self.0[first..].iter().take_while(|held| held.span.start <= span.end);
        overlap.copied().find(|held| held.mode.conflicts(mode))
    }

    /// How `span` is locked, from its start to its end: each part with its mode, or `None` where it is not.
    pub fn parts(&self, span: Span) -> Vec<(Span, Option<LockMode>)> {
        let mut parts = Vec::new();
        let mut rest = Some(span);
        for held in self.iter() {
            let Some(left) = rest else { break };
            let Some(inside) = held.span.and(left) else { continue };
            parts.extend(left.before(inside.start).map(|gap| (gap, None)));
            parts.push((inside, Some(held.mode)));
            rest = left.after(inside.end);
        }
        parts.extend(rest.into_iter().flat_map(|gap| once((gap, None))));
        parts
    }

    /// How many ranges there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether nothing is locked.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::LockMode::{Read, Write};
    use super::*;

    fn span(start: u64, end: u64) -> Span {
        Span::new(start, end).unwrap()
    }

    fn shown(ranges: &Ranges) -> String {
        let one = |held: Locked| {
            format!("{}{}-{}", if held.mode == Read { "r" } else { "w" }, held.span.start, held.span.end)
        };
        ranges.iter().map(one).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn locks_split_merge_and_change_their_mode() {
        let mut ranges = Ranges::default();
        let steps: &[(Span, Option<LockMode>, &str)] = &[
            (span(10, 20), Some(Read), "r10-20"),
            (span(21, 30), Some(Read), "r10-30"),
            (span(15, 16), Some(Write), "r10-14 w15-16 r17-30"),
            (span(15, 16), Some(Read), "r10-30"),
            (span(0, 9), Some(Write), "w0-9 r10-30"),
            (span(5, 12), None, "w0-4 r13-30"),
            (span(40, Span::END), Some(Write), "w0-4 r13-30 w40-9223372036854775807"),
            (span(3, 50), Some(Read), "w0-2 r3-50 w51-9223372036854775807"),
            (Span::ALL, None, ""),
        ];
        for (at, mode, expected) in steps {
            match mode {
                Some(mode) => ranges.lock(*at, *mode),
                None => ranges.unlock(*at),
            }
            assert_eq!(shown(&ranges), *expected, "after {mode:?} of {at:?}");
        }
    }

    #[test]
    fn the_first_conflict_is_the_lowest() {
        let mut ranges = Ranges::default();
        ranges.lock(span(10, 20), Read);
        ranges.lock(span(30, 40), Write);
        assert_eq!(ranges.conflict(span(0, 100), Read), Some(Locked { span: span(30, 40), mode: Write }));
        assert_eq!(ranges.conflict(span(20, 100), Write), Some(Locked { span: span(10, 20), mode: Read }));
        assert_eq!(ranges.conflict(span(21, 29), Write), None);
    }

    /// As many bytes as the model has.
    const BYTES: u64 = 24;

    fn step() -> impl Strategy<Value = (Span, Option<LockMode>)> {
        let mode = prop_oneof![Just(None), Just(Some(Read)), Just(Some(Write))];
        (0..BYTES, 0..BYTES, mode).prop_map(|(a, b, mode)| (span(a.min(b), a.max(b)), mode))
    }

    proptest! {
        #[test]
        fn ranges_are_what_a_mode_for_each_byte_would_be(steps in proptest::collection::vec(step(), 1..40)) {
            let mut bytes = [None; BYTES as usize];
            let mut ranges = Ranges::default();
            for (at, mode) in steps {
                match mode {
                    Some(mode) => ranges.lock(at, mode),
                    None => ranges.unlock(at),
                }
                (at.start..=at.end).for_each(|byte| bytes[byte as usize] = mode);
                let parts = ranges.parts(span(0, BYTES - 1));
                let flat: Vec<_> =
                    parts.iter().flat_map(|(at, mode)| (at.start..=at.end).map(|_| *mode)).collect();
                prop_assert_eq!(&flat[..], &bytes[..]);
                for pair in ranges.0.windows(2) {
                    prop_assert!(pair[0].span.end < pair[1].span.start);
                    prop_assert!(pair[0].span.end + 1 < pair[1].span.start || pair[0].mode != pair[1].mode);
                }
                for byte in 0..BYTES {
                    let held = bytes[byte as usize];
                    let taken = |mode: LockMode| ranges.conflict(span(byte, byte), mode).is_some();
                    prop_assert_eq!(taken(Read), held == Some(Write));
                    prop_assert_eq!(taken(Write), held.is_some());
                }
            }
        }
    }
}
