//! The way between the kernel's FUSE module and a [`Handler`]: `/dev/fuse`, and nothing of Mortar.
//!
//! Read in this order: [`request`] and [`reply`] say what can be asked and answered, [`session`]
//! starts and ends, [`pump`] moves messages. `decode`, `abi`, `buffer` and `device` are the bytes.
//!
//! A request that needs no waiting is read, served and answered by one thread without a switch:
//! the reader polls the handler's future once, and only a pending one becomes a task. Another
//! pump (io_uring) would share everything here but `pump` and `device`.

// The whole of a request is decoded, also what the mount does not look at; locks are served here before volumes have them.
#![allow(dead_code)]

pub(crate) mod abi;
mod buffer;
mod burst;
mod decode;
mod device;
pub(crate) mod interrupt;
pub(crate) mod mount;
pub(crate) mod notify;
mod pump;
pub(crate) mod reply;
pub(crate) mod request;
pub(crate) mod session;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use self::interrupt::OnSignal;
use self::notify::Notifier;
use self::reply::Answer;
use self::request::{Op, Request};
use self::session::Kernel;

/// Who serves the requests of a mount.
pub(crate) trait Handler: Send + Sync + 'static {
    /// The kernel has said what it can; requests follow.
    fn started(&self, kernel: Kernel, notifier: Notifier);

    /// Serves one request. The future is polled once on the reader's thread, so it must not
    /// block; if it is dropped or panics, the kernel gets EIO.
    fn call(self: Arc<Self>, request: Request) -> impl Future<Output = Answer> + Send + 'static;

    /// A change that ran on after its caller was killed has ended: the kernel knows nothing of what it led to. `nodeid`
    /// is the inode that the request was about.
    fn undelivered(&self, nodeid: u64, answer: Answer);

    /// The kernel drops `count` of its references to an inode.
    fn forget(&self, nodeid: u64, count: u64);

    /// What happens to a request whose caller gets a signal while it waits.
    fn on_signal(&self, op: &Op) -> OnSignal;
}
