//! Shared leases on what was looked at, with the attributes as they are under them: so that they can be kept above, and
//! the next look costs nothing.
//!
//! Nobody waits for these leases and nobody is made to give anything up for them: what is not free is answered
//! without being covered.

use std::collections::HashMap;

use futures::future::join_all;
use smallvec::SmallVec;

use super::Replicate;
use super::copies::CopySet;
use super::entry::Recalled;
use super::pending::Accused;
use super::spread::read_child;
use crate::ctx::Ctx;
use crate::error::Result;
use crate::fop::{LEASE_OBJECTS_MAX, Lease, Settled, Unlease};
use crate::reply::{Found, Grant};
use crate::types::{Epoch, Gfid, LeaseMode};

/// Says for each object that the request for it has ended, also when its future is dropped.
struct Gathering<'a> {
    set: &'a Replicate,
    up: CopySet,
    open: Vec<Gfid>,
}

impl Gathering<'_> {
    fn end(&self, gfid: Gfid, grants: &[(usize, Epoch, Accused)]) {
        let (recalled, disowned) = self.set.cache.gathered(gfid, grants, self.up);
        disowned.into_iter().for_each(|(copy, epoch)| self.set.disown(copy, gfid, epoch));
        if recalled == Recalled::GiveBack {
            self.set.give_back_soon(gfid);
        }
    }
}

impl Drop for Gathering<'_> {
    fn drop(&mut self) {
        for gfid in std::mem::take(&mut self.open) {
            self.end(gfid, &[]);
        }
    }
}

/// What the copies said of one object.
#[derive(Default)]
struct Said {
    granted: SmallVec<[(usize, Epoch, Accused); 3]>,
    accused: Accused,
    found: Option<Box<Found>>,
}

/// What may be believed of an object.
enum Seen {
    /// The lease is ours.
    Leased(Box<Found>),
    /// Somebody changes it, and this is how far it has come where everybody reads it.
    Shared(Box<Found>),
    Nothing,
}

impl Replicate {
    /// Few enough leases that more on suspicion push out none that are used.
    pub(super) fn has_room(&self) -> bool {
        self.cache.len() < self.options.leases_max / 4 * 3
    }

    /// Attributes and lease in one round, if nobody is in the way; the attributes without the lease, if somebody who
    /// changes the object need not be disturbed. `None` when it takes more than that.
    pub(super) async fn getattr_with_lease(&self, ctx: &Ctx, gfid: Gfid) -> Result<Option<Box<Found>>> {
        let up = self.live()?;
        let from = read_child(gfid, self.copies.len());
        if !up.has(from) || self.copies[from].arbiter {
            return Ok(None);
        }
        let seen = match self.gather_round(ctx, from, &[gfid]).await.remove(&gfid) {
            Some(Seen::Leased(found) | Seen::Shared(found)) => Some(found),
            Some(Seen::Nothing) | None => None,
        };
        self.trim_if_full();
        Ok(seen)
    }

    /// Take leases on what copy `from` found, and replace it by what it is under them.
    pub(super) async fn gather<'a>(&self, ctx: &Ctx, from: usize, found: impl Iterator<Item = &'a mut Box<Found>>) {
        if self.copies[from].arbiter {
            return;
        }
        let mut wanted: Vec<&mut Box<Found>> = found.collect();
        for wanted in wanted.chunks_mut(LEASE_OBJECTS_MAX) {
            let gfids: Vec<Gfid> = wanted.iter().map(|found| found.iatt.gfid).collect();
            let mut seen = self.gather_round(ctx, from, &gfids).await;
            for old in wanted {
                if let Some(Seen::Leased(new)) = seen.remove(&old.iatt.gfid) {
                    **old = new;
                }
            }
        }
        self.trim_if_full();
    }

    async fn gather_round(&self, ctx: &Ctx, from: usize, gfids: &[Gfid]) -> HashMap<Gfid, Seen> {
        let up = self.up.get();
        let asked = self.cache.want_many(gfids.iter().copied());
        if asked.is_empty() {
            return HashMap::new();
        }
        let mut gathering = Gathering { set: self, up, open: asked.clone() };
        let mut said = self.ask_many(ctx, up, from, &asked).await;
        let mut partly: Vec<(Gfid, Said)> = Vec::new();
        let mut seen = HashMap::with_capacity(asked.len());
        for gfid in std::mem::take(&mut gathering.open) {
            let said = said.remove(&gfid).unwrap_or_default();
            let good = said.found.clone().filter(|found| self.may_answer(found, from, said.accused));
            if said.granted.len() == up.len() {
                gathering.end(gfid, &said.granted);
                let dressed = good.map(|mut found| {
                    found.cover = self.attrs_cover(gfid, u64::MAX);
                    found
                });
                seen.insert(gfid, dressed.map_or(Seen::Nothing, Seen::Leased));
                continue;
            }
            // Every client that reaches all copies reads an object from the same one, so what one of them has seen
            // there the others see, too; a client that does not must ask for the lease.
            let alike = up == self.all() && from == read_child(gfid, self.copies.len());
            seen.insert(gfid, good.filter(|_| alike).map_or(Seen::Nothing, Seen::Shared));
            gathering.open.push(gfid);
            if !said.granted.is_empty() {
                partly.push((gfid, said));
            }
        }
        self.give_back_partly(partly).await;
        seen
    }

    async fn ask_many(&self, ctx: &Ctx, up: CopySet, from: usize, gfids: &[Gfid]) -> HashMap<Gfid, Said> {
        let ask = |copy: usize| async move {
            let gfids = gfids.iter().copied().collect();
            let attrs = copy == from;
            let lease = Lease { gfids, mode: LeaseMode::Shared, wait: false, reclaim: false, attrs };
            (copy, self.copies[copy].subvol.send(ctx, lease).await)
        };
        let mut said: HashMap<Gfid, Said> = HashMap::with_capacity(gfids.len());
        for (copy, answer) in join_all(up.iter().map(ask)).await {
            for Grant { gfid, epoch, marks, found, nameless, .. } in
                answer.into_iter().flat_map(|granted| granted.grants)
            {
                let said = said.entry(gfid).or_default();
                let accused = self.accused_by(&marks);
                said.accused.merge(accused);
                if let Ok(epoch) = epoch {
                    if nameless {
                        self.cache.nameless(gfid);
                    }
                    said.granted.push((copy, epoch, accused));
                }
                said.found = said.found.take().or(found);
            }
        }
        said
    }

    /// Leases that not every copy granted are worth nothing.
    async fn give_back_partly(&self, partly: Vec<(Gfid, Said)>) {
        if partly.is_empty() {
            return;
        }
        let mut back: Vec<Vec<Settled>> = vec![Vec::new(); self.copies.len()];
        for (gfid, said) in partly {
            for (copy, epoch, _) in said.granted {
                back[copy].push(Settled { gfid, epoch, changes: Some(0) });
            }
        }
        let ctx = self.own_ctx();
        let tell = |(copy, objects): (usize, Vec<Settled>)| {
            let (ctx, back) = (&ctx, Unlease { objects, keep_shared: false });
            async move { self.copies[copy].subvol.send(ctx, back).await.err() }
        };
        let told = back.into_iter().enumerate().filter(|(_, objects)| !objects.is_empty()).map(tell);
        if let Some(error) = join_all(told).await.into_iter().flatten().next() {
            tracing::debug!(set = self.name, %error, "could not give leases back; they will be recalled");
        }
    }
}
