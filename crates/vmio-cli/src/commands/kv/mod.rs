//! `vmio kv`: a key-value store from the command line.

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
    BENCH_HELP, CHECK_HELP, CREATE_EXAMPLES, CREATE_SEGMENT_EXAMPLES, DEL_EXAMPLES, DUMP_HELP, EXAMPLES, GET_EXAMPLES,
    GROW_EXAMPLES, LOAD_HELP, PUT_EXAMPLES, SCAN_HELP, STAT_EXAMPLES,
};
use line::{Form, Format};
use load::Loaded;
use scan::ScanArgs;
use serde_json::json;
use vmio::backing::{Access, Backing, FileBacking, FileUser, HandleKind};
use vmio_kv::{DEFAULT_KEYSPACE, Db, Durability, FullPlace, Options, KeyspaceHandle, SegmentHandle, SegmentStats};
use vmio_measure::kv::{OwnBenchArgs, run_own};
use vmio_report::size::{format_size, parse_size, parse_within};

/// Volumes have their lengths in these.
const ALLOCATION_UNIT_BYTES: u64 = 2 << 20;

/// Keep keys and values in a file or block device
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct KvArgs {
    #[command(subcommand)]
    command: KvCommand,
}

#[derive(Subcommand)]
enum KvCommand {
    /// Create a store in a file that is not there yet, or in a file or block device that begins with zeros
    #[command(after_help = CREATE_EXAMPLES)]
    Create {
        /// The file or block device
        store: PathBuf,
        /// How long the file may become; it is sparse
        #[arg(long, value_parser = parse_size, default_value = "10G")]
        size: u64,
        /// Create it even if the file or device holds something, a store too: DESTROYS that
        #[arg(long)]
        overwrite: bool,
    },
    /// Make a store longer
    #[command(after_help = GROW_EXAMPLES)]
    Grow {
        #[command(flatten)]
        store: StoreArgs,
        /// How long it is to be
        #[arg(value_parser = parse_size)]
        size: u64,
    },
    /// Add a segment to a store: a log and space for keyspaces that are to have their own
    #[command(after_help = CREATE_SEGMENT_EXAMPLES)]
    CreateSegment {
        #[command(flatten)]
        store: StoreArgs,
        /// How much longer the file may become for it; it is sparse. At least so much as a segment takes
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
        /// Its value
        #[arg(required_unless_present = "file", conflicts_with = "file")]
        value: Option<OsString>,
        /// Take the value from a file; from standard input if it is -
        #[arg(long, value_name = "FILE")]
        file: Option<PathBuf>,
    },
    /// Print values of keys; fails if one has none
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
        /// Print objects
        #[arg(long)]
        json: bool,
        /// Write the value to a file
        #[arg(long, value_name = "FILE", conflicts_with = "json")]
        out: Option<PathBuf>,
        /// Only these bytes of the value: FROM..TO, either of which may be left out
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
    /// Put keys and values from standard input; they are durable when it returns
    #[command(after_help = LOAD_HELP)]
    Load {
        #[command(flatten)]
        store: StoreArgs,
        #[command(flatten)]
        home: HomeArgs,
        /// Read objects
        #[arg(long)]
        json: bool,
        /// Read this form
        #[arg(long, value_enum, conflicts_with = "json")]
        format: Option<Format>,
        #[command(flatten)]
        encoding: EncodingArgs,
        /// Lines end with a carriage return and a line feed
        #[arg(long)]
        crlf: bool,
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
    /// Measure what a new store does in a folder: load, reads, scans
    #[command(after_help = BENCH_HELP)]
    Bench(OwnBenchArgs),
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
    /// The file or block device that holds the store; no process may have it open for writing
    store: PathBuf,
    /// Memory for what is read
    #[arg(long, value_parser = parse_memory, default_value = "256M")]
    memory: u64,
}

/// Where writing puts keys.
#[derive(Args)]
struct HomeArgs {
    /// The keyspace, created if it is not there
    #[arg(long, alias = "region", default_value = DEFAULT_KEYSPACE)]
    keyspace: String,
    /// The segment in which the keyspace is created, or has to be; the first one unless this says otherwise
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

/// Where keys are.
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
    /// Memory for what is read and written, in all
    #[arg(long, value_parser = parse_memory, default_value = "256M")]
    memory: u64,
    /// How much of the log an opening may have to read back
    #[arg(long, value_parser = parse_size, default_value = "1G", value_name = "SIZE")]
    max_recovery_log: u64,
    /// Take the store over from a process or node that may still have it open, to write to it or not: what that one writes from now
    /// on fails
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

