//! What is remembered of a lease, step by step.

use super::*;
use crate::graph::Quorum;

const OBJECT: Gfid = Gfid::from_bytes([7; 16]);

/// What three copies granted, by the numbers of their grants.
fn grants(epochs: [u64; 3]) -> [(usize, Epoch, Accused); 3] {
    [0, 1, 2].map(|copy| (copy, Epoch(epochs[copy]), Accused::default()))
}

fn cache() -> Cache {
    Cache::new(3, Rule::new(Quorum::Auto, 3))
}

#[test]
fn a_recall_means_the_grant_of_the_copy_that_sent_it() {
    let (cache, all) = (cache(), CopySet::first(3));
    assert!(matches!(cache.want(OBJECT, LeaseMode::Shared, all, Turn::Waits), Wanted::Ask { .. }));
    let (shared, ..) = cache.asked(OBJECT, LeaseMode::Shared, &grants([5, 6, 7]), all);
    cache.unpin(&shared.expect("granted"), &Outcome::default());
    assert!(matches!(cache.want(OBJECT, LeaseMode::Exclusive, all, Turn::Waits), Wanted::Ask { .. }));
    // Copy 1 has given more already, and wants that back. It is not the grant of copy 2 with the same number.
    assert_eq!(cache.recall(1, OBJECT, Epoch(7), LeaseMode::Exclusive), Recalled::Noted);
    let (_, recalled, disowned) = cache.asked(OBJECT, LeaseMode::Exclusive, &grants([6, 7, 8]), all);
    assert_eq!((recalled, disowned), (Recalled::GiveBack, vec![]));
}

/// A copy may have it back already: what ran under it now would be done by some and refused by others.
#[test]
fn a_lease_takes_its_last_pins_before_the_copies_are_told() {
    let (cache, all) = (cache(), CopySet::first(3));
    let want = |turn| cache.want(OBJECT, LeaseMode::Exclusive, all, turn);
    assert!(matches!(want(Turn::Waits), Wanted::Ask { .. }));
    let (pin, ..) = cache.asked(OBJECT, LeaseMode::Exclusive, &grants([5, 6, 7]), all);
    cache.unpin(&pin.expect("granted"), &Outcome::default());
    assert_eq!(cache.recall(0, OBJECT, Epoch(5), LeaseMode::Shared), Recalled::GiveBack);
    assert_eq!(cache.begin_return(&[OBJECT]), LeaseMode::Shared);
    let Wanted::Pinned(last) = want(Turn::Last) else { panic!("refused") };
    assert!(cache.drained(OBJECT).is_some());
    cache.unpin(&last, &Outcome::default());
    assert!(cache.drained(OBJECT).is_none());
    assert!(matches!(want(Turn::Last), Wanted::Gone));
    assert_eq!(cache.end_return(&[OBJECT]), vec![]);
    assert!(matches!(want(Turn::Waits), Wanted::Pinned(_)));
}

#[test]
fn a_grant_that_is_none_of_ours_goes_back_to_the_copy_that_gave_it() {
    let (cache, all) = (cache(), CopySet::first(3));
    assert!(matches!(cache.want(OBJECT, LeaseMode::Shared, all, Turn::Waits), Wanted::Ask { .. }));
    assert_eq!(cache.recall(2, OBJECT, Epoch(5), LeaseMode::Exclusive), Recalled::Noted);
    let (_, recalled, disowned) = cache.asked(OBJECT, LeaseMode::Shared, &grants([5, 6, 7]), all);
    assert_eq!((recalled, disowned), (Recalled::Noted, vec![(2, Epoch(5))]));
}
