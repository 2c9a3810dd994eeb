//! A brick in memory: enough of a file system to see what replicate and leases do to one, and nothing else.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use mortar_xlators::ctx::Ctx;
use mortar_xlators::effect::Effect;
use mortar_xlators::error::{Errno, Result};
use mortar_xlators::fop::{Birth, Fop, Only, Place};
use mortar_xlators::leases::DirtyJournal;
use mortar_xlators::reply::*;
use mortar_xlators::types::*;
use mortar_xlators::xlator::{Health, Xlator};
use parking_lot::Mutex;
use tokio::sync::watch;

/// One inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Inode {
    pub(crate) iatt: Iatt,
    pub(crate) content: Vec<u8>,
    pub(crate) names: BTreeMap<Name, Gfid>,
    pub(crate) marks: BTreeMap<XattrName, [i32; 3]>,
}

/// A brick in memory, and its dirty journal.
#[derive(Debug)]
pub(crate) struct Memory {
    arbiter: bool,
    inodes: Mutex<HashMap<Gfid, Inode>>,
    dirty: Mutex<HashSet<Gfid>>,
    left_dirty: Mutex<HashSet<Gfid>>,
    /// How often something entered the journal.
    pub(crate) marked_dirty: Mutex<Vec<Gfid>>,
    health: watch::Sender<Health>,
}

impl Memory {
    pub(crate) fn new(arbiter: bool) -> Arc<Self> {
        let root = Inode::new(Gfid::ROOT, Kind::Dir, 0o755, Time::default());
        Arc::new(Self {
            arbiter,
            inodes: Mutex::new(HashMap::from([(Gfid::ROOT, root)])),
            dirty: Mutex::default(),
            left_dirty: Mutex::default(),
            marked_dirty: Mutex::default(),
            health: watch::Sender::new(Health::Up { session: 1 }),
        })
    }

    /// What a stop and a new start leave of it.
    pub(crate) fn restart(&self) {
        *self.left_dirty.lock() = self.dirty.lock().clone();
    }

    pub(crate) fn dirty(&self) -> HashSet<Gfid> {
        self.dirty.lock().clone()
    }

    pub(crate) fn marks(&self, gfid: Gfid) -> Option<BTreeMap<XattrName, [i32; 3]>> {
        self.inodes.lock().get(&gfid).map(|inode| inode.marks.clone())
    }

    pub(crate) fn path(&self, path: &str) -> Option<Inode> {
        let inodes = self.inodes.lock();
        let mut gfid = Gfid::ROOT;
        for part in path.split('/').filter(|part| !part.is_empty()) {
            let name = Name::new(part.as_bytes().to_vec()).expect("a name");
            gfid = *inodes.get(&gfid)?.names.get(&name)?;
        }
        inodes.get(&gfid).cloned()
    }

    /// Every inode and name, without marks: what copies must agree on.
    pub(crate) fn everything(&self) -> BTreeMap<Gfid, Inode> {
        let inodes = self.inodes.lock();
        inodes.iter().map(|(&gfid, inode)| (gfid, Inode { marks: BTreeMap::new(), ..inode.clone() })).collect()
    }

    fn blames(&self) -> bool {
        self.inodes.lock().values().any(Inode::is_blaming)
    }
}

impl Inode {
    fn new(gfid: Gfid, kind: Kind, mode: u32, when: Time) -> Self {
        let iatt = Iatt {
            gfid,
            kind,
            mode,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            blocks: 0,
            atime: when,
            mtime: when,
            ctime: when,
            lacks: Lacks::empty(),
        };
        Self { iatt, content: Vec::new(), names: BTreeMap::new(), marks: BTreeMap::new() }
    }

    fn found(&self) -> Found {
        let marks =
            self.marks.iter().map(|(key, &counters)| Pending { key: key.clone(), counters: Counters(counters) });
        Found {
            iatt: self.iatt,
            exact: AttrMask::all(),
            cover: Cover::empty(),
            layout: None,
            linkto: None,
            marks: marks.filter(|mark| !mark.counters.is_zero()).collect(),
        }
    }

    fn is_blaming(&self) -> bool {
        self.marks.values().any(|counters| *counters != [0; 3])
    }

    fn add_marks(&mut self, deltas: &[Pending]) {
        for delta in deltas {
            let counters = self.marks.entry(delta.key.clone()).or_default();
            counters.iter_mut().zip(delta.counters.0).for_each(|(counter, add)| *counter += add);
        }
    }
}

type Inodes = HashMap<Gfid, Inode>;

fn get(inodes: &mut Inodes, gfid: Gfid) -> Result<&mut Inode> {
    inodes.get_mut(&gfid).ok_or_else(|| Errno::NOENT.into())
}

