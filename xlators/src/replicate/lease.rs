//! The leases this client holds, as the set remembers them: with each copy's epoch, what was changed under it, and
//! whom the copies blame.
//!
//! Nothing here sends a message or awaits one: `acquire.rs` and `give_back.rs` do.
//!
//! Invariant: a lease that is being given back takes no new pin; it is given back when the last pin is gone.

use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use foldhash::fast::RandomState;
use lru::LruCache;
use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;
use tokio::sync::futures::OwnedNotified;

use super::copies::CopySet;
use super::entry::{AtCopy, Entry, Epochs, Recalled};
use super::pending::Accused;
use super::quorum::Rule;
use crate::ctx::Turn;
use crate::error::{FopError, Result};
use crate::fop::Settled;
use crate::reply::Reply;
use crate::types::{Class, Epoch, Gfid, LeaseMode};

/// Power of two, enough that two threads seldom meet in one shard.
const SHARDS: usize = 32;

/// A lease in use by one fop; must be handed to [`Cache::unpin`].
#[derive(Debug)]
pub(super) struct Pin {
    pub(super) gfid: Gfid,
    pub(super) mode: LeaseMode,
    pub(super) epochs: Epochs,
    pub(super) accused: Accused,
    pub(super) blamed: Accused,
}

/// What a fop found when it wanted a lease.
#[derive(Debug)]
pub(super) enum Wanted {
    /// Go on.
    Pinned(Pin),
    /// Somebody asks for it already, or it is being given back: look again when this ends.
    Wait(OwnedNotified),
    /// Not held, and the fop is one that must not wait for it.
    Gone,
    /// Ask these copies. The caller is the only one that asks, and must call `asked` whatever happens.
    Ask {
        /// Copies that have not granted it.
        missing: CopySet,
        /// Copies that have.
        holding: CopySet,
    },
}

/// How many changes one copy counted of one fop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Counted {
    /// It answered so many; none that it was not sent, or fenced.
    Times(u64),
    /// No answer: nobody knows.
    Unknown,
}

impl Counted {
    pub(super) fn of(answer: &Result<Reply>) -> Self {
        match answer {
            Err(FopError::Fenced) => Self::Times(0),
            Ok(_) | Err(FopError::Refused(_)) => Self::Times(1),
            Err(FopError::Unreachable) => Self::Unknown,
        }
    }

    pub(super) fn and(self, more: Self) -> Self {
        match (self, more) {
            (Self::Times(one), Self::Times(other)) => Self::Times(one + other),
            _ => Self::Unknown,
        }
    }
}

/// How a change ended, for the books of its leases.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    pub(super) counted: SmallVec<[Counted; 3]>,
    /// Copies may differ without being blamed.
    pub(super) unsettled: bool,
    /// Blames written, by object.
    pub(super) blamed: SmallVec<[(Gfid, Class, CopySet); 2]>,
}

/// What a copy is to be told when a lease is given back.
#[derive(Debug, Default)]
pub(super) struct Returns {
    pub(super) dropped: Vec<Settled>,
    pub(super) lowered: Vec<Settled>,
}

/// The leases this client holds on one set.
#[derive(Debug)]
pub(super) struct Cache {
    shards: Vec<Mutex<LruCache<Gfid, Entry, RandomState>>>,
    hasher: RandomState,
    copies: usize,
    rule: Rule,
    /// Objects in all shards.
    size: AtomicUsize,
    /// Objects that have changes which the copies have not been told are everywhere.
    unsettled: Mutex<Vec<Gfid>>,
    tick: AtomicU32,
    /// Counts grants.
    grants: AtomicU64,
}

impl Cache {
    pub(super) fn new(copies: usize, rule: Rule) -> Self {
        let shard = || Mutex::new(LruCache::unbounded_with_hasher(RandomState::default()));
        Self {
            shards: (0..SHARDS).map(|_| shard()).collect(),
            hasher: RandomState::default(),
            copies,
            rule,
            size: AtomicUsize::new(0),
            unsettled: Mutex::default(),
            tick: AtomicU32::new(0),
            grants: AtomicU64::new(0),
        }
    }

