//! A FUSE file system with nothing behind it: what the kernel's FUSE costs when the daemon only remembers.
//!
//! It lets the kernel keep names and attributes for an hour, as a mount that holds a lease may. One mutex over everything: two
//! event loops on two processors hardly meet in it.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use fuser::{
    BsdFileFlags, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    InitFlags, KernelConfig, LockOwner, MountOption, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request, SessionACL, TimeOrNow,
    WriteFlags,
};
use parking_lot::Mutex;

const KEEP: Duration = Duration::from_secs(3600);
const EVENT_LOOPS: usize = 2;
const WRITE_BYTES_MAX: u32 = 1 << 20;

/// Serve the file system at `mountpoint` until somebody unmounts it.
pub fn serve(mountpoint: &Path) -> Result<()> {
    let mut config = Config::default();
    config.mount_options = vec![MountOption::FSName("floor".to_owned()), MountOption::DefaultPermissions];
    config.acl = SessionACL::All;
    config.n_threads = Some(EVENT_LOOPS);
    config.clone_fd = true;
    fuser::mount(Floor::new(), mountpoint, &config).with_context(|| format!("cannot mount {}", mountpoint.display()))
}

#[derive(Debug)]
struct Floor {
    nodes: Mutex<Nodes>,
}

#[derive(Debug)]
struct Nodes {
    last: u64,
    table: HashMap<u64, Node>,
}

#[derive(Debug)]
struct Node {
    attr: FileAttr,
    body: Body,
}

#[derive(Debug)]
enum Body {
    Data(Vec<u8>),
    Link(OsString),
    /// Children, with a number that never changes while the name lives: the place to go on reading from.
    Names {
        children: BTreeMap<OsString, (u64, u64)>,
        by_place: BTreeMap<u64, OsString>,
        last_place: u64,
    },
}

impl Body {
    fn directory() -> Self {
        Self::Names { children: BTreeMap::new(), by_place: BTreeMap::new(), last_place: 0 }
    }
}

type Outcome<T> = std::result::Result<T, Errno>;

impl Floor {
    fn new() -> Self {
        let mut nodes = Nodes { last: 1, table: HashMap::new() };
        let attr = attr(1, FileType::Directory, 0o755, 0, 0);
        nodes.table.insert(1, Node { attr, body: Body::directory() });
        Self { nodes: Mutex::new(nodes) }
    }
}

impl Nodes {
    fn node(&mut self, inode: u64) -> Outcome<&mut Node> {
        self.table.get_mut(&inode).ok_or(Errno::ENOENT)
    }

    fn child(&mut self, parent: u64, name: &OsStr) -> Outcome<u64> {
        match &self.node(parent)?.body {
            Body::Names { children, .. } => children.get(name).map(|(inode, _)| *inode).ok_or(Errno::ENOENT),
            Body::Data(_) | Body::Link(_) => Err(Errno::ENOTDIR),
        }
    }

    fn make(
        &mut self,
        request: &Request,
        parent: u64,
        name: &OsStr,
        mode: u32,
        kind: FileType,
        body: Body,
    ) -> Outcome<FileAttr> {
        if self.child(parent, name).is_ok() {
            return Err(Errno::EEXIST);
        }
        self.last += 1;
        let mut attr = attr(self.last, kind, mode, request.uid(), request.gid());
        if let Body::Link(target) = &body {
            attr.size = target.len() as u64;
        }
        self.table.insert(self.last, Node { attr, body });
        self.put(parent, name, self.last)?;
        Ok(attr)
    }

    fn put(&mut self, parent: u64, name: &OsStr, inode: u64) -> Outcome<()> {
        let node = self.node(parent)?;
        node.attr.mtime = SystemTime::now();
        let Body::Names { children, by_place, last_place } = &mut node.body else { return Err(Errno::ENOTDIR) };
        *last_place += 1;
        by_place.insert(*last_place, name.to_owned());
        if let Some((_, old_place)) = children.insert(name.to_owned(), (inode, *last_place)) {
            by_place.remove(&old_place);
        }
        Ok(())
    }

    fn take(&mut self, parent: u64, name: &OsStr) -> Outcome<u64> {
        let node = self.node(parent)?;
        node.attr.mtime = SystemTime::now();
        let Body::Names { children, by_place, .. } = &mut node.body else { return Err(Errno::ENOTDIR) };
        let (inode, place) = children.remove(name).ok_or(Errno::ENOENT)?;
        by_place.remove(&place);
        Ok(inode)
    }

