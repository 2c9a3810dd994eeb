//! Reads: one copy answers that nobody blames for what it answers, the same one for all clients; the next if it is
//! silent.
//!
//! A shared lease makes the choice safe: its grants say whom the copies blame for the object. An object that is seen
//! without a lease of its own (a child in a lookup or a listing) has no such word; while any copy holds marks, all
//! copies are asked for it, and their marks decide.

use std::collections::HashMap;

use futures::future::join_all;

use super::Replicate;
use super::acquire::Pins;
use super::copies::CopySet;
use super::pending::Accused;
use super::spread::read_child;
use crate::ctx::Ctx;
use crate::error::{Errno, FopError, Result};
use crate::fop::{Backlog, Fop, FopKind, Getattr, Lookup, Readdir, Statfs};
use crate::reply::{DirEntry, Found, Looked, Reply, Space, Waiting};
use crate::types::{Class, Cover, Gfid, Kind};

/// How often a read that a fence stopped is begun anew.
const ATTEMPTS: usize = 16;

impl Replicate {
    /// A read of one inode.
    pub(super) async fn read(&self, ctx: &Ctx, fop: Fop) -> Result<Reply> {
        for _ in 0..ATTEMPTS {
            let pins = self.pin(ctx, &fop.leases()).await?;
            match self.read_once(ctx, &fop, &pins, self.readable(&pins, fop.kind())).await {
                Err(FopError::Fenced) => {}
                answer => return answer.map(|(_, reply)| reply),
            }
        }
        Err(FopError::Fenced)
    }

    /// The copies that may answer a fop of this kind under these leases, best first.
    fn readable(&self, pins: &Pins, kind: FopKind) -> Vec<usize> {
        let accused = pins.accused();
        let blamed = match kind {
            FopKind::Read | FopKind::Seek => accused.of(Class::Data),
            FopKind::Getxattr | FopKind::Listxattr | FopKind::Readlink => accused.of(Class::Metadata),
            FopKind::Getattr => accused.of(Class::Metadata).or(accused.of(Class::Data)),
            _ => accused.of(Class::Entry),
        };
        let clean: CopySet = pins.up.without(blamed).iter().filter(|&copy| !self.copies[copy].arbiter).collect();
        let usable = match kind {
            // Copies that blame each other for names: any of them is as good, until they are merged.
            FopKind::Lookup | FopKind::Readdir if clean.is_empty() => pins.up,
            _ => clean,
        };
        self.in_order(pins.pins.first().map_or(Gfid::ROOT, |pin| pin.gfid), usable)
    }

    /// The copy that all clients read this object from, then the others.
    fn in_order(&self, gfid: Gfid, usable: CopySet) -> Vec<usize> {
        let first = read_child(gfid, self.copies.len());
        let rest = usable.iter().filter(|&copy| copy != first);
        usable.has(first).then_some(first).into_iter().chain(rest).collect()
    }

    /// Ask one copy after the other until one answers. `Fenced` when one no longer knows our lease.
    async fn read_once(&self, ctx: &Ctx, fop: &Fop, pins: &Pins, order: Vec<usize>) -> Result<(usize, Reply)> {
        let mut last = FopError::Refused(Errno::IO);
        for copy in order {
            let Some(leases) = pins.at(copy) else { continue };
            match self.copies[copy].subvol.call(&ctx.under(leases), fop.clone()).await {
                Ok(reply) => return Ok((copy, reply)),
                Err(FopError::Fenced) => {
                    pins.pins.iter().for_each(|pin| self.cache.fenced(pin.gfid, copy, pin.epochs[copy]));
                    return Err(FopError::Fenced);
                }
                // A disk that fails is as good as one that is not there.
                Err(error @ (FopError::Unreachable | FopError::Refused(Errno::IO))) => {
                    tracing::debug!(ctx.id, set = self.name, copy, fop = fop.kind().name(), %error, "asking the next copy");
                    last = error;
                }
                Err(refused) => return Err(refused),
            }
        }
        Err(last)
    }

    pub(super) async fn getattr(&self, ctx: &Ctx, fop: Getattr) -> Result<Reply> {
        let (gfid, fop) = (fop.gfid, Fop::Getattr(fop));
        if let Some(found) = Box::pin(self.getattr_with_lease(ctx, gfid)).await? {
            return Ok(Reply::Getattr(*found));
        }
        for _ in 0..ATTEMPTS {
            let pins = self.pin(ctx, &fop.leases()).await?;
            let mut order = self.readable(&pins, FopKind::Getattr);
            // Names that are out of step spoil nothing that is asked of a directory here.
            let directories_only = order.is_empty();
            if directories_only {
                order = self.in_order(gfid, pins.up.without(pins.accused().of(Class::Metadata)));
            }
            let then = self.cache.now();
            match self.read_once(ctx, &fop, &pins, order).await {
                Err(FopError::Fenced) => {}
                Ok((_, Reply::Getattr(found))) if directories_only && found.iatt.kind != Kind::Dir => {
                    return Err(FopError::Refused(Errno::IO));
                }
                Ok((_, Reply::Getattr(mut found))) => {
                    found.cover = self.attrs_cover(gfid, then);
                    return Ok(Reply::Getattr(found));
                }
                answer => return answer.map(|(_, reply)| reply),
            }
        }
        Err(FopError::Fenced)
    }

