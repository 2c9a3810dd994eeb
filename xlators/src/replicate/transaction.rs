//! Changes: hold the leases, send to every connected copy, judge, blame who missed it, answer.

use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::join_all;
use smallvec::{SmallVec, smallvec};

use super::Replicate;
use super::acquire::Pins;
use super::copies::CopySet;
use super::finish::Finish;
use super::lease::Counted;
use super::pending::{Directory, deltas, missed, missed_birth};
use super::spread::read_child;
use super::verdict::{Verdict, Vote, judge};
use crate::ctx::Ctx;
use crate::effect::Effect;
use crate::error::{Errno, FopError, Result};
use crate::fop::{Birth, Fop, Lease, Mark};
use crate::reply::Reply;
use crate::types::{Class, Counters, Cover, Epoch, Gfid, LeaseMode};

/// How often a change that every copy fenced is begun anew. Each time costs a lease; more than a few in a row means
/// that others are served between, and the program should hear of it.
const ATTEMPTS: usize = 16;

/// How often a link is begun anew that found its inode on some copies only. An unlink that is under way gets through as
/// soon as our lease is given back, so that more than once is a copy that lacks the inode for another reason.
const TORN_MAX: usize = 2;

/// An arbiter keeps no content; it gets this in its place, as in GlusterFS.
static NO_CONTENT: Bytes = Bytes::from_static(&[0xff]);

/// On the heap, since a reply is large and the futures that hold this are moved.
type Votes = Vec<Option<Result<Reply>>>;

/// What became of counters that were to be added to.
pub(super) struct Marked {
    /// The copies that did.
    marked: CopySet,
    /// The copies that no longer have the object.
    gone: CopySet,
}

/// What became of one attempt: the answer, or the fop to be tried again, since no copy did anything: our leases were
/// no longer good.
type Attempt = ControlFlow<Result<Reply>, Fop>;

impl Replicate {
    pub(super) async fn transaction(&self, ctx: &Ctx, mut fop: Fop) -> Result<Reply> {
        match &mut fop {
            Fop::Create(create) => create.lease = true,
            Fop::Mkdir(mkdir) => mkdir.lease = true,
            _ => {}
        }
        for round in 0..ATTEMPTS {
            let pins = self.pin(ctx, &fop.leases()).await?;
            let work = attempt(pins, ctx.clone(), fop, round).boxed();
            match Finish::new(&self.runtime, work).await {
                ControlFlow::Break(answer) => return answer,
                ControlFlow::Continue(again) => fop = again,
            }
        }
        Err(FopError::Fenced)
    }
}

/// One attempt; runs to its end whoever waits for it.
async fn attempt(mut pins: Pins, ctx: Ctx, fop: Fop, round: usize) -> Attempt {
    let set = Arc::clone(&pins.set);
    if let Err(error) = set.refuse_without_content(&pins, &fop) {
        return ControlFlow::Break(Err(error));
    }
    let targets: CopySet = pins.up.iter().filter(|&copy| pins.at(copy).is_some()).collect();
    let fop = set.with_birth_marks(fop, targets);
    set.remember_open(&fop);
    if let Some(begun) = ctx.begun.as_ref().filter(|_| targets == set.all()) {
        begun.tell();
    }
    let mut votes: Votes = (0..set.copies.len()).map(|_| None).collect();
    set.fan_out(&pins, &ctx, &fop, targets, &mut votes).await;
    let fenced: CopySet = targets.iter().filter(|&copy| matches!(votes[copy], Some(Err(FopError::Fenced)))).collect();
    if !fenced.is_empty() {
        for pin in &pins.pins {
            fenced.iter().for_each(|copy| set.cache.fenced(pin.gfid, copy, pin.epochs[copy]));
        }
        if fenced == targets {
            set.forget_open(&fop);
            return ControlFlow::Continue(fop);
        }
        let again = Box::pin(set.regrant(&mut pins, &ctx, fenced)).await;
        Box::pin(set.fan_out(&pins, &ctx, &fop, again, &mut votes)).await;
    }
    if matches!(fop, Fop::Link(_))
        && round < TORN_MAX
        && let torn = set.torn(&pins, &votes)
        && !torn.is_empty()
        && Box::pin(set.take_link_back(&mut pins, &ctx, &fop, &votes, torn)).await
    {
        return ControlFlow::Continue(fop);
    }
    ControlFlow::Break(set.conclude(pins, &ctx, &fop, votes).await)
}

