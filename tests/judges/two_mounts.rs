//! Two mounts on one file, against a model: what fsx does, but every operation goes through the other door.
//!
//! Three parts. In turn: one worker, a random mount for each operation, so that every stale byte or size is seen. At once: two
//! workers, each with its own bytes of one file, interleaved so that they share every page and every block; a lost update is
//! seen by whoever wrote it. Appending: two workers with `O_APPEND`; every record must be there, whole, once.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::Judge;
use super::place::Place;
use super::report::Report;

/// Small enough that most operations overlap.
const FILE_BYTES_MAX: usize = 256 << 10;

const IO_BYTES_MAX: usize = 32 << 10;

/// Not a divisor of a page, so that stripes straddle pages.
const STRIPE: usize = 1000;

const STRIPES: usize = 200;

pub(super) const TWO_MOUNTS: Judge = Judge {
    name: "two-mounts",
    about: "random reads, writes and truncates on one file through two mounts",
    packages: &[],
    crates: &[],
    mounts: 2,
    limit: Duration::from_secs(1200),
    run: |place: &Place| {
        let mut report = Report { note: format!("seed {}", place.seed), ..Report::default() };
        report.case("in turn", in_turn(place, place.size(5_000, 200_000)));
        report.case("at once", at_once(place, place.size(2_000, 50_000)));
        report.case("at once, open all the time", at_once_open(place, place.size(2_000, 50_000)));
        report.case("appending", appending(place, place.size(1_000, 20_000)));
        Ok(report)
    },
};

/// A small generator of random numbers (splitmix64): a run can be repeated from its seed.
#[derive(Debug, Clone)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`.
    pub(super) fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound as u64).expect("it is below a usize")
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(count + 8);
        while bytes.len() < count {
            bytes.extend_from_slice(&self.next().to_le_bytes());
        }
        bytes.truncate(count);
        bytes
    }
}

/// One worker that goes from mount to mount.
struct Worker {
    files: Vec<File>,
    model: Vec<u8>,
    random: Random,
}

fn in_turn(place: &Place, operations: usize) -> Result<()> {
    File::create(place.mount().join("in-turn"))?;
    let open = |mount: &std::path::PathBuf| OpenOptions::new().read(true).write(true).open(mount.join("in-turn"));
    let files = place.mounts.iter().map(open).collect::<Result<_, _>>()?;
    let mut worker = Worker { files, model: Vec::new(), random: Random::new(place.seed) };
    for number in 0..operations {
        let door = worker.random.below(worker.files.len());
        if worker.random.below(50) == 0 {
            worker.files[door] = open(&place.mounts[door])?;
        }
        worker.step(door).with_context(|| format!("operation {number} at mount {door}"))?;
    }
    worker.step_read_all(place)
}

impl Worker {
    fn step(&mut self, door: usize) -> Result<()> {
        let at = self.random.below(FILE_BYTES_MAX);
        let length = 1 + self.random.below(IO_BYTES_MAX.min(FILE_BYTES_MAX - at));
        match self.random.below(20) {
            0..8 => {
                let bytes = self.random.bytes(length);
                self.files[door].write_all_at(&bytes, at as u64)?;
                if self.model.len() < at + length {
                    self.model.resize(at + length, 0);
                }
                self.model[at..at + length].copy_from_slice(&bytes);
            }
            8..16 => self.read(door, at, length)?,
            16 => {
                self.files[door].set_len(at as u64)?;
                self.model.resize(at, 0);
            }
            17 => self.files[door].sync_data()?,
            _ => {
                let size = self.files[door].metadata()?.len();
                ensure!(size == self.model.len() as u64, "size is {size}, should be {}", self.model.len());
            }
        }
        Ok(())
    }

    fn read(&self, door: usize, at: usize, length: usize) -> Result<()> {
        let mut got = vec![0; length];
        let mut filled = 0;
        while filled < length {
            match self.files[door].read_at(&mut got[filled..], (at + filled) as u64)? {
                0 => break,
                count => filled += count,
            }
        }
        let start = at.min(self.model.len());
        let want = &self.model[start..(at + length).min(self.model.len()).max(start)];
        compare(want, &got[..filled], at)
    }

    fn step_read_all(&self, place: &Place) -> Result<()> {
        for mount in &place.mounts {
            compare(&self.model, &fs::read(mount.join("in-turn"))?, 0)?;
        }
        Ok(())
    }
}

