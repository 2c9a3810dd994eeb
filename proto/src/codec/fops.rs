//! A message per fop, in table order.

use mortar_xlators::error::Errno;
use mortar_xlators::fop;
use mortar_xlators::fop::{Allocate, Fop, LEASE_OBJECTS_MAX, Place, SeekTo, SetHow, Settled};
use mortar_xlators::fop::{Claim, LkWhat};
use mortar_xlators::types::{AttrMask, LockFamily, LockOwner, MAX_IO_BYTES};

use super::nouns::{
    Result, all, at_most, extent, inode, lock_mode, lock_mode_to_wire, marks, maybe, mode, mode_from_wire,
    mode_to_wire, need, open_flags, owner, span, xattr_name,
};
use crate::pb;
use crate::pb::request::Fop as Wire;

/// The longest page of a listing that is served: with attributes of every entry it still fits an answer.
pub const READDIR_BYTES_MAX: u32 = 64 << 10;

/// The message of a fop.
#[deny(clippy::wildcard_enum_match_arm)]
pub fn fop_to_wire(fop: Fop) -> Wire {
    match fop {
        Fop::Lookup(f) => Wire::Lookup(f.into()),
        Fop::Getattr(f) => Wire::Getattr(f.into()),
        Fop::Create(f) => Wire::Create(f.into()),
        Fop::Mknod(f) => Wire::Mknod(f.into()),
        Fop::Mkdir(f) => Wire::Mkdir(f.into()),
        Fop::Symlink(f) => Wire::Symlink(f.into()),
        Fop::Link(f) => Wire::Link(f.into()),
        Fop::Unlink(f) => Wire::Unlink(f.into()),
        Fop::Rmdir(f) => Wire::Rmdir(f.into()),
        Fop::Rename(f) => Wire::Rename(f.into()),
        Fop::Readlink(f) => Wire::Readlink(pb::Readlink { gfid: Some(f.gfid.into()) }),
        Fop::Setattr(f) => Wire::Setattr(f.into()),
        Fop::Truncate(f) => Wire::Truncate(f.into()),
        Fop::Fallocate(f) => Wire::Fallocate(f.into()),
        Fop::Open(f) => Wire::Open(f.into()),
        Fop::Release(f) => Wire::Release(pb::Release { fd: Some(f.fd.into()) }),
        Fop::Read(f) => Wire::Read(f.into()),
        Fop::Write(f) => Wire::Write(f.into()),
        Fop::CopyRange(f) => Wire::CopyRange(f.into()),
        Fop::Seek(f) => Wire::Seek(f.into()),
        Fop::Flush(f) => Wire::Flush(pb::Flush { gfid: Some(f.gfid.into()) }),
        Fop::Fsync(f) => Wire::Fsync(f.into()),
        Fop::Readdir(f) => Wire::Readdir(f.into()),
        Fop::Getxattr(f) => Wire::Getxattr(f.into()),
        Fop::Setxattr(f) => Wire::Setxattr(f.into()),
        Fop::Removexattr(f) => Wire::Removexattr(f.into()),
        Fop::Listxattr(f) => Wire::Listxattr(pb::Listxattr { gfid: Some(f.gfid.into()) }),
        Fop::Statfs(fop::Statfs) => Wire::Statfs(pb::Statfs {}),
        Fop::Lease(f) => Wire::Lease(f.into()),
        Fop::Unlease(f) => Wire::Unlease(pb::Unlease { objects: all(f.objects), keep_shared: f.keep_shared }),
        Fop::Settle(f) => Wire::Settle(pb::Settle { objects: all(f.objects) }),
        Fop::Mark(f) => Wire::Mark(pb::Mark { gfid: Some(f.gfid.into()), deltas: all(f.deltas) }),
        Fop::Backlog(fop::Backlog) => Wire::Backlog(pb::Backlog {}),
        Fop::Lk(f) => Wire::Lk(f.into()),
    }
}

