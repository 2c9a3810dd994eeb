//! `mortar status`: which bricks are up, how they do, and what waits to be healed.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use bytesize::ByteSize;
use clap::Args;
use mortar_proto::volume::VolumeFile;
use serde::Serialize;

use super::{print, runtime, table};
use crate::remote::control::{self, Status};
use crate::volume::{ANSWER_WITHIN, Source};

/// Show how the bricks of a volume do; fails if one is down
#[derive(Args, Clone, Debug)]
pub struct StatusArgs {
    /// A volume file, a directory of `mortar up`, or `HOST[:PORT]:/VOLUME`
    volume: String,
    /// Everything, for programs
    #[arg(long)]
    json: bool,
}

/// One brick as it was found.
#[derive(Clone, Debug, Serialize)]
struct BrickState {
    id: String,
    address: String,
    up: bool,
    /// Of the question and its answer.
    latency_us: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Status>,
}

/// The whole answer.
#[derive(Clone, Debug, Serialize)]
struct VolumeState<'a> {
    volume: &'a str,
    id: uuid::Uuid,
    replica: u32,
    bricks: &'a [BrickState],
}

impl StatusArgs {
    /// Ask all bricks and print.
    pub fn run(&self) -> Result<ExitCode> {
        let source = Source::parse(&self.volume)?;
        let (file, bricks) = runtime()?.block_on(async {
            let file = source.load(ANSWER_WITHIN).await?;
            let bricks = ask_all(&file).await;
            anyhow::Ok((file, bricks))
        })?;
        if self.json {
            let state = VolumeState { volume: &file.name, id: file.id, replica: file.replica, bricks: &bricks };
            print(&format!("{}\n", serde_json::to_string_pretty(&state)?))?;
        } else {
            print(&table_of(&file, &bricks))?;
        }
        let all_up = bricks.iter().all(|brick| brick.up);
        Ok(if all_up { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

async fn ask_all(file: &VolumeFile) -> Vec<BrickState> {
    let asked = file.bricks.iter().map(|brick| async move {
        let began = Instant::now();
        let answer = control::status(&brick.address, ANSWER_WITHIN).await;
        let latency_us = u64::try_from(began.elapsed().as_micros()).ok();
        let (id, address) = (brick.id.clone(), brick.address.clone());
        match answer {
            Ok(status) if status.volume_id != file.id || status.brick_id != brick.id => {
                let error = format!("brick {} of volume {} answers here", status.brick_id, status.volume);
                BrickState { id, address, up: false, latency_us, error: Some(error), status: None }
            }
            Ok(status) => BrickState { id, address, up: true, latency_us, error: None, status: Some(status) },
            Err(error) => {
                BrickState { id, address, up: false, latency_us: None, error: Some(format!("{error:#}")), status: None }
            }
        }
    });
    futures::future::join_all(asked).await
}

/// The table, and below it what is wrong with those that are down.
fn table_of(file: &VolumeFile, bricks: &[BrickState]) -> String {
    let up = bricks.iter().filter(|brick| brick.up).count();
    let header = ["BRICK", "ADDRESS", "STATE", "ANSWERS IN", "UP FOR", "USED", "OF", "CLIENTS", "PENDING", "DIRTY"];
    let mut rows = table(&header);
    for brick in bricks {
        match &brick.status {
            Some(status) => rows.add_row(row_of(brick, status)),
            None => rows.add_row([brick.id.as_str(), &brick.address, "DOWN"]),
        };
    }
    let title = format!("volume {}  id {}  {up} of {} bricks up", file.name, file.id, bricks.len());
    let mut text = format!("{title}\n\n{}\n", rows.trim_fmt());
    for brick in bricks {
        if let Some(error) = &brick.error {
            text.push_str(&format!("\n{} at {}: {error}\n", brick.id, brick.address));
        }
    }
    text
}

fn row_of(brick: &BrickState, status: &Status) -> [String; 10] {
    let unknown = || "?".to_owned();
    let bytes = |bytes: u64| ByteSize(bytes).to_string();
    let latency = Duration::from_micros(brick.latency_us.unwrap_or_default());
    [
        brick.id.clone(),
        brick.address.clone(),
        "up".to_owned(),
        format!("{:.1} ms", latency.as_secs_f64() * 1e3),
        humantime::format_duration(Duration::from_secs(status.uptime_ms / 1000)).to_string(),
        status.space.map_or_else(unknown, |space| bytes(space.bytes_used)),
        status.space.map_or_else(unknown, |space| bytes(space.bytes_total)),
        status.sessions.len().to_string(),
        status.backlog.map_or_else(unknown, |backlog| backlog.pending.to_string()),
        status.backlog.map_or_else(unknown, |backlog| backlog.dirty.to_string()),
    ]
}
