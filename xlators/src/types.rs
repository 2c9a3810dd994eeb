//! The nouns: gfids, names, attributes, times, open files, leases.
//!
//! A number that means something has a newtype here; a name is checked once, where it enters.

use std::fmt;
use std::str::FromStr;

use bitflags::bitflags;
use bytes::Bytes;
use uuid::Uuid;

use crate::error::Errno;

/// The largest payload of one read or write: the mount, the codec limits and posix all use this.
pub const MAX_IO_BYTES: usize = 1 << 20;

/// The longest name, as in every Linux file system.
pub const NAME_BYTES_MAX: usize = 255;

/// The longest target of a symbolic link, without its NUL.
pub const SYMLINK_BYTES_MAX: usize = 4095;

/// The longest value of an extended attribute, as the kernel has it.
pub const XATTR_VALUE_BYTES_MAX: usize = 65_536;

/// The identity of a file, directory or other inode, in the whole volume and for ever.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Gfid([u8; 16]);

impl Gfid {
    /// The root of every volume.
    pub const ROOT: Self = Self([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);

    /// A gfid from its 16 bytes.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// A gfid from a slice of exactly 16 bytes.
    pub fn from_slice(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    /// A new gfid from 16 random bytes (a version 4 UUID).
    pub fn from_random(bytes: [u8; 16]) -> Self {
        Self(*uuid::Builder::from_random_bytes(bytes).into_uuid().as_bytes())
    }

    /// The 16 bytes.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// All zero: no identity at all.
    pub fn is_null(&self) -> bool {
        self.0 == [0; 16]
    }

    /// The inode number that clients see: the last eight bytes, big-endian.
    pub fn ino(&self) -> u64 {
        let mut low = [0; 8];
        low.copy_from_slice(&self.0[8..]);
        u64::from_be_bytes(low)
    }
}

impl fmt::Display for Gfid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Uuid::from_bytes(self.0).hyphenated().fmt(f)
    }
}

impl fmt::Debug for Gfid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Gfid {
    type Err = Errno;

    /// Only the canonical text: 36 characters, lower case, with dashes.
    fn from_str(text: &str) -> Result<Self, Errno> {
        let gfid = Uuid::try_parse(text).map(|uuid| Self(*uuid.as_bytes())).map_err(|_| Errno::INVAL)?;
        if text.len() == 36 && !text.bytes().any(|b| b.is_ascii_uppercase()) { Ok(gfid) } else { Err(Errno::INVAL) }
    }
}

/// One running client library, told apart from every other and from its own earlier life.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct ClientId(pub u128);

/// The name of an entry in a directory: any bytes but `/` and NUL, neither `.` nor `..`, 1 to 255 of them.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(Bytes);

impl Name {
    /// Check a name where it enters. `ENAMETOOLONG` beyond 255 bytes, else `EINVAL` for what can be no entry.
    pub fn new(bytes: impl Into<Bytes>) -> Result<Self, Errno> {
        let bytes = bytes.into();
        if bytes.len() > NAME_BYTES_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        let special = matches!(&bytes[..], b"" | b"." | b"..");
        if special || bytes.iter().any(|b| matches!(b, b'/' | 0)) { Err(Errno::INVAL) } else { Ok(Self(bytes)) }
    }

    /// The bytes, without a NUL.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The bytes by reference count.
    pub fn to_bytes(&self) -> Bytes {
        self.0.clone()
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

/// The name of an extended attribute: 1 to 255 bytes without NUL.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct XattrName(Bytes);

impl XattrName {
    /// Check a name where it enters. `ERANGE` for an empty or too long one, as the kernel has it.
    pub fn new(bytes: impl Into<Bytes>) -> Result<Self, Errno> {
        let bytes = bytes.into();
        let length_ok = (1..=NAME_BYTES_MAX).contains(&bytes.len());
        if !length_ok {
            return Err(Errno::RANGE);
        }
        if bytes.contains(&0) { Err(Errno::INVAL) } else { Ok(Self(bytes)) }
    }

    /// The bytes, without a NUL.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The bytes by reference count.
    pub fn to_bytes(&self) -> Bytes {
        self.0.clone()
    }
}

impl fmt::Debug for XattrName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.escape_ascii())
    }
}

/// A point in time: seconds since 1970, also before it, and nanoseconds in `0..1_000_000_000`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time {
    /// Seconds.
    pub sec: i64,
    /// Nanoseconds after `sec`.
    pub nsec: u32,
}

/// What kind of inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link.
    Symlink,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character device.
    Char,
    /// A block device.
    Block,
}