impl Replicate {
    /// Content must land where it can be read from again: if all that is left clean is an arbiter, refuse.
    fn refuse_without_content(&self, pins: &Pins, fop: &Fop) -> Result<()> {
        let Effect::Inode { class: Class::Data, .. } = fop.effect() else { return Ok(()) };
        let clean = pins.up.without(pins.accused().of(Class::Data));
        if clean.iter().any(|copy| !self.copies[copy].arbiter) {
            Ok(())
        } else {
            Err(FopError::Refused(Errno::NOTCONN))
        }
    }

    /// A new inode carries its blame of the copies that are known to miss it from its first moment.
    fn with_birth_marks(&self, mut fop: Fop, targets: CopySet) -> Fop {
        let absent = self.all().without(targets);
        if let Some((birth, directory)) = birth_mut(&mut fop) {
            birth.pending.clear();
            if !absent.is_empty() {
                let keys = self.copies.iter().map(|copy| &copy.key);
                birth.pending = deltas(keys, absent, missed_birth(directory));
                birth.pending.retain(|mark| !mark.counters.is_zero());
                self.note_blame(targets);
            }
        }
        fop
    }

    /// Send to `targets`, all before the first answer is waited for, and collect their votes.
    async fn fan_out(&self, pins: &Pins, ctx: &Ctx, fop: &Fop, targets: CopySet, votes: &mut Votes) {
        let ctxs: Vec<(usize, Ctx)> =
            targets.iter().filter_map(|copy| Some((copy, ctx.under(pins.at(copy)?)))).collect();
        if let [(copy, ctx)] = &ctxs[..] {
            votes[*copy] = Some(self.copies[*copy].subvol.call(ctx, self.fop_for(*copy, fop)).await);
            return;
        }
        let mut sends = Vec::with_capacity(ctxs.len());
        for (copy, ctx) in &ctxs {
            sends.push(self.copies[*copy].subvol.call(ctx, self.fop_for(*copy, fop)));
        }
        for ((copy, _), vote) in ctxs.iter().zip(join_all(sends).await) {
            votes[*copy] = Some(vote);
        }
    }

    /// The fop as one copy gets it: an arbiter gets no content.
    fn fop_for(&self, copy: usize, fop: &Fop) -> Fop {
        if !self.copies[copy].arbiter {
            return fop.clone();
        }
        match fop {
            Fop::Write(write) if !write.data.is_empty() => {
                let mut write = write.clone();
                write.data = NO_CONTENT.clone();
                Fop::Write(write)
            }
            Fop::Create(create) => {
                let mut create = create.clone();
                create.content = Bytes::new();
                Fop::Create(create)
            }
            other => other.clone(),
        }
    }

    /// Some copies fenced what others did: they lost our leases (a restart). The others hold them, so nobody else can
    /// have them rightly: ask once more, without waiting.
    async fn regrant(&self, pins: &mut Pins, ctx: &Ctx, fenced: CopySet) -> CopySet {
        let mut again = CopySet::NONE;
        for copy in fenced.iter() {
            let mut complete = true;
            for pin in &mut pins.pins {
                let lease =
                    Lease { gfids: smallvec![pin.gfid], mode: pin.mode, wait: false, reclaim: true, attrs: false };
                let answer = self.copies[copy].subvol.send(ctx, lease).await;
                let grant = answer.ok().and_then(|granted| granted.grants.into_iter().next());
                match grant.map(|grant| grant.epoch) {
                    Some(Ok(epoch)) => self.cache.regranted(pin, copy, epoch),
                    _ => complete = false,
                }
            }
            if complete {
                again.add(copy);
            }
        }
        again
    }

    /// The copies that made a link while others, which nobody blames, said that the inode is gone. A name is taken from
    /// an inode on one copy after the other, and only each brick keeps others away meanwhile: so it can have lost its
    /// last name on some when we got the lease, and not yet on the rest.
    fn torn(&self, pins: &Pins, votes: &Votes) -> CopySet {
        let which = |of: fn(&Result<Reply>) -> bool| -> CopySet {
            (0..votes.len()).filter(|&copy| votes[copy].as_ref().is_some_and(of)).collect()
        };
        let gone = which(|vote| matches!(vote, Err(FopError::Refused(Errno::STALE))));
        if gone.without(pins.accused().any()).is_empty() { CopySet::NONE } else { which(Result::is_ok) }
    }

