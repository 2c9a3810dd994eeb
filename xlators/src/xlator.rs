//! One layer of a volume: the trait that everything is.

use std::fmt::Debug;
use std::sync::Arc;

use futures::future::BoxFuture;
use tokio::sync::watch;

use crate::ctx::Ctx;
use crate::error::Result;
use crate::fop::{Fop, Operation};
use crate::reply::Reply;
use crate::types::{Epoch, Fd, Gfid, LeaseMode};

/// One layer of a volume.
///
/// A layer answers a fop itself or hands it, changed or not, to a layer below.
/// A client's graph, a brick's graph and the wire between them are all this trait.
///
/// `call` returns a boxed future rather than being `async` so that a layer that only looks can return the future of
/// the layer below as it is.
pub trait Xlator: Debug + Send + Sync + 'static {
    /// How the layer is called in logs and in the volume, such as `gv0-replicate-1`.
    fn name(&self) -> &str;

    /// Answer one fop.
    ///
    /// Dropping the future stops it at an await: what must not stop half way runs in a task of its own.
    fn call<'a>(&'a self, ctx: &'a Ctx, fop: Fop) -> BoxFuture<'a, Result<Reply>>;

    /// Whether the layer can serve, and the event when that changes.
    fn health(&self) -> watch::Receiver<Health>;
}

/// A layer, as the layer above holds it.
pub type Subvol = Arc<dyn Xlator>;

impl dyn Xlator {
    /// Send one fop and get the answer in its own type.
    pub async fn send<O: Operation>(&self, ctx: &Ctx, operation: O) -> Result<O::Reply> {
        let reply = self.call(ctx, operation.into()).await?;
        Ok(O::from_reply(reply).expect("a layer answers a fop with the reply of the same row"))
    }
}

/// Box the future of one fop, and wrap its answer as that of any.
pub(crate) fn answer<'a, O: Operation>(
    future: impl Future<Output = Result<O::Reply>> + Send + 'a,
) -> BoxFuture<'a, Result<Reply>> {
    Box::pin(async move { future.await.map(O::reply) })
}

/// Whether a layer can serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// Nobody answers.
    Down,
    /// Serves. The number changes when what the layer below knew of us is lost (a brick that restarted, a session
    /// that ran out): leases and open files must then be taken again.
    Up {
        /// Which life of the session this is.
        session: u64,
    },
}

impl Health {
    /// Serves.
    pub fn is_up(self) -> bool {
        matches!(self, Self::Up { .. })
    }
}

/// What a brick tells its client without being asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Somebody wants this object: finish, then give the lease back or lower it to what may stay.
    Recall {
        /// The object.
        gfid: Gfid,
        /// The grant that is recalled.
        epoch: Epoch,
        /// What the other wants.
        wanted: LeaseMode,
    },
    /// The brick began (or ceased) to hold pending marks against other copies: until it ceases, no answer of a single
    /// copy may be believed without asking the others.
    Blames {
        /// Marks exist.
        any: bool,
    },
}

/// Where a leaf of a client's graph puts what its brick says unasked.
///
/// Unbounded in itself, bounded by its use: one recall per lease held, and leases per session are bounded.
pub type Notices = tokio::sync::mpsc::UnboundedSender<Notice>;

/// What sits above the graph and must forget what it was told under a lease: the mount, or a cache of the library.
pub trait Upcall: Debug + Send + Sync + 'static {
    /// The leases on these objects are about to be given back, because of somebody who wants to look at them (`Shared`)
    /// or may change them (`Exclusive`). Names in them and their attributes that were answered as covered must be
    /// forgotten, and what was kept back of them handed over, when the future ends. Fops that belong to that say so
    /// ([`Turn::Last`](crate::ctx::Turn::Last)), else they would wait for the leases that wait for them.
    fn uncover<'a>(&'a self, objects: &'a [Gfid], wanted: LeaseMode) -> BoxFuture<'a, ()>;

    /// A brick no longer knows what may be kept back from it, so nothing must be. Must not block.
    fn forgotten(&self) {}

    /// The bricks are about to be told that every copy has all changes of this object: says whether nothing of it is
    /// kept back, and if so, that nothing will be. Must not block.
    fn lets_go(&self, _object: Gfid) -> bool {
        true
    }

    /// A lock that was taken through these open files was lost, and may be another's from now on: they must fail.
    fn lock_lost(&self, _gfid: Gfid, _through: &[Fd]) {}
}
