//! Whether what several clients saw of a few names can have happened in one order.
//!
//! A history is linearizable (Herlihy and Wing, 1990) if there is an order of its operations that gives every answer that was
//! given, in which no operation comes before one that had ended when it began. The search is that of Wing and Gong (1993), with
//! the states that were seen remembered (Lowe, 2017): an operation is tried if nothing that is still to be ordered ended before
//! it began.

use std::collections::HashSet;
use std::hash::Hash;

/// How many operations one search may order: the bits of its set.
pub(super) const OPERATIONS_MAX: usize = 128;

/// Something that was done, when it began and when it had ended. Both are positions in one total order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Event<O> {
    /// Which client saw it.
    pub(super) who: usize,
    pub(super) began: u64,
    pub(super) ended: u64,
    pub(super) operation: O,
}

/// What an operation with its answer means.
pub(super) trait Step {
    type State: Clone + Eq + Hash;

    /// The state after it, if the answer can be given in `state`. More than one if the caller cannot know which.
    fn next(&self, state: &Self::State) -> Vec<Self::State>;
}

/// Whether there is such an order.
pub(super) fn is_linearizable<O: Step>(events: &[Event<O>], initial: O::State) -> bool {
    may_begin_so(events, initial, u64::MAX)
}

/// Whether what had ended at a moment can have happened. What had begun by then may have had its effect already, or not.
fn may_begin_so<O: Step>(events: &[Event<O>], initial: O::State, moment: u64) -> bool {
    assert!(events.len() <= OPERATIONS_MAX, "a history has at most {OPERATIONS_MAX} operations");
    let begun = || events.iter().enumerate().filter(|(_, event)| event.began <= moment);
    let ended = begun().filter(|(_, event)| event.ended <= moment).fold(0u128, |set, (index, _)| set | 1 << index);
    let mut seen = HashSet::new();
    let mut to_do = vec![(0u128, initial)];
    while let Some((done, state)) = to_do.pop() {
        if done & ended == ended {
            return true;
        }
        let left = || begun().filter(|(index, _)| done & (1 << index) == 0);
        let first_end = left().map(|(_, event)| event.ended).min().expect("something is left");
        for (index, event) in left().filter(|(_, event)| event.began < first_end) {
            for after in event.operation.next(&state) {
                let reached = (done | 1 << index, after);
                if seen.insert(reached.clone()) {
                    to_do.push(reached);
                }
            }
        }
    }
    false
}

/// The shortest beginning of the history that cannot have happened, in the order of ends.
pub(super) fn shortest_wrong<O: Step + Clone>(events: &[Event<O>], initial: &O::State) -> Vec<Event<O>> {
    let mut ordered = events.to_vec();
    ordered.sort_by_key(|event| event.ended);
    let wrong = ordered.iter().map(|event| event.ended).find(|ended| !may_begin_so(events, initial.clone(), *ended));
    if let Some(moment) = wrong {
        ordered.retain(|event| event.began <= moment);
    }
    ordered
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Clone, PartialEq, Eq)]
    enum Register {
        Write(u32),
        Read(u32),
    }

    impl Step for Register {
        type State = u32;

        fn next(&self, state: &u32) -> Vec<u32> {
            match self {
                Self::Write(value) => vec![*value],
                Self::Read(value) if value == state => vec![*state],
                Self::Read(_) => Vec::new(),
            }
        }
    }

    fn at(began: u64, ended: u64, operation: Register) -> Event<Register> {
        Event { who: 0, began, ended, operation }
    }

    #[test]
    fn what_overlaps_may_come_in_either_order() {
        let history = [at(0, 10, Register::Write(1)), at(1, 4, Register::Read(1)), at(2, 3, Register::Read(0))];
        assert!(is_linearizable(&history, 0));
    }

    #[test]
    fn a_stale_read_is_found() {
        let history = [at(0, 1, Register::Write(1)), at(2, 3, Register::Read(0)), at(4, 5, Register::Read(1))];
        assert!(!is_linearizable(&history, 0));
        assert_eq!(shortest_wrong(&history, &0), history[..2]);
    }

    #[test]
    fn what_has_only_begun_may_have_its_effect_or_wait_for_another() {
        let history = [
            at(0, 9, Register::Write(1)),
            at(1, 2, Register::Read(1)),
            at(3, 8, Register::Read(2)),
            at(4, 7, Register::Write(2)),
            at(10, 11, Register::Read(3)),
        ];
        assert_eq!(shortest_wrong(&history, &0).len(), history.len(), "only the last answer is wrong");
    }

    #[test]
    fn going_back_in_time_is_found() {
        let history = [at(0, 10, Register::Write(1)), at(1, 2, Register::Read(1)), at(3, 4, Register::Read(0))];
        assert!(!is_linearizable(&history, 0));
    }
}
