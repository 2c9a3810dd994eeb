//! `mortar up DIR`: a whole volume on this machine, mounted.
//!
//! Makes the bricks below DIR, starts a process for each and for each mount, and stops them in order. The shape of the
//! volume and the ports are kept in `DIR/volume.toml`, so the same command starts the same volume again.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use std::{env, fs};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use futures::stream::{FuturesUnordered, StreamExt};
use mortar_proto::volume::{Shape, VolumeFile};
use mortar_xlators::graph::Quorum;
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};
use uuid::Uuid;

use super::logs::LogArgs;
use super::process::{Starting, start};
use super::run_dir::RunDir;
use super::{print, runtime, table};
use crate::volume;

/// How long bricks and mounts may take to become ready: many of them, on a machine that is busy.
const READY_WITHIN: Duration = Duration::from_secs(120);

/// How long a mount waits for bricks that are ready, so only for its connections to them.
const BRICKS_WITHIN: Duration = Duration::from_secs(60);

/// The first port that is tried. Below the range that the kernel gives to outgoing connections, so that a port that
/// is kept in the volume file is still free tomorrow.
const FIRST_PORT: u16 = 24_200;

/// Where that range begins on Linux.
const LAST_PORT: u16 = 32_767;

/// Says that the bricks of this volume were never all ready, and may be made.
const UNFINISHED: &str = "unfinished";

/// Run a whole volume on this machine: bricks, processes, mounts
#[derive(Args, Clone, Debug)]
pub struct UpArgs {
    /// Where the bricks, the volume file, the logs and the process ids are
    dir: PathBuf,
    /// How many bricks [default: two sets]
    #[arg(long, value_name = "N")]
    bricks: Option<usize>,
    /// How many copies of each file [default: 3]
    #[arg(long, value_name = "N")]
    replica: Option<u32>,
    /// The third brick of each set keeps names and attributes only
    #[arg(long)]
    arbiter: bool,
    /// What to call the volume [default: gv0]
    #[arg(long, value_name = "NAME")]
    volume: Option<String>,
    /// Mount it here
    #[arg(long, value_name = "MNT")]
    mount: Option<PathBuf>,
    /// Mount it this often, each as a client of its own: at MNT-1, MNT-2 and so on
    #[arg(long, value_name = "N", default_value_t = 1, requires = "mount")]
    clients: u32,
    /// Options of the mounts, as for `mortar mount`
    #[arg(short, long, value_name = "OPTIONS", requires = "mount")]
    options: Vec<String>,
    /// Leave it running and come back; `mortar down DIR` stops it
    #[arg(long)]
    detach: bool,
    #[command(flatten)]
    logs: LogArgs,
}

/// What runs.
#[derive(Debug)]
struct Running {
    name: String,
    child: Child,
}

impl UpArgs {
    /// Bring it up; without `--detach`, stay until Ctrl-C and take it down again.
    pub fn run(&self) -> Result<ExitCode> {
        fs::create_dir_all(&self.dir).with_context(|| format!("cannot make {}", self.dir.display()))?;
        let dir = RunDir::open(&self.dir)?;
        dir.make()?;
        let _lock = dir.lock()?;
        let file = self.volume_file(&dir)?;
        dir.note("up", std::process::id())?;
        let done = runtime()?.block_on(self.run_all(&dir, &file));
        fs::remove_file(dir.run("up.pid")).ok();
        if self.detach && done.is_ok() {
            print(&format!("\nStop it with: mortar down {}\n", self.dir.display()))?;
            return Ok(ExitCode::SUCCESS);
        }
        for complaint in dir.stop() {
            eprintln!("mortar: {complaint}");
        }
        done?;
        print(&format!("Stopped; the data is kept. Start it again with: mortar up {}\n", self.dir.display()))?;
        Ok(ExitCode::SUCCESS)
    }

    /// Start everything; without `--detach`, return when it shall end.
    async fn run_all(&self, dir: &RunDir, file: &VolumeFile) -> Result<()> {
        let mut interrupted = signal(SignalKind::interrupt()).context("cannot wait for signals")?;
        let mut terminated = signal(SignalKind::terminate()).context("cannot wait for signals")?;
        let work = async {
            let running = self.start_all(dir, file).await?;
            print(&self.describe(dir, file))?;
            if !self.detach {
                print("\nRunning until Ctrl-C.\n")?;
                watch(dir, running).await;
            }
            Ok(())
        };
        tokio::select! {
            done = work => done,
            _ = interrupted.recv() => self.interrupted(),
            _ = terminated.recv() => self.interrupted(),
        }
    }

