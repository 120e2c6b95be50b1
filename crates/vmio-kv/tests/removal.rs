//! Keyspaces that are cleared, and keyspaces that are dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::assert_sound;
use vmio::backing::MemoryBacking;
use vmio_kv::{Db, Durability, Error, KeyspaceHandle, Options, WriteBatch};

const MIB: u64 = 1 << 20;

fn options() -> Options {
    let options = crate::support::options().memory_bytes(33 << 20).memtable_bytes(20 << 10).growth_factor(2);
    options.durability(Durability::None).max_space_amplification(1.1).max_volume_bytes(256 << 20)
}

fn key(number: u64) -> Vec<u8> {
    format!("key {number:06}").into_bytes()
}

fn fill(keyspace: &KeyspaceHandle, keys: u64) {
    for number in 0..keys {
        keyspace.put(&key(number), &vec![number as u8; 2000]).unwrap();
    }
    for number in 0..4 {
        keyspace.put(format!("large {number}").as_bytes(), &vec![number; 3 << 20]).unwrap();
    }
    // Some of it in unmerged levels, some in memory, some overwritten.
    keyspace.put(b"large 0", &vec![9; 2 << 20]).unwrap();
    (0..50).for_each(|number| keyspace.put(&key(number), b"anew").unwrap());
}

fn is_gone<T>(result: vmio_kv::Result<T>) -> bool {
    matches!(result, Err(Error::NoKeyspace { name, .. }) if name == "other")
}

/// All space of a keyspace comes back, and the other keyspaces stay as they are.
#[test]
fn space_comes_back_when_a_keyspace_is_cleared_or_dropped() {
    for (drops, reopens) in [(false, false), (true, false), (false, true), (true, true)] {
        let disk = Arc::new(MemoryBacking::new(256 << 20).unwrap());
        let mut db = Db::create_on(Arc::clone(&disk), options()).unwrap();
        (0..300).for_each(|number| db.put(&key(number), b"stays").unwrap());
        db.put(b"large", &vec![5; 2 << 20]).unwrap();
        let other = db.keyspace_or_create("other").unwrap();
        fill(&other, 10_000);
        db.flush().unwrap();
        fill(&other, 500);
        let before = db.stats().unwrap();
        assert!(before.log_bytes > 20 * MIB && before.extents_bytes > 10 * MIB && before.level_entries > 10_000);
        if drops {
            db.drop_keyspace("other").unwrap()
        } else {
            other.clear().unwrap()
        }
        assert_eq!(other.get(&key(7)).ok(), (!drops).then_some(None));
        drop(other);
        if reopens {
            db.close().unwrap();
            assert_sound(Arc::clone(&disk), &options(), "before it is opened again");
            db = Db::open_on(Arc::clone(&disk), options()).unwrap();
        }
        db.collect_garbage().unwrap();
        let after = db.stats().unwrap();
        let case = format!("drops {drops}, reopens {reopens}: {before:?} {after:?}");
        assert!(after.log_bytes <= 12 * MIB && after.extents_bytes < 3 * MIB && after.level_entries <= 301, "{case}");
        assert_eq!(db.keyspace_names().unwrap(), if drops { &["default"][..] } else { &["default", "other"] });
        assert!((0..300).all(|number| db.get(&key(number)).unwrap().unwrap() == b"stays"));
        let other = db.keyspace_or_create("other").unwrap();
        assert_eq!(other.first().unwrap(), None, "{case}");
        other.put(b"new", b"value").unwrap();
        db.close().unwrap();
        assert_sound(Arc::clone(&disk), &options(), &case);
        let db = Db::open_on(disk, options()).unwrap();
        let other = db.keyspace("other").unwrap();
        assert_eq!(other.scan(..).keys().collect::<Result<Vec<_>, _>>().unwrap(), [b"new"]);
        assert_eq!(db.get(b"large").unwrap().unwrap().len(), 2 << 20);
    }
}

/// Nothing that a snapshot, a scan or a reader shows is reused before that handle has gone, though its keyspace was dropped.
#[test]
fn a_view_stays_readable_though_its_keyspace_was_dropped() {
    let db = Db::create_on(MemoryBacking::new(256 << 20).unwrap(), options()).unwrap();
    let other = db.keyspace_or_create("other").unwrap();
    fill(&other, 3000);
    let (all, of_keyspace, mut scan) = (db.snapshot(), other.snapshot(), other.scan(..));
    let reader = other.reader(b"large 1").unwrap().unwrap();
    scan.next().unwrap().unwrap();
    db.drop_keyspace("other").unwrap();
    let writes = || {
        for number in 0..6000 {
            db.put(&key(number % 700), &[number as u8; 2000]).unwrap();
        }
        db.put(b"large", &vec![1; 3 << 20]).unwrap();
        db.flush().unwrap();
        db.collect_garbage().unwrap();
    };
    writes();
    let again = db.keyspace_or_create("other").unwrap();
    again.put(&key(1), b"of another").unwrap();
    writes();
    for snapshot in [&of_keyspace, all.keyspace("other").unwrap()] {
        assert_eq!(
            snapshot.scan(..).map(|found| found.unwrap().1.len()).sum::<usize>(),
            50 * 4 + 2950 * 2000 + (11 << 20)
        );
        assert_eq!(snapshot.get(&key(1)).unwrap().as_deref(), Some(&b"anew"[..]));
        assert_eq!(snapshot.get(&key(2999)).unwrap(), Some(vec![2999_u64 as u8; 2000]));
    }
    assert_eq!(scan.collect::<Result<Vec<_>, _>>().unwrap().len(), 3003);
    let mut read = Vec::new();
    std::io::Read::read_to_end(&mut { reader }, &mut read).unwrap();
    assert!(read == vec![1; 3 << 20]);
    let held = db.stats().unwrap();
    drop((all, of_keyspace));
    db.collect_garbage().unwrap();
    let left = db.stats().unwrap();
    assert!(left.extents_bytes + 10 * MIB < held.extents_bytes, "{held:?} {left:?}");
    assert!(left.space_bytes + 6 * MIB < held.space_bytes, "{held:?} {left:?}");
}

