//! `vmio report`: draws recordings of `vmio record --save` on a page with charts.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use vmio_report::report_file::ReportFile;

use super::record;

const EXAMPLES: &str = "\
Examples:
  vmio record --save run.vmio -- my-database --load
  vmio report run.vmio --out run.html
  vmio report before.vmio after.vmio --out both.html

The page is the same as that of vmio record --out: it needs no other file and no network. Several recordings are drawn one below the
other, each with its own axes.";

/// Draw charts of saved recordings.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct ReportArgs {
    /// Files of vmio record --save
    #[arg(value_name = "FILE", required = true)]
    recordings: Vec<PathBuf>,
    /// Write the page to this file
    #[arg(long, value_name = "OUT.html", value_parser = ReportFile::parse)]
    out: ReportFile,
}

/// Runs `vmio report`.
pub fn run(args: &ReportArgs) -> anyhow::Result<()> {
    let read = |path: &PathBuf| record::read(path).with_context(|| format!("cannot read {}", path.display()));
    let recordings = args.recordings.iter().map(read).collect::<Result<Vec<_>, _>>()?;
    let inputs: Vec<&Path> = args.recordings.iter().map(PathBuf::as_path).collect();
    args.out.write_text_from(&record::page(&recordings).into_string(), &inputs)?;
    eprintln!("{}", args.out.notice());
    Ok(())
}
