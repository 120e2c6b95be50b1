//! Garbage collection of the log: space comes back, and nothing is lost or reappears, while others read and write.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use crate::support::child::isolated;
use crate::support::simulated_disk::SimulatedDisk;
use vmio::backing::MemoryBacking;
use vmio_kv::{Db, Durability, Error, Options, WriteBatch};

const MIB: u64 = 1 << 20;

fn options(memtable_bytes: u64) -> Options {
    crate::support::options()
        .memory_bytes(32 << 20)
        .memtable_bytes(memtable_bytes)
        .growth_factor(2)
        .durability(Durability::None)
}

/// Keys that a leaf's entry does not distinguish.
fn key(number: u64) -> Vec<u8> {
    format!("a front that all the keys of the store share, {}, and then some more of it {number:08}", number % 3)
        .into_bytes()
}

/// A value that names its key and its round.
fn value(number: u64, round: u64, bytes: usize) -> Vec<u8> {
    let mut value = vec![(number + round) as u8; bytes];
    value[..8].copy_from_slice(&number.to_le_bytes());
    value[8..16].copy_from_slice(&round.to_le_bytes());
    value
}

fn parts(value: &[u8]) -> (u64, u64) {
    let part = |at: usize| u64::from_le_bytes(value[at..at + 8].try_into().unwrap());
    assert!(value[16..].iter().all(|byte| *byte == (part(0) + part(8)) as u8));
    (part(0), part(8))
}

/// The expected contents, checked by scans and by look-ups.
fn check(db: &Db, expected: impl Fn(u64) -> Option<u64>, keys: u64) {
    for number in 0..keys {
        let found = db.get(&key(number)).unwrap().map(|value| parts(&value));
        assert_eq!(found, expected(number).map(|round| (number, round)), "key {number}");
    }
    let mut wanted: Vec<_> = (0..keys).filter_map(|number| Some((key(number), (number, expected(number)?)))).collect();
    wanted.sort();
    let found: Vec<_> = db.scan(..).map(Result::unwrap).map(|(key, value)| (key, parts(&value))).collect();
    assert!(found == wanted, "{} entries for {}", found.len(), wanted.len());
}

#[test]
fn a_small_working_set_may_be_overwritten_for_ever() {
    const VOLUME: u64 = 40 * MIB;
    const KEYS: u64 = 500;
    let disk = Arc::new(MemoryBacking::new(VOLUME).unwrap());
    // Once with a memtable that never fills, once with levels that are flushed all the time.
    for memtable_bytes in [4 * MIB, 16 << 10] {
        let disk =
            if memtable_bytes == 4 * MIB { Arc::clone(&disk) } else { Arc::new(MemoryBacking::new(VOLUME).unwrap()) };
        let db = Db::create_on(disk, options(memtable_bytes)).unwrap();
        let (mut written, mut round) = (0, 0);
        while written < 20 * VOLUME {
            for number in 0..KEYS {
                let value = value(number, round, 4000);
                db.put(&key(number), &value).unwrap();
                written += value.len() as u64;
            }
            round += 1;
        }
        check(&db, |_| Some(round - 1), KEYS);
        db.collect_garbage().unwrap();
        let stats = db.stats().unwrap();
        // Besides the live records the log has the chunks that are written to.
        assert!(stats.log_bytes <= stats.live_bytes * 3 / 2 + 10 * MIB, "{stats:?}");
        assert!(stats.collected_chunks > 100, "{stats:?}");
        check(&db, |_| Some(round - 1), KEYS);
        db.close().unwrap();
    }
}

