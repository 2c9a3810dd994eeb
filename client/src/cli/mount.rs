//! `mortar mount FILE|HOST:/VOLUME MNT`, and `mount.mortar` and `mount.fuse.mortar` for mount(8) and fstab.
//!
//! The mount is a process of its own. The command comes back when the mount can be used, or fails with one line and
//! leaves nothing behind.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use std::{env, fs};

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, Parser};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use tokio::process::Command;

use super::logs::LogArgs;
use super::mount_options::MountOptions;
use super::process::start;
use super::{mount_process, remount, runtime};
use crate::volume::Source;

/// Where a mount in the background logs, unless it is told otherwise.
const LOG_DIR: &str = "/var/log/mortar";

/// How long a mount waits for its bricks when nobody says: enough for a slow answer, and a wrong name still fails fast.
const BRICKS_WITHIN: Duration = Duration::from_secs(4);

/// How long the mount may take beyond waiting for bricks.
const READY_WITHIN: Duration = Duration::from_secs(20);

/// Mount a volume
#[derive(Args, Clone, Debug)]
pub struct MountArgs {
    /// A volume file, a directory of `mortar up`, or `HOST[:PORT]:/VOLUME`: any brick hands out the volume file
    volume: String,
    /// The directory to mount it at
    mountpoint: PathBuf,
    /// Options as in fstab: `ro`, `nosuid`, `nodev`, `noexec`, `noacl`, `statlite`, `wait=SECONDS`, `log=LEVELS`, `log-file=FILE`
    #[arg(short, long, value_name = "OPTIONS")]
    options: Vec<String>,
    /// Stay in the foreground, and log to standard error
    #[arg(long)]
    foreground: bool,
    /// Wait this long for enough bricks
    #[arg(long, value_name = "SECONDS")]
    wait: Option<u64>,
    #[command(flatten)]
    logs: LogArgs,
}

/// The command line that mount(8) gives its helpers.
#[derive(Parser, Clone, Debug)]
#[command(name = "mount.mortar", disable_version_flag = true)]
struct HelperArgs {
    volume: String,
    mountpoint: PathBuf,
    #[arg(short)]
    options: Vec<String>,
    /// Only pretend.
    #[arg(short)]
    fake: bool,
    /// Ignore options that are not known.
    #[arg(short)]
    sloppy: bool,
    #[arg(short, action = clap::ArgAction::Count)]
    verbose: u8,
    /// Without mtab, which nobody has any more.
    #[arg(short)]
    no_mtab: bool,
    #[arg(short = 't')]
    kind: Option<String>,
}

/// Whether the program was called as mount(8) calls its helpers.
pub fn is_helper(program: &Path) -> bool {
    program.file_name().is_some_and(|name| name == "mount.mortar" || name == "mount.fuse.mortar")
}

