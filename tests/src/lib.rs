//! What the tests share: volumes in one process and of processes, paths over fops, and what measures and judges.

#[path = "../bench/mod.rs"]
pub mod bench;

pub mod cluster;
pub mod gate;

#[path = "../judges/mod.rs"]
pub mod judges;

pub mod stacks;
pub mod tree;

use mortar_xlators::error::{Errno, FopError, Result};

/// The errno that a fop was refused with; panics if it was not refused.
#[track_caller]
pub fn refused<T: std::fmt::Debug>(answer: Result<T>) -> Errno {
    match answer {
        Err(FopError::Refused(errno)) => errno,
        other => panic!("not refused: {other:?}"),
    }
}
