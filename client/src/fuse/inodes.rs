//! Which inode the kernel means: node numbers and gfids, with the kernel's lookup counts.
//!
//! This is the only inode table. A node number is a slot and a generation, so a number that the
//! kernel has forgotten never means another inode later.
//!
//! Invariant: a slot lives as long as the kernel holds references to it. Whether its attributes
//! are covered by a lease changes under the same lock that counts recalls, so an answer computed
//! before a recall cannot mark an inode as covered after it.
//!
//! It also notes what the kernel was told of an inode and has not forgotten since. That is a hint, which saves telling it
//! again in every listing: a kernel that has forgotten more than was thought asks.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use mortar_xlators::types::{Gfid, Iatt, Kind, Lacks};
use parking_lot::Mutex;
use rustix::io::Errno;

use super::cache::LONG;
use super::transport::abi::ROOT_ID;

/// How many recalls there had been when an answer was asked for, and how many changes of xattrs by this mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    recalls: u64,
    xattrs: u64,
}

/// What an answer may promise the kernel about an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Promise {
    /// It stays true until we say otherwise.
    Covered,
    /// It is true now.
    Now,
}

#[derive(Debug)]
struct Slot {
    gfid: Gfid,
    kind: Kind,
    /// Of a directory: where it was last seen. For `..`.
    parent: Gfid,
    lookups: u64,
    generation: u32,
    covered: bool,
    /// The kernel may believe attributes on our word.
    promised: bool,
    /// Xattrs that it has not, as long as it is covered.
    lacks: Lacks,
    /// Another client may have written since the kernel last dropped the file's pages.
    old_pages: bool,
    /// The kernel has asked for the attributes, and has not been promised any since: what a GETATTR is answered it does not
    /// take in if it is told to forget meanwhile, and a program goes on to read with the size of before.
    asking: bool,
    /// Of a directory: its attributes as they were last seen, for who is in it when it has been removed.
    last: Option<Box<Iatt>>,
    /// A recall found that the kernel did not know the inode yet, although an answer with it was
    /// on its way: what the kernel has by now may be stale.
    suspect: bool,
    /// The name under which the kernel was last promised the inode.
    named: Option<Named>,
    /// The kernel was promised the attributes, and has been given no reason of its own to forget them.
    attributes_told: bool,
}

/// A name that the kernel was promised.
#[derive(Clone, Copy, Debug)]
struct Named {
    /// Of the directory, the name, and how often the kernel had been made to forget all names. Two names with one hash
    /// cost the kernel a question.
    hash: u64,
    at: Instant,
}

/// A name in a directory.
#[derive(Clone, Copy, Debug, Hash)]
pub(crate) struct Place<'a> {
    /// The directory.
    pub(crate) parent: Gfid,
    /// The name.
    pub(crate) name: &'a [u8],
}

#[derive(Debug)]
struct Table {
    by_gfid: HashMap<Gfid, u32, foldhash::fast::RandomState>,
    slots: Vec<Slot>,
    free: Vec<u32>,
}

/// The inode table.
#[derive(Debug)]
pub(crate) struct Inodes {
    table: Mutex<Table>,
    recalls: AtomicU64,
    xattrs: AtomicU64,
    /// How often the kernel was made to forget all names.
    names_forgotten: AtomicU64,
    hasher: foldhash::fast::RandomState,
}

impl Slot {
    /// What is promised of it from now on, and what an answer says that it lacks.
    fn cover(&mut self, promise: Promise, lacks: Lacks) {
        self.covered = promise == Promise::Covered;
        self.promised |= self.covered;
        self.asking &= !self.covered;
        self.lacks = if self.covered { self.lacks | lacks } else { Lacks::empty() };
    }
}

/// The slot of the root, whose node number is fixed.
const ROOT_SLOT: u32 = 0;
/// Generations start here, so that no number of a slot is that of the root.
const FIRST_GENERATION: u32 = 1;