fn compare(want: &[u8], got: &[u8], at: usize) -> Result<()> {
    if want == got {
        return Ok(());
    }
    match want.iter().zip(got).position(|(want, got)| want != got) {
        Some(first) => {
            bail!("byte {} of {} read from {at} is wrong: {} instead of {}", first, got.len(), got[first], want[first])
        }
        None => bail!("read {} bytes from {at}, should be {}", got.len(), want.len()),
    }
}

/// Two workers that open the file anew for each operation.
fn at_once(place: &Place, operations: usize) -> Result<()> {
    workers(place, "at-once", operations, Reopen::EachTime)
}

/// Two workers that keep the file open, so that what a kernel has cached is not looked up anew.
fn at_once_open(place: &Place, operations: usize) -> Result<()> {
    workers(place, "at-once-open", operations, Reopen::Never)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reopen {
    EachTime,
    Never,
}

fn workers(place: &Place, name: &str, operations: usize, reopen: Reopen) -> Result<()> {
    fs::write(place.mount().join(name), vec![0; STRIPE * STRIPES])?;
    std::thread::scope(|scope| {
        let workers: Vec<_> = place
            .mounts
            .iter()
            .enumerate()
            .map(|(who, mount)| scope.spawn(move || stripes(&mount.join(name), who, place, operations, reopen)))
            .collect();
        workers.into_iter().enumerate().try_for_each(|(who, worker)| {
            worker.join().unwrap_or_else(|_| bail!("panicked")).with_context(|| format!("worker {who}"))
        })
    })
}

/// Work on every second stripe.
fn stripes(path: &Path, who: usize, place: &Place, operations: usize, reopen: Reopen) -> Result<()> {
    let doors = place.mounts.len();
    let mut random = Random::new(place.seed ^ (who as u64 + 1));
    let mut model = vec![vec![0; STRIPE]; STRIPES];
    let open = || OpenOptions::new().read(true).write(true).open(path);
    let mut file = open()?;
    for number in 0..operations {
        if reopen == Reopen::EachTime {
            file = open()?;
        }
        let stripe = random.below(STRIPES / doors) * doors + who;
        let at = (stripe * STRIPE) as u64;
        if random.below(2) == 0 {
            model[stripe] = random.bytes(STRIPE);
            file.write_all_at(&model[stripe], at)?;
        } else {
            let mut got = vec![0; STRIPE];
            file.read_exact_at(&mut got, at)?;
            compare(&model[stripe], &got, stripe * STRIPE).with_context(|| format!("operation {number}"))?;
        }
    }
    let whole = fs::read(path)?;
    for (stripe, want) in model.iter().enumerate().filter(|(stripe, _)| stripe % doors == who) {
        compare(want, &whole[stripe * STRIPE..][..STRIPE], stripe * STRIPE).context("at the end")?;
    }
    Ok(())
}

fn appending(place: &Place, records: usize) -> Result<()> {
    let name = "appended";
    File::create(place.mount().join(name))?;
    std::thread::scope(|scope| -> Result<()> {
        let workers: Vec<_> = place
            .mounts
            .iter()
            .enumerate()
            .map(|(who, mount)| {
                scope.spawn(move || -> Result<()> {
                    let file = OpenOptions::new().append(true).open(mount.join(name))?;
                    for number in 0..records {
                        // One write each: `writeln!` on a file would be several.
                        let count = rustix::io::write(
                            &file,
                            format!("{who} {number:>10} {}\n", "x".repeat(number % 90)).as_bytes(),
                        )?;
                        ensure!(count == 14 + number % 90, "a short write of {count} bytes");
                    }
                    Ok(())
                })
            })
            .collect();
        workers.into_iter().try_for_each(|worker| worker.join().unwrap_or_else(|_| bail!("panicked")))
    })?;
    place.mounts.iter().try_for_each(|mount| records_are_whole(&mount.join(name), place.mounts.len(), records))
}

/// Each worker's records are there in order, each once and whole.
fn records_are_whole(path: &Path, workers: usize, records: usize) -> Result<()> {
    let mut next = vec![0; workers];
    for line in fs::read_to_string(path)?.lines() {
        let parsed = (|| {
            let mut words = line.split_whitespace();
            let who: usize = words.next()?.parse().ok()?;
            let number: usize = words.next()?.parse().ok()?;
            let tail = words.next().unwrap_or_default();
            (who < workers && tail.len() == number % 90).then_some((who, number))
        })();
        let Some((who, number)) = parsed else { bail!("a torn record: {line:?}") };
        ensure!(next[who] == number, "worker {who}'s record {} is missing, {number} is there", next[who]);
        next[who] += 1;
    }
    ensure!(next.iter().all(|count| *count == records), "of {records} records each there are {next:?}");
    Ok(())
}
