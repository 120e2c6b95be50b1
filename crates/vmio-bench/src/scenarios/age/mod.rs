//! `vmio-bench age`: what is left of a file system's aligned free space when files have come and gone for long.

mod files;
mod free_space;
mod life;
mod profile;

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use serde::Serialize;
use vmio_report::output::OutputArgs;
use vmio_report::size::format_size;
use vmio_report::table::Table;

use files::{Files, Large, Library, Mounted};
use free_space::FreeSpace;
use life::Life;

const EXAMPLES: &str = "\
Examples:
  vmio-bench age --folder /mnt                         by system calls, where anything is mounted
  vmio-bench age --folder /mnt --direct --utilisation 75 --churn 10 --seed 2
  vmio-bench age --image image --large append          a file system of `vmio pmfs mkfs`, by the library
  vmio-bench age --image image --gather                the same, with what the server of a mount does meanwhile
  vmio-bench age --image image --churn 0               a file system that is filled once

Files come and go after Agrawal's profile, as Geriatrix ages file systems: 56 % of the bytes are in files
of 2 MiB or more. At each level of --utilisation, one after the other, files get as many bytes as the file
system has, times --churn. Then the free space is measured. For a folder that takes xfs_io and root; ext4
and XFS answer. The files stay, in a new folder `aged`.";

/// Age a file system, and measure how much of its free space is aligned extents of 2 MiB.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct AgeArgs {
    #[command(flatten)]
    place: Place,
    /// How much of the space is in use, in percent, rising
    #[arg(long, value_delimiter = ',', default_value = "10,25,50,75,90",
          value_parser = clap::value_parser!(u8).range(1..=98))]
    utilisation: Vec<u8>,
    /// How often the file system's bytes are written at each level
    #[arg(long, default_value_t = 10.0)]
    churn: f64,
    /// How files of 2 MiB and more get their bytes; smaller ones have one write
    #[arg(long, value_enum, default_value_t = Large::Allocate)]
    large: Large,
    /// The seed of all that is random
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// With --folder: write past the page cache, so that a write allocates at once, as it does on DAX
    #[arg(long, conflicts_with = "image")]
    direct: bool,
    /// With --image: move blocks of broken extents, as `vmio pmfs mount` does when it has time
    #[arg(long, conflicts_with = "folder")]
    gather: bool,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Args)]
#[group(required = true, multiple = false)]
struct Place {
    /// A folder of a mounted file system, which should have little else
    #[arg(long)]
    folder: Option<PathBuf>,
    /// A file or device with a file system of vmio-pmfs that is not mounted
    #[arg(long)]
    image: Option<PathBuf>,
}

/// The state at a level.
#[derive(Debug, Serialize)]
struct Level {
    utilisation_percent: u8,
    churn: f64,
    large: Large,
    seed: u64,
    written_bytes: u64,
    /// Bytes that the file system has moved by itself.
    moved_bytes: u64,
    files: usize,
    bytes: u64,
    free_bytes: u64,
    /// Nothing if the file system cannot say.
    free_space: Option<FreeSpace>,
}

/// Runs `vmio-bench age`.
pub fn run(args: &AgeArgs) -> anyhow::Result<()> {
    let mut files: Box<dyn Files> = match &args.place {
        Place { image: Some(image), .. } => {
            Box::new(Library::new(image, args.gather).with_context(|| format!("cannot age {}", image.display()))?)
        }
        Place { folder, .. } => Box::new(Mounted::new(&folder.clone().unwrap_or_default(), args.direct)?),
    };
    let levels = age(args, &mut *files)?;
    args.output.text(&table(&levels))?;
    args.output.results(&levels)
}

fn age(args: &AgeArgs, files: &mut dyn Files) -> anyhow::Result<Vec<Level>> {
    let (bytes, _) = files.space()?;
    let mut levels = Vec::new();
    let mut life = Life::new(files, args.large, args.seed)?;
    for percent in &args.utilisation {
        life.live(f64::from(*percent) / 100.0, (bytes as f64 * args.churn) as u64)?;
        let (bytes, free_bytes) = life.space()?;
        levels.push(Level {
            utilisation_percent: *percent,
            churn: args.churn,
            large: args.large,
            seed: args.seed,
            written_bytes: life.written_bytes(),
            moved_bytes: life.moved_bytes(),
            files: life.files(),
            bytes,
            free_bytes,
            free_space: life.free_space()?,
        });
    }
    Ok(levels)
}

fn table(levels: &[Level]) -> String {
    let header = ["in use", "files", "written", "moved", "free", "aligned", "share", "holes <64K", "<1M", "rest"];
    let mut table = Table::new(&header);
    for level in levels {
        let mut row = vec![
            format!("{} %", level.utilisation_percent),
            level.files.to_string(),
            format_size(level.written_bytes),
            format_size(level.moved_bytes),
            format_size(level.free_bytes),
        ];
        match &level.free_space {
            Some(space) => {
                let holes = |buckets: std::ops::Range<usize>| space.holes_bytes[buckets].iter().sum();
                row.push(format_size(space.aligned_bytes));
                row.push(format!("{:.1} %", 100.0 * space.aligned_share()));
                row.extend([holes(0..4), holes(4..8), holes(8..9)].map(format_size));
            }
            None => row.extend(["–"; 5].map(str::to_owned)),
        }
        table.row(row);
    }
    table.text()
}
