//! Gfids, names, times, attributes, marks: what fops and replies are made of.

use bytes::Bytes;
use mortar_xlators::error::Errno;
use mortar_xlators::fop::{Birth, Settled};
use mortar_xlators::ranges::{LockMode, Span};
use mortar_xlators::types::{
    Counters, Epoch, Fd, Gfid, Iatt, Kind, Lacks, LeaseMode, Name, OpenFlags, Pending, RawLayout, Time,
    XATTR_VALUE_BYTES_MAX, Xattr, XattrName,
};

use crate::pb;

/// An errno is all that can be said of a message that makes no sense.
pub type Result<T> = std::result::Result<T, Errno>;

/// The most marks in one message: two for each copy of the largest set, with room.
const MARKS_MAX: usize = 64;

/// The most extended attributes that a new inode can have.
const XATTRS_MAX: usize = 1024;

/// Most permission bits.
const MODE_MAX: u32 = 0o7777;

/// A part that the message cannot do without.
pub(crate) fn need<M, T: TryFrom<M, Error = Errno>>(part: Option<M>) -> Result<T> {
    part.ok_or(Errno::INVAL)?.try_into()
}

/// A part that may be missing.
pub(crate) fn maybe<M, T: TryFrom<M, Error = Errno>>(part: Option<M>) -> Result<Option<T>> {
    part.map(T::try_from).transpose()
}

/// The identity of an inode that a fop names: there, and not null.
pub fn inode(gfid: Option<pb::Gfid>) -> Result<Gfid> {
    let gfid = need::<_, Gfid>(gfid)?;
    if gfid.is_null() { Err(Errno::INVAL) } else { Ok(gfid) }
}

/// An offset or a size that the kernel could have.
pub(crate) fn extent(offset: u64, length: u64) -> Result<u64> {
    let end = offset.checked_add(length).ok_or(Errno::FBIG)?;
    if end > i64::MAX.unsigned_abs() { Err(Errno::FBIG) } else { Ok(offset) }
}

/// Bytes that a file can have.
pub(crate) fn span(start: u64, end: u64) -> Result<Span> {
    Span::new(start, end).ok_or(Errno::INVAL)
}

pub(crate) fn lock_mode(mode: i32) -> Result<LockMode> {
    match pb::LockMode::try_from(mode).map_err(|_| Errno::INVAL)? {
        pb::LockMode::LockNone => Err(Errno::INVAL),
        pb::LockMode::LockRead => Ok(LockMode::Read),
        pb::LockMode::LockWrite => Ok(LockMode::Write),
    }
}

pub(crate) fn lock_mode_to_wire(mode: LockMode) -> i32 {
    match mode {
        LockMode::Read => pb::LockMode::LockRead.into(),
        LockMode::Write => pb::LockMode::LockWrite.into(),
    }
}

/// A payload within its bound.
pub(crate) fn at_most(bytes: Bytes, max: usize) -> Result<Bytes> {
    if bytes.len() > max { Err(Errno::INVAL) } else { Ok(bytes) }
}

/// Permission bits and nothing else.
pub(crate) fn mode(bits: u32) -> Result<u32> {
    if bits > MODE_MAX { Err(Errno::INVAL) } else { Ok(bits) }
}

/// A user or group: -1 means "leave it" to the kernel, and must not get that far.
pub(crate) fn owner(id: u32) -> Result<u32> {
    if id == u32::MAX { Err(Errno::INVAL) } else { Ok(id) }
}

pub(crate) fn open_flags(bits: u32) -> Result<OpenFlags> {
    OpenFlags::from_bits(bits).ok_or(Errno::INVAL)
}

pub(crate) fn layout(bytes: Bytes) -> Result<RawLayout> {
    <[u8; 16]>::try_from(&bytes[..]).map(RawLayout).map_err(|_| Errno::INVAL)
}

pub(crate) fn layout_to_wire(layout: RawLayout) -> Bytes {
    Bytes::copy_from_slice(&layout.0)
}

pub(crate) fn marks(marks: Vec<pb::Pending>) -> Result<Vec<Pending>> {
    if marks.len() > MARKS_MAX {
        return Err(Errno::INVAL);
    }
    marks.into_iter().map(Pending::try_from).collect()
}

