//! Runs outside programs with a time limit, so that a dead mount cannot hang a run.
//!
//! Every program gets a process group of its own: a Ctrl-C at the terminal reaches only us, and we end the programs and clean
//! up in our own order.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

/// How long anything may take that only sets up or takes down.
pub const SETUP_LIMIT: Duration = Duration::from_secs(90);

/// How long a part of the cleaning up may take.
const CLEAN_UP_LIMIT: Duration = Duration::from_secs(30);

/// How often a wait looks whether somebody pressed Ctrl-C.
const INTERRUPT_CHECK_MS: i64 = 200;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Turn SIGINT and SIGTERM into an error in whatever `run` or `timed` is waiting, so that destructors clean up.
pub fn catch_interrupts() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::spawn(move || {
        runtime.block_on(async {
            let terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate());
            let Ok(mut terminate) = terminate else { return };
            loop {
                tokio::select! {
                    _ = tokio::signal::ctrl_c() => {}
                    _ = terminate.recv() => {}
                }
                eprintln!("interrupted: cleaning up");
                INTERRUPTED.store(true, Ordering::SeqCst);
            }
        });
    });
    Ok(())
}

/// An error once somebody has asked us to stop.
pub fn check_interrupted() -> Result<()> {
    if INTERRUPTED.load(Ordering::SeqCst) {
        bail!("interrupted");
    }
    Ok(())
}

/// Run a program to its end and give its standard output. A failure is one line that carries the program's last words.
pub fn run(command: &mut Command, limit: Duration) -> Result<String> {
    run_until(command, limit, &INTERRUPTED)
}

/// As `run`, but for cleaning up: Ctrl-C does not stop it.
pub fn run_uninterrupted(command: &mut Command) -> Result<String> {
    static NEVER: AtomicBool = AtomicBool::new(false);
    run_until(command, CLEAN_UP_LIMIT, &NEVER)
}

/// As `run_uninterrupted`, where a failure can only be told.
pub fn clean_up(command: &mut Command) {
    if let Err(error) = run_uninterrupted(command) {
        eprintln!("while cleaning up: {error:#}");
    }
}

/// Run a program to its end, throw its output away as a pipe would (tar does nothing when it sees `/dev/null`), and give the
/// seconds it took.
pub fn timed(command: &mut Command, limit: Duration) -> Result<f64> {
    let mut stderr = tempfile::tempfile()?;
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr.try_clone()?).process_group(0);
    let started = Instant::now();
    let mut child = command.spawn().with_context(|| format!("cannot start {}", line(command)))?;
    let mut pipe = child.stdout.take().context("the standard output is piped")?;
    let reader = std::thread::spawn(move || io::copy(&mut pipe, &mut io::sink()));
    let status = wait(&mut child, limit, &INTERRUPTED).with_context(|| line(command))?;
    let seconds = started.elapsed().as_secs_f64();
    let _ = reader.join();
    explain(command, status, &mut stderr)?;
    Ok(seconds)
}

/// Start a program that goes on running. What it says goes to `log`.
pub fn start(command: &mut Command, log: &Path) -> Result<Child> {
    let log = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).process_group(0);
    command.spawn().with_context(|| format!("cannot start {}", line(command)))
}

/// Ask until the answer is yes.
pub fn wait_for(what: &str, limit: Duration, mut is_so: impl FnMut() -> bool) -> Result<()> {
    let started = Instant::now();
    while !is_so() {
        check_interrupted()?;
        if started.elapsed() > limit {
            bail!("{what}: not within {} s", limit.as_secs());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// This very program, for work that has to be a process of its own: one that hangs on a dead mount can be given up.
pub fn ourselves() -> Result<Command> {
    Ok(Command::new(std::env::current_exe().context("cannot find our own program file")?))
}

/// Files, not pipes: a daemon that a program leaves behind would hold a pipe open for ever.
fn run_until(command: &mut Command, limit: Duration, stop: &AtomicBool) -> Result<String> {
    let mut stdout = tempfile::tempfile()?;
    let mut stderr = tempfile::tempfile()?;
    command.stdin(Stdio::null()).stdout(stdout.try_clone()?).stderr(stderr.try_clone()?).process_group(0);
    let mut child = command.spawn().with_context(|| format!("cannot start {}", line(command)))?;
    let status = wait(&mut child, limit, stop).with_context(|| line(command))?;
    explain(command, status, &mut stderr)?;
    text(&mut stdout)
}

fn wait(child: &mut Child, limit: Duration, stop: &AtomicBool) -> Result<ExitStatus> {
    let pid = Pid::from_child(child);
    let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
    let started = Instant::now();
    loop {
        let slice = Timespec { tv_sec: 0, tv_nsec: INTERRUPT_CHECK_MS * 1_000_000 };
        let mut fds = [PollFd::new(&pidfd, PollFlags::IN)];
        match poll(&mut fds, Some(&slice)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => return Ok(child.wait()?),
            Err(errno) => return Err(errno.into()),
        }
        let late = started.elapsed() > limit;
        if late || stop.load(Ordering::SeqCst) {
            let _ = kill_process_group(pid, Signal::KILL);
            // A process that is stuck in a dead mount does not die at once, and must not take us with it.
            let _ = poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&Timespec { tv_sec: 2, tv_nsec: 0 }));
            let _ = child.try_wait();
            return Err(if late { anyhow!("not done within {} s", limit.as_secs()) } else { anyhow!("interrupted") });
        }
    }
}

fn explain(command: &Command, status: ExitStatus, stderr: &mut File) -> Result<()> {
    if status.success() {
        return Ok(());
    }
    let said = text(stderr)?;
    let said: Vec<&str> = said.lines().filter(|line| !line.trim().is_empty()).collect();
    let last = said[said.len().saturating_sub(3)..].join(" / ");
    bail!("{}: {status}: {last}", line(command))
}

fn text(file: &mut File) -> Result<String> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The command as a person would type it, cut to a length that fits a line.
fn line(command: &Command) -> String {
    let mut words = vec![command.get_program().to_string_lossy().into_owned()];
    words.extend(command.get_args().map(|word| word.to_string_lossy().into_owned()));
    let line = words.join(" ");
    match line.char_indices().nth(160) {
        Some((end, _)) => format!("{} ...", &line[..end]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_hangs_is_ended_at_its_limit() {
        let error = run(Command::new("sleep").arg("60"), Duration::from_millis(100)).unwrap_err();
        assert_eq!(format!("{error:#}"), "sleep 60: not done within 0 s");
    }

    #[test]
    fn a_failure_carries_the_last_words() {
        let error = run(Command::new("sh").args(["-c", "echo no luck >&2; exit 3"]), SETUP_LIMIT).unwrap_err();
        assert!(format!("{error:#}").ends_with("exit status: 3: no luck"), "{error:#}");
    }
}
