//! Waiting for an object: until its holder gives it back, until it has been idle too long and is fenced, or until
//! the one that waits gives up.

use std::sync::Arc;

use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::Leases;
use super::table::Held;
use crate::ctx::Ctx;
use crate::error::Errno;
use crate::types::Gfid;

impl Leases {
    /// Wait for the answer to a parked request, as long as its caller does.
    ///
    /// The wait looks after its own way: the holders were told, and who has done nothing for too long is fenced from
    /// here, so nothing else has to run. A request that is dropped leaves the queue by itself.
    pub(super) async fn parked(
        &self,
        ctx: &Ctx,
        gfid: Gfid,
        mut answer: oneshot::Receiver<Held>,
    ) -> Result<Held, Errno> {
        let deadline = Instant::from_std(ctx.deadline);
        let patience = self.config.recall_patience;
        let mut look = Instant::now() + patience;
        loop {
            match timeout_at(look.min(deadline), &mut answer).await {
                Ok(Ok(held)) => return Ok(held),
                // The queue forgot us: our session has ended.
                Ok(Err(_)) => return Err(Errno::NOTCONN),
                Err(_) if Instant::now() >= deadline => return self.last_look(answer),
                Err(_) => {}
            }
            let now = Instant::now();
            let (fenced, open) = self.table.fence_late(gfid, now.checked_sub(patience).unwrap_or(now));
            if fenced > 0 {
                tracing::warn!(ctx.id, %gfid, fenced, "fenced a holder that did not answer a recall");
            }
            look = open.unwrap_or(now) + patience;
        }
    }

    /// The time is up; but the answer may have come in the same moment, and must not be lost.
    fn last_look(&self, mut answer: oneshot::Receiver<Held>) -> Result<Held, Errno> {
        answer.close();
        answer.try_recv().map_err(|_| Errno::AGAIN)
    }

    /// Until when others may trust leases that this brick has forgotten.
    pub(super) fn grace(&self) -> Option<Instant> {
        self.grace_until.filter(|&until| Instant::now() < until)
    }

    /// After a restart that forgot leases: wait until their holders have either reclaimed them or ceased to trust
    /// them.
    pub(super) async fn outlast_grace(&self, ctx: &Ctx, wait: bool) -> Result<(), Errno> {
        let Some(until) = self.grace() else { return Ok(()) };
        if !wait || Instant::from_std(ctx.deadline) < until {
            return Err(Errno::AGAIN);
        }
        sleep_until(until).await;
        Ok(())
    }

    /// Myself, for a task that runs on after the call.
    pub(super) fn shared(&self) -> Arc<Self> {
        self.me.upgrade().expect("a layer that is called is held by somebody")
    }
}