fn node_id(index: u32, slot: &Slot) -> u64 {
    if index == ROOT_SLOT { ROOT_ID } else { u64::from(slot.generation) << 32 | u64::from(index) }
}

impl Table {
    fn find(&self, nodeid: u64) -> Option<usize> {
        let index = if nodeid == ROOT_ID { ROOT_SLOT } else { nodeid as u32 };
        let slot = self.slots.get(index as usize)?;
        (slot.lookups > 0 && node_id(index, slot) == nodeid).then_some(index as usize)
    }

    fn slot_of(&mut self, gfid: Gfid, kind: Kind) -> u32 {
        if let Some(index) = self.by_gfid.get(&gfid) {
            return *index;
        }
        let fresh = |generation| Slot {
            gfid,
            kind,
            parent: Gfid::ROOT,
            lookups: 0,
            generation,
            covered: false,
            promised: false,
            lacks: Lacks::empty(),
            old_pages: false,
            asking: false,
            last: None,
            suspect: false,
            named: None,
            attributes_told: false,
        };
        let index = if let Some(index) = self.free.pop() {
            let slot = &mut self.slots[index as usize];
            *slot = fresh(slot.generation.wrapping_add(1).max(FIRST_GENERATION));
            index
        } else {
            self.slots.push(fresh(FIRST_GENERATION));
            u32::try_from(self.slots.len() - 1).expect("the kernel runs out of memory before 2^32 inodes")
        };
        self.by_gfid.insert(gfid, index);
        index
    }
}

impl Inodes {
    /// A table that knows the root.
    pub(crate) fn new() -> Self {
        let mut table = Table { by_gfid: HashMap::default(), slots: Vec::new(), free: Vec::new() };
        let root = table.slot_of(Gfid::ROOT, Kind::Dir);
        assert_eq!(root, ROOT_SLOT, "the root is the first");
        table.slots[0].lookups = 1;
        Self {
            table: Mutex::new(table),
            recalls: AtomicU64::new(0),
            xattrs: AtomicU64::new(0),
            names_forgotten: AtomicU64::new(0),
            hasher: foldhash::fast::RandomState::default(),
        }
    }

    /// Take this before asking the graph what an answer will be made of.
    pub(crate) fn moment(&self) -> Moment {
        let (recalls, xattrs) = (self.recalls.load(Ordering::Acquire), self.xattrs.load(Ordering::Acquire));
        Moment { recalls, xattrs }
    }

    /// Whether there was no recall since: names that were covered then are covered still.
    pub(crate) fn promise_since(&self, moment: Moment) -> Promise {
        if self.moment().recalls == moment.recalls { Promise::Covered } else { Promise::Now }
    }

    /// The inode behind a node number; `ESTALE` if the kernel has forgotten it.
    pub(crate) fn gfid(&self, nodeid: u64) -> Result<Gfid, Errno> {
        let table = self.table.lock();
        table.find(nodeid).map(|index| table.slots[index].gfid).ok_or(Errno::STALE)
    }

    /// The directory that a directory is in, as far as we have seen.
    pub(crate) fn parent(&self, nodeid: u64) -> Result<Gfid, Errno> {
        let table = self.table.lock();
        table.find(nodeid).map(|index| table.slots[index].parent).ok_or(Errno::STALE)
    }

    /// Counts a reference that the next answer hands to the kernel.
    ///
    /// `covered` says what the graph said; the promise is what may be told to the kernel.
    pub(crate) fn remember(&self, at: Seen, covered: Promise, asked: Moment) -> (u64, Promise) {
        let mut table = self.table.lock();
        let index = table.slot_of(at.gfid, at.kind);
        let now = self.moment();
        let promise = if now.recalls == asked.recalls { covered } else { Promise::Now };
        let slot = &mut table.slots[index as usize];
        if index != ROOT_SLOT {
            slot.lookups += 1;
        }
        if at.kind == Kind::Dir {
            slot.parent = at.parent;
        }
        slot.cover(promise, if now == asked { at.lacks } else { Lacks::empty() });
        (slot.named, slot.attributes_told) = (None, false);
        let nodeid = node_id(index, slot);
        (nodeid, promise)
    }