/// Puts are refused first. All acknowledged puts are there, also after another opening; deletions make space for more.
#[test]
fn a_full_store_has_space_again_after_deletions() {
    let disk = Arc::new(MemoryBacking::new(64 * MIB).unwrap());
    for cycle in 0..3 {
        let db = match cycle {
            0 => Db::create_on(Arc::clone(&disk), options(16 << 10)).unwrap(),
            _ => Db::open_on(Arc::clone(&disk), options(16 << 10)).unwrap(),
        };
        let mut count = 0;
        let mut refusals = 0;
        // Compactions that end may make a little space.
        while refusals < 3 {
            match db.put(&key(count), &value(count, cycle, 20_000)) {
                Ok(()) => (count, refusals) = (count + 1, 0),
                Err(Error::Full { .. }) => {
                    db.flush().unwrap();
                    refusals += 1;
                }
                Err(error) => panic!("{error}"),
            }
        }
        assert!(count >= 1000, "{count}");
        check(&db, |_| Some(cycle), count);
        db.close().unwrap();
        // Any number of openings. Their compactions and collections may leave space for one more put.
        for _ in 0..10 {
            let db = Db::open_on(Arc::clone(&disk), options(16 << 10)).unwrap();
            match db.put(b"no", &[0; 20_000]) {
                Ok(()) => db.delete(b"no").unwrap(),
                Err(error) => assert!(matches!(error, Error::Full { .. }), "{error}"),
            }
            check(&db, |_| Some(cycle), count);
            db.close().unwrap();
        }
        let db = Db::open_on(Arc::clone(&disk), options(16 << 10)).unwrap();
        for number in (0..count).step_by(2) {
            db.delete(&key(number)).unwrap_or_else(|error| panic!("{number}: {error}, {:?}", db.stats().unwrap()));
        }
        db.collect_garbage().unwrap();
        let stats = db.stats().unwrap();
        check(&db, |number| (number % 2 == 1).then_some(cycle), count);
        for number in (0..count / 2).step_by(2) {
            db.put(&key(number), &value(number, 7, 20_000))
                .unwrap_or_else(|error| panic!("{number}: {error}, {stats:?}"));
        }
        let expected = |number: u64| match number % 2 {
            1 => Some(cycle),
            _ => (number < count / 2).then_some(7),
        };
        check(&db, expected, count);
        // Empty for the next time.
        for number in 0..count {
            db.delete(&key(number)).unwrap();
        }
        db.collect_garbage().unwrap();
        check(&db, |_| None, count);
        db.close().unwrap();
    }
}

/// Older levels keep entries whose records are gone, and whose places hold other records.
#[test]
fn entries_of_older_levels_whose_records_are_gone_are_skipped() {
    const KEYS: u64 = 3000;
    let disk = Arc::new(MemoryBacking::new(96 * MIB).unwrap());
    let mut db = Db::create_on(Arc::clone(&disk), options(24 << 10)).unwrap();
    let mut rounds = vec![None; KEYS as usize];
    let mut random = 1_u64;
    for step in 0..40_u64 {
        // Most keys rest, in deep levels; a few hundred change, so that the others' chunks are not all live.
        let first = step * 991 % KEYS;
        for number in (first..first + 700).map(|number| number % KEYS) {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            if (random >> 60) < 4 {
                db.delete(&key(number)).unwrap();
                rounds[number as usize] = None;
            } else {
                db.put(&key(number), &value(number, step, 2000 + (random >> 54) as usize)).unwrap();
                rounds[number as usize] = Some(step);
            }
        }
        if step % 3 == 0 {
            db.collect_garbage().unwrap();
        }
        if step % 5 == 0 {
            check(&db, |number| rounds[number as usize], KEYS);
        }
        if step % 7 == 6 {
            db.close().unwrap();
            db = Db::open_on(Arc::clone(&disk), options(24 << 10)).unwrap();
        }
    }
    check(&db, |number| rounds[number as usize], KEYS);
}

/// A scan that began before everything was overwritten and collected reads its own state.
#[test]
fn a_scan_keeps_the_chunks_that_it_may_read() {
    const KEYS: u64 = 1000;
    let db = Db::create_on(MemoryBacking::new(96 * MIB).unwrap(), options(16 << 10)).unwrap();
    (0..KEYS).for_each(|number| db.put(&key(number), &value(number, 0, 4000)).unwrap());
    db.flush().unwrap();
    let mut wanted: Vec<Vec<u8>> = (0..KEYS).map(key).collect();
    wanted.sort();
    let mut scan = db.scan(..);
    let first = scan.next().unwrap().unwrap();
    for round in 1..8 {
        for number in 0..KEYS {
            db.put(&key(number), &value(number, round, 4000)).unwrap();
        }
        db.flush().unwrap();
        db.collect_garbage().unwrap();
    }
    assert!(db.stats().unwrap().collected_chunks >= 2);
    let rest = scan.map(Result::unwrap);
    for ((found, value), wanted) in std::iter::once(first).chain(rest).zip(&wanted) {
        assert_eq!(&found, wanted);
        assert_eq!(key(parts(&value).0), found);
    }
    // The scan held the chunks: now they become free.
    db.put(b"more", b"one").unwrap();
    db.flush().unwrap();
    db.collect_garbage().unwrap();
    let stats = db.stats().unwrap();
    assert!(stats.log_bytes <= stats.live_bytes * 3 / 2 + 10 * MIB, "{stats:?}");
}

