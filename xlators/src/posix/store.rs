//! What every fop of a brick works on: the held descriptors, the memory of inodes, the open files and the locks.
//!
//! Plain synchronous code. Locks are taken in this order and never the other way: names (in the order of their number),
//! inodes (likewise), times.
//!
//! Invariant: no lock of this file is held while another process is waited for.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use rustix::fs::{FileType, Stat, XattrFlags};
use rustix::io::Errno;

use super::at::At;
use super::dir::Listings;
use super::dirs::{Dir, Dirs, LAYOUT_KEY, stale};
use super::files::{Files, OpenFile};
use super::handle::HandleName;
use super::mdata::{self, Form, Known, Mdata, Memory, Touch};
use super::reserve::Reserve;
use super::{PosixOptions, xattr};
use crate::reply::Found;
use crate::types::{AttrMask, ClientId, Cover, Fd, Gfid, Iatt, Kind, RawLayout, Time};

/// Enough that two unrelated inodes seldom share a lock; each is one byte.
const STRIPES: usize = 4096;

/// What marks a link file, together with its xattr.
pub(super) const LINK_FILE_MODE: u32 = 0o1000;

/// Locks by gfid.
pub(super) struct Stripes(Box<[Mutex<()>]>);

/// One or two of them.
pub(super) struct Held<'a>(#[allow(dead_code)] [Option<MutexGuard<'a, ()>>; 2]);

impl Stripes {
    fn new() -> Self {
        Self((0..STRIPES).map(|_| Mutex::new(())).collect())
    }

    fn number(gfid: Gfid) -> usize {
        let bytes = gfid.as_bytes();
        usize::from(u16::from_be_bytes([bytes[14], bytes[15]])) % STRIPES
    }

    pub(super) fn lock(&self, gfid: Gfid) -> Held<'_> {
        Held([Some(self.0[Self::number(gfid)].lock()), None])
    }

    pub(super) fn lock_both(&self, one: Gfid, two: Gfid) -> Held<'_> {
        let (low, high) = (Self::number(one).min(Self::number(two)), Self::number(one).max(Self::number(two)));
        let first = self.0[low].lock();
        Held([Some(first), (low != high).then(|| self.0[high].lock())])
    }
}

impl std::fmt::Debug for Stripes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stripes").finish_non_exhaustive()
    }
}

