//! From an [`Answer`] to the bytes that the kernel wants, without copying data.

use std::io::IoSlice;
use std::time::Duration;

use bytes::Bytes;
use rustix::io::Errno;
use zerocopy::IntoBytes;

use super::abi::{self, Attr, FileLock, OpenedFlags, StatfsOut};

/// What can be answered.
#[derive(Debug)]
pub(crate) enum Answer {
    /// It did not work.
    Errno(Errno),
    /// It worked, and there is nothing to say.
    Empty,
    /// An object under a name.
    Entry(Entry),
    /// There is no such name, and the kernel may remember that for so long.
    NoEntry(Duration),
    /// The attributes of an inode, and how long the kernel may keep them.
    Attr(Attr, Duration),
    /// An open file or directory.
    Opened(Opened),
    /// A new and open file.
    Created(Entry, Opened),
    /// The content of a file, a listing, a link, an xattr.
    Data(Bytes),
    /// So many bytes were written.
    Written(u32),
    /// So many bytes were copied, to a kernel that wants 64 bits.
    Copied(u64),
    /// The length of an xattr or of a list of names.
    XattrSize(u32),
    /// The volume's space.
    Statfs(StatfsOut),
    /// The lock that is in the way, or an unlocked one.
    Lock(FileLock),
    /// A position in a file.
    Position(u64),
}

impl From<Errno> for Answer {
    fn from(errno: Errno) -> Self {
        Self::Errno(errno)
    }
}

/// An object under a name, as the kernel shall know it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Entry {
    /// Our number for the inode; never used for another inode with the same generation.
    pub(crate) nodeid: u64,
    /// Tells inodes apart that had the same number one after the other.
    pub(crate) generation: u64,
    /// How long the kernel may believe the name.
    pub(crate) entry_timeout: Duration,
    /// How long the kernel may believe the attributes.
    pub(crate) attr_timeout: Duration,
    /// The attributes.
    pub(crate) attr: Attr,
}

impl From<Entry> for abi::EntryOut {
    fn from(entry: Entry) -> Self {
        Self {
            nodeid: entry.nodeid,
            generation: entry.generation,
            entry_valid: entry.entry_timeout.as_secs(),
            attr_valid: entry.attr_timeout.as_secs(),
            entry_valid_nsec: entry.entry_timeout.subsec_nanos(),
            attr_valid_nsec: entry.attr_timeout.subsec_nanos(),
            attr: entry.attr,
        }
    }
}

/// An open file, as the kernel shall know it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Opened {
    /// Our number for it.
    pub(crate) fh: u64,
    /// How to treat it.
    pub(crate) flags: OpenedFlags,
}

impl From<Opened> for abi::OpenOut {
    fn from(opened: Opened) -> Self {
        Self { fh: opened.fh, open_flags: opened.flags.bits(), backing_id: 0 }
    }
}

/// The longest fixed part of an answer: CREATE's.
const FIXED_BYTES_MAX: usize = size_of::<abi::OutHeader>() + size_of::<abi::EntryOut>() + size_of::<abi::OpenOut>();

/// An answer on its way: header and fixed part on the stack, data where it was.
#[derive(Debug)]
pub(crate) struct Encoded {
    fixed: [u8; FIXED_BYTES_MAX],
    fixed_len: usize,
    data: Bytes,
}

impl Encoded {
    /// Lays out the answer to the request `unique`.
    pub(crate) fn new(unique: u64, answer: Answer) -> Self {
        let mut encoded =
            Self { fixed: [0; FIXED_BYTES_MAX], fixed_len: size_of::<abi::OutHeader>(), data: Bytes::new() };
        let error = encoded.body(answer);
        let len = u32::try_from(encoded.fixed_len + encoded.data.len()).unwrap_or(u32::MAX);
        let header = abi::OutHeader { len, error, unique };
        encoded.fixed[..size_of::<abi::OutHeader>()].copy_from_slice(header.as_bytes());
        encoded
    }

    fn push(&mut self, part: &(impl IntoBytes + zerocopy::Immutable)) {
        let bytes = part.as_bytes();
        self.fixed[self.fixed_len..][..bytes.len()].copy_from_slice(bytes);
        self.fixed_len += bytes.len();
    }

    fn body(&mut self, answer: Answer) -> i32 {
        match answer {
            Answer::Errno(errno) => return -errno.raw_os_error(),
            Answer::Empty => {}
            Answer::Entry(entry) => self.push(&abi::EntryOut::from(entry)),
            Answer::NoEntry(entry_timeout) if entry_timeout.is_zero() => return -Errno::NOENT.raw_os_error(),
            Answer::NoEntry(entry_timeout) => {
                self.push(&abi::EntryOut::from(Entry { entry_timeout, ..Default::default() }));
            }
            Answer::Attr(attr, timeout) => self.push(&abi::AttrOut {
                attr_valid: timeout.as_secs(),
                attr_valid_nsec: timeout.subsec_nanos(),
                dummy: 0,
                attr,
            }),
            Answer::Opened(opened) => self.push(&abi::OpenOut::from(opened)),
            Answer::Created(entry, opened) => {
                self.push(&abi::EntryOut::from(entry));
                self.push(&abi::OpenOut::from(opened));
            }
            Answer::Data(data) => self.data = data,
            Answer::Written(size) => self.push(&abi::WriteOut { size, padding: 0 }),
            Answer::Copied(bytes_copied) => self.push(&abi::CopyFileRangeOut { bytes_copied }),
            Answer::XattrSize(size) => self.push(&abi::GetxattrOut { size, padding: 0 }),
            Answer::Statfs(statfs) => self.push(&statfs),
            Answer::Lock(lock) => self.push(&lock),
            Answer::Position(offset) => self.push(&abi::LseekOut { offset }),
        }
        0
    }

