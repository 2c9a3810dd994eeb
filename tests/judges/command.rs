//! `cargo judges`: every judge on a fresh volume, one line each.
//!
//! A judge runs as a process of its own: one that hangs on a dead mount can be given up, a thread cannot.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use clap::{Args, Parser, Subcommand};

use super::place::{Extent, Place, Site, Stack};
use super::report::Report;
use super::{JUDGES, Judge, tools};
use crate::bench::command::{catch_interrupts, check_interrupted, ourselves, run};
use crate::bench::mortar;

/// Let outside judges loose on a mount
#[derive(Debug, Parser)]
#[command(name = "judges", args_conflicts_with_subcommands = true)]
struct Arguments {
    /// Only these judges [default: all]
    names: Vec<String>,
    /// A shorter run, for CI
    #[arg(long)]
    short: bool,
    /// What is judged
    #[arg(long, value_enum, default_value = "dist2x3")]
    stack: Stack,
    /// Install the packages and programs that are missing
    #[arg(long)]
    install: bool,
    /// Do not run on a local file system first
    #[arg(long)]
    no_control: bool,
    /// The seed of everything random [default: from the clock]
    #[arg(long)]
    seed: Option<u64>,
    /// Only list the judges
    #[arg(long)]
    list: bool,
    #[command(subcommand)]
    part: Option<Part>,
}

/// Parts that run as processes of their own.
#[derive(Debug, Subcommand)]
enum Part {
    /// One judge, on directories that are there.
    #[command(hide = true)]
    One(One),
}

#[derive(Debug, Args)]
struct One {
    name: String,
    #[arg(long = "mount")]
    mounts: Vec<PathBuf>,
    #[arg(long)]
    scratch: PathBuf,
    #[arg(long)]
    log: PathBuf,
    #[arg(long)]
    seed: u64,
    #[arg(long)]
    short: bool,
}

/// The program.
pub fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let outcome = match &arguments.part {
        Some(Part::One(one)) => one.run().map(|()| true),
        None => arguments.judge_all(),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("judges: {error:#}");
            ExitCode::FAILURE
        }
    }
}

impl One {
    fn run(&self) -> Result<()> {
        let judge = find(&self.name)?;
        let place = Place {
            mounts: self.mounts.clone(),
            scratch: self.scratch.clone(),
            log: self.log.clone(),
            seed: self.seed,
            extent: if self.short { Extent::Short } else { Extent::Whole },
        };
        println!("{}", serde_json::to_string(&(judge.run)(&place)?)?);
        Ok(())
    }
}

/// How a judge came out.
enum Verdict {
    Passed(Report),
    Failed(Report),
    Skipped(String),
}

impl Arguments {
    /// Run all that were asked for. The answer is whether none failed.
    fn judge_all(&self) -> Result<bool> {
        if self.list {
            JUDGES.iter().for_each(|judge| println!("{:<12}{}", judge.name, judge.about));
            return Ok(true);
        }
        let judges: Vec<&Judge> = match self.names.as_slice() {
            [] => JUDGES.iter().collect(),
            names => names.iter().map(|name| find(name)).collect::<Result<_>>()?,
        };
        catch_interrupts()?;
        if self.stack != Stack::Local {
            mortar::build()?;
            mortar::program()?;
        }
        let out = tools::target_directory()?.join("judges/logs");
        fs::create_dir_all(&out)?;
        let seed = match self.seed {
            Some(seed) => seed,
            None => SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs(),
        };
        println!("judges on {}, seed {seed}, logs in {}", self.stack.word(), out.display());
        self.judge_each(&judges, &out, seed)
    }

