//! What programs have open: our numbers for files and listings, and what the bricks know of them.
//!
//! While a lease covers an inode, it cannot lose its last name without our knowing, so opening it
//! needs no message: the open is *deferred*, and made up for when the lease is given back
//! ([`Opens::take_deferred`]) or when this mount is about to remove the name itself.
//!
//! Invariant: the inode of a deferred file was covered when the file came into the table;
//! [`super::inodes::Inodes::uncover`] runs before `take_deferred`, so none is missed.
//!
//! Our own removals recall nothing from us. While one is under way ([`Opens::begin_removal`]), no open of what it may
//! remove is deferred; before it is sent, the deferred opens of what has the name are made up for. Should another client
//! give the name to another inode meanwhile, that client's rename or link recalls the lease of this inode, and with it
//! whatever we knew of the directory. What has lost a name is not covered any longer ([`super::inodes::Inodes::lost_name`]).

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use mortar_xlators::reply::DirEntry;
use mortar_xlators::types::{Fd, Gfid, OpenFlags};
use parking_lot::Mutex;
use rustix::io::Errno;
use smallvec::SmallVec;

use super::inodes::{Inodes, Moment, Promise};

/// An open file.
#[derive(Debug)]
pub(crate) struct OpenFile {
    number: Fd,
    /// How it was opened.
    pub(crate) flags: OpenFlags,
    /// The thread that opened it, where the kernel does not tell us of each descriptor that is closed.
    pub(crate) opener_if_unflushed: Option<u32>,
    told: AtomicBool,
    /// A lock that was taken through it may be another's.
    lost: AtomicBool,
}

impl OpenFile {
    fn new(number: Fd, how: How, told: bool) -> Self {
        let How { flags, opener_if_unflushed } = how;
        let (told, lost) = (AtomicBool::new(told), AtomicBool::new(false));
        Self { number, flags, opener_if_unflushed, told, lost }
    }

    /// The open file as fops name it; `None` while the bricks need not know of it.
    pub(crate) fn fd(&self) -> Option<Fd> {
        self.told.load(Ordering::Acquire).then_some(self.number)
    }

    /// Its number, whether or not the bricks know it.
    pub(crate) fn number(&self) -> Fd {
        self.number
    }
}

/// How a file is opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct How {
    /// For what.
    pub(crate) flags: OpenFlags,
    /// See [`OpenFile::opener_if_unflushed`].
    pub(crate) opener_if_unflushed: Option<u32>,
}

/// A page of a listing that the kernel has taken a part of.
#[derive(Debug)]
pub(crate) struct Page {
    /// What is left of it.
    pub(crate) entries: VecDeque<DirEntry>,
    /// The cookie before the first entry.
    pub(crate) after: u64,
    /// Nothing follows.
    pub(crate) end: bool,
    /// When it was asked for.
    pub(crate) asked: Moment,
    /// How many local changes there had been then.
    pub(crate) changes: u64,
}

/// An open directory.
#[derive(Debug)]
pub(crate) struct OpenDir {
    /// Which directory, and our number for it.
    pub(crate) number: Fd,
    /// What is left of the last page.
    pub(crate) page: Mutex<Option<Page>>,
    /// Bricks may keep a snapshot for it.
    pub(crate) told: AtomicBool,
}

#[derive(Debug, Default)]
struct Files {
    by_number: HashMap<u64, Arc<OpenFile>, foldhash::fast::RandomState>,
    by_gfid: HashMap<Gfid, SmallVec<[u64; 2]>, foldhash::fast::RandomState>,
    /// How many of them the bricks do not know.
    deferred: usize,
    /// Names that this mount is removing.
    removals: HashMap<u64, Removal, foldhash::fast::RandomState>,
}

/// A name that this mount is removing.
#[derive(Clone, Copy, Debug)]
enum Removal {
    /// Of any inode.
    Unknown,
    /// Of this inode (or of none), unless something has been recalled since.
    Of(Option<Gfid>, Moment),
}

impl Removal {
    fn may_be_of(self, gfid: Gfid, inodes: &Inodes) -> bool {
        match self {
            Self::Unknown => true,
            Self::Of(victim, asked) => victim == Some(gfid) || inodes.promise_since(asked) == Promise::Now,
        }
    }
}

/// A removal under way; ends when dropped.
#[derive(Debug)]
pub(crate) struct Removing<'a> {
    opens: &'a Opens,
    number: u64,
}

impl Removing<'_> {
    /// When `asked`, the name led to this inode or to none, and a lease covered that.
    pub(crate) fn is_of(&self, victim: Option<Gfid>, asked: Moment) {
        self.opens.files.lock().removals.insert(self.number, Removal::Of(victim, asked));
    }
}

