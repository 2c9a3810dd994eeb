//! The fops that make, find, move and remove names, in table order.

use bytes::Bytes;
use mortar_xlators::error::Errno;
use mortar_xlators::fop;
use mortar_xlators::fop::{Only, Replace};
use mortar_xlators::types::{Kind, MAX_IO_BYTES, SYMLINK_BYTES_MAX, XattrName};

use super::nouns::{
    Result, at_most, birth, birth_to_wire, inode, kind, kind_to_wire, layout, layout_to_wire, name, need, open_flags,
};
use crate::pb;

impl From<fop::Lookup> for pb::Lookup {
    fn from(f: fop::Lookup) -> Self {
        Self { parent: Some(f.parent.into()), name: f.name.to_bytes() }
    }
}

impl TryFrom<pb::Lookup> for fop::Lookup {
    type Error = Errno;

    fn try_from(m: pb::Lookup) -> Result<Self> {
        Ok(Self { parent: inode(m.parent)?, name: name(m.name)? })
    }
}

impl From<fop::Create> for pb::Create {
    fn from(f: fop::Create) -> Self {
        Self {
            parent: Some(f.parent.into()),
            name: f.name.to_bytes(),
            birth: birth_to_wire(*f.birth),
            content: f.content,
            open: f.open.map(|(id, flags)| pb::OpenAs { id, flags: flags.bits() }),
            lease: f.lease,
        }
    }
}

impl TryFrom<pb::Create> for fop::Create {
    type Error = Errno;

    fn try_from(m: pb::Create) -> Result<Self> {
        Ok(Self {
            parent: inode(m.parent)?,
            name: name(m.name)?,
            birth: birth(m.birth)?,
            content: at_most(m.content, MAX_IO_BYTES)?,
            open: m.open.map(|open| Ok::<_, Errno>((open.id, open_flags(open.flags)?))).transpose()?,
            lease: m.lease,
        })
    }
}

impl From<fop::Mknod> for pb::Mknod {
    fn from(f: fop::Mknod) -> Self {
        Self {
            parent: Some(f.parent.into()),
            name: f.name.to_bytes(),
            birth: birth_to_wire(*f.birth),
            kind: kind_to_wire(f.kind),
            rdev: f.rdev,
            linkto: f.linkto,
        }
    }
}

impl TryFrom<pb::Mknod> for fop::Mknod {
    type Error = Errno;

    fn try_from(m: pb::Mknod) -> Result<Self> {
        let kind = match kind(m.kind)? {
            Kind::Dir | Kind::Symlink => return Err(Errno::INVAL),
            kind => kind,
        };
        Ok(Self {
            parent: inode(m.parent)?,
            name: name(m.name)?,
            birth: birth(m.birth)?,
            kind,
            rdev: m.rdev,
            linkto: m.linkto.map(linkto).transpose()?,
        })
    }
}

impl From<fop::Mkdir> for pb::Mkdir {
    fn from(f: fop::Mkdir) -> Self {
        Self {
            parent: Some(f.parent.into()),
            name: f.name.to_bytes(),
            birth: birth_to_wire(*f.birth),
            layout: f.layout.map(layout_to_wire),
            mds: f.mds,
            lease: f.lease,
        }
    }
}

impl TryFrom<pb::Mkdir> for fop::Mkdir {
    type Error = Errno;

    fn try_from(m: pb::Mkdir) -> Result<Self> {
        Ok(Self {
            parent: inode(m.parent)?,
            name: name(m.name)?,
            birth: birth(m.birth)?,
            layout: m.layout.map(layout).transpose()?,
            mds: m.mds,
            lease: m.lease,
        })
    }
}

impl From<fop::Symlink> for pb::Symlink {
    fn from(f: fop::Symlink) -> Self {
        Self {
            parent: Some(f.parent.into()),
            name: f.name.to_bytes(),
            birth: birth_to_wire(*f.birth),
            target: f.target,
        }
    }
}

impl TryFrom<pb::Symlink> for fop::Symlink {
    type Error = Errno;

    fn try_from(m: pb::Symlink) -> Result<Self> {
        if m.target.len() > SYMLINK_BYTES_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        if m.target.is_empty() || m.target.contains(&0) {
            return Err(Errno::INVAL);
        }
        Ok(Self { parent: inode(m.parent)?, name: name(m.name)?, birth: birth(m.birth)?, target: m.target })
    }
}

