//! What the kernel and a FUSE daemon say to each other, byte for byte.
//!
//! The facts are those of `include/uapi/linux/fuse.h`, protocol 7.45; only the part that a
//! mount of ours uses is here. All numbers are in the byte order of the machine.
//!
//! Invariant: a struct here has no hidden padding, and has exactly the size that the table in
//! the tests below says; the kernel refuses a reply whose length is off by one byte.

use bitflags::bitflags;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The major version of the protocol. Kernels have spoken 7 since 2005.
pub(crate) const MAJOR: u32 = 7;
/// The newest minor version that this file describes.
pub(crate) const MINOR: u32 = 45;
/// The oldest minor version we serve: Linux 5.4.
pub(crate) const MINOR_MIN: u32 = 31;
/// The kernel's number for the root of the mount.
pub(crate) const ROOT_ID: u64 = 1;
/// The kernel refuses to hand out requests to a buffer smaller than this.
pub(crate) const MIN_READ_BUFFER: usize = 8192;
/// The ioctl that ties a freshly opened device to an existing connection: `_IOR(229, 0, u32)`.
pub(crate) const DEV_IOC_CLONE: u32 = 0x8004_e500;
/// An extension of a request that carries supplementary groups.
pub(crate) const EXT_GROUPS: u32 = 32;

/// The kernel's numbers for its requests.
pub(crate) mod opcode {
    pub(crate) const LOOKUP: u32 = 1;
    pub(crate) const FORGET: u32 = 2;
    pub(crate) const GETATTR: u32 = 3;
    pub(crate) const SETATTR: u32 = 4;
    pub(crate) const READLINK: u32 = 5;
    pub(crate) const SYMLINK: u32 = 6;
    pub(crate) const MKNOD: u32 = 8;
    pub(crate) const MKDIR: u32 = 9;
    pub(crate) const UNLINK: u32 = 10;
    pub(crate) const RMDIR: u32 = 11;
    pub(crate) const RENAME: u32 = 12;
    pub(crate) const LINK: u32 = 13;
    pub(crate) const OPEN: u32 = 14;
    pub(crate) const READ: u32 = 15;
    pub(crate) const WRITE: u32 = 16;
    pub(crate) const STATFS: u32 = 17;
    pub(crate) const RELEASE: u32 = 18;
    pub(crate) const FSYNC: u32 = 20;
    pub(crate) const SETXATTR: u32 = 21;
    pub(crate) const GETXATTR: u32 = 22;
    pub(crate) const LISTXATTR: u32 = 23;
    pub(crate) const REMOVEXATTR: u32 = 24;
    pub(crate) const FLUSH: u32 = 25;
    pub(crate) const INIT: u32 = 26;
    pub(crate) const OPENDIR: u32 = 27;
    pub(crate) const READDIR: u32 = 28;
    pub(crate) const RELEASEDIR: u32 = 29;
    pub(crate) const FSYNCDIR: u32 = 30;
    pub(crate) const GETLK: u32 = 31;
    pub(crate) const SETLK: u32 = 32;
    pub(crate) const SETLKW: u32 = 33;
    pub(crate) const ACCESS: u32 = 34;
    pub(crate) const CREATE: u32 = 35;
    pub(crate) const INTERRUPT: u32 = 36;
    pub(crate) const DESTROY: u32 = 38;
    pub(crate) const BATCH_FORGET: u32 = 42;
    pub(crate) const FALLOCATE: u32 = 43;
    pub(crate) const READDIRPLUS: u32 = 44;
    pub(crate) const RENAME2: u32 = 45;
    pub(crate) const LSEEK: u32 = 46;
    pub(crate) const COPY_FILE_RANGE: u32 = 47;
    pub(crate) const SYNCFS: u32 = 50;
    pub(crate) const COPY_FILE_RANGE_64: u32 = 53;
}

/// The numbers of what we tell the kernel without being asked.
pub(crate) mod notice {
    pub(crate) const INVAL_INODE: i32 = 2;
    pub(crate) const INVAL_ENTRY: i32 = 3;
    pub(crate) const INC_EPOCH: i32 = 8;
}

