//! Requests about names: find, make, remove, move.

use std::sync::atomic::Ordering;
use std::time::Duration;

use mortar_xlators::ctx::Ctx;
use mortar_xlators::error::{FopError, Result};
use mortar_xlators::fop::{
    Birth, Create, Getattr, Link, Lookup, Mkdir, Mknod, Only, Rename, Replace, Rmdir, Symlink, Unlink,
};
use mortar_xlators::reply::{Found, Made};
use mortar_xlators::types::{AttrMask, Cover, Fd, Gfid, Name, OpenFlags, SYMLINK_BYTES_MAX};
use rustix::io::Errno;

use super::convert;
use super::files::{OpenGuard, opened_new};
use super::inodes::{Moment, Place};
use super::opens::Removing;
use super::second_walk::Wanted;
use super::server::{Digest, Server, Shown, not_served};
use super::transport::reply::{Answer, Entry, Opened};
use super::transport::request::Op;

/// What the kernel says of a new object.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) mode: u32,
    pub(super) umask: u32,
}

/// How often a file is made that others make and remove all the time: each time one of them was faster twice.
const CREATES_MAX: usize = 16;

impl Server {
    pub(super) async fn serve_name(&self, ctx: &Ctx, nodeid: u64, op: Op) -> Result<Answer> {
        let gfid = self.gfid(nodeid)?;
        let new_parent = match op {
            Op::Rename { new_parent, .. } => self.gfid(new_parent)?,
            _ => gfid,
        };
        let answer = self.serve_name_in(ctx, nodeid, gfid, op).await;
        let answer = self.unless_gone(ctx, gfid, answer).await;
        self.unless_gone(ctx, new_parent, answer).await
    }

    /// In a directory that was removed while a program has it open, every name is absent, and none can be made. The
    /// kernel would take `ESTALE` for a reason to look at the directory's own name again.
    async fn unless_gone(&self, ctx: &Ctx, directory: Gfid, answer: Result<Answer>) -> Result<Answer> {
        if !matches!(answer, Err(FopError::Refused(Errno::STALE))) {
            return answer;
        }
        match self.send(ctx, Getattr { gfid: directory, fd: None, exact: AttrMask::empty() }).await {
            Err(error) if error.is_absent() => Err(Errno::NOENT.into()),
            _ => answer,
        }
    }

    async fn serve_name_in(&self, ctx: &Ctx, nodeid: u64, gfid: Gfid, op: Op) -> Result<Answer> {
        match op {
            Op::Lookup { name } if matches!(&name[..], b"." | b"..") => self.lookup_dots(ctx, nodeid, &name).await,
            Op::Lookup { name } if self.retries.has(ctx.caller.pid.cast_unsigned()) => {
                self.look_and_keep(ctx, gfid, &Name::new(name)?).await
            }
            Op::Lookup { name } => Ok(self.look_once(ctx, gfid, Name::new(name)?).await?.0),
            Op::Readlink => Ok(Answer::Data(self.readlink(ctx, gfid).await?)),
            Op::Symlink { name, target } => self.symlink(ctx, gfid, Name::new(name)?, target).await,
            Op::Mknod { name, mode, rdev, umask } => {
                self.mknod(ctx, gfid, Name::new(name)?, Asked { mode, umask }, rdev).await
            }
            Op::Mkdir { name, mode, umask } => self.mkdir(ctx, gfid, Name::new(name)?, Asked { mode, umask }).await,
            Op::Unlink { name } => self.unlink(ctx, gfid, Name::new(name)?).await,
            Op::Rmdir { name } => {
                let when = (self.sources.clock)();
                self.send(ctx, Rmdir { parent: gfid, name: Name::new(name)?, when }).await?;
                Ok(Answer::Empty)
            }
            Op::Rename { name, new_parent, new_name, flags } => {
                let to = (self.gfid(new_parent)?, Name::new(new_name)?);
                self.rename(ctx, (gfid, Name::new(name)?), to, convert::replace(flags)?).await
            }
            Op::Link { nodeid, name } => self.link(ctx, self.gfid(nodeid)?, gfid, Name::new(name)?).await,
            _ => not_served(),
        }
    }

    /// What a name leads to, for the kernel and for us.
    pub(super) async fn look_once(&self, ctx: &Ctx, parent: Gfid, name: Name) -> Result<(Answer, Option<Box<Found>>)> {
        let asked = self.cache.inodes.moment();
        let looked = self.send(ctx, Lookup { parent, name: name.clone() }).await?;
        let answer = match &looked.found {
            Some(found) => {
                let place = Place { parent, name: name.as_bytes() };
                Answer::Entry(self.entry(place, Shown::from(&**found), asked, Digest::Compared))
            }
            None => {
                let names = self.cache.inodes.promise_since(asked);
                Answer::NoEntry(self.cache.name_timeout(looked.cover, names))
            }
        };
        Ok((answer, looked.found))
    }

