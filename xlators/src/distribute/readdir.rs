//! One listing from those of all subvolumes.
//!
//! The listing of one subvolume follows that of the other, so that a cookie is the subvolume's number in the upper
//! bits, and its cookie below. A cookie is a function of the name alone, so `telldir` and `seekdir` hold for ever.
//!
//! A name is listed where it belongs: there is either the file, or a link file for it, or the directory's own part. In
//! a directory whose names may be anywhere, files are listed where they are.
//!
//! The first pages are fetched from all at once. A directory that fits into them is known as a whole, and every entry
//! gets its attributes from all its parts. In larger ones directories are listed without attributes: those of one
//! subvolume alone would be wrong.

use std::collections::HashMap;
use std::sync::Arc;

use futures::StreamExt;
use futures::stream;

use crate::ctx::Ctx;
use crate::distribute::Core;
use crate::distribute::layout::Layout;
use crate::distribute::memory::{Hint, Place};
use crate::distribute::merge;
use crate::error::{FopError, Result};
use crate::fop::{Getattr, Readdir};
use crate::reply::{DirEntry, Entries, Found};
use crate::types::{AttrMask, Cover, Kind, Name};

/// Kernels take offsets for signed numbers.
const COOKIE_BITS: u32 = 63;

/// How many link files of one page are followed at once.
const FOLLOWED_AT_ONCE: usize = 32;

/// How the cookies of subvolumes become those of the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cookies {
    set_bits: u32,
}

impl Cookies {
    fn new(sets: usize) -> Self {
        Self { set_bits: usize::BITS - (sets - 1).leading_zeros() }
    }

    /// Keeps the order. The lowest bits are lost: of two names that differ in these alone (one pair in 10^17 for 24
    /// subvolumes), one is skipped when a page of the kernel happens to end between them.
    fn join(self, set: usize, cookie: u64) -> u64 {
        let joined = (set as u64) << (COOKIE_BITS - self.set_bits) | cookie >> self.set_bits;
        // 0 is where listings begin.
        joined.max(1)
    }

    /// The subvolume, and the cookie after which it goes on. Any number may come in.
    fn split(self, joined: u64) -> (usize, u64) {
        if joined == 0 {
            return (0, 0);
        }
        let joined = joined & ((1 << COOKIE_BITS) - 1);
        let set = joined >> (COOKIE_BITS - self.set_bits);
        let lost = (1 << self.set_bits) - 1;
        let cookie = (joined << self.set_bits | lost) & ((1 << COOKIE_BITS) - 1);
        (set as usize, cookie)
    }
}

/// Whether all parts of a directory will be at hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whole {
    Maybe,
    No,
}

/// A page of one subvolume.
#[derive(Debug)]
struct Page {
    set: usize,
    entries: Vec<DirEntry>,
}

impl Core {
    pub(super) async fn readdir(&self, ctx: &Ctx, readdir: Readdir) -> Result<Entries> {
        let layout = self.layout(ctx, readdir.gfid).await?;
        let committed = layout.is_committed(self.volume_commit(ctx).await?);
        let listing = Listing { core: self, ctx, layout, committed, cookies: Cookies::new(self.sets.count()), readdir };
        if listing.readdir.after == 0 { listing.first_page().await } else { listing.next_page().await }
    }
}

/// One call for a page.
struct Listing<'a> {
    core: &'a Core,
    ctx: &'a Ctx,
    layout: Arc<Layout>,
    committed: bool,
    cookies: Cookies,
    readdir: Readdir,
}

