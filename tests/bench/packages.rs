//! What the machine must have, and how to get it.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail};

use super::command::run;

/// A Debian package, known to be there by a file of its own.
#[derive(Debug, Clone, Copy)]
pub struct Package {
    name: &'static str,
    file: &'static str,
}

/// Makes the bricks' file system.
pub const XFSPROGS: Package = Package { name: "xfsprogs", file: "/usr/sbin/mkfs.xfs" };
/// Makes network namespaces.
pub const IPROUTE: Package = Package { name: "iproute2", file: "/usr/bin/ip" };
/// The tree that is untarred.
pub const LINUX_SOURCE: Package = Package { name: "linux-source-6.1", file: super::tree::SOURCE };
/// Unpacks that tree's archive.
pub const XZ: Package = Package { name: "xz-utils", file: "/usr/bin/xz" };
/// GlusterFS with its management daemon.
pub const GLUSTERFS: Package = Package { name: "glusterfs-server", file: "/usr/sbin/glusterd" };
/// MooseFS's metadata server.
pub const MOOSEFS_MASTER: Package = Package { name: "moosefs-master", file: "/usr/sbin/mfsmaster" };
/// MooseFS's data server.
pub const MOOSEFS_CHUNKSERVER: Package = Package { name: "moosefs-chunkserver", file: "/usr/sbin/mfschunkserver" };
/// MooseFS's mount.
pub const MOOSEFS_CLIENT: Package = Package { name: "moosefs-client", file: "/usr/bin/mfsmount" };

impl Package {
    /// Whether it is installed.
    pub fn is_here(&self) -> bool {
        Path::new(self.file).exists()
    }
}

/// The names of those that are not installed.
pub fn missing(packages: &[Package]) -> Vec<&'static str> {
    packages.iter().filter(|package| !package.is_here()).map(|package| package.name).collect()
}

/// An error that says how to help, unless all are installed.
pub fn require(packages: &[Package]) -> Result<()> {
    let missing = missing(packages);
    if !missing.is_empty() {
        bail!("Debian packages are missing: run with --install, or `apt-get install {}`", missing.join(" "));
    }
    Ok(())
}

/// Install those that are missing.
pub fn install(packages: &[Package]) -> Result<()> {
    let missing = missing(packages);
    if missing.is_empty() {
        return Ok(());
    }
    eprintln!("installing {}", missing.join(" "));
    let limit = Duration::from_secs(1200);
    run(Command::new("apt-get").args(["update", "-qq"]), limit)?;
    let mut command = Command::new("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive").args(["install", "-y", "--no-install-recommends"]).args(missing);
    run(&mut command, limit).map(|_| ())
}