    /// What an NFS server asks: the directory itself, or the one that it is in.
    async fn lookup_dots(&self, ctx: &Ctx, nodeid: u64, name: &[u8]) -> Result<Answer> {
        let gfid = if name == b"." { self.gfid(nodeid)? } else { self.cache.inodes.parent(nodeid)? };
        let parent = self.cache.inodes.parent(nodeid)?;
        let asked = self.cache.inodes.moment();
        let found = self.send(ctx, Getattr { gfid, fd: None, exact: AttrMask::all() }).await?;
        let mut entry = self.entry(Place { parent, name }, Shown::from(&found), asked, Digest::Compared);
        entry.entry_timeout = Duration::ZERO;
        Ok(Answer::Entry(entry))
    }

    fn birth(&self, ctx: &Ctx, asked: Asked) -> Box<Birth> {
        Box::new(Birth {
            gfid: (self.sources.gfid)(),
            mode: asked.mode & 0o7777,
            umask: asked.umask & 0o777,
            uid: ctx.caller.uid,
            gid: ctx.caller.gid,
            when: (self.sources.clock)(),
            times: None,
            xattrs: Vec::new(),
            pending: Vec::new(),
        })
    }

    /// A new inode for the kernel.
    fn made(&self, parent: Gfid, name: &Name, made: &Made, asked: Moment) -> Entry {
        let shown = Shown { iatt: &made.iatt, cover: made.cover, exact: AttrMask::all() };
        self.entry(Place { parent, name: name.as_bytes() }, shown, asked, Digest::New)
    }

    async fn symlink(&self, ctx: &Ctx, parent: Gfid, name: Name, target: Vec<u8>) -> Result<Answer> {
        if target.len() > SYMLINK_BYTES_MAX {
            return Err(Errno::NAMETOOLONG.into());
        }
        let birth = self.birth(ctx, Asked { mode: 0o777, umask: 0 });
        let asked = self.cache.inodes.moment();
        let made = self.send(ctx, Symlink { parent, name: name.clone(), birth, target: target.into() }).await?;
        Ok(Answer::Entry(self.made(parent, &name, &made, asked)))
    }

    async fn mknod(&self, ctx: &Ctx, parent: Gfid, name: Name, how: Asked, rdev: u32) -> Result<Answer> {
        let kind = convert::mknod_kind(how.mode)?;
        let birth = self.birth(ctx, how);
        let asked = self.cache.inodes.moment();
        let make = Mknod { parent, name: name.clone(), birth, kind, rdev: u64::from(rdev), linkto: None };
        let made = self.send(ctx, make).await?;
        Ok(Answer::Entry(self.made(parent, &name, &made, asked)))
    }

    async fn mkdir(&self, ctx: &Ctx, parent: Gfid, name: Name, how: Asked) -> Result<Answer> {
        let birth = self.birth(ctx, how);
        let asked = self.cache.inodes.moment();
        let make = Mkdir { parent, name: name.clone(), birth, layout: None, mds: false, lease: true };
        let made = self.send(ctx, make).await?;
        Ok(Answer::Entry(self.made(parent, &name, &made, asked)))
    }

    async fn unlink(&self, ctx: &Ctx, parent: Gfid, name: Name) -> Result<Answer> {
        let _removing = self.keep_what_is_open(ctx, parent, &name).await;
        let when = (self.sources.clock)();
        self.changed();
        let removed = self.send(ctx, Unlink { parent, name, only: Only::Any, when }).await?;
        self.cache.inodes.lost_name(removed.iatt.gfid);
        Ok(Answer::Empty)
    }

    async fn rename(&self, ctx: &Ctx, from: (Gfid, Name), to: (Gfid, Name), replace: Replace) -> Result<Answer> {
        let _removing = match replace {
            Replace::Yes => Some(self.keep_what_is_open(ctx, to.0, &to.1).await),
            Replace::No | Replace::Exchange => None,
        };
        let when = (self.sources.clock)();
        self.changed();
        let rename = Rename { from_parent: from.0, from_name: from.1, to_parent: to.0, to_name: to.1, replace, when };
        if let Some(replaced) = self.send(ctx, rename).await?.replaced {
            self.cache.inodes.lost_name(replaced.gfid);
        }
        Ok(Answer::Empty)
    }

