//! `vmio kv`: a key-value store from the command line.

mod backup;
mod check;
mod dump;
mod encoding;
mod help;
mod line;
mod load;
mod scan;
mod steps;
mod value;

use std::ffi::OsString;
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use clap::{Args, Subcommand};
use dump::Part;
use encoding::{Encoding, EncodingArgs};
use help::{
    BACKUP_HELP, BENCH_HELP, CHECK_HELP, CREATE_EXAMPLES, CREATE_SEGMENT_EXAMPLES, DEL_EXAMPLES, DUMP_HELP, EXAMPLES,
    GET_EXAMPLES, GROW_EXAMPLES, LOAD_HELP, PUT_EXAMPLES, RESTORE_HELP, SCAN_HELP, STAT_EXAMPLES,
};
use line::{Form, Format};
use load::Loaded;
use scan::ScanArgs;
use serde_json::json;
use vmio::backing::{Access, Backing, FileBacking, FileUser, Holder};
use vmio_kv::{DEFAULT_KEYSPACE, Db, Durability, FullPlace, KeyspaceHandle, Options, SegmentHandle, SegmentStats};
use vmio_measure::kv::{OwnBenchArgs, run_own};
use vmio_report::size::{format_size, parse_size, parse_within};

/// A volume's length is a multiple of this.
const ALLOCATION_UNIT_BYTES: u64 = 2 << 20;

/// Store keys and values in a file or block device
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct KvArgs {
    #[command(subcommand)]
    command: KvCommand,
}

#[derive(Subcommand)]
enum KvCommand {
    /// Create a store in a new file, or in a file or block device that begins with zeros
    #[command(after_help = CREATE_EXAMPLES)]
    Create {
        /// The file or block device
        store: PathBuf,
        /// How long the file may become; the file is sparse
        #[arg(long, value_parser = parse_size, default_value = "10G")]
        size: u64,
        /// Create the store even if the file or device holds data or another store: DESTROYS them
        #[arg(long)]
        overwrite: bool,
    },
    /// Increase the size of a store
    #[command(after_help = GROW_EXAMPLES)]
    Grow {
        #[command(flatten)]
        store: StoreArgs,
        /// The new size
        #[arg(value_parser = parse_size)]
        size: u64,
    },
    /// Add a segment to a store: a separate log and space for the keyspaces created in it
    #[command(after_help = CREATE_SEGMENT_EXAMPLES)]
    CreateSegment {
        #[command(flatten)]
        store: StoreArgs,
        /// How much longer the file may become; the file is sparse. A segment needs a minimum
        #[arg(long, value_parser = parse_size, default_value = "10G")]
        size: u64,
    },
    /// Set a key's value, durably
    #[command(after_help = PUT_EXAMPLES)]
    Put {
        #[command(flatten)]
        store: StoreArgs,
        #[command(flatten)]
        home: HomeArgs,
        #[command(flatten)]
        encoding: EncodingArgs,
        /// The key
        key: OsString,
        /// The value
        #[arg(required_unless_present = "file", conflicts_with = "file")]
        value: Option<OsString>,
        /// Read the value from a file, or from standard input for -
        #[arg(long, value_name = "FILE")]
        file: Option<PathBuf>,
    },
    /// Print the values of keys; fails if a key has none
    #[command(after_help = GET_EXAMPLES)]
    Get {
        #[command(flatten)]
        store: StoreArgs,
        #[command(flatten)]
        keyspace: KeyspaceArgs,
        #[command(flatten)]
        encoding: EncodingArgs,
        /// The keys
        #[arg(required = true, value_name = "KEY")]
        keys: Vec<OsString>,
        /// Print JSON objects
        #[arg(long)]
        json: bool,
        /// Write the value to a file
        #[arg(long, value_name = "FILE", conflicts_with = "json")]
        out: Option<PathBuf>,
        /// Print only these bytes of the value: FROM..TO; either end may be left out
        #[arg(long, value_name = "FROM..TO", value_parser = value::parse_range, conflicts_with = "json")]
        range: Option<Range<u64>>,
    },
    /// Delete a key, durably
    #[command(after_help = DEL_EXAMPLES)]
    Del {
        #[command(flatten)]
        store: StoreArgs,
        #[command(flatten)]
        keyspace: KeyspaceArgs,
        #[command(flatten)]
        encoding: EncodingArgs,
        /// The key
        key: OsString,
    },
    /// Print keys and values in order
    #[command(after_help = SCAN_HELP)]
    Scan {
        #[command(flatten)]
        store: StoreArgs,
        #[command(flatten)]
        keyspace: KeyspaceArgs,
        #[command(flatten)]
        scan: ScanArgs,
    },
    /// Put keys and values from standard input; they are durable when the command returns
    #[command(after_help = LOAD_HELP)]
    Load {
        #[command(flatten)]
        store: StoreArgs,
        #[command(flatten)]
        home: HomeArgs,
        /// Read JSON objects
        #[arg(long)]
        json: bool,
        /// Read this format
        #[arg(long, value_enum, conflicts_with = "json")]
        format: Option<Format>,
        #[command(flatten)]
        encoding: EncodingArgs,
        /// Lines end with a carriage return and a line feed (text only)
        #[arg(long)]
        crlf: bool,
    },
    /// Write all keyspaces to a file or to standard output, as they are at one moment
    #[command(after_help = BACKUP_HELP)]
    Backup {
        #[command(flatten)]
        store: StoreArgs,
        /// The file to write, or - for standard output
        #[arg(value_name = "OUT")]
        file: PathBuf,
    },
    /// Make a new store of a backup
    #[command(after_help = RESTORE_HELP)]
    Restore {
        /// The backup, or - for standard input
        #[arg(value_name = "IN")]
        file: PathBuf,
        /// The file of the new store, which must not exist
        store: PathBuf,
        /// How long the file may become; the file is sparse. Default: as long as the old store was, or longer where that is too short
        #[arg(long, value_parser = parse_size)]
        size: Option<u64>,
        /// Memory for writes
        #[arg(long, value_parser = parse_memory, default_value = "256M")]
        memory: u64,
    },
    /// Print the sizes of the store's parts, and what opening has recovered
    #[command(after_help = STAT_EXAMPLES)]
    Stat {
        #[command(flatten)]
        store: StoreArgs,
        /// Print a JSON object instead of text
        #[arg(long)]
        json: bool,
    },
    /// Verify every checksum and every reference; fails if anything is wrong
    #[command(after_help = CHECK_HELP)]
    Check {
        #[command(flatten)]
        volume: VolumeArgs,
        /// Print a JSON object instead of text
        #[arg(long)]
        json: bool,
    },
    /// Measure a new store in a folder: load, reads, scans
    #[command(after_help = BENCH_HELP)]
    Bench(OwnBenchArgs),
    /// Print a volume's structures and their places
    #[command(after_help = DUMP_HELP)]
    Dump {
        #[command(flatten)]
        volume: VolumeArgs,
        /// The structures to print
        #[arg(long, value_enum, default_value = "superblock")]
        structure: Part,
        /// Print JSON objects
        #[arg(long)]
        json: bool,
    },
}

