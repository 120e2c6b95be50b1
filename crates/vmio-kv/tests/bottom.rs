//! Small records in the leaves of the bottom level: every way to read them, snapshots, updates, deletions, openings, damage.

use std::collections::BTreeMap;
use std::sync::Arc;

use test_depth::comes_true;
use vmio::backing::MemoryBacking;
use vmio_kv::{Db, Durability, Options};

use crate::support::{Random, assert_sound, options};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn small() -> Options {
    options().memory_bytes(32 << 20).memtable_bytes(64 << 10).growth_factor(2).durability(Durability::None)
}

fn key(number: u64) -> Vec<u8> {
    match number % 7 {
        // As long as a leaf's window, or longer than any leaf keeps.
        0 => format!("{number:012}").into_bytes(),
        1 if number % 70 == 1 => [format!("{number:08}").into_bytes(), vec![b'k'; 3000]].concat(),
        _ => format!("{number:08} with some more behind it").into_bytes(),
    }
}

fn value(random: &mut Random) -> Vec<u8> {
    let length = match random.below(20) {
        0 => 0,
        1 => 500 + random.below(200),
        2 => 3000,
        _ => random.below(120),
    };
    vec![random.below(256) as u8; length as usize]
}

fn in_bottom(db: &Db) -> u64 {
    db.stats().unwrap().bottom_entries
}

/// Puts and deletes at random.
fn change(db: &Db, model: &mut Model, random: &mut Random, count: u64) {
    for _ in 0..count {
        let key = key(random.below(9000));
        if random.below(5) == 0 {
            db.delete(&key).unwrap();
            model.remove(&key);
        } else {
            let value = value(random);
            db.put(&key, &value).unwrap();
            model.insert(key, value);
        }
    }
}

/// Reads all of it in each way that there is.
fn assert_same(db: &Db, model: &Model, random: &mut Random) {
    let pairs: Vec<_> = model.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
    let scanned: Vec<_> = db.scan(..).map(|found| found.unwrap()).collect();
    assert!(scanned == pairs, "{} scanned, {} there", scanned.len(), pairs.len());
    let mut back: Vec<_> = db.scan(..).rev().map(|found| found.unwrap()).collect();
    back.reverse();
    assert!(back == pairs, "{} scanned back, {} there", back.len(), pairs.len());
    let keys: Vec<_> = db.scan(..).keys().map(|key| key.unwrap()).collect();
    assert!(keys.iter().eq(model.keys()));
    for number in 0..9000 {
        let key = key(number);
        let expected = model.get(&key);
        assert_eq!(db.get(&key).unwrap().as_ref(), expected);
        if number % 5 == 0 {
            assert_eq!(db.contains(&key).unwrap(), expected.is_some());
            assert_eq!(db.get_ref(&key, <[u8]>::to_vec).unwrap().as_ref(), expected);
            let read = db.get_range(&key, 1..).unwrap();
            assert_eq!(read, expected.map(|value| value[1.min(value.len())..].to_vec()));
        }
        assert_eq!(db.get(&[&key[..], b"?"].concat()).unwrap(), None);
    }
    let some: Vec<Vec<u8>> = (0..500).map(|_| key(random.below(9000))).collect();
    let expected: Vec<_> = some.iter().map(|key| model.get(key).cloned()).collect();
    assert_eq!(db.multi_get(&some).unwrap(), expected);
}

/// Updates come into a bottom level that is there, and all of it is found again, before and after an opening.
#[test]
fn what_moves_into_leaves_reads_as_before() {
    let backing = Arc::new(MemoryBacking::new(256 << 20).unwrap());
    let (mut model, mut random) = (Model::new(), Random(7));
    let mut db = Db::create_on(Arc::clone(&backing), small()).unwrap();
    for round in 0..4 {
        change(&db, &mut model, &mut random, 12_000);
        assert!(comes_true(|| in_bottom(&db) > 0), "a full level is merged down");
        assert_same(&db, &model, &mut random);
        if round == 1 {
            db.collect_garbage().unwrap();
            assert_same(&db, &model, &mut random);
        }
        db.close().unwrap();
        assert_sound(Arc::clone(&backing), &small(), "after a round");
        db = Db::open_on(Arc::clone(&backing), small()).unwrap();
        assert_same(&db, &model, &mut random);
    }
}

