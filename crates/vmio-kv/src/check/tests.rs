//! Sound volumes, and volumes with one problem after the other.

use std::sync::Arc;

use vmio::backing::{Backing, MemoryBacking};

use super::*;
use crate::format::geometry::Group;
use crate::format::superblock::{FEATURES, Superblock};
use crate::format::volume_header::{HEADER_OFFSETS, segment_tables};
use crate::{Db, Durability, Error, KEY_BYTES_MAX, WriteBatch};

fn options() -> Options {
    Options::new().memory_bytes(32 << 20).memtable_bytes(8 << 10).growth_factor(2).durability(Durability::None)
}

/// Two keyspaces with several levels each, and a log that continues after them.
fn volume() -> Arc<MemoryBacking> {
    let disk = Arc::new(MemoryBacking::new(128 << 20).unwrap());
    let db = Db::create_on(Arc::clone(&disk), options()).unwrap();
    let other = db.keyspace_or_create("other").unwrap();
    for number in 0..3000_u32 {
        let mut batch = WriteBatch::new();
        batch.put(db.default_keyspace(), &key(number * 7 % 3000), &vec![1; number as usize % 90]).unwrap();
        batch.put(&other, &key(number), b"value").unwrap();
        batch.delete(&other, &key(number / 2)).unwrap();
        db.write(&batch).unwrap();
    }
    drop(other);
    db.close().unwrap();
    disk
}

fn key(number: u32) -> Vec<u8> {
    match number % 3 {
        0 => number.to_be_bytes().to_vec(),
        1 => format!("a front that many share, longer than a window {number}").into_bytes(),
        // Pivots between these are longer than a node has space for. There are few of them: a log of one chunk is read back as a whole.
        _ if number.is_multiple_of(4) => format!("{}{number}", "long".repeat(300)).into_bytes(),
        _ => format!("{number}").into_bytes(),
    }
}

fn report(disk: &Arc<MemoryBacking>) -> Report {
    check_on(Arc::clone(disk), &options(), |_| {}).unwrap()
}

#[test]
fn a_sound_volume_has_no_problems() {
    let disk = volume();
    let found = report(&disk);
    assert_eq!(found.problems, []);
    assert!(found.is_clean() && found.leaked_blocks == 0, "{found:?}");
    assert!(found.keyspaces == 2 && found.trees >= 4 && found.nodes > 20 && found.records > 9000, "{found:?}");
    Db::open_on(Arc::clone(&disk), options()).unwrap().close().unwrap();
    assert_eq!(report(&disk).problems, []);
}

/// Recovery begins in a chunk that an opening found empty and gave a new generation, while the chunk before it was freed.
#[test]
fn a_volume_that_was_opened_without_a_write_has_no_problems() {
    let disk = Arc::new(MemoryBacking::new(128 << 20).unwrap());
    let reopened = |db: Db| {
        db.close().unwrap();
        assert_eq!(report(&disk).problems, []);
        Db::open_on(Arc::clone(&disk), options()).unwrap()
    };
    let mut db = Db::create_on(Arc::clone(&disk), options()).unwrap();
    for _ in 0..2 {
        db.put(b"key", b"value").unwrap();
        db = reopened(db);
    }
    db.collect_garbage().unwrap();
    db = reopened(db);
    db.flush().unwrap();
    db = reopened(db);
    reopened(db).close().unwrap();
}

/// Flips a bit in the middle of each block that something refers to: each flip is found.
#[test]
fn a_flipped_bit_in_any_referenced_block_is_found() {
    let disk = volume();
    let mut places = Vec::new();
    for structure in [Structure::Tree, Structure::Log, Structure::Keyspaces] {
        run(&options().cache().unwrap(), Arc::new(Arc::clone(&disk)), Some(structure), &mut |event| {
            if let Event::Found(found) = event {
                places.push(found.offset);
            }
        })
        .unwrap();
    }
    assert!(places.len() > 9000, "{}", places.len());
    // Records that the last commit does not vouch for may be torn.
    let last = *places.last().unwrap();
    for place in places.into_iter().step_by(397).filter(|place| last - 100_000 > *place || *place > last) {
        flip(&disk, place + 20);
        let found = report(&disk);
        assert!(!found.is_clean(), "byte {place}: {found:?}");
        flip(&disk, place + 20);
    }
    assert!(report(&disk).is_clean());
}

