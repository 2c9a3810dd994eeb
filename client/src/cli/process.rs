//! Starts a brick or a mount as a process of its own, waits until it says that it is ready, and ends it again.
//!
//! Ready is what systemd calls ready: the process sends `READY=1` to the socket in `NOTIFY_SOCKET`. What it prints goes
//! to its log, and when it fails, the last line there is the reason that we show.

use std::fs::{self, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::net::UnixDatagram;
use tokio::process::{Child, Command};
use uuid::Uuid;

/// Where sockets of running processes are.
pub(super) const RUNTIME_DIR: &str = "/run/mortar";

/// The most of a log that is searched for its last line.
const TAIL_BYTES_MAX: u64 = 8192;

/// A process that was started and has not yet said that it is ready.
#[derive(Debug)]
pub(super) struct Starting {
    /// What it is, for people.
    name: String,
    child: Child,
    socket: ReadySocket,
    log: PathBuf,
    /// Where in the log its own lines begin.
    log_from: u64,
}

/// Make the directory for sockets; only root may look into it.
pub(super) fn make_runtime_dir() -> Result<()> {
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(RUNTIME_DIR);
    made.with_context(|| format!("cannot make {RUNTIME_DIR} (this command needs root)"))
}

/// The socket that a starting process calls; its name goes away with it.
#[derive(Debug)]
struct ReadySocket {
    socket: UnixDatagram,
    path: PathBuf,
}

impl ReadySocket {
    fn bind() -> Result<Self> {
        make_runtime_dir()?;
        let path = Path::new(RUNTIME_DIR).join(format!("ready-{}.sock", Uuid::new_v4()));
        let socket = UnixDatagram::bind(&path).with_context(|| format!("cannot bind {}", path.display()))?;
        Ok(Self { socket, path })
    }

    /// Wait for `READY=1`.
    async fn ready(&self) -> Result<()> {
        let mut message = [0; 512];
        loop {
            let length = self.socket.recv(&mut message).await.context("cannot wait for a process")?;
            if message[..length].split(|b| *b == b'\n').any(|line| line == b"READY=1") {
                return Ok(());
            }
        }
    }
}

impl Drop for ReadySocket {
    fn drop(&mut self) {
        fs::remove_file(&self.path).ok();
    }
}

/// Start `command`, with its output going to the end of `log`.
pub(super) fn start(name: &str, mut command: Command, log: &Path) -> Result<Starting> {
    let socket = ReadySocket::bind()?;
    let output = OpenOptions::new().create(true).append(true).open(log);
    let output = output.with_context(|| format!("cannot write log file {}", log.display()))?;
    let log_from = output.metadata().map_or(0, |meta| meta.len());
    let errors = output.try_clone().context("cannot duplicate a file descriptor")?;
    command.env("NOTIFY_SOCKET", &socket.path).stdin(Stdio::null()).stdout(output).stderr(errors);
    // A process group of its own: Ctrl-C is for us, and we end it in order.
    let child = command.process_group(0).spawn();
    let child = child.with_context(|| format!("cannot start {}", command.as_std().get_program().display()))?;
    Ok(Starting { name: name.to_owned(), child, socket, log: log.to_owned(), log_from })
}

impl Starting {
    /// Its process id; none if it has ended already.
    pub(super) fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Wait until it is ready. If it ends instead, the error is its own last line.
    pub(super) async fn wait(mut self, deadline: Instant) -> Result<Child> {
        tokio::select! {
            ready = self.socket.ready() => ready.map(|()| self.child),
            status = self.child.wait() => {
                let status = status.context("cannot wait for a process")?;
                let said = last_line(&self.log, self.log_from).unwrap_or_else(|| format!("it ended with {status}"));
                bail!("{}: {said}", self.name)
            }
            () = tokio::time::sleep_until(deadline.into()) => {
                self.child.kill().await.ok();
                bail!("{} did not become ready in time; its log is {}", self.name, self.log.display())
            }
        }
    }
}

/// The last line that was written to `log` behind `from`, without the name of the program in front.
fn last_line(log: &Path, from: u64) -> Option<String> {
    let mut file = fs::File::open(log).ok()?;
    let length = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(from.max(length.saturating_sub(TAIL_BYTES_MAX)))).ok()?;
    let mut tail = Vec::new();
    file.read_to_end(&mut tail).ok()?;
    let tail = String::from_utf8_lossy(&tail);
    let line = tail.lines().rev().find(|line| !line.trim().is_empty())?.trim();
    let bare = line.strip_prefix("mortar: ").or_else(|| line.strip_prefix("brickd: "));
    Some(bare.unwrap_or(line).to_owned())
}

/// A process that may not be our child. Holding it keeps its number from being used for another.
#[derive(Debug)]
pub(super) struct Process {
    pidfd: OwnedFd,
}

impl Process {
    /// The process with this number, if it lives and its command line contains `mark`; numbers are used again.
    pub(super) fn find(pid: u32, mark: &str) -> Option<Self> {
        let number = Pid::from_raw(i32::try_from(pid).ok()?)?;
        let pidfd = pidfd_open(number, PidfdFlags::empty()).ok()?;
        let command = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let is_ours = command.windows(mark.len()).any(|part| part == mark.as_bytes());
        is_ours.then_some(Self { pidfd })
    }

    /// Whether it ends by itself within `patience`.
    pub(super) fn ends_within(&self, patience: Duration) -> bool {
        let timeout = Timespec { tv_sec: patience.as_secs().cast_signed(), tv_nsec: patience.subsec_nanos().into() };
        let deadline = Instant::now() + patience;
        loop {
            match poll(&mut [PollFd::new(&self.pidfd, PollFlags::IN)], Some(&timeout)) {
                Ok(ready) => return ready > 0,
                Err(_) if Instant::now() < deadline => {}
                Err(_) => return false,
            }
        }
    }

    /// Ask it to end; after `patience` end it.
    pub(super) fn end(&self, patience: Duration) -> Ending {
        // It may be gone already: then the wait says so at once.
        pidfd_send_signal(&self.pidfd, Signal::TERM).ok();
        if self.ends_within(patience) {
            return Ending::Clean;
        }
        pidfd_send_signal(&self.pidfd, Signal::KILL).ok();
        self.ends_within(patience);
        Ending::Killed
    }
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// By itself, when asked.
    Clean,
    /// It did not listen.
    Killed,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[tokio::test]
    async fn a_process_that_fails_is_reported_by_its_own_last_line() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        fs::write(&log, "a line of an earlier run\n").unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        let starting = start("brick 1", shell("echo one; echo 'brickd: no disk' >&2; exit 3"), &log).unwrap();
        assert_eq!(starting.wait(deadline).await.unwrap_err().to_string(), "brick 1: no disk");
        let starting = start("brick 1", shell("exit 3"), &log).unwrap();
        assert_eq!(starting.wait(deadline).await.unwrap_err().to_string(), "brick 1: it ended with exit status: 3");
    }

    #[tokio::test]
    async fn a_process_that_does_not_listen_is_killed() {
        let dir = tempfile::tempdir().unwrap();
        let script = "trap '' TERM; echo deaf; while :; do sleep 0.1; done";
        let mut starting = start("x", shell(script), &dir.path().join("log")).unwrap();
        let pid = starting.pid().unwrap();
        while fs::read_to_string(dir.path().join("log")).unwrap() != "deaf\n" {}
        assert!(Process::find(pid, "no such words").is_none());
        let process = Process::find(pid, "while").expect("it runs");
        assert_eq!(process.end(Duration::from_millis(200)), Ending::Killed);
        starting.child.wait().await.unwrap();
    }
}
