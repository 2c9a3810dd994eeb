//! Outside judges: programs that other people wrote, or that check a model of ours, let loose on a mount.
//!
//! Read `command.rs` first (the command), then any judge. A judge knows nothing of Mortar: it gets directories and says what was
//! wrong in them. It runs on a local XFS first, as the control: what fails there as well is not held against a mount.

pub mod command;
pub mod place;
pub mod report;
pub mod tools;

mod acl;
mod builds;
mod copies;
mod databases;
mod entries;
mod fsx;
mod history;
mod history_check;
mod history_model;
mod loads;
mod mmap;
mod pjdfstest;
mod two_mounts;

use std::time::Duration;

use anyhow::Result;

use self::place::Place;
use self::report::Report;
use self::tools::{CrateTool, Package};

/// Somebody who judges a file system.
#[derive(Debug, Clone, Copy)]
pub struct Judge {
    /// What it is called on the command line.
    pub name: &'static str,
    /// What it looks at, in a few words.
    pub about: &'static str,
    /// Debian packages it needs.
    pub packages: &'static [Package],
    /// Programs from crates.io it needs.
    pub crates: &'static [CrateTool],
    /// How many mounts of one volume it works through.
    pub mounts: usize,
    /// How long it may take in all.
    pub limit: Duration,
    /// The judgement.
    pub run: fn(&Place) -> Result<Report>,
}

/// Every judge, the quick ones first.
pub const JUDGES: &[Judge] = &[
    builds::SAVE,
    entries::INOTIFY,
    mmap::MMAP,
    acl::ACL,
    copies::TAR,
    copies::CP,
    copies::RSYNC,
    builds::GIT,
    builds::MAKE,
    databases::SQLITE,
    pjdfstest::PJDFSTEST,
    two_mounts::TWO_MOUNTS,
    history::HISTORY,
    entries::LISTING,
    loads::FIO,
    loads::DBENCH,
    loads::STRESS,
    databases::POSTGRES,
    fsx::FSX,
];
