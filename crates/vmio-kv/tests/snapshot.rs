//! Points in time while writers and compactions run.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::support::Random;
use vmio::backing::MemoryBacking;
use vmio_kv::{Db, Durability, KeyspaceHandle, KeyspaceSnapshot, Snapshot, WriteBatch};

const ACCOUNTS: u64 = 300;
const EACH: i64 = 1000;

fn store() -> Db {
    // Everything is compacted all the time.
    let options = crate::support::options().memory_bytes(32 << 20).memtable_bytes(6 << 10).growth_factor(2);
    Db::create_on(MemoryBacking::new(256 << 20).unwrap(), options.durability(Durability::None)).unwrap()
}

fn key(account: u64) -> Vec<u8> {
    format!("account {account:06}").into_bytes()
}

fn amount(value: &[u8]) -> i64 {
    i64::from_le_bytes(value.try_into().unwrap())
}

fn sum(keyspace: &KeyspaceSnapshot) -> i64 {
    keyspace.scan(..).map(|found| amount(&found.unwrap().1)).sum()
}

/// Moves money to and fro, within a keyspace and between two, in batches, until it is told to stop.
fn transfer(db: &Db, keyspaces: [&KeyspaceHandle; 2], seed: u64, is_over: &AtomicBool) {
    let mut random = Random(seed);
    // Each writer has its own accounts, whose contents it knows.
    let mut amounts = vec![EACH; 2 * ACCOUNTS as usize];
    let account = |place: usize| key(seed * ACCOUNTS + place as u64 / 2);
    while !is_over.load(Ordering::Relaxed) {
        let mut batch = WriteBatch::new();
        let mut moved = 0;
        let places: Vec<usize> = (0..2 + random.below(6)).map(|_| random.below(2 * ACCOUNTS) as usize).collect();
        for place in &places[1..] {
            let some = random.below(50) as i64;
            amounts[*place] -= some;
            moved += some;
        }
        amounts[places[0]] += moved;
        for place in places {
            batch.put(keyspaces[place % 2], &account(place), &amounts[place].to_le_bytes()).unwrap();
        }
        db.write(&batch).unwrap();
    }
}

#[test]
fn a_snapshot_of_all_keyspaces_shows_batches_whole() {
    const WRITERS: u64 = 2;
    let db = store();
    let (left, right) = (db.keyspace_or_create("left").unwrap(), db.keyspace_or_create("right").unwrap());
    for writer in 0..WRITERS {
        for account in 0..ACCOUNTS {
            let key = key(writer * ACCOUNTS + account);
            left.put(&key, &EACH.to_le_bytes()).unwrap();
            right.put(&key, &EACH.to_le_bytes()).unwrap();
        }
    }
    let all = EACH * 2 * (ACCOUNTS * WRITERS) as i64;
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (db, keyspaces, is_over) = (&db, [&left, &right], &is_over);
            scope.spawn(move || transfer(db, keyspaces, writer, is_over));
        }
        let mut kept = Vec::new();
        let check_again = |kept: &mut Vec<(Snapshot, [i64; 2])>| {
            for (snapshot, sums) in kept.drain(..) {
                let now = ["left", "right"].map(|name| sum(snapshot.keyspace(name).unwrap()));
                if now != sums {
                    is_over.store(true, Ordering::Relaxed);
                    panic!("{now:?} of a snapshot that had {sums:?}");
                }
            }
        };
        let mut sums_of_left = Vec::new();
        let mut round = 0;
        // Until writers have written meanwhile.
        while round < 300 || sums_of_left.len() < 30 {
            let snapshot = db.snapshot();
            let sums = ["left", "right"].map(|name| sum(snapshot.keyspace(name).unwrap()));
            if sums.iter().sum::<i64>() != all {
                is_over.store(true, Ordering::Relaxed);
                panic!("round {round}: {sums:?} of {all}");
            }
            if sums_of_left.last() != Some(&sums[0]) {
                sums_of_left.push(sums[0]);
                if sums_of_left.len() % 10 == 1 {
                    kept.push((snapshot, sums));
                }
            }
            round += 1;
            // Not for ever: the writers may be so much faster that what they overwrite fills the volume.
            if round % 50 == 0 {
                check_again(&mut kept);
            }
        }
        is_over.store(true, Ordering::Relaxed);
        check_again(&mut kept);
    });
    assert!(db.stats().unwrap().level_entries > 0);
}

