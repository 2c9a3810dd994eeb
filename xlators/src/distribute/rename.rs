//! Moving a name, which may belong elsewhere afterwards.
//!
//! The content of a file never moves. What moves at one instant is the name on the subvolume where the new name belongs:
//! either the content itself, or a link file that was put there, invisibly, under the old name. At no time does neither
//! name lead to the file, nor the new name to nothing.
//!
//! Both directories are held still meanwhile on every subvolume that has a part in it, so that for everybody else all of it
//! is one step. Only a client that dies in the middle leaves steps to be seen: both names may then lead to the file.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::ctx::Ctx;
use crate::distribute::Core;
use crate::distribute::create::Leftover;
use crate::distribute::hold::{Attempt, FENCES_MAX, Grip, Hold, Reach};
use crate::distribute::layout::Layout;
use crate::distribute::linkto::Owner;
use crate::distribute::lookup::Named;
use crate::distribute::memory::Hint;
use crate::distribute::merge;
use crate::distribute::sets::as_ourselves;
use crate::error::{Errno, FopError, Result};
use crate::fop::{Getattr, Link, Lookup, Only, Rename, Replace, Unlink};
use crate::reply::{Found, Renamed};
use crate::types::{AttrMask, Gfid, Iatt};

/// A file that has a name: where the name belongs, and where the content is.
#[derive(Clone, Debug)]
struct Held {
    hashed: usize,
    cached: usize,
    iatt: Iatt,
}

/// How often a rename finds that it must hold a directory which it does not: two in peace, more if others rename them, too.
const DIRECTORIES_MAX: usize = 16;

/// How far a rename had come when its leases were lost.
#[derive(Clone, Copy, Debug)]
enum Past {
    Nothing,
    /// This inode may have the new name.
    Begun(Gfid),
    /// It has.
    Done(Gfid),
}

impl Past {
    fn gfid(self) -> Option<Gfid> {
        match self {
            Self::Nothing => None,
            Self::Begun(gfid) | Self::Done(gfid) => Some(gfid),
        }
    }
}

/// A rename under way.
#[derive(Debug)]
struct Moving<'a> {
    rename: &'a Rename,
    from_hashed: usize,
    to_hashed: usize,
    past: Past,
    /// Content that had the new name and goes last.
    victim: Option<(usize, Gfid)>,
}

/// The new name: where it belongs, and the file that has it.
#[derive(Clone, Debug)]
struct Destination {
    hashed: usize,
    /// Where the content of the replaced file is, and its attributes.
    taken: Option<(usize, Iatt)>,
}

impl Core {
    pub(super) async fn rename(self: &Arc<Self>, ctx: &Ctx, rename: Rename) -> Result<Renamed> {
        self.to_the_end(ctx, async move |core, ctx| core.rename_with_holds(&ctx, &rename).await).await
    }

