//! From the bytes of `/dev/fuse` to a [`Message`].
//!
//! Sizes are checked although the sender is the kernel: what does not fit becomes
//! [`Message::Malformed`], which is answered with EIO, and never a panic.

use bytes::Bytes;
use zerocopy::FromBytes;

use super::abi::{self, opcode};
use super::buffer::Buffer;
use super::request::{CopyWidth, Header, LockKind, LockWait, Message, Op, Request, SuidSgid, SyncWhat};

/// What the decoder must know of what was agreed on at the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SetxattrForm {
    /// Two fields.
    Short,
    /// Four fields: `SETXATTR_EXT` was agreed on.
    Extended,
}

/// Takes one message apart. The payload of a large write keeps the buffer and is not copied.
pub(crate) fn decode(buffer: Buffer, form: SetxattrForm) -> Message {
    let Ok((raw, _)) = abi::InHeader::read_from_prefix(buffer.filled()) else {
        return Message::Malformed { unique: 0 };
    };
    if raw.len as usize != buffer.filled().len() {
        return Message::Malformed { unique: raw.unique };
    }
    if raw.opcode == opcode::WRITE {
        return write(&raw, buffer).unwrap_or(Message::Malformed { unique: raw.unique });
    }
    let all = buffer.filled();
    let extensions = usize::from(raw.total_extlen) * 8;
    let Some(end) = all.len().checked_sub(extensions).filter(|end| *end >= size_of::<abi::InHeader>()) else {
        return Message::Malformed { unique: raw.unique };
    };
    let mut fields = Fields(&all[size_of::<abi::InHeader>()..end]);
    session_message(&raw, &mut fields).unwrap_or_else(|| {
        let header = header(&raw, groups(&all[end..]));
        match op(raw.opcode, &mut fields, form) {
            Some(Decoded::Op(op)) => Message::Request(Request { header, op }),
            Some(Decoded::Unknown) => Message::Unknown { unique: raw.unique },
            None => Message::Malformed { unique: raw.unique },
        }
    })
}

fn header(raw: &abi::InHeader, groups: Vec<u32>) -> Header {
    Header { unique: raw.unique, nodeid: raw.nodeid, uid: raw.uid, gid: raw.gid, pid: raw.pid, groups }
}

/// The fields of a request, taken from the front.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take<T: FromBytes>(&mut self) -> Option<T> {
        let (value, rest) = T::read_from_prefix(self.0).ok()?;
        self.0 = rest;
        Some(value)
    }

    /// A name up to its NUL.
    fn name(&mut self) -> Option<Vec<u8>> {
        let end = self.0.iter().position(|byte| *byte == 0)?;
        let (name, rest) = self.0.split_at(end);
        self.0 = &rest[1..];
        Some(name.to_vec())
    }

    fn bytes(&mut self, count: u32) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(count as usize)?;
        self.0 = rest;
        Some(bytes)
    }
}

/// The supplementary groups among the extensions at the end of a request.
fn groups(mut extensions: &[u8]) -> Vec<u32> {
    while let Ok((head, rest)) = abi::ExtHeader::read_from_prefix(extensions) {
        let size = head.size as usize;
        if size < size_of::<abi::ExtHeader>() || size > extensions.len() {
            break;
        }
        if head.kind == abi::EXT_GROUPS {
            let mut fields = Fields(&rest[..size - size_of::<abi::ExtHeader>()]);
            let count: u32 = fields.take().unwrap_or(0);
            return (0..count).map_while(|_| fields.take::<u32>()).collect();
        }
        extensions = extensions.get(size.next_multiple_of(8)..).unwrap_or(&[]);
    }
    Vec::new()
}

/// What concerns the session itself; `None` if it is for the handler.
fn session_message(raw: &abi::InHeader, fields: &mut Fields<'_>) -> Option<Message> {
    let unique = raw.unique;
    let message = match raw.opcode {
        opcode::FORGET => {
            fields.take::<abi::ForgetIn>().map(|forget| Message::Forget(vec![(raw.nodeid, forget.nlookup)]))
        }
        opcode::BATCH_FORGET => fields.take::<abi::BatchForgetIn>().map(|batch| {
            let one = |_| fields.take::<abi::ForgetOne>().map(|one| (one.nodeid, one.nlookup));
            Message::Forget((0..batch.count).map_while(one).collect())
        }),
        opcode::INTERRUPT => fields.take::<abi::InterruptIn>().map(|of| Message::Interrupt { unique, of: of.unique }),
        opcode::DESTROY => Some(Message::Destroy { unique }),
        opcode::INIT => fields.take::<abi::InitIn16>().map(|init| {
            let more = fields.take::<u32>().unwrap_or(0);
            let flags = u64::from(init.flags) | u64::from(more) << 32;
            Message::Init { unique, major: init.major, minor: init.minor, max_readahead: init.max_readahead, flags }
        }),
        _ => return None,
    };
    Some(message.unwrap_or(Message::Malformed { unique }))
}

