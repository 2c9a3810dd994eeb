//! The clients of a brick: who is there, since when it was last heard, and what ends with it.
//!
//! A session begins with a hello that no session answers to, and is two lanes (data, control) that outlive their
//! connections. It ends a lease term after the last message, or when its client says hello as somebody new: what runs
//! runs to its end, then its leases and open files go.
//!
//! Invariant: of one client at most one session reaches the layers below at any time.

mod lane;
mod order;
mod outbox;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures::future::{BoxFuture, ready};
use mortar_proto::pb;
use mortar_xlators::error::Result as FopResult;
use mortar_xlators::types::ClientId;
use mortar_xlators::xlator::{Notice, Notices, Subvol};
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;
use tonic::Status;
use tracing::info;

pub(crate) use self::lane::Connection;
use self::lane::{Inputs, Lane};
pub(crate) use self::outbox::{Frames, Outbox};

/// A client that reads nothing for this long is hung up on.
const LEASE_TERM_GRACE: Duration = Duration::from_secs(10);

/// How long a hello waits for the client's former session to end.
const FORMER_SESSION_WAIT: Duration = Duration::from_secs(5);

/// What sessions need of the layers below, beside an answer to each fop.
pub trait Clients: std::fmt::Debug + Send + Sync + 'static {
    /// A client is there (again): what concerns it goes to `notices`.
    fn attach(&self, client: ClientId, notices: Notices) -> FopResult<()>;
    /// A client's session ended.
    fn gone(&self, client: ClientId);
    /// Whether there are pending marks against other copies, and the event when that changes.
    fn blames(&self) -> watch::Receiver<bool>;
    /// Take note of everything that is done with, before the brick stops.
    fn settle(&self) -> BoxFuture<'_, ()> {
        Box::pin(ready(()))
    }
    /// The brick stopped in order, with no client left.
    fn stopped(&self);
}

/// When a client was last heard, and how busy it is.
#[derive(Debug)]
pub(crate) struct Heard {
    pub(crate) client: ClientId,
    pub(crate) peer: Mutex<String>,
    began: Instant,
    last_ms: AtomicU64,
    requests: AtomicU64,
    answers: AtomicU64,
    /// The session is over: said by the client, by its silence, or by its next life.
    end: watch::Sender<bool>,
}

impl Heard {
    fn new(client: ClientId, peer: String) -> Self {
        let began = Instant::now();
        let zero = AtomicU64::default;
        let (peer, end) = (Mutex::new(peer), watch::Sender::new(false));
        Self { client, peer, began, last_ms: zero(), requests: zero(), answers: zero(), end }
    }

    fn now(&self) {
        let ms = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_ms.fetch_max(ms, Ordering::Relaxed);
    }

    fn request(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    fn answer(&self) {
        self.answers.fetch_add(1, Ordering::Relaxed);
    }

    fn in_flight(&self) -> u64 {
        let answers = self.answers.load(Ordering::Relaxed);
        self.requests.load(Ordering::Relaxed).saturating_sub(answers)
    }

    /// The session is over.
    fn end(&self) {
        self.end.send_replace(true);
    }

    fn silence(&self) -> Duration {
        self.began.elapsed().saturating_sub(Duration::from_millis(self.last_ms.load(Ordering::Relaxed)))
    }
}

/// Which of the two streams of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LaneKind {
    Data,
    Control,
}

#[derive(Debug)]
struct Session {
    nonce: u64,
    heard: Arc<Heard>,
    data: Seat,
    control: Seat,
    notices: Notices,
    ended: watch::Receiver<bool>,
    /// Lanes hold a copy; the keeper waits until there is none.
    alive: Mutex<Option<mpsc::Sender<()>>>,
    /// The lanes and the keeper.
    tasks: Mutex<Vec<AbortHandle>>,
}

/// Where a lane is, or will be.
#[derive(Debug)]
struct Seat {
    connections: mpsc::Sender<Connection>,
    /// What the lane begins with. It begins where its first connection is served, to be on the same thread.
    inputs: Mutex<Option<Inputs>>,
}

