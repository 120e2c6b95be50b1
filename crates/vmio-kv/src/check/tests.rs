//! Volumes that are right, and volumes in which one thing after the other is not.

use std::sync::Arc;

use vmio::backing::{Backing, MemoryBacking};

use super::*;
use crate::{Db, Durability, WriteBatch};

fn options() -> Options {
    Options::new().memory_bytes(32 << 20).memory_level_bytes(8 << 10).growth_factor(2).durability(Durability::None)
}

/// Two regions with several levels each, and a log that goes on behind them.
fn volume() -> Arc<MemoryBacking> {
    let disk = Arc::new(MemoryBacking::new(128 << 20).unwrap());
    let db = Db::create_on(Arc::clone(&disk), options()).unwrap();
    let other = db.region_or_create("other").unwrap();
    for number in 0..3000_u32 {
        let mut batch = WriteBatch::new();
        batch.put(db.default_region(), &key(number * 7 % 3000), &vec![1; number as usize % 90]).unwrap();
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
        _ => format!("{number}").into_bytes(),
    }
}

fn report(disk: &Arc<MemoryBacking>) -> Report {
    check_on(Arc::clone(disk), &options(), |_| {}).unwrap()
}

#[test]
fn a_volume_that_is_right_is_found_to_be() {
    let disk = volume();
    let found = report(&disk);
    assert_eq!(found.problems, []);
    assert!(found.is_clean() && found.leaked_blocks == 0, "{found:?}");
    assert!(found.regions == 2 && found.trees >= 4 && found.nodes > 20 && found.records > 9000, "{found:?}");
    Db::open_on(Arc::clone(&disk), options()).unwrap().close().unwrap();
    assert_eq!(report(&disk).problems, []);
}

/// Each block that something refers to, flipped in its middle: never unnoticed.
#[test]
fn a_flipped_bit_in_anything_that_is_referred_to_is_found() {
    let disk = volume();
    let mut places = Vec::new();
    for structure in [Structure::Tree, Structure::Log, Structure::Regions] {
        run(Arc::new(Arc::clone(&disk)), &options(), Some(structure), &mut |event| {
            if let Event::Found(found) = event {
                places.push(found.offset);
            }
        })
        .unwrap();
    }
    assert!(places.len() > 9000, "{}", places.len());
    // What the last commit does not vouch for may be torn.
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
fn what_is_no_volume_is_an_error() {
    let disk = MemoryBacking::new(128 << 20).unwrap();
    assert!(matches!(check_on(disk, &options(), |_| {}), Err(crate::Error::NoVolume { .. })));
}
