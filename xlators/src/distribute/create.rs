//! New names for files: on the subvolume that the name belongs to, unless that is nearly full.

use std::sync::Arc;
use std::time::Duration;

use crate::ctx::Ctx;
use crate::distribute::Core;
use crate::distribute::hold::Reach;
use crate::distribute::linkto::Owner;
use crate::distribute::memory::{Hint, Place};
use crate::distribute::merge;
use crate::distribute::sets::as_ourselves;
use crate::error::{Errno, FopError, Result};
use crate::fop::{Create, Link, Lookup, Mknod, Only, Operation, Symlink, Unlink};
use crate::reply::Made;
use crate::types::{Cover, Gfid, Kind, Time};

/// How long what is made in a directory waits for a part of it that is missing: until somebody who is making the directory
/// has made that, too, or until a lookup has mended it.
pub(super) const PATIENCE: [Duration; 3] =
    [Duration::from_millis(20), Duration::from_millis(80), Duration::from_millis(200)];

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
            Err(error) if error.is_absent() => {
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
                Err(again) if again.is_absent() => tokio::time::sleep(pause).await,
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
        let at = Lookup { parent: create.parent, name: create.name.clone() };
        let owner = Owner { gfid: create.birth.gfid, uid: create.birth.uid, gid: create.birth.gid };
        let when = create.birth.when;
        self.to_the_end(ctx, async move |core, ctx| {
            core.make_linked(&ctx, &at, &LinkTo { hashed, target, owner, when }, create).await
        })
        .await
    }

    /// Make the link file of a new name, then give the content the name that it leads to, while the directory stands
    /// still. What was in the way of the first attempt and leads nowhere is cleared away.
    async fn make_linked<O>(&self, ctx: &Ctx, at: &Lookup, to: &LinkTo, content: O) -> Result<Made>
    where
        O: Operation<Reply = Made> + Clone,
    {
        let reach = Reach::of([to.hashed, to.target]);
        let hold = self.hold(ctx, &[at.parent], &reach).await?;
        let made = self.make_linked_once(&hold.ctx, at, to, content.clone(), Leftover::Kept).await;
        drop(hold);
        match made {
            Err(FopError::Refused(Errno::EXIST) | FopError::Fenced)
                if self.lookup(ctx, at.clone()).await?.found.is_none() =>
            {
                let hold = self.hold(ctx, &[at.parent], &reach).await?;
                self.make_linked_once(&hold.ctx, at, to, content, Leftover::Cleared).await
            }
            made => made,
        }
    }

    async fn make_linked_once<O>(
        &self,
        ctx: &Ctx,
        at: &Lookup,
        to: &LinkTo,
        content: O,
        leftover: Leftover,
    ) -> Result<Made>
    where
        O: Operation<Reply = Made> + Clone,
    {
        let gfid = to.owner.gfid;
        self.make_link(ctx, at, to.hashed, to.target, &to.owner, to.when).await?;
        match self.name_content(ctx, at, to.target, content, leftover).await {
            Ok(made) => {
                self.memory.set_hint(at.parent, &at.name, Hint::Linked(to.target));
                Ok(Made { cover: made.cover - Cover::NAME, ..self.made_on(to.target, gfid, made) })
            }
            Err(error) => {
                if let Err(again) = self.drop_link(ctx, at, gfid, to.hashed).await {
                    tracing::warn!(id = ctx.id, %gfid, error = %again, "a link file for a name that could not be made stays");
                }
                Err(error)
            }
        }
    }

    /// Give the content the name that a link file leads to.
    pub(super) async fn name_content<O>(
        &self,
        ctx: &Ctx,
        at: &Lookup,
        set: usize,
        content: O,
        leftover: Leftover,
    ) -> Result<O::Reply>
    where
        O: Operation + Clone,
    {
        match self.sets.ask(ctx, set, content.clone()).await {
            Err(FopError::Refused(Errno::EXIST)) if leftover != Leftover::Kept => {
                self.clear_leftover(ctx, at, set, leftover).await?;
                self.sets.ask(ctx, set, content).await
            }
            answer => answer,
        }
    }

    /// A client died in the middle of a change: an inode has a name under which nobody finds it, and loses it.
    async fn clear_leftover(&self, ctx: &Ctx, at: &Lookup, set: usize, leftover: Leftover) -> Result<()> {
        let ours = as_ourselves(ctx);
        let Some(found) = self.sets.ask(&ours, set, at.clone()).await?.found else { return Ok(()) };
        if leftover == Leftover::Replaced && found.linkto.is_none() && found.iatt.kind != Kind::Dir {
            let gfid = found.iatt.gfid;
            tracing::warn!(id = ctx.id, parent = %at.parent, name = ?at.name, %gfid, set = self.sets.name(set), "replacing what was left over");
            let (parent, name, only) = (at.parent, at.name.clone(), Only::Gfid(gfid));
            let unlink = Unlink { parent, name, only, when: Time::default() };
            return self.sets.ask(&ours, set, unlink).await.map(drop);
        }
        self.clear_stray(ctx, at, set, &found).await
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

    async fn link_elsewhere(&self, ctx: &Ctx, link: Link, hashed: usize, target: usize) -> Result<Made> {
        let at = Lookup { parent: link.parent, name: link.name.clone() };
        let owner = Owner { gfid: link.gfid, uid: ctx.caller.uid, gid: ctx.caller.gid };
        let to = LinkTo { hashed, target, owner, when: link.when };
        self.make_linked(ctx, &at, &to, link).await
    }
}

/// A link file to be made.
#[derive(Clone, Copy, Debug)]
struct LinkTo {
    hashed: usize,
    target: usize,
    owner: Owner,
    when: Time,
}

/// What becomes of something that has the name beside the content, where nobody finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leftover {
    /// It stays in the way, until it is known that nobody finds it.
    Kept,
    /// It goes, unless its content would be lost.
    Cleared,
    /// It goes: the name is to be somebody else's.
    Replaced,
}
