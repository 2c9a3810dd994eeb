//! `cargo clients-untar`: the customer's script. Several clients at once, each `mkdir` and untar, again and again; afterwards
//! everything is compared with the source, through another client than the one that wrote it.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use clap::{Parser, Subcommand};

use super::command::{SETUP_LIMIT, catch_interrupts, clean_up, run, timed};
use super::disk::{Mount, RamDisk};
use super::mortar;
use super::namespace::Namespace;
use super::packages::{self, IPROUTE, LINUX_SOURCE, Package, XFSPROGS, XZ};
use super::tree::{self, Size, Source};
use super::volume::{default_cache, require_root};

/// What a run needs.
const PACKAGES: [Package; 4] = [XFSPROGS, IPROUTE, LINUX_SOURCE, XZ];

/// Many bricks on few processors take their time to come up.
const UP_LIMIT: Duration = Duration::from_secs(300);

/// Several clients untar a kernel tree at the same time, again and again
#[derive(Debug, Parser)]
#[command(name = "clients-untar", args_conflicts_with_subcommands = true)]
struct Arguments {
    /// How many clients, each with a mount of its own
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..=64))]
    mounts: u32,
    /// How often each client makes a directory and untars into it
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    times: u32,
    /// Which part of the kernel's source is untarred
    #[arg(long, value_enum, default_value = "small")]
    tree: Size,
    /// Replica sets that files are distributed over
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    sets: u32,
    /// Copies in each set
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    replica: u32,
    /// Put the bricks below this directory [default: on a disk in memory]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Where the unpacked tree is kept [default: bench in the target directory]
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
    /// Install the Debian packages that are missing
    #[arg(long)]
    install: bool,
    #[command(subcommand)]
    part: Option<Part>,
}

/// What runs as a process of its own, because a process can be given up and a thread cannot.
#[derive(Debug, Subcommand)]
enum Part {
    /// List a tree with checksums.
    #[command(hide = true)]
    Manifest { root: PathBuf },
}

/// The program.
pub fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let outcome = match &arguments.part {
        Some(Part::Manifest { root }) => tree::manifest(root).map(|lines| print!("{lines}")),
        None => script(&arguments),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("clients-untar: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn script(arguments: &Arguments) -> Result<()> {
    require_root()?;
    catch_interrupts()?;
    if arguments.install {
        packages::install(&PACKAGES)?;
    }
    packages::require(&PACKAGES)?;
    let cache = arguments.cache.clone().map_or_else(default_cache, Ok)?;
    let source = Source::prepare(&cache, arguments.tree)?;
    mortar::build()?;
    let scratch = tempfile::Builder::new().prefix("mortar-clients-").tempdir()?;
    let volume = Volume::start(arguments, &scratch.path().canonicalize()?)?;
    for (program, (count, kib)) in volume.namespace.programs() {
        println!("idle: {count} x {program}, at most {:.1} MB resident", kib as f64 / 1024.0);
    }

    let before = volume.namespace.cpu_seconds();
    let started = Instant::now();
    let seconds = all_at_once(arguments.mounts, |client| untar_all(arguments, &source, &volume, client))?;
    let total = started.elapsed().as_secs_f64();
    let cpu_seconds = volume.namespace.cpu_seconds() - before;
    for (client, seconds) in seconds.iter().enumerate() {
        println!("client {}: {seconds:.1} s", client + 1);
    }
    println!("all: {total:.1} s, {cpu_seconds:.1} s of CPU in bricks and mounts");

    let verified = Instant::now();
    all_at_once(arguments.mounts, |client| verify_all(arguments, &source, &volume, client))?;
    println!("verified through other mounts: {:.1} s", verified.elapsed().as_secs_f64());
    Ok(())
}

/// Run something for each client in a thread of its own, and give the answers, or the first failure.
fn all_at_once<T: Send>(clients: u32, work: impl Fn(usize) -> Result<T> + Sync) -> Result<Vec<T>> {
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..clients as usize).map(|client| scope.spawn(move || work(client))).collect();
        // All are waited for before the first failure is told: the volume must not go while somebody works on it.
        let outcomes: Vec<Result<T>> = threads
            .into_iter()
            .enumerate()
            .map(|(client, thread)| {
                let outcome = thread.join().map_err(|_| anyhow!("a thread panicked"));
                outcome.and_then(|outcome| outcome).with_context(|| format!("client {}", client + 1))
            })
            .collect();
        outcomes.into_iter().collect()
    })
}

