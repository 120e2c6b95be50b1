//! What the papers claim, and what is measured here beside it.

use std::collections::BTreeMap;

use serde_json::Value;

use super::recording::Recording;
use crate::targets;

/// One row of the page.
pub struct Claim {
    pub system: &'static str,
    /// The paper's figure, on its machines.
    pub paper: &'static str,
    /// What is compared here.
    pub what: &'static str,
    pub peer: &'static str,
    /// Which measurement has it.
    pub measurement: &'static str,
    ours: Select,
    theirs: Select,
    better: Better,
    /// What vmio is to reach, as a ratio that is the better the larger it is.
    pub wanted: f64,
    /// Why not, if it is not reached, and where the profile is.
    pub explained: &'static str,
}

/// A field of the run whose other fields have these values; a path, where fields have fields.
type Select = (&'static [(&'static str, &'static str)], &'static str);

enum Better {
    More,
    Less,
}

/// What came of a claim.
pub struct Finding {
    pub claim: &'static Claim,
    pub ours: f64,
    pub theirs: f64,
    /// What the copy takes that nobody can do without, in the unit of ours, where that was measured.
    pub copy: Option<f64>,
    /// How many times better ours is; none where theirs or ours is nothing.
    pub ratio: Option<f64>,
}

impl Finding {
    /// The unit of ours and theirs.
    pub fn unit(&self) -> &'static str {
        let units = [
            ("_us", "µs"),
            ("_ns", "ns"),
            ("cpu_s_per_mop", "s a million"),
            ("per_s", "/s"),
            ("kops", "k/s"),
            ("_bytes", "B"),
            ("_s", "s"),
            ("seconds", "s"),
        ];
        let of_field = |(suffix, unit): &(&str, &'static str)| self.claim.ours.1.ends_with(suffix).then_some(*unit);
        units.iter().find_map(of_field).unwrap_or("")
    }

    /// Whether it is what is wanted.
    pub fn is_met(&self) -> bool {
        self.ratio.map_or(matches!(self.claim.better, Better::Less) && self.ours < self.theirs, |ratio| {
            targets::reaches(ratio, self.claim.wanted)
        })
    }
}

/// Those whose measurements are kept.
pub fn findings(recordings: &BTreeMap<String, Recording>) -> Vec<Finding> {
    let of = |claim: &'static Claim| {
        let runs = &recordings.get(claim.measurement)?.runs;
        let (ours, theirs) = (select(runs, &claim.ours)?, select(runs, &claim.theirs)?);
        let ratio = match claim.better {
            Better::More => ours / theirs,
            Better::Less => theirs / ours,
        };
        let copy = select(runs, &(claim.ours.0, "copy_ns"));
        Some(Finding {
            claim,
            ours,
            theirs,
            copy,
            ratio: Some(ratio).filter(|ratio| ratio.is_finite() && *ratio > 0.0),
        })
    };
    CLAIMS.iter().filter_map(of).collect()
}

fn select(runs: &[Value], (fields, value): &Select) -> Option<f64> {
    let said = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let run = runs.iter().find(|run| fields.iter().all(|(name, wanted)| said(&run[*name]) == *wanted))?;
    run.pointer(&format!("/{value}"))?.as_f64()
}

const COPIES: &str = "most of a call is the copy, and how fast memory is decides ([posix.md](../posix.md#measured), [profiles.md](profiles.md))";
const EXPLAINED: &str = "[reading-the-results.md](reading-the-results.md)";

macro_rules! claim {
    ($system:literal: $paper:literal; $what:literal beside $peer:literal, $measurement:literal:
     $ours:expr, $theirs:expr, $better:ident, $wanted:expr, $explained:expr) => {
        Claim {
            system: $system,
            paper: $paper,
            what: $what,
            peer: $peer,
            measurement: $measurement,
            ours: $ours,
            theirs: $theirs,
            better: Better::$better,
            wanted: $wanted,
            explained: $explained,
        }
    };
}

