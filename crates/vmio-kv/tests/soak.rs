//! Everything at once, for as long as one wants: updates, a queue, mass deletions, snapshots, batches and large values, in a cgroup little
//! larger than the store's memory. The process is killed again and again. The test checks the store's promises about space, memory and the
//! log that recovery reads.
//!
//!
//! Operations follow from their number. Each is a batch that includes the number: so after a kill the test knows how far the store came,
//! and what the store has to hold. `VMIO_TEST_SECONDS=3600` runs for an hour; `make soak` does.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::support::child::{command, is_child};
use crate::support::memory_group::MemoryGroup;
use crate::support::{Random, assert_sound};
use vmio::backing::{Access, FileBacking};
use vmio_kv::{Db, Durability, KeyspaceHandle, Options, Snapshot, WriteBatch};

const NAME: &str = "soak::the_store_keeps_its_promises_however_long_it_lives";
const FOLDER: &str = "VMIO_TEST_FOLDER";
const MIB: u64 = 1 << 20;
const MEMORY: u64 = 64 * MIB;
/// For the program, its threads, and the expected contents.
const REST: u64 = 48 * MIB;
const AMPLIFICATION: f64 = 1.5;
const BESIDE: u64 = 64 * MIB;
const RECOVERY: u64 = 128 * MIB;
const KEYS: u64 = 20_000;
const LARGE_KEYS: u64 = 6;
const PROGRESS: &[u8] = b"progress";
/// Bytes of a record besides its key and its value.
const RECORD: u64 = 32;

fn options() -> Options {
    crate::support::options()
        .memory_bytes(MEMORY)
        .max_space_amplification(AMPLIFICATION)
        .max_recovery_log_bytes(RECOVERY)
        .volume_bytes(256 * MIB)
        .max_volume_bytes(4 << 30)
        .durability(Durability::None)
}

fn store_of(folder: &Path) -> PathBuf {
    folder.join("store.kv")
}

/// The expected contents: for each key the operation that wrote it, and the value's length.
#[derive(Clone, Default)]
struct Contents {
    data: BTreeMap<u64, (u64, u32)>,
    large: BTreeMap<u64, (u64, u32)>,
    /// The jobs of the queue.
    queue: std::ops::Range<u64>,
    /// The next operation.
    next: u64,
    /// Bytes of the records of data.
    live: u64,
}

enum Write {
    Data(u64, Option<u32>),
    Large(u64, Option<u32>),
    Push(u64),
    Pop(u64),
}

impl Contents {
    /// The next operation, whose effect this has afterwards.
    fn operation(&mut self) -> Vec<Write> {
        let number = self.next;
        self.next += 1;
        let mut random = Random(number.wrapping_mul(0x9e37_79b9));
        let length = |random: &mut Random| [100, 100, 1000, 1000, 10_000][random.below(5) as usize];
        // The frequently written keys move through the key space.
        let key = |random: &mut Random| match random.below(3) {
            0 => random.below(KEYS),
            1 => random.below(KEYS / 100),
            _ => (number / 50 + random.below(KEYS / 10)) % KEYS,
        };
        let writes: Vec<Write> = match random.below(4000) {
            0 => {
                let first = random.below(KEYS);
                (first..(first + KEYS / 10).min(KEYS)).map(|key| Write::Data(key, None)).collect()
            }
            1..8 => {
                let gone = random.below(4) == 0;
                vec![Write::Large(random.below(LARGE_KEYS), (!gone).then(|| 1_200_000 + random.below(900_000) as u32))]
            }
            8..24 => (0..200).map(|_| Write::Data(key(&mut random), Some(length(&mut random)))).collect(),
            24..700 => vec![Write::Push(self.queue.end)],
            700..1400 if !self.queue.is_empty() => vec![Write::Pop(self.queue.start)],
            _ => vec![Write::Data(key(&mut random), (random.below(12) > 0).then(|| length(&mut random)))],
        };
        for write in &writes {
            let record = |length: u32| u64::from(length) + 8 + RECORD;
            match *write {
                Write::Data(key, value) => {
                    let before = match value {
                        Some(length) => self.data.insert(key, (number, length)),
                        None => self.data.remove(&key),
                    };
                    self.live = self.live + value.map_or(0, record) - before.map_or(0, |(_, length)| record(length));
                }
                Write::Large(key, Some(length)) => drop(self.large.insert(key, (number, length))),
                Write::Large(key, None) => drop(self.large.remove(&key)),
                Write::Push(job) => self.queue.end = job + 1,
                Write::Pop(job) => self.queue.start = job + 1,
            }
        }
        writes
    }
}