    /// What to write, in one call.
    pub(crate) fn slices(&self) -> [IoSlice<'_>; 2] {
        [IoSlice::new(&self.fixed[..self.fixed_len]), IoSlice::new(&self.data)]
    }

    /// How many bytes that is.
    pub(crate) fn len(&self) -> usize {
        self.fixed_len + self.data.len()
    }
}

/// Whether a name found its place in a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// It is in.
    Fits,
    /// It is not; the listing is complete as it is.
    Full,
}

/// A name in a directory listing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dirent<'a> {
    /// What the kernel shows as the inode number.
    pub(crate) ino: u64,
    /// Where the listing goes on after this name.
    pub(crate) next: u64,
    /// `DT_*`.
    pub(crate) kind: u32,
    /// The name.
    pub(crate) name: &'a [u8],
}

/// A directory listing in the making, as long as the kernel's buffer at most.
#[derive(Debug)]
pub(crate) struct Listing {
    bytes: Vec<u8>,
    size_max: usize,
}

impl Listing {
    /// An empty listing for a buffer of `size_max` bytes.
    pub(crate) fn new(size_max: u32) -> Self {
        // The kernel asks with a buffer of its own size whatever the directory holds.
        const FIRST_BYTES: usize = 4096;
        let size_max = size_max as usize;
        Self { bytes: Vec::with_capacity(size_max.min(FIRST_BYTES)), size_max }
    }

    /// Adds a name (READDIR).
    pub(crate) fn push(&mut self, dirent: Dirent<'_>) -> Room {
        self.push_parts(&[], dirent)
    }

    /// Adds a name and what it stands for (READDIRPLUS). With a `nodeid` of 0 the kernel takes
    /// the name only; else it counts a lookup.
    pub(crate) fn push_plus(&mut self, entry: Entry, dirent: Dirent<'_>) -> Room {
        self.push_parts(abi::EntryOut::from(entry).as_bytes(), dirent)
    }

    /// Whether a READDIRPLUS entry with a name of this length would fit.
    pub(crate) fn room_plus(&self, name_len: usize) -> Room {
        let end =
            self.bytes.len() + size_of::<abi::EntryOut>() + size_of::<abi::Dirent>() + name_len.next_multiple_of(8);
        if end <= self.size_max { Room::Fits } else { Room::Full }
    }

    fn push_parts(&mut self, before: &[u8], dirent: Dirent<'_>) -> Room {
        let start = self.bytes.len();
        let end = start + (before.len() + size_of::<abi::Dirent>() + dirent.name.len()).next_multiple_of(8);
        let Ok(namelen) = u32::try_from(dirent.name.len()) else {
            return Room::Full;
        };
        if end > self.size_max {
            return Room::Full;
        }
        let head = abi::Dirent { ino: dirent.ino, off: dirent.next, namelen, kind: dirent.kind };
        self.bytes.extend_from_slice(before);
        self.bytes.extend_from_slice(head.as_bytes());
        self.bytes.extend_from_slice(dirent.name);
        self.bytes.resize(end, 0);
        Room::Fits
    }

    /// Whether nothing has found its place yet.
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The listing as an answer.
    pub(crate) fn finish(self) -> Answer {
        Answer::Data(self.bytes.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_takes_names_until_the_next_would_not_fit() {
        let mut listing = Listing::new(24 + 8 + 24 + 16);
        assert_eq!(listing.push(Dirent { ino: 1, next: 1, kind: 4, name: b"a" }), Room::Fits);
        assert_eq!(listing.push(Dirent { ino: 2, next: 2, kind: 4, name: b"123456789" }), Room::Fits);
        assert_eq!(listing.push(Dirent { ino: 3, next: 3, kind: 4, name: b"b" }), Room::Full);
        let Answer::Data(bytes) = listing.finish() else { panic!("a listing is data") };
        assert_eq!(bytes.len(), 72);
        assert_eq!(&bytes[24..32], b"a\0\0\0\0\0\0\0");
    }

    #[test]
    fn an_error_is_a_header_only() {
        let encoded = Encoded::new(9, Answer::Errno(Errno::NOENT));
        assert_eq!(encoded.len(), 16);
        assert_eq!(&encoded.slices()[0][..8], [16u32.to_ne_bytes(), (-2i32).to_ne_bytes()].concat());
    }

    #[test]
    fn data_is_not_copied() {
        let data = Bytes::from_static(b"content");
        let encoded = Encoded::new(9, Answer::Data(data.clone()));
        assert_eq!(encoded.slices()[1].as_ptr(), data.as_ptr());
        assert_eq!(encoded.len(), 16 + 7);
    }
}
