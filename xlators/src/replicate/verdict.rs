//! What the answers of the copies to one change amount to. Pure.

use smallvec::SmallVec;

use super::copies::CopySet;
use super::quorum::Rule;
use crate::error::Errno;

/// How one copy answered a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Vote {
    /// Did it; with what must be equal on all copies (where an append went, how much was written).
    Done(Option<(u64, u32)>),
    /// Refused, and changed nothing.
    Refused(Errno),
    /// Was not asked, or gave no answer.
    Missed,
}

/// What the answers amount to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// A quorum did the same.
    Done(CopySet),
    /// A quorum changed nothing, or the clean copies did not; `odd` did it all the same.
    Refused { errno: Errno, refused: CopySet, odd: CopySet },
    /// Neither: copies may differ, and nobody can be blamed for it who is not blamed already.
    Undecided,
}

/// Judge one change. `votes` has a place for each copy of the set; nobody blames those that are `clean`.
///
/// A quorum of blamed copies does not overrule the clean ones: no copy would be left that has everything.
pub(super) fn judge(rule: &Rule, votes: &[Vote], clean: CopySet) -> Verdict {
    let those = |wanted: &dyn Fn(Vote) -> bool| -> CopySet {
        votes.iter().enumerate().filter(|&(_, vote)| wanted(*vote)).map(|(copy, _)| copy).collect()
    };
    // An arbiter agrees with everybody, so it is no measure unless there are only arbiters, or nothing to compare.
    let comparable = votes.iter().any(|vote| matches!(vote, Vote::Done(Some(_))));
    let measure = |vote: &&Vote| matches!(vote, Vote::Done(what) if what.is_some() == comparable);
    let mut agreeing = CopySet::NONE;
    for &vote in votes.iter().filter(measure) {
        let same = those(&|other| agrees(vote, other));
        if same.len() > agreeing.len() {
            agreeing = same;
        }
    }
    let refused = those(&|vote| matches!(vote, Vote::Refused(_)));
    let odd = those(&|vote| matches!(vote, Vote::Done(_)));
    let overrules = |these: CopySet, those: CopySet| these.and(clean).is_empty() && !those.and(clean).is_empty();
    if rule.holds(agreeing) && !overrules(agreeing, refused) {
        return Verdict::Done(agreeing);
    }
    let (by_quorum, by_clean) = (rule.holds(refused) && !overrules(refused, odd), rule.holds(agreeing));
    match majority_errno(votes, if by_quorum { refused } else { refused.and(clean) }) {
        Some(errno) if by_quorum || by_clean => Verdict::Refused { errno, refused, odd },
        _ => Verdict::Undecided,
    }
}

/// Two copies did the same; an arbiter has nothing to compare.
fn agrees(vote: Vote, other: Vote) -> bool {
    match (vote, other) {
        (Vote::Done(Some(a)), Vote::Done(Some(b))) => a == b,
        (Vote::Done(_), Vote::Done(_)) => true,
        _ => false,
    }
}

/// The errno that most of these copies gave; of equals the one of the lowest copy.
fn majority_errno(votes: &[Vote], of: CopySet) -> Option<Errno> {
    let errno = |copy: usize| if let Vote::Refused(errno) = votes[copy] { Some(errno) } else { None };
    let errnos: SmallVec<[Errno; 3]> = of.iter().filter_map(errno).collect();
    let count = |errno: Errno| errnos.iter().filter(|&&other| other == errno).count();
    let most = errnos.iter().map(|&errno| count(errno)).max()?;
    errnos.iter().copied().find(|&errno| count(errno) == most)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Quorum;

    const DONE: Vote = Vote::Done(None);
    const NOSPC: Vote = Vote::Refused(Errno::NOSPC);
    const EXIST: Vote = Vote::Refused(Errno::EXIST);
    const MISSED: Vote = Vote::Missed;

    fn at(offset: u64) -> Vote {
        Vote::Done(Some((offset, 1)))
    }

    fn set(copies: &[usize]) -> CopySet {
        copies.iter().copied().collect()
    }

    fn refused(errno: Errno, refused: &[usize], odd: &[usize]) -> Verdict {
        Verdict::Refused { errno, refused: set(refused), odd: set(odd) }
    }

    #[test]
    fn the_table_holds_row_by_row() {
        let rows: &[(&[Vote], Verdict)] = &[
            (&[DONE], Verdict::Done(set(&[0]))),
            (&[EXIST], refused(Errno::EXIST, &[0], &[])),
            (&[MISSED], Verdict::Undecided),
            (&[DONE, DONE], Verdict::Done(set(&[0, 1]))),
            (&[DONE, MISSED], Verdict::Done(set(&[0]))),
            (&[MISSED, DONE], Verdict::Undecided),
            (&[NOSPC, DONE], refused(Errno::NOSPC, &[0], &[1])),
            (&[DONE, DONE, DONE], Verdict::Done(set(&[0, 1, 2]))),
            (&[DONE, DONE, MISSED], Verdict::Done(set(&[0, 1]))),
            (&[DONE, NOSPC, DONE], Verdict::Done(set(&[0, 2]))),
            (&[EXIST, EXIST, EXIST], refused(Errno::EXIST, &[0, 1, 2], &[])),
            (&[EXIST, EXIST, MISSED], refused(Errno::EXIST, &[0, 1], &[])),
            (&[EXIST, NOSPC, NOSPC], refused(Errno::NOSPC, &[0, 1, 2], &[])),
            (&[NOSPC, DONE, NOSPC], refused(Errno::NOSPC, &[0, 2], &[1])),
            (&[NOSPC, DONE, MISSED], Verdict::Undecided),
            (&[DONE, MISSED, MISSED], Verdict::Undecided),
            (&[at(4), at(4), at(9)], Verdict::Done(set(&[0, 1]))),
            (&[at(4), at(9), DONE], Verdict::Done(set(&[0, 2]))),
            (&[at(4), at(9), MISSED], Verdict::Undecided),
        ];
        for (votes, expected) in rows {
            let rule = Rule::new(Quorum::Auto, votes.len());
            assert_eq!(judge(&rule, votes, CopySet::first(votes.len())), *expected, "{votes:?}");
        }
    }

    #[test]
    fn a_quorum_of_blamed_copies_does_not_overrule_a_clean_one() {
        let rows: &[(&[Vote], &[usize], Verdict)] = &[
            (&[DONE, NOSPC, DONE], &[1], refused(Errno::NOSPC, &[1], &[0, 2])),
            (&[DONE, NOSPC, DONE], &[1, 2], Verdict::Done(set(&[0, 2]))),
            (&[DONE, NOSPC, DONE], &[], Verdict::Done(set(&[0, 2]))),
            (&[DONE, MISSED, DONE], &[1], Verdict::Done(set(&[0, 2]))),
            (&[NOSPC, DONE, NOSPC], &[1], Verdict::Undecided),
            (&[NOSPC, DONE, NOSPC], &[0, 1], refused(Errno::NOSPC, &[0, 2], &[1])),
            (&[EXIST, NOSPC, DONE], &[1], refused(Errno::EXIST, &[0, 1], &[2])),
            (&[DONE, DONE, EXIST, NOSPC, DONE], &[3], refused(Errno::NOSPC, &[2, 3], &[0, 1, 4])),
        ];
        for (votes, clean, expected) in rows {
            let rule = Rule::new(Quorum::Auto, votes.len());
            assert_eq!(judge(&rule, votes, set(clean)), *expected, "{votes:?} {clean:?}");
        }
    }
}
