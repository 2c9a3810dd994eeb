//! What the kernel can ask: one [`Request`] is one message from the kernel, in our own terms.
//!
//! Names are owned and never hold a NUL; numbers are as the kernel gave them. Whoever serves a
//! request need not know how it travelled.

use bytes::Bytes;

use super::abi::{FileLock, SetattrIn};

/// One message from the kernel.
#[derive(Debug)]
pub(crate) struct Request {
    /// Who asks, and about which inode.
    pub(crate) header: Header,
    /// What is asked.
    pub(crate) op: Op,
}

/// Who asks, and about which inode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Header {
    /// The kernel's number for this request.
    pub(crate) unique: u64,
    /// The inode, in the numbers that we gave the kernel.
    pub(crate) nodeid: u64,
    /// The file system user id of the caller.
    pub(crate) uid: u32,
    /// The file system group id of the caller.
    pub(crate) gid: u32,
    /// The thread that asks, in the pid namespace of the mount; 0 if it is not in there.
    pub(crate) pid: u32,
    /// Supplementary groups of the caller that matter here: sent with what makes a new object.
    pub(crate) groups: Vec<u32>,
}

/// Which of the two kinds of advisory locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockKind {
    /// fcntl(2): a range, owned by a process.
    Posix,
    /// flock(2): the whole file, owned by an open file.
    Flock,
}

/// What fsync(2) and fdatasync(2) differ in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SyncWhat {
    /// Data and all attributes.
    All,
    /// Data, and what is needed to find it again.
    Data,
}

/// What is done when a lock is taken by another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockWait {
    /// Wait until it is free.
    Wait,
    /// Answer EAGAIN.
    Try,
}

/// Whether suid and sgid must go with this change (the kernel has looked at the caller's rights).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SuidSgid {
    /// Leave them alone.
    Keep,
    /// Clear suid, and sgid where group execution is allowed.
    Kill,
}

/// A question or an order of the kernel, with what is needed to serve it.
///
/// FORGET, INTERRUPT, INIT and DESTROY are between the kernel and the session, and are not here.
#[derive(Debug)]
#[allow(missing_docs)]
pub(crate) enum Op {
    Lookup {
        name: Vec<u8>,
    },
    Getattr {
        fh: Option<u64>,
    },
    Setattr(Box<SetattrIn>),
    Readlink,
    Symlink {
        name: Vec<u8>,
        target: Vec<u8>,
    },
    Mknod {
        name: Vec<u8>,
        mode: u32,
        rdev: u32,
        umask: u32,
    },
    Mkdir {
        name: Vec<u8>,
        mode: u32,
        umask: u32,
    },
    Unlink {
        name: Vec<u8>,
    },
    Rmdir {
        name: Vec<u8>,
    },
    Rename {
        name: Vec<u8>,
        new_parent: u64,
        new_name: Vec<u8>,
        flags: u32,
    },
    /// `header.nodeid` is the directory of the new name.
    Link {
        nodeid: u64,
        name: Vec<u8>,
    },
    Open {
        flags: u32,
        suid_sgid: SuidSgid,
    },
    Create {
        name: Vec<u8>,
        flags: u32,
        mode: u32,
        umask: u32,
        suid_sgid: SuidSgid,
    },
    Read {
        fh: u64,
        offset: u64,
        size: u32,
        flags: u32,
        lock_owner: Option<u64>,
    },
    Write {
        fh: u64,
        offset: u64,
        data: Bytes,
        flags: u32,
        lock_owner: Option<u64>,
        suid_sgid: SuidSgid,
    },
    Statfs,
    Flush {
        fh: u64,
        lock_owner: u64,
    },
    /// `flock_owner` is set if flock(2) locks of that owner end with this file.
    Release {
        fh: u64,
        flags: u32,
        flock_owner: Option<u64>,
    },
    Fsync {
        fh: u64,
        what: SyncWhat,
    },
    Setxattr {
        name: Vec<u8>,
        value: Bytes,
        flags: u32,
        acl_kills_sgid: SuidSgid,
    },
    /// A `size` of 0 asks how long the value is.
    Getxattr {
        name: Vec<u8>,
        size: u32,
    },
    /// A `size` of 0 asks how long the list is.
    Listxattr {
        size: u32,
    },
    Removexattr {
        name: Vec<u8>,
    },
    Opendir {
        flags: u32,
    },
    Readdir {
        fh: u64,
        offset: u64,
        size: u32,
    },
    Readdirplus {
        fh: u64,
        offset: u64,
        size: u32,
    },
    Releasedir {
        fh: u64,
    },
    Fsyncdir {
        fh: u64,
        what: SyncWhat,
    },
    Getlk {
        fh: u64,
        owner: u64,
        lock: FileLock,
        kind: LockKind,
    },
    Setlk {
        fh: u64,
        owner: u64,
        lock: FileLock,
        kind: LockKind,
        wait: LockWait,
    },
    Access {
        mask: u32,
    },
    Fallocate {
        fh: u64,
        offset: u64,
        length: u64,
        mode: u32,
    },
    Lseek {
        fh: u64,
        offset: u64,
        whence: u32,
    },
    CopyFileRange {
        fh: u64,
        offset: u64,
        nodeid_out: u64,
        fh_out: u64,
        offset_out: u64,
        length: u64,
        width: CopyWidth,
    },
    Syncfs,
}

/// How wide the number in the answer to a COPY_FILE_RANGE is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyWidth {
    /// The answer is that of a write.
    Bits32,
    /// Since 7.45.
    Bits64,
}

/// What a message from the kernel is to the session.
#[derive(Debug)]
pub(crate) enum Message {
    /// For the handler, who owes an answer.
    Request(Request),
    /// The kernel drops `count` of its references to `nodeid`: pairs of them. No answer.
    Forget(Vec<(u64, u64)>),
    /// The caller of that request got a signal.
    Interrupt { unique: u64, of: u64 },
    /// The start of the session.
    Init { unique: u64, minor: u32, major: u32, max_readahead: u32, flags: u64 },
    /// The mount is gone.
    Destroy { unique: u64 },
    /// We do not serve that.
    Unknown { unique: u64 },
    /// It does not have the shape that it should have.
    Malformed { unique: u64 },
}
