//! How names go away.
//!
//! Content goes before the link file that leads to it: a link file without content is nothing, content without its
//! link file would be an orphan. The parts of a directory go before the one that the name belongs to, which decides.

use std::sync::Arc;

use futures::future::join;

use crate::ctx::Ctx;
use crate::distribute::Core;
use crate::distribute::hold::{Attempt, FENCES_MAX, Grip, Hold, Reach};
use crate::distribute::layout::Layout;
use crate::distribute::lookup::Named;
use crate::distribute::memory::Hint;
use crate::distribute::merge;
use crate::distribute::sets::as_ourselves;
use crate::error::{Errno, FopError, Result};
use crate::fop::{Getattr, Lookup, Only, Readdir, Rmdir, Unlink};
use crate::reply::{DirEntry, Looked, Removed};
use crate::types::{AttrMask, Gfid, Kind};

// Names of files.
impl Core {
    /// One fop, where the content is where the name belongs.
    pub(super) async fn unlink(self: &Arc<Self>, ctx: &Ctx, unlink: Unlink) -> Result<Removed> {
        let only = match unlink.only {
            Only::LinkFile(_) | Only::Content | Only::ContentOf(_) => return Err(Errno::INVAL.into()),
            Only::Gfid(gfid) => Only::ContentOf(gfid),
            Only::Any => Only::Content,
        };
        let layout = self.layout(ctx, unlink.parent).await?;
        let hashed = layout.set_of(unlink.name.as_bytes());
        let linked = matches!(self.memory.hint(unlink.parent, &unlink.name), Some(Hint::Linked(_)));
        let Some(hashed) = hashed.filter(|_| !linked) else { return self.unlink_sought(ctx, unlink).await };
        let one_fop = Unlink { only, ..unlink.clone() };
        let shared = self.locks.share(ctx, unlink.parent).await?;
        let removed = self.sets.ask(ctx, hashed, one_fop).await;
        drop(shared);
        match removed {
            Ok(removed) => Ok(Removed { parent: merge::shown(removed.parent), ..removed }),
            // It is a link file.
            Err(FopError::Refused(Errno::BUSY)) => self.unlink_sought(ctx, unlink).await,
            Err(error) if error.is_absent() && !layout.is_committed(self.volume_commit(ctx).await?) => {
                self.unlink_sought(ctx, unlink).await
            }
            Err(error) => Err(error),
        }
    }

    /// Look where the content is, then remove it, then its link file, while the directory stands still.
    async fn unlink_sought(self: &Arc<Self>, ctx: &Ctx, unlink: Unlink) -> Result<Removed> {
        self.to_the_end(&ctx.step(), async move |core, ctx| {
            let layout = core.layout(&ctx, unlink.parent).await?;
            let hashed = layout.set_of(unlink.name.as_bytes());
            let hint = core.memory.hint(unlink.parent, &unlink.name);
            let content = if let Some(Hint::Linked(set)) = hint { Some(set) } else { None };
            let has_a_part = |set: &usize| hashed.is_none_or(|hashed| hashed == *set) || content == Some(*set);
            let mut reach = Reach::of(core.sets.all().filter(has_a_part));
            let mut fences = 0;
            loop {
                let hold = core.hold(&ctx, &[unlink.parent], &reach).await?;
                match core.unlink_held(&hold, &unlink).await {
                    Ok(Attempt::Done(removed)) => return Ok(removed),
                    Ok(Attempt::Beyond(more)) => reach = reach.wider(&core, more),
                    Ok(Attempt::With(_)) => return Err(Errno::ISDIR.into()),
                    Err(FopError::Fenced) if fences < FENCES_MAX => fences += 1,
                    Err(error) => return Err(error),
                }
            }
        })
        .await
    }

