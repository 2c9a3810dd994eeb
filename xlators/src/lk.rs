//! The fop of advisory locks: fcntl(2) and flock(2).
//!
//! A row of the table in `fop.rs`, where it is used from; it stands here for its length.

use crate::ranges::{LockMode, Span};
use crate::types::{Fd, Gfid, LockOwner};

/// Lock, unlock or test a range of a file for a program. Needs no open file: the lock is the owner's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lk {
    /// The inode.
    pub gfid: Gfid,
    /// Through which open file; fops through it fail when the lock is lost.
    pub fd: Option<Fd>,
    /// For whom.
    pub owner: LockOwner,
    /// What `F_GETLK` shows of the holder.
    pub pid: i32,
    /// What to do.
    pub what: LkWhat,
    /// Which bytes; all of them for `flock`.
    pub span: Span,
}

/// What to do with a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LkWhat {
    /// Say which lock is in the way of such a one.
    Get(LockMode),
    /// Lock it if nobody is in the way. What the owner had locked there is replaced.
    Set(LockMode, Claim),
    /// Lock it as soon as nobody is in the way. Asked of the top of a client's graph; replicate makes it of the others.
    SetWait(LockMode),
    /// Answer as soon as nobody is in the way, and lock nothing: so that a wait can be given up without a trace. Between
    /// replicate and a brick. `EDEADLK` if somebody waits for the owner whom the owner would wait for.
    Await(LockMode),
    /// Unlock it.
    Unlock,
}

/// By which right a lock is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// It is a new one. A brick that forgot its locks lets their holders come first.
    New,
    /// The owner has it: good if the brick knows that, or forgot, and as yet gives locks to former holders only.
    Again,
    /// A quorum of the other copies has granted it.
    Vouched,
}
