//! `vmio cp`: copies a file from mapping to mapping. The copy appears under its name only when it is complete.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;
use serde_json::json;
use vmio::backing::FileBacking;
use vmio::{Access, Advice, Cache, Mapping, MappingOptions};
use vmio_report::new_file::NewFile;
use vmio_report::size::{format_size, parse_cache};
use vmio_report::standard_output::print_line;

use super::source::{Source, build_cache};

const EXAMPLES: &str = "\
Examples:
  vmio cp big.bin copy.bin
  vmio cp --cache 256M --json big.bin /data/

The copy is written to a temporary file beside DST, made durable, and renamed. So DST is never a partial copy:
it is absent, or its old self, or complete.";

/// Copy a file through two mappings.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct CpArgs {
    /// The file or block device to read
    src: PathBuf,
    /// The file to write, or a folder to write into
    dst: PathBuf,
    /// Memory of the cache for both mappings
    #[arg(long, default_value = "64M", value_parser = parse_cache)]
    cache: u64,
    /// Print a JSON object with source, destination and bytes
    #[arg(long)]
    json: bool,
}

/// Runs `vmio cp`.
pub fn run(args: &CpArgs) -> anyhow::Result<()> {
    let destination = destination_of(&args.src, &args.dst)?;
    let cache = build_cache(args.cache)?;
    let source = Source::open(&cache, &args.src)?;
    let copy = NewFile::create_private(&destination, &[&args.src])?.remove_if_interrupted()?;
    fill(&cache, &source, copy.file(), copy.path())
        .with_context(|| format!("cannot write {}", destination.display()))?;
    // Only the permissions to read, write and execute: set-user-ID bits belong to the owner, which may be another user here.
    let mode = fs::metadata(&args.src)?.permissions().mode() & 0o777;
    copy.file().set_permissions(fs::Permissions::from_mode(mode))?;
    copy.keep()?;

    if args.json {
        let report = json!({ "source": args.src, "destination": destination, "bytes": source.len_bytes() });
        print_line(report)?;
    } else {
        eprintln!("{} copied to {}", format_size(source.len_bytes()), destination.display());
    }
    Ok(())
}

/// The path of the copy: inside DST if that is a folder.
fn destination_of(src: &Path, dst: &Path) -> anyhow::Result<PathBuf> {
    let destination = if dst.is_dir() {
        let name = src.file_name().with_context(|| format!("{} has no file name", src.display()))?;
        dst.join(name)
    } else {
        dst.to_owned()
    };
    if let Ok(old) = fs::metadata(&destination)
        && !old.is_file()
    {
        bail!("{} exists and is not a regular file: choose another destination", destination.display());
    }
    Ok(destination)
}

/// Copies the contents and makes them durable. Returns every write error.
fn fill(cache: &Cache, source: &Source, file: &File, path: &Path) -> anyhow::Result<()> {
    if source.len_bytes() == 0 {
        return Ok(());
    }
    file.set_len(source.len_bytes())?;
    let backing = FileBacking::open(path, Access::ReadWrite)?;
    let copy = Mapping::open(cache, backing, MappingOptions::new())?;
    copy.advise(0..copy.len(), Advice::Fresh)?;
    source.for_each_chunk("copying", |offset, bytes| Ok(copy.write_at(offset, bytes)?))?;
    copy.close()?;
    Ok(())
}
