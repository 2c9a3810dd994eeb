//! What travels between a client and a brick.

pub mod volume;