/// A volume to read without opening its store.
#[derive(Args)]
struct VolumeArgs {
    /// The file or block device that holds the store; no process may have it open for writing
    store: PathBuf,
    /// Memory to read with
    #[arg(long, value_parser = parse_memory, default_value = "256M")]
    memory: u64,
}

/// The keyspace to write to.
#[derive(Args)]
struct HomeArgs {
    /// The keyspace, created if it does not exist
    #[arg(long, alias = "region", default_value = DEFAULT_KEYSPACE)]
    keyspace: String,
    /// The segment to create the keyspace in; an existing keyspace must be in it. Default for new keyspaces: the first segment
    #[arg(long, value_name = "NUMBER")]
    segment: Option<u32>,
}

impl HomeArgs {
    fn open(&self, db: &Db) -> vmio_kv::Result<KeyspaceHandle> {
        match self.segment {
            Some(number) => db.segment(number)?.keyspace_or_create(&self.keyspace),
            None => db.keyspace_or_create(&self.keyspace),
        }
    }
}

/// The keyspace to read.
#[derive(Args)]
struct KeyspaceArgs {
    /// The keyspace
    #[arg(long, alias = "region", default_value = DEFAULT_KEYSPACE)]
    keyspace: String,
}

impl KeyspaceArgs {
    fn open(&self, db: &Db) -> vmio_kv::Result<KeyspaceHandle> {
        db.keyspace(&self.keyspace)
    }
}