/// A put during a move is newer than the moved record.
#[test]
fn writers_during_collections_have_the_last_word() {
    const KEYS: u64 = 400;
    const WRITERS: u64 = 2;
    let disk = Arc::new(MemoryBacking::new(96 * MIB).unwrap());
    let db = Db::create_on(Arc::clone(&disk), options(16 << 10).max_space_amplification(1.1)).unwrap();
    let has_ended = AtomicBool::new(false);
    let last: Vec<Option<u64>> = std::thread::scope(|scope| {
        let (db, has_ended) = (&db, &has_ended);
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                scope.spawn(move || {
                    let mut last = vec![None; KEYS as usize];
                    let mut random = writer + 1;
                    for round in 0..30_000_u64 {
                        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        let number = (random >> 33) % (KEYS / WRITERS) * WRITERS + writer;
                        // No other thread writes this key: an older copy must not come back.
                        let found = db.get(&key(number)).unwrap().map(|value| parts(&value).1);
                        assert_eq!(found, last[number as usize], "key {number}");
                        if random >> 61 == 0 {
                            db.delete(&key(number)).unwrap();
                            last[number as usize] = None;
                        } else {
                            db.put(&key(number), &value(number, round, 1500)).unwrap();
                            last[number as usize] = Some(round);
                        }
                    }
                    last
                })
            })
            .collect();
        let collector = scope.spawn(move || {
            while !has_ended.load(Ordering::Relaxed) {
                db.collect_garbage().unwrap();
            }
        });
        let scanner = scope.spawn(move || {
            while !has_ended.load(Ordering::Relaxed) {
                for found in db.scan(..) {
                    let (found, value) = found.unwrap();
                    assert_eq!(key(parts(&value).0), found);
                }
            }
        });
        let last: Vec<Vec<Option<u64>>> = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
        has_ended.store(true, Ordering::Relaxed);
        collector.join().unwrap();
        scanner.join().unwrap();
        (0..KEYS).map(|number| last[(number % WRITERS) as usize][number as usize]).collect()
    });
    check(&db, |number| last[number as usize], KEYS);
    assert!(
        db.stats().unwrap().collected_chunks > 0 && db.stats().unwrap().moved_bytes > 0,
        "{:?}",
        db.stats().unwrap()
    );
    db.close().unwrap();
    let db = Db::open_on(disk, options(16 << 10)).unwrap();
    check(&db, |number| last[number as usize], KEYS);
}

/// A damaged record does not end its chunk: the chunk stays, and a reader of the record gets the error.
#[test]
fn a_damaged_chunk_is_left_alone() {
    const KEYS: u64 = 1000;
    let disk = SimulatedDisk::new(1, &[64 * MIB]);
    let db = Db::create_on(disk.open(0), options(16 << 10)).unwrap();
    let put_all = |db: &Db, round: u64| {
        (0..KEYS).for_each(|number| db.put(&key(number), &value(number, round, 4000)).unwrap());
    };
    let pattern = [0xa7; 64];
    db.put(b"live", &pattern).unwrap();
    put_all(&db, 0);
    db.close().unwrap();
    let place = disk.contents(0).windows(64).position(|bytes| bytes == pattern).unwrap();
    disk.corrupt(0, place as u64, |byte| *byte ^= 1);
    let db = Db::open_on(disk.open(0), options(16 << 10)).unwrap();
    for round in 1..4 {
        put_all(&db, round);
        db.collect_garbage().unwrap();
    }
    assert!(db.stats().unwrap().collected_chunks >= 3, "{:?}", db.stats().unwrap());
    assert!(matches!(db.get(b"live"), Err(Error::Damaged { .. })));
    for number in 0..KEYS {
        assert_eq!(db.get(&key(number)).unwrap().map(|value| parts(&value)), Some((number, 3)));
    }
}

/// No chunk that recovery reads is freed before its records are flushed.
#[test]
fn records_that_recovery_reads_survive_a_power_cut() {
    const KEYS: u64 = 1000;
    let disk = SimulatedDisk::new(3, &[64 * MIB]);
    // All of it would stay in memory.
    let db = Db::create_on(disk.open(0), options(4 * MIB)).unwrap();
    let round_of = |number: u64| if number.is_multiple_of(5) { 0 } else { 30 };
    for round in 0..=30 {
        for number in (0..KEYS).filter(|number| round <= round_of(*number)) {
            db.put(&key(number), &value(number, round, 4000)).unwrap();
        }
    }
    db.sync().unwrap();
    assert!(db.stats().unwrap().collected_chunks > 10, "{:?}", db.stats().unwrap());
    let disk = disk.after_power_cut();
    drop(db);
    let db = Db::open_on(disk.open(0), options(4 * MIB)).unwrap();
    check(&db, |number| Some(round_of(number)), KEYS);
}

