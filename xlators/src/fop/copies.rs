//! The fops between a client and the copies of a set: leases, and how far copies agree. No program asks for these.

use smallvec::SmallVec;

use crate::types::{Epoch, Gfid, LeaseMode, Pending};

/// The most objects that one `Lease`, `Unlease` or `Settle` may name: a full page of a listing, with room.
pub const LEASE_OBJECTS_MAX: usize = 1024;

/// Ask for leases. Which of them the brick cannot grant at once it recalls from their holders.
///
/// Sent to a replica set: hold them all until they are given back with `Unlease`. Fops whose context says that they
/// are [`Held`](crate::ctx::Turn::Held) run under them although others want them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Lease {
    pub gfids: SmallVec<[Gfid; 1]>,
    pub mode: LeaseMode,
    /// Wait (until the deadline of the request) for a holder to give up; else answer `EAGAIN` at once and recall nobody.
    pub wait: bool,
    /// The asker held this lease before the brick restarted or the session was lost, or a quorum of the set has just
    /// granted it: allowed during grace.
    pub reclaim: bool,
    /// Also send each object's attributes, layout and link target.
    pub attrs: bool,
}

/// Give leases back. Of no object, sent to the top of a client's graph: give all back, since the client leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unlease {
    /// The objects, each with its epoch at this brick, and how many changes made under it all copies agree on.
    pub objects: Vec<Settled>,
    /// Keep a shared lease on each.
    pub keep_shared: bool,
}

/// How far all copies agree on the changes of one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settled {
    /// The object.
    pub gfid: Gfid,
    /// The grant under which it was changed.
    pub epoch: Epoch,
    /// How many changes this client sent under it to this brick, all of which every copy has; `None` if some copy may
    /// miss one. A brick that counted otherwise keeps its dirty mark.
    pub changes: Option<u64>,
}

/// Say that every copy has the changes made under leases that are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Settle {
    pub objects: Vec<Settled>,
}

/// Add to pending counters. All keys of the replica set are named, zeros included: the brick can then see when all
/// are zero, and drop the index entry.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Mark {
    pub gfid: Gfid,
    pub deltas: Vec<Pending>,
}

/// How much waits to be healed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backlog;
