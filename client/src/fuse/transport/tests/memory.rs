//! A file system in memory, just large enough to try the transport.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use rustix::io::Errno;
use tokio::sync::Notify;

use super::super::Handler;
use super::super::abi::{Attr, ROOT_ID, SetattrValid, StatfsOut};
use super::super::interrupt::OnSignal;
use super::super::notify::Notifier;
use super::super::reply::{Answer, Dirent, Entry, Listing, Opened, Room};
use super::super::request::{LockWait, Op, Request};
use super::super::session::Kernel;

const LONG: Duration = Duration::from_secs(3600);

#[derive(Debug, Default, Clone)]
struct Node {
    mode: u32,
    data: Vec<u8>,
    names: BTreeMap<Vec<u8>, u64>,
    xattrs: BTreeMap<Vec<u8>, Bytes>,
}

#[derive(Debug)]
struct Tree {
    nodes: HashMap<u64, Node>,
    next: u64,
    /// Who holds the one flock of each file.
    locks: HashMap<u64, u64>,
}

/// The file system. Names and attributes may be kept by the kernel for an hour.
#[derive(Debug)]
pub(super) struct Memory {
    tree: Mutex<Tree>,
    unlocked: Notify,
    pub(super) lookups: AtomicU32,
    pub(super) forgotten: AtomicU32,
    pub(super) started: OnceLock<(Kernel, Notifier)>,
}

impl Memory {
    pub(super) fn new() -> Arc<Self> {
        let root = Node { mode: 0o40755, ..Node::default() };
        Arc::new(Self {
            tree: Mutex::new(Tree { nodes: HashMap::from([(ROOT_ID, root)]), next: 2, locks: HashMap::new() }),
            unlocked: Notify::new(),
            lookups: AtomicU32::new(0),
            forgotten: AtomicU32::new(0),
            started: OnceLock::new(),
        })
    }

    /// Changes a file behind the kernel's back; gives its number.
    pub(super) fn append(&self, name: &[u8], data: &[u8]) -> u64 {
        let mut tree = self.tree.lock();
        let id = tree.nodes[&ROOT_ID].names[name];
        tree.nodes.get_mut(&id).unwrap().data.extend_from_slice(data);
        id
    }

    async fn lock(&self, id: u64, owner: u64, unlock: bool, wait: LockWait) -> Answer {
        loop {
            let freed = self.unlocked.notified();
            {
                let mut tree = self.tree.lock();
                let holder = tree.locks.get(&id).copied();
                if unlock {
                    if holder == Some(owner) {
                        tree.locks.remove(&id);
                        self.unlocked.notify_waiters();
                    }
                    return Answer::Empty;
                }
                if holder.is_none_or(|holder| holder == owner) {
                    tree.locks.insert(id, owner);
                    return Answer::Empty;
                }
            }
            if wait == LockWait::Try {
                return Errno::AGAIN.into();
            }
            freed.await;
        }
    }
}

impl Tree {
    fn attr(&self, id: u64) -> Attr {
        let node = &self.nodes[&id];
        let size = node.data.len() as u64;
        Attr { ino: id, size, blocks: size.div_ceil(512), mode: node.mode, nlink: 1, blksize: 4096, ..Attr::default() }
    }

    fn entry(&self, id: u64) -> Entry {
        Entry { nodeid: id, generation: 0, entry_timeout: LONG, attr_timeout: LONG, attr: self.attr(id) }
    }

    fn child(&self, parent: u64, name: &[u8]) -> Result<u64, Errno> {
        self.nodes.get(&parent).ok_or(Errno::STALE)?.names.get(name).copied().ok_or(Errno::NOENT)
    }

    fn add(&mut self, parent: u64, name: Vec<u8>, mode: u32) -> Entry {
        let id = self.next;
        self.next += 1;
        self.nodes.insert(id, Node { mode, ..Node::default() });
        self.nodes.get_mut(&parent).unwrap().names.insert(name, id);
        self.entry(id)
    }

    fn list(&self, id: u64, offset: u64, size: u32, plus: bool) -> Answer {
        let mut listing = Listing::new(size);
        let names = self.nodes[&id].names.iter().enumerate().skip(offset as usize);
        for (at, (name, child)) in names {
            let dirent = Dirent { ino: *child, next: at as u64 + 1, kind: self.nodes[child].mode >> 12, name };
            let room = if plus { listing.push_plus(self.entry(*child), dirent) } else { listing.push(dirent) };
            if room == Room::Full {
                break;
            }
        }
        listing.finish()
    }

    fn xattr(&mut self, id: u64, op: Op) -> Result<Answer, Errno> {
        let xattrs = &mut self.nodes.get_mut(&id).unwrap().xattrs;
        Ok(match op {
            Op::Setxattr { name, value, .. } => {
                xattrs.insert(name, value);
                Answer::Empty
            }
            Op::Getxattr { name, size } => {
                let value = xattrs.get(&name).ok_or(Errno::NODATA)?.clone();
                if size == 0 { Answer::XattrSize(value.len() as u32) } else { Answer::Data(value) }
            }
            Op::Listxattr { size } => {
                let list: Vec<u8> = xattrs.keys().flat_map(|name| name.iter().copied().chain([0])).collect();
                if size == 0 { Answer::XattrSize(list.len() as u32) } else { Answer::Data(list.into()) }
            }
            Op::Removexattr { name } => xattrs.remove(&name).map(|_| Answer::Empty).ok_or(Errno::NODATA)?,
            _ => return Err(Errno::NOSYS),
        })
    }

