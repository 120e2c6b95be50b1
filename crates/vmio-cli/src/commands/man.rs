//! `vmio man`: prints or writes the manual pages.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args, Command, CommandFactory};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

use crate::Cli;

const EXAMPLES: &str = "\
Examples:
  vmio man | man -l -                          read the main page
  vmio man --dir ~/.local/share/man/man1       install a page for each command, such as `man vmio-bench-map`";

/// Print the manual page, or write the pages of all commands into a folder.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct ManArgs {
    /// Write vmio.1 and a page for each subcommand into this folder, which is created if necessary
    #[arg(long)]
    dir: Option<PathBuf>,
}

/// Runs `vmio man`.
pub fn run(args: &ManArgs) -> anyhow::Result<()> {
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    match &args.dir {
        None => Ok(io::stdout().write_all(&page(&command)?)?),
        Some(dir) => {
            fs::create_dir_all(dir).with_context(|| format!("cannot make the folder {}", dir.display()))?;
            write_pages(&command, dir)
        }
    }
}

/// Writes the pages of a command and of all its subcommands.
fn write_pages(command: &Command, dir: &Path) -> anyhow::Result<()> {
    let path = dir.join(Man::new(command.clone()).get_filename());
    fs::write(&path, page(command)?).with_context(|| format!("cannot write {}", path.display()))?;
    visible_subcommands(command).try_for_each(|subcommand| write_pages(subcommand, dir))
}

/// The page of a command, in roff.
fn page(command: &Command) -> io::Result<Vec<u8>> {
    let man = Man::new(command.clone()).source(concat!("vmio ", env!("CARGO_PKG_VERSION"))).manual("vmio manual");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if visible_subcommands(command).next().is_some() {
        man.render_subcommands_section(&mut page)?;
    }
    if let Some(text) = command.get_after_help() {
        // The generator would fill these lines as a paragraph; examples must keep their lines.
        let text = text.to_string();
        let examples = text.strip_prefix("Examples:\n").unwrap_or(&text);
        let mut roff = Roff::new();
        roff.control("SH", ["EXAMPLES"]).control("nf", []).text([roman(examples)]).control("fi", []);
        roff.to_writer(&mut page)?;
    }
    Ok(page)
}

fn visible_subcommands(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set())
}
