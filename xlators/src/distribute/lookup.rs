//! What a name leads to.
//!
//! The subvolume that the name belongs to is asked first, and its answer about a file is the answer. A directory is on
//! all subvolumes and put together from all. A link file is followed. What does not fit together was looked at while
//! somebody changed it, or is what a dead client left: it is looked at again, at last with the directory held still, and
//! then repaired.
//!
//! Invariant: a subvolume that does not answer never makes a name absent.

use smallvec::{SmallVec, smallvec};

use crate::ctx::Ctx;
use crate::distribute::Core;
use crate::distribute::dirs::Views;
use crate::distribute::hold::{FENCES_MAX, Grip, Hold, Reach};
use crate::distribute::memory::{Hint, Place};
use crate::distribute::sets::Answers;
use crate::error::{Errno, FopError, Result};
use crate::fop::Lookup;
use crate::reply::{Found, Looked};
use crate::types::{Cover, Gfid, Kind};

/// How often what does not fit together is looked at before its directory is held still for that.
const LOOKS: usize = 2;

/// What a name leads to.
#[derive(Debug)]
pub(super) enum Named {
    /// To nothing, and how sure that is.
    Absent(Cover),
    /// To a directory, put together.
    Directory(Box<Found>),
    /// To a file, and the subvolume that has its content.
    File(usize, Box<Found>),
    /// Only seen with the directory held on this subvolume, too, or on all.
    Beyond(Option<usize>),
    /// To a directory that is in pieces, or that somebody is changing: only mended while it is held on all subvolumes, and
    /// the one that it is in.
    Torn(Gfid),
}

impl Named {
    /// The inode that it leads to, where that has been seen.
    pub(super) fn gfid(&self) -> Option<Gfid> {
        match self {
            Self::Torn(gfid) => Some(*gfid),
            Self::Directory(found) | Self::File(_, found) => Some(found.iatt.gfid),
            Self::Absent(_) | Self::Beyond(_) => None,
        }
    }

    /// The directory that the name leads to, unless it is held on all subvolumes.
    pub(super) fn to_be_held(&self, hold: &Hold<'_>) -> Option<Gfid> {
        let directory = self.gfid().filter(|_| matches!(self, Self::Torn(_) | Self::Directory(_)));
        directory.filter(|gfid| !hold.is_whole() || !hold.has(*gfid))
    }
}

/// What a name leads to, and the subvolume that it belongs to.
#[derive(Debug)]
pub(super) struct Resolved {
    /// `None` when the layout of the parent has a hole there.
    pub(super) hashed: Option<usize>,
    pub(super) named: Named,
}

impl Core {
    pub(super) async fn lookup(&self, ctx: &Ctx, lookup: Lookup) -> Result<Looked> {
        Ok(match self.look(ctx, &lookup).await?.named {
            Named::Absent(cover) => Looked { found: None, cover },
            Named::Directory(found) | Named::File(_, found) => Looked { found: Some(found), cover: Cover::empty() },
            Named::Beyond(_) | Named::Torn(_) => return Err(FopError::Fenced),
        })
    }

    /// What a name leads to, for who does not hold its directory. Neither `Beyond` nor `Torn`.
    pub(super) async fn look(&self, ctx: &Ctx, lookup: &Lookup) -> Result<Resolved> {
        for _ in 0..LOOKS {
            let resolved = self.resolve(ctx, lookup, Grip::Free).await?;
            if !matches!(resolved.named, Named::Beyond(_) | Named::Torn(_)) {
                return Ok(resolved);
            }
        }
        Box::pin(self.look_closely(ctx, lookup)).await
    }

    /// As [`Self::look`], while the directory stands still, and if need be the one that the name leads to.
    async fn look_closely(&self, ctx: &Ctx, lookup: &Lookup) -> Result<Resolved> {
        let mut directories: SmallVec<[Gfid; 2]> = smallvec![lookup.parent];
        for _ in 0..FENCES_MAX {
            let hold = self.hold(ctx, &directories, &Reach::of(self.sets.all())).await?;
            match self.resolve(&hold.ctx, lookup, Grip::Held(&hold)).await {
                Ok(Resolved { named: Named::Torn(gfid), .. }) => directories = smallvec![lookup.parent, gfid],
                Err(FopError::Fenced) => {}
                answer => return answer,
            }
        }
        Err(FopError::Fenced)
    }

