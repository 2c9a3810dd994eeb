//! How many copies must take part.

use super::copies::CopySet;
use crate::graph::Quorum;

/// The rule of one set.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rule {
    quorum: Quorum,
    copies: usize,
}

impl Rule {
    pub(super) fn new(quorum: Quorum, copies: usize) -> Self {
        Self { quorum, copies }
    }

    /// Whether these copies are enough.
    ///
    /// `auto`: more than half; of an even number exactly half, if the first is among them, so that two halves can
    /// never both go on.
    pub(super) fn holds(&self, set: CopySet) -> bool {
        let twice = set.len() * 2;
        match self.quorum {
            Quorum::Auto => twice > self.copies || (twice == self.copies && set.has(0)),
            Quorum::Fixed(count) => set.len() >= (count as usize).clamp(1, self.copies),
            Quorum::None => !set.is_empty(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_holds_row_by_row() {
        let rows: &[(Quorum, usize, &[usize], bool)] = &[
            (Quorum::Auto, 1, &[], false),
            (Quorum::Auto, 1, &[0], true),
            (Quorum::Auto, 2, &[0], true),
            (Quorum::Auto, 2, &[1], false),
            (Quorum::Auto, 2, &[0, 1], true),
            (Quorum::Auto, 3, &[0], false),
            (Quorum::Auto, 3, &[1, 2], true),
            (Quorum::Auto, 3, &[0, 1, 2], true),
            (Quorum::Auto, 4, &[0, 3], true),
            (Quorum::Auto, 4, &[2, 3], false),
            (Quorum::Auto, 4, &[1, 2, 3], true),
            (Quorum::Auto, 5, &[0, 1], false),
            (Quorum::Auto, 5, &[2, 3, 4], true),
            (Quorum::Fixed(2), 3, &[0], false),
            (Quorum::Fixed(2), 3, &[1, 2], true),
            (Quorum::Fixed(3), 3, &[0, 1], false),
            (Quorum::Fixed(9), 3, &[0, 1, 2], true),
            (Quorum::Fixed(0), 3, &[], false),
            (Quorum::Fixed(1), 3, &[2], true),
            (Quorum::None, 3, &[], false),
            (Quorum::None, 3, &[2], true),
        ];
        for &(quorum, copies, set, expected) in rows {
            let held = Rule::new(quorum, copies).holds(set.iter().copied().collect());
            assert_eq!(held, expected, "{quorum:?} of {copies} with {set:?}");
        }
    }
}
