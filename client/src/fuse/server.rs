//! Who serves the kernel's requests: from a request to a fop, and from the reply to an answer.
//!
//! One short method per request, by subject: names in `names.rs`, open files in `files.rs`,
//! directories in `dirs.rs`, extended attributes in `xattrs.rs`, attributes here.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mortar_xlators::ctx::{Caller, Ctx};
use mortar_xlators::error::Result;
use mortar_xlators::fop::{Getattr, Operation, Release, Setattr, Statfs, Truncate};
use mortar_xlators::reply::Found;
use mortar_xlators::types::{AttrMask, ClientId, Cover, Fd, Gfid, Iatt};
use mortar_xlators::xlator::Subvol;
use rustix::io::Errno;

use super::cache::{KernelCache, LONG};
use super::convert;
use super::inodes::{Moment, Place, Promise, Seen};
use super::retries::Retries;
use super::transport::Handler;
use super::transport::abi::{SetattrIn, SetattrValid};
use super::transport::interrupt::OnSignal;
use super::transport::notify::Notifier;
use super::transport::reply::{Answer, Entry};
use super::transport::request::{Header, LockWait, Op, Request, SuidSgid};
use super::transport::session::Kernel;
use super::{Acl, Sources, StatMode};

/// The server of one mount.
#[derive(Debug)]
pub(crate) struct Server {
    pub(super) volume: Subvol,
    pub(super) cache: Arc<KernelCache>,
    pub(super) client: ClientId,
    pub(super) sources: Sources,
    pub(super) acl: Acl,
    pub(super) stat: StatMode,
    pub(super) request_time_max: Duration,
    pub(super) next_id: AtomicU64,
    /// How often this mount has changed an inode: attributes that were listed before do not count.
    pub(super) changes: AtomicU64,
    /// Whether new files came under a lease of ours lately, so that opening them needs no message.
    pub(super) born_covered: AtomicBool,
    /// Who must not be answered `ESTALE` again.
    pub(super) retries: Retries,
}

/// Whether the kernel compares versions when it takes the attributes of an answer in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Digest {
    /// It does (LOOKUP, GETATTR, READDIRPLUS), so they may be promised.
    Compared,
    /// It does not, but it has never seen the inode (CREATE, MKDIR): a recall on the way notices that it still has not.
    New,
    /// It does not, so a recall on the way could be missed.
    Blind,
}

impl Server {
    /// Who asks, for the layers below.
    pub(super) fn ctx(&self, header: &Header) -> Ctx {
        let caller = Caller {
            uid: header.uid,
            gid: header.gid,
            groups: header.groups.iter().copied().collect(),
            // Negative numbers are for our own daemons.
            pid: i32::try_from(header.pid).unwrap_or(0),
        };
        self.ctx_of(caller)
    }

    /// A request of this caller.
    pub(super) fn ctx_of(&self, caller: Caller) -> Ctx {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        Ctx::new(id, self.client, caller, Instant::now() + self.request_time_max)
    }

    /// Sends a fop down the graph.
    pub(super) async fn send<O: Operation>(&self, ctx: &Ctx, operation: O) -> Result<O::Reply> {
        self.volume.send(ctx, operation).await
    }

    /// The open file to reach an inode by. The kernel does not name one for fstat(2), fchmod(2) and
    /// the like, also when the inode has no name left.
    fn fd(&self, gfid: Gfid, fh: Option<u64>) -> Option<Fd> {
        match fh.and_then(|fh| self.cache.opens.file(fh).ok()) {
            Some(file) => file.fd(),
            None => self.cache.opens.fd_of(gfid),
        }
    }

    pub(super) fn gfid(&self, nodeid: u64) -> Result<Gfid> {
        Ok(self.cache.inodes.gfid(nodeid)?)
    }

    /// This mount is about to change an inode, or just has.
    pub(super) fn changed(&self) {
        self.changes.fetch_add(1, Ordering::AcqRel);
    }

