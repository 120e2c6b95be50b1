//! `vmio cat`: writes a file to standard output.

use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use serde_json::json;
use vmio_report::size::parse_cache;

use super::source::{Source, build_cache};

const EXAMPLES: &str = "\
Examples:
  vmio cat big.log | grep error
  vmio cat --cache 16M big.log > copy.log
  vmio cat --json big.log 2> report.json > /dev/null   (the report goes to standard error)";

const OUTPUT: &str = "cannot write to standard output";

/// Write a file to standard output through a mapping.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct CatArgs {
    /// The file or block device to read
    file: PathBuf,
    /// Memory of the cache
    #[arg(long, default_value = "64M", value_parser = parse_cache)]
    cache: u64,
    /// Print a JSON object with the file and its length on standard error at the end
    #[arg(long)]
    json: bool,
}

/// Runs `vmio cat`.
pub fn run(args: &CatArgs) -> anyhow::Result<()> {
    let cache = build_cache(args.cache)?;
    let source = Source::open(&cache, &args.file)?;
    let mut output = io::stdout().lock();
    source.for_each_chunk("reading", |_, bytes| output.write_all(bytes).context(OUTPUT))?;
    output.flush().context(OUTPUT)?;
    if args.json {
        eprintln!("{}", json!({ "file": args.file, "bytes": source.len_bytes() }));
    }
    Ok(())
}