/// Do what mount(8) wants.
pub fn run_helper(arguments: impl Iterator<Item = OsString>) -> Result<ExitCode> {
    let helper = HelperArgs::parse_from(arguments);
    let mut options = helper.options;
    if remount::is_wanted(options.iter().map(String::as_str)) {
        if !helper.fake {
            remount::run(&helper.mountpoint, options.iter().map(String::as_str))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    if helper.sloppy {
        options.push("sloppy".to_owned());
    }
    let args = MountArgs {
        volume: helper.volume,
        mountpoint: helper.mountpoint,
        options,
        foreground: false,
        wait: None,
        logs: LogArgs::default(),
    };
    if helper.fake {
        args.plan()?;
        return Ok(ExitCode::SUCCESS);
    }
    args.run()
}

/// What to mount where, checked.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) source: Source,
    pub(super) mountpoint: PathBuf,
    pub(super) options: MountOptions,
    /// How long to wait for bricks.
    pub(super) bricks_within: Duration,
    pub(super) logs: LogArgs,
}

impl MountArgs {
    /// Mount it.
    pub fn run(&self) -> Result<ExitCode> {
        let plan = self.plan()?;
        if self.foreground {
            plan.logs.start("info")?;
            return mount_process::run(&plan);
        }
        runtime()?.block_on(self.in_background(&plan))
    }

    fn plan(&self) -> Result<Plan> {
        let options = MountOptions::parse(self.options.iter().map(String::as_str))?;
        let mut logs = self.logs.clone();
        logs.log = logs.log.or_else(|| options.log.clone());
        logs.log_file = logs.log_file.or_else(|| options.log_file.clone());
        let wait = self.wait.map(Duration::from_secs).or(options.wait).unwrap_or(BRICKS_WITHIN);
        let source = match Source::parse(&self.volume)? {
            Source::File(path) => Source::File(std::path::absolute(&path).unwrap_or(path)),
            brick @ Source::Brick { .. } => brick,
        };
        let mountpoint = check_mountpoint(&self.mountpoint)?;
        Ok(Plan { source, mountpoint, options, bricks_within: wait, logs })
    }

    /// Start the same command in the foreground as a process of its own, and wait until it is ready.
    async fn in_background(&self, plan: &Plan) -> Result<ExitCode> {
        let log = match &plan.logs.log_file {
            Some(path) => std::path::absolute(path).unwrap_or_else(|_| path.clone()),
            None => default_log(&plan.mountpoint)?,
        };
        let mut command = Command::new(env::current_exe().context("cannot find out which program this is")?);
        command.arg("mount").arg("--foreground").args(plan.logs.to_arguments()).args(self.options_for_child());
        command.arg("--wait").arg(plan.bricks_within.as_secs().to_string());
        match &plan.source {
            Source::File(path) => command.arg(path),
            Source::Brick { .. } => command.arg(&self.volume),
        };
        command.arg(&plan.mountpoint).current_dir("/");
        let deadline = Instant::now() + plan.bricks_within + READY_WITHIN;
        let shown = plan.mountpoint.display();
        start(&format!("cannot mount {} at {shown}", self.volume), command, &log)?.wait(deadline).await?;
        Ok(ExitCode::SUCCESS)
    }

    /// The child writes its log where we send its output, so it is told no file.
    fn options_for_child(&self) -> Vec<String> {
        let parts = self.options.iter().flat_map(|list| list.split(','));
        let kept: Vec<&str> = parts.filter(|part| !part.starts_with("log-file=")).collect();
        if kept.is_empty() { Vec::new() } else { vec!["-o".to_owned(), kept.join(",")] }
    }
}

/// `/var/log/mortar/mnt-data.log` for `/mnt/data`.
fn default_log(mountpoint: &Path) -> Result<PathBuf> {
    fs::create_dir_all(LOG_DIR).with_context(|| format!("cannot make {LOG_DIR}"))?;
    let name = mountpoint.to_string_lossy().trim_matches('/').replace('/', "-");
    Ok(Path::new(LOG_DIR).join(format!("{name}.log")))
}

/// The mount point as an absolute path. What a mount that died left there is taken away.
fn check_mountpoint(path: &Path) -> Result<PathBuf> {
    let shown = path.display();
    if rustix::fs::stat(path).err() == Some(Errno::NOTCONN) {
        unmount(path, UnmountFlags::DETACH).with_context(|| format!("cannot remove the dead mount at {shown}"))?;
    }
    match fs::metadata(path) {
        Ok(meta) => ensure!(meta.is_dir(), "mount point {shown} is not a directory"),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => bail!("mount point {shown} does not exist"),
        Err(error) => return Err(error).with_context(|| format!("cannot use mount point {shown}")),
    }
    let path = path.canonicalize().with_context(|| format!("cannot use mount point {shown}"))?;
    let taken = mount_process::socket_of(&path).is_some();
    ensure!(!taken, "a volume is mounted at {shown} already: `mortar umount {shown}` ends that");
    Ok(path)
}

/// The same, made if it is missing.
pub(super) fn prepare_mountpoint(path: &Path) -> Result<PathBuf> {
    if rustix::fs::stat(path).err() == Some(Errno::NOENT) {
        fs::create_dir_all(path).with_context(|| format!("cannot make mount point {}", path.display()))?;
    }
    check_mountpoint(path)
}
