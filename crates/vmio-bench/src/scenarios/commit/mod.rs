//! `vmio-bench commit`: commits of a few pages beside msync, SQLite and LMDB, and what other threads wait for meanwhile.

mod accesses;
mod commits;
mod records;
mod stores;
mod table;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use vmio_measure::cgroup::MemoryCgroup;
use vmio_measure::child::{self, Spec};
use vmio_measure::content::PAGE_BYTES;
use vmio_measure::device_cache::drop_page_caches;
use vmio_measure::place::{Place, PlaceArgs};
use vmio_measure::wrong_words::fail_on_verify_errors;
use vmio_report::output::OutputArgs;
use vmio_report::seconds::{parse_measured, parse_warm_up};
use vmio_report::size::{format_size, parse_cache, parse_size};

use self::accesses::AccessesResult;
use self::commits::CommitsResult;
use self::records::Share;
use self::stores::lmdb::LmdbStore;
use self::stores::mmap::MmapStore;
use self::stores::sqlite::SqliteStore;
use self::stores::vmio::VmioStore;
use self::stores::{Setup, Store, StoreKind};

const EXAMPLES: &str = "\
Examples:
  vmio-bench commit --dir /data
  vmio-bench commit --device zram --stores vmio,lmdb --pages 1 --threads 4
  vmio-bench commit --dir /data --measures accesses --json commit.json

Every store holds records of 2000 bytes, two to a page of 4 KiB. A commit changes 128 bytes of one
record in each of that many random pages, and returns when they are durable:
  vmio    stores to a mapping with MappingOptions::atomic, and Mapping::commit
  mmap    stores to a Linux mapping, and one msync(MS_SYNC) of it: a crash may leave half of them
  sqlite  a transaction of blob writes to rows by primary key; WAL, synchronous=FULL
  lmdb    a transaction of puts by integer key; default, durable
With --threads each thread changes pages of its own. SQLite and LMDB have one writer at a time and
isolate what it does. A commit of vmio takes what all threads have stored by then: whoever wants
isolation locks. The last lines are for one thread that loads from the pages of a commit and one
that stores to them, one access each 100 µs, while the largest of --pages is committed again and
again; a store to SQLite or LMDB would be one more commit, so they have none. In the end everything
is closed and read back from the device. All but vmio, which keeps to its cache, run in a memory
cgroup of --cache where one can be had (root).";

/// Measure failure-atomic commits beside msync, SQLite and LMDB.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct CommitArgs {
    #[command(flatten)]
    place: PlaceArgs,
    /// How much the records take
    #[arg(long, default_value = "256M", value_parser = parse_size)]
    size: u64,
    /// Memory for the cache of vmio, and for the others with Linux's page cache
    #[arg(long, default_value = "512M", value_parser = parse_cache)]
    cache: u64,
    /// Length of vmio's journal
    #[arg(long, default_value = "64M", value_parser = parse_size)]
    journal: u64,
    /// Stores
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = StoreKind::value_variants().to_vec())]
    stores: Vec<StoreKind>,
    /// Pages that a commit changes
    #[arg(long, value_delimiter = ',', default_value = "1,16,256", value_parser = clap::value_parser!(u32).range(1..=65536))]
    pages: Vec<u32>,
    /// Threads that commit
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: u32,
    /// What to measure
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Measure::value_variants().to_vec())]
    measures: Vec<Measure>,
    /// Seconds measured for each
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = parse_measured)]
    secs: f64,
    /// Seconds before that
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = parse_warm_up)]
    warm_up: f64,
    #[command(flatten)]
    output: OutputArgs,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Measure {
    /// Commits per second, their latencies, and what the device writes for them
    Commits,
    /// What accesses to the pages of a commit wait for while it is made
    Accesses,
}

/// What the child does.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CommitSpec {
    store: StoreKind,
    setup: Setup,
    measure: Measure,
    /// Pages a commit.
    pages: u32,
    secs: f64,
    warm_up_secs: f64,
}

/// What it found.
#[derive(Debug, Serialize, Deserialize)]
pub struct CommitResult {
    store: StoreKind,
    /// Whether a crash leaves all of a commit or nothing.
    atomic: bool,
    pages: u32,
    threads: u32,
    size_bytes: u64,
    cache_bytes: u64,
    journal_bytes: u64,
    #[serde(flatten)]
    found: Found,
    /// Records that did not hold what was committed.
    verify_errors: u64,
}

/// The results of either measure.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "measure", rename_all = "lowercase")]
enum Found {
    Commits(CommitsResult),
    Accesses(AccessesResult),
}

