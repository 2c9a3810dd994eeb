//! What a brick does to its disk.

mod strace;
