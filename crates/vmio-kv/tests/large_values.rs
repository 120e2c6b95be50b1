//! Values over 1 MiB: they are read back, as a whole and in part. Their space comes back too, but not before their last reader has ended.

use std::io::{self, Read, Seek, SeekFrom};
use std::sync::Arc;

use crate::support::{Random, assert_sound};
use vmio::backing::{Backing, MemoryBacking};
use vmio_kv::{Db, Durability, Error, Options, VALUE_LENGTH_MAX, ValueReader, WriteBatch};

const MIB: u64 = 1 << 20;

fn options() -> Options {
    crate::support::options()
        .memory_bytes(32 << 20)
        .memtable_bytes(16 << 10)
        .growth_factor(2)
        .durability(Durability::None)
        .max_space_amplification(1.1)
}

fn disk(mib: u64) -> Arc<MemoryBacking> {
    Arc::new(MemoryBacking::new(mib * MIB).unwrap())
}

/// No two parts of the value are the same.
fn value(seed: u64, bytes: u64) -> Vec<u8> {
    let mut random = Random(seed);
    let mut value: Vec<u8> = (0..bytes.div_ceil(8)).flat_map(|_| random.next().to_le_bytes()).collect();
    value.truncate(bytes as usize);
    value
}

fn small(number: u64) -> Vec<u8> {
    format!("a small key with some front {number:06}").into_bytes()
}

/// A source of bytes that then ends.
struct Failing(u64);

impl Read for Failing {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.0 == 0 {
            return Err(io::Error::other("the source has failed"));
        }
        let bytes = self.0.min(buffer.len() as u64);
        buffer[..bytes as usize].fill(3);
        self.0 -= bytes;
        Ok(bytes as usize)
    }
}

#[test]
fn values_of_any_length_are_read_back() {
    let disk = disk(192);
    let lengths = [MIB / 4, MIB / 4 + 1, MIB, 2 * MIB - 4096, 2 * MIB, 5 * MIB + 4097, 17 * MIB + 3];
    let key = |length: u64| format!("a value of {length} bytes").into_bytes();
    let mut db = Db::create_on(Arc::clone(&disk), options()).unwrap();
    for (length, by_stream) in lengths.into_iter().zip([false, true].into_iter().cycle()) {
        if by_stream {
            // The bytes after it are not its own.
            let source = io::Cursor::new(value(length, length)).chain(io::repeat(9));
            db.put_stream(&key(length), length, source).unwrap();
        } else {
            db.put(&key(length), &value(length, length)).unwrap();
        }
    }
    // In memory; from the log alone; in a tree.
    for step in 0..3 {
        match step {
            0 => {}
            1 => {
                db.close().unwrap();
                let report = assert_sound(Arc::clone(&disk), &options(), "in the log");
                assert_eq!(report.large_values, lengths.len() as u64 - 1, "the first one is in the log");
                db = Db::open_on(Arc::clone(&disk), options()).unwrap();
            }
            _ => db.flush().unwrap(),
        }
        for length in lengths {
            let (key, expected) = (key(length), value(length, length));
            assert!(db.contains(&key).unwrap());
            assert!(db.get(&key).unwrap().as_ref() == Some(&expected), "{length}");
            assert_eq!(db.get_ref(&key, |value| value == expected).unwrap(), Some(true));
            for range in [0..1, 65_530..65_550, MIB - 5..MIB + 5, length - 3..u64::MAX, length..length + 1] {
                let within = range.start.min(length) as usize..range.end.min(length) as usize;
                let part = expected.get(within).unwrap_or_default();
                assert_eq!(db.get_range(&key, range.clone()).unwrap().as_deref(), Some(part), "{range:?} of {length}");
            }
        }
        assert!(db.get_range(&key(MIB / 4 + 1), ..).unwrap().unwrap() == value(MIB / 4 + 1, MIB / 4 + 1));
        let keys: Vec<Vec<u8>> = lengths.into_iter().map(key).collect();
        let values = db.multi_get(&keys).unwrap();
        assert!(values.iter().zip(lengths).all(|(found, length)| *found == Some(value(length, length))));
        let mut all: Vec<_> = lengths.into_iter().map(|length| (key(length), value(length, length))).collect();
        all.sort_unstable();
        assert!(db.scan(..).map(Result::unwrap).eq(all.iter().cloned()));
        let read = |found: vmio_kv::Result<(Vec<u8>, ValueReader)>| {
            let (key, mut reader) = found.unwrap();
            let mut value = Vec::new();
            reader.read_to_end(&mut value).unwrap();
            (key, value)
        };
        assert!(db.scan(..).readers().rev().map(read).eq(all.into_iter().rev()));
        assert_eq!(db.scan(..).keys().count(), lengths.len());
    }
    db.close().unwrap();
    let report = assert_sound(disk, &options(), "closed");
    assert_eq!(report.large_values, lengths.len() as u64 - 1);
}