/// The fop of a message, checked.
pub fn fop_from_wire(wire: Wire) -> Result<Fop> {
    Ok(match wire {
        Wire::Lookup(m) => Fop::Lookup(m.try_into()?),
        Wire::Getattr(m) => Fop::Getattr(m.try_into()?),
        Wire::Create(m) => Fop::Create(m.try_into()?),
        Wire::Mknod(m) => Fop::Mknod(m.try_into()?),
        Wire::Mkdir(m) => Fop::Mkdir(m.try_into()?),
        Wire::Symlink(m) => Fop::Symlink(m.try_into()?),
        Wire::Link(m) => Fop::Link(m.try_into()?),
        Wire::Unlink(m) => Fop::Unlink(m.try_into()?),
        Wire::Rmdir(m) => Fop::Rmdir(m.try_into()?),
        Wire::Rename(m) => Fop::Rename(m.try_into()?),
        Wire::Readlink(m) => Fop::Readlink(fop::Readlink { gfid: inode(m.gfid)? }),
        Wire::Setattr(m) => Fop::Setattr(m.try_into()?),
        Wire::Truncate(m) => Fop::Truncate(m.try_into()?),
        Wire::Fallocate(m) => Fop::Fallocate(m.try_into()?),
        Wire::Open(m) => Fop::Open(m.try_into()?),
        Wire::Release(m) => Fop::Release(fop::Release { fd: need(m.fd)? }),
        Wire::Read(m) => Fop::Read(m.try_into()?),
        Wire::Write(m) => Fop::Write(m.try_into()?),
        Wire::CopyRange(m) => Fop::CopyRange(m.try_into()?),
        Wire::Seek(m) => Fop::Seek(m.try_into()?),
        Wire::Flush(m) => Fop::Flush(fop::Flush { gfid: inode(m.gfid)? }),
        Wire::Fsync(m) => Fop::Fsync(m.try_into()?),
        Wire::Readdir(m) => Fop::Readdir(m.try_into()?),
        Wire::Getxattr(m) => Fop::Getxattr(m.try_into()?),
        Wire::Setxattr(m) => Fop::Setxattr(m.try_into()?),
        Wire::Removexattr(m) => Fop::Removexattr(m.try_into()?),
        Wire::Listxattr(m) => Fop::Listxattr(fop::Listxattr { gfid: inode(m.gfid)? }),
        Wire::Statfs(pb::Statfs {}) => Fop::Statfs(fop::Statfs),
        Wire::Lease(m) => Fop::Lease(m.try_into()?),
        Wire::Unlease(m) => Fop::Unlease(m.try_into()?),
        Wire::Settle(m) => Fop::Settle(fop::Settle { objects: settled(m.objects)? }),
        Wire::Mark(m) => Fop::Mark(fop::Mark { gfid: inode(m.gfid)?, deltas: marks(m.deltas)? }),
        Wire::Backlog(pb::Backlog {}) => Fop::Backlog(fop::Backlog),
        Wire::Lk(m) => Fop::Lk(m.try_into()?),
    })
}

fn settled(objects: Vec<pb::Settled>) -> Result<Vec<Settled>> {
    if objects.len() > LEASE_OBJECTS_MAX {
        return Err(Errno::INVAL);
    }
    objects.into_iter().map(Settled::try_from).collect()
}

impl From<fop::Getattr> for pb::Getattr {
    fn from(f: fop::Getattr) -> Self {
        Self { gfid: Some(f.gfid.into()), fd: f.fd.map(Into::into), exact: f.exact.bits() }
    }
}

impl TryFrom<pb::Getattr> for fop::Getattr {
    type Error = Errno;

    fn try_from(m: pb::Getattr) -> Result<Self> {
        let exact = AttrMask::from_bits(m.exact).ok_or(Errno::INVAL)?;
        Ok(Self { gfid: inode(m.gfid)?, fd: maybe(m.fd)?, exact })
    }
}

