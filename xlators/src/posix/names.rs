//! Link, unlink and rmdir: names that come and go.
//!
//! Order on disk: a handle goes before the last name, so that a crash leaves a name (whose lookup makes the handle
//! again) and never a handle that nothing leads to.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, OFlags, Stat, XattrFlags};
use rustix::io::Errno;

use super::at::{At, CName};
use super::dirs::Dir;
use super::entry::{PARKING_PREFIX, gfid_at, may_make, may_see, without_gfid};
use super::files::Unlinked;
use super::gfid2path::{Gfid2Path, LINKS_MAX};
use super::handle::{HandleName, Target};
use super::mdata::{Form, Mdata, Touch};
use super::store::{LINK_FILE_MODE, Node, Store, read_linkto};
use crate::ctx::Ctx;
use crate::error::Result;
use crate::fop::{Link, Only, Rmdir, Unlink};
use crate::reply::{Made, Removed};
use crate::types::{Cover, Gfid, Name, Time};

/// To free a larger file takes so long that nobody may wait for it on a thread that serves.
const LARGE_BYTES: i64 = 64 << 20;

fn is_link_file(at: At<'_>, stat: &Stat) -> Result<bool, Errno> {
    let looks_like_one = FileType::from_raw_mode(stat.st_mode).is_file() && stat.st_mode & 0o7777 == LINK_FILE_MODE;
    Ok(looks_like_one && read_linkto(at)?.is_some())
}

impl Store {
    /// Give an inode another name.
    pub(super) fn link(&self, ctx: &Ctx, fop: &Link) -> Result<Made> {
        may_make(ctx, fop.parent, &fop.name)?;
        self.reserve.check(ctx, self.dirs.root.fd.as_fd(), 0)?;
        let dir = self.dir(fop.parent)?;
        let name = CName::new(&fop.name);
        let _locks = (self.names.lock(fop.parent), self.inodes.lock(fop.gfid));
        let node = self.node(fop.gfid)?;
        if node.is_dir() {
            return Err(Errno::PERM.into());
        }
        let mut stat = node.at().stat().map_err(|errno| self.missed(fop.gfid, errno))?;
        let names = stat.st_nlink.saturating_sub(1);
        if self.options.hardlinks_max.is_some_and(|max| names >= u64::from(max)) {
            return Err(Errno::MLINK.into());
        }
        let At::Name(handles, handle) = node.at() else { return Err(Errno::STALE.into()) };
        rustix::fs::linkat(handles, handle, &dir.fd, name.as_cstr(), AtFlags::empty())?;
        if matches!(node, Node::Unlinked(..)) {
            self.bring_back(fop.gfid)?;
        }
        stat.st_nlink += 1;
        let at = At::Name(dir.fd.as_fd(), name.as_cstr());
        if names < u64::from(LINKS_MAX) {
            note_name(at, fop.gfid, fop.parent, &fop.name);
        }
        let times = self.touch(fop.gfid, at, Form::NotADirectory, Touch::Ctime, fop.when);
        let iatt = self.iatt(fop.gfid, &stat, times.as_ref());
        Ok(Made { iatt, parent: self.touch_parent(&dir, fop.when)?, cover: Cover::empty(), lease: None })
    }

    /// An open file that had lost its names has one again.
    fn bring_back(&self, gfid: Gfid) -> Result<(), Errno> {
        let handle = HandleName::new(gfid);
        rustix::fs::renameat(&self.dirs.unlinked, handle.text(), self.dirs.first(gfid), handle.as_cstr())?;
        self.files.set_unlinked(gfid, Unlinked::No);
        Ok(())
    }

    /// Remove a name that is not a directory's. What is left to be freed comes back, for a thread that may wait.
    pub(super) fn unlink(&self, ctx: &Ctx, fop: &Unlink) -> Result<(Removed, Option<OwnedFd>)> {
        may_see(ctx, fop.parent, &fop.name)?;
        let dir = self.dir(fop.parent)?;
        let name = CName::new(&fop.name);
        let at = At::Name(dir.fd.as_fd(), name.as_cstr());
        let _names = self.names.lock(fop.parent);
        let mut stat = at.stat()?;
        if FileType::from_raw_mode(stat.st_mode).is_dir() {
            return Err(Errno::ISDIR.into());
        }
        let gfid = gfid_at(at)?.ok_or_else(|| without_gfid(&stat))?;
        let _inode = self.inodes.lock(gfid);
        self.check_only(fop.only, gfid, at, &stat)?;
        let mut large = None;
        let times = if stat.st_nlink <= 2 {
            if stat.st_size > LARGE_BYTES && FileType::from_raw_mode(stat.st_mode).is_file() {
                large = at.open(OFlags::PATH).ok();
            }
            self.retire_handle(gfid)?;
            if let Err(errno) = rustix::fs::unlinkat(&dir.fd, name.as_cstr(), AtFlags::empty()) {
                self.restore_handle(gfid, at);
                return Err(errno.into());
            }
            let times = self.memory.get(gfid).and_then(|known| known.times);
            self.memory.forget(gfid);
            times
        } else {
            self.unlink_one_of_many(&dir, &fop.name, gfid, fop.when)?
        };
        stat.st_nlink = stat.st_nlink.saturating_sub(1);
        let iatt = self.iatt(gfid, &stat, times.as_ref());
        Ok((Removed { iatt, parent: self.touch_parent(&dir, fop.when)? }, large))
    }