#[test]
fn a_reader_seeks_to_any_place() {
    let db = Db::create_on(disk(64), options()).unwrap();
    let length = 3 * MIB + 777;
    let expected = value(1, length);
    db.put(b"large", &expected).unwrap();
    db.put(b"small", &expected[..1000]).unwrap();
    assert!(db.reader(b"none").unwrap().is_none());
    for (key, expected) in [(&b"large"[..], &expected[..]), (b"small", &expected[..1000])] {
        let mut reader = db.reader(key).unwrap().unwrap();
        assert_eq!(reader.len(), expected.len() as u64);
        let mut all = Vec::new();
        reader.read_to_end(&mut all).unwrap();
        assert!(all == expected);
        let mut random = Random(7);
        for _ in 0..200 {
            let at = random.below(expected.len() as u64 + 10);
            reader.seek(SeekFrom::Start(at)).unwrap();
            let mut part = vec![0; random.below(200_000) as usize];
            let mut filled = 0;
            while let read @ 1.. = reader.read(&mut part[filled..]).unwrap() {
                filled += read;
            }
            assert!(part[..filled] == expected[expected.len().min(at as usize)..][..filled]);
            assert!(filled == part.len() || at as usize + filled >= expected.len());
        }
        assert_eq!(reader.seek(SeekFrom::End(-3)).unwrap(), expected.len() as u64 - 3);
        assert!(reader.seek(SeekFrom::Current(-i64::from(u32::MAX))).is_err());
    }
}

#[test]
fn a_failed_put_leaves_nothing_behind() {
    let disk = disk(64);
    let db = Db::create_on(Arc::clone(&disk), options()).unwrap();
    db.put(b"key", b"before").unwrap();
    for (length, given) in [(5 * MIB, 3 * MIB), (5 * MIB, 0), (1000, 10)] {
        let failed = db.put_stream(b"key", length, Failing(given)).unwrap_err();
        assert!(matches!(failed, Error::Source { wanted, .. } if wanted == length), "{failed}");
        let ended = db.put_stream(b"key", length, io::repeat(1).take(given)).unwrap_err();
        assert!(matches!(ended, Error::Source { .. }), "{ended}");
    }
    let too_long = db.put_stream(b"key", VALUE_LENGTH_MAX + 1, io::repeat(1)).unwrap_err();
    assert!(matches!(too_long, Error::ValueLength { bytes, most: VALUE_LENGTH_MAX } if bytes == VALUE_LENGTH_MAX + 1));
    let full = db.put_stream(b"key", 100 * MIB, io::repeat(1)).unwrap_err();
    assert!(matches!(full, Error::Full { .. }), "{full}");
    assert_eq!(db.stats().unwrap().extents_bytes, 0);
    assert_eq!(db.get(b"key").unwrap().as_deref(), Some(&b"before"[..]));
    db.close().unwrap();
    assert_sound(disk, &options(), "closed");
}

/// A volume takes far more in its life than it has space for at a time.
#[test]
fn the_space_of_replaced_values_is_reused() {
    let disk = disk(64);
    let mut db = Db::create_on(Arc::clone(&disk), options()).unwrap();
    let mut random = Random(3);
    let mut expected = [None; 3];
    for round in 0..120 {
        let which = random.below(3) as usize;
        let key = [b'k', which as u8];
        if random.below(5) == 0 {
            db.delete(&key).unwrap();
            expected[which] = None;
        } else {
            let length = MIB + random.below(7 * MIB);
            db.put(&key, &value(round, length)).unwrap();
            expected[which] = Some((round, length));
        }
        match random.below(12) {
            0 => db.flush().unwrap(),
            1 => db.collect_garbage().unwrap(),
            2 => {
                db.close().unwrap();
                assert_sound(Arc::clone(&disk), &options(), &format!("after round {round}"));
                db = Db::open_on(Arc::clone(&disk), options()).unwrap();
            }
            3 => (0..200).for_each(|number| db.put(&small(number), &round.to_le_bytes()).unwrap()),
            _ => {}
        }
        for (which, expected) in expected.iter().enumerate() {
            let found = db.get(&[b'k', which as u8]).unwrap();
            assert!(found == expected.map(|(seed, length)| value(seed, length)), "key {which} after round {round}");
        }
    }
    (0..3).for_each(|which| db.delete(&[b'k', which]).unwrap());
    db.flush().unwrap();
    db.collect_garbage().unwrap();
    assert_eq!(db.stats().unwrap().extents_bytes, 0);
    db.close().unwrap();
    assert_sound(disk, &options(), "closed");
}

