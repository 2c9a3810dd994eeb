//! The test harness.

#[path = "../bench/mod.rs"]
pub mod bench;
