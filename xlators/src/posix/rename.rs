//! Rename: a name moves, replaces another, or changes places with it.
//!
//! The step that programs see is one `renameat2`. Around it: the handle of a file that loses its last name goes first
//! (and comes back if the rename fails); a directory's handle gets its new text after, in one step. A crash in between
//! leaves a handle with the old text, which is seen to be wrong when it is used, and made right by the next lookup of
//! the new name.

use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::fs::{FileType, RenameFlags, Stat};
use rustix::io::Errno;

use super::at::{At, CName};
use super::dirs::Dir;
use super::entry::{gfid_at, may_make, may_see, without_gfid};
use super::handle::Target;
use super::mdata::{Form, Touch};
use super::names::{forget_name, note_name};
use super::store::{Store, kind_of};
use crate::ctx::Ctx;
use crate::error::Result;
use crate::fop::{Rename, Replace};
use crate::reply::Renamed;
use crate::types::{Gfid, Iatt, Name, Time};

/// One side of a rename.
struct Side<'a> {
    dir: Arc<Dir>,
    name: &'a Name,
    path: CName,
}

/// What has a name.
#[derive(Clone, Copy)]
struct Inode {
    gfid: Gfid,
    stat: Stat,
}

impl Inode {
    fn is_dir(&self) -> bool {
        FileType::from_raw_mode(self.stat.st_mode).is_dir()
    }

    fn form(&self) -> Form {
        kind_of(self.stat.st_mode).into()
    }

    /// Its last name: beside it there is only the handle.
    fn is_last_name(&self) -> bool {
        !self.is_dir() && self.stat.st_nlink <= 2
    }
}

impl Side<'_> {
    fn at(&self) -> At<'_> {
        At::Name(self.dir.fd.as_fd(), self.path.as_cstr())
    }

    fn inode(&self) -> Result<Inode, Errno> {
        let stat = self.at().stat()?;
        let gfid = gfid_at(self.at())?.ok_or_else(|| without_gfid(&stat))?;
        Ok(Inode { gfid, stat })
    }

    fn target(&self) -> Target {
        Target::new(self.dir.gfid, self.name.as_bytes())
    }
}

impl Store {
    /// Move a name.
    pub(super) fn rename(&self, ctx: &Ctx, fop: &Rename) -> Result<Renamed> {
        may_see(ctx, fop.from_parent, &fop.from_name)?;
        may_make(ctx, fop.to_parent, &fop.to_name)?;
        let from = self.side(fop.from_parent, &fop.from_name)?;
        let to = self.side(fop.to_parent, &fop.to_name)?;
        let _names = self.names.lock_both(fop.from_parent, fop.to_parent);
        let moved = from.inode()?;
        let other = match to.inode() {
            Ok(inode) => Some(inode),
            Err(Errno::NOENT) => None,
            Err(errno) => return Err(errno.into()),
        };
        check(fop.replace, &moved, other.as_ref())?;
        let _inodes = self.inodes.lock_both(moved.gfid, other.map_or(moved.gfid, |other| other.gfid));
        let one_inode = other.is_some_and(|other| other.gfid == moved.gfid);
        if one_inode {
            // Two names of one inode: nothing is to be done, and both stay.
            return Ok(self.renamed(fop, &from, &to, &moved, other.as_ref())?);
        }
        match (fop.replace, &other) {
            (Replace::Exchange, Some(other)) => self.exchange(&from, &to, &moved, other)?,
            (_, Some(victim)) => self.replace(&from, &to, &moved, victim)?,
            (_, None) => {
                rename_step(&from, &to, RenameFlags::NOREPLACE)?;
                self.moved(&moved, &from, &to);
            }
        }
        Ok(self.renamed(fop, &from, &to, &moved, other.as_ref())?)
    }

