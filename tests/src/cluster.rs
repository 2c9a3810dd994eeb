//! A volume of real processes with real mounts, for tests that need the kernel or a `kill -9`.
//!
//! Everything goes through the command line that a person would use (`mortar up`, `mortar down`), so the harness knows no more
//! than the run directory's layout: process ids in `run/`, logs in `log/`, bricks in `bricks/`.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::bench::command::{SETUP_LIMIT, clean_up, run, wait_for};
use crate::bench::disk::RamDisk;
use crate::bench::mortar::program;

/// How long a killed process may take to be gone.
const GONE_WITHIN: Duration = Duration::from_secs(10);

/// What a volume shall look like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// How many bricks, in sets of `replica`.
    pub bricks: usize,
    /// How many copies.
    pub replica: usize,
    /// How many mounts.
    pub clients: usize,
}

/// A volume that runs, and is taken down and removed when dropped.
#[derive(Debug)]
pub struct Cluster {
    mounts: Vec<PathBuf>,
    directory: PathBuf,
    program: PathBuf,
    /// Of the mounts.
    options: &'static [&'static str],
    is_up: bool,
    // In this order: the disks are unmounted, those of bricks first, then the directory that they are mounted in goes away.
    _brick_disks: Vec<RamDisk>,
    disk: RamDisk,
    scratch: TempDir,
}

impl Cluster {
    /// Make a volume on a disk in memory and mount it `clients` times.
    pub fn up(bricks: usize, replica: usize, clients: usize) -> Result<Self> {
        Self::up_on(Shape { bricks, replica, clients }, 8 << 30)
    }

    /// As `up`, with the size of the disk that all bricks share.
    pub fn up_on(shape: Shape, disk_bytes: u64) -> Result<Self> {
        Self::up_with(shape, disk_bytes, &[])
    }

