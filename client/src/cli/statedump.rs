//! `mortar statedump`: everything that bricks, or a mount, know of themselves, as text for people.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;

use super::{mount_process, print, runtime};
use crate::remote::control;
use crate::volume::{ANSWER_WITHIN, Source};

/// Print everything that the bricks of a volume, or a mount, know of themselves
#[derive(Args, Clone, Debug)]
pub struct StatedumpArgs {
    /// A volume file, a directory of `mortar up`, `HOST[:PORT]:/VOLUME`, or where a volume is mounted
    target: String,
}

impl StatedumpArgs {
    /// Print it.
    pub fn run(&self) -> Result<ExitCode> {
        if let Some(socket) = mount_process::socket_of(Path::new(&self.target)) {
            print(&ask_mount(&socket).with_context(|| format!("the mount at {} does not answer", self.target))?)?;
            return Ok(ExitCode::SUCCESS);
        }
        let source = Source::parse(&self.target)?;
        runtime()?.block_on(ask_bricks(&source))
    }
}

fn ask_mount(socket: &Path) -> Result<String> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(ANSWER_WITHIN))?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

/// One after the other, so that what is printed stands together. A brick that is down is said, and fails the command.
async fn ask_bricks(source: &Source) -> Result<ExitCode> {
    let file = source.load(ANSWER_WITHIN).await?;
    let mut code = ExitCode::SUCCESS;
    for brick in &file.bricks {
        print(&format!("==== brick {} at {}:{}\n", brick.id, brick.address, brick.path))?;
        match control::statedump(&brick.address, ANSWER_WITHIN).await {
            Ok(text) => print(&format!("{}\n", text.trim_end()))?,
            Err(error) => {
                print(&format!("down: {error:#}\n"))?;
                code = ExitCode::FAILURE;
            }
        }
    }
    Ok(code)
}
