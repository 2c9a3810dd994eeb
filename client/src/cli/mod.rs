//! The command line: one file per subcommand, and the few things they share.
//!
//! Every error is one line that says what to do; `mortar.rs` prints it.

pub mod completions;
pub mod down;
pub mod logs;
pub mod man;
pub mod mount;
mod mount_options;
mod mount_process;
mod remount;
pub mod statedump;
pub mod status;
pub mod umount;
pub mod up;
pub mod volume;

mod process;
mod run_dir;

/// A runtime for a command that waits for bricks.
fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    use anyhow::Context;
    tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start the runtime")
}

/// Print what was asked for. Whoever reads it may stop reading (`| head`).
fn print(text: &str) -> anyhow::Result<()> {
    use anyhow::Context;
    match std::io::Write::write_all(&mut std::io::stdout(), text.as_bytes()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        done => done.context("cannot write to standard output"),
    }
}

/// A table as the commands print it: no lines but under the header.
fn table(header: &[&str]) -> comfy_table::Table {
    let mut table = comfy_table::Table::new();
    table.load_style(comfy_table::presets::NOTHING).set_header(header);
    table
}
