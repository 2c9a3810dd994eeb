//! Tests of one replica set in one process.

mod chaos;
mod leases;
mod memory;
mod replicate;
mod set;
