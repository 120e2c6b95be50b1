//! A store's memory stays within `memory_bytes`, whatever is written, opened and checked.

use std::path::Path;
use std::process::Command;

use vmio_kv::{Db, Durability, Options, WriteBatch, check};

const MIB: u64 = 1 << 20;
const MEMORY: u64 = 32 * MIB;
/// The memtables' part of that.
const LEVELS: u64 = MEMORY / 4;
/// The process's memory besides the store: threads' stacks, malloc's reserves, and the pages of the program.
const PROCESS: u64 = 6 * MIB;

fn options() -> Options {
    crate::support::options().memory_bytes(MEMORY).durability(Durability::None).compaction_threads(1)
}

/// A line of this process's status, in bytes.
fn status(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

/// Runs a part of a test in its own process. The process's peak must be within memory_bytes and a tenth.
fn within_memory(test: &str, part: &str, file: &Path, work: impl FnOnce(&Path)) {
    if std::env::var("VMIO_MEMORY_PART").is_ok_and(|wanted| wanted == part) {
        let before = status("VmRSS");
        work(file);
        println!("took {} bytes", status("VmHWM") - before);
        std::process::exit(0);
    }
    if std::env::var("VMIO_MEMORY_PART").is_ok() {
        return;
    }
    let child = Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env("VMIO_MEMORY_PART", part)
        .env("VMIO_MEMORY_FILE", file)
        // Else malloc may have a reserve for each thread, as many as meet.
        .env("MALLOC_ARENA_MAX", "2")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout);
    let took = said.lines().find_map(|line| line.split_once("took ")?.1.strip_suffix(" bytes")?.parse::<u64>().ok());
    let took = took.unwrap_or_else(|| panic!("{part}: {said}{}", String::from_utf8_lossy(&child.stderr)));
    eprintln!("{test}: {part} took {} MiB", took / MIB);
    assert!(took <= MEMORY + MEMORY / 10 + PROCESS, "{part} took {} MiB", took / MIB);
}

/// The file that the parts of a test share; the folder goes with the test.
fn file() -> (Option<tempfile::TempDir>, std::path::PathBuf) {
    match std::env::var_os("VMIO_MEMORY_FILE") {
        Some(file) => (None, file.into()),
        None => {
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("store");
            (Some(folder), file)
        }
    }
}

fn key(number: u64, bytes: usize) -> Vec<u8> {
    let mut key = vec![0; bytes];
    key[..8].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
    key
}

/// Writes batches to all of some keyspaces, and checks the size of the memtables after each.
fn levels_after(keyspaces: usize, per_batch: u64, key_bytes: usize, batches: u64) -> u64 {
    let folder = tempfile::tempdir().unwrap();
    let db = Db::create(folder.path().join("store"), options().volume_bytes(4 << 30)).unwrap();
    let handles: Vec<_> = (0..keyspaces).map(|number| db.keyspace_or_create(&number.to_string()).unwrap()).collect();
    let mut most = 0;
    for batch in 0..batches {
        let mut writes = WriteBatch::new();
        for number in batch * per_batch..(batch + 1) * per_batch {
            writes.put(&handles[number as usize % keyspaces], &key(number, key_bytes), b"v").unwrap();
        }
        db.write(&writes).unwrap();
        most = most.max(db.stats().unwrap().memtable_bytes);
    }
    for number in (0..batches * per_batch).step_by(997) {
        assert!(handles[number as usize % keyspaces].contains(&key(number, key_bytes)).unwrap(), "{number}");
    }
    most
}

#[test]
fn batches_over_many_keyspaces_wait_for_space_in_memory() {
    let most = levels_after(24, 24_000, 100, 25);
    assert!(most <= LEVELS, "{} KiB, and {} are allowed", most >> 10, LEVELS >> 10);
}

#[test]
fn a_batch_that_never_fits_is_written_alone() {
    let most = levels_after(3, 60_000, 200, 6);
    assert!(most > LEVELS, "{} KiB: it was to be larger than what is allowed", most >> 10);
    assert!(most <= 60_000 * 264, "{} KiB: others were admitted with it", most >> 10);
}

