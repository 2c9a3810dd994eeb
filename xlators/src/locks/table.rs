//! Who has locked what, and who waits for what.
//!
//! One lock over all: a program that locks does so for work that takes longer than any of this. Every method is short,
//! sends nothing that could block, and awaits nothing.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use foldhash::fast::RandomState;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::error::Errno;
use crate::ranges::{LockMode, Locked, Ranges, Span};
use crate::reply::Lockable;
use crate::types::{ClientId, Gfid, LockFamily, LockOwner};

/// What is bounded; beyond it a request gets `ENOLCK`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) ranges_per_file: usize,
    pub(super) ranges_per_client: usize,
    pub(super) waiters_per_file: usize,
}

impl Limits {
    /// A few megabytes for each client. When something is unlocked, each that waits for the file is looked at.
    pub(super) const USUAL: Self = Self { ranges_per_file: 16_384, ranges_per_client: 65_536, waiters_per_file: 1024 };
}

/// A program of a client.
pub(super) type Owner = (ClientId, LockOwner);

/// What one request is about.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ask {
    pub(super) gfid: Gfid,
    pub(super) owner: Owner,
    pub(super) pid: i32,
    pub(super) span: Span,
}

impl Ask {
    fn file(&self) -> FileKey {
        (self.gfid, self.owner.1.family)
    }
}

/// The two families do not see one another, so a file has two sides.
type FileKey = (Gfid, LockFamily);

#[derive(Debug)]
struct Holding {
    owner: Owner,
    pid: i32,
    ranges: Ranges,
}

#[derive(Debug)]
struct Waiting {
    number: u64,
    owner: Owner,
    span: Span,
    mode: LockMode,
    free: oneshot::Sender<()>,
}

#[derive(Debug, Default)]
struct File {
    holdings: Vec<Holding>,
    waiting: Vec<Waiting>,
}

impl File {
    /// Those who keep `owner` from locking this.
    fn in_the_way(&self, owner: Owner, span: Span, mode: LockMode) -> impl Iterator<Item = (Locked, &Holding)> {
        let others = self.holdings.iter().filter(move |holding| holding.owner != owner);
        others.filter_map(move |holding| Some((holding.ranges.conflict(span, mode)?, holding)))
    }

    fn holding(&self, owner: Owner) -> Option<&Holding> {
        self.holdings.iter().find(|holding| holding.owner == owner)
    }

    fn is_free(&self, owner: Owner, span: Span, mode: LockMode) -> bool {
        self.in_the_way(owner, span, mode).next().is_none()
    }

    fn ranges(&self) -> usize {
        self.holdings.iter().map(|holding| holding.ranges.len()).sum()
    }

    /// Tell those whose way is free now. They try again by themselves, and may find another there first.
    fn wake(&mut self) {
        let free = |waiting: &Waiting| self.is_free(waiting.owner, waiting.span, waiting.mode);
        let woken: HashSet<u64> = self.waiting.iter().filter(|&w| free(w)).map(|waiting| waiting.number).collect();
        for waiting in self.waiting.extract_if(.., |waiting| woken.contains(&waiting.number)) {
            // An error says that nobody waits any more.
            let _ = waiting.free.send(());
        }
    }

    fn is_idle(&self) -> bool {
        self.holdings.is_empty() && self.waiting.is_empty()
    }
}

#[derive(Debug)]
struct State {
    limits: Limits,
    files: HashMap<FileKey, File, RandomState>,
    /// Ranges by client.
    held: HashMap<ClientId, usize, RandomState>,
    last: u64,
}

/// Who has locked what, and who waits for what.
#[derive(Debug)]
pub(super) struct Table {
    state: Arc<Mutex<State>>,
}

/// What became of a request to wait.
#[derive(Debug)]
pub(super) enum Asked {
    /// Nobody is in the way.
    Free,
    /// Somebody is.
    Parked(Waiter),
}

/// A request that waits, as long as this is there.
#[derive(Debug)]
pub(super) struct Waiter {
    /// Nobody is in the way any more.
    pub(super) free: oneshot::Receiver<()>,
    state: Arc<Mutex<State>>,
    file: FileKey,
    number: u64,
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let mut state = self.state.lock();
        if let Some(file) = state.files.get_mut(&self.file) {
            file.waiting.retain(|waiting| waiting.number != self.number);
            state.tidy(self.file);
        }
    }
}

impl State {
    fn tidy(&mut self, file: FileKey) {
        if self.files.get(&file).is_some_and(File::is_idle) {
            self.files.remove(&file);
        }
    }

    /// The lock that is in the way, by its place in the file.
    fn conflict(&self, ask: &Ask, mode: LockMode) -> Option<Lockable> {
        let file = self.files.get(&ask.file())?;
        let first = file.in_the_way(ask.owner, ask.span, mode).min_by_key(|(by, _)| by.span.start);
        first.map(|(by, holding)| Lockable::Held { by, pid: holding.pid })
    }

