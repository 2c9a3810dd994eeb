//! What every copy must hear and none may miss in silence: open, release, flush to disk.

use futures::future::join_all;
use futures::stream::{FuturesUnordered, StreamExt};
use smallvec::smallvec;

use super::Replicate;
use super::copies::CopySet;
use super::pending::missed;
use crate::ctx::Ctx;
use crate::effect::Needs;
use crate::error::{Errno, FopError, Result};
use crate::fop::{Fop, Open, Release};
use crate::reply::{Done, Reply};
use crate::types::{Class, Fd, Gfid, LeaseMode, OpenFlags};

impl Replicate {
    pub(super) async fn tell(&self, ctx: &Ctx, fop: Fop) -> Result<Reply> {
        match fop {
            Fop::Fsync(_) => self.flush(ctx, fop).await,
            // Nothing is kept back from here on.
            Fop::Flush(_) => Ok(Reply::Flush(Done)),
            Fop::Open(_) => self.open(ctx, fop).await,
            Fop::Release(release) => {
                self.opens.lock().remove(&release.fd.id);
                self.tell_all(ctx, &Fop::Release(release), self.up.get()).await;
                Ok(Reply::Release(Done))
            }
            Fop::Unlease(unlease) if unlease.objects.is_empty() => {
                self.give_all_back().await;
                Ok(Reply::Unlease(Done))
            }
            Fop::Lease(lease) => self.hold(ctx, &lease).await,
            Fop::Unlease(unlease) => {
                self.release(&unlease);
                Ok(Reply::Unlease(Done))
            }
            // Marks are this layer's own business with its copies.
            _ => Err(FopError::Refused(Errno::OPNOTSUPP)),
        }
    }

    async fn tell_all(&self, ctx: &Ctx, fop: &Fop, copies: CopySet) -> Vec<Result<Reply>> {
        join_all(copies.iter().map(|copy| self.copies[copy].subvol.call(ctx, fop.clone()))).await
    }

    /// Open on all; good when one copy could, and those that do not have the file are blamed for that. If one is not,
    /// the file is losing its last name: it goes where it was not open yet, so that it is as good as gone.
    async fn open(&self, ctx: &Ctx, fop: Fop) -> Result<Reply> {
        let up = self.live()?;
        self.remember_open(&fop);
        let mut answers = self.tell_all(ctx, &fop, up).await;
        let without: CopySet = up
            .iter()
            .zip(&answers)
            .filter(|(_, answer)| answer.as_ref().is_err_and(|error| error.is_absent()))
            .map(|at| at.0)
            .collect();
        if let Some(good) = answers.iter().position(Result::is_ok) {
            if let (Fop::Open(open), false) = (&fop, without.is_empty())
                && self.is_going(ctx, open.fd.gfid, without).await
            {
                self.forget_open(&fop);
                self.tell_all(ctx, &Fop::Release(Release { fd: open.fd }), up).await;
                return Err(FopError::Refused(Errno::STALE));
            }
            return answers.swap_remove(good);
        }
        self.forget_open(&fop);
        let refused = answers.iter().position(|answer| matches!(answer, Err(FopError::Refused(_))));
        answers.swap_remove(refused.unwrap_or(0))
    }

    /// Whether one of these copies, which do not have an inode, should have it.
    async fn is_going(&self, ctx: &Ctx, gfid: Gfid, without: CopySet) -> bool {
        let needs: Needs = smallvec![(gfid, LeaseMode::Shared)];
        match self.pin(ctx, &needs).await {
            Ok(pins) => !without.without(pins.accused().any()).is_empty(),
            Err(_) => false,
        }
    }

    /// Answered as soon as a quorum has it on disk; the others go on, and who fails is blamed.
    async fn flush(&self, ctx: &Ctx, fop: Fop) -> Result<Reply> {
        let up = self.live()?;
        let Fop::Fsync(fsync) = &fop else { return Err(FopError::Refused(Errno::INVAL)) };
        let gfid = fsync.gfid;
        let mut waiting: FuturesUnordered<_> = up
            .iter()
            .map(|copy| {
                let (subvol, ctx, fop) = (self.copies[copy].subvol.clone(), ctx.clone(), fop.clone());
                async move { (copy, subvol.call(&ctx, fop).await) }
            })
            .collect();
        let (mut flushed, mut failed, mut error) = (CopySet::NONE, CopySet::NONE, FopError::Unreachable);
        while let Some((copy, answer)) = waiting.next().await {
            match answer {
                Ok(_) => flushed.add(copy),
                Err(why) => {
                    if let FopError::Refused(_) = why {
                        error = why;
                        failed.add(copy);
                    }
                }
            }
            if self.rule.holds(flushed) {
                break;
            }
        }
        if !self.rule.holds(flushed) {
            return Err(error);
        }
        let set = self.shared();
        self.runtime.spawn(async move {
            while let Some((copy, answer)) = waiting.next().await {
                match answer {
                    Ok(_) => flushed.add(copy),
                    Err(FopError::Refused(_)) => failed.add(copy),
                    Err(FopError::Fenced | FopError::Unreachable) => {}
                }
            }
            set.blame_for_flush(gfid, flushed, failed).await;
        });
        Ok(Reply::Fsync(Done))
    }

    async fn blame_for_flush(&self, gfid: Gfid, flushed: CopySet, failed: CopySet) {
        if failed.is_empty() {
            return;
        }
        tracing::warn!(set = self.name, %gfid, ?failed, "copies could not make an object durable that others did");
        self.note_blame(flushed);
        self.mark(gfid, flushed, failed, missed(Class::Data)).await;
    }

    /// Keep what a copy must be told again when it comes back without its memory.
    pub(super) fn remember_open(&self, fop: &Fop) {
        let open = match fop {
            Fop::Open(open) => open.clone(),
            Fop::Create(create) => {
                let Some((id, flags)) = create.open else { return };
                Open { fd: Fd { id, gfid: create.birth.gfid }, flags, when: create.birth.when }
            }
            _ => return,
        };
        let flags = open.flags.difference(OpenFlags::TRUNCATE | OpenFlags::EXCLUSIVE);
        self.opens.lock().insert(open.fd.id, Open { flags, ..open });
    }

    pub(super) fn forget_open(&self, fop: &Fop) {
        let id = match fop {
            Fop::Open(open) => open.fd.id,
            Fop::Create(create) => {
                let Some((id, _)) = create.open else { return };
                id
            }
            _ => return,
        };
        self.opens.lock().remove(&id);
    }

    /// Tell one copy which files are open.
    pub(super) async fn reopen(&self, copy: usize) {
        let opens: Vec<_> = self.opens.lock().values().cloned().collect();
        let ctx = self.own_ctx();
        for open in opens {
            let fd = open.fd;
            if let Err(error) = self.copies[copy].subvol.send(&ctx, open).await {
                tracing::debug!(copy, ?fd, %error, "could not open a file again; it is served by its gfid");
            }
        }
    }
}
