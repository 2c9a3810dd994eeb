//! Directories are on every subvolume: how they are put together, made, and mended.
//!
//! Invariant: a directory has the same gfid everywhere; who makes a missing part never chooses a new one.

use std::sync::Arc;

use bytes::Bytes;

use crate::ctx::Ctx;
use crate::distribute::Core;
use crate::distribute::create::PATIENCE;
use crate::distribute::hold::{FENCES_MAX, Grip, Hold, Reach};
use crate::distribute::layout::{self, Layout, Share};
use crate::distribute::lookup::Named;
use crate::distribute::memory::{Hint, Place};
use crate::distribute::merge;
use crate::distribute::sets::{Answers, as_ourselves};
use crate::error::{Errno, FopError, Result};
use crate::fop::{Getattr, Getxattr, Listxattr, Lookup, Mkdir, Only, Rmdir, SetHow, Setattr, Setxattr, Unlink};
use crate::reply::{Changed, Found, Looked, Made};
use crate::types::{AttrMask, Cover, Gfid, Iatt, Kind, RawLayout, Time, Xattr, XattrName};

const LAYOUT_XATTR: &[u8] = b"trusted.glusterfs.dht";
const COMMIT_XATTR: &[u8] = b"trusted.glusterfs.dht.commithash";

/// What all subvolumes have of one directory.
#[derive(Debug)]
pub(super) struct Views {
    /// The subvolume whose mode and owner hold, and what it has.
    authority: (usize, Box<Found>),
    others: Vec<(usize, Box<Found>)>,
    layout: Layout,
    /// Something else has the directory's name there.
    strangers: Vec<(usize, Box<Found>)>,
}

impl Views {
    /// From the authority's view, and what the others answered to the same lookup.
    pub(super) fn new(count: usize, authority: usize, found: Box<Found>, answers: Answers<Looked>) -> Result<Self> {
        let mut shares = vec![Share::Missing; count];
        let (mut others, mut strangers) = (Vec::with_capacity(count), Vec::new());
        shares[authority] = Share::of_directory(found.layout);
        for (set, answer) in answers {
            match answer {
                Ok(Looked { found: None, .. }) => {}
                Ok(Looked { found: Some(view), .. }) if is_same_directory(&view, &found) => {
                    shares[set] = Share::of_directory(view.layout);
                    others.push((set, view));
                }
                Ok(Looked { found: Some(stranger), .. }) => strangers.push((set, stranger)),
                Err(FopError::Unreachable) => shares[set] = Share::Unknown,
                Err(error) if error.is_absent() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Self { authority: (authority, found), others, layout: Layout::new(shares), strangers })
    }

    /// Some subvolume gave no answer.
    fn is_partial(&self) -> bool {
        self.layout.is_partial()
    }

    /// Nothing has to be mended, or nothing can be.
    pub(super) fn are_enough(&self) -> bool {
        self.fit_together() || self.is_partial()
    }

    /// Nothing has to be mended.
    fn fit_together(&self) -> bool {
        let authority = &self.authority.1.iatt;
        self.layout.is_sound() && !self.others.iter().any(|(_, view)| merge::disagree(authority, &view.iatt))
    }
}

fn is_same_directory(view: &Found, authority: &Found) -> bool {
    view.iatt.kind == Kind::Dir && view.iatt.gfid == authority.iatt.gfid
}

// How directories are put together.
impl Core {
    /// The layout of a directory, remembered or asked for.
    pub(super) async fn layout(&self, ctx: &Ctx, directory: Gfid) -> Result<Arc<Layout>> {
        if let Some(layout) = self.memory.layouts.get(&directory)
            && !self.knows_more_now(&layout)
        {
            return Ok(layout);
        }
        let layout = Arc::new(self.fetch_layout(ctx, directory).await?);
        self.remember_layout(directory, &layout);
        Ok(layout)
    }

    /// Whoever gave no answer before would give one now.
    fn knows_more_now(&self, layout: &Layout) -> bool {
        let unknown = layout.shares().iter().enumerate().filter(|(_, share)| **share == Share::Unknown);
        unknown.map(|(set, _)| set).any(|set| self.sets.is_up(set))
    }