impl Spec for CommitSpec {
    const NAME: &'static str = "commit";
    type Found = CommitResult;
}

/// Runs `vmio-bench commit`.
pub fn run(args: &CommitArgs) -> anyhow::Result<()> {
    let pages_max = args.pages.iter().copied().max().unwrap_or(1);
    let pages = args.size / PAGE_BYTES;
    if pages / u64::from(args.threads) < u64::from(pages_max) {
        bail!("{pages_max} pages a commit of {} threads do not fit {}: make --size larger", args.threads, args.size);
    }
    let place = args.place()?;
    let mut results = Vec::new();
    for &measure in &args.measures {
        let (counts, threads) = match measure {
            Measure::Commits => (args.pages.as_slice(), args.threads),
            Measure::Accesses => (&[pages_max][..], 1),
        };
        for &pages_per_commit in counts {
            for &store in &args.stores {
                let folder = tempfile::tempdir_in(place.path()).context("cannot create a folder for a store")?;
                let setup = Setup {
                    folder: folder.path().to_owned(),
                    pages,
                    cache_bytes: args.cache,
                    journal_bytes: args.journal,
                    threads,
                };
                let (secs, warm_up_secs) = (args.secs, args.warm_up);
                let spec = CommitSpec { store, setup, measure, pages: pages_per_commit, secs, warm_up_secs };
                results.push(run_side(spec, &args.output)?);
            }
        }
    }
    args.output.text(&format!(
        "Records of {} in a folder of {}, {} of memory, a journal of {}\n\n{}",
        format_size(args.size),
        place.description(),
        format_size(args.cache),
        format_size(args.journal),
        table::text(&results)
    ))?;
    args.output.results(&results)?;
    fail_on_verify_errors(results.iter().map(|result| result.verify_errors).sum())
}

impl CommitArgs {
    fn place(&self) -> anyhow::Result<Place> {
        // Some of SQLite's log is as long as its table while that is filled; LMDB writes changed pages elsewhere.
        self.place.prepare(3 * self.size + self.journal + (256 << 20))
    }
}

fn run_side(spec: CommitSpec, output: &OutputArgs) -> anyhow::Result<CommitResult> {
    let what = format!("commit: {}, {} pages", spec.store.name(), spec.pages);
    let cgroup = match spec.store {
        StoreKind::Vmio => None,
        _ => MemoryCgroup::create_or_tell(spec.setup.cache_bytes, &what, output)?,
    };
    Ok(child::run(&what, cgroup.as_ref(), &spec)?.0)
}

// ---- the child's side

/// Makes a store, measures, and checks what it holds.
pub fn measure(spec: &CommitSpec) -> anyhow::Result<CommitResult> {
    let (found, verify_errors) = match spec.store {
        StoreKind::Vmio => measure_store::<VmioStore>(spec),
        StoreKind::Mmap => measure_store::<MmapStore>(spec),
        StoreKind::Sqlite => measure_store::<SqliteStore>(spec),
        StoreKind::Lmdb => measure_store::<LmdbStore>(spec),
    }?;
    Ok(CommitResult {
        store: spec.store,
        atomic: spec.store.is_atomic(),
        pages: spec.pages,
        threads: spec.setup.threads,
        size_bytes: spec.setup.pages * PAGE_BYTES,
        cache_bytes: spec.setup.cache_bytes,
        journal_bytes: spec.setup.journal_bytes,
        found,
        verify_errors,
    })
}

fn measure_store<S: Store>(spec: &CommitSpec) -> anyhow::Result<(Found, u64)> {
    let setup = &spec.setup;
    S::create(setup)?;
    let mut shares: Vec<_> = (0..setup.threads).map(|thread| Share::new(thread, setup.threads, setup.pages)).collect();
    let store = S::open(setup)?;
    let wrong_before = count_wrong(&store, &shares)?;
    store.settle()?;
    let found = match (spec.measure, shares.first_mut()) {
        (Measure::Accesses, Some(share)) => Found::Accesses(accesses::measure(&store, spec, share)?),
        _ => Found::Commits(commits::measure(&store, spec, &mut shares)?),
    };
    store.close()?;
    // So that what is read afterwards comes from the device.
    drop_page_caches(&setup.folder)?;
    let store = S::open(setup)?;
    let wrong_after = count_wrong(&store, &shares)?;
    store.close()?;
    Ok((found, wrong_before + wrong_after))
}

fn count_wrong<S: Store>(store: &S, shares: &[Share]) -> anyhow::Result<u64> {
    let mut session = store.session()?;
    shares
        .iter()
        .map(|share| share.count_wrong(|number, record| stores::Session::read(&mut session, number, record)))
        .sum()
}
