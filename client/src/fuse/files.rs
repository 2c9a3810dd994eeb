//! Requests about open files: open, read, write, and what else works on a range.

use std::sync::Arc;

use bytes::Bytes;
use mortar_xlators::ctx::Ctx;
use mortar_xlators::error::Result;
use mortar_xlators::fop::{
    CopyRange, Fallocate, Flush, Fsync, Open, Place, Read, Release, Seek, SeekTo, Setattr, Write,
};
use mortar_xlators::reply::Done;
use mortar_xlators::types::{Fd, Gfid, MAX_IO_BYTES, Name, OpenFlags, Time};
use mortar_xlators::xlator::Subvol;
use rustix::io::Errno;

use super::convert;
use super::names::Asked;
use super::opens::How;
use super::second_walk::Wanted;
use super::server::{Server, not_served};
use super::transport::abi::OpenedFlags;
use super::transport::reply::{Answer, Opened};
use super::transport::request::{CopyWidth, Op, SuidSgid, SyncWhat};

/// How the kernel shall treat a file that is new. Pages stay, since it drops them itself when it sees that size or mtime have
/// changed. Writes of one file run beside each other only where the program wants them past the pages: while they do, the
/// kernel lets nobody open the file who could use pages. Of what is only read nothing is kept back, so closing it is of
/// interest only where programs lock (`locks.rs`). An append goes past the pages: from there, one that crosses the end of a
/// page comes as two requests, and another client's append gets in between.
pub(super) fn opened_new(how: How) -> OpenedFlags {
    let mut opened = OpenedFlags::KEEP_CACHE;
    opened.set(OpenedFlags::PARALLEL_DIRECT_WRITES, how.flags.contains(OpenFlags::DIRECT));
    opened.set(OpenedFlags::NOFLUSH, how.opener_if_unflushed.is_some());
    opened.set(OpenedFlags::DIRECT_IO, how.flags.contains(OpenFlags::APPEND));
    opened
}

/// As [`opened_new`], for a file that was there, so that other clients may read it. What is only written goes past the
/// kernel's pages: from there, this mount's readers get it before it is on the bricks, and another mount's would read the
/// old content after them.
fn opened(how: How) -> OpenedFlags {
    let mut opened = opened_new(how);
    opened.set(OpenedFlags::DIRECT_IO, !how.flags.contains(OpenFlags::READ) || how.flags.contains(OpenFlags::APPEND));
    opened
}

/// The largest copy that one request asks for: the kernel comes again for the rest.
const COPY_BYTES_MAX: u64 = 0x4000_0000;

impl Server {
    pub(super) async fn serve_file(&self, ctx: &Ctx, nodeid: u64, op: Op) -> Result<Answer> {
        let gfid = self.gfid(nodeid)?;
        match op {
            Op::Create { name, flags, mode, umask, suid_sgid } => {
                let wanted = Wanted { raw_flags: flags, flags: convert::open_flags(flags), suid_sgid };
                self.create(ctx, gfid, Name::new(name)?, Asked { mode, umask }, wanted).await
            }
            Op::Open { flags, suid_sgid } => self.open(ctx, gfid, convert::open_flags(flags), suid_sgid).await,
            Op::Read { fh, offset, size, .. } => self.read(ctx, gfid, fh, offset, size).await,
            Op::Write { fh, offset, data, flags, suid_sgid, .. } => {
                self.write(ctx, gfid, fh, (offset, data), flags, suid_sgid).await
            }
            Op::Flush { fh, lock_owner } => {
                let flushed = self.send(ctx, Flush { gfid }).await;
                self.closed(ctx, gfid, fh, lock_owner).await;
                flushed.map(|Done| Answer::Empty)
            }
            Op::Getlk { fh, owner, lock, kind } => self.get_lock(ctx, gfid, fh, (owner, kind), lock).await,
            Op::Setlk { fh, owner, lock, kind, wait } => self.set_lock(ctx, gfid, fh, (owner, kind, wait), lock).await,
            Op::Release { fh, .. } => self.release(ctx, fh).await,
            Op::Fsync { fh, what } => {
                let fd = self.cache.opens.file(fh)?.fd();
                self.send(ctx, Fsync { gfid, fd, data_only: what == SyncWhat::Data }).await?;
                Ok(Answer::Empty)
            }
            Op::Fallocate { fh, offset, length, mode } => {
                let how = convert::allocate(mode)?;
                let (fd, when) = (self.cache.opens.file(fh)?.fd(), (self.sources.clock)());
                self.changed();
                self.kill_privileges(ctx, nodeid, fd, when).await?;
                self.send(ctx, Fallocate { gfid, fd, how, offset, length, when }).await?;
                self.changed();
                Ok(Answer::Empty)
            }
            Op::Lseek { fh, offset, whence } => self.lseek(ctx, gfid, fh, offset, whence).await,
            Op::CopyFileRange { fh, offset, nodeid_out, fh_out, offset_out, length, width } => {
                let to = (self.gfid(nodeid_out)?, fh_out, offset_out);
                let (fd, when) = (self.cache.opens.file(fh_out)?.fd(), (self.sources.clock)());
                self.kill_privileges(ctx, nodeid_out, fd, when).await?;
                self.copy(ctx, (gfid, fh, offset), to, length, width).await
            }
            _ => not_served(),
        }
    }

