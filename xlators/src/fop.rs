//! The table of operations, and a struct per fop.
//!
//! A fop is a plain value. A fop whose target is an inode serves an open file as well. New gfids and times are chosen
//! by the client, so all copies get the same.

mod copies;

use bytes::Bytes;

use crate::reply::{
    Changed, Data, Done, Entries, Found, Granted, Lockable, Looked, Made, Marked, Removed, Renamed, Sought, Space,
    Target as LinkTarget, Value, Waiting, Written, XattrNames,
};
use crate::types::{AttrMask, Fd, Gfid, Kind, Name, OpenFlags, Pending, RawLayout, Time, Xattr, XattrName};

pub use crate::lk::{Claim, Lk, LkWhat};

pub use copies::{Backlog, LEASE_OBJECTS_MAX, Lease, Mark, Settle, Settled, Unlease};

/// A fop that has an answer of its own type.
pub trait Operation: Into<Fop> + Send {
    /// The answer.
    type Reply;
    /// Which row of the table.
    const KIND: FopKind;
    /// Wrap the answer.
    fn reply(answer: Self::Reply) -> Reply;
    /// Unwrap the answer; `None` when it belongs to another fop.
    fn from_reply(reply: Reply) -> Option<Self::Reply>;
}

macro_rules! fops {
    ($($(#[$doc:meta])* $fop:ident -> $reply:ty,)*) => {
        /// One operation on a volume.
        #[derive(Clone, Debug)]
        pub enum Fop { $($(#[$doc])* $fop($fop),)* }

        /// The answer to the fop of the same name.
        #[derive(Clone, Debug)]
        pub enum Reply { $($(#[$doc])* $fop($reply),)* }

        /// Which fop, without its arguments: what counters and logs are keyed by.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum FopKind { $($(#[$doc])* $fop,)* }

        impl FopKind {
            /// Every row of the table, in order.
            pub const ALL: &[Self] = &[$(Self::$fop,)*];

            /// The name of the row.
            pub fn name(self) -> &'static str {
                match self { $(Self::$fop => stringify!($fop),)* }
            }
        }

        impl Fop {
            /// Which row of the table.
            pub fn kind(&self) -> FopKind {
                match self { $(Self::$fop(_) => FopKind::$fop,)* }
            }
        }

        $(
            impl From<$fop> for Fop {
                fn from(fop: $fop) -> Self { Self::$fop(fop) }
            }

            impl Operation for $fop {
                type Reply = $reply;
                const KIND: FopKind = FopKind::$fop;
                fn reply(answer: Self::Reply) -> Reply { Reply::$fop(answer) }
                fn from_reply(reply: Reply) -> Option<Self::Reply> {
                    if let Reply::$fop(answer) = reply { Some(answer) } else { None }
                }
            }
        )*
    };
}

fops! {
    /// Find a child of a directory by name.
    Lookup -> Looked,
    /// Read the attributes of an inode.
    Getattr -> Found,
    /// Make a regular file, with its attributes, times and (if small) its content in one step; open it if asked.
    Create -> Made,
    /// Make a special file, or a link file that points to another subvolume.
    Mknod -> Made,
    /// Make a directory.
    Mkdir -> Made,
    /// Make a symbolic link.
    Symlink -> Made,
    /// Give an inode another name.
    Link -> Made,
    /// Remove a name that is not a directory's.
    Unlink -> Removed,
    /// Remove an empty directory.
    Rmdir -> Removed,
    /// Move a name.
    Rename -> Renamed,
    /// Read the text of a symbolic link.
    Readlink -> LinkTarget,
    /// Change mode, owner or times.
    Setattr -> Changed,
    /// Change the size.
    Truncate -> Changed,
    /// Reserve space, punch a hole, or zero a range.
    Fallocate -> Changed,
    /// Open a file under the number that the opener chose.
    Open -> Done,
    /// Close it.
    Release -> Done,
    /// Read from a file.
    Read -> Data,
    /// Write to a file.
    Write -> Written,
    /// Copy a range between two files of one brick.
    CopyRange -> Written,
    /// Find the next data or hole.
    Seek -> Sought,
    /// Hand over what layers above the bricks have kept back of a file's changes.
    Flush -> Done,
    /// Make an inode durable.
    Fsync -> Done,
    /// List a directory.
    Readdir -> Entries,
    /// Read an extended attribute.
    Getxattr -> Value,
    /// Set an extended attribute.
    Setxattr -> Changed,
    /// Remove an extended attribute.
    Removexattr -> Changed,
    /// List the names of extended attributes.
    Listxattr -> XattrNames,
    /// How much space there is.
    Statfs -> Space,
    /// Ask for leases.
    Lease -> Granted,
    /// Give leases back.
    Unlease -> Done,
    /// Say that every copy has the changes made under leases.
    Settle -> Done,
    /// Add to pending counters (the xattrop of GlusterFS).
    Mark -> Marked,
    /// How much waits to be healed.
    Backlog -> Waiting,
    /// Lock, unlock or test a range of a file for a program: fcntl(2), flock(2).
    Lk -> Lockable,
}

/// Find a child of a directory by name.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Lookup {
    pub parent: Gfid,
    pub name: Name,
}

/// Read the attributes of an inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Getattr {
    /// The inode.
    pub gfid: Gfid,
    /// Through an open file, which may have lost its last name.
    pub fd: Option<Fd>,
    /// The fields that must be exact.
    pub exact: AttrMask,
}

/// What every new inode gets, the same on all copies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Birth {
    /// Its identity.
    pub gfid: Gfid,
    /// Permission bits as the program asked.
    pub mode: u32,
    /// The program's umask: ignored where the parent has a default ACL, as the kernel does.
    pub umask: u32,
    /// Owner.
    pub uid: u32,
    /// Group; a set-group-id parent overrules it.
    pub gid: u32,
    /// When it happens: its times unless `times` says otherwise, and the parent's mtime and ctime.
    pub when: Time,
    /// Access and modification time, where they are known already (tar, rsync, heal).
    pub times: Option<(Time, Time)>,
    /// Extended attributes from the start.
    pub xattrs: Vec<Xattr>,
    /// `trusted.afr.*` marks against copies that miss this object.
    pub pending: Vec<Pending>,
}

/// Make a regular file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Create {
    /// The directory.
    pub parent: Gfid,
    /// The name; `EEXIST` if it is taken.
    pub name: Name,
    /// What it is born with.
    pub birth: Box<Birth>,
    /// Its first bytes; at most `MAX_IO_BYTES`.
    pub content: Bytes,
    /// Open it under this number.
    pub open: Option<(u64, OpenFlags)>,
    /// Also grant the maker an exclusive lease on it.
    pub lease: bool,
}

/// Make a special file or a link file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mknod {
    /// The directory.
    pub parent: Gfid,
    /// The name; `EEXIST` if it is taken.
    pub name: Name,
    /// What it is born with.
    pub birth: Box<Birth>,
    /// `File`, `Fifo`, `Socket`, `Char` or `Block`.
    pub kind: Kind,
    /// Device number of `Char` and `Block`.
    pub rdev: u64,
    /// Makes a link file: an empty regular file, mode 01000, with this `linkto` (no NUL).
    pub linkto: Option<Bytes>,
}

/// Make a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mkdir {
    /// The directory it is made in.
    pub parent: Gfid,
    /// The name; `EEXIST` if it is taken.
    pub name: Name,
    /// What it is born with.
    pub birth: Box<Birth>,
    /// `trusted.glusterfs.dht` on this subvolume.
    pub layout: Option<RawLayout>,
    /// This subvolume is the authority for the directory's attributes (`trusted.glusterfs.dht.mds` = 0).
    pub mds: bool,
    /// Also grant the maker an exclusive lease on it.
    pub lease: bool,
}

/// Make a symbolic link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Symlink {
    /// The directory.
    pub parent: Gfid,
    /// The name; `EEXIST` if it is taken.
    pub name: Name,
    /// What it is born with; mode and umask do not matter.
    pub birth: Box<Birth>,
    /// The text.
    pub target: Bytes,
}

