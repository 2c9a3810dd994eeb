//! Who holds which object, who waits for it, and whether it has changes that not every copy may have.
//!
//! Sharded by gfid; every method takes one short lock, sends nothing that could block, and awaits nothing.
//!
//! Invariant: an object has one exclusive holder, or any number of shared ones, never both. A holder that was fenced
//! stays in the way until the last fop it had running on the disk has ended.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use foldhash::fast::RandomState;
use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::dirty::DirtyJournal;
use crate::fop::Settled;
use crate::types::{ClientId, Epoch, Gfid, LeaseMode};
use crate::xlator::{Notice, Notices};

/// Power of two, enough that two fops seldom meet in one shard.
const SHARDS: usize = 64;

/// Requests that may wait for one object; more are told to try again.
const WAITERS_MAX: usize = 1024;

/// The most leases of one session. A client that wants more must give some back first.
pub(super) const LEASES_PER_SESSION_MAX: u32 = 65_536;

/// One client, as long as it is there.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) client: ClientId,
    pub(super) notices: Mutex<Notices>,
    /// How many leases it holds.
    pub(super) held: AtomicU32,
}

/// One grant.
#[derive(Debug)]
struct Holder {
    session: Arc<Session>,
    mode: LeaseMode,
    epoch: Epoch,
    /// Changing fops admitted under this epoch.
    changes: u64,
    /// Of which so many have not ended yet.
    running: u32,
    /// What somebody else wants of it.
    recalled: Option<LeaseMode>,
    /// When it was recalled, or last did something since.
    progress: Instant,
    /// Admits nothing any more.
    fenced: bool,
    /// The holder made the object, and may have changes of it that the brick has not seen, until it says otherwise.
    keeps_back: bool,
}

/// What a request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Want {
    /// A lease.
    Lease(LeaseMode),
    /// Nobody else's lease, for as long as one fop runs that removes or moves a name of the object.
    Pin,
}

impl Want {
    fn mode(self) -> LeaseMode {
        match self {
            Self::Lease(mode) => mode,
            Self::Pin => LeaseMode::Exclusive,
        }
    }
}

#[derive(Debug)]
struct Waiter {
    session: Arc<Session>,
    want: Want,
    answer: oneshot::Sender<Held>,
}

/// Where an object stands in the dirty journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
enum Dirt {
    /// Not in the journal.
    #[default]
    Clean,
    /// In the journal.
    Marked,
    /// In the journal, and every copy has what was done: waits for the next clearing. A change makes it `Marked`
    /// again, for free.
    Settled,
    /// Being taken off the journal just now. Changes wait for that moment.
    Clearing,
}

#[derive(Debug, Default)]
struct Object {
    holders: SmallVec<[Holder; 1]>,
    queue: VecDeque<Waiter>,
    /// Who runs a fop that removes or moves a name of it.
    pins: SmallVec<[ClientId; 1]>,
    dirt: Dirt,
    /// How often it became `Settled`.
    settlings: u32,
    /// A holder that went away left changes here.
    unsettled: bool,
}

/// A lease that was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) epoch: Epoch,
    pub(super) unsettled: bool,
}

/// What became of a request.
#[derive(Debug)]
pub(super) enum Asked {
    /// Granted.
    Held(Held),
    /// Somebody else has it.
    Busy,
    /// Somebody else has it and was told; the answer comes here.
    Parked(oneshot::Receiver<Held>),
    /// Too many wait, or the session holds too many.
    Full,
}

/// What a changing fop met at the door.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entered {
    /// Go on.
    Noted,
    /// Go on after `mark_dirty`, then say so by `noted`.
    Unnoted,
    /// The object leaves the journal just now: try again in a moment.
    Clearing,
    /// No lease, or not this one.
    Fenced,
}

type Objects = HashMap<Gfid, Object, RandomState>;

/// Every object that is leased, wanted, or dirty.
#[derive(Debug)]
pub(super) struct Table {
    shards: Vec<Mutex<Objects>>,
    hasher: RandomState,
    next_epoch: AtomicU64,
    journal: Arc<dyn DirtyJournal>,
    /// Objects that became settled and wait for the next clearing.
    settled: Mutex<Vec<Gfid>>,
}