impl Drop for Removing<'_> {
    fn drop(&mut self) {
        self.opens.files.lock().removals.remove(&self.number);
    }
}

impl Files {
    fn insert(&mut self, file: OpenFile) {
        let number = file.number;
        self.by_number.insert(number.id, Arc::new(file));
        self.by_gfid.entry(number.gfid).or_default().push(number.id);
    }

    fn of(&self, gfid: Gfid) -> impl Iterator<Item = &Arc<OpenFile>> {
        self.by_gfid.get(&gfid).into_iter().flatten().filter_map(|number| self.by_number.get(number))
    }
}

/// The table of open files and directories. The kernel bounds it: one entry for each open file.
#[derive(Debug)]
pub(crate) struct Opens {
    next: AtomicU64,
    files: Mutex<Files>,
    dirs: Mutex<HashMap<u64, Arc<OpenDir>, foldhash::fast::RandomState>>,
}

impl Opens {
    /// Nothing is open.
    pub(crate) fn new() -> Self {
        Self { next: AtomicU64::new(1), files: Mutex::default(), dirs: Mutex::default() }
    }

    /// A number for something to be opened.
    pub(crate) fn next_number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Notes a file that the bricks have opened under this number.
    pub(crate) fn insert(&self, number: Fd, how: How) {
        self.files.lock().insert(OpenFile::new(number, how, true));
    }

    /// This mount is about to remove a name.
    pub(crate) fn begin_removal(&self) -> Removing<'_> {
        let number = self.next_number();
        self.files.lock().removals.insert(number, Removal::Unknown);
        Removing { opens: self, number }
    }

    /// Notes a file that the bricks need not know of, if a lease covers it.
    pub(crate) fn insert_deferred(&self, gfid: Gfid, how: How, inodes: &Inodes) -> Option<u64> {
        let losing = |files: &Files| files.removals.values().any(|removal| removal.may_be_of(gfid, inodes));
        self.defer_unless(losing, gfid, how, inodes)
    }

    /// As [`Self::insert_deferred`], for a file that was made a moment ago: what is being removed was there before.
    pub(crate) fn insert_born(&self, gfid: Gfid, how: How, inodes: &Inodes) -> Option<u64> {
        self.defer_unless(|_| false, gfid, how, inodes)
    }

    fn defer_unless(&self, not: impl FnOnce(&Files) -> bool, gfid: Gfid, how: How, inodes: &Inodes) -> Option<u64> {
        let number = Fd { id: self.next_number(), gfid };
        let mut files = self.files.lock();
        if not(&files) || !inodes.is_covered(gfid) {
            return None;
        }
        files.insert(OpenFile::new(number, how, false));
        files.deferred += 1;
        Some(number.id)
    }

    /// The open file of that number. `EIO` if it has lost a lock.
    pub(crate) fn file(&self, fh: u64) -> Result<Arc<OpenFile>, Errno> {
        let file = self.files.lock().by_number.get(&fh).cloned().ok_or(Errno::BADF)?;
        if file.lost.load(Ordering::Acquire) { Err(Errno::IO) } else { Ok(file) }
    }

    /// These have lost a lock, and fail from now on.
    pub(crate) fn lose(&self, lost: &[Fd]) {
        let files = self.files.lock();
        for file in lost.iter().filter_map(|fd| files.by_number.get(&fd.id)) {
            file.lost.store(true, Ordering::Release);
        }
    }

    /// Whether the inode is open here.
    pub(crate) fn is_open(&self, gfid: Gfid) -> bool {
        self.files.lock().by_gfid.contains_key(&gfid)
    }

    /// An open file of that inode which the bricks know: the way to an inode that may have lost its last name.
    pub(crate) fn fd_of(&self, gfid: Gfid) -> Option<Fd> {
        self.files.lock().of(gfid).find_map(|file| file.fd())
    }

    /// The file is closed.
    pub(crate) fn remove_file(&self, fh: u64) -> Option<Arc<OpenFile>> {
        let mut files = self.files.lock();
        let file = files.by_number.remove(&fh)?;
        if file.fd().is_none() {
            files.deferred -= 1;
        }
        if let Some(numbers) = files.by_gfid.get_mut(&file.number.gfid) {
            numbers.retain(|number| *number != fh);
            if numbers.is_empty() {
                files.by_gfid.remove(&file.number.gfid);
            }
        }
        Some(file)
    }

    /// Whether any open is deferred.
    pub(crate) fn any_deferred(&self) -> bool {
        self.files.lock().deferred > 0
    }

    /// The deferred opens of an inode, for the bricks to be told now. From here on fops name them;
    /// a brick that does not know the number yet serves by gfid.
    pub(crate) fn take_deferred(&self, gfid: Gfid) -> Vec<Arc<OpenFile>> {
        let mut files = self.files.lock();
        let taken: Vec<_> = files.of(gfid).filter(|file| file.fd().is_none()).cloned().collect();
        for file in &taken {
            file.told.store(true, Ordering::Release);
        }
        files.deferred -= taken.len();
        taken
    }

    /// Opens a directory.
    pub(crate) fn insert_dir(&self, gfid: Gfid) -> u64 {
        let number = Fd { id: self.next_number(), gfid };
        let dir = OpenDir { number, page: Mutex::new(None), told: AtomicBool::new(false) };
        self.dirs.lock().insert(number.id, Arc::new(dir));
        number.id
    }

    /// The open directory of that number.
    pub(crate) fn dir(&self, fh: u64) -> Result<Arc<OpenDir>, Errno> {
        self.dirs.lock().get(&fh).cloned().ok_or(Errno::BADF)
    }

    /// The directory is closed.
    pub(crate) fn remove_dir(&self, fh: u64) -> Option<Arc<OpenDir>> {
        self.dirs.lock().remove(&fh)
    }
}

