//! Volumes in this process, of every shape, on temporary directories.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::future::BoxFuture;
use mortar_xlators::distribute::{Distribute, Options};
use mortar_xlators::graph::{self, BrickSpec, Quorum, Spec};
use mortar_xlators::index::Index;
use mortar_xlators::leases::{Config, Leases, Start};
use mortar_xlators::posix::{Posix, PosixOptions, create_brick};
use mortar_xlators::types::{ClientId, Gfid};
use mortar_xlators::xlator::{Health, Notices, Subvol, Upcall};
use tempfile::TempDir;
use uuid::Uuid;

use crate::gate::Gate;
use crate::tree::Tree;

/// What a volume is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// One brick's store.
    Posix,
    /// Names spread over stores without copies or leases.
    Spread {
        /// How many.
        sets: usize,
    },
    /// A client's whole graph over bricks with leases.
    Replicated {
        /// How many sets.
        sets: usize,
        /// Copies in each.
        copies: usize,
    },
}

/// A running volume.
#[derive(Debug)]
pub struct Stack {
    shape: Shape,
    bricks: Vec<Brick>,
    /// Removed with everything in it when the stack goes.
    _place: TempDir,
}

/// One brick of a volume in this process.
#[derive(Debug)]
struct Brick {
    spec: BrickSpec,
    posix: Arc<Posix>,
    leases: Arc<Leases>,
    gate: Arc<Gate>,
}

static NEXT_CLIENT: AtomicU64 = AtomicU64::new(1);

/// A directory for bricks: in memory where there is such a file system, since a brick syncs often.
fn place() -> TempDir {
    let memory = tempfile::Builder::new().prefix("mortar-").tempdir_in("/dev/shm");
    memory.or_else(|_| tempfile::tempdir()).expect("a temporary directory")
}

/// A client that no other test knows.
pub fn new_client() -> ClientId {
    ClientId(NEXT_CLIENT.fetch_add(1, Ordering::Relaxed).into())
}

/// Nobody above the graph remembers anything.
#[derive(Debug)]
struct Forgetful;

impl Upcall for Forgetful {
    fn uncover<'a>(&'a self, _objects: &'a [Gfid]) -> BoxFuture<'a, ()> {
        Box::pin(async {})
    }
}

impl Brick {
    fn start(place: &TempDir, volume: Uuid, number: usize, name: String) -> Self {
        let path = place.path().join(format!("brick-{number}"));
        create_brick(&path, volume).expect("a brick can be made in a temporary directory");
        let id = format!("test-client-{number}");
        let options = PosixOptions { name: id.clone(), ..PosixOptions::default() };
        let posix = Posix::open(&path, volume, options).expect("a new brick can be served");
        let index = Index::open(Arc::clone(&posix)).expect("a new brick has empty indices");
        let journal = Arc::<Index>::clone(&index);
        let leases = Leases::new(index, journal, Config::new(Start::Fresh, 1));
        let gate = Gate::new(name, Arc::<Posix>::clone(&posix));
        let path = path.to_string_lossy().into_owned();
        Self { spec: BrickSpec { id, address: String::new(), path, arbiter: false }, posix, leases, gate }
    }

    /// The brick as one client reaches it.
    fn reach(&self, client: ClientId, notices: Notices) -> Subvol {
        self.leases.attach(client, notices).expect("a brick takes this many clients");
        Arc::<Leases>::clone(&self.leases)
    }
}

impl Stack {
    /// Make the bricks of a volume, and serve them.
    pub async fn start(shape: Shape) -> Self {
        let place = place();
        let volume = Uuid::new_v4();
        let count = match shape {
            Shape::Posix => 1,
            Shape::Spread { sets } => sets,
            Shape::Replicated { sets, copies } => sets * copies,
        };
        let name = |number: usize| format!("test-client-{number}");
        let bricks = (0..count).map(|number| Brick::start(&place, volume, number, name(number))).collect();
        Self { shape, bricks, _place: place }
    }

    /// The volume as a new client sees it.
    pub async fn tree(&self) -> Tree {
        let client = new_client();
        let top: Subvol = match self.shape {
            Shape::Posix => Arc::<Posix>::clone(&self.bricks[0].posix),
            Shape::Spread { .. } => self.spread(Options { free_percent_min: 0 }),
            Shape::Replicated { copies, .. } => self.graph(client, copies),
        };
        let mut health = top.health();
        health.wait_for(|health| Health::is_up(*health)).await.expect("the graph is alive");
        Tree::new(top, client)
    }

    /// A new distribute over the bare stores, each behind its gate.
    pub fn spread(&self, options: Options) -> Subvol {
        let sets = self.bricks.iter().map(|brick| Arc::<Gate>::clone(&brick.gate) as Subvol).collect();
        Distribute::new("test-dht", sets, options)
    }

    /// The gate before a store, for volumes of bare stores.
    pub fn gate(&self, brick: usize) -> &Arc<Gate> {
        &self.bricks[brick].gate
    }

    /// A brick's store, without anything above it.
    pub fn store(&self, brick: usize) -> Tree {
        Tree::new(Arc::<Posix>::clone(&self.bricks[brick].posix), new_client())
    }

    fn graph(&self, client: ClientId, copies: usize) -> Subvol {
        let sets = self.bricks.chunks(copies).enumerate().map(|(number, bricks)| Spec::Replicate {
            name: format!("test-replicate-{number}"),
            bricks: bricks.iter().map(|brick| brick.spec.clone()).collect(),
            quorum: Quorum::Auto,
        });
        let mut sets: Vec<_> = sets.collect();
        let spec = if sets.len() == 1 { sets.remove(0) } else { Spec::Distribute { name: "test-dht".into(), sets } };
        let upcall: Arc<dyn Upcall> = Arc::new(Forgetful);
        let mut leaf = |spec: &BrickSpec, notices: Notices| {
            let brick = self.bricks.iter().find(|brick| brick.spec.id == spec.id);
            brick.expect("the graph asks for bricks of its spec").reach(client, notices)
        };
        graph::build(&spec, client, &mut leaf, &upcall)
    }
}
