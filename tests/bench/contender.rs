//! What is measured against what.

use std::fmt::{self, Debug};
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::ValueEnum;

use super::command::ourselves;
use super::disk::{Mount, RamDisk, drop_caches};
use super::namespace::Namespace;
use super::packages::{GLUSTERFS, MOOSEFS_CHUNKSERVER, MOOSEFS_CLIENT, MOOSEFS_MASTER, Package};
use super::{command, glusterfs, moosefs, mortar};

/// A mounted file system. Dropping it takes down all of it.
pub trait Contender: Debug {
    /// The directory to work in.
    fn root(&self) -> &Path;

    /// Processor seconds that its processes have used up to now. What the kernel does in its own threads is not in it.
    fn cpu_seconds(&self) -> f64;

    /// Forget what is cached, as far as a file system that stays mounted can. The kernel's caches go, on the side of the
    /// mount and of the bricks; what a daemon keeps in its own memory stays, which is fair: it is what it keeps it for.
    fn cold(&self) -> Result<()> {
        drop_caches()
    }
}

/// Where contenders are set up.
#[derive(Debug)]
pub struct Site {
    /// An empty directory.
    pub scratch: PathBuf,
    /// How large the bricks' disk is made.
    pub disk_bytes: u64,
}

/// The contenders by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, ValueEnum)]
pub enum Kind {
    /// XFS on a loop device in memory: the disk that all bricks are on.
    Local,
    /// A FUSE file system that does nothing but remember.
    Floor,
    /// GlusterFS, 2 x 3.
    Glusterfs,
    /// MooseFS, goal 3 on three chunk servers.
    Moosefs,
    /// This product, 2 x 3.
    Mortar,
}

impl fmt::Display for Kind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Local => "local",
            Self::Floor => "floor",
            Self::Glusterfs => "glusterfs",
            Self::Moosefs => "moosefs",
            Self::Mortar => "mortar",
        })
    }
}

impl Kind {
    /// What must be installed for it, beside what every run needs.
    pub fn packages(self) -> &'static [Package] {
        match self {
            Self::Local | Self::Floor | Self::Mortar => &[],
            Self::Glusterfs => &[GLUSTERFS],
            Self::Moosefs => &[MOOSEFS_MASTER, MOOSEFS_CHUNKSERVER, MOOSEFS_CLIENT],
        }
    }

    /// Set one up, fresh and empty.
    pub fn start(self, site: &Site) -> Result<Box<dyn Contender>> {
        Ok(match self {
            Self::Local => Box::new(Local(RamDisk::new(&site.scratch.join("disk"), site.disk_bytes)?)),
            Self::Floor => Box::new(Floor::start(site)?),
            Self::Glusterfs => Box::new(glusterfs::GlusterFs::start(site)?),
            Self::Moosefs => Box::new(moosefs::MooseFs::start(site)?),
            Self::Mortar => Box::new(mortar::Mortar::start(site)?),
        })
    }
}

/// The disk alone.
#[derive(Debug)]
struct Local(RamDisk);

impl Contender for Local {
    fn root(&self) -> &Path {
        self.0.path()
    }

    fn cpu_seconds(&self) -> f64 {
        0.0
    }
}

/// `floor.rs` as a process. Fields are dropped in this order.
#[derive(Debug)]
struct Floor {
    mount: Mount,
    namespace: Namespace,
    _process: Reaped,
}

impl Floor {
    fn start(site: &Site) -> Result<Self> {
        let namespace = Namespace::new("floor")?;
        let mount = Mount::expected_at(&site.scratch.join("mnt"))?;
        let program = ourselves()?.get_program().to_string_lossy().into_owned();
        let mut floor = namespace.command(&program);
        floor.arg("floor").arg(mount.path());
        let process = Reaped(command::start(&mut floor, &site.scratch.join("floor.log"))?);
        mount.wait()?;
        Ok(Self { mount, namespace, _process: process })
    }
}

impl Contender for Floor {
    fn root(&self) -> &Path {
        self.mount.path()
    }

    fn cpu_seconds(&self) -> f64 {
        self.namespace.cpu_seconds()
    }
}

/// A daemon that we started: ended, if nobody has done it before, and taken out of the process table when dropped.
#[derive(Debug)]
pub struct Reaped(pub std::process::Child);

impl Drop for Reaped {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
