//! Space that becomes free in a volume is given back to the file system, and nothing else is.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::support::assert_sound;
use vmio::backing::{Access, FileBacking};
use vmio_kv::{Db, Durability, Options};

const MIB: u64 = 1 << 20;
/// Reserved units that keep their space (eight, and four more), units with partly free blocks, and what the file system needs for itself.
const SLACK: u64 = 42 * MIB;

fn options() -> Options {
    crate::support::options()
        .memory_bytes(32 << 20)
        .memtable_bytes(256 << 10)
        .durability(Durability::None)
        .max_volume_bytes(256 << 20)
}

fn file_bytes(path: &Path) -> u64 {
    std::fs::metadata(path).unwrap().blocks() * 512
}

fn put_all(db: &Db, keys: impl Iterator<Item = u64>, round: u64) {
    keys.for_each(|number| db.put(&number.to_be_bytes(), &(number + round).to_le_bytes().repeat(1000)).unwrap());
}

fn assert_all(db: &Db, mut keys: impl Iterator<Item = u64>, round: u64) {
    let mut found = db.scan(..);
    for number in &mut keys {
        let (key, value) = found.next().unwrap().unwrap();
        assert_eq!((key, value), (number.to_be_bytes().to_vec(), (number + round).to_le_bytes().repeat(1000)));
    }
    assert!(found.next().is_none());
}

/// Waits until the file has only the blocks that the volume uses.
fn assert_shrinks(db: &Db, path: &Path) {
    let started = Instant::now();
    while file_bytes(path) > db.stats().unwrap().space_bytes + SLACK {
        let (file, taken) = (file_bytes(path), db.stats().unwrap().space_bytes);
        assert!(started.elapsed() < Duration::from_secs(240), "the file has {file} bytes, of which {taken} are taken");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_file_has_only_the_blocks_that_its_volume_uses() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let db = Db::create(&path, options()).unwrap();
    put_all(&db, 0..12_000, 0);
    db.flush().unwrap();
    let full = file_bytes(&path);
    assert!(full > 90 * MIB, "{full}");
    (0..12_000_u64).filter(|number| number % 12 > 0).for_each(|number| db.delete(&number.to_be_bytes()).unwrap());
    db.collect_garbage().unwrap();
    assert!(db.stats().unwrap().space_bytes < 40 * MIB, "{:?}", db.stats().unwrap());
    assert_shrinks(&db, &path);
    assert_all(&db, (0..12_000).step_by(12), 0);
    // Freed space is taken again, and freed again in the background.
    for round in 1..6 {
        put_all(&db, 0..2000, round);
    }
    put_all(&db, (0..12_000).step_by(12), 6);
    (0..2000_u64).filter(|number| number % 12 > 0).for_each(|number| db.delete(&number.to_be_bytes()).unwrap());
    assert_all(&db, (0..12_000).step_by(12), 6);
    db.collect_garbage().unwrap();
    assert_shrinks(&db, &path);
    assert_all(&db, (0..12_000).step_by(12), 6);
    db.close().unwrap();
    assert_sound(FileBacking::open(&path, Access::ReadOnly).unwrap(), &options(), "closed");
    let db = Db::open(&path, options()).unwrap();
    assert_all(&db, (0..12_000).step_by(12), 6);
}

#[test]
fn a_file_keeps_its_blocks_if_asked_to() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let db = Db::create(&path, options().discard(false)).unwrap();
    put_all(&db, 0..6000, 0);
    db.flush().unwrap();
    let full = file_bytes(&path);
    (0..6000_u64).for_each(|number| db.delete(&number.to_be_bytes()).unwrap());
    db.collect_garbage().unwrap();
    assert!(db.stats().unwrap().space_bytes < full / 2, "{:?}", db.stats().unwrap());
    assert!(file_bytes(&path) >= full);
    drop(db);
    // An opening without that option frees all of them.
    let db = Db::open(&path, options()).unwrap();
    assert_shrinks(&db, &path);
}
