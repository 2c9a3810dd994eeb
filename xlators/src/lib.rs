//! The vocabulary of Mortar, and every translator.
//!
//! Read in this order: [`xlator`] (one trait, one method), [`fop`] (the table of operations), [`effect`]
//! (the two questions that every layer asks of them), [`reply`], [`types`], [`ranges`], [`error`], [`ctx`]; then [`graph`], the only file that names every
//! translator; then the translators, one folder or file each.
//!
//! The one-page idea: a client's graph, a brick's graph and the wire between them are all [`xlator::Xlator`]. A fop is
//! a plain value that goes down; an answer comes back up. `fop.effect()` says what a fop changes, `fop.target()` where
//! it belongs. Replicate is written against the first, distribute against the second.
//!
//! Invariant: this crate knows neither the wire nor the mount.

pub mod cache;
pub mod ctx;
pub mod distribute;
pub mod effect;
pub mod error;
pub mod faulty;
pub mod fop;
pub mod graph;
pub mod index;
pub mod io_stats;
pub mod leases;
pub mod lk;
pub mod locks;
pub mod posix;
pub mod ranges;
pub mod read_only;
pub mod replicate;
pub mod reply;
pub mod trace;
pub mod types;
pub mod xlator;
