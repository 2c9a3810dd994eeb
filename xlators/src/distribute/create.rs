//! New names for files: on the subvolume that the name belongs to, unless that is nearly full.

use std::sync::Arc;
use std::time::Duration;

use crate::ctx::Ctx;
use crate::distribute::Core;
use crate::distribute::linkto::Owner;
use crate::distribute::lookup::PATIENCE;
use crate::distribute::memory::{Hint, Place};
use crate::distribute::merge;
use crate::distribute::sets::{as_ourselves, is_absent};
use crate::error::{Errno, FopError, Result};
use crate::fop::{Create, Link, Lookup, Mknod, Only, Operation, Symlink, Unlink};
use crate::reply::Made;
use crate::types::{Cover, Gfid};

impl Core {
    /// The subvolume that a new name belongs to.
    pub(super) async fn set_for_new(&self, ctx: &Ctx, at: &Lookup) -> Result<usize> {
        let layout = self.layout(ctx, at.parent).await?;
        // A hole is where a part of the parent is missing: a lookup of the parent mends it, and "stale" asks for one.
        let hole = if layout.is_partial() { FopError::Unreachable } else { Errno::STALE.into() };
        layout.set_of(at.name.as_bytes()).ok_or(hole)
    }

    /// Make a name where it belongs, in spite of what a dead client left there, and of a parent in the making.
    pub(super) async fn make_new<O: Operation + Clone>(
        &self,
        ctx: &Ctx,
        at: &Lookup,
        set: usize,
        operation: O,
    ) -> Result<O::Reply> {
        match self.sets.ask(ctx, set, operation.clone()).await {
            // The lookup clears a link file away that leads nowhere.
            Err(FopError::Refused(Errno::EXIST)) if self.lookup(ctx, at.clone()).await?.found.is_none() => {
                self.sets.ask(ctx, set, operation).await
            }
            Err(error) if is_absent(error) => {
                self.make_when_parent_is_there(ctx, at.parent, set, operation, error).await
            }
            answer => answer,
        }
    }

    /// The parent is missing on one subvolume. If it exists on others, somebody may be making it.
    async fn make_when_parent_is_there<O: Operation + Clone>(
        &self,
        ctx: &Ctx,
        parent: Gfid,
        set: usize,
        operation: O,
        error: FopError,
    ) -> Result<O::Reply> {
        for pause in PATIENCE {
            self.memory.layouts.remove(&parent);
            self.layout(ctx, parent).await?;
            match self.sets.ask(ctx, set, operation.clone()).await {
                Err(again) if is_absent(again) => tokio::time::sleep(pause).await,
                answer => return answer,
            }
        }
        Err(error)
    }

    pub(super) async fn create(self: &Arc<Self>, ctx: &Ctx, create: Create) -> Result<Made> {
        let at = Lookup { parent: create.parent, name: create.name.clone() };
        let hashed = self.set_for_new(ctx, &at).await?;
        if let Some(target) = self.space.instead_of(hashed, &self.sets) {
            return self.create_elsewhere(ctx, create, hashed, target).await;
        }
        let gfid = create.birth.gfid;
        match self.make_new(ctx, &at, hashed, create.clone()).await {
            Err(FopError::Refused(Errno::NOSPC)) => {
                self.space.ran_full(hashed);
                match self.space.instead_of(hashed, &self.sets) {
                    Some(target) => self.create_elsewhere(ctx, create, hashed, target).await,
                    None => Err(Errno::NOSPC.into()),
                }
            }
            answer => Ok(self.made_on(hashed, gfid, answer?)),
        }
    }

    /// The link file comes first: it decides between two who make the same name.
    async fn create_elsewhere(
        self: &Arc<Self>,
        ctx: &Ctx,
        create: Create,
        hashed: usize,
        target: usize,
    ) -> Result<Made> {
        self.to_the_end(ctx, async move |core, ctx| {
            let at = Lookup { parent: create.parent, name: create.name.clone() };
            let birth = &create.birth;
            let (gfid, when) = (birth.gfid, birth.when);
            let owner = Owner { gfid, uid: birth.uid, gid: birth.gid };
            core.link_for_new(&ctx, &at, hashed, target, &owner, when).await?;
            match core.sets.ask(&ctx, target, create).await {
                Ok(made) => {
                    core.memory.set_hint(at.parent, &at.name, Hint::Linked);
                    Ok(Made { cover: made.cover - Cover::NAME, ..core.made_on(target, gfid, made) })
                }
                Err(error) => {
                    core.drop_link(&ctx, &at, gfid, hashed).await?;
                    Err(error)
                }
            }
        })
        .await
    }

    /// Make the link file of a new name, in spite of one that leads nowhere.
    async fn link_for_new(
        &self,
        ctx: &Ctx,
        at: &Lookup,
        hashed: usize,
        target: usize,
        owner: &Owner,
        when: crate::types::Time,
    ) -> Result<()> {
        match self.make_link(ctx, at, hashed, target, owner, when).await {
            Err(FopError::Refused(Errno::EXIST)) if self.lookup(ctx, at.clone()).await?.found.is_none() => {
                self.make_link(ctx, at, hashed, target, owner, when).await
            }
            answer => answer,
        }
    }