impl Listing<'_> {
    /// Only attributes tell a file from a link file, which may stand for another kind. But where all parts of a
    /// directory are at hand, and all names where they belong, names are enough.
    fn ask(&self, after: u64, whole: Whole) -> Readdir {
        let names_do = whole == Whole::Maybe && self.committed;
        Readdir { after, attrs: self.readdir.attrs || !names_do, ..self.readdir.clone() }
    }

    async fn first_page(&self) -> Result<Entries> {
        let mut pages = Vec::with_capacity(self.core.sets.count());
        let mut all_at_end = true;
        let first = self.ask(0, Whole::Maybe);
        for (set, answer) in self.core.sets.ask_all(self.ctx, &first).await {
            match answer {
                Ok(page) => {
                    all_at_end &= page.end;
                    pages.push((page.end, Page { set, entries: page.entries }));
                }
                // The part is missing there, and so are names.
                Err(error) if error.is_absent() && !self.layout.is_sound() => {}
                Err(error) => return Err(error),
            }
        }
        if all_at_end {
            let entries = self.whole(pages.into_iter().map(|(_, page)| page).collect());
            return Ok(Entries { entries, end: true });
        }
        if !first.attrs {
            return self.next_page().await;
        }
        let mut taken = Vec::new();
        let mut bytes = 0;
        for (end, page) in pages {
            bytes += page.entries.iter().map(weight).sum::<usize>();
            taken.extend(self.part(page).await?);
            if !end || bytes >= self.readdir.bytes_max as usize {
                break;
            }
        }
        // Even the last subvolume may have more; an empty page at the end costs little.
        if taken.is_empty() { self.next_page().await } else { Ok(Entries { entries: taken, end: false }) }
    }

    /// Page by page, one subvolume after the other.
    async fn next_page(&self) -> Result<Entries> {
        let (mut set, mut after) = self.cookies.split(self.readdir.after);
        while set < self.core.sets.count() {
            let page = match self.core.sets.ask(self.ctx, set, self.ask(after, Whole::No)).await {
                Ok(page) => page,
                Err(error) if error.is_absent() && !self.layout.is_sound() => Entries { entries: vec![], end: true },
                Err(error) => return Err(error),
            };
            let last = page.entries.last().map(|entry| entry.cookie);
            let entries = self.part(Page { set, entries: page.entries }).await?;
            if !entries.is_empty() {
                let end = page.end && set + 1 == self.core.sets.count();
                return Ok(Entries { entries, end });
            }
            (set, after) = match last {
                Some(last) if !page.end => (set, last),
                _ => (set + 1, 0),
            };
        }
        Ok(Entries { entries: Vec::new(), end: true })
    }

    /// The subvolume whose listing shows the name: where it belongs. In a directory whose names may be anywhere, a
    /// file is shown where it is.
    fn shows(&self, set: usize, entry: &DirEntry) -> bool {
        let hashed = self.layout.set_of(entry.name.as_bytes());
        if self.committed || entry.kind == Kind::Dir { hashed.unwrap_or(0) == set } else { !is_link(entry) }
    }

    /// Entries from a page of one subvolume, without knowledge of the others.
    async fn part(&self, page: Page) -> Result<Vec<DirEntry>> {
        let set = page.set;
        let shown = page.entries.into_iter().filter(|entry| self.shows(set, entry));
        let follow = |entry: DirEntry| self.alone(set, entry);
        let followed: Vec<_> = stream::iter(shown).map(follow).buffered(FOLLOWED_AT_ONCE).collect().await;
        followed.into_iter().filter_map(Result::transpose).collect()
    }

    /// An entry as far as one subvolume knows it; `None` for a link file that leads nowhere.
    async fn alone(&self, set: usize, mut entry: DirEntry) -> Result<Option<DirEntry>> {
        if !self.readdir.attrs {
            entry.found = None;
        } else if entry.kind == Kind::Dir {
            self.know_directory(&entry);
            entry.found = None;
        } else if let Some(target) = linkto(&entry).and_then(|name| self.core.sets.named(name)) {
            let getattr = Getattr { gfid: entry.gfid, fd: None, exact: AttrMask::all() };
            match self.core.sets.ask(self.ctx, target, getattr).await {
                Ok(found) => self.take_from(&mut entry, target, Box::new(found)),
                Err(error) if error.is_absent() => return Ok(None),
                Err(FopError::Unreachable) => entry.found = None,
                Err(error) => return Err(error),
            }
        } else {
            self.know_file(set, &entry);
            if self.layout.set_of(entry.name.as_bytes()) != Some(set) {
                entry.found.iter_mut().for_each(|found| found.cover.remove(Cover::NAME));
            }
        }
        entry.cookie = self.cookies.join(set, entry.cookie);
        Ok(Some(entry))
    }

    fn know_directory(&self, entry: &DirEntry) {
        if !entry.gfid.is_null() {
            self.core.memory.places.put(entry.gfid, Place::Everywhere);
            self.core.memory.set_hint(self.readdir.gfid, &entry.name, Hint::Directory(entry.gfid));
        }
    }

    fn know_file(&self, set: usize, entry: &DirEntry) {
        if let Some(found) = &entry.found {
            self.core.memory.places.put(found.iatt.gfid, Place::On(set));
        }
    }

    /// The content of the file is on another subvolume than its name.
    fn take_from(&self, entry: &mut DirEntry, set: usize, mut found: Box<Found>) {
        found.cover.remove(Cover::NAME);
        entry.kind = found.iatt.kind;
        entry.found = Some(found);
        self.know_file(set, entry);
        self.core.memory.set_hint(self.readdir.gfid, &entry.name, Hint::Linked(set));
    }

    /// The whole directory at once, from all that all subvolumes have of it.
    fn whole(&self, pages: Vec<Page>) -> Vec<DirEntry> {
        let mut names: HashMap<Name, Vec<(usize, DirEntry)>> = HashMap::new();
        for Page { set, entries } in pages {
            for entry in entries {
                names.entry(entry.name.clone()).or_default().push((set, entry));
            }
        }
        let mut entries: Vec<_> = names.into_values().filter_map(|parts| self.together(parts)).collect();
        entries.sort_unstable_by_key(|entry| entry.cookie);
        entries
    }

    /// One entry from its parts; `None` if nobody may see it.
    fn together(&self, parts: Vec<(usize, DirEntry)>) -> Option<DirEntry> {
        let name = &parts.first()?.1.name;
        let hashed = self.layout.set_of(name.as_bytes());
        let belongs = parts.iter().position(|(set, _)| Some(*set) == hashed);
        let directory = parts.iter().position(|(_, entry)| entry.kind == Kind::Dir);
        let mut entry = match (belongs, directory) {
            // Where every name is where it belongs, what is only elsewhere is the rest of something unfinished.
            (None, _) if self.committed => return None,
            (Some(at), _) if parts[at].1.kind == Kind::Dir => self.directory_of(parts, at),
            (None, Some(at)) => self.directory_of(parts, at),
            (belongs, _) => self.file_of(parts, belongs)?,
        };
        if !self.readdir.attrs {
            entry.found = None;
        }
        Some(entry)
    }

    fn directory_of(&self, mut parts: Vec<(usize, DirEntry)>, at: usize) -> DirEntry {
        let (set, mut entry) = parts.swap_remove(at);
        self.know_directory(&entry);
        let same = |part: &DirEntry| part.kind == Kind::Dir && part.gfid == entry.gfid;
        let complete = parts.len() + 1 == self.core.sets.count() && parts.iter().all(|(_, part)| same(part));
        let others: Option<Vec<&Found>> = parts.iter().map(|(_, part)| part.found.as_deref()).collect();
        entry.found = match (entry.found, others) {
            (Some(found), Some(others)) if complete => Some(Box::new(merge::directory(&found, others))),
            _ => None,
        };
        entry.cookie = self.cookies.join(set, entry.cookie);
        entry
    }

    fn file_of(&self, mut parts: Vec<(usize, DirEntry)>, belongs: Option<usize>) -> Option<DirEntry> {
        let content = parts.iter().position(|(_, entry)| entry.kind != Kind::Dir && !is_link(entry));
        let Some(at) = belongs else {
            let (set, mut entry) = parts.swap_remove(content?);
            entry.cookie = self.cookies.join(set, entry.cookie);
            if let Some(found) = &mut entry.found {
                found.cover.remove(Cover::NAME);
            }
            self.know_file(set, &entry);
            return Some(entry);
        };
        let (set, mut entry) = parts.swap_remove(at);
        entry.cookie = self.cookies.join(set, entry.cookie);
        if !is_link(&entry) {
            // A listing of names: what is also elsewhere is a link file here.
            if let Some((_, content)) = parts.iter().find(|(_, part)| entry.found.is_none() && part.kind != Kind::Dir) {
                entry.kind = content.kind;
            }
            self.know_file(set, &entry);
            return Some(entry);
        }
        let content = parts.iter().position(|(_, part)| part.kind != Kind::Dir && !is_link(part))?;
        let (target, part) = parts.swap_remove(content);
        if part.gfid == entry.gfid || !self.committed {
            entry.gfid = part.gfid;
            self.take_from(&mut entry, target, part.found?);
        } else {
            entry.found = None;
        }
        Some(entry)
    }
}