#[derive(Args)]
struct StoreArgs {
    /// The file or block device that holds the store
    store: PathBuf,
    /// Memory for reads and writes, in all
    #[arg(long, value_parser = parse_memory, default_value = "256M")]
    memory: u64,
    /// How much of the log an opening may have to read
    #[arg(long, value_parser = parse_size, default_value = "1G", value_name = "SIZE")]
    max_recovery_log: u64,
    /// Take the store over from a process or node that may still have it open: writes of that process fail from then on
    #[arg(long)]
    take_over: bool,
}

fn parse_memory(text: &str) -> Result<u64, String> {
    parse_within(text, &Options::MEMORY_BYTES)
}

impl StoreArgs {
    fn options(&self) -> Options {
        let options = Options::new().memory_bytes(self.memory).max_recovery_log_bytes(self.max_recovery_log);
        options.fenced(true).take_over(self.take_over)
    }

    fn open(&self, durability: Durability) -> anyhow::Result<Db> {
        self.open_with(self.options().durability(durability))
    }

    /// Opens a store that others may read meanwhile; a takeover writes to the store.
    fn open_to_read(&self) -> anyhow::Result<Db> {
        self.open_with(self.options().read_only(!self.take_over))
    }

    /// Opens a store that may grow to `length` bytes.
    fn open_to_grow(&self, length: u64) -> anyhow::Result<Db> {
        self.open_with(self.options().max_volume_bytes(length))
    }

    fn open_with(&self, options: Options) -> anyhow::Result<Db> {
        open(&self.store, options).map_err(|error| match error.downcast_ref() {
            // Units that a former owner may still write to stay reserved while that owner may exist.
            Some(vmio_kv::Error::Full { place: FullPlace::Volume, .. }) if self.take_over => error.context(
                "its space is reserved for former owners that may still write: when they have ended, open the store without --take-over; or grow it",
            ),
            _ => error,
        })
    }
}

