//! The length of the log: however keys are overwritten, the log is within its limit at any instant, and so is the log that recovery reads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::assert_sound;
use vmio::backing::MemoryBacking;
use vmio_kv::{Db, Durability, Options};

const MIB: u64 = 1 << 20;
const AMPLIFICATION: f64 = 1.5;
/// What the log may take besides the limit: chunks that are written to, and what is collected meanwhile.
const BESIDE: u64 = 64 * MIB;
const RECOVERY: u64 = 48 * MIB;

fn options() -> Options {
    crate::support::options()
        .memory_bytes(32 << 20)
        .durability(Durability::None)
        .max_space_amplification(AMPLIFICATION)
        .max_recovery_log_bytes(RECOVERY)
}

/// The choice of the next key.
#[derive(Clone, Copy, Debug)]
enum Pattern {
    Uniform,
    /// A few are written again and again.
    Skewed,
    /// The frequently written keys move through the key space.
    Shifting,
}

impl Pattern {
    fn next(self, random: &mut u64, written: u64, keys: u64) -> u64 {
        *random ^= *random << 13;
        *random ^= *random >> 7;
        *random ^= *random << 17;
        let uniform = *random % keys;
        match self {
            Pattern::Uniform => uniform,
            Pattern::Skewed => {
                let part = (*random >> 11) as f64 / (1_u64 << 53) as f64;
                // Half of the writes go to a hundredth of the keys.
                (keys as f64 * part.powf(6.6)) as u64 * 7919 % keys
            }
            Pattern::Shifting => (written / 4 + uniform % (keys / 8).max(1)) % keys,
        }
    }
}

/// Overwrites `live` bytes of values until `times` times as much was written, and checks the log all the while.
fn overwrite(pattern: Pattern, value_bytes: u64, live: u64, times: u64) {
    let disk = Arc::new(MemoryBacking::new(1 << 30).unwrap());
    let db = Db::create_on(Arc::clone(&disk), options()).unwrap();
    let keys = live / value_bytes;
    let key = |number: u64| number.to_be_bytes();
    let mut newest = vec![0_u64; keys as usize];
    let value = |round: u64| {
        let mut value = vec![round as u8; value_bytes as usize];
        value[..8].copy_from_slice(&round.to_le_bytes());
        value
    };
    (0..keys).for_each(|number| db.put(&key(number), &value(0)).unwrap());
    // 24 bytes of each record are not the user's, and a record is padded to the next 8.
    let record_bytes = (value_bytes + 8 + 24).next_multiple_of(8);
    let limit = (AMPLIFICATION * (keys * record_bytes) as f64) as u64 + BESIDE;
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let (mut log, mut recovery) = (0, 0);
            while !is_over.load(Ordering::Relaxed) {
                let stats = db.stats().unwrap();
                (log, recovery) = (log.max(stats.log_bytes), recovery.max(stats.recovery_log_bytes));
                thread::sleep(Duration::from_millis(1));
            }
            (log, recovery)
        });
        let mut random = 7;
        for round in 1..=keys * times {
            let number = pattern.next(&mut random, round, keys);
            db.put(&key(number), &value(round)).unwrap();
            newest[number as usize] = round;
        }
        is_over.store(true, Ordering::Relaxed);
        let (log, recovery) = watcher.join().unwrap();
        let stats = db.stats().unwrap();
        assert!(log <= limit, "{pattern:?}: {} MiB of log, {} allowed: {stats:?}", log / MIB, limit / MIB);
        assert!(recovery <= RECOVERY, "{pattern:?}: {} MiB to read back: {stats:?}", recovery / MIB);
        assert!(stats.collected_chunks > 0 || limit > live * times, "{stats:?}");
    });
    let is_right =
        |(number, round): (usize, &u64)| db.get(&key(number as u64)).unwrap().unwrap()[..8] == round.to_le_bytes();
    assert!(newest.iter().enumerate().all(is_right));
    db.close().unwrap();
    assert_sound(disk, &options(), "after it was overwritten");
}

#[test]
fn the_log_stays_within_its_limit_when_all_keys_are_overwritten() {
    overwrite(Pattern::Uniform, 1000, 24 * MIB, 14);
}

#[test]
fn the_log_stays_within_its_limit_when_few_keys_are_overwritten_often() {
    overwrite(Pattern::Skewed, 1000, 24 * MIB, 14);
}

#[test]
fn the_log_stays_within_its_limit_when_the_frequent_keys_shift() {
    overwrite(Pattern::Shifting, 10_000, 32 * MIB, 12);
}

#[test]
fn the_log_stays_within_its_limit_with_small_values() {
    overwrite(Pattern::Uniform, 100, 12 * MIB, 14);
}

/// Most keys are in a keyspace of short records, nearly all bytes in one of long records.
#[test]
fn the_log_stays_within_its_limit_despite_a_keyspace_of_short_records() {
    const KEYS: u64 = 800;
    let wide = options().max_recovery_log_bytes(1 << 30);
    let db = Db::create_on(MemoryBacking::new(1 << 30).unwrap(), wide).unwrap();
    let short = db.keyspace_or_create("short").unwrap();
    (0..300_000_u64).for_each(|number| short.put(&number.to_be_bytes(), &[1; 8]).unwrap());
    db.collect_garbage().unwrap();
    let value = vec![2; 100_000];
    let (mut log, mut before) = (0, db.stats().unwrap().log_bytes);
    for round in 0..3 {
        for number in 0..KEYS {
            db.put(&number.to_be_bytes(), &value).unwrap();
            log = log.max(db.stats().unwrap().log_bytes);
        }
        if round == 0 {
            db.flush().unwrap();
            before = db.stats().unwrap().log_bytes;
        }
    }
    let limit = (AMPLIFICATION * before as f64) as u64 + BESIDE;
    assert!(log <= limit, "{} MiB of log, {} allowed: {:?}", log / MIB, limit / MIB, db.stats().unwrap());
}

