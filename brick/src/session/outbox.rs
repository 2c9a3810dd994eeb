//! What waits to be sent to a client: answers, recalls and notices, put into frames as the connection takes them.
//!
//! A connection that takes nothing fills its outbox; the lane then reads nothing more from it, and drops it when that
//! lasts (a client that does not read its answers).

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use mortar_proto::pb::response::Answer;
use mortar_proto::{FRAME_BYTES_FULL, FRAME_MESSAGES_MAX, pb};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_stream::Stream;
use tonic::Status;

/// Beyond this many bytes a client is throttled: four full frames.
const BYTES_FULL: usize = 4 * FRAME_BYTES_FULL;

/// Beyond this many answers a client is throttled.
const RESPONSES_FULL: usize = 4096;

/// What one message costs beside its payload.
const MESSAGE_BYTES: usize = 192;

/// What waits to be sent over one connection.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    state: Mutex<State>,
    drained: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// The welcome, and what the next frame has beside answers.
    frame: pb::FromBrick,
    /// `frame` has something.
    notices: bool,
    responses: VecDeque<(usize, pb::Response)>,
    bytes: usize,
    end: Option<Status>,
    gone: bool,
    waker: Option<Waker>,
}

/// About how many bytes an answer takes on the wire.
fn weight(response: &pb::Response) -> usize {
    let payload = match &response.answer {
        Some(Answer::Read(data)) => data.data.len(),
        Some(Answer::Getxattr(value)) => value.value.len(),
        Some(Answer::Readdir(entries)) => entries.entries.len() * 2 * MESSAGE_BYTES,
        Some(Answer::Lease(granted)) => granted.grants.len() * MESSAGE_BYTES,
        _ => 0,
    };
    payload + MESSAGE_BYTES
}

impl Outbox {
    pub(crate) fn new(welcome: pb::Welcome) -> Arc<Self> {
        let outbox = Self::default();
        outbox.state.lock().frame.welcome = Some(welcome);
        Arc::new(outbox)
    }

    /// Queue an answer.
    pub(crate) fn answer(&self, response: pb::Response) {
        let weight = weight(&response);
        self.put(|state| {
            state.bytes += weight;
            state.responses.push_back((weight, response));
        });
    }

    /// Queue a recall, a notice or a heartbeat: put it into the next frame.
    pub(crate) fn notify(&self, put: impl FnOnce(&mut pb::FromBrick)) {
        self.put(|state| {
            put(&mut state.frame);
            state.notices = true;
        });
    }

    /// Say why the connection ends, after what is queued.
    pub(crate) fn end(&self, status: Status) {
        self.put(|state| state.end = Some(status));
    }

    fn put(&self, change: impl FnOnce(&mut State)) {
        let waker = {
            let mut state = self.state.lock();
            if state.gone || state.end.is_some() {
                return;
            }
            change(&mut state);
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// The client must read before it may ask for more.
    pub(crate) fn is_full(&self) -> bool {
        let state = self.state.lock();
        !state.gone && (state.bytes >= BYTES_FULL || state.responses.len() >= RESPONSES_FULL)
    }

    /// Something was taken out since the outbox was full.
    pub(crate) async fn drained(&self) {
        self.drained.notified().await;
    }
}

/// The stream of frames that a connection sends.
#[derive(Debug)]
pub(crate) struct Frames(pub(crate) Arc<Outbox>);

impl State {
    /// The welcome goes alone. Recalls and notices go behind the answers that came before them, so that no client
    /// hears of a recall before it hears of the grant (unless that went over the other lane).
    fn take_frame(&mut self) -> Option<pb::FromBrick> {
        if let Some(welcome) = self.frame.welcome.take() {
            return Some(pb::FromBrick { welcome: Some(welcome), ..pb::FromBrick::default() });
        }
        let mut responses = Vec::with_capacity(self.responses.len().min(FRAME_MESSAGES_MAX));
        let mut bytes = 0;
        while bytes < FRAME_BYTES_FULL && responses.len() < FRAME_MESSAGES_MAX {
            let Some((weight, response)) = self.responses.pop_front() else { break };
            bytes += weight;
            responses.push(response);
        }
        self.bytes -= bytes;
        if self.responses.is_empty() && std::mem::take(&mut self.notices) {
            return Some(pb::FromBrick { responses, ..std::mem::take(&mut self.frame) });
        }
        let frame = pb::FromBrick { responses, ..pb::FromBrick::default() };
        (!frame.responses.is_empty()).then_some(frame)
    }
}

impl Stream for Frames {
    type Item = Result<pb::FromBrick, Status>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut state = self.0.state.lock();
        let was_full = state.bytes >= BYTES_FULL || state.responses.len() >= RESPONSES_FULL;
        if let Some(frame) = state.take_frame() {
            drop(state);
            if was_full {
                self.0.drained.notify_one();
            }
            return Poll::Ready(Some(Ok(frame)));
        }
        match state.end.take() {
            Some(status) => {
                state.gone = true;
                Poll::Ready(Some(Err(status)))
            }
            None if state.gone => Poll::Ready(None),
            None => {
                state.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Drop for Frames {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        *state = State { gone: true, ..State::default() };
        drop(state);
        self.0.drained.notify_one();
    }
}
