//! `mortar volume create|show|check`: volume files.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use mortar_proto::volume::{Shape, VolumeFile};
use mortar_xlators::graph::Quorum;
use uuid::Uuid;

use super::{print, runtime, table};
use crate::volume::{self, ANSWER_WITHIN, Source};

/// Write, show and check volume files
#[derive(Args, Clone, Debug)]
pub struct VolumeArgs {
    #[command(subcommand)]
    command: VolumeCommand,
}

#[derive(Subcommand, Clone, Debug)]
enum VolumeCommand {
    Create(CreateArgs),
    Show(SourceArgs),
    Check(CheckArgs),
}

/// Write a new volume file
#[derive(Args, Clone, Debug)]
struct CreateArgs {
    /// What people will call the volume
    name: String,
    /// The bricks, set by set: with `--replica 3` each three in a row are copies of each other
    #[arg(required = true, value_name = "HOST[:PORT]:/PATH")]
    bricks: Vec<String>,
    /// How many copies of each file
    #[arg(long, default_value_t = 1)]
    replica: u32,
    /// The last brick of each set keeps names and attributes only (with `--replica 3`)
    #[arg(long)]
    arbiter: bool,
    /// How many copies must take part in a change: `auto` (more than half), `none` (one), or a number
    #[arg(long, default_value = "auto", value_parser = parse_quorum)]
    quorum: Quorum,
    /// Where to write it [default: NAME.toml]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// The volume's identity, to take over bricks that carry it already [default: a new one]
    #[arg(long, value_name = "UUID")]
    id: Option<Uuid>,
}

/// Show a volume: its sets, and what each brick is called in pending marks
#[derive(Args, Clone, Debug)]
struct SourceArgs {
    /// A volume file, a directory of `mortar up`, or `HOST[:PORT]:/VOLUME`
    volume: String,
}

/// Check a volume file, and with `--connect` that its bricks answer
#[derive(Args, Clone, Debug)]
struct CheckArgs {
    /// A volume file, a directory of `mortar up`, or `HOST[:PORT]:/VOLUME`
    volume: String,
    /// Also ask each brick
    #[arg(long)]
    connect: bool,
}

fn parse_quorum(text: &str) -> Result<Quorum, String> {
    match text {
        "auto" => Ok(Quorum::Auto),
        "none" => Ok(Quorum::None),
        number => number.parse().map(Quorum::Fixed).map_err(|_| "give `auto`, `none` or a number".to_owned()),
    }
}

impl VolumeArgs {
    /// Do it.
    pub fn run(self) -> Result<ExitCode> {
        match self.command {
            VolumeCommand::Create(args) => args.run(),
            VolumeCommand::Show(args) => show(&load(&args.volume)?),
            VolumeCommand::Check(args) => args.run(),
        }
    }
}

fn load(text: &str) -> Result<VolumeFile> {
    runtime()?.block_on(Source::parse(text)?.load(ANSWER_WITHIN))
}

impl CreateArgs {
    fn run(self) -> Result<ExitCode> {
        let shape = Shape { replica: self.replica, arbiter: self.arbiter, quorum: self.quorum };
        let file = VolumeFile::create(&self.name, self.id.unwrap_or_else(Uuid::new_v4), shape, &self.bricks)?;
        let output = self.output.unwrap_or_else(|| PathBuf::from(format!("{}.toml", self.name)));
        volume::write_new(&output, &file)?;
        println!("wrote {}: volume {}, {}", output.display(), file.name, describe(&file));
        Ok(ExitCode::SUCCESS)
    }
}

/// `6 bricks in 2 sets of 3 copies`.
fn describe(file: &VolumeFile) -> String {
    let copies = match (file.replica, file.arbiter) {
        (1, _) => "one copy".to_owned(),
        (_, true) => "2 copies and an arbiter".to_owned(),
        (replica, false) => format!("{replica} copies"),
    };
    let count = |number: usize, what: &str| format!("{number} {what}{}", if number == 1 { "" } else { "s" });
    format!("{} in {} of {copies}", count(file.bricks.len(), "brick"), count(file.sets().len(), "set"))
}

fn show(file: &VolumeFile) -> Result<ExitCode> {
    let mut rows = table(&["SET", "BRICK", "ADDRESS", "PATH", "KEEPS"]);
    for (index, brick) in file.bricks.iter().enumerate() {
        let keeps = if file.is_arbiter(index) { "names and attributes" } else { "everything" };
        let set = (index / file.replica as usize).to_string();
        rows.add_row([set.as_str(), &brick.id, &brick.address, &brick.path, keeps]);
    }
    let title = format!("volume {}  id {}  {}", file.name, file.id, describe(file));
    print(&format!("{title}\n\n{}\n", rows.trim_fmt()))?;
    Ok(ExitCode::SUCCESS)
}

impl CheckArgs {
    fn run(self) -> Result<ExitCode> {
        let file = load(&self.volume)?;
        if !self.connect {
            println!("{}: volume {}, {}", self.volume, file.name, describe(&file));
            return Ok(ExitCode::SUCCESS);
        }
        let problems = runtime()?.block_on(volume::problems(&file));
        for problem in &problems {
            println!("{problem}");
        }
        if !problems.is_empty() {
            bail!("{} of {} bricks cannot be used", problems.len(), file.bricks.len());
        }
        println!("{}: volume {}, {}, all answer", self.volume, file.name, describe(&file));
        Ok(ExitCode::SUCCESS)
    }
}
