//! Keys of up to 64 KiB, including keys that differ only at their ends: the pivots between their leaves are longer than a node.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::support::{Random, assert_sound};
use vmio::backing::{Access, Backing, MemoryBacking};
use vmio_kv::{Db, Durability, Error, KEY_BYTES_MAX, Options, WriteBatch};

const MIB: u64 = 1 << 20;
const BLOCK: usize = 4096;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn options() -> Options {
    crate::support::options()
        .memory_bytes(32 << 20)
        .memtable_bytes(256 << 10)
        .growth_factor(3)
        .durability(Durability::None)
        .max_space_amplification(1.2)
}

fn disk(mib: u64) -> Arc<MemoryBacking> {
    Arc::new(MemoryBacking::new(mib * MIB).unwrap())
}

/// A key of `bytes` bytes that differs from the others only in the last eight.
fn key(bytes: usize, number: u64) -> Vec<u8> {
    let mut key = vec![b'k'; bytes - 8];
    key.extend(number.to_be_bytes());
    key
}

fn same(db: &Db, model: &Model) {
    let all = || db.scan(..).map(Result::unwrap);
    assert!(all().eq(model.iter().map(|(key, value)| (key.clone(), value.clone()))));
    assert!(all().rev().eq(model.iter().rev().map(|(key, value)| (key.clone(), value.clone()))));
    for (key, value) in model.iter().step_by(7) {
        assert!(db.get(key).unwrap().as_ref() == Some(value) && db.contains(key).unwrap());
    }
    let keys: Vec<&Vec<u8>> = model.keys().step_by(5).collect();
    let values: Vec<Option<Vec<u8>>> = keys.iter().map(|key| model.get(*key).cloned()).collect();
    assert!(db.multi_get(&keys).unwrap() == values);
}

#[test]
fn the_longest_keys_work_like_short_ones() {
    const KEYS: u64 = 400;
    let disk = disk(256);
    let mut db = Db::create_on(Arc::clone(&disk), options()).unwrap();
    let mut model = Model::new();
    let longest = |number| key(KEY_BYTES_MAX, number);
    for number in 0..KEYS {
        let number = number * 7 % KEYS;
        db.put(&longest(number), &number.to_le_bytes()).unwrap();
        model.insert(longest(number), number.to_le_bytes().to_vec());
    }
    let snapshot = db.snapshot();
    let before = model.clone();
    let mut batch = WriteBatch::new();
    for number in (0..KEYS).step_by(3) {
        batch.delete(db.default_keyspace(), &longest(number)).unwrap();
        batch.put(db.default_keyspace(), &longest(number + 1), b"changed").unwrap();
        model.remove(&longest(number));
        model.insert(longest(number + 1), b"changed".to_vec());
    }
    db.write(&batch).unwrap();
    // A large value, whose head has the key.
    let large: Vec<u8> = (0..3 << 20).map(|at: u32| (at >> 10) as u8 ^ at as u8).collect();
    db.put(&longest(KEYS + 9), &large).unwrap();
    model.insert(longest(KEYS + 9), large);
    let check = |db: &Db, model: &Model, when: &str| {
        same(db, model);
        for (from, to) in [(0, KEYS), (17, 18), (100, 333), (399, 500)] {
            let found: Vec<_> = db.scan(longest(from)..longest(to)).rev().map(|found| found.unwrap().0).collect();
            let expected: Vec<_> = model.range(longest(from)..longest(to)).rev().map(|(key, _)| key.clone()).collect();
            assert!(found == expected, "{when}: {from}..{to}");
        }
        let prefix = &longest(256)[..KEY_BYTES_MAX - 1];
        let found = db.prefix(prefix).keys().map(Result::unwrap);
        assert!(found.eq(model.keys().filter(|key| key.starts_with(prefix)).cloned()), "{when}");
    };
    check(&db, &model, "in memory and trees");
    db.flush().unwrap();
    check(&db, &model, "in trees");
    assert!(snapshot.scan(..).map(Result::unwrap).eq(before));
    assert!(snapshot.get(&longest(3)).unwrap().is_some());
    drop(snapshot);
    // Otherwise a collection in the background may append some records again.
    db.collect_garbage().unwrap();
    db.flush().unwrap();
    db.delete(&longest(1)).unwrap();
    model.remove(&longest(1));
    db.close().unwrap();
    let report = assert_sound(Arc::clone(&disk), &options(), "closed");
    assert!(report.nodes > 2 + 17, "{} nodes: what separates two leaves has 17 pieces", report.nodes);
    db = Db::open_on(Arc::clone(&disk), options()).unwrap();
    assert_eq!(db.recovery().records, 1);
    check(&db, &model, "opened");
    for number in (0..KEYS).filter(|number| number % 16 > 0) {
        db.delete(&longest(number)).unwrap();
        model.remove(&longest(number));
    }
    db.flush().unwrap();
    db.collect_garbage().unwrap();
    assert!(db.stats().unwrap().collected_chunks > 0);
    check(&db, &model, "collected");
    db.close().unwrap();
    assert_sound(disk, &options(), "closed again");
}

