//! The process around a brick: arguments, logs, signals, readiness.

use std::net::{IpAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use mortar_proto::volume::{BrickEntry, VolumeFile};
use mortar_xlators::posix::{create_brick, prepare_process};
use tokio::signal::unix::{SignalKind, signal};
use tracing::info;
use tracing_subscriber::EnvFilter;

use crate::server::THREAD_STACK_BYTES;
use crate::{Brick, BrickConfig, Extras, Threads};

/// Threads that serve connections: more than a few only cost memory, since a brick's disk is what it waits for.
const THREADS_MAX: usize = 4;

/// How to run a brick.
#[derive(Clone, Debug, clap::Args)]
pub struct BrickArgs {
    /// The directory of the brick
    pub path: PathBuf,
    /// The volume file
    #[arg(long, value_name = "FILE")]
    pub volume: PathBuf,
    /// HOST:PORT to listen on [default: the brick's port in the volume file]
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<String>,
    /// The id of the brick in the volume file, if its path does not tell
    #[arg(long, value_name = "ID")]
    pub id: Option<String>,
    /// Make the directory a brick of the volume first, if it is empty or does not exist
    #[arg(long)]
    pub create: bool,
    /// Refuse every change
    #[arg(long)]
    pub read_only: bool,
    /// Write every fop to the log
    #[arg(long)]
    pub trace: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub log: LogArgs,
}

/// What is logged, and how.
#[derive(Clone, Debug, clap::Args)]
pub struct LogArgs {
    /// Which log lines, such as `info` or `warn,mortar_brick::session=debug`
    #[arg(long = "log", env = "MORTAR_LOG", value_name = "LEVELS", default_value = "info")]
    pub levels: String,
    /// How log lines look
    #[arg(long = "log-format", env = "MORTAR_LOG_FORMAT", value_name = "FORMAT", default_value = "text")]
    pub format: LogFormat,
}

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// For machines: one object a line.
    Json,
}

impl LogArgs {
    /// Write the log of this process to standard error from now on.
    pub fn start(&self) -> Result<()> {
        let filter = EnvFilter::try_new(&self.levels).with_context(|| format!("cannot read --log {}", self.levels))?;
        let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
        let started = match self.format {
            LogFormat::Text => log.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).try_init(),
            LogFormat::Json => log.json().flatten_event(true).try_init(),
        };
        started.map_err(|error| anyhow!("cannot start the log: {error}"))
    }
}

/// Serve a brick until a signal ends it.
pub fn run(args: BrickArgs) -> Result<()> {
    args.log.start()?;
    let config = config(&args)?;
    prepare_process();
    if args.create
        && let Err(error) = create_brick(&config.path, config.volume.id)
        && !error.is_a_brick_already()
    {
        return Err(error.into());
    }
    // This thread accepts connections and waits for signals; the brick's own threads serve.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .thread_stack_size(THREAD_STACK_BYTES)
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    runtime.block_on(serve(config))
}

async fn serve(config: BrickConfig) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut dump = signal(SignalKind::user_defined1())?;
    let brick = Brick::start(config).await?;
    // Without systemd there is nobody to tell.
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
    let name = loop {
        tokio::select! {
            _ = terminate.recv() => break "SIGTERM",
            _ = interrupt.recv() => break "SIGINT",
            _ = dump.recv() => eprintln!("{}", brick.statedump()),
        }
    };
    info!(signal = name, "stopping");
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
    brick.shutdown().await;
    info!("stopped");
    Ok(())
}

fn config(args: &BrickArgs) -> Result<BrickConfig> {
    let shown = args.volume.display();
    let text = std::fs::read_to_string(&args.volume).with_context(|| format!("cannot read volume file {shown}"))?;
    let volume = VolumeFile::parse(&text).with_context(|| format!("volume file {shown}"))?;
    let brick = find(&volume, args)?.clone();
    let listen = match &args.listen {
        Some(listen) => listen.clone(),
        None => default_listen(&brick.address)?,
    };
    let mut config = BrickConfig::new(&args.path, listen, volume, &brick.id);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    config.threads = Threads::Own(cores.min(THREADS_MAX));
    config.extras = Extras { read_only: args.read_only, trace: args.trace };
    Ok(config)
}

/// Which brick of the volume the arguments mean: by id, else by path, and by address if several have the path.
fn find<'a>(volume: &'a VolumeFile, args: &BrickArgs) -> Result<&'a BrickEntry> {
    let shown = args.volume.display();
    if let Some(id) = &args.id {
        let found = volume.bricks.iter().find(|brick| brick.id == *id);
        return found.ok_or_else(|| anyhow!("{shown} has no brick with the id {id}"));
    }
    // A directory that is yet to be made has no canonical path.
    let absolute = std::path::absolute(&args.path).unwrap_or_else(|_| args.path.clone());
    let real = std::fs::canonicalize(&args.path).unwrap_or_else(|_| absolute.clone());
    let here = |brick: &&BrickEntry| [absolute.as_path(), real.as_path()].contains(&Path::new(&brick.path));
    let mut found: Vec<_> = volume.bricks.iter().filter(here).collect();
    if let (true, Some(listen)) = (found.len() > 1, &args.listen) {
        found.retain(|brick| brick.address == *listen);
    }
    if found.len() > 1 {
        // Hosts often have the same paths.
        found.retain(|brick| is_here(brick));
    }
    match found[..] {
        [brick] => Ok(brick),
        [] => bail!("{shown} has no brick at {}: is it the right volume file? (--id names the brick)", real.display()),
        _ => bail!("{shown} does not say which of its bricks is {} on this host: say it with --id", real.display()),
    }
}

/// Whether the host of a brick is this one: then a socket can be bound to its address.
fn is_here(brick: &BrickEntry) -> bool {
    let host = brick.address.rsplit_once(':').map_or("", |(host, _)| host);
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let mut addresses = (bare, 0).to_socket_addrs().into_iter().flatten();
    addresses.any(|address| std::net::UdpSocket::bind(address).is_ok())
}

/// A brick that is known by a host's name listens on all addresses: the name may lead elsewhere on the host itself.
fn default_listen(address: &str) -> Result<String> {
    let (host, port) = address.rsplit_once(':').with_context(|| format!("the address {address} has no port"))?;
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    Ok(if bare.parse::<IpAddr>().is_ok() { address.to_owned() } else { format!("[::]:{port}") })
}