/// Deletions are in one level on the device, and the deleted records in the level below; later writes fill neither.
#[test]
fn deleted_records_count_as_garbage_before_levels_are_merged() {
    const KEYS: u64 = 130_000;
    const LEFT: u64 = 40_000;
    let db = Db::create_on(MemoryBacking::new(1 << 30).unwrap(), options().memtable_bytes(512 << 10)).unwrap();
    let value = vec![4; 1000];
    (0..KEYS).for_each(|number| db.put(&number.to_be_bytes(), &value).unwrap());
    db.collect_garbage().unwrap();
    (LEFT..KEYS).for_each(|number| db.delete(&number.to_be_bytes()).unwrap());
    db.flush().unwrap();
    (0..2000).cycle().take(120_000).for_each(|number: u64| db.put(&number.to_be_bytes(), &value).unwrap());
    let limit = (AMPLIFICATION * (LEFT * 1032) as f64) as u64 + BESIDE;
    let stats = db.stats().unwrap();
    assert!(stats.log_bytes <= limit, "{} MiB allowed: {stats:?}", limit / MIB);
}

/// Few long records are overwritten in a keyspace of many short ones.
#[test]
fn the_log_stays_within_its_limit_where_long_records_are_among_short_ones() {
    const SHORT: u64 = 400_000;
    const LONG: u64 = 1000;
    let wide = options().max_recovery_log_bytes(1 << 30).memtable_bytes(1 << 20);
    let db = Db::create_on(MemoryBacking::new(1 << 30).unwrap(), wide).unwrap();
    (0..SHORT).for_each(|number| db.put(&number.to_be_bytes(), &[1; 8]).unwrap());
    db.collect_garbage().unwrap();
    let value = vec![2; 100_000];
    let mut log = 0;
    for round in 0..4 {
        for number in 0..LONG {
            db.put(&(SHORT + number * 7919 % LONG).to_be_bytes(), &value).unwrap();
            log = log.max(db.stats().unwrap().log_bytes);
        }
        // It goes to a level above that of the short ones.
        if round < 2 {
            db.flush().unwrap();
        }
    }
    let limit = (AMPLIFICATION * (SHORT * 40 + LONG * 100_032) as f64) as u64 + BESIDE;
    assert!(log <= limit, "{} MiB of log, {} allowed: {:?}", log / MIB, limit / MIB, db.stats().unwrap());
}

fn wait_until(what: impl Fn() -> String, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(120), "{}", what());
        thread::sleep(Duration::from_millis(5));
    }
}

/// After the last write the garbage goes, also garbage that only a merge reveals, and garbage that a snapshot held once the snapshot has
/// gone.
#[test]
fn space_comes_back_while_there_are_no_writes() {
    let db = Db::create_on(MemoryBacking::new(512 * MIB).unwrap(), options()).unwrap();
    let value = vec![3; 1000];
    let put = |db: &Db| (0..40_000_u32).for_each(|number| db.put(&number.to_be_bytes(), &value).unwrap());
    put(&db);
    let snapshot = db.snapshot();
    (0..3).for_each(|_| put(&db));
    (4000..40_000_u32).for_each(|number| db.delete(&number.to_be_bytes()).unwrap());
    let live = 4000 * 1032;
    let is_short = || db.stats().unwrap().log_bytes as f64 <= AMPLIFICATION * live as f64 + 24.0 * MIB as f64;
    wait_until(|| format!("the log: {:?}", db.stats().unwrap()), is_short);
    let seen = snapshot.keyspace("default").unwrap().scan(..).filter(|pair| pair.is_ok()).count();
    assert_eq!(seen, 40_000);
    let held = db.stats().unwrap().space_bytes;
    drop(snapshot);
    let comes_back = || db.stats().unwrap().space_bytes + 30 * MIB < held;
    wait_until(|| format!("{held} were held: {:?}", db.stats().unwrap()), comes_back);
    assert_eq!(db.scan(..).filter(|pair| pair.is_ok()).count(), 4000);
}

/// Work that began while writers write ends with what was there when it began.
#[test]
fn a_flush_and_a_collection_end_while_writers_go_on() {
    let db = Db::create_on(MemoryBacking::new(512 * MIB).unwrap(), options().memtable_bytes(64 << 10)).unwrap();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let writer = |first: u64| {
            let (db, is_over) = (&db, &is_over);
            move || {
                let numbers = (0..4000_u64).cycle().take_while(|_| !is_over.load(Ordering::Relaxed));
                numbers.for_each(|number| db.put(&(first + number).to_be_bytes(), &[7; 500]).unwrap());
            }
        };
        scope.spawn(writer(0));
        scope.spawn(writer(1 << 40));
        for _ in 0..3 {
            db.put(b"before", b"it").unwrap();
            db.flush().unwrap();
            db.collect_garbage().unwrap();
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert_eq!(db.get(b"before").unwrap().as_deref(), Some(&b"it"[..]));
}
