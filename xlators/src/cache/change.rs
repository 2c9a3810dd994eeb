//! Changes: kept back where nobody can tell, else sent, and what they leave behind is noted.

use super::Cache;
use crate::ctx::{Ctx, Turn};
use crate::effect::Effect;
use crate::error::Result;
use crate::fop::{Create, Flush, Fop, Link, Mkdir, Mknod, Release, Rename, Rmdir, Setattr, Symlink, Unlink, Write};
use crate::reply::{Changed, Done, Made, Removed, Renamed, Reply, Written};
use crate::types::{Cover, Gfid, Iatt};

impl Cache {
    pub(super) async fn create(&self, ctx: &Ctx, fop: Create) -> Result<Made> {
        let recalls = self.books.recalls();
        let place = (fop.parent, fop.name.clone());
        self.books.names.add(place.0, &place.1);
        let directory = self.books.attrs.begin(fop.parent);
        let made = self.next.send(ctx, fop).await?;
        directory.has_names(&made.parent);
        if made.cover.contains(Cover::OWNED) {
            self.books.files.born(place, &made.iatt, || self.books.recalls() == recalls);
        }
        Ok(made)
    }

    pub(super) async fn mknod(&self, ctx: &Ctx, fop: Mknod) -> Result<Made> {
        self.books.names.add(fop.parent, &fop.name);
        let directory = self.books.attrs.begin(fop.parent);
        let made = self.next.send(ctx, fop).await?;
        directory.has_names(&made.parent);
        Ok(made)
    }

    pub(super) async fn symlink(&self, ctx: &Ctx, fop: Symlink) -> Result<Made> {
        self.books.names.add(fop.parent, &fop.name);
        let directory = self.books.attrs.begin(fop.parent);
        let made = self.next.send(ctx, fop).await?;
        directory.has_names(&made.parent);
        Ok(made)
    }

    pub(super) async fn mkdir(&self, ctx: &Ctx, fop: Mkdir) -> Result<Made> {
        let recalls = self.books.recalls();
        self.books.names.add(fop.parent, &fop.name);
        // Its link count changes, too, so the answer does not say all.
        let _directory = self.books.attrs.begin(fop.parent);
        let made = self.next.send(ctx, fop).await?;
        if made.cover.contains(Cover::ATTRS) {
            self.books.names.born(made.iatt.gfid, || self.books.recalls() == recalls);
        }
        Ok(made)
    }

    pub(super) async fn link(&self, ctx: &Ctx, fop: Link) -> Result<Made> {
        self.books.names.add(fop.parent, &fop.name);
        self.hand_over_for_good(fop.gfid).await?;
        let (inode, directory) = (self.books.attrs.begin(fop.gfid), self.books.attrs.begin(fop.parent));
        let made = self.next.send(ctx, fop).await?;
        directory.has_names(&made.parent);
        drop(inode);
        Ok(made)
    }

    pub(super) async fn unlink(&self, ctx: &Ctx, fop: Unlink) -> Result<Removed> {
        if let Some(certain) = self.books.is_certain(&fop) {
            match self.books.remove(ctx, &fop, certain).await {
                // Somebody else has moved it, or put another in its place, before it was removed.
                Err(error) if error.is_absent() => {}
                answer => return answer,
            }
        }
        self.books.removals.settled(ctx, &fop.clone().into()).await?;
        if let Some(gfid) = self.books.files.made_at(fop.parent, &fop.name) {
            self.books.files.disown(&[gfid]);
            self.books.hand_over(gfid, Turn::Waits).await;
        }
        let directory = self.books.attrs.begin(fop.parent);
        let removed = self.next.send(ctx, fop).await?;
        directory.has_names(&removed.parent);
        self.books.attrs.changed(removed.iatt.gfid);
        Ok(removed)
    }

    pub(super) async fn rmdir(&self, ctx: &Ctx, fop: Rmdir) -> Result<Removed> {
        self.books.names.take(fop.parent, &fop.name);
        let _directory = self.books.attrs.begin(fop.parent);
        let removed = self.next.send(ctx, fop).await?;
        self.books.attrs.changed(removed.iatt.gfid);
        Ok(removed)
    }

