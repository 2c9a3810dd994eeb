//! A volume in memory that says what it covers, counts what it is asked, and forgets an inode
//! that has neither a name nor an open that it was told of.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use bytes::Bytes;
use futures::future::BoxFuture;
use mortar_xlators::ctx::Ctx;
use mortar_xlators::error::{Errno, FopError, Result};
use mortar_xlators::fop::{Birth, Fop, FopKind, Operation, Place, Readdir, Rename, Replace, Setattr, Write};
use mortar_xlators::reply::{
    Changed, Data, DirEntry, Done, Entries, Found, Looked, Made, Removed, Renamed, Reply, Space, Target, Value,
    Written, XattrNames,
};
use mortar_xlators::types::{AttrMask, Cover, Fd, Gfid, Iatt, Kind, Lacks, Name, Time, XattrName};
use mortar_xlators::xlator::{Health, Xlator};
use parking_lot::Mutex;
use tokio::sync::watch;

#[derive(Debug, Clone)]
struct Node {
    iatt: Iatt,
    data: Vec<u8>,
    names: BTreeMap<Vec<u8>, Gfid>,
    xattrs: BTreeMap<Vec<u8>, Bytes>,
}

#[derive(Debug, Default)]
struct State {
    nodes: HashMap<Gfid, Node>,
    opens: HashSet<u64>,
    asked: HashMap<FopKind, u32>,
}

/// The volume.
#[derive(Debug)]
pub(super) struct MemoryVolume {
    state: Mutex<State>,
    /// Whether answers say that leases cover them.
    pub(super) covers: AtomicBool,
    /// Of so many opens and reads of links, another client replaces the names of the inode just before.
    pub(super) replaced: AtomicU32,
    /// Of so many creates, another client has made the name just before.
    pub(super) made: AtomicU32,
    /// So many names are removed by another client as soon as they have been found.
    pub(super) removed: AtomicU32,
    /// Writes wait while this says so, as if another client had to give a lease back.
    pub(super) writes_wait: watch::Sender<bool>,
    /// The number of the last request that came as far as this; a mount numbers all that it gets.
    pub(super) last: AtomicU64,
}

/// One less, if there is one.
fn take_one(count: &AtomicU32) -> bool {
    count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| count.checked_sub(1)).is_ok()
}

impl Node {
    fn new(gfid: Gfid, kind: Kind, birth: &Birth) -> Self {
        let iatt = Iatt {
            gfid,
            kind,
            mode: birth.mode & !birth.umask,
            nlink: 1,
            uid: birth.uid,
            gid: birth.gid,
            rdev: 0,
            size: 0,
            blocks: 0,
            atime: birth.when,
            mtime: birth.when,
            ctime: birth.when,
            lacks: Lacks::all(),
        };
        Self { iatt, data: Vec::new(), names: BTreeMap::new(), xattrs: BTreeMap::new() }
    }

    fn resize(&mut self, size: usize, when: Time) {
        self.data.resize(size, 0);
        self.iatt.size = size as u64;
        self.iatt.mtime = when;
        self.iatt.ctime = when;
    }
}

impl State {
    fn node(&mut self, gfid: Gfid) -> Result<&mut Node, Errno> {
        self.nodes.get_mut(&gfid).ok_or(Errno::STALE)
    }

    fn child(&mut self, parent: Gfid, name: &Name) -> Result<Gfid, Errno> {
        self.node(parent)?.names.get(name.as_bytes()).copied().ok_or(Errno::NOENT)
    }

    fn unname(&mut self, parent: Gfid, name: &Name) -> Result<Removed, Errno> {
        let gfid = self.child(parent, name)?;
        self.node(parent)?.names.remove(name.as_bytes());
        let node = self.node(gfid)?;
        node.iatt.nlink -= 1;
        let iatt = node.iatt;
        if iatt.nlink == 0 && self.opens.is_empty() {
            self.nodes.remove(&gfid);
        }
        Ok(Removed { iatt, parent: self.node(parent)?.iatt })
    }

    /// The names of an inode in the root stand for a copy of it from now on.
    fn replace(&mut self, gfid: Gfid) {
        let Some(old) = self.nodes.get(&gfid).cloned() else { return };
        let new = another(gfid);
        self.nodes.insert(new, Node { iatt: Iatt { gfid: new, ..old.iatt }, ..old });
        let root = self.nodes.get_mut(&Gfid::ROOT).unwrap();
        root.names.values_mut().filter(|named| **named == gfid).for_each(|named| *named = new);
        if self.opens.is_empty() {
            self.nodes.remove(&gfid);
        }
    }