    /// What a name leads to. With a grip on all subvolumes, what does not fit together is repaired.
    pub(super) async fn resolve(&self, ctx: &Ctx, lookup: &Lookup, grip: Grip<'_>) -> Result<Resolved> {
        let known = self.memory.layouts.get(&lookup.parent);
        let layout = match known.filter(|_| !grip.reaches_all()) {
            Some(layout) => layout,
            None if grip.reaches_all() => self.layout(ctx, lookup.parent).await?,
            None => return Ok(Resolved { hashed: None, named: Named::Beyond(None) }),
        };
        let hashed = layout.set_of(lookup.name.as_bytes());
        let named = match hashed {
            None => self.look_everywhere(ctx, lookup, None, grip).await?,
            Some(set) if !grip.reaches(set) => Named::Beyond(Some(set)),
            Some(set) => match self.sets.ask(ctx, set, lookup.clone()).await {
                Ok(Looked { found: Some(found), .. }) => self.look_at(ctx, lookup, set, found, grip).await?,
                Ok(Looked { found: None, cover }) if layout.is_committed(self.volume_commit(ctx).await?) => {
                    Named::Absent(cover)
                }
                Ok(Looked { found: None, .. }) => self.look_everywhere(ctx, lookup, hashed, grip).await?,
                Err(FopError::Unreachable) if grip.reaches_all() => self.look_around(ctx, lookup, set, grip).await?,
                Err(error) if error.is_absent() => self.look_everywhere(ctx, lookup, hashed, grip).await?,
                Err(error) => return Err(error),
            },
        };
        self.remember(lookup, hashed, &named);
        Ok(Resolved { hashed, named })
    }

    fn remember(&self, lookup: &Lookup, hashed: Option<usize>, named: &Named) {
        match named {
            Named::Beyond(_) | Named::Torn(_) => {}
            Named::Absent(_) => self.memory.drop_hint(lookup.parent, &lookup.name),
            Named::Directory(found) => {
                self.memory.places.put(found.iatt.gfid, Place::Everywhere);
                self.memory.set_hint(lookup.parent, &lookup.name, Hint::Directory(found.iatt.gfid));
            }
            Named::File(set, found) => {
                self.memory.places.put(found.iatt.gfid, Place::On(*set));
                if hashed != Some(*set) {
                    self.memory.set_hint(lookup.parent, &lookup.name, Hint::Linked(*set));
                }
            }
        }
    }

    /// The subvolume that the name belongs to has something.
    async fn look_at(
        &self,
        ctx: &Ctx,
        lookup: &Lookup,
        hashed: usize,
        found: Box<Found>,
        grip: Grip<'_>,
    ) -> Result<Named> {
        if found.iatt.kind == Kind::Dir {
            if !grip.reaches_all() {
                return Ok(Named::Beyond(None));
            }
            return self.look_at_directory(ctx, lookup, hashed, found, grip).await;
        }
        let Some(linkto) = &found.linkto else { return Ok(Named::File(hashed, found)) };
        let Some(target) = self.sets.named(linkto).filter(|&target| target != hashed) else {
            return self.look_everywhere(ctx, lookup, Some(hashed), grip).await;
        };
        if !grip.reaches(target) {
            return Ok(Named::Beyond(Some(target)));
        }
        let there = match self.sets.ask(ctx, target, lookup.clone()).await {
            Ok(looked) => looked.found,
            Err(error) if error.is_absent() => None,
            Err(error) => return Err(error),
        };
        match there {
            Some(mut data) if is_content_of(&data, found.iatt.gfid) => {
                data.cover &= found.cover | Cover::ATTRS;
                Ok(Named::File(target, data))
            }
            _ => self.look_everywhere(ctx, lookup, Some(hashed), grip).await,
        }
    }

