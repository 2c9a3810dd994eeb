//! What the server does differently for a thread that walks a path a second time; see [`super::retries`].

use std::sync::Arc;

use bytes::Bytes;
use mortar_xlators::ctx::{Caller, Ctx};
use mortar_xlators::error::Result;
use mortar_xlators::fop::{Getattr, Open, Readlink};
use mortar_xlators::reply::Found;
use mortar_xlators::types::{AttrMask, Fd, Gfid, Iatt, Kind, Name, OpenFlags, Time};
use rustix::io::Errno;

use super::callers::{May, Powers, may_open};
use super::inodes::{Moment, Place, Promise};
use super::opens::How;
use super::retries::{Kept, WALK_TIME};
use super::server::{Digest, Server, Shown};
use super::transport::reply::{Answer, Opened};
use super::transport::request::SuidSgid;

/// How often a name is looked up whose inode is gone before it can be kept: each time somebody was faster.
const LOOKS_MAX: usize = 64;

/// How a file is opened in advance.
const IN_ADVANCE: How = How { flags: OpenFlags::READ, opener_if_unflushed: None };

/// What a CREATE is to open, as the kernel says it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) raw_flags: u32,
    pub(super) flags: OpenFlags,
    pub(super) suid_sgid: SuidSgid,
}

impl Server {
    /// A thread is answered `ESTALE`.
    pub(super) fn begin_second_walk(self: &Arc<Self>, thread: u32) {
        // Nobody whom we could recognize.
        if thread == 0 {
            return;
        }
        let Some(number) = self.retries.begin(thread) else { return };
        let server = Arc::downgrade(self);
        tokio::spawn(async move {
            tokio::time::sleep(WALK_TIME).await;
            if let Some(server) = server.upgrade() {
                let over = server.retries.expire(thread, number);
                server.let_go(over).await;
            }
        });
    }

    /// A thread has opened something.
    pub(super) fn end_second_walk(self: &Arc<Self>, thread: u32) {
        let kept = self.retries.end(thread);
        if kept.iter().any(|kept| kept.fh.is_some()) {
            let server = Arc::clone(self);
            tokio::spawn(async move { server.let_go(kept).await });
        }
    }

    async fn let_go(&self, kept: impl IntoIterator<Item = Kept>) {
        for fh in kept.into_iter().filter_map(|kept| kept.fh) {
            let ctx = self.own_ctx();
            if let Err(error) = self.release(&ctx, fh).await {
                tracing::debug!(id = ctx.id, %error, "could not close a file that was opened in advance");
            }
        }
    }

    fn own_ctx(&self) -> Ctx {
        self.ctx_of(Caller::root())
    }

    /// Looks a name up until what it leads to can be kept for the caller.
    pub(super) async fn look_and_keep(&self, ctx: &Ctx, parent: Gfid, name: &Name) -> Result<Answer> {
        let mut last = self.look_once(ctx, parent, name.clone()).await?;
        for _ in 1..LOOKS_MAX {
            let (answer, Some(found)) = &last else { return Ok(last.0) };
            let Answer::Entry(entry) = answer else { return Ok(last.0) };
            match self.keep(ctx, entry.nodeid, found).await {
                Err(error) if error.is_absent() => {}
                _ => return Ok(last.0),
            }
            // The kernel never hears of it.
            self.cache.inodes.forget(entry.nodeid, 1);
            last = self.look_once(ctx, parent, name.clone()).await?;
        }
        Ok(last.0)
    }

    async fn keep(&self, ctx: &Ctx, nodeid: u64, found: &Found) -> Result<()> {
        let iatt = found.iatt;
        let (fh, target) = match iatt.kind {
            Kind::File => (Some(self.open_in_advance(ctx, nodeid, iatt.gfid).await?), None),
            Kind::Symlink => (None, Some(self.send(ctx, Readlink { gfid: iatt.gfid }).await?.target)),
            _ => (None, None),
        };
        let too_much = self.retries.keep(ctx.caller.pid.cast_unsigned(), Kept { iatt, fh, target });
        self.let_go(too_much).await;
        Ok(())
    }

