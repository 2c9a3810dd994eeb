//! Requests about extended attributes.
//!
//! What the bricks keep for themselves is not shown and cannot be touched.

use bytes::Bytes;
use mortar_xlators::ctx::Ctx;
use mortar_xlators::error::Result;
use mortar_xlators::fop::{Getxattr, Listxattr, Removexattr, SetHow, Setxattr};
use mortar_xlators::types::{Gfid, Xattr, XattrName};
use rustix::io::Errno;

use super::Acl;
use super::server::{Server, not_served};
use super::transport::reply::Answer;
use super::transport::request::{Op, SuidSgid};

/// What the bricks keep for themselves. An entry that ends in `*` or `.` is a prefix.
const INTERNAL: [&[u8]; 5] =
    [b"trusted.gfid", b"trusted.gfid2path*", b"trusted.glusterfs.", b"trusted.afr.", b"trusted.mortar."];
/// What the kernel asks for before it runs a program. A volume keeps no capabilities of files, so
/// the answer needs no message.
const CAPABILITY: &[u8] = b"security.capability";
/// What `ls -l` asks for with every entry, unless the first answer says that this file system has no labels.
const LABEL: &[u8] = b"security.selinux";

fn is_internal(name: &[u8]) -> bool {
    INTERNAL.iter().any(|internal| match internal.strip_suffix(b"*") {
        Some(prefix) => name.starts_with(prefix),
        None if internal.ends_with(b".") => name.starts_with(internal),
        None => name == *internal,
    })
}

fn is_acl(name: &[u8]) -> bool {
    matches!(name, b"system.posix_acl_access" | b"system.posix_acl_default")
}

impl Server {
    pub(super) async fn serve_xattr(&self, ctx: &Ctx, nodeid: u64, op: Op) -> Result<Answer> {
        let gfid = self.gfid(nodeid)?;
        match op {
            Op::Getxattr { name, size } => self.getxattr(ctx, gfid, name, size).await,
            Op::Listxattr { size } => self.listxattr(ctx, gfid, size).await,
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
                self.changed();
                let _ctime = self.cache.inodes.change_dir(gfid);
                self.send(ctx, Setxattr { gfid, xattr, how, kill_sgid, when: (self.sources.clock)() }).await?;
                self.changed();
                Ok(Answer::Empty)
            }
            Op::Removexattr { name } => {
                self.may_change(&name)?;
                let (name, when) = (XattrName::new(name)?, (self.sources.clock)());
                self.changed();
                let _ctime = self.cache.inodes.change_dir(gfid);
                self.send(ctx, Removexattr { gfid, name, when }).await?;
                self.changed();
                Ok(Answer::Empty)
            }
            _ => not_served(),
        }
    }

    /// Refuses names that programs must leave alone or that this mount does not serve.
    fn may_change(&self, name: &[u8]) -> Result<(), Errno> {
        if is_internal(name) {
            return Err(Errno::PERM);
        }
        if name == CAPABILITY { Err(Errno::OPNOTSUPP) } else { self.serves(name) }
    }

    /// `EOPNOTSUPP` for names that this mount does not serve: programs then do not ask again.
    fn serves(&self, name: &[u8]) -> Result<(), Errno> {
        if name == LABEL || is_acl(name) && self.acl == Acl::Off { Err(Errno::OPNOTSUPP) } else { Ok(()) }
    }

    async fn getxattr(&self, ctx: &Ctx, gfid: Gfid, name: Vec<u8>, size: u32) -> Result<Answer> {
        if name == CAPABILITY || is_internal(&name) {
            return Err(Errno::NODATA.into());
        }
        self.serves(&name)?;
        let value = self.send(ctx, Getxattr { gfid, name: XattrName::new(name)? }).await?.value;
        sized(value, size)
    }

    async fn listxattr(&self, ctx: &Ctx, gfid: Gfid, size: u32) -> Result<Answer> {
        let names = self.send(ctx, Listxattr { gfid }).await?.names;
        let mut list = Vec::new();
        for name in names.iter().map(XattrName::as_bytes) {
            // As in every file system, only root sees what only root may read.
            let roots = name.starts_with(b"trusted.") && ctx.caller.uid != 0;
            // The labels of the brick's own machine.
            let hidden = roots || name == CAPABILITY || name == LABEL;
            if !hidden && !is_internal(name) && self.serves(name).is_ok() {
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