    fn side<'a>(&self, parent: Gfid, name: &'a Name) -> Result<Side<'a>, Errno> {
        Ok(Side { dir: self.dir(parent)?, name, path: CName::new(name) })
    }

    /// Something is at the new name, and goes.
    fn replace(&self, from: &Side<'_>, to: &Side<'_>, moved: &Inode, victim: &Inode) -> Result<(), Errno> {
        if victim.is_last_name() {
            self.retire_handle(victim.gfid)?;
        }
        if let Err(errno) = rename_step(from, to, RenameFlags::empty()) {
            if victim.is_last_name() {
                self.restore_handle(victim.gfid, to.at());
            }
            // XFS says the one, ext4 the other; copies on both must agree.
            let full = victim.is_dir() && errno == Errno::EXIST;
            return Err(if full { Errno::NOTEMPTY } else { errno });
        }
        if victim.is_dir() {
            self.dir_is_gone(victim.gfid, &to.target());
        } else if victim.is_last_name() {
            self.memory.forget(victim.gfid);
        } else if let Ok(node) = self.node(victim.gfid) {
            forget_name(node.at(), to.dir.gfid, to.name);
        }
        self.moved(moved, from, to);
        Ok(())
    }

    fn exchange(&self, from: &Side<'_>, to: &Side<'_>, moved: &Inode, other: &Inode) -> Result<(), Errno> {
        rename_step(from, to, RenameFlags::EXCHANGE)?;
        self.moved(moved, from, to);
        self.moved(other, to, from);
        Ok(())
    }

    /// An inode has another name now: what else on the brick tells of its name follows.
    fn moved(&self, inode: &Inode, from: &Side<'_>, to: &Side<'_>) {
        if inode.is_dir() {
            if let Err(errno) = self.dirs.replace_dir_handle(inode.gfid, &to.target()) {
                tracing::warn!(gfid = %inode.gfid, %errno, "handle not renewed, the next lookup will");
                self.memory.forget(inode.gfid);
            }
        } else {
            note_name(to.at(), inode.gfid, to.dir.gfid, to.name);
            forget_name(to.at(), from.dir.gfid, from.name);
        }
    }

    fn renamed(
        &self,
        fop: &Rename,
        from: &Side<'_>,
        to: &Side<'_>,
        moved: &Inode,
        other: Option<&Inode>,
    ) -> Result<Renamed, Errno> {
        let iatt = self.after(moved, to.at(), fop.when);
        let replaced = other.filter(|other| other.gfid != moved.gfid).map(|other| match fop.replace {
            Replace::Exchange => self.after(other, from.at(), fop.when),
            Replace::Yes | Replace::No => self.after_loss(other, fop.when),
        });
        let from_parent = self.touch_parent(&from.dir, fop.when)?;
        let same = from.dir.gfid == to.dir.gfid;
        let to_parent = if same { from_parent } else { self.touch_parent(&to.dir, fop.when)? };
        Ok(Renamed { iatt, replaced, from_parent, to_parent })
    }

    /// An inode that has moved.
    fn after(&self, inode: &Inode, at: At<'_>, when: Time) -> Iatt {
        let times = self.touch(inode.gfid, at, inode.form(), Touch::Ctime, when);
        self.iatt(inode.gfid, &inode.stat, times.as_ref())
    }

    /// An inode that has lost a name.
    fn after_loss(&self, inode: &Inode, when: Time) -> Iatt {
        let mut stat = inode.stat;
        stat.st_nlink = if inode.is_dir() { 0 } else { stat.st_nlink.saturating_sub(1) };
        let node = if inode.is_dir() || inode.is_last_name() { None } else { self.node(inode.gfid).ok() };
        let times = node.and_then(|node| self.touch(inode.gfid, node.at(), Form::NotADirectory, Touch::Ctime, when));
        self.iatt(inode.gfid, &stat, times.as_ref())
    }
}

/// What can be refused before anything is touched.
fn check(replace: Replace, moved: &Inode, other: Option<&Inode>) -> Result<(), Errno> {
    match (replace, other) {
        (Replace::No, Some(_)) => Err(Errno::EXIST),
        (Replace::Exchange, None) => Err(Errno::NOENT),
        (Replace::Yes, Some(other)) if moved.is_dir() && !other.is_dir() => Err(Errno::NOTDIR),
        (Replace::Yes, Some(other)) if !moved.is_dir() && other.is_dir() => Err(Errno::ISDIR),
        _ => Ok(()),
    }
}

fn rename_step(from: &Side<'_>, to: &Side<'_>, flags: RenameFlags) -> Result<(), Errno> {
    rustix::fs::renameat_with(&from.dir.fd, from.path.as_cstr(), &to.dir.fd, to.path.as_cstr(), flags)
}
