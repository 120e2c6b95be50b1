//! What a store takes of memory: `memory_bytes`, whatever is written, opened and checked.

#![allow(clippy::unwrap_used)]

use vmio_kv::{Db, Durability, Options, WriteBatch};

const MIB: u64 = 1 << 20;
const MEMORY: u64 = 32 * MIB;
/// What the levels in memory may take of that.
const LEVELS: u64 = MEMORY / 4;
fn options() -> Options {
    Options::new().memory_bytes(MEMORY).durability(Durability::None).spill_threads(1)
}

fn key(number: u64, bytes: usize) -> Vec<u8> {
    let mut key = vec![0; bytes];
    key[..8].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
    key
}

/// Writes batches to all of some regions, and looks after each what the levels in memory have.
fn levels_after(regions: usize, per_batch: u64, key_bytes: usize, batches: u64) -> u64 {
    let folder = tempfile::tempdir().unwrap();
    let db = Db::create(folder.path().join("store"), options().volume_bytes(4 << 30)).unwrap();
    let handles: Vec<_> = (0..regions).map(|number| db.region_or_create(&number.to_string()).unwrap()).collect();
    let mut most = 0;
    for batch in 0..batches {
        let mut writes = WriteBatch::new();
        for number in batch * per_batch..(batch + 1) * per_batch {
            writes.put(&handles[number as usize % regions], &key(number, key_bytes), b"v").unwrap();
        }
        db.write(&writes).unwrap();
        most = most.max(db.stats().memory_level_bytes);
    }
    for number in (0..batches * per_batch).step_by(997) {
        assert!(handles[number as usize % regions].contains(&key(number, key_bytes)).unwrap(), "{number}");
    }
    most
}

#[test]
fn batches_over_many_regions_wait_for_room_in_memory() {
    let most = levels_after(24, 24_000, 100, 25);
    assert!(most <= LEVELS, "{} KiB, and {} are allowed", most >> 10, LEVELS >> 10);
}

#[test]
fn a_batch_that_never_fits_is_alone() {
    let most = levels_after(3, 60_000, 200, 6);
    assert!(most > LEVELS, "{} KiB: it was to be larger than what is allowed", most >> 10);
    assert!(most <= 60_000 * 264, "{} KiB: others were beside it", most >> 10);
}
