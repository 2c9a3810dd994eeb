//! Whether a brick's last life ended in order: a file that says so, which the next start takes away.
//!
//! A brick that stopped while clients held leases, or did not stop but broke, has no such file: it must then give its
//! former clients time to come back before it gives their leases to others.

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::dirs::Dirs;

const NAME: &std::ffi::CStr = c"mortar-stopped";

/// Whether the file was there. It is gone afterwards, for certain.
pub(super) fn take(dirs: &Dirs) -> Result<bool, Errno> {
    match rustix::fs::unlinkat(&dirs.glusterfs, NAME, AtFlags::empty()) {
        Ok(()) => rustix::fs::fsync(&dirs.glusterfs).map(|()| true),
        Err(Errno::NOENT) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Leave the file. Without it the next start is only slower, so it need not be durable.
pub(super) fn leave(glusterfs: impl std::os::fd::AsFd) -> Result<(), Errno> {
    let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    rustix::fs::openat(glusterfs, NAME, flags, Mode::RUSR | Mode::WUSR).map(drop)
}
