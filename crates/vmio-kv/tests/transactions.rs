//! Transactions: what conflicts and what does not, and what a commit or its failure leaves behind.

use std::cell::Cell;

use crate::support::simulated_disk::SimulatedDisk;
use vmio::backing::MemoryBacking;
use vmio_kv::{Db, Durability, Error, KeyRange, KeyspaceHandle, Options, Transaction, WriteBatch};

const LARGE: usize = 3 << 20;

/// A step of a test, with its name.
type Named<Step> = (&'static str, Step);
/// A step that changes the store, or the places of its records.
type Step = fn(&Db);
/// A step that reads.
type Read = fn(&Transaction, &Db);

fn options() -> Options {
    crate::support::options().memory_bytes(32 << 20).durability(Durability::None)
}

fn store() -> Db {
    Db::create_on(MemoryBacking::new(128 << 20).unwrap(), options()).unwrap()
}

/// With space for another segment.
fn growing_options() -> Options {
    options().max_volume_bytes(512 << 20)
}

fn conflict(committed: vmio_kv::Result<()>) -> Vec<u8> {
    match committed {
        Err(Error::Conflict { key, .. }) => key,
        other => panic!("{other:?} in place of a conflict"),
    }
}

fn found(transaction: &Transaction, keyspace: &KeyspaceHandle, range: impl Into<KeyRange>) -> Vec<String> {
    let pair = |found: vmio_kv::Result<(Vec<u8>, Vec<u8>)>| {
        let (key, value) = found.unwrap();
        format!("{}={}", key.escape_ascii(), value.escape_ascii())
    };
    transaction.scan(keyspace, range).unwrap().map(pair).collect()
}

/// Moves of records between a read and a change, or between a change and the commit.
fn upkeeps() -> Vec<Named<Step>> {
    fn flush(db: &Db) {
        db.put(b"upkeep", b"x").unwrap();
        db.flush().unwrap();
    }
    let nothing: Step = |_| ();
    vec![
        ("nothing", nothing),
        ("a flush", flush),
        ("three flushes", |db| (0..3).for_each(|_| flush(db))),
        ("a collection", |db| {
            (0..30).for_each(|_| db.put(b"upkeep", &[7; 200_000]).unwrap());
            flush(db);
            db.collect_garbage().unwrap();
        }),
    ]
}

/// Ways to read, which all have read key "m" and no key behind "o".
fn reads() -> Vec<Named<Read>> {
    vec![
        ("get", |transaction, db| drop(transaction.get(db, b"m").unwrap())),
        ("contains", |transaction, db| _ = transaction.contains(db, b"m").unwrap()),
        ("a scan", |transaction, db| assert!(transaction.scan(db, b"c"..b"n").unwrap().all(|found| found.is_ok()))),
        ("a scan down", |transaction, db| {
            assert!(transaction.scan(db, b"c"..=b"m").unwrap().rev().all(|found| found.is_ok()));
        }),
    ]
}

#[test]
fn a_change_of_what_was_read_conflicts_however_records_have_moved_since() {
    // Each has changed the key "m", which had the value "old" or none.
    let changes: [(bool, Named<Step>); 10] = [
        (false, ("a put", |db| db.put(b"m", b"new").unwrap())),
        (true, ("a put", |db| db.put(b"m", b"new").unwrap())),
        (false, ("a large put", |db| db.put(b"m", &vec![1; LARGE]).unwrap())),
        (true, ("a large put", |db| db.put(b"m", &vec![1; LARGE]).unwrap())),
        (true, ("a deletion", |db| db.delete(b"m").unwrap())),
        (
            false,
            ("a batch", |db| {
                let mut batch = WriteBatch::new();
                batch.put(db, b"other", b"x").unwrap();
                batch.put(db, b"m", b"new").unwrap();
                db.write(&batch).unwrap();
            }),
        ),
        (
            true,
            ("a transaction", |db| {
                db.transact(|other| other.put(db, b"m", b"new")).unwrap();
            }),
        ),
        (
            true,
            ("compare and set", |db| {
                assert!(db.compare_and_set(b"m", Some(b"old"), None).unwrap());
            }),
        ),
        (true, ("a pop", |db| assert_eq!(db.pop_first().unwrap().unwrap().0, b"m"))),
        (true, ("a clear", |db| db.clear().unwrap())),
    ];
    for (before_name, before) in upkeeps() {
        for (after_name, after) in upkeeps() {
            if before_name == "a collection" && after_name == "a collection" {
                continue;
            }
            let db = store();
            for (read_name, read) in reads() {
                for (was_there, (change_name, change)) in changes {
                    let what =
                        format!("{read_name}, {before_name}, {change_name} (was there: {was_there}), {after_name}");
                    db.clear().unwrap();
                    if was_there {
                        db.put(b"m", b"old").unwrap();
                    }
                    let mut transaction = db.transaction();
                    read(&transaction, &db);
                    transaction.put(&db, b"result", b"x").unwrap();
                    before(&db);
                    change(&db);
                    after(&db);
                    let key = conflict(transaction.commit());
                    assert_eq!(key, b"m", "{what}");
                    assert!(!db.contains(b"result").unwrap(), "{what}");
                }
            }
        }
    }
}

#[test]
fn what_was_not_read_and_moved_records_do_not_conflict() {
    let db = store();
    for (upkeep_name, upkeep) in upkeeps() {
        for (read_name, read) in reads() {
            for was_there in [false, true] {
                let what = format!("{read_name}, {upkeep_name}, was there: {was_there}");
                db.clear().unwrap();
                if was_there {
                    // It shares a chunk with garbage.
                    db.put(b"m", &[5; 100_000]).unwrap();
                }
                let before = db.stats().unwrap().moved_bytes;
                let mut transaction = db.transaction();
                read(&transaction, &db);
                // Blind writes, and writes to other keys.
                transaction.put(&db, b"result", b"x").unwrap();
                db.put(b"result", b"y").unwrap();
                db.put(b"o", b"x").unwrap();
                upkeep(&db);
                // The same value once more is no change.
                if was_there {
                    db.put(b"m", &[5; 100_000]).unwrap();
                } else {
                    db.delete(b"m").unwrap();
                }
                upkeep(&db);
                transaction.commit().unwrap_or_else(|error| panic!("{what}: {error}"));
                assert_eq!(db.get(b"result").unwrap().as_deref(), Some(&b"x"[..]), "{what}");
                if upkeep_name == "a collection" {
                    assert!(db.stats().unwrap().moved_bytes > before, "{what}: nothing was moved");
                }
            }
        }
    }
}

#[test]
fn a_scan_has_read_as_far_as_it_has_come() {
    // Nothing, and flushes.
    for (upkeep_name, upkeep) in upkeeps().into_iter().take(3) {
        // Of ten keys with even numbers a scan takes some from either end; then an odd one is inserted.
        for (ups, downs, conflicts) in [(0, 0, 0..0), (3, 0, 1..5), (0, 3, 15..19), (10, 0, 1..19), (11, 0, 1..21)] {
            let db = store();
            let key = |number: usize| format!("{number:02}").into_bytes();
            (0..10).for_each(|number| db.put(&key(2 * number), b"x").unwrap());
            for inserted in (1..21).step_by(2) {
                let mut transaction = db.transaction();
                let mut scan = transaction.scan(&db, ..key(21)).unwrap();
                (0..ups).for_each(|_| drop(scan.next().transpose().unwrap()));
                (0..downs).for_each(|_| drop(scan.next_back().transpose().unwrap()));
                drop(scan);
                transaction.put(&db, b"result", b"x").unwrap();
                db.put(&key(inserted), b"x").unwrap();
                upkeep(&db);
                let committed = transaction.commit();
                let what = format!("{ups} up, {downs} down, {inserted} inserted, {upkeep_name}");
                let is_read = conflicts.contains(&inserted) || (downs > 0 && inserted > 14);
                assert_eq!(matches!(committed, Err(Error::Conflict { .. })), is_read, "{what}: {committed:?}");
                db.delete(&key(inserted)).unwrap();
            }
        }
    }
}

#[test]
fn write_skew_conflicts() {
    let db = store();
    let (left, right) = (db.keyspace_or_create("left").unwrap(), db.keyspace_or_create("right").unwrap());
    left.put(b"balance", &[60]).unwrap();
    right.put(b"balance", &[60]).unwrap();
    // Each may go below zero as long as the sum does not.
    let withdraw = |from: &KeyspaceHandle| {
        let mut transaction = db.transaction();
        let of = |keyspace| transaction.get(keyspace, b"balance").unwrap().unwrap()[0] as i8;
        assert!(of(&left) + of(&right) >= 100);
        let rest = of(from) - 100;
        transaction.put(from, b"balance", &[rest as u8]).unwrap();
        transaction
    };
    let (first, second) = (withdraw(&left), withdraw(&right));
    first.commit().unwrap();
    assert_eq!(conflict(second.commit()), b"balance");
    assert_eq!(right.get(b"balance").unwrap(), Some(vec![60]));
}

#[test]
fn a_transaction_sees_its_own_writes_in_one_moment_of_the_store() {
    let db = store();
    for key in ["a", "c", "e", "g"] {
        db.put(key.as_bytes(), b"old").unwrap();
    }
    let mut transaction = db.transaction();
    db.put(b"b", b"later").unwrap();
    transaction.put(&db, b"d", b"own").unwrap();
    transaction.put(&db, b"e", b"own").unwrap();
    transaction.delete(&db, b"c").unwrap();
    transaction.delete(&db, b"g").unwrap();
    transaction.put(&db, b"h", b"own").unwrap();
    assert_eq!(found(&transaction, &db, ..), ["a=old", "d=own", "e=own", "h=own"]);
    assert_eq!(found(&transaction, &db, b"b"..b"e"), ["d=own"]);
    assert_eq!(found(&transaction, &db, KeyRange::prefix("e")), ["e=own"]);
    assert!(found(&transaction, &db, b"z"..b"a").is_empty() && found(&transaction, &db, b"d"..b"d").is_empty());
    let mut scan = transaction.scan(&db, ..).unwrap();
    let mut key = |is_up| if is_up { scan.next() } else { scan.next_back() }.map(|found| found.unwrap().0[0]);
    let keys = [key(false), key(true), key(false), key(true), key(true), key(false)];
    assert_eq!(keys, [Some(b'h'), Some(b'a'), Some(b'e'), Some(b'd'), None, None]);
    assert_eq!(transaction.get(&db, b"c").unwrap(), None);
    assert_eq!(transaction.get(&db, b"b").unwrap(), None);
    assert!(transaction.contains(&db, b"d").unwrap() && transaction.contains(&db, b"a").unwrap());
    assert!(!transaction.contains(&db, b"g").unwrap());
    assert!(!db.contains(b"d").unwrap() && db.contains(b"c").unwrap());
    assert_eq!(conflict(transaction.commit()), b"b");
    assert!(!db.contains(b"d").unwrap() && db.contains(b"c").unwrap());
}

#[test]
fn without_a_commit_nothing_is_written() {
    let db = store();
    db.put(b"key", b"old").unwrap();
    let mut transaction = db.transaction();
    transaction.put(&db, b"key", b"new").unwrap();
    transaction.put(&db, b"large", &vec![1; LARGE]).unwrap();
    drop(transaction);
    assert_eq!(db.scan(..).count(), 1);
    let mut transaction = db.transaction();
    assert!(transaction.contains(&db, b"key").unwrap());
    transaction.put(&db, b"large", &vec![1; LARGE]).unwrap();
    db.delete(b"key").unwrap();
    let written = db.stats().unwrap().memtable_bytes;
    conflict(transaction.commit());
    assert_eq!(db.scan(..).count(), 0);
    let stats = db.stats().unwrap();
    assert_eq!((stats.memtable_bytes, stats.extents_bytes), (written, 0));
}

#[test]
fn savepoints_take_writes_back() {
    let disk = SimulatedDisk::new(1, &[64 << 20]);
    let (db, other) = (Db::create_on(disk.open(0), growing_options()).unwrap(), store());
    let mut transaction = db.transaction();
    let second = db.create_segment().unwrap().keyspace_or_create("second").unwrap();
    assert!(matches!(transaction.put(&second, b"a", b"1"), Err(Error::NoKeyspace { .. })), "it is too new");
    let mut transaction = db.transaction();
    let empty = transaction.savepoint().unwrap();
    transaction.put(&second, b"a", b"1").unwrap();
    assert!(matches!(transaction.put(&db, b"a", b"1"), Err(Error::BatchAcrossSegments { .. })));
    transaction.rollback_to(empty).unwrap();
    // Now it may write to the other segment.
    transaction.put(&db, b"a", b"1").unwrap();
    let one = transaction.savepoint().unwrap();
    transaction.put(&db, b"a", b"2").unwrap();
    transaction.put(&db, b"b", b"2").unwrap();
    let two = transaction.savepoint().unwrap();
    transaction.delete(&db, b"a").unwrap();
    transaction.put(&db, b"a", b"3").unwrap();
    transaction.delete(&db, b"b").unwrap();
    transaction.rollback_to(two).unwrap();
    assert_eq!(found(&transaction, &db, ..), ["a=2", "b=2"]);
    transaction.put(&db, b"c", b"3").unwrap();
    transaction.rollback_to(two).unwrap();
    assert_eq!(found(&transaction, &db, ..), ["a=2", "b=2"]);
    transaction.rollback_to(one).unwrap();
    assert!(matches!(transaction.rollback_to(two), Err(Error::NoSavepoint)));
    assert!(matches!(other.transaction().rollback_to(one), Err(Error::NoSavepoint)));
    transaction.put(&db, b"d", b"4").unwrap();
    transaction.commit().unwrap();
    let keys: Vec<_> = db.scan(..).map(Result::unwrap).collect();
    assert_eq!(keys, [(b"a".to_vec(), b"1".to_vec()), (b"d".to_vec(), b"4".to_vec())]);
    assert_eq!(second.scan(..).count(), 0);
}

#[test]
fn reads_before_a_rollback_count() {
    let db = store();
    let mut transaction = db.transaction();
    let savepoint = transaction.savepoint().unwrap();
    assert!(!transaction.contains(&db, b"key").unwrap());
    transaction.rollback_to(savepoint).unwrap();
    transaction.put(&db, b"result", b"x").unwrap();
    db.put(b"key", b"x").unwrap();
    assert_eq!(conflict(transaction.commit()), b"key");
}

#[test]
fn a_transaction_runs_again_after_a_conflict_but_not_for_ever() {
    let db = store();
    let runs = Cell::new(0_u32);
    let run = |conflicts: u32| {
        runs.set(0);
        db.transact(|transaction| -> vmio_kv::Result<u32> {
            runs.set(runs.get() + 1);
            transaction.get(&db, b"key")?;
            if runs.get() <= conflicts {
                db.put(b"key", &runs.get().to_le_bytes())?;
            }
            transaction.put(&db, b"result", &runs.get().to_le_bytes())?;
            Ok(runs.get())
        })
    };
    assert_eq!(run(2).unwrap(), 3);
    assert_eq!(db.get(b"result").unwrap(), Some(3_u32.to_le_bytes().to_vec()));
    assert!(matches!(run(u32::MAX), Err(Error::Conflict { .. })));
    assert_eq!(runs.get(), 100);
    assert_eq!(db.get(b"result").unwrap(), Some(3_u32.to_le_bytes().to_vec()));
    // Its own error ends it at once.
    let failed = db.transact(|transaction| -> Result<(), Box<dyn std::error::Error>> {
        transaction.put(&db, b"result", b"x")?;
        Err("no".into())
    });
    assert_eq!(failed.unwrap_err().to_string(), "no");
    assert_eq!(db.get(b"result").unwrap(), Some(3_u32.to_le_bytes().to_vec()));
}

#[test]
fn compare_and_set_writes_only_over_the_expected_value() {
    let db = store();
    for (_, upkeep) in upkeeps() {
        assert!(!db.compare_and_set(b"key", Some(b"1"), Some(b"2")).unwrap());
        assert!(db.compare_and_set(b"key", None, Some(b"1")).unwrap());
        upkeep(&db);
        assert!(!db.compare_and_set(b"key", None, Some(b"2")).unwrap());
        assert!(!db.compare_and_set(b"key", Some(b"2"), None).unwrap());
        assert!(db.compare_and_set_with(b"key", Some(b"1"), Some(&[2; LARGE]), Durability::Sync).unwrap());
        upkeep(&db);
        assert!(db.compare_and_set(b"key", Some(&[2; LARGE]), None).unwrap());
        assert_eq!(db.get(b"key").unwrap(), None);
    }
    assert!(matches!(db.compare_and_set(b"", None, None), Err(Error::KeyLength { .. })));
}

#[test]
fn a_dropped_keyspace_fails_the_commit() {
    let db = store();
    for reads in [false, true] {
        let keyspace = db.keyspace_or_create("keyspace").unwrap();
        let mut transaction = db.transaction();
        match reads {
            true => drop(transaction.get(&keyspace, b"key").unwrap()),
            false => transaction.put(&keyspace, b"key", b"x").unwrap(),
        }
        transaction.put(&db, b"result", b"x").unwrap();
        db.drop_keyspace("keyspace").unwrap();
        let again = db.keyspace_or_create("keyspace").unwrap();
        assert!(matches!(transaction.get(&again, b"key"), Err(Error::NoKeyspace { .. })));
        assert!(matches!(transaction.commit(), Err(Error::NoKeyspace { .. })));
        assert_eq!(db.scan(..).count() + again.scan(..).count(), 0);
        db.drop_keyspace("keyspace").unwrap();
    }
    let other = store();
    assert!(matches!(db.transaction().get(&other, b"key"), Err(Error::NoKeyspace { .. })), "another store's");
}

/// Segments have logs of their own: a crash loses the end of each.
#[test]
fn after_a_crash_the_values_that_a_commit_has_read_in_another_segment_are_there() {
    let disk = SimulatedDisk::new(11, &[64 << 20]);
    let db = Db::create_on(disk.open(0), growing_options()).unwrap();
    let other = db.create_segment().unwrap().keyspace_or_create("other").unwrap();
    other.put(b"cause", b"x").unwrap();
    db.transact(|transaction| -> vmio_kv::Result<()> {
        assert!(transaction.contains(&other, b"cause")?);
        transaction.put(&db, b"effect", b"x")
    })
    .unwrap();
    // It makes the first segment alone durable.
    db.put_with(b"last", b"x", Durability::Sync).unwrap();
    disk.cut_power_after(0);
    drop((other, db));
    let db = Db::open_on(disk.after_power_cut().open(0), growing_options()).unwrap();
    assert!(db.contains(b"effect").unwrap());
    assert!(db.keyspace("other").unwrap().contains(b"cause").unwrap());
}