#[test]
fn a_reader_of_a_value_keeps_its_space() {
    let disk = disk(144);
    let db = Db::create_on(Arc::clone(&disk), options()).unwrap();
    let (in_tree, in_memory) = (value(1, 8 * MIB), value(2, 8 * MIB));
    db.put(b"in a tree", &in_tree).unwrap();
    db.flush().unwrap();
    db.put(b"in memory", &in_memory).unwrap();
    let snapshot = db.snapshot();
    let mut reader = db.reader(b"in a tree").unwrap().unwrap();
    let mut half = vec![0; 4 << 20];
    reader.read_exact(&mut half).unwrap();
    for round in 0..12 {
        for key in [&b"in a tree"[..], b"in memory"] {
            db.put(key, &value(10 + round, 3 * MIB)).unwrap();
        }
        if round % 4 == 3 {
            db.flush().unwrap();
            db.collect_garbage().unwrap();
        }
    }
    assert!(snapshot.get(b"in a tree").unwrap().unwrap() == in_tree);
    assert!(snapshot.get(b"in memory").unwrap().unwrap() == in_memory);
    assert!(snapshot.get_range(b"in memory", MIB..MIB + 100).unwrap().unwrap() == in_memory[1 << 20..][..100]);
    let mut rest = Vec::new();
    reader.read_to_end(&mut rest).unwrap();
    assert!([half, rest].concat() == in_tree);
    let mut shown = snapshot.reader(b"in memory").unwrap().unwrap();
    drop((snapshot, reader));
    let mut all = Vec::new();
    shown.read_to_end(&mut all).unwrap();
    assert!(all == in_memory);
    drop(shown);
    db.flush().unwrap();
    db.collect_garbage().unwrap();
    assert!(db.stats().unwrap().extents_bytes < 7 * MIB, "{:?}", db.stats().unwrap());
    db.close().unwrap();
    assert_sound(disk, &options(), "closed");
}

/// Several at once, in units that held nodes before.
#[test]
fn writers_do_not_write_over_each_others_values() {
    let disk = disk(192);
    let db = Db::create_on(Arc::clone(&disk), options()).unwrap();
    for round in 0..6 {
        (0..6000).for_each(|number| db.put(&small(number), &[round]).unwrap());
        (0..6000).for_each(|number| db.delete(&small(number)).unwrap());
        db.flush().unwrap();
        std::thread::scope(|scope| {
            for writer in 0..4_u64 {
                let db = &db;
                scope.spawn(move || {
                    for number in 0..4 {
                        db.put(&[writer as u8, number], &value(writer, MIB + 5000 * u64::from(number) + 1)).unwrap();
                    }
                });
            }
        });
        for (writer, number) in (0..4_u64).flat_map(|writer| (0..4_u8).map(move |number| (writer, number))) {
            let found = db.get(&[writer as u8, number]).unwrap().unwrap();
            assert!(found == value(writer, MIB + 5000 * u64::from(number) + 1), "{number} of {writer}, round {round}");
        }
    }
    db.close().unwrap();
    assert_sound(disk, &options(), "closed");
}

/// The log's record of a value is garbage once a tree has the value: the chunk is freed, and the value stays where it is.
#[test]
fn collecting_the_log_moves_no_large_value() {
    let disk = disk(96);
    let db = Db::create_on(Arc::clone(&disk), options()).unwrap();
    db.put(b"large", &value(1, 4 * MIB)).unwrap();
    db.flush().unwrap();
    for number in 0..6000 {
        db.put(&small(number % 100), &[number as u8; 4000]).unwrap();
    }
    db.flush().unwrap();
    db.collect_garbage().unwrap();
    let stats = db.stats().unwrap();
    // Small records are moved as well, the more of them the later the merges.
    assert!(stats.collected_chunks > 3 && stats.moved_bytes < 4 * MIB, "{stats:?}");
    assert!(db.get(b"large").unwrap().unwrap() == value(1, 4 * MIB));
    db.close().unwrap();
    assert_sound(Arc::clone(&disk), &options(), "closed");
    let db = Db::open_on(disk, options()).unwrap();
    assert!(db.get(b"large").unwrap().unwrap() == value(1, 4 * MIB));
}