    /// What a signal means: the end that was waited for, or that `--detach` did not get to its end.
    fn interrupted(&self) -> Result<()> {
        if self.detach { bail!("interrupted before everything was ready") } else { Ok(()) }
    }

    /// The volume file in the directory, or a new one.
    fn volume_file(&self, dir: &RunDir) -> Result<VolumeFile> {
        let path = dir.volume_file();
        if path.exists() {
            let file = volume::read(&path)?;
            self.agree(&file)?;
            return Ok(file);
        }
        let replica = self.replica.unwrap_or(3);
        let count = self.bricks.unwrap_or(2 * replica as usize);
        let name = self.volume.as_deref().unwrap_or("gv0");
        let ports = free_ports(count)?;
        let bricks: Vec<String> =
            (0..count).map(|index| format!("127.0.0.1:{}:{}", ports[index], dir.brick(index).display())).collect();
        let shape = Shape { replica, arbiter: self.arbiter, quorum: Quorum::Auto };
        let file = VolumeFile::create(name, Uuid::new_v4(), shape, &bricks)?;
        fs::write(dir.run(UNFINISHED), "").with_context(|| format!("cannot write into {}", self.dir.display()))?;
        volume::write_new(&path, &file)?;
        Ok(file)
    }

    /// Refuse arguments that contradict what is there.
    fn agree(&self, file: &VolumeFile) -> Result<()> {
        let differs = |flag: &str, asked: String, is: String| {
            if asked == is { None } else { Some(format!("{flag} {asked}, but the volume there has {is}")) }
        };
        let problems = [
            self.bricks.and_then(|asked| differs("--bricks", asked.to_string(), file.bricks.len().to_string())),
            self.replica.and_then(|asked| differs("--replica", asked.to_string(), file.replica.to_string())),
            self.volume.as_ref().and_then(|asked| differs("--volume", asked.clone(), file.name.clone())),
            (self.arbiter && !file.arbiter).then(|| "--arbiter, but the volume there has none".to_owned()),
        ];
        if let Some(problem) = problems.into_iter().flatten().next() {
            bail!(
                "{} is in use: you asked for {problem}; leave the option out, or use another directory",
                self.dir.display()
            );
        }
        Ok(())
    }

    async fn start_all(&self, dir: &RunDir, file: &VolumeFile) -> Result<Vec<Running>> {
        let programs = Programs::find(&self.logs)?;
        let is_new = dir.run(UNFINISHED).exists();
        let bricks = (0..file.bricks.len()).map(|index| {
            let make = if is_new { Some("--create") } else { None };
            (format!("brick-{index}"), programs.brick(dir, file, index, make))
        });
        let mut running = start_group(dir, bricks).await?;
        if is_new {
            fs::remove_file(dir.run(UNFINISHED)).context("cannot note that the bricks are made")?;
        }
        let mut mounts = Vec::new();
        for (index, mountpoint) in self.mountpoints()?.iter().enumerate() {
            let name = format!("mount-{}", index + 1);
            dir.note_mountpoint(&name, mountpoint)?;
            mounts.push((name, programs.mount(dir, mountpoint, &self.options)));
        }
        running.extend(start_group(dir, mounts.into_iter()).await?);
        Ok(running)
    }

    /// Absolute, made where they are missing.
    fn mountpoints(&self) -> Result<Vec<PathBuf>> {
        let Some(base) = &self.mount else { return Ok(Vec::new()) };
        ensure!(self.clients > 0, "--clients 0: give at least one");
        let numbered = |index| {
            let mut path = base.as_os_str().to_owned();
            path.push(format!("-{index}"));
            PathBuf::from(path)
        };
        let paths = if self.clients == 1 { vec![base.clone()] } else { (1..=self.clients).map(numbered).collect() };
        paths.into_iter().map(|path| super::mount::prepare_mountpoint(&path)).collect()
    }

