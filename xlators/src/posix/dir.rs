//! Listings of directories, in the order of a hash of the name, the same on every copy.
//!
//! A listing is read whole when it begins, sorted, and kept until it ends, so that a page costs no more than its
//! entries. What is kept is bounded: a listing that was dropped is read again, and goes on where it was, since a cookie
//! depends on nothing but the name.

use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::sync::Arc;

use bytes::Bytes;
use lru::LruCache;
use parking_lot::Mutex;
use rustix::fs::{FileType, RawDir};
use rustix::io::Errno;
use xxhash_rust::xxh64::xxh64;

use super::at::{At, CName};
use super::dirs::{Dir, open_dir};
use super::entry::{gfid_at, is_hidden};
use super::store::{Store, kind_of};
use crate::ctx::Ctx;
use crate::error::Result;
use crate::fop::Readdir;
use crate::reply::{DirEntry, Entries};
use crate::types::{ClientId, Fd, Gfid, Kind, Name};

/// The most listings that are kept.
const LISTINGS_MAX: usize = 1024;

/// The most bytes of names that are kept.
const LISTINGS_BYTES_MAX: usize = 64 << 20;

/// What an entry counts in a page beside its name.
const ENTRY_BYTES: usize = 24;

/// A directory that is larger on disk is listed on a thread that may wait.
const LARGE_DIRECTORY_BYTES: i64 = 64 << 10;

/// The most bytes that a page may have, whatever was asked for.
const PAGE_BYTES_MAX: usize = 1 << 20;

/// Where a listing goes on after the entry of this name: a pure function of the name, of 63 bits, never 0.
pub(crate) fn cookie_of(name: &[u8]) -> u64 {
    (xxh64(name, 0) >> 1).max(1)
}

/// One name of a listing; `at` and `length` say where it is in the buffer of names.
#[derive(Clone, Copy, Debug)]
struct Row {
    cookie: u64,
    at: u32,
    length: u8,
    /// `None` where the file system did not say.
    kind: Option<Kind>,
}

/// Every name of a directory, in the order of (cookie, name).
#[derive(Debug)]
pub(super) struct Listing {
    names: Vec<u8>,
    rows: Vec<Row>,
}

impl Listing {
    fn name(&self, row: &Row) -> &[u8] {
        &self.names[row.at as usize..][..usize::from(row.length)]
    }

    fn bytes(&self) -> usize {
        self.names.len() + self.rows.len() * size_of::<Row>()
    }

    /// Read a directory.
    fn read(dir: &Dir) -> Result<Self, Errno> {
        // Not through the descriptor that everybody shares: a listing moves its position.
        let fd = open_dir(dir.fd.as_fd(), c".")?;
        let mut buffer = [MaybeUninit::<u8>::uninit(); 32 << 10];
        let mut entries = RawDir::new(fd, &mut buffer);
        let mut listing = Self { names: Vec::new(), rows: Vec::new() };
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            let length = u8::try_from(name.len()).ok().filter(|length| *length > 0);
            let at = u32::try_from(listing.names.len()).map_err(|_| Errno::FBIG)?;
            let Some(length) = length.filter(|_| name != b"." && name != b"..") else { continue };
            let kind = match entry.file_type() {
                FileType::Unknown => None,
                known => Some(kind_of(known.as_raw_mode())),
            };
            listing.names.extend_from_slice(name);
            listing.rows.push(Row { cookie: cookie_of(name), at, length, kind });
        }
        let names = &listing.names;
        let name = |row: &Row| &names[row.at as usize..][..usize::from(row.length)];
        listing.rows.sort_unstable_by(|a, b| a.cookie.cmp(&b.cookie).then_with(|| name(a).cmp(name(b))));
        Ok(listing)
    }
}

/// Whose listing, under which number, of which directory.
type Key = (ClientId, Option<u64>, Gfid);

#[derive(Debug)]
struct Kept {
    listings: LruCache<Key, Arc<Listing>>,
    bytes: usize,
}

/// The listings that are going on.
#[derive(Debug)]
pub(super) struct Listings(Mutex<Kept>);

impl Default for Listings {
    fn default() -> Self {
        Self(Mutex::new(Kept { listings: LruCache::unbounded(), bytes: 0 }))
    }
}

impl Listings {
    fn get(&self, key: &Key) -> Option<Arc<Listing>> {
        self.0.lock().listings.get(key).cloned()
    }

    fn put(&self, key: Key, listing: Arc<Listing>) {
        let kept = &mut *self.0.lock();
        kept.bytes += listing.bytes();
        if let Some(old) = kept.listings.put(key, listing) {
            kept.bytes -= old.bytes();
        }
        while kept.listings.len() > LISTINGS_MAX || (kept.bytes > LISTINGS_BYTES_MAX && kept.listings.len() > 1) {
            let Some((_, old)) = kept.listings.pop_lru() else { break };
            kept.bytes -= old.bytes();
        }
    }

