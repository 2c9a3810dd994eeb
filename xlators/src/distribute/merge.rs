//! One directory from what all subvolumes have of it. Pure functions.

use crate::reply::Found;
use crate::types::{AttrMask, Cover, Iatt, Kind};

/// What a directory's size and blocks are said to be, as by GlusterFS: the sum over subvolumes would mean nothing.
const DIRECTORY_BYTES: u64 = 4096;
const DIRECTORY_BLOCKS: u64 = 8;

/// The attributes of a directory as one subvolume has them, made fit to be shown. Other inodes stay as they are.
pub(super) fn shown(iatt: Iatt) -> Iatt {
    if iatt.kind == Kind::Dir { Iatt { size: DIRECTORY_BYTES, blocks: DIRECTORY_BLOCKS, ..iatt } } else { iatt }
}

/// Two views of one directory: the latest times and the higher link count; all else from the first.
pub(super) fn iatts(first: Iatt, second: &Iatt) -> Iatt {
    shown(Iatt {
        nlink: first.nlink.max(second.nlink),
        atime: first.atime.max(second.atime),
        mtime: first.mtime.max(second.mtime),
        ctime: first.ctime.max(second.ctime),
        ..first
    })
}

/// The directory that these views make together. The first view is the authority for mode and owner, and for the
/// name; the attributes are covered only if all views are.
pub(super) fn directory<'a>(authority: &Found, others: impl IntoIterator<Item = &'a Found>) -> Found {
    let whole = Found {
        iatt: shown(authority.iatt),
        exact: authority.exact | (AttrMask::SIZE | AttrMask::BLOCKS),
        cover: authority.cover,
        layout: None,
        linkto: None,
        marks: Vec::new(),
    };
    others.into_iter().fold(whole, |whole, other| Found {
        iatt: iatts(whole.iatt, &other.iatt),
        exact: whole.exact & (other.exact | (AttrMask::SIZE | AttrMask::BLOCKS)),
        cover: whole.cover & (other.cover | Cover::NAME),
        ..whole
    })
}

/// Mode, owner or group differ: a change reached one subvolume and not the other.
pub(super) fn disagree(first: &Iatt, second: &Iatt) -> bool {
    (first.mode, first.uid, first.gid) != (second.mode, second.uid, second.gid)
}
