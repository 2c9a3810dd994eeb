//! Who asks, as whom, until when, and under which leases.
//!
//! Passed first, never stored. A layer that must act as somebody else makes another value.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use smallvec::SmallVec;
use tokio::sync::Notify;

use crate::types::{ClientId, Epoch, Gfid};

/// The process on whose behalf a fop runs.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Caller {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Supplementary groups, where the kernel told us.
    pub groups: SmallVec<[u32; 4]>,
    /// Process id; negative for our own daemons (heal, rebalance), as in GlusterFS.
    pub pid: i32,
}

impl Caller {
    /// Root, for what a layer does for itself.
    pub fn root() -> Self {
        Self::default()
    }

    /// One of our own daemons rather than a program.
    pub fn is_internal(&self) -> bool {
        self.pid < 0
    }
}

/// Who asks, as whom, until when, and under which leases.
#[derive(Clone, Debug)]
pub struct Ctx {
    /// Names this request in the logs of every process it passes.
    pub id: u64,
    /// The client library instance that asks. A brick sets it from the session, never from a frame.
    pub client: ClientId,
    /// On whose behalf.
    pub caller: Caller,
    /// When the caller no longer waits.
    pub deadline: Instant,
    /// The lease epochs the sender holds at the brick this is sent to. Set by replicate, per brick.
    pub leases: SmallVec<[(Gfid, Epoch); 2]>,
    /// Whether the fop may still use a lease that is on its way back.
    pub turn: Turn,
    /// Who is to be told when the fop has begun.
    pub begun: Option<Begun>,
}

/// Tells that a change of names has begun: it holds its leases on every copy, all copies are connected, and it keeps the
/// leases until it has ended. Nobody else can see from now on that it has not ended yet.
#[derive(Clone, Debug, Default)]
pub struct Begun(Arc<(AtomicBool, Notify)>);

impl Begun {
    /// It has.
    pub fn tell(&self) {
        self.0.0.store(true, Ordering::Release);
        self.0.1.notify_one();
    }

    /// Wait until it has. For one who waits.
    pub async fn wait(&self) {
        while !self.0.0.load(Ordering::Acquire) {
            self.0.1.notified().await;
        }
    }
}

/// Whether a fop belongs to giving a lease back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Turn {
    /// It waits until a lease that is on its way back can be had again.
    #[default]
    Waits,
    /// The lease goes back only when the fop has ended: it runs under what is still held, and never waits.
    Last,
    /// It is a step of a change that holds leases over several fops (a [`Lease`](crate::fop::Lease) sent to a set):
    /// under these it runs although others want them, and when one of them was lost it fails with `Fenced`.
    Held,
}

impl Ctx {
    /// A context for `caller`, without leases.
    pub fn new(id: u64, client: ClientId, caller: Caller, deadline: Instant) -> Self {
        Self { id, client, caller, deadline, leases: SmallVec::new(), turn: Turn::Waits, begun: None }
    }

    /// The same request under these leases.
    pub fn under(&self, leases: SmallVec<[(Gfid, Epoch); 2]>) -> Self {
        Self { leases, ..self.clone() }
    }

    /// The same request as a part of giving a lease back.
    pub fn last(&self) -> Self {
        Self { turn: Turn::Last, ..self.clone() }
    }

    /// The same request as a step of a change that holds leases.
    pub fn held(&self) -> Self {
        Self { turn: Turn::Held, ..self.clone() }
    }

    /// The same request, given up at `moment` if the caller waits longer than that.
    pub fn until(&self, moment: Instant) -> Self {
        Self { deadline: self.deadline.min(moment), ..self.clone() }
    }

    /// The same request as one step of several: that it has begun says nothing about the others.
    pub fn step(&self) -> Self {
        Self { begun: None, ..self.clone() }
    }

    /// The same request made as root, for what a layer does for itself.
    pub fn as_root(&self) -> Self {
        Self { caller: Caller::root(), ..self.clone() }
    }
}
