//! What is kept back of new files: pure bookkeeping; `flush.rs` sends it.
//!
//! Writes are put together as long as each goes on where the last one ended; attribute changes on top of them, as long
//! as no write follows. What does not fit in is sent first.
//!
//! Invariant: of one file nothing is kept while something is being sent, so the order is that of the program.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use foldhash::fast::RandomState;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;

use crate::ctx::{Caller, Ctx};
use crate::error::{FopError, Result};
use crate::fop::{Place, Setattr, Write};
use crate::reply::{Changed, Written};
use crate::types::{Cover, Gfid, Iatt, Name};

/// Content kept back of one file: beyond it a message is worth its cost.
const FILE_BYTES_MAX: usize = 128 << 10;
/// Content kept back of all files together.
const BYTES_MAX: usize = 16 << 20;
/// New files that are open at the same time and may keep something back; further ones do not.
const FILES_MAX: usize = 4096;
/// Power of two, enough that two threads seldom meet in one shard.
const SHARDS: usize = 16;

/// What waits to be sent of one file.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) caller: Caller,
    since: Instant,
    /// A write of nothing, where only attributes change.
    pub(super) write: Write,
    pub(super) data: BytesMut,
    pub(super) then: Option<Setattr>,
    /// It was sent, and the bricks were not reached.
    tried: bool,
}

/// One file that this client has made and has not closed.
#[derive(Debug)]
struct File {
    /// The name it was made with.
    place: (Gfid, Name),
    /// Nobody else can see or change it: more may be kept back.
    owned: bool,
    /// As programs see it.
    iatt: Iatt,
    kept: Option<Kept>,
    /// Something is on its way.
    sending: bool,
    /// Why something that was kept back was lost: told once.
    failed: Option<FopError>,
    /// Who waits for the end of sending.
    wake: Option<Arc<Notify>>,
}

/// What to do next so that nothing of a file is kept back.
#[derive(Debug)]
pub(super) enum Step {
    /// Nothing.
    Done,
    /// Wait until what is on its way is there.
    Wait(OwnedNotified),
    /// Send this, then say so with [`Files::sent`], whatever happens.
    Send(Box<Kept>),
}

/// How sending ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// The bricks have it; the file is like this now.
    Done(Iatt),
    /// They refused it: it is lost, and somebody must hear of it.
    Refused(FopError),
    /// They were not reached: it is kept, and sent again.
    Later,
}

/// The new files.
#[derive(Debug)]
pub(super) struct Files {
    shards: Vec<Mutex<HashMap<Gfid, File, RandomState>>>,
    hasher: RandomState,
    count: AtomicUsize,
    bytes: AtomicUsize,
}

