//! `vmio kv`: a key-value store from the command line.

mod check;
mod dump;
mod line;
mod load;
mod scan;
mod steps;

use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::bail;
use clap::{Args, Subcommand};
use serde_json::json;
use vmio_kv::{DEFAULT_REGION, Db, Durability, Options, RegionHandle};

use crate::size::{format_size, parse_size};
use dump::Part;
use line::Format;
use scan::ScanArgs;

const EXAMPLES: &str = "\
Examples:
  vmio kv create --size 10G words.kv
  vmio kv put words.kv apple red
  vmio kv get words.kv apple
  vmio kv scan words.kv --from a --limit 10
  printf 'pear\\tgreen\\nplum\\tblue\\n' | vmio kv load words.kv
  vmio kv stat words.kv
  vmio kv check words.kv";

const CREATE_EXAMPLES: &str = "\
Examples:
  vmio kv create words.kv
  vmio kv create --size 2T /dev/nvme1n1";
const PUT_EXAMPLES: &str = "\
Examples:
  vmio kv put words.kv apple red
  vmio kv put --region plants words.kv apple tree";
const GET_EXAMPLES: &str = "\
Examples:
  vmio kv get words.kv apple
  vmio kv get words.kv picture > picture.png
  vmio kv get words.kv apple pear plum

One key's value is printed byte for byte, several as `vmio kv scan` prints them.";
const DEL_EXAMPLES: &str = "\
Examples:
  vmio kv del words.kv apple";
const STAT_EXAMPLES: &str = "\
Examples:
  vmio kv stat words.kv
  vmio kv stat --json words.kv | jq .space_bytes";
const CHECK_HELP: &str = "\
Examples:
  vmio kv check words.kv
  vmio kv check --json words.kv | jq '.problems[]'

Nothing is changed. What is wrong is told with its place in the file, and the command fails then. Notes tell what a crash may leave.";
const DUMP_HELP: &str = "\
Examples:
  vmio kv dump words.kv
  vmio kv dump --structure log --json words.kv | jq 'select(.kind == \"put\")'

A line begins with the place in the file, in bytes. Nothing is changed.";
const SCAN_HELP: &str = "\
Examples:
  vmio kv scan words.kv --from a --to c --limit 10
  vmio kv scan words.kv --prefix ap --keys-only
  vmio kv scan words.kv --reverse --limit 1
  vmio kv scan words.kv | vmio kv load copy.kv