#[test]
fn a_longer_key_is_refused() {
    let db = Db::create_on(disk(64), options()).unwrap();
    let most = KEY_BYTES_MAX;
    assert_eq!(most, 65_536);
    for bytes in [0, most + 1] {
        let key = vec![b'k'; bytes];
        let mut batch = WriteBatch::new();
        let refused = [
            db.put(&key, b"value").err(),
            db.put_stream(&key, 2 * MIB, io::repeat(1)).err(),
            db.delete(&key).err(),
            db.get(&key).err(),
            db.get_ref(&key, |_| ()).err(),
            db.get_range(&key, ..).err(),
            db.reader(&key).err(),
            db.contains(&key).err(),
            db.multi_get(&[&b"short"[..], &key]).err(),
            batch.put(db.default_keyspace(), &key, b"value").err(),
            batch.delete(db.default_keyspace(), &key).err(),
        ];
        for error in refused {
            assert!(matches!(error, Some(Error::KeyLength { bytes: found, most: KEY_BYTES_MAX }) if found == bytes));
        }
        assert!(batch.is_empty());
    }
    // A bound is no key.
    db.put(&vec![b'k'; most], b"value").unwrap();
    assert_eq!(db.scan(vec![b'k'; 2 * most]..).count(), 0);
    assert_eq!(db.scan(..vec![b'k'; 2 * most]).count(), 1);
}

/// Trees of several heights, with long pivots, short pivots, or both.
#[test]
fn deep_trees_with_long_pivots_find_each_key() {
    make_deep_trees(1);
}

/// The same for trees built from parts, some of which begin at long pivots.
#[test]
fn deep_trees_with_long_pivots_are_made_by_several_threads() {
    make_deep_trees(3);
}

fn make_deep_trees(compaction_threads: usize) {
    const KEYS: u64 = 9000;
    let disk = disk(256);
    let options = || options().compaction_threads(compaction_threads);
    let mut db = Db::create_on(Arc::clone(&disk), options()).unwrap();
    let mut model = Model::new();
    let of = |number: u64| match number % 10 {
        0 => number.to_be_bytes().to_vec(),
        1 => [vec![b'k'; 40], number.to_be_bytes().to_vec()].concat(),
        2 => key(5100 + number as usize, number / 900),
        _ => key(1500, number),
    };
    let mut random = Random(11);
    for round in 0..3_u8 {
        for number in 0..KEYS {
            let number = if round == 0 { number } else { random.below(KEYS) };
            if round == 2 && number % 3 == 0 {
                db.delete(&of(number)).unwrap();
                model.remove(&of(number));
            } else if round < 2 {
                db.put(&of(number), &[round]).unwrap();
                model.insert(of(number), vec![round]);
            }
        }
        same(&db, &model);
        db.close().unwrap();
        let report = assert_sound(Arc::clone(&disk), &options(), &format!("after round {round}"));
        assert!(report.nodes > 60, "{} nodes", report.nodes);
        db = Db::open_on(Arc::clone(&disk), options()).unwrap();
    }
    // All keys go, and so do the pivots: nothing stays taken.
    model.keys().for_each(|key| db.delete(key).unwrap());
    db.flush().unwrap();
    db.collect_garbage().unwrap();
    db.flush().unwrap();
    assert_eq!(db.scan(..).count(), 0);
    assert_eq!(db.stats().unwrap().level_entries, 0);
    db.close().unwrap();
    let report = assert_sound(disk, &options(), "emptied");
    assert_eq!(report.nodes, 0);
}

