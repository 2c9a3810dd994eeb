//! `cargo bench-handles`: what it brings a brick to hold its 256 first-level directories open.
//!
//! A disk is filled with handles as a brick has them. Then each is looked at in a random order, once relative to the held
//! directory and once by its absolute path, with the kernel's caches warm and after they were dropped. A directory that is held
//! open stays in memory: that, and the shorter walk, is the difference.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result};
use clap::Parser;
use comfy_table::{CellAlignment, Table, presets};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, openat, statat};
use uuid::Uuid;

use super::command::{catch_interrupts, check_interrupted};
use super::disk::{RamDisk, drop_caches};
use super::packages::{self, XFSPROGS};
use super::volume::require_root;

/// Room for a disk of 512-byte inodes and many small directories; memory is only taken as it is filled.
const DISK_BYTES: u64 = 8 << 30;

/// Compare lookups of handles relative to held directories with lookups by absolute path
#[derive(Debug, Parser)]
#[command(name = "bench-handles")]
struct Arguments {
    /// Files on the brick
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=5_000_000))]
    files: u32,
    /// How often everything is done
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
}

/// The program.
pub fn main() -> ExitCode {
    match compare(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench-handles: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// How a handle is reached.
#[derive(Debug, Clone, Copy)]
enum Way {
    Held,
    Absolute,
}

fn compare(arguments: &Arguments) -> Result<()> {
    require_root()?;
    packages::require(&[XFSPROGS])?;
    catch_interrupts()?;
    let scratch = tempfile::Builder::new().prefix("mortar-handles-").tempdir()?;
    let disk = RamDisk::new(&scratch.path().canonicalize()?.join("disk"), DISK_BYTES)?;
    let brick = Brick::load(&disk.path().join("srv/brick"), arguments.files as usize)?;
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(["caches", "handles", "held, us", "absolute, us", "absolute / held"]);
    for (caches, handles) in
        [(Caches::Warm, &brick.all), (Caches::Dropped, &brick.all), (Caches::Dropped, &brick.spread)]
    {
        let mut best = [f64::INFINITY; 2];
        for _ in 0..arguments.rounds {
            for (place, way) in [Way::Held, Way::Absolute].into_iter().enumerate() {
                check_interrupted()?;
                match caches {
                    Caches::Warm => brick.look(handles, way).map(|_| ())?,
                    Caches::Dropped => drop_caches()?,
                }
                best[place] = brick.look(handles, way)?.min(best[place]);
            }
        }
        let [held, absolute] = best.map(|micros| format!("{micros:.2}"));
        let ratio = format!("{:.2}", best[1] / best[0]);
        table.add_row([format!("{caches:?}"), handles.len().to_string(), held, absolute, ratio]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    println!(
        "{} files on the brick; microseconds for one handle, best of {} rounds\n{table}",
        arguments.files, arguments.rounds
    );
    Ok(())
}

/// What the kernel remembers when the looking starts.
#[derive(Debug, Clone, Copy)]
enum Caches {
    Warm,
    Dropped,
}

/// Handles, and the 256 directories that a brick holds.
#[derive(Debug)]
struct Brick {
    held: Vec<OwnedFd>,
    all: Vec<Handle>,
    /// One in each first-level directory: the first look after a pause, when nothing that is not held is in memory.
    spread: Vec<Handle>,
}

/// One handle by both of its names, made beforehand: only the kernel's work is measured.
#[derive(Debug, Clone)]
struct Handle {
    first: usize,
    relative: PathBuf,
    absolute: PathBuf,
}

impl Brick {
    fn load(root: &Path, files: usize) -> Result<Self> {
        eprintln!("making {files} handles below {}", root.display());
        let home = root.join(".glusterfs");
        let mut held = Vec::new();
        for first in 0..256 {
            let directory = home.join(format!("{first:02x}"));
            fs::create_dir_all(&directory)?;
            held.push(openat(CWD, &directory, OFlags::PATH | OFlags::DIRECTORY, Mode::empty())?);
        }
        // Random gfids are also a random order.
        let handles: Vec<Handle> = (0..files).map(|_| Handle::new(&home, Uuid::new_v4())).collect();
        for handle in &handles {
            if let Err(error) = File::create(&handle.absolute) {
                let directory = handle.absolute.parent().context("a handle is in a directory")?;
                fs::create_dir_all(directory).with_context(|| format!("{error}"))?;
                File::create(&handle.absolute)?;
            }
        }
        let mut spread = handles.clone();
        spread.sort_by_key(|handle| handle.first);
        spread.dedup_by_key(|handle| handle.first);
        Ok(Self { held, all: handles, spread })
    }

    /// Look at these handles, and give the microseconds that one took.
    fn look(&self, handles: &[Handle], way: Way) -> Result<f64> {
        let started = Instant::now();
        for handle in handles {
            match way {
                Way::Held => statat(&self.held[handle.first], &handle.relative, AtFlags::SYMLINK_NOFOLLOW)?,
                Way::Absolute => statat(CWD, &handle.absolute, AtFlags::SYMLINK_NOFOLLOW)?,
            };
        }
        Ok(started.elapsed().as_secs_f64() * 1e6 / handles.len() as f64)
    }
}

impl Handle {
    fn new(home: &Path, gfid: Uuid) -> Self {
        let [first, second, ..] = *gfid.as_bytes();
        let relative = PathBuf::from(format!("{second:02x}/{gfid}"));
        let absolute = home.join(format!("{first:02x}")).join(&relative);
        Self { first: usize::from(first), relative, absolute }
    }
}