/// The attributes of an inode, as clients see them: without the handle's link, times from `mdata`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Iatt {
    /// Its identity.
    pub gfid: Gfid,
    /// Its kind.
    pub kind: Kind,
    /// Permission bits, `0o7777` at most.
    pub mode: u32,
    /// Names it has; for a directory as the brick's file system counts.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number, of `Char` and `Block`, in Linux's `dev_t` coding.
    pub rdev: u64,
    /// Bytes.
    pub size: u64,
    /// Allocated units of 512 bytes.
    pub blocks: u64,
    /// Access time.
    pub atime: Time,
    /// Modification time.
    pub mtime: Time,
    /// Change time.
    pub ctime: Time,
    /// Xattrs that it is known not to have.
    pub lacks: Lacks,
}

bitflags! {
    /// Fields of [`Iatt`] that can be asked for exactly, or be exact in an answer.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct AttrMask: u32 {
        /// Size.
        const SIZE = 1;
        /// Blocks.
        const BLOCKS = 2;
        /// Modification time.
        const MTIME = 4;
        /// Change time.
        const CTIME = 8;
        /// Access time.
        const ATIME = 16;
        /// Mode, owner, group, link count, kind: what a brick always knows exactly.
        const IDENTITY = 32;
    }

    /// What of an answer is covered by leases of this client, so that it stays true until they are recalled.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct Cover: u32 {
        /// That this name leads to this inode (or to none).
        const NAME = 1;
        /// The inode's attributes.
        const ATTRS = 2;
        /// That nobody else sees or changes the inode: who made it may keep its changes back until a recall.
        const OWNED = 4;
    }

    /// Xattrs that an inode is known not to have, so that nobody needs to ask for them. A bit that is missing says nothing.
    ///
    /// It is part of the attributes: true as long as they are.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct Lacks: u32 {
        /// No ACL beyond its mode.
        const ACL = 1;
        /// No ACL that new entries inherit.
        const DEFAULT_ACL = 2;
        /// No `security.capability`.
        const CAPABILITY = 4;
        /// Nothing at all that a program can see.
        const XATTRS = 8;
    }

    /// How a file is opened; the bits that matter to a brick.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct OpenFlags: u32 {
        /// May be read.
        const READ = 1;
        /// May be written.
        const WRITE = 2;
        /// Every write goes to the end.
        const APPEND = 4;
        /// Cut to nothing on opening.
        const TRUNCATE = 8;
        /// Each write is durable with its data before it is answered (`O_DSYNC`, `O_SYNC`).
        const SYNC = 16;
        /// Around the page cache of the brick (`O_DIRECT`).
        const DIRECT = 32;
        /// With `Create`: fail if the name exists.
        const EXCLUSIVE = 64;
    }
}

/// An open file: a number the opener chose, and what is open. A brick that lost the number still serves by gfid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fd {
    /// Unique among the open files of one client.
    pub id: u64,
    /// The inode that is open.
    pub gfid: Gfid,
}

/// How a lease is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LeaseMode {
    /// Many may hold it; none changes the object.
    Shared,
    /// One holds it, and may change the object.
    Exclusive,
}

/// Which of the two families of advisory locks, which do not see one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LockFamily {
    /// fcntl(2): ranges, of a process or of an open file.
    Posix,
    /// flock(2): the whole file, of an open file.
    Flock,
}

/// Who holds an advisory lock, or wants it: a process or an open file of one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LockOwner {
    /// Which family the lock is of.
    pub family: LockFamily,
    /// The number that the client's kernel has for the owner.
    pub id: u64,
}

/// The number under which a brick granted a lease; a later grant of the same object has a higher one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Epoch(pub u64);

/// The 16 bytes of `trusted.glusterfs.dht` on a directory; `distribute/layout.rs` knows what they mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawLayout(pub [u8; 16]);

/// Which pending counter a change belongs to; the order is the order on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// Content of a file (index 0). On a directory: needs a full crawl.
    Data,
    /// Attributes and xattrs (index 1).
    Metadata,
    /// Names in a directory (index 2).
    Entry,
}

/// Pending counters of one object against one copy: data, metadata, entry. Only zero or not zero decides anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Counters(pub [i32; 3]);

impl Counters {
    /// Nothing is pending.
    pub fn is_zero(self) -> bool {
        self == Self::default()
    }
}

/// One `trusted.afr.*` xattr: its name, and its counters or the change to them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    /// `trusted.afr.<brick id>` or `trusted.afr.dirty`.
    pub key: XattrName,
    /// The counters.
    pub counters: Counters,
}

/// An extended attribute with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Xattr {
    /// Its name.
    pub name: XattrName,
    /// Its value.
    pub value: Bytes,
}
