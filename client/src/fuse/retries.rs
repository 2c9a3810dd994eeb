//! Who has been answered `ESTALE`, and what is kept so that it does not happen to him again.
//!
//! To open a file takes the kernel two requests: LOOKUP, then OPEN or CREATE. Between them another mount may replace the
//! name, so that the inode is no more, or make a name that was absent. A local file system opens the inode that the name
//! stood for at one moment. We answer `ESTALE`, and the kernel walks the path once more and asks for each name anew; what
//! it gets as a second `ESTALE` goes to the program. So the second walk must not fail. From the first `ESTALE` on:
//! - What a LOOKUP of the thread finds is kept. A file is opened in advance, usually without a message, since a lease
//!   covers it and a recall makes up for it (see [`super::opens`]): whoever removes its name leaves the inode. Of a
//!   symbolic link the target is kept, and of anything the attributes, and given when the inode is asked in vain. What
//!   has gone before it could be kept is looked up again.
//! - A CREATE that meets a name which was absent a moment ago opens what has it, as far as we can tell that the caller
//!   may (see [`super::callers`]): the kernel does not check that after a CREATE.
//!
//! This ends when the thread has opened something, or after [`WALK_TIME`]. Nothing of it costs those anything who are
//! not in the way of others.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use mortar_xlators::types::{Gfid, Iatt};
use parking_lot::Mutex;

/// How long a second walk may take: longer than a recall that ends in a fence.
pub(crate) const WALK_TIME: Duration = Duration::from_secs(10);
/// How many threads may walk a second time at once; of more, nothing is kept.
const THREADS_MAX: usize = 4096;
/// How much is kept for one of them: more than a path has symbolic links.
const KEPT_MAX: usize = 64;

/// Something that was found, and outlives its name for a while.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    /// As it was found.
    pub(crate) iatt: Iatt,
    /// A file: our number for the open in advance.
    pub(crate) fh: Option<u64>,
    /// A symbolic link: where it leads to.
    pub(crate) target: Option<Bytes>,
}

#[derive(Debug, Default)]
struct Walk {
    /// Which `ESTALE` it is about.
    number: u64,
    kept: VecDeque<Kept>,
}

/// The threads that walk a path a second time.
#[derive(Debug, Default)]
pub(crate) struct Retries {
    walks: Mutex<HashMap<u32, Walk, foldhash::fast::RandomState>>,
    /// How many those are, to be looked at without the lock.
    count: AtomicUsize,
    next: AtomicU64,
}

impl Retries {
    /// A thread is answered `ESTALE`. The number is for [`Self::expire`]; `None` if too many are.
    pub(crate) fn begin(&self, thread: u32) -> Option<u64> {
        let mut walks = self.walks.lock();
        if walks.len() >= THREADS_MAX && !walks.contains_key(&thread) {
            return None;
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        walks.entry(thread).or_default().number = number;
        self.count.store(walks.len(), Ordering::Release);
        Some(number)
    }

    /// Whether the next `ESTALE` would go to the program.
    pub(crate) fn has(&self, thread: u32) -> bool {
        self.count.load(Ordering::Acquire) > 0 && self.walks.lock().contains_key(&thread)
    }

    /// Keeps something for a thread; gives back what is not kept (any longer).
    pub(crate) fn keep(&self, thread: u32, kept: Kept) -> Option<Kept> {
        let mut walks = self.walks.lock();
        let Some(walk) = walks.get_mut(&thread) else { return Some(kept) };
        walk.kept.push_back(kept);
        if walk.kept.len() > KEPT_MAX { walk.kept.pop_front() } else { None }
    }

    /// What is kept of an inode for this thread.
    pub(crate) fn kept(&self, thread: u32, gfid: Gfid) -> Option<Kept> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let walks = self.walks.lock();
        walks.get(&thread)?.kept.iter().rev().find(|kept| kept.iatt.gfid == gfid).cloned()
    }

    /// The walk has come to its end; gives what was kept for it.
    pub(crate) fn end(&self, thread: u32) -> VecDeque<Kept> {
        if self.count.load(Ordering::Acquire) == 0 {
            return VecDeque::new();
        }
        let mut walks = self.walks.lock();
        let ended = walks.remove(&thread).unwrap_or_default();
        self.count.store(walks.len(), Ordering::Release);
        ended.kept
    }

    /// Its time is over, if nothing has happened since it began.
    pub(crate) fn expire(&self, thread: u32, number: u64) -> VecDeque<Kept> {
        let same = self.walks.lock().get(&thread).is_some_and(|walk| walk.number == number);
        if same { self.end(thread) } else { VecDeque::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::super::convert::tests::sample;
    use super::*;

    fn kept(number: u8) -> Kept {
        let iatt = Iatt { gfid: Gfid::from_bytes([number; 16]), ..sample() };
        Kept { iatt, fh: Some(u64::from(number)), target: None }
    }

    #[test]
    fn something_is_kept_only_for_a_thread_that_walks_a_second_time() {
        let retries = Retries::default();
        assert_eq!(retries.keep(7, kept(1)).unwrap().fh, Some(1));
        retries.begin(7).unwrap();
        assert!(retries.has(7) && !retries.has(8));
        assert!(retries.keep(7, kept(1)).is_none());
        assert_eq!(retries.kept(7, kept(1).iatt.gfid).unwrap().fh, Some(1));
        assert!(retries.kept(8, kept(1).iatt.gfid).is_none());
        assert_eq!(retries.end(7).len(), 1);
        assert!(!retries.has(7) && retries.kept(7, kept(1).iatt.gfid).is_none());
    }

    #[test]
    fn the_oldest_goes_when_too_much_is_kept() {
        let retries = Retries::default();
        retries.begin(7).unwrap();
        for number in 0..KEPT_MAX {
            assert!(retries.keep(7, kept(number as u8)).is_none());
        }
        assert_eq!(retries.keep(7, kept(200)).unwrap().fh, Some(0));
    }

    #[test]
    fn time_is_over_only_for_a_walk_that_did_not_begin_again() {
        let retries = Retries::default();
        let first = retries.begin(7).unwrap();
        let second = retries.begin(7).unwrap();
        retries.expire(7, first);
        assert!(retries.has(7));
        retries.expire(7, second);
        assert!(!retries.has(7));
    }
}