    fn rename(&mut self, fop: &Rename) -> Result<Renamed, Errno> {
        let gfid = self.child(fop.from_parent, &fop.from_name)?;
        let there = self.child(fop.to_parent, &fop.to_name).ok();
        if there.is_some() && fop.replace == Replace::No {
            return Err(Errno::EXIST);
        }
        let replaced = if there.is_some() { Some(self.unname(fop.to_parent, &fop.to_name)?.iatt) } else { None };
        self.node(fop.from_parent)?.names.remove(fop.from_name.as_bytes());
        self.node(fop.to_parent)?.names.insert(fop.to_name.as_bytes().to_vec(), gfid);
        let (from_parent, to_parent) = (self.node(fop.from_parent)?.iatt, self.node(fop.to_parent)?.iatt);
        Ok(Renamed { iatt: self.node(gfid)?.iatt, replaced, from_parent, to_parent })
    }

    fn setattr(&mut self, fop: &Setattr) -> Result<Iatt, Errno> {
        let iatt = &mut self.node(fop.gfid)?.iatt;
        iatt.mode = fop.mode.unwrap_or(iatt.mode);
        if fop.kill_priv {
            iatt.mode &= !0o4000;
        }
        iatt.uid = fop.uid.unwrap_or(iatt.uid);
        iatt.gid = fop.gid.unwrap_or(iatt.gid);
        iatt.atime = fop.atime.unwrap_or(iatt.atime);
        iatt.mtime = fop.mtime.unwrap_or(iatt.mtime);
        iatt.ctime = fop.when;
        Ok(*iatt)
    }
}

impl MemoryVolume {
    pub(super) fn new() -> Arc<Self> {
        let birth = Birth {
            gfid: Gfid::ROOT,
            mode: 0o755,
            umask: 0,
            uid: 0,
            gid: 0,
            when: Time::default(),
            times: None,
            xattrs: Vec::new(),
            pending: Vec::new(),
        };
        let nodes = HashMap::from([(Gfid::ROOT, Node::new(Gfid::ROOT, Kind::Dir, &birth))]);
        Arc::new(Self {
            state: Mutex::new(State { nodes, ..State::default() }),
            covers: AtomicBool::new(true),
            replaced: AtomicU32::new(0),
            made: AtomicU32::new(0),
            removed: AtomicU32::new(0),
            writes_wait: watch::Sender::new(false),
            last: AtomicU64::new(0),
        })
    }

    /// How often it was asked that.
    pub(super) fn asked(&self, kind: FopKind) -> u32 {
        self.state.lock().asked.get(&kind).copied().unwrap_or(0)
    }

    /// What another client does: sets the content of a file in the root.
    pub(super) fn set_content(&self, name: &str, content: &[u8]) -> Gfid {
        let mut state = self.state.lock();
        let gfid = state.child(Gfid::ROOT, &Name::new(name.to_owned()).unwrap()).unwrap();
        let node = state.node(gfid).unwrap();
        node.resize(0, Time::default());
        node.data.extend_from_slice(content);
        node.iatt.size = content.len() as u64;
        node.iatt.mtime = Time { sec: 77, nsec: 7 };
        gfid
    }

    /// What another client does: removes a name in the root.
    pub(super) fn remove(&self, name: &str) {
        self.state.lock().unname(Gfid::ROOT, &Name::new(name.to_owned()).unwrap()).unwrap();
    }

    /// What another client does: opens a file in the root.
    pub(super) fn open_elsewhere(&self, name: &str) {
        let gfid = self.gfid(name);
        self.state.lock().opens.insert(u64::MAX - gfid.ino());
    }

    /// What another client does: moves a name in the root.
    pub(super) fn steal_name(&self, from: &str, to: &str) {
        let mut state = self.state.lock();
        let names = &mut state.node(Gfid::ROOT).unwrap().names;
        let gfid = names.remove(from.as_bytes()).unwrap();
        names.insert(to.into(), gfid);
    }

    /// The gfid of a name in the root.
    pub(super) fn gfid(&self, name: &str) -> Gfid {
        self.state.lock().child(Gfid::ROOT, &Name::new(name.to_owned()).unwrap()).unwrap()
    }

    /// What another client does just before or after a fop.
    fn disturb(&self, state: &mut State, fop: &Fop) {
        match fop {
            Fop::Open(f) if take_one(&self.replaced) => state.replace(f.fd.gfid),
            Fop::Readlink(f) if take_one(&self.replaced) => state.replace(f.gfid),
            Fop::Create(f) if state.child(f.parent, &f.name).is_err() && take_one(&self.made) => {
                let birth = Birth { gfid: another(f.birth.gfid), ..(*f.birth).clone() };
                self.make(state, f.parent, &f.name, Kind::File, &birth).unwrap();
            }
            _ => {}
        }
    }

