//! Locks of programs over the copies: one holds when a quorum and every connected copy granted it.
//!
//! The lowest copy is asked first and decides, the others follow at once; where somebody else is in the way, what was
//! granted is given back before anything else happens, so nobody holds one copy while it waits for another. A wait is
//! at the copy that said no, and locks nothing there: whoever is told that the way is free tries again from the lowest.
//! What copies are to be told is noted before the program hears of it, so that a copy that forgot can be told again
//! (`relock.rs`).

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::FutureExt;
use futures::future::join_all;
use smallvec::SmallVec;
use tokio::time::{Instant, sleep};

use super::Replicate;
use super::copies::CopySet;
use super::finish::Finish;
use super::held::{Life, Turn};
use crate::ctx::Ctx;
use crate::error::{Errno, FopError, Result};
use crate::fop::{Claim, Lk, LkWhat};
use crate::ranges::{LockMode, Ranges};
use crate::reply::{Lockable, Reply};
use crate::types::LockFamily;

/// How often a lock is tried for that two clients see on different copies. The lowest copy that both see picks one, so
/// more than a few times means that it is somebody's.
const ATTEMPTS: usize = 6;

/// The pause between two of them, times one to four, so that two clients do not meet again.
const PAUSE: Duration = Duration::from_millis(20);

/// How long copies that are restarted, or do not answer, are waited for before the program hears of it.
const TROUBLE_MAX: Duration = Duration::from_secs(30);

/// How often an unlock is sent to a copy that is connected and yet does not answer.
const UNLOCKS: usize = 3;

/// What one attempt to lock came to.
#[derive(Debug)]
enum Tried {
    Locked,
    /// Nothing is locked: a copy knows of a lock in the way.
    Held {
        copy: usize,
        decides: bool,
        by: Lockable,
    },
    /// Nothing is locked: too many copies wait for former holders.
    Grace,
}

/// Copies that granted a lock, each in a life.
type Grants = SmallVec<[(usize, Life); 3]>;

/// What the copies said to one request.
#[derive(Debug, Default)]
struct Said {
    granted: Grants,
    /// They wait for former holders.
    grace: CopySet,
    /// Without an answer: they may have granted it.
    silent: CopySet,
    held: Option<(usize, Lockable)>,
    refused: Option<Errno>,
}

impl Said {
    fn granted(&self) -> CopySet {
        self.granted.iter().map(|&(copy, _)| copy).collect()
    }

    fn add(&mut self, copy: usize, life: Life, answer: Result<Lockable>) {
        match answer {
            Ok(Lockable::Free) => self.granted.push((copy, life)),
            Ok(Lockable::Grace) => self.grace.add(copy),
            Ok(by @ (Lockable::Held { .. } | Lockable::Late)) => self.held = self.held.or(Some((copy, by))),
            Err(FopError::Refused(errno)) => self.refused = self.refused.or(Some(errno)),
            Err(FopError::Fenced | FopError::Unreachable) => self.silent.add(copy),
        }
    }

    fn is_clear(&self) -> bool {
        self.held.is_none() && self.refused.is_none()
    }
}

impl Replicate {
    pub(super) async fn lk(&self, ctx: &Ctx, lk: Lk) -> Result<Reply> {
        let answer = match lk.what {
            LkWhat::Get(_) => self.first_in_the_way(ctx, &lk).await,
            LkWhat::Set(mode, _) => self.lock_or_not(&lk, mode).await,
            LkWhat::SetWait(mode) => self.lock_when_free(&lk, mode).await,
            LkWhat::Unlock => self.unlock(lk).await,
            LkWhat::Await(_) => Err(Errno::INVAL.into()),
        };
        answer.map(Reply::Lk)
    }

    /// Connected copies in the order in which they are asked: those that may have forgotten come last.
    fn asking_order(&self) -> Vec<usize> {
        let (up, young) = (self.up.get(), self.young.get());
        up.without(young).iter().chain(up.and(young).iter()).collect()
    }

