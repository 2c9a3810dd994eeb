//! The shape of a volume as a typed tree, and how it becomes layers: the only file that names every translator.
//!
//! Wrong arity does not parse: a `Replicate` has bricks, a filter has exactly one `next`.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use crate::cache::Cache;
use crate::distribute::single::Single;
use crate::distribute::{self, Distribute};
use crate::io_stats::IoStats;
use crate::read_only::ReadOnly;
use crate::replicate::{Replicate, ReplicateOptions};
use crate::trace::{Sink, Trace};
use crate::types::ClientId;
use crate::xlator::{Notices, Subvol, Upcall};

/// One brick, as a client reaches it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BrickSpec {
    /// Its identity in pending marks, such as `gv0-client-2`: assigned once, kept when bricks are added or replaced.
    pub id: String,
    /// Host and port.
    pub address: String,
    /// The directory on that host.
    pub path: String,
    /// Keeps names and attributes only.
    #[serde(default)]
    pub arbiter: bool,
}

/// How many copies must take part in a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Quorum {
    /// More than half; with an even number exactly half suffices if it includes the first.
    #[default]
    Auto,
    /// This many.
    Fixed(u32),
    /// One.
    None,
}

/// A graph of layers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Spec {
    /// Keep a copy on each brick (one brick is a set, too: it takes the leases).
    Replicate {
        /// `gv0-replicate-1`, or the brick's id where there is one brick: what link files point to.
        name: String,
        /// The copies, in the order of the volume file.
        bricks: Vec<BrickSpec>,
        /// When a change holds.
        quorum: Quorum,
    },
    /// Spread names over subvolumes.
    Distribute {
        /// `gv0-dht`.
        name: String,
        /// The subvolumes.
        sets: Vec<Self>,
    },
    /// Answer what is known, and keep back what nobody else can see.
    Cache {
        /// The layer below.
        next: Box<Self>,
    },
    /// Refuse every change.
    ReadOnly {
        /// The layer below.
        next: Box<Self>,
    },
    /// Count fops and their latency.
    IoStats {
        /// The layer below.
        next: Box<Self>,
    },
    /// Write a line for every fop and answer.
    Trace {
        /// The layer below.
        next: Box<Self>,
    },
}

/// Makes the bottom of a graph: the connection to a brick, or a brick in this process. What the brick says unasked goes
/// into the channel.
pub type Leaf<'a> = dyn FnMut(&BrickSpec, Notices) -> Subvol + 'a;

/// Make the layers of a client's graph, and give back the top. `client` is who the graph belongs to; `upcall` is told
/// before a lease goes. Must be called inside a runtime.
pub fn build(spec: &Spec, client: ClientId, leaf: &mut Leaf<'_>, upcall: &Arc<dyn Upcall>) -> Subvol {
    match spec {
        Spec::Distribute { .. } => build_names(spec, client, leaf, upcall),
        // A volume of one set: names need no distribution, but new directories say so.
        Spec::Replicate { .. } => Arc::new(Single::new(build_names(spec, client, leaf, upcall))),
        Spec::Cache { next } => {
            let above = Arc::clone(upcall);
            Cache::over(client, above, |upcall| build(next, client, leaf, upcall))
        }
        Spec::ReadOnly { next } => ReadOnly::new(build(next, client, leaf, upcall)),
        Spec::IoStats { next } => IoStats::new(build(next, client, leaf, upcall)),
        Spec::Trace { next } => {
            let next = build(next, client, leaf, upcall);
            Trace::new(next.name().to_owned(), next, Sink::Log)
        }
    }
}

/// The part of a graph from distribute downwards.
fn build_names(spec: &Spec, client: ClientId, leaf: &mut Leaf<'_>, upcall: &Arc<dyn Upcall>) -> Subvol {
    match spec {
        Spec::Distribute { name, sets } => {
            let sets = sets.iter().map(|set| build_names(set, client, leaf, upcall)).collect();
            Distribute::new(name, sets, distribute::Options::default())
        }
        Spec::Replicate { name, bricks, quorum } => {
            let (notices, heard): (Vec<_>, _) = bricks.iter().map(|_| mpsc::unbounded_channel()).unzip();
            let bricks = bricks.iter().zip(notices).map(|(brick, says)| (brick.clone(), leaf(brick, says))).collect();
            let options = ReplicateOptions::default();
            Replicate::new(name.clone(), bricks, *quorum, options, heard, Arc::clone(upcall), client)
        }
        Spec::Cache { .. } | Spec::ReadOnly { .. } | Spec::IoStats { .. } | Spec::Trace { .. } => {
            build(spec, client, leaf, upcall)
        }
    }
}