fn make(inodes: &mut Inodes, parent: Gfid, name: Name, birth: &Birth, kind: Kind, content: Bytes) -> Result<Made> {
    let directory = get(inodes, parent)?;
    if directory.names.contains_key(&name) {
        return Err(Errno::EXIST.into());
    }
    directory.names.insert(name, birth.gfid);
    directory.iatt.mtime = birth.when;
    let parent = directory.iatt;
    let mut inode = Inode::new(birth.gfid, kind, birth.mode, birth.when);
    inode.iatt.size = content.len() as u64;
    inode.content = content.to_vec();
    inode.add_marks(&birth.pending);
    let iatt = inode.iatt;
    inodes.insert(birth.gfid, inode);
    Ok(Made { iatt, parent, cover: Cover::empty(), lease: None })
}

fn remove(inodes: &mut Inodes, parent: Gfid, name: &Name, when: Time) -> Result<Removed> {
    let gfid = *get(inodes, parent)?.names.get(name).ok_or(Errno::NOENT)?;
    if !get(inodes, gfid)?.names.is_empty() {
        return Err(Errno::NOTEMPTY.into());
    }
    let directory = get(inodes, parent)?;
    directory.names.remove(name);
    directory.iatt.mtime = when;
    let parent = directory.iatt;
    let inode = get(inodes, gfid)?;
    inode.iatt.nlink -= 1;
    let iatt = inode.iatt;
    if iatt.nlink == 0 {
        inodes.remove(&gfid);
    }
    Ok(Removed { iatt, parent })
}

fn changed(inode: &Inode) -> Changed {
    Changed { iatt: inode.iatt, cover: Cover::empty() }
}

impl Memory {
    fn answer(&self, fop: Fop) -> Result<Reply> {
        let inodes = &mut *self.inodes.lock();
        match fop.effect() {
            Effect::Read => self.look(inodes, fop),
            Effect::Session => Self::hear(inodes, fop),
            Effect::Entry { .. } => Self::change_names(inodes, fop),
            Effect::Inode { .. } => self.change_inode(inodes, fop),
        }
    }

    fn look(&self, inodes: &mut Inodes, fop: Fop) -> Result<Reply> {
        Ok(match fop {
            Fop::Lookup(f) => {
                let gfid = get(inodes, f.parent)?.names.get(&f.name).copied();
                let found = gfid.and_then(|gfid| inodes.get(&gfid)).map(|inode| Box::new(inode.found()));
                Reply::Lookup(Looked { found, cover: Cover::empty() })
            }
            Fop::Getattr(f) => Reply::Getattr(get(inodes, f.gfid)?.found()),
            Fop::Read(f) => {
                let content = &get(inodes, f.gfid)?.content;
                let start = (f.offset as usize).min(content.len());
                let end = (start + f.size as usize).min(content.len());
                Reply::Read(Data { data: Bytes::copy_from_slice(&content[start..end]) })
            }
            Fop::Readdir(f) => {
                let names = get(inodes, f.gfid)?.names.clone();
                let entry = |(at, (name, gfid)): (usize, (Name, Gfid))| DirEntry {
                    name,
                    kind: inodes[&gfid].iatt.kind,
                    gfid,
                    cookie: at as u64 + 1,
                    found: f.attrs.then(|| Box::new(inodes[&gfid].found())),
                };
                let entries = names.into_iter().enumerate().map(entry).skip(f.after as usize).collect();
                Reply::Readdir(Entries { entries, end: true })
            }
            Fop::Backlog(_) => {
                let pending = inodes.values().filter(|inode| inode.is_blaming()).count() as u64;
                Reply::Backlog(Waiting { pending, dirty: self.dirty.lock().len() as u64 })
            }
            other => panic!("a test sent a {}", other.kind().name()),
        })
    }

    fn hear(inodes: &mut Inodes, fop: Fop) -> Result<Reply> {
        Ok(match fop {
            Fop::Mark(f) => {
                get(inodes, f.gfid)?.add_marks(&f.deltas);
                Reply::Mark(Marked { marks: f.deltas })
            }
            Fop::Open(_) => Reply::Open(Done),
            Fop::Release(_) => Reply::Release(Done),
            Fop::Flush(_) => Reply::Flush(Done),
            Fop::Fsync(_) => Reply::Fsync(Done),
            other => panic!("a test sent a {}", other.kind().name()),
        })
    }

