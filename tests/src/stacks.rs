//! Volumes in this process, of every shape, on temporary directories.

use std::any::Any;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::future::BoxFuture;
use mortar_brick::{BrickConfig, Stack as BrickStack};
use mortar_client::remote::Remote;
use mortar_proto::volume::{Shape as Copies, VolumeFile};
use mortar_xlators::distribute::{Distribute, Options};
use mortar_xlators::graph::{self, BrickSpec, Quorum};
use mortar_xlators::locks::{Locks, Memory};
use mortar_xlators::posix::{Posix, PosixOptions, create_brick};
use mortar_xlators::types::{ClientId, Gfid, LeaseMode};
use mortar_xlators::xlator::{Health, Notices, Subvol, Upcall};
use tempfile::TempDir;
use uuid::Uuid;

use crate::cluster::Cluster;
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
    /// A client's whole graph over bricks with all their layers.
    Replicated {
        /// How many sets.
        sets: usize,
        /// Copies in each.
        copies: usize,
    },
    /// The same, with the network in between.
    Wire {
        /// How many sets.
        sets: usize,
        /// Copies in each.
        copies: usize,
    },
    /// The same, and every brick a process.
    Processes {
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
    volume: VolumeFile,
    bricks: Vec<Brick>,
    /// Takes the bricks down and removes them when it is dropped.
    _place: Box<dyn Any + Send + Sync>,
}

/// One brick of a volume in this process.
#[derive(Debug)]
enum Brick {
    /// Its store, and a gate before it.
    Bare(Arc<Posix>, Arc<Gate>),
    /// All layers.
    Whole(BrickStack),
    /// All layers, and a port.
    Served(mortar_brick::Brick),
    /// A process.
    Process,
}

static NEXT_CLIENT: AtomicU64 = AtomicU64::new(1);

/// A client that no other test knows.
pub fn new_client() -> ClientId {
    ClientId(NEXT_CLIENT.fetch_add(1, Ordering::Relaxed).into())
}

/// A directory for bricks: in memory where there is such a file system, since a brick syncs often.
fn place() -> TempDir {
    let memory = tempfile::Builder::new().prefix("mortar-").tempdir_in("/dev/shm");
    memory.or_else(|_| tempfile::tempdir()).expect("a temporary directory")
}

/// Nobody above the graph remembers anything.
#[derive(Debug)]
struct Forgetful;

impl Upcall for Forgetful {
    fn uncover<'a>(&'a self, _: &'a [Gfid], _: LeaseMode) -> BoxFuture<'a, ()> {
        Box::pin(async {})
    }
}

impl Shape {
    fn sets_and_copies(self) -> (usize, usize) {
        match self {
            Self::Posix => (1, 1),
            Self::Spread { sets } => (sets, 1),
            Self::Replicated { sets, copies } | Self::Wire { sets, copies } => (sets, copies),
            Self::Processes { sets, copies } => (sets, copies),
        }
    }
}

/// Make the directories of a volume's bricks, and its file. The ports are nobody's.
fn create(place: &TempDir, shape: Shape) -> VolumeFile {
    let (sets, copies) = shape.sets_and_copies();
    let id = Uuid::new_v4();
    let path = |number: usize| place.path().join(format!("brick-{number}"));
    for number in 0..sets * copies {
        create_brick(&path(number), id).expect("a brick can be made in a temporary directory");
    }
    let entry = |number: usize| format!("127.0.0.1:{}:{}", number + 1, path(number).display());
    let bricks: Vec<_> = (0..sets * copies).map(entry).collect();
    let replica = u32::try_from(copies).expect("few copies");
    let copies = Copies { replica, arbiter: false, quorum: Quorum::Auto };
    VolumeFile::create("test", id, copies, &bricks).expect("a valid volume")
}

impl Brick {
    async fn start(volume: &VolumeFile, number: usize, shape: Shape) -> Self {
        let entry = &volume.bricks[number];
        let config = BrickConfig::new(PathBuf::from(&entry.path), "127.0.0.1:0", volume.clone(), &entry.id);
        match shape {
            Shape::Posix | Shape::Spread { .. } => {
                let options = PosixOptions { name: entry.id.clone(), ..PosixOptions::default() };
                let posix = Posix::open(&config.path, volume.id, options).expect("a new brick can be served");
                let gate = Gate::new(entry.id.clone(), Arc::<Posix>::clone(&posix));
                Self::Bare(posix, gate)
            }
            Shape::Replicated { .. } => Self::Whole(BrickStack::open(&config, 1).expect("a new brick can be served")),
            Shape::Wire { .. } => {
                Self::Served(mortar_brick::Brick::start(config).await.expect("a new brick can be served"))
            }
            Shape::Processes { .. } => Self::Process,
        }
    }

