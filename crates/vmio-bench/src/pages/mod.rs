//! `vmio-bench render`: the pages of docs/benchmarks, from the figures that measurements wrote.

mod busy;
mod commit;
mod kv;
mod map;
mod part;
mod programs;
mod runs;
mod units;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Args, Subcommand};

use crate::claims;

const EXAMPLES: &str = "\
Examples:
  vmio-bench render ratios                                     docs/benchmarks/README.md, from its figures
  vmio-bench render units --out units.md zram.json disk.json   as `make bench-units` does";

/// Write a page of docs/benchmarks from the figures of its measurements.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct RenderArgs {
    #[command(subcommand)]
    page: Page,
}

#[derive(Subcommand)]
enum Page {
    Busy(busy::BusyPage),
    Commit(commit::CommitPage),
    Kv(kv::KvPage),
    Map(map::MapPage),
    Programs(programs::ProgramsPage),
    Units(units::UnitsPage),
    /// Render docs/benchmarks/README.md and its plot
    Ratios {
        /// Where they are, with their figures
        #[arg(long, default_value = claims::FOLDER)]
        folder: PathBuf,
    },
    /// Tell in short of a run of a program, a line of JSON on standard input
    ProgramRun,
}

/// What most pages are told.
#[derive(Args)]
struct Common {
    /// File with the commands that were run, one a line
    #[arg(long)]
    commands: Option<PathBuf>,
    /// Path in those commands that the page shows as DIR
    #[arg(long, value_name = "DIR")]
    hide: Option<String>,
}

/// Runs `vmio-bench render`.
pub fn run(args: &RenderArgs) -> Result<()> {
    match &args.page {
        Page::Busy(page) => page.render(),
        Page::Commit(page) => page.render(),
        Page::Kv(page) => page.render(),
        Page::Map(page) => page.render(),
        Page::Programs(page) => page.render(),
        Page::Units(page) => page.render(),
        Page::Ratios { folder } => claims::render(folder),
        Page::ProgramRun => programs::tell(),
    }
}

/// Makes the page, with its folder.
fn write_page(path: &Path, parts: &[String], tail: &str) -> Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;
    }
    fs::write(path, part::joined(parts, tail)).with_context(|| format!("cannot write {}", path.display()))
}
