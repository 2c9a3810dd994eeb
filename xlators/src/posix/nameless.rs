//! Handles without names, because the brick died in between: of files that never got theirs, and of directories that were
//! removed.
//!
//! The name was in a directory that the journal of the index lists, and the second-level directory of the handle was
//! changed since the journal began; a file has no link but its handle, and the text of a directory's handle leads to
//! nothing with its gfid. All must hold, so that a file which lost its name in another way (to an administrator, or to a
//! repair of the file system) keeps its content.

use std::collections::HashSet;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::FileType;
use rustix::io::Errno;

use super::Posix;
use super::at::{At, CName};
use super::dirs::open_dir;
use super::entry::gfid_at;
use super::gfid2path;
use super::handle::{GFID_TEXT_BYTES, gfid_from_text};
use crate::types::Gfid;

impl Posix {
    /// Remove the handle of a file that never got its name; whether it was one.
    pub(crate) fn drop_nameless(&self, gfid: Gfid) -> bool {
        // Held by whoever makes a file with this gfid, from before its handle is there until it has its name.
        let _inode = self.store.inodes.lock(gfid);
        let dropped = self.store.drop_orphan(gfid);
        if dropped {
            self.store.memory.forget(gfid);
        }
        dropped
    }

    /// Remove such handles below the first-level directory `first`, of names in one of `parents` that came or went at or
    /// after the second `since`; how many there were.
    pub(crate) fn drop_nameless_of(&self, first: u8, parents: &HashSet<Gfid>, since: i64) -> Result<usize, Errno> {
        let mut bytes = [0; 16];
        bytes[0] = first;
        let first = self.store.dirs.first(Gfid::from_bytes(bytes));
        let mut dropped = 0;
        for second in super::clean::names(&first)? {
            let changed = At::Name(first, second.as_cstr()).stat()?.st_mtime;
            if changed < since {
                continue;
            }
            let second = open_dir(first, second.as_cstr())?;
            for name in super::clean::names(&second)? {
                let Some(gfid) = gfid_from_text(name.as_cstr().to_bytes()) else { continue };
                dropped += usize::from(match alone(second.as_fd(), &name) {
                    Ok(Alone::File) if was_born_in(second.as_fd(), &name, parents) == Ok(true) => {
                        self.drop_nameless(gfid)
                    }
                    Ok(Alone::Link) => self.drop_stale(gfid, parents) == Ok(true),
                    Ok(Alone::File | Alone::Not) | Err(_) => false,
                });
            }
        }
        Ok(dropped)
    }

    /// Remove a directory's handle if the directory was in one of `parents` and is not there any more. If it was moved,
    /// the next lookup of its new name makes its handle.
    fn drop_stale(&self, gfid: Gfid, parents: &HashSet<Gfid>) -> Result<bool, Errno> {
        let dirs = &self.store.dirs;
        let (parent, _) = dirs.read_handle(gfid)?;
        if !parents.contains(&parent) {
            return Ok(false);
        }
        // Held by whoever makes, moves or removes a name in the parent.
        let _names = self.store.names.lock(parent);
        let (still, name) = dirs.read_handle(gfid)?;
        let dir = dirs.open_by_gfid(parent)?;
        let found = open_dir(dir.fd.as_fd(), CName::new(&name).as_cstr()).and_then(|fd| gfid_at(At::from(&fd)));
        let stale = still == parent && matches!(found, Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) | Ok(_));
        if !stale || found == Ok(Some(gfid)) {
            return Ok(false);
        }
        dirs.forget(gfid);
        self.store.memory.forget(gfid);
        dirs.remove_handle(gfid).map(|()| true)
    }
}

/// What a handle is whose inode has no other link.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Alone {
    File,
    /// A symbolic link: the handle of a directory.
    Link,
    /// It has other links, or is something that is made in staging.
    Not,
}

fn alone(dir: BorrowedFd<'_>, name: &CName) -> Result<Alone, Errno> {
    let stat = At::Name(dir, name.as_cstr()).stat()?;
    Ok(match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile if stat.st_nlink == 1 => Alone::File,
        FileType::Symlink if stat.st_nlink == 1 => Alone::Link,
        _ => Alone::Not,
    })
}

/// Whether the one name that a file was made with is in one of `parents`.
fn was_born_in(dir: BorrowedFd<'_>, name: &CName, parents: &HashSet<Gfid>) -> Result<bool, Errno> {
    let at = At::Name(dir, name.as_cstr());
    let mut keys = Vec::new();
    at.list(|key| keys.extend(CName::from_bytes(key).filter(|_| key.starts_with(gfid2path::PREFIX))))?;
    let [key] = &keys[..] else { return Ok(false) };
    let path = at.get(key.as_cstr())?;
    let parent = path.get(..GFID_TEXT_BYTES).and_then(gfid_from_text);
    Ok(parent.is_some_and(|parent| parents.contains(&parent)))
}