fn flip(disk: &MemoryBacking, offset: u64) {
    let mut block = Box::new(Block::ZERO);
    let start = offset - offset % BLOCK_BYTES as u64;
    disk.read_at(start, &mut block.0).unwrap();
    block.0[(offset - start) as usize] ^= 4;
    disk.write_at(start, &block.0).unwrap();
}

#[test]
fn a_check_of_no_volume_is_an_error() {
    let disk = MemoryBacking::new(128 << 20).unwrap();
    assert!(matches!(check_on(disk, &options(), |_| {}), Err(crate::Error::NoVolume { .. })));
}

/// Copies that were written once, and hold zeros now.
#[test]
fn zeroed_copies_of_written_blocks_are_reported() {
    let disk = volume();
    let group = Group::new(1, 63);
    let zeroed = |offset: u64| {
        let mut before = Box::new(Block::ZERO);
        disk.read_at(offset, &mut before.0).unwrap();
        assert_ne!(before.0, Block::ZERO.0);
        disk.write_at(offset, &Block::ZERO.0).unwrap();
        let found = report(&disk);
        disk.write_at(offset, &before.0).unwrap();
        found
    };
    for offset in HEADER_OFFSETS.into_iter().chain(segment_tables(0)) {
        let found = zeroed(offset);
        assert!(found.problems.iter().any(|problem| problem.offset == offset), "byte {offset}: {found:?}");
    }
    let older = group.superblocks().into_iter().filter(|offset| {
        let found = zeroed(*offset);
        assert!(found.notes.iter().any(|note| note.offset == *offset), "byte {offset}: {found:?}");
        found.is_clean()
    });
    assert!(older.count() >= 1);
    assert!(report(&disk).is_clean());
}

/// The first commit writes the second superblock: before that it is not missing.
#[test]
fn a_new_volume_has_no_notes() {
    let disk = Arc::new(MemoryBacking::new(128 << 20).unwrap());
    let cache = vmio::Cache::builder().capacity(8 << 20).build().unwrap();
    let device = Device::open(&cache, Arc::clone(&disk) as Arc<dyn Backing>, 0).unwrap();
    crate::volume::Volume::create(Arc::new(device), false).unwrap();
    let found = report(&disk);
    assert!(found.is_clean() && found.notes.is_empty(), "{found:?}");
}

/// Sets these features in both superblocks.
fn set_features(disk: &MemoryBacking, features: u64) {
    for offset in Group::new(1, 63).superblocks() {
        let mut block = Box::new(Block::ZERO);
        disk.read_at(offset, &mut block.0).unwrap();
        let sealed = unseal(&block.0, Kind::Superblock, offset).unwrap();
        let superblock = Superblock { incompatible: features, ..Superblock::from_block(&sealed).unwrap() };
        let changed = superblock.to_block(sealed.uuid, offset, sealed.epoch);
        disk.write_at(offset, &changed.0).unwrap();
    }
}

#[test]
fn opening_a_volume_adds_the_newest_features() {
    let disk = volume();
    set_features(&disk, 0);
    assert!(report(&disk).is_clean());
    let db = Db::open_on(Arc::clone(&disk), options()).unwrap();
    db.put(&[7; KEY_BYTES_MAX], b"value").unwrap();
    db.close().unwrap();
    let mut seen = Vec::new();
    run(&options().cache().unwrap(), Arc::new(Arc::clone(&disk)), Some(Structure::Superblock), &mut |event| {
        if let Event::Found(Found { what: "superblock", fields, .. }) = event {
            seen.extend(fields.into_iter().filter(|(name, _)| *name == "features").map(|(_, features)| features));
        }
    })
    .unwrap();
    assert!(seen.contains(&Field::Number(FEATURES)), "{seen:?}");
    let unknown = 1 << 40;
    set_features(&disk, FEATURES | unknown);
    assert!(!report(&disk).is_clean());
    assert!(matches!(
        Db::open_on(disk, options()),
        Err(Error::UnknownFeatures { features, .. }) if features == unknown
    ));
}
