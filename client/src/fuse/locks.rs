//! Locks of the programs on this mount: fcntl(2) and flock(2), and when they end with an open file.
//!
//! The kernel tells the end of a lock in three ways. FLUSH comes when a descriptor is closed: the process that closed it
//! loses its fcntl locks on the file, whichever descriptor took them. RELEASE comes when the last descriptor of an open
//! file is closed: what that open file owns is gone, flock and open-file-description locks. And a program may unlock.
//! FLUSH costs each close a wait, so the kernel is asked to leave it out for files that are opened for reading only and of
//! which nothing is locked then; there the end of an open file is also the end of the fcntl locks of the process that
//! opened it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use mortar_xlators::ctx::Ctx;
use mortar_xlators::error::Result;
use mortar_xlators::fop::{Claim, Lk, LkWhat};
use mortar_xlators::ranges::{LockMode, Span};
use mortar_xlators::reply::Lockable;
use mortar_xlators::types::{Fd, Gfid, LockFamily, LockOwner};
use parking_lot::Mutex;
use rustix::io::Errno;
use smallvec::SmallVec;

use super::opens::OpenFile;
use super::server::Server;
use super::transport::abi::FileLock;
use super::transport::reply::Answer;
use super::transport::request::{LockKind, LockWait};

/// Who has locked, or tried to, through one open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Locker {
    owner: LockOwner,
    fh: u64,
    pid: u32,
}

/// Who may have locks on which file. Bounded by what bricks let one client lock, and by open files.
#[derive(Debug, Default)]
pub(crate) struct Lockers {
    files: Mutex<HashMap<Gfid, SmallVec<[Locker; 1]>, foldhash::fast::RandomState>>,
    /// The files in it, to be looked at without the lock: usually none.
    count: AtomicUsize,
}

impl Lockers {
    fn change<T>(&self, gfid: Gfid, change: impl FnOnce(&mut SmallVec<[Locker; 1]>) -> T) -> T {
        let mut files = self.files.lock();
        let lockers = files.entry(gfid).or_default();
        let answer = change(lockers);
        if lockers.is_empty() {
            files.remove(&gfid);
        }
        self.count.store(files.len(), Ordering::Release);
        answer
    }

    fn note(&self, gfid: Gfid, locker: Locker) {
        self.change(gfid, |lockers| {
            if !lockers.contains(&locker) {
                lockers.push(locker);
            }
        });
    }

    /// Whether somebody may have a lock on the file.
    pub(crate) fn any(&self, gfid: Gfid) -> bool {
        self.count.load(Ordering::Acquire) > 0 && self.files.lock().contains_key(&gfid)
    }

    /// Takes out the owners of whom this is true.
    fn take(&self, gfid: Gfid, gone: impl Fn(&Locker) -> bool) -> SmallVec<[LockOwner; 1]> {
        let mut owners: SmallVec<[LockOwner; 1]> = SmallVec::new();
        if !self.any(gfid) {
            return owners;
        }
        self.change(gfid, |lockers| {
            owners.extend(lockers.iter().filter(|locker| gone(locker)).map(|locker| locker.owner));
            owners.sort_unstable();
            owners.dedup();
            lockers.retain(|locker| !owners.contains(&locker.owner));
        });
        owners
    }
}

/// The numbers are those of fcntl(2).
fn mode(kind: u32) -> Result<Option<LockMode>, Errno> {
    match i32::try_from(kind) {
        Ok(libc::F_RDLCK) => Ok(Some(LockMode::Read)),
        Ok(libc::F_WRLCK) => Ok(Some(LockMode::Write)),
        Ok(libc::F_UNLCK) => Ok(None),
        _ => Err(Errno::INVAL),
    }
}

fn owner(id: u64, kind: LockKind) -> LockOwner {
    let family = match kind {
        LockKind::Posix => LockFamily::Posix,
        LockKind::Flock => LockFamily::Flock,
    };
    LockOwner { family, id }
}

fn span(lock: &FileLock) -> Result<Span, Errno> {
    Span::new(lock.start, lock.end).ok_or(Errno::INVAL)
}

