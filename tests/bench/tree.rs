//! The tree that is untarred, and the proof that it came through unharmed.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::hash::Hasher;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use xxhash_rust::xxh64::Xxh64;

use super::command::{ourselves, run};

/// Where Debian's package puts the kernel's source.
pub const SOURCE: &str = "/usr/src/linux-source-6.1.tar.xz";

/// The package's only top-level directory.
const TOP: &str = "linux-source-6.1";

/// How much of the kernel's source is worked on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Size {
    /// `fs include kernel mm`: 8,728 files, 428 directories, 100 MB.
    Small,
    /// All of it: 83,731 members, 1.36 GB.
    Full,
}

impl Size {
    /// The word on the command line, also used in file names.
    pub fn word(self) -> &'static str {
        match self {
            Self::Small => "small",
            Self::Full => "full",
        }
    }

    /// Room for three copies in 64 KiB blocks and what the generators write. Memory is only taken as it is filled.
    pub fn disk_bytes(self) -> u64 {
        match self {
            Self::Small => 8 << 30,
            Self::Full => 20 << 30,
        }
    }

    /// How long one work on it may take; GlusterFS needs the better part of an hour for the full tree.
    pub fn limit(self) -> Duration {
        match self {
            Self::Small => Duration::from_secs(20 * 60),
            Self::Full => Duration::from_secs(4 * 3600),
        }
    }

    /// What of the package's archive is taken.
    fn members(self) -> Vec<String> {
        match self {
            Self::Small => ["fs", "include", "kernel", "mm"].iter().map(|name| format!("{TOP}/{name}")).collect(),
            Self::Full => vec![TOP.to_owned()],
        }
    }
}

/// A tree in the cache: an uncompressed archive, and the list of what is in it.
#[derive(Debug)]
pub struct Source {
    /// The archive.
    pub tar: PathBuf,
    /// One line for each file, see `manifest`.
    pub manifest: String,
}

impl Source {
    /// Take it from the cache, or make it.
    pub fn prepare(cache: &Path, size: Size) -> Result<Self> {
        fs::create_dir_all(cache).with_context(|| format!("cannot make the cache {}", cache.display()))?;
        let tar = cache.join(format!("{}.tar", size.word()));
        let list = cache.join(format!("{}.manifest", size.word()));
        if !(tar.exists() && list.exists()) {
            eprintln!("unpacking the {} tree into {}", size.word(), cache.display());
            let unpacked = tempfile::tempdir_in(cache)?;
            let mut unpack = Command::new("tar");
            unpack.arg("-C").arg(unpacked.path()).args(["-xJf", SOURCE]).args(size.members());
            run(&mut unpack, Duration::from_secs(900))?;
            let top = unpacked.path().join(TOP);
            drop_fractions(&top)?;
            fs::write(&list, manifest(&top)?)?;
            let half_made = tar.with_extension("tar.part");
            let mut pack = Command::new("tar");
            pack.arg("-C").arg(&top).args(["--format=posix", "--numeric-owner", "-cf"]).arg(&half_made).arg(".");
            run(&mut pack, Duration::from_secs(900))?;
            fs::rename(&half_made, &tar)?;
        }
        Ok(Self { tar, manifest: fs::read_to_string(&list)? })
    }

    /// The untar that is measured.
    pub fn untar_into(&self, directory: &Path) -> Command {
        let mut command = Command::new("tar");
        command.arg("-C").arg(directory).arg("-xf").arg(&self.tar);
        command
    }

    /// Compare a copy with the source: names, kinds, modes, times, link targets and content of everything.
    pub fn verify(&self, copy: &Path, limit: Duration) -> Result<()> {
        let found = run(ourselves()?.arg("manifest").arg(copy), limit)?;
        if found == self.manifest {
            return Ok(());
        }
        let mut wanted = self.manifest.lines();
        let mut got = found.lines();
        loop {
            match (wanted.next(), got.next()) {
                (Some(wanted), Some(got)) if wanted == got => {}
                (wanted, got) => {
                    bail!("{} is not what was untarred: want {wanted:?}, got {got:?}", copy.display());
                }
            }
        }
    }
}

/// Give all directories whole seconds: some are not in the package and have the time of the unpacking, and MooseFS keeps no
/// fractions.
fn drop_fractions(directory: &Path) -> Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            drop_fractions(&entry.path())?;
        }
    }
    let seconds = u64::try_from(fs::metadata(directory)?.mtime()).context("a directory from before 1970")?;
    Ok(File::open(directory)?.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds))?)
}

/// One line for everything below `root`, in the order of names: path, kind and mode, time, size, checksum.
///
/// Sizes of directories are left out: every file system has its own idea of them.
pub fn manifest(root: &Path) -> Result<String> {
    let mut lines = String::new();
    let mut to_do = vec![PathBuf::new()];
    while let Some(relative) = to_do.pop() {
        let path = root.join(&relative);
        let meta = fs::symlink_metadata(&path).with_context(|| format!("cannot stat {}", path.display()))?;
        let mut hash = Xxh64::new(0);
        let mut size = meta.len();
        if meta.is_dir() {
            size = 0;
            let mut names: Vec<PathBuf> = fs::read_dir(&path)
                .and_then(|entries| entries.map(|entry| Ok(relative.join(entry?.file_name()))).collect())
                .with_context(|| format!("cannot list {}", path.display()))?;
            names.sort_by(|one, other| other.cmp(one));
            to_do.append(&mut names);
        } else if meta.is_symlink() {
            hash.write(fs::read_link(&path)?.as_os_str().as_bytes());
        } else {
            hash.write(&fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?);
        }
        let (mode, seconds, nanoseconds) = (meta.permissions().mode(), meta.mtime(), meta.mtime_nsec());
        writeln!(lines, "{relative:?} {mode:o} {seconds}.{nanoseconds:09} {size} {:016x}", hash.finish())?;
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_byte_changes_the_manifest() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("a"), b"one").unwrap();
        let before = manifest(directory.path()).unwrap();
        assert_eq!(before.lines().count(), 2);
        fs::write(directory.path().join("a"), b"two").unwrap();
        assert_ne!(before, manifest(directory.path()).unwrap());
    }
}
