//! One of the two streams to a brick: what was asked and not yet answered, and the frames it goes into.
//!
//! The table of unanswered requests is the send queue at the same time: a call puts its request in, once, and wakes the
//! connection, which takes whatever is there for its next frame. After a reconnect the same requests are sent again.

use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use foldhash::fast::RandomState;
use mortar_proto::codec::replies::answer_from_wire;
use mortar_proto::codec::request_to_wire;
use mortar_proto::wire::ClientFrame;
use mortar_proto::{FRAME_BYTES_FULL, FRAME_MESSAGES_MAX, pb};
use mortar_xlators::ctx::Ctx;
use mortar_xlators::effect::Effect;
use mortar_xlators::error::{FopError, Result};
use mortar_xlators::fop::{Fop, FopKind, Lk, LkWhat};
use mortar_xlators::reply::Reply;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, oneshot};
use tokio_stream::Stream;

/// How much may be unanswered at the same time, in units of [`UNIT_BYTES`]: 32 MiB of payload, or as many small fops.
/// Beyond it callers wait. Below what a brick lets one session have in flight, so the brick never has to stop reading
/// because of one well-behaved client.
const ROOM_UNITS: usize = 8192;

/// A small request takes one unit, a large one as many as its payload fills.
const UNIT_BYTES: usize = 4096;

/// Acknowledgements travel with the next request; this many go alone.
const ACKNOWLEDGED_ALONE: usize = 256;

/// What a request costs in a frame beside its payload.
const MESSAGE_BYTES: usize = 192;

/// One of the two streams to a brick.
#[derive(Debug)]
pub(super) struct Lane {
    state: Mutex<State>,
    room: Semaphore,
}

#[derive(Debug, Default)]
struct State {
    /// New calls are taken.
    up: bool,
    /// Which connection may take frames.
    connection: u64,
    last_id: u64,
    unanswered: HashMap<u64, Unanswered, RandomState>,
    unsent: VecDeque<u64>,
    acknowledged: Vec<u64>,
    /// Requests that wait at the brick, and for nobody.
    given_up: Vec<u64>,
    /// Send what there is, even if it is only acknowledgements.
    flush: bool,
    heartbeat: Option<u64>,
    goodbye: bool,
    waker: Option<Waker>,
}

#[derive(Debug)]
struct Unanswered {
    request: Arc<pb::Request>,
    kind: FopKind,
    /// The brick saves the answer until it is acknowledged.
    saved: bool,
    payload: usize,
    /// The most bytes that a `Read` may answer.
    read_max: usize,
    deadline: Instant,
    answer: oneshot::Sender<Result<Reply>>,
}

/// The brick sent what makes no sense: the connection is of no use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BrokenAnswer;

/// Gives a request up when its caller no longer waits.
struct GivingUp<'a> {
    lane: &'a Lane,
    id: u64,
}

impl Drop for GivingUp<'_> {
    fn drop(&mut self) {
        self.lane.give_up(self.id);
    }
}

fn payload_bytes(fop: &Fop) -> usize {
    match fop {
        Fop::Write(write) => write.data.len(),
        Fop::Create(create) => create.content.len(),
        Fop::Setxattr(set) => set.xattr.value.len(),
        _ => 0,
    }
}

/// What a request takes of the room: its payload, or that of its answer.
fn units(fop: &Fop, payload: usize) -> u32 {
    let bytes = if let Fop::Read(read) = fop { read.size as usize } else { payload };
    u32::try_from(1 + bytes / UNIT_BYTES).unwrap_or(u32::MAX)
}

