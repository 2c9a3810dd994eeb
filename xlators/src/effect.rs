//! The questions that every layer asks of a fop: what does it change, where does it belong, which leases does it need?
//!
//! Invariant: `effect` and `target` name every fop; a new one does not compile until someone has decided.

use smallvec::{SmallVec, smallvec};

use crate::fop::Fop;
use crate::types::{Class, Gfid, LeaseMode, Name, OpenFlags};

/// What a fop changes. Decides leases, quorum, and which copies may answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing; one clean copy may answer.
    Read,
    /// Nothing on disk that copies share, and yet every copy must hear it.
    Session,
    /// An inode.
    Inode {
        /// Which.
        gfid: Gfid,
        /// Which counter blames a copy that missed it.
        class: Class,
    },
    /// Names in one directory, or in two.
    Entry {
        /// The directory.
        parent: Gfid,
        /// The second directory of a rename, if it is another.
        other: Option<Gfid>,
    },
}

impl Effect {
    /// Something on disk.
    pub fn changes_disk(&self) -> bool {
        matches!(self, Self::Inode { .. } | Self::Entry { .. })
    }
}

/// Where a fop belongs. Decides which subvolume serves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target<'a> {
    /// This inode.
    Inode(Gfid),
    /// This name in this directory.
    Entry(Gfid, &'a Name),
    /// The whole subvolume.
    Volume,
}

/// The leases that a fop must run under.
pub type Needs = SmallVec<[(Gfid, LeaseMode); 2]>;

#[deny(clippy::wildcard_enum_match_arm)]
impl Fop {
    /// What the fop changes.
    pub fn effect(&self) -> Effect {
        let inode = |gfid, class| Effect::Inode { gfid, class };
        let entry = |parent| Effect::Entry { parent, other: None };
        match self {
            Self::Lookup(_) | Self::Getattr(_) | Self::Readlink(_) | Self::Read(_) | Self::Seek(_) => Effect::Read,
            Self::Readdir(_) | Self::Getxattr(_) | Self::Listxattr(_) | Self::Statfs(_) => Effect::Read,
            Self::Backlog(_) => Effect::Read,
            Self::Open(f) if f.flags.contains(OpenFlags::TRUNCATE) => inode(f.fd.gfid, Class::Data),
            Self::Open(_) | Self::Release(_) | Self::Flush(_) | Self::Fsync(_) => Effect::Session,
            Self::Lease(_) | Self::Unlease(_) | Self::Settle(_) | Self::Mark(_) | Self::Lk(_) => Effect::Session,
            Self::Create(f) => entry(f.parent),
            Self::Mknod(f) => entry(f.parent),
            Self::Mkdir(f) => entry(f.parent),
            Self::Symlink(f) => entry(f.parent),
            Self::Link(f) => entry(f.parent),
            Self::Unlink(f) => entry(f.parent),
            Self::Rmdir(f) => entry(f.parent),
            Self::Rename(f) => {
                let other = (f.to_parent != f.from_parent).then_some(f.to_parent);
                Effect::Entry { parent: f.from_parent, other }
            }
            Self::Setattr(f) => inode(f.gfid, Class::Metadata),
            Self::Setxattr(f) => inode(f.gfid, Class::Metadata),
            Self::Removexattr(f) => inode(f.gfid, Class::Metadata),
            Self::Truncate(f) => inode(f.gfid, Class::Data),
            Self::Fallocate(f) => inode(f.gfid, Class::Data),
            Self::Write(f) => inode(f.gfid, Class::Data),
            Self::CopyRange(f) => inode(f.to, Class::Data),
        }
    }

    /// Where the fop belongs.
    pub fn target(&self) -> Target<'_> {
        match self {
            Self::Lookup(f) => Target::Entry(f.parent, &f.name),
            Self::Create(f) => Target::Entry(f.parent, &f.name),
            Self::Mknod(f) => Target::Entry(f.parent, &f.name),
            Self::Mkdir(f) => Target::Entry(f.parent, &f.name),
            Self::Symlink(f) => Target::Entry(f.parent, &f.name),
            Self::Link(f) => Target::Entry(f.parent, &f.name),
            Self::Unlink(f) => Target::Entry(f.parent, &f.name),
            Self::Rmdir(f) => Target::Entry(f.parent, &f.name),
            Self::Rename(f) => Target::Entry(f.from_parent, &f.from_name),
            Self::Getattr(f) => Target::Inode(f.gfid),
            Self::Readlink(f) => Target::Inode(f.gfid),
            Self::Setattr(f) => Target::Inode(f.gfid),
            Self::Truncate(f) => Target::Inode(f.gfid),
            Self::Fallocate(f) => Target::Inode(f.gfid),
            Self::Open(f) => Target::Inode(f.fd.gfid),
            Self::Release(f) => Target::Inode(f.fd.gfid),
            Self::Read(f) => Target::Inode(f.gfid),
            Self::Write(f) => Target::Inode(f.gfid),
            Self::CopyRange(f) => Target::Inode(f.to),
            Self::Seek(f) => Target::Inode(f.gfid),
            Self::Flush(f) => Target::Inode(f.gfid),
            Self::Fsync(f) => Target::Inode(f.gfid),
            Self::Readdir(f) => Target::Inode(f.gfid),
            Self::Getxattr(f) => Target::Inode(f.gfid),
            Self::Setxattr(f) => Target::Inode(f.gfid),
            Self::Removexattr(f) => Target::Inode(f.gfid),
            Self::Listxattr(f) => Target::Inode(f.gfid),
            Self::Mark(f) => Target::Inode(f.gfid),
            Self::Lk(f) => Target::Inode(f.gfid),
            Self::Statfs(_) | Self::Lease(_) | Self::Unlease(_) | Self::Settle(_) | Self::Backlog(_) => Target::Volume,
        }
    }

    /// The leases that the fop must run under, in ascending order of gfid, so that two clients never wait crosswise.
    ///
    /// Removing a name also changes the inode that had it; its lease is not asked for here, since the brick recalls it
    /// from others before it removes the name.
    pub fn leases(&self) -> Needs {
        use LeaseMode::{Exclusive, Shared};
        let mut needs: Needs = match (self.effect(), self) {
            (Effect::Entry { parent, .. }, Self::Link(f)) => smallvec![(parent, Exclusive), (f.gfid, Exclusive)],
            (Effect::Entry { parent, other: Some(other) }, _) => smallvec![(parent, Exclusive), (other, Exclusive)],
            (Effect::Entry { parent, other: None }, _) => smallvec![(parent, Exclusive)],
            (Effect::Inode { gfid, .. }, Self::CopyRange(f)) if f.from != f.to => {
                smallvec![(gfid, Exclusive), (f.from, Shared)]
            }
            (Effect::Inode { gfid, .. }, _) => smallvec![(gfid, Exclusive)],
            (Effect::Read, _) => match self.target() {
                Target::Inode(gfid) | Target::Entry(gfid, _) => smallvec![(gfid, Shared)],
                Target::Volume => smallvec![],
            },
            (Effect::Session, _) => smallvec![],
        };
        needs.sort_unstable_by_key(|need| need.0);
        needs
    }
}
