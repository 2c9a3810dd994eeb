//! A brick as a layer: fops go to it over gRPC, its answers and recalls come back.
//!
//! Connects, keeps connected and comes back for ever, so a [`Remote`] is made once and its [`Health`] tells the rest.
//! `lane` holds the requests that are not yet answered and puts them into frames; `link` makes connections and carries
//! a session from its first hello to its loss. [`control`] is what people ask a brick, beside all this.
//!
//! Invariant: every call ends: with the brick's answer, or `Unreachable` when the brick is gone, the session was lost,
//! or the caller's deadline passed. A request that is sent again after a reconnect keeps its number, so the brick never
//! executes it twice.

pub mod control;
mod lane;
mod link;

use std::sync::Arc;

use futures::future::BoxFuture;
use mortar_xlators::ctx::Ctx;
use mortar_xlators::error::Result;
use mortar_xlators::fop::Fop;
use mortar_xlators::graph::BrickSpec;
use mortar_xlators::reply::Reply;
use mortar_xlators::types::ClientId;
use mortar_xlators::xlator::{Health, Notices, Subvol, Xlator};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use uuid::Uuid;

use self::lane::Lane;

/// A brick, as a client's graph holds it.
#[derive(Debug)]
pub struct Remote {
    shared: Arc<Shared>,
    /// The task that keeps the connections; it ends with the layer.
    keeper: AbortHandle,
}

/// What the layer and its tasks share.
#[derive(Debug)]
struct Shared {
    brick: BrickSpec,
    volume_id: Uuid,
    client: ClientId,
    /// Everything but what concerns leases.
    data: Arc<Lane>,
    /// Leases, recalls, heartbeats: never behind bulk data.
    control: Arc<Lane>,
    health: watch::Sender<Health>,
    notices: Notices,
}

impl Remote {
    /// The layer for a brick, which it begins to connect to. `client` is the same for all bricks of one graph. Needs a
    /// runtime, and stays on it.
    pub fn connect(brick: &BrickSpec, volume_id: Uuid, client: ClientId, notices: Notices) -> Subvol {
        let shared = Arc::new(Shared {
            brick: brick.clone(),
            volume_id,
            client,
            data: Lane::new(),
            control: Lane::new(),
            health: watch::Sender::new(Health::Down),
            notices,
        });
        let keeper = tokio::spawn(link::keep(Arc::clone(&shared))).abort_handle();
        Arc::new(Self { shared, keeper })
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        self.keeper.abort();
        self.shared.data.down();
        self.shared.control.down();
    }
}

impl Shared {
    fn lane(&self, fop: &Fop) -> &Arc<Lane> {
        match fop {
            Fop::Lease(_) | Fop::Unlease(_) | Fop::Settle(_) => &self.control,
            _ => &self.data,
        }
    }
}

impl Xlator for Remote {
    fn name(&self) -> &str {
        &self.shared.brick.id
    }

    fn call<'a>(&'a self, ctx: &'a Ctx, fop: Fop) -> BoxFuture<'a, Result<Reply>> {
        Box::pin(self.shared.lane(&fop).call(ctx, fop))
    }

    fn health(&self) -> watch::Receiver<Health> {
        self.shared.health.subscribe()
    }
}
