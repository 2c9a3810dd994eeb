//! The brick daemon as a library.
