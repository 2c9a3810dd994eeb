//! `mortar`: the contents page of the command line.

use std::process::ExitCode;

use anyhow::Result;
use clap::{CommandFactory, Parser, Subcommand};
use mortar_client::cli::{self, logs::LogArgs};

/// Mortar holds bricks together: a replicated and distributed file system of plain files
#[derive(Parser, Debug)]
#[command(name = "mortar", version, propagate_version = true, max_term_width = 120)]
struct Mortar {
    #[command(flatten)]
    logs: LogArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    Umount(cli::umount::UmountArgs),
    Status(cli::status::StatusArgs),
    Volume(cli::volume::VolumeArgs),
    Completions(cli::completions::CompletionsArgs),
    Man(cli::man::ManArgs),
}

fn main() -> ExitCode {
    run(Mortar::parse()).unwrap_or_else(|error| {
        // One line, whatever the causes contain.
        let line = format!("{error:#}").split_whitespace().collect::<Vec<_>>().join(" ");
        eprintln!("mortar: {line}");
        ExitCode::FAILURE
    })
}

fn run(mortar: Mortar) -> Result<ExitCode> {
    let logs = mortar.logs;
    logs.start("warn")?;
    match mortar.command {
        Command::Umount(args) => args.run().map(|()| ExitCode::SUCCESS),
        Command::Status(args) => args.run(),
        Command::Volume(args) => args.run(),
        Command::Completions(args) => {
            args.run(Mortar::command());
            Ok(ExitCode::SUCCESS)
        }
        Command::Man(args) => args.run(Mortar::command()).map(|()| ExitCode::SUCCESS),
    }
}
