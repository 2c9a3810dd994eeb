//! A disk in memory, and mounts that end with their owner.

use std::fs::{self, File};
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::command::{SETUP_LIMIT, clean_up, run, run_uninterrupted, wait_for};

/// A mount that is taken away when dropped.
#[derive(Debug)]
pub struct Mount {
    path: PathBuf,
}

impl Mount {
    /// A mount that some program is about to make at `path`, which is made as an empty directory.
    pub fn expected_at(path: &Path) -> Result<Self> {
        fs::create_dir_all(path)?;
        Ok(Self { path: path.to_path_buf() })
    }

    /// Wait until something is mounted.
    pub fn wait(&self) -> Result<()> {
        wait_for(&format!("a mount at {}", self.path.display()), SETUP_LIMIT, || is_mounted(&self.path))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if is_mounted(&self.path) && run_uninterrupted(Command::new("umount").arg(&self.path)).is_err() {
            // Somebody is still inside, or the daemon is dead.
            clean_up(Command::new("umount").arg("--lazy").arg(&self.path));
        }
    }
}

/// An XFS on a loop device on a file in memory, mounted.
#[derive(Debug)]
pub struct RamDisk {
    mount: Mount,
    _image: Image,
}

impl RamDisk {
    /// Make one of `bytes` at `path`. Memory is only taken as it is filled.
    pub fn new(path: &Path, bytes: u64) -> Result<Self> {
        let image = Image(PathBuf::from(format!("/dev/shm/mortar-{}-{}.img", std::process::id(), file_name(path))));
        File::create(&image.0).and_then(|file| file.set_len(bytes)).context("cannot make a disk in memory")?;
        run(Command::new("mkfs.xfs").args(["-q", "-f", "-i", "size=512"]).arg(&image.0), SETUP_LIMIT)?;
        let mount = Mount::expected_at(path)?;
        run(Command::new("mount").args(["-o", "loop"]).arg(&image.0).arg(path), SETUP_LIMIT)?;
        Ok(Self { mount, _image: image })
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        self.mount.path()
    }
}

/// A file that is removed when dropped.
#[derive(Debug)]
struct Image(PathBuf);

impl Drop for Image {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Enough of the path to be nobody else's, as one name.
fn file_name(path: &Path) -> String {
    let parts = path.components().filter_map(|part| match part {
        Component::Normal(part) => Some(part.to_string_lossy().into_owned()),
        _ => None,
    });
    let parts: Vec<_> = parts.collect();
    parts[parts.len().saturating_sub(5)..].join("-")
}

/// Looks into the kernel's table and not at the directory: a stat of a dead mount would not come back.
fn is_mounted(path: &Path) -> bool {
    let Ok(table) = fs::read_to_string("/proc/self/mountinfo") else { return false };
    table.lines().filter_map(|line| line.split(' ').nth(4)).any(|mountpoint| Path::new(mountpoint) == path)
}

/// Write everything out and drop the kernel's page, inode and name caches, the same for every contender.
pub fn drop_caches() -> Result<()> {
    run(&mut Command::new("sync"), SETUP_LIMIT)?;
    fs::write("/proc/sys/vm/drop_caches", "3").context("cannot drop caches (this needs root)")
}
