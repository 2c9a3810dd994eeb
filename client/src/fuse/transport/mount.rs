//! mount(2) and umount(2), directly: a mount needs root and no helper program.

use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

use super::device;

/// How the mount looks from outside.
#[derive(Clone, Debug)]
pub(crate) struct MountOptions {
    /// What `/proc/mounts` shows as the source.
    pub(crate) source: String,
    /// The file system type is shown as `fuse.` and this.
    pub(crate) subtype: String,
    /// Read-only, no device files, no suid programs, no atime: what mount(2) itself takes.
    pub(crate) flags: MountFlags,
    /// Who may use it besides the one who mounted it.
    pub(crate) access: Access,
    /// The largest read, in bytes.
    pub(crate) max_read: u32,
}

/// Who may use a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Everybody, within the permissions of the files.
    Everybody,
    /// Only the user who mounted it, and root.
    Owner,
}

/// A mounted file system, which is unmounted (lazily) when this is dropped.
#[derive(Debug)]
pub(crate) struct Mounted {
    at: PathBuf,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Mounted,
    Gone,
}

/// Mounts at `at` and gives the device that serves it. The kernel's INIT is waiting there.
pub(crate) fn mount(at: &Path, options: &MountOptions) -> Result<(OwnedFd, Mounted), Errno> {
    let at = std::fs::canonicalize(at).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    let device = device::open()?;
    let root = rustix::fs::statat(CWD, &at, rustix::fs::AtFlags::empty())?;
    let mut data = format!(
        "fd={},rootmode={:o},user_id={},group_id={},default_permissions,max_read={}",
        device.as_raw_fd(),
        root.st_mode & 0o170_000,
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
        options.max_read,
    );
    if options.access == Access::Everybody {
        data.push_str(",allow_other");
    }
    let data = CString::new(data).map_err(|_| Errno::INVAL)?;
    let kind = format!("fuse.{}", options.subtype);
    rustix::mount::mount(options.source.as_str(), &at, kind.as_str(), options.flags, data.as_c_str())?;
    Ok((device, Mounted { at, state: State::Mounted }))
}

impl Mounted {
    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.at
    }

    /// Lets the kernel read ahead so much. It would not take more than 128 KiB in its INIT.
    ///
    /// Not worth failing for: without sysfs the mount works, and reads a little slower.
    pub(crate) fn set_readahead(&self, kib: u32) {
        if let Err(error) = self.try_set_readahead(kib) {
            tracing::debug!(at = %self.at.display(), %error, "the kernel keeps its own readahead");
        }
    }

    fn try_set_readahead(&self, kib: u32) -> std::io::Result<()> {
        // Asks nobody: the answer would have to come from this very process.
        let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
        let root = rustix::fs::statx(CWD, &self.at, flags, StatxFlags::TYPE)?;
        let file = format!("/sys/class/bdi/{}:{}/read_ahead_kb", root.stx_dev_major, root.stx_dev_minor);
        std::fs::write(file, kib.to_string())
    }

    /// Unmounts; `BUSY` if somebody has a file open or works in there.
    pub(crate) fn unmount(&mut self) -> Result<(), Errno> {
        if self.state == State::Mounted {
            rustix::mount::unmount(&self.at, UnmountFlags::NOFOLLOW)?;
            self.state = State::Gone;
        }
        Ok(())
    }

    /// Takes the mount out of the tree at once; the kernel ends it when the last user has left.
    pub(crate) fn detach(&mut self) -> Result<(), Errno> {
        if self.state == State::Mounted {
            self.state = State::Gone;
            rustix::mount::unmount(&self.at, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)?;
        }
        Ok(())
    }

    /// Somebody else has unmounted it: there is nothing left to do.
    pub(crate) fn gone(&mut self) {
        self.state = State::Gone;
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Err(errno) = self.detach() {
            tracing::warn!(at = %self.at.display(), %errno, "cannot unmount");
        }
    }
}