    /// A name and its inode for the kernel, which counts a reference to it.
    pub(super) fn entry(&self, place: Place<'_>, shown: Shown<'_>, asked: Moment, digest: Digest) -> Entry {
        let Shown { iatt, cover, exact } = shown;
        let seen = Seen { gfid: iatt.gfid, kind: iatt.kind, parent: place.parent, lacks: iatt.lacks };
        let (nodeid, attrs) = self.cache.inodes.remember(seen, KernelCache::attrs_promise(cover, iatt), asked);
        self.cache.inodes.note_directory(iatt);
        let names = self.cache.inodes.promise_since(asked);
        let promised = attrs == Promise::Covered && digest != Digest::Blind && exact.is_all();
        let entry_timeout = self.cache.name_timeout(cover, names);
        if promised && entry_timeout != Duration::ZERO {
            self.cache.inodes.told(nodeid, place);
        }
        Entry {
            nodeid,
            // The node number has its generation in it.
            generation: 0,
            entry_timeout,
            attr_timeout: if promised { LONG } else { Duration::ZERO },
            attr: convert::attr(iatt),
        }
    }

    async fn getattr(&self, ctx: &Ctx, nodeid: u64, fh: Option<u64>) -> Result<Answer> {
        let (iatt, promise) = match self.attributes(ctx, nodeid, fh).await {
            Err(error) if error.is_absent() => (self.last_attributes(ctx, nodeid).ok_or(error)?, Promise::Now),
            answer => answer?,
        };
        if promise == Promise::Now {
            return Ok(Answer::Attr(convert::attr(&iatt), Duration::ZERO));
        }
        self.cache.inodes.attributes_told(nodeid);
        Ok(Answer::Attr(convert::attr(&iatt), LONG))
    }

    /// Of an inode that is gone: a directory is still somebody's open or working directory, and for a caller who has just
    /// looked it up anything is what he found.
    fn last_attributes(&self, ctx: &Ctx, nodeid: u64) -> Option<Iatt> {
        let gfid = self.cache.inodes.gfid(nodeid).ok()?;
        self.cache.inodes.last_of_directory(nodeid).or_else(|| self.kept_attributes(ctx, gfid))
    }

    /// Asks for the attributes of an inode; what may be promised about them.
    pub(super) async fn attributes(&self, ctx: &Ctx, nodeid: u64, fh: Option<u64>) -> Result<(Iatt, Promise)> {
        let gfid = self.gfid(nodeid)?;
        let fd = self.fd(gfid, fh);
        let exact = match self.stat {
            StatMode::Exact => AttrMask::all(),
            StatMode::Lazy => AttrMask::IDENTITY,
        };
        let asked = self.cache.inodes.moment();
        let found = self.send(ctx, Getattr { gfid, fd, exact }).await?;
        let covered =
            if found.exact.is_all() { KernelCache::attrs_promise(found.cover, &found.iatt) } else { Promise::Now };
        let promise = self.cache.inodes.refresh(nodeid, found.iatt.lacks, covered, asked);
        self.cache.inodes.note_directory(&found.iatt);
        Ok((found.iatt, promise))
    }

    async fn setattr(&self, ctx: &Ctx, nodeid: u64, set: &SetattrIn) -> Result<Answer> {
        let gfid = self.gfid(nodeid)?;
        let valid = SetattrValid::from_bits_retain(set.valid);
        let fh = valid.contains(SetattrValid::FH).then_some(set.fh);
        let fd = self.fd(gfid, fh);
        self.changed();
        let mut after = None;
        let mut rest = self.setattr_fop(gfid, fd, set);
        if valid.contains(SetattrValid::SIZE) {
            let suid_sgid = if rest.kill_priv { SuidSgid::Kill } else { SuidSgid::Keep };
            after = Some(self.truncate(ctx, gfid, fd, set.size, suid_sgid).await?);
            // Cutting sets the times by itself.
            rest.mtime = rest.mtime.filter(|_| !valid.contains(SetattrValid::MTIME_NOW));
            rest.kill_priv = false;
        }
        let more = rest.mode.is_some() || rest.uid.is_some() || rest.gid.is_some();
        let more = more || rest.atime.is_some() || rest.mtime.is_some() || rest.kill_priv;
        let iatt = match after {
            Some(iatt) if !more => iatt,
            _ => self.send(ctx, rest).await?.iatt,
        };
        self.changed();
        // The kernel takes this in without comparing versions.
        Ok(Answer::Attr(convert::attr(&iatt), Duration::ZERO))
    }