impl From<fop::Link> for pb::Link {
    fn from(f: fop::Link) -> Self {
        Self {
            gfid: Some(f.gfid.into()),
            parent: Some(f.parent.into()),
            name: f.name.to_bytes(),
            when: Some(f.when.into()),
        }
    }
}

impl TryFrom<pb::Link> for fop::Link {
    type Error = Errno;

    fn try_from(m: pb::Link) -> Result<Self> {
        Ok(Self { gfid: inode(m.gfid)?, parent: inode(m.parent)?, name: name(m.name)?, when: need(m.when)? })
    }
}

impl From<fop::Unlink> for pb::Unlink {
    fn from(f: fop::Unlink) -> Self {
        let only = match f.only {
            Only::Any => None,
            Only::Gfid(gfid) => Some(pb::unlink::Only::Gfid(gfid.into())),
            Only::LinkFile(gfid) => Some(pb::unlink::Only::LinkFile(gfid.into())),
            Only::Content => Some(pb::unlink::Only::Content(true)),
            Only::ContentOf(gfid) => Some(pb::unlink::Only::ContentOf(gfid.into())),
        };
        Self { parent: Some(f.parent.into()), name: f.name.to_bytes(), when: Some(f.when.into()), only }
    }
}

impl TryFrom<pb::Unlink> for fop::Unlink {
    type Error = Errno;

    fn try_from(m: pb::Unlink) -> Result<Self> {
        let only = match m.only {
            None => Only::Any,
            Some(pb::unlink::Only::Gfid(gfid)) => Only::Gfid(inode(Some(gfid))?),
            Some(pb::unlink::Only::LinkFile(gfid)) => Only::LinkFile(inode(Some(gfid))?),
            Some(pb::unlink::Only::Content(_)) => Only::Content,
            Some(pb::unlink::Only::ContentOf(gfid)) => Only::ContentOf(inode(Some(gfid))?),
        };
        Ok(Self { parent: inode(m.parent)?, name: name(m.name)?, only, when: need(m.when)? })
    }
}

impl From<fop::Rmdir> for pb::Rmdir {
    fn from(f: fop::Rmdir) -> Self {
        Self { parent: Some(f.parent.into()), name: f.name.to_bytes(), when: Some(f.when.into()) }
    }
}

impl TryFrom<pb::Rmdir> for fop::Rmdir {
    type Error = Errno;

    fn try_from(m: pb::Rmdir) -> Result<Self> {
        Ok(Self { parent: inode(m.parent)?, name: name(m.name)?, when: need(m.when)? })
    }
}

impl From<fop::Rename> for pb::Rename {
    fn from(f: fop::Rename) -> Self {
        let replace = match f.replace {
            Replace::Yes => pb::Replace::Yes,
            Replace::No => pb::Replace::No,
            Replace::Exchange => pb::Replace::Exchange,
        };
        Self {
            from_parent: Some(f.from_parent.into()),
            from_name: f.from_name.to_bytes(),
            to_parent: Some(f.to_parent.into()),
            to_name: f.to_name.to_bytes(),
            replace: replace.into(),
            when: Some(f.when.into()),
        }
    }
}

impl TryFrom<pb::Rename> for fop::Rename {
    type Error = Errno;

    fn try_from(m: pb::Rename) -> Result<Self> {
        let replace = match pb::Replace::try_from(m.replace).map_err(|_| Errno::INVAL)? {
            pb::Replace::None => return Err(Errno::INVAL),
            pb::Replace::Yes => Replace::Yes,
            pb::Replace::No => Replace::No,
            pb::Replace::Exchange => Replace::Exchange,
        };
        Ok(Self {
            from_parent: inode(m.from_parent)?,
            from_name: name(m.from_name)?,
            to_parent: inode(m.to_parent)?,
            to_name: name(m.to_name)?,
            replace,
            when: need(m.when)?,
        })
    }
}

/// The name of a subvolume: short, and without NUL, since it gets one on disk.
fn linkto(bytes: Bytes) -> Result<Bytes> {
    Ok(XattrName::new(bytes).map_err(|_| Errno::INVAL)?.to_bytes())
}
