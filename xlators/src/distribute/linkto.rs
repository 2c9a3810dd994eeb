//! Link files: empty files that say which subvolume has the content, on the subvolume that the name belongs to.
//!
//! A link file has the gfid of the content, mode 01000, and the name of the other subvolume in an xattr. It is never
//! shown and never counted.

use bytes::Bytes;

use crate::ctx::Ctx;
use crate::distribute::Core;
use crate::distribute::sets::as_ourselves;
use crate::error::{Errno, FopError, Result};
use crate::fop::{Birth, Getattr, Link, Lookup, Mknod, Only, Unlink};
use crate::reply::Found;
use crate::types::{AttrMask, Gfid, Iatt, Kind, Time};

/// The permission bits of a link file, and of nothing that programs usually make.
const LINK_FILE_MODE: u32 = 0o1000;

impl Core {
    /// On `hashed`, say that the content of this inode is on `target`. `EEXIST` if the name is taken there.
    pub(super) async fn make_link(
        &self,
        ctx: &Ctx,
        at: &Lookup,
        hashed: usize,
        target: usize,
        owner: &Owner,
        when: Time,
    ) -> Result<()> {
        let ours = as_ourselves(ctx);
        let mknod = self.link_file(at, target, owner, when);
        match self.sets.ask(&ours, hashed, mknod).await {
            Err(FopError::Refused(Errno::EXIST)) => {}
            answer => return answer.map(drop),
        }
        // Either the name is taken, or the inode has a link file there under another name: that gets this one, too.
        let gfid = owner.gfid;
        let getattr = Getattr { gfid, fd: None, exact: AttrMask::empty() };
        match self.sets.ask(&ours, hashed, getattr).await {
            Ok(Found { linkto: Some(_), .. }) => {
                let link = Link { gfid, parent: at.parent, name: at.name.clone(), when };
                self.sets.ask(&ours, hashed, link).await.map(drop)
            }
            Ok(_) => Err(Errno::EXIST.into()),
            Err(error) if error.is_absent() => Err(Errno::EXIST.into()),
            Err(error) => Err(error),
        }
    }

    fn link_file(&self, at: &Lookup, target: usize, owner: &Owner, when: Time) -> Mknod {
        let birth = Birth {
            gfid: owner.gfid,
            mode: LINK_FILE_MODE,
            umask: 0,
            uid: owner.uid,
            gid: owner.gid,
            when,
            times: None,
            xattrs: Vec::new(),
            pending: Vec::new(),
        };
        Mknod {
            parent: at.parent,
            name: at.name.clone(),
            birth: Box::new(birth),
            kind: Kind::File,
            rdev: 0,
            linkto: Some(Bytes::copy_from_slice(self.sets.name(target).as_bytes())),
        }
    }

    /// Mend the link file of a name: in the place of one that points elsewhere, or where there was none.
    pub(super) async fn relink(
        &self,
        ctx: &Ctx,
        at: &Lookup,
        stale: Option<Gfid>,
        hashed: usize,
        target: usize,
        iatt: &Iatt,
    ) -> Result<()> {
        if let Some(gfid) = stale {
            self.drop_link(ctx, at, gfid, hashed).await?;
        }
        // The time is the oldest there is: mending must not make the parent look changed.
        self.make_link(ctx, at, hashed, target, &Owner::of(iatt), Time::default()).await
    }

    /// Remove a link file. It does not matter if it is no longer there, or no longer one.
    pub(super) async fn drop_link(&self, ctx: &Ctx, at: &Lookup, gfid: Gfid, set: usize) -> Result<()> {
        let unlink =
            Unlink { parent: at.parent, name: at.name.clone(), only: Only::LinkFile(gfid), when: Time::default() };
        match self.sets.ask(&as_ourselves(ctx), set, unlink).await {
            Ok(_) | Err(FopError::Refused(Errno::NOENT | Errno::STALE | Errno::BUSY)) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Who owns the content that a link file points to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Owner {
    pub(super) gfid: Gfid,
    pub(super) uid: u32,
    pub(super) gid: u32,
}

impl Owner {
    pub(super) fn of(iatt: &Iatt) -> Self {
        Self { gfid: iatt.gfid, uid: iatt.uid, gid: iatt.gid }
    }
}