impl From<fop::Setattr> for pb::Setattr {
    fn from(f: fop::Setattr) -> Self {
        Self {
            gfid: Some(f.gfid.into()),
            fd: f.fd.map(Into::into),
            mode: f.mode,
            uid: f.uid,
            gid: f.gid,
            atime: f.atime.map(Into::into),
            mtime: f.mtime.map(Into::into),
            kill_priv: f.kill_priv,
            when: Some(f.when.into()),
        }
    }
}

impl TryFrom<pb::Setattr> for fop::Setattr {
    type Error = Errno;

    fn try_from(m: pb::Setattr) -> Result<Self> {
        Ok(Self {
            gfid: inode(m.gfid)?,
            fd: maybe(m.fd)?,
            mode: m.mode.map(mode).transpose()?,
            uid: m.uid.map(owner).transpose()?,
            gid: m.gid.map(owner).transpose()?,
            atime: maybe(m.atime)?,
            mtime: maybe(m.mtime)?,
            kill_priv: m.kill_priv,
            when: need(m.when)?,
        })
    }
}

impl From<fop::Truncate> for pb::Truncate {
    fn from(f: fop::Truncate) -> Self {
        Self {
            gfid: Some(f.gfid.into()),
            fd: f.fd.map(Into::into),
            size: f.size,
            kill_priv: f.kill_priv,
            when: Some(f.when.into()),
        }
    }
}

impl TryFrom<pb::Truncate> for fop::Truncate {
    type Error = Errno;

    fn try_from(m: pb::Truncate) -> Result<Self> {
        Ok(Self {
            gfid: inode(m.gfid)?,
            fd: maybe(m.fd)?,
            size: extent(m.size, 0)?,
            kill_priv: m.kill_priv,
            when: need(m.when)?,
        })
    }
}

impl From<fop::Fallocate> for pb::Fallocate {
    fn from(f: fop::Fallocate) -> Self {
        let how = match f.how {
            Allocate::Reserve => pb::Allocate::Reserve,
            Allocate::ReserveKeepSize => pb::Allocate::ReserveKeepSize,
            Allocate::Punch => pb::Allocate::Punch,
            Allocate::Zero => pb::Allocate::Zero,
            Allocate::ZeroKeepSize => pb::Allocate::ZeroKeepSize,
        };
        Self {
            gfid: Some(f.gfid.into()),
            fd: f.fd.map(Into::into),
            how: how.into(),
            offset: f.offset,
            length: f.length,
            when: Some(f.when.into()),
        }
    }
}

impl TryFrom<pb::Fallocate> for fop::Fallocate {
    type Error = Errno;

    fn try_from(m: pb::Fallocate) -> Result<Self> {
        let how = match pb::Allocate::try_from(m.how).map_err(|_| Errno::INVAL)? {
            pb::Allocate::None => return Err(Errno::INVAL),
            pb::Allocate::Reserve => Allocate::Reserve,
            pb::Allocate::ReserveKeepSize => Allocate::ReserveKeepSize,
            pb::Allocate::Punch => Allocate::Punch,
            pb::Allocate::Zero => Allocate::Zero,
            pb::Allocate::ZeroKeepSize => Allocate::ZeroKeepSize,
        };
        let offset = extent(m.offset, m.length)?;
        Ok(Self { gfid: inode(m.gfid)?, fd: maybe(m.fd)?, how, offset, length: m.length, when: need(m.when)? })
    }
}

impl From<fop::Open> for pb::Open {
    fn from(f: fop::Open) -> Self {
        Self { fd: Some(f.fd.into()), flags: f.flags.bits(), when: Some(f.when.into()) }
    }
}

impl TryFrom<pb::Open> for fop::Open {
    type Error = Errno;

    fn try_from(m: pb::Open) -> Result<Self> {
        Ok(Self { fd: need(m.fd)?, flags: open_flags(m.flags)?, when: need(m.when)? })
    }
}

