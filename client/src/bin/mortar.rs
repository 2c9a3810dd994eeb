//! `mortar`: the command line for people.

fn main() {}