bitflags! {
    /// What kernel and daemon agree on at the start (INIT).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct InitFlags: u64 {
        const ASYNC_READ = 1 << 0;
        const POSIX_LOCKS = 1 << 1;
        const EXPORT_SUPPORT = 1 << 4;
        const BIG_WRITES = 1 << 5;
        const DONT_MASK = 1 << 6;
        const FLOCK_LOCKS = 1 << 10;
        const AUTO_INVAL_DATA = 1 << 12;
        const DO_READDIRPLUS = 1 << 13;
        const READDIRPLUS_AUTO = 1 << 14;
        const ASYNC_DIO = 1 << 15;
        const PARALLEL_DIROPS = 1 << 18;
        const POSIX_ACL = 1 << 20;
        const MAX_PAGES = 1 << 22;
        const CACHE_SYMLINKS = 1 << 23;
        const HANDLE_KILLPRIV_V2 = 1 << 28;
        const SETXATTR_EXT = 1 << 29;
        const INIT_EXT = 1 << 30;
        const CREATE_SUPP_GROUP = 1 << 34;
        const HAS_EXPIRE_ONLY = 1 << 35;
        const DIRECT_IO_ALLOW_MMAP = 1 << 36;
        /// What a newer kernel offers and this file does not know.
        const _ = !0;
    }

    /// Which fields of a SETATTR count.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct SetattrValid: u32 {
        const MODE = 1 << 0;
        const UID = 1 << 1;
        const GID = 1 << 2;
        const SIZE = 1 << 3;
        const ATIME = 1 << 4;
        const MTIME = 1 << 5;
        const FH = 1 << 6;
        const ATIME_NOW = 1 << 7;
        const MTIME_NOW = 1 << 8;
        const LOCKOWNER = 1 << 9;
        const CTIME = 1 << 10;
        const KILL_SUIDGID = 1 << 11;
        const _ = !0;
    }

    /// How the kernel shall treat an open file.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(crate) struct OpenedFlags: u32 {
        const DIRECT_IO = 1 << 0;
        const KEEP_CACHE = 1 << 1;
        const CACHE_DIR = 1 << 3;
        const NOFLUSH = 1 << 5;
        const PARALLEL_DIRECT_WRITES = 1 << 6;
    }
}

/// GETATTR: `fh` is valid.
pub(crate) const GETATTR_FH: u32 = 1 << 0;
/// OPEN, CREATE: clear suid and sgid together with the truncation.
pub(crate) const OPEN_KILL_SUIDGID: u32 = 1 << 0;
/// WRITE: `lock_owner` is valid.
pub(crate) const WRITE_LOCKOWNER: u32 = 1 << 1;
/// WRITE: clear suid and sgid.
pub(crate) const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// READ: `lock_owner` is valid.
pub(crate) const READ_LOCKOWNER: u32 = 1 << 1;
/// RELEASE: unlock what flock(2) has locked.
pub(crate) const RELEASE_FLOCK_UNLOCK: u32 = 1 << 1;
/// FSYNC: data only.
pub(crate) const FSYNC_FDATASYNC: u32 = 1 << 0;
/// GETLK, SETLK: this is flock(2), not fcntl(2).
pub(crate) const LK_FLOCK: u32 = 1 << 0;
/// SETXATTR: setting this ACL clears sgid.
pub(crate) const SETXATTR_ACL_KILL_SGID: u32 = 1 << 0;

macro_rules! wire {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty),* $(,)? })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        pub(crate) struct $name { $(pub(crate) $field: $type),* }
    )*};
}

