//! Flips each byte of a small volume, one at a time. The store's answers are right, or name the damage, also after further writes and
//! another opening.
//!
//!
//! A run flips one byte in every 8,209 of the blocks, and more with `VMIO_TEST_DEPTH=deep`; `VMIO_TEST_FLIPS=1` takes all,
//! `VMIO_TEST_FLIPS=10` every tenth.

use std::collections::BTreeMap;
use std::panic::catch_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::support::assert_sound;
use vmio::backing::{Backing, MemoryBacking};
use vmio_kv::{Db, Durability, Error, Options, WriteBatch};

const VOLUME_BYTES: u64 = 48 << 20;
const UNIT: u64 = 2 << 20;
const BLOCK: usize = 4096;
const KEYSPACES: [&str; 2] = ["default", "other"];

/// The byte that large values consist of.
const LARGE: u8 = 0xe7;

type Contents = BTreeMap<(&'static str, Vec<u8>), Vec<u8>>;

#[repr(align(4096))]
struct Block([u8; BLOCK]);

/// A volume's blocks that are not zero, and the volume's contents.
struct Volume {
    blocks: BTreeMap<u64, Block>,
    contents: Contents,
}

fn options() -> Options {
    crate::support::options()
        .memory_bytes(32 << 20)
        .memtable_bytes(8 << 10)
        .growth_factor(2)
        .durability(Durability::Sync)
}

fn key(number: u32) -> Vec<u8> {
    match number % 6 {
        0 => format!("{number:04}").into_bytes(),
        1 => format!("a front that many keys share, longer than a window {number}").into_bytes(),
        // The pivots between leaves of these keys are longer than a node has space for.
        _ => format!("{}{number:05}", "k".repeat(1100)).into_bytes(),
    }
}

impl Volume {
    /// Records of two keyspaces, some of them in trees after `flushes` flushes. The last ones may be written by another owner. There may be
    /// large values, one in a tree and one not yet.
    fn new(records: u32, flushes: u32, is_reopened: bool, has_large: bool) -> Self {
        let disk = Arc::new(MemoryBacking::new(VOLUME_BYTES).unwrap());
        let mut db = Db::create_on(Arc::clone(&disk), options()).unwrap();
        let mut contents = Contents::new();
        db.keyspace_or_create("other").unwrap();
        for part in 0..=flushes {
            write(&db, &mut contents, part * records..(part + 1) * records).unwrap();
            if has_large {
                let (key, value) = (part.to_le_bytes().to_vec(), vec![LARGE; (1 << 20) + 5000]);
                db.put(&key, &value).unwrap();
                contents.insert(("default", key), value);
            }
            if part < flushes {
                db.flush().unwrap();
            }
        }
        if is_reopened {
            db.close().unwrap();
            db = Db::open_on(Arc::clone(&disk), options()).unwrap();
            write(&db, &mut contents, 500..530).unwrap();
        }
        db.close().unwrap();
        assert_sound(Arc::clone(&disk), &options(), "before anything is flipped");
        let mut blocks = BTreeMap::new();
        for offset in (0..VOLUME_BYTES).step_by(BLOCK) {
            let mut block = Block([0; BLOCK]);
            disk.read_at(offset, &mut block.0).unwrap();
            if block.0 != [0; BLOCK] {
                blocks.insert(offset, block);
            }
        }
        let has_piece_of_pivot = blocks.values().any(|block| block.0.starts_with(b"vmkv") && block.0[8] == 10);
        assert!(has_piece_of_pivot || records * flushes < 300);
        Volume { blocks, contents }
    }

    fn disk(&self) -> Arc<MemoryBacking> {
        let disk = MemoryBacking::new(VOLUME_BYTES).unwrap();
        self.blocks.iter().for_each(|(offset, block)| disk.write_at(*offset, &block.0).unwrap());
        Arc::new(disk)
    }

    /// Opens the volume with a flipped byte; returns whether that succeeded.
    fn open_flipped(&self, offset: u64, at: usize) -> bool {
        let disk = self.disk();
        let mut block = Block(self.blocks[&offset].0);
        block.0[at] ^= 1 << (at % 8);
        disk.write_at(offset, &block.0).unwrap();
        let place = format!("byte {at} of the block at {offset}");
        let Some(db) = opened(&disk, &place) else {
            assert!(offset >= UNIT, "{place}: it has another copy");
            return false;
        };
        // Opening has checked what it read, or has used the other copy: then nothing may turn up later.
        let is_read_on_opening = offset < 2 * UNIT;
        let errors = compare(&db, &self.contents, &place);
        assert!(errors == 0 || !is_read_on_opening, "{place}: errors after opening");
        // The store is written to: nothing in use may be taken for free.
        let mut contents = self.contents.clone();
        let written = write(&db, &mut contents, 5000..5300).and_then(|()| db.flush());
        let written = written.and_then(|()| write(&db, &mut contents, 0..20)).and_then(|()| db.close());
        if let Err(error) = written {
            assert_typed(&error, &place);
            assert!(!is_read_on_opening, "{place}: {error}");
            return true;
        }
        match opened(&disk, &place) {
            Some(db) => {
                let errors = compare(&db, &contents, &format!("{place}, after writing"));
                assert!(errors == 0 || !is_read_on_opening, "{place}: errors after writing");
            }
            None => assert!(!is_read_on_opening, "{place}: no store after writing"),
        }
        if is_read_on_opening {
            assert_sound(disk, &options(), &place);
        }
        true
    }
}

fn write(db: &Db, contents: &mut Contents, numbers: std::ops::Range<u32>) -> Result<(), Error> {
    for number in numbers {
        let keyspace = db.keyspace(KEYSPACES[number as usize % 2])?;
        let name = KEYSPACES[number as usize % 2];
        let mut batch = WriteBatch::new();
        batch.put(&keyspace, &key(number), &number.to_le_bytes().repeat(1 + number as usize % 9))?;
        batch.delete(&keyspace, &key(number / 4 * 2))?;
        db.write_with(&batch, Durability::None)?;
        contents.insert((name, key(number)), number.to_le_bytes().repeat(1 + number as usize % 9));
        contents.remove(&(name, key(number / 4 * 2)));
    }
    Ok(())
}

fn opened(disk: &Arc<MemoryBacking>, place: &str) -> Option<Db> {
    Db::open_on(Arc::clone(disk), options()).inspect_err(|error| assert_typed(error, place)).ok()
}

/// Errors that deny the store's contents.
fn assert_typed(error: &Error, place: &str) {
    let is_damage = matches!(
        error,
        Error::Damaged { .. }
            | Error::Io(_)
            | Error::NoVolume { .. }
            | Error::Stopped { .. }
            | Error::NewerVersion { .. }
    );
    assert!(is_damage, "{place}: {error}");
}

/// Checks that every answer of the store is right or an error; returns the number of errors.
fn compare(db: &Db, contents: &Contents, place: &str) -> u64 {
    let mut errors = 0;
    for name in KEYSPACES {
        let keyspace = match db.keyspace(name) {
            Ok(keyspace) => keyspace,
            Err(error) => panic!("{place}: {error}"),
        };
        for number in (0..600).chain(4990..5310) {
            let expected = contents.get(&(name, key(number)));
            match keyspace.get(&key(number)) {
                Ok(found) => assert_eq!(found.as_ref(), expected, "{place}: key {number} of {name}"),
                Err(error) => {
                    assert_typed(&error, place);
                    errors += 1;
                }
            }
        }
        for key in (0..4_u32).map(|part| part.to_le_bytes().to_vec()) {
            match keyspace.get(&key) {
                Ok(found) => assert!(found.as_ref() == contents.get(&(name, key)), "{place}: a large value of {name}"),
                Err(error) => {
                    assert_typed(&error, place);
                    errors += 1;
                }
            }
        }
        let expected = contents.range((name, Vec::new())..).take_while(|((of, _), _)| *of == name);
        let mut expected = expected.map(|((_, key), value)| (key.clone(), value.clone()));
        let mut has_failed = false;
        for found in keyspace.scan(..) {
            match found {
                Ok(found) => assert!(Some(found) == expected.next(), "{place}: a scan of {name}"),
                Err(error) => {
                    assert_typed(&error, place);
                    has_failed = true;
                    errors += 1;
                }
            }
        }
        assert!(has_failed || expected.next().is_none(), "{place}: a scan of {name} ends early");
    }
    errors
}

/// The bytes to flip, by block and place in it.
fn places(volume: &Volume, stride: usize) -> Vec<(u64, usize)> {
    // Bytes that are the same in many blocks need not be flipped in each.
    let is_one_of_many =
        |offset: u64, block: &Block| block.0[..64] == [LARGE; 64] && !offset.is_multiple_of(32 * BLOCK as u64);
    let blocks = volume.blocks.iter().filter(|(offset, block)| !is_one_of_many(**offset, block));
    // In sequence over all blocks: a stride may be longer than a block.
    blocks.flat_map(|(offset, _)| (0..BLOCK).map(|at| (*offset, at))).step_by(stride).collect()
}

/// How often the volume could be opened with one of them flipped, and where it went wrong.
fn flip_each(volume: &Volume, places: &[(u64, usize)]) -> (usize, Vec<(u64, usize)>) {
    let (next, opened, wrong) = (AtomicUsize::new(0), AtomicUsize::new(0), Mutex::new(Vec::new()));
    let flip = || {
        while let Some(place) = places.get(next.fetch_add(1, Ordering::Relaxed)) {
            match catch_unwind(|| volume.open_flipped(place.0, place.1)) {
                Ok(is_open) => drop(opened.fetch_add(usize::from(is_open), Ordering::Relaxed)),
                Err(_) => wrong.lock().unwrap().push(*place),
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().unwrap().get() {
            scope.spawn(flip);
        }
    });
    (opened.into_inner(), wrong.into_inner().unwrap())
}

#[test]
fn no_flipped_byte_causes_a_wrong_answer() {
    let stride = test_depth::number("VMIO_TEST_FLIPS", 24593, 1201) as usize;
    let mut refused = 0;
    // Records in the log alone, and in trees of several levels as well.
    for volume in [
        Volume::new(40, 0, false, false),
        Volume::new(10, 0, true, false),
        Volume::new(150, 3, true, false),
        Volume::new(10, 1, true, true),
    ] {
        let places = places(&volume, stride);
        let (flipped, (opened, wrong)) = (places.len(), flip_each(&volume, &places));
        println!("{} blocks, {flipped} bytes flipped, {opened} times opened", volume.blocks.len());
        assert_eq!(wrong, [], "blocks and bytes of them; what went wrong is above");
        assert!(opened > 0);
        refused += flipped - opened;
    }
    // Of a large volume the few places may all be ones that an opening does not need.
    assert!(refused > 0);
}