    /// As `up_on`, with mount options.
    pub fn up_with(shape: Shape, disk_bytes: u64, options: &'static [&'static str]) -> Result<Self> {
        Self::build(shape, disk_bytes, &[], options)
    }

    /// As `up`, with a disk of this size for each brick.
    pub fn up_on_disks(shape: Shape, disks_bytes: &[u64]) -> Result<Self> {
        assert_eq!(disks_bytes.len(), shape.bricks, "a disk for each brick");
        Self::build(shape, 1 << 30, disks_bytes, &[])
    }

    /// Bricks without a disk of their own share one.
    fn build(shape: Shape, shared_bytes: u64, disks_bytes: &[u64], options: &'static [&'static str]) -> Result<Self> {
        let program = program()?;
        let scratch = tempfile::Builder::new().prefix("mortar-cluster-").tempdir()?;
        // Tests work as other users too, and must reach the mounts.
        fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o755))?;
        let disk = RamDisk::new(&scratch.path().join("disk"), shared_bytes)?;
        let directory = disk.path().join("volume");
        let brick_disks = disks_bytes
            .iter()
            .enumerate()
            .map(|(index, bytes)| RamDisk::new(&directory.join(format!("bricks/{index}")), *bytes));
        let brick_disks = brick_disks.collect::<Result<_>>()?;
        let mount = scratch.path().join("mnt");
        let mounts = match shape.clients {
            1 => vec![mount.clone()],
            clients => (1..=clients).map(|index| scratch.path().join(format!("mnt-{index}"))).collect(),
        };
        let mut cluster =
            Self { mounts, directory, program, options, is_up: false, _brick_disks: brick_disks, disk, scratch };
        let bricks = shape.bricks.to_string();
        let (replica, clients) = (shape.replica.to_string(), shape.clients.to_string());
        cluster.start(&["--bricks", &bricks, "--replica", &replica, "--clients", &clients, "--mount"], &mount)?;
        Ok(cluster)
    }

    /// The `index`th mount, from 0.
    pub fn mount(&self, index: usize) -> &Path {
        &self.mounts[index]
    }

    /// All mounts.
    pub fn mounts(&self) -> &[PathBuf] {
        &self.mounts
    }

    /// How many bricks there are.
    pub fn brick_count(&self) -> usize {
        fs::read_dir(self.directory.join("bricks")).map_or(0, Iterator::count)
    }

    /// The directory of a brick.
    pub fn brick(&self, index: usize) -> PathBuf {
        self.directory.join(format!("bricks/{index}"))
    }

    /// The disk that all bricks share.
    pub fn disk(&self) -> &Path {
        self.disk.path()
    }

    /// The directory given to `mortar up`.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// SIGKILL for a brick. Gives what it takes to start it again.
    pub fn kill_brick(&self, index: usize) -> Result<DeadBrick> {
        let pid = self.pid(&format!("brick-{index}"))?;
        let proc = PathBuf::from(format!("/proc/{}", pid.as_raw_nonzero()));
        let words = fs::read(proc.join("cmdline")).context("cannot read the command line of a brick")?;
        // The brick exists by now: made again, it would refuse.
        let words: Vec<_> = words
            .split(|byte| *byte == 0)
            .filter(|word| !word.is_empty() && *word != b"--create")
            .map(|word| std::ffi::OsString::from_vec(word.to_vec()))
            .collect();
        kill_process(pid, Signal::KILL).context("cannot kill a brick")?;
        // A process that somebody else must reap stays as a zombie, without a command line.
        wait_for("the end of a brick", GONE_WITHIN, || {
            fs::read(proc.join("cmdline")).map_or(true, |line| line.is_empty())
        })?;
        Ok(DeadBrick { index, words })
    }

    /// SIGKILL for the process that serves a mount, and the mount out of the tree.
    pub fn kill_mount(&self, index: usize) -> Result<()> {
        self.signal_mount(index, Signal::KILL)?;
        unmount(&self.mounts[index], UnmountFlags::DETACH).context("cannot take a dead mount away")
    }

    /// A signal for the process that serves a mount.
    pub fn signal_mount(&self, index: usize, signal: Signal) -> Result<()> {
        kill_process(self.mount_pid(index)?, signal).context("cannot signal a mount")
    }

    fn mount_pid(&self, index: usize) -> Result<Pid> {
        self.pid(&format!("mount-{}", index + 1))
    }

    /// Start a killed brick again, with the command line it had.
    pub fn start_brick(&self, dead: &DeadBrick) -> Result<()> {
        let name = format!("brick-{}", dead.index);
        let (program, arguments) = dead.words.split_first().context("a brick's command line is empty")?;
        let log = OpenOptions::new().create(true).append(true).open(self.directory.join(format!("log/{name}.log")))?;
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).process_group(0);
        let child = command.spawn().context("cannot start a brick again")?;
        let mut file = fs::File::create(self.directory.join(format!("run/{name}.pid")))?;
        writeln!(file, "{}", child.id())?;
        Ok(())
    }

    /// Take the volume down, keeping the data. `start_again` brings it back.
    pub fn down(&mut self) -> Result<()> {
        self.is_up = false;
        run(Command::new(&self.program).arg("down").arg(&self.directory), SETUP_LIMIT).map(|_| ())
    }

    /// Bring a volume up again that was taken down.
    pub fn start_again(&mut self) -> Result<()> {
        let clients = self.mounts.len().to_string();
        let mount = self.scratch.path().join("mnt");
        self.start(&["--clients", &clients, "--mount"], &mount)
    }

    /// How many lines of all logs say this.
    pub fn logged(&self, words: &str) -> usize {
        let logs = fs::read_dir(self.directory.join("log")).into_iter().flatten().flatten();
        let text =
            |entry: fs::DirEntry| String::from_utf8_lossy(&fs::read(entry.path()).unwrap_or_default()).into_owned();
        logs.map(|entry| text(entry).lines().filter(|line| line.contains(words)).count()).sum()
    }

    /// The last lines of all logs, for the message of a test that failed.
    pub fn log_tails(&self) -> String {
        let mut tails = String::new();
        for entry in fs::read_dir(self.directory.join("log")).into_iter().flatten().flatten() {
            let text = fs::read(entry.path()).unwrap_or_default();
            let text = String::from_utf8_lossy(&text);
            let lines: Vec<&str> = text.lines().collect();
            let tail = lines[lines.len().saturating_sub(8)..].join("\n  ");
            tails.push_str(&format!("{}:\n  {tail}\n", entry.path().display()));
        }
        tails
    }

    /// Whether a brick or a mount has ended that nobody ended.
    pub fn dead_processes(&self) -> Vec<String> {
        let files = fs::read_dir(self.directory.join("run")).into_iter().flatten().flatten();
        files
            .filter_map(|entry| entry.file_name().into_string().ok()?.strip_suffix(".pid").map(str::to_owned))
            .filter(|name| !self.pid(name).is_ok_and(is_running))
            .collect()
    }

    fn start(&mut self, arguments: &[&str], mount: &Path) -> Result<()> {
        self.is_up = true;
        let mut command = Command::new(&self.program);
        command.arg("up").arg(&self.directory).args(arguments).arg(mount).arg("--detach");
        self.options.iter().for_each(|option| {
            command.args(["--options", option]);
        });
        run(&mut command, SETUP_LIMIT).with_context(|| self.log_tails())?;
        Ok(())
    }

    fn pid(&self, process: &str) -> Result<Pid> {
        let path = self.directory.join(format!("run/{process}.pid"));
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        text.trim().parse().ok().and_then(Pid::from_raw).with_context(|| format!("{} holds no number", path.display()))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if !self.is_up {
            return;
        }
        clean_up(Command::new(&self.program).arg("down").arg(&self.directory));
        // `mortar down` has done this already unless it failed; then a dead mount must not keep the disk busy.
        for mount in &self.mounts {
            let _ = unmount(mount, UnmountFlags::DETACH);
        }
        for name in self.dead_or_alive() {
            if let Ok(pid) = self.pid(&name)
                && is_running(pid)
            {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }
}

impl Cluster {
    fn dead_or_alive(&self) -> Vec<String> {
        let files = fs::read_dir(self.directory.join("run")).into_iter().flatten().flatten();
        files
            .filter_map(|entry| entry.file_name().into_string().ok()?.strip_suffix(".pid").map(str::to_owned))
            .filter(|name| name.starts_with("brick-") || name.starts_with("mount-"))
            .collect()
    }
}

/// A brick that was killed, and how it was started.
#[derive(Debug)]
pub struct DeadBrick {
    index: usize,
    words: Vec<std::ffi::OsString>,
}

/// Whether it runs, and is ours: a number may have been given to somebody else.
fn is_running(pid: Pid) -> bool {
    fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).is_ok_and(|line| {
        let line = String::from_utf8_lossy(&line);
        line.contains("mortar") || line.contains("brickd")
    })
}