    /// Not while a part is missing: somebody is about to make it.
    fn remember_layout(&self, directory: Gfid, layout: &Arc<Layout>) {
        if !layout.shares().contains(&Share::Missing) {
            self.memory.layouts.put(directory, Arc::clone(layout));
        }
    }

    async fn fetch_layout(&self, ctx: &Ctx, directory: Gfid) -> Result<Layout> {
        let getattr = Getattr { gfid: directory, fd: None, exact: AttrMask::empty() };
        let mut shares = vec![Share::Missing; self.sets.count()];
        let mut error = None;
        for (set, answer) in self.sets.ask_all(&as_ourselves(ctx), &getattr).await {
            match answer {
                Ok(found) if found.iatt.kind == Kind::Dir => shares[set] = Share::of_directory(found.layout),
                Ok(_) => return Err(Errno::NOTDIR.into()),
                Err(FopError::Unreachable) => shares[set] = Share::Unknown,
                Err(refused) if refused.is_absent() => error = Some(refused),
                Err(refused) => return Err(refused),
            }
        }
        let layout = Layout::new(shares);
        if layout.shares().iter().all(|share| matches!(share, Share::Missing | Share::Unknown)) {
            return Err(if layout.is_partial() { FopError::Unreachable } else { error.unwrap_or(Errno::STALE.into()) });
        }
        let whole = layout.cover() == layout::Cover::Whole;
        let exists_everywhere = !layout.shares().iter().any(|share| matches!(share, Share::Missing | Share::Unknown));
        if whole || !exists_everywhere {
            return Ok(layout);
        }
        // The root of a fresh volume comes here once in its life.
        let repaired = layout::repaired(&layout, directory, self.sets.order());
        self.write_layout(ctx, directory, &layout, &repaired).await?;
        Ok(repaired)
    }

    /// Write what changed of a layout, to all subvolumes or to none that count.
    async fn write_layout(&self, ctx: &Ctx, directory: Gfid, old: &Layout, new: &Layout) -> Result<()> {
        tracing::info!(id = ctx.id, %directory, "laying out a directory anew");
        let changed = self.sets.all().filter(|&set| old.shares()[set] != new.shares()[set]);
        let writes = changed.map(|set| (set, set_layout(directory, new.shares()[set].to_raw())));
        for (_, answer) in self.sets.ask_each(&as_ourselves(ctx), writes).await {
            answer?;
        }
        Ok(())
    }

    /// Remember a directory, and show it as one.
    pub(super) fn adopt(&self, views: Views) -> Found {
        let gfid = views.authority.1.iatt.gfid;
        let whole = !views.is_partial();
        let found = merge::directory(&views.authority.1, views.others.iter().map(|(_, view)| &**view));
        self.remember_layout(gfid, &Arc::new(views.layout));
        self.memory.places.put(gfid, Place::Everywhere);
        if whole { found } else { Found { cover: Cover::empty(), ..found } }
    }

