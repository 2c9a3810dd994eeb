//! Copies that come and go: who is connected, what a copy that forgot us is told again, who blames whom.

use std::sync::Weak;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::future::join_all;

use super::Replicate;
use super::copies::CopySet;
use crate::fop::{Backlog, LEASE_OBJECTS_MAX};
use crate::types::LeaseMode;
use crate::xlator::Health;

/// The lease term of a brick.
const YOUTH: Duration = Duration::from_secs(10);

impl Replicate {
    /// Follow the health of every copy, as long as the set lives.
    pub(super) fn watch_members(&self) {
        // What it is like now counts from the start, so that a set of ready copies is ready when it is made. None of
        // them knows us yet, so there is nothing to tell them again.
        self.blamers.add(self.all());
        for copy in 0..self.copies.len() {
            let mut health = self.copies[copy].subvol.health();
            let now = *health.borrow_and_update();
            let mut session = None;
            if let Health::Up { session: first } = now {
                session = Some(first);
                self.up.add(CopySet::only(copy));
            }
            let weak = self.me.clone();
            self.runtime.spawn(async move {
                while health.changed().await.is_ok() {
                    let now = *health.borrow_and_update();
                    session = Self::changed(&weak, copy, session, now).await;
                }
            });
        }
        self.say_health();
        self.ask_who_blames();
    }

    async fn changed(weak: &Weak<Self>, copy: usize, session: Option<u64>, now: Health) -> Option<u64> {
        let set = weak.upgrade()?;
        let only = CopySet::only(copy);
        let Health::Up { session: current } = now else {
            set.up.remove(only);
            set.next_life(copy);
            tracing::warn!(set = set.name, copy, "a copy is gone");
            set.say_health();
            set.uncover_unfounded().await;
            return session;
        };
        if session != Some(current) {
            // It may have been up all the time, and a new life of it: nothing is sent to it until it knows us.
            set.up.remove(only);
            set.next_life(copy);
            set.uncover_unfounded().await;
            set.cache.forget_copy(copy);
            set.upcall.forgotten();
            set.blamers.add(set.all());
            set.reopen(copy).await;
            set.lock_again(copy).await;
            set.note_young(only);
        }
        set.up.add(only);
        // Those that were given since, by copies that did not count this one yet.
        set.lock_again(copy).await;
        tracing::info!(set = set.name, copy, "a copy is here");
        set.say_health();
        set.ask_who_blames();
        Some(current)
    }

    /// What sits above must not go on believing what no quorum vouches for any more.
    async fn uncover_unfounded(&self) {
        let unfounded = self.cache.unfounded(self.up.get());
        if !unfounded.is_empty() {
            tracing::warn!(set = self.name, leases = unfounded.len(), "leases are no longer vouched for by a quorum");
        }
        for gfids in unfounded.chunks(LEASE_OBJECTS_MAX) {
            self.upcall.uncover(gfids, LeaseMode::Exclusive).await;
        }
    }

    /// For a lease term, a copy that was restarted gives no lease of its own accord.
    fn note_young(&self, copy: CopySet) {
        self.young.add(copy);
        let weak = self.me.clone();
        self.runtime.spawn(async move {
            tokio::time::sleep(YOUTH).await;
            if let Some(set) = weak.upgrade() {
                set.young.remove(copy);
            }
        });
    }

    fn say_health(&self) {
        let health = if self.rule.holds(self.up.get()) { Health::Up { session: 0 } } else { Health::Down };
        self.health.send_if_modified(|old| std::mem::replace(old, health) != health);
    }

    /// Learn which copies hold marks against others. Until a copy has said that it holds none, it counts as one
    /// that does.
    pub(super) fn ask_who_blames(&self) {
        self.blamers.add(self.all());
        let weak = self.me.clone();
        self.runtime.spawn(async move {
            // A blame that is written while we ask must not be overlooked.
            let Some(set) = weak.upgrade() else { return };
            let before = set.blames.load(Ordering::Acquire);
            let up = set.up.get();
            let ctx = set.own_ctx();
            let ask = |copy: usize| {
                let (set, ctx) = (&set, &ctx);
                async move { (copy, set.copies[copy].subvol.send(ctx, Backlog).await) }
            };
            let answers = join_all(up.iter().map(ask)).await;
            let none = |(copy, answer): (usize, crate::error::Result<crate::reply::Waiting>)| {
                answer.is_ok_and(|waiting| waiting.pending == 0).then_some(copy)
            };
            let innocent: CopySet = answers.into_iter().filter_map(none).collect();
            if set.blames.load(Ordering::Acquire) == before {
                set.blamers.remove(innocent);
            }
        });
    }

    /// Marks are about to be written on these copies.
    pub(super) fn note_blame(&self, on: CopySet) {
        self.blames.fetch_add(1, Ordering::AcqRel);
        self.blamers.add(on);
    }
}
