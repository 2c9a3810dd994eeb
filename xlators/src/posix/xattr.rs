//! Extended attributes: which of them are the program's, which are the brick's own, and how they are called on disk.

use std::os::fd::AsFd;

use bytes::Bytes;
use rustix::fs::XattrFlags;
use rustix::io::Errno;

use super::acl;
use super::at::{At, CName};
use super::dirs::GFID_KEY;
use super::gfid2path;
use super::mdata::{self, MDATA_BYTES, Mdata, Touch};
use super::store::{Node, Store};
use crate::ctx::Ctx;
use crate::error::Result;
use crate::fop::{Getxattr, Listxattr, Removexattr, SetHow, Setxattr};
use crate::reply::{Changed, Value, XattrNames};
use crate::types::{Counters, Cover, Gfid, Lacks, Pending, Time, XATTR_VALUE_BYTES_MAX, XattrName};

/// Where a link file points to.
pub(super) const LINKTO_KEY: &std::ffi::CStr = c"trusted.glusterfs.dht.linkto";

/// This subvolume is the authority for a directory's attributes.
pub(super) const MDS_KEY: &std::ffi::CStr = c"trusted.glusterfs.dht.mds";

/// How the names of pending marks begin.
pub(super) const AFR_PREFIX: &[u8] = b"trusted.afr.";

/// `security.selinux` is the label of a program's file; the brick's own kernel must not take it for its own.
const SELINUX: &[u8] = b"security.selinux";
const SELINUX_KEY: &[u8] = b"trusted.glusterfs.selinux";

/// What a program that is run may do beyond its user.
const CAPABILITY: &[u8] = b"security.capability";

/// Names that belong to the brick and to GlusterFS.
const OURS: [&[u8]; 6] =
    [b"trusted.gfid", b"trusted.glusterfs.", AFR_PREFIX, b"trusted.pgfid.", b"trusted.ec.", b"trusted.bit-rot."];

/// Of these, what not even our own daemons set as a plain value.
const FIXED: [&[u8]; 4] = [b"trusted.gfid", gfid2path::PREFIX, b"trusted.glusterfs.volume-id", SELINUX_KEY];

/// A program's xattr, as the brick stores it.
pub(super) enum Backend {
    /// Under this name.
    Name(CName),
    /// It is not a program's to see or change.
    Ours(CName),
}

/// How an xattr is called on disk.
pub(super) fn backend_name(name: &XattrName) -> Backend {
    let bytes = name.as_bytes();
    let cname = |bytes| CName::from_bytes(bytes).expect("a checked xattr name has at most 255 bytes, none of them NUL");
    if bytes == SELINUX {
        return Backend::Name(cname(SELINUX_KEY));
    }
    if is_ours(bytes) { Backend::Ours(cname(bytes)) } else { Backend::Name(cname(bytes)) }
}

fn is_ours(name: &[u8]) -> bool {
    OURS.iter().any(|prefix| name.starts_with(prefix))
}

/// The form in which XFS keeps ACLs on disk, which it also lists: programs know them by their names in `system.`.
fn is_file_systems(name: &[u8]) -> bool {
    name.starts_with(b"trusted.SGI_ACL_")
}

/// What a program calls an xattr of the disk; `None` for what it must not see, such as the label that a file has for
/// the brick's own machine.
fn program_name(name: &[u8]) -> Option<&[u8]> {
    match name {
        SELINUX_KEY => Some(SELINUX),
        SELINUX => None,
        name => (!is_ours(name) && !is_file_systems(name)).then_some(name),
    }
}

/// What of a program's xattrs an inode has not.
pub(super) fn lacks(at: At<'_>) -> Result<Lacks, Errno> {
    let mut lacks = Lacks::all();
    at.list(|name| {
        if program_name(name).is_none() {
            return;
        }
        lacks -= Lacks::XATTRS;
        match name {
            name if name == acl::ACCESS.to_bytes() => lacks -= Lacks::ACL,
            name if name == acl::DEFAULT.to_bytes() => lacks -= Lacks::DEFAULT_ACL,
            CAPABILITY => lacks -= Lacks::CAPABILITY,
            _ => {}
        }
    })?;
    Ok(lacks)
}