    pub(super) fn attrs_cover(&self, gfid: Gfid, then: u64) -> Cover {
        if self.cache.covers(gfid, self.up.get(), then) { Cover::ATTRS } else { Cover::empty() }
    }

    fn name_cover(&self, directory: Gfid, then: u64) -> Cover {
        if self.cache.covers(directory, self.up.get(), then) { Cover::NAME } else { Cover::empty() }
    }

    pub(super) async fn lookup(&self, ctx: &Ctx, fop: Lookup) -> Result<Reply> {
        let (parent, fop) = (fop.parent, Fop::Lookup(fop));
        for _ in 0..ATTEMPTS {
            let pins = self.pin(ctx, &fop.leases()).await?;
            let order = self.readable(&pins, FopKind::Lookup);
            let then = self.cache.now();
            let answer = self.read_once(ctx, &fop, &pins, order.clone()).await;
            let (copy, mut looked) = match answer {
                Err(FopError::Fenced) => continue,
                Ok((copy, Reply::Lookup(looked))) => (copy, looked),
                other => return other.map(|(_, reply)| reply),
            };
            if self.somebody_blames(&pins) && looked.found.is_some() {
                looked = Box::pin(self.choose_by_marks(ctx, &fop, &pins, (copy, looked))).await?;
            }
            let doubt = self.somebody_blames(&pins);
            looked.cover = self.name_cover(parent, then);
            drop(pins);
            if let Some(found) = &mut looked.found {
                found.cover = self.attrs_cover(found.iatt.gfid, then);
                if found.cover.is_empty()
                    && !doubt
                    && let Some(leased) = Box::pin(self.getattr_with_lease(ctx, found.iatt.gfid)).await?
                {
                    *found = leased;
                }
            }
            if let Some(found) = &mut looked.found {
                found.cover |= looked.cover;
            }
            return Ok(Reply::Lookup(looked));
        }
        Err(FopError::Fenced)
    }

    fn somebody_blames(&self, pins: &Pins) -> bool {
        self.copies.len() > 1 && !self.blamers.get().and(pins.up).is_empty()
    }

    /// Ask the other copies about the child, too, and take the answer of one that nobody blames.
    async fn choose_by_marks(&self, ctx: &Ctx, fop: &Fop, pins: &Pins, first: (usize, Looked)) -> Result<Looked> {
        let mut answers = HashMap::from([first]);
        for (copy, reply) in self.ask_others(ctx, fop, pins, &answers).await {
            if let Reply::Lookup(looked) = reply {
                answers.insert(copy, looked);
            }
        }
        let gfid = |looked: &Looked| looked.found.as_ref().map(|found| found.iatt.gfid);
        let mut accused = Accused::default();
        for looked in answers.values() {
            looked.found.iter().for_each(|found| accused.merge(self.accused_by(&found.marks)));
        }
        let clean: CopySet = answers.keys().copied().filter(|&copy| !self.copies[copy].arbiter).collect();
        let order = self.in_order(pins.pins[0].gfid, clean);
        let wanted = order.first().and_then(|copy| answers.get(copy)).and_then(gfid);
        let good = |copy: &usize| {
            let Some(found) = answers.get(copy).and_then(|looked| looked.found.as_ref()) else { return false };
            Some(found.iatt.gfid) == wanted && self.may_answer(found, *copy, accused)
        };
        match order.iter().find(|copy| good(copy)) {
            Some(copy) => Ok(answers.remove(copy).expect("it was just found")),
            None => Err(FopError::Refused(Errno::IO)),
        }
    }

    /// The attributes of a child as one copy has them may be believed.
    pub(super) fn may_answer(&self, found: &Found, copy: usize, accused: Accused) -> bool {
        let blamed = match found.iatt.kind {
            Kind::Dir => accused.of(Class::Metadata),
            _ => accused.of(Class::Metadata).or(accused.of(Class::Data)),
        };
        !blamed.has(copy)
    }

    async fn ask_others<T>(&self, ctx: &Ctx, fop: &Fop, pins: &Pins, asked: &HashMap<usize, T>) -> Vec<(usize, Reply)> {
        let others =
            pins.up.iter().filter(|copy| !asked.contains_key(copy) && !pins.accused().of(Class::Entry).has(*copy));
        let ask = |copy: usize| async move {
            let ctx = ctx.under(pins.at(copy)?);
            let answer = self.copies[copy].subvol.call(&ctx, fop.clone()).await;
            answer.ok().map(|reply| (copy, reply))
        };
        join_all(others.map(ask)).await.into_iter().flatten().collect()
    }

