//! `brickd`: one brick as a bare daemon.

use std::process::ExitCode;

use clap::Parser;
use mortar_brick::BrickArgs;

/// Serve one disk's directory as a brick of a volume.
#[derive(Debug, Parser)]
#[command(name = "brickd", version)]
struct Args {
    #[command(flatten)]
    brick: BrickArgs,
}

fn main() -> ExitCode {
    match mortar_brick::run(Args::parse().brick) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("brickd: {error:#}");
            ExitCode::FAILURE
        }
    }
}