/// A device that counts the bytes written to it.
struct Counting(Arc<MemoryBacking>, Arc<AtomicU64>);

impl Backing for Counting {
    fn len(&self) -> u64 {
        self.0.len()
    }

    fn access(&self) -> Access {
        Access::ReadWrite
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.1.fetch_add(data.len() as u64, Ordering::Relaxed);
        self.0.write_at(offset, data)
    }

    fn flush(&self) -> io::Result<()> {
        self.0.flush()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn describe(&self) -> String {
        "memory that counts".to_owned()
    }
}

/// The pivots between leaves that stay are not written again.
#[test]
fn a_compaction_keeps_the_long_pivots_of_leaves_that_it_keeps() {
    let (disk, written) = (disk(256), Arc::new(AtomicU64::new(0)));
    let options = options().memtable_bytes(4 << 20).growth_factor(100);
    let db = Db::create_on(Counting(Arc::clone(&disk), Arc::clone(&written)), options.clone()).unwrap();
    (0..8000).for_each(|number| db.put(&key(9000, 2 * number), b"value").unwrap());
    db.flush().unwrap();
    let before = written.load(Ordering::Relaxed);
    db.put(&key(9000, 8001), b"value").unwrap();
    db.flush().unwrap();
    let one = written.load(Ordering::Relaxed) - before;
    // Some fifty leaves, with two pieces between each two of them.
    assert!(one < 40 * BLOCK as u64, "{one} bytes for one key");
    assert_eq!(db.scan(..).count(), 8001);
    db.close().unwrap();
    let report = assert_sound(disk, &options, "closed");
    assert!(report.nodes > 150, "{} nodes", report.nodes);
}

#[test]
fn a_damaged_piece_of_a_pivot_is_named() {
    let disk = disk(96);
    let db = Db::create_on(Arc::clone(&disk), options().memtable_bytes(4 << 20)).unwrap();
    (0..500).for_each(|number| db.put(&key(6000, number), b"value").unwrap());
    db.flush().unwrap();
    db.close().unwrap();
    let mut block = vec![0; BLOCK];
    let mut pieces = (0..96 * MIB).step_by(BLOCK).filter(|offset| {
        disk.read_at(*offset, &mut block).unwrap();
        block.starts_with(b"vmkv") && block[8] == 10
    });
    let piece = pieces.next().expect("leaves of such keys are separated by long pivots");
    disk.read_at(piece, &mut block).unwrap();
    block[1000] ^= 4;
    disk.write_at(piece, &block).unwrap();
    let report = vmio_kv::check_on(Arc::clone(&disk), &options(), |_| {}).unwrap();
    assert_eq!(report.problem_count, 1, "{:?}", report.problems);
    assert_eq!((report.problems[0].offset, report.problems[0].structure), (piece, "a piece of a long pivot"));
    let db = Db::open_on(Arc::clone(&disk), options()).unwrap();
    let mut failed = 0;
    for number in 0..500 {
        match db.get(&key(6000, number)) {
            Ok(value) => assert_eq!(value.as_deref(), Some(&b"value"[..])),
            Err(Error::Io(_)) => failed += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(failed > 0, "no read has found it");
    assert_eq!(db.scan(..).map(Result::unwrap).count(), 500, "a scan needs no pivots");
}

/// A full store of long keys accepts deletions, and has space again after them.
#[test]
fn a_full_store_of_long_keys_goes_on_after_deletions() {
    let disk = disk(64);
    let mut db = Db::create_on(Arc::clone(&disk), options()).unwrap();
    for round in 0..2_u8 {
        let mut put = 0;
        let refused = loop {
            match db.put(&key(50_000, put), &[round]) {
                Ok(()) => put += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(refused, Error::Full { .. }), "{refused}");
        assert!(put > 300, "{put} keys");
        db.flush().unwrap();
        assert!(db.scan(..).map(Result::unwrap).eq((0..put).map(|number| (key(50_000, number), vec![round]))));
        (0..put).for_each(|number| db.delete(&key(50_000, number)).unwrap());
        db.collect_garbage().unwrap();
        assert_eq!(db.scan(..).count(), 0);
        db.close().unwrap();
        assert_sound(Arc::clone(&disk), &options(), &format!("after round {round}"));
        db = Db::open_on(Arc::clone(&disk), options()).unwrap();
    }
}