impl Server {
    pub(super) async fn get_lock(
        &self,
        ctx: &Ctx,
        gfid: Gfid,
        fh: u64,
        (id, kind): (u64, LockKind),
        lock: FileLock,
    ) -> Result<Answer> {
        let mode = mode(lock.kind)?.ok_or(Errno::INVAL)?;
        let (fd, span) = (Some(self.cache.opens.file(fh)?.number()), span(&lock)?);
        let pid = lock.pid.cast_signed();
        let get = Lk { gfid, fd, owner: owner(id, kind), pid, what: LkWhat::Get(mode), span };
        Ok(Answer::Lock(match self.send(ctx, get).await? {
            Lockable::Held { by, pid } => FileLock {
                start: by.span.start,
                end: by.span.end,
                kind: if by.mode == LockMode::Read { libc::F_RDLCK } else { libc::F_WRLCK }.cast_unsigned(),
                pid: pid.cast_unsigned(),
            },
            _ => FileLock { kind: libc::F_UNLCK.cast_unsigned(), ..lock },
        }))
    }

    pub(super) async fn set_lock(
        &self,
        ctx: &Ctx,
        gfid: Gfid,
        fh: u64,
        (id, kind, wait): (u64, LockKind, LockWait),
        lock: FileLock,
    ) -> Result<Answer> {
        let file = self.cache.opens.file(fh)?;
        let (owner, span) = (owner(id, kind), span(&lock)?);
        let what = match (mode(lock.kind)?, wait) {
            (None, _) => LkWhat::Unlock,
            (Some(mode), LockWait::Try) => LkWhat::Set(mode, Claim::New),
            (Some(mode), LockWait::Wait) => LkWhat::SetWait(mode),
        };
        if what != LkWhat::Unlock {
            // Before it has the lock: whatever happens then, closing unlocks.
            self.cache.lockers.note(gfid, Locker { owner, fh, pid: lock.pid });
        }
        let lk = Lk { gfid, fd: Some(file.number()), owner, pid: lock.pid.cast_signed(), what, span };
        match self.send(ctx, lk).await? {
            Lockable::Free => Ok(Answer::Empty),
            Lockable::Held { .. } => Err(Errno::AGAIN.into()),
            Lockable::Grace | Lockable::Late => Err(Errno::NOLCK.into()),
        }
    }

    /// A process closed a descriptor of this file.
    pub(super) async fn closed(&self, ctx: &Ctx, gfid: Gfid, fh: u64, id: u64) {
        let process = owner(id, LockKind::Posix);
        let owners = self.cache.lockers.take(gfid, |locker| locker.owner == process);
        self.unlock_all(ctx, Fd { id: fh, gfid }, owners).await;
    }

    /// An open file is no more.
    pub(super) async fn end_locks(&self, ctx: &Ctx, file: &OpenFile) {
        let Fd { id: fh, gfid } = file.number();
        let owners = self.cache.lockers.take(gfid, |locker| locker.fh == fh || was_opened_by(file, locker));
        self.unlock_all(ctx, file.number(), owners).await;
    }

    async fn unlock_all(&self, ctx: &Ctx, fd: Fd, owners: SmallVec<[LockOwner; 1]>) {
        for owner in owners {
            let unlock = Lk { gfid: fd.gfid, fd: Some(fd), owner, pid: 0, what: LkWhat::Unlock, span: Span::ALL };
            if let Err(error) = self.send(ctx, unlock).await {
                tracing::warn!(id = ctx.id, gfid = %fd.gfid, %error, "could not unlock a file that was closed");
            }
        }
    }
}

/// Whether this open file, of whose closing FLUSH told nothing, was opened by the process that locked.
fn was_opened_by(file: &OpenFile, locker: &Locker) -> bool {
    let Some(thread) = file.opener_if_unflushed else { return false };
    let is_process = locker.owner.family == LockFamily::Posix && locker.pid != 0;
    let same = || std::fs::exists(format!("/proc/{}/task/{thread}", locker.pid)).unwrap_or(false);
    is_process && (thread == locker.pid || same())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_is_taken_out_wherever_it_locked() {
        let lockers = Lockers::default();
        let process = owner(7, LockKind::Posix);
        for (owner, fh) in [(process, 1), (process, 2), (owner(8, LockKind::Flock), 2)] {
            lockers.note(Gfid::ROOT, Locker { owner, fh, pid: 1 });
            lockers.note(Gfid::ROOT, Locker { owner, fh, pid: 1 });
        }
        assert!(lockers.take(Gfid::from_bytes([9; 16]), |_| true).is_empty());
        assert_eq!(lockers.take(Gfid::ROOT, |locker| locker.fh == 1).as_slice(), [process]);
        assert!(lockers.take(Gfid::ROOT, |locker| locker.owner == process).is_empty());
        assert!(lockers.any(Gfid::ROOT));
        assert_eq!(lockers.take(Gfid::ROOT, |locker| locker.fh == 2).len(), 1);
        assert!(!lockers.any(Gfid::ROOT) && lockers.files.lock().is_empty());
    }
}