pub(crate) fn all<M, T: From<M>>(items: Vec<M>) -> Vec<T> {
    items.into_iter().map(T::from).collect()
}

impl From<Gfid> for pb::Gfid {
    fn from(gfid: Gfid) -> Self {
        let number = u128::from_be_bytes(*gfid.as_bytes());
        #[allow(clippy::cast_possible_truncation)] // the low half is meant
        Self { high: (number >> 64) as u64, low: number as u64 }
    }
}

impl TryFrom<pb::Gfid> for Gfid {
    type Error = Errno;

    fn try_from(gfid: pb::Gfid) -> Result<Self> {
        let number = u128::from(gfid.high) << 64 | u128::from(gfid.low);
        Ok(Self::from_bytes(number.to_be_bytes()))
    }
}

impl From<Fd> for pb::Fd {
    fn from(fd: Fd) -> Self {
        Self { id: fd.id, gfid: Some(fd.gfid.into()) }
    }
}

impl TryFrom<pb::Fd> for Fd {
    type Error = Errno;

    fn try_from(fd: pb::Fd) -> Result<Self> {
        Ok(Self { id: fd.id, gfid: inode(fd.gfid)? })
    }
}

impl From<Time> for pb::Time {
    fn from(time: Time) -> Self {
        Self { sec: time.sec, nsec: time.nsec }
    }
}

impl TryFrom<pb::Time> for Time {
    type Error = Errno;

    fn try_from(time: pb::Time) -> Result<Self> {
        if time.nsec < 1_000_000_000 { Ok(Self { sec: time.sec, nsec: time.nsec }) } else { Err(Errno::INVAL) }
    }
}

/// A name where it enters.
pub(crate) fn name(bytes: Bytes) -> Result<Name> {
    Name::new(bytes)
}

pub(crate) fn xattr_name(bytes: Bytes) -> Result<XattrName> {
    XattrName::new(bytes)
}

pub(crate) fn kind_to_wire(kind: Kind) -> i32 {
    let kind = match kind {
        Kind::File => pb::Kind::File,
        Kind::Dir => pb::Kind::Dir,
        Kind::Symlink => pb::Kind::Symlink,
        Kind::Fifo => pb::Kind::Fifo,
        Kind::Socket => pb::Kind::Socket,
        Kind::Char => pb::Kind::Char,
        Kind::Block => pb::Kind::Block,
    };
    kind.into()
}

pub(crate) fn kind(number: i32) -> Result<Kind> {
    match pb::Kind::try_from(number).map_err(|_| Errno::INVAL)? {
        pb::Kind::None => Err(Errno::INVAL),
        pb::Kind::File => Ok(Kind::File),
        pb::Kind::Dir => Ok(Kind::Dir),
        pb::Kind::Symlink => Ok(Kind::Symlink),
        pb::Kind::Fifo => Ok(Kind::Fifo),
        pb::Kind::Socket => Ok(Kind::Socket),
        pb::Kind::Char => Ok(Kind::Char),
        pb::Kind::Block => Ok(Kind::Block),
    }
}

/// A lease mode as a number.
pub fn mode_to_wire(mode: LeaseMode) -> i32 {
    match mode {
        LeaseMode::Shared => pb::LeaseMode::LeaseShared.into(),
        LeaseMode::Exclusive => pb::LeaseMode::LeaseExclusive.into(),
    }
}

/// A lease mode from its number.
pub fn mode_from_wire(number: i32) -> Result<LeaseMode> {
    match pb::LeaseMode::try_from(number).map_err(|_| Errno::INVAL)? {
        pb::LeaseMode::LeaseNone => Err(Errno::INVAL),
        pb::LeaseMode::LeaseShared => Ok(LeaseMode::Shared),
        pb::LeaseMode::LeaseExclusive => Ok(LeaseMode::Exclusive),
    }
}

impl From<Iatt> for pb::Iatt {
    fn from(iatt: Iatt) -> Self {
        Self {
            gfid: Some(iatt.gfid.into()),
            kind: kind_to_wire(iatt.kind),
            mode: iatt.mode,
            nlink: iatt.nlink,
            uid: iatt.uid,
            gid: iatt.gid,
            rdev: iatt.rdev,
            size: iatt.size,
            blocks: iatt.blocks,
            atime: Some(iatt.atime.into()),
            mtime: Some(iatt.mtime.into()),
            ctime: Some(iatt.ctime.into()),
            lacks: iatt.lacks.bits(),
        }
    }
}

