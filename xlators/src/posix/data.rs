//! Content of regular files: open, release, read, write, sizes, ranges, and making it durable.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use bytes::Bytes;
use rustix::fs::{FallocateFlags, OFlags, SeekFrom};
use rustix::io::{Errno, IoSlice, ReadWriteFlags};

use super::at::At;
use super::files::{Closed, OpenFile};
use super::handle::HandleName;
use super::mdata::{Form, Touch};
use super::store::{Node, Store};
use super::sys;
use crate::ctx::Ctx;
use crate::error::Result;
use crate::fop::{
    Allocate, CopyRange, Fallocate, Fsync, Open, Place, Read, Release, Seek, SeekTo, Setattr, Truncate, Write,
};
use crate::reply::{Changed, Data, Done, Sought, Written};
use crate::types::{ClientId, Cover, Fd, Gfid, MAX_IO_BYTES, OpenFlags, Time};

/// The most that one `CopyRange` copies, so that it ends in bounded time; the answer says how far it came.
const COPY_BYTES_MAX: u64 = 1 << 30;

/// A regular file to work on.
#[derive(Debug)]
pub(super) enum File {
    /// That somebody opened.
    Shared(Arc<OpenFile>),
    /// That was opened for this fop.
    Own(OwnedFd),
}

impl AsFd for File {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Shared(file) => file.fd.as_fd(),
            Self::Own(fd) => fd.as_fd(),
        }
    }
}

/// How far a read came without the disk.
#[derive(Debug)]
pub(super) enum ReadStep {
    /// To the end.
    Done(Data),
    /// The page cache had these bytes only; the rest is to be read on a thread that may wait.
    Disk(File, Vec<u8>),
}

impl Store {
    /// Open a file under the number that the opener chose. What had the number before comes back.
    pub(super) fn open(&self, ctx: &Ctx, fop: &Open) -> Result<Done> {
        let inode = self.inodes.lock(fop.fd.gfid);
        let file = self.own_file(fop.fd.gfid, fop.flags)?;
        if fop.flags.contains(OpenFlags::TRUNCATE) && !self.options.arbiter {
            rustix::fs::ftruncate(&file, 0)?;
            let at = At::from(&file);
            self.touch(fop.fd.gfid, at, Form::File, Touch::CtimeMtime, fop.when);
            if ctx.caller.uid != 0 {
                let stat = at.stat()?;
                self.kill_privileges_at(at, stat)?;
            }
        }
        let replaced = self.files.insert(ctx.client, fop.fd.id, OpenFile { gfid: fop.fd.gfid, fd: file })?;
        drop(inode);
        self.close(replaced);
        Ok(Done)
    }

    /// A file is opened for writing even if only reading was asked for, so that an fd serves whatever comes under its
    /// number; only where that is refused, for reading. `O_DIRECT` is not passed on: buffers from the wire are not
    /// aligned, and durability is asked for by `sync`.
    fn own_file(&self, gfid: Gfid, flags: OpenFlags) -> Result<OwnedFd, Errno> {
        let node = self.node(gfid)?;
        self.must_be_file(gfid, &node)?;
        match node.at().open(OFlags::RDWR) {
            Err(Errno::ROFS | Errno::PERM | Errno::ACCESS | Errno::TXTBSY) if !flags.contains(OpenFlags::WRITE) => {
                node.at().open(OFlags::RDONLY)
            }
            answer => answer,
        }
        .map_err(|errno| self.missed(gfid, errno))
    }

    /// Close an open file; an unknown number is no error, since a brick that was restarted knows none. What the last
    /// close of a file without names leaves to be freed comes back, for a thread that may wait.
    pub(super) fn release(&self, client: ClientId, fop: &Release) -> Option<Arc<OpenFile>> {
        self.listings.end(client, fop.fd);
        let file = self.files.remove(client, fop.fd)?;
        self.let_go(file)
    }

    /// Close what a new open replaced.
    pub(super) fn close(&self, file: Option<Arc<OpenFile>>) {
        drop(file.and_then(|file| self.let_go(file)));
    }

    fn let_go(&self, file: Arc<OpenFile>) -> Option<Arc<OpenFile>> {
        let _inode = self.inodes.lock(file.gfid);
        match self.files.let_go(file.gfid) {
            Closed::Done => None,
            Closed::LastOfUnlinked => {
                let handle = HandleName::new(file.gfid);
                let gone = rustix::fs::unlinkat(&self.dirs.unlinked, handle.text(), rustix::fs::AtFlags::empty());
                if let Err(errno) = gone {
                    tracing::warn!(gfid = %file.gfid, %errno, "unlinked file not removed at its last close");
                }
                self.memory.forget(file.gfid);
                Some(file)
            }
        }
    }

