//! One index: a directory with a hard link for each object, named by its gfid, all to one empty base file.

use std::ffi::CString;
use std::os::fd::OwnedFd;

use parking_lot::RwLock;
use rustix::fs::AtFlags;
use rustix::io::Errno;
use uuid::Uuid;
use xxhash_rust::xxh64::xxh64;

use crate::posix::Posix;
use crate::types::Gfid;

/// What was in an index when the brick started.
#[derive(Debug)]
pub(super) struct Contents {
    pub(super) gfids: Vec<Gfid>,
    /// The second in which the oldest of their bases was made: none of them was listed before.
    pub(super) since: i64,
}

/// The directory of an index.
#[derive(Debug)]
pub(super) struct Links {
    /// Its own name: base files are called `<name>-<uuid>`.
    name: &'static str,
    dir: OwnedFd,
    base: RwLock<Option<CString>>,
}

impl Links {
    /// Open an index, and see what is in it. Base files that nothing is linked to any more are removed.
    pub(super) fn open(posix: &Posix, name: &'static str) -> Result<(Self, Contents), Errno> {
        let dir = posix.open_index(&CString::new(name).map_err(|_| Errno::INVAL)?)?;
        let mut contents = Contents { gfids: Vec::new(), since: i64::MAX };
        for entry in Posix::list_index(&dir)? {
            let text = String::from_utf8_lossy(&entry.name);
            if let Ok(gfid) = text.parse() {
                contents.gfids.push(gfid);
                contents.since = contents.since.min(entry.made);
            } else if entry.links == 1 && text.starts_with(name) {
                rustix::fs::unlinkat(&dir, entry.name, AtFlags::empty())?;
            }
        }
        Ok((Self { name, dir, base: RwLock::new(None) }, contents))
    }

    /// See that an object is in the index.
    pub(super) fn add(&self, gfid: Gfid) -> Result<(), Errno> {
        let name = gfid.to_string();
        let link = |base: &Option<CString>| match base {
            Some(base) => rustix::fs::linkat(&self.dir, base, &self.dir, &*name, AtFlags::empty()),
            None => Err(Errno::NOENT),
        };
        let mut linked = link(&self.base.read());
        // No base yet, or one with as many links as the file system allows.
        if matches!(linked, Err(Errno::NOENT | Errno::MLINK)) {
            let mut base = self.base.write();
            linked = link(&base);
            if matches!(linked, Err(Errno::NOENT | Errno::MLINK)) {
                *base = Some(self.new_base(gfid)?);
                linked = link(&base);
            }
        }
        if linked == Err(Errno::EXIST) { Ok(()) } else { linked }
    }

    /// Make a base. Its uuid must only differ from those of other bases in this directory, so it is made from the first
    /// object that needs it rather than by chance.
    fn new_base(&self, gfid: Gfid) -> Result<CString, Errno> {
        for number in 0u64.. {
            let half = |seed| u128::from(xxh64(gfid.as_bytes(), seed));
            let uuid = Uuid::from_u128(half(2 * number) << 64 | half(2 * number + 1));
            let name = CString::new(format!("{}-{uuid}", self.name)).map_err(|_| Errno::INVAL)?;
            match Posix::make_index_base(&self.dir, &name) {
                Err(Errno::EXIST) => {}
                made => return made.map(|()| name),
            }
        }
        Err(Errno::EXIST)
    }

    /// See that an object is not in the index.
    pub(super) fn remove(&self, gfid: Gfid) -> Result<(), Errno> {
        match rustix::fs::unlinkat(&self.dir, gfid.to_string(), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno),
        }
    }
}
