//! The one test binary: every module of tests is listed here, and none is forgotten (see `tidy`).
//!
//! `cfg(test)` tells the lints that all of it is tests, which may unwrap.

#[cfg(test)]
mod cache;
#[cfg(test)]
mod chaos;
#[cfg(test)]
mod cli;
#[cfg(test)]
mod conformance;
#[cfg(test)]
mod distribute;
#[cfg(test)]
mod gluster;
#[cfg(test)]
mod leases;
#[cfg(test)]
mod locks;
#[cfg(test)]
mod memory;
#[cfg(test)]
mod mount;
#[cfg(test)]
mod on_disk;
#[cfg(test)]
mod removals;
mod replicate;
#[cfg(test)]
mod set;
#[cfg(test)]
mod tidy;
#[cfg(test)]
mod wire;