    /// Holds the directories where the names belong, and where what they lead to is, and renames.
    async fn rename_with_holds(&self, ctx: &Ctx, rename: &Rename) -> Result<Renamed> {
        let from_hashed = self.set_for_new(ctx, &source(rename)).await?;
        let to_hashed = self.set_for_new(ctx, &destination(rename)).await?;
        let mut moving = Moving { rename, from_hashed, to_hashed, past: Past::Nothing, victim: None };
        let mut reach = Reach::of([from_hashed, to_hashed]);
        let parents = [rename.from_parent, rename.to_parent];
        let mut directories: SmallVec<[Gfid; 4]> = SmallVec::from_slice(&parents);
        let (mut fences, mut found) = (0, 0);
        loop {
            let hold = self.hold(ctx, &directories, &reach).await?;
            let attempt = self.rename_held(&hold, &mut moving).await;
            drop(hold);
            match attempt {
                Ok(Attempt::Done(Some(renamed))) => return Ok(renamed),
                Ok(Attempt::Done(None)) => return self.renamed_already(ctx, rename).await,
                Ok(Attempt::Beyond(more)) => reach = reach.wider(self, more),
                Ok(Attempt::With(directory)) if found < DIRECTORIES_MAX => {
                    found += 1;
                    // The names may lead to others than they did.
                    directories.truncate(parents.len() + usize::from(directories.len() == parents.len() + 1));
                    directories.push(directory);
                    reach = reach.wider(self, None);
                }
                Ok(Attempt::With(_)) => return Err(FopError::Fenced),
                Err(FopError::Fenced) if fences < FENCES_MAX => fences += 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// `None`: nothing is to be done, or no longer.
    async fn rename_held(&self, hold: &Hold<'_>, moving: &mut Moving<'_>) -> Result<Attempt<Option<Renamed>>> {
        let (ctx, rename) = (&hold.ctx, moving.rename);
        let (from, to) = (source(rename), destination(rename));
        let left = self.resolve(ctx, &from, Grip::Held(hold)).await?.named;
        let right = self.resolve(ctx, &to, Grip::Held(hold)).await?.named;
        if let (Named::Beyond(more), _) | (_, Named::Beyond(more)) = (&left, &right) {
            return Ok(Attempt::Beyond(*more));
        }
        if let Some(directory) = [&left, &right].into_iter().find_map(|named| named.to_be_held(hold)) {
            return Ok(Attempt::With(directory));
        }
        if self.finish(ctx, moving, &left, &right).await? {
            return Ok(Attempt::Done(None));
        }
        let exists = !matches!(right, Named::Absent(_));
        match rename.replace {
            _ if matches!(left, Named::Absent(_)) => return Err(Errno::NOENT.into()),
            Replace::No if exists => return Err(Errno::EXIST.into()),
            Replace::Exchange if !exists => return Err(Errno::NOENT.into()),
            Replace::No | Replace::Exchange | Replace::Yes => {}
        }
        self.memory.drop_hint(from.parent, &from.name);
        self.memory.drop_hint(to.parent, &to.name);
        let renamed = match (left, right) {
            (Named::Absent(_), _) => return Err(Errno::NOENT.into()),
            (Named::Beyond(_) | Named::Torn(_), _) | (_, Named::Torn(_)) => return Err(FopError::Fenced),
            (Named::Directory(_), _) | (_, Named::Directory(_)) if rename.replace == Replace::Exchange => {
                return Err(Errno::XDEV.into());
            }
            (Named::Directory(_), Named::File(..)) => return Err(Errno::NOTDIR.into()),
            (Named::File(..), Named::Directory(_)) => return Err(Errno::ISDIR.into()),
            (Named::Directory(moved), Named::Directory(victim)) => {
                self.rename_directory(ctx, rename, moving.to_hashed, &moved, Some(&victim)).await?
            }
            (Named::Directory(moved), _) => self.rename_directory(ctx, rename, moving.to_hashed, &moved, None).await?,
            (Named::File(cached, found), taken) => {
                let held = Held { hashed: moving.from_hashed, cached, iatt: found.iatt };
                let taken = if let Named::File(set, found) = taken { Some((set, found.iatt)) } else { None };
                if taken.is_some_and(|(_, iatt)| iatt.gfid == held.iatt.gfid) {
                    // Both names lead to one inode: POSIX has nothing happen.
                    return Ok(Attempt::Done(None));
                }
                self.rename_file(ctx, moving, &held, &Destination { hashed: moving.to_hashed, taken }).await?
            }
        };
        Ok(Attempt::Done(Some(renamed)))
    }

    /// Complete a rename whose leases were lost in the middle, if it has happened. Others may have had these names since.
    async fn finish(&self, ctx: &Ctx, moving: &Moving<'_>, left: &Named, right: &Named) -> Result<bool> {
        let Some(gfid) = moving.past.gfid() else { return Ok(false) };
        let set_of = |named: &Named| match named {
            Named::File(set, found) if found.iatt.gfid == gfid => Some(*set),
            _ => None,
        };
        match (moving.past, set_of(left), set_of(right)) {
            (_, Some(set), Some(_)) => {
                self.unlink_content(ctx, &source(moving.rename), gfid, set, moving.rename).await?;
                if set != moving.from_hashed {
                    self.drop_link(ctx, &source(moving.rename), gfid, moving.from_hashed).await?;
                }
            }
            (_, None, Some(_)) | (Past::Done(_), ..) => {}
            _ => return Ok(false),
        }
        let named = |victim: Gfid| matches!(right, Named::File(_, found) if found.iatt.gfid == victim);
        if let Some((set, victim)) = moving.victim.filter(|&(_, victim)| !named(victim)) {
            match self.unlink_content(ctx, &destination(moving.rename), victim, set, moving.rename).await {
                Err(error) if !error.is_absent() => return Err(error),
                _ => {}
            }
        }
        Ok(true)
    }

    /// The answer where nothing was to be done.
    async fn renamed_already(&self, ctx: &Ctx, rename: &Rename) -> Result<Renamed> {
        let view = async |gfid| {
            let fop = crate::fop::Fop::Getattr(Getattr { gfid, fd: None, exact: AttrMask::empty() });
            match self.on_inode(ctx, gfid, None, fop).await? {
                crate::reply::Reply::Getattr(Found { iatt, .. }) => Ok::<Iatt, FopError>(iatt),
                _ => Err(Errno::IO.into()),
            }
        };
        let (from_parent, to_parent) = (view(rename.from_parent).await?, view(rename.to_parent).await?);
        let found = self.lookup(ctx, destination(rename)).await?.found;
        // Somebody may have moved it on since.
        let iatt = found.map_or(to_parent, |found| found.iatt);
        Ok(Renamed { iatt, replaced: None, from_parent, to_parent })
    }
}

fn source(rename: &Rename) -> Lookup {
    Lookup { parent: rename.from_parent, name: rename.from_name.clone() }
}

fn destination(rename: &Rename) -> Lookup {
    Lookup { parent: rename.to_parent, name: rename.to_name.clone() }
}

// Files.
impl Core {
    async fn rename_file(&self, ctx: &Ctx, moving: &mut Moving<'_>, held: &Held, to: &Destination) -> Result<Renamed> {
        let rename = moving.rename;
        if rename.replace == Replace::Exchange {
            return self.exchange(ctx, rename, held, to).await;
        }
        let beside = to.taken.filter(|&(set, _)| set != to.hashed && set != held.cached);
        moving.victim = beside.map(|(set, iatt)| (set, iatt.gfid));
        moving.past = Past::Begun(held.iatt.gfid);
        let mut renamed = if to.hashed == held.cached {
            // The name on the content is the name that decides.
            let renamed = self.sets.ask(ctx, held.cached, rename.clone()).await?;
            moving.past = Past::Done(held.iatt.gfid);
            self.drop_old_link(ctx, rename, held, &[held.cached]).await;
            renamed
        } else if to.taken.is_some_and(|(set, _)| set == held.cached) {
            self.rename_over_neighbour(ctx, moving, held, to).await?
        } else {
            self.rename_by_link(ctx, moving, held, to).await?
        };
        if to.hashed != held.cached {
            self.memory.set_hint(rename.to_parent, &rename.to_name, Hint::Linked(held.cached));
        }
        renamed.from_parent = merge::shown(renamed.from_parent);
        renamed.to_parent = merge::shown(renamed.to_parent);
        renamed.replaced = self.drop_replaced(ctx, rename, held, to, renamed.replaced).await?;
        Ok(renamed)
    }

    /// Two files change places at one instant only where one subvolume has both names and both contents.
    async fn exchange(&self, ctx: &Ctx, rename: &Rename, held: &Held, to: &Destination) -> Result<Renamed> {
        let sets = [held.hashed, held.cached, to.hashed];
        let one = to.taken.is_some_and(|(set, _)| sets.iter().all(|&other| other == set));
        if !one {
            return Err(Errno::XDEV.into());
        }
        let renamed = self.sets.ask(ctx, held.cached, rename.clone()).await?;
        let (from_parent, to_parent) = (merge::shown(renamed.from_parent), merge::shown(renamed.to_parent));
        Ok(Renamed { from_parent, to_parent, ..renamed })
    }

    /// The content moves over another content beside it; the link file that leads there is then exchanged. Between the
    /// two steps it leads to a file of another gfid, and whoever follows it asks everywhere.
    async fn rename_over_neighbour(
        &self,
        ctx: &Ctx,
        moving: &mut Moving<'_>,
        held: &Held,
        to: &Destination,
    ) -> Result<Renamed> {
        let rename = moving.rename;
        self.prepare_link(ctx, rename, held, to).await?;
        let renamed = match self.sets.ask(ctx, held.cached, rename.clone()).await {
            Ok(renamed) => renamed,
            Err(error) => {
                self.take_back_link(ctx, rename, held, to).await;
                return Err(error);
            }
        };
        moving.past = Past::Done(held.iatt.gfid);
        self.switch_link(ctx, rename, to).await?;
        // An old link file may be another name of the inode that the new one is: then nothing has moved.
        self.drop_link(ctx, &source(rename), held.iatt.gfid, to.hashed).await?;
        self.drop_old_link(ctx, rename, held, &[held.cached, to.hashed]).await;
        Ok(renamed)
    }

    /// The content gets the new name beside the old one; then the link file switches; then the old name goes.
    async fn rename_by_link(
        &self,
        ctx: &Ctx,
        moving: &mut Moving<'_>,
        held: &Held,
        to: &Destination,
    ) -> Result<Renamed> {
        let (rename, gfid) = (moving.rename, held.iatt.gfid);
        let (from, new) = (source(rename), destination(rename));
        self.prepare_link(ctx, rename, held, to).await?;
        let link = Link { gfid, parent: new.parent, name: new.name.clone(), when: rename.when };
        let leftover = if rename.replace == Replace::Yes { Leftover::Replaced } else { Leftover::Cleared };
        if let Err(error) = self.name_content(ctx, &new, held.cached, link, leftover).await {
            self.take_back_link(ctx, rename, held, to).await;
            return Err(error);
        }
        let switched = match self.switch_link(ctx, rename, to).await {
            Ok(switched) => switched,
            Err(error) => {
                // Without an answer the switch may have happened: then the new name must keep its content.
                if error != FopError::Unreachable {
                    self.take_back_name(ctx, rename, held).await;
                    self.take_back_link(ctx, rename, held, to).await;
                }
                return Err(error);
            }
        };
        moving.past = Past::Done(gfid);
        let removed = match self.unlink_content(ctx, &from, gfid, held.cached, rename).await {
            Err(error) if error.is_absent() => None,
            removed => Some(removed?),
        };
        self.drop_old_link(ctx, rename, held, &[held.cached, to.hashed]).await;
        Ok(match removed {
            Some(removed) => Renamed {
                iatt: removed.iatt,
                from_parent: merge::iatts(removed.parent, &switched.from_parent),
                ..switched
            },
            None => Renamed { iatt: held.iatt, ..switched },
        })
    }

    async fn unlink_content(
        &self,
        ctx: &Ctx,
        at: &Lookup,
        gfid: Gfid,
        set: usize,
        rename: &Rename,
    ) -> Result<crate::reply::Removed> {
        let unlink = Unlink { parent: at.parent, name: at.name.clone(), only: Only::Gfid(gfid), when: rename.when };
        self.sets.ask(&as_ourselves(ctx), set, unlink).await
    }

    /// Where the new name belongs, a link file with the old name: nobody looks for it there, unless the old name
    /// belongs there, too; but then it has one already.
    async fn prepare_link(&self, ctx: &Ctx, rename: &Rename, held: &Held, to: &Destination) -> Result<()> {
        let at = source(rename);
        let owner = Owner::of(&held.iatt);
        match self.make_link(ctx, &at, to.hashed, held.cached, &owner, rename.when).await {
            Err(FopError::Refused(Errno::EXIST)) => {}
            answer => return answer,
        }
        let found = self.sets.ask(&as_ourselves(ctx), to.hashed, at.clone()).await?.found;
        match found {
            Some(found) if found.iatt.gfid == owner.gfid && found.linkto.is_some() => Ok(()),
            Some(found) => {
                self.clear_stray(ctx, &at, to.hashed, &found).await?;
                self.make_link(ctx, &at, to.hashed, held.cached, &owner, rename.when).await
            }
            None => Err(Errno::STALE.into()),
        }
    }

    /// The content loses the new name.
    async fn take_back_name(&self, ctx: &Ctx, rename: &Rename, held: &Held) {
        let gfid = held.iatt.gfid;
        if let Err(error) = self.unlink_content(ctx, &destination(rename), gfid, held.cached, rename).await {
            tracing::warn!(id = ctx.id, %gfid, %error, "the new name of a rename that failed stays");
        }
    }

    /// Undo what was prepared, unless the link file belongs there.
    async fn take_back_link(&self, ctx: &Ctx, rename: &Rename, held: &Held, to: &Destination) {
        if held.hashed != to.hashed
            && let Err(error) = self.drop_link(ctx, &source(rename), held.iatt.gfid, to.hashed).await
        {
            tracing::warn!(id = ctx.id, %error, "a link file for a rename that failed stays");
        }
    }

    /// The instant of the rename: the link file takes the new name, in the place of whatever had it.
    async fn switch_link(&self, ctx: &Ctx, rename: &Rename, to: &Destination) -> Result<Renamed> {
        self.sets.ask(ctx, to.hashed, rename.clone()).await
    }

    /// The link file of the old name goes, unless the renaming itself took it from one of these subvolumes. The rename
    /// has happened: should this fail, the link file leads nowhere, and whoever meets it clears it away.
    async fn drop_old_link(&self, ctx: &Ctx, rename: &Rename, held: &Held, taken_on: &[usize]) {
        if !taken_on.contains(&held.hashed)
            && let Err(error) = self.drop_link(ctx, &source(rename), held.iatt.gfid, held.hashed).await
        {
            tracing::warn!(id = ctx.id, %error, "the link file of an old name stays");
        }
    }

    /// The content that had the new name goes, where the rename itself has not replaced it.
    async fn drop_replaced(
        &self,
        ctx: &Ctx,
        rename: &Rename,
        held: &Held,
        to: &Destination,
        replaced: Option<Iatt>,
    ) -> Result<Option<Iatt>> {
        let Some((set, iatt)) = to.taken else { return Ok(None) };
        if set == to.hashed || set == held.cached {
            return Ok(replaced.filter(|replaced| replaced.gfid == iatt.gfid));
        }
        match self.unlink_content(ctx, &destination(rename), iatt.gfid, set, rename).await {
            Ok(removed) => Ok(Some(removed.iatt)),
            Err(error) if error.is_absent() => Ok(Some(Iatt { nlink: 0, ..iatt })),
            Err(error) => Err(error),
        }
    }
}

// Directories.
impl Core {
    /// The subvolume where the new name belongs decides; then the others follow at once, or all goes back.
    async fn rename_directory(
        &self,
        ctx: &Ctx,
        rename: &Rename,
        hashed: usize,
        moved: &Found,
        victim: Option<&Found>,
    ) -> Result<Renamed> {
        self.sets.need_all()?;
        let before = self.layout(ctx, moved.iatt.gfid).await?;
        let victim = match victim.map(|victim| victim.iatt).filter(|victim| victim.gfid != moved.iatt.gfid) {
            Some(victim) => {
                self.must_be_empty(ctx, victim.gfid).await?;
                let layout = self.layout(ctx, victim.gfid).await?;
                self.memory.layouts.remove(&victim.gfid);
                Some((victim, layout))
            }
            None => None,
        };
        let mut renamed = self.sets.ask(ctx, hashed, rename.clone()).await?;
        renamed.iatt = merge::shown(renamed.iatt);
        renamed.from_parent = merge::shown(renamed.from_parent);
        renamed.to_parent = merge::shown(renamed.to_parent);
        let mut done = vec![hashed];
        let mut failure = None;
        for (set, answer) in self.sets.ask_some(ctx, self.sets.others(hashed), rename).await {
            match answer {
                Ok(other) => {
                    done.push(set);
                    renamed.iatt = merge::iatts(renamed.iatt, &other.iatt);
                    renamed.from_parent = merge::iatts(renamed.from_parent, &other.from_parent);
                    renamed.to_parent = merge::iatts(renamed.to_parent, &other.to_parent);
                }
                // It had no part there; the next lookup makes it under the new name.
                Err(error) if error.is_absent() => {}
                Err(error) => failure = Some(error),
            }
        }
        let Some(error) = failure else { return Ok(renamed) };
        self.rename_directory_back(ctx, rename, &done).await;
        self.mend_after(ctx, &source(rename), &before, error).await;
        if let Some((victim, layout)) = victim {
            self.make_victim_again(ctx, &destination(rename), &victim, &layout, &done).await;
            self.mend_after(ctx, &destination(rename), &layout, error).await;
        }
        Err(error)
    }

    /// The directory gets its old name again where it had got the new one.
    async fn rename_directory_back(&self, ctx: &Ctx, rename: &Rename, done: &[usize]) {
        let back = Rename {
            from_parent: rename.to_parent,
            from_name: rename.to_name.clone(),
            to_parent: rename.from_parent,
            to_name: rename.from_name.clone(),
            replace: Replace::No,
            when: rename.when,
        };
        for (set, answer) in self.sets.ask_some(&as_ourselves(ctx), done.iter().copied(), &back).await {
            if let Err(again) = answer {
                let set = self.sets.name(set);
                tracing::error!(id = ctx.id, set, error = %again, "a directory has its new name in part only");
            }
        }
    }

    /// The empty directory that was replaced is made again where it was replaced.
    async fn make_victim_again(&self, ctx: &Ctx, at: &Lookup, victim: &Iatt, layout: &Layout, done: &[usize]) {
        for &set in done {
            let share = layout.shares()[set].to_raw();
            if let Err(error) = self.make_missing(ctx, at, victim, set, share).await {
                let set = self.sets.name(set);
                tracing::error!(id = ctx.id, set, %error, "a replaced directory is missing in part");
            }
        }
    }
}