impl From<fop::Read> for pb::Read {
    fn from(f: fop::Read) -> Self {
        Self { gfid: Some(f.gfid.into()), fd: f.fd.map(Into::into), offset: f.offset, size: f.size }
    }
}

impl TryFrom<pb::Read> for fop::Read {
    type Error = Errno;

    fn try_from(m: pb::Read) -> Result<Self> {
        if m.size as usize > MAX_IO_BYTES {
            return Err(Errno::INVAL);
        }
        let offset = extent(m.offset, m.size.into())?;
        Ok(Self { gfid: inode(m.gfid)?, fd: maybe(m.fd)?, offset, size: m.size })
    }
}

impl From<fop::Write> for pb::Write {
    fn from(f: fop::Write) -> Self {
        let offset = match f.place {
            Place::At(offset) => Some(offset),
            Place::End => None,
        };
        Self {
            gfid: Some(f.gfid.into()),
            fd: f.fd.map(Into::into),
            offset,
            data: f.data,
            sync: f.sync,
            kill_priv: f.kill_priv,
            when: Some(f.when.into()),
            then: f.then.map(|then| (*then).into()),
        }
    }
}

impl TryFrom<pb::Write> for fop::Write {
    type Error = Errno;

    fn try_from(m: pb::Write) -> Result<Self> {
        let place = match m.offset {
            Some(offset) => Place::At(extent(offset, m.data.len() as u64)?),
            None => Place::End,
        };
        Ok(Self {
            gfid: inode(m.gfid)?,
            fd: maybe(m.fd)?,
            place,
            data: at_most(m.data, MAX_IO_BYTES)?,
            sync: m.sync,
            kill_priv: m.kill_priv,
            when: need(m.when)?,
            then: m.then.map(|then| then.try_into().map(Box::new)).transpose()?,
        })
    }
}

impl From<fop::CopyRange> for pb::CopyRange {
    fn from(f: fop::CopyRange) -> Self {
        Self {
            from: Some(f.from.into()),
            from_fd: f.from_fd.map(Into::into),
            from_offset: f.from_offset,
            to: Some(f.to.into()),
            to_fd: f.to_fd.map(Into::into),
            to_offset: f.to_offset,
            length: f.length,
            when: Some(f.when.into()),
        }
    }
}

impl TryFrom<pb::CopyRange> for fop::CopyRange {
    type Error = Errno;

    fn try_from(m: pb::CopyRange) -> Result<Self> {
        Ok(Self {
            from: inode(m.from)?,
            from_fd: maybe(m.from_fd)?,
            from_offset: extent(m.from_offset, m.length)?,
            to: inode(m.to)?,
            to_fd: maybe(m.to_fd)?,
            to_offset: extent(m.to_offset, m.length)?,
            length: m.length,
            when: need(m.when)?,
        })
    }
}

impl From<fop::Seek> for pb::Seek {
    fn from(f: fop::Seek) -> Self {
        let to = match f.to {
            SeekTo::Data => pb::SeekTo::SeekData,
            SeekTo::Hole => pb::SeekTo::SeekHole,
        };
        Self { gfid: Some(f.gfid.into()), fd: f.fd.map(Into::into), offset: f.offset, to: to.into() }
    }
}

impl TryFrom<pb::Seek> for fop::Seek {
    type Error = Errno;

    fn try_from(m: pb::Seek) -> Result<Self> {
        let to = match pb::SeekTo::try_from(m.to).map_err(|_| Errno::INVAL)? {
            pb::SeekTo::SeekNone => return Err(Errno::INVAL),
            pb::SeekTo::SeekData => SeekTo::Data,
            pb::SeekTo::SeekHole => SeekTo::Hole,
        };
        Ok(Self { gfid: inode(m.gfid)?, fd: maybe(m.fd)?, offset: extent(m.offset, 0)?, to })
    }
}