    /// Notes anew whether the attributes of a known inode are covered, and which xattrs it has not.
    pub(crate) fn refresh(&self, nodeid: u64, lacks: Lacks, covered: Promise, asked: Moment) -> Promise {
        let mut table = self.table.lock();
        let now = self.moment();
        let promise = if now.recalls == asked.recalls { covered } else { Promise::Now };
        if let Some(index) = table.find(nodeid) {
            table.slots[index].cover(promise, if now == asked { lacks } else { Lacks::empty() });
        }
        promise
    }

    /// These are the attributes of an inode; those of a directory that the kernel knows are remembered.
    pub(crate) fn note_directory(&self, iatt: &Iatt) {
        if iatt.kind != Kind::Dir {
            return;
        }
        let mut table = self.table.lock();
        let Some(index) = table.by_gfid.get(&iatt.gfid).copied() else { return };
        match &mut table.slots[index as usize].last {
            Some(last) => **last = *iatt,
            none => *none = Some(Box::new(*iatt)),
        }
    }

    /// The attributes of a directory that has been removed.
    pub(crate) fn last_of_directory(&self, nodeid: u64) -> Option<Iatt> {
        let table = self.table.lock();
        let last = table.slots[table.find(nodeid)?].last.as_deref()?;
        Some(Iatt { nlink: 0, ..*last })
    }

    /// The kernel is promised this name of an inode, and its attributes.
    pub(crate) fn told(&self, nodeid: u64, place: Place<'_>) {
        let named = Named { hash: self.hash(place), at: Instant::now() };
        let mut table = self.table.lock();
        if let Some(index) = table.find(nodeid) {
            let slot = &mut table.slots[index];
            (slot.named, slot.attributes_told) = (Some(named), true);
        }
    }

    /// The kernel is promised the attributes of an inode.
    pub(crate) fn attributes_told(&self, nodeid: u64) {
        let mut table = self.table.lock();
        if let Some(index) = table.find(nodeid) {
            table.slots[index].attributes_told = true;
        }
    }

    /// The kernel asks for a change, and forgets the attributes of this inode by itself.
    pub(crate) fn attributes_forgotten(&self, nodeid: u64) {
        let mut table = self.table.lock();
        if let Some(index) = table.find(nodeid) {
            table.slots[index].attributes_told = false;
        }
    }