    /// Close everything that one client has open.
    pub(super) fn client_gone(&self, client: ClientId) {
        for fd in self.files.of_client(client) {
            drop(self.release(client, &Release { fd }));
        }
        self.listings.client_gone(client);
    }

    fn file(&self, gfid: Gfid, client: ClientId, fd: Option<Fd>, flags: OFlags) -> Result<File, Errno> {
        let node = self.node_through(gfid, client, fd)?;
        self.must_be_file(gfid, &node)?;
        match node {
            Node::Open(file) => Ok(File::Shared(file)),
            node => node.at().open(flags).map(File::Own).map_err(|errno| self.missed(gfid, errno)),
        }
    }

    /// Read as much as is in the page cache.
    pub(super) fn read(&self, ctx: &Ctx, fop: &Read) -> Result<ReadStep> {
        if self.options.arbiter {
            return Err(Errno::NOSYS.into());
        }
        let size = usize::try_from(fop.size).unwrap_or(usize::MAX).min(MAX_IO_BYTES);
        let file = self.file(fop.gfid, ctx.client, fop.fd, OFlags::RDONLY)?;
        let mut data = Vec::with_capacity(size);
        loop {
            if data.len() == size {
                return Ok(ReadStep::Done(Data { data: Bytes::from(data) }));
            }
            let offset = fop.offset.saturating_add(data.len() as u64);
            match sys::read_cached(file.as_fd(), &mut data, offset) {
                Ok(0) => return Ok(ReadStep::Done(Data { data: fitting(data) })),
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN | Errno::OPNOTSUPP) => return Ok(ReadStep::Disk(file, data)),
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Read the rest, waiting for the disk.
    pub(super) fn read_disk(&self, file: &File, fop: &Read, mut data: Vec<u8>) -> Result<Data> {
        let size = usize::try_from(fop.size).unwrap_or(usize::MAX).min(MAX_IO_BYTES);
        while data.len() < size {
            let offset = fop.offset.saturating_add(data.len() as u64);
            match rustix::io::pread(file, rustix::buffer::spare_capacity(&mut data), offset) {
                Ok(0) => break,
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        data.truncate(size);
        Ok(Data { data: fitting(data) })
    }

    /// Write to a file, then change the attributes that came with it.
    pub(super) fn write_then(&self, ctx: &Ctx, fop: &Write) -> Result<Written> {
        let written = self.write(ctx, fop)?;
        match &fop.then {
            // What was not written whole is not finished: the writer hears of it, and asks again.
            Some(then) if usize::try_from(written.bytes).is_ok_and(|bytes| bytes == fop.data.len()) => {
                let then = Setattr { gfid: fop.gfid, ..(**then).clone() };
                Ok(Written { iatt: self.setattr(ctx, &then)?.iatt, ..written })
            }
            _ => Ok(written),
        }
    }

    fn write(&self, ctx: &Ctx, fop: &Write) -> Result<Written> {
        if fop.data.len() > MAX_IO_BYTES {
            return Err(Errno::INVAL.into());
        }
        if self.options.arbiter {
            let offset = if let Place::At(offset) = fop.place { offset } else { 0 };
            return self.pretend(ctx, fop, offset);
        }
        self.reserve.check(ctx, self.dirs.root.fd.as_fd(), fop.data.len() as u64)?;
        let file = self.file(fop.gfid, ctx.client, fop.fd, OFlags::WRONLY)?;
        let (at, is_file) = (At::Fd(file.as_fd()), Form::File);
        let (offset, bytes, stat) = match fop.place {
            Place::At(offset) => {
                let bytes = write_all(file.as_fd(), &fop.data, offset, ReadWriteFlags::empty())?;
                (offset, bytes, None)
            }
            Place::End => {
                // The kernel finds the end; where that was is known as long as no other append gets in between.
                let _inode = self.inodes.lock(fop.gfid);
                let bytes = write_all(file.as_fd(), &fop.data, 0, ReadWriteFlags::APPEND)?;
                let stat = at.stat()?;
                let end = u64::try_from(stat.st_size).unwrap_or(0);
                (end.saturating_sub(bytes as u64), bytes, Some(stat))
            }
        };
        let times = self.touch(fop.gfid, at, is_file, Touch::CtimeMtime, fop.when);
        let mut stat = stat.map_or_else(|| at.stat(), Ok)?;
        if fop.kill_priv {
            stat = self.kill_privileges_at(at, stat)?;
        }
        if fop.sync {
            rustix::fs::fsync(&file)?;
        }
        let iatt = self.iatt(fop.gfid, &stat, times.as_ref());
        Ok(Written { offset, bytes: u32::try_from(bytes).unwrap_or(u32::MAX), iatt, cover: Cover::empty() })
    }

    /// An arbiter keeps no content, and says that it did what was asked.
    fn pretend(&self, ctx: &Ctx, fop: &Write, offset: u64) -> Result<Written> {
        let node = self.node_through(fop.gfid, ctx.client, fop.fd)?;
        let iatt = self.stat_node(fop.gfid, &node)?;
        let bytes = u32::try_from(fop.data.len()).unwrap_or(u32::MAX);
        Ok(Written { offset, bytes, iatt, cover: Cover::empty() })
    }

    /// Change the size.
    pub(super) fn truncate(&self, ctx: &Ctx, fop: &Truncate) -> Result<Changed> {
        self.on_content(ctx, (fop.gfid, fop.fd), fop.when, |store, at, file| {
            rustix::fs::ftruncate(file, fop.size)?;
            if fop.kill_priv {
                let stat = at.stat()?;
                store.kill_privileges_at(at, stat)?;
            }
            Ok(())
        })
    }

    /// Reserve space, punch a hole, or zero a range.
    pub(super) fn fallocate(&self, ctx: &Ctx, fop: &Fallocate) -> Result<Changed> {
        let flags = match fop.how {
            Allocate::Reserve => FallocateFlags::empty(),
            Allocate::ReserveKeepSize => FallocateFlags::KEEP_SIZE,
            Allocate::Punch => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            Allocate::Zero => FallocateFlags::ZERO_RANGE,
            Allocate::ZeroKeepSize => FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE,
        };
        if fop.how != Allocate::Punch {
            self.reserve.check(ctx, self.dirs.root.fd.as_fd(), fop.length)?;
        }
        self.on_content(ctx, (fop.gfid, fop.fd), fop.when, |_, _, file| {
            let before = rustix::fs::fstat(file)?.st_size;
            rustix::fs::fallocate(file, flags, fop.offset, fop.length)
                .inspect_err(|errno| take_back(file, before, *errno))
        })
    }

    /// Change content with `change`, then times; an arbiter only says so.
    fn on_content(
        &self,
        ctx: &Ctx,
        (gfid, fd): (Gfid, Option<Fd>),
        when: Time,
        change: impl FnOnce(&Self, At<'_>, BorrowedFd<'_>) -> Result<(), Errno>,
    ) -> Result<Changed> {
        if self.options.arbiter {
            let node = self.node_through(gfid, ctx.client, fd)?;
            return Ok(Changed { iatt: self.stat_node(gfid, &node)?, cover: Cover::empty() });
        }
        let file = self.file(gfid, ctx.client, fd, OFlags::WRONLY)?;
        let at = At::Fd(file.as_fd());
        change(self, at, file.as_fd())?;
        let times = self.touch(gfid, at, Form::File, Touch::CtimeMtime, when);
        Ok(Changed { iatt: self.iatt(gfid, &at.stat()?, times.as_ref()), cover: Cover::empty() })
    }

    /// Copy a range between two files of this brick.
    pub(super) fn copy_range(&self, ctx: &Ctx, fop: &CopyRange) -> Result<Written> {
        if self.options.arbiter {
            return Err(Errno::NOSYS.into());
        }
        self.reserve.check(ctx, self.dirs.root.fd.as_fd(), fop.length.min(COPY_BYTES_MAX))?;
        let from = self.file(fop.from, ctx.client, fop.from_fd, OFlags::RDONLY)?;
        let to = self.file(fop.to, ctx.client, fop.to_fd, OFlags::WRONLY)?;
        let (mut at_from, mut at_to) = (fop.from_offset, fop.to_offset);
        let mut left = usize::try_from(fop.length.min(COPY_BYTES_MAX)).unwrap_or(usize::MAX);
        while left > 0 {
            match rustix::fs::copy_file_range(&from, Some(&mut at_from), &to, Some(&mut at_to), left) {
                Ok(0) => break,
                Ok(copied) => left -= copied,
                Err(Errno::INTR) => {}
                Err(_) if at_to > fop.to_offset => break,
                Err(errno) => return Err(errno.into()),
            }
        }
        let at = At::Fd(to.as_fd());
        let times = self.touch(fop.to, at, Form::File, Touch::CtimeMtime, fop.when);
        let bytes = u32::try_from(at_to - fop.to_offset).unwrap_or(u32::MAX);
        let iatt = self.iatt(fop.to, &at.stat()?, times.as_ref());
        Ok(Written { offset: fop.to_offset, bytes, iatt, cover: Cover::empty() })
    }

    /// Find the next data or hole. The position of the descriptor means nothing to any other fop.
    pub(super) fn seek(&self, ctx: &Ctx, fop: &Seek) -> Result<Sought> {
        if self.options.arbiter {
            return Err(Errno::NOSYS.into());
        }
        let file = self.file(fop.gfid, ctx.client, fop.fd, OFlags::RDONLY)?;
        // Larger ones than the kernel knows are beyond the end of every file.
        if i64::try_from(fop.offset).is_err() {
            return Err(Errno::NXIO.into());
        }
        let to = match fop.to {
            SeekTo::Data => SeekFrom::Data(fop.offset),
            SeekTo::Hole => SeekFrom::Hole(fop.offset),
        };
        Ok(Sought { offset: rustix::fs::seek(&file, to)? })
    }

    /// Make an inode durable. What cannot be opened (a symbolic link, a device) takes the whole file system with it.
    pub(super) fn fsync(&self, ctx: &Ctx, fop: &Fsync) -> Result<Done> {
        let node = self.node_through(fop.gfid, ctx.client, fop.fd)?;
        let sync = |fd: BorrowedFd<'_>| if fop.data_only { rustix::fs::fdatasync(fd) } else { rustix::fs::fsync(fd) };
        match &node {
            Node::Dir(dir) => rustix::fs::fsync(&dir.fd)?,
            Node::Open(file) => sync(file.fd.as_fd())?,
            Node::Handle(..) | Node::Unlinked(..) => match self.must_be_file(fop.gfid, &node) {
                Ok(()) => {
                    let fd = node.at().open(OFlags::RDONLY).map_err(|errno| self.missed(fop.gfid, errno))?;
                    sync(fd.as_fd())?;
                }
                Err(Errno::INVAL) => rustix::fs::syncfs(&self.dirs.root.fd)?,
                Err(errno) => return Err(errno.into()),
            },
        }
        Ok(Done)
    }
}

/// A disk that has no room for all of an allocation keeps what it found, and may count it to the size (ext4; XFS beyond 8 GiB).
/// That would take the rest of the disk for a file which nobody has, and each copy would have another size. Room that was
/// set aside behind the end before goes as well.
fn take_back(file: BorrowedFd<'_>, size: i64, errno: Errno) {
    let Ok(size) = u64::try_from(size) else { return };
    if matches!(errno, Errno::NOSPC | Errno::DQUOT)
        && let Err(errno) = rustix::fs::ftruncate(file, size)
    {
        tracing::warn!(size, %errno, "a failed allocation was not taken back");
    }
}

/// Write everything, going on after a partial write. Fewer bytes only where the disk refused the rest.
pub(super) fn write_all(fd: BorrowedFd<'_>, data: &[u8], offset: u64, flags: ReadWriteFlags) -> Result<usize, Errno> {
    if i64::try_from(offset).is_err() {
        return Err(Errno::FBIG);
    }
    let mut written = 0;
    while written < data.len() {
        let rest = &data[written..];
        let result = if flags.is_empty() {
            rustix::io::pwrite(fd, rest, offset + written as u64)
        } else {
            rustix::io::pwritev2(fd, &[IoSlice::new(rest)], 0, flags)
        };
        match result {
            Ok(0) => break,
            Ok(bytes) => written += bytes,
            Err(Errno::INTR) => {}
            Err(errno) if written == 0 => return Err(errno),
            Err(_) => break,
        }
    }
    Ok(written)
}

/// A short answer does not keep the room of a long one.
fn fitting(data: Vec<u8>) -> Bytes {
    if data.len() < data.capacity() / 2 { Bytes::copy_from_slice(&data) } else { Bytes::from(data) }
}
