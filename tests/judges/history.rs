//! Histories of a few names from three mounts, checked for linearizability.
//!
//! Each round is a new directory with three names, on which workers at three mounts do random things at the same time. A file or
//! a directory is known by its permission bits, which its maker chose and which come with the entry itself, so that every answer
//! tells which one a name stood for, on any file system. The names of a round are checked together, the content of each file by
//! itself. What can have happened says `history_model.rs`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{AtFlags, CWD, linkat};

use super::Judge;
use super::history_check::{Event, OPERATIONS_MAX, is_linearizable, shortest_wrong};
use super::history_model::{Content, Kind, NAMES, Names, Thing, Token};
use super::place::Place;
use super::report::Report;
use super::two_mounts::Random;

const WORKERS_PER_MOUNT: usize = 2;
const OPERATIONS_PER_WORKER: usize = 9;

/// How many rounds a planted fault may stay hidden.
const ROUNDS_TO_FIND: u64 = 200;

pub(super) const HISTORY: Judge = Judge {
    name: "history",
    about: "what three mounts see of a few names can have happened in one order",
    packages: &[],
    crates: &[],
    mounts: 3,
    limit: Duration::from_secs(4500),
    run: judge,
};

fn judge(place: &Place) -> Result<Report> {
    rustix::process::umask(rustix::fs::Mode::empty());
    let mut report = Report::default();
    let until = Instant::now() + Duration::from_secs(place.size(30, 900));
    let mut rounds = 0;
    while Instant::now() < until && report.failures.len() < 5 {
        let outcome = round(place, rounds, Fault::None);
        report.case(&format!("round {rounds}"), outcome);
        rounds += 1;
    }
    let found = (0..ROUNDS_TO_FIND).find_map(|number| round(place, 1_000_000 + number, Fault::StaleStat).err());
    let found = found.map(|_| ()).context("a planted fault, an answer from a stale cache, was not found");
    report.case("a planted fault is found", found);
    report.note = format!("{rounds} rounds, seed {}", place.seed);
    Ok(report)
}

/// What is wrong on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// Now and then a worker's stat is answered from its previous stat of the name.
    StaleStat,
}

/// What one worker saw.
#[derive(Debug, Default)]
struct Seen {
    names: Vec<Event<Names>>,
    contents: Vec<(Token, Event<Content>)>,
}

struct Worker<'a> {
    directory: PathBuf,
    number: usize,
    random: Random,
    clock: &'a AtomicU64,
    fault: Fault,
    last_look: [Option<Option<Thing>>; NAMES],
    seen: Seen,
}

/// One directory, three names, some workers. An error is a history that cannot have happened.
fn round(place: &Place, number: u64, fault: Fault) -> Result<()> {
    let directory = format!("round-{number}");
    fs::create_dir(place.mount().join(&directory))?;
    let clock = AtomicU64::new(0);
    let count = place.mounts.len() * WORKERS_PER_MOUNT;
    let start = Barrier::new(count);
    let seen: Vec<Seen> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..count)
            .map(|worker| {
                let mut worker = Worker {
                    directory: place.mounts[worker % place.mounts.len()].join(&directory),
                    number: worker,
                    random: Random::new(place.seed ^ (number << 8) ^ worker as u64),
                    clock: &clock,
                    fault,
                    last_look: [None; NAMES],
                    seen: Seen::default(),
                };
                let start = &start;
                scope.spawn(move || -> Result<Seen> {
                    start.wait();
                    (0..OPERATIONS_PER_WORKER).try_for_each(|step| worker.step(step))?;
                    Ok(worker.seen)
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().unwrap_or_else(|_| bail!("panicked"))).collect::<Result<_>>()
    })?;
    check(seen)?;
    // A round that went wrong stays for the person who looks into it.
    fs::remove_dir_all(place.mount().join(&directory)).with_context(|| format!("cannot remove {directory}"))
}

fn check(seen: Vec<Seen>) -> Result<()> {
    let mut names = Vec::new();
    let mut contents: BTreeMap<Token, Vec<Event<Content>>> = BTreeMap::new();
    for seen in seen {
        names.extend(seen.names);
        for (token, event) in seen.contents {
            contents.entry(token).or_default().push(event);
        }
    }
    ensure!(names.len() <= OPERATIONS_MAX, "a round has {} operations", names.len());
    if !is_linearizable(&names, [None; NAMES]) {
        bail!("this cannot have happened:\n{}", tell(&shortest_wrong(&names, &[None; NAMES])));
    }
    for (token, events) in contents {
        if !is_linearizable(&events, 0) {
            bail!("the content of file {token:o} cannot have been this:\n{}", tell(&shortest_wrong(&events, &0)));
        }
    }
    Ok(())
}

