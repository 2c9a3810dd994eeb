//! Gives leases back: when somebody wants them, and the oldest when there are too many. Says what is settled.
//!
//! The order is always the same: no new fop under the lease; what sits above forgets what it was told, and hands over
//! what it has kept back (its fops are the last that may still use the lease, [`Turn::Last`]); the running fops end;
//! the copies are told. None of these waits for another lease.
//!
//! [`Turn::Last`]: crate::ctx::Turn::Last

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures::future::join_all;
use tokio::sync::mpsc::UnboundedReceiver;

use super::Replicate;
use super::entry::Recalled;
use super::lease::Later;
use crate::fop::{LEASE_OBJECTS_MAX, Settle, Settled, Unlease};
use crate::types::{Epoch, Gfid};
use crate::xlator::Notice;

/// Notices taken from the queue at a time.
const BATCH: usize = 256;

/// The oldest leases given back at a time.
const TRIM: usize = 1024;

impl Replicate {
    /// Hear what one copy says unasked, as long as the set lives.
    pub(super) fn serve_notices(&self, copy: usize, mut notices: UnboundedReceiver<Notice>) {
        let weak = self.me.clone();
        self.runtime.spawn(async move {
            let mut batch = Vec::with_capacity(BATCH);
            while notices.recv_many(&mut batch, BATCH).await > 0 {
                let Some(set) = weak.upgrade() else { return };
                for notice in batch.drain(..) {
                    set.hear(copy, notice);
                }
            }
        });
    }

    fn hear(&self, copy: usize, notice: Notice) {
        match notice {
            Notice::Blames { .. } => self.ask_who_blames(),
            Notice::Recall { gfid, epoch, wanted } => match self.cache.recall(copy, gfid, epoch, wanted) {
                Recalled::GiveBack => self.give_back_soon(gfid),
                Recalled::Noted => {}
                Recalled::Unknown => self.disown(copy, gfid, epoch),
            },
        }
    }

    /// A grant whose request nobody waited for: the copy that gave it gets it back.
    pub(super) fn disown(&self, copy: usize, gfid: Gfid, epoch: Epoch) {
        let set = self.shared();
        self.runtime.spawn(async move { set.unlease_one(copy, gfid, epoch).await });
    }

    /// Give a recalled lease back.
    pub(super) fn give_back_soon(&self, gfid: Gfid) {
        let set = self.shared();
        self.runtime.spawn(async move { while !set.give_back(&[gfid]).await.is_empty() {} });
    }

    /// Give back recalled leases. Answers those that have to be given back once more.
    async fn give_back(&self, gfids: &[Gfid]) -> Vec<Gfid> {
        let wanted = self.cache.begin_return(gfids);
        self.upcall.uncover(gfids, wanted).await;
        for &gfid in gfids {
            while let Some(change) = self.cache.drained(gfid) {
                change.await;
            }
        }
        let mut again = Vec::new();
        for gfids in gfids.chunks(LEASE_OBJECTS_MAX) {
            join_all((0..self.copies.len()).map(|copy| self.give_back_at(gfids, copy))).await;
            again.extend(self.cache.end_return(gfids));
        }
        again
    }

    async fn give_back_at(&self, gfids: &[Gfid], copy: usize) {
        let returns = self.cache.returns(gfids, copy);
        let ctx = self.own_ctx();
        for (objects, keep_shared) in [(&returns.dropped, false), (&returns.lowered, true)] {
            // A copy that is not connected takes its leases back by itself, or hears of them when it recalls them.
            if objects.is_empty() || !self.up.get().has(copy) {
                continue;
            }
            let back = Unlease { objects: objects.clone(), keep_shared };
            if let Err(error) = self.copies[copy].subvol.send(&ctx, back).await {
                tracing::debug!(copy, %error, "could not give leases back; the brick will take them");
            }
        }
        self.cache.returned(copy, &returns);
    }

    /// With too many leases, give back the oldest, in the background.
    pub(super) fn trim_if_full(&self) {
        if self.cache.len() <= self.options.leases_max || self.trimming.swap(true, Ordering::AcqRel) {
            return;
        }
        let set = self.shared();
        self.runtime.spawn(async move {
            while set.cache.len() > set.options.leases_max {
                let oldest = set.cache.choose_oldest(TRIM);
                if oldest.is_empty() {
                    break;
                }
                let again = set.give_back(&oldest).await;
                again.into_iter().for_each(|gfid| set.give_back_soon(gfid));
            }
            set.trimming.store(false, Ordering::Release);
        });
    }

    /// Give back every lease that is not in use, with the word that its changes are everywhere: a client that left
    /// without it would leave marks behind.
    pub(super) async fn give_all_back(&self) {
        loop {
            let oldest = self.cache.choose_oldest(TRIM);
            if oldest.is_empty() {
                return;
            }
            let again = self.give_back(&oldest).await;
            again.into_iter().for_each(|gfid| self.give_back_soon(gfid));
        }
    }

    /// Something was changed: when it has been left alone for a while, say that every copy has it.
    pub(super) fn settle_soon(&self) {
        if self.settling.load(Ordering::Relaxed) || self.settling.swap(true, Ordering::AcqRel) {
            return;
        }
        let (weak, every) = (self.me.clone(), self.options.settle_every);
        self.runtime.spawn(async move {
            loop {
                tokio::time::sleep(every).await;
                let Some(set) = weak.upgrade() else { return };
                let (told, later) = set.cache.settle(|gfid| set.upcall.lets_go(gfid));
                set.tell_settled(told).await;
                if later == Later::Nothing {
                    set.settling.store(false, Ordering::Release);
                    // What was listed meanwhile found a settler that no longer looked.
                    if set.cache.has_unsettled() {
                        set.settle_soon();
                    }
                    return;
                }
            }
        });
    }

    async fn tell_settled(self: &Arc<Self>, told: Vec<Vec<Settled>>) {
        let tell = |(copy, objects): (usize, Vec<Settled>)| async move {
            for objects in objects.chunks(LEASE_OBJECTS_MAX) {
                let told = self.copies[copy].subvol.send(&self.own_ctx(), Settle { objects: objects.to_vec() }).await;
                if let Err(error) = told {
                    tracing::debug!(copy, %error, "could not say what is settled; marks stay");
                    return;
                }
            }
        };
        join_all(told.into_iter().enumerate().filter(|(_, objects)| !objects.is_empty()).map(tell)).await;
    }
}
