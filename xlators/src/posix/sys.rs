//! The few system calls that rustix has not: xattrs and modes of an object named relative to a directory descriptor.
//!
//! `setxattrat` and its sisters exist since Linux 6.13 and `fchmodat2` since 6.6. Where the kernel has none of them, the
//! object is reached as `/proc/self/fd/<directory>/<name>` with the calls that do not follow a link, which costs one
//! more path walk and is otherwise the same.
//!
//! This is the only file of the brick with `unsafe` in it.

#![allow(unsafe_code)]

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{AtFlags, Mode, OFlags, XattrFlags};
use rustix::io::Errno;

const SYS_SETXATTRAT: libc::c_long = 463;
const SYS_GETXATTRAT: libc::c_long = 464;
const SYS_LISTXATTRAT: libc::c_long = 465;
const SYS_REMOVEXATTRAT: libc::c_long = 466;
const SYS_FCHMODAT2: libc::c_long = 452;

/// The kernel answered `ENOSYS` once: do not ask again.
static NO_XATTRAT: AtomicBool = AtomicBool::new(false);

/// As above, for `fchmodat2`.
static NO_FCHMODAT2: AtomicBool = AtomicBool::new(false);

/// What `setxattrat` and `getxattrat` take by reference; the layout is the kernel's.
#[repr(C, align(8))]
struct XattrArgs {
    value: u64,
    size: u32,
    flags: u32,
}

fn check(result: libc::c_long) -> Result<usize, Errno> {
    usize::try_from(result).map_err(|_| {
        // SAFETY: errno belongs to this thread and was just set by the call that failed.
        Errno::from_raw_os_error(unsafe { *libc::__errno_location() })
    })
}

/// Use the modern call unless the kernel is known to have none; `fallback` where it has none.
fn modern_or<T>(
    missing: &AtomicBool,
    modern: impl FnOnce() -> Result<T, Errno>,
    fallback: impl FnOnce() -> Result<T, Errno>,
) -> Result<T, Errno> {
    if !missing.load(Ordering::Relaxed) {
        match modern() {
            Err(Errno::NOSYS) => missing.store(true, Ordering::Relaxed),
            answer => return answer,
        }
    }
    fallback()
}

/// Read the xattr `name` of `path` in `dir` into `value`; how many bytes it has.
pub(super) fn getxattrat(dir: BorrowedFd<'_>, path: &CStr, name: &CStr, value: &mut [u8]) -> Result<usize, Errno> {
    if !NO_XATTRAT.load(Ordering::Relaxed) {
        let size = u32::try_from(value.len()).unwrap_or(u32::MAX);
        let args = XattrArgs { value: value.as_mut_ptr() as u64, size, flags: 0 };
        // SAFETY: every pointer is to memory that outlives the call, and `size` bytes of `value` may be written.
        let answer = check(unsafe {
            libc::syscall(
                SYS_GETXATTRAT,
                dir.as_raw_fd(),
                path.as_ptr(),
                libc::AT_SYMLINK_NOFOLLOW,
                name.as_ptr(),
                &raw const args,
                size_of::<XattrArgs>(),
            )
        });
        match answer {
            Err(Errno::NOSYS) => NO_XATTRAT.store(true, Ordering::Relaxed),
            answer => return answer,
        }
    }
    proc::getxattr(dir, path, name, value)
}

/// Set the xattr `name` of `path` in `dir`.
pub(super) fn setxattrat(
    dir: BorrowedFd<'_>,
    path: &CStr,
    name: &CStr,
    value: &[u8],
    flags: XattrFlags,
) -> Result<(), Errno> {
    let size = u32::try_from(value.len()).map_err(|_| Errno::TOOBIG)?;
    let args = XattrArgs { value: value.as_ptr() as u64, size, flags: flags.bits() };
    let modern = || {
        // SAFETY: every pointer is to memory that outlives the call; the kernel only reads.
        check(unsafe {
            libc::syscall(
                SYS_SETXATTRAT,
                dir.as_raw_fd(),
                path.as_ptr(),
                libc::AT_SYMLINK_NOFOLLOW,
                name.as_ptr(),
                &raw const args,
                size_of::<XattrArgs>(),
            )
        })
        .map(drop)
    };
    modern_or(&NO_XATTRAT, modern, || proc::setxattr(dir, path, name, value, flags))
}

