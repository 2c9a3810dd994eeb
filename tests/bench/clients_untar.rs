//! The customer's script as a program. See `mortar_tests::bench::clients`.

use std::process::ExitCode;

fn main() -> ExitCode {
    mortar_tests::bench::clients::main()
}