    fn shard(&self, gfid: Gfid) -> MutexGuard<'_, LruCache<Gfid, Entry, RandomState>> {
        let hash = self.hasher.hash_one(gfid) >> 32;
        self.shards[hash as usize % SHARDS].lock()
    }

    pub(super) fn len(&self) -> usize {
        self.size.load(Ordering::Relaxed)
    }

    fn with_new<T>(&self, gfid: Gfid, work: impl FnOnce(&mut Entry) -> T) -> T {
        let fresh = || {
            self.size.fetch_add(1, Ordering::Relaxed);
            Entry::new(self.copies)
        };
        work(self.shard(gfid).get_or_insert_mut(gfid, fresh))
    }

    /// Work on an entry that exists, and drop it if nothing is left of it.
    fn with<T>(&self, gfid: Gfid, work: impl FnOnce(&mut Entry) -> T) -> Option<T> {
        let mut shard = self.shard(gfid);
        let entry = shard.peek_mut(&gfid)?;
        let answer = work(entry);
        entry.forget_if_gone();
        if entry.is_idle() && entry.holds_nothing() {
            shard.pop(&gfid);
            self.size.fetch_sub(1, Ordering::Relaxed);
        }
        Some(answer)
    }

    /// Use the lease on `gfid`, if every copy of `up` has granted it.
    pub(super) fn want(&self, gfid: Gfid, mode: LeaseMode, up: CopySet, turn: Turn) -> Wanted {
        self.with_new(gfid, |entry| {
            let holding = entry.holding(mode).and(up);
            let held = turn == Turn::Held && entry.held > 0;
            if held && (entry.lost || entry.recalled.is_some() && holding != up) {
                return Wanted::Gone;
            }
            let last = turn == Turn::Last && !entry.returning;
            if holding == up && (entry.recalled.is_none() || last || held) {
                return Wanted::Pinned(self.pin(gfid, entry, mode));
            }
            if entry.recalled.is_some() {
                return if turn == Turn::Last { Wanted::Gone } else { Wanted::Wait(entry.wait()) };
            }
            if entry.asking {
                return Wanted::Wait(entry.wait());
            }
            entry.asking = true;
            Wanted::Ask { missing: up.without(holding), holding }
        })
    }

    /// Those of `gfids` of which no copy has granted anything, and for which nobody asks: the caller asks for all of
    /// them, and must call `gathered` for each whatever happens.
    pub(super) fn want_many(&self, gfids: impl Iterator<Item = Gfid>) -> Vec<Gfid> {
        let free = |gfid: &Gfid| {
            self.with_new(*gfid, |entry| {
                let free = entry.is_idle() && entry.holds_nothing();
                entry.asking |= free;
                free
            })
        };
        gfids.filter(free).collect()
    }

    fn pin(&self, gfid: Gfid, entry: &mut Entry, mode: LeaseMode) -> Pin {
        entry.pins += 1;
        if mode == LeaseMode::Exclusive {
            entry.tick = self.tick.load(Ordering::Relaxed);
        }
        Pin { gfid, mode, epochs: entry.epochs(), accused: entry.accused, blamed: entry.blamed }
    }

    /// The request that `want` told us to make has ended with these grants. If they complete the lease, it is pinned
    /// in the same step, so that whoever waited its turn gets at least one fop through; a recall that overtook the
    /// answer is returned, and must be served after that. So are recalled grants that are none of ours after all.
    pub(super) fn asked(
        &self,
        gfid: Gfid,
        mode: LeaseMode,
        grants: &[(usize, Epoch, Accused)],
        up: CopySet,
    ) -> (Option<Pin>, Recalled, Vec<(usize, Epoch)>) {
        let ended = self.with(gfid, |entry| {
            let pin = |entry: &mut Entry| self.pin(gfid, entry, mode);
            self.install(entry, mode, grants, up, pin)
        });
        ended.unwrap_or((None, Recalled::Noted, Vec::new()))
    }

    /// As `asked`, for a shared lease that no fop waits for.
    pub(super) fn gathered(
        &self,
        gfid: Gfid,
        grants: &[(usize, Epoch, Accused)],
        up: CopySet,
    ) -> (Recalled, Vec<(usize, Epoch)>) {
        let ended = self.with(gfid, |entry| self.install(entry, LeaseMode::Shared, grants, up, |_| ()));
        ended.map_or((Recalled::Noted, Vec::new()), |(_, recalled, disowned)| (recalled, disowned))
    }

    fn install<T>(
        &self,
        entry: &mut Entry,
        mode: LeaseMode,
        grants: &[(usize, Epoch, Accused)],
        up: CopySet,
        use_at_once: impl FnOnce(&mut Entry) -> T,
    ) -> (Option<T>, Recalled, Vec<(usize, Epoch)>) {
        entry.asking = false;
        entry.since = self.grants.fetch_add(1, Ordering::AcqRel) + 1;
        for &(copy, epoch, accused) in grants {
            let at = &mut entry.at[copy];
            if at.grant.is_none_or(|(old, _)| old != epoch) {
                *at = AtCopy { grant: Some((epoch, mode)), changes: Some(0) };
            }
            entry.accused.merge(accused);
        }
        let holding = entry.holding(mode).and(up);
        let complete = entry.recalled.is_none() && holding == up && self.rule.holds(holding);
        let used = complete.then(|| use_at_once(entry));
        let (mut recalled, mut disowned) = (Recalled::Noted, Vec::new());
        for (copy, epoch, wanted) in std::mem::take(&mut entry.early) {
            match entry.recall(copy, epoch, wanted) {
                Recalled::GiveBack => recalled = Recalled::GiveBack,
                Recalled::Noted => {}
                Recalled::Unknown => disowned.push((copy, epoch)),
            }
        }
        entry.wake();
        (used, recalled, disowned)
    }

    /// A new object came with a lease from these copies.
    pub(super) fn born(&self, gfid: Gfid, grants: &[(usize, Epoch)], missed: CopySet) {
        self.with_new(gfid, |entry| {
            entry.since = self.grants.fetch_add(1, Ordering::AcqRel) + 1;
            for &(copy, epoch) in grants {
                entry.at[copy] = AtCopy { grant: Some((epoch, LeaseMode::Exclusive)), changes: Some(0) };
            }
            for class in [Class::Data, Class::Metadata, Class::Entry] {
                entry.accused.add(class, missed);
                entry.blamed.add(class, missed);
            }
        });
    }

    /// A point in time, for `covers`.
    pub(super) fn now(&self) -> u64 {
        self.grants.load(Ordering::Acquire)
    }

    /// A copy that is granting `gfid` has lost its last name, and others will: nothing is covered by the lease.
    pub(super) fn nameless(&self, gfid: Gfid) {
        self.with(gfid, |entry| entry.nameless = true);
    }

    /// The lease on `gfid` has held since `then`, and nobody wants it back: what was answered after `then` is covered.
    pub(super) fn covers(&self, gfid: Gfid, up: CopySet, then: u64) -> bool {
        let shard = self.shard(gfid);
        let holds = |entry: &Entry| {
            entry.recalled.is_none() && !entry.nameless && entry.holding(LeaseMode::Shared).and(up) == up
        };
        shard.peek(&gfid).is_some_and(|entry| entry.since <= then && holds(entry))
    }

    /// Nobody else has a lease on it, or asks for one.
    pub(super) fn owns(&self, gfid: Gfid, up: CopySet) -> bool {
        let shard = self.shard(gfid);
        let owned = |entry: &Entry| entry.recalled.is_none() && entry.holding(LeaseMode::Exclusive).and(up) == up;
        shard.peek(&gfid).is_some_and(owned)
    }

    /// Whom the copies blame for a pinned object by now.
    pub(super) fn accused(&self, pin: &Pin) -> Accused {
        self.with(pin.gfid, |entry| entry.accused).unwrap_or(pin.accused)
    }

    /// These copies are about to be blamed for a pinned object.
    pub(super) fn accuse(&self, pin: &Pin, class: Class, copies: CopySet) {
        self.with(pin.gfid, |entry| entry.accused.add(class, copies));
    }

    /// A fop has ended.
    pub(super) fn unpin(&self, pin: &Pin, outcome: &Outcome) {
        let list = self.with(pin.gfid, |entry| {
            entry.pins -= 1;
            let changed = pin.mode == LeaseMode::Exclusive && !outcome.counted.is_empty();
            if changed {
                for (at, (counted, epoch)) in entry.at.iter_mut().zip(outcome.counted.iter().zip(&pin.epochs)) {
                    match counted {
                        // A grant that was renewed meanwhile counts anew; a count that is off only keeps a mark.
                        Counted::Times(0) => {}
                        Counted::Times(times) if at.grant.map(|(e, _)| e) == *epoch => {
                            at.changes = at.changes.map(|changes| changes + times);
                        }
                        Counted::Times(_) | Counted::Unknown => at.changes = None,
                    }
                }
                entry.unsettled |= outcome.unsettled;
                for &(gfid, class, copies) in &outcome.blamed {
                    if gfid == pin.gfid {
                        entry.accused.add(class, copies);
                        entry.blamed.add(class, copies);
                    }
                }
            }
            if entry.pins == 0 && entry.recalled.is_some() {
                entry.wake();
            }
            let list = changed && !entry.listed;
            entry.listed |= changed;
            list
        });
        if list == Some(true) {
            self.unsettled.lock().push(pin.gfid);
        }
    }

    /// The pin lasts until `release`, instead of for one fop.
    pub(super) fn hold(&self, pin: &Pin) {
        self.with(pin.gfid, |entry| entry.held += 1);
    }

    /// A pin that lasted has ended. Who releases what he does not hold releases nothing.
    pub(super) fn release(&self, gfid: Gfid) {
        self.with(gfid, |entry| {
            if entry.held == 0 {
                return;
            }
            (entry.held, entry.pins) = (entry.held - 1, entry.pins - 1);
            entry.lost &= entry.held > 0;
            if entry.pins == 0 && entry.recalled.is_some() {
                entry.wake();
            }
        });
    }

    /// A copy no longer knows this grant.
    pub(super) fn fenced(&self, gfid: Gfid, copy: usize, epoch: Option<Epoch>) {
        self.with(gfid, |entry| {
            let at = &mut entry.at[copy];
            if at.grant.map(|(e, _)| e) == epoch {
                *at = AtCopy::default();
            }
            entry.note_lost(&self.rule);
        });
    }

    /// A single copy granted it again while it is pinned.
    pub(super) fn regranted(&self, pin: &mut Pin, copy: usize, epoch: Epoch) {
        pin.epochs[copy] = Some(epoch);
        self.with(pin.gfid, |entry| {
            entry.at[copy] = AtCopy { grant: Some((epoch, pin.mode)), changes: Some(0) };
        });
    }

    /// The inode is gone, and its leases with it. A lease that is in use goes when it no longer is.
    pub(super) fn forget(&self, gfid: Gfid) {
        self.with(gfid, |entry| entry.gone = true);
    }

    /// The leases that fewer copies than a quorum stand for, when only these are reached: another client may be
    /// granted them, so that nothing that was answered under them may be kept.
    pub(super) fn unfounded(&self, up: CopySet) -> Vec<Gfid> {
        let founded = |entry: &Entry| {
            let holding = entry.holding(LeaseMode::Shared);
            holding.is_empty() || self.rule.holds(holding.and(up))
        };
        let shards = self.shards.iter();
        let of = |shard: &Mutex<LruCache<Gfid, Entry, RandomState>>| -> Vec<Gfid> {
            shard.lock().iter().filter(|(_, entry)| !founded(entry)).map(|(gfid, _)| *gfid).collect()
        };
        shards.flat_map(of).collect()
    }

    /// A copy lost everything it knew of us.
    pub(super) fn forget_copy(&self, copy: usize) {
        for shard in &self.shards {
            for (_, entry) in shard.lock().iter_mut() {
                entry.at[copy] = AtCopy::default();
                entry.note_lost(&self.rule);
                entry.wake();
            }
        }
    }

    /// A recall came from `copy`.
    pub(super) fn recall(&self, copy: usize, gfid: Gfid, epoch: Epoch, wanted: LeaseMode) -> Recalled {
        let noted = self.with(gfid, |entry| {
            let noted = entry.recall(copy, epoch, wanted);
            if noted == Recalled::Unknown && entry.asking {
                entry.early.push((copy, epoch, wanted));
                return Recalled::Noted;
            }
            noted
        });
        noted.unwrap_or(Recalled::Unknown)
    }

    /// What to wait for until nothing runs under a lease that is being given back; `None` when nothing does.
    pub(super) fn drained(&self, gfid: Gfid) -> Option<OwnedNotified> {
        let mut shard = self.shard(gfid);
        let entry = shard.peek_mut(&gfid)?;
        entry.returning = entry.pins == 0;
        (!entry.returning).then(|| entry.wait())
    }

    /// These are on their way back from here on: a recall that comes later is answered by another round. Says what
    /// others may want of them.
    pub(super) fn begin_return(&self, gfids: &[Gfid]) -> LeaseMode {
        let begin = |&gfid: &Gfid| {
            self.with(gfid, |entry| {
                (entry.recalled_again, entry.returning) = (false, false);
                entry.recalled.unwrap_or(LeaseMode::Exclusive)
            })
        };
        gfids.iter().filter_map(begin).max().unwrap_or(LeaseMode::Exclusive)
    }

    /// What to tell `copy` of leases that are given back.
    pub(super) fn returns(&self, gfids: &[Gfid], copy: usize) -> Returns {
        let mut returns = Returns::default();
        for &gfid in gfids {
            let shard = self.shard(gfid);
            let Some(entry) = shard.peek(&gfid) else { continue };
            let Some((epoch, mode)) = entry.at[copy].grant else { continue };
            let changes = entry.at[copy].changes.filter(|_| !entry.unsettled);
            let keep = mode == LeaseMode::Exclusive && entry.recalled == Some(LeaseMode::Shared);
            let list = if keep { &mut returns.lowered } else { &mut returns.dropped };
            list.push(Settled { gfid, epoch, changes });
        }
        returns
    }

    /// A copy was told. A grant that came meanwhile is another one, and stays.
    pub(super) fn returned(&self, copy: usize, returns: &Returns) {
        let both = returns.dropped.iter().map(|s| (s, None));
        let both = both.chain(returns.lowered.iter().map(|s| (s, Some((s.epoch, LeaseMode::Shared)))));
        for (settled, grant) in both {
            self.with(settled.gfid, |entry| {
                let at = &mut entry.at[copy];
                if at.grant.is_some_and(|(epoch, _)| epoch == settled.epoch) {
                    *at = AtCopy { grant, changes: grant.map(|_| 0) };
                }
            });
        }
    }

    /// All copies were told, and whoever waits may ask anew. Answers what was recalled again meanwhile.
    pub(super) fn end_return(&self, gfids: &[Gfid]) -> Vec<Gfid> {
        let again = |&gfid: &Gfid| {
            self.with(gfid, |entry| {
                if entry.recalled_again {
                    return true;
                }
                if entry.holds_nothing() {
                    (entry.accused, entry.blamed) = (Accused::default(), Accused::default());
                    entry.nameless = false;
                }
                entry.unsettled = false;
                (entry.recalled, entry.returning) = (None, false);
                entry.wake();
                false
            })
        };
        gfids.iter().copied().filter(|gfid| again(gfid) == Some(true)).collect()
    }

    /// Choose up to `count` leases that were not used for long, and mark them as being given back.
    pub(super) fn choose_oldest(&self, count: usize) -> Vec<Gfid> {
        let mut chosen = Vec::new();
        for shard in &self.shards {
            let mut shard = shard.lock();
            let idle = |(gfid, entry): (&Gfid, &Entry)| entry.is_idle().then_some(*gfid);
            let oldest: Vec<_> = shard.iter().rev().filter_map(idle).take(count / SHARDS + 1).collect();
            for gfid in &oldest {
                if let Some(entry) = shard.peek_mut(gfid) {
                    entry.recalled = Some(LeaseMode::Exclusive);
                }
            }
            chosen.extend(oldest);
        }
        chosen
    }

    pub(super) fn has_unsettled(&self) -> bool {
        !self.unsettled.lock().is_empty()
    }

    /// Objects that were changed and then left alone for a tick, with what each copy may be told; the others wait for
    /// the next tick, as do those that `lets_go` says are still kept back above. The flag says that some wait.
    pub(super) fn settle(&self, lets_go: impl Fn(Gfid) -> bool) -> (Vec<Vec<Settled>>, Later) {
        let now = self.tick.fetch_add(1, Ordering::Relaxed);
        let mut told = vec![Vec::new(); self.copies];
        let mut later = Vec::new();
        for gfid in std::mem::take(&mut *self.unsettled.lock()) {
            self.with(gfid, |entry| {
                if entry.pins > 0 || entry.tick == now || !lets_go(gfid) {
                    later.push(gfid);
                    return;
                }
                entry.listed = false;
                if entry.unsettled || entry.recalled.is_some() {
                    return;
                }
                for (at, told) in entry.at.iter().zip(&mut told) {
                    if let (Some((epoch, LeaseMode::Exclusive)), changes @ Some(1..)) = (at.grant, at.changes) {
                        told.push(Settled { gfid, epoch, changes });
                    }
                }
            });
        }
        let mut unsettled = self.unsettled.lock();
        unsettled.extend(later);
        let rest = if unsettled.is_empty() { Later::Nothing } else { Later::Some };
        (told, rest)
    }
}

/// Whether something is left to be settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Later {
    Nothing,
    Some,
}

#[cfg(test)]
mod tests;
