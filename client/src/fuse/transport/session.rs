//! Starts a mount, and ends it: mount(2), the agreement with the kernel, the readers.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use rustix::io::Errno;
use tokio::task::JoinSet;

use super::Handler;
use super::abi::{self, InitFlags};
use super::buffer::Pool;
use super::decode::{SetxattrForm, decode};
use super::device::{self, Device};
use super::mount::{MountOptions, Mounted, mount};
use super::notify::Notifier;
use super::pump::{Reader, Shared};
use super::request::Message;

/// What a mount asks of the kernel, besides what all of our mounts ask.
#[derive(Clone, Debug)]
pub(crate) struct SessionOptions {
    /// `POSIX_LOCKS`, `FLOCK_LOCKS`, `POSIX_ACL | DONT_MASK`, as the handler serves them.
    pub(crate) more: InitFlags,
    /// How many devices are opened for the mount, each with one reader.
    pub(crate) readers: usize,
    /// How much readahead and the like the kernel may have in flight.
    pub(crate) background_max: u16,
    /// How much the kernel reads ahead of a program that reads in order.
    pub(crate) readahead_kib: u32,
    /// The largest write, in bytes: a multiple of the page size.
    pub(crate) write_bytes_max: u32,
}

/// What every mount asks for. Never `WRITEBACK_CACHE`: with it the kernel owns sizes and times,
/// which other clients change. Never `ATOMIC_O_TRUNC`: with it a program that runs is cut before the kernel finds that
/// it is busy. Never what we do not serve.
const ALWAYS: InitFlags = InitFlags::ASYNC_READ
    .union(InitFlags::EXPORT_SUPPORT)
    .union(InitFlags::BIG_WRITES)
    .union(InitFlags::AUTO_INVAL_DATA)
    .union(InitFlags::DO_READDIRPLUS)
    .union(InitFlags::READDIRPLUS_AUTO)
    .union(InitFlags::ASYNC_DIO)
    .union(InitFlags::PARALLEL_DIROPS)
    .union(InitFlags::MAX_PAGES)
    .union(InitFlags::CACHE_SYMLINKS)
    .union(InitFlags::HANDLE_KILLPRIV_V2)
    .union(InitFlags::SETXATTR_EXT)
    .union(InitFlags::INIT_EXT)
    .union(InitFlags::CREATE_SUPP_GROUP)
    .union(InitFlags::HAS_EXPIRE_ONLY)
    .union(InitFlags::DIRECT_IO_ALLOW_MMAP);

/// What the kernel and we have agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kernel {
    /// The minor version of the kernel's protocol.
    pub(crate) minor: u32,
    /// What both sides do.
    pub(crate) flags: InitFlags,
    /// The largest write that will come, in bytes.
    pub(crate) write_bytes_max: u32,
}

/// The longest part of a message that is not payload: headers, names, an xattr's name.
const HEAD_BYTES_MAX: usize = 4096;

/// A mount at work. Dropping it unmounts lazily and stops serving.
#[derive(Debug)]
pub(crate) struct Session {
    mounted: Mounted,
    readers: JoinSet<Result<(), Errno>>,
}

impl Session {
    /// Mounts, agrees with the kernel, and serves from then on. Needs root and a tokio runtime.
    pub(crate) async fn start<H: Handler>(
        at: &Path,
        mount_options: &MountOptions,
        options: &SessionOptions,
        handler: &Arc<H>,
    ) -> Result<Self, Errno> {
        let (device, mounted) = mount(at, mount_options)?;
        let first = device::watch(device)?;
        let kernel = agree(&first, options).await?;
        handler.started(kernel, Notifier::new(Arc::downgrade(first.get_ref())));
        let form =
            if kernel.flags.contains(InitFlags::SETXATTR_EXT) { SetxattrForm::Extended } else { SetxattrForm::Short };
        let shared = Shared::new(Arc::clone(handler), message_bytes_max(kernel.write_bytes_max), form);
        let mut devices = vec![first];
        for _ in 1..options.readers {
            let clone = device::open_clone(devices[0].get_ref())?;
            devices.push(device::watch(clone)?);
        }
        shared.set_devices(devices.iter().map(|device| Arc::clone(device.get_ref())).collect());
        let mut readers = JoinSet::new();
        for device in devices {
            let reader = Reader { shared: Arc::clone(&shared), device };
            // The reader has its own measure of when to yield; the runtime's would turn ready futures into pending ones.
            readers.spawn(tokio::task::unconstrained(reader.run()));
        }
        mounted.set_readahead(options.readahead_kib);
        Ok(Self { mounted, readers })
    }

    /// Where it is mounted.
    pub(crate) fn path(&self) -> &Path {
        self.mounted.path()
    }

    /// Waits until the mount is gone: somebody has unmounted it, or a reader has failed.
    pub(crate) async fn ended(&mut self) -> Result<(), Errno> {
        let mut result = Ok(());
        while let Some(ended) = self.readers.join_next().await {
            result = result.and(ended.unwrap_or(Err(Errno::IO)));
        }
        if result.is_ok() {
            self.mounted.gone();
        }
        result
    }

    /// Unmounts; `BUSY` if it is in use.
    pub(crate) fn unmount(&mut self) -> Result<(), Errno> {
        self.mounted.unmount()
    }