    async fn unlink_held(&self, hold: &Hold<'_>, unlink: &Unlink) -> Result<Attempt<Removed>> {
        let at = Lookup { parent: unlink.parent, name: unlink.name.clone() };
        let resolved = self.resolve(&hold.ctx, &at, Grip::Held(hold)).await?;
        let (set, found) = match resolved.named {
            Named::Absent(_) => return Err(Errno::NOENT.into()),
            Named::Directory(_) | Named::Torn(_) => return Err(Errno::ISDIR.into()),
            Named::File(set, found) => (set, found),
            Named::Beyond(more) => return Ok(Attempt::Beyond(more)),
        };
        let gfid = found.iatt.gfid;
        if matches!(unlink.only, Only::Gfid(only) if only != gfid) {
            return Err(Errno::STALE.into());
        }
        self.memory.drop_hint(at.parent, &at.name);
        let content = Unlink { only: Only::Gfid(gfid), ..unlink.clone() };
        let content = self.sets.ask(&hold.ctx, set, content).await?;
        let Some(hashed) = resolved.hashed.filter(|&hashed| hashed != set) else {
            return Ok(Attempt::Done(Removed { parent: merge::shown(content.parent), ..content }));
        };
        let link = Unlink { only: Only::LinkFile(gfid), ..unlink.clone() };
        match self.sets.ask(&as_ourselves(&hold.ctx), hashed, link).await {
            Ok(link) => Ok(Attempt::Done(joined(content, &link))),
            // The file is gone. A link file that leads nowhere is cleared away by whoever meets it.
            Err(error) => {
                tracing::info!(id = hold.ctx.id, parent = %at.parent, name = ?at.name, %error, "a link file stays");
                Ok(Attempt::Done(Removed { parent: merge::shown(content.parent), ..content }))
            }
        }
    }
}

/// The content is what was removed; the parent changed on both subvolumes.
fn joined(content: Removed, link: &Removed) -> Removed {
    Removed { parent: merge::iatts(content.parent, &link.parent), ..content }
}

/// How much of a directory is listed to see whether it is empty: one entry would do.
const GLANCE_BYTES: u32 = 4096;

// Names of directories.
impl Core {
    /// The directory and the one that it is in stand still meanwhile: nobody makes a name in it, and nobody finds it on
    /// some copies only.
    pub(super) async fn rmdir(&self, ctx: &Ctx, rmdir: Rmdir) -> Result<Removed> {
        let at = Lookup { parent: rmdir.parent, name: rmdir.name.clone() };
        self.sets.need_all()?;
        let mut attempts = FENCES_MAX;
        loop {
            let gfid = self.directory_named(ctx, &at).await?;
            let hold = self.hold(ctx, &[at.parent, gfid], &Reach::of(self.sets.all())).await?;
            let removed = self.rmdir_held(&hold.ctx, &rmdir, gfid).await;
            drop(hold);
            match removed {
                Err(FopError::Fenced) if attempts > 0 => attempts -= 1,
                answer => return answer,
            }
        }
    }

    /// Nothing is touched unless the directory is empty everywhere; the part that the name belongs to goes last. If one
    /// part cannot be removed, those that are gone are made again. `Fenced` also when the name leads elsewhere now.
    async fn rmdir_held(&self, ctx: &Ctx, rmdir: &Rmdir, gfid: Gfid) -> Result<Removed> {
        let at = Lookup { parent: rmdir.parent, name: rmdir.name.clone() };
        let layout = self.layout(ctx, at.parent).await?;
        let last = layout.set_of(at.name.as_bytes()).unwrap_or(0);
        self.memory.drop_hint(at.parent, &at.name);
        let (named, empty) = join(self.sets.ask(ctx, last, at.clone()), self.must_be_empty(ctx, gfid)).await;
        if named.is_ok_and(|named| named.found.is_some_and(|found| found.iatt.gfid != gfid)) {
            return Err(FopError::Fenced);
        }
        empty?;
        let before = self.layout(ctx, gfid).await?;
        self.memory.layouts.remove(&gfid);
        let mut parts = Vec::new();
        let mut failure = None;
        for (_, answer) in self.sets.ask_some(ctx, self.sets.others(last), rmdir).await {
            match answer {
                Ok(removed) => parts.push(removed),
                Err(error) if error.is_absent() => {}
                Err(error) => failure = Some(error),
            }
        }
        let removed = match failure {
            Some(error) => Err(error),
            None => self.sets.ask(ctx, last, rmdir.clone()).await,
        };
        match removed {
            Ok(removed) => Ok(parts.iter().fold(
                Removed { iatt: merge::shown(removed.iatt), parent: merge::shown(removed.parent) },
                |whole, part| Removed { iatt: whole.iatt, parent: merge::iatts(whole.parent, &part.parent) },
            )),
            // It was missing where the name belongs; the other parts were all there was.
            Err(error) if error.is_absent() && !parts.is_empty() => Ok(parts.swap_remove(0)),
            Err(FopError::Fenced) => Err(FopError::Fenced),
            Err(error) => {
                self.mend_after(ctx, &at, &before, error).await;
                Err(error)
            }
        }
    }