    fn change_names(inodes: &mut Inodes, fop: Fop) -> Result<Reply> {
        Ok(match fop {
            Fop::Create(f) => Reply::Create(make(inodes, f.parent, f.name, &f.birth, Kind::File, f.content)?),
            Fop::Mkdir(f) => Reply::Mkdir(make(inodes, f.parent, f.name, &f.birth, Kind::Dir, Bytes::new())?),
            Fop::Link(f) => {
                let inode = get(inodes, f.gfid)?;
                inode.iatt.nlink += 1;
                let iatt = inode.iatt;
                let directory = get(inodes, f.parent)?;
                directory.names.insert(f.name, f.gfid);
                Reply::Link(Made { iatt, parent: directory.iatt, cover: Cover::empty(), lease: None })
            }
            Fop::Unlink(f) => {
                let there = get(inodes, f.parent)?.names.get(&f.name).copied().ok_or(Errno::NOENT)?;
                if matches!(f.only, Only::Gfid(meant) | Only::ContentOf(meant) if meant != there) {
                    return Err(Errno::STALE.into());
                }
                Reply::Unlink(remove(inodes, f.parent, &f.name, f.when)?)
            }
            Fop::Rmdir(f) => Reply::Rmdir(remove(inodes, f.parent, &f.name, f.when)?),
            Fop::Rename(f) => {
                let gfid = get(inodes, f.from_parent)?.names.remove(&f.from_name).ok_or(Errno::NOENT)?;
                let from_parent = get(inodes, f.from_parent)?.iatt;
                let directory = get(inodes, f.to_parent)?;
                let replaced = directory.names.insert(f.to_name, gfid);
                let to_parent = directory.iatt;
                let replaced = replaced.and_then(|gfid| inodes.remove(&gfid)).map(|inode| inode.iatt);
                let iatt = get(inodes, gfid)?.iatt;
                Reply::Rename(Renamed { iatt, replaced, from_parent, to_parent })
            }
            other => panic!("a test sent a {}", other.kind().name()),
        })
    }

    fn change_inode(&self, inodes: &mut Inodes, fop: Fop) -> Result<Reply> {
        Ok(match fop {
            Fop::Setattr(f) => {
                let inode = get(inodes, f.gfid)?;
                inode.iatt.mode = f.mode.unwrap_or(inode.iatt.mode);
                inode.iatt.mtime = f.mtime.unwrap_or(inode.iatt.mtime);
                inode.iatt.ctime = f.when;
                Reply::Setattr(changed(inode))
            }
            Fop::Truncate(f) => {
                let inode = get(inodes, f.gfid)?;
                inode.content.resize(f.size as usize, 0);
                inode.iatt.size = f.size;
                Reply::Truncate(changed(inode))
            }
            Fop::Write(f) => {
                let inode = get(inodes, f.gfid)?;
                let offset = match f.place {
                    Place::At(offset) => offset,
                    Place::End => inode.content.len() as u64,
                };
                let end = offset as usize + f.data.len();
                if !self.arbiter {
                    if inode.content.len() < end {
                        inode.content.resize(end, 0);
                    }
                    inode.content[offset as usize..end].copy_from_slice(&f.data);
                }
                inode.iatt.size = inode.content.len() as u64;
                inode.iatt.mtime = f.when;
                if let Some(then) = &f.then {
                    inode.iatt.mode = then.mode.unwrap_or(inode.iatt.mode);
                    inode.iatt.mtime = then.mtime.unwrap_or(inode.iatt.mtime);
                }
                let bytes = f.data.len() as u32;
                Reply::Write(Written { offset, bytes, iatt: inode.iatt, cover: Cover::empty() })
            }
            other => panic!("a test sent a {}", other.kind().name()),
        })
    }
}

impl Xlator for Memory {
    fn name(&self) -> &str {
        "memory"
    }

    fn call<'a>(&'a self, _: &'a Ctx, fop: Fop) -> BoxFuture<'a, Result<Reply>> {
        async move {
            tokio::task::yield_now().await;
            self.answer(fop)
        }
        .boxed()
    }

    fn health(&self) -> watch::Receiver<Health> {
        self.health.subscribe()
    }
}

impl DirtyJournal for Memory {
    fn mark_dirty(&self, gfid: Gfid) -> Result<(), Errno> {
        self.marked_dirty.lock().push(gfid);
        self.dirty.lock().insert(gfid);
        Ok(())
    }

    fn sync(&self) -> Result<(), Errno> {
        Ok(())
    }

    fn clear(&self, batch: &[Gfid]) -> Result<(), Errno> {
        for gfid in batch {
            self.dirty.lock().remove(gfid);
        }
        Ok(())
    }

    fn left_dirty(&self, gfid: Gfid) -> bool {
        self.left_dirty.lock().contains(&gfid)
    }

    fn blames_any(&self) -> bool {
        self.blames()
    }
}
