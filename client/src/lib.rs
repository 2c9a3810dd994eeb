//! The client library, the mount and the command line.
//!
//! [`Volume`] is a volume as a program holds it: the graph over the connections to all bricks. The mount puts itself on
//! top of it; so can any program.

pub mod cli;
pub mod fuse;
pub mod remote;
pub mod volume;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use mortar_proto::volume::VolumeFile;
use mortar_xlators::ctx::{Caller, Ctx};
use mortar_xlators::fop::Unlease;
use mortar_xlators::graph::{self, Spec};
use mortar_xlators::io_stats::IoStats;
use mortar_xlators::types::ClientId;
use mortar_xlators::xlator::{Health, Subvol, Upcall, Xlator};
use tokio::time::timeout_at;

use crate::remote::Remote;

/// How long a volume that can already be used waits for its other bricks: a copy that is only late to connect should
/// not be blamed for what it missed in its first moments.
const LATECOMERS_WITHIN: Duration = Duration::from_secs(2);

/// How long a client that leaves tries to leave nothing behind.
const LEAVE_WITHIN: Duration = Duration::from_secs(10);

/// A volume, connected to its bricks.
#[derive(Debug)]
pub struct Volume {
    file: VolumeFile,
    client: ClientId,
    /// The top of the graph.
    stats: Arc<IoStats>,
    leaves: Vec<Arc<Remote>>,
}

/// Whether a client may change the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It may.
    ReadWrite,
    /// Its own graph refuses every change.
    ReadOnly,
}

impl Volume {
    /// Build the graph and begin to connect. `client` must be new for every volume that is connected; `upcall` is told
    /// what it must forget. Needs a runtime.
    pub fn connect(file: VolumeFile, access: Access, client: ClientId, upcall: Arc<dyn Upcall>) -> Self {
        let spec = match access {
            Access::ReadWrite => file.spec(),
            Access::ReadOnly => Spec::ReadOnly { next: Box::new(file.spec()) },
        };
        let mut leaves = Vec::new();
        let root = graph::build(
            &spec,
            client,
            &mut |brick, notices| {
                let leaf = Remote::open(brick, file.id, client, notices);
                leaves.push(Arc::clone(&leaf));
                leaf
            },
            &upcall,
        );
        Self { file, client, stats: IoStats::new(root), leaves }
    }

    /// Leave in order: give the leases back, with the word that every copy has what was changed under them, and say
    /// goodbye to the bricks, so that others need not wait. For a process that ends; who only drops a volume leaves
    /// marks behind that a healer has to look at.
    pub async fn close(&self) {
        let ctx = Ctx::new(0, self.client, Caller::root(), Instant::now() + LEAVE_WITHIN);
        let (root, all) = (self.root(), Unlease { objects: vec![], keep_shared: false });
        let back = timeout_at(ctx.deadline.into(), root.send(&ctx, all));
        if !matches!(back.await, Ok(Ok(_))) {
            tracing::warn!("could not give all leases back: the bricks will take them");
        }
        futures::future::join_all(self.leaves.iter().map(|leaf| leaf.close())).await;
    }

    /// The top of the graph.
    pub fn root(&self) -> Subvol {
        Arc::<IoStats>::clone(&self.stats)
    }

    /// Everything it knows of itself, for people: what was asked of it, and its layers.
    pub fn statedump(&self) -> String {
        let (name, id) = (&self.file.name, self.file.id);
        format!("volume {name} ({id})\n\nfops\n{}\nlayers\n{:#?}\n", self.stats.text(), self.stats)
    }

    /// What the volume is made of.
    pub fn file(&self) -> &VolumeFile {
        &self.file
    }

    /// Wait until enough bricks are connected to work; the error says what is wrong with the others.
    pub async fn ready(&self, patience: Duration) -> Result<()> {
        let deadline = Instant::now() + patience;
        if !is_up(self.stats.as_ref(), deadline).await {
            let problems = volume::problems(&self.file).await;
            bail!("too few bricks of volume {} can be used: {}", self.file.name, problems.join("; "));
        }
        let deadline = deadline.min(Instant::now() + LATECOMERS_WITHIN);
        futures::future::join_all(self.leaves.iter().map(|leaf| is_up(leaf.as_ref(), deadline))).await;
        Ok(())
    }
}

/// Whether a layer serves before the deadline.
async fn is_up(layer: &dyn Xlator, deadline: Instant) -> bool {
    let mut health = layer.health();
    let up = health.wait_for(|health| Health::is_up(*health));
    matches!(timeout_at(deadline.into(), up).await, Ok(Ok(_)))
}