    /// The gfid of the directory that has the name, remembered or asked for.
    async fn directory_named(&self, ctx: &Ctx, at: &Lookup) -> Result<Gfid> {
        if let Some(Hint::Directory(gfid)) = self.memory.hint(at.parent, &at.name) {
            return Ok(gfid);
        }
        match self.look(ctx, at).await?.named {
            Named::Directory(found) => Ok(found.iatt.gfid),
            Named::Beyond(_) | Named::Torn(_) => Err(FopError::Fenced),
            Named::File(..) => Err(Errno::NOTDIR.into()),
            Named::Absent(_) => Err(Errno::NOENT.into()),
        }
    }

    /// Only a glance where there is nothing at all. Where subvolumes hold names that nobody sees, these are cleared away.
    pub(super) async fn must_be_empty(&self, ctx: &Ctx, gfid: Gfid) -> Result<()> {
        let glance = Readdir { gfid, fd: None, after: 0, bytes_max: GLANCE_BYTES, attrs: false };
        let mut littered = Vec::new();
        for (set, answer) in self.sets.ask_all(&as_ourselves(ctx), &glance).await {
            match answer {
                Ok(page) if page.entries.is_empty() => {}
                Ok(_) => littered.push(set),
                Err(error) if error.is_absent() => {}
                Err(error) => return Err(error),
            }
        }
        if littered.is_empty() {
            return Ok(());
        }
        let listing = Readdir { attrs: true, ..glance.clone() };
        if !self.readdir(&as_ourselves(ctx), listing).await?.entries.is_empty() {
            return Err(Errno::NOTEMPTY.into());
        }
        for set in littered {
            self.sweep(ctx, gfid, set).await?;
        }
        Ok(())
    }

    /// Clear away what a subvolume has in a directory that is empty to everybody.
    async fn sweep(&self, ctx: &Ctx, gfid: Gfid, set: usize) -> Result<()> {
        let ours = as_ourselves(ctx);
        let mut after = 0;
        loop {
            let listing = Readdir { gfid, fd: None, after, bytes_max: GLANCE_BYTES, attrs: true };
            let page = self.sets.ask(&ours, set, listing).await?;
            for entry in &page.entries {
                after = entry.cookie;
                self.sweep_entry(ctx, gfid, set, entry).await?;
            }
            if page.end || page.entries.is_empty() {
                return Ok(());
            }
        }
    }

    async fn sweep_entry(&self, ctx: &Ctx, parent: Gfid, set: usize, entry: &DirEntry) -> Result<()> {
        let at = Lookup { parent, name: entry.name.clone() };
        let found = match &entry.found {
            Some(found) => found.clone(),
            None => {
                let getattr = Getattr { gfid: entry.gfid, fd: None, exact: AttrMask::empty() };
                Box::new(self.sets.ask(&as_ourselves(ctx), set, getattr).await?)
            }
        };
        match self.clear_stray(ctx, &at, set, &found).await {
            Err(FopError::Refused(Errno::IO)) => {
                let gfid = found.iatt.gfid;
                tracing::error!(id = ctx.id, %parent, name = ?at.name, %gfid, set = self.sets.name(set), "an orphan keeps its directory");
                Err(Errno::NOTEMPTY.into())
            }
            answer => answer,
        }
    }

    /// Make the missing parts of a directory again, after it could not be removed.
    pub(super) async fn mend_after(&self, ctx: &Ctx, at: &Lookup, before: &Layout, error: FopError) {
        tracing::info!(id = ctx.id, parent = %at.parent, name = ?at.name, %error, "a directory stays");
        for (set, answer) in self.sets.ask_all(ctx, at).await {
            let Ok(Looked { found: Some(found), .. }) = answer else { continue };
            if found.iatt.kind != Kind::Dir {
                continue;
            }
            if let Err(error) = self.mend_now(ctx, at, set, found, before).await {
                tracing::warn!(id = ctx.id, parent = %at.parent, name = ?at.name, %error, "parts of a directory stay missing");
            }
            return;
        }
    }
}
