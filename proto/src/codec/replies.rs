//! A message per answer, in table order.
//!
//! An answer must belong to the fop that was asked: a brick that mixes them up is a broken peer, not a reply.

use bytes::Bytes;
use mortar_xlators::error::{Errno, FopError};
use mortar_xlators::fop::{FopKind, Reply};
use mortar_xlators::ranges::Locked;
use mortar_xlators::reply::{self, Lockable};
use mortar_xlators::types::{AttrMask, Cover, Epoch, XattrName};

use super::nouns::{
    Result, all, kind, kind_to_wire, layout, layout_to_wire, lock_mode, lock_mode_to_wire, marks, maybe, name, need,
    span,
};
use crate::pb;
use crate::pb::response::Answer;
use crate::status::{errno_from_wire, errno_to_wire, error_from_wire, error_to_wire};

/// The message of an answer.
pub fn answer_to_wire(answer: std::result::Result<Reply, FopError>) -> Answer {
    match answer {
        Ok(reply) => reply_to_wire(reply),
        Err(error) => error_to_wire(error),
    }
}

/// The answer of a message to a fop of this kind. The outer error: the message is none.
pub fn answer_from_wire(kind: FopKind, answer: Answer) -> Result<std::result::Result<Reply, FopError>> {
    match error_from_wire(&answer) {
        Some(error) => Ok(Err(error)),
        None => reply_from_wire(kind, answer).map(Ok),
    }
}

#[deny(clippy::wildcard_enum_match_arm)]
fn reply_to_wire(reply: Reply) -> Answer {
    match reply {
        Reply::Lookup(r) => Answer::Lookup(r.into()),
        Reply::Getattr(r) => Answer::Getattr(r.into()),
        Reply::Create(r) => Answer::Create(r.into()),
        Reply::Mknod(r) => Answer::Mknod(r.into()),
        Reply::Mkdir(r) => Answer::Mkdir(r.into()),
        Reply::Symlink(r) => Answer::Symlink(r.into()),
        Reply::Link(r) => Answer::Link(r.into()),
        Reply::Unlink(r) => Answer::Unlink(r.into()),
        Reply::Rmdir(r) => Answer::Rmdir(r.into()),
        Reply::Rename(r) => Answer::Rename(Box::new(r.into())),
        Reply::Readlink(r) => Answer::Readlink(pb::LinkTarget { target: r.target }),
        Reply::Setattr(r) => Answer::Setattr(r.into()),
        Reply::Truncate(r) => Answer::Truncate(r.into()),
        Reply::Fallocate(r) => Answer::Fallocate(r.into()),
        Reply::Open(reply::Done) => Answer::Open(pb::Done {}),
        Reply::Release(reply::Done) => Answer::Release(pb::Done {}),
        Reply::Read(r) => Answer::Read(pb::Data { data: r.data }),
        Reply::Write(r) => Answer::Write(r.into()),
        Reply::CopyRange(r) => Answer::CopyRange(r.into()),
        Reply::Seek(r) => Answer::Seek(pb::Sought { offset: r.offset }),
        Reply::Flush(reply::Done) => Answer::Flush(pb::Done {}),
        Reply::Fsync(reply::Done) => Answer::Fsync(pb::Done {}),
        Reply::Readdir(r) => Answer::Readdir(pb::Entries { entries: all(r.entries), end: r.end }),
        Reply::Getxattr(r) => Answer::Getxattr(pb::Value { value: r.value }),
        Reply::Setxattr(r) => Answer::Setxattr(r.into()),
        Reply::Removexattr(r) => Answer::Removexattr(r.into()),
        Reply::Listxattr(r) => Answer::Listxattr(r.into()),
        Reply::Statfs(r) => Answer::Statfs(r.into()),
        Reply::Lease(r) => Answer::Lease(pb::Granted { grants: all(r.grants) }),
        Reply::Unlease(reply::Done) => Answer::Unlease(pb::Done {}),
        Reply::Settle(reply::Done) => Answer::Settle(pb::Done {}),
        Reply::Mark(r) => Answer::Mark(pb::Marked { marks: all(r.marks) }),
        Reply::Backlog(r) => Answer::Backlog(r.into()),
        Reply::Lk(r) => Answer::Lk(r.into()),
    }
}