/// All of them, by system.
const CLAIMS: &[Claim] = &[
    claim!("FastMap": "3.7 times the random loads of Linux mmap with 32 threads";
        "random loads a second, 2 threads, of four times the memory" beside "Linux mmap", "random-loads":
        (&[("engine", "vmio"), ("threads", "2")], "ops_per_s"), (&[("engine", "mmap"), ("threads", "2")], "ops_per_s"), More, targets::UNIFORM_LOADS, EXPLAINED),
    claim!("FastMap": "6.6 times the random stores of Linux mmap with 32 threads";
        "random stores a second, 2 threads" beside "Linux mmap", "random-stores":
        (&[("engine", "vmio"), ("threads", "2")], "ops_per_s"), (&[("engine", "mmap"), ("threads", "2")], "ops_per_s"), More, targets::UNIFORM_STORES, EXPLAINED),
    claim!("FastMap": "(no figure of its own)";
        "p99 of a random load, 2 threads" beside "Linux mmap", "random-loads":
        (&[("engine", "vmio"), ("threads", "2")], "p99_us"), (&[("engine", "mmap"), ("threads", "2")], "p99_us"), Less, targets::UNIFORM_LOADS_P99, EXPLAINED),
    claim!("FastMap": "BFS of Ligra 3.31 times as fast as over Linux mmap, the heap larger than memory";
        "seconds a search, at a quarter of the memory" beside "the same heap over Linux mmap", "heap":
        (&[("side", "vmio")], "search_s"), (&[("side", "mmap")], "search_s"), Less, 2.0, "[heap.md](../heap.md)"),
    claim!("kmmap": "priorities keep what is wanted in memory";
        "misses in a range of priority 0 after a scan" beside "Linux mmap", "priority":
        (&[("engine", "vmio")], "misses"), (&[("engine", "mmap")], "misses"), Less, 1.0, EXPLAINED),
    claim!("kmmap": "no read of what is written as a whole";
        "bytes read to fill a fresh range" beside "Linux mmap", "fresh":
        (&[("engine", "vmio"), ("advised", "true")], "read_bytes"), (&[("engine", "mmap")], "read_bytes"), Less, 1.0, EXPLAINED),
    claim!("kmmap": "non-blocking msync";
        "p99.9 of a store during a sync, `FrameHint::Mixed`" beside "Linux msync", "sync":
        (&[("engine", "vmio-memfd")], "p999_us"), (&[("engine", "mmap")], "p999_us"), Less, targets::STORES_IN_SYNC_P999, EXPLAINED),
    claim!("kmmap": "non-blocking msync";
        "seconds of the sync itself" beside "Linux msync", "sync":
        (&[("engine", "vmio")], "sync_s"), (&[("engine", "mmap")], "sync_s"), Less, 1.0, EXPLAINED),
    claim!("Aquila": "a fault with eviction costs 2.06 times less, without a protection switch";
        "misses by a call (`Mapping::ensure`), 2 threads" beside "Linux mmap", "ensure":
        (&[("way", "vmio-ensure"), ("threads", "2")], "ops_per_s"), (&[("way", "mmap"), ("threads", "2")], "ops_per_s"), More, 1.5, "a call spares the trap alone. The read, the page's installation and its removal are the kernel's, and nearly nine tenths of a miss ([profiles.md](profiles.md), [fetch.md](fetch.md))"),
    claim!("Aquila": "a hit is the hardware's translation alone";
        "ns of a hit" beside "private memory", "hit":
        (&[], "vmio_ns"), (&[], "anonymous_ns"), Less, targets::HITS, EXPLAINED),
    claim!("Kreon": "5.33 times the inserts of RocksDB, data larger than memory";
        "YCSB Load, thousand a second" beside "RocksDB", "kv":
        (&[("engine", "vmio"), ("phase", "L")], "kops"), (&[("engine", "rocksdb"), ("phase", "L")], "kops"), More, 1.5, "[kv.md](kv.md)"),
    claim!("Kreon": "5.82 times fewer cycles an insert than RocksDB";
        "processor time of Load" beside "RocksDB", "kv":
        (&[("engine", "vmio"), ("phase", "L")], "cpu_s_per_mop"), (&[("engine", "rocksdb"), ("phase", "L")], "cpu_s_per_mop"), Less, 3.0, "[kv.md](kv.md)"),
    claim!("Kreon": "1.05 times the look-ups of RocksDB";
        "YCSB C, thousand a second" beside "RocksDB", "kv":
        (&[("engine", "vmio"), ("phase", "C")], "kops"), (&[("engine", "rocksdb"), ("phase", "C")], "kops"), More, 1.0, "[kv.md](kv.md)"),
    claim!("Kreon": "2.85 to 4.72 times the throughput of RocksDB on average over YCSB";
        "YCSB A, thousand a second" beside "RocksDB", "kv":
        (&[("engine", "vmio"), ("phase", "A")], "kops"), (&[("engine", "rocksdb"), ("phase", "A")], "kops"), More, 1.3, "[kv.md](kv.md)"),
    claim!("Tucana": "1.1 to 2.1 times RocksDB over YCSB, data larger than memory";
        "YCSB E (scans), thousand a second" beside "RocksDB", "kv":
        (&[("engine", "vmio"), ("phase", "E")], "kops"), (&[("engine", "rocksdb"), ("phase", "E")], "kops"), More, 1.0, "neighbours in the order of keys lie in many pages of the log, as Kreon has them, where RocksDB has values in its leaves; what is scanned again and again comes to lie side by side ([kv-profile.md](kv-profile.md))"),
    claim!("Tucana": "2 to 7 times RocksDB over YCSB, data in memory";
        "YCSB C, thousand a second" beside "LMDB, a memory-mapped tree", "kv":
        (&[("engine", "vmio"), ("phase", "C")], "kops"), (&[("engine", "lmdb"), ("phase", "C")], "kops"), More, 1.0, "[kv.md](kv.md)"),
    claim!("Tucana": "recovers by copy-on-write, without a log";
        "atomic commits of 16 pages a second" beside "LMDB", "commit":
        (&[("store", "vmio")], "commits_per_s"), (&[("store", "lmdb")], "commits_per_s"), More, 1.0, "[commit.md](commit.md)"),
    claim!("SplitFS": "1.27 times ext4 DAX";
        "4 KiB reads in order, mode posix" beside "pread", "posix":
        (&[("pattern", "sequential-reads")], "mode_ns"), (&[("pattern", "sequential-reads")], "plain_ns"), Less, 3.0, COPIES),
    claim!("SplitFS": "at least 1.27 times ext4 DAX";
        "4 KiB reads at random, mode posix" beside "pread", "posix":
        (&[("pattern", "random-reads")], "mode_ns"), (&[("pattern", "random-reads")], "plain_ns"), Less, 3.0, COPIES),
    claim!("SplitFS": "at least 1.27 times ext4 DAX";
        "4 KiB reads at random of 128 MiB, mode posix" beside "pread", "posix-large":
        (&[("pattern", "random-reads")], "mode_ns"), (&[("pattern", "random-reads")], "plain_ns"), Less, 3.0, COPIES),
    claim!("SplitFS": "over 2 times ext4 DAX";
        "4 KiB overwrites in order, mode posix" beside "pwrite", "posix":
        (&[("pattern", "sequential-writes")], "mode_ns"), (&[("pattern", "sequential-writes")], "plain_ns"), Less, 3.0, COPIES),
    claim!("SplitFS": "7.85 times ext4 DAX, by staging and relink";
        "4 KiB appends, mode posix" beside "write", "posix":
        (&[("pattern", "appends")], "mode_ns"), (&[("pattern", "appends")], "plain_ns"), Less, 1.0, "[posix.md](../posix.md#why-appends-are-not-staged)"),
    claim!("SplitFS": "up to 2.89 times PMFS";
        "4 KiB overwrites in order, mode sync" beside "pwrite and fdatasync", "sync-mode":
        (&[("pattern", "sequential-writes")], "mode_ns"), (&[("pattern", "sequential-writes")], "plain_ns"), Less, 1.0, "a write is one flush of the device on both sides, which takes nearly all of the time ([posix.md](../posix.md#measured))"),
    claim!("SplitFS": "up to 5.8 times NOVA";
        "4 KiB overwrites in order, mode strict" beside "pwrite and fdatasync", "strict-mode":
        (&[("pattern", "sequential-writes")], "mode_ns"), (&[("pattern", "sequential-writes")], "plain_ns"), Less, 1.0, "beside the flush, which both have, the log has the data once more, since each write is atomic, where the peer's may be torn ([posix.md](../posix.md#measured))"),
    // The first of the modes is posix.
    claim!("SplitFS": "git at least 0.87 times ext4 DAX";
        "git: clone, commit, fsck, gc; mode posix" beside "plain", "programs":
        (&[("program", "git")], "modes/0/seconds"), (&[("program", "git")], "plain_seconds"), Less, 0.87, "[posix.md](../posix.md)"),
    claim!("SplitFS": "tar at least 0.87 times ext4 DAX";
        "tar: 2000 files unpacked and packed; mode posix" beside "plain", "programs":
        (&[("program", "tar")], "modes/0/seconds"), (&[("program", "tar")], "plain_seconds"), Less, 0.87, "[posix.md](../posix.md)"),
];