    fn judge_each(&self, judges: &[&Judge], out: &Path, seed: u64) -> Result<bool> {
        let list = out.join(format!("failures-{}.txt", self.stack.word()));
        let mut failures = String::new();
        let (mut passed, mut failed, mut skipped) = (0, 0, 0);
        for judge in judges {
            check_interrupted()?;
            let started = Instant::now();
            let verdict = self.judge(judge, out, seed);
            let seconds = started.elapsed().as_secs();
            let name = judge.name;
            match verdict {
                Ok(Verdict::Passed(report)) => {
                    passed += 1;
                    println!("{name:<12} passed   {} checks{} ({seconds} s)", report.checks, remark(&report));
                }
                Ok(Verdict::Skipped(reason)) => {
                    skipped += 1;
                    println!("{name:<12} skipped  {reason}");
                }
                Ok(Verdict::Failed(report)) => {
                    failed += 1;
                    println!("{name:<12} FAILED   {}{} ({seconds} s)", first(&report), remark(&report));
                    for (case, seen) in &report.failures {
                        failures.push_str(&format!("{name}: {case}: {seen}\n"));
                    }
                }
                Err(error) => {
                    failed += 1;
                    println!("{name:<12} FAILED   {error:#} ({seconds} s)");
                    failures.push_str(&format!("{name}: {error:#}\n"));
                }
            }
            fs::write(&list, &failures).context("cannot write the list of failures")?;
        }
        if failed > 0 {
            println!("what failed is in {}", list.display());
        }
        println!("judges: {passed} passed, {failed} failed, {skipped} skipped");
        Ok(failed == 0)
    }

    fn judge(&self, judge: &Judge, out: &Path, seed: u64) -> Result<Verdict> {
        if self.install {
            tools::install(judge.packages, judge.crates)?;
        }
        let missing = tools::missing(judge.packages, judge.crates)?;
        if !missing.is_empty() {
            return Ok(Verdict::Skipped(format!("needs {}: run with --install", missing.join(", "))));
        }
        if self.stack == Stack::Local {
            return Ok(Verdict::from(self.judge_on(judge, Stack::Local, out, seed)?));
        }
        let control = if self.no_control {
            Report::default()
        } else {
            self.judge_on(judge, Stack::Local, out, seed).context("on the control")?
        };
        let report = self.judge_on(judge, self.stack, out, seed)?;
        Ok(Verdict::from(report.less(&control)))
    }

    /// Run one judge on a fresh file system.
    fn judge_on(&self, judge: &Judge, stack: Stack, out: &Path, seed: u64) -> Result<Report> {
        let site = Site::new(stack, judge.mounts).context("cannot set up")?;
        let log = out.join(format!("{}-{}.log", judge.name, stack.word()));
        fs::write(&log, "")?;
        let mut command = ourselves()?;
        command.arg("one").arg(judge.name).arg("--seed").arg(seed.to_string());
        command.arg("--scratch").arg(site.scratch()).arg("--log").arg(&log);
        for mount in &site.mounts {
            command.arg("--mount").arg(mount);
        }
        if self.short {
            command.arg("--short");
        }
        let limit = if self.short { judge.limit.min(Duration::from_secs(600)) } else { judge.limit };
        let outcome = run(&mut command, limit);
        let mut report: Report = match outcome {
            Ok(text) => {
                serde_json::from_str(text.lines().last().unwrap_or_default()).context("the judge said nothing")?
            }
            Err(error) => {
                let mut report = Report::default();
                report.case::<(), _>("the judge itself", Err(error));
                report
            }
        };
        if let Some(cluster) = &site.cluster {
            let dead = cluster.dead_processes();
            let outcome = if dead.is_empty() { Ok(()) } else { Err(dead.join(", ")) };
            report.case("every process is alive", outcome);
            if !report.failures.is_empty() {
                fs::write(log.with_extension("volume.log"), cluster.log_tails())?;
            }
        }
        Ok(report)
    }
}

impl From<Report> for Verdict {
    fn from(report: Report) -> Self {
        if report.failures.is_empty() { Self::Passed(report) } else { Self::Failed(report) }
    }
}

fn find(name: &str) -> Result<&'static Judge> {
    match JUDGES.iter().find(|judge| judge.name == name) {
        Some(judge) => Ok(judge),
        None => {
            let names: Vec<&str> = JUDGES.iter().map(|judge| judge.name).collect();
            bail!("there is no judge {name}; there are {}", names.join(", "))
        }
    }
}

fn remark(report: &Report) -> String {
    let mut remark = String::new();
    if !report.skipped.is_empty() {
        remark.push_str(&format!(", {} skipped", report.skipped.len()));
    }
    if !report.note.is_empty() {
        remark.push_str(&format!(", {}", report.note));
    }
    remark
}

/// The first failure in one line, and how many there are.
fn first(report: &Report) -> String {
    let Some((case, seen)) = report.failures.first_key_value() else { return String::new() };
    let seen = seen.lines().next().unwrap_or_default();
    format!("{} of {}: {case}: {}", report.failures.len(), report.checks, seen.chars().take(200).collect::<String>())
}