impl Files {
    pub(super) fn new() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::default(),
            count: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
        }
    }

    fn shard(&self, gfid: Gfid) -> MutexGuard<'_, HashMap<Gfid, File, RandomState>> {
        let hash = self.hasher.hash_one(gfid) >> 32;
        self.shards[hash as usize % SHARDS].lock()
    }

    fn with<T>(&self, gfid: Gfid, work: impl FnOnce(&mut File) -> Option<T>) -> Option<T> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.shard(gfid).get_mut(&gfid).and_then(work)
    }

    /// A file was made that nobody else can see, if nobody has asked for it since.
    pub(super) fn born(&self, place: (Gfid, Name), iatt: &Iatt, still_ours: impl FnOnce() -> bool) {
        let mut shard = self.shard(iatt.gfid);
        if self.count.load(Ordering::Acquire) >= FILES_MAX || !still_ours() {
            return;
        }
        let file = File { place, owned: true, iatt: *iatt, kept: None, sending: false, failed: None, wake: None };
        if shard.insert(iatt.gfid, file).is_none() {
            self.count.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// It is one of the files of which something may be kept back.
    pub(super) fn knows(&self, gfid: Gfid) -> bool {
        self.with(gfid, |_| Some(())).is_some()
    }

    /// Something of it is kept back, or on its way.
    pub(super) fn keeps(&self, gfid: Gfid) -> bool {
        self.with(gfid, |file| (file.kept.is_some() || file.sending).then_some(())).is_some()
    }

    /// The file that was made with this name.
    pub(super) fn made_at(&self, parent: Gfid, name: &Name) -> Option<Gfid> {
        self.find(|file| file.place.0 == parent && file.place.1 == *name).pop()
    }

    /// All of them.
    pub(super) fn all(&self) -> Vec<Gfid> {
        self.find(|_| true)
    }

    /// The files of which something is kept back since before `then`.
    pub(super) fn kept_before(&self, then: Instant) -> Vec<Gfid> {
        self.find(|file| file.kept.as_ref().is_some_and(|kept| kept.since <= then))
    }

    /// The files of which something is kept back or on its way.
    pub(super) fn all_kept(&self) -> Vec<Gfid> {
        self.find(|file| file.kept.is_some() || file.sending)
    }

    fn find(&self, which: impl Fn(&File) -> bool) -> Vec<Gfid> {
        if self.count.load(Ordering::Acquire) == 0 {
            return Vec::new();
        }
        let of = |shard: &Mutex<HashMap<Gfid, File, RandomState>>| -> Vec<Gfid> {
            shard.lock().iter().filter(|(_, file)| which(file)).map(|(gfid, _)| *gfid).collect()
        };
        self.shards.iter().flat_map(of).collect()
    }

    /// Keep a write back, if it goes on where what is kept ends; `None` if it must be sent.
    pub(super) fn keep_write(&self, ctx: &Ctx, fop: &Write) -> Option<Written> {
        let Place::At(offset) = fop.place else { return None };
        let length = fop.data.len();
        if fop.sync || fop.then.is_some() || length == 0 || length > FILE_BYTES_MAX {
            return None;
        }
        self.with(fop.gfid, |file| {
            if !file.takes_more() || (fop.kill_priv && file.is_privileged()) || !self.has_room(length) {
                return None;
            }
            let kept =
                file.kept.get_or_insert_with(|| Kept::new(ctx, Write { data: Default::default(), ..fop.clone() }));
            if !kept.goes_on_at(offset, length) {
                return None;
            }
            if kept.data.is_empty() {
                kept.write.place = fop.place;
            }
            kept.data.extend_from_slice(&fop.data);
            (kept.write.when, kept.write.fd) = (fop.when, fop.fd);
            self.bytes.fetch_add(length, Ordering::AcqRel);
            file.iatt.written(offset, length, fop);
            let bytes = u32::try_from(length).expect("it is not more than is kept of one file");
            Some(Written { offset, bytes, iatt: file.iatt, cover: Cover::empty() })
        })
    }

    /// Keep a change of attributes back; `None` if it must be sent.
    pub(super) fn keep_setattr(&self, ctx: &Ctx, fop: &Setattr) -> Option<Changed> {
        let valid = |time: Option<crate::types::Time>| time.is_none_or(|time| time.nsec < 1_000_000_000);
        if !valid(fop.atime) || !valid(fop.mtime) {
            return None;
        }
        self.with(fop.gfid, |file| {
            // Every chown asks for privileges to be cleared; mostly there are none.
            if !file.takes_more() || (fop.kill_priv && file.is_privileged()) {
                return None;
            }
            let fop = &Setattr { kill_priv: false, ..fop.clone() };
            let empty = || Write {
                gfid: fop.gfid,
                fd: fop.fd,
                place: Place::At(0),
                data: Default::default(),
                sync: false,
                kill_priv: false,
                when: fop.when,
                then: None,
            };
            let kept = file.kept.get_or_insert_with(|| Kept::new(ctx, empty()));
            let then = kept.then.get_or_insert_with(|| fop.clone());
            then.mode = fop.mode.or(then.mode);
            then.uid = fop.uid.or(then.uid);
            then.gid = fop.gid.or(then.gid);
            then.atime = fop.atime.or(then.atime);
            then.mtime = fop.mtime.or(then.mtime);
            (then.when, then.fd) = (fop.when, fop.fd);
            file.iatt.changed(fop);
            Some(Changed { iatt: file.iatt, cover: Cover::empty() })
        })
    }

    fn has_room(&self, bytes: usize) -> bool {
        self.bytes.load(Ordering::Acquire) + bytes <= BYTES_MAX
    }

    /// What to do next so that nothing of the file is kept back.
    pub(super) fn next_step(&self, gfid: Gfid) -> Step {
        let step = self.with(gfid, |file| {
            if file.sending {
                return Some(Step::Wait(Arc::clone(file.wake.get_or_insert_with(Arc::default)).notified_owned()));
            }
            let kept = file.kept.take()?;
            file.sending = true;
            self.bytes.fetch_sub(kept.data.len(), Ordering::AcqRel);
            Some(Step::Send(Box::new(kept)))
        });
        step.unwrap_or(Step::Done)
    }

    /// Sending has ended; what is to be sent again comes back.
    pub(super) fn sent(&self, gfid: Gfid, kept: Box<Kept>, sent: Sent) {
        let mut shard = self.shard(gfid);
        if let Some(file) = shard.get_mut(&gfid) {
            file.sending = false;
            match sent {
                Sent::Done(iatt) => file.iatt = iatt,
                Sent::Refused(error) => file.failed = Some(error),
                Sent::Later => {
                    self.bytes.fetch_add(kept.data.len(), Ordering::AcqRel);
                    file.kept = Some(Kept { tried: true, ..*kept });
                }
            }
            if let Some(wake) = file.wake.take() {
                wake.notify_waiters();
            }
            // Nothing more is kept back of it, and nobody has to be told anything.
            if !file.owned && file.kept.is_none() && file.failed.is_none() {
                shard.remove(&gfid);
                self.count.fetch_sub(1, Ordering::AcqRel);
            }
        }
    }

    /// Whether what was kept back so far has arrived. A loss is told once.
    pub(super) fn result(&self, gfid: Gfid) -> Result<()> {
        let failed = self.with(gfid, |file| {
            let waits = file.kept.as_ref().is_some_and(|kept| kept.tried).then_some(FopError::Unreachable);
            file.failed.take().or(waits)
        });
        failed.map_or(Ok(()), Err)
    }

    /// The file is closed: nothing more is kept back of it, and whether something was lost is told.
    pub(super) fn close(&self, gfid: Gfid) -> Result<()> {
        let mut shard = self.shard(gfid);
        let Some(file) = shard.get_mut(&gfid) else { return Ok(()) };
        file.owned = false;
        if file.sending || file.kept.is_some() {
            // Somebody else has it open, too, and goes on writing; or the bricks are not there, and it is sent later.
            let waits = file.kept.as_ref().is_some_and(|kept| kept.tried).then_some(FopError::Unreachable);
            return file.failed.take().or(waits).map_or(Ok(()), Err);
        }
        let failed = file.failed;
        shard.remove(&gfid);
        self.count.fetch_sub(1, Ordering::AcqRel);
        failed.map_or(Ok(()), Err)
    }

    /// Others are about to see these files. Answers those of which something is kept back or on its way.
    pub(super) fn disown(&self, gfids: &[Gfid]) -> Vec<Gfid> {
        let busy = |gfid: &&Gfid| {
            let busy = self.with(**gfid, |file| {
                file.owned = false;
                (file.kept.is_some() || file.sending).then_some(())
            });
            busy.is_some()
        };
        gfids.iter().filter(busy).copied().collect()
    }

    /// How the file is after a change that was not kept back.
    pub(super) fn changed(&self, iatt: &Iatt) {
        self.with(iatt.gfid, |file| {
            file.iatt = *iatt;
            Some(())
        });
    }

    /// Nothing is kept back of the file, and nothing will be.
    pub(super) fn let_go(&self, gfid: Gfid) -> bool {
        let keeps = self.with(gfid, |file| {
            let keeps = file.kept.is_some() || file.sending;
            file.owned &= keeps;
            keeps.then_some(())
        });
        keeps.is_none()
    }
}

/// Set-user-id and set-group-id, which the bricks take away by rules of their own.
const PRIVILEGES: u32 = 0o6000;

impl File {
    fn is_privileged(&self) -> bool {
        self.iatt.mode & PRIVILEGES != 0
    }

    fn takes_more(&self) -> bool {
        self.owned && !self.sending && self.failed.is_none()
    }
}

impl Kept {
    fn new(ctx: &Ctx, write: Write) -> Self {
        Self {
            caller: ctx.caller.clone(),
            since: Instant::now(),
            write,
            data: BytesMut::new(),
            then: None,
            tried: false,
        }
    }

    fn goes_on_at(&self, offset: u64, length: usize) -> bool {
        let end = match self.write.place {
            _ if self.data.is_empty() => offset,
            Place::At(start) => start.saturating_add(self.data.len() as u64),
            Place::End => return false,
        };
        self.then.is_none() && end == offset && self.data.len() + length <= FILE_BYTES_MAX
    }
}

/// How long it may be kept back.
pub(super) const KEEP_TIME_MAX: Duration = Duration::from_secs(1);

impl Iatt {
    /// As after a write.
    fn written(&mut self, offset: u64, length: usize, fop: &Write) {
        self.size = self.size.max(offset.saturating_add(length as u64));
        self.blocks = self.size.div_ceil(512);
        (self.mtime, self.ctime) = (fop.when, fop.when);
    }

    /// As after a change of attributes.
    fn changed(&mut self, fop: &Setattr) {
        self.mode = fop.mode.map_or(self.mode, |mode| mode & 0o7777);
        self.uid = fop.uid.unwrap_or(self.uid);
        self.gid = fop.gid.unwrap_or(self.gid);
        self.atime = fop.atime.unwrap_or(self.atime);
        self.mtime = fop.mtime.unwrap_or(self.mtime);
        self.ctime = fop.when;
    }
}
