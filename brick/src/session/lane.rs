//! One of the two streams of a session: reads frames, runs requests, answers them once.
//!
//! A lane is a task that outlives connections: a client that comes back finds its requests still running, and what was
//! answered while it was away saved. A request that can be answered without waiting is answered inside this task, so
//! it costs no change of task or thread; the others wait beside each other in it.
//!
//! Invariant: a request that changes something is executed at most once, however often it is sent.

use std::collections::{HashMap, HashSet, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use foldhash::fast::RandomState;
use futures::future::{AbortHandle, Abortable, Aborted, BoxFuture, abortable};
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt, poll};
use mortar_proto::codec::nouns::mode_to_wire;
use mortar_proto::codec::replies::answer_to_wire;
use mortar_proto::codec::request_from_wire;
use mortar_proto::pb::response::Answer;
use mortar_proto::{RESPONSE_BYTES_MAX, pb};
use mortar_xlators::ctx::Ctx;
use mortar_xlators::error::{Errno, FopError};
use mortar_xlators::fop::Fop;
use mortar_xlators::xlator::{Notice, Subvol};
use prost::Message;
use tokio::sync::{mpsc, watch};
use tonic::{Status, Streaming};

use super::order::{Order, Ticket, touches};
use super::outbox::Outbox;
use super::{Heard, LEASE_TERM_GRACE};

/// Requests that run or wait at the same time; then the lane reads no further frame.
const IN_FLIGHT_MAX: usize = 1024;

/// Asked-for leases and locks that wait for other clients; one more is told to try again. They never keep the lane from
/// reading: behind them may be what another client waits for.
const PARKED_MAX: usize = 4096;

/// Bytes of payloads of requests that run or wait.
const BYTES_IN_FLIGHT_MAX: usize = 64 << 20;

/// Answers kept until the client acknowledges them: above what a client has outstanding at the same time.
const SAVED_MAX: usize = 16_384;

/// A connection that a client opened for this lane.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) incoming: Streaming<pb::FromClient>,
    pub(crate) outbox: Arc<Outbox>,
    /// Requests below it were answered, and the answers arrived.
    pub(crate) oldest: u64,
}

impl Drop for Connection {
    fn drop(&mut self) {
        // A reason that was given before stands.
        self.outbox.end(Status::unavailable("the session ended"));
    }
}

/// What reaches a lane beside frames.
#[derive(Debug)]
pub(crate) struct Inputs {
    pub(crate) connections: mpsc::Receiver<Connection>,
    pub(crate) notices: mpsc::UnboundedReceiver<Notice>,
    /// The session ends.
    pub(crate) end: watch::Receiver<bool>,
}

/// One of the two streams of a session.
#[derive(Debug)]
pub(crate) struct Lane {
    top: Subvol,
    heard: Arc<Heard>,
    connection: Option<Connection>,
    order: Order<Job>,
    running: FuturesUnordered<Running>,
    /// Asked-for leases and locks: they wait for other clients, stand in nobody's way, and may be dropped.
    parked: FuturesUnordered<Abortable<Running>>,
    /// Locks among them, which their client may give up, by id.
    may_be_given_up: HashMap<u64, AbortHandle, RandomState>,
    /// Runs or waits, by id.
    busy: HashSet<u64, RandomState>,
    bytes_in_flight: usize,
    saved: HashMap<u64, Answer, RandomState>,
    last_id: u64,
}

/// A request, taken apart.
#[derive(Debug)]
struct Job {
    id: u64,
    ctx: Ctx,
    fop: Fop,
    save: Save,
    bytes: usize,
}

/// Whether the answer must be kept until the client has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Save {
    /// The fop must not run twice.
    Answer,
    /// Running it again does no harm.
    Nothing,
}

impl Save {
    fn of(fop: &Fop) -> Self {
        let session = matches!(fop, Fop::Open(_) | Fop::Release(_) | Fop::Unlease(_) | Fop::Settle(_) | Fop::Mark(_));
        if session || fop.effect().changes_disk() { Self::Answer } else { Self::Nothing }
    }
}

#[derive(Debug)]
struct Finished {
    id: u64,
    save: Save,
    bytes: usize,
    answer: Answer,
}

/// A request that did not end at once.
struct Running {
    ticket: Option<Ticket>,
    future: BoxFuture<'static, Finished>,
}

impl std::fmt::Debug for Running {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Running").field("ticket", &self.ticket).finish_non_exhaustive()
    }
}

impl Future for Running {
    type Output = (Option<Ticket>, Finished);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let finished = ready!(self.future.poll_unpin(cx));
        Poll::Ready((self.ticket, finished))
    }
}

/// What a lane waits for.
enum Event {
    Connected(Connection),
    Frame(Result<Option<pb::FromClient>, Status>),
    Finished(Option<Ticket>, Finished),
    Notice(Notice),
    /// There may be room now.
    Drained,
    Deaf,
    End,
}

