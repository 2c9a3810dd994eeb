//! Which requests of a session may run now: those that touch the same object run in the order of arrival.
//!
//! Two that only look at an object may run together. A request that touches two objects waits for its turn at both; it
//! lines up at both in one step, so no two requests can wait for each other.
//!
//! Invariant: of the requests that touch an object, a changing one runs alone.

use std::collections::{HashMap, VecDeque};

use foldhash::fast::RandomState;
use mortar_xlators::effect::{Needs, Target};
use mortar_xlators::fop::Fop;
use mortar_xlators::types::{Gfid, LeaseMode};

/// Names a request that holds its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Ticket(u64);

/// The requests that run or wait, by object.
#[derive(Debug)]
pub(crate) struct Order<T> {
    objects: HashMap<Gfid, Object, RandomState>,
    places: HashMap<Ticket, Place<T>, RandomState>,
    last: u64,
}

#[derive(Debug, Default)]
struct Object {
    looking: u32,
    changing: bool,
    waiting: VecDeque<(Ticket, LeaseMode)>,
}

#[derive(Debug)]
struct Place<T> {
    touches: Needs,
    /// At how many objects it still waits.
    missing: usize,
    /// The request, until it may run.
    item: Option<T>,
}

/// What a fop touches, each object once.
pub(crate) fn touches(fop: &Fop) -> Needs {
    let mut needs = fop.leases();
    if let (true, Target::Inode(gfid)) = (needs.is_empty(), fop.target()) {
        // A file is closed, and marked, after everything that was asked of it before.
        let changes = matches!(fop, Fop::Release(_) | Fop::Mark(_));
        needs.push((gfid, if changes { LeaseMode::Exclusive } else { LeaseMode::Shared }));
    }
    needs.sort_unstable();
    needs.dedup_by(|higher, lower| {
        let same = higher.0 == lower.0;
        if same {
            lower.1 = lower.1.max(higher.1);
        }
        same
    });
    needs
}

impl Object {
    fn admits(&self, mode: LeaseMode) -> bool {
        match mode {
            LeaseMode::Shared => !self.changing,
            LeaseMode::Exclusive => !self.changing && self.looking == 0,
        }
    }

    fn take(&mut self, mode: LeaseMode) {
        match mode {
            LeaseMode::Shared => self.looking += 1,
            LeaseMode::Exclusive => self.changing = true,
        }
    }

    fn give_back(&mut self, mode: LeaseMode) {
        match mode {
            LeaseMode::Shared => self.looking -= 1,
            LeaseMode::Exclusive => self.changing = false,
        }
    }
}

impl<T> Order<T> {
    pub(crate) fn new() -> Self {
        Self { objects: HashMap::default(), places: HashMap::default(), last: 0 }
    }

    /// Nothing that runs or waits stands in the way of a request that touches these.
    pub(crate) fn is_free(&self, touches: &Needs) -> bool {
        let free = |object: &Object, mode| object.waiting.is_empty() && object.admits(mode);
        self.objects.is_empty()
            || touches.iter().all(|(gfid, mode)| self.objects.get(gfid).is_none_or(|object| free(object, *mode)))
    }

    /// Hold the place of a request that runs already, having been free to.
    pub(crate) fn hold(&mut self, touches: Needs) -> Ticket {
        debug_assert!(self.is_free(&touches), "only a free request runs at once");
        self.last += 1;
        for (gfid, mode) in &touches {
            self.objects.entry(*gfid).or_default().take(*mode);
        }
        self.places.insert(Ticket(self.last), Place { touches, missing: 0, item: None });
        Ticket(self.last)
    }