    fn cover(&self) -> Cover {
        if self.covers.load(Ordering::Relaxed) { Cover::all() } else { Cover::empty() }
    }

    fn found(&self, iatt: Iatt) -> Found {
        Found { iatt, exact: AttrMask::all(), cover: self.cover(), layout: None, linkto: None, marks: Vec::new() }
    }

    fn make(&self, state: &mut State, parent: Gfid, name: &Name, kind: Kind, birth: &Birth) -> Result<Made, Errno> {
        if state.child(parent, name).is_ok() {
            return Err(Errno::EXIST);
        }
        state.nodes.insert(birth.gfid, Node::new(birth.gfid, kind, birth));
        let dir = &mut state.node(parent)?.iatt;
        (dir.mtime, dir.ctime) = (birth.when, birth.when);
        self.name(state, parent, name, birth.gfid)
    }

    fn name(&self, state: &mut State, parent: Gfid, name: &Name, gfid: Gfid) -> Result<Made, Errno> {
        state.node(parent)?.names.insert(name.as_bytes().to_vec(), gfid);
        let (iatt, parent) = (state.node(gfid)?.iatt, state.node(parent)?.iatt);
        Ok(Made { iatt, parent, cover: self.cover(), lease: None })
    }

    fn list(&self, state: &mut State, fop: &Readdir) -> Result<Entries, Errno> {
        // Small pages, so that a test's directory has several.
        const PAGE: usize = 100;
        let names = state.node(fop.gfid)?.names.clone();
        let all: Vec<_> = names.into_iter().enumerate().map(|(at, name)| (at as u64 + 1000, name)).collect();
        let rest = all.iter().filter(|(cookie, _)| *cookie > fop.after);
        let mut entries = Vec::new();
        for (cookie, (name, gfid)) in rest.clone().take(PAGE) {
            let iatt = state.node(*gfid)?.iatt;
            let found = fop.attrs.then(|| Box::new(self.found(iatt)));
            let name = Name::new(name.clone())?;
            entries.push(DirEntry { name, kind: iatt.kind, gfid: *gfid, cookie: *cookie, found });
        }
        Ok(Entries { entries, end: rest.count() <= PAGE })
    }

    fn write(&self, state: &mut State, fop: &Write) -> Result<Written, Errno> {
        let node = state.node(fop.gfid)?;
        let offset = match fop.place {
            Place::At(offset) => offset,
            Place::End => node.data.len() as u64,
        };
        let end = offset as usize + fop.data.len();
        node.resize(node.data.len().max(end), fop.when);
        node.data[offset as usize..end].copy_from_slice(&fop.data);
        Ok(Written { offset, bytes: fop.data.len() as u32, iatt: node.iatt, cover: self.cover() })
    }

    fn changed(&self, iatt: Iatt) -> Changed {
        Changed { iatt, cover: self.cover() }
    }

    fn answer_names(&self, state: &mut State, fop: Fop) -> Result<Reply, Errno> {
        Ok(match fop {
            Fop::Lookup(f) => {
                let found = match state.child(f.parent, &f.name) {
                    Ok(gfid) => Some(Box::new(self.found(state.node(gfid)?.iatt))),
                    Err(Errno::NOENT) => None,
                    Err(errno) => return Err(errno),
                };
                if found.is_some() && take_one(&self.removed) {
                    state.unname(f.parent, &f.name)?;
                }
                Reply::Lookup(Looked { found, cover: self.cover() })
            }
            Fop::Create(f) => {
                let made = self.make(state, f.parent, &f.name, Kind::File, &f.birth)?;
                state.opens.extend(f.open.map(|(number, _)| number));
                Reply::Create(made)
            }
            Fop::Mkdir(f) => Reply::Mkdir(self.make(state, f.parent, &f.name, Kind::Dir, &f.birth)?),
            Fop::Mknod(f) => Reply::Mknod(self.make(state, f.parent, &f.name, f.kind, &f.birth)?),
            Fop::Symlink(f) => {
                let made = self.make(state, f.parent, &f.name, Kind::Symlink, &f.birth)?;
                state.node(f.birth.gfid)?.data = f.target.to_vec();
                Reply::Symlink(made)
            }
            Fop::Link(f) => {
                state.node(f.gfid)?.iatt.nlink += 1;
                Reply::Link(self.name(state, f.parent, &f.name, f.gfid)?)
            }
            Fop::Unlink(f) => Reply::Unlink(state.unname(f.parent, &f.name)?),
            Fop::Rmdir(f) => Reply::Rmdir(state.unname(f.parent, &f.name)?),
            Fop::Rename(f) => Reply::Rename(state.rename(&f)?),
            Fop::Readlink(f) => Reply::Readlink(Target { target: state.node(f.gfid)?.data.clone().into() }),
            Fop::Readdir(f) => Reply::Readdir(self.list(state, &f)?),
            fop => return self.answer_inodes(state, fop),
        })
    }

