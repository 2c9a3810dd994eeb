//! `cargo bench-volume`: the same work on several file systems in one run, alternating, several rounds.
//!
//! Every contender is set up anew for each round, alone on the machine, so that no round finds what another has left. A wrong
//! answer is a failure however fast it came: the untarred tree is compared with the source each time.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};

use super::command::{catch_interrupts, check_interrupted};
use super::contender::{Kind, Site};
use super::packages::{self, IPROUTE, LINUX_SOURCE, Package, XFSPROGS, XZ};
use super::report::Report;
use super::tree::{self, Size, Source};
use super::works::{Plan, Work};
use super::{floor, mortar, smallfile, stream};

/// What every run needs.
const COMMON: [Package; 4] = [XFSPROGS, IPROUTE, LINUX_SOURCE, XZ];

/// Compare Mortar with GlusterFS, MooseFS, a FUSE file system that does nothing, and the local disk.
#[derive(Debug, Parser)]
#[command(name = "bench-volume", args_conflicts_with_subcommands = true)]
struct Arguments {
    /// Which part of the kernel's source is untarred
    #[arg(long, value_enum, default_value = "small")]
    tree: Size,
    /// How often everything is done
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Also write the figures to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Only these contenders [default: all that are installed]
    #[arg(long, value_enum, value_delimiter = ',')]
    contenders: Vec<Kind>,
    /// Only these works [default: all]
    #[arg(long, value_parser = Work::parse, value_delimiter = ',')]
    works: Vec<Work>,
    /// Files of the small-file works
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(2..=1_000_000))]
    files: u32,
    /// Where the unpacked tree is kept [default: bench in the target directory]
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
    /// Install the Debian packages that are missing
    #[arg(long)]
    install: bool,
    #[command(subcommand)]
    part: Option<Part>,
}

/// Parts that run as processes of their own, because a process can be given up and a thread cannot.
#[derive(Debug, Subcommand)]
enum Part {
    /// Mount the file system that does nothing.
    #[command(hide = true)]
    Floor { mountpoint: PathBuf },
    /// List a tree with checksums.
    #[command(hide = true)]
    Manifest { root: PathBuf },
    /// One operation on small files.
    #[command(hide = true)]
    Smallfile {
        #[arg(value_enum)]
        operation: smallfile::Operation,
        root: PathBuf,
        files: usize,
        #[arg(long)]
        prepare: bool,
    },
    /// One operation on a large file.
    #[command(hide = true)]
    Stream {
        #[arg(value_enum)]
        operation: stream::Operation,
        path: PathBuf,
    },
}

/// The program.
pub fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let outcome = match &arguments.part {
        Some(part) => run_part(part),
        None => compare(&arguments),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench-volume: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run_part(part: &Part) -> Result<()> {
    match part {
        Part::Floor { mountpoint } => floor::serve(mountpoint),
        Part::Manifest { root } => {
            print!("{}", tree::manifest(root)?);
            Ok(())
        }
        Part::Smallfile { operation, root, files, prepare } => {
            let job = smallfile::Job { operation: *operation, root, files: *files };
            if *prepare {
                return job.prepare();
            }
            println!("{}", job.run()?);
            Ok(())
        }
        Part::Stream { operation, path } => {
            println!("{}", stream::run(*operation, path)?);
            Ok(())
        }
    }
}

fn compare(arguments: &Arguments) -> Result<()> {
    require_root()?;
    catch_interrupts()?;
    let kinds = contenders(arguments)?;
    let cache = arguments.cache.clone().map_or_else(default_cache, Ok)?;
    let source = Source::prepare(&cache, arguments.tree)?;
    if kinds.contains(&Kind::Mortar) {
        mortar::build()?;
    }
    let mut works = if arguments.works.is_empty() { Work::all() } else { arguments.works.clone() };
    works.sort();
    let plan = Plan { works, source, size: arguments.tree, files: arguments.files as usize };
    let (report, failures) = rounds(arguments.rounds, &kinds, &plan)?;
    println!("{}", report.table());
    if let Some(path) = &arguments.json {
        report.write_json(path)?;
    }
    check_interrupted()?;
    if failures > 0 {
        bail!("{failures} of the contenders' rounds failed, see above");
    }
    Ok(())
}

/// The rounds; the order changes from round to round, so that nobody always comes after the same neighbour.
fn rounds(rounds: u32, kinds: &[Kind], plan: &Plan) -> Result<(Report, usize)> {
    let mut report = Report::default();
    let mut failures = 0;
    for round in 0..rounds as usize {
        for turn in 0..kinds.len() {
            let kind = kinds[(round + turn) % kinds.len()];
            let outcome = one_turn(kind, plan, |work, measured| {
                eprintln!("round {} {kind} {work}: {:.3} s", round + 1, measured.seconds);
                report.note(kind, work, measured);
            });
            if let Err(error) = outcome {
                eprintln!("round {} {kind} FAILED: {error:#}", round + 1);
                failures += 1;
            }
            if check_interrupted().is_err() {
                return Ok((report, failures));
            }
        }
    }
    Ok((report, failures))
}

fn one_turn(kind: Kind, plan: &Plan, note: impl FnMut(Work, super::works::Measured)) -> Result<()> {
    let scratch = tempfile::Builder::new().prefix("mortar-bench-").tempdir()?;
    let site = Site { scratch: scratch.path().canonicalize()?, disk_bytes: plan.size.disk_bytes() };
    let contender = kind.start(&site).context("cannot be set up")?;
    plan.run(contender.as_ref(), note)
}

/// Those asked for, or all that are installed.
fn contenders(arguments: &Arguments) -> Result<Vec<Kind>> {
    let all = [Kind::Local, Kind::Floor, Kind::Glusterfs, Kind::Moosefs, Kind::Mortar];
    let wanted = if arguments.contenders.is_empty() { all.to_vec() } else { arguments.contenders.clone() };
    let needed: Vec<Package> = wanted.iter().flat_map(|kind| kind.packages()).chain(&COMMON).copied().collect();
    if arguments.install {
        packages::install(&needed)?;
    }
    packages::require(&COMMON)?;
    let mut kinds = Vec::new();
    for kind in wanted {
        let missing = packages::missing(kind.packages());
        if missing.is_empty() {
            kinds.push(kind);
        } else if arguments.contenders.is_empty() {
            eprintln!("{kind} is left out: not installed: {} (--install does it)", missing.join(" "));
        } else {
            packages::require(kind.packages())?;
        }
    }
    Ok(kinds)
}

/// An error that says why, unless we are root.
pub fn require_root() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!("this mounts file systems and makes network namespaces: run it as root");
    }
    Ok(())
}

/// `bench` in the target directory. Programs are in `<target>/<profile>/`.
pub fn default_cache() -> Result<PathBuf> {
    let program = std::env::current_exe()?;
    program
        .parent()
        .and_then(Path::parent)
        .map(|target| target.join("bench"))
        .context("cannot find the target directory")
}