wire! {
    /// Before every request.
    InHeader { len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32, total_extlen: u16, padding: u16 }
    /// Before every answer; `error` is a negative errno. In a notice, `unique` is 0 and `error` its number.
    OutHeader { len: u32, error: i32, unique: u64 }
    /// The attributes of an inode. Times are i64 seconds in a u64.
    Attr {
        ino: u64, size: u64, blocks: u64, atime: u64, mtime: u64, ctime: u64,
        atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, nlink: u32, uid: u32, gid: u32,
        rdev: u32, blksize: u32, flags: u32,
    }
    EntryOut {
        nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64,
        entry_valid_nsec: u32, attr_valid_nsec: u32, attr: Attr,
    }
    AttrOut { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: Attr }
    OpenOut { fh: u64, open_flags: u32, backing_id: u32 }
    WriteOut { size: u32, padding: u32 }
    CopyFileRangeOut { bytes_copied: u64 }
    GetxattrOut { size: u32, padding: u32 }
    LseekOut { offset: u64 }
    StatfsOut {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64,
        bsize: u32, namelen: u32, frsize: u32, padding: u32, spare: [u32; 6],
    }
    FileLock { start: u64, end: u64, kind: u32, pid: u32 }
    /// Before every name in a directory listing; the name follows, padded to 8 bytes.
    Dirent { ino: u64, off: u64, namelen: u32, kind: u32 }

    InitIn16 { major: u32, minor: u32, max_readahead: u32, flags: u32 }
    InitOut {
        major: u32, minor: u32, max_readahead: u32, flags: u32,
        max_background: u16, congestion_threshold: u16, max_write: u32, time_gran: u32,
        max_pages: u16, map_alignment: u16, flags2: u32, max_stack_depth: u32,
        request_timeout: u16, unused: [u16; 11],
    }
    ForgetIn { nlookup: u64 }
    ForgetOne { nodeid: u64, nlookup: u64 }
    BatchForgetIn { count: u32, dummy: u32 }
    GetattrIn { getattr_flags: u32, dummy: u32, fh: u64 }
    SetattrIn {
        valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64, atime: u64, mtime: u64, ctime: u64,
        atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, unused4: u32, uid: u32, gid: u32, unused5: u32,
    }
    MknodIn { mode: u32, rdev: u32, umask: u32, padding: u32 }
    MkdirIn { mode: u32, umask: u32 }
    RenameIn { newdir: u64 }
    Rename2In { newdir: u64, flags: u32, padding: u32 }
    LinkIn { oldnodeid: u64 }
    OpenIn { flags: u32, open_flags: u32 }
    CreateIn { flags: u32, mode: u32, umask: u32, open_flags: u32 }
    ReleaseIn { fh: u64, flags: u32, release_flags: u32, lock_owner: u64 }
    FlushIn { fh: u64, unused: u32, padding: u32, lock_owner: u64 }
    ReadIn { fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32 }
    WriteIn { fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32, padding: u32 }
    FsyncIn { fh: u64, fsync_flags: u32, padding: u32 }
    /// As sent without `SETXATTR_EXT`.
    SetxattrIn8 { size: u32, flags: u32 }
    SetxattrIn { size: u32, flags: u32, setxattr_flags: u32, padding: u32 }
    GetxattrIn { size: u32, padding: u32 }
    LkIn { fh: u64, owner: u64, lock: FileLock, lk_flags: u32, padding: u32 }
    AccessIn { mask: u32, padding: u32 }
    InterruptIn { unique: u64 }
    FallocateIn { fh: u64, offset: u64, length: u64, mode: u32, padding: u32 }
    LseekIn { fh: u64, offset: u64, whence: u32, padding: u32 }
    CopyFileRangeIn { fh_in: u64, off_in: u64, nodeid_out: u64, fh_out: u64, off_out: u64, len: u64, flags: u64 }
    ExtHeader { size: u32, kind: u32 }

    InvalInodeOut { ino: u64, off: i64, len: i64 }
    InvalEntryOut { parent: u64, namelen: u32, flags: u32 }
}

#[cfg(test)]
mod tests {
    use super::*;

    macro_rules! sizes {
        ($($name:ident $size:literal)*) => {
            [$((stringify!($name), size_of::<$name>(), $size)),*]
        };
    }

    #[test]
    fn every_struct_has_the_size_that_the_kernel_counts_on() {
        let table: &[(&str, usize, usize)] = &sizes! {
            InHeader 40 OutHeader 16 Attr 88 EntryOut 128 AttrOut 104 OpenOut 16 WriteOut 8 CopyFileRangeOut 8
            GetxattrOut 8 LseekOut 8 StatfsOut 80 FileLock 24 Dirent 24 InitIn16 16 InitOut 64 ForgetIn 8
            ForgetOne 16 BatchForgetIn 8 GetattrIn 16 SetattrIn 88 MknodIn 16 MkdirIn 8 RenameIn 8 Rename2In 16
            LinkIn 8 OpenIn 8 CreateIn 16 ReleaseIn 24 FlushIn 24 ReadIn 40 WriteIn 40 FsyncIn 16 SetxattrIn8 8
            SetxattrIn 16 GetxattrIn 8 LkIn 48 AccessIn 8 InterruptIn 8 FallocateIn 32 LseekIn 24
            CopyFileRangeIn 56 ExtHeader 8 InvalInodeOut 24 InvalEntryOut 16
        };
        for (name, ours, kernel) in table {
            assert_eq!(ours, kernel, "{name}");
        }
    }

    #[test]
    fn fields_that_moved_in_history_are_where_they_are_now() {
        assert_eq!(std::mem::offset_of!(InHeader, total_extlen), 36);
        assert_eq!(std::mem::offset_of!(SetattrIn, mode), 68);
        assert_eq!(std::mem::offset_of!(InitOut, flags2), 32);
        assert_eq!(std::mem::offset_of!(InitOut, request_timeout), 40);
        assert_eq!(std::mem::offset_of!(LkIn, lk_flags), 40);
        assert_eq!(std::mem::offset_of!(EntryOut, attr), 40);
    }
}
