//! Requests about open directories: list, and make durable.
//!
//! The graph gives pages of a few hundred entries, the kernel takes what fits its buffer; the rest
//! waits in the open directory. Attributes that waited are given only if nothing has changed or
//! been recalled since: an old size would make the kernel cut pages that a program has just written.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::Duration;

use mortar_xlators::ctx::Ctx;
use mortar_xlators::error::Result;
use mortar_xlators::fop::{Fsync, Readdir, Release};
use mortar_xlators::reply::{DirEntry, Entries};
use mortar_xlators::types::{Cover, Gfid};

use super::convert;
use super::inodes::Place;
use super::opens::{OpenDir, Page};
use super::server::{Digest, Server, Shown, not_served};
use super::transport::abi::OpenedFlags;
use super::transport::reply::{Answer, Dirent, Entry, Listing, Opened, Room};
use super::transport::request::{Op, SyncWhat};

/// How long a page is: with attributes, about 700 short names, so one lease request can name them all.
const PAGE_BYTES: u32 = 24 << 10;
/// Where a listing goes on after `.` and `..`. Cookies are hashes, and hardly ever so small.
const AFTER_DOT: u64 = 1;
const AFTER_DOTS: u64 = 2;

/// What the kernel wants of each entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Want {
    Names,
    Inodes,
}

/// The part of a listing that the kernel asks for.
#[derive(Clone, Copy, Debug)]
struct Slice {
    fh: u64,
    offset: u64,
    size: u32,
    want: Want,
}

/// Whether the attributes of a page may be handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fresh {
    Yes,
    No,
}

impl Server {
    pub(super) async fn serve_dir(&self, ctx: &Ctx, nodeid: u64, op: Op) -> Result<Answer> {
        let gfid = self.gfid(nodeid)?;
        match op {
            Op::Opendir { .. } => {
                let fh = self.cache.opens.insert_dir(gfid);
                Ok(Answer::Opened(Opened { fh, flags: OpenedFlags::empty() }))
            }
            Op::Readdir { fh, offset, size } => {
                self.list(ctx, nodeid, Slice { fh, offset, size, want: Want::Names }).await
            }
            Op::Readdirplus { fh, offset, size } => {
                self.list(ctx, nodeid, Slice { fh, offset, size, want: Want::Inodes }).await
            }
            Op::Releasedir { fh } => self.releasedir(ctx, fh).await,
            Op::Fsyncdir { what, .. } => {
                self.send(ctx, Fsync { gfid, fd: None, data_only: what == SyncWhat::Data }).await?;
                Ok(Answer::Empty)
            }
            _ => not_served(),
        }
    }

    async fn releasedir(&self, ctx: &Ctx, fh: u64) -> Result<Answer> {
        if let Some(dir) = self.cache.opens.remove_dir(fh)
            && dir.told.load(Ordering::Relaxed)
        {
            self.send(ctx, Release { fd: dir.number }).await?;
        }
        Ok(Answer::Empty)
    }

    async fn list(&self, ctx: &Ctx, nodeid: u64, slice: Slice) -> Result<Answer> {
        let Slice { fh, offset, size, want } = slice;
        let thread = ctx.caller.pid.cast_unsigned();
        let dir = self.cache.opens.dir(fh)?;
        let mut listing = Listing::new(size);
        if offset < AFTER_DOTS && self.push_dots(&mut listing, nodeid, offset, want)? == Room::Full {
            return Ok(listing.finish());
        }
        let mut after = if offset <= AFTER_DOTS { 0 } else { offset };
        loop {
            let kept = dir.page.lock().take();
            // From the start means anew: a program that rewinds wants to see what is there now.
            let kept = kept.filter(|page| offset != 0 && page.after == after);
            let (mut page, fresh) = match kept {
                Some(page) => {
                    let fresh = self.is_fresh(&page);
                    (page, fresh)
                }
                None => (self.next_page(ctx, &dir, after).await?, Fresh::Yes),
            };
            let (room, promised) = self.push_page(&mut listing, dir.number.gfid, &mut page, want, fresh);
            if promised {
                self.cache.listing_sent(thread);
            }
            after = page.after;
            let end = page.end && page.entries.is_empty();
            if room == Room::Full || end {
                *dir.page.lock() = Some(page);
            }
            // What is there goes to the kernel before another page is fetched.
            if room == Room::Full || end || !listing.is_empty() {
                return Ok(listing.finish());
            }
        }
    }

