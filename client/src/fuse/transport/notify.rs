//! What we tell the kernel without being asked: forget what you have cached.
//!
//! Every method is one write to the device and may be called from any thread, but never from
//! inside a request that holds what the kernel needs for it (COHERENCE.md section 4): INVAL_ENTRY
//! takes the lock of the parent directory, INVAL_INODE and INC_EPOCH take no inode lock.

use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::sync::Weak;

use rustix::io::Errno;
use zerocopy::{Immutable, IntoBytes};

use super::abi::{self, notice};
use super::device;

/// What of an inode the kernel shall drop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stale {
    /// Its attributes.
    Attributes,
    /// Its attributes and so much of its data; a length of 0 means to the end.
    Data {
        /// From here.
        offset: i64,
        /// So much.
        length: i64,
    },
}

/// The way to the kernel for notices. Cheap to clone; useless, but harmless, once the mount is gone.
#[derive(Clone, Debug)]
pub(crate) struct Notifier {
    device: Weak<OwnedFd>,
}

impl Notifier {
    pub(super) fn new(device: Weak<OwnedFd>) -> Self {
        Self { device }
    }

    /// Drops cached attributes, or attributes and data. `NOENT`: the kernel does not know the inode.
    pub(crate) fn inval_inode(&self, nodeid: u64, stale: Stale) -> Result<(), Errno> {
        let (off, len) = match stale {
            Stale::Attributes => (-1, 0),
            Stale::Data { offset, length } => (offset, length),
        };
        self.send(notice::INVAL_INODE, &abi::InvalInodeOut { ino: nodeid, off, len }, &[])
    }

    /// Drops one name. Takes the lock of the parent directory.
    pub(crate) fn inval_entry(&self, parent: u64, name: &[u8]) -> Result<(), Errno> {
        let namelen = u32::try_from(name.len()).map_err(|_| Errno::NAMETOOLONG)?;
        self.send(notice::INVAL_ENTRY, &abi::InvalEntryOut { parent, namelen, flags: 0 }, name)
    }

    /// Drops every name at once, without a lock. `INVAL` or `NOSYS` before Linux 6.16: entry
    /// timeouts must be 0 there.
    pub(crate) fn inc_epoch(&self) -> Result<(), Errno> {
        self.send(notice::INC_EPOCH, &(), &[])
    }

    fn send(&self, code: i32, body: &(impl IntoBytes + Immutable), name: &[u8]) -> Result<(), Errno> {
        const NUL: &[u8] = &[0];
        let device = self.device.upgrade().ok_or(Errno::NODEV)?;
        let nul = if name.is_empty() { &[] } else { NUL };
        let len = size_of::<abi::OutHeader>() + size_of_val(body) + name.len() + nul.len();
        let header =
            abi::OutHeader { len: u32::try_from(len).map_err(|_| Errno::NAMETOOLONG)?, error: code, unique: 0 };
        let parts = [header.as_bytes(), body.as_bytes(), name, nul].map(IoSlice::new);
        device::write(&*device, &parts)
    }
}
