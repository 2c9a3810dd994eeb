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
use std::time::Duration;

use futures::future::BoxFuture;
use mortar_xlators::ctx::Ctx;
use mortar_xlators::error::Result;
use mortar_xlators::fop::Fop;
use mortar_xlators::graph::BrickSpec;
use mortar_xlators::reply::Reply;
use mortar_xlators::types::ClientId;
use mortar_xlators::xlator::{Health, Notices, Subvol, Xlator};
use tokio::sync::watch;
use uuid::Uuid;

use self::lane::Lane;

/// How long a goodbye may take to reach the brick.
const GOODBYE_WAIT: Duration = Duration::from_secs(1);

/// A brick, as a client's graph holds it.
///
/// Dropping it says goodbye to the brick in the background; [`Remote::close`] waits until that is done, for a process
/// that ends.
#[derive(Debug)]
pub struct Remote {
    shared: Arc<Shared>,
}

/// What the layer and its tasks share.
#[derive(Debug)]
struct Shared {
    brick: BrickSpec,
    volume_id: Uuid,
    client: ClientId,
    /// Everything but what concerns leases.
    data: Arc<Lane>,
    /// Leases, locks, recalls, heartbeats: never behind bulk data.
    control: Arc<Lane>,
    health: watch::Sender<Health>,
    notices: Notices,
    /// The layer is no longer wanted.
    leaving: watch::Sender<bool>,
}

impl Remote {
    /// The layer for a brick, as a graph holds it.
    pub fn connect(brick: &BrickSpec, volume_id: Uuid, client: ClientId, notices: Notices) -> Subvol {
        Self::open(brick, volume_id, client, notices)
    }

    /// The layer for a brick, which it begins to connect to. `client` is the same for all bricks of one graph. Needs a
    /// runtime, and stays on it.
    pub fn open(brick: &BrickSpec, volume_id: Uuid, client: ClientId, notices: Notices) -> Arc<Self> {
        let shared = Arc::new(Shared {
            brick: brick.clone(),
            volume_id,
            client,
            data: Lane::new(),
            control: Lane::new(),
            health: watch::Sender::new(Health::Down),
            notices,
            leaving: watch::Sender::new(false),
        });
        let leaving = shared.leaving.subscribe();
        let keep = link::keep(Arc::clone(&shared));
        tokio::spawn(async move {
            tokio::select! {
                () = keep => {}
                () = left(leaving) => {}
            }
        });
        Arc::new(Self { shared })
    }

    /// Say goodbye, so that the brick gives this client's leases to others at once. Waits a second at most.
    pub async fn close(&self) {
        let mut health = self.shared.health.subscribe();
        self.shared.leave();
        // Either way there is nothing more to do.
        let _ = tokio::time::timeout(GOODBYE_WAIT, health.wait_for(|health| !health.is_up())).await;
    }
}

/// The layer is dropped, and had time to say goodbye.
async fn left(mut leaving: watch::Receiver<bool>) {
    // An error says that the layer is gone as well.
    let _ = leaving.wait_for(|leaving| *leaving).await;
    tokio::time::sleep(GOODBYE_WAIT).await;
}

impl Drop for Remote {
    fn drop(&mut self) {
        self.shared.leave();
    }
}

impl Shared {
    fn leave(&self) {
        self.leaving.send_replace(true);
        self.control.goodbye();
    }

    fn lane(&self, fop: &Fop) -> &Arc<Lane> {
        match fop {
            Fop::Lease(_) | Fop::Unlease(_) | Fop::Settle(_) | Fop::Lk(_) => &self.control,
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
