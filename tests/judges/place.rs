//! Where a judge works: the mounts, a local directory beside them, and how much of its time it has.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::ValueEnum;
use tempfile::TempDir;

use super::report::Report;
use crate::bench::command::{SETUP_LIMIT, run};
use crate::bench::disk::{Mount, RamDisk};
use crate::cluster::{Cluster, Shape};

/// Room for the largest judge in three copies. Memory is only taken as it is filled.
const DISK_BYTES: u64 = 10 << 30;

/// What is judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Stack {
    /// A volume of one brick.
    One,
    /// One set of three copies.
    Replica3,
    /// Two sets of three copies.
    Dist2x3,
    /// The control alone: a local XFS.
    Local,
}

impl Stack {
    /// The word on the command line.
    pub fn word(self) -> &'static str {
        match self {
            Self::One => "one",
            Self::Replica3 => "replica3",
            Self::Dist2x3 => "dist2x3",
            Self::Local => "local",
        }
    }

    fn bricks_and_replica(self) -> Option<(usize, usize)> {
        match self {
            Self::One => Some((1, 1)),
            Self::Replica3 => Some((3, 3)),
            Self::Dist2x3 => Some((6, 3)),
            Self::Local => None,
        }
    }
}

/// A fresh file system for one judge, taken away when dropped.
#[derive(Debug)]
pub struct Site {
    /// The directories that all show the same files.
    pub mounts: Vec<PathBuf>,
    /// The volume, unless this is the control.
    pub cluster: Option<Cluster>,
    // In this order: what is mounted on the disk, the disk, the directory.
    _binds: Vec<Mount>,
    _disk: Option<RamDisk>,
    scratch: TempDir,
}

impl Site {
    /// Set one up.
    pub fn new(stack: Stack, mounts: usize) -> Result<Self> {
        let scratch = tempfile::Builder::new().prefix("mortar-judge-").tempdir()?;
        open_to_all(scratch.path())?;
        match stack.bricks_and_replica() {
            Some((bricks, replica)) => {
                let cluster = Cluster::up_with(Shape { bricks, replica, clients: mounts }, DISK_BYTES, &[])?;
                let mounts = cluster.mounts().to_vec();
                Ok(Self { mounts, cluster: Some(cluster), _binds: Vec::new(), _disk: None, scratch })
            }
            None => Self::local(scratch, mounts),
        }
    }

    /// A local XFS, shown in as many places as there shall be mounts.
    fn local(scratch: TempDir, mounts: usize) -> Result<Self> {
        let disk = RamDisk::new(&scratch.path().join("disk"), DISK_BYTES)?;
        let mut binds = Vec::new();
        for index in 1..=mounts {
            let bind = Mount::expected_at(&scratch.path().join(format!("mnt-{index}")))?;
            run(Command::new("mount").arg("--bind").arg(disk.path()).arg(bind.path()), SETUP_LIMIT)?;
            binds.push(bind);
        }
        let mounts = binds.iter().map(|bind| bind.path().to_path_buf()).collect();
        Ok(Self { mounts, cluster: None, _binds: binds, _disk: Some(disk), scratch })
    }

    /// A local directory beside the file system.
    pub fn scratch(&self) -> &Path {
        self.scratch.path()
    }
}

/// Judges work as other users too, and must reach the mounts.
pub fn open_to_all(directory: &Path) -> Result<()> {
    fs::set_permissions(directory, fs::Permissions::from_mode(0o755))
        .with_context(|| format!("cannot open {} to all", directory.display()))
}

/// What a judge is given.
#[derive(Debug, Clone)]
pub struct Place {
    /// The directories that all show the same files.
    pub mounts: Vec<PathBuf>,
    /// A local directory for models, archives and logs.
    pub scratch: PathBuf,
    /// Where what programs said goes, for the person who looks into a failure.
    pub log: PathBuf,
    /// The seed of everything random.
    pub seed: u64,
    /// How much there is time for.
    pub extent: Extent,
}

/// How much there is time for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// What CI has time for.
    Short,
    /// Everything.
    Whole,
}

impl Place {
    /// The first mount.
    pub fn mount(&self) -> &Path {
        &self.mounts[0]
    }

    /// One number for the short run, one for the whole.
    pub fn size<T>(&self, short: T, whole: T) -> T {
        match self.extent {
            Extent::Short => short,
            Extent::Whole => whole,
        }
    }

    /// Run these shell scripts in order, each a case; the first that fails ends it.
    ///
    /// They find the mounts in `$M`, `$N` and `$O` and a local directory in `$L`, and start in the first mount.
    pub fn steps(&self, limit: Duration, steps: &[(&str, &str)]) -> Result<Report> {
        let mut report = Report::default();
        for (name, script) in steps {
            let outcome = self.shell(script, limit);
            let failed = outcome.is_err();
            report.case(name, outcome);
            if failed {
                break;
            }
        }
        Ok(report)
    }

    /// Run one shell script and give what it printed.
    pub fn shell(&self, script: &str, limit: Duration) -> Result<String> {
        let mut command = self.command("bash");
        command.args(["-euxo", "pipefail", "-c", script]);
        self.run(&mut command, limit)
    }

    /// Run a program; what goes wrong is kept in the log.
    pub fn run(&self, command: &mut Command, limit: Duration) -> Result<String> {
        let outcome = run(command, limit);
        let said = match &outcome {
            Ok(stdout) => stdout.clone(),
            Err(error) => format!("{error:#}"),
        };
        let mut log = OpenOptions::new().create(true).append(true).open(&self.log)?;
        writeln!(log, "--- {command:?}\n{said}")?;
        outcome
    }

    /// A program that starts in the first mount and knows the others.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.mount()).env("L", &self.scratch).env("LC_ALL", "C").env("HOME", &self.scratch);
        for (name, mount) in ["M", "N", "O"].into_iter().zip(&self.mounts) {
            command.env(name, mount);
        }
        command
    }
}
