//! One object on the brick, however it is reached: through an open descriptor, or by a name relative to one.
//!
//! Invariant: no symbolic link is followed, and no path is longer than one entry name or one handle name.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use bytes::Bytes;
use rustix::fs::{AtFlags, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

use super::sys;
use crate::types::{NAME_BYTES_MAX, Name, Time, XATTR_VALUE_BYTES_MAX};

/// Most values fit here; the others cost a second call.
const VALUE_BYTES_GUESS: usize = 512;

/// The longest list of xattr names, as the kernel has it.
const XATTR_LIST_BYTES_MAX: usize = 65_536;

/// An entry name with its NUL, on the stack.
pub(super) struct CName {
    bytes: [u8; NAME_BYTES_MAX + 1],
    length: usize,
}

impl CName {
    pub(super) fn new(name: &Name) -> Self {
        Self::from_bytes(name.as_bytes()).expect("a checked name has at most 255 bytes, none of them NUL")
    }

    /// From bytes found on disk; `None` where they can be no entry.
    pub(super) fn from_bytes(name: &[u8]) -> Option<Self> {
        if name.len() > NAME_BYTES_MAX || name.contains(&0) {
            return None;
        }
        let mut bytes = [0; NAME_BYTES_MAX + 1];
        bytes[..name.len()].copy_from_slice(name);
        Some(Self { bytes, length: name.len() })
    }

    pub(super) fn as_cstr(&self) -> &CStr {
        CStr::from_bytes_with_nul(&self.bytes[..=self.length]).expect("the constructor refused inner NULs")
    }
}

/// How to reach an object.
#[derive(Clone, Copy, Debug)]
pub(super) enum At<'a> {
    /// It is open.
    Fd(BorrowedFd<'a>),
    /// This entry of this directory.
    Name(BorrowedFd<'a>, &'a CStr),
}

impl At<'_> {
    pub(super) fn stat(self) -> Result<Stat, Errno> {
        match self {
            Self::Fd(fd) => rustix::fs::fstat(fd),
            Self::Name(dir, name) => rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW),
        }
    }

    pub(super) fn chmod(self, mode: u32) -> Result<(), Errno> {
        match self {
            Self::Fd(fd) => rustix::fs::fchmod(fd, Mode::from_raw_mode(mode)),
            Self::Name(dir, name) => sys::fchmodat(dir, name, mode),
        }
    }

    pub(super) fn chown(self, uid: Option<u32>, gid: Option<u32>) -> Result<(), Errno> {
        // All ones means "leave as it is" to the kernel and is nobody's id.
        if uid == Some(u32::MAX) || gid == Some(u32::MAX) {
            return Err(Errno::INVAL);
        }
        let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
        match self {
            Self::Fd(fd) => rustix::fs::fchown(fd, uid, gid),
            Self::Name(dir, name) => rustix::fs::chownat(dir, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW),
        }
    }

    /// Set the times of the file system; what is `None` stays.
    pub(super) fn utimens(self, atime: Option<Time>, mtime: Option<Time>) -> Result<(), Errno> {
        let times = Timestamps { last_access: timespec(atime), last_modification: timespec(mtime) };
        match self {
            Self::Fd(fd) => rustix::fs::futimens(fd, &times),
            Self::Name(dir, name) => rustix::fs::utimensat(dir, name, &times, AtFlags::SYMLINK_NOFOLLOW),
        }
    }

    /// Open what is known not to be a device or a pipe.
    pub(super) fn open(self, flags: OFlags) -> Result<OwnedFd, Errno> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
        match self {
            Self::Fd(fd) => rustix::io::fcntl_dupfd_cloexec(fd, 0),
            Self::Name(dir, name) => rustix::fs::openat(dir, name, flags, Mode::empty()),
        }
    }

    /// How many bytes of the value were put into `value`.
    pub(super) fn get_into(self, name: &CStr, value: &mut [u8]) -> Result<usize, Errno> {
        match self {
            Self::Fd(fd) if value.is_empty() => rustix::fs::fgetxattr_query(fd, name),
            Self::Fd(fd) => rustix::fs::fgetxattr(fd, name, value),
            Self::Name(dir, path) => sys::getxattrat(dir, path, name, value),
        }
    }

    /// A value of exactly `N` bytes; `None` if there is none, or one of another length.
    pub(super) fn get_exact<const N: usize>(self, name: &CStr) -> Result<Option<[u8; N]>, Errno> {
        let mut value = [0; N];
        match self.get_into(name, &mut value) {
            Ok(length) => Ok((length == N).then_some(value)),
            Err(Errno::NODATA | Errno::RANGE | Errno::OPNOTSUPP) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// A value of any length.
    pub(super) fn get(self, name: &CStr) -> Result<Bytes, Errno> {
        let mut guess = [0; VALUE_BYTES_GUESS];
        match self.get_into(name, &mut guess) {
            Ok(length) => Ok(Bytes::copy_from_slice(&guess[..length])),
            Err(Errno::RANGE) => {
                let mut value = vec![0; XATTR_VALUE_BYTES_MAX];
                let length = self.get_into(name, &mut value)?;
                Ok(Bytes::copy_from_slice(&value[..length]))
            }
            Err(errno) => Err(errno),
        }
    }

    pub(super) fn set(self, name: &CStr, value: &[u8], flags: XattrFlags) -> Result<(), Errno> {
        match self {
            Self::Fd(fd) => rustix::fs::fsetxattr(fd, name, value, flags),
            Self::Name(dir, path) => sys::setxattrat(dir, path, name, value, flags),
        }
    }

    pub(super) fn remove(self, name: &CStr) -> Result<(), Errno> {
        match self {
            Self::Fd(fd) => rustix::fs::fremovexattr(fd, name),
            Self::Name(dir, path) => sys::removexattrat(dir, path, name),
        }
    }

    /// Call `each` with the name of every xattr.
    pub(super) fn list(self, mut each: impl FnMut(&[u8])) -> Result<(), Errno> {
        let mut guess = [0; 2 * VALUE_BYTES_GUESS];
        let mut large;
        let names = match self.list_into(&mut guess) {
            Ok(length) => &guess[..length],
            Err(Errno::RANGE) => {
                large = vec![0; XATTR_LIST_BYTES_MAX];
                let length = self.list_into(&mut large)?;
                &large[..length]
            }
            Err(errno) => return Err(errno),
        };
        names.split(|byte| *byte == 0).filter(|name| !name.is_empty()).for_each(&mut each);
        Ok(())
    }

    fn list_into(self, list: &mut [u8]) -> Result<usize, Errno> {
        match self {
            Self::Fd(fd) => rustix::fs::flistxattr(fd, list),
            Self::Name(dir, path) => sys::listxattrat(dir, path, list),
        }
    }
}

impl<'a> From<&'a OwnedFd> for At<'a> {
    fn from(fd: &'a OwnedFd) -> Self {
        Self::Fd(fd.as_fd())
    }
}

fn timespec(time: Option<Time>) -> Timespec {
    match time {
        Some(time) => Timespec { tv_sec: time.sec, tv_nsec: time.nsec.into() },
        None => Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
    }
}