impl Lane {
    pub(crate) fn new(top: Subvol, heard: Arc<Heard>) -> Self {
        Self {
            top,
            heard,
            connection: None,
            order: Order::new(),
            running: FuturesUnordered::new(),
            parked: FuturesUnordered::new(),
            may_be_given_up: HashMap::default(),
            busy: HashSet::default(),
            bytes_in_flight: 0,
            saved: HashMap::default(),
            last_id: 0,
        }
    }

    /// Serve until the session ends; then run what runs to its end, and drop what waits.
    pub(crate) async fn run(mut self, mut inputs: Inputs) {
        loop {
            match self.event(&mut inputs).await {
                Event::Connected(connection) => self.connected(connection),
                Event::Frame(Ok(Some(frame))) => self.frame(frame).await,
                Event::Frame(Ok(None)) => self.connection = None,
                Event::Frame(Err(status)) => self.hang_up(status),
                Event::Finished(ticket, finished) => self.finished(ticket, finished).await,
                Event::Notice(notice) => self.notice(notice),
                Event::Drained => {}
                Event::Deaf => self.hang_up(Status::resource_exhausted("the client does not read its answers")),
                Event::End => break,
            }
        }
        self.parked.clear();
        // What waits for its turn never began, and ends with the session; what runs must run to its end.
        while self.running.next().await.is_some() {}
        self.hang_up(Status::unavailable("the session ended"));
    }

    async fn event(&mut self, inputs: &mut Inputs) -> Event {
        let full = self.connection.as_ref().is_some_and(|connection| connection.outbox.is_full());
        let in_flight = self.busy.len().saturating_sub(self.parked.len());
        let may_read = !full && in_flight < IN_FLIGHT_MAX && self.bytes_in_flight < BYTES_IN_FLIGHT_MAX;
        let connection = self.connection.as_mut();
        tokio::select! {
            biased;
            _ = inputs.end.wait_for(|end| *end) => Event::End,
            Some(connection) = inputs.connections.recv() => Event::Connected(connection),
            Some((ticket, finished)) = self.running.next(), if !self.running.is_empty() => {
                Event::Finished(ticket, finished)
            }
            Some(parked) = self.parked.next(), if !self.parked.is_empty() => match parked {
                Ok((ticket, finished)) => Event::Finished(ticket, finished),
                // Its books were closed when it was given up.
                Err(Aborted) => Event::Drained,
            },
            Some(notice) = inputs.notices.recv() => Event::Notice(notice),
            event = wait_for_client(connection, full, may_read) => event,
        }
    }

    fn connected(&mut self, connection: Connection) {
        self.hang_up(Status::aborted("the client opened another connection"));
        self.saved.retain(|id, _| *id >= connection.oldest);
        self.connection = Some(connection);
    }

    fn hang_up(&mut self, status: Status) {
        if let Some(connection) = self.connection.take() {
            connection.outbox.end(status);
        }
    }

    fn notice(&mut self, notice: Notice) {
        // Without a connection nobody is told; the layer repeats open recalls to whoever connects.
        let Some(connection) = &self.connection else { return };
        connection.outbox.notify(|frame| match notice {
            Notice::Recall { gfid, epoch, wanted } => {
                let wanted = mode_to_wire(wanted);
                frame.recalls.push(pb::Recall { gfid: Some(gfid.into()), epoch: epoch.0, wanted });
            }
            Notice::Blames { any } => frame.blames = Some(any),
        });
    }

    async fn frame(&mut self, frame: pb::FromClient) {
        self.heard.now();
        if frame.hello.is_some() {
            return self.hang_up(Status::invalid_argument("a second hello on one connection"));
        }
        for id in frame.acknowledged {
            self.saved.remove(&id);
        }
        if let (Some(number), Some(connection)) = (frame.heartbeat, &self.connection) {
            connection.outbox.notify(|frame| frame.heartbeat = Some(number));
        }
        let now = Instant::now();
        for request in frame.requests {
            self.request(request, now).await;
        }
        for id in frame.given_up {
            self.give_up(id);
        }
        if frame.goodbye {
            self.heard.end();
        }
    }

    async fn request(&mut self, request: pb::Request, now: Instant) {
        let (id, bytes) = (request.id, payload_bytes(&request));
        let (ctx, fop) = match request_from_wire(request, self.heard.client, now) {
            Ok(parts) => parts,
            Err(errno) => return self.answer(id, answer_to_wire(Err(FopError::Refused(errno)))),
        };
        let save = Save::of(&fop);
        if id <= self.last_id {
            if let Some(answer) = self.saved.get(&id).cloned() {
                return self.answer(id, answer);
            }
            if self.busy.contains(&id) {
                return;
            }
            if save == Save::Answer {
                return self.hang_up(Status::invalid_argument("a request was sent again after its answer arrived"));
            }
        }
        if self.saved.len() >= SAVED_MAX {
            return self.hang_up(Status::resource_exhausted("the client does not acknowledge answers"));
        }
        self.heard.request();
        self.last_id = self.last_id.max(id);
        self.busy.insert(id);
        self.bytes_in_flight += bytes;
        self.admit(Job { id, ctx, fop, save, bytes }).await;
    }

