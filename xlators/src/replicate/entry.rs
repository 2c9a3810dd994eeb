//! What the set remembers of one leased object.

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};
use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;

use super::copies::CopySet;
use super::pending::Accused;
use super::quorum::Rule;
use crate::types::{Epoch, LeaseMode};

/// What one copy granted, and what was done there since.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AtCopy {
    pub(super) grant: Option<(Epoch, LeaseMode)>,
    /// Changes it admitted under the grant; `None` when an answer never came, so that the number is not known.
    pub(super) changes: Option<u64>,
}

impl AtCopy {
    pub(super) fn covers(&self, mode: LeaseMode) -> bool {
        self.grant.is_some_and(|(_, held)| held >= mode)
    }
}

/// Epochs by copy.
pub(super) type Epochs = SmallVec<[Option<Epoch>; 3]>;

/// One leased object.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) at: SmallVec<[AtCopy; 3]>,
    /// Whom the copies blamed when they granted, and whom we blamed since.
    pub(super) accused: Accused,
    /// Whom we blamed under this lease, on disk, by class.
    pub(super) blamed: Accused,
    /// Fops that run under it.
    pub(super) pins: u32,
    /// Pins that last over several fops.
    pub(super) held: u32,
    /// It was lost while it was held so: another client may have had it.
    pub(super) lost: bool,
    /// Somebody wants it (or it is to leave the cache): what may stay is less than this.
    pub(super) recalled: Option<LeaseMode>,
    /// A recall came since it began to be given back, perhaps for a grant that came since, too.
    pub(super) recalled_again: bool,
    /// The last fop under it has ended, and the copies are being told: it takes no pin at all.
    pub(super) returning: bool,
    /// A request for it is under way.
    pub(super) asking: bool,
    /// Recalls of grants whose answer we have not seen yet.
    pub(super) early: Vec<(usize, Epoch, LeaseMode)>,
    /// A copy that granted it has lost the object's last name.
    pub(super) nameless: bool,
    /// The inode is no more, and no brick knows of a lease on it.
    pub(super) gone: bool,
    /// A change ended without a quorum that agrees, or a blame could not be written.
    pub(super) unsettled: bool,
    /// Stands in the list of what is to be settled.
    pub(super) listed: bool,
    /// When it was last pinned for a change, in ticks of the settler.
    pub(super) tick: u32,
    /// Which grant of all in this cache was the last for it.
    pub(super) since: u64,
    /// Who waits for anything to change here.
    pub(super) wake: Option<Arc<Notify>>,
}

impl Entry {
    pub(super) fn new(copies: usize) -> Self {
        Self {
            at: smallvec![AtCopy::default(); copies],
            accused: Accused::default(),
            blamed: Accused::default(),
            pins: 0,
            held: 0,
            lost: false,
            recalled: None,
            recalled_again: false,
            returning: false,
            asking: false,
            early: Vec::new(),
            nameless: false,
            gone: false,
            unsettled: false,
            listed: false,
            tick: 0,
            since: 0,
            wake: None,
        }
    }

    pub(super) fn holding(&self, mode: LeaseMode) -> CopySet {
        self.at.iter().enumerate().filter(|(_, at)| at.covers(mode)).map(|(copy, _)| copy).collect()
    }

    /// A grant was lost. Where a quorum still vouches for the lease, nobody else can have had it.
    pub(super) fn note_lost(&mut self, rule: &Rule) {
        self.lost |= self.held > 0 && !rule.holds(self.holding(LeaseMode::Exclusive));
    }

    pub(super) fn wait(&mut self) -> OwnedNotified {
        Arc::clone(self.wake.get_or_insert_with(Arc::default)).notified_owned()
    }

    pub(super) fn wake(&mut self) {
        if let Some(wake) = self.wake.take() {
            wake.notify_waiters();
        }
    }

    pub(super) fn epochs(&self) -> Epochs {
        self.at.iter().map(|at| at.grant.map(|(epoch, _)| epoch)).collect()
    }

    /// The copy says which grant it means: copies number theirs alike.
    pub(super) fn recall(&mut self, copy: usize, epoch: Epoch, wanted: LeaseMode) -> Recalled {
        if self.at[copy].grant.is_none_or(|(held, _)| held != epoch) {
            return Recalled::Unknown;
        }
        let first = self.recalled.is_none();
        self.recalled = self.recalled.max(Some(wanted));
        self.recalled_again = true;
        if first { Recalled::GiveBack } else { Recalled::Noted }
    }

    pub(super) fn forget_if_gone(&mut self) {
        if self.gone && self.is_idle() {
            self.at.fill(AtCopy::default());
            self.gone = false;
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.pins == 0 && !self.asking && self.recalled.is_none()
    }

    pub(super) fn holds_nothing(&self) -> bool {
        self.at.iter().all(|at| at.grant.is_none())
    }
}

/// A recall that was noted.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Recalled {
    /// Give it back when its pins are gone.
    GiveBack,
    /// It is on its way back, or will be looked at when the answer to our request is there.
    Noted,
    /// No such grant is known here: it was granted to a request that nobody waited for.
    Unknown,
}