    fn drop_one(&self, key: &Key) {
        let kept = &mut *self.0.lock();
        if let Some(old) = kept.listings.pop(key) {
            kept.bytes -= old.bytes();
        }
    }

    /// The listing under this number has ended.
    pub(super) fn end(&self, client: ClientId, fd: Fd) {
        self.drop_one(&(client, Some(fd.id), fd.gfid));
    }

    /// All listings of a client have ended.
    pub(super) fn client_gone(&self, client: ClientId) {
        let kept = &mut *self.0.lock();
        kept.listings.retain(|key, _| key.0 != client);
        kept.bytes = kept.listings.iter().map(|(_, listing)| listing.bytes()).sum();
    }
}

impl Store {
    /// Whether to list this takes long.
    pub(super) fn readdir_may_wait(&self, ctx: &Ctx, fop: &Readdir) -> bool {
        let key = (ctx.client, fop.fd.map(|fd| fd.id), fop.gfid);
        if fop.after != 0 && self.listings.get(&key).is_some() {
            return false;
        }
        let dir = self.dirs.cached(fop.gfid);
        dir.and_then(|dir| dir.at().stat().ok()).is_some_and(|stat| stat.st_size > LARGE_DIRECTORY_BYTES)
    }

    /// List a directory.
    pub(super) fn readdir(&self, ctx: &Ctx, fop: &Readdir) -> Result<Entries> {
        let dir = self.dir(fop.gfid)?;
        let key = (ctx.client, fop.fd.map(|fd| fd.id), fop.gfid);
        let kept = if fop.after == 0 { None } else { self.listings.get(&key) };
        let was_kept = kept.is_some();
        let listing = kept.map_or_else(|| Listing::read(&dir).map(Arc::new), Ok)?;
        let mut rest = listing.rows.partition_point(|row| row.cookie <= fop.after);
        let mut room = usize::try_from(fop.bytes_max).unwrap_or(usize::MAX).min(PAGE_BYTES_MAX);
        let mut entries = Vec::new();
        let mut previous = 0;
        while let Some(row) = listing.rows.get(rest) {
            let name = listing.name(row);
            let bytes = ENTRY_BYTES + name.len();
            // Equal cookies must stay on one page, or the next one would begin after all of them.
            if bytes > room && !entries.is_empty() && row.cookie != previous {
                break;
            }
            rest += 1;
            if is_hidden(ctx, fop.gfid, name) {
                continue;
            }
            if let Some(entry) = self.entry(&dir, row, name, fop)? {
                room = room.saturating_sub(bytes);
                previous = row.cookie;
                entries.push(entry);
            }
        }
        let end = rest == listing.rows.len();
        if end {
            self.listings.drop_one(&key);
        } else if !was_kept {
            self.listings.put(key, listing);
        }
        Ok(Entries { entries, end })
    }

    /// One entry; `None` where the name has gone since, or never was one of ours.
    fn entry(&self, dir: &Dir, row: &Row, bytes: &[u8], fop: &Readdir) -> Result<Option<DirEntry>, Errno> {
        let name = Name::new(Bytes::copy_from_slice(bytes))?;
        let null = Gfid::from_bytes([0; 16]);
        if let Some(kind) = row.kind.filter(|_| !fop.attrs) {
            return Ok(Some(DirEntry { name, kind, gfid: null, cookie: row.cookie, found: None }));
        }
        let path = CName::new(&name);
        let at = At::Name(dir.fd.as_fd(), path.as_cstr());
        let found = at.stat().and_then(|stat| {
            if !fop.attrs {
                return Ok((kind_of(stat.st_mode), null, None));
            }
            let gfid = gfid_at(at)?.ok_or(Errno::NODATA)?;
            let found = self.found(gfid, at, &stat)?;
            Ok((found.iatt.kind, gfid, Some(found)))
        });
        match found {
            Ok((kind, gfid, found)) => Ok(Some(DirEntry { name, kind, gfid, cookie: row.cookie, found })),
            Err(Errno::NOENT) => Ok(None),
            Err(errno @ (Errno::NODATA | Errno::IO)) => {
                tracing::warn!(parent = %dir.gfid, ?name, %errno, "entry without a gfid left out");
                Ok(None)
            }
            Err(errno) => Err(errno),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookies_depend_on_the_name_only() {
        assert_eq!(cookie_of(b"x"), xxh64(b"x", 0) >> 1);
        assert!(cookie_of(b"any") > 0 && cookie_of(b"any") < 1 << 63);
    }
}