    /// Nobody waits for the answer any more.
    fn give_up(&mut self, id: u64) {
        if let Some(handle) = self.may_be_given_up.remove(&id) {
            handle.abort();
            self.busy.remove(&id);
            self.heard.answer();
        }
    }

    /// Run a request now, or line it up.
    async fn admit(&mut self, job: Job) {
        if matches!(job.fop, Fop::Lease(_) | Fop::Lk(_)) {
            return self.ask_others(job).await;
        }
        let touches = touches(&job.fop);
        if !self.order.is_free(&touches) {
            return self.order.wait(touches, job);
        }
        let mut future = self.execute(job);
        match poll!(&mut future) {
            Poll::Ready(finished) => self.done(finished),
            Poll::Pending => {
                let ticket = Some(self.order.hold(touches));
                self.running.push(Running { ticket, future });
            }
        }
    }

    /// Run what other clients decide about: a lease, or a lock.
    async fn ask_others(&mut self, job: Job) {
        let (id, save, bytes) = (job.id, job.save, job.bytes);
        let is_lock = matches!(job.fop, Fop::Lk(_));
        let mut future = self.execute(job);
        match poll!(&mut future) {
            Poll::Ready(finished) => self.done(finished),
            Poll::Pending if self.parked.len() < PARKED_MAX => {
                let (running, handle) = abortable(Running { ticket: None, future });
                self.parked.push(running);
                if is_lock {
                    self.may_be_given_up.insert(id, handle);
                }
            }
            Poll::Pending => {
                let answer = answer_to_wire(Err(FopError::Refused(Errno::AGAIN)));
                self.done(Finished { id, save, bytes, answer });
            }
        }
    }

    fn execute(&self, job: Job) -> BoxFuture<'static, Finished> {
        let top = Arc::clone(&self.top);
        let Job { id, ctx, fop, save, bytes } = job;
        Box::pin(async move {
            let answer = answer_to_wire(top.call(&ctx, fop).await);
            Finished { id, save, bytes, answer }
        })
    }

    /// A request ended that had to wait: those behind it may run.
    async fn finished(&mut self, ticket: Option<Ticket>, finished: Finished) {
        self.done(finished);
        let mut ready = VecDeque::new();
        if let Some(ticket) = ticket {
            self.order.leave(ticket, &mut ready);
        }
        while let Some((ticket, job)) = ready.pop_front() {
            let mut future = self.execute(job);
            match poll!(&mut future) {
                Poll::Ready(finished) => {
                    self.done(finished);
                    self.order.leave(ticket, &mut ready);
                }
                Poll::Pending => self.running.push(Running { ticket: Some(ticket), future }),
            }
        }
    }

    fn done(&mut self, finished: Finished) {
        let Finished { id, save, bytes, answer } = finished;
        self.busy.remove(&id);
        self.may_be_given_up.remove(&id);
        self.heard.answer();
        self.bytes_in_flight -= bytes;
        let answer = within_bounds(answer);
        if save == Save::Answer {
            self.saved.insert(id, answer.clone());
        }
        self.answer(id, answer);
    }

    fn answer(&self, id: u64, answer: Answer) {
        if let Some(connection) = &self.connection {
            connection.outbox.answer(pb::Response { id, answer: Some(answer) });
        }
    }
}

/// What the connection does next, if it is read from at all.
async fn wait_for_client(connection: Option<&mut Connection>, full: bool, may_read: bool) -> Event {
    match connection {
        Some(connection) if may_read => Event::Frame(connection.incoming.message().await),
        Some(connection) if full => {
            let drained = tokio::time::timeout(LEASE_TERM_GRACE, connection.outbox.drained());
            drained.await.map_or(Event::Deaf, |()| Event::Drained)
        }
        _ => std::future::pending().await,
    }
}

/// The payload that a request holds in memory while it waits.
fn payload_bytes(request: &pb::Request) -> usize {
    match &request.fop {
        Some(pb::request::Fop::Write(write)) => write.data.len(),
        Some(pb::request::Fop::Create(create)) => create.content.len(),
        Some(pb::request::Fop::Setxattr(set)) => set.xattr.as_ref().map_or(0, |xattr| xattr.value.len()),
        // An answer of this size may come to be held instead.
        Some(pb::request::Fop::Read(read)) => read.size as usize,
        _ => 0,
    }
}

/// An answer that fits a frame. Only listings and bulk leases can be too large, and then only where nearly every entry
/// is blamed on many copies.
fn within_bounds(answer: Answer) -> Answer {
    let bytes = match &answer {
        Answer::Readdir(entries) => entries.encoded_len(),
        Answer::Lease(granted) => granted.encoded_len(),
        _ => 0,
    };
    if bytes > RESPONSE_BYTES_MAX { answer_to_wire(Err(FopError::Refused(Errno::OVERFLOW))) } else { answer }
}
