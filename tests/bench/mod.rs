//! The side-by-side benchmark: the same work on several file systems, in one run.
//!
//! Read `volume.rs` first (the command), then `works.rs` (what is measured) and `contender.rs` (on what). A contender lives in a
//! network namespace of its own: GlusterFS and MooseFS refuse loopback addresses, and whatever runs in the namespace is
//! known to be the contender's, so that its processor time can be summed and it can be ended without a trace.

pub mod clients;
pub mod command;
pub mod contender;
pub mod disk;
pub mod floor;
pub mod glusterfs;
pub mod handles;
pub mod moosefs;
pub mod mortar;
pub mod namespace;
pub mod packages;
pub mod report;
pub mod smallfile;
pub mod stream;
pub mod tree;
pub mod volume;
pub mod works;