fn value_of(number: u64, length: u32) -> Vec<u8> {
    let mut value = vec![number as u8; length as usize];
    value[..8].copy_from_slice(&number.to_le_bytes());
    value
}

struct Keyspaces {
    data: KeyspaceHandle,
    queue: KeyspaceHandle,
    large: KeyspaceHandle,
}

impl Keyspaces {
    fn of(db: &Db) -> Self {
        let keyspace = |name| db.keyspace_or_create(name).unwrap();
        Keyspaces { data: keyspace("data"), queue: keyspace("queue"), large: keyspace("large") }
    }

    fn write(&self, db: &Db, number: u64, writes: &[Write]) {
        let mut batch = WriteBatch::new();
        let mut set = |keyspace: &KeyspaceHandle, key: u64, value: Option<u32>| match value {
            Some(length) => batch.put(keyspace, &key.to_be_bytes(), &value_of(number, length)).unwrap(),
            None => batch.delete(keyspace, &key.to_be_bytes()).unwrap(),
        };
        for write in writes {
            match *write {
                Write::Data(key, value) => set(&self.data, key, value),
                Write::Large(key, value) => set(&self.large, key, value),
                Write::Push(job) => set(&self.queue, job, Some(40)),
                Write::Pop(job) => set(&self.queue, job, None),
            }
        }
        batch.put(db, PROGRESS, &(number + 1).to_le_bytes()).unwrap();
        db.write(&batch).unwrap();
    }
}

fn check_pairs(found: impl Iterator<Item = vmio_kv::Result<(Vec<u8>, Vec<u8>)>>, expected: &BTreeMap<u64, (u64, u32)>) {
    let mut count = 0;
    for (found, (key, (number, length))) in found.map(Result::unwrap).zip(expected) {
        assert!(found.0 == key.to_be_bytes() && found.1 == value_of(*number, *length), "key {key} of {number}");
        count += 1;
    }
    assert_eq!(count, expected.len());
}

/// All contents, by scans.
fn check_all(keyspaces: &Keyspaces, contents: &Contents) {
    check_pairs(keyspaces.data.scan(..), &contents.data);
    check_pairs(keyspaces.large.scan(..), &contents.large);
    let jobs = keyspaces.queue.scan(..).map(|pair| u64::from_be_bytes(pair.unwrap().0.try_into().unwrap()));
    assert!(jobs.eq(contents.queue.clone()));
}

fn check_bounds(db: &Db, contents: &Contents) {
    let stats = db.stats().unwrap();
    let queue = (contents.queue.end - contents.queue.start) * (40 + 8 + RECORD);
    let limit = (AMPLIFICATION * (contents.live + queue) as f64) as u64 + BESIDE;
    assert!(stats.log_bytes <= limit, "{} MiB of log, {} allowed: {stats:?}", stats.log_bytes / MIB, limit / MIB);
    assert!(stats.recovery_log_bytes <= RECOVERY, "{stats:?}");
    // A batch of 2000 deletions is admitted as a whole.
    assert!(stats.memtable_bytes <= MEMORY / 4 + MIB, "{stats:?}");
}

