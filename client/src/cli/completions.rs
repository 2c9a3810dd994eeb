//! `mortar completions SHELL`: what a shell needs to complete our command lines.

use anyhow::Result;
use clap::Args;

use super::print;

/// Print the completions for a shell
#[derive(Args, Clone, Debug)]
pub struct CompletionsArgs {
    /// Such as `bash`: `mortar completions bash > /etc/bash_completion.d/mortar`
    shell: clap_complete::Shell,
}

impl CompletionsArgs {
    /// Print them.
    pub fn run(&self, mut command: clap::Command) -> Result<()> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut command, "mortar", &mut script);
        print(&String::from_utf8_lossy(&script))
    }
}