/// Give an inode another name.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Link {
    pub gfid: Gfid,
    pub parent: Gfid,
    pub name: Name,
    pub when: Time,
}

/// Which inode a removal is meant for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Only {
    /// Whatever has the name.
    Any,
    /// This inode, else `ESTALE`: the name may have been taken over by another.
    Gfid(Gfid),
    /// A link file of this inode, else `EBUSY`.
    LinkFile(Gfid),
    /// Anything but a link file, else `EBUSY`: its content must go first.
    Content,
    /// Both: this inode, else `ESTALE`, and no link file, else `EBUSY`.
    ContentOf(Gfid),
}

/// Remove a name that is not a directory's.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Unlink {
    pub parent: Gfid,
    pub name: Name,
    pub only: Only,
    pub when: Time,
}

/// Remove an empty directory.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Rmdir {
    pub parent: Gfid,
    pub name: Name,
    pub when: Time,
}

/// What a rename does with an existing destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replace {
    /// Takes its place.
    Yes,
    /// `EEXIST` (`RENAME_NOREPLACE`).
    No,
    /// The two change places (`RENAME_EXCHANGE`).
    Exchange,
}

/// Move a name.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Rename {
    pub from_parent: Gfid,
    pub from_name: Name,
    pub to_parent: Gfid,
    pub to_name: Name,
    pub replace: Replace,
    pub when: Time,
}