#[test]
fn a_batch_has_large_values_too() {
    let disk = disk(96);
    let db = Db::create_on(Arc::clone(&disk), options()).unwrap();
    let other = db.keyspace_or_create("other").unwrap();
    let mut batch = WriteBatch::new();
    batch.put(db.default_keyspace(), b"large", &value(1, 2 * MIB)).unwrap();
    batch.put(db.default_keyspace(), b"large", &value(2, 3 * MIB)).unwrap();
    batch.put(&other, b"large", &value(3, 2 * MIB)).unwrap();
    batch.put(&other, b"small", b"value").unwrap();
    batch.delete(db.default_keyspace(), b"none").unwrap();
    db.write(&batch).unwrap();
    drop(other);
    db.close().unwrap();
    let report = assert_sound(Arc::clone(&disk), &options(), "closed");
    assert_eq!(report.large_values, 2);
    let db = Db::open_on(disk, options()).unwrap();
    assert!(db.get(b"large").unwrap().unwrap() == value(2, 3 * MIB));
    let other = db.keyspace("other").unwrap();
    assert!(other.get(b"large").unwrap().unwrap() == value(3, 2 * MIB));
    assert_eq!(other.get(b"small").unwrap().as_deref(), Some(&b"value"[..]));
    assert_eq!(db.stats().unwrap().extents_bytes.div_ceil(MIB), 6);
}

#[test]
fn damage_to_a_large_value_is_named() {
    let disk = disk(64);
    let db = Db::create_on(Arc::clone(&disk), options()).unwrap();
    db.put(b"large", &value(1, 3 * MIB)).unwrap();
    db.put(b"small", b"value").unwrap();
    db.flush().unwrap();
    db.close().unwrap();
    // A piece in the middle, and the head.
    let mut block = vec![0; 4096];
    let place_of = |wanted: &[u8]| {
        let mut block = vec![0; 4096];
        (0..64 * MIB).step_by(4096).find(|offset| {
            disk.read_at(*offset, &mut block).unwrap();
            block.windows(wanted.len()).any(|part| part == wanted)
        })
    };
    let piece = place_of(&value(1, 3 * MIB)[2 << 20..][..64]).unwrap();
    disk.read_at(piece, &mut block).unwrap();
    block[9] ^= 1;
    disk.write_at(piece, &block).unwrap();
    let db = Db::open_on(Arc::clone(&disk), options()).unwrap();
    let error = db.get(b"large").unwrap_err();
    assert!(
        matches!(error, Error::Damaged { structure: "an extent", offset, .. } if offset / 65_536 == piece / 65_536)
    );
    assert_eq!(db.get_range(b"large", 0..10).unwrap().unwrap(), value(1, 10));
    assert!(db.reader(b"large").unwrap().unwrap().read_to_end(&mut Vec::new()).is_err());
    assert_eq!(db.get(b"small").unwrap().as_deref(), Some(&b"value"[..]));
    db.close().unwrap();
    let report = vmio_kv::check_on(Arc::clone(&disk), &options(), |_| {}).unwrap();
    assert_eq!(report.problem_count, 1, "{:?}", report.problems);
    assert_eq!(report.problems[0].offset / 65_536, piece / 65_536, "{:?}", report.problems);
}

/// The places of the heads of a key's values, including values without a reference.
fn heads(disk: &MemoryBacking, key: &[u8]) -> Vec<u64> {
    let mut block = vec![0; 4096];
    let is_head = |offset: &u64| {
        disk.read_at(*offset, &mut block).unwrap();
        block[4] == 8 && block[6] == key.len() as u8 - 1 && block[24..].starts_with(key)
    };
    (0..disk.len()).step_by(4096).filter(is_head).collect()
}