    fn is_fresh(&self, page: &Page) -> Fresh {
        let same = page.asked == self.cache.inodes.moment() && page.changes == self.changes.load(Ordering::Acquire);
        if same { Fresh::Yes } else { Fresh::No }
    }

    /// Fetches a page. Always with inodes: also a plain listing shows inode numbers, which are those of stat(2).
    async fn next_page(&self, ctx: &Ctx, dir: &OpenDir, after: u64) -> Result<Page> {
        let (asked, changes) = (self.cache.inodes.moment(), self.changes.load(Ordering::Acquire));
        // A brick that has come to the end of a listing keeps nothing of it.
        dir.told.store(true, Ordering::Relaxed);
        let fop = Readdir { gfid: dir.number.gfid, fd: Some(dir.number), after, bytes_max: PAGE_BYTES, attrs: true };
        let entries = match self.send(ctx, fop).await {
            // It was removed while it was open: on a local disk it is empty then.
            Err(error) if error.is_absent() => Entries { entries: Vec::new(), end: true },
            entries => entries?,
        };
        // Nothing and more to come would have us ask for ever.
        let end = entries.end || entries.entries.is_empty();
        dir.told.store(!end, Ordering::Relaxed);
        Ok(Page { entries: VecDeque::from(entries.entries), after, end, asked, changes })
    }

    fn push_dots(&self, listing: &mut Listing, nodeid: u64, offset: u64, want: Want) -> Result<Room> {
        let gfid = self.gfid(nodeid)?;
        let parent = self.cache.inodes.parent(nodeid)?;
        let dots: [(u64, Gfid, &[u8]); 2] = [(AFTER_DOT, gfid, b"."), (AFTER_DOTS, parent, b"..")];
        for (next, gfid, name) in dots.into_iter().filter(|dot| dot.0 > offset) {
            let dirent = Dirent { ino: gfid.ino(), next, kind: u32::from(libc::DT_DIR), name };
            // The kernel makes nothing of what these two stand for.
            let room = match want {
                Want::Names => listing.push(dirent),
                Want::Inodes => listing.push_plus(Entry::default(), dirent),
            };
            if room == Room::Full {
                return Ok(room);
            }
        }
        Ok(Room::Fits)
    }

    /// Moves entries from the page to the listing; says whether one did not fit, and whether the
    /// kernel was promised anything.
    fn push_page(&self, listing: &mut Listing, dir: Gfid, page: &mut Page, want: Want, fresh: Fresh) -> (Room, bool) {
        let mut promised = false;
        while let Some(entry) = page.entries.front() {
            let name = entry.name.as_bytes();
            let ino = convert::dirent_ino(entry.gfid, entry.cookie);
            let dirent = Dirent { ino, next: entry.cookie, kind: convert::dirent_type(entry.kind), name };
            let room = match want {
                Want::Names => listing.push(dirent),
                // A reference is counted only for what fits.
                Want::Inodes if listing.room_plus(name.len()) == Room::Full => Room::Full,
                Want::Inodes => {
                    let inode = self.listed_inode(dir, entry, page, fresh);
                    promised |= inode.entry_timeout != Duration::ZERO || inode.attr_timeout != Duration::ZERO;
                    listing.push_plus(inode, dirent)
                }
            };
            if room == Room::Full {
                return (room, promised);
            }
            page.after = entry.cookie;
            page.entries.pop_front();
        }
        (Room::Fits, promised)
    }

    /// What an entry stands for; the node number 0 gives the kernel the name only. So it is if the kernel believes in the
    /// entry anyway: told again, it would forget that a file has no access control list, and ask for it.
    fn listed_inode(&self, dir: Gfid, entry: &DirEntry, page: &Page, fresh: Fresh) -> Entry {
        let Some(found) = entry.found.as_deref().filter(|_| fresh == Fresh::Yes) else { return Entry::default() };
        let place = Place { parent: dir, name: entry.name.as_bytes() };
        if found.cover.contains(Cover::NAME | Cover::ATTRS) && self.cache.inodes.is_told(entry.gfid, place) {
            return Entry::default();
        }
        self.entry(place, Shown::from(found), page.asked, Digest::Compared)
    }
}
