//! One large file: written and read from end to end, then in pieces at random places.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use anyhow::{Result, ensure};
use clap::ValueEnum;

/// Bytes of the file.
const FILE_BYTES: u64 = 256 << 20;

/// Bytes of one read or write from end to end.
const STREAM_PIECE: usize = 1 << 20;

/// Bytes of one read or write at a random place.
const RANDOM_PIECE: usize = 4096;

/// How many random places are visited.
const RANDOM_COUNT: u64 = 4096;

/// What to do with the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Operation {
    /// 256 MiB in pieces of 1 MiB, then fsync.
    SeqWrite,
    /// The same back.
    SeqRead,
    /// 4096 pieces of 4 KiB.
    RandRead,
    /// 4096 pieces of 4 KiB, then fsync.
    RandWrite,
}

/// Do it, and give the seconds it took.
pub fn run(operation: Operation, path: &Path) -> Result<f64> {
    let mut buffer = vec![b's'; STREAM_PIECE];
    let started = Instant::now();
    match operation {
        Operation::SeqWrite => {
            let mut file = File::create(path)?;
            for _ in 0..FILE_BYTES / STREAM_PIECE as u64 {
                file.write_all(&buffer)?;
            }
            file.sync_all()?;
        }
        Operation::SeqRead => {
            let mut file = File::open(path)?;
            for _ in 0..FILE_BYTES / STREAM_PIECE as u64 {
                file.read_exact(&mut buffer)?;
                ensure!(buffer.iter().all(|byte| *byte == b's'), "wrong content");
            }
        }
        Operation::RandRead => {
            let file = File::open(path)?;
            for place in places() {
                file.read_exact_at(&mut buffer[..RANDOM_PIECE], place)?;
                ensure!(buffer[..RANDOM_PIECE].iter().all(|byte| *byte == b's'), "wrong content");
            }
        }
        Operation::RandWrite => {
            let file = OpenOptions::new().write(true).open(path)?;
            for place in places() {
                file.write_all_at(&buffer[..RANDOM_PIECE], place)?;
            }
            file.sync_all()?;
        }
    }
    Ok(started.elapsed().as_secs_f64())
}

/// Places that look random and are the same in every run: steps of a generator modulo 2^64 (Knuth's MMIX constants).
fn places() -> impl Iterator<Item = u64> {
    let pieces = FILE_BYTES / RANDOM_PIECE as u64;
    let mut state: u64 = 1;
    (0..RANDOM_COUNT).map(move |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % pieces * RANDOM_PIECE as u64
    })
}