impl Table {
    pub(super) fn new(first_epoch: u64, journal: Arc<dyn DirtyJournal>) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::default(),
            next_epoch: AtomicU64::new(first_epoch),
            journal,
            settled: Mutex::default(),
        }
    }

    fn shard(&self, gfid: Gfid) -> MutexGuard<'_, Objects> {
        let hash = self.hasher.hash_one(gfid) >> 32;
        self.shards[hash as usize % SHARDS].lock()
    }

    fn epoch(&self) -> Epoch {
        Epoch(self.next_epoch.fetch_add(1, Ordering::Relaxed))
    }

    /// Ask for a lease, or a pin; park if it is not to be had and `park` says so.
    pub(super) fn ask(&self, session: &Arc<Session>, gfid: Gfid, want: Want, park: Park) -> Asked {
        let mut shard = self.shard(gfid);
        let object = shard.entry(gfid).or_default();
        let full = session.held.load(Ordering::Relaxed) >= LEASES_PER_SESSION_MAX;
        let asked = if let Some(held) = object.held_already(session.client, want) {
            Asked::Held(held)
        } else if full && want != Want::Pin {
            Asked::Full
        } else if object.goes_first(session.client, want) && object.is_free(session.client, want) {
            Asked::Held(self.give(gfid, object, session, want))
        } else if park == Park::No {
            Asked::Busy
        } else if object.queue.len() >= WAITERS_MAX {
            Asked::Full
        } else {
            let (answer, answered) = oneshot::channel();
            object.queue.push_back(Waiter { session: Arc::clone(session), want, answer });
            self.pump(gfid, object);
            Asked::Parked(answered)
        };
        forget_if_idle(&mut shard, gfid);
        asked
    }

    /// Install an exclusive lease on an object that is about to be born; `None` if somebody is in the way.
    pub(super) fn bear(&self, session: &Arc<Session>, gfid: Gfid) -> Option<Epoch> {
        match self.ask(session, gfid, Want::Lease(LeaseMode::Exclusive), Park::No) {
            Asked::Held(held) => Some(held.epoch),
            Asked::Busy | Asked::Parked(_) | Asked::Full => None,
        }
    }

    /// Its maker may change a new file for a while without telling the brick.
    pub(super) fn may_keep_back(&self, client: ClientId, gfid: Gfid) {
        self.with(gfid, |_, object| {
            if let Some(holder) = object.holder(client) {
                holder.keeps_back = true;
            }
        });
    }

    /// What the brick has of the object may not be all of it: somebody else has to be asked.
    pub(super) fn is_kept_back(&self, client: ClientId, gfid: Gfid) -> bool {
        let shard = self.shard(gfid);
        let others = |holder: &Holder| holder.session.client != client && holder.keeps_back && !holder.fenced;
        shard.get(&gfid).is_some_and(|object| object.holders.iter().any(others))
    }

    fn give(&self, gfid: Gfid, object: &mut Object, session: &Arc<Session>, want: Want) -> Held {
        object.unsettled |= self.journal.left_dirty(gfid);
        let epoch = self.epoch();
        let held = Held { epoch, unsettled: object.unsettled };
        match want {
            Want::Pin => object.pins.push(session.client),
            Want::Lease(mode) => {
                if let Some(holder) = object.holder(session.client) {
                    // A shared lease becomes an exclusive one: what was admitted under the old number has ended in
                    // changes never, since only an exclusive lease admits them.
                    (holder.mode, holder.epoch, holder.changes) = (mode, epoch, 0);
                } else {
                    object.holders.push(Holder::new(session, mode, epoch));
                    session.held.fetch_add(1, Ordering::AcqRel);
                }
            }
        }
        held
    }

    /// Serve the queue as far as it goes, then tell who is in the way of the first that waits.
    fn pump(&self, gfid: Gfid, object: &mut Object) {
        while let Some(waiter) = object.queue.pop_front() {
            if waiter.answer.is_closed() {
                continue;
            }
            if !object.is_free(waiter.session.client, waiter.want) {
                object.recall(gfid, waiter.session.client, waiter.want.mode());
                object.queue.push_front(waiter);
                break;
            }
            let held = self.give(gfid, object, &waiter.session, waiter.want);
            if waiter.answer.send(held).is_err() {
                match waiter.want {
                    Want::Pin => object.unpin(waiter.session.client),
                    Want::Lease(_) => Self::drop_holders(object, |h| h.epoch == held.epoch),
                }
            }
        }
    }

    /// Who removed or moved a name of the object is done.
    pub(super) fn unpin(&self, session: &Session, gfid: Gfid) {
        self.with(gfid, |table, object| {
            object.unpin(session.client);
            table.pump(gfid, object);
        });
    }

    /// A changing fop wants to run under `epoch`.
    pub(super) fn enter(&self, client: ClientId, gfid: Gfid, mode: LeaseMode, epoch: Option<Epoch>) -> Entered {
        let mut shard = self.shard(gfid);
        let Some(object) = shard.get_mut(&gfid) else { return Entered::Fenced };
        let dirt = object.dirt;
        let Some(holder) = object.holder(client).filter(|h| !h.fenced) else { return Entered::Fenced };
        if mode == LeaseMode::Exclusive {
            if holder.mode != LeaseMode::Exclusive || epoch != Some(holder.epoch) {
                return Entered::Fenced;
            }
            if dirt == Dirt::Clearing {
                return Entered::Clearing;
            }
            holder.changes += 1;
        }
        holder.running += 1;
        if holder.recalled.is_some() {
            holder.progress = Instant::now();
        }
        match (mode, dirt) {
            (LeaseMode::Shared, _) | (_, Dirt::Marked) => Entered::Noted,
            (_, Dirt::Settled) => {
                object.dirt = Dirt::Marked;
                Entered::Noted
            }
            (_, Dirt::Clean | Dirt::Clearing) => Entered::Unnoted,
        }
    }

    /// The object is in the journal now.
    pub(super) fn noted(&self, gfid: Gfid) {
        if let Some(object) = self.shard(gfid).get_mut(&gfid) {
            object.dirt = Dirt::Marked;
        }
    }

    /// A fop that was admitted has ended.
    pub(super) fn leave(&self, client: ClientId, gfid: Gfid) {
        self.with(gfid, |table, object| {
            let Some(holder) = object.holder(client) else { return };
            holder.running -= 1;
            if holder.fenced && holder.running == 0 {
                Self::drop_holders(object, |h| h.session.client == client);
                table.pump(gfid, object);
            }
        });
    }

    /// Whether a read may run: its session holds some lease on the object.
    pub(super) fn may_read(&self, client: ClientId, gfid: Gfid) -> bool {
        self.shard(gfid).get_mut(&gfid).and_then(|o| o.holder(client)).is_some_and(|h| !h.fenced)
    }

    /// Take note of how far all copies agree. Says whether the object now waits for the next clearing.
    pub(super) fn settle(&self, client: ClientId, settled: Settled) -> Option<()> {
        let mut shard = self.shard(settled.gfid);
        let object = shard.get_mut(&settled.gfid)?;
        if let Some(holder) = object.holder(client).filter(|h| h.epoch == settled.epoch) {
            holder.keeps_back = false;
        }
        self.note_settled(object, client, settled)
    }

    fn note_settled(&self, object: &mut Object, client: ClientId, settled: Settled) -> Option<()> {
        let (dirt, unsettled) = (object.dirt, object.unsettled);
        let holder = object.holder(client).filter(|h| h.epoch == settled.epoch && !h.fenced)?;
        let agreed = holder.running == 0 && settled.changes == Some(holder.changes);
        if dirt != Dirt::Marked || unsettled || !agreed {
            return None;
        }
        object.dirt = Dirt::Settled;
        object.settlings = object.settlings.wrapping_add(1);
        self.settled.lock().push(settled.gfid);
        Some(())
    }

    /// A lease is given back, or made shared.
    pub(super) fn give_back(&self, client: ClientId, settled: Settled, keep: Keep) -> Option<()> {
        let mut cleared = None;
        self.with(settled.gfid, |table, object| {
            cleared = table.note_settled(object, client, settled);
            let left = object.dirt == Dirt::Marked;
            let Some(holder) = object.holder(client).filter(|h| h.epoch == settled.epoch && !h.fenced) else { return };
            let changed = holder.changes > 0;
            if keep == Keep::Shared && holder.mode == LeaseMode::Exclusive && holder.running == 0 {
                (holder.mode, holder.recalled, holder.changes) = (LeaseMode::Shared, None, 0);
                holder.keeps_back = false;
            } else if holder.running > 0 {
                holder.fenced = true;
            } else if keep == Keep::Nothing {
                Self::drop_holders(object, |h| h.session.client == client);
            }
            object.unsettled |= left && changed;
            table.pump(settled.gfid, object);
        });
        cleared
    }

    /// The inode is gone: nothing is left to lease or to compare.
    pub(super) fn forget(&self, client: ClientId, gfid: Gfid) {
        self.with(gfid, |table, object| {
            Self::drop_holders(object, |h| h.session.client == client && h.running == 0);
            if object.dirt == Dirt::Marked && !object.unsettled && object.holders.is_empty() {
                object.dirt = Dirt::Settled;
                object.settlings = object.settlings.wrapping_add(1);
                table.settled.lock().push(gfid);
            }
            table.pump(gfid, object);
        });
    }

    /// A session is gone, with all its leases and requests. What it left dirty stays dirty.
    pub(super) fn forget_session(&self, client: ClientId) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            shard.retain(|&gfid, object| {
                let waiting = object.queue.len();
                object.queue.retain(|w| w.session.client != client);
                let waited = object.queue.len() != waiting;
                if Self::fence(object, |h| h.session.client == client) || waited {
                    self.pump(gfid, object);
                }
                !object.is_idle()
            });
        }
    }

    /// Take the lease from holders that were recalled and have done nothing since `deadline`; answers how many were
    /// fenced, and when to look again while any recall is open.
    pub(super) fn fence_late(&self, gfid: Gfid, deadline: Instant) -> (usize, Option<Instant>) {
        let (mut fenced, mut next) = (0, None);
        self.with(gfid, |table, object| {
            let late = |h: &Holder| h.recalled.is_some() && h.progress <= deadline && !h.fenced;
            fenced = object.holders.iter().filter(|h| late(h)).count();
            if Self::fence(object, late) {
                table.pump(gfid, object);
            }
            next = object.holders.iter().filter(|h| h.recalled.is_some() && !h.fenced).map(|h| h.progress).min();
        });
        (fenced, next)
    }

    /// Fence holders; those without a running fop go at once.
    fn fence(object: &mut Object, which: impl Fn(&Holder) -> bool) -> bool {
        let marked = object.dirt == Dirt::Marked;
        let mut any = false;
        for holder in object.holders.iter_mut().filter(|h| which(h)) {
            any = true;
            holder.fenced = true;
            object.unsettled |= marked && holder.changes > 0;
        }
        if any {
            Self::drop_holders(object, |h| h.fenced && h.running == 0);
        }
        any
    }

    fn drop_holders(object: &mut Object, which: impl Fn(&Holder) -> bool) {
        object.holders.retain(|holder| {
            let dropped = which(holder);
            if dropped {
                holder.session.held.fetch_sub(1, Ordering::AcqRel);
            }
            !dropped
        });
    }

    fn with(&self, gfid: Gfid, work: impl FnOnce(&Self, &mut Object)) {
        let mut shard = self.shard(gfid);
        if let Some(object) = shard.get_mut(&gfid) {
            work(self, object);
        }
        forget_if_idle(&mut shard, gfid);
    }

    /// Send the recalls of a session again, after it came back on a new connection.
    pub(super) fn repeat_recalls(&self, session: &Session) {
        for shard in &self.shards {
            for (&gfid, object) in shard.lock().iter_mut() {
                for holder in object.holders.iter().filter(|h| h.session.client == session.client && !h.fenced) {
                    if let Some(wanted) = holder.recalled {
                        session.tell(Notice::Recall { gfid, epoch: holder.epoch, wanted });
                    }
                }
            }
        }
    }

    /// The settled objects, each with a number that changes when it is changed and settled anew.
    pub(super) fn take_settled(&self) -> Vec<(Gfid, u32)> {
        let gfids = std::mem::take(&mut *self.settled.lock());
        let stamp = |gfid: Gfid| {
            let shard = self.shard(gfid);
            shard.get(&gfid).filter(|o| o.dirt == Dirt::Settled).map(|o| (gfid, o.settlings))
        };
        gfids.into_iter().filter_map(stamp).collect()
    }

    /// They could not be made durable: try again with the next batch.
    pub(super) fn put_back(&self, batch: Vec<(Gfid, u32)>) {
        self.settled.lock().extend(batch.into_iter().map(|(gfid, _)| gfid));
    }

    /// Which of them are still settled; changes to these wait until `cleared`.
    pub(super) fn begin_clearing(&self, batch: Vec<(Gfid, u32)>) -> Vec<Gfid> {
        let still = |(gfid, stamp)| {
            let mut shard = self.shard(gfid);
            let object = shard.get_mut(&gfid).filter(|o| o.dirt == Dirt::Settled && o.settlings == stamp)?;
            object.dirt = Dirt::Clearing;
            Some(gfid)
        };
        batch.into_iter().filter_map(still).collect()
    }

    /// The clearing has ended; if it failed, the objects stay in the journal.
    pub(super) fn end_clearing(&self, batch: &[Gfid], worked: bool) {
        for &gfid in batch {
            self.with(gfid, |_, object| object.dirt = if worked { Dirt::Clean } else { Dirt::Marked });
        }
    }
}

