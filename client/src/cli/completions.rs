//! `mortar completions SHELL`: what a shell needs to complete our command lines.

use clap::Args;

/// Print the completions for a shell
#[derive(Args, Clone, Debug)]
pub struct CompletionsArgs {
    /// Such as `bash`: `mortar completions bash > /etc/bash_completion.d/mortar`
    shell: clap_complete::Shell,
}

impl CompletionsArgs {
    /// Print them.
    pub fn run(&self, mut command: clap::Command) {
        clap_complete::generate(self.shell, &mut command, "mortar", &mut std::io::stdout());
    }
}
