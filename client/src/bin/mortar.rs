//! `mortar`: the contents page of the command line.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use clap::{CommandFactory, Parser, Subcommand};
use mortar_client::cli::{self, logs::LogArgs};

/// Mortar holds bricks together: a replicated and distributed file system of plain files
#[derive(Parser, Debug)]
#[command(name = "mortar", version, propagate_version = true, max_term_width = 120)]
struct Mortar {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    Up(cli::up::UpArgs),
    Down(cli::down::DownArgs),
    Mount(cli::mount::MountArgs),
    Umount(cli::umount::UmountArgs),
    Status(cli::status::StatusArgs),
    Statedump(cli::statedump::StatedumpArgs),
    Volume(cli::volume::VolumeArgs),
    /// Serve one disk's directory as a brick of a volume
    Brick(mortar_brick::BrickArgs),
    Completions(cli::completions::CompletionsArgs),
    Man(cli::man::ManArgs),
}

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let is_helper = arguments.first().is_some_and(|program| cli::mount::is_helper(Path::new(program)));
    let done =
        if is_helper { cli::mount::run_helper(arguments.into_iter()) } else { run(Mortar::parse_from(arguments)) };
    done.unwrap_or_else(|error| {
        // One line, whatever the causes contain.
        let line = format!("{error:#}").split_whitespace().collect::<Vec<_>>().join(" ");
        eprintln!("mortar: {line}");
        ExitCode::FAILURE
    })
}

fn run(mortar: Mortar) -> Result<ExitCode> {
    // What runs for long has log options of its own.
    if !matches!(mortar.command, Command::Up(_) | Command::Mount(_) | Command::Brick(_)) {
        LogArgs::default().start("warn")?;
    }
    match mortar.command {
        Command::Up(args) => args.run(),
        Command::Down(args) => args.run(),
        Command::Mount(args) => args.run(),
        Command::Umount(args) => args.run().map(|()| ExitCode::SUCCESS),
        Command::Status(args) => args.run(),
        Command::Statedump(args) => args.run(),
        Command::Volume(args) => args.run(),
        Command::Brick(args) => mortar_brick::run(args).map(|()| ExitCode::SUCCESS),
        Command::Completions(args) => args.run(Mortar::command()).map(|()| ExitCode::SUCCESS),
        Command::Man(args) => args.run(Mortar::command()).map(|()| ExitCode::SUCCESS),
    }
}
