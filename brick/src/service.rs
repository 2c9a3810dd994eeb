//! gRPC to the stack of a brick: hellos, and the calls for people.
//!
//! A hello that is meant for another brick, volume or version is refused with one clear line; who is let in gets its
//! two lanes in [`crate::session`].

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mortar_proto::{FRAME_BYTES_MAX, Version, pb};
use mortar_xlators::ctx::{Caller, Ctx};
use mortar_xlators::fop::{Backlog, Statfs};
use mortar_xlators::io_stats::{Count, IoStats};
use mortar_xlators::types::ClientId;
use mortar_xlators::xlator::Subvol;
use tokio_stream::Stream;
use tonic::{Request, Response, Status, Streaming};
use tracing::warn;
use uuid::Uuid;

use crate::session::{Connection, Frames, LaneKind, Met, Outbox, Sessions};
use crate::stack::Stack;

/// How long a connection may take to say hello.
const HELLO_WAIT: Duration = Duration::from_secs(5);

/// How long a call for people waits for the disk.
const STATUS_WAIT: Duration = Duration::from_secs(5);

/// Who the brick is.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) volume: String,
    pub(crate) volume_id: Uuid,
    pub(crate) brick_id: String,
    pub(crate) path: String,
    pub(crate) incarnation: u64,
    /// The text of the volume file.
    pub(crate) volume_file: String,
}

/// The service of one brick.
#[derive(Clone, Debug)]
pub(crate) struct Service(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    identity: Identity,
    sessions: Arc<Sessions>,
    stats: Arc<IoStats>,
    began: Instant,
}

impl Service {
    pub(crate) fn new(identity: Identity, sessions: Arc<Sessions>, stack: &Stack) -> Self {
        Self(Arc::new(Inner { identity, sessions, stats: Arc::clone(stack.stats()), began: Instant::now() }))
    }

    /// The service as tonic serves it.
    pub(crate) fn into_server(self) -> pb::brick_server::BrickServer<Self> {
        pb::brick_server::BrickServer::new(self).max_decoding_message_size(FRAME_BYTES_MAX)
    }

    fn check(&self, hello: &pb::Hello) -> Result<(), Status> {
        let me = &self.0.identity;
        let ours = Version::CURRENT as u32;
        let refuse = |text: String| Err(Status::failed_precondition(text));
        if hello.version != ours {
            let theirs = hello.version;
            return refuse(format!("brick {} speaks protocol version {ours}, the client {theirs}", me.brick_id));
        }
        if hello.volume_id[..] != me.volume_id.as_bytes()[..] {
            let theirs = Uuid::from_slice(&hello.volume_id).unwrap_or_default();
            let (volume, id) = (&me.volume, me.volume_id);
            return refuse(format!("this is a brick of volume {volume} ({id}), the client wants volume {theirs}"));
        }
        if hello.brick_id != me.brick_id {
            let theirs: String = hello.brick_id.chars().take(64).collect();
            return refuse(format!("this is brick {}, the client wants brick {theirs}", me.brick_id));
        }
        Ok(())
    }

    fn welcome(&self, met: Met) -> pb::Welcome {
        let me = &self.0.identity;
        let term = self.0.sessions.lease_term();
        pb::Welcome {
            version: Version::CURRENT as u32,
            volume_id: me.volume_id.as_bytes().to_vec().into(),
            brick_id: me.brick_id.clone(),
            incarnation: me.incarnation,
            known: met == Met::Known,
            blames: self.0.sessions.blames(),
            lease_term_ms: u32::try_from(term.as_millis()).unwrap_or(u32::MAX),
        }
    }

    async fn hello(&self, peer: &str, mut incoming: Streaming<pb::FromClient>) -> Result<Frames, Status> {
        let first = tokio::time::timeout(HELLO_WAIT, incoming.message()).await;
        let first = first.map_err(|_| Status::deadline_exceeded("no hello came"))??;
        let hello = first.and_then(|frame| frame.hello).ok_or_else(|| Status::invalid_argument("no hello came"))?;
        self.check(&hello)?;
        let met = self.0.sessions.meet(&hello, peer).await?;
        let outbox = Outbox::new(self.welcome(met));
        let frames = Frames(Arc::clone(&outbox));
        if met == Met::Unknown {
            outbox.end(Status::not_found("the brick does not know the session"));
            return Ok(frames);
        }
        let kind = if hello.control { LaneKind::Control } else { LaneKind::Data };
        let connection = Connection { incoming, outbox, oldest: hello.oldest };
        self.0.sessions.join(&hello, kind, connection).await?;
        Ok(frames)
    }