    /// The kernel is made to forget all names.
    pub(crate) fn names_forgotten(&self) {
        self.names_forgotten.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether the kernel most likely believes in this name and the attributes of its inode, and will for a while.
    pub(crate) fn is_told(&self, gfid: Gfid, place: Place<'_>) -> bool {
        let hash = self.hash(place);
        let table = self.table.lock();
        let Some(index) = table.by_gfid.get(&gfid) else { return false };
        let slot = &table.slots[*index as usize];
        let named = slot.named.is_some_and(|named| named.hash == hash && named.at.elapsed() < LONG / 2);
        named && slot.covered && slot.attributes_told
    }

    fn hash(&self, place: Place<'_>) -> u64 {
        self.hasher.hash_one((place, self.names_forgotten.load(Ordering::Acquire)))
    }

    /// Whether a lease of ours covers the inode: it can then not lose its last name behind our back.
    pub(crate) fn is_covered(&self, gfid: Gfid) -> bool {
        let table = self.table.lock();
        table.by_gfid.get(&gfid).is_some_and(|index| table.slots[*index as usize].covered)
    }

    /// The node number of an inode that the kernel may know.
    pub(crate) fn nodeid(&self, gfid: Gfid) -> Option<u64> {
        let table = self.table.lock();
        table.by_gfid.get(&gfid).map(|index| node_id(*index, &table.slots[*index as usize]))
    }

    /// Whether the kernel must drop the pages of a file that is being opened: another client may have written to it, and
    /// set its size and times back, by which alone the kernel would see that.
    pub(crate) fn take_old_pages(&self, gfid: Gfid) -> bool {
        let mut table = self.table.lock();
        let Some(index) = table.by_gfid.get(&gfid).copied() else { return false };
        std::mem::take(&mut table.slots[index as usize].old_pages)
    }

    /// Xattrs that an inode is known not to have, under a lease of ours.
    pub(crate) fn lacks(&self, nodeid: u64) -> Lacks {
        let table = self.table.lock();
        table.find(nodeid).map_or(Lacks::empty(), |index| table.slots[index].lacks)
    }

    /// The graph says that a covered inode has no such xattrs.
    pub(crate) fn learn_lack(&self, nodeid: u64, lacks: Lacks, asked: Moment) {
        let mut table = self.table.lock();
        if let Some(index) = table.find(nodeid).filter(|_| self.moment() == asked) {
            let slot = &mut table.slots[index];
            if slot.covered {
                slot.lacks |= lacks;
            }
        }
    }

    /// This mount is about to set xattrs of an inode, or just has.
    pub(crate) fn xattrs_change(&self, nodeid: u64) {
        let mut table = self.table.lock();
        self.xattrs.fetch_add(1, Ordering::AcqRel);
        if let Some(index) = table.find(nodeid) {
            table.slots[index].lacks = Lacks::empty();
        }
    }

    /// The kernel drops references.
    pub(crate) fn forget(&self, nodeid: u64, count: u64) {
        let mut table = self.table.lock();
        let Some(index) = table.find(nodeid).filter(|index| *index != ROOT_SLOT as usize) else {
            return;
        };
        let slot = &mut table.slots[index];
        slot.lookups = slot.lookups.saturating_sub(count);
        if slot.lookups == 0 {
            let gfid = slot.gfid;
            slot.last = None;
            table.by_gfid.remove(&gfid);
            table.free.push(index as u32);
        }
    }

    /// The kernel's number for a file whose pages it can be told to drop: not while it may wait for the attributes.
    pub(crate) fn with_pages(&self, gfid: Gfid) -> Option<u64> {
        let table = self.table.lock();
        let index = *table.by_gfid.get(&gfid)?;
        let slot = &table.slots[index as usize];
        (!slot.asking).then(|| node_id(index, slot))
    }

    /// Counts a recall, and gives the node numbers of those of `gfids` that the kernel may know: of directories, and of
    /// what it was promised attributes of. To tell it about others would be wrong: see `Slot::asking`.
    pub(crate) fn uncover(&self, gfids: &[Gfid]) -> Vec<(u64, Kind)> {
        let mut table = self.table.lock();
        self.recalls.fetch_add(1, Ordering::AcqRel);
        let mut known = Vec::with_capacity(gfids.len());
        for gfid in gfids {
            if let Some(index) = table.by_gfid.get(gfid).copied() {
                let slot = &mut table.slots[index as usize];
                slot.cover(Promise::Now, Lacks::empty());
                slot.attributes_told = false;
                slot.old_pages = true;
                if std::mem::take(&mut slot.promised) || slot.kind == Kind::Dir {
                    known.push((node_id(index, slot), slot.kind));
                }
            }
        }
        known
    }

    /// This mount has taken a name from an inode, perhaps the last, and nothing was recalled for that. Nothing that was
    /// answered about it before counts any longer.
    pub(crate) fn lost_name(&self, gfid: Gfid) {
        let mut table = self.table.lock();
        self.recalls.fetch_add(1, Ordering::AcqRel);
        if let Some(index) = table.by_gfid.get(&gfid).copied() {
            table.slots[index as usize].cover(Promise::Now, Lacks::empty());
        }
    }

    /// Whether the kernel holds references to this inode, as far as it has said.
    pub(crate) fn is_known(&self, nodeid: u64) -> bool {
        self.table.lock().find(nodeid).is_some()
    }

    /// The kernel did not know an inode that we had to tell it about.
    pub(crate) fn suspect(&self, nodeid: u64) {
        let mut table = self.table.lock();
        if let Some(index) = table.find(nodeid) {
            let slot = &mut table.slots[index];
            (slot.suspect, slot.named) = (true, None);
        }
    }

    /// The kernel asks for the attributes. The answer is what it is to know: told to forget meanwhile, it would not take it
    /// in.
    pub(crate) fn asks_for_attributes(&self, nodeid: u64) {
        let mut table = self.table.lock();
        if let Some(index) = table.find(nodeid) {
            let slot = &mut table.slots[index];
            (slot.suspect, slot.asking) = (false, true);
        }
    }

    /// Whether the kernel must be told again about this inode, now that it evidently knows it.
    pub(crate) fn clear_suspect(&self, nodeid: u64) -> bool {
        let mut table = self.table.lock();
        table.find(nodeid).is_some_and(|index| std::mem::take(&mut table.slots[index].suspect))
    }
}

/// An inode as an answer shows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    /// Its identity.
    pub(crate) gfid: Gfid,
    /// Its kind.
    pub(crate) kind: Kind,
    /// The directory it was seen in.
    pub(crate) parent: Gfid,
    /// Xattrs that it has not.
    pub(crate) lacks: Lacks,
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Gfid = Gfid::from_bytes([7; 16]);

