//! Moves messages: reads one, has it served, writes the answer.
//!
//! Invariant: every request gets exactly one answer. [`Answering`] sees to it: dropped without an
//! answer (a panic, a task that was aborted), it answers EIO.
//!
//! Invariant: what is read is bounded. Requests that wait hold units of a budget; when it is used
//! up, nothing more is read until one is answered.

use std::os::fd::OwnedFd;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use rustix::io::Errno;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::Handler;
use super::buffer::{Buffer, COPY_BYTES_MAX, Pool};
use super::burst::{Burst, LOOK_TIME, Served};
use super::decode::{SetxattrForm, decode};
use super::device::{self, Device};
use super::interrupt::{Found, OnSignal, Waiting, give_up};
use super::reply::{Answer, Encoded};
use super::request::{Message, Op, Request};

/// One unit of the budget stands for this much memory.
const UNIT_BYTES: usize = 4096;
/// What a waiting request costs besides its payload: its future, its task, buffers further down.
const REQUEST_UNITS: usize = 16;
/// 256 MiB: 4096 small requests, or 240 writes of 1 MiB. The kernel's own limit (`max_background`)
/// holds for readahead and the like only, not for processes that each wait for one answer.
const BUDGET_UNITS: usize = 65536;
/// The longest payload of a request.
const MAX_PAYLOAD_BYTES: usize = 1 << 20;
/// How many processes may wait for locks at once; more get ENOLCK.
const LOCK_WAITS_MAX: usize = 16384;
/// How many messages one reader serves before it lets other tasks of its thread run.
const BATCH_MAX: usize = 32;

/// What all readers of a mount share.
pub(crate) struct Shared<H> {
    handler: Arc<H>,
    pool: Arc<Pool>,
    form: SetxattrForm,
    waiting: Waiting,
    budget: Arc<Semaphore>,
    lock_waits: Arc<Semaphore>,
    /// All devices of this mount: the answer to an interrupt goes to the one that has the request.
    devices: OnceLock<Vec<Arc<OwnedFd>>>,
    /// A reader is looking for the next request: one is enough.
    looking: AtomicBool,
}

impl<H> std::fmt::Debug for Shared<H> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("form", &self.form).field("waiting", &self.waiting).finish_non_exhaustive()
    }
}

/// One device, and who reads it.
#[derive(Debug)]
pub(crate) struct Reader<H> {
    pub(crate) shared: Arc<Shared<H>>,
    pub(crate) device: Device,
}

impl<H: Handler> Reader<H> {
    /// Reads and serves until the mount is gone.
    pub(crate) async fn run(self) -> Result<(), Errno> {
        let mut burst = Burst::default();
        loop {
            self.shared.room().await;
            let mut ready = self.device.ready(device::READY).await.map_err(|_| Errno::IO)?;
            match self.batch(&mut burst)? {
                Batch::Drained => ready.clear_ready(),
                Batch::MoreToCome => tokio::task::yield_now().await,
                Batch::Gone => return Ok(()),
            }
        }
    }

    /// Serves what is there, but not for ever.
    fn batch(&self, burst: &mut Burst) -> Result<Batch, Errno> {
        for _ in 0..BATCH_MAX {
            let mut buffer = self.shared.pool.take();
            match self.read(&mut buffer, burst) {
                Ok(_) => {
                    burst.came(Instant::now());
                    let served = self.shared.serve(self.device.get_ref(), buffer);
                    burst.served(served, Instant::now());
                }
                Err(Errno::WOULDBLOCK) => return Ok(Batch::Drained),
                // A signal, or the caller took its request back while we read it.
                Err(Errno::INTR | Errno::NOENT) => {}
                Err(Errno::NODEV | Errno::CONNABORTED) => return Ok(Batch::Gone),
                Err(errno) => return Err(errno),
            }
            if !self.shared.has_room() {
                break;
            }
        }
        Ok(Batch::MoreToCome)
    }

    /// Reads one message, if there is one or one is likely to come at once.
    fn read(&self, buffer: &mut Buffer, burst: &mut Burst) -> Result<usize, Errno> {
        let device = self.device.get_ref();
        let read = device::read(device, buffer);
        if read != Err(Errno::WOULDBLOCK) || !burst.is_worth_a_look() || !self.shared.may_look() {
            return read;
        }
        let start = Instant::now();
        let mut read = Err(Errno::WOULDBLOCK);
        while read == Err(Errno::WOULDBLOCK) && start.elapsed() < LOOK_TIME {
            std::hint::spin_loop();
            read = device::read(device, buffer);
        }
        self.shared.looking.store(false, Ordering::Relaxed);
        if read == Err(Errno::WOULDBLOCK) {
            burst.is_over();
        }
        read
    }
}