fn reply_from_wire(kind: FopKind, answer: Answer) -> Result<Reply> {
    Ok(match (kind, answer) {
        (FopKind::Lookup, Answer::Lookup(m)) => Reply::Lookup(m.try_into()?),
        (FopKind::Getattr, Answer::Getattr(m)) => Reply::Getattr(m.try_into()?),
        (FopKind::Create, Answer::Create(m)) => Reply::Create(m.try_into()?),
        (FopKind::Mknod, Answer::Mknod(m)) => Reply::Mknod(m.try_into()?),
        (FopKind::Mkdir, Answer::Mkdir(m)) => Reply::Mkdir(m.try_into()?),
        (FopKind::Symlink, Answer::Symlink(m)) => Reply::Symlink(m.try_into()?),
        (FopKind::Link, Answer::Link(m)) => Reply::Link(m.try_into()?),
        (FopKind::Unlink, Answer::Unlink(m)) => Reply::Unlink(m.try_into()?),
        (FopKind::Rmdir, Answer::Rmdir(m)) => Reply::Rmdir(m.try_into()?),
        (FopKind::Rename, Answer::Rename(m)) => Reply::Rename((*m).try_into()?),
        (FopKind::Readlink, Answer::Readlink(m)) => Reply::Readlink(reply::Target { target: m.target }),
        (FopKind::Setattr, Answer::Setattr(m)) => Reply::Setattr(m.try_into()?),
        (FopKind::Truncate, Answer::Truncate(m)) => Reply::Truncate(m.try_into()?),
        (FopKind::Fallocate, Answer::Fallocate(m)) => Reply::Fallocate(m.try_into()?),
        (FopKind::Open, Answer::Open(pb::Done {})) => Reply::Open(reply::Done),
        (FopKind::Release, Answer::Release(pb::Done {})) => Reply::Release(reply::Done),
        (FopKind::Read, Answer::Read(m)) => Reply::Read(reply::Data { data: m.data }),
        (FopKind::Write, Answer::Write(m)) => Reply::Write(m.try_into()?),
        (FopKind::CopyRange, Answer::CopyRange(m)) => Reply::CopyRange(m.try_into()?),
        (FopKind::Seek, Answer::Seek(m)) => Reply::Seek(reply::Sought { offset: m.offset }),
        (FopKind::Flush, Answer::Flush(pb::Done {})) => Reply::Flush(reply::Done),
        (FopKind::Fsync, Answer::Fsync(pb::Done {})) => Reply::Fsync(reply::Done),
        (FopKind::Readdir, Answer::Readdir(m)) => Reply::Readdir(m.try_into()?),
        (FopKind::Getxattr, Answer::Getxattr(m)) => Reply::Getxattr(reply::Value { value: m.value }),
        (FopKind::Setxattr, Answer::Setxattr(m)) => Reply::Setxattr(m.try_into()?),
        (FopKind::Removexattr, Answer::Removexattr(m)) => Reply::Removexattr(m.try_into()?),
        (FopKind::Listxattr, Answer::Listxattr(m)) => Reply::Listxattr(m.try_into()?),
        (FopKind::Statfs, Answer::Statfs(m)) => Reply::Statfs(m.into()),
        (FopKind::Lease, Answer::Lease(m)) => Reply::Lease(m.try_into()?),
        (FopKind::Unlease, Answer::Unlease(pb::Done {})) => Reply::Unlease(reply::Done),
        (FopKind::Settle, Answer::Settle(pb::Done {})) => Reply::Settle(reply::Done),
        (FopKind::Mark, Answer::Mark(m)) => Reply::Mark(reply::Marked { marks: marks(m.marks)? }),
        (FopKind::Backlog, Answer::Backlog(m)) => Reply::Backlog(m.into()),
        (FopKind::Lk, Answer::Lk(m)) => Reply::Lk(m.try_into()?),
        _ => return Err(Errno::PROTO),
    })
}

fn cover(bits: u32) -> Cover {
    Cover::from_bits_truncate(bits)
}

impl From<reply::Looked> for pb::Looked {
    fn from(r: reply::Looked) -> Self {
        Self { found: found_to_wire(r.found), cover: r.cover.bits() }
    }
}

impl TryFrom<pb::Looked> for reply::Looked {
    type Error = Errno;

    fn try_from(m: pb::Looked) -> Result<Self> {
        Ok(Self { found: found(m.found)?, cover: cover(m.cover) })
    }
}

fn found(found: Option<Box<pb::Found>>) -> Result<Option<Box<reply::Found>>> {
    found.map(|found| Ok(Box::new((*found).try_into()?))).transpose()
}

fn found_to_wire(found: Option<Box<reply::Found>>) -> Option<Box<pb::Found>> {
    found.map(|found| Box::new((*found).into()))
}