impl Seat {
    fn new(heard: &Heard, notices: mpsc::UnboundedReceiver<Notice>) -> Self {
        let (connections, receiver) = mpsc::channel(1);
        let inputs = Inputs { connections: receiver, notices, end: heard.end.subscribe() };
        Self { connections, inputs: Mutex::new(Some(inputs)) }
    }
}

/// Held by a running lane. A lane that ends, also by a panic, ends the session.
#[derive(Debug)]
struct Alive {
    heard: Arc<Heard>,
    _counted: mpsc::Sender<()>,
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.heard.end();
    }
}

/// All sessions of a brick.
#[derive(Debug)]
pub(crate) struct Sessions {
    top: Subvol,
    clients: Arc<dyn Clients>,
    lease_term: Duration,
    all: Mutex<HashMap<ClientId, Arc<Session>>>,
}

/// What a hello leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Met {
    /// The session was there before.
    Known,
    /// It began.
    New,
    /// The client wanted to go on with a session that is no more.
    Unknown,
}

impl Sessions {
    pub(crate) fn new(top: Subvol, clients: Arc<dyn Clients>, lease_term: Duration) -> Arc<Self> {
        Arc::new(Self { top, clients, lease_term, all: Mutex::default() })
    }

    pub(crate) fn lease_term(&self) -> Duration {
        self.lease_term
    }

    pub(crate) fn blames(&self) -> bool {
        *self.clients.blames().borrow()
    }

    /// Find the session of a hello, or begin it.
    pub(crate) async fn meet(self: &Arc<Self>, hello: &pb::Hello, peer: &str) -> Result<Met, Status> {
        let client = client_id(hello);
        loop {
            let former = {
                let mut all = self.all.lock();
                match all.get(&client) {
                    Some(session) if session.nonce == hello.nonce && !*session.heard.end.borrow() => {
                        peer.clone_into(&mut session.heard.peer.lock());
                        session.heard.now();
                        return Ok(Met::Known);
                    }
                    _ if hello.resume => return Ok(Met::Unknown),
                    Some(session) => Arc::clone(session),
                    None => {
                        let session = self.begin(client, hello.nonce, peer);
                        all.insert(client, session);
                        info!(client = %client_text(client), peer, "session began");
                        return Ok(Met::New);
                    }
                }
            };
            former.heard.end();
            let mut ended = former.ended.clone();
            let waited = tokio::time::timeout(FORMER_SESSION_WAIT, ended.wait_for(|ended| *ended)).await;
            if waited.is_err() {
                return Err(Status::unavailable("the client's former session has not ended yet"));
            }
        }
    }

    /// Give a connection to the session that [`Self::meet`] found.
    pub(crate) async fn join(&self, hello: &pb::Hello, kind: LaneKind, connection: Connection) -> Result<(), Status> {
        let gone = || Status::aborted("the session ended");
        let session = self.all.lock().get(&client_id(hello)).cloned().ok_or_else(gone)?;
        let seat = match kind {
            LaneKind::Data => &session.data,
            LaneKind::Control => &session.control,
        };
        if let Some(inputs) = seat.inputs.lock().take() {
            let counted = session.alive.lock().clone().ok_or_else(gone)?;
            let alive = Alive { heard: Arc::clone(&session.heard), _counted: counted };
            let lane = Lane::new(Arc::clone(&self.top), Arc::clone(&session.heard));
            let task = tokio::spawn(async move {
                lane.run(inputs).await;
                drop(alive);
            });
            session.tasks.lock().push(task.abort_handle());
        }
        seat.connections.send(connection).await.map_err(|_| gone())?;
        if kind == LaneKind::Control {
            // Recalls that the last connection did not deliver are repeated; the lane has the new one by then.
            let attached = self.clients.attach(session.heard.client, session.notices.clone());
            attached.map_err(|error| Status::resource_exhausted(format!("too many clients: {error}")))?;
        }
        Ok(())
    }

