//! Forged blocks: valid checksums over impossible contents. They are damage, and cause no panic.

use std::sync::Arc;

use vmio::backing::{Backing, MemoryBacking};
use vmio_kv::{Db, Error, Options};

const UNIT: u64 = 2 << 20;
const BLOCK: u64 = 4096;
/// Of all blocks: the checksum of the bytes after it, the kind, and the epoch.
const CHECKSUM: std::ops::Range<usize> = 4..8;
const KIND: usize = 8;
const EPOCH: std::ops::Range<usize> = 24..32;
const SUPERBLOCK: u8 = 3;
/// Of a superblock: where recovery begins, and the number of the first record there.
const REPLAY_FROM: std::ops::Range<usize> = 80..88;
const REPLAY_SEQUENCE: std::ops::Range<usize> = 88..96;

fn options() -> Options {
    crate::support::options().memory_bytes(32 << 20)
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().unwrap())
}

fn seal(block: &mut [u8]) {
    let checksum = crc32c::crc32c(&block[CHECKSUM.end..]);
    block[CHECKSUM].copy_from_slice(&checksum.to_le_bytes());
}

/// A closed store of one key, with its newest superblock changed.
fn store_with(field: std::ops::Range<usize>, change: impl Fn(u64) -> u64) -> Arc<MemoryBacking> {
    let disk = Arc::new(MemoryBacking::new(64 << 20).unwrap());
    let db = Db::create_on(Arc::clone(&disk), options()).unwrap();
    db.put(b"key", b"value").unwrap();
    db.flush().unwrap();
    db.close().unwrap();
    let copies = [UNIT, UNIT + BLOCK].map(|offset| {
        let mut block = vec![0; BLOCK as usize];
        disk.read_at(offset, &mut block).unwrap();
        (block, offset)
    });
    let (mut block, offset) = copies.into_iter().max_by_key(|(block, _)| number(&block[EPOCH])).unwrap();
    assert_eq!(block[KIND], SUPERBLOCK);
    let changed = change(number(&block[field.clone()]));
    block[field].copy_from_slice(&changed.to_le_bytes());
    seal(&mut block);
    disk.write_at(offset, &block).unwrap();
    disk
}

fn is_damaged(disk: &Arc<MemoryBacking>) {
    for read_only in [true, false] {
        let opened = Db::open_on(Arc::clone(disk), options().read_only(read_only));
        assert!(matches!(opened, Err(Error::Damaged { .. })), "{opened:?}");
    }
}

#[test]
fn recovery_does_not_begin_where_no_record_is() {
    for place in [0, 8, UNIT - 1, UNIT - 3] {
        is_damaged(&store_with(REPLAY_FROM, |from| from - from % UNIT + place));
    }
}

#[test]
fn impossible_numbers_are_damage() {
    is_damaged(&store_with(REPLAY_SEQUENCE, |_| 1 << 50));
}

/// A volume has grown into the place of an earlier volume.
#[test]
fn a_copy_left_by_another_volume_is_skipped() {
    let disk = Arc::new(MemoryBacking::new(256 << 20).unwrap());
    let db = Db::create_on(Arc::clone(&disk), options()).unwrap();
    for round in 0..20_u8 {
        db.put(b"key", &[round]).unwrap();
        db.flush().unwrap();
    }
    // The second copy of the third bitmap block, which covers units that were never used: older than the last commit, newer than the copy
    // that was written.
    let offset = UNIT + (2 + 2 * 2 + 1) * BLOCK;
    let mut left = vec![0; BLOCK as usize];
    left[..4].copy_from_slice(b"vmkv");
    (left[KIND], left[10]) = (4, 1);
    left[16..24].copy_from_slice(&offset.to_le_bytes());
    left[EPOCH].copy_from_slice(&5_u64.to_le_bytes());
    left[32..48].fill(0xab);
    seal(&mut left);
    disk.write_at(offset, &left).unwrap();
    db.close().unwrap();
    let db = Db::open_on(disk, options()).unwrap();
    assert_eq!(db.get(b"key").unwrap().as_deref(), Some(&[19][..]));
}
