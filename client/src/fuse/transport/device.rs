//! `/dev/fuse`: opening, tying a second opening to the same mount, reading, writing.
#![allow(unsafe_code)] // One ioctl, and tokio's demand that a registered file stays open.

use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::abi;
use super::buffer::Buffer;

/// An open device that the runtime watches.
pub(crate) type Device = AsyncFd<Arc<OwnedFd>>;

/// When there is something to read: a message, or (an error condition) the news that the mount is gone.
pub(crate) const READY: Interest = Interest::READABLE.add(Interest::ERROR);

/// Has the runtime watch a device.
pub(crate) fn watch(device: OwnedFd) -> Result<Device, Errno> {
    // SAFETY: `Device` owns a reference to the file, and gives out nothing that could close or change it.
    unsafe { AsyncFd::register_with_interest(Arc::new(device), READY) }
        .map_err(|error| Errno::from_io_error(&error.into()).unwrap_or(Errno::IO))
}

/// Opens the device. It belongs to no mount yet.
pub(crate) fn open() -> Result<OwnedFd, Errno> {
    rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty())
}

/// Opens the device a second time for the mount that `of` serves, so that two readers do not
/// share one queue of requests in work. An answer must go through the device that gave the request.
pub(crate) fn open_clone(of: impl AsFd) -> Result<OwnedFd, Errno> {
    let clone = open()?;
    let raw = of.as_fd().as_raw_fd().cast_unsigned();
    // SAFETY: the kernel reads one u32, the number of a device that is open while this call lasts.
    unsafe { rustix::ioctl::ioctl(&clone, rustix::ioctl::Setter::<{ abi::DEV_IOC_CLONE }, u32>::new(raw))? };
    Ok(clone)
}

/// Takes one message from the kernel; `WOULDBLOCK` if there is none, `NODEV` if the mount is gone.
pub(crate) fn read(device: impl AsFd, buffer: &mut Buffer) -> Result<usize, Errno> {
    rustix::io::read(device, rustix::buffer::spare_capacity(buffer.storage()))
}

/// Gives the kernel one answer or notice. It takes all of it or nothing, and never blocks for us.
pub(crate) fn write(device: impl AsFd, parts: &[IoSlice<'_>]) -> Result<(), Errno> {
    rustix::io::writev(device, parts).map(|_| ())
}