impl Lane {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), room: Semaphore::new(ROOM_UNITS) })
    }

    /// Send one fop, and wait for its answer.
    pub(super) async fn call(&self, ctx: &Ctx, fop: Fop) -> Result<Reply> {
        let payload = payload_bytes(&fop);
        let units = units(&fop, payload);
        let may_wait = matches!(&fop, Fop::Lk(Lk { what: LkWhat::Await(_), .. }));
        let room = match self.room.try_acquire_many(units) {
            Ok(room) => room,
            Err(_) => {
                let room = tokio::time::timeout_at(ctx.deadline.into(), self.room.acquire_many(units)).await;
                room.ok().and_then(std::result::Result::ok).ok_or(FopError::Unreachable)?
            }
        };
        let (id, answer) = self.submit(ctx, fop, payload)?;
        let giving_up = may_wait.then(|| GivingUp { lane: self, id });
        let answer = answer.await;
        drop((room, giving_up));
        // The sender is dropped when the session is lost.
        answer.unwrap_or(Err(FopError::Unreachable))
    }

    /// Queue one fop; its number, and where its answer comes.
    fn submit(&self, ctx: &Ctx, fop: Fop, payload: usize) -> Result<(u64, oneshot::Receiver<Result<Reply>>)> {
        let kind = fop.kind();
        let saved = !matches!(fop.effect(), Effect::Read);
        let read_max = if let Fop::Read(read) = &fop { read.size as usize } else { 0 };
        let mut request = request_to_wire(0, ctx, fop, Instant::now());
        let (answer, receiver) = oneshot::channel();
        let (id, waker) = {
            let mut state = self.state.lock();
            if !state.up {
                return Err(FopError::Unreachable);
            }
            state.last_id += 1;
            let id = state.last_id;
            request.id = id;
            let request = Arc::new(request);
            let deadline = ctx.deadline;
            state.unanswered.insert(id, Unanswered { request, kind, saved, payload, read_max, deadline, answer });
            state.unsent.push_back(id);
            (id, state.waker.take())
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok((id, receiver))
    }

    /// Nobody waits for this answer any more: if it has not come, the brick need not look for it.
    fn give_up(&self, id: u64) {
        let mut state = self.state.lock();
        if state.unanswered.remove(&id).is_some() {
            state.given_up.push(id);
            state.wake();
        }
    }

    /// Hand an answer to who asked.
    pub(super) fn answered(&self, response: pb::Response) -> std::result::Result<(), BrokenAnswer> {
        let unanswered = {
            let mut state = self.state.lock();
            let unanswered = state.unanswered.remove(&response.id);
            if unanswered.as_ref().is_none_or(|unanswered| unanswered.saved) && response.id <= state.last_id {
                state.acknowledged.push(response.id);
            }
            unanswered
        };
        // Nobody waits for an answer that came after its deadline.
        let Some(unanswered) = unanswered else { return Ok(()) };
        let answer = response.answer.ok_or(BrokenAnswer)?;
        let answer = answer_from_wire(unanswered.kind, answer).map_err(|_| BrokenAnswer)?;
        if let Ok(Reply::Read(read)) = &answer
            && read.data.len() > unanswered.read_max
        {
            return Err(BrokenAnswer);
        }
        // An error says that the caller no longer waits.
        let _ = unanswered.answer.send(answer);
        Ok(())
    }

    /// A new connection will take frames once [`Self::attach`] says so. The number of the connection, and the oldest
    /// request that is not answered.
    pub(super) fn next_connection(&self) -> (u64, u64) {
        let mut state = self.state.lock();
        state.connection += 1;
        let oldest = state.unanswered.keys().min().copied().unwrap_or(state.last_id + 1);
        state.wake();
        (state.connection, oldest)
    }

    /// The brick welcomed the connection: everything unanswered is sent (again), in order. Calls are taken.
    pub(super) fn attach(&self) {
        let mut state = self.state.lock();
        let mut ids: Vec<u64> = state.unanswered.keys().copied().collect();
        ids.sort_unstable();
        state.unsent = ids.into();
        state.up = true;
        state.wake();
    }

    /// The session is lost: nobody will answer, and no call is taken until the next [`Self::attach`].
    pub(super) fn down(&self) {
        let unanswered = {
            let mut state = self.state.lock();
            let last_id = state.last_id;
            let connection = state.connection + 1;
            state.wake();
            std::mem::replace(&mut *state, State { last_id, connection, ..State::default() }).unanswered
        };
        // Dropping the senders, outside the lock, tells the callers.
        drop(unanswered);
    }

    /// Give up on requests whose callers no longer wait; send acknowledgements that found no request to go with.
    pub(super) fn sweep(&self, now: Instant) {
        let late: Vec<Unanswered> = {
            let mut state = self.state.lock();
            if !state.acknowledged.is_empty() {
                state.flush = true;
                state.wake();
            }
            state.unanswered.extract_if(|_, unanswered| unanswered.deadline <= now).map(|late| late.1).collect()
        };
        drop(late);
    }

    /// Tell the brick that the session ends. No further call is taken.
    pub(super) fn goodbye(&self) {
        let mut state = self.state.lock();
        state.up = false;
        state.goodbye = true;
        state.wake();
    }

    /// Send a number that the brick sends back.
    pub(super) fn heartbeat(&self, number: u64) {
        let mut state = self.state.lock();
        state.heartbeat = Some(number);
        state.wake();
    }
}

impl State {
    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// Whatever is there, up to the bounds of a frame.
    fn take_frame(&mut self) -> Option<ClientFrame> {
        let mut requests = Vec::with_capacity(self.unsent.len().min(FRAME_MESSAGES_MAX));
        let mut bytes = 0;
        while bytes < FRAME_BYTES_FULL && requests.len() < FRAME_MESSAGES_MAX {
            let Some(id) = self.unsent.pop_front() else { break };
            // What passed its deadline before it was sent is not sent.
            let Some(unanswered) = self.unanswered.get(&id) else { continue };
            bytes += unanswered.payload + MESSAGE_BYTES;
            requests.push(Arc::clone(&unanswered.request));
        }
        let many = self.acknowledged.len() >= ACKNOWLEDGED_ALONE;
        let alone = (self.flush && !self.acknowledged.is_empty()) || many;
        let waiting = !requests.is_empty() || !self.given_up.is_empty();
        if !waiting && self.heartbeat.is_none() && !alone && !self.goodbye {
            return None;
        }
        self.flush = false;
        Some(ClientFrame {
            hello: None,
            requests,
            acknowledged: std::mem::take(&mut self.acknowledged),
            heartbeat: self.heartbeat.take(),
            goodbye: std::mem::take(&mut self.goodbye),
            given_up: std::mem::take(&mut self.given_up),
        })
    }
}

/// The frames of one connection: the hello, then what the lane has once the brick welcomed it.
#[derive(Debug)]
pub(super) struct Frames {
    lane: Arc<Lane>,
    connection: u64,
    hello: Option<pb::Hello>,
}

impl Frames {
    pub(super) fn new(lane: Arc<Lane>, connection: u64, hello: pb::Hello) -> Self {
        Self { lane, connection, hello: Some(hello) }
    }
}

impl Stream for Frames {
    type Item = ClientFrame;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<ClientFrame>> {
        if let Some(hello) = self.hello.take() {
            return Poll::Ready(Some(ClientFrame { hello: Some(hello), ..ClientFrame::default() }));
        }
        let mut state = self.lane.state.lock();
        if state.connection != self.connection {
            return Poll::Ready(None);
        }
        match state.take_frame() {
            Some(frame) => Poll::Ready(Some(frame)),
            None => {
                state.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}
