//! The descriptors that a brick holds: the 256 first-level directories for life, and other directories as they are used.
//!
//! Every fop starts from one of these, so no system call walks an absolute path, and none more than one entry. A
//! directory is found by its gfid in three calls: the text of its handle gives parent and name, the name is opened in
//! the parent, and what was opened is asked for its gfid, since a handle may be older than a rename.
//!
//! Invariant: a [`Dir`] in the cache is the directory with that gfid, or was removed under our own hands.

use std::num::NonZeroUsize;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use lru::LruCache;
use parking_lot::Mutex;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use super::acl;
use super::at::{At, CName};
use super::handle::{HandleName, ROOT_TARGET, TARGET_BYTES_MAX, Target, hex_byte, parse_target};
use crate::types::{Gfid, Name, RawLayout};

/// The xattr of every inode's identity.
pub(super) const GFID_KEY: &std::ffi::CStr = c"trusted.gfid";

/// The xattr of a directory's range of hashes.
pub(super) const LAYOUT_KEY: &std::ffi::CStr = c"trusted.glusterfs.dht";

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC).union(OFlags::NONBLOCK);

/// Open one component as a directory, never following a link.
pub(super) fn open_dir(dir: BorrowedFd<'_>, name: &std::ffi::CStr) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(dir, name, DIRECTORY, Mode::empty())
}

/// What new entries get from their directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Heritage {
    /// The group, of a set-group-id directory.
    pub(super) gid: Option<u32>,
    /// The default ACL.
    pub(super) acl: Option<Arc<[u8]>>,
}

/// What is remembered of an open directory; `None` where it was not yet read.
#[derive(Debug, Default)]
struct Facts {
    heritage: Option<Heritage>,
    layout: Option<Option<RawLayout>>,
}

/// An open directory.
#[derive(Debug)]
pub(super) struct Dir {
    pub(super) gfid: Gfid,
    pub(super) fd: OwnedFd,
    facts: Mutex<Facts>,
}

impl Dir {
    pub(super) fn new(gfid: Gfid, fd: OwnedFd) -> Self {
        Self { gfid, fd, facts: Mutex::default() }
    }

    pub(super) fn at(&self) -> At<'_> {
        At::from(&self.fd)
    }

    /// What new entries get from it, read once.
    pub(super) fn heritage(&self) -> Result<Heritage, Errno> {
        let mut facts = self.facts.lock();
        if let Some(heritage) = &facts.heritage {
            return Ok(heritage.clone());
        }
        let stat = self.at().stat()?;
        let acl = match self.at().get(acl::DEFAULT) {
            Ok(acl) => Some(Arc::from(&acl[..])),
            Err(Errno::NODATA | Errno::OPNOTSUPP) => None,
            Err(errno) => return Err(errno),
        };
        let gid = (stat.st_mode & libc::S_ISGID != 0).then_some(stat.st_gid);
        let heritage = Heritage { gid, acl };
        facts.heritage = Some(heritage.clone());
        Ok(heritage)
    }

    /// Its range of hashes, read once.
    pub(super) fn layout(&self) -> Result<Option<RawLayout>, Errno> {
        let mut facts = self.facts.lock();
        if let Some(layout) = facts.layout {
            return Ok(layout);
        }
        let layout = self.at().get_exact(LAYOUT_KEY)?.map(RawLayout);
        facts.layout = Some(layout);
        Ok(layout)
    }

    /// Its range of hashes is known without asking: it was just written.
    pub(super) fn know_layout(&self, layout: Option<RawLayout>) {
        self.facts.lock().layout = Some(layout);
    }

    /// Attributes or xattrs were changed: read them again when needed.
    pub(super) fn forget_facts(&self) {
        *self.facts.lock() = Facts::default();
    }
}

/// Every descriptor that a brick holds.
#[derive(Debug)]
pub(super) struct Dirs {
    pub(super) root: Arc<Dir>,
    pub(super) glusterfs: OwnedFd,
    first: Vec<OwnedFd>,
    /// Where handles of open files without names are.
    pub(super) unlinked: OwnedFd,
    /// Where inodes are made complete before they get their name.
    pub(super) staging: OwnedFd,
    cache: Mutex<LruCache<Gfid, Arc<Dir>>>,
}

