//! The test harness.

#[path = "../bench/mod.rs"]
pub mod bench;

pub mod cluster;

#[path = "../judges/mod.rs"]
pub mod judges;