impl From<reply::Found> for pb::Found {
    fn from(r: reply::Found) -> Self {
        Self {
            iatt: Some(r.iatt.into()),
            exact: r.exact.bits(),
            cover: r.cover.bits(),
            layout: r.layout.map(layout_to_wire),
            linkto: r.linkto,
            marks: all(r.marks),
        }
    }
}

impl TryFrom<pb::Found> for reply::Found {
    type Error = Errno;

    fn try_from(m: pb::Found) -> Result<Self> {
        Ok(Self {
            iatt: need(m.iatt)?,
            exact: AttrMask::from_bits_truncate(m.exact),
            cover: cover(m.cover),
            layout: m.layout.map(layout).transpose()?,
            linkto: m.linkto,
            marks: marks(m.marks)?,
        })
    }
}

impl From<reply::Made> for pb::Made {
    fn from(r: reply::Made) -> Self {
        Self {
            iatt: Some(r.iatt.into()),
            parent: Some(r.parent.into()),
            cover: r.cover.bits(),
            lease: r.lease.map(|epoch| epoch.0),
        }
    }
}

impl TryFrom<pb::Made> for reply::Made {
    type Error = Errno;

    fn try_from(m: pb::Made) -> Result<Self> {
        let (iatt, parent) = (need(m.iatt)?, need(m.parent)?);
        Ok(Self { iatt, parent, cover: cover(m.cover), lease: m.lease.map(Epoch) })
    }
}

impl From<reply::Removed> for pb::Removed {
    fn from(r: reply::Removed) -> Self {
        Self { iatt: Some(r.iatt.into()), parent: Some(r.parent.into()) }
    }
}

impl TryFrom<pb::Removed> for reply::Removed {
    type Error = Errno;

    fn try_from(m: pb::Removed) -> Result<Self> {
        Ok(Self { iatt: need(m.iatt)?, parent: need(m.parent)? })
    }
}

impl From<reply::Renamed> for pb::Renamed {
    fn from(r: reply::Renamed) -> Self {
        Self {
            iatt: Some(r.iatt.into()),
            replaced: r.replaced.map(Into::into),
            from_parent: Some(r.from_parent.into()),
            to_parent: Some(r.to_parent.into()),
        }
    }
}

impl TryFrom<pb::Renamed> for reply::Renamed {
    type Error = Errno;

    fn try_from(m: pb::Renamed) -> Result<Self> {
        Ok(Self {
            iatt: need(m.iatt)?,
            replaced: maybe(m.replaced)?,
            from_parent: need(m.from_parent)?,
            to_parent: need(m.to_parent)?,
        })
    }
}

impl From<reply::Changed> for pb::Changed {
    fn from(r: reply::Changed) -> Self {
        Self { iatt: Some(r.iatt.into()), cover: r.cover.bits() }
    }
}

impl TryFrom<pb::Changed> for reply::Changed {
    type Error = Errno;

    fn try_from(m: pb::Changed) -> Result<Self> {
        Ok(Self { iatt: need(m.iatt)?, cover: cover(m.cover) })
    }
}

impl From<reply::Written> for pb::Written {
    fn from(r: reply::Written) -> Self {
        Self { offset: r.offset, bytes: r.bytes, iatt: Some(r.iatt.into()), cover: r.cover.bits() }
    }
}

impl TryFrom<pb::Written> for reply::Written {
    type Error = Errno;

    fn try_from(m: pb::Written) -> Result<Self> {
        Ok(Self { offset: m.offset, bytes: m.bytes, iatt: need(m.iatt)?, cover: cover(m.cover) })
    }
}

impl From<reply::DirEntry> for pb::DirEntry {
    fn from(entry: reply::DirEntry) -> Self {
        Self {
            name: entry.name.to_bytes(),
            kind: kind_to_wire(entry.kind),
            gfid: Some(entry.gfid.into()),
            cookie: entry.cookie,
            found: found_to_wire(entry.found),
        }
    }
}

impl TryFrom<pb::DirEntry> for reply::DirEntry {
    type Error = Errno;

    fn try_from(entry: pb::DirEntry) -> Result<Self> {
        if entry.cookie == 0 {
            return Err(Errno::PROTO);
        }
        Ok(Self {
            name: name(entry.name)?,
            kind: kind(entry.kind)?,
            gfid: need(entry.gfid)?,
            cookie: entry.cookie,
            found: found(entry.found)?,
        })
    }
}

impl TryFrom<pb::Entries> for reply::Entries {
    type Error = Errno;

