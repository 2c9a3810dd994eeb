//! `mortar umount MNT`: take a mount down, and say who still uses it if that fails.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

/// Unmount a volume
#[derive(Args, Clone, Debug)]
pub struct UmountArgs {
    /// Where it is mounted
    mountpoint: PathBuf,
    /// Take it out of the tree at once, even if programs still use it
    #[arg(long)]
    lazy: bool,
}

impl UmountArgs {
    /// Unmount it.
    pub fn run(&self) -> Result<()> {
        let how = if self.lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
        let shown = self.mountpoint.display();
        match unmount(&self.mountpoint, how) {
            Ok(()) => Ok(()),
            Err(Errno::BUSY) => bail!("{shown} is in use{}: end that first, or use --lazy", users(&self.mountpoint)),
            Err(Errno::INVAL) => bail!("nothing is mounted at {shown}"),
            Err(errno) => Err(errno).with_context(|| format!("cannot unmount {shown}")),
        }
    }
}

/// ` by bash (12), vi (14)`, as far as `/proc` tells.
fn users(mountpoint: &Path) -> String {
    let uses = |pid: &str| {
        let links = ["cwd", "root", "exe"].map(|link| PathBuf::from(format!("/proc/{pid}/{link}")));
        let open = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten().map(|fd| fd.path());
        links.into_iter().chain(open).any(|link| link.read_link().is_ok_and(|target| target.starts_with(mountpoint)))
    };
    let pids = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let names = pids
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|pid| pid.bytes().all(|b| b.is_ascii_digit()) && uses(pid));
    let shown: Vec<String> = names
        .map(|pid| {
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            format!("{} ({pid})", name.trim())
        })
        .take(5)
        .collect();
    if shown.is_empty() { String::new() } else { format!(" by {}", shown.join(", ")) }
}