    /// Where everything is.
    fn describe(&self, dir: &RunDir, file: &VolumeFile) -> String {
        let mut rows = table(&["", "PID", "ADDRESS", "WHERE"]);
        let pid =
            |name: &str| fs::read_to_string(dir.run(&format!("{name}.pid"))).unwrap_or_default().trim().to_owned();
        for (index, brick) in file.bricks.iter().enumerate() {
            rows.add_row([brick.id.clone(), pid(&format!("brick-{index}")), brick.address.clone(), brick.path.clone()]);
        }
        for index in 1..=self.clients {
            let name = format!("mount-{index}");
            if let Ok(mountpoint) = fs::read(dir.run(&format!("{name}.path"))) {
                let shown = String::from_utf8_lossy(&mountpoint).into_owned();
                rows.add_row([name.clone(), pid(&name), String::new(), shown]);
            }
        }
        format!("volume {}: {}\n{}\n", file.name, dir.volume_file().display(), rows.trim_fmt())
    }
}

/// Start these together, then wait until all are ready.
async fn start_group(dir: &RunDir, commands: impl Iterator<Item = (String, Command)>) -> Result<Vec<Running>> {
    let mut starting: Vec<(String, Starting)> = Vec::new();
    for (name, command) in commands {
        let process = start(&name, command, &dir.log(&name))?;
        if let Some(pid) = process.pid() {
            dir.note(&name, pid)?;
        }
        starting.push((name, process));
    }
    let deadline = Instant::now() + READY_WITHIN;
    let ready = starting.into_iter().map(async |(name, process)| {
        let child = process.wait(deadline).await?;
        anyhow::Ok(Running { name, child })
    });
    // The first that fails ends the wait for the others.
    futures::future::try_join_all(ready).await
}

/// Say so when a process ends. Does not end itself.
async fn watch(dir: &RunDir, running: Vec<Running>) {
    let wait = |mut process: Running| async move { (process.name, process.child.wait().await) };
    let mut ends: FuturesUnordered<_> = running.into_iter().map(wait).collect();
    while let Some((name, status)) = ends.next().await {
        let how = status.map_or_else(|error| error.to_string(), |status| status.to_string());
        eprintln!("mortar: {name} ended ({how}); its log is {}", dir.log(&name).display());
    }
    futures::future::pending::<()>().await;
}

/// Ports of this machine that nobody listens on.
fn free_ports(count: usize) -> Result<Vec<u16>> {
    // Two directories brought up at the same moment should not look at the same ports first.
    let skip = u16::try_from(std::process::id() % 400).expect("a number below 400 is small") * 20;
    let mut held = Vec::new();
    for port in (FIRST_PORT + skip..=LAST_PORT).chain(FIRST_PORT..FIRST_PORT + skip) {
        if held.len() == count {
            break;
        }
        if let Ok(listener) = TcpListener::bind(("127.0.0.1", port)) {
            held.push((port, listener));
        }
    }
    ensure!(held.len() == count, "there are no {count} free ports from {FIRST_PORT} to {LAST_PORT}");
    Ok(held.into_iter().map(|(port, _)| port).collect())
}

/// The programs that are started.
#[derive(Debug)]
struct Programs {
    mortar: PathBuf,
    /// Beside `mortar`, if it is installed.
    brickd: Option<PathBuf>,
    logs: Vec<String>,
}

impl Programs {
    fn find(logs: &LogArgs) -> Result<Self> {
        let mortar = env::current_exe().context("cannot find out which program this is")?;
        let brickd = mortar.with_file_name("brickd");
        Ok(Self { mortar, brickd: brickd.is_file().then_some(brickd), logs: logs.to_arguments() })
    }

    fn brick(&self, dir: &RunDir, file: &VolumeFile, index: usize, make: Option<&str>) -> Command {
        let brick = &file.bricks[index];
        let mut command = match &self.brickd {
            Some(brickd) => Command::new(brickd),
            None => {
                let mut command = Command::new(&self.mortar);
                command.arg("brick");
                command
            }
        };
        command.arg(&brick.path).arg("--volume").arg(dir.volume_file());
        command.args(["--listen", &brick.address, "--id", &brick.id]).args(make).args(&self.logs);
        command
    }

    fn mount(&self, dir: &RunDir, mountpoint: &Path, options: &[String]) -> Command {
        let mut command = Command::new(&self.mortar);
        command.arg("mount").arg("--foreground").args(&self.logs);
        options.iter().for_each(|option| {
            command.args(["-o", option]);
        });
        command.arg(dir.volume_file()).arg(mountpoint);
        command.arg("--wait").arg(BRICKS_WITHIN.as_secs().to_string());
        command
    }
}