/// How a batch ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Batch {
    /// Nothing more is there.
    Drained,
    /// The batch is full, or nothing more may be read now.
    MoreToCome,
    /// The mount is gone.
    Gone,
}

impl<H: Handler> Shared<H> {
    /// State for one mount. `message_bytes_max` is the longest message the kernel may send.
    pub(crate) fn new(handler: Arc<H>, message_bytes_max: usize, form: SetxattrForm) -> Arc<Self> {
        Arc::new(Self {
            handler,
            pool: Pool::new(message_bytes_max),
            form,
            waiting: Waiting::default(),
            budget: Arc::new(Semaphore::new(BUDGET_UNITS)),
            lock_waits: Arc::new(Semaphore::new(LOCK_WAITS_MAX)),
            devices: OnceLock::new(),
            looking: AtomicBool::new(false),
        })
    }

    /// Says which devices serve this mount.
    pub(crate) fn set_devices(&self, devices: Vec<Arc<OwnedFd>>) {
        self.devices.set(devices).expect("the devices are set once, before the readers start");
    }

    fn has_room(&self) -> bool {
        self.budget.available_permits() >= REQUEST_UNITS
    }

    /// Waits until one more request may be read.
    async fn room(&self) {
        if !self.has_room() {
            // The permit is not kept: what counts is that requests have been answered.
            let _ = self.budget.acquire_many(REQUEST_UNITS as u32).await;
        }
    }

    /// Whether a reader may look for the next request: no other does, and nothing is in work that needs the processor.
    fn may_look(&self) -> bool {
        self.budget.available_permits() == BUDGET_UNITS && !self.looking.swap(true, Ordering::Relaxed)
    }

    fn serve(self: &Arc<Self>, device: &Arc<OwnedFd>, buffer: Buffer) -> Served {
        match decode(buffer, self.form) {
            Message::Request(request) => return self.call(device, request),
            Message::Forget(list) => {
                for (nodeid, count) in list {
                    self.handler.forget(nodeid, count);
                }
            }
            Message::Interrupt { unique, of } => self.interrupt(unique, of),
            Message::Destroy { unique } => answer(device, unique, Answer::Empty),
            Message::Unknown { unique } => answer(device, unique, Errno::NOSYS.into()),
            Message::Init { unique, .. } | Message::Malformed { unique } => {
                tracing::warn!(unique, "the kernel sent what cannot be");
                answer(device, unique, Errno::IO.into());
            }
        }
        Served::Other
    }

    /// Polls the request's future once, here; only if it has to wait does it become a task.
    fn call(self: &Arc<Self>, device: &Arc<OwnedFd>, request: Request) -> Served {
        let at_once = if is_question(&request.op) { Served::Answered } else { Served::Changed };
        let answering = Answering { device: Arc::clone(device), unique: request.header.unique };
        let wait = Wait {
            on_signal: self.handler.on_signal(&request.op),
            units: REQUEST_UNITS + payload_bytes(&request.op) / UNIT_BYTES,
            unique: request.header.unique,
            nodeid: request.header.nodeid,
            pid: request.header.pid,
        };
        // The first poll needs no waker: a future that is pending is polled again by its new task.
        let mut context = Context::from_waker(Waker::noop());
        let polled = std::panic::catch_unwind(AssertUnwindSafe(|| {
            let mut future = Box::pin(Arc::clone(&self.handler).call(request));
            match future.as_mut().poll(&mut context) {
                Poll::Ready(answer) => Ok(answer),
                Poll::Pending => Err(future),
            }
        }));
        match polled {
            Ok(Ok(answer)) => {
                answering.send(answer);
                return at_once;
            }
            Ok(Err(future)) => self.spawn(answering, future, wait),
            // The panic hook has said why; dropping it answers EIO.
            Err(_) => drop(answering),
        }
        Served::Other
    }