    /// Take a new link back where it was made, and say whether that worked: all is as if it had never been asked for.
    /// The lease of the inode goes first, since whoever takes the other name waits for it.
    async fn take_link_back(&self, pins: &mut Pins, ctx: &Ctx, fop: &Fop, votes: &Votes, made: CopySet) -> bool {
        let Fop::Link(link) = fop else { return false };
        tracing::info!(ctx.id, set = self.name, gfid = %link.gfid, ?made, "a link came while its inode was going");
        pins.outcome.counted = votes.iter().map(times).collect();
        if let Some(at) = pins.pins.iter().position(|pin| pin.gfid == link.gfid) {
            self.cache.unpin(&pins.pins.remove(at), &pins.outcome);
        }
        self.undo(pins, ctx, fop, made).await.is_empty()
    }

    /// Judge, blame, and answer.
    async fn conclude(&self, mut pins: Pins, ctx: &Ctx, fop: &Fop, votes: Votes) -> Result<Reply> {
        pins.outcome.counted = votes.iter().map(times).collect();
        let judged: SmallVec<[Vote; 3]> =
            votes.iter().enumerate().map(|(copy, vote)| vote_of(vote, self.copies[copy].arbiter)).collect();
        let answer = match self.verdict(&pins, fop, &judged) {
            Verdict::Done(done) => {
                let missed = self.all().without(done);
                let blamed = self.blame(&mut pins, ctx, fop, done, missed).await;
                blamed.map(|()| self.answer(&pins, votes, done))
            }
            Verdict::Refused { errno, refused, odd } => {
                self.forget_open(fop);
                let odd = self.undo(&mut pins, ctx, fop, odd).await;
                // Where it was not a quorum that refused, those who did it say of themselves that they are out of step.
                let on = if self.rule.holds(refused) { refused } else { refused.or(odd) };
                let blamed = self.blame(&mut pins, ctx, fop, on, odd).await;
                blamed.and(Err(FopError::Refused(errno)))
            }
            Verdict::Undecided => {
                self.forget_open(fop);
                pins.outcome.unsettled = true;
                tracing::warn!(
                    ctx.id,
                    set = self.name,
                    fop = fop.kind().name(),
                    ?judged,
                    "no quorum agrees on a change"
                );
                Err(FopError::Unreachable)
            }
        };
        let gone = answer.as_ref().ok().and_then(gone);
        drop(pins);
        if let Some(gfid) = gone {
            self.cache.forget(gfid);
        }
        self.settle_soon();
        answer
    }

    /// Judge by what is known now of whom the copies blame: other changes under the same leases end at the same time.
    fn verdict(&self, pins: &Pins, fop: &Fop, votes: &[Vote]) -> Verdict {
        let class = match fop.effect() {
            Effect::Inode { class, .. } => class,
            Effect::Entry { .. } | Effect::Read | Effect::Session => Class::Entry,
        };
        let everybody = Verdict::Done(self.all());
        if judge(&self.rule, votes, self.all()) == everybody {
            return everybody;
        }
        let _one_at_a_time = self.disputes.lock();
        let without_content = |copy: &usize| class == Class::Data && self.copies[*copy].arbiter;
        let arbiters: CopySet = (0..self.copies.len()).filter(without_content).collect();
        let changed = || pins.pins.iter().filter(|pin| pin.mode == LeaseMode::Exclusive);
        let blamed = changed().map(|pin| self.cache.accused(pin).of(class));
        let verdict = judge(&self.rule, votes, blamed.fold(self.all().without(arbiters), CopySet::without));
        if let Verdict::Done(done) = verdict {
            changed().for_each(|pin| self.cache.accuse(pin, class, self.all().without(done)));
        }
        verdict
    }

    async fn blame(&self, pins: &mut Pins, ctx: &Ctx, fop: &Fop, on: CopySet, blamed: CopySet) -> Result<()> {
        if blamed.is_empty() {
            return Ok(());
        }
        Box::pin(self.blame_missing(pins, ctx, fop, on, blamed)).await
    }