    /// The subvolume that the name belongs to does not answer. A directory is on the others, too.
    async fn look_around(&self, ctx: &Ctx, lookup: &Lookup, hashed: usize, grip: Grip<'_>) -> Result<Named> {
        for (set, answer) in self.sets.ask_some(ctx, self.sets.others(hashed), lookup).await {
            match answer {
                Ok(Looked { found: Some(found), .. }) if found.iatt.kind == Kind::Dir => {
                    return self.look_at_directory(ctx, lookup, set, found, grip).await;
                }
                _ => {}
            }
        }
        Err(FopError::Unreachable)
    }

    /// Ask all, and judge what they have together. What does not fit may be half of a change that somebody is making,
    /// unless the directory is held.
    async fn look_everywhere(
        &self,
        ctx: &Ctx,
        lookup: &Lookup,
        hashed: Option<usize>,
        grip: Grip<'_>,
    ) -> Result<Named> {
        if !grip.reaches_all() {
            return Ok(Named::Beyond(None));
        }
        let mut sights = Sights::new(self.sets.ask_all(ctx, lookup).await)?;
        let settled = sights.files.len() < 2 && (sights.files.is_empty() || sights.directories.is_empty());
        if let (true, Some((set, found))) = (settled, take_authority(&mut sights.directories, hashed)) {
            return self.look_at_directory(ctx, lookup, set, found, grip).await;
        }
        if settled && sights.files.len() == 1 {
            let (set, found) = sights.files.remove(0);
            return self.found_file(ctx, lookup, hashed, sights, (set, found), grip).await;
        }
        if sights.unreachable {
            return Err(FopError::Unreachable);
        }
        if settled && sights.links.is_empty() {
            return Ok(Named::Absent(sights.cover));
        }
        if grip.is_whole() { self.judge(ctx, lookup, hashed, sights).await } else { Ok(Named::Beyond(None)) }
    }

    /// One subvolume has a file of this name. The subvolume that the name belongs to should say so.
    async fn found_file(
        &self,
        ctx: &Ctx,
        lookup: &Lookup,
        hashed: Option<usize>,
        sights: Sights,
        (set, mut found): (usize, Box<Found>),
        grip: Grip<'_>,
    ) -> Result<Named> {
        let gfid = found.iatt.gfid;
        let signed =
            sights.links.iter().any(|link| link.set == hashed.unwrap_or(set) && link.says(gfid, self.sets.name(set)));
        if let Some(hashed) = hashed.filter(|&hashed| hashed != set && !signed && !sights.unreachable) {
            if !grip.is_whole() {
                return Ok(Named::Beyond(None));
            }
            let stale = sights.links.iter().find(|link| link.set == hashed).map(|link| link.gfid);
            if let Err(error) = self.relink(ctx, lookup, stale, hashed, set, &found.iatt).await {
                tracing::warn!(id = ctx.id, parent = %lookup.parent, name = ?lookup.name, %error, "no link file could be made");
            }
        }
        if hashed != Some(set) {
            found.cover.remove(Cover::NAME);
        }
        Ok(Named::File(set, found))
    }

    /// Nobody is changing it: link files without content are left over; contradictions are for a person.
    async fn judge(&self, ctx: &Ctx, lookup: &Lookup, hashed: Option<usize>, mut sights: Sights) -> Result<Named> {
        if sights.files.is_empty() {
            for link in &sights.links {
                self.drop_link(ctx, lookup, link.gfid, link.set).await?;
            }
            return Ok(Named::Absent(Cover::empty()));
        }
        let all: Vec<_> = sights.files.iter().chain(&sights.directories).map(|(set, _)| self.sets.name(*set)).collect();
        tracing::error!(id = ctx.id, parent = %lookup.parent, name = ?lookup.name, on = ?all, "the name leads to several inodes");
        if !sights.directories.is_empty() {
            return Err(Errno::IO.into());
        }
        let linked = |file: &(usize, Box<Found>)| sights.links.iter().any(|link| link.gfid == file.1.iatt.gfid);
        let chosen = sights.files.iter().position(linked).unwrap_or(0);
        let (set, mut found) = sights.files.swap_remove(chosen);
        found.cover = if hashed == Some(set) { found.cover } else { Cover::empty() };
        Ok(Named::File(set, found))
    }

