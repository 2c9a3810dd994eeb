//! The client library, the mount and the command line.

pub mod cli;
pub mod fuse;
pub mod remote;
pub mod volume;
