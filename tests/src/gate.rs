//! A layer that can be shut, and counts what passes: for tests of what happens when a part of a volume is away.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::future::BoxFuture;
use mortar_xlators::ctx::Ctx;
use mortar_xlators::error::{Errno, FopError, Result};
use mortar_xlators::fop::{Fop, FopKind};
use mortar_xlators::reply::{Entries, Reply};
use mortar_xlators::xlator::{Health, Subvol, Xlator};
use parking_lot::Mutex;
use tokio::sync::watch;

/// A layer that can be shut, and counts what passes.
#[derive(Debug)]
pub struct Gate {
    next: Subvol,
    /// How it is called in the volume.
    name: String,
    health: watch::Sender<Health>,
    lives: AtomicU64,
    passed: Mutex<Vec<FopKind>>,
    /// The kind of fop before which it shuts, and how many of it still pass.
    trap: Mutex<Option<(FopKind, u32)>>,
    pretence: Mutex<Pretence>,
}

/// What a gate answers by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pretence {
    None,
    /// Directories are empty.
    Empty,
    /// There is no room for new files.
    Full,
}

impl Gate {
    /// An open gate before `next`.
    pub fn new(name: impl Into<String>, next: Subvol) -> Arc<Self> {
        let (health, _) = watch::channel(Health::Up { session: 0 });
        let (lives, passed, trap) = (AtomicU64::new(0), Mutex::default(), Mutex::default());
        let pretence = Mutex::new(Pretence::None);
        Arc::new(Self { next, name: name.into(), health, lives, passed, trap, pretence })
    }

    /// Nobody answers from now on.
    pub fn shut(&self) {
        self.health.send_replace(Health::Down);
    }

    /// Answers again, in another session.
    pub fn open(&self) {
        let session = self.lives.fetch_add(1, Ordering::Relaxed) + 1;
        self.health.send_replace(Health::Up { session });
    }

    /// Shut before the fop of this kind that comes after `passing` others of it.
    pub fn shut_before(&self, kind: FopKind, passing: u32) {
        *self.trap.lock() = Some((kind, passing));
    }

    /// Pretend that all directories are empty.
    pub fn pretend_empty(&self) {
        *self.pretence.lock() = Pretence::Empty;
    }

    /// Pretend that there is no room for new files.
    pub fn pretend_full(&self) {
        *self.pretence.lock() = Pretence::Full;
    }

    /// Answer truly again.
    pub fn pretend_nothing(&self) {
        *self.pretence.lock() = Pretence::None;
    }

    /// What has passed since the last call, in order.
    pub fn passed(&self) -> Vec<FopKind> {
        std::mem::take(&mut *self.passed.lock())
    }

    fn springs(&self, kind: FopKind) -> bool {
        let mut trap = self.trap.lock();
        match &mut *trap {
            Some((trapped, passing)) if *trapped == kind && *passing > 0 => *passing -= 1,
            Some((trapped, _)) if *trapped == kind => {
                *trap = None;
                return true;
            }
            _ => {}
        }
        false
    }
}

impl Xlator for Gate {
    fn name(&self) -> &str {
        &self.name
    }

    fn call<'a>(&'a self, ctx: &'a Ctx, fop: Fop) -> BoxFuture<'a, Result<Reply>> {
        let kind = fop.kind();
        if self.springs(kind) {
            self.shut();
        }
        if !self.health.borrow().is_up() {
            return Box::pin(async { Err(FopError::Unreachable) });
        }
        self.passed.lock().push(kind);
        match (*self.pretence.lock(), kind) {
            (Pretence::Empty, FopKind::Readdir) => {
                Box::pin(async { Ok(Reply::Readdir(Entries { entries: Vec::new(), end: true })) })
            }
            (Pretence::Full, FopKind::Create) => Box::pin(async { Err(Errno::NOSPC.into()) }),
            _ => self.next.call(ctx, fop),
        }
    }

    fn health(&self) -> watch::Receiver<Health> {
        self.health.subscribe()
    }
}
