//! `mortar down DIR`: unmount and stop what `mortar up DIR` started. The data stays.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Args;

use super::run_dir::RunDir;

/// How long a `mortar up` in the foreground may take to stop everything.
const END_WITHIN: Duration = Duration::from_secs(60);

/// Stop what `mortar up DIR` started; the data stays
#[derive(Args, Clone, Debug)]
pub struct DownArgs {
    /// The directory given to `mortar up`
    dir: PathBuf,
}

impl DownArgs {
    /// Stop it. Nothing running is no error, so that a script can always end with this.
    pub fn run(&self) -> Result<ExitCode> {
        let dir = RunDir::open(&self.dir)?;
        let shown = self.dir.display();
        ensure!(dir.volume_file().exists(), "{shown} holds no volume of `mortar up`");
        if let Some(up) = dir.up()? {
            up.end(END_WITHIN);
        }
        for complaint in dir.stop() {
            eprintln!("mortar: {complaint}");
        }
        println!("{shown} is down; `mortar up {shown}` starts it again");
        Ok(ExitCode::SUCCESS)
    }
}