/// The name of a pending mark; `EINVAL` for any other.
pub(super) fn afr_key(name: &XattrName) -> Result<CName, Errno> {
    let bytes = name.as_bytes();
    let valid = bytes.len() > AFR_PREFIX.len() && bytes.starts_with(AFR_PREFIX);
    valid.then(|| CName::from_bytes(bytes)).flatten().ok_or(Errno::INVAL)
}

/// Three counters as they are stored.
pub(super) fn counters_to_bytes(counters: Counters) -> [u8; 12] {
    let mut bytes = [0; 12];
    for (slot, counter) in bytes.chunks_exact_mut(4).zip(counters.0) {
        slot.copy_from_slice(&counter.to_be_bytes());
    }
    bytes
}

/// Three counters as they are stored.
pub(super) fn counters_from_bytes(bytes: &[u8; 12]) -> Counters {
    let word = |at: usize| i32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    Counters([word(0), word(4), word(8)])
}

impl Store {
    /// Read an extended attribute.
    pub(super) fn getxattr(&self, ctx: &Ctx, fop: &Getxattr) -> Result<Value> {
        let key = match backend_name(&fop.name) {
            Backend::Name(key) if is_file_systems(key.as_cstr().to_bytes()) => return Err(Errno::NODATA.into()),
            Backend::Name(key) => key,
            Backend::Ours(key) if ctx.caller.is_internal() => key,
            Backend::Ours(_) => return Err(Errno::NODATA.into()),
        };
        let node = self.node(fop.gfid)?;
        let value = node.at().get(key.as_cstr()).map_err(|errno| self.missed(fop.gfid, errno))?;
        Ok(Value { value })
    }

    /// List the names of extended attributes.
    pub(super) fn listxattr(&self, ctx: &Ctx, fop: &Listxattr) -> Result<XattrNames> {
        let node = self.node(fop.gfid)?;
        let mut names = Vec::new();
        let listed = node.at().list(|name| {
            let shown = if ctx.caller.is_internal() { Some(name) } else { program_name(name) };
            if let Some(name) = shown {
                names.extend(XattrName::new(Bytes::copy_from_slice(name)));
            }
        });
        listed.map_err(|errno| self.missed(fop.gfid, errno))?;
        Ok(XattrNames { names })
    }

    /// Set an extended attribute.
    pub(super) fn setxattr(&self, ctx: &Ctx, fop: &Setxattr) -> Result<Changed> {
        if fop.xattr.value.len() > XATTR_VALUE_BYTES_MAX {
            return Err(Errno::TOOBIG.into());
        }
        let node = self.node(fop.gfid)?;
        let key = match backend_name(&fop.xattr.name) {
            Backend::Name(key) if is_file_systems(key.as_cstr().to_bytes()) => return Err(Errno::OPNOTSUPP.into()),
            Backend::Name(key) => key,
            Backend::Ours(key) => return self.set_ours(ctx, fop, &node, &key),
        };
        self.reserve.check(ctx, self.dirs.root.fd.as_fd(), fop.xattr.value.len() as u64)?;
        let set = node.at().set(key.as_cstr(), &fop.xattr.value, flags(fop.how));
        set.map_err(|errno| self.missed(fop.gfid, errno))?;
        if fop.kill_sgid && key.as_cstr() == acl::ACCESS {
            self.clear_setgid(&node)?;
        }
        self.xattrs_changed(fop.gfid, &node, fop.when)
    }

    /// Remove an extended attribute.
    pub(super) fn removexattr(&self, ctx: &Ctx, fop: &Removexattr) -> Result<Changed> {
        let key = match backend_name(&fop.name) {
            Backend::Name(key) if is_file_systems(key.as_cstr().to_bytes()) => return Err(Errno::NODATA.into()),
            Backend::Name(key) => key,
            Backend::Ours(key) if ctx.caller.is_internal() && may_set(key.as_cstr().to_bytes()) => key,
            Backend::Ours(key) if key.as_cstr() == GFID_KEY => return Err(Errno::PERM.into()),
            Backend::Ours(_) => return Err(Errno::NODATA.into()),
        };
        let node = self.node(fop.gfid)?;
        node.at().remove(key.as_cstr()).map_err(|errno| self.missed(fop.gfid, errno))?;
        self.xattrs_changed(fop.gfid, &node, fop.when)
    }