enum Decoded {
    Op(Op),
    Unknown,
}

/// What the handler serves; `None` if it is malformed.
fn op(code: u32, fields: &mut Fields<'_>, form: SetxattrForm) -> Option<Decoded> {
    let op = match code {
        opcode::LOOKUP..=opcode::LINK | opcode::CREATE | opcode::RENAME2 | opcode::ACCESS => entry_op(code, fields)?,
        opcode::SETXATTR..=opcode::REMOVEXATTR => xattr_op(code, fields, form)?,
        opcode::GETLK | opcode::SETLK | opcode::SETLKW => lock_op(code, fields)?,
        opcode::OPENDIR..=opcode::FSYNCDIR | opcode::READDIRPLUS => dir_op(code, fields)?,
        opcode::STATFS => Op::Statfs,
        opcode::SYNCFS => Op::Syncfs,
        opcode::OPEN | opcode::READ | opcode::RELEASE | opcode::FLUSH | opcode::FSYNC => file_op(code, fields)?,
        opcode::FALLOCATE | opcode::LSEEK | opcode::COPY_FILE_RANGE | opcode::COPY_FILE_RANGE_64 => {
            range_op(code, fields)?
        }
        _ => return Some(Decoded::Unknown),
    };
    Some(Decoded::Op(op))
}

fn suid_sgid(flags: u32, bit: u32) -> SuidSgid {
    if flags & bit == 0 { SuidSgid::Keep } else { SuidSgid::Kill }
}

fn entry_op(code: u32, fields: &mut Fields<'_>) -> Option<Op> {
    Some(match code {
        opcode::LOOKUP => Op::Lookup { name: fields.name()? },
        opcode::GETATTR => {
            let get: abi::GetattrIn = fields.take()?;
            Op::Getattr { fh: (get.getattr_flags & abi::GETATTR_FH != 0).then_some(get.fh) }
        }
        opcode::SETATTR => Op::Setattr(Box::new(fields.take()?)),
        opcode::READLINK => Op::Readlink,
        opcode::SYMLINK => Op::Symlink { name: fields.name()?, target: fields.name()? },
        opcode::MKNOD => {
            let make: abi::MknodIn = fields.take()?;
            Op::Mknod { name: fields.name()?, mode: make.mode, rdev: make.rdev, umask: make.umask }
        }
        opcode::MKDIR => {
            let make: abi::MkdirIn = fields.take()?;
            Op::Mkdir { name: fields.name()?, mode: make.mode, umask: make.umask }
        }
        opcode::UNLINK => Op::Unlink { name: fields.name()? },
        opcode::RMDIR => Op::Rmdir { name: fields.name()? },
        opcode::RENAME => {
            let to: abi::RenameIn = fields.take()?;
            Op::Rename { new_parent: to.newdir, name: fields.name()?, new_name: fields.name()?, flags: 0 }
        }
        opcode::RENAME2 => {
            let to: abi::Rename2In = fields.take()?;
            Op::Rename { new_parent: to.newdir, name: fields.name()?, new_name: fields.name()?, flags: to.flags }
        }
        opcode::LINK => {
            let link: abi::LinkIn = fields.take()?;
            Op::Link { nodeid: link.oldnodeid, name: fields.name()? }
        }
        opcode::ACCESS => Op::Access { mask: fields.take::<abi::AccessIn>()?.mask },
        opcode::CREATE => {
            let create: abi::CreateIn = fields.take()?;
            Op::Create {
                name: fields.name()?,
                flags: create.flags,
                mode: create.mode,
                umask: create.umask,
                suid_sgid: suid_sgid(create.open_flags, abi::OPEN_KILL_SUIDGID),
            }
        }
        _ => return None,
    })
}

