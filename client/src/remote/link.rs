//! Connections to a brick: hello, reconnect, heartbeat, and when the brick counts as gone.
//!
//! A session is lost when the brick refuses a connection or no longer knows the session, or when it answered no
//! heartbeat for (almost) a lease term. Until then a broken connection is replaced and what was unanswered is sent
//! again. The next session is a new one in every respect.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mortar_proto::codec::nouns::{inode, mode_from_wire};
use mortar_proto::{CONNECTION_WINDOW_BYTES, HTTP_FRAME_BYTES_MAX, STREAM_WINDOW_BYTES, Version, pb, wire};
use mortar_xlators::types::Epoch;
use mortar_xlators::xlator::{Health, Notice};
use tokio::task::JoinSet;
use tonic::transport::Endpoint;
use tonic::{Code, Streaming};
use tracing::{info, warn};

use super::Shared;
use super::lane::{Frames, Lane};

/// How long a connection may take to come about, hello included.
const CONNECT_WAIT: Duration = Duration::from_secs(3);

/// The pause after the first failure to connect; it doubles up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(50);

/// A brick that comes back is found within this time.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// How often deadlines are looked at: a caller whose time is up hears so at most this much later.
const TICK: Duration = Duration::from_millis(500);

/// How often an idle connection is probed by HTTP/2.
const KEEPALIVE: Duration = Duration::from_secs(10);

/// The shortest lease term that a brick may have: heartbeats come three times in it.
const TERM_MIN: Duration = Duration::from_millis(100);

/// Which of the two streams of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LaneKind {
    Data,
    Control,
}

/// Why there is no connection.
#[derive(Clone, Debug, PartialEq, Eq)]
enum NoLink {
    /// Trying again at once may help: the network, not the brick.
    Broken(String),
    /// The session is lost: nobody listens there, or the brick does not want or know us.
    Refused(String),
}

/// A stream that the brick welcomed.
struct Link {
    stream: Streaming<pb::FromBrick>,
    welcome: pb::Welcome,
}

/// What the tasks of one session share.
struct Session {
    shared: Arc<Shared>,
    nonce: u64,
    /// When the last answered heartbeat was sent, in milliseconds of [`boottime_ms`].
    trusted_at_ms: AtomicU64,
}

/// Keep a brick connected, until the layer is no longer wanted.
pub(super) async fn keep(shared: Arc<Shared>) {
    let mut pause = PAUSE_MIN;
    let mut last_failure = None;
    let mut number = 0;
    while !*shared.leaving.borrow() {
        match Session::begin(&shared).await {
            Ok((session, control, data)) => {
                number += 1;
                pause = PAUSE_MIN;
                last_failure = None;
                info!(brick = shared.brick.id, address = shared.brick.address, session = number, "connected");
                let why = session.serve(number, control, data).await;
                shared.data.down();
                shared.control.down();
                shared.health.send_replace(Health::Down);
                if !*shared.leaving.borrow() {
                    warn!(brick = shared.brick.id, address = shared.brick.address, why, "lost the brick");
                }
            }
            Err(NoLink::Broken(why) | NoLink::Refused(why)) => {
                // One line when it begins, and one when the reason changes.
                if last_failure.as_ref() != Some(&why) {
                    warn!(brick = shared.brick.id, address = shared.brick.address, why, "cannot connect");
                    last_failure = Some(why);
                }
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(PAUSE_MAX);
            }
        }
    }
}

impl Session {
    async fn begin(shared: &Arc<Shared>) -> Result<(Arc<Self>, Link, Link), NoLink> {
        let (nonce, _) = uuid::Uuid::new_v4().as_u64_pair();
        let trusted_at_ms = AtomicU64::new(boottime_ms());
        let session = Arc::new(Self { shared: Arc::clone(shared), nonce, trusted_at_ms });
        let control = session.connect(LaneKind::Control, Resume::No).await?;
        let data = session.connect(LaneKind::Data, Resume::Yes).await?;
        Ok((session, control, data))
    }