    /// Write on the copies `on` that `blamed` missed the change, unless it has been written under these leases before.
    async fn blame_missing(&self, pins: &mut Pins, ctx: &Ctx, fop: &Fop, on: CopySet, blamed: CopySet) -> Result<()> {
        if blamed.is_empty() {
            return Ok(());
        }
        let mut blames: SmallVec<[(Gfid, Class, Counters); 3]> = SmallVec::new();
        match fop.effect() {
            Effect::Entry { parent, other } => {
                for directory in std::iter::once(parent).chain(other) {
                    blames.push((directory, Class::Entry, missed(Class::Entry)));
                }
            }
            Effect::Inode { gfid, class } => {
                blames.push((gfid, class, missed(class)));
                if matches!(fop, Fop::Write(write) if write.then.is_some()) {
                    blames.push((gfid, Class::Metadata, missed(Class::Metadata)));
                }
            }
            Effect::Read | Effect::Session => {}
        }
        for (gfid, class, counters) in blames {
            let before = pins.pins.iter().find(|pin| pin.gfid == gfid).map(|pin| pin.blamed.of(class));
            let new = blamed.without(before.unwrap_or_default());
            if !new.is_empty() {
                self.write_blame(pins, ctx, gfid, on, new, counters).await?;
                pins.outcome.blamed.push((gfid, class, new));
            }
        }
        // Who failed in the middle of a birth is not in the marks that the inode was born with.
        if let Some((birth, directory)) = birth_of(fop) {
            let known: CopySet =
                if birth.pending.is_empty() { CopySet::NONE } else { self.accused_by(&birth.pending).any() };
            let new = blamed.without(known);
            if !new.is_empty() {
                self.write_blame(pins, ctx, birth.gfid, on, new, missed_birth(directory)).await?;
            }
        }
        Ok(())
    }

    async fn write_blame(
        &self,
        pins: &mut Pins,
        ctx: &Ctx,
        gfid: Gfid,
        on: CopySet,
        blamed: CopySet,
        counters: Counters,
    ) -> Result<()> {
        self.note_blame(on);
        let Marked { marked, gone } = self.mark(gfid, on, blamed, counters).await;
        // Where it is gone there is nothing to blame: who removed it blames those that still have it.
        if self.rule.holds(marked.or(gone)) {
            tracing::info!(ctx.id, set = self.name, %gfid, ?blamed, "blamed copies for what they missed");
            return Ok(());
        }
        pins.outcome.unsettled = true;
        tracing::error!(ctx.id, set = self.name, %gfid, ?blamed, ?marked, "could not write a blame on enough copies");
        Err(FopError::Unreachable)
    }

    /// Add to the counters against `blamed` on the copies `on`.
    pub(super) async fn mark(&self, gfid: Gfid, on: CopySet, blamed: CopySet, counters: Counters) -> Marked {
        let ctx = self.own_ctx();
        let deltas = deltas(self.copies.iter().map(|copy| &copy.key), blamed, counters);
        let mark = |copy: usize| {
            let (ctx, mark) = (&ctx, Mark { gfid, deltas: deltas.clone() });
            async move { (copy, self.copies[copy].subvol.send(ctx, mark).await) }
        };
        let mut result = Marked { marked: CopySet::NONE, gone: CopySet::NONE };
        for (copy, answer) in join_all(on.iter().map(mark)).await {
            match answer {
                Ok(_) => result.marked.add(copy),
                Err(error) if error.is_absent() => result.gone.add(copy),
                Err(_) => {}
            }
        }
        result
    }

    /// The answer to the caller: that of a copy which may be read, with what our leases cover.
    fn answer(&self, pins: &Pins, mut votes: Votes, done: CopySet) -> Reply {
        let grants: SmallVec<[(usize, Epoch); 3]> =
            done.iter().filter_map(|copy| Some((copy, lease_of(votes[copy].as_ref()?)?))).collect();
        let best = self.best(pins, done);
        let Some(Ok(mut reply)) = votes[best].take() else {
            unreachable!("a copy among those that did it has a reply");
        };
        if let Reply::Create(made) | Reply::Mkdir(made) = &mut reply {
            made.lease = None;
            if !grants.is_empty() {
                self.cache.born(made.iatt.gfid, &grants, self.all().without(done));
                self.trim_if_full();
            }
        }
        self.cover_change(pins, &mut reply);
        reply
    }

