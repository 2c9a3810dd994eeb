//! `brickd`: one brick as a bare daemon.

fn main() {}