    fn seen(gfid: Gfid) -> Seen {
        Seen { gfid, kind: Kind::Dir, parent: Gfid::ROOT, lacks: Lacks::all() }
    }

    #[test]
    fn a_number_that_was_forgotten_never_means_another_inode() {
        let inodes = Inodes::new();
        let (first, _) = inodes.remember(seen(A), Promise::Now, inodes.moment());
        let (again, _) = inodes.remember(seen(A), Promise::Now, inodes.moment());
        assert_eq!(first, again);
        inodes.forget(first, 1);
        assert_eq!(inodes.gfid(first), Ok(A));
        inodes.forget(first, 1);
        assert_eq!(inodes.gfid(first), Err(Errno::STALE));
        let (other, _) = inodes.remember(seen(Gfid::from_bytes([8; 16])), Promise::Now, inodes.moment());
        assert_ne!(first, other);
        assert_eq!(inodes.gfid(first), Err(Errno::STALE));
    }

    #[test]
    fn what_the_kernel_was_told_counts_until_it_forgets() {
        let inodes = Inodes::new();
        let place = Place { parent: Gfid::ROOT, name: b"a" };
        let other_name = Place { name: b"b", ..place };
        let other_directory = Place { parent: A, ..place };
        let tell = || {
            let (nodeid, _) = inodes.remember(seen(A), Promise::Covered, inodes.moment());
            assert!(!inodes.is_told(A, place), "counted, but not promised");
            inodes.told(nodeid, place);
            assert!(inodes.is_told(A, place));
            assert!(!inodes.is_told(A, other_name) && !inodes.is_told(A, other_directory));
            nodeid
        };
        let nodeid = tell();
        inodes.attributes_forgotten(nodeid);
        assert!(!inodes.is_told(A, place));
        inodes.attributes_told(nodeid);
        assert!(inodes.is_told(A, place));
        inodes.names_forgotten();
        assert!(!inodes.is_told(A, place));
        tell();
        inodes.suspect(nodeid);
        assert!(!inodes.is_told(A, place));
        tell();
        inodes.uncover(&[A]);
        assert!(!inodes.is_told(A, place));
        inodes.refresh(nodeid, Lacks::all(), Promise::Covered, inodes.moment());
        assert!(!inodes.is_told(A, place), "it has forgotten the attributes, and was not told them again");
        tell();
        inodes.forget(nodeid, 4);
        assert!(!inodes.is_told(A, place));
    }

    #[test]
    fn the_root_is_always_there() {
        let inodes = Inodes::new();
        inodes.forget(ROOT_ID, 99);
        assert_eq!(inodes.gfid(ROOT_ID), Ok(Gfid::ROOT));
        assert_eq!(inodes.remember(seen(Gfid::ROOT), Promise::Now, inodes.moment()).0, ROOT_ID);
    }