    async fn first_in_the_way(&self, ctx: &Ctx, lk: &Lk) -> Result<Lockable> {
        let since = Instant::now();
        loop {
            self.live()?;
            for copy in self.asking_order() {
                match self.copies[copy].subvol.send(ctx, lk.clone()).await {
                    Ok(Lockable::Grace) | Err(FopError::Unreachable | FopError::Fenced) => {}
                    answer => return answer,
                }
            }
            if since.elapsed() > TROUBLE_MAX {
                return Err(FopError::Unreachable);
            }
            sleep(self.lock_pause(since)).await;
        }
    }

    /// Somewhat different for each client, and each time.
    fn lock_pause(&self, since: Instant) -> Duration {
        let unlike = self.client.0 as u32 ^ since.elapsed().subsec_nanos() >> 10;
        PAUSE * (1 + unlike % 4)
    }

    async fn lock_or_not(&self, lk: &Lk, mode: LockMode) -> Result<Lockable> {
        let since = Instant::now();
        let mut attempts = 0;
        loop {
            attempts += 1;
            match self.attempt(lk, mode).await {
                Ok(Tried::Locked) => return Ok(Lockable::Free),
                Ok(Tried::Held { decides, by, .. }) if decides || attempts == ATTEMPTS => {
                    self.let_go_of_flock(lk).await?;
                    return Ok(by);
                }
                Ok(Tried::Held { .. }) => {}
                Ok(Tried::Grace) if since.elapsed() < TROUBLE_MAX => {}
                Ok(Tried::Grace) => return Err(Errno::AGAIN.into()),
                Err(FopError::Unreachable) if attempts < ATTEMPTS => {}
                Err(error) => return Err(error),
            }
            sleep(self.lock_pause(since)).await;
        }
    }

    async fn lock_when_free(&self, lk: &Lk, mode: LockMode) -> Result<Lockable> {
        let mut since = Instant::now();
        loop {
            let trouble = match self.attempt(lk, mode).await {
                Ok(Tried::Locked) => return Ok(Lockable::Free),
                Ok(Tried::Held { copy, .. }) => {
                    self.let_go_of_flock(lk).await?;
                    let wait = Lk { what: LkWhat::Await(mode), ..lk.clone() };
                    match self.copies[copy].subvol.send(&self.wait_ctx(), wait).await {
                        Ok(_) => {
                            since = Instant::now();
                            continue;
                        }
                        Err(error) => error,
                    }
                }
                Ok(Tried::Grace) => FopError::Refused(Errno::AGAIN),
                Err(error) => error,
            };
            // A copy that goes, or a quorum that is not there for a moment, is not what a program waits in vain for.
            let passes = matches!(trouble, FopError::Unreachable | FopError::Refused(Errno::NOTCONN | Errno::AGAIN));
            if !passes || since.elapsed() > TROUBLE_MAX {
                return Err(trouble);
            }
            sleep(self.lock_pause(since)).await;
        }
    }

    /// Longer than a brick lets anybody wait without an answer.
    fn wait_ctx(&self) -> Ctx {
        Ctx { deadline: std::time::Instant::now() + TROUBLE_MAX, ..self.own_ctx() }
    }

    /// flock(2) gives up the old lock before it asks for the new one, and has none if that is taken.
    async fn let_go_of_flock(&self, lk: &Lk) -> Result<()> {
        if lk.owner.family == LockFamily::Flock {
            self.unlock(Lk { what: LkWhat::Unlock, ..lk.clone() }).await?;
        }
        Ok(())
    }

    /// One attempt. Runs to its end whoever waits for it; a lock that nobody waits for any more is given back.
    async fn attempt(&self, lk: &Lk, mode: LockMode) -> Result<Tried> {
        let caller = Arc::new(());
        let work = attempt(self.shared(), lk.clone(), mode, Arc::downgrade(&caller)).boxed();
        let mut work = std::pin::pin!(Finish::new(&self.runtime, work));
        // Dropped before the work, which then sees that it is alone.
        let _caller = caller;
        work.as_mut().await
    }

