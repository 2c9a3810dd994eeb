//! Keeps the advisory locks of programs: fcntl(2) and flock(2), for all clients of a brick.
//!
//! The brick's part is a table in memory, and says at once what is free and what is not. Who waits is only told that it
//! may try again, so a wait that is given up leaves nothing behind. That several bricks agree is the business of
//! replicate, which also locks again what a brick forgot: a brick that starts without its memory gives nothing new for
//! a lease term, and lets former holders come first.
//!
//! Invariant: two owners never hold ranges that overlap, unless both only read; a client whose session has ended holds
//! nothing.

mod table;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout_at};

use self::table::{Ask, Asked, Limits, Table};
use crate::ctx::Ctx;
use crate::error::{Errno, Result};
use crate::fop::{Claim, Fop, Lk, LkWhat};
use crate::ranges::LockMode;
use crate::reply::{Lockable, Reply};
use crate::types::ClientId;
use crate::xlator::{Health, Subvol, Xlator};

/// A wait is answered after this time in any case, and asked for again: should a word that the way is free ever get
/// lost, nobody waits for ever.
const WAIT_ROUND: Duration = Duration::from_secs(10);

/// Keeps the advisory locks of programs.
#[derive(Debug)]
pub struct Locks {
    next: Subvol,
    table: Table,
    /// Until then former holders come first.
    grace_until: Option<Instant>,
}

/// What a starting brick knows of the locks of its earlier life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Nobody held one.
    Empty,
    /// They are forgotten; their holders come back within this time, or not at all.
    Lost(Duration),
}

impl Locks {
    /// The layer above `next`, with nothing locked.
    pub fn new(next: Subvol, memory: Memory) -> Arc<Self> {
        let grace_until = match memory {
            Memory::Empty => None,
            Memory::Lost(term) => Some(Instant::now() + term),
        };
        Arc::new(Self { next, table: Table::new(Limits::USUAL), grace_until })
    }

    /// A client's session ended: its locks go to whoever waits for them.
    pub fn client_gone(&self, client: ClientId) {
        self.table.forget_client(client);
    }

    fn in_grace(&self) -> bool {
        self.grace_until.is_some_and(|until| Instant::now() < until)
    }

    /// Everything but a wait, which is answered without waiting for anything.
    fn now(&self, ask: &Ask, what: LkWhat) -> Result<Lockable> {
        match what {
            LkWhat::Get(_) | LkWhat::Set(_, Claim::New) if self.in_grace() => Ok(Lockable::Grace),
            LkWhat::Set(mode, Claim::Again) if !self.in_grace() => {
                Ok(if self.table.holds(ask, mode) { Lockable::Free } else { Lockable::Late })
            }
            LkWhat::Get(mode) => Ok(self.table.conflict(ask, mode).unwrap_or(Lockable::Free)),
            LkWhat::Set(mode, _) => Ok(self.table.lock(ask, mode)?.unwrap_or(Lockable::Free)),
            LkWhat::Unlock => self.table.unlock(ask).map(|()| Lockable::Free).map_err(Into::into),
            LkWhat::SetWait(_) | LkWhat::Await(_) => Err(Errno::INVAL.into()),
        }
    }

    async fn wait(&self, ctx: &Ctx, ask: Ask, mode: LockMode) -> Result<Lockable> {
        let until = Instant::from_std(ctx.deadline).min(Instant::now() + WAIT_ROUND);
        if let Some(grace) = self.grace_until.filter(|grace| *grace > Instant::now()) {
            sleep_until(grace.min(until)).await;
        }
        let mut waiter = match self.table.wait(&ask, mode)? {
            Asked::Free => return Ok(Lockable::Free),
            Asked::Parked(waiter) => waiter,
        };
        match timeout_at(until, &mut waiter.free).await {
            Ok(Ok(())) => Ok(Lockable::Free),
            // The client's session has ended.
            Ok(Err(_)) => Err(Errno::NOTCONN.into()),
            Err(_) => Ok(self.table.conflict(&ask, mode).unwrap_or(Lockable::Free)),
        }
    }

    async fn lk(&self, ctx: &Ctx, lk: Lk) -> Result<Reply> {
        let ask = Ask { gfid: lk.gfid, owner: (ctx.client, lk.owner), pid: lk.pid, span: lk.span };
        let answer = match lk.what {
            LkWhat::Await(mode) => self.wait(ctx, ask, mode).await,
            what => self.now(&ask, what),
        };
        answer.map(Reply::Lk)
    }
}

impl Xlator for Locks {
    fn name(&self) -> &str {
        self.next.name()
    }

    fn call<'a>(&'a self, ctx: &'a Ctx, fop: Fop) -> BoxFuture<'a, Result<Reply>> {
        match fop {
            Fop::Lk(lk) => self.lk(ctx, lk).boxed(),
            other => self.next.call(ctx, other),
        }
    }

    fn health(&self) -> watch::Receiver<Health> {
        self.next.health()
    }
}
