//! Leases that a layer above holds over several fops, so that what it does in steps is one step to everybody else.
//!
//! `Lease`, sent to the set, takes them all at once and keeps them pinned; `Unlease` ends that. The fops between say in
//! their context that they belong to it ([`Turn::Held`]): they run although others want the leases back, while every
//! other fop of this client waits as usual. Who holds leases must release them well before a brick fences those who
//! answer no recall, and while it holds some must not wait for what another holder could have; see
//! `distribute/hold.rs`.
//!
//! [`Turn::Held`]: crate::ctx::Turn::Held
//!
//! Invariant: a fop runs under a held lease only if nobody else can have had it since it was taken.

use super::Replicate;
use crate::ctx::Ctx;
use crate::effect::Needs;
use crate::error::{Errno, FopError, Result};
use crate::fop::{LEASE_OBJECTS_MAX, Lease, Unlease};
use crate::reply::{Granted, Reply};

impl Replicate {
    /// Answers without grants: those are between this layer and its copies.
    pub(super) async fn hold(&self, ctx: &Ctx, lease: &Lease) -> Result<Reply> {
        if lease.gfids.len() > LEASE_OBJECTS_MAX {
            return Err(FopError::Refused(Errno::INVAL));
        }
        let mut needs: Needs = lease.gfids.iter().map(|&gfid| (gfid, lease.mode)).collect();
        needs.sort_unstable_by_key(|need| need.0);
        needs.dedup();
        let mut pins = self.pin(ctx, &needs).await?;
        for pin in std::mem::take(&mut pins.pins) {
            self.cache.hold(&pin);
        }
        Ok(Reply::Lease(Granted { grants: Vec::new() }))
    }

    pub(super) fn release(&self, unlease: &Unlease) {
        for object in &unlease.objects {
            self.cache.release(object.gfid);
        }
    }
}