    fn data(&mut self, id: u64, op: Op) -> Result<Answer, Errno> {
        let data = &mut self.nodes.get_mut(&id).unwrap().data;
        Ok(match op {
            Op::Read { offset, size, .. } => {
                let start = data.len().min(offset as usize);
                let end = data.len().min(start + size as usize);
                Answer::Data(Bytes::copy_from_slice(&data[start..end]))
            }
            Op::Write { offset, data: new, .. } => {
                let end = offset as usize + new.len();
                data.resize(data.len().max(end), 0);
                data[offset as usize..end].copy_from_slice(&new);
                Answer::Written(new.len() as u32)
            }
            _ => return Err(Errno::NOSYS),
        })
    }

    fn serve(&mut self, id: u64, op: Op) -> Result<Answer, Errno> {
        Ok(match op {
            Op::Lookup { name } => Answer::Entry(self.entry(self.child(id, &name)?)),
            Op::Getattr { .. } => Answer::Attr(self.attr(id), LONG),
            Op::Setattr(set) => {
                let valid = SetattrValid::from_bits_retain(set.valid);
                let node = self.nodes.get_mut(&id).unwrap();
                if valid.contains(SetattrValid::SIZE) {
                    node.data.resize(set.size as usize, 0);
                }
                if valid.contains(SetattrValid::MODE) {
                    node.mode = set.mode;
                }
                Answer::Attr(self.attr(id), LONG)
            }
            Op::Mkdir { name, mode, .. } => Answer::Entry(self.add(id, name, mode | 0o40000)),
            Op::Create { name, mode, .. } => Answer::Created(self.add(id, name, mode), Opened::default()),
            Op::Symlink { name, target } => {
                let entry = self.add(id, name, 0o120777);
                self.nodes.get_mut(&entry.nodeid).unwrap().data = target;
                Answer::Entry(entry)
            }
            Op::Readlink => Answer::Data(self.nodes[&id].data.clone().into()),
            Op::Unlink { name } | Op::Rmdir { name } => {
                self.child(id, &name)?;
                self.nodes.get_mut(&id).unwrap().names.remove(&name);
                Answer::Empty
            }
            Op::Rename { name, new_parent, new_name, .. } => {
                let child = self.child(id, &name)?;
                self.nodes.get_mut(&id).unwrap().names.remove(&name);
                self.nodes.get_mut(&new_parent).unwrap().names.insert(new_name, child);
                Answer::Empty
            }
            Op::Open { .. } | Op::Opendir { .. } => Answer::Opened(Opened::default()),
            Op::Readdir { offset, size, .. } => self.list(id, offset, size, false),
            Op::Readdirplus { offset, size, .. } => self.list(id, offset, size, true),
            Op::Flush { .. } | Op::Release { .. } | Op::Releasedir { .. } | Op::Fsync { .. } => Answer::Empty,
            Op::Statfs => Answer::Statfs(StatfsOut {
                blocks: 1000,
                bfree: 400,
                bsize: 4096,
                namelen: 255,
                frsize: 4096,
                ..StatfsOut::default()
            }),
            op @ (Op::Read { .. } | Op::Write { .. }) => self.data(id, op)?,
            op => self.xattr(id, op)?,
        })
    }
}

impl Handler for Memory {
    fn started(&self, kernel: Kernel, notifier: Notifier) {
        self.started.set((kernel, notifier)).unwrap();
    }

    async fn call(self: Arc<Self>, request: Request) -> Answer {
        let id = request.header.nodeid;
        match request.op {
            Op::Lookup { name } if name == b"never" => std::future::pending().await,
            Op::Lookup { name } if name == b"panics" => panic!("a handler's bug, made for the test"),
            Op::Setlk { owner, lock, wait, .. } => self.lock(id, owner, lock.kind == libc::F_UNLCK as u32, wait).await,
            Op::Release { flock_owner: Some(owner), .. } => self.lock(id, owner, true, LockWait::Try).await,
            op => {
                if matches!(op, Op::Lookup { .. }) {
                    self.lookups.fetch_add(1, Ordering::Relaxed);
                }
                self.tree.lock().serve(id, op).unwrap_or_else(Answer::Errno)
            }
        }
    }

    fn undelivered(&self, _nodeid: u64, _answer: Answer) {}

    fn forget(&self, _nodeid: u64, count: u64) {
        self.forgotten.fetch_add(count as u32, Ordering::Relaxed);
    }

    fn on_signal(&self, op: &Op) -> OnSignal {
        if matches!(op, Op::Setlk { .. }) { OnSignal::GiveUp } else { OnSignal::GiveUpIfKilled }
    }
}