/// Each opening begins another chunk; the unused end of the chunk before comes back.
#[test]
fn openings_do_not_fill_the_volume() {
    const OPENINGS: u64 = 80;
    let disk = Arc::new(MemoryBacking::new(40 * MIB).unwrap());
    Db::create_on(Arc::clone(&disk), options(MIB)).unwrap().close().unwrap();
    for number in 0..OPENINGS {
        let db = Db::open_on(Arc::clone(&disk), options(MIB)).unwrap();
        db.put(&key(number), &value(number, 1, 100)).unwrap_or_else(|error| panic!("{number}: {error}"));
        db.close().unwrap();
    }
    let db = Db::open_on(disk, options(MIB)).unwrap();
    check(&db, |_| Some(1), OPENINGS);
}

/// The first chunk of its memtable was freed long ago, and a flush of another keyspace records where recovery begins.
#[test]
fn an_idle_keyspace_does_not_make_recovery_begin_at_its_start() {
    const KEYS: u64 = 200;
    for is_moved in [false, true] {
        let disk = Arc::new(MemoryBacking::new(96 * MIB).unwrap());
        let db = Db::create_on(Arc::clone(&disk), options(64 << 10)).unwrap();
        let busy = db.keyspace_or_create("busy").unwrap();
        let overwrite = |rounds: std::ops::Range<u64>| {
            for (round, number) in rounds.flat_map(|round| (0..KEYS).map(move |number| (round, number))) {
                busy.put(&key(number), &value(number, round, 4000)).unwrap();
            }
        };
        if is_moved {
            db.put(&key(0), &value(0, 1, 100)).unwrap();
            db.flush().unwrap();
        }
        overwrite(0..60);
        db.collect_garbage().unwrap();
        overwrite(60..90);
        assert!(db.stats().unwrap().collected_chunks > 5, "{:?}", db.stats().unwrap());
        db.put(&key(0), &value(0, 2, 100)).unwrap();
        overwrite(90..120);
        drop(busy);
        db.close().unwrap();
        let db = Db::open_on(disk, options(64 << 10)).unwrap();
        check(&db, |_| Some(2), 1);
        let busy = db.keyspace("busy").unwrap();
        for number in 0..KEYS {
            assert_eq!(parts(&busy.get(&key(number)).unwrap().unwrap()), (number, 119));
        }
    }
}

/// The same with batches: a move waits for one nearly always, and has to look again.
#[test]
fn batches_during_collections_have_the_last_word() {
    const KEYS: u64 = 400;
    let db =
        Db::create_on(MemoryBacking::new(96 * MIB).unwrap(), options(64 << 10).max_space_amplification(1.1)).unwrap();
    let has_ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !has_ended.load(Ordering::Relaxed) {
                db.collect_garbage().unwrap();
            }
        });
        let written = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut last = vec![None; KEYS as usize];
            let mut random = 1_u64;
            for round in 0..400 {
                let mut batch = WriteBatch::new();
                for _ in 0..KEYS / 4 {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let number = (random >> 33) % KEYS;
                    batch.put(db.default_keyspace(), &key(number), &value(number, round, 4000)).unwrap();
                    last[number as usize] = Some(round);
                }
                db.write(&batch).unwrap();
                if round % 4 == 3 {
                    check(&db, |number| last[number as usize], KEYS);
                }
            }
        }));
        has_ended.store(true, Ordering::Relaxed);
        written.unwrap();
    });
    assert!(db.stats().unwrap().moved_bytes > 0, "{:?}", db.stats().unwrap());
}

/// Closing a store stops its background work: that is no error, and none is logged.
#[test]
fn a_close_that_stops_a_collection_logs_no_error() {
    const KEYS: u64 = 4000;
    isolated("garbage::a_close_that_stops_a_collection_logs_no_error", || {
        let told = tempfile::NamedTempFile::new().unwrap();
        let writer = Mutex::new(told.reopen().unwrap());
        tracing_subscriber::fmt().with_max_level(tracing::Level::ERROR).with_writer(writer).init();
        for moment in 0..40 {
            let options = options(64 << 10).max_space_amplification(1.1);
            let db = Db::create_on(MemoryBacking::new(96 * MIB).unwrap(), options).unwrap();
            for round in 0..2 {
                // One in eight stays, so that chunks have something to move.
                for number in (0..KEYS).filter(|number| round == 0 || !number.is_multiple_of(8)) {
                    db.put(&key(number), &value(number, round, 4000)).unwrap();
                }
            }
            db.flush().unwrap();
            thread::sleep(Duration::from_micros(250 * moment));
            db.close().unwrap();
        }
        assert_eq!(fs::read_to_string(told.path()).unwrap(), "");
    })
    .succeeds();
}