impl TryFrom<pb::Iatt> for Iatt {
    type Error = Errno;

    fn try_from(iatt: pb::Iatt) -> Result<Self> {
        Ok(Self {
            gfid: need(iatt.gfid)?,
            kind: kind(iatt.kind)?,
            mode: mode(iatt.mode)?,
            nlink: iatt.nlink,
            uid: iatt.uid,
            gid: iatt.gid,
            rdev: iatt.rdev,
            size: iatt.size,
            blocks: iatt.blocks,
            atime: need(iatt.atime)?,
            mtime: need(iatt.mtime)?,
            ctime: need(iatt.ctime)?,
            lacks: Lacks::from_bits_truncate(iatt.lacks),
        })
    }
}

impl From<Pending> for pb::Pending {
    fn from(mark: Pending) -> Self {
        let Counters([data, metadata, entry]) = mark.counters;
        Self { key: mark.key.to_bytes(), data, metadata, entry }
    }
}

impl TryFrom<pb::Pending> for Pending {
    type Error = Errno;

    fn try_from(mark: pb::Pending) -> Result<Self> {
        let counters = Counters([mark.data, mark.metadata, mark.entry]);
        Ok(Self { key: xattr_name(mark.key)?, counters })
    }
}

impl From<Xattr> for pb::Xattr {
    fn from(xattr: Xattr) -> Self {
        Self { name: xattr.name.to_bytes(), value: xattr.value }
    }
}

impl TryFrom<pb::Xattr> for Xattr {
    type Error = Errno;

    fn try_from(xattr: pb::Xattr) -> Result<Self> {
        Ok(Self { name: xattr_name(xattr.name)?, value: at_most(xattr.value, XATTR_VALUE_BYTES_MAX)? })
    }
}

impl From<Settled> for pb::Settled {
    fn from(settled: Settled) -> Self {
        Self { gfid: Some(settled.gfid.into()), epoch: settled.epoch.0, changes: settled.changes }
    }
}

impl TryFrom<pb::Settled> for Settled {
    type Error = Errno;

    fn try_from(settled: pb::Settled) -> Result<Self> {
        Ok(Self { gfid: inode(settled.gfid)?, epoch: Epoch(settled.epoch), changes: settled.changes })
    }
}

impl From<Birth> for pb::Birth {
    fn from(birth: Birth) -> Self {
        Self {
            gfid: Some(birth.gfid.into()),
            mode: birth.mode,
            umask: birth.umask,
            uid: birth.uid,
            gid: birth.gid,
            when: Some(birth.when.into()),
            atime: birth.times.map(|times| times.0.into()),
            mtime: birth.times.map(|times| times.1.into()),
            xattrs: all(birth.xattrs),
            pending: all(birth.pending),
        }
    }
}

impl TryFrom<pb::Birth> for Birth {
    type Error = Errno;

    fn try_from(birth: pb::Birth) -> Result<Self> {
        if birth.xattrs.len() > XATTRS_MAX {
            return Err(Errno::INVAL);
        }
        let times = match (birth.atime, birth.mtime) {
            (Some(atime), Some(mtime)) => Some((atime.try_into()?, mtime.try_into()?)),
            (None, None) => None,
            (Some(_), None) | (None, Some(_)) => return Err(Errno::INVAL),
        };
        Ok(Self {
            gfid: inode(birth.gfid)?,
            mode: mode(birth.mode)?,
            umask: mode(birth.umask)?,
            uid: owner(birth.uid)?,
            gid: owner(birth.gid)?,
            when: need(birth.when)?,
            times,
            xattrs: birth.xattrs.into_iter().map(Xattr::try_from).collect::<Result<_>>()?,
            pending: marks(birth.pending)?,
        })
    }
}

/// Boxed as the message has it.
pub(crate) fn birth(birth: Option<Box<pb::Birth>>) -> Result<Box<Birth>> {
    Ok(Box::new(Birth::try_from(*birth.ok_or(Errno::INVAL)?)?))
}

/// Boxed as the fop has it.
pub(crate) fn birth_to_wire(birth: Birth) -> Option<Box<pb::Birth>> {
    Some(Box::new(birth.into()))
}
