//! What a brick does to its disk, and what is on it when it dies.

mod crash;
mod full;
mod power;
mod strace;
