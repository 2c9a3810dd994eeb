//! The shape of a volume as a typed tree, and how it becomes layers: the only file that names every translator.
//!
//! Wrong arity does not parse: a `Replicate` has bricks, a filter has exactly one `next`.

use serde::{Deserialize, Serialize};

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