/// List the xattr names of `path` in `dir` into `list`; how many bytes they have.
pub(super) fn listxattrat(dir: BorrowedFd<'_>, path: &CStr, list: &mut [u8]) -> Result<usize, Errno> {
    if !NO_XATTRAT.load(Ordering::Relaxed) {
        // SAFETY: `list.len()` bytes of `list` may be written.
        let answer = check(unsafe {
            libc::syscall(
                SYS_LISTXATTRAT,
                dir.as_raw_fd(),
                path.as_ptr(),
                libc::AT_SYMLINK_NOFOLLOW,
                list.as_mut_ptr(),
                list.len(),
            )
        });
        match answer {
            Err(Errno::NOSYS) => NO_XATTRAT.store(true, Ordering::Relaxed),
            answer => return answer,
        }
    }
    proc::listxattr(dir, path, list)
}

/// Remove the xattr `name` of `path` in `dir`.
pub(super) fn removexattrat(dir: BorrowedFd<'_>, path: &CStr, name: &CStr) -> Result<(), Errno> {
    let modern = || {
        // SAFETY: every pointer is to memory that outlives the call; the kernel only reads.
        check(unsafe {
            libc::syscall(SYS_REMOVEXATTRAT, dir.as_raw_fd(), path.as_ptr(), libc::AT_SYMLINK_NOFOLLOW, name.as_ptr())
        })
        .map(drop)
    };
    modern_or(&NO_XATTRAT, modern, || proc::removexattr(dir, path, name))
}

/// Set the permission bits of `path` in `dir`; `EOPNOTSUPP` for a symbolic link.
pub(super) fn fchmodat(dir: BorrowedFd<'_>, path: &CStr, mode: u32) -> Result<(), Errno> {
    let modern = || {
        // SAFETY: the path outlives the call.
        check(unsafe { libc::syscall(SYS_FCHMODAT2, dir.as_raw_fd(), path.as_ptr(), mode, libc::AT_SYMLINK_NOFOLLOW) })
            .map(drop)
    };
    modern_or(&NO_FCHMODAT2, modern, || proc::chmod(dir, path, mode))
}

/// Read what the page cache has at `offset` into the spare room of `buffer`; `EAGAIN` where the disk would be needed.
pub(super) fn read_cached(fd: BorrowedFd<'_>, buffer: &mut Vec<u8>, offset: u64) -> Result<usize, Errno> {
    let spare = buffer.spare_capacity_mut();
    let part = libc::iovec { iov_base: spare.as_mut_ptr().cast(), iov_len: spare.len() };
    let offset = libc::off_t::try_from(offset).map_err(|_| Errno::INVAL)?;
    // SAFETY: `iov_len` bytes behind `iov_base` are owned by `buffer` and may be written.
    let read =
        check(unsafe { libc::preadv2(fd.as_raw_fd(), &raw const part, 1, offset, libc::RWF_NOWAIT) } as libc::c_long)?;
    // SAFETY: the kernel initialised `read` bytes of the spare room.
    unsafe { buffer.set_len(buffer.len() + read) };
    Ok(read)
}

/// The same through `/proc/self/fd`, for kernels without the calls above.
mod proc {
    use super::{AsFd, AsRawFd, AtFlags, BorrowedFd, CStr, Errno, Mode, OFlags, XattrFlags};

    fn path_of(dir: BorrowedFd<'_>, path: &CStr) -> Vec<u8> {
        let mut text = format!("/proc/self/fd/{}/", dir.as_raw_fd()).into_bytes();
        text.extend_from_slice(path.to_bytes());
        text
    }

    pub(super) fn getxattr(dir: BorrowedFd<'_>, path: &CStr, name: &CStr, value: &mut [u8]) -> Result<usize, Errno> {
        if value.is_empty() {
            return rustix::fs::lgetxattr_query(path_of(dir, path), name);
        }
        rustix::fs::lgetxattr(path_of(dir, path), name, value)
    }