    async fn open_in_advance(&self, ctx: &Ctx, nodeid: u64, gfid: Gfid) -> Result<u64> {
        let opens = &self.cache.opens;
        if let Some(fh) = opens.insert_deferred(gfid, IN_ADVANCE, &self.cache.inodes) {
            return Ok(fh);
        }
        // It may be covered now.
        let covered = self.attributes(ctx, nodeid, None).await?.1 == Promise::Covered;
        if covered && let Some(fh) = opens.insert_deferred(gfid, IN_ADVANCE, &self.cache.inodes) {
            return Ok(fh);
        }
        let number = Fd { id: opens.next_number(), gfid };
        let open = Open { fd: number, flags: IN_ADVANCE.flags, when: Time::default() };
        let guard = super::files::OpenGuard::new(self, ctx, number);
        self.send(&ctx.as_root(), open).await?;
        guard.disarm();
        opens.insert(number, IN_ADVANCE);
        Ok(number.id)
    }

    /// What was kept of an inode for the caller.
    pub(super) fn kept_attributes(&self, ctx: &Ctx, gfid: Gfid) -> Option<Iatt> {
        self.retries.kept(ctx.caller.pid.cast_unsigned(), gfid).map(|kept| kept.iatt)
    }

    /// Where a symbolic link leads to, also if it is gone but kept.
    pub(super) async fn readlink(&self, ctx: &Ctx, gfid: Gfid) -> Result<Bytes> {
        match self.send(ctx, Readlink { gfid }).await {
            Err(error) if error.is_absent() => {
                let kept = self.retries.kept(ctx.caller.pid.cast_unsigned(), gfid);
                kept.and_then(|kept| kept.target).ok_or(error)
            }
            answer => Ok(answer?.target),
        }
    }

    /// Opens what a CREATE has found where it was to make a file, for a caller who gets no other chance. `None` if it
    /// is gone again, or if only the kernel can tell whether it may be opened.
    pub(super) async fn open_found(
        &self,
        ctx: &Ctx,
        place: Place<'_>,
        (found, asked): (&Found, Moment),
        wanted: Wanted,
    ) -> Result<Option<Answer>> {
        let iatt = &found.iatt;
        if iatt.kind == Kind::Dir {
            return Err(Errno::ISDIR.into());
        }
        match self.may_open_found(ctx, place.parent, iatt, wanted).await? {
            May::Yes => {}
            May::No => return Err(Errno::ACCESS.into()),
            May::Unsure => return Ok(None),
        }
        let entry = self.entry(place, Shown::from(found), asked, Digest::Blind);
        match self.open(ctx, iatt.gfid, wanted.flags, wanted.suid_sgid).await {
            Ok(Answer::Opened(Opened { fh, flags })) => Ok(Some(Answer::Created(entry, Opened { fh, flags }))),
            answer => {
                self.cache.inodes.forget(entry.nodeid, 1);
                match answer {
                    Err(error) if !error.is_absent() => Err(error),
                    _ => Ok(None),
                }
            }
        }
    }

    async fn may_open_found(&self, ctx: &Ctx, parent: Gfid, iatt: &Iatt, wanted: Wanted) -> Result<May> {
        let no_atime = wanted.raw_flags.cast_signed() & libc::O_NOATIME != 0;
        let Some(powers) = Powers::of(ctx.caller.pid).filter(|_| !no_atime) else { return Ok(May::Unsure) };
        let directory = self.send(ctx, Getattr { gfid: parent, fd: None, exact: AttrMask::IDENTITY }).await?.iatt;
        Ok(may_open(&ctx.caller, &powers, (iatt, &directory), wanted.flags, self.acl))
    }
}
