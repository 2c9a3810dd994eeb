//! Lookup, and what every fop on a name begins with: which names are hidden, and what a name leads to.

use std::os::fd::AsFd;

use rustix::fs::{FileType, Stat};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};

use super::at::{At, CName};
use super::dirs::{Dir, GFID_KEY, open_dir};
use super::handle::{HandleName, Target};
use super::store::Store;
use crate::ctx::Ctx;
use crate::error::Result;
use crate::fop::Lookup;
use crate::reply::Looked;
use crate::types::{Cover, Gfid, Name};

/// Names in the root that begin so are the brick's own.
const HIDDEN_PREFIX: &[u8] = b".glusterfs";

/// Where healing parks what it does not know the place of: in the root, for healers only.
pub(super) const PARKING_PREFIX: &[u8] = b".glusterfs-anonymous-inode";

/// An entry without a gfid that is younger may be one that GlusterFS is making.
const YOUNG_SECONDS: i64 = 1;

/// Whether this caller must not see this name.
pub(super) fn is_hidden(ctx: &Ctx, parent: Gfid, name: &[u8]) -> bool {
    parent == Gfid::ROOT
        && name.starts_with(HIDDEN_PREFIX)
        && !(ctx.caller.is_internal() && name.starts_with(PARKING_PREFIX))
}

/// `EPERM` for a name that this caller must not make.
pub(super) fn may_make(ctx: &Ctx, parent: Gfid, name: &Name) -> Result<(), Errno> {
    if is_hidden(ctx, parent, name.as_bytes()) { Err(Errno::PERM) } else { Ok(()) }
}

/// `ENOENT` for a name that this caller must not see.
pub(super) fn may_see(ctx: &Ctx, parent: Gfid, name: &Name) -> Result<(), Errno> {
    if is_hidden(ctx, parent, name.as_bytes()) { Err(Errno::NOENT) } else { Ok(()) }
}

/// The gfid of what a name leads to; `None` where it has none. One that belongs to no entry is a damaged disk.
pub(super) fn gfid_at(at: At<'_>) -> Result<Option<Gfid>, Errno> {
    match at.get_exact(GFID_KEY)?.map(Gfid::from_bytes) {
        Some(gfid) if gfid.is_null() || gfid == Gfid::ROOT => Err(Errno::IO),
        found => Ok(found),
    }
}

impl Store {
    /// Find a child of a directory by name.
    pub(super) fn lookup(&self, ctx: &Ctx, fop: &Lookup) -> Result<Looked> {
        let absent = Looked { found: None, cover: Cover::empty() };
        if is_hidden(ctx, fop.parent, fop.name.as_bytes()) {
            return Ok(absent);
        }
        let dir = self.dir(fop.parent)?;
        let name = CName::new(&fop.name);
        let at = At::Name(dir.fd.as_fd(), name.as_cstr());
        let look = || {
            let stat = at.stat()?;
            let Some(gfid) = gfid_at(at)? else { return Err(without_gfid(&stat)) };
            if self.memory.get(gfid).is_none() {
                self.check_handle(&dir, &fop.name, gfid, &stat)?;
            }
            self.found(gfid, at, &stat)
        };
        match look() {
            Ok(found) => Ok(Looked { found: Some(found), cover: Cover::empty() }),
            Err(Errno::NOENT) => Ok(absent),
            Err(errno) => Err(errno.into()),
        }
    }

    /// See that the inode of this name can be found by its gfid, and make it so where a crash (or GlusterFS, which
    /// drops a directory's handle while it renames it) left it otherwise.
    fn check_handle(&self, dir: &Dir, name: &Name, gfid: Gfid, stat: &Stat) -> Result<(), Errno> {
        if FileType::from_raw_mode(stat.st_mode).is_dir() {
            let target = Target::new(dir.gfid, name.as_bytes());
            if self.dirs.handle_says(gfid, &target) || self.handle_leads_to_a_directory(gfid) {
                return Ok(());
            }
        } else {
            let handle = HandleName::new(gfid);
            match At::Name(self.dirs.first(gfid), handle.as_cstr()).stat() {
                Ok(found) if (found.st_dev, found.st_ino) == (stat.st_dev, stat.st_ino) => return Ok(()),
                Ok(_) => {
                    tracing::warn!(%gfid, parent = %dir.gfid, ?name, "handle of another inode");
                    return Err(Errno::IO);
                }
                Err(Errno::NOENT) => {}
                Err(errno) => return Err(errno),
            }
        }
        self.repair_handle(dir, name, gfid, stat)
    }

    fn handle_leads_to_a_directory(&self, gfid: Gfid) -> bool {
        let open = || {
            let (parent, name) = self.dirs.read_handle(gfid)?;
            let parent = self.dirs.open_by_gfid(parent)?;
            let fd = open_dir(parent.fd.as_fd(), CName::new(&name).as_cstr())?;
            gfid_at(At::from(&fd))
        };
        open() == Ok(Some(gfid))
    }

    /// Under the lock of the directory, since a removal takes the handle away before the name.
    fn repair_handle(&self, dir: &Dir, name: &Name, gfid: Gfid, stat: &Stat) -> Result<(), Errno> {
        let _names = self.names.lock(dir.gfid);
        let path = CName::new(name);
        let at = At::Name(dir.fd.as_fd(), path.as_cstr());
        let now = at.stat()?;
        if (now.st_dev, now.st_ino) != (stat.st_dev, stat.st_ino) {
            return Err(Errno::NOENT);
        }
        tracing::info!(%gfid, parent = %dir.gfid, ?name, "handle made again");
        if FileType::from_raw_mode(stat.st_mode).is_dir() {
            return self.dirs.replace_dir_handle(gfid, &Target::new(dir.gfid, name.as_bytes()));
        }
        match self.dirs.link_handle(gfid, at) {
            Err(Errno::EXIST) => Ok(()),
            answer => answer,
        }
    }
}

/// What to say of an entry without a gfid: not there yet, or something an administrator put on the brick.
pub(super) fn without_gfid(stat: &Stat) -> Errno {
    let age = clock_gettime(ClockId::Realtime).tv_sec.saturating_sub(stat.st_ctime);
    if age <= YOUNG_SECONDS { Errno::NOENT } else { Errno::NODATA }
}