/// Recovery finds the taken blocks without reading the head.
#[test]
fn a_head_that_is_damaged_before_its_flush_stops_nothing() {
    for is_reopened in [false, true] {
        let disk = disk(64);
        let mut db = Db::create_on(Arc::clone(&disk), options()).unwrap();
        db.put(b"small", b"value").unwrap();
        db.put(b"large", &value(1, 3 * MIB)).unwrap();
        if is_reopened {
            db.close().unwrap();
            db = Db::open_on(Arc::clone(&disk), options()).unwrap();
        }
        let head = heads(&disk, b"large")[0];
        let mut block = vec![0; 4096];
        disk.read_at(head, &mut block).unwrap();
        block[50] ^= 1;
        disk.write_at(head, &block).unwrap();
        db.flush().unwrap();
        db.put(b"another", b"value").unwrap();
        let error = db.get(b"large").unwrap_err();
        assert!(
            matches!(error, Error::Damaged { structure: "the head of a large value", offset, .. } if offset == head)
        );
        assert_eq!(db.get(b"small").unwrap().as_deref(), Some(&b"value"[..]));
        // A replaced value of a tree stays taken, since its blocks are unknown.
        db.put(b"large", &value(2, 2 * MIB)).unwrap();
        db.flush().unwrap();
        assert!(db.get(b"large").unwrap().unwrap() == value(2, 2 * MIB));
        db.close().unwrap();
        let report = vmio_kv::check_on(Arc::clone(&disk), &options(), |_| {}).unwrap();
        assert!(report.is_clean(), "{:?}", report.problems);
        assert_eq!(report.leaked_blocks, 3 * MIB / 4096 + 1, "its pieces and its head: {:?}", report.notes);
        assert_eq!(Db::open_on(disk, options()).unwrap().scan(..).map(Result::unwrap).count(), 3);
    }
}

/// Freeing needs no read of the head either: the blocks of a value that no tree ever had are known.
#[test]
fn a_value_replaced_in_memory_frees_its_space_though_its_head_is_damaged() {
    let disk = disk(64);
    let db = Db::create_on(Arc::clone(&disk), options()).unwrap();
    db.put(b"large", &value(1, 5 * MIB)).unwrap();
    let head = heads(&disk, b"large")[0];
    disk.write_at(head, &[7; 4096]).unwrap();
    db.put(b"large", &value(2, 2 * MIB)).unwrap();
    db.flush().unwrap();
    // With the next commit.
    db.put(b"small", b"value").unwrap();
    db.flush().unwrap();
    assert!(db.stats().unwrap().extents_bytes < 3 * MIB, "{:?}", db.stats().unwrap());
    assert!(db.get(b"large").unwrap().unwrap() == value(2, 2 * MIB));
    db.close().unwrap();
    assert_sound(disk, &options(), "closed");
}

/// A device has lost all writes of a value, and has another value of the same key in its place.
#[test]
fn an_older_value_of_the_same_key_and_place_is_detected() {
    let length = MIB + 200_000;
    for is_in_tree in [false, true] {
        let disk = disk(64);
        let db = Db::create_on(Arc::clone(&disk), options()).unwrap();
        db.put(b"large", &value(0, length)).unwrap();
        db.flush().unwrap();
        let head = heads(&disk, b"large")[0];
        let unit = head / (2 * MIB) * (2 * MIB);
        let content = || {
            let mut bytes = vec![0; 2 << 20];
            disk.read_at(unit, &mut bytes).unwrap();
            bytes
        };
        let before = content();
        let round = (1..10).find(|round| {
            // It is there again once the others have been freed.
            db.delete(b"large").unwrap();
            db.flush().unwrap();
            db.collect_garbage().unwrap();
            db.put(b"large", &value(*round, length)).unwrap();
            let is_there = content()[(head - unit) as usize..][..4096] != before[(head - unit) as usize..][..4096];
            if is_in_tree {
                db.flush().unwrap();
            }
            is_there
        });
        let round = round.expect("the place is used again");
        assert!(db.get(b"large").unwrap().unwrap() == value(round, length));
        db.close().unwrap();
        disk.write_at(unit, &before).unwrap();
        let db = Db::open_on(Arc::clone(&disk), options()).unwrap();
        let error = db.get(b"large").map(drop).expect_err("it is not what was put last");
        assert!(
            matches!(error, Error::Damaged { structure: "the head of a large value", offset, .. } if offset == head)
        );
        assert!(db.scan(..).next().unwrap().is_err());
        db.close().unwrap();
        let report = vmio_kv::check_on(disk, &options(), |_| {}).unwrap();
        assert!(report.problems.iter().any(|problem| problem.what.contains("checksum")), "{:?}", report.problems);
    }
}
