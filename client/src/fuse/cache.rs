//! What the kernel has cached on our word, and how it is made to forget.
//!
//! Names and attributes that a lease covers are given to the kernel for an hour. Before a lease is
//! given back, [`KernelCache::uncover`] makes the kernel forget what was covered by it:
//! `INC_EPOCH` for names (it takes no inode lock, so it may run while a request waits for the very
//! lease that is recalled), `INVAL_INODE` for attributes.
//!
//! What makes this tight against answers that cross a recall on their way:
//! - An answer asked for before a recall and written after it promises nothing ([`super::inodes`]).
//! - A LOOKUP or GETATTR whose answer the kernel has not digested when the recall comes: the kernel
//!   compares versions that it took before it asked (epoch, attribute version), and drops the
//!   promise itself. An inode that it did not know then is `suspect`: told again at the next request.
//! - Answers to CREATE and MKDIR are not compared, but are about inodes that the kernel has never seen: a recall that
//!   finds it not knowing one waits until it does. Those to SETATTR and LINK are neither, and never promise attributes.
//! - Names from READDIRPLUS get the epoch of their arrival: a recall waits until the listing has
//!   been digested (the next request of the thread that asked shows that), or for [`DIGEST_TIME`], and tells again.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use futures::future::{BoxFuture, join_all};
use mortar_xlators::ctx::{Caller, Ctx};
use mortar_xlators::fop::Open;
use mortar_xlators::types::{ClientId, Cover, Fd, Gfid, Iatt, Kind, LeaseMode, OpenFlags, Time};
use mortar_xlators::xlator::{Upcall, Xlator};
use parking_lot::Mutex;
use rustix::io::Errno;
use tokio::sync::Notify;

use super::inodes::{Inodes, Promise};
use super::locks::Lockers;
use super::opens::Opens;
use super::pages::Pages;
use super::transport::notify::{Notifier, Stale};

/// How long the kernel may believe what a lease covers. A recall ends it, not this.
pub(crate) const LONG: Duration = Duration::from_secs(3600);
/// A process that got a listing has put it into the kernel's cache after this time, or nearly never.
const DIGEST_TIME: Duration = Duration::from_millis(50);
/// How often an answer on its way is looked for.
const LOOK_AGAIN: Duration = Duration::from_millis(1);
/// How long the opens that a recall makes up for may take: well below the time after which a brick fences who does not
/// answer.
const OPEN_TIME_MAX: Duration = Duration::from_secs(3);

/// The kernel's cache of one mount, seen from our side. Made before the graph, which calls it.
#[derive(Debug)]
pub struct KernelCache {
    /// The inode table.
    pub(crate) inodes: Inodes,
    /// Open files and directories.
    pub(crate) opens: Opens,
    /// Who may have locked what.
    pub(crate) lockers: Lockers,
    /// Pages of files.
    pub(crate) pages: Pages,
    attached: OnceLock<Attached>,
    listings: Listings,
}

#[derive(Debug)]
struct Attached {
    notifier: Notifier,
    volume: Weak<dyn Xlator>,
    client: ClientId,
    /// Whether names can be promised: the kernel has `INC_EPOCH`.
    names: Promise,
}

