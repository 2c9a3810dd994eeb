//! The questions that the command line asks a brick, each over a connection of its own.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use mortar_proto::pb;
use mortar_proto::pb::brick_client::BrickClient;
use mortar_proto::volume::VOLUME_FILE_BYTES_MAX;
use serde::Serialize;
use tonic::transport::{Channel, Endpoint};
use uuid::Uuid;

/// The longest answer: a statedump of a brick with many leases.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// Nobody answered: what asking again may cure.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NoAnswer(String);

/// How a brick does.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// The version of the program.
    pub release: String,
    /// The volume it serves.
    pub volume: String,
    /// The volume's identity.
    pub volume_id: Uuid,
    /// Which brick it is.
    pub brick_id: String,
    /// Where it is.
    pub path: String,
    /// Its process.
    pub pid: u32,
    /// Since it started.
    pub uptime_ms: u64,
    /// The clients.
    pub sessions: Vec<Session>,
    /// How much space it has, if its file system said.
    pub space: Option<Space>,
    /// What waits to be healed, if its index could be read.
    pub backlog: Option<Backlog>,
    /// What it did so far, per kind of fop.
    pub fops: Vec<FopCount>,
}

/// A client of a brick.
#[derive(Clone, Debug, Serialize)]
pub struct Session {
    /// 32 hex digits.
    pub client: String,
    /// From where.
    pub peer: String,
    /// When it was last heard.
    pub heard_ms_ago: u64,
    /// Requests that were not yet answered.
    pub in_flight: u64,
    /// Requests so far.
    pub requests: u64,
}

/// Bytes on the file system of a brick.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Space {
    /// All of them.
    pub bytes_total: u64,
    /// Those in use.
    pub bytes_used: u64,
}

/// What waits to be healed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Backlog {
    /// Objects of which other copies miss changes.
    pub pending: u64,
    /// Objects that are being changed, or were when a client died.
    pub dirty: u64,
}

/// What a brick did of one kind.
#[derive(Clone, Debug, Serialize)]
pub struct FopCount {
    /// Which fop.
    pub fop: String,
    /// How often.
    pub calls: u64,
    /// How often in vain.
    pub errors: u64,
    /// Time spent, in all.
    pub nanos_total: u64,
    /// Of the median call.
    pub nanos_median: u64,
    /// Of the slowest but one in a hundred.
    pub nanos_p99: u64,
    /// Of the slowest.
    pub nanos_max: u64,
}

/// The text of the volume file that the brick at `address` serves, which must be of volume `volume` if that is given.
pub async fn volume_file(address: &str, volume: Option<&str>, patience: Duration) -> Result<String> {
    let request = pb::VolumeFileRequest { volume: volume.unwrap_or_default().to_owned() };
    let text = ask(address, patience, async |mut brick| brick.volume_file(request).await).await?.text;
    ensure!(text.len() <= VOLUME_FILE_BYTES_MAX, "the volume file from {address} is too long");
    Ok(text)
}

/// How the brick at `address` does.
pub async fn status(address: &str, patience: Duration) -> Result<Status> {
    let reply = ask(address, patience, async |mut brick| brick.status(pb::StatusRequest {}).await).await?;
    Ok(Status {
        release: reply.release,
        volume: reply.volume,
        volume_id: Uuid::from_slice(&reply.volume_id).context("the brick says no volume id")?,
        brick_id: reply.brick_id,
        path: reply.path,
        pid: reply.pid,
        uptime_ms: reply.uptime_ms,
        sessions: reply.sessions.into_iter().map(session).collect(),
        space: reply.space.map(|space| space_of(&space)),
        backlog: reply.backlog.map(|waiting| Backlog { pending: waiting.pending, dirty: waiting.dirty }),
        fops: reply.fops.into_iter().map(fop_count).collect(),
    })
}

/// Everything the brick at `address` knows of itself.
pub async fn statedump(address: &str, patience: Duration) -> Result<String> {
    let reply = ask(address, patience, async |mut brick| brick.statedump(pb::StatedumpRequest {}).await).await?;
    Ok(reply.text)
}

fn session(info: pb::SessionInfo) -> Session {
    let pb::SessionInfo { client, peer, heard_ms_ago, in_flight, requests } = info;
    Session { client, peer, heard_ms_ago, in_flight, requests }
}

fn space_of(space: &pb::Space) -> Space {
    let bytes = |blocks: u64| blocks.saturating_mul(space.block_bytes);
    Space { bytes_total: bytes(space.blocks), bytes_used: bytes(space.blocks.saturating_sub(space.blocks_free)) }
}

fn fop_count(count: pb::FopCount) -> FopCount {
    let pb::FopCount { fop, calls, errors, nanos_total, nanos_median, nanos_p99, nanos_max } = count;
    FopCount { fop, calls, errors, nanos_total, nanos_median, nanos_p99, nanos_max }
}

/// Connect, ask one question, and give up after `patience`.
async fn ask<T>(
    address: &str,
    patience: Duration,
    question: impl AsyncFnOnce(BrickClient<Channel>) -> Result<tonic::Response<T>, tonic::Status>,
) -> Result<T> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"));
    let endpoint = endpoint.with_context(|| format!("`{address}` is no HOST:PORT"))?.connect_timeout(patience);
    let asked = async {
        let channel = endpoint.connect().await.map_err(|error| NoAnswer(root_cause(&error)))?;
        let brick = BrickClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX);
        question(brick).await.map_err(|status| match status.message() {
            "" => anyhow::anyhow!("it answered {}", status.code()),
            said => anyhow::anyhow!("{said}"),
        })
    };
    match tokio::time::timeout(patience, asked).await {
        Ok(reply) => Ok(reply?.into_inner()),
        Err(_) => bail!(NoAnswer(format!("no answer within {} s", patience.as_secs_f32()))),
    }
}

/// What the operating system said: the layers above only say that something failed.
fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}