    /// Other names remain.
    fn unlink_one_of_many(&self, dir: &Dir, name: &Name, gfid: Gfid, when: Time) -> Result<Option<Mdata>, Errno> {
        let path = CName::new(name);
        forget_name(At::Name(dir.fd.as_fd(), path.as_cstr()), dir.gfid, name);
        rustix::fs::unlinkat(&dir.fd, path.as_cstr(), AtFlags::empty())?;
        let Ok(node) = self.node(gfid) else { return Ok(None) };
        Ok(self.touch(gfid, node.at(), Form::NotADirectory, Touch::Ctime, when))
    }

    /// Whether this is the inode that the removal is meant for.
    fn check_only(&self, only: Only, gfid: Gfid, at: At<'_>, stat: &Stat) -> Result<(), Errno> {
        match only {
            Only::Any => Ok(()),
            Only::Gfid(meant) | Only::ContentOf(meant) if meant != gfid => Err(Errno::STALE),
            Only::Gfid(_) => Ok(()),
            Only::LinkFile(meant) => {
                let link_file = meant == gfid && is_link_file(at, stat)? && !self.files.is_open(gfid);
                if link_file { Ok(()) } else { Err(Errno::BUSY) }
            }
            Only::Content | Only::ContentOf(_) if is_link_file(at, stat)? => Err(Errno::BUSY),
            Only::Content | Only::ContentOf(_) => Ok(()),
        }
    }

    /// The last name is about to go: so does the handle, or it moves aside while the file is open. The caller holds the
    /// lock of the inode.
    pub(super) fn retire_handle(&self, gfid: Gfid) -> Result<(), Errno> {
        let gone = if self.files.is_open(gfid) {
            self.files.set_unlinked(gfid, Unlinked::Yes);
            let handle = HandleName::new(gfid);
            rustix::fs::renameat(self.dirs.first(gfid), handle.as_cstr(), &self.dirs.unlinked, handle.text())
        } else {
            self.dirs.remove_handle(gfid)
        };
        match gone {
            // A crash, or GlusterFS, left the inode without.
            Err(Errno::NOENT) => Ok(()),
            answer => answer,
        }
    }

    /// The name could not be removed after all.
    pub(super) fn restore_handle(&self, gfid: Gfid, at: At<'_>) {
        self.files.set_unlinked(gfid, Unlinked::No);
        let aside = rustix::fs::unlinkat(&self.dirs.unlinked, HandleName::new(gfid).text(), AtFlags::empty());
        if let Err(errno) = self.dirs.link_handle(gfid, at) {
            tracing::warn!(%gfid, %errno, aside = aside.is_ok(), "handle not restored, the next lookup will");
        }
    }

    /// Remove an empty directory.
    pub(super) fn rmdir(&self, ctx: &Ctx, fop: &Rmdir) -> Result<Removed> {
        may_see(ctx, fop.parent, &fop.name)?;
        let dir = self.dir(fop.parent)?;
        let name = CName::new(&fop.name);
        let at = At::Name(dir.fd.as_fd(), name.as_cstr());
        let _names = self.names.lock(fop.parent);
        let mut stat = at.stat()?;
        if !FileType::from_raw_mode(stat.st_mode).is_dir() {
            return Err(Errno::NOTDIR.into());
        }
        let gfid = gfid_at(at)?;
        let times = gfid.and_then(|gfid| self.memory.get(gfid)).and_then(|known| known.times);
        rustix::fs::unlinkat(&dir.fd, name.as_cstr(), AtFlags::REMOVEDIR)?;
        stat.st_nlink = 0;
        if let Some(gfid) = gfid {
            self.dir_is_gone(gfid, &Target::new(fop.parent, fop.name.as_bytes()));
        }
        if fop.parent == Gfid::ROOT && fop.name.as_bytes().starts_with(PARKING_PREFIX) {
            self.hidden_dirs.fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
        }
        let iatt = self.iatt(gfid.unwrap_or(Gfid::from_bytes([0; 16])), &stat, times.as_ref());
        Ok(Removed { iatt, parent: self.touch_parent(&dir, fop.when)? })
    }

    /// A directory was removed from this place: its handle goes, unless it leads elsewhere.
    pub(super) fn dir_is_gone(&self, gfid: Gfid, target: &Target) {
        self.dirs.forget(gfid);
        self.memory.forget(gfid);
        if self.dirs.handle_says(gfid, target)
            && let Err(errno) = self.dirs.remove_handle(gfid)
        {
            tracing::warn!(%gfid, %errno, "handle of a removed directory not removed");
        }
    }
}

/// Record one more name of an inode. Nothing depends on it, so a failure is only logged.
pub(super) fn note_name(at: At<'_>, gfid: Gfid, parent: Gfid, name: &Name) {
    let path = Gfid2Path::new(parent, name.as_bytes());
    if let Err(errno) = at.set(path.key(), path.value(), XattrFlags::empty()) {
        tracing::warn!(%gfid, %parent, ?name, %errno, "name not recorded");
    }
}

/// Forget a recorded name of an inode.
pub(super) fn forget_name(at: At<'_>, parent: Gfid, name: &Name) {
    let path = Gfid2Path::new(parent, name.as_bytes());
    match at.remove(path.key()) {
        Ok(()) | Err(Errno::NODATA) => {}
        Err(errno) => tracing::warn!(%parent, ?name, %errno, "recorded name not removed"),
    }
}