    pub(super) fn setxattr(
        dir: BorrowedFd<'_>,
        path: &CStr,
        name: &CStr,
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<(), Errno> {
        rustix::fs::lsetxattr(path_of(dir, path), name, value, flags)
    }

    pub(super) fn listxattr(dir: BorrowedFd<'_>, path: &CStr, list: &mut [u8]) -> Result<usize, Errno> {
        if list.is_empty() {
            return rustix::fs::llistxattr_query(path_of(dir, path));
        }
        rustix::fs::llistxattr(path_of(dir, path), list)
    }

    pub(super) fn removexattr(dir: BorrowedFd<'_>, path: &CStr, name: &CStr) -> Result<(), Errno> {
        rustix::fs::lremovexattr(path_of(dir, path), name)
    }

    /// `chmod` follows links, so the object is pinned with `O_PATH` first, which does not.
    pub(super) fn chmod(dir: BorrowedFd<'_>, path: &CStr, mode: u32) -> Result<(), Errno> {
        let object = rustix::fs::openat(dir, path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
        let stat = rustix::fs::statat(object.as_fd(), c"", AtFlags::EMPTY_PATH)?;
        if rustix::fs::FileType::from_raw_mode(stat.st_mode).is_symlink() {
            return Err(Errno::OPNOTSUPP);
        }
        rustix::fs::chmod(format!("/proc/self/fd/{}", object.as_raw_fd()), Mode::from_raw_mode(mode))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, symlinkat};

    #[test]
    fn both_ways_to_an_xattr_agree() {
        let folder = tempfile::tempdir().unwrap();
        let dir = rustix::fs::openat(CWD, folder.path(), OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
        let dir = dir.as_fd();
        std::fs::write(folder.path().join("file"), "x").unwrap();
        symlinkat("file", dir, c"link").unwrap();
        for path in [c"file", c"link"] {
            setxattrat(dir, path, c"trusted.one", b"1", XattrFlags::CREATE).unwrap();
            proc::setxattr(dir, path, c"trusted.two", b"22", XattrFlags::empty()).unwrap();
            let mut value = [0; 8];
            assert_eq!(getxattrat(dir, path, c"trusted.two", &mut value), Ok(2));
            assert_eq!(proc::getxattr(dir, path, c"trusted.one", &mut value), Ok(1));
            assert_eq!(getxattrat(dir, path, c"trusted.two", &mut []), Ok(2));
            assert_eq!(proc::getxattr(dir, path, c"trusted.two", &mut []), Ok(2));
            let mut list = [0; 256];
            let length = listxattrat(dir, path, &mut list).unwrap();
            assert_eq!(proc::listxattr(dir, path, &mut [0; 256]), Ok(length));
            removexattrat(dir, path, c"trusted.one").unwrap();
            proc::removexattr(dir, path, c"trusted.two").unwrap();
            assert_eq!(getxattrat(dir, path, c"trusted.two", &mut value), Err(Errno::NODATA));
        }
    }

    #[test]
    fn both_ways_to_a_mode_agree_and_follow_no_link() {
        let folder = tempfile::tempdir().unwrap();
        let dir = rustix::fs::openat(CWD, folder.path(), OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
        let dir = dir.as_fd();
        std::fs::write(folder.path().join("file"), "x").unwrap();
        symlinkat("file", dir, c"link").unwrap();
        let mode = || rustix::fs::statat(dir, c"file", AtFlags::SYMLINK_NOFOLLOW).unwrap().st_mode & 0o7777;
        fchmodat(dir, c"file", 0o4711).unwrap();
        assert_eq!(mode(), 0o4711);
        proc::chmod(dir, c"file", 0o640).unwrap();
        assert_eq!(mode(), 0o640);
        assert_eq!(fchmodat(dir, c"link", 0o600), Err(Errno::OPNOTSUPP));
        assert_eq!(proc::chmod(dir, c"link", 0o600), Err(Errno::OPNOTSUPP));
        assert_eq!(mode(), 0o640);
    }
}