    /// Line up a request that is not free to run.
    pub(crate) fn wait(&mut self, touches: Needs, item: T) {
        self.last += 1;
        let ticket = Ticket(self.last);
        let mut missing = 0;
        for (gfid, mode) in &touches {
            let object = self.objects.entry(*gfid).or_default();
            if object.waiting.is_empty() && object.admits(*mode) {
                object.take(*mode);
            } else {
                object.waiting.push_back((ticket, *mode));
                missing += 1;
            }
        }
        debug_assert!(missing > 0, "a free request does not wait");
        self.places.insert(ticket, Place { touches, missing, item: Some(item) });
    }

    /// A request ended. Those that may run now, with the places they hold, go to `ready`.
    pub(crate) fn leave(&mut self, ticket: Ticket, ready: &mut VecDeque<(Ticket, T)>) {
        let place = self.places.remove(&ticket).expect("a ticket is given back once");
        for (gfid, mode) in place.touches {
            let object = self.objects.get_mut(&gfid).expect("an object is known while somebody is at it");
            object.give_back(mode);
            while let Some((next, mode)) = object.waiting.front().copied().filter(|waiter| object.admits(waiter.1)) {
                object.waiting.pop_front();
                object.take(mode);
                let place = self.places.get_mut(&next).expect("who waits has a place");
                place.missing -= 1;
                if place.missing == 0
                    && let Some(item) = place.item.take()
                {
                    ready.push_back((next, item));
                }
            }
            if object.looking == 0 && !object.changing && object.waiting.is_empty() {
                self.objects.remove(&gfid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use LeaseMode::{Exclusive, Shared};

    fn at<const N: usize>(objects: [(Gfid, LeaseMode); N]) -> Needs {
        objects.into_iter().collect()
    }

    fn gfid(n: u8) -> Gfid {
        Gfid::from_bytes([n; 16])
    }

    fn left(order: &mut Order<&'static str>, ticket: Ticket) -> Vec<(Ticket, &'static str)> {
        let mut ready = VecDeque::new();
        order.leave(ticket, &mut ready);
        ready.into()
    }

    #[test]
    fn changes_of_one_object_run_in_order_and_looks_run_together() {
        let mut order = Order::new();
        let first = order.hold(at([(gfid(1), Exclusive)]));
        assert!(order.is_free(&at([(gfid(2), Exclusive)])));
        for name in ["look a", "look b"] {
            order.wait(at([(gfid(1), Shared)]), name);
        }
        order.wait(at([(gfid(1), Exclusive)]), "change");
        order.wait(at([(gfid(1), Shared)]), "look c");
        let looks = left(&mut order, first);
        assert_eq!(looks.iter().map(|look| look.1).collect::<Vec<_>>(), ["look a", "look b"]);
        assert!(left(&mut order, looks[0].0).is_empty());
        let change = left(&mut order, looks[1].0);
        assert_eq!(change[0].1, "change");
        let last = left(&mut order, change[0].0);
        assert_eq!(last[0].1, "look c");
        left(&mut order, last[0].0);
        assert!(order.objects.is_empty() && order.places.is_empty());
    }

    #[test]
    fn a_rename_waits_at_both_directories() {
        let mut order = Order::new();
        let one = order.hold(at([(gfid(1), Exclusive)]));
        let two = order.hold(at([(gfid(2), Exclusive)]));
        order.wait(at([(gfid(1), Exclusive), (gfid(2), Exclusive)]), "rename");
        order.wait(at([(gfid(2), Exclusive)]), "create");
        assert!(left(&mut order, one).is_empty());
        let rename = left(&mut order, two);
        assert_eq!(rename[0].1, "rename");
        assert_eq!(left(&mut order, rename[0].0)[0].1, "create");
    }

    #[test]
    fn a_hostile_link_of_a_directory_to_itself_does_not_wait_for_itself() {
        use mortar_xlators::fop::Link;
        use mortar_xlators::types::{Name, Time};
        let name = Name::new("x").unwrap();
        let link = Link { gfid: gfid(1), parent: gfid(1), name, when: Time::default() };
        assert_eq!(touches(&link.into()).as_slice(), [(gfid(1), Exclusive)]);
    }
}