    /// How a file is opened by this caller.
    pub(super) fn how(&self, ctx: &Ctx, gfid: Gfid, flags: OpenFlags) -> How {
        let flush = flags.contains(OpenFlags::WRITE) || self.cache.lockers.any(gfid);
        How { flags, opener_if_unflushed: (!flush).then_some(ctx.caller.pid.cast_unsigned()) }
    }

    /// As [`opened`], for a file of which the kernel may have pages from before another client wrote to it.
    fn opened_again(&self, gfid: Gfid, how: How) -> OpenedFlags {
        let flags = opened(how);
        if self.cache.inodes.take_old_pages(gfid) { flags - OpenedFlags::KEEP_CACHE } else { flags }
    }

    /// Opens a file, without a message if a lease covers it.
    pub(super) async fn open(&self, ctx: &Ctx, gfid: Gfid, flags: OpenFlags, suid_sgid: SuidSgid) -> Result<Answer> {
        let (cut, how) = (flags.contains(OpenFlags::TRUNCATE), self.how(ctx, gfid, flags));
        if cut {
            self.changed();
        }
        if let Some(fh) = self.cache.opens.insert_deferred(gfid, how, &self.cache.inodes) {
            if cut && let Err(error) = self.truncate(ctx, gfid, None, 0, suid_sgid).await {
                self.cache.opens.remove_file(fh);
                return Err(error);
            }
            return Ok(Answer::Opened(Opened { fh, flags: self.opened_again(gfid, how) }));
        }
        let number = Fd { id: self.cache.opens.next_number(), gfid };
        let guard = OpenGuard::new(self, ctx, number);
        self.open_below(ctx, number, flags - OpenFlags::TRUNCATE).await?;
        if cut {
            // By itself, since from here on the file cannot go from one copy and not from another.
            self.truncate(ctx, gfid, Some(number), 0, suid_sgid).await?;
        }
        guard.disarm();
        self.cache.opens.insert(number, how);
        Ok(Answer::Opened(Opened { fh: number.id, flags: self.opened_again(gfid, how) }))
    }

    /// Has the bricks open a file.
    pub(super) async fn open_below(&self, ctx: &Ctx, fd: Fd, flags: OpenFlags) -> Result<()> {
        self.send(ctx, Open { fd, flags, when: (self.sources.clock)() }).await?;
        Ok(())
    }

    async fn read(&self, ctx: &Ctx, gfid: Gfid, fh: u64, offset: u64, size: u32) -> Result<Answer> {
        let fd = self.cache.opens.file(fh)?.fd();
        let size = size.min(MAX_IO_BYTES as u32);
        let read = Read { gfid, fd, offset, size };
        Ok(Answer::Data(self.cache.pages.read(&*self.volume, ctx, read).await?.data))
    }