    fn answer_inodes(&self, state: &mut State, fop: Fop) -> Result<Reply, Errno> {
        Ok(match fop {
            Fop::Getattr(f) => Reply::Getattr(self.found(state.node(f.gfid)?.iatt)),
            Fop::Setattr(f) => Reply::Setattr(self.changed(state.setattr(&f)?)),
            Fop::Truncate(f) => {
                let node = state.node(f.gfid)?;
                node.resize(f.size as usize, f.when);
                Reply::Truncate(self.changed(node.iatt))
            }
            Fop::Open(f) => {
                state.node(f.fd.gfid)?;
                state.opens.insert(f.fd.id);
                Reply::Open(Done)
            }
            Fop::Release(f) => {
                let Fd { id, gfid } = f.fd;
                state.opens.remove(&id);
                if state.nodes.get(&gfid).is_some_and(|node| node.iatt.nlink == 0) {
                    state.nodes.remove(&gfid);
                }
                Reply::Release(Done)
            }
            Fop::Read(f) => {
                let data = &state.node(f.gfid)?.data;
                let start = data.len().min(f.offset as usize);
                let end = data.len().min(start + f.size as usize);
                Reply::Read(Data { data: Bytes::copy_from_slice(&data[start..end]) })
            }
            Fop::Write(f) => Reply::Write(self.write(state, &f)?),
            Fop::Flush(_) => Reply::Flush(Done),
            Fop::Fsync(_) => Reply::Fsync(Done),
            Fop::Statfs(_) => Reply::Statfs(Space {
                block_bytes: 4096,
                blocks: 100,
                blocks_free: 50,
                blocks_available: 40,
                files: 9,
                files_free: 5,
            }),
            Fop::Setxattr(f) => {
                let node = state.node(f.gfid)?;
                node.xattrs.insert(f.xattr.name.as_bytes().to_vec(), f.xattr.value);
                node.iatt.lacks = Lacks::empty();
                Reply::Setxattr(self.changed(node.iatt))
            }
            Fop::Getxattr(f) => {
                let value = state.node(f.gfid)?.xattrs.get(f.name.as_bytes()).cloned().ok_or(Errno::NODATA)?;
                Reply::Getxattr(Value { value })
            }
            Fop::Listxattr(f) => {
                let names = state.node(f.gfid)?.xattrs.keys().cloned().chain([b"trusted.gfid".to_vec()]);
                Reply::Listxattr(XattrNames { names: names.map(|name| XattrName::new(name).unwrap()).collect() })
            }
            _ => return Err(Errno::NOSYS),
        })
    }
}

impl Xlator for MemoryVolume {
    fn name(&self) -> &str {
        "memory"
    }

    fn call<'a>(&'a self, ctx: &'a Ctx, fop: Fop) -> BoxFuture<'a, Result<Reply>> {
        let mut state = self.state.lock();
        self.last.fetch_max(ctx.id, Ordering::Relaxed);
        *state.asked.entry(fop.kind()).or_default() += 1;
        self.disturb(&mut state, &fop);
        if matches!(fop, Fop::Write(_)) && *self.writes_wait.borrow() {
            return Box::pin(async move {
                // The sender lives as long as the volume.
                let _ = self.writes_wait.subscribe().wait_for(|wait| !wait).await;
                self.answer_names(&mut self.state.lock(), fop).map_err(FopError::from)
            });
        }
        let answer = self.answer_names(&mut state, fop).map_err(FopError::from);
        Box::pin(std::future::ready(answer))
    }

    fn health(&self) -> watch::Receiver<Health> {
        watch::channel(Health::Up { session: 1 }).1
    }
}

/// A gfid that was made from another.
fn another(gfid: Gfid) -> Gfid {
    let mut bytes = *gfid.as_bytes();
    bytes[15] = bytes[15].wrapping_add(1);
    Gfid::from_bytes(bytes)
}

/// The kind of an operation, for readable counts.
pub(super) fn kind_of<O: Operation>() -> FopKind {
    O::KIND
}