    fn setattr_fop(&self, gfid: Gfid, fd: Option<Fd>, set: &SetattrIn) -> Setattr {
        let valid = SetattrValid::from_bits_retain(set.valid);
        let when = (self.sources.clock)();
        let time = |given, now, sec, nsec| {
            if valid.contains(now) { Some(when) } else { valid.contains(given).then(|| convert::time(sec, nsec)) }
        };
        Setattr {
            gfid,
            fd,
            mode: valid.contains(SetattrValid::MODE).then_some(set.mode & 0o7777),
            uid: valid.contains(SetattrValid::UID).then_some(set.uid),
            gid: valid.contains(SetattrValid::GID).then_some(set.gid),
            atime: time(SetattrValid::ATIME, SetattrValid::ATIME_NOW, set.atime, set.atimensec),
            mtime: time(SetattrValid::MTIME, SetattrValid::MTIME_NOW, set.mtime, set.mtimensec),
            kill_priv: valid.contains(SetattrValid::KILL_SUIDGID),
            when,
        }
    }

    /// Changes the size; gives the attributes afterwards.
    pub(super) async fn truncate(
        &self,
        ctx: &Ctx,
        gfid: Gfid,
        fd: Option<Fd>,
        size: u64,
        suid_sgid: SuidSgid,
    ) -> Result<Iatt> {
        let when = (self.sources.clock)();
        let cut = Truncate { gfid, fd, size, kill_priv: suid_sgid == SuidSgid::Kill, when };
        Ok(self.send(ctx, cut).await?.iatt)
    }

    async fn statfs(&self, ctx: &Ctx) -> Result<Answer> {
        Ok(Answer::Statfs(convert::statfs(&self.send(ctx, Statfs).await?)))
    }

    async fn serve(&self, ctx: &Ctx, nodeid: u64, op: Op) -> Result<Answer> {
        match op {
            Op::Getattr { fh } => self.getattr(ctx, nodeid, fh).await,
            Op::Setattr(set) => self.setattr(ctx, nodeid, &set).await,
            Op::Statfs => self.statfs(ctx).await,
            op @ (Op::Lookup { .. }
            | Op::Readlink
            | Op::Symlink { .. }
            | Op::Mknod { .. }
            | Op::Mkdir { .. }
            | Op::Unlink { .. }
            | Op::Rmdir { .. }
            | Op::Rename { .. }
            | Op::Link { .. }) => self.serve_name(ctx, nodeid, op).await,
            op @ (Op::Opendir { .. }
            | Op::Readdir { .. }
            | Op::Readdirplus { .. }
            | Op::Releasedir { .. }
            | Op::Fsyncdir { .. }) => self.serve_dir(ctx, nodeid, op).await,
            op @ (Op::Setxattr { .. } | Op::Getxattr { .. } | Op::Listxattr { .. } | Op::Removexattr { .. }) => {
                self.serve_xattr(ctx, nodeid, op).await
            }
            op => self.serve_file(ctx, nodeid, op).await,
        }
    }
}

/// An inode as a reply shows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shown<'a> {
    /// Its attributes.
    pub(crate) iatt: &'a Iatt,
    /// What stays true.
    pub(crate) cover: Cover,
    /// What is exact.
    pub(crate) exact: AttrMask,
}

impl<'a> From<&'a Found> for Shown<'a> {
    fn from(found: &'a Found) -> Self {
        Self { iatt: &found.iatt, cover: found.cover, exact: found.exact }
    }
}

impl Handler for Server {
    fn started(&self, kernel: Kernel, notifier: Notifier) {
        tracing::debug!(minor = kernel.minor, flags = ?kernel.flags, "the kernel agreed");
        self.cache.attach(notifier, Arc::downgrade(&self.volume), self.client);
    }

