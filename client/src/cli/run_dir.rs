//! The directory of `mortar up`: what is where, and which processes belong to it.
//!
//! ```text
//! DIR/volume.toml   DIR/bricks/0 ..   DIR/log/brick-0.log mount-1.log ..   DIR/run/brick-0.pid mount-1.pid mount-1.path up.pid ..
//! ```

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

use super::process::{Ending, Process};
use crate::volume::FILE_NAME;

/// How long programs may keep a mount busy before it is taken away from them.
const BUSY_FOR: Duration = Duration::from_secs(3);

/// How long a mount may take to write back what it holds, and a brick to finish what it does.
const END_WITHIN: Duration = Duration::from_secs(10);

/// The directory of one volume on this machine.
#[derive(Debug)]
pub(super) struct RunDir {
    root: PathBuf,
}

impl RunDir {
    /// The directory with this absolute path; it must exist.
    pub(super) fn open(root: &Path) -> Result<Self> {
        let root = root.canonicalize().with_context(|| format!("cannot use directory {}", root.display()))?;
        Ok(Self { root })
    }

    /// Make the directories in it.
    pub(super) fn make(&self) -> Result<()> {
        for part in ["run", "log", "bricks"] {
            let path = self.root.join(part);
            fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
        }
        Ok(())
    }

    /// Where the volume file is.
    pub(super) fn volume_file(&self) -> PathBuf {
        self.root.join(FILE_NAME)
    }

    /// Where a brick is.
    pub(super) fn brick(&self, index: usize) -> PathBuf {
        self.root.join(format!("bricks/{index}"))
    }

    /// Where a process logs.
    pub(super) fn log(&self, process: &str) -> PathBuf {
        self.root.join(format!("log/{process}.log"))
    }

    /// A file below `run`.
    pub(super) fn run(&self, name: &str) -> PathBuf {
        self.root.join("run").join(name)
    }

    /// Hold the directory against a second `mortar up` for as long as the file is open.
    pub(super) fn lock(&self) -> Result<File> {
        let shown = self.root.display();
        let Some(file) = self.try_lock()? else {
            bail!("a `mortar up` works on {shown} already: `mortar down {shown}` ends it");
        };
        if !self.processes("brick-").is_empty() || !self.processes("mount-").is_empty() {
            bail!("{shown} is up already: `mortar down {shown}` ends it");
        }
        Ok(file)
    }

    fn try_lock(&self) -> Result<Option<File>> {
        let path = self.run("lock");
        let file = OpenOptions::new().create(true).append(true).open(&path);
        let file = file.with_context(|| format!("cannot write {}", path.display()))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(file)),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(errno) => Err(errno).with_context(|| format!("cannot lock {}", path.display())),
        }
    }

    /// The `mortar up` that works here. Only while it holds the lock is the number in its file its own.
    pub(super) fn up(&self) -> Result<Option<Process>> {
        if self.try_lock()?.is_some() {
            return Ok(None);
        }
        Ok(self.find("up", "up"))
    }

    /// Note that a process runs.
    pub(super) fn note(&self, name: &str, pid: u32) -> Result<()> {
        let path = self.run(&format!("{name}.pid"));
        let mut file = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
        writeln!(file, "{pid}").with_context(|| format!("cannot write {}", path.display()))
    }

    /// Note where a mount is.
    pub(super) fn note_mountpoint(&self, name: &str, mountpoint: &Path) -> Result<()> {
        let path = self.run(&format!("{name}.path"));
        let bytes = mountpoint.as_os_str().as_encoded_bytes();
        fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))
    }

    /// The running processes whose names begin so, in order of their names.
    pub(super) fn processes(&self, prefix: &str) -> Vec<(String, Process)> {
        self.names(prefix).into_iter().filter_map(|name| Some((name.clone(), self.process(&name)?))).collect()
    }

    /// The processes that were noted, running or not.
    fn names(&self, prefix: &str) -> Vec<String> {
        let files = fs::read_dir(self.root.join("run")).into_iter().flatten().flatten();
        let mut names: Vec<String> = files
            .filter_map(|entry| entry.file_name().into_string().ok())
            .filter_map(|name| name.strip_suffix(".pid").filter(|name| name.starts_with(prefix)).map(str::to_owned))
            .collect();
        names.sort();
        names
    }

    /// The running process of this name. Its command line names this directory, so a number that was used again for
    /// something else is not mistaken for it.
    fn process(&self, name: &str) -> Option<Process> {
        self.find(name, self.root.to_str()?)
    }

    fn find(&self, name: &str, mark: &str) -> Option<Process> {
        let pid = fs::read_to_string(self.run(&format!("{name}.pid"))).ok()?.trim().parse().ok()?;
        Process::find(pid, mark)
    }

    /// Unmount everything, then end the bricks. Gives a line for each thing that did not go as it should.
    pub(super) fn stop(&self) -> Vec<String> {
        let mut complaints = Vec::new();
        let mounts = self.processes("mount-");
        for (name, _) in &mounts {
            complaints.extend(self.unmount(name));
        }
        for (name, process) in mounts {
            if !process.ends_within(END_WITHIN) && process.end(END_WITHIN) == Ending::Killed {
                complaints.push(format!("{name} did not end and was killed"));
            }
        }
        for (name, process) in self.processes("brick-") {
            if process.end(END_WITHIN) == Ending::Killed {
                complaints.push(format!("{name} did not end and was killed"));
            }
        }
        for name in ["brick-", "mount-"].into_iter().flat_map(|prefix| self.names(prefix)) {
            for kind in ["pid", "path"] {
                fs::remove_file(self.run(&format!("{name}.{kind}"))).ok();
            }
        }
        complaints
    }

    /// Unmount one; a busy one is given some time, then taken out of the tree.
    fn unmount(&self, name: &str) -> Option<String> {
        use std::os::unix::ffi::OsStringExt;
        let bytes = fs::read(self.run(&format!("{name}.path"))).ok()?;
        let mountpoint = PathBuf::from(std::ffi::OsString::from_vec(bytes));
        let deadline = Instant::now() + BUSY_FOR;
        loop {
            match unmount(&mountpoint, UnmountFlags::empty()) {
                Err(Errno::BUSY) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(50)),
                Err(Errno::BUSY) => break,
                Ok(()) | Err(_) => return None,
            }
        }
        unmount(&mountpoint, UnmountFlags::DETACH).ok();
        Some(format!("{} was still in use, and is gone for its users", mountpoint.display()))
    }
}
