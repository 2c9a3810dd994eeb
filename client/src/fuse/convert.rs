//! Kernel flags, modes and times, and ours.

use mortar_xlators::fop::{Allocate, Replace};
use mortar_xlators::reply::Space;
use mortar_xlators::types::{Gfid, Iatt, Kind, NAME_BYTES_MAX, OpenFlags, Time};
use rustix::io::Errno;

use super::transport::abi::{Attr, StatfsOut};

/// What stat(2) recommends for reads and writes.
const BLOCK_BYTES: u32 = 128 << 10;

/// The attributes as the kernel wants them.
pub(crate) fn attr(iatt: &Iatt) -> Attr {
    Attr {
        ino: iatt.gfid.ino(),
        size: iatt.size,
        blocks: iatt.blocks,
        atime: iatt.atime.sec.cast_unsigned(),
        mtime: iatt.mtime.sec.cast_unsigned(),
        ctime: iatt.ctime.sec.cast_unsigned(),
        atimensec: iatt.atime.nsec,
        mtimensec: iatt.mtime.nsec,
        ctimensec: iatt.ctime.nsec,
        mode: type_bits(iatt.kind) | iatt.mode & 0o7777,
        nlink: iatt.nlink,
        uid: iatt.uid,
        gid: iatt.gid,
        // The kernel's 32-bit coding is the low half of what user space calls a dev_t.
        rdev: iatt.rdev as u32,
        blksize: BLOCK_BYTES,
        flags: 0,
    }
}

/// The file type bits of a mode.
pub(crate) fn type_bits(kind: Kind) -> u32 {
    match kind {
        Kind::File => libc::S_IFREG,
        Kind::Dir => libc::S_IFDIR,
        Kind::Symlink => libc::S_IFLNK,
        Kind::Fifo => libc::S_IFIFO,
        Kind::Socket => libc::S_IFSOCK,
        Kind::Char => libc::S_IFCHR,
        Kind::Block => libc::S_IFBLK,
    }
}

/// `DT_*` of a directory entry.
pub(crate) fn dirent_type(kind: Kind) -> u32 {
    type_bits(kind) >> 12
}

/// What mknod(2) can make; `EINVAL` for the rest.
pub(crate) fn mknod_kind(mode: u32) -> Result<Kind, Errno> {
    match mode & libc::S_IFMT {
        0 | libc::S_IFREG => Ok(Kind::File),
        libc::S_IFIFO => Ok(Kind::Fifo),
        libc::S_IFSOCK => Ok(Kind::Socket),
        libc::S_IFCHR => Ok(Kind::Char),
        libc::S_IFBLK => Ok(Kind::Block),
        _ => Err(Errno::INVAL),
    }
}

/// A time as SETATTR brings it.
pub(crate) fn time(sec: u64, nsec: u32) -> Time {
    Time { sec: sec.cast_signed(), nsec: nsec.min(999_999_999) }
}

/// The flags of open(2) that matter below.
pub(crate) fn open_flags(flags: u32) -> OpenFlags {
    let flags = flags.cast_signed();
    let mut ours = match flags & libc::O_ACCMODE {
        libc::O_RDONLY => OpenFlags::READ,
        libc::O_WRONLY => OpenFlags::WRITE,
        _ => OpenFlags::READ | OpenFlags::WRITE,
    };
    ours.set(OpenFlags::APPEND, flags & libc::O_APPEND != 0);
    ours.set(OpenFlags::TRUNCATE, flags & libc::O_TRUNC != 0);
    ours.set(OpenFlags::SYNC, flags & libc::O_DSYNC != 0);
    ours.set(OpenFlags::DIRECT, flags & libc::O_DIRECT != 0);
    ours
}

/// The flags of renameat2(2).
pub(crate) fn replace(flags: u32) -> Result<Replace, Errno> {
    match flags {
        0 => Ok(Replace::Yes),
        libc::RENAME_NOREPLACE => Ok(Replace::No),
        libc::RENAME_EXCHANGE => Ok(Replace::Exchange),
        _ => Err(Errno::INVAL),
    }
}

/// The modes of fallocate(2).
pub(crate) fn allocate(mode: u32) -> Result<Allocate, Errno> {
    const KEEP: i32 = libc::FALLOC_FL_KEEP_SIZE;
    const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | KEEP;
    const ZERO: i32 = libc::FALLOC_FL_ZERO_RANGE;
    const ZERO_KEEP: i32 = ZERO | KEEP;
    match mode.cast_signed() {
        0 => Ok(Allocate::Reserve),
        KEEP => Ok(Allocate::ReserveKeepSize),
        PUNCH => Ok(Allocate::Punch),
        ZERO => Ok(Allocate::Zero),
        ZERO_KEEP => Ok(Allocate::ZeroKeepSize),
        _ => Err(Errno::OPNOTSUPP),
    }
}

/// The volume's space as statfs(2) shows it.
pub(crate) fn statfs(space: &Space) -> StatfsOut {
    let block_bytes = u32::try_from(space.block_bytes).unwrap_or(4096);
    StatfsOut {
        blocks: space.blocks,
        bfree: space.blocks_free,
        bavail: space.blocks_available,
        files: space.files,
        ffree: space.files_free,
        bsize: block_bytes,
        frsize: block_bytes,
        namelen: NAME_BYTES_MAX as u32,
        ..StatfsOut::default()
    }
}

/// The inode number of an entry whose gfid the listing does not have: programs skip entries with
/// the number 0.
pub(crate) fn dirent_ino(gfid: Gfid, cookie: u64) -> u64 {
    if gfid.is_null() { cookie.max(1) } else { gfid.ino() }
}

#[cfg(test)]
pub(super) mod tests {
    use mortar_xlators::types::Lacks;

    use super::*;

    #[test]
    fn times_before_1970_and_after_2038_pass_both_ways() {
        for sec in [-1, i64::MIN / 2, 1 << 33] {
            let ours = time(sec.cast_unsigned(), 5);
            assert_eq!(ours, Time { sec, nsec: 5 });
            let iatt = Iatt { mtime: ours, ..sample() };
            assert_eq!(attr(&iatt).mtime.cast_signed(), sec);
        }
    }

    #[test]
    fn the_root_has_inode_number_one() {
        assert_eq!(attr(&sample()).ino, 1);
        assert_eq!(attr(&sample()).mode, 0o40755);
    }

    pub(in crate::fuse) fn sample() -> Iatt {
        let zero = Time::default();
        Iatt {
            gfid: Gfid::ROOT,
            kind: Kind::Dir,
            mode: 0o755,
            nlink: 2,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            blocks: 0,
            atime: zero,
            mtime: zero,
            ctime: zero,
            lacks: Lacks::empty(),
        }
    }

    #[test]
    fn what_open_says_is_what_a_brick_hears() {
        let flags = open_flags((libc::O_RDWR | libc::O_APPEND | libc::O_SYNC) as u32);
        assert_eq!(flags, OpenFlags::READ | OpenFlags::WRITE | OpenFlags::APPEND | OpenFlags::SYNC);
        assert_eq!(open_flags((libc::O_WRONLY | libc::O_TRUNC) as u32), OpenFlags::WRITE | OpenFlags::TRUNCATE);
    }

    #[test]
    fn unknown_modes_are_refused() {
        assert_eq!(allocate(0x20), Err(Errno::OPNOTSUPP));
        assert_eq!(replace(4), Err(Errno::INVAL));
        assert_eq!(mknod_kind(libc::S_IFDIR), Err(Errno::INVAL));
    }
}
