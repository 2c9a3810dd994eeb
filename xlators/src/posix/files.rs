//! Which files are open, by whom, and which of them have lost their last name.
//!
//! Losing an entry would lose nothing but speed, except for the count: it decides whether an inode without names must be
//! kept below `unlink/`.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use foldhash::fast::RandomState;
use parking_lot::Mutex;

use crate::error::Errno;
use crate::types::{ClientId, Fd, Gfid};

/// A regular file that somebody opened.
#[derive(Debug)]
pub(super) struct OpenFile {
    pub(super) gfid: Gfid,
    pub(super) fd: OwnedFd,
}

/// What is known of an inode because it is open.
#[derive(Clone, Copy, Debug, Default)]
struct Holders {
    count: u32,
    /// Its handle is below `unlink/` and goes with the last holder.
    unlinked: bool,
}

/// What the end of an open file leaves to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Closed {
    /// Nothing.
    Done,
    /// It was the last, and the inode has no name: remove it.
    LastOfUnlinked,
}

#[derive(Debug, Default)]
struct Table {
    open: HashMap<(ClientId, u64), Arc<OpenFile>, RandomState>,
    holders: HashMap<Gfid, Holders, RandomState>,
}

/// The table of open files of one brick.
#[derive(Debug)]
pub(super) struct Files {
    table: Mutex<Table>,
    open_max: usize,
    /// How many open inodes have no name: nearly always none, and then nobody has to look.
    unlinked: AtomicUsize,
}

impl Files {
    pub(super) fn new(open_max: usize) -> Self {
        Self { table: Mutex::default(), open_max, unlinked: AtomicUsize::new(0) }
    }

    pub(super) fn get(&self, client: ClientId, fd: Fd) -> Option<Arc<OpenFile>> {
        let file = self.table.lock().open.get(&(client, fd.id)).cloned()?;
        (file.gfid == fd.gfid).then_some(file)
    }

    /// Put an open file under a number, `ENFILE` where there are too many. What had the number before (an open that is
    /// sent again after a reconnect) comes back to be closed.
    pub(super) fn insert(&self, client: ClientId, id: u64, file: OpenFile) -> Result<Option<Arc<OpenFile>>, Errno> {
        let table = &mut *self.table.lock();
        if table.open.len() >= self.open_max {
            return Err(Errno::NFILE);
        }
        table.holders.entry(file.gfid).or_default().count += 1;
        Ok(table.open.insert((client, id), Arc::new(file)))
    }

    pub(super) fn remove(&self, client: ClientId, fd: Fd) -> Option<Arc<OpenFile>> {
        let table = &mut *self.table.lock();
        let file = table.open.get(&(client, fd.id))?;
        if file.gfid != fd.gfid {
            return None;
        }
        table.open.remove(&(client, fd.id))
    }

    /// One holder less. The caller holds the lock of the inode, so that no removal of its last name is half way.
    pub(super) fn let_go(&self, gfid: Gfid) -> Closed {
        let table = &mut *self.table.lock();
        let Some(holders) = table.holders.get_mut(&gfid) else { return Closed::Done };
        holders.count -= 1;
        let (last, unlinked) = (holders.count == 0, holders.unlinked);
        if last {
            table.holders.remove(&gfid);
        }
        if last && unlinked {
            self.unlinked.fetch_sub(1, Ordering::Relaxed);
            return Closed::LastOfUnlinked;
        }
        Closed::Done
    }

    /// Everything that one client has open.
    pub(super) fn of_client(&self, client: ClientId) -> Vec<Fd> {
        let table = self.table.lock();
        let mine = table.open.iter().filter(|(key, _)| key.0 == client);
        mine.map(|(key, file)| Fd { id: key.1, gfid: file.gfid }).collect()
    }

    pub(super) fn is_open(&self, gfid: Gfid) -> bool {
        self.table.lock().holders.contains_key(&gfid)
    }

    /// Its handle is about to move below `unlink/` (or has come back from there).
    pub(super) fn set_unlinked(&self, gfid: Gfid, unlinked: Unlinked) {
        let table = &mut *self.table.lock();
        let Some(holders) = table.holders.get_mut(&gfid) else { return };
        match (holders.unlinked, unlinked) {
            (false, Unlinked::Yes) => self.unlinked.fetch_add(1, Ordering::Relaxed),
            (true, Unlinked::No) => self.unlinked.fetch_sub(1, Ordering::Relaxed),
            (true, Unlinked::Yes) | (false, Unlinked::No) => return,
        };
        holders.unlinked = unlinked == Unlinked::Yes;
    }

    pub(super) fn is_unlinked(&self, gfid: Gfid) -> bool {
        self.unlinked.load(Ordering::Relaxed) > 0
            && self.table.lock().holders.get(&gfid).is_some_and(|holders| holders.unlinked)
    }
}

/// Whether an open inode has lost its last name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unlinked {
    Yes,
    No,
}
