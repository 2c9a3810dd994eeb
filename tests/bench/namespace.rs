//! A network namespace for one contender: its address, its processes, their processor time, and their end.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};

use super::command::{SETUP_LIMIT, clean_up, run};

/// The address inside the namespace, which is not a loopback address although it sits on the loopback device: that is
/// all that GlusterFS and MooseFS ask for, and it costs less than a pair of virtual devices.
pub const ADDRESS: &str = "10.77.1.1";

/// Kernel clock ticks per second in `/proc/PID/stat`; Linux gives user space 100 on every machine.
const TICKS_PER_SECOND: f64 = 100.0;

/// A network namespace, gone with everything that runs in it when dropped.
#[derive(Debug)]
pub struct Namespace {
    name: String,
    inode: u64,
}

impl Namespace {
    /// Make one. The name carries our process id and a number, so that neither two benchmarks nor two tests meet.
    pub fn new(tag: &str) -> Result<Self> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("mortar-{}-{number}-{tag}", std::process::id());
        run(Command::new("ip").args(["netns", "add", &name]), SETUP_LIMIT)?;
        let inode = fs::metadata(Self::file(&name)).context("the namespace has no file")?.ino();
        let namespace = Self { name, inode };
        run(namespace.command("ip").args(["link", "set", "lo", "up"]), SETUP_LIMIT)?;
        run(namespace.command("ip").args(["addr", "add", &format!("{ADDRESS}/24"), "dev", "lo"]), SETUP_LIMIT)?;
        Ok(namespace)
    }

    /// A program to be run inside. Only the network is apart: what it mounts, everybody sees.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", Self::file(&self.name).display())).arg(program);
        command
    }

    /// Processor seconds of all processes inside, with those of the children that they have waited for.
    pub fn cpu_seconds(&self) -> f64 {
        self.pids().iter().filter_map(|pid| ticks(pid.as_raw_nonzero().get())).sum::<u64>() as f64 / TICKS_PER_SECOND
    }

    /// The programs inside: how many processes of each, and the resident memory of the largest, in KiB.
    pub fn programs(&self) -> BTreeMap<String, (usize, u64)> {
        let mut programs = BTreeMap::new();
        for (name, resident_kib) in self.pids().iter().filter_map(|pid| resident(pid.as_raw_nonzero().get())) {
            let (count, largest_kib) = programs.entry(name).or_insert((0, 0));
            *count += 1;
            *largest_kib = resident_kib.max(*largest_kib);
        }
        programs
    }

    /// Every process inside.
    pub fn pids(&self) -> Vec<Pid> {
        let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
        entries
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
            .filter(|pid| fs::metadata(format!("/proc/{pid}/ns/net")).is_ok_and(|meta| meta.ino() == self.inode))
            .filter_map(Pid::from_raw)
            .collect()
    }

    /// End everything inside, politely at first.
    pub fn end_processes(&self) {
        for (signal, patience) in [(Signal::TERM, Duration::from_secs(3)), (Signal::KILL, Duration::from_secs(5))] {
            let started = Instant::now();
            for pid in self.pids() {
                let _ = kill_process(pid, signal);
            }
            while started.elapsed() < patience {
                if self.pids().is_empty() {
                    return;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        eprintln!("while cleaning up: {} processes do not end", self.pids().len());
    }

    fn file(name: &str) -> PathBuf {
        PathBuf::from("/run/netns").join(name)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        self.end_processes();
        clean_up(Command::new("ip").args(["netns", "delete", &self.name]));
    }
}

/// User and system time of a process and of its dead children, from the 14th to the 17th field of its stat line.
fn ticks(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the program's name in brackets and may hold anything, so count from the last bracket.
    let (_, after_name) = stat.rsplit_once(')')?;
    after_name.split_whitespace().skip(11).take(4).map(|field| field.parse::<u64>().ok()).sum()
}

/// A process's name and the memory that it has resident.
fn resident(pid: i32) -> Option<(String, u64)> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let field = |key: &str| status.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
    Some((field("Name:")?.to_owned(), field("VmRSS:")?.split(' ').next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_figures_can_be_read() {
        let pid = i32::try_from(std::process::id()).unwrap();
        assert!(ticks(pid).is_some());
        assert!(resident(pid).is_some_and(|(_, kib)| kib > 0));
    }
}
