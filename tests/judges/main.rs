//! The outside judges as a program. See `mortar_tests::judges`.

use std::process::ExitCode;

fn main() -> ExitCode {
    mortar_tests::judges::command::main()
}