    /// What our own daemons set: times are merged, a link file's text gets its NUL, the rest is stored as it is.
    fn set_ours(&self, ctx: &Ctx, fop: &Setxattr, node: &Node<'_>, key: &CName) -> Result<Changed> {
        let name = key.as_cstr();
        if !ctx.caller.is_internal() || !may_set(name.to_bytes()) {
            return Err(Errno::PERM.into());
        }
        let value = &fop.xattr.value;
        if name == mdata::KEY {
            let bytes: &[u8; MDATA_BYTES] = value[..].try_into().map_err(|_| Errno::INVAL)?;
            let other = Mdata::decode(bytes).ok_or(Errno::INVAL)?;
            let form = node.form();
            let merge = |times: Option<Mdata>| Some(times.map_or(other, |times| times.merged(other)));
            self.change_times(fop.gfid, node.at(), form, merge)?;
            return Ok(Changed { iatt: self.stat_node(fop.gfid, node)?, cover: Cover::empty() });
        }
        if name == LINKTO_KEY && value.last() != Some(&0) {
            node.at().set(name, &[value, &b"\0"[..]].concat(), flags(fop.how))?;
        } else {
            node.at().set(name, value, flags(fop.how))?;
        }
        if let Node::Dir(dir) = node {
            dir.forget_facts();
        }
        Ok(Changed { iatt: self.stat_node(fop.gfid, node)?, cover: Cover::empty() })
    }

    fn xattrs_changed(&self, gfid: Gfid, node: &Node<'_>, when: Time) -> Result<Changed> {
        self.forget_lacks(gfid);
        if let Node::Dir(dir) = node {
            dir.forget_facts();
        }
        self.touch(gfid, node.at(), node.form(), Touch::Ctime, when);
        Ok(Changed { iatt: self.stat_node(gfid, node)?, cover: Cover::empty() })
    }

    fn clear_setgid(&self, node: &Node<'_>) -> Result<(), Errno> {
        let mode = node.at().stat()?.st_mode & 0o7777;
        if mode & libc::S_ISGID == 0 { Ok(()) } else { node.at().chmod(mode & !libc::S_ISGID) }
    }

    /// The pending marks of an inode that are not zero.
    pub(super) fn read_marks(&self, at: At<'_>) -> Result<Vec<Pending>, Errno> {
        let mut keys = Vec::new();
        at.list(|name| {
            if name.starts_with(AFR_PREFIX) {
                keys.extend(XattrName::new(Bytes::copy_from_slice(name)));
            }
        })?;
        let mut marks = Vec::new();
        for key in keys {
            let counters = read_counters(at, &afr_key(&key)?)?;
            if !counters.is_zero() {
                marks.push(Pending { key, counters });
            }
        }
        Ok(marks)
    }
}

/// The counters under a key: zero where there are none, or a value that is none of ours.
pub(super) fn read_counters(at: At<'_>, key: &CName) -> Result<Counters, Errno> {
    Ok(at.get_exact::<12>(key.as_cstr())?.map_or_else(Counters::default, |bytes| counters_from_bytes(&bytes)))
}

fn may_set(name: &[u8]) -> bool {
    !FIXED.iter().any(|fixed| name.starts_with(fixed))
}

fn flags(how: SetHow) -> XattrFlags {
    match how {
        SetHow::Any => XattrFlags::empty(),
        SetHow::Create => XattrFlags::CREATE,
        SetHow::Replace => XattrFlags::REPLACE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_big_endian() {
        let bytes = [0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0, 0];
        assert_eq!(counters_from_bytes(&bytes), Counters([3, 1, 0]));
        assert_eq!(counters_to_bytes(Counters([3, 1, 0])), bytes);
        assert_eq!(counters_from_bytes(&counters_to_bytes(Counters([-1, i32::MIN, 0x0100_0000]))).0[1], i32::MIN);
    }

    #[test]
    fn programs_see_their_own_names_only() {
        let ours = ["trusted.gfid", "trusted.gfid2path.00", "trusted.afr.dirty", "trusted.glusterfs.dht.linkto"];
        let theirs = ["user.a", "security.capability", "trusted.overlay.opaque", "system.posix_acl_access"];
        assert!(ours.iter().all(|name| is_ours(name.as_bytes())));
        assert!(!theirs.iter().any(|name| is_ours(name.as_bytes())));
    }
}
