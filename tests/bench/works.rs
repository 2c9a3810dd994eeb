//! What is measured, in the order in which it is done.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::ValueEnum;

use super::command::{SETUP_LIMIT, ourselves, run, timed};
use super::contender::Contender;
use super::tree::{Size, Source};
use super::{smallfile, stream};

/// A work, in the order in which they are done: each finds what those before it have left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Work {
    /// Unpack the tree. Afterwards its content is compared with the source, outside the measurement.
    Untar,
    /// `ls -lR` of it, after everything in it has been read.
    LsWarm,
    /// The same after the kernel's caches were dropped.
    LsCold,
    /// `tar c` of it into a pipe, after the kernel's caches were dropped.
    ReadAll,
    /// `rm -rf` of it.
    Rm,
    /// An operation of the small-file generator.
    Small(smallfile::Operation),
    /// An operation on one large file.
    Stream(stream::Operation),
}

impl Work {
    /// All of them.
    pub fn all() -> Vec<Self> {
        let mut all = vec![Self::Untar, Self::LsWarm, Self::LsCold, Self::ReadAll, Self::Rm];
        all.extend(smallfile::Operation::value_variants().iter().map(|operation| Self::Small(*operation)));
        all.extend(stream::Operation::value_variants().iter().map(|operation| Self::Stream(*operation)));
        all
    }

    /// The work of this name.
    pub fn parse(name: &str) -> Result<Self, String> {
        let all = Self::all();
        all.iter().copied().find(|work| work.to_string() == name).ok_or_else(|| {
            let names: Vec<String> = all.iter().map(Self::to_string).collect();
            format!("there is no work `{name}`; the works are {}", names.join(", "))
        })
    }

    fn is_on_tree(self) -> bool {
        self <= Self::Rm
    }
}

impl fmt::Display for Work {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Untar => "untar",
            Self::LsWarm => "ls_warm",
            Self::LsCold => "ls_cold",
            Self::ReadAll => "read_all",
            Self::Rm => "rm",
            Self::Small(operation) => return formatter.write_str(&value_name(*operation)),
            Self::Stream(operation) => return formatter.write_str(&value_name(*operation).replace('-', "_")),
        })
    }
}

/// One measurement.
#[derive(Debug, Clone, Copy)]
pub struct Measured {
    /// From the start of the work to its end.
    pub seconds: f64,
    /// Processor seconds of the contender's processes meanwhile.
    pub cpu_seconds: f64,
}

/// How the works are done, the same for every contender.
#[derive(Debug)]
pub struct Plan {
    /// What is wanted, in order.
    pub works: Vec<Work>,
    /// The tree.
    pub source: Source,
    /// Which tree it is.
    pub size: Size,
    /// Files of the small-file generator.
    pub files: usize,
}

impl Plan {
    /// Do all works on one contender, and hand each measurement to `note`.
    pub fn run(&self, contender: &dyn Contender, mut note: impl FnMut(Work, Measured)) -> Result<()> {
        let place = Place { root: contender.root().join("work") };
        self.reach(&place.root)?;
        for work in self.needed() {
            let measured = self.measure(contender, &place, work).with_context(|| work.to_string())?;
            if self.works.contains(&work) {
                note(work, measured);
            }
            if work == Work::Untar {
                self.source.verify(&place.tree(), self.size.limit())?;
            }
        }
        Ok(())
    }

    /// The wanted works and those that must come before them.
    fn needed(&self) -> Vec<Work> {
        let last_small = self.works.iter().filter(|work| matches!(work, Work::Small(_))).max();
        let last_stream = self.works.iter().filter(|work| matches!(work, Work::Stream(_))).max();
        let on_tree = self.works.iter().any(|work| work.is_on_tree());
        let is_needed = |work: &Work| match work {
            Work::Untar => on_tree,
            Work::Small(_) => last_small.is_some_and(|last| work <= last),
            Work::Stream(stream::Operation::SeqWrite) => last_stream.is_some(),
            Work::LsWarm | Work::LsCold | Work::ReadAll | Work::Rm | Work::Stream(_) => self.works.contains(work),
        };
        Work::all().into_iter().filter(is_needed).collect()
    }