fn linkto(entry: &DirEntry) -> Option<&[u8]> {
    entry.found.as_ref().and_then(|found| found.linkto.as_deref())
}

fn is_link(entry: &DirEntry) -> bool {
    linkto(entry).is_some()
}

/// What an entry counts against the size of a page.
fn weight(entry: &DirEntry) -> usize {
    24 + entry.name.as_bytes().len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookies_keep_subvolume_and_order() {
        for sets in [2, 3, 4, 5, 24, 64, 100] {
            let cookies = Cookies::new(sets);
            let mut last = 0;
            for set in 0..sets {
                for cookie in [1 << 20, 1 << 40, (1 << 62) + 12_345_678, (1 << 63) - 1] {
                    let joined = cookies.join(set, cookie);
                    assert!(joined > last && joined < 1 << 63, "{sets} {set} {cookie}");
                    last = joined;
                    let (back, after) = cookies.split(joined);
                    assert_eq!(back, set);
                    assert!(after >= cookie && after - cookie < 1 << cookies.set_bits && after < 1 << 63);
                }
            }
        }
    }

    #[test]
    fn any_cookie_may_come_in() {
        let cookies = Cookies::new(3);
        assert_eq!(cookies.split(0), (0, 0));
        assert_eq!(cookies.join(0, 1), 1);
        for joined in [1, u64::MAX, 1 << 63, (1 << 63) - 1] {
            let (set, after) = cookies.split(joined);
            assert!(set <= 3 && after < 1 << 63);
        }
    }
}
