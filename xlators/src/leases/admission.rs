//! The way of a changing fop: admit, note dirty, keep others away from the inode that loses a name, run, let go.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use smallvec::SmallVec;

use super::Leases;
use super::table::{Asked, Entered, Park, Session, Want};
use crate::ctx::Ctx;
use crate::error::{Errno, FopError, Result};
use crate::fop::{Fop, Lookup, Only, Unlink};
use crate::reply::Reply;
use crate::types::{Epoch, Gfid, Kind, LeaseMode, Name};

/// Objects that a fop was admitted to; lets go of them when dropped.
struct Admitted<'a> {
    leases: &'a Leases,
    ctx: &'a Ctx,
    gfids: SmallVec<[Gfid; 2]>,
}

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        for &gfid in &self.gfids {
            self.leases.table.leave(self.ctx.client, gfid);
        }
    }
}

/// Objects that nobody else may lease while a fop runs.
struct Pinned<'a> {
    leases: &'a Leases,
    session: Arc<Session>,
    gfids: SmallVec<[Gfid; 2]>,
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        for &gfid in &self.gfids {
            self.leases.table.unpin(&self.session, gfid);
        }
    }
}

impl Leases {
    /// A read that says under which leases it runs must still have them. One that names none relies on none.
    pub(super) fn may_read(&self, ctx: &Ctx) -> bool {
        ctx.leases.iter().all(|&(gfid, _)| self.table.may_read(ctx.client, gfid))
    }

    pub(super) async fn change(&self, ctx: &Ctx, fop: Fop) -> Result<Reply> {
        let admitted = self.admit(ctx, &fop).await?;
        let pinned = match fop {
            Fop::Unlink(_) | Fop::Rmdir(_) | Fop::Rename(_) if self.session_count.load(Ordering::Acquire) > 1 => {
                Box::pin(self.keep_others_away(ctx, &fop)).await?
            }
            _ => None,
        };
        let born = self.bear(ctx, &fop)?;
        let marked = born_marked(&fop);
        let mut reply = self.next.call(ctx, fop).await;
        if marked {
            self.tell_blames();
        }
        match (&mut reply, born) {
            (Ok(Reply::Create(made) | Reply::Mkdir(made)), Some((_, epoch))) => made.lease = Some(epoch),
            (_, Some((gfid, _))) => self.table.forget(ctx.client, gfid),
            (_, None) => {}
        }
        if let Ok(done) = &reply {
            self.note_names(done);
        }
        drop((pinned, admitted));
        if let Ok(Reply::Rmdir(removed) | Reply::Unlink(removed)) = &reply
            && (removed.iatt.nlink == 0 || removed.iatt.kind == Kind::Dir)
        {
            self.table.forget(ctx.client, removed.iatt.gfid);
        }
        reply
    }

    /// Before anybody else may be granted what the fop named or took the last name of.
    fn note_names(&self, done: &Reply) {
        let lost = match done {
            Reply::Rmdir(removed) => return self.nameless.note(removed.iatt.gfid),
            Reply::Unlink(removed) => Some(&removed.iatt),
            Reply::Rename(renamed) => renamed.replaced.as_ref(),
            Reply::Create(made)
            | Reply::Mkdir(made)
            | Reply::Mknod(made)
            | Reply::Symlink(made)
            | Reply::Link(made) => {
                return self.nameless.named(made.iatt.gfid);
            }
            _ => None,
        };
        if let Some(lost) = lost.filter(|lost| lost.nlink == 0) {
            self.nameless.note(lost.gfid);
        }
    }

    async fn admit<'a>(&'a self, ctx: &'a Ctx, fop: &Fop) -> Result<Admitted<'a>> {
        let mut admitted = Admitted { leases: self, ctx, gfids: SmallVec::new() };
        for (gfid, mode) in fop.leases() {
            self.admit_one(ctx, gfid, mode, &mut admitted).await?;
        }
        Ok(admitted)
    }