    /// The state of the volume that committed layouts refer to.
    pub(super) async fn volume_commit(&self, ctx: &Ctx) -> Result<u32> {
        let ask = async || {
            let name = XattrName::new(COMMIT_XATTR).expect("the constant is a valid name");
            let mut last = Err(FopError::Unreachable);
            for set in self.sets.all() {
                let getxattr = Getxattr { gfid: Gfid::ROOT, name: name.clone() };
                match self.sets.ask(&as_ourselves(ctx), set, getxattr).await {
                    Ok(value) => return Ok(parse_commit(&value.value)),
                    Err(FopError::Refused(Errno::NODATA)) => return Ok(0),
                    Err(error) => last = Err(error),
                }
            }
            last
        };
        self.commit.get_or_try_init(ask).await.copied()
    }
}

/// Decimal text, with a NUL. What is something else matches no directory.
fn parse_commit(value: &[u8]) -> u32 {
    let text = std::str::from_utf8(value.strip_suffix(b"\0").unwrap_or(value)).unwrap_or_default();
    text.parse().unwrap_or(layout::COMMIT_INVALID)
}

fn set_layout(gfid: Gfid, RawLayout(bytes): RawLayout) -> Setxattr {
    let name = XattrName::new(LAYOUT_XATTR).expect("the constant is a valid name");
    let xattr = Xattr { name, value: Bytes::copy_from_slice(&bytes) };
    Setxattr { gfid, xattr, how: SetHow::Any, kill_sgid: false, when: Time::default() }
}

// How directories are made.
impl Core {
    /// The directory that it is in stands still meanwhile: nobody finds the new one on some subvolumes only.
    pub(super) async fn mkdir(&self, ctx: &Ctx, mkdir: Mkdir) -> Result<Made> {
        self.sets.need_all()?;
        let gfid = mkdir.birth.gfid;
        let layout = layout::assign(gfid, self.sets.order(), self.volume_commit(ctx).await?);
        let (mut fences, mut pauses) = (0, PATIENCE.iter());
        let made = loop {
            let hold = self.hold(ctx, &[mkdir.parent], &Reach::of(self.sets.all())).await?;
            let made = self.mkdir_held(&hold, &mkdir, &layout).await;
            drop(hold);
            match made {
                Err(FopError::Fenced) if fences < FENCES_MAX => fences += 1,
                Err(error) if error.is_absent() => {
                    let Some(pause) = pauses.next() else { return Err(error) };
                    self.memory.layouts.remove(&mkdir.parent);
                    self.layout(ctx, mkdir.parent).await?;
                    tokio::time::sleep(*pause).await;
                }
                answer => break answer?,
            }
        };
        self.remember_layout(gfid, &Arc::new(layout));
        self.memory.places.put(gfid, Place::Everywhere);
        self.memory.set_hint(mkdir.parent, &mkdir.name, Hint::Directory(gfid));
        Ok(made)
    }

    /// The subvolume that the name belongs to decides who makes it; then the others follow at once, or all goes back.
    async fn mkdir_held(&self, hold: &Hold<'_>, mkdir: &Mkdir, layout: &Layout) -> Result<Made> {
        let ctx = &hold.ctx;
        let lookup = Lookup { parent: mkdir.parent, name: mkdir.name.clone() };
        let hashed = self.set_for_new(ctx, &lookup).await?;
        let part =
            |set: usize| Mkdir { layout: Some(layout.shares()[set].to_raw()), mds: set == hashed, ..mkdir.clone() };
        let mut made = self.make_first_part(hold, &lookup, hashed, &part(hashed)).await?;
        made.iatt = merge::shown(made.iatt);
        made.parent = merge::shown(made.parent);
        let parts = self.sets.others(hashed).map(|set| (set, part(set)));
        for (set, answer) in self.sets.ask_each(ctx, parts).await {
            let answer = match answer {
                Err(FopError::Refused(Errno::EXIST)) => self.make_part_again(ctx, &lookup, set, part(set)).await,
                answer => answer,
            };
            match answer {
                Ok(other) => add_part(&mut made, &other),
                Err(error) => {
                    self.unmake_directory(ctx, &lookup, mkdir.birth.gfid, hashed, mkdir.birth.when).await;
                    return Err(error);
                }
            }
        }
        Ok(made)
    }

    /// In spite of what a dead client left there. So it is with what this mkdir left itself when its leases were lost.
    async fn make_first_part(&self, hold: &Hold<'_>, lookup: &Lookup, hashed: usize, part: &Mkdir) -> Result<Made> {
        let ctx = &hold.ctx;
        match self.sets.ask(ctx, hashed, part.clone()).await {
            Err(FopError::Refused(Errno::EXIST)) => {}
            answer => return answer,
        }
        match self.resolve(ctx, lookup, Grip::Held(hold)).await?.named {
            Named::Absent(_) => {}
            named if named.gfid() == Some(part.birth.gfid) => {
                self.unmake_directory(ctx, lookup, part.birth.gfid, hashed, part.birth.when).await;
            }
            _ => return Err(Errno::EXIST.into()),
        }
        self.sets.ask(ctx, hashed, part.clone()).await
    }