impl KernelCache {
    /// A cache that no kernel uses yet.
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            inodes: Inodes::new(),
            opens: Opens::new(),
            lockers: Lockers::default(),
            pages: Pages::default(),
            attached: OnceLock::new(),
            listings: Listings::default(),
        })
    }

    /// The mount has begun. Finds out whether the kernel can forget names without a lock.
    pub(crate) fn attach(&self, notifier: Notifier, volume: Weak<dyn Xlator>, client: ClientId) {
        let names = match notifier.inc_epoch() {
            Ok(()) => Promise::Covered,
            Err(errno) => {
                tracing::info!(%errno, "the kernel cannot drop names at once (before Linux 6.16): it will keep none");
                Promise::Now
            }
        };
        let attached = Attached { notifier, volume, client, names };
        self.attached.set(attached).expect("a cache serves one mount");
    }

    /// How long a name may be believed that was covered at `asked`.
    pub(crate) fn name_timeout(&self, cover: Cover, promise: Promise) -> Duration {
        let can_forget = self.attached.get().is_some_and(|attached| attached.names == Promise::Covered);
        if can_forget && promise == Promise::Covered && cover.contains(Cover::NAME) { LONG } else { Duration::ZERO }
    }

    /// What may be promised about an inode. One without a name lasts as long as somebody has it open, and no lease
    /// tells when that ends.
    pub(crate) fn attrs_promise(cover: Cover, iatt: &Iatt) -> Promise {
        if cover.contains(Cover::ATTRS) && iatt.nlink > 0 { Promise::Covered } else { Promise::Now }
    }

    /// A listing with promises in it is on its way to this thread.
    pub(crate) fn listing_sent(&self, thread: u32) {
        let mut on_their_way = self.listings.on_their_way.lock();
        on_their_way.insert(thread, Instant::now());
        self.listings.count.store(on_their_way.len(), Ordering::Release);
    }

    /// This thread asks for something: what it was sent before has been digested.
    pub(crate) fn asks(&self, thread: u32) {
        if self.listings.count.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut on_their_way = self.listings.on_their_way.lock();
        if on_their_way.remove(&thread).is_some() {
            self.listings.count.store(on_their_way.len(), Ordering::Release);
            self.listings.digested.notify_waiters();
        }
    }

    /// A request names this inode, so the kernel knows it: repeats what it may have missed.
    pub(crate) fn repeat_if_suspect(&self, nodeid: u64) {
        if self.inodes.clear_suspect(nodeid)
            && let Some(attached) = self.attached.get()
        {
            // Nothing is owed if the kernel has forgotten the inode after all.
            let _ = attached.notifier.inval_inode(nodeid, Stale::Attributes);
        }
    }

    /// The kernel does not know that a request changes the mode.
    pub(crate) fn forget_attributes(&self, nodeid: u64) {
        if let Some(attached) = self.attached.get() {
            self.inodes.attributes_forgotten(nodeid);
            // Nothing is owed if the kernel has forgotten the inode.
            let _ = attached.notifier.inval_inode(nodeid, Stale::Attributes);
        }
    }

    /// Something was changed after the kernel was told that nobody waits for it.
    pub(crate) fn changed_late(&self, nodeid: u64) {
        if let Some(attached) = self.attached.get() {
            self.forget(attached, &[(nodeid, Kind::Dir)]);
        }
    }

    /// Makes the kernel forget; gives the inodes that it does not know yet.
    fn forget(&self, attached: &Attached, known: &[(u64, Kind)]) -> Vec<(u64, Kind)> {
        let mut unseen = Vec::new();
        let mut names = false;
        for (nodeid, kind) in known {
            names |= *kind == Kind::Dir;
            match attached.notifier.inval_inode(*nodeid, Stale::Attributes) {
                Ok(()) => {}
                Err(Errno::NOENT) => {
                    names = true;
                    self.inodes.suspect(*nodeid);
                    unseen.push((*nodeid, *kind));
                }
                Err(errno) => tracing::debug!(nodeid, %errno, "the kernel did not drop attributes"),
            }
        }
        if names && attached.names == Promise::Covered {
            self.inodes.names_forgotten();
            // It worked when the mount began; now it fails only if the mount is gone.
            let _ = attached.notifier.inc_epoch();
        }
        unseen
    }

    /// Takes out of `known` the files that are open here, whose pages are to go with their attributes.
    fn take_open(&self, objects: &[Gfid], known: &mut Vec<(u64, Kind)>) -> Vec<(Gfid, u64)> {
        let mut taken = Vec::new();
        for gfid in objects.iter().filter(|gfid| self.opens.is_open(**gfid)) {
            let Some(nodeid) = self.inodes.with_pages(*gfid) else { continue };
            if let Some(at) = known.iter().position(|known| *known == (nodeid, Kind::File)) {
                known.swap_remove(at);
                taken.push((*gfid, nodeid));
            }
        }
        taken
    }

    /// Tells the kernel again of inodes that it did not know although they were answered: the answers are on their
    /// way, or it has just forgotten them and will say so.
    async fn forget_unseen(&self, attached: &Attached, mut unseen: Vec<(u64, Kind)>) {
        let start = Instant::now();
        while !unseen.is_empty() && start.elapsed() < DIGEST_TIME {
            tokio::time::sleep(LOOK_AGAIN).await;
            unseen.retain(|(nodeid, _)| self.inodes.is_known(*nodeid));
            unseen = self.forget(attached, &unseen);
        }
    }

    /// Tells the bricks of files that were opened without them.
    pub(crate) async fn make_up_for_opens(&self, volume: &dyn Xlator, ctx: &Ctx, gfid: Gfid) {
        let opens = self.opens.take_deferred(gfid).into_iter().map(|file| {
            // What was to be cut has been cut.
            let flags = file.flags - OpenFlags::TRUNCATE;
            volume.send(ctx, Open { fd: file.number(), flags, when: Time::default() })
        });
        for error in join_all(opens).await.into_iter().filter_map(Result::err) {
            tracing::warn!(id = ctx.id, %gfid, %error, "a file that is open here may be lost when it is removed");
        }
    }
}