    async fn try_lock(&self, ctx: &Ctx, lk: &Lk, mode: LockMode, before: &Ranges) -> (Result<Tried>, Grants) {
        let up = match self.live() {
            Ok(up) => up,
            Err(error) => return (Err(error), Grants::new()),
        };
        let mut said = Said::default();
        let mut decided = None;
        for copy in self.asking_order() {
            self.ask_lock(ctx, lk, LkWhat::Set(mode, Claim::New), CopySet::only(copy), &mut said).await;
            if !said.is_clear() || said.granted().has(copy) {
                decided = Some(copy);
                break;
            }
        }
        let asked = said.granted().or(said.grace).or(said.silent);
        if said.is_clear() {
            self.ask_lock(ctx, lk, LkWhat::Set(mode, Claim::New), up.without(asked), &mut said).await;
        }
        if said.is_clear() && self.rule.holds(said.granted()) {
            let forgetful = std::mem::take(&mut said.grace);
            self.ask_lock(ctx, lk, LkWhat::Set(mode, Claim::Vouched), forgetful, &mut said).await;
        }
        let missing = self.up.get().and(said.silent.or(said.grace));
        if said.is_clear() && missing.is_empty() && self.rule.holds(said.granted()) {
            return (Ok(Tried::Locked), said.granted);
        }
        self.restore(ctx, lk, said.granted().or(said.silent), before).await;
        let tried = match (said.held, said.refused) {
            (Some((copy, by)), _) => Ok(Tried::Held { copy, decides: decided == Some(copy), by }),
            (None, Some(errno)) => Err(errno.into()),
            (None, None) if !said.grace.is_empty() => Ok(Tried::Grace),
            (None, None) => Err(FopError::Unreachable),
        };
        (tried, Grants::new())
    }

    async fn ask_lock(&self, ctx: &Ctx, lk: &Lk, what: LkWhat, copies: CopySet, said: &mut Said) {
        let ask = |copy: usize| async move {
            let life = self.life(copy);
            let answer = self.copies[copy].subvol.send(ctx, Lk { what, ..lk.clone() }).await;
            (copy, life, answer)
        };
        for (copy, life, answer) in join_all(copies.iter().map(ask)).await {
            said.add(copy, life, answer);
        }
    }

    /// Make these copies hold again what the owner held before.
    async fn restore(&self, ctx: &Ctx, lk: &Lk, copies: CopySet, before: &Ranges) {
        for (span, mode) in before.parts(lk.span) {
            let what = mode.map_or(LkWhat::Unlock, |mode| LkWhat::Set(mode, Claim::Vouched));
            self.tell_for_sure(ctx, &Lk { what, span, ..lk.clone() }, copies).await;
        }
    }

    /// Tell copies what none of them can refuse for another's sake; what they refuse it for.
    pub(super) async fn tell_for_sure(&self, ctx: &Ctx, lk: &Lk, copies: CopySet) -> Option<Errno> {
        let mut said = Said { silent: copies, ..Said::default() };
        for _ in 0..UNLOCKS {
            // Who is gone ends our session, and with it what we held.
            let left = std::mem::take(&mut said.silent).and(self.up.get());
            if left.is_empty() {
                return said.refused;
            }
            self.ask_lock(ctx, lk, lk.what, left, &mut said).await;
        }
        if !said.silent.is_empty() {
            tracing::error!(set = self.name, gfid = %lk.gfid, copies = ?said.silent, "copies may keep a lock of ours");
        }
        said.refused
    }

    async fn unlock(&self, lk: Lk) -> Result<Lockable> {
        let set = self.shared();
        let work = async move {
            let mut turn = set.held.turn(lk.gfid).await;
            match set.tell_for_sure(&set.own_ctx(), &lk, set.up.get()).await {
                Some(errno) => Err(errno.into()),
                None => {
                    turn.note_unlocked(&lk);
                    Ok(Lockable::Free)
                }
            }
        };
        Finish::new(&self.runtime, work.boxed()).await
    }
}

async fn attempt(set: Arc<Replicate>, lk: Lk, mode: LockMode, caller: Weak<()>) -> Result<Tried> {
    let mut turn: Turn<'_> = set.held.turn(lk.gfid).await;
    let ctx = set.own_ctx();
    let before = turn.ranges(lk.owner);
    let (tried, granted) = set.try_lock(&ctx, &lk, mode, &before).await;
    if let Ok(Tried::Locked) = tried {
        if caller.strong_count() == 0 {
            set.restore(&ctx, &lk, granted.iter().map(|&(copy, _)| copy).collect(), &before).await;
        } else {
            turn.note_locked(&lk, mode, &granted);
        }
    }
    tried
}