    /// Opens a store that others may read meanwhile; who takes it over writes to it.
    fn open_to_read(&self) -> anyhow::Result<Db> {
        self.open_with(self.options().read_only(!self.take_over))
    }

    /// Opens a store that may become so long.
    fn open_to_grow(&self, length: u64) -> anyhow::Result<Db> {
        self.open_with(self.options().max_volume_bytes(length))
    }

    fn open_with(&self, options: Options) -> anyhow::Result<Db> {
        open(&self.store, options).map_err(|error| match error.downcast_ref() {
            // What each owner could write to is given to nobody as long as he may be there.
            Some(vmio_kv::Error::Full { place: FullPlace::Volume, .. }) if self.take_over => error.context(
                "its space is held for owners that it was taken over from: when they have ended, open it without --take-over; or grow it",
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
            // What came before a bad line stays.
            drop(keyspace);
            db.close()?;
            if let Some((first, lines)) = with_cr {
                eprintln!(
                    "vmio: {lines} lines end with a carriage return, {first} first: it is a part of their values; --crlf takes it for a part of the line's end"
                );
            }
            let kept = if rows == 1 { "1 row was".to_owned() } else { format!("{rows} rows were") };
            done.with_context(|| format!("{kept} kept, and no more"))?;
            writeln!(output, "{rows} keys")?;
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

/// Opens a store, or says what to do.
fn open(store: &Path, options: Options) -> anyhow::Result<Db> {
    use vmio_kv::Error::Io;
    Db::open(store, options).map_err(|error| {
        let advice = match &error {
            Io(vmio::Error::Open { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                "`vmio kv create` makes one"
            }
            Io(vmio::Error::Open { source, .. }) if source.kind() == io::ErrorKind::PermissionDenied => {
                "a store is read by whoever may read its file, and written to by whoever may write that as well"
            }
            Io(vmio::Error::InUse { holder, wanted, .. }) => {
                // Who only reads should not put an end to somebody's writing.
                let or_take_over = match (holder, wanted) {
                    (HandleKind::User(FileUser::CachedWriter | FileUser::Successor), FileUser::CachedWriter) => {
                        ", or take it over (--take-over): what that process writes from then on fails"
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

/// What is said of a key that has no value.
fn has_none(encoding: Encoding, key: &[u8], store: &Path) -> String {
    format!("\"{}\" has no value in {}", encoding.encode(key), store.display())
}

/// The number of the segment that a store has then.
fn create_segment(store: &StoreArgs, size: u64) -> anyhow::Result<u32> {
    let length = FileBacking::open(&store.store, Access::ReadOnly)?.len();
    let db = store.open_to_grow(length.saturating_add(size))?;
    let wanted = db.stats()?.volume_bytes.saturating_add(size);
    let segment = db.create_segment().map_err(|error| match error {
        vmio_kv::Error::Full { wanted, place: FullPlace::Volume, .. } => {
            let (size, wanted) = (format_size(size), format_size(wanted));
            anyhow!("--size {size} is too little: a segment takes {wanted} more than the store has free")
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

/// What is told of each segment as of all of them together.
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
    writeln!(output, "collected  {chunks} chunks of the log since it was opened, {moved} moved")?;
    writeln!(output, "entries    {} in levels on the device", stats.level_entries)?;
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
        "opening    read {} records back, {} of the log, in {:.3} s; the next one would read {}",
        recovery.records,
        format_size(recovery.log_bytes),
        recovery.time.as_secs_f64(),
        format_size(stats.recovery_log_bytes)
    )?;
    Ok(())
}