    fn try_from(m: pb::Entries) -> Result<Self> {
        let entries = m.entries.into_iter().map(reply::DirEntry::try_from).collect::<Result<_>>()?;
        Ok(Self { entries, end: m.end })
    }
}

impl From<reply::XattrNames> for pb::XattrNames {
    fn from(r: reply::XattrNames) -> Self {
        Self { names: r.names.iter().map(XattrName::to_bytes).collect() }
    }
}

impl TryFrom<pb::XattrNames> for reply::XattrNames {
    type Error = Errno;

    fn try_from(m: pb::XattrNames) -> Result<Self> {
        let names = m.names.into_iter().map(|name: Bytes| XattrName::new(name)).collect::<Result<_>>()?;
        Ok(Self { names })
    }
}

impl From<reply::Space> for pb::Space {
    fn from(r: reply::Space) -> Self {
        Self {
            block_bytes: r.block_bytes,
            blocks: r.blocks,
            blocks_free: r.blocks_free,
            blocks_available: r.blocks_available,
            files: r.files,
            files_free: r.files_free,
        }
    }
}

impl From<pb::Space> for reply::Space {
    fn from(m: pb::Space) -> Self {
        Self {
            block_bytes: m.block_bytes,
            blocks: m.blocks,
            blocks_free: m.blocks_free,
            blocks_available: m.blocks_available,
            files: m.files,
            files_free: m.files_free,
        }
    }
}

impl From<reply::Grant> for pb::Grant {
    fn from(grant: reply::Grant) -> Self {
        let outcome = match grant.epoch {
            Ok(epoch) => pb::grant::Outcome::Epoch(epoch.0),
            Err(errno) => pb::grant::Outcome::Errno(errno_to_wire(errno)),
        };
        Self {
            gfid: Some(grant.gfid.into()),
            outcome: Some(outcome),
            unsettled: grant.unsettled,
            marks: all(grant.marks),
            found: found_to_wire(grant.found),
            nameless: grant.nameless,
        }
    }
}

impl TryFrom<pb::Grant> for reply::Grant {
    type Error = Errno;

    fn try_from(grant: pb::Grant) -> Result<Self> {
        let epoch = match grant.outcome.ok_or(Errno::PROTO)? {
            pb::grant::Outcome::Epoch(epoch) => Ok(Epoch(epoch)),
            pb::grant::Outcome::Errno(number) => Err(errno_from_wire(number)),
        };
        Ok(Self {
            gfid: need(grant.gfid)?,
            epoch,
            unsettled: grant.unsettled,
            nameless: grant.nameless,
            marks: marks(grant.marks)?,
            found: found(grant.found)?,
        })
    }
}

impl TryFrom<pb::Granted> for reply::Granted {
    type Error = Errno;

    fn try_from(m: pb::Granted) -> Result<Self> {
        let grants = m.grants.into_iter().map(reply::Grant::try_from).collect::<Result<_>>()?;
        Ok(Self { grants })
    }
}

impl From<reply::Waiting> for pb::Waiting {
    fn from(r: reply::Waiting) -> Self {
        Self { pending: r.pending, dirty: r.dirty }
    }
}

impl From<pb::Waiting> for reply::Waiting {
    fn from(m: pb::Waiting) -> Self {
        Self { pending: m.pending, dirty: m.dirty }
    }
}

impl From<Lockable> for pb::Lockable {
    fn from(lockable: Lockable) -> Self {
        use pb::lockable::Outcome;
        let outcome = match lockable {
            Lockable::Free => Outcome::Free(pb::Free {}),
            Lockable::Held { by: Locked { span, mode }, pid } => {
                let mode = lock_mode_to_wire(mode);
                Outcome::Held(pb::HeldLock { mode, start: span.start, end: span.end, pid })
            }
            Lockable::Grace => Outcome::Grace(pb::Grace {}),
            Lockable::Late => Outcome::Late(pb::Late {}),
        };
        Self { outcome: Some(outcome) }
    }
}

impl TryFrom<pb::Lockable> for Lockable {
    type Error = Errno;

    fn try_from(m: pb::Lockable) -> Result<Self> {
        use pb::lockable::Outcome;
        Ok(match m.outcome.ok_or(Errno::PROTO)? {
            Outcome::Free(pb::Free {}) => Self::Free,
            Outcome::Held(held) => {
                let by = Locked { span: span(held.start, held.end)?, mode: lock_mode(held.mode)? };
                Self::Held { by, pid: held.pid }
            }
            Outcome::Grace(pb::Grace {}) => Self::Grace,
            Outcome::Late(pb::Late {}) => Self::Late,
        })
    }
}
