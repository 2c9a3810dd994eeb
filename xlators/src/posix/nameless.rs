//! Handles of files that never got their names, because the brick died in between.
//!
//! Such a file was being made in a directory that the journal of the index lists, its second-level directory was changed
//! since the journal began, and nothing but its handle links to it. All three must hold, so that a file which lost its
//! name in another way (to an administrator, or to a repair of the file system) keeps its content.

use std::collections::HashSet;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::FileType;
use rustix::io::Errno;

use super::Posix;
use super::at::{At, CName};
use super::dirs::open_dir;
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

    /// Remove such handles below the first-level directory `first`, of files that were being made in one of `parents`
    /// at or after the second `since`; how many there were.
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
                let gfid = gfid_from_text(name.as_cstr().to_bytes());
                let born_there = is_nameless_of(second.as_fd(), &name, parents).unwrap_or(false);
                dropped += usize::from(born_there && gfid.is_some_and(|gfid| self.drop_nameless(gfid)));
            }
        }
        Ok(dropped)
    }
}

fn is_nameless_of(dir: BorrowedFd<'_>, name: &CName, parents: &HashSet<Gfid>) -> Result<bool, Errno> {
    let at = At::Name(dir, name.as_cstr());
    let stat = at.stat()?;
    if stat.st_nlink != 1 || !FileType::from_raw_mode(stat.st_mode).is_file() {
        return Ok(false);
    }
    let mut keys = Vec::new();
    at.list(|key| keys.extend(CName::from_bytes(key).filter(|_| key.starts_with(gfid2path::PREFIX))))?;
    let [key] = &keys[..] else { return Ok(false) };
    let path = at.get(key.as_cstr())?;
    let parent = path.get(..GFID_TEXT_BYTES).and_then(gfid_from_text);
    Ok(parent.is_some_and(|parent| parents.contains(&parent)))
}