/// Whether a request that cannot be granted waits, and the holder is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Park {
    Yes,
    No,
}

/// What a holder keeps when it gives a lease back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keep {
    Nothing,
    Shared,
}

fn forget_if_idle(shard: &mut Objects, gfid: Gfid) {
    if let Entry::Occupied(entry) = shard.entry(gfid)
        && entry.get().is_idle()
    {
        entry.remove();
    }
}

impl Session {
    /// Say something unasked. A session whose other end is gone hears nothing; its end is noticed elsewhere.
    pub(super) fn tell(&self, notice: Notice) {
        let _ = self.notices.lock().send(notice);
    }
}

impl Holder {
    fn new(session: &Arc<Session>, mode: LeaseMode, epoch: Epoch) -> Self {
        Self {
            session: Arc::clone(session),
            mode,
            epoch,
            changes: 0,
            running: 0,
            recalled: None,
            progress: Instant::now(),
            fenced: false,
            keeps_back: false,
        }
    }
}

impl Object {
    fn holder(&mut self, client: ClientId) -> Option<&mut Holder> {
        self.holders.iter_mut().find(|h| h.session.client == client)
    }

    /// A lease that is good enough already and that nobody wants back.
    fn held_already(&mut self, client: ClientId, want: Want) -> Option<Held> {
        let Want::Lease(mode) = want else { return None };
        let unsettled = self.unsettled;
        let holder = self.holder(client).filter(|h| h.mode >= mode && h.recalled.is_none() && !h.fenced)?;
        Some(Held { epoch: holder.epoch, unsettled })
    }

