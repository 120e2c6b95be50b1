//! `vmio sum`: prints the checksum of a file.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;
use vmio_report::size::parse_cache;
use vmio_report::standard_output::print_line;

use super::source::{Source, build_cache};

const EXAMPLES: &str = "\
Examples:
  vmio sum big.bin
  vmio sum --cache 16M --json big.bin

The checksum is CRC-32 (ISO-HDLC, as in gzip and zip): compare with `crc32 big.bin`.";

/// Print the CRC-32 of a file, read through a mapping.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct SumArgs {
    /// The file or block device to read
    file: PathBuf,
    /// Memory of the cache
    #[arg(long, default_value = "64M", value_parser = parse_cache)]
    cache: u64,
    /// Print a JSON object with algorithm, sum, bytes and file
    #[arg(long)]
    json: bool,
}

/// Runs `vmio sum`.
pub fn run(args: &SumArgs) -> anyhow::Result<()> {
    let cache = build_cache(args.cache)?;
    let source = Source::open(&cache, &args.file)?;
    let mut hasher = crc32fast::Hasher::new();
    source.for_each_chunk("summing", |_, bytes| {
        hasher.update(bytes);
        Ok(())
    })?;
    let sum = format!("{:08x}", hasher.finalize());
    if args.json {
        let report = json!({
            "algorithm": "crc32",
            "sum": sum,
            "bytes": source.len_bytes(),
            "file": args.file,
        });
        print_line(report)?;
    } else {
        print_line(format_args!("{sum}  {}", args.file.display()))?;
    }
    Ok(())
}