    fn made_on(&self, set: usize, gfid: Gfid, made: Made) -> Made {
        self.memory.places.put(gfid, Place::On(set));
        Made { parent: merge::shown(made.parent), ..made }
    }

    pub(super) async fn mknod(&self, ctx: &Ctx, mknod: Mknod) -> Result<Made> {
        let at = Lookup { parent: mknod.parent, name: mknod.name.clone() };
        let hashed = self.set_for_new(ctx, &at).await?;
        let gfid = mknod.birth.gfid;
        Ok(self.made_on(hashed, gfid, self.make_new(ctx, &at, hashed, mknod).await?))
    }

    pub(super) async fn symlink(&self, ctx: &Ctx, symlink: Symlink) -> Result<Made> {
        let at = Lookup { parent: symlink.parent, name: symlink.name.clone() };
        let hashed = self.set_for_new(ctx, &at).await?;
        let gfid = symlink.birth.gfid;
        Ok(self.made_on(hashed, gfid, self.make_new(ctx, &at, hashed, symlink).await?))
    }

    /// The content stays where it is. If the new name belongs elsewhere, it gets a link file there.
    pub(super) async fn link(self: &Arc<Self>, ctx: &Ctx, link: Link) -> Result<Made> {
        let at = Lookup { parent: link.parent, name: link.name.clone() };
        let hashed = self.set_for_new(ctx, &at).await?;
        let Place::On(set) = self.place_of(ctx, link.gfid, None).await? else { return Err(Errno::PERM.into()) };
        if set == hashed {
            let gfid = link.gfid;
            return Ok(self.made_on(set, gfid, self.make_new(ctx, &at, hashed, link).await?));
        }
        self.to_the_end(ctx, async move |core, ctx| core.link_elsewhere(&ctx, link, hashed, set).await).await
    }

    async fn link_elsewhere(&self, ctx: &Ctx, link: Link, hashed: usize, set: usize) -> Result<Made> {
        let at = Lookup { parent: link.parent, name: link.name.clone() };
        let owner = Owner { gfid: link.gfid, uid: ctx.caller.uid, gid: ctx.caller.gid };
        self.link_for_new(ctx, &at, hashed, set, &owner, link.when).await?;
        let gfid = link.gfid;
        match self.link_content(ctx, &at, set, link).await {
            Ok(Linked::Now(made)) => {
                self.memory.set_hint(at.parent, &at.name, Hint::Linked);
                Ok(Made { cover: made.cover - Cover::NAME, ..self.made_on(set, gfid, *made) })
            }
            Ok(Linked::Before) => Err(Errno::EXIST.into()),
            Err(error) => {
                self.drop_link(ctx, &at, gfid, hashed).await?;
                Err(error)
            }
        }
    }

    /// Give the content the name that a link file points to.
    pub(super) async fn link_content(&self, ctx: &Ctx, at: &Lookup, set: usize, link: Link) -> Result<Linked> {
        for _ in 0..LEFTOVER_LOOKS {
            match self.sets.ask(ctx, set, link.clone()).await {
                Err(FopError::Refused(Errno::EXIST)) => {}
                answer => return answer.map(|made| Linked::Now(Box::new(made))),
            }
            let Some(found) = self.sets.ask(ctx, set, at.clone()).await?.found else { continue };
            if found.iatt.gfid == link.gfid {
                return Ok(Linked::Before);
            }
            // Somebody else's file has the name, and is in the middle of getting it or has got it.
            if self.lookup(ctx, at.clone()).await?.found.is_some_and(|seen| seen.iatt.gfid == found.iatt.gfid) {
                return Err(Errno::EXIST.into());
            }
            tokio::time::sleep(LEFTOVER_PAUSE).await;
        }
        self.clear_leftover(ctx, at, set, &link).await?;
        self.sets.ask(ctx, set, link).await.map(|made| Linked::Now(Box::new(made)))
    }

    /// A client died in the middle of a rename long ago: an inode has a name under which nobody finds it, and loses it
    /// if it has others.
    async fn clear_leftover(&self, ctx: &Ctx, at: &Lookup, set: usize, link: &Link) -> Result<()> {
        let taken = self.sets.ask(ctx, set, at.clone()).await?.found;
        let Some(found) = taken.filter(|found| found.iatt.gfid != link.gfid && found.iatt.nlink > 1) else {
            return Ok(());
        };
        let only = Only::Gfid(found.iatt.gfid);
        let unlink = Unlink { parent: at.parent, name: at.name.clone(), only, when: link.when };
        self.sets.ask(&as_ourselves(ctx), set, unlink).await.map(drop)
    }
}

/// How the content got a name.
#[derive(Debug)]
pub(super) enum Linked {
    /// It had it: another client does the same, or died doing it.
    Before,
    /// By us.
    Now(Box<Made>),
}

/// How long another client gets to finish giving a name, before the name counts as left over: longer than a brick waits
/// for the holder of a lease.
const LEFTOVER_LOOKS: usize = 30;
const LEFTOVER_PAUSE: Duration = Duration::from_millis(200);