impl Upcall for KernelCache {
    fn uncover<'a>(&'a self, objects: &'a [Gfid], wanted: LeaseMode) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let mut known = self.inodes.uncover(objects);
            let Some(attached) = self.attached.get() else {
                return;
            };
            let open = if wanted == LeaseMode::Exclusive { self.take_open(objects, &mut known) } else { Vec::new() };
            let mut unseen = self.forget(attached, &known);
            if !open.is_empty() {
                // A file that is being made is open before the kernel knows it.
                let unknown = self.pages.forget(&attached.notifier, &open).await;
                let unknown: Vec<_> = unknown.into_iter().map(|nodeid| (nodeid, Kind::File)).collect();
                unseen.extend(self.forget(attached, &unknown));
            }
            if self.opens.any_deferred()
                && let Some(volume) = attached.volume.upgrade()
            {
                let ctx = Ctx::new(0, attached.client, Caller::root(), Instant::now() + OPEN_TIME_MAX).last();
                for gfid in objects {
                    self.make_up_for_opens(&*volume, &ctx, *gfid).await;
                }
            }
            if self.listings.all_digested().await == Waited::Yes {
                self.forget(attached, &known);
            }
            self.forget_unseen(attached, unseen).await;
        })
    }

    fn lock_lost(&self, gfid: Gfid, through: &[Fd]) {
        self.opens.lose(through);
        // What the kernel has in its cache it would go on to read.
        if let (Some(attached), Some(nodeid)) = (self.attached.get(), self.inodes.nodeid(gfid)) {
            let notifier = attached.notifier.clone();
            // The kernel waits for pages that are being read, and those reads for us.
            tokio::task::spawn_blocking(move || {
                // Nothing is owed if the kernel has forgotten the inode.
                let _ = notifier.inval_inode(nodeid, Stale::Data { offset: 0, length: 0 });
            });
        }
    }
}

/// Listings that threads have been sent and may not have digested.
#[derive(Debug, Default)]
struct Listings {
    on_their_way: Mutex<HashMap<u32, Instant, foldhash::fast::RandomState>>,
    /// How many those are, to be looked at without the lock.
    count: AtomicUsize,
    digested: Notify,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waited {
    Yes,
    No,
}

impl Listings {
    /// Waits until everything sent so far has been digested, as far as can be known.
    async fn all_digested(&self) -> Waited {
        let start = Instant::now();
        let mut waited = Waited::No;
        loop {
            let digested = self.digested.notified();
            let oldest = {
                let mut on_their_way = self.on_their_way.lock();
                on_their_way.retain(|_, sent| sent.elapsed() < DIGEST_TIME);
                self.count.store(on_their_way.len(), Ordering::Release);
                on_their_way.values().filter(|sent| **sent <= start).min().copied()
            };
            let Some(oldest) = oldest else {
                return waited;
            };
            waited = Waited::Yes;
            let _ = tokio::time::timeout(DIGEST_TIME.saturating_sub(oldest.elapsed()), digested).await;
        }
    }
}