    /// Take a name and the node behind it. Open files that have lost their last name are not kept: no work here has one.
    fn remove(&mut self, parent: u64, name: &OsStr) -> Outcome<()> {
        let inode = self.child(parent, name)?;
        if matches!(&self.node(inode)?.body, Body::Names { children, .. } if !children.is_empty()) {
            return Err(Errno::ENOTEMPTY);
        }
        self.take(parent, name)?;
        let node = self.node(inode)?;
        node.attr.nlink = node.attr.nlink.saturating_sub(1);
        if node.attr.nlink == 0 || node.attr.kind == FileType::Directory {
            self.table.remove(&inode);
        }
        Ok(())
    }

    /// The entries of a directory behind a place, with their attributes.
    fn list(&mut self, directory: u64, place: u64) -> Outcome<Vec<(u64, OsString, FileAttr)>> {
        let Body::Names { children, by_place, .. } = &self.node(directory)?.body else { return Err(Errno::ENOTDIR) };
        // More than fits into one answer of the kernel's buffer size is never needed.
        let found: Vec<(u64, OsString, u64)> = by_place
            .range(place + 1..)
            .take(256)
            .filter_map(|(place, name)| Some((*place, name.clone(), children.get(name)?.0)))
            .collect();
        found.into_iter().map(|(place, name, inode)| Ok((place, name, self.node(inode)?.attr))).collect()
    }

    fn write(&mut self, inode: u64, offset: u64, bytes: &[u8]) -> Outcome<()> {
        let node = self.node(inode)?;
        let Body::Data(data) = &mut node.body else { return Err(Errno::EINVAL) };
        let start = usize::try_from(offset).map_err(|_| Errno::EFBIG)?;
        if data.len() < start + bytes.len() {
            data.resize(start + bytes.len(), 0);
        }
        data[start..start + bytes.len()].copy_from_slice(bytes);
        node.attr.size = data.len() as u64;
        node.attr.mtime = SystemTime::now();
        Ok(())
    }

    fn change(&mut self, inode: u64, change: &Change) -> Outcome<FileAttr> {
        let node = self.node(inode)?;
        if let Some(size) = change.size {
            let Body::Data(data) = &mut node.body else { return Err(Errno::EINVAL) };
            data.resize(usize::try_from(size).map_err(|_| Errno::EFBIG)?, 0);
            node.attr.size = size;
        }
        let attr = &mut node.attr;
        attr.perm = change.mode.map_or(attr.perm, |mode| (mode & 0o7777) as u16);
        attr.uid = change.uid.unwrap_or(attr.uid);
        attr.gid = change.gid.unwrap_or(attr.gid);
        attr.atime = change.atime.unwrap_or(attr.atime);
        attr.mtime = change.mtime.unwrap_or(attr.mtime);
        attr.ctime = SystemTime::now();
        Ok(*attr)
    }
}

/// What a setattr asks for.
#[derive(Debug)]
struct Change {
    mode: Option<u32>,
    uid: Option<u32>,
    gid: Option<u32>,
    size: Option<u64>,
    atime: Option<SystemTime>,
    mtime: Option<SystemTime>,
}