fn untar_all(arguments: &Arguments, source: &Source, volume: &Volume, client: usize) -> Result<f64> {
    let started = Instant::now();
    for time in 0..arguments.times {
        let directory = directory(&volume.mounts[client], client, time);
        run(Command::new("mkdir").arg(&directory), SETUP_LIMIT)?;
        timed(&mut source.untar_into(&directory), arguments.tree.limit())?;
    }
    Ok(started.elapsed().as_secs_f64())
}

/// What a client has written, seen through its neighbour's mount.
fn verify_all(arguments: &Arguments, source: &Source, volume: &Volume, client: usize) -> Result<()> {
    let neighbour = &volume.mounts[(client + 1) % volume.mounts.len()];
    for time in 0..arguments.times {
        source.verify(&directory(neighbour, client, time), arguments.tree.limit())?;
    }
    Ok(())
}

fn directory(mount: &Mount, client: usize, time: u32) -> PathBuf {
    mount.path().join(format!("client{}-{}", client + 1, time + 1))
}

/// The volume. Fields are dropped in this order, after `mortar down`.
#[derive(Debug)]
struct Volume {
    mounts: Vec<Mount>,
    program: PathBuf,
    bricks: PathBuf,
    namespace: Namespace,
    _disk: Option<RamDisk>,
}

impl Volume {
    fn start(arguments: &Arguments, scratch: &Path) -> Result<Self> {
        let program = mortar::program()?;
        let disk = match arguments.dir {
            Some(_) => None,
            None => Some(RamDisk::new(&scratch.join("disk"), disk_bytes(arguments))?),
        };
        let bricks = match (&disk, &arguments.dir) {
            (Some(disk), _) => disk.path().join("volume"),
            (None, Some(dir)) => std::path::absolute(dir)?,
            (None, None) => bail!("there is no place for bricks"),
        };
        let namespace = Namespace::new("clients")?;
        // Another mount is needed to verify through, even if there is one client.
        let count = arguments.mounts.max(2);
        let base = scratch.join("mnt");
        let paths = (1..=count).map(|number| scratch.join(format!("mnt-{number}")));
        let mounts = paths.map(|path| Mount::expected_at(&path)).collect::<Result<Vec<_>>>()?;
        let volume = Self { mounts, program, bricks, namespace, _disk: disk };
        let mut up = volume.namespace.command(&volume.program.to_string_lossy());
        up.arg("up").arg(&volume.bricks).arg("--bricks").arg((arguments.sets * arguments.replica).to_string());
        up.arg("--replica").arg(arguments.replica.to_string()).arg("--mount").arg(&base);
        run(up.arg("--clients").arg(count.to_string()).arg("--detach"), UP_LIMIT)?;
        for mount in &volume.mounts {
            mount.wait()?;
        }
        Ok(volume)
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        let mut down = self.namespace.command(&self.program.to_string_lossy());
        clean_up(down.arg("down").arg(&self.bricks));
    }
}

/// Twice what the files have, for each copy, and room for the bricks themselves.
fn disk_bytes(arguments: &Arguments) -> u64 {
    let tree: u64 = match arguments.tree {
        Size::Small => 256 << 20,
        Size::Full => 3 << 30,
    };
    let copies = u64::from(arguments.mounts * arguments.times * arguments.replica);
    tree * copies + (4 << 30)
}
