//! The command line: one file per subcommand, and the few things they share.
//!
//! Every error is one line that says what to do; `mortar.rs` prints it.

pub mod completions;
pub mod logs;
pub mod man;
pub mod status;
pub mod umount;
pub mod volume;

/// A runtime for a command that waits for bricks.
fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    use anyhow::Context;
    tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start the runtime")
}

/// A table as the commands print it: no lines but under the header.
fn table(header: &[&str]) -> comfy_table::Table {
    let mut table = comfy_table::Table::new();
    table.load_style(comfy_table::presets::NOTHING).set_header(header);
    table
}