/// Runs `vmio kv`.
pub fn run(args: &KvArgs) -> anyhow::Result<()> {
    let mut output = io::stdout().lock();
    match &args.command {
        KvCommand::Create { store, size, overwrite } => {
            let options = Options::new().max_volume_bytes(*size).overwrite(*overwrite);
            let created = Db::create(store, options).map_err(|error| match error {
                error @ (vmio_kv::Error::OtherContent { .. } | vmio_kv::Error::VolumeExists { .. }) => {
                    anyhow::Error::new(error).context("--overwrite destroys it")
                }
                error => error.into(),
            });
            created?.close()?;
        }
        KvCommand::Grow { store, size } => {
            let db = store.open_to_grow(*size)?;
            let now = db.stats()?.volume_bytes;
            if *size <= now {
                bail!("{} is {} long: it can become longer, not shorter", store.store.display(), format_size(now));
            }
            db.grow(*size)?;
            db.close()?;
        }
        KvCommand::CreateSegment { store, size } => {
            writeln!(output, "{}", create_segment(store, *size)?)?;
        }
        KvCommand::Put { store, home, encoding, key, value, file } => {
            let encoding = encoding.encoding();
            let key = encoding.key(key)?;
            let value = value.as_deref().unwrap_or_default().as_bytes();
            let value = match encoding {
                Encoding::Escaped => value.to_vec(),
                encoding => encoding.decode(value).context("the value")?,
            };
            let db = store.open(Durability::Sync)?;
            let keyspace = home.open(&db)?;
            match file {
                Some(file) => value::put_file(&keyspace, &key, file)?,
                None => keyspace.put(&key, &value)?,
            }
            drop(keyspace);
            db.close()?;
        }
        KvCommand::Get { store, keyspace, encoding, keys, json: false, out: file, range } if keys.len() == 1 => {
            let encoding = encoding.encoding();
            let key = encoding.key(&keys[0])?;
            let db = store.open_to_read()?;
            let reader = keyspace.open(&db)?.reader(&key)?.with_context(|| has_none(encoding, &key, &store.store))?;
            let range = range.clone().unwrap_or(0..u64::MAX);
            match file {
                Some(file) => value::write_file(reader, range, file, &store.store)?,
                None => value::write(reader, range, &mut output)?,
            }
            db.close()?;
        }
        KvCommand::Get { out: Some(_), .. } | KvCommand::Get { range: Some(_), .. } => {
            bail!("--out and --range are for one key")
        }
        KvCommand::Get { store, keyspace, encoding, keys, json, .. } => {
            let form = Form::of(*json, None, *encoding)?;
            let encoding = encoding.encoding();
            let keys: Vec<Vec<u8>> = keys.iter().map(|key| encoding.key(key)).collect::<Result<_, _>>()?;
            let db = store.open_to_read()?;
            let values = keyspace.open(&db)?.multi_get(&keys)?;
            for (key, value) in keys.iter().zip(&values) {
                if let Some(value) = value {
                    form.write(&mut output, key, value)?;
                }
            }
            db.close()?;
            if let Some((key, _)) = keys.iter().zip(&values).find(|(_, value)| value.is_none()) {
                bail!(has_none(encoding, key, &store.store));
            }
        }
        KvCommand::Del { store, keyspace, encoding, key } => {
            let key = encoding.encoding().key(key)?;
            let db = store.open(Durability::Sync)?;
            keyspace.open(&db)?.delete(&key)?;
            db.close()?;
        }
        KvCommand::Scan { store, keyspace, scan } => {
            let db = store.open_to_read()?;
            scan.run(&keyspace.open(&db)?, &mut output)?;
            db.close()?;
        }
        KvCommand::Load { store, home, json, format, encoding, crlf } => {
            let form = Form::of(*json, *format, *encoding)?.with_cr(*crlf);
            let db = store.open(Durability::None)?;
            let keyspace = home.open(&db)?;
            let (Loaded { rows, with_cr }, done) = load::load(&keyspace, form, io::stdin().lock());
            // Rows before a bad line stay in the store.
            drop(keyspace);
            db.close()?;
            if let Some((first, lines)) = with_cr {
                eprintln!(
                    "vmio: {lines} lines end with a carriage return, {first} first: it is part of their values; with --crlf it is part of the line's end"
                );
            }
            let kept = if rows == 1 { "1 row was".to_owned() } else { format!("{rows} rows were") };
            done.with_context(|| format!("{kept} kept, and no more"))?;
            writeln!(output, "{rows} keys")?;
        }
        KvCommand::Backup { store, file } => {
            let db = store.open_to_read()?;
            backup::backup(&db, &store.store, file, &mut output)?;
            db.close()?;
        }
        KvCommand::Restore { file, store, size, memory } => {
            let options = Options::new().memory_bytes(*memory);
            let options = size.map_or(options.clone(), |size| options.max_volume_bytes(size));
            backup::restore(file, store, options, &mut output)?;
        }
        KvCommand::Stat { store, json } => {
            let db = store.open_to_read()?;
            write_stat(&mut output, &db, *json)?;
            db.close()?;
        }
        KvCommand::Bench(bench) => run_own(bench)?,
        KvCommand::Check { volume, json } => check::check(&mut output, &volume.store, volume.memory, *json)?,
        KvCommand::Dump { volume, structure, json } => {
            dump::dump(&mut output, &volume.store, volume.memory, *structure, *json)?;
        }
    }
    output.flush()?;
    Ok(())
}