    async fn admit_one(&self, ctx: &Ctx, gfid: Gfid, mode: LeaseMode, admitted: &mut Admitted<'_>) -> Result<()> {
        let epoch = ctx.leases.iter().find(|(of, _)| *of == gfid).map(|(_, epoch)| *epoch);
        let mut entered = self.table.enter(ctx.client, gfid, mode, epoch);
        while entered == Entered::Clearing {
            entered = Box::pin(self.enter_when_cleared(ctx, gfid, mode, epoch)).await;
        }
        if entered == Entered::Fenced {
            return Err(FopError::Fenced);
        }
        admitted.gfids.push(gfid);
        if entered == Entered::Unnoted {
            self.journal.mark_dirty(gfid)?;
            self.table.noted(gfid);
        }
        Ok(())
    }

    async fn enter_when_cleared(&self, ctx: &Ctx, gfid: Gfid, mode: LeaseMode, epoch: Option<Epoch>) -> Entered {
        let cleared = self.cleared.notified();
        let entered = self.table.enter(ctx.client, gfid, mode, epoch);
        if entered == Entered::Clearing {
            cleared.await;
        }
        entered
    }

    /// The new object's own lease, installed before it can be found. `Mkdir` and `Create` ask for it.
    fn bear(&self, ctx: &Ctx, fop: &Fop) -> Result<Option<(Gfid, Epoch)>> {
        let gfid = match fop {
            Fop::Create(f) if f.lease => f.birth.gfid,
            Fop::Mkdir(f) if f.lease => f.birth.gfid,
            _ => return Ok(None),
        };
        let session = self.session(ctx.client)?;
        let born = self.table.bear(&session, gfid);
        if born.is_some() && matches!(fop, Fop::Create(_)) {
            self.table.may_keep_back(ctx.client, gfid);
        }
        Ok(born.map(|epoch| (gfid, epoch)))
    }

    /// The inode that loses or changes a name is nobody's to know while that happens: others' leases on it are
    /// recalled. Where this session is the only one there is nobody to recall from, and nothing to look for.
    async fn keep_others_away<'a>(&'a self, ctx: &Ctx, fop: &Fop) -> Result<Option<Pinned<'a>>> {
        let names: SmallVec<[(Gfid, &Name, Option<Gfid>); 2]> = match fop {
            Fop::Unlink(Unlink { parent, name, only, .. }) => {
                let known = match only {
                    Only::Any | Only::Content => None,
                    Only::Gfid(gfid) | Only::LinkFile(gfid) | Only::ContentOf(gfid) => Some(*gfid),
                };
                smallvec::smallvec![(*parent, name, known)]
            }
            Fop::Rmdir(f) => smallvec::smallvec![(f.parent, &f.name, None)],
            Fop::Rename(f) => {
                smallvec::smallvec![(f.from_parent, &f.from_name, None), (f.to_parent, &f.to_name, None)]
            }
            _ => return Ok(None),
        };
        let session = self.session(ctx.client)?;
        let mut victims: SmallVec<[Gfid; 2]> = SmallVec::new();
        let plain = ctx.under(SmallVec::new());
        for (parent, name, known) in names {
            let gfid = match known {
                Some(gfid) => Some(gfid),
                None => {
                    let looked = self.next.send(&plain, Lookup { parent, name: name.clone() }).await?;
                    looked.found.map(|found| found.iatt.gfid)
                }
            };
            victims.extend(gfid);
        }
        victims.sort_unstable();
        victims.dedup();
        let mut pinned = Pinned { leases: self, session, gfids: SmallVec::new() };
        for gfid in victims {
            match self.table.ask(&pinned.session, gfid, Want::Pin, Park::Yes) {
                Asked::Held(_) => {}
                Asked::Busy | Asked::Full => return Err(Errno::AGAIN.into()),
                Asked::Parked(answer) => {
                    self.parked(ctx, gfid, answer).await?;
                }
            }
            pinned.gfids.push(gfid);
        }
        Ok(Some(pinned))
    }
}

/// The fop makes an inode that a copy is known to miss.
fn born_marked(fop: &Fop) -> bool {
    let birth = match fop {
        Fop::Create(f) => &f.birth,
        Fop::Mknod(f) => &f.birth,
        Fop::Mkdir(f) => &f.birth,
        Fop::Symlink(f) => &f.birth,
        _ => return false,
    };
    !birth.pending.is_empty()
}
