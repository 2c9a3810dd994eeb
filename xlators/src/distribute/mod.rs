//! x
pub mod hash;
pub mod layout;
