//! Which layers a brick has, bottom to top.

use std::sync::Arc;

use anyhow::{Context, Result};
use futures::future::BoxFuture;
use mortar_xlators::error::Result as FopResult;
use mortar_xlators::index::Index;
use mortar_xlators::io_stats::IoStats;
use mortar_xlators::leases::{self, Leases, Start};
use mortar_xlators::locks::{Locks, Memory};
use mortar_xlators::posix::{LastLife, Posix, PosixOptions};
use mortar_xlators::read_only::ReadOnly;
use mortar_xlators::trace::{Sink, Trace};
use mortar_xlators::types::ClientId;
use mortar_xlators::xlator::{Notices, Subvol};
use tokio::sync::watch;
use tracing::warn;

use crate::BrickConfig;
use crate::session::Clients;

/// The layers of a brick, and what sessions need of them beside fops.
#[derive(Clone, Debug)]
pub struct Stack {
    top: Subvol,
    stats: Arc<IoStats>,
    clients: Arc<dyn Clients>,
}

/// What a brick does beside serving, chosen when it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Extras {
    /// Refuse every change.
    pub read_only: bool,
    /// Write a line for every fop to the log.
    pub trace: bool,
}

impl Stack {
    /// The layers of a real brick: locks over leases over the index over the store.
    pub fn open(config: &BrickConfig, first_epoch: u64) -> Result<Self> {
        let name = &config.brick_id;
        let index_of = config.volume.bricks.iter().position(|brick| brick.id == *name);
        let place = index_of.with_context(|| format!("the volume has no brick with the id {name}"))?;
        let arbiter = config.volume.is_arbiter(place);
        let options = PosixOptions { name: name.clone(), arbiter, ..PosixOptions::default() };
        let posix = Posix::open(&config.path, config.volume.id, options)?;
        let index = Index::open(Arc::clone(&posix)).context("cannot read .glusterfs/indices")?;
        let (start, memory) = match posix.last_life() {
            LastLife::Ended => (Start::Fresh, Memory::Empty),
            LastLife::Broke => (Start::Forgot, Memory::Lost(config.lease_term)),
        };
        let leases_config = leases::Config { term: config.lease_term, ..leases::Config::new(start, first_epoch) };
        let leases = Leases::new(Arc::<Index>::clone(&index), Arc::<Index>::clone(&index), leases_config);
        let locks = Locks::new(Arc::<Leases>::clone(&leases), memory);
        let blames = index.blames();
        let layers = Layers { posix, leases, locks: Arc::clone(&locks), blames };
        Ok(Self::over(name, locks, Arc::new(layers), config.extras))
    }

    /// Counters, and the extras, over any layers: what serves a brick, and tests of the wire.
    pub fn over(name: &str, bottom: Subvol, clients: Arc<dyn Clients>, extras: Extras) -> Self {
        let mut top = bottom;
        if extras.read_only {
            top = ReadOnly::new(top);
        }
        if extras.trace {
            top = Trace::new(name, top, Sink::Log);
        }
        let stats = IoStats::new(top);
        Self { top: Arc::<IoStats>::clone(&stats), stats, clients }
    }

    /// The top layer: what answers a fop.
    pub fn top(&self) -> &Subvol {
        &self.top
    }

    /// The counters.
    pub fn stats(&self) -> &Arc<IoStats> {
        &self.stats
    }

    /// What must hear of clients that come and go.
    pub fn clients(&self) -> &Arc<dyn Clients> {
        &self.clients
    }
}

/// The layers that know clients.
#[derive(Debug)]
struct Layers {
    posix: Arc<Posix>,
    leases: Arc<Leases>,
    locks: Arc<Locks>,
    blames: watch::Receiver<bool>,
}

impl Clients for Layers {
    fn attach(&self, client: ClientId, notices: Notices) -> FopResult<()> {
        self.leases.attach(client, notices)
    }

    fn gone(&self, client: ClientId) {
        self.locks.client_gone(client);
        self.leases.client_gone(client);
        self.posix.client_gone(client);
    }

    fn blames(&self) -> watch::Receiver<bool> {
        self.blames.clone()
    }

    fn settle(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.leases.clear_settled())
    }

    fn stopped(&self) {
        if let Err(error) = self.posix.end_in_order() {
            warn!(%error, "cannot note that the brick stopped in order: its next start waits for former clients");
        }
    }
}