A line is KEY, a tab, VALUE. Bytes that are not printable ASCII, and backslashes, are written as in Rust: \\t \\n \\\\ \\x00.
With --json a line is an object such as {\"key\": \"apple\", \"value\": \"red\"}; keys and values must be UTF-8 then. With --format csv it
is KEY,VALUE. With --format binary each pair is the lengths of key and value (four bytes each, little-endian), then both.";
const LOAD_HELP: &str = "\
Examples:
  vmio kv load --json words.kv < words.jsonl
  printf 'pear\\tgreen\\nplum\\tblue\\n' | vmio kv load words.kv
  vmio kv scan --format binary words.kv | vmio kv load --format binary copy.kv

Lines are as `vmio kv scan` prints them.";

/// Keep keys and values in a file or block device
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct KvArgs {
    #[command(subcommand)]
    command: KvCommand,
}

#[derive(Subcommand)]
enum KvCommand {
    /// Create a store in a file that holds none
    #[command(after_help = CREATE_EXAMPLES)]
    Create {
        /// The file or block device
        store: PathBuf,
        /// How long the file may become; it is sparse
        #[arg(long, value_parser = parse_size, default_value = "10G")]
        size: u64,
    },
    /// Set a key's value, durably
    #[command(after_help = PUT_EXAMPLES)]
    Put {
        #[command(flatten)]
        store: StoreArgs,
        key: String,
        value: String,
    },
    /// Print values of keys; fails if one has none
    #[command(after_help = GET_EXAMPLES)]
    Get {
        #[command(flatten)]
        store: StoreArgs,
        #[arg(required = true, value_name = "KEY")]
        keys: Vec<String>,
        /// Print objects
        #[arg(long)]
        json: bool,
    },
    /// Delete a key, durably
    #[command(after_help = DEL_EXAMPLES)]
    Del {
        #[command(flatten)]
        store: StoreArgs,
        key: String,
    },
    /// Print keys and values in order
    #[command(after_help = SCAN_HELP)]
    Scan {
        #[command(flatten)]
        store: StoreArgs,
        #[command(flatten)]
        scan: ScanArgs,
    },
    /// Put keys and values from standard input; they are durable when it returns
    #[command(after_help = LOAD_HELP)]
    Load {
        #[command(flatten)]
        store: StoreArgs,
        /// Read objects
        #[arg(long)]
        json: bool,
        /// Read this form
        #[arg(long, value_enum, conflicts_with = "json")]
        format: Option<Format>,
    },
    /// Print how much there is of what, and what opening has brought back
    #[command(after_help = STAT_EXAMPLES)]
    Stat {
        #[command(flatten)]
        store: StoreArgs,
        /// Print an object in place of text
        #[arg(long)]
        json: bool,
    },
    /// Verify every checksum and all that refers to each other; fails if anything is wrong
    #[command(after_help = CHECK_HELP)]
    Check {
        #[command(flatten)]
        volume: VolumeArgs,
        /// Print an object in place of text
        #[arg(long)]
        json: bool,
    },
    /// Print what lies where
    #[command(after_help = DUMP_HELP)]
    Dump {
        #[command(flatten)]
        volume: VolumeArgs,
        /// What to print
        #[arg(long, value_enum, default_value = "superblock")]
        structure: Part,
        /// Print objects
        #[arg(long)]
        json: bool,
    },
}

/// A volume that is looked into as it is.
#[derive(Args)]
struct VolumeArgs {
    /// The file or block device that holds the store; no process may have it open
    store: PathBuf,
    /// Memory
    #[arg(long, value_parser = parse_size, default_value = "256M")]
    memory: u64,
}

#[derive(Args)]
struct StoreArgs {
    /// The file or block device that holds the store
    store: PathBuf,
    /// The region; writing creates it
    #[arg(long, default_value = DEFAULT_REGION)]
    region: String,
    /// Memory
    #[arg(long, value_parser = parse_size, default_value = "256M")]
    memory: u64,
}

impl StoreArgs {
    fn open(&self, durability: Durability) -> vmio_kv::Result<Db> {
        Db::open(&self.store, Options::new().memory_bytes(self.memory).durability(durability))
    }

    fn region(&self, db: &Db) -> vmio_kv::Result<RegionHandle> {
        db.region(&self.region)
    }
}

/// Runs `vmio kv`.
pub fn run(args: &KvArgs) -> anyhow::Result<()> {
    let mut output = io::stdout().lock();
    match &args.command {
        KvCommand::Create { store, size } => {
            Db::create(store, Options::new().max_volume_bytes(*size))?.close()?;
        }
        KvCommand::Put { store, key, value } => {
            let db = store.open(Durability::Sync)?;
            db.region_or_create(&store.region)?.put(key.as_bytes(), value.as_bytes())?;
            db.close()?;
        }
        KvCommand::Get { store, keys, json } => {
            let db = store.open(Durability::Sync)?;
            let values = store.region(&db)?.multi_get(keys)?;
            let format = Format::of(*json, None);
            for (key, value) in keys.iter().zip(&values) {
                match value {
                    Some(value) if keys.len() == 1 && !json => output.write_all(value)?,
                    Some(value) => format.write(&mut output, key.as_bytes(), value)?,
                    None => {}
                }
            }
            db.close()?;
            if let Some((key, _)) = keys.iter().zip(&values).find(|(_, value)| value.is_none()) {
                bail!("{key:?} has no value in {}", store.store.display());
            }
        }
        KvCommand::Del { store, key } => {
            let db = store.open(Durability::Sync)?;
            store.region(&db)?.delete(key.as_bytes())?;
            db.close()?;
        }
        KvCommand::Scan { store, scan } => {
            let db = store.open(Durability::Sync)?;
            scan.run(&store.region(&db)?, &mut output)?;
            db.close()?;
        }
        KvCommand::Load { store, json, format } => {
            let db = store.open(Durability::None)?;
            let region = db.region_or_create(&store.region)?;
            let loaded = load::load(&region, Format::of(*json, *format), io::stdin().lock());
            // What came before a bad line stays.
            drop(region);
            db.close()?;
            writeln!(output, "{} keys", loaded?)?;
        }
        KvCommand::Stat { store, json } => {
            let db = store.open(Durability::Sync)?;
            write_stat(&mut output, &db, *json)?;
            db.close()?;
        }
        KvCommand::Check { volume, json } => check::check(&mut output, &volume.store, volume.memory, *json)?,
        KvCommand::Dump { volume, structure, json } => {
            dump::dump(&mut output, &volume.store, volume.memory, *structure, *json)?;
        }
    }
    output.flush()?;
    Ok(())
}

fn write_stat(output: &mut impl Write, db: &Db, json: bool) -> io::Result<()> {
    let (stats, recovery, regions) = (db.stats(), db.recovery(), db.region_names());
    if json {
        let object = json!({
            "regions": regions,
            "space_bytes": stats.space_bytes,
            "log_bytes": stats.log_bytes,
            "live_bytes": stats.live_bytes,
            "garbage_bytes": stats.garbage_bytes,
            "collected_chunks": stats.collected_chunks,
            "moved_bytes": stats.moved_bytes,
            "level_entries": stats.level_entries,
            "memory_level_bytes": stats.memory_level_bytes,
            "recovered_records": recovery.records,
            "recovered_log_bytes": recovery.log_bytes,
            "recovery_s": recovery.time.as_secs_f64(),
        });
        return writeln!(output, "{object}");
    }
    writeln!(output, "regions    {}", regions.join(", "))?;
    writeln!(output, "space      {}", format_size(stats.space_bytes))?;
    writeln!(
        output,
        "log        {}, of it {} live, {} garbage",
        format_size(stats.log_bytes),
        format_size(stats.live_bytes),
        format_size(stats.garbage_bytes)
    )?;
    let (chunks, moved) = (stats.collected_chunks, format_size(stats.moved_bytes));
    writeln!(output, "collected  {chunks} chunks of the log since it was opened, {moved} moved")?;
    writeln!(output, "entries    {} in levels on the device", stats.level_entries)?;
    writeln!(output, "in memory  {}", format_size(stats.memory_level_bytes))?;
    writeln!(
        output,
        "opening    read {} records back, {} of the log, in {:.3} s",
        recovery.records,
        format_size(recovery.log_bytes),
        recovery.time.as_secs_f64()
    )
}
