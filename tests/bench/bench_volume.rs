//! The side-by-side benchmark as a program. See `mortar_tests::bench::volume`.

use std::process::ExitCode;

fn main() -> ExitCode {
    mortar_tests::bench::volume::main()
}
