//! Gets leases from the copies, and holds them for the time of one fop.
//!
//! A lease holds when a quorum and every connected copy granted it. Where nobody is in the way that is one round to
//! all copies at once. Where somebody is, what was granted is given back and the copies are asked again with waiting,
//! the lowest first and the others after it: so of several clients that want one object the lowest copy picks the
//! next, and the others follow.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use futures::stream::{FuturesUnordered, StreamExt};
use smallvec::{SmallVec, smallvec};
use tokio::sync::futures::OwnedNotified;
use tokio::time::{Instant, timeout, timeout_at};

use super::copies::CopySet;
use super::entry::Recalled;
use super::lease::{Outcome, Pin, Wanted};
use super::pending::Accused;
use super::{OWN_DEADLINE, Replicate};
use crate::ctx::Ctx;
use crate::effect::Needs;
use crate::error::{Errno, FopError, Result};
use crate::fop::{Lease, Settled, Unlease};
use crate::reply::Grant;
use crate::types::{Epoch, Gfid, LeaseMode};

/// How long a copy that does not answer is given to recover before the others are tried without it.
const PAUSE: Duration = Duration::from_millis(20);

/// How long copies are waited for that have not answered when a quorum has.
const PATIENCE: Duration = Duration::from_millis(50);

/// How often leases are waited for without any being kept, beyond once for each.
const ROUNDS: usize = 3;

/// How long leases are kept while another is waited for: much shorter than a brick waits for a recalled one, longer than
/// many clients need for a change each.
const KEPT: Duration = Duration::from_millis(200);

/// Leases in use by one fop. Dropping it ends the use, and writes the outcome into the books.
#[derive(Debug)]
pub(super) struct Pins {
    pub(super) set: Arc<Replicate>,
    /// The copies that were connected.
    pub(super) up: CopySet,
    pub(super) pins: SmallVec<[Pin; 2]>,
    pub(super) outcome: Outcome,
}

impl Pins {
    /// The epochs to show to one copy; `None` if it has not granted all.
    pub(super) fn at(&self, copy: usize) -> Option<SmallVec<[(Gfid, Epoch); 2]>> {
        self.pins.iter().map(|pin| pin.epochs[copy].map(|epoch| (pin.gfid, epoch))).collect()
    }

    /// The same without any lease; those that were held are let go.
    fn emptied(self) -> Self {
        Self { set: Arc::clone(&self.set), up: self.up, pins: SmallVec::new(), outcome: Outcome::default() }
    }

    /// Whom the copies blame for any of the objects.
    pub(super) fn accused(&self) -> Accused {
        let mut accused = Accused::default();
        self.pins.iter().for_each(|pin| accused.merge(pin.accused));
        accused
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        for pin in &self.pins {
            self.set.cache.unpin(pin, &self.outcome);
        }
    }
}

/// Says that the request for a lease has ended, also when its future is dropped.
struct Asking<'a> {
    set: &'a Replicate,
    gfid: Gfid,
    mode: LeaseMode,
    up: CopySet,
    open: bool,
}

impl Asking<'_> {
    fn end(&mut self, grants: &[(usize, Epoch, Accused)]) -> Option<Pin> {
        self.open = false;
        let (pin, recalled, disowned) = self.set.cache.asked(self.gfid, self.mode, grants, self.up);
        disowned.into_iter().for_each(|(copy, epoch)| self.set.disown(copy, self.gfid, epoch));
        if recalled == Recalled::GiveBack {
            self.set.give_back_soon(self.gfid);
        }
        pin
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        if self.open {
            self.end(&[]);
        }
    }
}

/// What copies said to one request.
#[derive(Default)]
struct Answers {
    granted: SmallVec<[(usize, Epoch, Accused); 3]>,
    busy: CopySet,
    silent: CopySet,
}

impl Answers {
    fn merge(&mut self, more: Self) {
        self.granted.extend(more.granted);
        self.busy = self.busy.or(more.busy);
        self.silent = self.silent.or(more.silent);
    }

    fn granted(&self) -> CopySet {
        self.granted.iter().map(|&(copy, ..)| copy).collect()
    }
}