    /// Serve until the session is lost; the reason.
    async fn serve(self: Arc<Self>, number: u64, control: Link, data: Link) -> String {
        let term = Duration::from_millis(control.welcome.lease_term_ms.into()).max(TERM_MIN);
        self.shared.control.attach();
        self.shared.data.attach();
        self.tell(Notice::Blames { any: control.welcome.blames });
        self.shared.health.send_replace(Health::Up { session: number });
        let mut tasks = JoinSet::new();
        tasks.spawn(Arc::clone(&self).read(LaneKind::Control, control.stream));
        tasks.spawn(Arc::clone(&self).read(LaneKind::Data, data.stream));
        tasks.spawn(self.watch(term));
        match tasks.join_next().await {
            Some(Ok(why)) => why,
            Some(Err(error)) => format!("a task of the connection broke: {error}"),
            None => "the connection has no tasks".to_owned(),
        }
    }

    fn lane(&self, kind: LaneKind) -> &Arc<Lane> {
        match kind {
            LaneKind::Data => &self.shared.data,
            LaneKind::Control => &self.shared.control,
        }
    }

    /// Read one stream, replacing its connection when it breaks, until the session is lost.
    async fn read(self: Arc<Self>, kind: LaneKind, mut stream: Streaming<pb::FromBrick>) -> String {
        loop {
            let why = loop {
                match stream.message().await {
                    Ok(Some(frame)) => {
                        if let Err(why) = self.frame(kind, frame) {
                            break why.to_owned();
                        }
                    }
                    Ok(None) => break "the brick closed the connection".to_owned(),
                    Err(status) => break status.message().to_owned(),
                }
            };
            info!(brick = self.shared.brick.id, ?kind, why, "a connection broke");
            stream = match self.reconnect(kind).await {
                Ok(stream) => stream,
                Err(why) => return why,
            };
        }
    }

    /// Until it succeeds, is refused, or [`Self::watch`] ends the session.
    async fn reconnect(&self, kind: LaneKind) -> Result<Streaming<pb::FromBrick>, String> {
        loop {
            match self.connect(kind, Resume::Yes).await {
                Ok(link) => {
                    self.lane(kind).attach();
                    if kind == LaneKind::Control {
                        self.tell(Notice::Blames { any: link.welcome.blames });
                    }
                    return Ok(link.stream);
                }
                Err(NoLink::Refused(why)) => return Err(why),
                Err(NoLink::Broken(_)) => tokio::time::sleep(PAUSE_MIN).await,
            }
        }
    }

