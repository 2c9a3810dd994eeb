//! What an earlier life of the brick left behind: open files without names, and inodes in the making.

use std::os::fd::AsFd;

use rustix::fs::{AtFlags, FileType};
use rustix::io::Errno;

use super::at::At;
use super::at::CName;
use super::dirs::{Dirs, open_dir};
use super::entry::gfid_at;
use super::handle::HandleName;

/// Nobody has these files open any more.
pub(super) fn unlinked(dirs: &Dirs) -> Result<(), Errno> {
    for name in names(&dirs.unlinked)? {
        if let Err(errno) = rustix::fs::unlinkat(&dirs.unlinked, name.as_cstr(), AtFlags::empty()) {
            tracing::warn!(name = ?name.as_cstr(), %errno, "left in .glusterfs/unlink");
        }
    }
    Ok(())
}

/// These never got a name. The handle goes first, so that a crash here leaves what can be cleaned again.
pub(super) fn staging(dirs: &Dirs) -> Result<(), Errno> {
    for name in names(&dirs.staging)? {
        if let Err(errno) = drop_one(dirs, &name) {
            tracing::warn!(name = ?name.as_cstr(), %errno, "left in .glusterfs/staging");
        }
    }
    Ok(())
}

fn drop_one(dirs: &Dirs, name: &CName) -> Result<(), Errno> {
    let at = At::Name(dirs.staging.as_fd(), name.as_cstr());
    let stat = at.stat()?;
    let is_dir = FileType::from_raw_mode(stat.st_mode).is_dir();
    if let Some(gfid) = gfid_at(at)? {
        let handle = HandleName::new(gfid);
        let handle_stat = At::Name(dirs.first(gfid), handle.as_cstr()).stat();
        let ours = match handle_stat {
            // A directory's handle is of this one unless it leads to another with the gfid.
            Ok(found) if is_dir => found.st_nlink == 1 && dirs.open_by_gfid(gfid).is_err(),
            Ok(found) => (found.st_dev, found.st_ino) == (stat.st_dev, stat.st_ino),
            Err(_) => false,
        };
        if ours {
            dirs.remove_handle(gfid)?;
        }
    }
    let flags = if is_dir { AtFlags::REMOVEDIR } else { AtFlags::empty() };
    rustix::fs::unlinkat(&dirs.staging, name.as_cstr(), flags)
}

/// Every name in a directory.
pub(super) fn names(dir: &impl AsFd) -> Result<Vec<CName>, Errno> {
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::new(open_dir(dir.as_fd(), c".")?)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.extend(CName::from_bytes(name));
        }
    }
    Ok(names)
}
