//! `vmio completions`: prints scripts that complete vmio's commands and options in a shell.

use std::io::{self, Write};

use clap::{Args, Command, CommandFactory};
use clap_complete::Shell;

use crate::Cli;

const EXAMPLES: &str = "\
Examples:
  vmio completions bash > ~/.local/share/bash-completion/completions/vmio
  vmio completions zsh > ~/.zfunc/_vmio        with `fpath+=~/.zfunc` before `compinit` in ~/.zshrc
  vmio completions fish > ~/.config/fish/completions/vmio.fish

The folder must exist. Start a new shell afterwards.";

/// Print the script that completes vmio's commands and options in a shell.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

/// Runs `vmio completions`.
pub fn run(args: &CompletionsArgs) -> anyhow::Result<()> {
    // To memory first: the generator panics if it cannot write, and a reader may close the pipe.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut visible(&Cli::command()), "vmio", &mut script);
    Ok(io::stdout().write_all(&script)?)
}

/// The command without hidden subcommands, which the generator would offer to users.
fn visible(command: &Command) -> Command {
    let subcommands = command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set());
    let copy = Command::new(command.get_name().to_owned())
        .about(command.get_about().cloned().unwrap_or_default())
        .args(command.get_arguments())
        .subcommands(subcommands.map(visible));
    match command.get_version() {
        Some(version) => copy.version(version.to_owned()),
        None => copy,
    }
}