/// An inode, as it can be reached.
#[derive(Debug)]
pub(super) enum Node<'a> {
    /// A directory, open.
    Dir(Arc<Dir>),
    /// A regular file that the caller has open.
    Open(Arc<OpenFile>),
    /// Anything but a directory, by its handle.
    Handle(BorrowedFd<'a>, HandleName),
    /// An open file without names, by what became of its handle.
    Unlinked(BorrowedFd<'a>, HandleName),
}

impl Node<'_> {
    pub(super) fn at(&self) -> At<'_> {
        match self {
            Node::Dir(dir) => dir.at(),
            Node::Open(file) => At::from(&file.fd),
            Node::Handle(dir, handle) => At::Name(*dir, handle.as_cstr()),
            Node::Unlinked(dir, handle) => At::Name(*dir, handle.text()),
        }
    }

    pub(super) fn is_dir(&self) -> bool {
        matches!(self, Node::Dir(_))
    }

    /// What it is, as far as how it is reached says.
    pub(super) fn form(&self) -> Form {
        match self {
            Node::Dir(_) => Form::Directory,
            Node::Open(_) => Form::File,
            Node::Handle(..) | Node::Unlinked(..) => Form::NotADirectory,
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Store {
    pub(super) options: PosixOptions,
    pub(super) dirs: Dirs,
    pub(super) memory: Memory,
    pub(super) files: Files,
    pub(super) listings: Listings,
    pub(super) reserve: Reserve,
    /// Held while a name of a directory is made, moved or removed.
    pub(super) names: Stripes,
    /// Held while names or handles of an inode come or go, or its counters change.
    pub(super) inodes: Stripes,
    times: Stripes,
    /// Directories in the root that clients do not see, which its link count must not count.
    pub(super) hidden_dirs: AtomicU32,
    /// The file system (or the kernel below it) has no files without names; asked once.
    pub(super) no_tmpfile: AtomicBool,
    /// As whom the kernel makes new inodes.
    pub(super) process_ids: (u32, u32),
}

impl Store {
    pub(super) fn new(dirs: Dirs, options: PosixOptions) -> Self {
        let ids = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        Self {
            dirs,
            memory: Memory::new(options.inodes_remembered_max),
            files: Files::new(options.open_files_max),
            listings: Listings::default(),
            reserve: Reserve::new(options.reserve_percent),
            names: Stripes::new(),
            inodes: Stripes::new(),
            times: Stripes::new(),
            hidden_dirs: AtomicU32::new(1),
            no_tmpfile: AtomicBool::new(false),
            process_ids: ids,
            options,
        }
    }

    /// See which directories of the brick's own are in the root.
    pub(super) fn count_hidden_dirs(&self, volume_id: uuid::Uuid) {
        let parking = format!(".glusterfs-anonymous-inode-{volume_id}");
        let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
        if rustix::fs::statat(&self.dirs.root.fd, parking, flags).is_ok() {
            self.hidden_dirs.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// An open directory by gfid; `ENOTDIR` for what is known to be something else.
    pub(super) fn dir(&self, gfid: Gfid) -> Result<Arc<Dir>, Errno> {
        if let Some(dir) = self.dirs.cached(gfid) {
            return Ok(dir);
        }
        if self.memory.get(gfid).is_some_and(|known| known.form != Form::Directory) {
            return Err(Errno::NOTDIR);
        }
        self.dirs.open_by_gfid(gfid).inspect_err(|_| self.memory.forget(gfid))
    }

    /// An inode by gfid; `ESTALE` where there is none.
    pub(super) fn node(&self, gfid: Gfid) -> Result<Node<'_>, Errno> {
        if let Some(dir) = self.dirs.cached(gfid) {
            return Ok(Node::Dir(dir));
        }
        if self.files.is_unlinked(gfid) {
            return Ok(Node::Unlinked(self.dirs.unlinked.as_fd(), HandleName::new(gfid)));
        }
        let handle = Node::Handle(self.dirs.first(gfid), HandleName::new(gfid));
        match self.memory.get(gfid) {
            Some(known) if known.form == Form::Directory => return self.dir(gfid).map(Node::Dir),
            Some(_) => return Ok(handle),
            None => {}
        }
        match handle.at().stat() {
            Ok(stat) => match FileType::from_raw_mode(stat.st_mode) {
                // A symbolic link of a user has a name and so a second link.
                FileType::Symlink if stat.st_nlink == 1 => self.dir(gfid).map(Node::Dir),
                FileType::Directory => Err(Errno::STALE),
                _ => Ok(handle),
            },
            Err(errno) => Err(stale(errno)),
        }
    }

    /// An inode through the caller's open file if the brick still has it, else by gfid.
    pub(super) fn node_through(&self, gfid: Gfid, client: ClientId, fd: Option<Fd>) -> Result<Node<'_>, Errno> {
        let file = fd.filter(|fd| fd.gfid == gfid).and_then(|fd| self.files.get(client, fd));
        file.map_or_else(|| self.node(gfid), |file| Ok(Node::Open(file)))
    }

    /// A handle that led nowhere: what was remembered of the inode is wrong.
    pub(super) fn missed(&self, gfid: Gfid, errno: Errno) -> Errno {
        if errno == Errno::NOENT {
            self.memory.forget(gfid);
            return Errno::STALE;
        }
        errno
    }

    /// The times of an inode, from memory or its xattr; `None` where it has none.
    pub(super) fn times(&self, gfid: Gfid, at: At<'_>, stat: &Stat) -> Result<Option<Mdata>, Errno> {
        if let Some(known) = self.memory.get(gfid) {
            return Ok(known.times);
        }
        let times = read_times(at)?;
        self.memory.put(gfid, Known { times, form: kind_of(stat.st_mode).into(), lacks: None });
        Ok(times)
    }

    /// Move times forward. Failing to store them does not undo the change they tell of, so it is only logged.
    pub(super) fn touch(&self, gfid: Gfid, at: At<'_>, form: Form, touch: Touch, when: Time) -> Option<Mdata> {
        let change = |times: Option<Mdata>| Some(times.map_or_else(|| Mdata::born(when), |t| t.touched(touch, when)));
        self.change_times(gfid, at, form, change).unwrap_or_else(|errno| {
            tracing::warn!(%gfid, %errno, "times not stored");
            None
        })
    }

    /// Store what `change` makes of the times of an inode. `None` leaves them as they are.
    pub(super) fn change_times(
        &self,
        gfid: Gfid,
        at: At<'_>,
        form: Form,
        change: impl FnOnce(Option<Mdata>) -> Option<Mdata>,
    ) -> Result<Option<Mdata>, Errno> {
        let _held = self.times.lock(gfid);
        let (before, form, lacks) = match self.memory.get(gfid) {
            Some(known) => (known.times, known.form, known.lacks),
            None => (read_times(at)?, form, None),
        };
        let after = change(before);
        if let Some(times) = after.filter(|times| before != Some(*times)) {
            at.set(mdata::KEY, &times.encode(), XattrFlags::empty())?;
        }
        self.memory.put(gfid, Known { times: after, form, lacks });
        Ok(after)
    }

    /// Names in a directory changed: its times, and then it as it is.
    pub(super) fn touch_parent(&self, dir: &Dir, when: Time) -> Result<Iatt, Errno> {
        let times = self.touch(dir.gfid, dir.at(), Form::Directory, Touch::CtimeMtime, when);
        Ok(self.iatt(dir.gfid, &dir.at().stat()?, times.as_ref()))
    }

    /// Attributes as clients see them.
    pub(super) fn iatt(&self, gfid: Gfid, stat: &Stat, times: Option<&Mdata>) -> Iatt {
        let kind = kind_of(stat.st_mode);
        let links = u32::try_from(stat.st_nlink).unwrap_or(u32::MAX);
        let time = |sec, nsec: u64| Time { sec, nsec: u32::try_from(nsec).unwrap_or(0) };
        let backend = || Mdata {
            ctime: time(stat.st_ctime, stat.st_ctime_nsec),
            mtime: time(stat.st_mtime, stat.st_mtime_nsec),
            atime: time(stat.st_atime, stat.st_atime_nsec),
        };
        let times = times.copied().unwrap_or_else(backend);
        Iatt {
            gfid,
            kind,
            mode: stat.st_mode & 0o7777,
            nlink: match kind {
                Kind::Dir if gfid == Gfid::ROOT => self.root_links(links),
                Kind::Dir => links,
                _ => links.saturating_sub(1),
            },
            uid: stat.st_uid,
            gid: stat.st_gid,
            rdev: if matches!(kind, Kind::Char | Kind::Block) { stat.st_rdev } else { 0 },
            size: u64::try_from(stat.st_size).unwrap_or(0),
            blocks: u64::try_from(stat.st_blocks).unwrap_or(0),
            atime: times.atime,
            mtime: times.mtime,
            ctime: times.ctime,
            lacks: self.memory.get(gfid).and_then(|known| known.lacks).unwrap_or_default(),
        }
    }

    /// Some file systems do not count subdirectories, and say 1.
    fn root_links(&self, links: u32) -> u32 {
        if links < 2 { links } else { links.saturating_sub(self.hidden_dirs.load(Ordering::Relaxed)).max(2) }
    }

    /// An inode's attributes, with what the layers above need to know of it.
    pub(super) fn found(&self, gfid: Gfid, at: At<'_>, stat: &Stat) -> Result<Box<Found>, Errno> {
        let times = self.times(gfid, at, stat)?;
        let iatt = self.iatt(gfid, stat, times.as_ref());
        let layout = if iatt.kind == Kind::Dir { self.layout(gfid, at)? } else { None };
        let maybe_link_file = iatt.kind == Kind::File && iatt.mode == LINK_FILE_MODE;
        let linkto = if maybe_link_file { read_linkto(at)? } else { None };
        Ok(Box::new(Found { iatt, exact: AttrMask::all(), cover: Cover::empty(), layout, linkto, marks: Vec::new() }))
    }

    /// Remember which xattrs of programs an inode lacks. As one step against [`Store::forget_lacks`]. Only where the
    /// attributes are asked for by themselves: only those can be kept by a client, and a lookup costs no more for it.
    pub(super) fn look_for_xattrs(&self, gfid: Gfid, at: At<'_>) -> Result<(), Errno> {
        if self.memory.get(gfid).is_some_and(|known| known.lacks.is_some()) {
            return Ok(());
        }
        let _held = self.times.lock(gfid);
        let lacks = xattr::lacks(at)?;
        if let Some(known) = self.memory.get(gfid) {
            self.memory.put(gfid, Known { lacks: Some(lacks), ..known });
        }
        Ok(())
    }

    /// A program has set or removed an xattr.
    pub(super) fn forget_lacks(&self, gfid: Gfid) {
        let _held = self.times.lock(gfid);
        if let Some(known) = self.memory.get(gfid) {
            self.memory.put(gfid, Known { lacks: None, ..known });
        }
    }

    fn layout(&self, gfid: Gfid, at: At<'_>) -> Result<Option<RawLayout>, Errno> {
        match self.dirs.cached(gfid) {
            Some(dir) => dir.layout(),
            None => Ok(at.get_exact(LAYOUT_KEY)?.map(RawLayout)),
        }
    }

    /// An inode as it is now.
    pub(super) fn stat_node(&self, gfid: Gfid, node: &Node<'_>) -> Result<Iatt, Errno> {
        let stat = node.at().stat().map_err(|errno| self.missed(gfid, errno))?;
        let times = self.times(gfid, node.at(), &stat)?;
        Ok(self.iatt(gfid, &stat, times.as_ref()))
    }
}

/// The times on disk; a value that is none of ours counts as absent.
fn read_times(at: At<'_>) -> Result<Option<Mdata>, Errno> {
    Ok(at.get_exact(mdata::KEY)?.and_then(|bytes| Mdata::decode(&bytes)))
}

/// Where a link file points to; written with a NUL, read with or without.
pub(super) fn read_linkto(at: At<'_>) -> Result<Option<Bytes>, Errno> {
    match at.get(xattr::LINKTO_KEY) {
        Ok(value) => {
            let length = value.iter().position(|byte| *byte == 0).unwrap_or(value.len());
            Ok(Some(value.slice(..length)))
        }
        Err(Errno::NODATA) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// The kind that a mode says.
pub(super) fn kind_of(mode: u32) -> Kind {
    match FileType::from_raw_mode(mode) {
        FileType::Directory => Kind::Dir,
        FileType::Symlink => Kind::Symlink,
        FileType::Fifo => Kind::Fifo,
        FileType::Socket => Kind::Socket,
        FileType::CharacterDevice => Kind::Char,
        FileType::BlockDevice => Kind::Block,
        FileType::RegularFile | FileType::Unknown => Kind::File,
    }
}