    fn begin(self: &Arc<Self>, client: ClientId, nonce: u64, peer: &str) -> Arc<Session> {
        let heard = Arc::new(Heard::new(client, peer.to_owned()));
        let (notices, notices_rx) = mpsc::unbounded_channel();
        let (_, no_notices) = mpsc::unbounded_channel();
        let (alive, lanes) = mpsc::channel(1);
        let (ended_tx, ended) = watch::channel(false);
        let keeper = Keeper { sessions: Arc::clone(self), heard: Arc::clone(&heard), lanes, ended: ended_tx };
        let blames = tell_blames(self.clients.blames(), notices.clone());
        let keeper = tokio::spawn(keeper.keep(blames));
        Arc::new(Session {
            nonce,
            data: Seat::new(&heard, no_notices),
            control: Seat::new(&heard, notices_rx),
            heard,
            notices,
            ended,
            alive: Mutex::new(Some(alive)),
            tasks: Mutex::new(vec![keeper.abort_handle()]),
        })
    }

    /// Stop every task at once, as a crash would.
    pub(crate) fn crash(&self) {
        for (_, session) in self.all.lock().drain() {
            session.tasks.lock().iter().for_each(AbortHandle::abort);
        }
    }

    /// End every session, and wait until each has.
    pub(crate) async fn end_all(&self) {
        let all: Vec<_> = self.all.lock().values().cloned().collect();
        for session in &all {
            session.heard.end();
        }
        for session in &all {
            // An error says that the keeper is gone, so the session has ended.
            let _ = session.ended.clone().wait_for(|ended| *ended).await;
        }
        // The last words of a client that is on its way out have been heard now.
        self.clients.settle().await;
        if all.is_empty() {
            // Whoever held a lease has let go of it.
            self.clients.stopped();
        }
    }

    /// What `mortar status` and the statedump show.
    pub(crate) fn list(&self) -> Vec<pb::SessionInfo> {
        let all = self.all.lock();
        let info = |session: &Arc<Session>| pb::SessionInfo {
            client: client_text(session.heard.client),
            peer: session.heard.peer.lock().clone(),
            heard_ms_ago: u64::try_from(session.heard.silence().as_millis()).unwrap_or(u64::MAX),
            in_flight: session.heard.in_flight(),
            requests: session.heard.requests.load(Ordering::Relaxed),
        };
        all.values().map(info).collect()
    }
}

/// Waits for the end of a session, and clears up after it.
#[derive(Debug)]
struct Keeper {
    sessions: Arc<Sessions>,
    heard: Arc<Heard>,
    /// Closed when no lane is left.
    lanes: mpsc::Receiver<()>,
    ended: watch::Sender<bool>,
}

impl Keeper {
    async fn keep(mut self, blames: impl Future<Output = ()>) {
        let client = self.heard.client;
        let why = tokio::select! {
            why = self.silence() => why,
            () = blames => "the brick's index is gone",
        };
        self.heard.end();
        let session = self.sessions.all.lock().get(&client).cloned();
        if let Some(session) = session {
            // A lane that has not begun will not.
            session.alive.lock().take();
        }
        while self.lanes.recv().await.is_some() {}
        self.sessions.clients.gone(client);
        self.sessions.all.lock().remove(&client);
        self.ended.send_replace(true);
        let requests = self.heard.requests.load(Ordering::Relaxed);
        info!(client = %client_text(client), requests, why, "session ended");
    }

    /// Wait until the client was silent for a lease term, or somebody ends the session.
    async fn silence(&self) -> &'static str {
        let term = self.sessions.lease_term;
        let mut end = self.heard.end.subscribe();
        loop {
            let left = term.saturating_sub(self.heard.silence());
            if left.is_zero() {
                return "the client was silent for a lease term";
            }
            tokio::select! {
                () = tokio::time::sleep(left) => {}
                _ = end.wait_for(|end| *end) => return "ended",
            }
        }
    }
}

/// Tell a client whenever marks against other copies begin or cease to exist; its welcome told it how it was.
async fn tell_blames(mut blames: watch::Receiver<bool>, notices: Notices) {
    while blames.changed().await.is_ok() {
        let any = *blames.borrow_and_update();
        // An error says that the lane broke, and the session with it.
        let _ = notices.send(Notice::Blames { any });
    }
}

fn client_id(hello: &pb::Hello) -> ClientId {
    ClientId(u128::from(hello.client_high) << 64 | u128::from(hello.client_low))
}

fn client_text(client: ClientId) -> String {
    format!("{:032x}", client.0)
}