    fn measure(&self, contender: &dyn Contender, place: &Place, work: Work) -> Result<Measured> {
        self.prepare(contender, place, work)?;
        let before = contender.cpu_seconds();
        let seconds = self.time(place, work)?;
        Ok(Measured { seconds, cpu_seconds: contender.cpu_seconds() - before })
    }

    /// What must be so before a work, and is not measured.
    fn prepare(&self, contender: &dyn Contender, place: &Place, work: Work) -> Result<()> {
        match work {
            Work::Untar => self.reach(&place.tree()),
            Work::LsCold | Work::ReadAll => contender.cold(),
            Work::Stream(stream::Operation::SeqRead | stream::Operation::RandRead) => {
                contender.cold()?;
                // With its nl-cache on, GlusterFS 10.3 says that a file made by this mount does not exist once the kernel has
                // forgotten the name, until the directory is listed.
                run(Command::new("ls").arg(&place.root), SETUP_LIMIT).map(|_| ())
            }
            Work::Small(smallfile::Operation::Create | smallfile::Operation::Mkdir) => {
                run(small(smallfile::Operation::Create, place, self.files)?.arg("--prepare"), SETUP_LIMIT).map(|_| ())
            }
            Work::LsWarm | Work::Rm | Work::Small(_) | Work::Stream(_) => Ok(()),
        }
    }

    fn time(&self, place: &Place, work: Work) -> Result<f64> {
        let limit = self.size.limit();
        match work {
            Work::Untar => timed(&mut self.source.untar_into(&place.tree()), limit),
            Work::LsWarm | Work::LsCold => timed(Command::new("ls").arg("-lR").arg(place.tree()), limit),
            Work::ReadAll => timed(Command::new("tar").args(["-cf", "-", "-C"]).arg(place.tree()).arg("."), limit),
            Work::Rm => timed(Command::new("rm").arg("-rf").arg(place.tree()), limit),
            Work::Small(operation) => seconds(&mut small(operation, place, self.files)?, limit),
            Work::Stream(operation) => {
                let mut command = ourselves()?;
                command.arg("stream").arg(value_name(operation)).arg(place.root.join("large"));
                seconds(&mut command, limit)
            }
        }
    }

    /// Make a directory, by a program that can be given up.
    fn reach(&self, directory: &Path) -> Result<()> {
        run(Command::new("mkdir").arg("-p").arg(directory), SETUP_LIMIT).map(|_| ())
    }
}

/// Where in a contender the works are done.
#[derive(Debug)]
struct Place {
    root: PathBuf,
}

impl Place {
    fn tree(&self) -> PathBuf {
        self.root.join("tree")
    }
}

fn small(operation: smallfile::Operation, place: &Place, files: usize) -> Result<Command> {
    let mut command = ourselves()?;
    command.arg("smallfile").arg(value_name(operation)).arg(place.root.join("small")).arg(files.to_string());
    Ok(command)
}

/// A generator measures itself, without the start of its process.
fn seconds(command: &mut Command, limit: Duration) -> Result<f64> {
    let told = run(command, limit)?;
    told.trim().parse().with_context(|| format!("no number: {told:?}"))
}

fn value_name<T: ValueEnum>(value: T) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_work_is_found_by_the_name_it_prints() {
        for work in Work::all() {
            assert_eq!(Work::parse(&work.to_string()), Ok(work));
        }
    }

    #[test]
    fn what_a_work_builds_on_is_done_before_it() {
        let source = Source { tar: PathBuf::new(), manifest: String::new() };
        let works = vec![Work::Rm, Work::Small(smallfile::Operation::Append)];
        let plan = Plan { works, source, size: Size::Small, files: 2 };
        let names: Vec<String> = plan.needed().iter().map(Work::to_string).collect();
        assert_eq!(names, ["untar", "rm", "create", "append"]);
    }
}
