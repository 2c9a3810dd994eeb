//! `mortar man DIR`: a man page for `mortar` and for each of its subcommands.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;

/// Write the man pages into a directory
#[derive(Args, Clone, Debug)]
pub struct ManArgs {
    /// Such as `/usr/local/share/man/man1`; made if it is not there
    dir: PathBuf,
}

impl ManArgs {
    /// Write them.
    pub fn run(&self, command: clap::Command) -> Result<()> {
        let shown = self.dir.display();
        fs::create_dir_all(&self.dir).with_context(|| format!("cannot make {shown}"))?;
        clap_mangen::generate_to(command, &self.dir).with_context(|| format!("cannot write man pages into {shown}"))
    }
}
