//! Fops and replies to messages and back; nothing but conversion.
//!
//! What comes in is checked here and nowhere else: a name is a name, a payload is not oversize, an enum has a value, so
//! that no layer behind the wire meets what a local caller could not have said. A message that makes no sense is
//! `EINVAL` (or the errno that a system call would give for it); nothing here can panic.
//!
//! [`fops`] (those about names in `names`) and [`replies`] are in table order; [`nouns`] is what they are made of.

pub mod fops;
mod names;
pub mod nouns;
pub mod replies;

use std::time::{Duration, Instant};

use mortar_xlators::ctx::{Caller, Ctx};
use mortar_xlators::error::Errno;
use mortar_xlators::fop::{Fop, LEASE_OBJECTS_MAX};
use mortar_xlators::types::{ClientId, Epoch};

use crate::pb;
use nouns::inode;

/// The most supplementary groups a process can have on Linux.
const GROUPS_MAX: usize = 65_536;

/// The longest that a request may ask to wait; nothing in a program waits longer without asking again.
const DEADLINE_MAX: Duration = Duration::from_secs(3600);

/// Put a fop and its context into a request.
pub fn request_to_wire(id: u64, ctx: &Ctx, fop: Fop, now: Instant) -> pb::Request {
    let left = ctx.deadline.saturating_duration_since(now).min(DEADLINE_MAX);
    pb::Request {
        id,
        ctx_id: ctx.id,
        uid: ctx.caller.uid,
        gid: ctx.caller.gid,
        groups: ctx.caller.groups.to_vec(),
        pid: ctx.caller.pid,
        deadline_ms: u32::try_from(left.as_millis()).unwrap_or(u32::MAX).max(1),
        leases: ctx.leases.iter().map(|held| pb::Held { gfid: Some(held.0.into()), epoch: held.1.0 }).collect(),
        fop: Some(fops::fop_to_wire(fop)),
    }
}

/// Take a request apart. Who asks is the session's client, whatever the frame says.
pub fn request_from_wire(request: pb::Request, client: ClientId, now: Instant) -> Result<(Ctx, Fop), Errno> {
    if request.groups.len() > GROUPS_MAX || request.leases.len() > LEASE_OBJECTS_MAX {
        return Err(Errno::INVAL);
    }
    let caller = Caller { uid: request.uid, gid: request.gid, groups: request.groups.into(), pid: request.pid };
    let left = Duration::from_millis(request.deadline_ms.into()).min(DEADLINE_MAX);
    let mut ctx = Ctx::new(request.ctx_id, client, caller, now + left);
    for held in request.leases {
        ctx.leases.push((inode(held.gfid)?, Epoch(held.epoch)));
    }
    Ok((ctx, fops::fop_from_wire(request.fop.ok_or(Errno::INVAL)?)?))
}