fn tell<O: std::fmt::Debug>(events: &[Event<O>]) -> String {
    let mut text = String::new();
    for event in events {
        let _ = writeln!(text, "  {:>5}-{:<5} worker {} {:?}", event.began, event.ended, event.who, event.operation);
    }
    text
}

impl Worker<'_> {
    fn step(&mut self, step: usize) -> Result<()> {
        let name = self.random.below(NAMES);
        // Bits below 0o1000 that no other maker in this round uses; 0 would be no file that a reader could tell from an error.
        let token = u32::try_from(1 + self.number * OPERATIONS_PER_WORKER + step)?;
        let (what, outcome) = match self.random.below(15) {
            0 => ("exclusive create", self.create_new(name, token)),
            1 | 2 => ("create", self.create(name, token)),
            3 => ("unlink", self.unlink(name)),
            4 | 5 => ("rename", self.rename(name)),
            6 => ("link", self.link(name)),
            7 | 8 => ("write", self.write(name, u64::from(token))),
            9 => ("read", self.read(name)),
            10 => ("mkdir", self.mkdir(name, token)),
            11 | 12 => ("rmdir", self.rmdir(name)),
            _ => ("stat", self.stat(name)),
        };
        outcome.with_context(|| format!("worker {} at step {step}: {what} of name {name}", self.number))
    }

    fn path(&self, name: usize) -> PathBuf {
        self.directory.join(["a", "b", "c"][name])
    }

    fn now(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    fn saw(&mut self, began: u64, operation: Names) {
        let ended = self.now();
        self.seen.names.push(Event { who: self.number, began, ended, operation });
    }

    /// As [`Self::saw`], of an operation that tells only of what kind the name was.
    fn saw_kind(&mut self, began: u64, name: usize, kind: Kind) {
        self.saw(began, Names::Is(name, kind));
    }

    fn create_new(&mut self, name: usize, token: Token) -> Result<()> {
        let began = self.now();
        let made = OpenOptions::new().write(true).create_new(true).mode(token).open(self.path(name));
        match answer(made, ErrorKind::AlreadyExists)? {
            Some(_) => self.saw(began, Names::Create(name, Ok(token))),
            None => self.saw(began, Names::Create(name, Err(()))),
        }
        Ok(())
    }

    /// Made, or opened what was there: its bits tell which.
    fn create(&mut self, name: usize, token: Token) -> Result<()> {
        let began = self.now();
        let file = OpenOptions::new().write(true).create(true).truncate(false).mode(token).open(self.path(name));
        let Some(file) = answer(file, ErrorKind::IsADirectory).context("open")? else {
            self.saw_kind(began, name, Kind::Dir);
            return Ok(());
        };
        let ended = self.now();
        let found = thing(&file.metadata().context("fstat")?);
        let made = Thing { token, kind: Kind::File };
        let operation = if found == made { Names::Create(name, Ok(token)) } else { Names::Look(name, Some(found)) };
        self.seen.names.push(Event { who: self.number, began, ended, operation });
        Ok(())
    }

    fn unlink(&mut self, name: usize) -> Result<()> {
        let began = self.now();
        match fs::remove_file(self.path(name)) {
            Err(error) if error.kind() == ErrorKind::IsADirectory => self.saw_kind(began, name, Kind::Dir),
            removed => {
                let there = answer(removed, ErrorKind::NotFound)?.is_some();
                self.saw(began, Names::Unlink(name, there));
            }
        }
        Ok(())
    }

    fn mkdir(&mut self, name: usize, token: Token) -> Result<()> {
        let began = self.now();
        let made = fs::DirBuilder::new().mode(token).create(self.path(name));
        let made = answer(made, ErrorKind::AlreadyExists)?.map(|()| token).ok_or(());
        self.saw(began, Names::Mkdir(name, made));
        Ok(())
    }

    fn rmdir(&mut self, name: usize) -> Result<()> {
        let began = self.now();
        match fs::remove_dir(self.path(name)) {
            Err(error) if error.kind() == ErrorKind::NotADirectory => self.saw_kind(began, name, Kind::File),
            removed => {
                let there = answer(removed, ErrorKind::NotFound)?.is_some();
                self.saw(began, Names::Rmdir(name, there));
            }
        }
        Ok(())
    }

    /// What may not take the place of what is told by two looks of the kernel, one after the other.
    fn rename(&mut self, name: usize) -> Result<()> {
        let to = (name + 1 + self.random.below(NAMES - 1)) % NAMES;
        let began = self.now();
        let renamed = fs::rename(self.path(name), self.path(to));
        let kinds = match renamed.as_ref().map_err(io::Error::kind) {
            Err(ErrorKind::IsADirectory) => Some((Kind::File, Kind::Dir)),
            Err(ErrorKind::NotADirectory) => Some((Kind::Dir, Kind::File)),
            _ => None,
        };
        if let Some((moved, replaced)) = kinds {
            self.saw_kind(began, name, moved);
            self.saw_kind(began, to, replaced);
            return Ok(());
        }
        let there = answer(renamed, ErrorKind::NotFound)?.is_some();
        self.saw(began, Names::Rename(name, to, there));
        Ok(())
    }

    /// Through a descriptor: between the two looks of a link by name anything may happen, on a local disk too.
    fn link(&mut self, name: usize) -> Result<()> {
        let to = (name + 1 + self.random.below(NAMES - 1)) % NAMES;
        let Some((file, token)) = self.open(name, OpenOptions::new().read(true))? else { return Ok(()) };
        let began = self.now();
        let linked = linkat(&file, "", CWD, self.path(to), AtFlags::EMPTY_PATH);
        match linked.map_err(io::Error::from) {
            Ok(()) => self.saw(began, Names::Link(token, to, true)),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => self.saw(began, Names::Link(token, to, false)),
            // The last name of the file has gone: it cannot have one again.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error).context("link"),
        }
        Ok(())
    }

    fn stat(&mut self, name: usize) -> Result<()> {
        let began = self.now();
        let stale = self.fault == Fault::StaleStat && self.random.below(4) == 0;
        let found = match self.last_look[name].filter(|_| stale) {
            Some(last) => last,
            None => answer(fs::symlink_metadata(self.path(name)), ErrorKind::NotFound)?.map(|meta| thing(&meta)),
        };
        self.last_look[name] = Some(found);
        self.saw(began, Names::Look(name, found));
        Ok(())
    }

    fn write(&mut self, name: usize, value: u64) -> Result<()> {
        let Some((file, token)) = self.open(name, OpenOptions::new().write(true))? else { return Ok(()) };
        let began = self.now();
        file.write_all_at(&value.to_le_bytes(), 0).context("pwrite")?;
        let ended = self.now();
        self.seen.contents.push((token, Event { who: self.number, began, ended, operation: Content::Write(value) }));
        Ok(())
    }

    fn read(&mut self, name: usize) -> Result<()> {
        let Some((file, token)) = self.open(name, OpenOptions::new().read(true))? else { return Ok(()) };
        let began = self.now();
        let mut bytes = [0; 8];
        let count = file.read_at(&mut bytes, 0).context("pread")?;
        let ended = self.now();
        ensure!(count == 0 || count == 8, "read {count} bytes of 8");
        self.seen.contents.push((
            token,
            Event { who: self.number, began, ended, operation: Content::Read(u64::from_le_bytes(bytes)) },
        ));
        Ok(())
    }

    /// An open is a look at the name. Nothing if that is absent, or a directory.
    fn open(&mut self, name: usize, options: &OpenOptions) -> Result<Option<(File, Token)>> {
        let began = self.now();
        let opened = match options.open(self.path(name)) {
            Err(error) if error.kind() == ErrorKind::IsADirectory => {
                self.saw_kind(began, name, Kind::Dir);
                return Ok(None);
            }
            opened => answer(opened, ErrorKind::NotFound).context("open")?,
        };
        let ended = self.now();
        let found = match &opened {
            Some(file) => Some(thing(&file.metadata().context("fstat")?)),
            None => None,
        };
        self.seen.names.push(Event { who: self.number, began, ended, operation: Names::Look(name, found) });
        let file = found.filter(|found| found.kind == Kind::File).map(|found| found.token);
        Ok(opened.zip(file))
    }
}

/// What these attributes are of.
fn thing(meta: &fs::Metadata) -> Thing {
    let kind = if meta.is_dir() { Kind::Dir } else { Kind::File };
    Thing { token: meta.mode() & 0o7777, kind }
}

/// Nothing if it failed in the way that is an answer.
fn answer<T>(outcome: io::Result<T>, means_no: ErrorKind) -> Result<Option<T>> {
    match outcome {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == means_no => Ok(None),
        Err(error) => Err(error.into()),
    }
}
