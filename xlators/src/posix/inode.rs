//! Attributes of an inode: reading and changing them, the text of a symbolic link, and the size of the disk.

use rustix::fs::{FileType, Stat};
use rustix::io::Errno;

use super::at::At;
use super::mdata::{Form, Mdata, Touch};
use super::store::{Node, Store, kind_of};
use crate::ctx::Ctx;
use crate::error::Result;
use crate::fop::{Getattr, Readlink, Setattr};
use crate::reply::{Changed, Found, Space, Target};
use crate::types::{Cover, Gfid, Kind, SYMLINK_BYTES_MAX, Time};

impl Store {
    /// Read the attributes of an inode.
    pub(super) fn getattr(&self, ctx: &Ctx, fop: &Getattr) -> Result<Found> {
        let node = self.node_through(fop.gfid, ctx.client, fop.fd)?;
        let stat = node.at().stat().map_err(|errno| self.missed(fop.gfid, errno))?;
        self.times(fop.gfid, node.at(), &stat)?;
        self.look_for_xattrs(fop.gfid, node.at())?;
        Ok(*self.found(fop.gfid, node.at(), &stat)?)
    }

    /// Read the text of a symbolic link.
    pub(super) fn readlink(&self, fop: &Readlink) -> Result<Target> {
        let node = self.node(fop.gfid)?;
        let At::Name(dir, handle) = node.at() else { return Err(Errno::INVAL.into()) };
        let mut text = [0; SYMLINK_BYTES_MAX + 1];
        let length =
            rustix::fs::readlinkat_raw(dir, handle, &mut text[..]).map_err(|errno| self.missed(fop.gfid, errno))?;
        Ok(Target { target: bytes::Bytes::copy_from_slice(&text[..length]) })
    }

    /// Change mode, owner or times.
    pub(super) fn setattr(&self, ctx: &Ctx, fop: &Setattr) -> Result<Changed> {
        let node = self.node_through(fop.gfid, ctx.client, fop.fd)?;
        let changed = self.change_owner_and_mode(fop, &node).and_then(|()| self.set_times(fop, &node));
        let times = changed.map_err(|errno| self.missed(fop.gfid, errno))?;
        if let Node::Dir(dir) = &node
            && (fop.mode.is_some() || fop.gid.is_some())
        {
            // What new entries inherit may be another; the layout is read again with it, which is cheap and rare.
            dir.forget_facts();
        }
        let stat = node.at().stat()?;
        Ok(Changed { iatt: self.iatt(fop.gfid, &stat, times.as_ref()), cover: Cover::empty() })
    }

    fn change_owner_and_mode(&self, fop: &Setattr, node: &Node<'_>) -> Result<(), Errno> {
        if fop.uid.is_some() || fop.gid.is_some() {
            node.at().chown(fop.uid, fop.gid)?;
        }
        let mode = match fop.mode {
            Some(mode) => Some(mode & 0o7777),
            None if fop.kill_priv => without_privileges(&node.at().stat()?),
            None => None,
        };
        mode.map_or(Ok(()), |mode| node.at().chmod(mode))
    }

    /// Times that a program sets hold, forward or back; the change itself moves the ctime forward.
    fn set_times(&self, fop: &Setattr, node: &Node<'_>) -> Result<Option<Mdata>, Errno> {
        let form = node.form();
        if fop.atime.is_none() && fop.mtime.is_none() {
            return Ok(self.touch(fop.gfid, node.at(), form, Touch::Ctime, fop.when));
        }
        // The nanoseconds come from a frame and may be the kernel's code for "now".
        let valid = |time: Option<Time>| time.is_none_or(|time| time.nsec < 1_000_000_000);
        if !valid(fop.atime) || !valid(fop.mtime) {
            return Err(Errno::INVAL);
        }
        node.at().utimens(fop.atime, fop.mtime)?;
        self.change_times(fop.gfid, node.at(), form, |times| {
            // An inode that never had the xattr goes on by the times of the file system, which were just set.
            let times = times?.touched(Touch::Ctime, fop.when);
            Some(Mdata { atime: fop.atime.unwrap_or(times.atime), mtime: fop.mtime.unwrap_or(times.mtime), ..times })
        })
    }

    /// Clear set-user-id, and set-group-id where the group may execute; the attributes afterwards.
    pub(super) fn kill_privileges_at(&self, at: At<'_>, mut stat: Stat) -> Result<Stat, Errno> {
        if let Some(mode) = without_privileges(&stat) {
            at.chmod(mode)?;
            stat.st_mode = (stat.st_mode & !0o7777) | mode;
        }
        Ok(stat)
    }

    /// How much space there is.
    pub(super) fn statfs(&self) -> Result<Space> {
        Ok(self.reserve.space(&rustix::fs::fstatvfs(&self.dirs.root.fd)?))
    }

    /// `EISDIR` or `EINVAL` for what has no content.
    pub(super) fn must_be_file(&self, gfid: Gfid, node: &Node<'_>) -> Result<(), Errno> {
        match node {
            Node::Open(_) => Ok(()),
            Node::Dir(_) => Err(Errno::ISDIR),
            Node::Handle(..) if self.memory.get(gfid).is_some_and(|known| known.form == Form::File) => Ok(()),
            Node::Handle(..) | Node::Unlinked(..) => {
                let stat = node.at().stat().map_err(|errno| self.missed(gfid, errno))?;
                if kind_of(stat.st_mode) == Kind::File { Ok(()) } else { Err(Errno::INVAL) }
            }
        }
    }
}

/// The mode without the bits that a change by another than the owner takes away; `None` where it has none of them.
fn without_privileges(stat: &Stat) -> Option<u32> {
    let mode = stat.st_mode & 0o7777;
    let setgid = if mode & libc::S_IXGRP == 0 { 0 } else { libc::S_ISGID };
    let less = mode & !(libc::S_ISUID | setgid);
    (FileType::from_raw_mode(stat.st_mode).is_file() && less != mode).then_some(less)
}