    async fn link(&self, ctx: &Ctx, gfid: Gfid, parent: Gfid, name: Name) -> Result<Answer> {
        let when = (self.sources.clock)();
        self.changed();
        let asked = self.cache.inodes.moment();
        let made = match self.send(ctx, Link { gfid, parent, name: name.clone(), when }).await {
            // It has lost its last name since it was found, as may happen on a local disk.
            Err(FopError::Refused(Errno::STALE)) => return Err(Errno::NOENT.into()),
            made => made?,
        };
        let shown = Shown { iatt: &made.iatt, cover: made.cover, exact: AttrMask::all() };
        let place = Place { parent, name: name.as_bytes() };
        Ok(Answer::Entry(self.entry(place, shown, asked, Digest::Blind)))
    }

    /// The inode with this name may be about to lose it: if it is open here and the bricks were not
    /// told, they are told now. Other clients' removals recall the lease, and so come by
    /// [`super::cache::KernelCache`]; our own do not.
    async fn keep_what_is_open(&self, ctx: &Ctx, parent: Gfid, name: &Name) -> Removing<'_> {
        let removing = self.cache.opens.begin_removal();
        if !self.cache.opens.any_deferred() {
            return removing;
        }
        let asked = self.cache.inodes.moment();
        let Ok(looked) = self.send(ctx, Lookup { parent, name: name.clone() }).await else { return removing };
        let victim = looked.found.as_ref().map(|found| found.iatt.gfid);
        let cover = looked.found.as_ref().map_or(looked.cover, |found| found.cover);
        if cover.contains(Cover::NAME) {
            removing.is_of(victim, asked);
        }
        if let Some(gfid) = victim {
            self.cache.make_up_for_opens(&*self.volume, ctx, gfid).await;
        }
        removing
    }

    /// Makes and opens a file.
    ///
    /// If somebody else has made the name meanwhile, the answer is `ESTALE`, unless the program
    /// wants to be the one who makes it: the kernel then looks the name up again and opens what it
    /// finds, with the checks that it does not make after a CREATE. It does so once; so a name that
    /// is gone again is not for the kernel to find out, and what is found the second time is opened here.
    pub(super) async fn create(
        &self,
        ctx: &Ctx,
        parent: Gfid,
        name: Name,
        how: Asked,
        wanted: Wanted,
    ) -> Result<Answer> {
        let exclusive = wanted.raw_flags.cast_signed() & libc::O_EXCL != 0;
        let last_chance = self.retries.has(ctx.caller.pid.cast_unsigned());
        for _ in 0..CREATES_MAX {
            match self.create_once(ctx, parent, name.clone(), how, wanted.flags).await {
                Err(FopError::Refused(Errno::EXIST)) if !exclusive => {}
                answer => return self.unless_gone(ctx, parent, answer).await,
            }
            let asked = self.cache.inodes.moment();
            let looked = self.send(ctx, Lookup { parent, name: name.clone() }).await?;
            let Some(found) = looked.found else { continue };
            if !last_chance {
                break;
            }
            let place = Place { parent, name: name.as_bytes() };
            if let Some(answer) = self.open_found(ctx, place, (&found, asked), wanted).await? {
                return Ok(answer);
            }
        }
        Err(Errno::STALE.into())
    }

    async fn create_once(&self, ctx: &Ctx, parent: Gfid, name: Name, how: Asked, flags: OpenFlags) -> Result<Answer> {
        // A new file is empty, and nobody has given it suid.
        let flags = flags - OpenFlags::TRUNCATE;
        let birth = self.birth(ctx, how);
        let how = self.how(ctx, birth.gfid, flags);
        let number = Fd { id: self.cache.opens.next_number(), gfid: birth.gfid };
        let defer = self.born_covered.load(Ordering::Relaxed);
        let open = (!defer).then_some((number.id, flags | OpenFlags::EXCLUSIVE));
        let asked = self.cache.inodes.moment();
        let guard = OpenGuard::new(self, ctx, number);
        let make = Create { parent, name: name.clone(), birth, content: bytes::Bytes::new(), open, lease: true };
        let made = match self.send(ctx, make).await {
            Err(error @ FopError::Refused(Errno::EXIST)) => {
                guard.disarm();
                return Err(error);
            }
            made => made?,
        };
        let entry = self.made(parent, &name, &made, asked);
        let covered = self.cache.inodes.is_covered(made.iatt.gfid);
        self.born_covered.store(covered, Ordering::Relaxed);
        let deferred = if defer { self.cache.opens.insert_born(number.gfid, how, &self.cache.inodes) } else { None };
        let fh = match deferred {
            Some(fh) => fh,
            None => {
                if defer {
                    self.open_below(ctx, number, flags).await?;
                }
                self.cache.opens.insert(number, how);
                number.id
            }
        };
        guard.disarm();
        Ok(Answer::Created(entry, Opened { fh, flags: opened_new(how) }))
    }
}