    async fn call(self: Arc<Self>, request: Request) -> Answer {
        let Request { header, op } = request;
        self.cache.asks(header.pid);
        if matches!(op, Op::Getattr { .. }) {
            self.cache.inodes.asks_for_attributes(header.nodeid);
        } else {
            self.cache.repeat_if_suspect(header.nodeid);
        }
        if makes_attributes_old(&op) {
            self.cache.inodes.attributes_forgotten(header.nodeid);
        }
        let ctx = self.ctx(&header);
        let of_inode = is_of_inode(&op);
        match self.serve(&ctx, header.nodeid, op).await {
            Ok(answer) => {
                if matches!(answer, Answer::Created(..) | Answer::Opened(_)) {
                    self.end_second_walk(header.pid);
                }
                answer
            }
            Err(error) => {
                tracing::trace!(id = ctx.id, %error, "answered with an error");
                // The kernel looks the name up again that led to an inode which is no more.
                let errno = if of_inode && error.is_absent() { Errno::STALE } else { error.errno() };
                if errno == Errno::STALE {
                    self.begin_second_walk(header.pid);
                }
                Answer::Errno(errno)
            }
        }
    }

    fn undelivered(&self, nodeid: u64, answer: Answer) {
        let (entry, opened) = match answer {
            Answer::Entry(entry) => (Some(entry), None),
            Answer::Created(entry, opened) => (Some(entry), Some(opened)),
            _ => (None, None),
        };
        if let Some(entry) = entry {
            self.cache.inodes.forget(entry.nodeid, 1);
        }
        if let Some(fd) = opened.and_then(|opened| self.cache.opens.remove_file(opened.fh)).and_then(|file| file.fd()) {
            let (volume, ctx) = (Arc::clone(&self.volume), self.ctx(&Header::default()));
            tokio::spawn(async move { volume.send(&ctx, Release { fd }).await });
        }
        self.cache.changed_late(nodeid);
    }

    fn forget(&self, nodeid: u64, count: u64) {
        self.cache.inodes.forget(nodeid, count);
    }

    fn on_signal(&self, op: &Op) -> OnSignal {
        match op {
            Op::Setlk { wait: LockWait::Wait, .. } => OnSignal::GiveUp,
            // Nobody sees whether these worked; they must run to their end.
            Op::Release { .. } | Op::Releasedir { .. } | Op::Flush { .. } => OnSignal::Finish,
            Op::Setattr(_) | Op::Setxattr { .. } | Op::Removexattr { .. } => OnSignal::RunOnIfKilled,
            Op::Create { .. } | Op::Mknod { .. } | Op::Mkdir { .. } | Op::Symlink { .. } => OnSignal::RunOnIfKilled,
            Op::Link { .. } | Op::Unlink { .. } | Op::Rmdir { .. } | Op::Rename { .. } => OnSignal::RunOnIfKilled,
            Op::Write { .. } | Op::Fallocate { .. } | Op::CopyFileRange { .. } => OnSignal::RunOnIfKilled,
            _ => OnSignal::GiveUpIfKilled,
        }
    }
}

/// What is asked of an inode, so that no name can be absent.
fn is_of_inode(op: &Op) -> bool {
    let attributes = matches!(op, Op::Getattr { .. } | Op::Setattr(_) | Op::Readlink | Op::Open { .. });
    let xattrs =
        matches!(op, Op::Setxattr { .. } | Op::Getxattr { .. } | Op::Listxattr { .. } | Op::Removexattr { .. });
    attributes || xattrs
}

/// Whether the kernel will ask for the attributes of the inode of this request again, as it knows that they change.
fn makes_attributes_old(op: &Op) -> bool {
    let inode = matches!(
        op,
        Op::Setattr(_)
            | Op::Write { .. }
            | Op::Fallocate { .. }
            | Op::CopyFileRange { .. }
            | Op::Setxattr { .. }
            | Op::Removexattr { .. }
    );
    let made =
        matches!(op, Op::Create { .. } | Op::Mknod { .. } | Op::Mkdir { .. } | Op::Symlink { .. } | Op::Link { .. });
    inode || made || matches!(op, Op::Unlink { .. } | Op::Rmdir { .. } | Op::Rename { .. })
}

/// What a mount does not serve; the kernel does not ask again.
pub(super) fn not_served() -> Result<Answer> {
    Err(Errno::NOSYS.into())
}