    fn frame(&self, kind: LaneKind, frame: pb::FromBrick) -> Result<(), &'static str> {
        let lane = self.lane(kind);
        for response in frame.responses {
            lane.answered(response).map_err(|_| "the brick sent an answer that makes no sense")?;
        }
        for recall in frame.recalls {
            let broken = |_| "the brick sent a recall that makes no sense";
            let gfid = inode(recall.gfid).map_err(broken)?;
            let wanted = mode_from_wire(recall.wanted).map_err(broken)?;
            self.tell(Notice::Recall { gfid, epoch: Epoch(recall.epoch), wanted });
        }
        if let Some(any) = frame.blames {
            self.tell(Notice::Blames { any });
        }
        if let Some(sent_at_ms) = frame.heartbeat {
            // A brick can only send back what it was sent, or be distrusted.
            self.trusted_at_ms.fetch_max(sent_at_ms.min(boottime_ms()), Ordering::Relaxed);
        }
        Ok(())
    }

    fn tell(&self, notice: Notice) {
        // An error says that the graph is gone, and this task with it soon.
        let _ = self.shared.notices.send(notice);
    }

    /// Send heartbeats; see to deadlines; end when the brick was silent for too long.
    async fn watch(self: Arc<Self>, term: Duration) -> String {
        // The brick counts from when it received, we from when we sent: with a hundredth for clocks that drift, we stop
        // trusting our leases before it gives them to others.
        let trust = term - term / 100;
        let mut ticks = tokio::time::interval(TICK.min(term / 6));
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut last_beat_ms = 0;
        loop {
            ticks.tick().await;
            let now_ms = boottime_ms();
            let silent = now_ms.saturating_sub(self.trusted_at_ms.load(Ordering::Relaxed));
            if Duration::from_millis(silent) >= trust {
                return format!("the brick answered nothing for {silent} ms");
            }
            if Duration::from_millis(now_ms.saturating_sub(last_beat_ms)) >= term / 3 {
                self.shared.control.heartbeat(now_ms);
                last_beat_ms = now_ms;
            }
            let now = Instant::now();
            self.shared.data.sweep(now);
            self.shared.control.sweep(now);
        }
    }

    async fn connect(&self, kind: LaneKind, resume: Resume) -> Result<Link, NoLink> {
        let connected = tokio::time::timeout(CONNECT_WAIT, self.connect_unbounded(kind, resume)).await;
        connected.unwrap_or_else(|_| Err(NoLink::Broken("no answer to the hello".to_owned())))
    }

    async fn connect_unbounded(&self, kind: LaneKind, resume: Resume) -> Result<Link, NoLink> {
        let address = &self.shared.brick.address;
        let endpoint = Endpoint::from_shared(format!("http://{address}"))
            .map_err(|error| NoLink::Refused(format!("{address} is no address: {error}")))?
            .connect_timeout(CONNECT_WAIT)
            .tcp_nodelay(true)
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_frame_size(HTTP_FRAME_BYTES_MAX)
            .http2_keep_alive_interval(KEEPALIVE)
            .keep_alive_timeout(KEEPALIVE)
            .keep_alive_while_idle(true);
        let channel = endpoint.connect().await.map_err(|error| transport_failed(&error))?;
        let lane = self.lane(kind);
        let (connection, oldest) = lane.next_connection();
        let frames = Frames::new(Arc::clone(lane), connection, self.hello(kind, resume, oldest));
        let mut stream = wire::open_session(channel, frames).await.map_err(|status| refused(&status))?;
        let first = stream.message().await.map_err(|status| refused(&status))?;
        let welcome = first.and_then(|frame| frame.welcome);
        let welcome = welcome.ok_or_else(|| NoLink::Refused("the brick did not welcome us".to_owned()))?;
        if resume == Resume::Yes && !welcome.known {
            return Err(NoLink::Refused("the brick no longer knows the session".to_owned()));
        }
        Ok(Link { stream, welcome })
    }

    fn hello(&self, kind: LaneKind, resume: Resume, oldest: u64) -> pb::Hello {
        let client = uuid::Uuid::from_u128(self.shared.client.0);
        let (client_high, client_low) = client.as_u64_pair();
        pb::Hello {
            version: Version::CURRENT as u32,
            client_high,
            client_low,
            nonce: self.nonce,
            volume_id: self.shared.volume_id.as_bytes().to_vec().into(),
            brick_id: self.shared.brick.id.clone(),
            control: kind == LaneKind::Control,
            resume: resume == Resume::Yes,
            oldest,
        }
    }
}

/// Whether a hello begins a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Resume {
    Yes,
    No,
}

/// Nobody listens: the brick is not running. Anything else may be the network.
fn transport_failed(error: &tonic::transport::Error) -> NoLink {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    let mut last = error.to_string();
    while let Some(error) = cause {
        last = error.to_string();
        if let Some(error) = error.downcast_ref::<io::Error>()
            && error.kind() == io::ErrorKind::ConnectionRefused
        {
            return NoLink::Refused("connection refused: no brick runs there".to_owned());
        }
        cause = error.source();
    }
    NoLink::Broken(last)
}

fn refused(status: &tonic::Status) -> NoLink {
    match status.code() {
        Code::Unavailable | Code::Unknown | Code::DeadlineExceeded | Code::Cancelled | Code::Internal => {
            NoLink::Broken(status.message().to_owned())
        }
        _ => NoLink::Refused(status.message().to_owned()),
    }
}

/// Milliseconds on a clock that never jumps and counts while the machine sleeps: a lease runs out meanwhile.
fn boottime_ms() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let (sec, nsec) = (now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs());
    sec * 1000 + nsec / 1_000_000
}
