//! Requests about extended attributes.
//!
//! What the bricks keep for themselves is not shown and cannot be touched.

use bytes::Bytes;
use mortar_xlators::ctx::Ctx;
use mortar_xlators::error::{FopError, Result};
use mortar_xlators::fop::{Getxattr, Listxattr, Operation, Removexattr, SetHow, Setxattr};
use mortar_xlators::types::{Lacks, Xattr, XattrName};
use rustix::io::Errno;

use super::Acl;
use super::server::{Server, not_served};
use super::transport::reply::Answer;
use super::transport::request::{Op, SuidSgid};

/// What the bricks keep for themselves. An entry that ends in `*` or `.` is a prefix.
const INTERNAL: [&[u8]; 5] =
    [b"trusted.gfid", b"trusted.gfid2path*", b"trusted.glusterfs.", b"trusted.afr.", b"trusted.mortar."];
/// Who may use an inode.
const ACL: &[u8] = b"system.posix_acl_access";
/// Who may use what is made in a directory.
const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";
/// What the kernel asks for before it runs a program, and before the first write after it has learned new attributes.
const CAPABILITY: &[u8] = b"security.capability";
/// What `ls -l` asks for with every entry, unless the first answer says that this file system has no labels. So that is
/// what is said of a file that has none.
const LABEL: &[u8] = b"security.selinux";

fn is_internal(name: &[u8]) -> bool {
    INTERNAL.iter().any(|internal| match internal.strip_suffix(b"*") {
        Some(prefix) => name.starts_with(prefix),
        None if internal.ends_with(b".") => name.starts_with(internal),
        None => name == *internal,
    })
}

/// What it takes to know that there is no xattr of this name. The kernel's file systems know other names, whose absence
/// has another errno.
fn absence(name: &[u8]) -> Lacks {
    match name {
        ACL => Lacks::ACL | Lacks::XATTRS,
        DEFAULT_ACL => Lacks::DEFAULT_ACL | Lacks::XATTRS,
        CAPABILITY => Lacks::CAPABILITY | Lacks::XATTRS,
        name if [&b"user."[..], b"trusted.", b"security."].iter().any(|space| name.starts_with(space)) => Lacks::XATTRS,
        _ => Lacks::empty(),
    }
}

fn is_acl(name: &[u8]) -> bool {
    matches!(name, ACL | DEFAULT_ACL)
}

impl Server {
    pub(super) async fn serve_xattr(&self, ctx: &Ctx, nodeid: u64, op: Op) -> Result<Answer> {
        let gfid = self.gfid(nodeid)?;
        match op {
            Op::Getxattr { name, size } => self.getxattr(ctx, nodeid, name, size).await,
            Op::Listxattr { size } => self.listxattr(ctx, nodeid, size).await,
            Op::Setxattr { name, value, flags, acl_kills_sgid } => {
                self.may_change(&name)?;
                let how = match flags.cast_signed() {
                    0 => SetHow::Any,
                    libc::XATTR_CREATE => SetHow::Create,
                    libc::XATTR_REPLACE => SetHow::Replace,
                    _ => return Err(Errno::INVAL.into()),
                };
                let xattr = Xattr { name: XattrName::new(name)?, value };
                let kill_sgid = acl_kills_sgid == SuidSgid::Kill;
                let set = Setxattr { gfid, xattr, how, kill_sgid, when: (self.sources.clock)() };
                self.change_xattr(ctx, nodeid, set).await
            }
            Op::Removexattr { name } => {
                self.may_change(&name)?;
                let (name, when) = (XattrName::new(name)?, (self.sources.clock)());
                self.change_xattr(ctx, nodeid, Removexattr { gfid, name, when }).await
            }
            _ => not_served(),
        }
    }

    /// Refuses names that programs must leave alone or that this mount does not serve.
    fn may_change(&self, name: &[u8]) -> Result<(), Errno> {
        if is_internal(name) {
            return Err(Errno::PERM);
        }
        self.serves(name)
    }

    async fn change_xattr<O: Operation>(&self, ctx: &Ctx, nodeid: u64, fop: O) -> Result<Answer> {
        self.changed();
        self.cache.inodes.xattrs_change(nodeid);
        let answer = self.send(ctx, fop).await;
        self.cache.inodes.xattrs_change(nodeid);
        self.changed();
        answer.map(|_| Answer::Empty)
    }

    /// `EOPNOTSUPP` for names that this mount does not serve: programs then do not ask again.
    fn serves(&self, name: &[u8]) -> Result<(), Errno> {
        if is_acl(name) && self.acl == Acl::Off { Err(Errno::OPNOTSUPP) } else { Ok(()) }
    }

    async fn getxattr(&self, ctx: &Ctx, nodeid: u64, name: Vec<u8>, size: u32) -> Result<Answer> {
        self.serves(&name)?;
        let none = if name == LABEL { Errno::OPNOTSUPP } else { Errno::NODATA };
        let absence = absence(&name);
        if is_internal(&name) || self.cache.inodes.lacks(nodeid).intersects(absence) {
            return Err(none.into());
        }
        // Hardly any file has what the kernel and `ls` ask for by themselves. The attributes tell, and to read them does not
        // disturb somebody who writes to the file.
        let by_itself = is_acl(&name) || matches!(&name[..], CAPABILITY | LABEL);
        if by_itself && self.attributes(ctx, nodeid, None).await?.0.lacks.intersects(absence) {
            return Err(none.into());
        }
        let gfid = self.gfid(nodeid)?;
        let asked = self.cache.inodes.moment();
        match self.send(ctx, Getxattr { gfid, name: XattrName::new(name)? }).await {
            Err(FopError::Refused(Errno::NODATA)) => {
                self.cache.inodes.learn_lack(nodeid, absence - Lacks::XATTRS, asked);
                Err(none.into())
            }
            answer => sized(answer?.value, size),
        }
    }

    async fn listxattr(&self, ctx: &Ctx, nodeid: u64, size: u32) -> Result<Answer> {
        if self.cache.inodes.lacks(nodeid).contains(Lacks::XATTRS) {
            return sized(Bytes::new(), size);
        }
        let gfid = self.gfid(nodeid)?;
        let names = self.send(ctx, Listxattr { gfid }).await?.names;
        let mut list = Vec::new();
        for name in names.iter().map(XattrName::as_bytes) {
            // As in every file system, only root sees what only root may read.
            let roots = name.starts_with(b"trusted.") && ctx.caller.uid != 0;
            if !roots && !is_internal(name) && self.serves(name).is_ok() {
                list.extend_from_slice(name);
                list.push(0);
            }
        }
        sized(list.into(), size)
    }
}

/// The length if that was asked for, else the bytes if there is room for them.
fn sized(bytes: Bytes, size: u32) -> Result<Answer> {
    let length = u32::try_from(bytes.len()).map_err(|_| Errno::TOOBIG)?;
    match size {
        0 => Ok(Answer::XattrSize(length)),
        room if room < length => Err(Errno::RANGE.into()),
        _ => Ok(Answer::Data(bytes)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_bricks_keep_is_internal_and_what_looks_like_it_is_not() {
        for name in ["trusted.gfid", "trusted.gfid2path.0f0e", "trusted.glusterfs.mdata", "trusted.afr.gv0-client-0"] {
            assert!(is_internal(name.as_bytes()), "{name}");
        }
        for name in ["trusted.gfidx", "trusted.afraid", "user.trusted.gfid", "trusted.overlay.opaque"] {
            assert!(!is_internal(name.as_bytes()), "{name}");
        }
    }
}
