//! The brick's side of leases.

mod dirty;

pub use dirty::DirtyJournal;