    fn spawn(
        self: &Arc<Self>,
        answering: Answering,
        future: Pin<Box<impl Future<Output = Answer> + Send + 'static>>,
        wait: Wait,
    ) {
        let permit = match self.permit(&wait) {
            Ok(permit) => permit,
            Err(errno) => return answering.send(errno.into()),
        };
        let signal = self.waiting.enter(wait.unique);
        let shared = Arc::clone(self);
        let here = Leaving { shared: Arc::clone(self), unique: wait.unique };
        tokio::spawn(async move {
            let _permit = permit;
            let mut future = future;
            let answer = tokio::select! {
                biased;
                answer = &mut future => Some(answer),
                () = give_up(signal, wait.on_signal, wait.pid) => None,
            };
            drop(here);
            match answer {
                Some(answer) => answering.send(answer),
                None => {
                    answering.send(Errno::INTR.into());
                    if wait.on_signal == OnSignal::RunOnIfKilled {
                        shared.handler.undelivered(wait.nodeid, future.await);
                    }
                }
            }
        });
    }

    fn permit(&self, wait: &Wait) -> Result<Option<OwnedSemaphorePermit>, Errno> {
        match wait.on_signal {
            // Those who wait for others must not keep the unlock from being read that ends their wait.
            OnSignal::GiveUp => Arc::clone(&self.lock_waits).try_acquire_owned().map(Some).map_err(|_| Errno::NOLCK),
            // The reader stops at the edge, so what is beyond it is one request per reader.
            OnSignal::Finish | OnSignal::GiveUpIfKilled | OnSignal::RunOnIfKilled => {
                Ok(Arc::clone(&self.budget).try_acquire_many_owned(wait.units as u32).ok())
            }
        }
    }

    /// A request that nobody waits with yet is perhaps being polled by another reader: EAGAIN has
    /// the kernel send the interrupt again, unless the request has been answered (then ENOENT).
    fn interrupt(&self, unique: u64, of: u64) {
        if self.waiting.signal(of) == Found::Unknown {
            for device in self.devices.get().into_iter().flatten() {
                answer(device, unique, Errno::AGAIN.into());
            }
        }
    }
}

/// What is known of a request that waits.
#[derive(Clone, Copy, Debug)]
struct Wait {
    on_signal: OnSignal,
    units: usize,
    unique: u64,
    nodeid: u64,
    pid: u32,
}

/// Takes the request out of the waiting ones, however its task ends.
struct Leaving<H> {
    shared: Arc<Shared<H>>,
    unique: u64,
}

impl<H> Drop for Leaving<H> {
    fn drop(&mut self) {
        self.shared.waiting.leave(self.unique);
    }
}

/// Whether a request changes nothing: neither it nor what will come of it gives the bricks work.
fn is_question(op: &Op) -> bool {
    matches!(
        op,
        Op::Lookup { .. }
            | Op::Getattr { .. }
            | Op::Access { .. }
            | Op::Readlink
            | Op::Statfs
            | Op::Getxattr { .. }
            | Op::Listxattr { .. }
            | Op::Opendir { .. }
            | Op::Readdir { .. }
            | Op::Readdirplus { .. }
            | Op::Releasedir { .. }
    )
}

fn payload_bytes(op: &Op) -> usize {
    match op {
        // A payload that was not copied keeps a whole buffer.
        Op::Write { data, .. } if data.len() >= COPY_BYTES_MAX => MAX_PAYLOAD_BYTES,
        Op::Write { data, .. } => data.len(),
        Op::Setxattr { value, .. } => value.len(),
        Op::Read { size, .. } | Op::Readdir { size, .. } | Op::Readdirplus { size, .. } => *size as usize,
        _ => 0,
    }
}

/// The duty to answer one request.
struct Answering {
    device: Arc<OwnedFd>,
    unique: u64,
}

impl Answering {
    fn send(mut self, reply: Answer) {
        answer(&self.device, std::mem::take(&mut self.unique), reply);
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        if self.unique != 0 {
            answer(&self.device, self.unique, Errno::IO.into());
        }
    }
}

fn answer(device: &OwnedFd, unique: u64, reply: Answer) {
    let encoded = Encoded::new(unique, reply);
    match device::write(device, &encoded.slices()) {
        // The request or the mount is gone.
        Ok(()) | Err(Errno::NOENT | Errno::NODEV | Errno::PERM) => {}
        Err(errno) => {
            tracing::warn!(unique, %errno, bytes = encoded.len(), "the kernel refused an answer");
            if errno != Errno::INVAL {
                return;
            }
            // Too long or too short for the question: without another answer the caller hangs.
            let _ = device::write(device, &Encoded::new(unique, Errno::IO.into()).slices());
        }
    }
}