#[test]
fn an_opening_keeps_the_newest_record_of_each_key() {
    let (_folder, file) = file();
    let options = options().volume_bytes(4 << 30).max_recovery_log_bytes(1 << 30);
    if std::env::var("VMIO_MEMORY_PART").is_err() {
        let db = Db::create(&file, options.clone()).unwrap();
        // The overwritten records are not worth a collection.
        (0..600_u64).for_each(|number| db.put(&key(number, 8), &vec![3; 230_000]).unwrap());
        db.flush().unwrap();
        for number in 0..1_500_000_u64 {
            db.put(format!("a counter {}", number % 10).as_bytes(), &number.to_le_bytes()).unwrap();
        }
        assert!(db.stats().unwrap().recovery_log_bytes > 2 * MEMORY);
        db.close().unwrap();
    }
    within_memory("memory::an_opening_keeps_the_newest_record_of_each_key", "opening", &file, |file| {
        let db = Db::open(file, options.clone()).unwrap();
        assert!(db.recovery().records >= 1_500_000);
        assert_eq!(db.get(b"a counter 7").unwrap().unwrap(), 1_499_997_u64.to_le_bytes());
    });
    within_memory("memory::an_opening_keeps_the_newest_record_of_each_key", "for reading", &file, |file| {
        let db = Db::open(file, options.clone().read_only(true)).unwrap();
        assert_eq!(db.get(b"a counter 7").unwrap().unwrap(), 1_499_997_u64.to_le_bytes());
    });
    within_memory("memory::an_opening_keeps_the_newest_record_of_each_key", "check", &file, |file| {
        let report = check(file, &options, |_| {}).unwrap();
        assert!(report.is_clean() && report.records > 1_500_000);
    });
}

#[test]
fn an_opening_with_less_memory_flushes_as_it_reads() {
    let (_folder, file) = file();
    // Records that move into leaves would have the collector at work meanwhile, which takes more.
    let options = options().volume_bytes(1 << 30).values_in_leaves(false);
    let test = "memory::an_opening_with_less_memory_flushes_as_it_reads";
    const KEYS: u64 = 600_000;
    if std::env::var("VMIO_MEMORY_PART").is_err() {
        let db = Db::create(&file, options.clone().memory_bytes(16 * MEMORY)).unwrap();
        let other = db.keyspace_or_create("other").unwrap();
        for number in 0..KEYS {
            let keyspace = if number % 3 == 0 { &other } else { db.default_keyspace() };
            keyspace.put(&key(number, 40), &number.to_le_bytes()).unwrap();
        }
        assert!(db.stats().unwrap().memtable_bytes > MEMORY);
        drop(other);
        db.close().unwrap();
    }
    within_memory(test, "opening", &file, |file| {
        let db = Db::open(file, options.clone()).unwrap();
        assert!(db.recovery().records >= KEYS && db.stats().unwrap().memtable_bytes <= LEVELS);
        for number in (0..KEYS).step_by(29) {
            let keyspace = if number % 3 == 0 { db.keyspace("other").unwrap() } else { db.default_keyspace().clone() };
            assert_eq!(keyspace.get(&key(number, 40)).unwrap().unwrap(), number.to_le_bytes());
        }
        db.close().unwrap();
    });
    within_memory(test, "check", &file, |file| {
        let report = check(file, &options, |_| {}).unwrap();
        assert!(report.is_clean() && report.leaked_blocks == 0, "{:?}", report.problems);
    });
}

#[test]
fn the_length_of_a_volume_costs_no_memory() {
    let (_folder, file) = file();
    let options = options().volume_bytes(2 << 40);
    let test = "memory::the_length_of_a_volume_costs_no_memory";
    within_memory(test, "creating", &file, |file| {
        let db = Db::create(file, options.clone()).unwrap();
        (0..20_000).for_each(|number| db.put(&key(number, 20), &[1; 100]).unwrap());
        db.close().unwrap();
    });
    within_memory(test, "opening", &file, |file| {
        let db = Db::open(file, options.clone()).unwrap();
        assert_eq!(db.get(&key(7, 20)).unwrap(), Some(vec![1; 100]));
        db.close().unwrap();
    });
    within_memory(test, "taking over", &file, |file| {
        let db = Db::open(file, options.clone().take_over(true)).unwrap();
        assert_eq!(db.get(&key(7, 20)).unwrap(), Some(vec![1; 100]));
        db.close().unwrap();
    });
    within_memory(test, "check", &file, |file| {
        let report = check(file, &options, |_| {}).unwrap();
        assert!(report.is_clean(), "{:?}", report.problems);
    });
}