fn sync_what(flags: u32) -> SyncWhat {
    if flags & abi::FSYNC_FDATASYNC == 0 { SyncWhat::All } else { SyncWhat::Data }
}

fn file_op(code: u32, fields: &mut Fields<'_>) -> Option<Op> {
    Some(match code {
        opcode::OPEN => {
            let open: abi::OpenIn = fields.take()?;
            Op::Open { flags: open.flags, suid_sgid: suid_sgid(open.open_flags, abi::OPEN_KILL_SUIDGID) }
        }
        opcode::READ => {
            let read: abi::ReadIn = fields.take()?;
            let lock_owner = (read.read_flags & abi::READ_LOCKOWNER != 0).then_some(read.lock_owner);
            Op::Read { fh: read.fh, offset: read.offset, size: read.size, flags: read.flags, lock_owner }
        }
        opcode::FLUSH => {
            let flush: abi::FlushIn = fields.take()?;
            Op::Flush { fh: flush.fh, lock_owner: flush.lock_owner }
        }
        opcode::RELEASE => {
            let release: abi::ReleaseIn = fields.take()?;
            let unlock = release.release_flags & abi::RELEASE_FLOCK_UNLOCK != 0;
            Op::Release { fh: release.fh, flags: release.flags, flock_owner: unlock.then_some(release.lock_owner) }
        }
        opcode::FSYNC => {
            let fsync: abi::FsyncIn = fields.take()?;
            Op::Fsync { fh: fsync.fh, what: sync_what(fsync.fsync_flags) }
        }
        _ => return None,
    })
}

fn dir_op(code: u32, fields: &mut Fields<'_>) -> Option<Op> {
    Some(match code {
        opcode::OPENDIR => Op::Opendir { flags: fields.take::<abi::OpenIn>()?.flags },
        opcode::READDIR | opcode::READDIRPLUS => {
            let abi::ReadIn { fh, offset, size, .. } = fields.take()?;
            if code == opcode::READDIR {
                Op::Readdir { fh, offset, size }
            } else {
                Op::Readdirplus { fh, offset, size }
            }
        }
        opcode::RELEASEDIR => Op::Releasedir { fh: fields.take::<abi::ReleaseIn>()?.fh },
        opcode::FSYNCDIR => {
            let fsync: abi::FsyncIn = fields.take()?;
            Op::Fsyncdir { fh: fsync.fh, what: sync_what(fsync.fsync_flags) }
        }
        _ => return None,
    })
}

fn xattr_op(code: u32, fields: &mut Fields<'_>, form: SetxattrForm) -> Option<Op> {
    Some(match code {
        opcode::SETXATTR => {
            let set = match form {
                SetxattrForm::Extended => fields.take::<abi::SetxattrIn>()?,
                SetxattrForm::Short => {
                    let abi::SetxattrIn8 { size, flags } = fields.take()?;
                    abi::SetxattrIn { size, flags, ..Default::default() }
                }
            };
            Op::Setxattr {
                name: fields.name()?,
                value: Bytes::copy_from_slice(fields.bytes(set.size)?),
                flags: set.flags,
                acl_kills_sgid: suid_sgid(set.setxattr_flags, abi::SETXATTR_ACL_KILL_SGID),
            }
        }
        opcode::GETXATTR => {
            let get: abi::GetxattrIn = fields.take()?;
            Op::Getxattr { size: get.size, name: fields.name()? }
        }
        opcode::LISTXATTR => Op::Listxattr { size: fields.take::<abi::GetxattrIn>()?.size },
        opcode::REMOVEXATTR => Op::Removexattr { name: fields.name()? },
        _ => return None,
    })
}

fn lock_op(code: u32, fields: &mut Fields<'_>) -> Option<Op> {
    let abi::LkIn { fh, owner, lock, lk_flags, .. } = fields.take()?;
    let kind = if lk_flags & abi::LK_FLOCK == 0 { LockKind::Posix } else { LockKind::Flock };
    let wait = if code == opcode::SETLKW { LockWait::Wait } else { LockWait::Try };
    Some(if code == opcode::GETLK {
        Op::Getlk { fh, owner, lock, kind }
    } else {
        Op::Setlk { fh, owner, lock, kind, wait }
    })
}

