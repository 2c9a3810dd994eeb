//! The objects of a brick that are not known to be healthy, in memory, so that nobody has to ask the disk about the others.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use bitflags::bitflags;
use foldhash::fast::RandomState;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::types::Gfid;

bitflags! {
    /// What is the matter with an object.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) struct State: u8 {
        /// It has marks against other copies.
        const PENDING = 1;
        /// Its `trusted.afr.dirty` is not zero.
        const DIRTY = 2;
        /// It is being changed under a lease.
        const CHANGING = 4;
        /// It was dirty when the brick started.
        const LEFT = 8;
    }
}

impl State {
    /// It belongs into the index of dirty objects.
    pub(super) const IN_DIRTY: Self = Self::DIRTY.union(Self::CHANGING);
    /// It has xattrs that whoever reads it must know of.
    const MARKED: Self = Self::PENDING.union(Self::DIRTY);
}

/// See the module.
///
/// Invariant: an object without an entry here has no marks that are not zero.
#[derive(Debug)]
pub(super) struct Objects {
    states: Mutex<HashMap<Gfid, State, RandomState>>,
    /// How many have marks; nearly always none, and then nobody takes the lock.
    marked: AtomicUsize,
    pending: AtomicUsize,
    blames: watch::Sender<bool>,
}

impl Objects {
    pub(super) fn new() -> Self {
        Self {
            states: Mutex::default(),
            marked: AtomicUsize::new(0),
            pending: AtomicUsize::new(0),
            blames: watch::Sender::new(false),
        }
    }

    pub(super) fn get(&self, gfid: Gfid) -> State {
        self.states.lock().get(&gfid).copied().unwrap_or(State::empty())
    }

    /// Change the state of an object to what `change` makes of it; what it was before and is now.
    pub(super) fn change(&self, gfid: Gfid, change: impl FnOnce(State) -> State) -> (State, State) {
        let states = &mut *self.states.lock();
        let before = states.get(&gfid).copied().unwrap_or(State::empty());
        let after = change(before);
        if after.is_empty() {
            states.remove(&gfid);
        } else if after != before {
            states.insert(gfid, after);
        }
        count(&self.marked, before.intersects(State::MARKED), after.intersects(State::MARKED));
        let pending = before.contains(State::PENDING) != after.contains(State::PENDING);
        if pending {
            count(&self.pending, before.contains(State::PENDING), after.contains(State::PENDING));
            let any = self.blames_any();
            self.blames.send_if_modified(|now| std::mem::replace(now, any) != any);
        }
        (before, after)
    }

    /// Some object has marks.
    pub(super) fn any_marked(&self) -> bool {
        self.marked.load(Ordering::Relaxed) > 0
    }

    /// An object has marks.
    pub(super) fn is_marked(&self, gfid: Gfid) -> bool {
        self.any_marked() && self.get(gfid).intersects(State::MARKED)
    }

    /// Some object has marks against other copies.
    pub(super) fn blames_any(&self) -> bool {
        self.pending.load(Ordering::Relaxed) > 0
    }

    pub(super) fn blames(&self) -> watch::Receiver<bool> {
        self.blames.subscribe()
    }

    /// How many have marks against other copies, and how many are or may be dirty.
    pub(super) fn backlog(&self) -> (u64, u64) {
        let states = self.states.lock();
        let dirty = states.values().filter(|state| state.intersects(State::IN_DIRTY)).count();
        (self.pending.load(Ordering::Relaxed) as u64, dirty as u64)
    }
}

fn count(counter: &AtomicUsize, before: impl Into<bool>, after: impl Into<bool>) {
    match (before.into(), after.into()) {
        (false, true) => counter.fetch_add(1, Ordering::Relaxed),
        (true, false) => counter.fetch_sub(1, Ordering::Relaxed),
        _ => 0,
    };
}