    async fn write(
        &self,
        ctx: &Ctx,
        gfid: Gfid,
        fh: u64,
        (offset, data): (u64, Bytes),
        flags: u32,
        suid_sgid: SuidSgid,
    ) -> Result<Answer> {
        let file = self.cache.opens.file(fh)?;
        // The flags of the moment: fcntl(2) may have changed them since the open. What a mapping
        // writes back comes without any, and goes where it was.
        let now = convert::open_flags(flags);
        let write = Write {
            gfid,
            fd: file.fd(),
            place: if now.contains(OpenFlags::APPEND) { Place::End } else { Place::At(offset) },
            data,
            sync: now.contains(OpenFlags::SYNC) || file.flags.contains(OpenFlags::SYNC),
            kill_priv: suid_sgid == SuidSgid::Kill,
            when: (self.sources.clock)(),
            then: None,
        };
        self.changed();
        let written = match write.place {
            Place::At(_) => self.cache.pages.write(&*self.volume, ctx, write).await?,
            Place::End => self.send(ctx, write).await?,
        };
        self.changed();
        Ok(Answer::Written(written.bytes))
    }

    /// What takes set-user-id and set-group-id away where the kernel leaves it to us and has no flag that says so. Who is
    /// root keeps them.
    async fn kill_privileges(&self, ctx: &Ctx, nodeid: u64, fd: Option<Fd>, when: Time) -> Result<()> {
        if ctx.caller.uid == 0 {
            return Ok(());
        }
        let gfid = self.gfid(nodeid)?;
        let same =
            Setattr { gfid, fd, mode: None, uid: None, gid: None, atime: None, mtime: None, kill_priv: true, when };
        self.send(ctx, same).await?;
        self.cache.forget_attributes(nodeid);
        Ok(())
    }

    pub(super) async fn release(&self, ctx: &Ctx, fh: u64) -> Result<Answer> {
        if let Some(file) = self.cache.opens.remove_file(fh) {
            self.end_locks(ctx, &file).await;
            if let Some(fd) = file.fd() {
                self.send(ctx, Release { fd }).await?;
            }
        }
        Ok(Answer::Empty)
    }

    async fn lseek(&self, ctx: &Ctx, gfid: Gfid, fh: u64, offset: u64, whence: u32) -> Result<Answer> {
        let to = match whence.cast_signed() {
            libc::SEEK_DATA => SeekTo::Data,
            libc::SEEK_HOLE => SeekTo::Hole,
            _ => return Err(Errno::INVAL.into()),
        };
        let fd = self.cache.opens.file(fh)?.fd();
        Ok(Answer::Position(self.send(ctx, Seek { gfid, fd, offset, to }).await?.offset))
    }

    async fn copy(
        &self,
        ctx: &Ctx,
        (from, from_fh, from_offset): (Gfid, u64, u64),
        (to, to_fh, to_offset): (Gfid, u64, u64),
        length: u64,
        width: CopyWidth,
    ) -> Result<Answer> {
        let copy = CopyRange {
            from,
            from_fd: self.cache.opens.file(from_fh)?.fd(),
            from_offset,
            to,
            to_fd: self.cache.opens.file(to_fh)?.fd(),
            to_offset,
            length: length.min(COPY_BYTES_MAX),
            when: (self.sources.clock)(),
        };
        self.changed();
        let written = self.send(ctx, copy).await?;
        self.changed();
        Ok(match width {
            CopyWidth::Bits32 => Answer::Written(written.bytes),
            CopyWidth::Bits64 => Answer::Copied(u64::from(written.bytes)),
        })
    }
}

/// Closes a file at the bricks if nobody will: the caller was killed while it was being opened, or
/// the second half of opening failed.
#[derive(Debug)]
pub(super) struct OpenGuard {
    open: Option<(Subvol, Ctx, Fd)>,
}

impl OpenGuard {
    pub(super) fn new(server: &Server, ctx: &Ctx, fd: Fd) -> Self {
        Self { open: Some((Arc::clone(&server.volume), ctx.clone(), fd)) }
    }

    /// It is in the table of open files now, or was never opened.
    pub(super) fn disarm(mut self) {
        self.open = None;
    }
}

impl Drop for OpenGuard {
    fn drop(&mut self) {
        if let Some((volume, ctx, fd)) = self.open.take() {
            // A brick that never opened it has nothing to close.
            tokio::spawn(async move { volume.send(&ctx, Release { fd }).await });
        }
    }
}
