//! A struct per answer.

use bytes::Bytes;

use crate::error::Errno;
use crate::ranges::Locked;
use crate::types::{AttrMask, Cover, Epoch, Gfid, Iatt, Kind, Name, Pending, RawLayout, XattrName};

pub use crate::fop::Reply;

/// An inode that was found: its attributes, and what the layers on the way need to know of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its attributes.
    pub iatt: Iatt,
    /// Which of them are exact.
    pub exact: AttrMask,
    /// What stays true until a recall. Bricks say nothing here; replicate does.
    pub cover: Cover,
    /// `trusted.glusterfs.dht` of a directory.
    pub layout: Option<RawLayout>,
    /// `trusted.glusterfs.dht.linkto` of a link file, without its NUL.
    pub linkto: Option<Bytes>,
    /// The `trusted.afr.*` xattrs that are not zero. Empty for a healthy object; costs the brick nothing to know.
    pub marks: Vec<Pending>,
}

/// Answer to `Lookup`. An absent name is an answer, not an error: it too can be covered by a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Looked {
    /// What the name leads to.
    pub found: Option<Box<Found>>,
    /// Of an absent name: stays absent until a recall.
    pub cover: Cover,
}

/// Answer to what makes a name: the inode, and the directory after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Made {
    /// The inode.
    pub iatt: Iatt,
    /// The directory it is in now.
    pub parent: Iatt,
    /// What stays true until a recall.
    pub cover: Cover,
    /// Of `Create`: the brick granted its maker an exclusive lease on the new object, under this number.
    pub lease: Option<Epoch>,
}

/// Answer to what removes a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removed {
    /// The inode after it lost the name; `nlink` 0 when that was the last.
    pub iatt: Iatt,
    /// The directory it was in.
    pub parent: Iatt,
}

/// Answer to `Rename`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Renamed {
    /// What moved.
    pub iatt: Iatt,
    /// What was at the new name before: gone (`nlink` less), or moved to the old name by an exchange.
    pub replaced: Option<Iatt>,
    /// The directory it left.
    pub from_parent: Iatt,
    /// The directory it is in now.
    pub to_parent: Iatt,
}

/// Answer to what changes an inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changed {
    /// The inode afterwards.
    pub iatt: Iatt,
    /// What stays true until a recall.
    pub cover: Cover,
}

/// Answer to `Readlink`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The text of the link.
    pub target: Bytes,
}

/// Answer to `Read`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Data {
    /// The bytes; fewer than asked only at the end of the file.
    pub data: Bytes,
}

/// Answer to `Write` and `CopyRange`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// Where the data went: what was asked, or the end for an append.
    pub offset: u64,
    /// How many bytes.
    pub bytes: u32,
    /// The inode afterwards.
    pub iatt: Iatt,
    /// What stays true until a recall.
    pub cover: Cover,
}

/// Answer to `Seek`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sought {
    /// Where data, or a hole, begins.
    pub offset: u64,
}

/// One entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// Its name.
    pub name: Name,
    /// Its kind.
    pub kind: Kind,
    /// Its identity; null when the listing was of names only and the brick did not have to look.
    pub gfid: Gfid,
    /// Goes on after this entry. A pure function of the name, so the same on every copy; never 0.
    pub cookie: u64,
    /// Its inode, when asked for.
    pub found: Option<Box<Found>>,
}

/// Answer to `Readdir`, in order of cookies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entries {
    /// The page.
    pub entries: Vec<DirEntry>,
    /// Nothing follows.
    pub end: bool,
}

/// Answer to `Getxattr`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// The value.
    pub value: Bytes,
}

/// Answer to `Listxattr`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XattrNames {
    /// The names, internal ones left out.
    pub names: Vec<XattrName>,
}

/// Answer to `Statfs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Bytes per unit of the block counts.
    pub block_bytes: u64,
    /// All blocks.
    pub blocks: u64,
    /// Free ones.
    pub blocks_free: u64,
    /// Free ones for others than root.
    pub blocks_available: u64,
    /// All inodes.
    pub files: u64,
    /// Free ones.
    pub files_free: u64,
}

/// Answer to what has nothing to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done;

/// What a brick says to one asked-for lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The object.
    pub gfid: Gfid,
    /// The number of the grant, or why there is none: `EAGAIN` somebody else holds it (and was recalled), `ENOENT`
    /// no such object here.
    pub epoch: std::result::Result<Epoch, Errno>,
    /// A holder that died or was fenced left changes here that not every copy may have.
    pub unsettled: bool,
    /// The object lost its last name here, so that it need not be there any more when it is used.
    pub nameless: bool,
    /// The `trusted.afr.*` xattrs that are not zero.
    pub marks: Vec<Pending>,
    /// The object as it is, when asked for.
    pub found: Option<Box<Found>>,
}

/// Answer to `Lease`, in the order asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Granted {
    /// One for each object.
    pub grants: Vec<Grant>,
}

/// Answer to `Mark`: the counters afterwards, in the order asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marked {
    /// Every key that was asked for, with its counters now.
    pub marks: Vec<Pending>,
}

/// Answer to `Backlog`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Objects with pending marks against other copies.
    pub pending: u64,
    /// Objects with changes that may not have reached every copy.
    pub dirty: u64,
}

/// Answer to `Lk`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lockable {
    /// It is done; or, of a question, nobody is in the way.
    Free,
    /// This lock is in the way.
    Held {
        /// The first of those in the way, by its place in the file.
        by: Locked,
        /// The process that took it, as its client numbers it.
        pid: i32,
    },
    /// The brick forgot its locks and waits for their holders.
    Grace,
    /// The brick has not forgotten, or gives locks to others already: what was held may have been somebody else's.
    Late,
}