    /// Goes before those that wait: they may wait for the very lease under which a name is removed.
    fn goes_first(&mut self, client: ClientId, want: Want) -> bool {
        let mut holds = || self.holder(client).is_some_and(|holder| holder.mode == LeaseMode::Exclusive);
        want == Want::Pin && holds() || self.queue.is_empty()
    }

    /// The compatibility table: shared goes with shared, nothing else with anything of another session.
    fn is_free(&self, client: ClientId, want: Want) -> bool {
        let in_the_way = |holder: &Holder| {
            if holder.session.client == client {
                // Its own fenced lease must end first; its own recalled one is given back first.
                return holder.fenced || (holder.recalled.is_some() && want != Want::Pin);
            }
            !matches!((holder.mode, want), (LeaseMode::Shared, Want::Lease(LeaseMode::Shared)))
        };
        !self.holders.iter().any(in_the_way) && !self.pins.iter().any(|&pin| pin != client)
    }

    fn recall(&mut self, gfid: Gfid, asker: ClientId, wanted: LeaseMode) {
        for holder in self.holders.iter_mut().filter(|h| h.session.client != asker && !h.fenced) {
            let conflict = wanted == LeaseMode::Exclusive || holder.mode == LeaseMode::Exclusive;
            if conflict && holder.recalled.is_none_or(|told| told < wanted) {
                holder.recalled = Some(wanted);
                holder.progress = Instant::now();
                holder.session.tell(Notice::Recall { gfid, epoch: holder.epoch, wanted });
            }
        }
    }

    fn unpin(&mut self, client: ClientId) {
        if let Some(at) = self.pins.iter().position(|&pin| pin == client) {
            self.pins.swap_remove(at);
        }
    }

    /// Nothing is known of it that a fresh object would not have.
    fn is_idle(&self) -> bool {
        let quiet = self.holders.is_empty() && self.queue.is_empty() && self.pins.is_empty();
        quiet && self.dirt == Dirt::Clean && !self.unsettled
    }
}