/// Continues where the store is, until the process is killed.
fn live(folder: &Path) {
    let db = Db::open(store_of(folder), options()).unwrap();
    let keyspaces = Keyspaces::of(&db);
    let progress = db.get(PROGRESS).unwrap().map_or(0, |bytes| u64::from_le_bytes(bytes.try_into().unwrap()));
    let synced: u64 = fs::read_to_string(folder.join("synced")).unwrap_or_default().trim().parse().unwrap_or(0);
    assert!(progress >= synced, "{progress} operations are there, {synced} were durable");
    let mut contents = Contents::default();
    while contents.next < progress {
        contents.operation();
    }
    check_all(&keyspaces, &contents);
    println!("open at {progress}");
    let mut held: Option<(Snapshot, Contents)> = None;
    loop {
        let number = contents.next;
        let writes = contents.operation();
        keyspaces.write(&db, number, &writes);
        if number.is_multiple_of(64) {
            check_bounds(&db, &contents);
        }
        if number.is_multiple_of(100) {
            let first = keyspaces.queue.scan(..).next().map(|pair| pair.unwrap().0);
            let expected = (!contents.queue.is_empty()).then(|| contents.queue.start.to_be_bytes().to_vec());
            assert_eq!(first, expected);
        }
        if number.is_multiple_of(3000) {
            db.sync().unwrap();
            fs::write(folder.join("synced.new"), contents.next.to_string()).unwrap();
            fs::rename(folder.join("synced.new"), folder.join("synced")).unwrap();
            println!("at {}", contents.next);
        }
        match number % 20_000 {
            9_000 => held = Some((db.snapshot(), contents.clone())),
            15_000 => {
                if let Some((snapshot, then)) = held.take() {
                    check_pairs(snapshot.keyspace("data").unwrap().scan(..), &then.data);
                }
            }
            _ => {}
        }
    }
}

#[test]
fn the_store_keeps_its_promises_however_long_it_lives() {
    if is_child(NAME) {
        live(Path::new(&std::env::var(FOLDER).unwrap()));
        return;
    }
    let seconds = test_depth::number("VMIO_TEST_SECONDS", 10, 60);
    let folder = tempfile::tempdir().unwrap();
    Db::create(store_of(folder.path()), options()).unwrap().close().unwrap();
    let group = MemoryGroup::new("soak", MEMORY + MEMORY / 10 + REST);
    if group.is_none() {
        test_depth::skipped("the limit of memory: this user may not make a memory cgroup");
    }
    let (began, end) = (Instant::now(), Duration::from_secs(seconds));
    let mut random = Random(seconds);
    let (mut kills, mut progress) = (0, String::new());
    while began.elapsed() < end {
        let mut child = command(NAME).env(FOLDER, folder.path()).stdout(Stdio::piped()).spawn().unwrap();
        if let Some(group) = &group {
            fs::write(group.0.join("cgroup.procs"), child.id().to_string()).unwrap();
        }
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let opened = lines.by_ref().map(Result::unwrap).find(|line| line.contains("open at"));
        assert!(opened.is_some(), "it did not open: {:?}", child.wait());
        // Some are killed at once, some live long.
        let most = (end.saturating_sub(began.elapsed())).as_millis().min(60_000) as u64;
        let life = Duration::from_millis(random.below(most.max(1)));
        let told = std::thread::spawn(move || lines.map_while(Result::ok).last());
        let until = Instant::now() + life;
        while Instant::now() < until {
            let ended = child.try_wait().unwrap();
            assert!(ended.is_none(), "after {:?}, {kills} kills: it ended by itself: {ended:?}", began.elapsed());
            std::thread::sleep(Duration::from_millis(20));
        }
        child.kill().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(9));
        progress = told.join().unwrap().unwrap_or(progress);
        kills += 1;
        if kills % 8 == 0 {
            let backing = FileBacking::open(store_of(folder.path()), Access::ReadOnly).unwrap();
            assert_sound(backing, &options(), "after a kill");
        }
    }
    println!("{kills} kills in {:?}, {progress} operations", began.elapsed());
    let backing = FileBacking::open(store_of(folder.path()), Access::ReadOnly).unwrap();
    assert_sound(backing, &options(), "in the end");
}