/// Opens a store. An error names the remedy.
fn open(store: &Path, options: Options) -> anyhow::Result<Db> {
    use vmio_kv::Error::Io;
    Db::open(store, options).map_err(|error| {
        let advice = match &error {
            Io(vmio::Error::Open { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                "`vmio kv create` makes one"
            }
            Io(vmio::Error::Open { source, .. }) if source.kind() == io::ErrorKind::PermissionDenied => {
                "to read a store you need permission to read its file; to write, also permission to write it"
            }
            Io(vmio::Error::InUse { holder, wanted, .. }) => {
                // A reader should not end another process's writes.
                let or_take_over = match (holder, wanted) {
                    (Holder::User(FileUser::CachedWriter | FileUser::Successor), FileUser::CachedWriter) => {
                        ", or take it over (--take-over): writes of that process fail from then on"
                    }
                    _ => "",
                };
                return anyhow!("{} is in use: {holder}; wait for its end{or_take_over}", store.display());
            }
            _ => return error.into(),
        };
        anyhow!("{:#}; {advice}", anyhow::Error::from(error))
    })
}

/// The message for a key without a value.
fn has_none(encoding: Encoding, key: &[u8], store: &Path) -> String {
    format!("\"{}\" has no value in {}", encoding.encode(key), store.display())
}

/// Adds a segment; returns its number.
fn create_segment(store: &StoreArgs, size: u64) -> anyhow::Result<u32> {
    let length = FileBacking::open(&store.store, Access::ReadOnly)?.len();
    let db = store.open_to_grow(length.saturating_add(size))?;
    let wanted = db.stats()?.volume_bytes.saturating_add(size);
    let segment = db.create_segment().map_err(|error| match error {
        vmio_kv::Error::Full { wanted, place: FullPlace::Volume, .. } => {
            let (size, wanted) = (format_size(size), format_size(wanted));
            anyhow!("--size {size} is too little: a segment needs {wanted} more than the store has free")
        }
        error => error.into(),
    });
    let number = segment?.number();
    if db.stats()?.volume_bytes / ALLOCATION_UNIT_BYTES < wanted / ALLOCATION_UNIT_BYTES {
        db.grow(wanted)?;
    }
    db.close()?;
    Ok(number)
}

/// The figures of a segment, or of all segments together.
fn figures(stats: &SegmentStats) -> serde_json::Value {
    json!({
        "space_bytes": stats.space_bytes,
        "log_bytes": stats.log_bytes,
        "live_bytes": stats.live_bytes,
        "garbage_bytes": stats.garbage_bytes,
        "extents_bytes": stats.extents_bytes,
        "collected_chunks": stats.collected_chunks,
        "moved_bytes": stats.moved_bytes,
        "reorganized_bytes": stats.reorganized_bytes,
        "recovery_log_bytes": stats.recovery_log_bytes,
        "level_entries": stats.level_entries,
        "bottom_entries": stats.bottom_entries,
        "memtable_bytes": stats.memtable_bytes,
    })
}

fn write_stat(output: &mut impl Write, db: &Db, json: bool) -> anyhow::Result<()> {
    let (stats, recovery, keyspaces, segments) = (db.stats()?, db.recovery(), db.keyspace_names()?, db.segments()?);
    if json {
        let of_segment = |segment: &SegmentHandle| -> vmio_kv::Result<_> {
            let stats = segment.stats()?;
            let mut object = figures(&stats);
            object["number"] = segment.number().into();
            object["keyspaces"] = segment.keyspace_names()?.into();
            object["segment_bytes"] = stats.segment_bytes.into();
            Ok(object)
        };
        let mut object = figures(&stats.segments);
        object["keyspaces"] = keyspaces.into();
        object["segments"] = segments.iter().map(of_segment).collect::<vmio_kv::Result<_>>()?;
        object["volume_bytes"] = stats.volume_bytes.into();
        object["recovered_records"] = recovery.records.into();
        object["recovered_log_bytes"] = recovery.log_bytes.into();
        object["recovery_s"] = recovery.time.as_secs_f64().into();
        return Ok(writeln!(output, "{object}")?);
    }
    writeln!(output, "keyspaces  {}", keyspaces.join(", "))?;
    writeln!(output, "space      {} of {}", format_size(stats.space_bytes), format_size(stats.volume_bytes))?;
    writeln!(
        output,
        "log        {}, of it {} live, {} garbage",
        format_size(stats.log_bytes),
        format_size(stats.live_bytes),
        format_size(stats.garbage_bytes)
    )?;
    writeln!(output, "extents    {} of values over 256 KiB", format_size(stats.extents_bytes))?;
    let (chunks, moved) = (stats.collected_chunks, format_size(stats.moved_bytes));
    writeln!(output, "collected  {chunks} chunks of the log since opening, {moved} moved")?;
    writeln!(
        output,
        "entries    {} in levels on the device, {} of them in leaves with small records",
        stats.level_entries, stats.bottom_entries
    )?;
    writeln!(output, "in memory  {}", format_size(stats.memtable_bytes))?;
    if segments.len() > 1 {
        for segment in &segments {
            let stats = segment.stats()?;
            writeln!(
                output,
                "segment {}  {} of {}, {} of it log, keyspaces {}",
                segment.number(),
                format_size(stats.space_bytes),
                format_size(stats.segment_bytes),
                format_size(stats.log_bytes),
                segment.keyspace_names()?.join(", ")
            )?;
        }
    }
    writeln!(
        output,
        "opening    recovered {} records from {} of the log in {:.3} s; the next opening would read {}",
        recovery.records,
        format_size(recovery.log_bytes),
        recovery.time.as_secs_f64(),
        format_size(stats.recovery_log_bytes)
    )?;
    Ok(())
}
