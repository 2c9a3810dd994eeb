//! What held directories bring, as a program. See `mortar_tests::bench::handles`.

use std::process::ExitCode;

fn main() -> ExitCode {
    mortar_tests::bench::handles::main()
}
