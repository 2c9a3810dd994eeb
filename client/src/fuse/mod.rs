//! A volume as a file system of the kernel: the mount.
//!
//! [`KernelCache::new`] comes first, since the graph calls it when leases go; then the graph; then
//! [`Mount::start`]. `transport` is the way to the kernel, `server` and its parts turn requests
//! into fops, `inodes` and `opens` know what the kernel's numbers mean, `locks` who has locked, `cache` what it may believe.
//! `retries` and `second_walk` see to it that no program hears of names that others replace while it opens them.

mod cache;
mod callers;
mod convert;
mod dirs;
mod files;
mod inodes;
mod locks;
mod names;
mod opens;
mod pages;
mod retries;
mod second_walk;
mod server;
#[cfg(test)]
mod tests;
mod transport;
mod xattrs;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use mortar_xlators::types::{ClientId, Gfid, MAX_IO_BYTES, Time};
use mortar_xlators::xlator::Subvol;
use rustix::io::Errno;
use rustix::mount::MountFlags;

pub use self::cache::KernelCache;
use self::retries::Retries;
use self::server::Server;
use self::transport::abi::InitFlags;
use self::transport::mount::{Access, MountOptions};
use self::transport::session::{Session, SessionOptions};

/// Where new gfids and times come from.
#[derive(Clone, Copy, Debug)]
pub struct Sources {
    /// The time of day.
    pub clock: fn() -> Time,
    /// A gfid that nobody else has.
    pub gfid: fn() -> Gfid,
}

impl Sources {
    /// The clock and the random numbers of this machine.
    pub fn system() -> Self {
        Self { clock: time_of_day, gfid: || Gfid::from_bytes(*uuid::Uuid::new_v4().as_bytes()) }
    }
}

fn time_of_day() -> Time {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    Time { sec: now.tv_sec, nsec: u32::try_from(now.tv_nsec).unwrap_or(0) }
}

/// Who checks access control lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Acl {
    /// The kernel, from what the bricks store. An inode that is known to have none costs no message.
    #[default]
    Kernel,
    /// Nobody: the mount has none.
    Off,
}

/// How exact stat(2) is for files that other clients are writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum StatMode {
    /// As POSIX wants it.
    #[default]
    Exact,
    /// Size, blocks and times may be a little old; the writer is not asked.
    Lazy,
}

/// Who may use a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Users {
    /// Everybody, within the permissions of the files.
    #[default]
    Everybody,
    /// Only the user who mounted it.
    Owner,
}

/// How a volume is mounted.
#[derive(Clone, Debug)]
pub struct MountConfig {
    /// The directory to mount at.
    pub at: PathBuf,
    /// What `/proc/mounts` shows as the source, such as the volume's name.
    pub source: String,
    /// Who this client is.
    pub client: ClientId,
    /// Mount options that the kernel itself takes care of: `ro`, `nosuid`, `nodev`, `noexec`, `noatime`.
    pub flags: MountFlags,
    /// Who may use it.
    pub users: Users,
    /// Who checks access control lists.
    pub acl: Acl,
    /// How exact stat(2) is.
    pub stat: StatMode,
    /// How many devices are read, each by one task.
    pub readers: usize,
    /// After this time a request that got no answer fails.
    pub request_time_max: Duration,
    /// Where new gfids and times come from.
    pub sources: Sources,
}

impl MountConfig {
    /// The usual way to mount.
    pub fn new(at: impl Into<PathBuf>, source: impl Into<String>, client: ClientId) -> Self {
        Self {
            at: at.into(),
            source: source.into(),
            client,
            flags: MountFlags::NOSUID | MountFlags::NODEV,
            users: Users::default(),
            acl: Acl::default(),
            stat: StatMode::default(),
            readers: READERS,
            request_time_max: REQUEST_TIME_MAX,
            sources: Sources::system(),
        }
    }
}

/// Every request wakes every reader, and one gets it: measured on two processors, two readers take
/// a third longer for each request than one. The work behind a request is spread over all threads anyway.
const READERS: usize = 1;
/// Longer than a recall that has to end in a fence takes, shorter than people wait.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(60);
/// How much readahead and direct I/O the kernel may have in flight; waiting processes do not count.
const BACKGROUND_MAX: u16 = 128;

/// One largest read ahead keeps the wire busy; more is read in vain when a program jumps.
const READAHEAD_KIB: u32 = 1024;

/// A mounted volume. Dropping it takes it out of the tree (lazily) and stops serving.
#[derive(Debug)]
pub struct Mount {
    session: Session,
}

impl Mount {
    /// Mounts a volume and serves it from then on. `cache` is what the graph below `volume` was
    /// given as its upcall. Needs root, and a tokio runtime with several threads.
    pub async fn start(config: MountConfig, volume: Subvol, cache: Arc<KernelCache>) -> Result<Self, Errno> {
        let mount_options = MountOptions {
            source: config.source,
            subtype: "mortar".into(),
            flags: config.flags,
            access: match config.users {
                Users::Everybody => Access::Everybody,
                Users::Owner => Access::Owner,
            },
            max_read: MAX_IO_BYTES as u32,
        };
        let locks = InitFlags::POSIX_LOCKS | InitFlags::FLOCK_LOCKS;
        let more = match config.acl {
            Acl::Off => locks,
            Acl::Kernel => locks | InitFlags::POSIX_ACL | InitFlags::DONT_MASK,
        };
        let session_options = SessionOptions {
            more,
            readers: config.readers,
            background_max: BACKGROUND_MAX,
            readahead_kib: READAHEAD_KIB,
            write_bytes_max: MAX_IO_BYTES as u32,
        };
        let server = Arc::new(Server {
            volume,
            cache,
            client: config.client,
            sources: config.sources,
            acl: config.acl,
            stat: config.stat,
            request_time_max: config.request_time_max,
            next_id: AtomicU64::new(1),
            changes: AtomicU64::new(0),
            born_covered: AtomicBool::new(true),
            retries: Retries::default(),
        });
        let session = Session::start(&config.at, &mount_options, &session_options, &server).await?;
        Ok(Self { session })
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        self.session.path()
    }

    /// Waits until the mount is gone: somebody has unmounted it, or it failed.
    pub async fn ended(&mut self) -> Result<(), Errno> {
        self.session.ended().await
    }

    /// Unmounts; `BUSY` if somebody has a file open or works in there.
    pub fn unmount(&mut self) -> Result<(), Errno> {
        self.session.unmount()
    }

    /// Takes the mount out of the tree at once; it is served until the last user has left.
    pub fn detach(&mut self) -> Result<(), Errno> {
        self.session.detach()
    }
}
