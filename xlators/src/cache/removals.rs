//! Removals of names that are answered when they have begun.
//!
//! The kernel lets a program remove one name after the other, and each waits for a round to all copies. But once a
//! removal holds the lease on its directory at every copy, nobody else can see whether it has ended: whoever asks waits
//! for the lease. What this client itself asks of the directory, or of the inode, waits here ([`Removals::settled`]).
//! So the program goes on, and the bricks get several removals at a time.
//!
//! It must be certain that the removal will work: the name is known from a listing under the lease of the directory that
//! has not been given up since ([`Names`](super::names::Names)), the inode has no other name, and nothing is kept back
//! of it. What fails all the same (a quorum was lost in the middle) is tried again, as is what is kept back of files;
//! and if that is in vain, the next who looks into the directory hears of it. A client that dies loses what was under way,
//! as it does on a local disk.
//!
//! Invariant: a directory or an inode is listed here as long as a removal that was answered has not ended.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use lru::LruCache;
use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use super::Books;
use super::attrs::Change;
use crate::ctx::{Begun, Ctx};
use crate::effect::{Effect, Target};
use crate::error::{Errno, FopError, Result};
use crate::fop::{Fop, Only, Unlink};
use crate::reply::Removed;
use crate::types::{Gfid, Iatt, Kind};

/// Removals under way at a time. More than the bricks take in one frame would only make others wait.
const RUNNING_MAX: usize = 64;

/// How long a removal that was answered is tried again while a quorum is not there.
const TRY_FOR: Duration = Duration::from_secs(30);

/// How long until it is tried again where no brick has come back that says so.
const TRY_AGAIN: Duration = Duration::from_secs(1);

/// Directories whose lost removals nobody has asked about.
const FAILED_MAX: std::num::NonZeroUsize = std::num::NonZeroUsize::new(256).expect("not zero");

/// The removals under way.
#[derive(Debug)]
pub(super) struct Removals {
    table: Mutex<Table>,
    /// What is in the table, to be looked at without the lock.
    count: AtomicUsize,
    /// Fops that wait for removals to end. While there are any, none is answered before its end, or they might wait for
    /// as long as a program goes on to remove.
    waiting: AtomicUsize,
    slots: Arc<Semaphore>,
    ended: Notify,
}

#[derive(Debug)]
struct Table {
    /// Directories and removed inodes.
    busy: HashMap<Gfid, Busy, RandomState>,
    /// Directories in which a removal that was answered has failed: told once.
    failed: LruCache<Gfid, FopError, RandomState>,
}

#[derive(Debug)]
struct Busy {
    removals: usize,
    /// As it is when they have ended.
    iatt: Iatt,
    /// Of a directory: the change that they are together.
    change: Option<Change>,
    /// The directory as the last of them left it, unless one has failed.
    last: Result<Option<Iatt>, ()>,
}

/// One removal; it has ended when this is dropped.
#[derive(Debug)]
struct Running {
    books: Arc<Books>,
    /// The directory and the inode.
    gfids: [Gfid; 2],
    told: Arc<Teller>,
    _slot: OwnedSemaphorePermit,
}

impl Drop for Running {
    fn drop(&mut self) {
        let removals = &self.books.removals;
        let mut table = removals.table.lock();
        for gfid in &self.gfids {
            if let Some(busy) = table.busy.get_mut(gfid) {
                busy.removals -= 1;
                if busy.removals == 0 {
                    table.busy.remove(gfid).into_iter().for_each(Busy::end);
                }
            }
        }
        removals.note(&table);
        removals.ended.notify_waiters();
    }
}

impl Busy {
    fn end(self) {
        if let (Some(change), Ok(Some(last))) = (self.change, self.last) {
            change.has_names(&last);
        }
    }
}

impl Removals {
    pub(super) fn new() -> Self {
        let failed = LruCache::with_hasher(FAILED_MAX, RandomState::default());
        Self {
            table: Mutex::new(Table { busy: HashMap::default(), failed }),
            count: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            slots: Arc::new(Semaphore::new(RUNNING_MAX)),
            ended: Notify::new(),
        }
    }

    fn note(&self, table: &Table) {
        self.count.store(table.busy.len() + table.failed.len(), Ordering::Release);
    }