    /// What has the name on a subvolume that does not decide about it was left there.
    async fn make_part_again(&self, ctx: &Ctx, lookup: &Lookup, set: usize, part: Mkdir) -> Result<Made> {
        if let Some(found) = self.sets.ask(ctx, set, lookup.clone()).await?.found {
            self.clear_stray(ctx, lookup, set, &found).await?;
        }
        self.sets.ask(ctx, set, part).await
    }

    /// Remove what has the name on a subvolume where nobody can see it: a link file, or an empty directory.
    pub(super) async fn clear_stray(&self, ctx: &Ctx, lookup: &Lookup, set: usize, found: &Found) -> Result<()> {
        let gfid = found.iatt.gfid;
        tracing::warn!(id = ctx.id, parent = %lookup.parent, name = ?lookup.name, %gfid, set = self.sets.name(set), "clearing away what was left over");
        if found.linkto.is_some() {
            return self.drop_link(ctx, lookup, gfid, set).await;
        }
        if found.iatt.kind == Kind::Dir {
            let rmdir = Rmdir { parent: lookup.parent, name: lookup.name.clone(), when: Time::default() };
            return match self.sets.ask(&as_ourselves(ctx), set, rmdir).await {
                Ok(_) | Err(FopError::Refused(Errno::NOENT)) => Ok(()),
                Err(error) => Err(error),
            };
        }
        // Other names lead to the same content, so nothing is lost.
        if found.iatt.nlink > 1 {
            let unlink = Unlink {
                parent: lookup.parent,
                name: lookup.name.clone(),
                only: Only::Gfid(gfid),
                when: Time::default(),
            };
            return self.sets.ask(&as_ourselves(ctx), set, unlink).await.map(drop);
        }
        Err(Errno::IO.into())
    }

    /// Take back a new directory, where it was made. The subvolume that the name belongs to comes last.
    async fn unmake_directory(&self, ctx: &Ctx, lookup: &Lookup, gfid: Gfid, hashed: usize, when: Time) {
        let rmdir = Rmdir { parent: lookup.parent, name: lookup.name.clone(), when };
        let ours = as_ourselves(ctx);
        let mut parts = Vec::new();
        for (set, answer) in self.sets.ask_some(&ours, self.sets.others(hashed), lookup).await {
            if answer.is_ok_and(|looked| looked.found.is_some_and(|found| found.iatt.gfid == gfid)) {
                parts.push(set);
            }
        }
        let others = self.sets.ask_some(&ours, parts, &rmdir).await;
        let last = self.sets.ask(&ours, hashed, rmdir).await.map(drop);
        for error in others.into_iter().filter_map(|(_, answer)| answer.err()).chain(last.err()) {
            tracing::warn!(id = ctx.id, parent = %lookup.parent, name = ?lookup.name, %error, "a half-made directory stays");
        }
    }
}

fn add_part(made: &mut Made, other: &Made) {
    made.iatt = merge::iatts(made.iatt, &other.iatt);
    made.parent = merge::iatts(made.parent, &other.parent);
    made.cover &= other.cover | Cover::NAME;
}

// How directories are mended.
impl Core {
    /// Mend a directory that we know to be in pieces, with the layout that it had before.
    pub(super) async fn mend_now(
        &self,
        ctx: &Ctx,
        lookup: &Lookup,
        authority: usize,
        found: Box<Found>,
        before: &Layout,
    ) -> Result<()> {
        let answers = self.sets.ask_some(ctx, self.sets.others(authority), lookup).await;
        let views = Views::new(self.sets.count(), authority, found, answers)?;
        if views.fit_together() { Ok(()) } else { self.mend_to(ctx, lookup, &views, before).await }
    }

    /// Make what is missing, deal out what nobody has, and let the authority's attributes hold everywhere.
    pub(super) async fn mend_directory(&self, ctx: &Ctx, lookup: &Lookup, views: &Views) -> Result<()> {
        let gfid = views.authority.1.iatt.gfid;
        for (set, stranger) in &views.strangers {
            self.clear_stray(ctx, lookup, *set, stranger).await?;
        }
        if views.layout.cover() == layout::Cover::Whole {
            self.mend_to(ctx, lookup, views, &views.layout).await
        } else {
            self.mend_to(ctx, lookup, views, &layout::repaired(&views.layout, gfid, self.sets.order())).await
        }
    }