impl Replicate {
    /// Hold these leases until the answer is dropped.
    ///
    /// While one of them is waited for, none of the others is held back, so that nobody ever waits crosswise: neither
    /// two clients for each other, nor one for a brick that is taking a name from an inode. Clients that want several
    /// of the same leases can take them from each other for ever like this, so that whoever has lost some too often
    /// asks [in order](Self::pin_in_order).
    pub(super) async fn pin(&self, ctx: &Ctx, needs: &Needs) -> Result<Pins> {
        let mut waited_for = self.no_pins()?;
        let mut rounds = needs.len() + ROUNDS;
        'all_at_once: loop {
            let mut held = self.no_pins()?;
            for &(gfid, mode) in needs {
                if waited_for.pins.first().is_some_and(|pin| pin.gfid == gfid) {
                    held.pins.append(&mut waited_for.pins);
                    continue;
                }
                match self.cache.want(gfid, mode, held.up, ctx.turn) {
                    Wanted::Pinned(pin) => held.pins.push(pin),
                    other => {
                        let up = held.up;
                        drop(std::mem::replace(&mut waited_for, held.emptied()));
                        // Boxed, so that the usual way does not carry the room for this one.
                        let pin = Box::pin(self.pin_slowly(ctx, gfid, mode, (up, other))).await?;
                        waited_for.pins.push(pin);
                        rounds -= 1;
                        if rounds == 0 {
                            drop(waited_for);
                            return Box::pin(self.pin_in_order(ctx, needs)).await;
                        }
                        continue 'all_at_once;
                    }
                }
            }
            self.trim_if_full();
            return Ok(held);
        }
    }

    /// Hold these leases, and keep those that were got while the next is waited for. All ask in the same order, so one
    /// of them always gets on; only what waits for a brick may be in the way, and goes first after a moment.
    async fn pin_in_order(&self, ctx: &Ctx, needs: &Needs) -> Result<Pins> {
        loop {
            let mut held = self.no_pins()?;
            match self.pin_each(ctx, needs, &mut held).await {
                Err(FopError::Refused(Errno::TIMEDOUT)) if ctx.deadline > std::time::Instant::now() => {}
                Err(error) => return Err(error),
                // Who came meanwhile has to be asked, too.
                Ok(()) if self.live()? != held.up => {}
                Ok(()) => return Ok(held),
            }
        }
    }

    async fn pin_each(&self, ctx: &Ctx, needs: &Needs, held: &mut Pins) -> Result<()> {
        for &(gfid, mode) in needs {
            let kept_until = std::time::Instant::now() + KEPT;
            let ctx = if held.pins.is_empty() { ctx.clone() } else { ctx.until(kept_until) };
            let wanted = self.cache.want(gfid, mode, held.up, ctx.turn);
            held.pins.push(self.pin_slowly(&ctx, gfid, mode, (held.up, wanted)).await?);
        }
        Ok(())
    }

    fn no_pins(&self) -> Result<Pins> {
        Ok(Pins { set: self.shared(), up: self.live()?, pins: SmallVec::new(), outcome: Outcome::default() })
    }

    async fn pin_slowly(
        &self,
        ctx: &Ctx,
        gfid: Gfid,
        mode: LeaseMode,
        (mut up, mut wanted): (CopySet, Wanted),
    ) -> Result<Pin> {
        loop {
            match wanted {
                Wanted::Pinned(pin) => return Ok(pin),
                Wanted::Wait(change) => Self::wait(ctx, change).await?,
                Wanted::Gone => return Err(FopError::Fenced),
                Wanted::Ask { missing, holding } => {
                    let mut asking = Asking { set: self, gfid, mode, up, open: true };
                    let answers = self.ask(ctx, gfid, mode, missing, holding).await;
                    if let Some(pin) = asking.end(&answers.granted) {
                        return Ok(pin);
                    }
                    if !answers.busy.or(answers.silent).is_empty() {
                        // Too many wait, or we hold too much: that passes.
                        self.trim_if_full();
                        Self::pause(ctx).await?;
                    }
                }
            }
            up = self.live()?;
            wanted = self.cache.want(gfid, mode, up, ctx.turn);
        }
    }

    async fn wait(ctx: &Ctx, change: OwnedNotified) -> Result<()> {
        let deadline = Instant::from_std(ctx.deadline);
        timeout_at(deadline, change).await.map_err(|_| FopError::Refused(Errno::TIMEDOUT))
    }

    async fn pause(ctx: &Ctx) -> Result<()> {
        if ctx.deadline <= std::time::Instant::now() {
            return Err(FopError::Refused(Errno::TIMEDOUT));
        }
        tokio::time::sleep(PAUSE).await;
        Ok(())
    }

    async fn ask(&self, ctx: &Ctx, gfid: Gfid, mode: LeaseMode, missing: CopySet, holding: CopySet) -> Answers {
        let alone = self.copies.len() == 1;
        let lease = Lease { gfids: smallvec![gfid], mode, wait: alone, reclaim: false, attrs: false };
        let known = self.rule.holds(holding);
        let mut answers = self.ask_copies(ctx, missing, &Lease { reclaim: known, ..lease.clone() }).await;
        if alone || answers.busy.is_empty() {
            return answers;
        }
        if !known && self.rule.holds(answers.granted().or(holding)) {
            // A copy that has just been restarted gives no new lease, but one that a quorum granted is none.
            let again = self.ask_copies(ctx, answers.busy, &Lease { reclaim: true, ..lease.clone() }).await;
            answers.busy = CopySet::NONE;
            answers.merge(again);
            if answers.busy.is_empty() {
                return answers;
            }
        }
        self.take_back(gfid, &answers).await;
        self.ask_in_turn(ctx, missing, holding, Lease { wait: true, ..lease }).await
    }

    /// Ask with waiting: the lowest copy, and only then the others. Copies that have just been restarted come last,
    /// since they give new leases only on the word of the others.
    async fn ask_in_turn(&self, ctx: &Ctx, missing: CopySet, holding: CopySet, lease: Lease) -> Answers {
        let gfid = lease.gfids[0];
        let settled = missing.without(self.young.get());
        let lowest: CopySet = settled.iter().chain(missing.iter()).take(1).collect();
        let mut answers = self.ask_copies(ctx, lowest, &lease).await;
        if answers.busy.is_empty() {
            self.ask_the_others(ctx, missing.without(lowest), holding, &lease, &mut answers).await;
        }
        if !answers.busy.is_empty() {
            self.take_back(gfid, &answers).await;
            answers.granted.clear();
            tracing::info!(ctx.id, %gfid, mode = ?lease.mode, "waited in vain for a lease");
        }
        answers
    }

    async fn ask_the_others(&self, ctx: &Ctx, others: CopySet, holding: CopySet, lease: &Lease, answers: &mut Answers) {
        let known = self.rule.holds(holding.or(answers.granted()));
        let mut rest = others;
        if !known {
            let ask = |copy: usize| async move { self.ask_copies(ctx, CopySet::only(copy), lease).await };
            let mut asked: FuturesUnordered<_> = others.iter().map(ask).collect();
            while !asked.is_empty() {
                // Once a quorum granted it, the rest need not wait for their own judgement.
                let patience = if self.rule.holds(holding.or(answers.granted())) { PATIENCE } else { OWN_DEADLINE };
                let Ok(Some(more)) = timeout(patience, asked.next()).await else { break };
                rest = rest.without(more.granted().or(more.busy).or(more.silent));
                answers.merge(more);
            }
        }
        if !rest.is_empty() && answers.busy.is_empty() {
            let more = self.ask_copies(ctx, rest, &Lease { reclaim: true, ..lease.clone() }).await;
            answers.merge(more);
        }
    }

    async fn ask_copies(&self, ctx: &Ctx, copies: CopySet, lease: &Lease) -> Answers {
        let ask = |copy: usize| async move {
            let answer = self.copies[copy].subvol.send(ctx, lease.clone()).await;
            (copy, answer.map(|granted| granted.grants.into_iter().next()))
        };
        let mut answers = Answers::default();
        for (copy, answer) in join_all(copies.iter().map(ask)).await {
            match answer {
                Ok(Some(Grant { epoch: Ok(epoch), marks, gfid, nameless, .. })) => {
                    if nameless {
                        self.cache.nameless(gfid);
                    }
                    answers.granted.push((copy, epoch, self.accused_by(&marks)));
                }
                Ok(Some(Grant { epoch: Err(_), .. })) | Err(FopError::Refused(Errno::AGAIN)) => answers.busy.add(copy),
                Ok(None) | Err(_) => answers.silent.add(copy),
            }
        }
        answers
    }

    pub(super) fn accused_by(&self, marks: &[crate::types::Pending]) -> Accused {
        if marks.is_empty() {
            return Accused::default();
        }
        Accused::read(self.copies.iter().map(|copy| &copy.key), marks)
    }

    /// Give back what was granted in a round that did not succeed.
    async fn take_back(&self, gfid: Gfid, answers: &Answers) {
        let back = answers.granted.iter().map(|&(copy, epoch, _)| self.unlease_one(copy, gfid, epoch));
        join_all(back).await;
    }

    /// Give back a grant under which nothing was done.
    pub(super) async fn unlease_one(&self, copy: usize, gfid: Gfid, epoch: Epoch) {
        let objects = vec![Settled { gfid, epoch, changes: Some(0) }];
        let back = self.copies[copy].subvol.send(&self.own_ctx(), Unlease { objects, keep_shared: false }).await;
        if let Err(error) = back {
            tracing::debug!(copy, %gfid, %error, "could not give a lease back; it will be recalled");
        }
    }
}