    /// Change what an owner has locked of a file; `ENOLCK` if that would be too many ranges.
    fn change(&mut self, ask: &Ask, change: impl FnOnce(&mut Ranges)) -> Result<(), Errno> {
        let key = ask.file();
        let file = self.files.entry(key).or_default();
        let at = file.holdings.iter().position(|holding| holding.owner == ask.owner);
        let mut ranges = at.map(|at| file.holdings[at].ranges.clone()).unwrap_or_default();
        let before = ranges.len();
        change(&mut ranges);
        let in_file = file.ranges() - before + ranges.len();
        let of_client = self.held.get(&ask.owner.0).copied().unwrap_or(0) - before + ranges.len();
        let grows = ranges.len() > before;
        if grows && (in_file > self.limits.ranges_per_file || of_client > self.limits.ranges_per_client) {
            self.tidy(key);
            return Err(Errno::NOLCK);
        }
        match (at, ranges.is_empty()) {
            (Some(at), true) => drop(file.holdings.swap_remove(at)),
            (Some(at), false) => file.holdings[at] = Holding { owner: ask.owner, pid: ask.pid, ranges },
            (None, true) => {}
            (None, false) => file.holdings.push(Holding { owner: ask.owner, pid: ask.pid, ranges }),
        }
        file.wake();
        self.count(ask.owner.0, of_client);
        self.tidy(key);
        Ok(())
    }

    fn count(&mut self, client: ClientId, ranges: usize) {
        if ranges == 0 {
            self.held.remove(&client);
        } else {
            self.held.insert(client, ranges);
        }
    }

    /// Whether `ask` would wait for somebody who waits, perhaps by way of others, for its owner. Only among processes:
    /// an open file waits for nothing, whoever uses it may also unlock another.
    fn closes_a_circle(&self, ask: &Ask, mode: LockMode) -> bool {
        if ask.owner.1.family == LockFamily::Flock {
            return false;
        }
        let mut waits: HashMap<Owner, Vec<Owner>> = HashMap::new();
        for file in self.files.iter().filter(|(key, _)| key.1 == LockFamily::Posix).map(|(_, file)| file) {
            for waiting in &file.waiting {
                let blockers = file.in_the_way(waiting.owner, waiting.span, waiting.mode);
                waits.entry(waiting.owner).or_default().extend(blockers.map(|(_, holding)| holding.owner));
            }
        }
        let Some(file) = self.files.get(&ask.file()) else { return false };
        let mut next: Vec<_> = file.in_the_way(ask.owner, ask.span, mode).map(|(_, holding)| holding.owner).collect();
        while let Some(owner) = next.pop() {
            if owner == ask.owner {
                return true;
            }
            // Each is followed once.
            next.extend(waits.remove(&owner).into_iter().flatten());
        }
        false
    }
}

impl Table {
    pub(super) fn new(limits: Limits) -> Self {
        let state = State { limits, files: HashMap::default(), held: HashMap::default(), last: 0 };
        Self { state: Arc::new(Mutex::new(state)) }
    }

    /// The lock that is in the way, by its place in the file.
    pub(super) fn conflict(&self, ask: &Ask, mode: LockMode) -> Option<Lockable> {
        self.state.lock().conflict(ask, mode)
    }

    /// Whether the owner has locked just this.
    pub(super) fn holds(&self, ask: &Ask, mode: LockMode) -> bool {
        let state = self.state.lock();
        let holding = state.files.get(&ask.file()).and_then(|file| file.holding(ask.owner));
        holding.is_some_and(|holding| holding.ranges.parts(ask.span).iter().all(|part| part.1 == Some(mode)))
    }

    /// Lock, or say who is in the way.
    pub(super) fn lock(&self, ask: &Ask, mode: LockMode) -> Result<Option<Lockable>, Errno> {
        let mut state = self.state.lock();
        match state.conflict(ask, mode) {
            Some(held) => Ok(Some(held)),
            None => state.change(ask, |ranges| ranges.lock(ask.span, mode)).map(|()| None),
        }
    }

    /// Unlock; what is not locked is not missed.
    pub(super) fn unlock(&self, ask: &Ask) -> Result<(), Errno> {
        self.state.lock().change(ask, |ranges| ranges.unlock(ask.span))
    }

    /// Wait until nobody is in the way. `EDEADLK` if that would never be, `ENOLCK` if too many wait.
    pub(super) fn wait(&self, ask: &Ask, mode: LockMode) -> Result<Asked, Errno> {
        let mut state = self.state.lock();
        let free = state.files.get(&ask.file()).is_none_or(|file| file.is_free(ask.owner, ask.span, mode));
        if free {
            return Ok(Asked::Free);
        }
        if state.closes_a_circle(ask, mode) {
            return Err(Errno::DEADLK);
        }
        state.last += 1;
        let (number, limits) = (state.last, state.limits);
        let file = state.files.entry(ask.file()).or_default();
        if file.waiting.len() >= limits.waiters_per_file {
            return Err(Errno::NOLCK);
        }
        let (sender, free) = oneshot::channel();
        file.waiting.push(Waiting { number, owner: ask.owner, span: ask.span, mode, free: sender });
        Ok(Asked::Parked(Waiter { free, state: Arc::clone(&self.state), file: ask.file(), number }))
    }

    /// Everything of a client goes: its locks, and its requests that wait.
    pub(super) fn forget_client(&self, client: ClientId) {
        let mut state = self.state.lock();
        if state.held.remove(&client).is_none() && state.files.is_empty() {
            return;
        }
        for file in state.files.values_mut() {
            file.holdings.retain(|holding| holding.owner.0 != client);
            file.waiting.retain(|waiting| waiting.owner.0 != client);
            file.wake();
        }
        state.files.retain(|_, file| !file.is_idle());
    }
}