/// Read the text of a symbolic link.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Readlink {
    pub gfid: Gfid,
}

/// Change mode, owner or times; what is `None` stays.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Setattr {
    pub gfid: Gfid,
    pub fd: Option<Fd>,
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub atime: Option<Time>,
    pub mtime: Option<Time>,
    /// Clear set-user-id, and set-group-id where the group may execute.
    pub kill_priv: bool,
    /// Becomes the ctime.
    pub when: Time,
}

/// Change the size.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Truncate {
    pub gfid: Gfid,
    pub fd: Option<Fd>,
    pub size: u64,
    /// Clear set-user-id, and set-group-id where the group may execute.
    pub kill_priv: bool,
    pub when: Time,
}

/// What to do with a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocate {
    /// Reserve it; the file grows if need be.
    Reserve,
    /// Reserve it; the size stays.
    ReserveKeepSize,
    /// Make it a hole; the size stays.
    Punch,
    /// Make it zeros; the file grows if need be.
    Zero,
    /// Make it zeros; the size stays.
    ZeroKeepSize,
}

/// Reserve space, punch a hole, or zero a range.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Fallocate {
    pub gfid: Gfid,
    pub fd: Option<Fd>,
    pub how: Allocate,
    pub offset: u64,
    pub length: u64,
    pub when: Time,
}

/// Open a file under the number that the opener chose.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Open {
    pub fd: Fd,
    pub flags: OpenFlags,
    /// Becomes mtime and ctime when the open truncates.
    pub when: Time,
}

/// Close it. Also ends a listing that `Readdir` began under this number.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Release {
    pub fd: Fd,
}

/// Read from a file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Read {
    pub gfid: Gfid,
    pub fd: Option<Fd>,
    pub offset: u64,
    /// At most `MAX_IO_BYTES`.
    pub size: u32,
}

/// Where a write goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// To this offset.
    At(u64),
    /// To the end, found by the brick in the same step.
    End,
}

/// Write to a file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Write {
    pub gfid: Gfid,
    pub fd: Option<Fd>,
    pub place: Place,
    /// At most `MAX_IO_BYTES`.
    pub data: Bytes,
    /// Durable before it is answered.
    pub sync: bool,
    /// Clear set-user-id, and set-group-id where the group may execute.
    pub kill_priv: bool,
    pub when: Time,
    /// Attributes of the same inode that are to be changed after that, in the same step.
    pub then: Option<Box<Setattr>>,
}

/// Copy a range between two files of one brick.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct CopyRange {
    pub from: Gfid,
    pub from_fd: Option<Fd>,
    pub from_offset: u64,
    pub to: Gfid,
    pub to_fd: Option<Fd>,
    pub to_offset: u64,
    pub length: u64,
    pub when: Time,
}

/// What to look for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum SeekTo {
    Data,
    Hole,
}

/// Find the next data or hole.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Seek {
    pub gfid: Gfid,
    pub fd: Option<Fd>,
    pub offset: u64,
    pub to: SeekTo,
}

/// Hand over what layers above the bricks have kept back of a file's changes, and hear what became of it: what a program
/// does when it closes a file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Flush {
    pub gfid: Gfid,
}

/// Make an inode durable; a directory too.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Fsync {
    pub gfid: Gfid,
    pub fd: Option<Fd>,
    /// Only the data and what is needed to find it.
    pub data_only: bool,
}

/// List a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Readdir {
    /// The directory.
    pub gfid: Gfid,
    /// The listing this page belongs to: a brick may keep a snapshot under it until `Release`.
    pub fd: Option<Fd>,
    /// Go on after the entry with this cookie; 0 starts anew.
    pub after: u64,
    /// About how many bytes of names the page should have, counting 24 per entry beside its name.
    pub bytes_max: u32,
    /// With gfids and attributes.
    pub attrs: bool,
}

/// Read an extended attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Getxattr {
    pub gfid: Gfid,
    pub name: XattrName,
}

/// Whether the attribute must or must not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetHow {
    /// Either.
    Any,
    /// Must not: `EEXIST`.
    Create,
    /// Must: `ENODATA`.
    Replace,
}

/// Set an extended attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Setxattr {
    pub gfid: Gfid,
    pub xattr: Xattr,
    pub how: SetHow,
    /// Clear set-group-id along with an access ACL, as the kernel asks.
    pub kill_sgid: bool,
    pub when: Time,
}

/// Remove an extended attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Removexattr {
    pub gfid: Gfid,
    pub name: XattrName,
    pub when: Time,
}

/// List the names of extended attributes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Listxattr {
    pub gfid: Gfid,
}

/// How much space there is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statfs;