impl Dirs {
    /// Open `.glusterfs` of the brick whose root directory is `root` and everything below it that is held for life,
    /// making what is missing.
    pub(super) fn open(root: OwnedFd, dirs_max: usize) -> Result<Self, Errno> {
        let glusterfs = open_dir(root.as_fd(), c".glusterfs")?;
        let mut first = Vec::with_capacity(256);
        for byte in 0..=255 {
            let [high, low] = hex_byte(byte);
            let name = [high, low, 0];
            let name = std::ffi::CStr::from_bytes_with_nul(&name).expect("two hex digits and a NUL");
            first.push(open_or_make(glusterfs.as_fd(), name, 0o700)?);
        }
        Ok(Self {
            root: Arc::new(Dir::new(Gfid::ROOT, root)),
            unlinked: open_or_make(glusterfs.as_fd(), c"unlink", 0o600)?,
            staging: open_or_make(glusterfs.as_fd(), c"staging", 0o700)?,
            glusterfs,
            first,
            cache: Mutex::new(LruCache::sparse(NonZeroUsize::new(dirs_max).unwrap_or(NonZeroUsize::MIN))),
        })
    }

    /// The first-level directory in which the handle of `gfid` is named.
    pub(super) fn first(&self, gfid: Gfid) -> BorrowedFd<'_> {
        self.first[usize::from(gfid.as_bytes()[0])].as_fd()
    }

    /// A directory that is open already.
    pub(super) fn cached(&self, gfid: Gfid) -> Option<Arc<Dir>> {
        if gfid == Gfid::ROOT {
            return Some(self.root.clone());
        }
        self.cache.lock().get(&gfid).cloned()
    }

    /// Keep a directory open.
    pub(super) fn keep(&self, dir: Dir) -> Arc<Dir> {
        let dir = Arc::new(dir);
        // What is evicted is closed after the lock is free again.
        let _evicted = self.cache.lock().push(dir.gfid, dir.clone());
        dir
    }

    /// The directory was removed, or is not what was believed.
    pub(super) fn forget(&self, gfid: Gfid) {
        let _dropped = self.cache.lock().pop(&gfid);
    }

    /// Open a directory by its gfid. `ESTALE` where there is none, `ELOOP` where handles lead in a circle.
    pub(super) fn open_by_gfid(&self, gfid: Gfid) -> Result<Arc<Dir>, Errno> {
        if let Some(dir) = self.cached(gfid) {
            return Ok(dir);
        }
        let mut chain: Vec<(Gfid, Name)> = Vec::new();
        let mut at = gfid;
        // Brent's way to see a circle: compare with a landmark that moves whenever the chain has doubled.
        let mut landmark = gfid;
        let base = loop {
            let (parent, name) = self.read_handle(at)?;
            chain.push((at, name));
            if parent == landmark {
                return Err(Errno::LOOP);
            }
            if chain.len().is_power_of_two() {
                landmark = parent;
            }
            at = parent;
            if let Some(dir) = self.cached(at) {
                break dir;
            }
        };
        chain.into_iter().rev().try_fold(base, |parent, (gfid, name)| {
            let fd = open_dir(parent.fd.as_fd(), CName::new(&name).as_cstr()).map_err(stale)?;
            self.adopt(gfid, fd)
        })
    }

    /// Keep a directory open if it has this gfid, else `ESTALE`.
    pub(super) fn adopt(&self, gfid: Gfid, fd: OwnedFd) -> Result<Arc<Dir>, Errno> {
        if At::from(&fd).get_exact(GFID_KEY)? != Some(*gfid.as_bytes()) {
            return Err(Errno::STALE);
        }
        Ok(self.keep(Dir::new(gfid, fd)))
    }

    /// Parent and name that a directory's handle gives; `ESTALE` where there is no such handle.
    pub(super) fn read_handle(&self, gfid: Gfid) -> Result<(Gfid, Name), Errno> {
        let mut text = [0; TARGET_BYTES_MAX];
        let handle = HandleName::new(gfid);
        let length = rustix::fs::readlinkat_raw(self.first(gfid), handle.as_cstr(), &mut text[..]).map_err(stale)?;
        parse_target(&text[..length]).ok_or(Errno::STALE)
    }

    /// Whether the handle of a directory says exactly this.
    pub(super) fn handle_says(&self, gfid: Gfid, target: &Target) -> bool {
        let mut text = [0; TARGET_BYTES_MAX];
        let handle = HandleName::new(gfid);
        rustix::fs::readlinkat_raw(self.first(gfid), handle.as_cstr(), &mut text[..])
            .is_ok_and(|length| &text[..length] == target.as_bytes())
    }

    /// Make a directory's handle; `EEXIST` where there is a handle.
    pub(super) fn make_dir_handle(&self, gfid: Gfid, target: &Target) -> Result<(), Errno> {
        let handle = HandleName::new(gfid);
        self.with_second_level(gfid, &handle, || {
            rustix::fs::symlinkat(target.as_bytes(), self.first(gfid), handle.as_cstr())
        })
    }

    /// Give a directory's handle another text in one step, so that at no time there is none.
    pub(super) fn replace_dir_handle(&self, gfid: Gfid, target: &Target) -> Result<(), Errno> {
        let handle = HandleName::new(gfid);
        // A name that no inode in the making has: those are gfids alone.
        let mut name = [0; 38];
        name[..36].copy_from_slice(handle.text().to_bytes());
        name[36] = b'~';
        let name = std::ffi::CStr::from_bytes_with_nul(&name).expect("a gfid's text, a tilde and a NUL");
        let staging = self.staging.as_fd();
        if rustix::fs::symlinkat(target.as_bytes(), staging, name) == Err(Errno::EXIST) {
            rustix::fs::unlinkat(staging, name, AtFlags::empty())?;
            rustix::fs::symlinkat(target.as_bytes(), staging, name)?;
        }
        self.with_second_level(gfid, &handle, || {
            rustix::fs::renameat_with(staging, name, self.first(gfid), handle.as_cstr(), RenameFlags::empty())
        })
    }

    /// Make the handle of what is not a directory: a hard link to it. `EEXIST` where there is a handle.
    pub(super) fn link_handle(&self, gfid: Gfid, object: At<'_>) -> Result<(), Errno> {
        let handle = HandleName::new(gfid);
        self.with_second_level(gfid, &handle, || match object {
            At::Fd(fd) => rustix::fs::linkat(fd, c"", self.first(gfid), handle.as_cstr(), AtFlags::EMPTY_PATH),
            At::Name(dir, name) => rustix::fs::linkat(dir, name, self.first(gfid), handle.as_cstr(), AtFlags::empty()),
        })
    }

    /// Remove a handle.
    pub(super) fn remove_handle(&self, gfid: Gfid) -> Result<(), Errno> {
        rustix::fs::unlinkat(self.first(gfid), HandleName::new(gfid).as_cstr(), AtFlags::empty())
    }

    /// Try `make`; where it wants the second-level directory, make that and try again.
    fn with_second_level(
        &self,
        gfid: Gfid,
        handle: &HandleName,
        make: impl Fn() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        match make() {
            Err(Errno::NOENT) => {
                match rustix::fs::mkdirat(self.first(gfid), handle.second_level(), Mode::from_raw_mode(0o700)) {
                    Ok(()) | Err(Errno::EXIST) => make(),
                    Err(errno) => Err(errno),
                }
            }
            answer => answer,
        }
    }

    /// The root's handle must lead to the root. Makes it where it is missing.
    pub(super) fn check_root_handle(&self) -> Result<RootHandle, Errno> {
        let handle = HandleName::new(Gfid::ROOT);
        let first = self.first(Gfid::ROOT);
        match rustix::fs::statat(first, handle.as_cstr(), AtFlags::empty()) {
            Ok(found) => {
                let root = self.root.at().stat()?;
                let same = (found.st_dev, found.st_ino) == (root.st_dev, root.st_ino);
                Ok(if same { RootHandle::Right } else { RootHandle::Wrong })
            }
            Err(Errno::NOENT) => {
                let make = || rustix::fs::symlinkat(ROOT_TARGET, first, handle.as_cstr());
                match self.with_second_level(Gfid::ROOT, &handle, make) {
                    Ok(()) => Ok(RootHandle::Right),
                    // It is there and leads nowhere.
                    Err(Errno::EXIST) => Ok(RootHandle::Wrong),
                    Err(errno) => Err(errno),
                }
            }
            Err(Errno::LOOP) => Ok(RootHandle::Wrong),
            Err(errno) => Err(errno),
        }
    }
}

/// Whether the root's handle leads to the root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RootHandle {
    Right,
    Wrong,
}

/// Open a directory below `.glusterfs`, making it if it is missing.
pub(super) fn open_or_make(dir: BorrowedFd<'_>, name: &std::ffi::CStr, mode: u32) -> Result<OwnedFd, Errno> {
    match open_dir(dir, name) {
        Err(Errno::NOENT) => {
            rustix::fs::mkdirat(dir, name, Mode::from_raw_mode(mode))?;
            open_dir(dir, name)
        }
        answer => answer,
    }
}

/// Open the root of a brick: the one absolute path there is.
pub(super) fn open_root(path: &std::path::Path) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(CWD, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// What leads nowhere, or is not of the expected kind, is a gfid that is no longer there.
pub(super) fn stale(errno: Errno) -> Errno {
    match errno {
        Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::INVAL => Errno::STALE,
        other => other,
    }
}