fn range_op(code: u32, fields: &mut Fields<'_>) -> Option<Op> {
    Some(match code {
        opcode::FALLOCATE => {
            let abi::FallocateIn { fh, offset, length, mode, .. } = fields.take()?;
            Op::Fallocate { fh, offset, length, mode }
        }
        opcode::LSEEK => {
            let abi::LseekIn { fh, offset, whence, .. } = fields.take()?;
            Op::Lseek { fh, offset, whence }
        }
        _ => {
            let copy: abi::CopyFileRangeIn = fields.take()?;
            Op::CopyFileRange {
                fh: copy.fh_in,
                offset: copy.off_in,
                nodeid_out: copy.nodeid_out,
                fh_out: copy.fh_out,
                offset_out: copy.off_out,
                length: copy.len,
                width: if code == opcode::COPY_FILE_RANGE { CopyWidth::Bits32 } else { CopyWidth::Bits64 },
            }
        }
    })
}

/// A write takes the buffer with it, so it cannot borrow from it as the others do.
fn write(raw: &abi::InHeader, buffer: Buffer) -> Option<Message> {
    const START: usize = size_of::<abi::InHeader>() + size_of::<abi::WriteIn>();
    let (write, _) = abi::WriteIn::read_from_prefix(&buffer.filled()[size_of::<abi::InHeader>()..]).ok()?;
    let end = START + write.size as usize;
    if end > buffer.filled().len() {
        return None;
    }
    let op = Op::Write {
        fh: write.fh,
        offset: write.offset,
        data: buffer.payload(START..end),
        flags: write.flags,
        lock_owner: (write.write_flags & abi::WRITE_LOCKOWNER != 0).then_some(write.lock_owner),
        suid_sgid: suid_sgid(write.write_flags, abi::WRITE_KILL_SUIDGID),
    };
    Some(Message::Request(Request { header: header(raw, Vec::new()), op }))
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;
    use crate::fuse::transport::buffer::Pool;

    fn message(opcode: u32, total_extlen: u16, body: &[u8], form: SetxattrForm) -> Message {
        let mut buffer = Pool::new(1 << 16).take();
        let len = (size_of::<abi::InHeader>() + body.len()) as u32;
        let head = abi::InHeader { len, opcode, unique: 2, nodeid: 1, total_extlen, ..Default::default() };
        buffer.storage().extend_from_slice(head.as_bytes());
        let bytes = [buffer.filled(), body].concat();
        buffer.storage().extend_from_slice(&bytes);
        decode(buffer, form)
    }

    #[test]
    fn no_body_of_any_length_panics() {
        for opcode in 0..60 {
            for len in 0..160 {
                for fill in [0, 1, 0xff] {
                    let body = vec![fill; len];
                    for form in [SetxattrForm::Short, SetxattrForm::Extended] {
                        for total_extlen in [0, 1, 3, u16::MAX] {
                            drop(message(opcode, total_extlen, &body, form));
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn supplementary_groups_are_found_behind_the_name() {
        let mut body = abi::MkdirIn { mode: 0o755, umask: 0o22 }.as_bytes().to_vec();
        body.extend_from_slice(b"dir\0");
        body.extend_from_slice(abi::ExtHeader { size: 16, kind: abi::EXT_GROUPS }.as_bytes());
        body.extend_from_slice([1u32, 77].as_bytes());
        let Message::Request(request) = message(opcode::MKDIR, 2, &body, SetxattrForm::Extended) else {
            panic!("a request");
        };
        assert_eq!(request.header.groups, [77]);
        assert!(matches!(request.op, Op::Mkdir { name, .. } if name == b"dir"));
    }

    #[test]
    fn a_write_that_says_more_than_it_brings_is_malformed() {
        let head = abi::WriteIn { size: 9, ..Default::default() };
        let body = [head.as_bytes(), b"12345678"].concat();
        assert!(matches!(message(opcode::WRITE, 0, &body, SetxattrForm::Extended), Message::Malformed { unique: 2 }));
    }

    #[test]
    fn the_form_of_setxattr_is_what_was_agreed_on() {
        let short = [abi::SetxattrIn8 { size: 3, flags: 1 }.as_bytes(), b"user.a\0abc"].concat();
        let Message::Request(request) = message(opcode::SETXATTR, 0, &short, SetxattrForm::Short) else {
            panic!("a request");
        };
        assert!(matches!(request.op, Op::Setxattr { value, .. } if &value[..] == b"abc"));
    }
}