    /// Whether there is anything that a fop might have to wait for.
    pub(super) fn any(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    /// A directory as it will be when what is under way has ended; but the size of its list of names, which nobody
    /// knows yet. The kernel asks for it after every name.
    pub(super) fn directory(&self, gfid: Gfid) -> Option<Iatt> {
        self.table.lock().busy.get(&gfid).map(|busy| busy.iatt).filter(|iatt| iatt.kind == Kind::Dir)
    }

    /// How a removal has left the directory.
    fn ended_in(&self, directory: Gfid, answer: &Result<Removed>) {
        if let Some(busy) = self.table.lock().busy.get_mut(&directory) {
            busy.last = match (answer, busy.last) {
                (Ok(removed), Ok(_)) => Ok(Some(removed.parent)),
                _ => Err(()),
            };
        }
    }

    /// Wait until nothing is under way that `fop` could see; tells what has failed where it looks.
    pub(super) async fn settled(&self, ctx: &Ctx, fop: &Fop) -> Result<()> {
        let mut waits = None;
        loop {
            let ended = self.ended.notified();
            tokio::pin!(ended);
            ended.as_mut().enable();
            {
                let mut table = self.table.lock();
                if !table.concerns(fop) {
                    let failed = table.failure(fop);
                    self.note(&table);
                    return failed.map_or(Ok(()), Err);
                }
            }
            waits.get_or_insert_with(|| Waits::new(&self.waiting));
            let deadline = tokio::time::Instant::from_std(ctx.deadline);
            tokio::time::timeout_at(deadline, ended).await.map_err(|_| FopError::Refused(Errno::TIMEDOUT))?;
        }
    }
}

/// Somebody waits, until this is dropped.
struct Waits<'a>(&'a AtomicUsize);

