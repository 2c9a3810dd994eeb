//! Refuses every fop that would change the volume.
//!
//! Sits at the top of a brick whose volume is read-only, or of a read-only mount.
//!
//! Invariant: nothing that changes the disk reaches `next`, except from our own healers.

use std::sync::Arc;

use futures::future::BoxFuture;
use tokio::sync::watch;

use crate::ctx::Ctx;
use crate::error::{Errno, Result};
use crate::fop::Fop;
use crate::reply::Reply;
use crate::xlator::{Health, Subvol, Xlator};

/// Refuses every fop that would change the volume.
#[derive(Debug)]
pub struct ReadOnly {
    next: Subvol,
}

impl ReadOnly {
    /// The layer above `next`.
    pub fn new(next: Subvol) -> Arc<Self> {
        Arc::new(Self { next })
    }
}

impl Xlator for ReadOnly {
    fn name(&self) -> &str {
        self.next.name()
    }

    fn call<'a>(&'a self, ctx: &'a Ctx, fop: Fop) -> BoxFuture<'a, Result<Reply>> {
        if fop.effect().changes_disk() && !ctx.caller.is_internal() {
            return Box::pin(std::future::ready(Err(Errno::ROFS.into())));
        }
        self.next.call(ctx, fop)
    }

    fn health(&self) -> watch::Receiver<Health> {
        self.next.health()
    }
}