impl From<fop::Fsync> for pb::Fsync {
    fn from(f: fop::Fsync) -> Self {
        Self { gfid: Some(f.gfid.into()), fd: f.fd.map(Into::into), data_only: f.data_only }
    }
}

impl TryFrom<pb::Fsync> for fop::Fsync {
    type Error = Errno;

    fn try_from(m: pb::Fsync) -> Result<Self> {
        Ok(Self { gfid: inode(m.gfid)?, fd: maybe(m.fd)?, data_only: m.data_only })
    }
}

impl From<fop::Readdir> for pb::Readdir {
    fn from(f: fop::Readdir) -> Self {
        Self {
            gfid: Some(f.gfid.into()),
            fd: f.fd.map(Into::into),
            after: f.after,
            bytes_max: f.bytes_max,
            attrs: f.attrs,
        }
    }
}

impl TryFrom<pb::Readdir> for fop::Readdir {
    type Error = Errno;

    fn try_from(m: pb::Readdir) -> Result<Self> {
        Ok(Self {
            gfid: inode(m.gfid)?,
            fd: maybe(m.fd)?,
            after: m.after,
            bytes_max: m.bytes_max.min(READDIR_BYTES_MAX),
            attrs: m.attrs,
        })
    }
}

impl From<fop::Getxattr> for pb::Getxattr {
    fn from(f: fop::Getxattr) -> Self {
        Self { gfid: Some(f.gfid.into()), name: f.name.to_bytes() }
    }
}

impl TryFrom<pb::Getxattr> for fop::Getxattr {
    type Error = Errno;

    fn try_from(m: pb::Getxattr) -> Result<Self> {
        Ok(Self { gfid: inode(m.gfid)?, name: xattr_name(m.name)? })
    }
}

impl From<fop::Setxattr> for pb::Setxattr {
    fn from(f: fop::Setxattr) -> Self {
        let how = match f.how {
            SetHow::Any => pb::SetHow::SetAny,
            SetHow::Create => pb::SetHow::SetCreate,
            SetHow::Replace => pb::SetHow::SetReplace,
        };
        Self {
            gfid: Some(f.gfid.into()),
            xattr: Some(f.xattr.into()),
            how: how.into(),
            kill_sgid: f.kill_sgid,
            when: Some(f.when.into()),
        }
    }
}

impl TryFrom<pb::Setxattr> for fop::Setxattr {
    type Error = Errno;

    fn try_from(m: pb::Setxattr) -> Result<Self> {
        let how = match pb::SetHow::try_from(m.how).map_err(|_| Errno::INVAL)? {
            pb::SetHow::SetNone => return Err(Errno::INVAL),
            pb::SetHow::SetAny => SetHow::Any,
            pb::SetHow::SetCreate => SetHow::Create,
            pb::SetHow::SetReplace => SetHow::Replace,
        };
        Ok(Self { gfid: inode(m.gfid)?, xattr: need(m.xattr)?, how, kill_sgid: m.kill_sgid, when: need(m.when)? })
    }
}

impl From<fop::Removexattr> for pb::Removexattr {
    fn from(f: fop::Removexattr) -> Self {
        Self { gfid: Some(f.gfid.into()), name: f.name.to_bytes(), when: Some(f.when.into()) }
    }
}

impl TryFrom<pb::Removexattr> for fop::Removexattr {
    type Error = Errno;

    fn try_from(m: pb::Removexattr) -> Result<Self> {
        Ok(Self { gfid: inode(m.gfid)?, name: xattr_name(m.name)?, when: need(m.when)? })
    }
}

impl From<fop::Lease> for pb::Lease {
    fn from(f: fop::Lease) -> Self {
        Self {
            gfids: f.gfids.into_iter().map(Into::into).collect(),
            mode: mode_to_wire(f.mode),
            wait: f.wait,
            reclaim: f.reclaim,
            attrs: f.attrs,
        }
    }
}