    /// The brick as one client reaches it.
    fn reach(&self, spec: &BrickSpec, volume: Uuid, client: ClientId, notices: Notices) -> Subvol {
        match self {
            Self::Bare(_, gate) => Arc::<Gate>::clone(gate),
            Self::Whole(stack) => {
                stack.clients().attach(client, notices).expect("a brick takes this many clients");
                Arc::clone(stack.top())
            }
            Self::Served(brick) => {
                let spec = BrickSpec { address: brick.address().to_string(), ..spec.clone() };
                Remote::connect(&spec, volume, client, notices)
            }
            Self::Process => Remote::connect(spec, volume, client, notices),
        }
    }

    fn bare(&self) -> (&Arc<Posix>, &Arc<Gate>) {
        match self {
            Self::Bare(posix, gate) => (posix, gate),
            Self::Whole(_) | Self::Served(_) | Self::Process => panic!("only a volume of bare stores shows them"),
        }
    }
}

impl Stack {
    /// Make the bricks of a volume, and serve them.
    pub async fn start(shape: Shape) -> Self {
        let (place, volume): (Box<dyn Any + Send + Sync>, _) = match shape {
            Shape::Processes { sets, copies } => {
                let up = move || Cluster::up(sets * copies, copies, 1).expect("a volume of processes");
                let cluster = tokio::task::spawn_blocking(up).await.expect("nobody aborts it");
                let file = cluster.directory().join("volume.toml");
                let text = std::fs::read_to_string(file).expect("a volume that is up has a file");
                (Box::new(cluster) as Box<_>, VolumeFile::parse(&text).expect("it is valid"))
            }
            _ => {
                let place = place();
                let volume = create(&place, shape);
                (Box::new(place) as Box<_>, volume)
            }
        };
        let mut bricks = Vec::with_capacity(volume.bricks.len());
        for number in 0..volume.bricks.len() {
            bricks.push(Brick::start(&volume, number, shape).await);
        }
        Self { shape, volume, bricks, _place: place }
    }

    /// Stop the bricks in order.
    pub async fn stop(self) {
        for brick in self.bricks {
            if let Brick::Served(brick) = brick {
                brick.shutdown().await;
            }
        }
    }

    /// The volume as a new client sees it, once it can be used.
    pub async fn tree(&self) -> Tree {
        let client = new_client();
        let top: Subvol = match self.shape {
            Shape::Posix => Locks::new(Arc::<Posix>::clone(self.bricks[0].bare().0), Memory::Empty),
            Shape::Spread { .. } => self.spread(Options { free_percent_min: 0 }),
            Shape::Replicated { .. } | Shape::Wire { .. } | Shape::Processes { .. } => self.graph(client),
        };
        let mut health = top.health();
        health.wait_for(|health| Health::is_up(*health)).await.expect("the graph is alive");
        Tree::new(top, client)
    }

    /// A new distribute over the bare stores, each behind its gate and with locks of its own.
    pub fn spread(&self, options: Options) -> Subvol {
        let set = |brick: &Brick| Locks::new(Arc::<Gate>::clone(brick.bare().1), Memory::Empty) as Subvol;
        let sets = self.bricks.iter().map(set).collect();
        Distribute::new("test-dht", sets, options)
    }

    /// The gate before a store, in a volume of bare stores.
    pub fn gate(&self, brick: usize) -> &Arc<Gate> {
        self.bricks[brick].bare().1
    }

    /// A brick's store without anything above it, in a volume of bare stores.
    pub fn store(&self, brick: usize) -> Tree {
        Tree::new(Arc::<Posix>::clone(self.bricks[brick].bare().0), new_client())
    }

    fn graph(&self, client: ClientId) -> Subvol {
        let upcall: Arc<dyn Upcall> = Arc::new(Forgetful);
        let mut leaf = |spec: &BrickSpec, notices: Notices| {
            let at = self.volume.bricks.iter().position(|brick| brick.id == spec.id);
            let brick = &self.bricks[at.expect("the graph asks for bricks of the volume")];
            brick.reach(spec, self.volume.id, client, notices)
        };
        graph::build(&self.volume.spec(), client, &mut leaf, &upcall)
    }
}