#[cfg(test)]
mod tests {
    use mortar_xlators::types::{Kind, Lacks};

    use super::super::inodes::{Promise, Seen};
    use super::*;

    const A: Gfid = Gfid::from_bytes([7; 16]);
    const READ: How = How { flags: OpenFlags::READ, opener_if_unflushed: None };

    #[test]
    fn an_open_is_deferred_only_under_a_lease_and_told_when_it_goes() {
        let (inodes, opens) = (Inodes::new(), Opens::new());
        assert_eq!(opens.insert_deferred(A, READ, &inodes), None);
        inodes.remember(
            Seen { gfid: A, kind: Kind::File, parent: Gfid::ROOT, lacks: Lacks::empty() },
            Promise::Covered,
            inodes.moment(),
        );
        let fh = opens.insert_deferred(A, READ, &inodes).unwrap();
        assert_eq!(opens.file(fh).unwrap().fd(), None);
        inodes.uncover(&[A]);
        assert_eq!(opens.take_deferred(A).len(), 1);
        assert_eq!(opens.file(fh).unwrap().fd(), Some(Fd { id: fh, gfid: A }));
        assert!(!opens.any_deferred());
    }

    #[test]
    fn a_closed_file_is_not_made_up_for() {
        let (inodes, opens) = (Inodes::new(), Opens::new());
        inodes.remember(
            Seen { gfid: A, kind: Kind::File, parent: Gfid::ROOT, lacks: Lacks::empty() },
            Promise::Covered,
            inodes.moment(),
        );
        let fh = opens.insert_deferred(A, READ, &inodes).unwrap();
        assert_eq!(opens.remove_file(fh).unwrap().fd(), None);
        assert!(opens.take_deferred(A).is_empty() && !opens.any_deferred());
    }

    /// A program opened a file while another on the same mount removed it, and had lost it when it wrote.
    #[test]
    fn an_open_of_what_this_mount_may_be_removing_is_not_deferred() {
        let (inodes, opens) = (Inodes::new(), Opens::new());
        let seen = |gfid| Seen { gfid, kind: Kind::File, parent: Gfid::ROOT, lacks: Lacks::empty() };
        let other = Gfid::from_bytes([8; 16]);
        for gfid in [A, other] {
            inodes.remember(seen(gfid), Promise::Covered, inodes.moment());
        }
        let defers = |gfid| opens.insert_deferred(gfid, READ, &inodes).is_some();
        let removing = opens.begin_removal();
        assert!(!defers(A) && !defers(other), "the name may lead to any");
        assert!(opens.insert_born(A, READ, &inodes).is_some(), "it is not what the name led to");
        removing.is_of(Some(A), inodes.moment());
        assert!(!defers(A) && defers(other));
        inodes.uncover(&[Gfid::ROOT]);
        assert!(!defers(other), "the name may lead to another inode by now");
        drop(removing);
        assert!(defers(A) && defers(other));
    }

    #[test]
    fn an_open_file_that_lost_a_lock_fails_and_can_be_closed() {
        let opens = Opens::new();
        let (lost, other) = (Fd { id: 1, gfid: A }, Fd { id: 2, gfid: A });
        opens.insert(lost, READ);
        opens.insert(other, READ);
        opens.lose(&[lost]);
        assert_eq!(opens.file(1).unwrap_err(), Errno::IO);
        assert!(opens.file(2).is_ok() && opens.remove_file(1).is_some());
    }
}