    pub(super) async fn rename(&self, ctx: &Ctx, fop: Rename) -> Result<Renamed> {
        // What an exchange brings back was here before, so that name is known already.
        self.books.names.add(fop.to_parent, &fop.to_name);
        // Any of them may be what moves, or what loses its name.
        self.books.files.disown(&self.books.files.all());
        self.books.hand_over_all().await;
        self.books.names.take(fop.from_parent, &fop.from_name);
        let _both = (self.books.attrs.begin(fop.from_parent), self.books.attrs.begin(fop.to_parent));
        let renamed = self.next.send(ctx, fop).await?;
        self.books.attrs.changed(renamed.iatt.gfid);
        renamed.replaced.iter().for_each(|replaced| self.books.attrs.changed(replaced.gfid));
        Ok(renamed)
    }

    pub(super) async fn write(&self, ctx: &Ctx, fop: Write) -> Result<Written> {
        for attempt in [Attempt::First, Attempt::Last] {
            if let Some(written) = self.books.files.keep_write(ctx, &fop) {
                self.books.kept(fop.gfid);
                return Ok(written);
            }
            if attempt == Attempt::First {
                self.books.flush(fop.gfid).await?;
            }
        }
        let inode = self.books.attrs.begin(fop.gfid);
        let written = self.next.send(ctx, fop).await?;
        self.books.files.changed(&written.iatt);
        if written.cover.contains(Cover::ATTRS) {
            inode.is(&written.iatt);
        }
        Ok(written)
    }

    pub(super) async fn setattr(&self, ctx: &Ctx, fop: Setattr) -> Result<Changed> {
        if let Some(changed) = self.books.files.keep_setattr(ctx, &fop) {
            self.books.kept(fop.gfid);
            return Ok(changed);
        }
        self.books.flush(fop.gfid).await?;
        let inode = self.books.attrs.begin(fop.gfid);
        let changed = self.next.send(ctx, fop).await?;
        self.books.files.changed(&changed.iatt);
        if changed.cover.contains(Cover::ATTRS) {
            inode.is(&changed.iatt);
        }
        Ok(changed)
    }

    pub(super) async fn flush(&self, fop: Flush) -> Result<Done> {
        self.books.close(fop.gfid).await.map(|()| Done)
    }

    pub(super) async fn release(&self, ctx: &Ctx, fop: Release) -> Result<Done> {
        if let Err(error) = self.books.close(fop.fd.gfid).await {
            tracing::warn!(ctx.id, gfid = %fop.fd.gfid, %error, "what was written before a file was closed is lost");
        }
        self.next.send(ctx, fop).await
    }

    /// Any other change of inodes: nothing more is kept back of them.
    pub(super) async fn change(&self, ctx: &Ctx, fop: Fop) -> Result<Reply> {
        let Effect::Inode { gfid, .. } = fop.effect() else { return self.next.call(ctx, fop).await };
        self.hand_over_for_good(gfid).await?;
        if let Fop::CopyRange(copy) = &fop {
            self.books.flush(copy.from).await?;
        }
        let inode = self.books.attrs.begin(gfid);
        let reply = self.next.call(ctx, fop).await?;
        if let Some(now) = covered(&reply) {
            inode.is(now);
        }
        Ok(reply)
    }

    async fn hand_over_for_good(&self, gfid: Gfid) -> Result<()> {
        self.books.files.disown(&[gfid]);
        self.books.flush(gfid).await
    }
}

/// A write that does not go on where the last one ended is looked at again when that has been sent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Attempt {
    First,
    Last,
}

/// The inode after a change, where a lease covers it.
fn covered(reply: &Reply) -> Option<&Iatt> {
    let (iatt, cover) = match reply {
        Reply::Truncate(changed)
        | Reply::Fallocate(changed)
        | Reply::Setxattr(changed)
        | Reply::Removexattr(changed) => (&changed.iatt, changed.cover),
        Reply::CopyRange(written) => (&written.iatt, written.cover),
        _ => return None,
    };
    cover.contains(Cover::ATTRS).then_some(iatt)
}