    /// As [`Self::mend_directory`], with a given layout, on the subvolumes that answered.
    async fn mend_to(&self, ctx: &Ctx, lookup: &Lookup, views: &Views, layout: &Layout) -> Result<()> {
        let (authority, found) = &views.authority;
        let gfid = found.iatt.gfid;
        tracing::info!(id = ctx.id, parent = %lookup.parent, name = ?lookup.name, %gfid, "mending a directory");
        let old = views.layout.shares();
        for set in self.sets.all().filter(|&set| old[set] == Share::Missing) {
            let made = self.make_missing(ctx, lookup, &found.iatt, set, layout.shares()[set].to_raw()).await?;
            self.copy_xattrs(ctx, gfid, *authority, set).await?;
            if let Some(made) = made.filter(|made| merge::disagree(made, &found.iatt)) {
                self.give_attributes(ctx, &found.iatt, set, made.ctime).await?;
            }
        }
        let there = |set: &usize| !matches!(old[*set], Share::Missing | Share::Unknown);
        let stale = self.sets.all().filter(there).filter(|&set| layout.shares()[set] != old[set]);
        let writes = stale.map(|set| (set, set_layout(gfid, layout.shares()[set].to_raw())));
        for (_, answer) in self.sets.ask_each(&as_ourselves(ctx), writes).await {
            answer?;
        }
        for (set, view) in views.others.iter().filter(|(_, view)| merge::disagree(&found.iatt, &view.iatt)) {
            self.give_attributes(ctx, &found.iatt, *set, view.iatt.ctime).await?;
        }
        self.memory.layouts.remove(&gfid);
        Ok(())
    }

    /// `None` when somebody else has just made it.
    pub(super) async fn make_missing(
        &self,
        ctx: &Ctx,
        lookup: &Lookup,
        iatt: &Iatt,
        set: usize,
        layout: RawLayout,
    ) -> Result<Option<Iatt>> {
        let birth = crate::fop::Birth {
            gfid: iatt.gfid,
            mode: iatt.mode,
            umask: 0,
            uid: iatt.uid,
            gid: iatt.gid,
            when: iatt.ctime,
            times: Some((iatt.atime, iatt.mtime)),
            xattrs: Vec::new(),
            pending: Vec::new(),
        };
        let (parent, name) = (lookup.parent, lookup.name.clone());
        let mkdir = Mkdir { parent, name, birth: Box::new(birth), layout: Some(layout), mds: false, lease: false };
        match self.sets.ask(&as_ourselves(ctx), set, mkdir).await {
            Ok(made) => Ok(Some(made.iatt)),
            Err(FopError::Refused(Errno::EXIST)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn give_attributes(&self, ctx: &Ctx, iatt: &Iatt, set: usize, when: Time) -> Result<Changed> {
        let setattr = Setattr {
            gfid: iatt.gfid,
            fd: None,
            mode: Some(iatt.mode),
            uid: Some(iatt.uid),
            gid: Some(iatt.gid),
            atime: None,
            mtime: None,
            kill_priv: false,
            when,
        };
        self.sets.ask(&as_ourselves(ctx), set, setattr).await
    }

    /// Attributes that programs set, and ACLs. Ours belong to each subvolume alone, and are not listed to clients.
    async fn copy_xattrs(&self, ctx: &Ctx, gfid: Gfid, from: usize, to: usize) -> Result<()> {
        let ours = as_ourselves(ctx);
        let is_ours = |name: &XattrName| {
            [&b"trusted.glusterfs."[..], b"trusted.gfid", b"trusted.afr."]
                .iter()
                .any(|p| name.as_bytes().starts_with(p))
        };
        let names = self.sets.ask(&ours, from, Listxattr { gfid }).await?.names;
        for name in names.into_iter().filter(|name| !is_ours(name)) {
            let value = self.sets.ask(&ours, from, Getxattr { gfid, name: name.clone() }).await?.value;
            let xattr = Xattr { name, value };
            let setxattr = Setxattr { gfid, xattr, how: SetHow::Any, kill_sgid: false, when: Time::default() };
            self.sets.ask(&ours, to, setxattr).await?;
        }
        Ok(())
    }
}
