//! The subvolumes, and how to ask several of them at once.

use std::collections::HashMap;
use std::fmt;

use futures::future::join_all;
use tokio::sync::watch;

use crate::ctx::{Caller, Ctx};
use crate::error::{FopError, Result};
use crate::fop::Operation;
use crate::xlator::{Health, Subvol};

/// The subvolumes of a volume, by index in the order of the volume file.
pub(super) struct Sets {
    subvols: Box<[Subvol]>,
    health: Box<[watch::Receiver<Health>]>,
    /// Indices in the order of the names, as `strcmp` has it: the order of ranges in new directories.
    order: Box<[usize]>,
    by_name: HashMap<Vec<u8>, usize>,
}

impl fmt::Debug for Sets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.subvols.iter()).finish()
    }
}

impl Sets {
    pub(super) fn new(subvols: Vec<Subvol>) -> Self {
        let mut order: Box<[usize]> = (0..subvols.len()).collect();
        order.sort_by_key(|&set| subvols[set].name().as_bytes());
        Self {
            health: subvols.iter().map(|subvol| subvol.health()).collect(),
            by_name: subvols.iter().enumerate().map(|(set, subvol)| (subvol.name().into(), set)).collect(),
            subvols: subvols.into(),
            order,
        }
    }

    pub(super) fn count(&self) -> usize {
        self.subvols.len()
    }

    pub(super) fn all(&self) -> std::ops::Range<usize> {
        0..self.subvols.len()
    }

    pub(super) fn others(&self, set: usize) -> impl Iterator<Item = usize> + Clone + use<> {
        (0..self.subvols.len()).filter(move |&other| other != set)
    }

    pub(super) fn order(&self) -> &[usize] {
        &self.order
    }

    pub(super) fn get(&self, set: usize) -> &Subvol {
        &self.subvols[set]
    }

    pub(super) fn name(&self, set: usize) -> &str {
        self.subvols[set].name()
    }

    /// The subvolume that link files call by this name. A NUL at the end does not matter.
    pub(super) fn named(&self, name: &[u8]) -> Option<usize> {
        self.by_name.get(name.strip_suffix(b"\0").unwrap_or(name)).copied()
    }

    pub(super) fn is_up(&self, set: usize) -> bool {
        self.health[set].borrow().is_up()
    }

    /// Refuse what must be done on all subvolumes while one cannot hear it.
    pub(super) fn need_all(&self) -> Result<()> {
        if self.all().all(|set| self.is_up(set)) { Ok(()) } else { Err(FopError::Unreachable) }
    }

    pub(super) async fn ask<O: Operation>(&self, ctx: &Ctx, set: usize, operation: O) -> Result<O::Reply> {
        self.subvols[set].send(ctx, operation).await
    }

    /// Ask some subvolumes at once, each with its own operation.
    pub(super) async fn ask_each<O: Operation>(
        &self,
        ctx: &Ctx,
        operations: impl IntoIterator<Item = (usize, O)>,
    ) -> Answers<O::Reply> {
        let one = async |(set, operation)| (set, self.ask(ctx, set, operation).await);
        join_all(operations.into_iter().map(one)).await
    }

    /// Ask some subvolumes at once.
    pub(super) async fn ask_some<O: Operation + Clone>(
        &self,
        ctx: &Ctx,
        sets: impl IntoIterator<Item = usize>,
        operation: &O,
    ) -> Answers<O::Reply> {
        self.ask_each(ctx, sets.into_iter().map(|set| (set, operation.clone()))).await
    }

    /// Ask all subvolumes at once.
    pub(super) async fn ask_all<O: Operation + Clone>(&self, ctx: &Ctx, operation: &O) -> Answers<O::Reply> {
        self.ask_some(ctx, self.all(), operation).await
    }
}

/// What subvolumes said, each with its index.
pub(super) type Answers<T> = Vec<(usize, Result<T>)>;

/// The same request made by this layer for itself: as root, and allowed to see and set what clients may not.
pub(super) fn as_ourselves(ctx: &Ctx) -> Ctx {
    Ctx { caller: Caller { pid: PID_OURSELVES, ..Caller::root() }, ..ctx.clone() }
}

/// Negative marks internal requests.
const PID_OURSELVES: i32 = -1;