#[test]
fn handles_of_a_dropped_keyspace_return_an_error() {
    let db = Db::create_on(MemoryBacking::new(64 << 20).unwrap(), options()).unwrap();
    let other = db.keyspace_or_create("other").unwrap();
    other.put(b"key", b"value").unwrap();
    let mut batch = WriteBatch::new();
    batch.put(&other, b"batched", b"value").unwrap();
    batch.put(&db, b"batched", b"value").unwrap();
    assert!(matches!(db.drop_keyspace("default"), Err(Error::KeyspaceStays { .. })));
    assert!(matches!(db.drop_keyspace("none"), Err(Error::NoKeyspace { .. })));
    db.drop_keyspace("other").unwrap();
    assert!(is_gone(db.drop_keyspace("other")) && is_gone(db.keyspace("other")) && is_gone(other.clear()));
    assert!(is_gone(other.put(b"key", b"value")) && is_gone(other.delete(b"key")) && is_gone(other.get(b"key")));
    assert!(is_gone(other.put(b"key", &vec![1; 2 << 20])) && is_gone(other.multi_get(&[b"key"])));
    assert!(is_gone(other.scan(..).next().unwrap()) && is_gone(other.pop_first()) && is_gone(other.first()));
    assert!(is_gone(db.write(&batch)) && !db.contains(b"batched").unwrap(), "a batch is written as a whole");
    let again = db.keyspace_or_create("other").unwrap();
    assert_eq!(again.get(b"key").unwrap(), None);
    assert!(is_gone(other.get(b"key")), "it has its name, and is another one");
    db.clear().unwrap();
    assert_eq!(db.first().unwrap(), None);
}

/// Keyspace numbers are never reused; places in the catalogue are.
#[test]
fn keyspaces_come_and_go_for_ever() {
    let disk = Arc::new(MemoryBacking::new(64 << 20).unwrap());
    let db = Db::create_on(Arc::clone(&disk), options()).unwrap();
    for number in 0..1500 {
        let keyspace = db.keyspace_or_create(&format!("keyspace {number}")).unwrap();
        keyspace.put(b"key", &u64::to_le_bytes(number)).unwrap();
        if number >= 10 {
            db.drop_keyspace(&format!("keyspace {}", number - 10)).unwrap();
        }
    }
    db.close().unwrap();
    assert_sound(Arc::clone(&disk), &options(), "closed");
    let db = Db::open_on(disk, options()).unwrap();
    assert_eq!(db.keyspace_names().unwrap().len(), 11);
    for number in 1490..1500_u64 {
        let keyspace = db.keyspace(&format!("keyspace {number}")).unwrap();
        assert_eq!(
            keyspace.scan(..).map(Result::unwrap).collect::<Vec<_>>(),
            [(b"key".to_vec(), number.to_le_bytes().to_vec())]
        );
    }
}

/// A write during the removal comes before or after it: of a batch everything is left, or nothing.
#[test]
fn writers_go_on_during_a_removal() {
    let disk = Arc::new(MemoryBacking::new(256 << 20).unwrap());
    let db = Db::create_on(Arc::clone(&disk), options()).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for writer in 0..3 {
            let (db, is_over) = (&db, &is_over);
            scope.spawn(move || {
                for round in 0_u64.. {
                    if is_over.load(Ordering::Relaxed) {
                        break;
                    }
                    let mut batch = WriteBatch::new();
                    let other = db.keyspace_or_create("other").unwrap();
                    for number in 0..20 {
                        let added = batch.put(&other, &key(writer * 100 + number), &round.to_le_bytes());
                        assert!(added.is_ok() || is_gone(added));
                    }
                    let written = db.write(&batch);
                    assert!(written.is_ok() || is_gone(written));
                    db.put(&key(writer * 100_000 + round % 1000), &[7; 300]).unwrap();
                }
            });
        }
        for round in 0..60 {
            let other = db.keyspace_or_create("other").unwrap();
            if round % 3 == 0 {
                db.drop_keyspace("other").unwrap()
            } else {
                other.clear().unwrap()
            }
            if round % 10 == 0 {
                db.collect_garbage().unwrap();
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
    let other = db.keyspace_or_create("other").unwrap();
    for writer in 0..3 {
        let values: Vec<_> = (0..20).map(|number| other.get(&key(writer * 100 + number)).unwrap()).collect();
        assert!(values.iter().all(|value| *value == values[0]), "writer {writer}: {values:?}");
    }
    db.close().unwrap();
    assert_sound(disk, &options(), "closed");
}