    pub(super) async fn readdir(&self, ctx: &Ctx, fop: Readdir) -> Result<Reply> {
        let (gfid, attrs, fop) = (fop.gfid, fop.attrs, Fop::Readdir(fop));
        for _ in 0..ATTEMPTS {
            let pins = self.pin(ctx, &fop.leases()).await?;
            let then = self.cache.now();
            let answer = self.read_once(ctx, &fop, &pins, self.readable(&pins, FopKind::Readdir)).await;
            let (copy, mut page) = match answer {
                Err(FopError::Fenced) => continue,
                Ok((copy, Reply::Readdir(page))) => (copy, page),
                other => return other.map(|(_, reply)| reply),
            };
            let doubt = self.somebody_blames(&pins);
            if attrs && doubt {
                self.choose_attrs_by_marks(ctx, &fop, &pins, copy, &mut page.entries).await;
            }
            let name = self.name_cover(gfid, then);
            drop(pins);
            for found in page.entries.iter_mut().filter_map(|entry| entry.found.as_mut()) {
                found.cover = self.attrs_cover(found.iatt.gfid, then);
            }
            if attrs && !doubt && self.has_room() {
                let bare = page.entries.iter_mut().filter_map(|entry| entry.found.as_mut());
                self.gather(ctx, copy, bare.filter(|found| found.cover.is_empty())).await;
            }
            for found in page.entries.iter_mut().filter_map(|entry| entry.found.as_mut()) {
                found.cover |= name;
            }
            return Ok(Reply::Readdir(page));
        }
        Err(FopError::Fenced)
    }

    /// Compare the attributes in a page with the same page of the other copies; where the copy that listed is blamed,
    /// take another's, and where all are, leave the attributes out, so that they are asked for one by one.
    async fn choose_attrs_by_marks(&self, ctx: &Ctx, fop: &Fop, pins: &Pins, copy: usize, entries: &mut [DirEntry]) {
        let mut others: HashMap<Gfid, Vec<(usize, Box<Found>)>> = HashMap::new();
        for (other, reply) in self.ask_others(ctx, fop, pins, &HashMap::from([(copy, ())])).await {
            let Reply::Readdir(page) = reply else { continue };
            for found in page.entries.into_iter().filter_map(|entry| entry.found) {
                others.entry(found.iatt.gfid).or_default().push((other, found));
            }
        }
        for entry in entries {
            let Some(found) = &entry.found else { continue };
            let mut accused = self.accused_by(&found.marks);
            let same = others.remove(&entry.gfid).unwrap_or_default();
            same.iter().for_each(|(_, found)| accused.merge(self.accused_by(&found.marks)));
            if self.may_answer(found, copy, accused) {
                continue;
            }
            let good = |(other, found): &(usize, Box<Found>)| {
                !self.copies[*other].arbiter && self.may_answer(found, *other, accused)
            };
            entry.found = same.into_iter().find(good).map(|(_, found)| found);
        }
    }

    /// The copy with the least room says how much there is.
    pub(super) async fn statfs(&self, ctx: &Ctx, fop: Statfs) -> Result<Reply> {
        let up = self.live()?;
        let full: CopySet = up.iter().filter(|&copy| !self.copies[copy].arbiter).collect();
        let asked = if full.is_empty() { up } else { full };
        let answers = join_all(asked.iter().map(|copy| self.copies[copy].subvol.send(ctx, fop.clone()))).await;
        let free = |space: &Space| u128::from(space.blocks_available) * u128::from(space.block_bytes);
        let (good, bad): (Vec<_>, Vec<_>) = answers.into_iter().partition(Result::is_ok);
        let least = good.into_iter().flatten().min_by_key(free);
        let error = bad.into_iter().find_map(Result::err).unwrap_or(FopError::Unreachable);
        least.map(Reply::Statfs).ok_or(error)
    }

    /// What any copy says is waiting: every mark is on a quorum of copies, so a sum would count it twice.
    pub(super) async fn backlog(&self, ctx: &Ctx, fop: Backlog) -> Result<Reply> {
        let up = self.up.get();
        let answers = join_all(up.iter().map(|copy| self.copies[copy].subvol.send(ctx, fop.clone()))).await;
        let most = |a: Waiting, b: Waiting| Waiting { pending: a.pending.max(b.pending), dirty: a.dirty.max(b.dirty) };
        let waiting = answers.into_iter().filter_map(Result::ok).reduce(most);
        waiting.map(Reply::Backlog).ok_or(FopError::Unreachable)
    }
}