    /// Put a directory together. Who makes, moves, removes or changes one holds it, so that what does not fit together
    /// while it is held is what a dead client left behind, and is mended.
    async fn look_at_directory(
        &self,
        ctx: &Ctx,
        lookup: &Lookup,
        authority: usize,
        found: Box<Found>,
        grip: Grip<'_>,
    ) -> Result<Named> {
        let gfid = found.iatt.gfid;
        let views = self.views(ctx, lookup, authority, found).await?;
        if views.are_enough() {
            return Ok(Named::Directory(Box::new(self.adopt(views))));
        }
        if !grip.is_whole_of(gfid) {
            return Ok(Named::Torn(gfid));
        }
        self.mend_directory(ctx, lookup, &views).await?;
        match self.sets.ask(ctx, authority, lookup.clone()).await?.found {
            Some(again) if again.iatt.gfid == gfid => {
                let views = self.views(ctx, lookup, authority, again).await?;
                if views.are_enough() {
                    Ok(Named::Directory(Box::new(self.adopt(views))))
                } else {
                    Err(Errno::IO.into())
                }
            }
            _ => Err(FopError::Fenced),
        }
    }

    async fn views(&self, ctx: &Ctx, lookup: &Lookup, authority: usize, found: Box<Found>) -> Result<Views> {
        let answers = self.sets.ask_some(ctx, self.sets.others(authority), lookup).await;
        Views::new(self.sets.count(), authority, found, answers)
    }
}

fn is_content_of(found: &Found, gfid: Gfid) -> bool {
    found.iatt.gfid == gfid && found.iatt.kind != Kind::Dir && found.linkto.is_none()
}

/// The view of a directory to go by: that of the subvolume which the name belongs to, if it has one.
fn take_authority(directories: &mut Vec<(usize, Box<Found>)>, hashed: Option<usize>) -> Option<(usize, Box<Found>)> {
    let at = directories.iter().position(|(set, _)| Some(*set) == hashed).unwrap_or(0);
    (at < directories.len()).then(|| directories.swap_remove(at))
}

/// A link file, as it was seen.
#[derive(Debug)]
struct Link {
    set: usize,
    gfid: Gfid,
    linkto: Vec<u8>,
}

impl Link {
    fn says(&self, gfid: Gfid, set_name: &str) -> bool {
        self.gfid == gfid && self.linkto.strip_suffix(b"\0").unwrap_or(&self.linkto) == set_name.as_bytes()
    }
}

/// What all subvolumes have of one name.
#[derive(Debug)]
struct Sights {
    directories: Vec<(usize, Box<Found>)>,
    files: Vec<(usize, Box<Found>)>,
    links: Vec<Link>,
    unreachable: bool,
    /// How sure the absence is, where all agree on it.
    cover: Cover,
}

impl Sights {
    /// An error if the parent is nowhere, or somebody refuses.
    fn new(answers: Answers<Looked>) -> Result<Self> {
        let none = Self { directories: vec![], files: vec![], links: vec![], unreachable: false, cover: Cover::all() };
        let mut sights = none;
        let mut without_parent = None;
        let mut heard = false;
        for (set, answer) in answers {
            match answer {
                Ok(Looked { found: None, cover }) => {
                    heard = true;
                    sights.cover &= cover;
                }
                Ok(Looked { found: Some(found), .. }) => {
                    heard = true;
                    sights.add(set, found);
                }
                Err(FopError::Unreachable) => sights.unreachable = true,
                Err(error) if error.is_absent() => without_parent = Some(error),
                Err(error) => return Err(error),
            }
        }
        match without_parent {
            Some(error) if !heard && !sights.unreachable => Err(error),
            Some(_) => Ok(Self { cover: Cover::empty(), ..sights }),
            None => Ok(sights),
        }
    }

    fn add(&mut self, set: usize, found: Box<Found>) {
        match &found.linkto {
            _ if found.iatt.kind == Kind::Dir => self.directories.push((set, found)),
            Some(linkto) => self.links.push(Link { set, gfid: found.iatt.gfid, linkto: linkto.to_vec() }),
            None => self.files.push((set, found)),
        }
    }
}