    #[test]
    fn an_answer_that_was_asked_for_before_a_recall_promises_nothing() {
        let inodes = Inodes::new();
        let asked = inodes.moment();
        let (nodeid, promise) = inodes.remember(seen(A), Promise::Covered, asked);
        assert_eq!(promise, Promise::Covered);
        assert!(inodes.is_covered(A));
        assert_eq!(inodes.uncover(&[A]), [(nodeid, Kind::Dir)]);
        assert!(!inodes.is_covered(A));
        assert_eq!(inodes.remember(seen(A), Promise::Covered, asked).1, Promise::Now);
        assert!(!inodes.is_covered(A));
    }

    /// A program opened a file that another on the same mount had just removed, as if a lease still kept it.
    #[test]
    fn an_inode_that_has_lost_a_name_is_covered_only_by_what_is_asked_after_that() {
        let inodes = Inodes::new();
        let asked = inodes.moment();
        inodes.remember(seen(A), Promise::Covered, asked);
        inodes.lost_name(A);
        assert!(!inodes.is_covered(A));
        assert_eq!(inodes.remember(seen(A), Promise::Covered, asked).1, Promise::Now);
        assert_eq!(inodes.remember(seen(A), Promise::Covered, inodes.moment()).1, Promise::Covered);
        assert!(inodes.is_covered(A));
    }

    /// A program read nothing where another client had written, since its question for the size was answered in vain.
    #[test]
    fn the_kernel_is_not_told_to_forget_what_it_was_not_promised() {
        let inodes = Inodes::new();
        let file = Seen { kind: Kind::File, ..seen(A) };
        let (nodeid, _) = inodes.remember(file, Promise::Now, inodes.moment());
        assert_eq!(inodes.uncover(&[A]), []);
        inodes.refresh(nodeid, Lacks::empty(), Promise::Covered, inodes.moment());
        inodes.refresh(nodeid, Lacks::empty(), Promise::Now, inodes.moment());
        assert_eq!(inodes.uncover(&[A]), [(nodeid, Kind::File)], "it may believe the first answer still");
        assert_eq!(inodes.uncover(&[A]), []);
        assert_eq!(inodes.with_pages(A), Some(nodeid));
        inodes.asks_for_attributes(nodeid);
        assert_eq!(inodes.with_pages(A), None, "nor to drop pages while it asks");
        inodes.refresh(nodeid, Lacks::empty(), Promise::Now, inodes.moment());
        assert_eq!(inodes.with_pages(A), None, "the answer may be on its way");
        inodes.refresh(nodeid, Lacks::empty(), Promise::Covered, inodes.moment());
        assert_eq!(inodes.with_pages(A), Some(nodeid));
    }

    #[test]
    fn what_an_inode_lacks_is_known_until_a_recall_or_a_change_of_its_own() {
        let inodes = Inodes::new();
        let (nodeid, _) = inodes.remember(seen(A), Promise::Covered, inodes.moment());
        assert_eq!(inodes.lacks(nodeid), Lacks::all());
        inodes.uncover(&[A]);
        assert_eq!(inodes.lacks(nodeid), Lacks::empty());
        inodes.remember(seen(A), Promise::Now, inodes.moment());
        assert_eq!(inodes.lacks(nodeid), Lacks::empty());
        let before = inodes.moment();
        inodes.remember(seen(A), Promise::Covered, before);
        inodes.xattrs_change(nodeid);
        assert_eq!(inodes.lacks(nodeid), Lacks::empty());
        // Asked for before the change, so it says nothing of what is after it.
        assert_eq!(inodes.remember(seen(A), Promise::Covered, before).1, Promise::Covered);
        inodes.learn_lack(nodeid, Lacks::ACL, before);
        assert_eq!(inodes.lacks(nodeid), Lacks::empty());
        inodes.learn_lack(nodeid, Lacks::ACL, inodes.moment());
        assert_eq!(inodes.lacks(nodeid), Lacks::ACL);
    }
}