impl TryFrom<pb::Lease> for fop::Lease {
    type Error = Errno;

    fn try_from(m: pb::Lease) -> Result<Self> {
        if m.gfids.len() > LEASE_OBJECTS_MAX {
            return Err(Errno::INVAL);
        }
        Ok(Self {
            gfids: m.gfids.into_iter().map(|gfid| inode(Some(gfid))).collect::<Result<_>>()?,
            mode: mode_from_wire(m.mode)?,
            wait: m.wait,
            reclaim: m.reclaim,
            attrs: m.attrs,
        })
    }
}

impl TryFrom<pb::Unlease> for fop::Unlease {
    type Error = Errno;

    fn try_from(m: pb::Unlease) -> Result<Self> {
        Ok(Self { objects: settled(m.objects)?, keep_shared: m.keep_shared })
    }
}

impl From<fop::Lk> for pb::Lk {
    fn from(f: fop::Lk) -> Self {
        let (what, mode) = match f.what {
            LkWhat::Get(mode) => (pb::LkWhat::LkGet, Some(mode)),
            LkWhat::Set(mode, Claim::New) => (pb::LkWhat::LkSet, Some(mode)),
            LkWhat::Set(mode, Claim::Again) => (pb::LkWhat::LkSetAgain, Some(mode)),
            LkWhat::Set(mode, Claim::Vouched) => (pb::LkWhat::LkSetVouched, Some(mode)),
            LkWhat::SetWait(mode) => (pb::LkWhat::LkSetWait, Some(mode)),
            LkWhat::Await(mode) => (pb::LkWhat::LkAwait, Some(mode)),
            LkWhat::Unlock => (pb::LkWhat::LkUnlock, None),
        };
        let family = match f.owner.family {
            LockFamily::Posix => pb::LockFamily::FamilyPosix,
            LockFamily::Flock => pb::LockFamily::FamilyFlock,
        };
        Self {
            gfid: Some(f.gfid.into()),
            fd: f.fd.map(Into::into),
            family: family.into(),
            owner: f.owner.id,
            pid: f.pid,
            what: what.into(),
            mode: mode.map_or(0, lock_mode_to_wire),
            start: f.span.start,
            end: f.span.end,
        }
    }
}

impl TryFrom<pb::Lk> for fop::Lk {
    type Error = Errno;

    fn try_from(m: pb::Lk) -> Result<Self> {
        let what = match pb::LkWhat::try_from(m.what).map_err(|_| Errno::INVAL)? {
            pb::LkWhat::LkNone => return Err(Errno::INVAL),
            pb::LkWhat::LkGet => LkWhat::Get(lock_mode(m.mode)?),
            pb::LkWhat::LkSet => LkWhat::Set(lock_mode(m.mode)?, Claim::New),
            pb::LkWhat::LkSetAgain => LkWhat::Set(lock_mode(m.mode)?, Claim::Again),
            pb::LkWhat::LkSetVouched => LkWhat::Set(lock_mode(m.mode)?, Claim::Vouched),
            pb::LkWhat::LkSetWait => LkWhat::SetWait(lock_mode(m.mode)?),
            pb::LkWhat::LkAwait => LkWhat::Await(lock_mode(m.mode)?),
            pb::LkWhat::LkUnlock => LkWhat::Unlock,
        };
        let family = match pb::LockFamily::try_from(m.family).map_err(|_| Errno::INVAL)? {
            pb::LockFamily::FamilyNone => return Err(Errno::INVAL),
            pb::LockFamily::FamilyPosix => LockFamily::Posix,
            pb::LockFamily::FamilyFlock => LockFamily::Flock,
        };
        let owner = LockOwner { family, id: m.owner };
        Ok(Self { gfid: inode(m.gfid)?, fd: maybe(m.fd)?, owner, pid: m.pid, what, span: span(m.start, m.end)? })
    }
}