    /// The copy whose answer is passed on: the one that is read from, if nobody blames it.
    fn best(&self, pins: &Pins, done: CopySet) -> usize {
        let first = pins.pins.first().map_or(0, |pin| read_child(pin.gfid, self.copies.len()));
        let arbiters: CopySet = done.iter().filter(|&copy| self.copies[copy].arbiter).collect();
        let full = done.without(arbiters);
        let clean = full.without(pins.accused().any());
        let choice = [clean, full, done].into_iter().find(|set| !set.is_empty()).unwrap_or(done);
        if choice.has(first) { first } else { choice.iter().next().unwrap_or(first) }
    }

    fn cover_change(&self, pins: &Pins, reply: &mut Reply) {
        let up = self.up.get();
        let covers = |gfid: Gfid| self.cache.covers(gfid, up, u64::MAX);
        let attrs = |gfid: Gfid| if covers(gfid) { Cover::ATTRS } else { Cover::empty() };
        let born = matches!(reply, Reply::Create(_));
        match reply {
            Reply::Create(made)
            | Reply::Mkdir(made)
            | Reply::Mknod(made)
            | Reply::Symlink(made)
            | Reply::Link(made) => {
                made.cover = attrs(made.iatt.gfid);
                if born && self.cache.owns(made.iatt.gfid, up) {
                    made.cover |= Cover::OWNED;
                }
                if pins.pins.iter().all(|pin| covers(pin.gfid)) {
                    made.cover |= Cover::NAME;
                }
            }
            Reply::Setattr(changed)
            | Reply::Truncate(changed)
            | Reply::Fallocate(changed)
            | Reply::Setxattr(changed)
            | Reply::Removexattr(changed) => changed.cover = attrs(changed.iatt.gfid),
            Reply::Write(written) | Reply::CopyRange(written) => written.cover = attrs(written.iatt.gfid),
            _ => {}
        }
    }
}

fn birth_mut(fop: &mut Fop) -> Option<(&mut Birth, Directory)> {
    match fop {
        Fop::Create(f) => Some((&mut f.birth, Directory::No)),
        Fop::Mknod(f) => Some((&mut f.birth, Directory::No)),
        Fop::Symlink(f) => Some((&mut f.birth, Directory::No)),
        Fop::Mkdir(f) => Some((&mut f.birth, Directory::Yes)),
        _ => None,
    }
}

fn birth_of(fop: &Fop) -> Option<(&Birth, Directory)> {
    match fop {
        Fop::Create(f) => Some((&f.birth, Directory::No)),
        Fop::Mknod(f) => Some((&f.birth, Directory::No)),
        Fop::Symlink(f) => Some((&f.birth, Directory::No)),
        Fop::Mkdir(f) => Some((&f.birth, Directory::Yes)),
        _ => None,
    }
}

/// The lease that a copy gave on what was made.
fn lease_of(vote: &Result<Reply>) -> Option<Epoch> {
    match vote {
        Ok(Reply::Create(made) | Reply::Mkdir(made)) => made.lease,
        _ => None,
    }
}

/// An inode that is no more.
fn gone(reply: &Reply) -> Option<Gfid> {
    match reply {
        Reply::Unlink(removed) if removed.iatt.nlink == 0 => Some(removed.iatt.gfid),
        Reply::Rmdir(removed) => Some(removed.iatt.gfid),
        _ => None,
    }
}

/// How often a copy counted the change.
fn times(vote: &Option<Result<Reply>>) -> Counted {
    vote.as_ref().map_or(Counted::Times(0), Counted::of)
}

fn vote_of(vote: &Option<Result<Reply>>, arbiter: bool) -> Vote {
    match vote {
        Some(Ok(Reply::Write(written) | Reply::CopyRange(written))) if !arbiter => {
            Vote::Done(Some((written.offset, written.bytes)))
        }
        Some(Ok(_)) => Vote::Done(None),
        Some(Err(FopError::Refused(errno))) => Vote::Refused(*errno),
        None | Some(Err(FopError::Fenced | FopError::Unreachable)) => Vote::Missed,
    }
}