impl Filesystem for Floor {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        let wanted = InitFlags::FUSE_DO_READDIRPLUS
            | InitFlags::FUSE_READDIRPLUS_AUTO
            | InitFlags::FUSE_PARALLEL_DIROPS
            | InitFlags::FUSE_ATOMIC_O_TRUNC
            | InitFlags::FUSE_HANDLE_KILLPRIV_V2;
        // What an older kernel does not have only makes the floor higher there, for everybody.
        let _ = config.add_capabilities(wanted);
        let _ = config.set_max_write(WRITE_BYTES_MAX);
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let mut nodes = self.nodes.lock();
        let found = nodes.child(parent.0, name).and_then(|inode| Ok(nodes.node(inode)?.attr));
        answer_entry(found, reply);
    }

    fn getattr(&self, _request: &Request, inode: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        answer_attr(self.nodes.lock().node(inode.0).map(|node| node.attr), reply);
    }

    fn setattr(
        &self,
        _request: &Request,
        inode: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let change = Change { mode, uid, gid, size, atime: atime.map(time), mtime: mtime.map(time) };
        answer_attr(self.nodes.lock().change(inode.0, &change), reply);
    }

    fn readlink(&self, _request: &Request, inode: INodeNo, reply: ReplyData) {
        match self.nodes.lock().node(inode.0).map(|node| &node.body) {
            Ok(Body::Link(target)) => reply.data(target.as_bytes()),
            Ok(Body::Data(_) | Body::Names { .. }) => reply.error(Errno::EINVAL),
            Err(errno) => reply.error(errno),
        }
    }

    fn mkdir(&self, request: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        let mode = mode & !umask;
        answer_entry(
            self.nodes.lock().make(request, parent.0, name, mode, FileType::Directory, Body::directory()),
            reply,
        );
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let body = Body::Link(target.as_os_str().to_owned());
        answer_entry(self.nodes.lock().make(request, parent.0, name, 0o777, FileType::Symlink, body), reply);
    }

    fn link(&self, _request: &Request, inode: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let mut nodes = self.nodes.lock();
        let linked = nodes.put(parent.0, name, inode.0).and_then(|()| {
            let node = nodes.node(inode.0)?;
            node.attr.nlink += 1;
            Ok(node.attr)
        });
        answer_entry(linked, reply);
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        let body = Body::Data(Vec::new());
        match self.nodes.lock().make(request, parent.0, name, mode & !umask, FileType::RegularFile, body) {
            Ok(attr) => reply.created(&KEEP, &attr, Generation(0), FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE),
            Err(errno) => reply.error(errno),
        }
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer_empty(self.nodes.lock().remove(parent.0, name), reply);
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer_empty(self.nodes.lock().remove(parent.0, name), reply);
    }

    fn rename(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        _flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let mut nodes = self.nodes.lock();
        let _ = nodes.remove(new_parent.0, new_name);
        let renamed = nodes.take(parent.0, name).and_then(|inode| nodes.put(new_parent.0, new_name, inode));
        answer_empty(renamed, reply);
    }

    fn open(&self, _request: &Request, inode: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        if flags.0 & libc::O_TRUNC != 0 {
            let truncate = Change { mode: None, uid: None, gid: None, size: Some(0), atime: None, mtime: None };
            let _ = self.nodes.lock().change(inode.0, &truncate);
        }
        reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE);
    }

    fn read(
        &self,
        _request: &Request,
        inode: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.nodes.lock().node(inode.0).map(|node| &node.body) {
            Ok(Body::Data(data)) => {
                let start = usize::try_from(offset).unwrap_or(usize::MAX).min(data.len());
                reply.data(&data[start..data.len().min(start + size as usize)]);
            }
            Ok(Body::Link(_) | Body::Names { .. }) => reply.error(Errno::EINVAL),
            Err(errno) => reply.error(errno),
        }
    }

    fn write(
        &self,
        _request: &Request,
        inode: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.nodes.lock().write(inode.0, offset, data) {
            Ok(()) => reply.written(data.len() as u32),
            Err(errno) => reply.error(errno),
        }
    }

    fn readdir(&self, _request: &Request, inode: INodeNo, _fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        match self.nodes.lock().list(inode.0, offset) {
            Ok(entries) => {
                for (place, name, attr) in entries {
                    if reply.add(attr.ino, place, attr.kind, name) {
                        break;
                    }
                }
                reply.ok();
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn readdirplus(
        &self,
        _request: &Request,
        inode: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        match self.nodes.lock().list(inode.0, offset) {
            Ok(entries) => {
                for (place, name, attr) in entries {
                    if reply.add(attr.ino, place, name, &KEEP, &attr, Generation(0)) {
                        break;
                    }
                }
                reply.ok();
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn fsync(&self, _request: &Request, _inode: INodeNo, _fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        reply.ok();
    }
}

fn answer_entry(outcome: Outcome<FileAttr>, reply: ReplyEntry) {
    match outcome {
        Ok(attr) => reply.entry(&KEEP, &attr, Generation(0)),
        Err(errno) => reply.error(errno),
    }
}

fn answer_attr(outcome: Outcome<FileAttr>, reply: ReplyAttr) {
    match outcome {
        Ok(attr) => reply.attr(&KEEP, &attr),
        Err(errno) => reply.error(errno),
    }
}

fn answer_empty(outcome: Outcome<()>, reply: ReplyEmpty) {
    match outcome {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(errno),
    }
}

fn time(time: TimeOrNow) -> SystemTime {
    match time {
        TimeOrNow::SpecificTime(time) => time,
        TimeOrNow::Now => SystemTime::now(),
    }
}

fn attr(inode: u64, kind: FileType, mode: u32, uid: u32, gid: u32) -> FileAttr {
    let now = SystemTime::now();
    FileAttr {
        ino: INodeNo(inode),
        size: 0,
        blocks: 0,
        atime: now,
        mtime: now,
        ctime: now,
        crtime: now,
        kind,
        perm: (mode & 0o7777) as u16,
        nlink: if kind == FileType::Directory { 2 } else { 1 },
        uid,
        gid,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}