    /// Takes it out of the tree at once, in use or not; it is served until the last user leaves.
    pub(crate) fn detach(&mut self) -> Result<(), Errno> {
        self.mounted.detach()
    }
}

fn message_bytes_max(write_bytes_max: u32) -> usize {
    (write_bytes_max as usize + HEAD_BYTES_MAX).max(abi::MIN_READ_BUFFER)
}

/// Reads the kernel's INIT and answers it.
async fn agree(device: &Device, options: &SessionOptions) -> Result<Kernel, Errno> {
    let pool = Pool::new(message_bytes_max(options.write_bytes_max));
    loop {
        let mut ready = device.ready(device::READY).await.map_err(|_| Errno::IO)?;
        let mut buffer = pool.take();
        match device::read(device.get_ref(), &mut buffer) {
            Ok(_) => {}
            Err(Errno::WOULDBLOCK) => {
                ready.clear_ready();
                continue;
            }
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(errno),
        }
        let Message::Init { unique, major, minor, max_readahead, flags } = decode(buffer, SetxattrForm::Short) else {
            return Err(Errno::PROTO);
        };
        let (out, kernel) = agreement(options, major, minor, max_readahead, InitFlags::from_bits_retain(flags));
        send_init(device.get_ref(), unique, &out)?;
        // A kernel with another major version learns ours from the answer and asks again.
        if let Some(kernel) = kernel {
            return kernel;
        }
    }
}

fn send_init(device: &OwnedFd, unique: u64, out: &abi::InitOut) -> Result<(), Errno> {
    use std::io::IoSlice;
    use zerocopy::IntoBytes;
    let header =
        abi::OutHeader { len: (size_of::<abi::OutHeader>() + size_of::<abi::InitOut>()) as u32, error: 0, unique };
    device::write(device, &[IoSlice::new(header.as_bytes()), IoSlice::new(out.as_bytes())])
}

/// Our side of the agreement, and what it comes to; `None` if the kernel must ask again.
fn agreement(
    options: &SessionOptions,
    major: u32,
    minor: u32,
    max_readahead: u32,
    offered: InitFlags,
) -> (abi::InitOut, Option<Result<Kernel, Errno>>) {
    let mut out = abi::InitOut { major: abi::MAJOR, minor: abi::MINOR, ..Default::default() };
    if major > abi::MAJOR {
        return (out, None);
    }
    if major < abi::MAJOR || minor < abi::MINOR_MIN {
        return (out, Some(Err(Errno::PROTONOSUPPORT)));
    }
    let mut flags = (ALWAYS | options.more) & offered;
    if !flags.contains(InitFlags::INIT_EXT) {
        flags &= InitFlags::from_bits_retain(u64::from(u32::MAX));
    }
    let page_bytes = rustix::param::page_size() as u32;
    // Without MAX_PAGES a request has 32 pages at most.
    let pages = if flags.contains(InitFlags::MAX_PAGES) { options.write_bytes_max / page_bytes } else { 32 };
    out.max_readahead = max_readahead;
    out.flags = flags.bits() as u32;
    out.flags2 = (flags.bits() >> 32) as u32;
    out.max_background = options.background_max;
    out.congestion_threshold = options.background_max / 4 * 3;
    out.max_write = options.write_bytes_max.min(pages * page_bytes);
    out.time_gran = 1;
    out.max_pages = u16::try_from(pages).unwrap_or(u16::MAX);
    (out, Some(Ok(Kernel { minor, flags, write_bytes_max: out.max_write })))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPTIONS: SessionOptions = SessionOptions {
        more: InitFlags::POSIX_LOCKS,
        readers: 1,
        background_max: 64,
        readahead_kib: 1024,
        write_bytes_max: 1 << 20,
    };

    #[test]
    fn an_old_kernel_gets_what_it_can() {
        let offered = InitFlags::ASYNC_READ | InitFlags::MAX_PAGES | InitFlags::POSIX_LOCKS | InitFlags::POSIX_ACL;
        let (out, kernel) = agreement(&OPTIONS, 7, 31, 131_072, offered);
        let kernel = kernel.expect("the version fits").expect("it is served");
        assert_eq!(kernel.flags, InitFlags::ASYNC_READ | InitFlags::MAX_PAGES | InitFlags::POSIX_LOCKS);
        assert_eq!((out.max_write, out.max_pages, out.flags2), (1 << 20, 256, 0));
    }

    #[test]
    fn the_upper_half_of_the_flags_needs_init_ext() {
        let (out, _) = agreement(&OPTIONS, 7, 45, 131_072, InitFlags::CREATE_SUPP_GROUP);
        assert_eq!(out.flags2, 0);
        let (out, _) = agreement(&OPTIONS, 7, 45, 131_072, InitFlags::CREATE_SUPP_GROUP | InitFlags::INIT_EXT);
        assert_eq!(out.flags2, 1 << 2);
    }

    #[test]
    fn a_kernel_of_the_future_asks_again_and_one_of_the_past_is_refused() {
        assert!(agreement(&OPTIONS, 8, 0, 0, InitFlags::empty()).1.is_none());
        assert_eq!(agreement(&OPTIONS, 7, 19, 0, InitFlags::empty()).1, Some(Err(Errno::PROTONOSUPPORT)));
    }
}