    fn internal_ctx() -> Ctx {
        Ctx::new(0, ClientId::default(), Caller::root(), Instant::now() + STATUS_WAIT)
    }
}

#[tonic::async_trait]
impl pb::brick_server::Brick for Service {
    type SessionStream = Pin<Box<dyn Stream<Item = Result<pb::FromBrick, Status>> + Send>>;

    async fn session(
        &self,
        request: Request<Streaming<pb::FromClient>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let peer = request.remote_addr().map_or_else(|| "unknown".to_owned(), |address| address.to_string());
        match self.hello(&peer, request.into_inner()).await {
            Ok(frames) => Ok(Response::new(Box::pin(frames))),
            Err(status) => {
                warn!(peer, why = status.message(), "refused a client");
                Err(status)
            }
        }
    }

    async fn status(&self, _: Request<pb::StatusRequest>) -> Result<Response<pb::StatusReply>, Status> {
        let me = &self.0.identity;
        let ctx = Self::internal_ctx();
        let top: Subvol = Arc::<IoStats>::clone(&self.0.stats);
        let space = tokio::time::timeout(STATUS_WAIT, top.send(&ctx, Statfs)).await;
        let backlog = tokio::time::timeout(STATUS_WAIT, top.send(&ctx, Backlog)).await;
        Ok(Response::new(pb::StatusReply {
            version: Version::CURRENT as u32,
            release: env!("CARGO_PKG_VERSION").to_owned(),
            volume: me.volume.clone(),
            volume_id: me.volume_id.as_bytes().to_vec().into(),
            brick_id: me.brick_id.clone(),
            path: me.path.clone(),
            incarnation: me.incarnation,
            uptime_ms: u64::try_from(self.0.began.elapsed().as_millis()).unwrap_or(u64::MAX),
            pid: std::process::id(),
            fops: self.0.stats.counts().into_iter().map(count_to_wire).collect(),
            sessions: self.0.sessions.list(),
            space: space.ok().and_then(Result::ok).map(Into::into),
            backlog: backlog.ok().and_then(Result::ok).map(Into::into),
        }))
    }

    async fn statedump(&self, _: Request<pb::StatedumpRequest>) -> Result<Response<pb::StatedumpReply>, Status> {
        Ok(Response::new(pb::StatedumpReply { text: self.statedump_text() }))
    }

    async fn volume_file(
        &self,
        request: Request<pb::VolumeFileRequest>,
    ) -> Result<Response<pb::VolumeFileReply>, Status> {
        let me = &self.0.identity;
        let wanted = request.into_inner().volume;
        if !wanted.is_empty() && wanted != me.volume {
            return Err(Status::not_found(format!("this is a brick of volume {}, not of {wanted}", me.volume)));
        }
        Ok(Response::new(pb::VolumeFileReply { text: me.volume_file.clone() }))
    }
}

impl Service {
    /// Everything the brick knows of itself, as text.
    pub(crate) fn statedump_text(&self) -> String {
        use std::fmt::Write;
        let me = &self.0.identity;
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = writeln!(text, "brick {} of volume {} ({})", me.brick_id, me.volume, me.volume_id);
        let _ = writeln!(text, "release {}  protocol {}", env!("CARGO_PKG_VERSION"), Version::CURRENT as u32);
        let _ = writeln!(text, "path {}  pid {}", me.path, std::process::id());
        let _ = writeln!(text, "incarnation {:016x}  up {:?}\n", me.incarnation, self.0.began.elapsed());
        let _ = writeln!(text, "sessions");
        for session in self.0.sessions.list() {
            let pb::SessionInfo { client, peer, heard_ms_ago, in_flight, requests } = session;
            let _ = writeln!(
                text,
                "  {client} {peer}  heard {heard_ms_ago} ms ago  in flight {in_flight}  requests {requests}"
            );
        }
        let _ = writeln!(text, "\nfops\n{}", self.0.stats.text());
        let _ = writeln!(text, "layers\n{:#?}", self.0.stats);
        text
    }
}

fn count_to_wire(count: Count) -> pb::FopCount {
    let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    pb::FopCount {
        fop: count.kind.name().to_owned(),
        calls: count.calls,
        errors: count.errors,
        nanos_total: nanos(count.total),
        nanos_median: nanos(count.median),
        nanos_p99: nanos(count.p99),
        nanos_max: nanos(count.max),
    }
}