impl<'a> Waits<'a> {
    fn new(waiting: &'a AtomicUsize) -> Self {
        waiting.fetch_add(1, Ordering::AcqRel);
        Self(waiting)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Table {
    /// Something is under way that the fop could see.
    fn concerns(&self, fop: &Fop) -> bool {
        let busy = |gfid| self.busy.contains_key(&gfid);
        match fop {
            // Any directory may be what they move or remove.
            Fop::Rename(_) | Fop::Rmdir(_) | Fop::Unlease(_) => !self.busy.is_empty(),
            Fop::Link(link) => busy(link.gfid) || busy(link.parent),
            Fop::CopyRange(copy) => busy(copy.from) || busy(copy.to),
            other => match other.target() {
                Target::Inode(gfid) | Target::Entry(gfid, _) => busy(gfid),
                Target::Volume => false,
            },
        }
    }

    /// What has failed in the directory that the fop looks at.
    fn failure(&mut self, fop: &Fop) -> Option<FopError> {
        let directory = match (fop, fop.effect()) {
            (Fop::Readdir(readdir), _) => readdir.gfid,
            (Fop::Fsync(fsync), _) => fsync.gfid,
            (_, Effect::Entry { parent, .. }) => parent,
            _ => return None,
        };
        self.failed.pop(&directory)
    }
}

/// A removal that is certain to work.
#[derive(Debug)]
pub(super) struct Certain {
    gfid: Gfid,
    /// How the directory and the inode are afterwards.
    after: Removed,
    /// How many recalls there had been when it was certain.
    recalls: u64,
}

impl Books {
    /// Whether it is certain that the removal will work, as far as nothing is recalled.
    pub(super) fn is_certain(&self, fop: &Unlink) -> Option<Certain> {
        let recalls = self.recalls();
        let gfid = self.names.take(fop.parent, &fop.name)?;
        let iatt = self.attrs.get(gfid).filter(|iatt| iatt.nlink == 1 && iatt.kind != Kind::Dir)?;
        let overtakes = self.removals.waiting.load(Ordering::Acquire) > 0;
        if fop.only != Only::Any || self.files.knows(gfid) || overtakes {
            return None;
        }
        let parent = self.removals.directory(fop.parent).or_else(|| self.attrs.get(fop.parent))?;
        let after = Removed {
            iatt: Iatt { nlink: 0, ctime: fop.when, ..iatt },
            parent: Iatt { mtime: parent.mtime.max(fop.when), ctime: parent.ctime.max(fop.when), ..parent },
        };
        Some(Certain { gfid, after, recalls })
    }

    /// Begin a removal; answers when it has begun, or has ended.
    ///
    /// Only this inode is removed, and no other that may have the name by the time that it is tried again.
    pub(super) async fn remove(&self, ctx: &Ctx, fop: &Unlink, certain: Certain) -> Result<Removed> {
        let fop = Unlink { only: Only::Gfid(certain.gfid), ..fop.clone() };
        let slot = Arc::clone(&self.removals.slots).acquire_owned().await.map_err(|_| FopError::Unreachable)?;
        let begun = Begun::default();
        let ctx = Ctx { begun: Some(begun.clone()), deadline: Instant::now() + TRY_FOR, ..ctx.clone() };
        let running = self.shared().running(&fop, &certain, slot);
        let told = Arc::clone(&running.told);
        let mut ending = self.runtime.spawn(running.run(ctx, fop, certain.after.clone()));
        tokio::select! {
            biased;
            ended = &mut ending => return ended.unwrap_or(Err(FopError::Unreachable)),
            () = begun.wait() => {}
        }
        // What was recalled since may have gone before the removal had its lease.
        if self.recalls() == certain.recalls && told.tell() {
            return Ok(certain.after);
        }
        ending.await.unwrap_or(Err(FopError::Unreachable))
    }

    fn running(self: Arc<Self>, fop: &Unlink, certain: &Certain, slot: OwnedSemaphorePermit) -> Running {
        let gfids = [fop.parent, certain.gfid];
        let mut table = self.removals.table.lock();
        for (gfid, iatt) in gfids.into_iter().zip([certain.after.parent, certain.after.iatt]) {
            let change = || (iatt.kind == Kind::Dir).then(|| self.attrs.begin(gfid));
            let new = || Busy { removals: 0, iatt, change: change(), last: Ok(None) };
            let busy = table.busy.entry(gfid).or_insert_with(new);
            busy.removals += 1;
            busy.iatt = iatt;
        }
        self.removals.note(&table);
        drop(table);
        Running { books: self, gfids, told: Arc::default(), _slot: slot }
    }
}

impl Running {
    async fn run(self, ctx: Ctx, fop: Unlink, after: Removed) -> Result<Removed> {
        let answer = self.until_done(&ctx, &fop, after).await;
        self.books.removals.ended_in(fop.parent, &answer);
        self.books.attrs.changed(self.gfids[1]);
        answer
    }

    /// Once a program has been told that it is done, it is tried until it is.
    async fn until_done(&self, ctx: &Ctx, fop: &Unlink, after: Removed) -> Result<Removed> {
        let next = self.books.below()?;
        loop {
            let mut health = next.health();
            health.mark_unchanged();
            let answer = next.send(ctx, fop.clone()).await;
            let Err(error) = answer.clone() else { return answer };
            if self.told.end() == Told::No {
                return answer;
            }
            let passes = match error {
                // It was removed, by this or by another since.
                error if error.is_absent() => return Ok(after),
                FopError::Fenced | FopError::Unreachable => true,
                FopError::Refused(errno) => matches!(errno, Errno::NOTCONN | Errno::TIMEDOUT | Errno::AGAIN),
            };
            let (parent, name) = (fop.parent, &fop.name);
            if !passes || Instant::now() >= ctx.deadline {
                tracing::error!(ctx.id, %parent, ?name, %error, "a name that a program was told to be removed is still there");
                self.books.removals.table.lock().failed.put(parent, error);
                return answer;
            }
            tracing::debug!(ctx.id, %parent, ?name, %error, "a removal is tried again");
            // A brick came back or went, or time has passed.
            let _ = tokio::time::timeout(TRY_AGAIN, health.changed()).await;
        }
    }
}

/// Whether the program has been told that a removal is done, before it was: one of the two comes first.
#[derive(Debug, Default)]
struct Teller(Mutex<State>);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Running,
    Told,
    Ended,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Yes,
    No,
}

impl Teller {
    /// The program is about to be told; not if it has ended.
    fn tell(&self) -> bool {
        let mut state = self.0.lock();
        if *state == State::Running {
            *state = State::Told;
        }
        *state == State::Told
    }

    /// It has ended; whether the program had been told.
    fn end(&self) -> Told {
        let mut state = self.0.lock();
        if *state == State::Told {
            return Told::Yes;
        }
        *state = State::Ended;
        Told::No
    }
}
