//! Answers some fops with errors, late, or not at all, by a seeded plan.
//!
//! For tests: over any layer, a failure prints its seed and comes back with it. A lost answer is the interesting one:
//! the fop was applied, and the caller hears `Unreachable`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::sync::watch;

use crate::ctx::Ctx;
use crate::error::{Errno, FopError, Result};
use crate::fop::Fop;
use crate::reply::Reply;
use crate::xlator::{Health, Subvol, Xlator};

/// How often what goes wrong: chances out of 1000 for each fop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Faults {
    /// Refused with `EIO`, without reaching the layer below.
    pub refused: u32,
    /// Not sent at all, and unreachable.
    pub lost_requests: u32,
    /// Applied, and unreachable.
    pub lost_answers: u32,
    /// Held back first.
    pub delayed: u32,
    /// For how long.
    pub delay: Duration,
}

/// Answers some fops with errors, late, or not at all.
#[derive(Debug)]
pub struct Faulty {
    next: Subvol,
    faults: Faults,
    seed: u64,
    drawn: AtomicU64,
}

impl Faulty {
    /// The layer above `next`; the same seed and the same order of fops give the same faults.
    pub fn new(next: Subvol, faults: Faults, seed: u64) -> Arc<Self> {
        Arc::new(Self { next, faults, seed, drawn: AtomicU64::new(0) })
    }

    /// The next number of the plan, below 1000 (`SplitMix64`, Steele and others 2014).
    fn draw(&self) -> u32 {
        let step = self.drawn.fetch_add(1, Ordering::Relaxed) + 1;
        let mut z = self.seed.wrapping_add(step.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        u32::try_from((z ^ (z >> 31)) % 1000).expect("a number below 1000 fits")
    }
}

impl Xlator for Faulty {
    fn name(&self) -> &str {
        self.next.name()
    }

    fn call<'a>(&'a self, ctx: &'a Ctx, fop: Fop) -> BoxFuture<'a, Result<Reply>> {
        let Faults { refused, lost_requests, lost_answers, delayed, delay } = self.faults;
        let late = self.draw() < delayed;
        let fault = self.draw();
        Box::pin(async move {
            if late {
                tokio::time::sleep(delay).await;
            }
            if fault < refused {
                return Err(Errno::IO.into());
            }
            if fault < refused + lost_requests {
                return Err(FopError::Unreachable);
            }
            let answer = self.next.call(ctx, fop).await;
            if fault < refused + lost_requests + lost_answers { Err(FopError::Unreachable) } else { answer }
        })
    }

    fn health(&self) -> watch::Receiver<Health> {
        self.next.health()
    }
}
