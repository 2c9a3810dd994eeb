//! Pending marks: what the index layer above asks of the disk.

use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, XattrFlags};
use rustix::io::Errno;

use super::Posix;
use super::at::At;
use super::brick::make;
use super::store::kind_of;
use super::xattr::{afr_key, counters_to_bytes, read_counters};
use crate::types::{Counters, Gfid, Kind, Pending};

/// One replica set has fewer copies than this.
const KEYS_MAX: usize = 64;

/// One file in an index.
#[derive(Debug)]
pub(crate) struct Listed {
    pub(crate) name: Vec<u8>,
    pub(crate) links: u64,
    /// The second in which it was made: nobody writes to it.
    pub(crate) made: i64,
}

impl Posix {
    /// The marks of an inode that are not zero; none where the inode is gone.
    pub(crate) fn marks(&self, gfid: Gfid) -> Result<Vec<Pending>, Errno> {
        let node = match self.store.node(gfid) {
            Ok(node) => node,
            Err(Errno::STALE) => return Ok(Vec::new()),
            Err(errno) => return Err(errno),
        };
        self.store.read_marks(node.at()).map_err(|errno| self.store.missed(gfid, errno))
    }

    /// The counters of an inode under one key.
    pub(crate) fn counters(&self, gfid: Gfid, mark: &Pending) -> Result<Counters, Errno> {
        let node = self.store.node(gfid)?;
        read_counters(node.at(), &afr_key(&mark.key)?).map_err(|errno| self.store.missed(gfid, errno))
    }

    /// What kind an inode is.
    pub(crate) fn kind(&self, gfid: Gfid) -> Result<Kind, Errno> {
        let stat = self.store.node(gfid)?.at().stat().map_err(|errno| self.store.missed(gfid, errno))?;
        Ok(kind_of(stat.st_mode))
    }

    /// Add to counters, as one step against every other such change of the inode: first `before`, then the counters,
    /// then `after` with what they have become. A change of zero writes nothing, so that it makes no xattr.
    pub(crate) fn add_marks(
        &self,
        gfid: Gfid,
        deltas: &[Pending],
        before: impl FnOnce() -> Result<(), Errno>,
        after: impl FnOnce(&[Pending]) -> Result<(), Errno>,
    ) -> Result<Vec<Pending>, Errno> {
        if deltas.len() > KEYS_MAX {
            return Err(Errno::INVAL);
        }
        let keys = deltas.iter().map(|delta| afr_key(&delta.key)).collect::<Result<Vec<_>, Errno>>()?;
        let _inode = self.store.inodes.lock(gfid);
        let node = self.store.node(gfid)?;
        before()?;
        let add = |at: At<'_>| {
            let mut marks = Vec::with_capacity(deltas.len());
            for (delta, key) in deltas.iter().zip(&keys) {
                let mut counters = read_counters(at, key)?;
                if !delta.counters.is_zero() {
                    for (counter, add) in counters.0.iter_mut().zip(delta.counters.0) {
                        // Counters that GlusterFS wrote in the other byte order may be near the end.
                        *counter = counter.wrapping_add(add);
                    }
                    at.set(key.as_cstr(), &counters_to_bytes(counters), XattrFlags::empty())?;
                }
                marks.push(Pending { key: delta.key.clone(), counters });
            }
            Ok(marks)
        };
        let marks = add(node.at()).map_err(|errno| self.store.missed(gfid, errno))?;
        after(&marks)?;
        Ok(marks)
    }

    /// As long as this is held, no names or handles of the inode come or go, and no counters change.
    pub(crate) fn lock_inode(&self, gfid: Gfid) -> impl Sized + '_ {
        self.store.inodes.lock(gfid)
    }

    /// The directory of one index.
    pub(crate) fn open_index(&self, name: &CStr) -> Result<OwnedFd, Errno> {
        let indices = make(self.store.dirs.glusterfs.as_fd(), c"indices", 0o600)?;
        make(indices.as_fd(), name, 0o600)
    }

    /// An empty file without any permission, for an index to link to; `EEXIST` where there is one.
    pub(crate) fn make_index_base(index: &OwnedFd, name: &CStr) -> Result<(), Errno> {
        let (kind, mode) = (rustix::fs::FileType::RegularFile, rustix::fs::Mode::empty());
        rustix::fs::mknodat(index, name, kind, mode, 0)
    }

    /// What is in an index.
    pub(crate) fn list_index(index: &OwnedFd) -> Result<Vec<Listed>, Errno> {
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::new(super::dirs::open_dir(index.as_fd(), c".")?)? {
            let entry = entry?;
            let name = entry.file_name();
            if name != c"." && name != c".." {
                let stat = rustix::fs::statat(index, name, AtFlags::SYMLINK_NOFOLLOW)?;
                let name = name.to_bytes().to_vec();
                names.push(Listed { name, links: stat.st_nlink, made: stat.st_mtime });
            }
        }
        Ok(names)
    }

    /// Make durable everything that was written to the brick.
    pub(crate) fn sync_all(&self) -> Result<(), Errno> {
        rustix::fs::syncfs(&self.store.dirs.root.fd)
    }
}