/// While there are few writes, a level moves down that is not full. The log's space comes free.
#[test]
fn a_calm_moves_records_into_leaves_and_frees_the_log() {
    let backing = Arc::new(MemoryBacking::new(256 << 20).unwrap());
    let options = small().memtable_bytes(2 << 20).growth_factor(10);
    let db = Db::create_on(Arc::clone(&backing), options.clone()).unwrap();
    let record = |number: u64| (number.to_be_bytes(), [number as u8; 300]);
    for number in 0..100_000_u64 {
        let (key, value) = record(number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        db.put(&key, &value).unwrap();
    }
    db.flush().unwrap();
    let before = db.stats().unwrap();
    // The collector may have moved some records meanwhile: these are in memory.
    let is_down = || in_bottom(&db) > 90_000 && in_bottom(&db) == db.stats().unwrap().level_entries;
    assert!(comes_true(is_down), "{:?}", db.stats());
    let is_free = || db.stats().unwrap().log_bytes < before.log_bytes / 2;
    assert!(comes_true(is_free), "{before:?}, {:?}", db.stats());
    for number in (0..100_000_u64).step_by(97) {
        let (key, value) = record(number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        assert_eq!(db.get(&key).unwrap().as_deref(), Some(&value[..]));
    }
    db.close().unwrap();
    assert_sound(backing, &options, "after a calm");
}

/// Without the option nothing moves, and what is in leaves already is read and kept up to date.
#[test]
fn without_the_option_no_more_records_move() {
    let backing = Arc::new(MemoryBacking::new(256 << 20).unwrap());
    let (mut model, mut random) = (Model::new(), Random(3));
    let without = || small().values_in_leaves(false);
    let db = Db::create_on(Arc::clone(&backing), without()).unwrap();
    change(&db, &mut model, &mut random, 12_000);
    db.collect_garbage().unwrap();
    assert_eq!(in_bottom(&db), 0);
    db.close().unwrap();
    let db = Db::open_on(Arc::clone(&backing), small()).unwrap();
    change(&db, &mut model, &mut random, 12_000);
    assert!(comes_true(|| in_bottom(&db) > 0));
    db.close().unwrap();
    let db = Db::open_on(Arc::clone(&backing), without()).unwrap();
    change(&db, &mut model, &mut random, 6000);
    db.collect_garbage().unwrap();
    assert_same(&db, &model, &mut random);
    // These stay in the log, though all levels meet. Besides them the log's end counts as live, 4 MiB of it.
    (0..50_000_u64).for_each(|number| db.put(&[b"new", &number.to_be_bytes()[..]].concat(), &[1; 200]).unwrap());
    db.collect_garbage().unwrap();
    let live_bytes = db.stats().unwrap().live_bytes;
    assert!(live_bytes >= 50_000 * 200, "{live_bytes} bytes");
    db.close().unwrap();
    assert_sound(backing, &without(), "at the end");
}

/// A snapshot shows what was there, however often its keys move down meanwhile.
#[test]
fn a_snapshot_keeps_the_leaves_that_it_shows() {
    let backing = Arc::new(MemoryBacking::new(512 << 20).unwrap());
    let (mut model, mut random) = (Model::new(), Random(11));
    let db = Db::create_on(Arc::clone(&backing), small()).unwrap();
    change(&db, &mut model, &mut random, 12_000);
    let (snapshot, then) = (db.snapshot(), model.clone());
    let mut scan = snapshot.scan(..);
    let first: Vec<_> = scan.by_ref().take(100).map(|found| found.unwrap()).collect();
    for _ in 0..3 {
        change(&db, &mut model, &mut random, 12_000);
        db.collect_garbage().unwrap();
    }
    let rest = scan.map(|found| found.unwrap());
    assert!(first.into_iter().chain(rest).eq(then.clone()));
    assert!(snapshot.scan(..).rev().map(|found| found.unwrap()).eq(then.into_iter().rev()));
    drop(snapshot);
    assert_same(&db, &model, &mut random);
    db.close().unwrap();
    assert_sound(backing, &small(), "at the end");
}

/// A full volume takes deletions, and is usable again, with most of its records in leaves.
#[test]
fn a_full_volume_of_records_in_leaves_becomes_usable_again() {
    let backing = Arc::new(MemoryBacking::new(64 << 20).unwrap());
    let db = Db::create_on(Arc::clone(&backing), small()).unwrap();
    let key = |number: u64| number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
    let mut count = 0;
    let full = loop {
        match db.put(&key(count), &[7; 200]) {
            Ok(()) => count += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(full, vmio_kv::Error::Full { .. }), "{full}");
    assert!(in_bottom(&db) > count / 4, "{} of {count} are in leaves", in_bottom(&db));
    (0..count).for_each(|number| assert!(db.contains(&key(number)).unwrap(), "{number} of {count}"));
    (0..count).filter(|number| number % 8 != 0).for_each(|number| db.delete(&key(number)).unwrap());
    db.collect_garbage().unwrap();
    for number in 0..count / 2 {
        db.put(&key(count + number), &[8; 200]).unwrap();
    }
    for number in 0..count {
        let expected = (number % 8 == 0).then(|| vec![7; 200]);
        assert_eq!(db.get(&key(number)).unwrap(), expected, "{number} of {count}");
    }
    db.close().unwrap();
    assert_sound(backing, &small(), "at the end");
}