/// A scan is a point in time, too; all keys have the same value at each.
#[test]
fn a_scan_shows_no_later_writes() {
    const KEYS: u64 = 200;
    let db = store();
    let write = |value: u64| {
        let mut batch = WriteBatch::new();
        (0..KEYS).for_each(|number| batch.put(&db, &key(number), &value.to_le_bytes()).unwrap());
        db.write(&batch).unwrap();
    };
    write(0);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| (1..).take_while(|_| !is_over.load(Ordering::Relaxed)).for_each(write));
        let (mut rounds, mut seen) = (0, Vec::new());
        while rounds < 300 || seen.len() < 30 {
            let values: Vec<Vec<u8>> = db.scan(..).map(|found| found.unwrap().1).collect();
            let is_one = values.len() as u64 == KEYS && values.iter().all(|value| *value == values[0]);
            if !is_one {
                is_over.store(true, Ordering::Relaxed);
                panic!("{} values, {:?} to {:?}", values.len(), values.first(), values.last());
            }
            if seen.last() != Some(&values[0]) {
                seen.push(values[0].clone());
            }
            rounds += 1;
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

/// Each batch fills its memtables, so that memtables become immutable all the time while snapshots begin.
#[test]
fn a_snapshot_shows_batches_whole_while_memtables_are_made_immutable() {
    let options = crate::support::options().memory_bytes(32 << 20).memtable_bytes(1).durability(Durability::None);
    let db = Db::create_on(MemoryBacking::new(256 << 20).unwrap(), options).unwrap();
    let (left, right) = (db.keyspace_or_create("left").unwrap(), db.keyspace_or_create("right").unwrap());
    let write = |value: u64| {
        let mut batch = WriteBatch::new();
        batch.put(&left, b"key", &value.to_le_bytes()).unwrap();
        batch.put(&right, b"key", &value.to_le_bytes()).unwrap();
        db.write(&batch).unwrap();
    };
    write(0);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| (1..).take_while(|_| !is_over.load(Ordering::Relaxed)).for_each(write));
        let mut seen = Vec::new();
        while seen.len() < 300 {
            let snapshot = db.snapshot();
            let value = |name: &str| snapshot.keyspace(name).unwrap().get(b"key").unwrap().unwrap();
            let values = [value("left"), value("right")];
            if values[0] != values[1] {
                is_over.store(true, Ordering::Relaxed);
                panic!("{values:?} after {}", seen.len());
            }
            if seen.last() != Some(&values[0]) {
                seen.push(values[0].clone());
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_snapshot_outlives_its_store_and_knows_its_keyspaces() {
    let db = store();
    db.put(b"key", b"before").unwrap();
    let snapshot = db.snapshot();
    let keyspace = db.keyspace_or_create("later").unwrap();
    keyspace.put(b"key", b"elsewhere").unwrap();
    let of_keyspace = keyspace.snapshot();
    db.put(b"key", b"after").unwrap();
    keyspace.delete(b"key").unwrap();
    db.flush().unwrap();
    assert!(snapshot.keyspace("later").is_err());
    assert_eq!(snapshot.keyspace_names().unwrap().collect::<Vec<_>>(), ["default"]);
    drop(keyspace);
    db.close().unwrap();
    assert_eq!(snapshot.get(b"key").unwrap().as_deref(), Some(&b"before"[..]));
    assert_eq!(of_keyspace.get(b"key").unwrap().as_deref(), Some(&b"elsewhere"[..]));
    assert!(of_keyspace.contains(b"key").unwrap() && !of_keyspace.contains(b"none").unwrap());
}

/// The garbage once no merge finds more.
fn settled_garbage(db: &Db) -> u64 {
    let garbage = || db.stats().unwrap().garbage_bytes;
    let (mut last, mut same) = (garbage(), 0);
    let is_settled = test_depth::comes_true(|| {
        std::thread::sleep(Duration::from_millis(10));
        let now = garbage();
        same = if now == last { same + 1 } else { 0 };
        last = now;
        same == 20
    });
    assert!(is_settled, "merges have no end");
    last
}

/// An overwritten record counts as garbage once, whether a snapshot shows it or not.
#[test]
fn overwritten_records_are_counted_once() {
    let garbage = |with_snapshots: bool| {
        let db = store();
        let mut snapshots = Vec::new();
        for round in 0..6_u8 {
            (0..100).for_each(|number| db.put(&key(number), &[round; 100]).unwrap());
            if with_snapshots {
                snapshots.push(db.snapshot());
            }
            if round % 2 == 1 {
                db.flush().unwrap();
            }
        }
        db.flush().unwrap();
        drop(snapshots);
        db.put(&key(0), b"last").unwrap();
        db.flush().unwrap();
        settled_garbage(&db)
    };
    // Flushes that come late are merged with later ones, and which records those compare is then another matter.
    test_depth::one_of(4, || [true, false].map(garbage), |[with, without]| with == without && *with > 0);
}
