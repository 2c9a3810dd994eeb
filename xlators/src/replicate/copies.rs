//! The copies of a set: small numbers, and sets of them.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::types::XattrName;
use crate::xlator::Subvol;

/// The most copies of one set: they are bits of a `u64`.
pub(super) const COPIES_MAX: usize = 64;

/// One copy, as the set knows it.
#[derive(Debug)]
pub(super) struct Copy {
    pub(super) subvol: Subvol,
    /// `trusted.afr.<brick id>`: how others blame it.
    pub(super) key: XattrName,
    /// Keeps names and attributes only; never answers data or sizes.
    pub(super) arbiter: bool,
}

/// Some copies of a set, by their place in the volume file.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct CopySet(u64);

impl CopySet {
    pub(super) const NONE: Self = Self(0);

    pub(super) fn first(count: usize) -> Self {
        Self(if count >= COPIES_MAX { u64::MAX } else { (1 << count) - 1 })
    }

    pub(super) fn only(copy: usize) -> Self {
        Self(1 << copy)
    }

    pub(super) fn has(self, copy: usize) -> bool {
        self.0 >> copy & 1 == 1
    }

    pub(super) fn add(&mut self, copy: usize) {
        self.0 |= 1 << copy;
    }

    pub(super) fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    pub(super) fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(super) fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    pub(super) fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    pub(super) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(super) fn iter(self) -> impl Iterator<Item = usize> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let next = (rest != 0).then(|| rest.trailing_zeros() as usize)?;
            rest &= rest - 1;
            Some(next)
        })
    }
}

impl FromIterator<usize> for CopySet {
    fn from_iter<I: IntoIterator<Item = usize>>(copies: I) -> Self {
        let mut set = Self::NONE;
        copies.into_iter().for_each(|copy| set.add(copy));
        set
    }
}

impl fmt::Debug for CopySet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

/// A set that several threads look at and change.
#[derive(Debug, Default)]
pub(super) struct SharedSet(AtomicU64);

impl SharedSet {
    pub(super) fn get(&self) -> CopySet {
        CopySet(self.0.load(Ordering::Acquire))
    }

    pub(super) fn add(&self, set: CopySet) {
        self.0.fetch_or(set.0, Ordering::AcqRel);
    }

    pub(super) fn remove(&self, set: CopySet) {
        self.0.fetch_and(!set.0, Ordering::AcqRel);
    }
}
