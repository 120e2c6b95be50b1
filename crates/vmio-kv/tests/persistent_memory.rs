//! A store in a file on persistent memory, in the folder that VMIO_TEST_DAX names (`cargo xtask vm-each` has one). At ring 0 the store
//! copies; with other engines it reads and writes by system calls.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::support::{assert_sound, options};
use vmio::backing::{Access, DaxBacking, FileBacking};
use vmio_kv::{Db, Durability, Engine, Options, check};

const MIB: u64 = 1 << 20;
const RECORDS: u64 = 9_000;

/// Does something in an empty folder on persistent memory, if there is some.
fn in_folder(test: impl FnOnce(&Path)) {
    let Some(folder) = std::env::var_os("VMIO_TEST_DAX").map(PathBuf::from) else {
        return test_depth::skipped("VMIO_TEST_DAX names no folder on persistent memory");
    };
    let scratch = tempfile::tempdir_in(folder).unwrap();
    test(scratch.path());
}

fn small() -> Options {
    options().memory_bytes(32 << 20).memtable_bytes(64 << 10).volume_bytes(128 * MIB).durability(Durability::None)
}

fn key(number: u64) -> [u8; 8] {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
}

fn value(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(500)
}

fn put(db: &Db, numbers: impl Iterator<Item = u64>, add: u64) {
    numbers.for_each(|number| db.put(&key(number), &value(number + add)).unwrap());
}

fn assert_there(db: &Db, numbers: impl Iterator<Item = u64>, add: u64) {
    for number in numbers {
        let found = db.get(&key(number)).unwrap();
        assert!(found.is_some_and(|found| found == value(number + add)), "record {number}");
    }
}

/// How often this process maps the file itself: copies need that.
fn maps_of(path: &Path) -> usize {
    fs::read_to_string("/proc/self/maps").unwrap().matches(path.to_str().unwrap()).count()
}

/// The cache holds a part of it: nodes and records come and go.
#[test]
fn a_store_is_the_same_however_it_is_opened() {
    in_folder(|folder| {
        let path = folder.join("store");
        let db = Db::create(&path, small()).unwrap();
        put(&db, 0..RECORDS, 0);
        assert_there(&db, 0..RECORDS, 0);
        let all: Vec<_> = (0..RECORDS).map(key).collect();
        assert_eq!(db.snapshot().multi_get(&all).unwrap().into_iter().flatten().count(), all.len());
        db.close().unwrap();

        let db = Db::open_on(FileBacking::open(&path, Access::ReadWrite).unwrap(), small()).unwrap();
        assert_eq!(maps_of(&path), 0);
        assert_there(&db, 0..RECORDS, 0);
        put(&db, (0..RECORDS).step_by(3), 1);
        db.close().unwrap();

        let db = Db::open_on(DaxBacking::open(&path, Access::ReadWrite).unwrap(), small()).unwrap();
        assert_there(&db, (0..RECORDS).step_by(3), 1);
        put(&db, (0..RECORDS).step_by(3), 2);
        db.collect_garbage().unwrap();
        db.close().unwrap();

        let db = Db::open(&path, small()).unwrap();
        let is_at_ring_0 = options_are_of(Engine::Ring0);
        assert_eq!(maps_of(&path), usize::from(is_at_ring_0));
        assert_there(&db, (0..RECORDS).step_by(3), 2);
        assert_there(&db, (0..RECORDS).filter(|number| number % 3 != 0), 0);
        db.close().unwrap();
        assert_sound(FileBacking::open(&path, Access::ReadOnly).unwrap(), &small(), "closed");
        assert!(check(&path, &small(), |_| {}).unwrap().is_clean());
    });
}

fn options_are_of(engine: Engine) -> bool {
    vmio::Cache::builder().engine(crate::support::engine()).capacity(16 << 20).build().unwrap().engine() == engine
}

/// Unused parts of the file take no space.
#[test]
fn a_store_grows_beyond_what_was_mapped_at_its_opening() {
    in_folder(|folder| {
        let path = folder.join("store");
        let limits = small().volume_bytes(64 * MIB).max_volume_bytes(80 << 30);
        let db = Db::create(&path, limits.clone()).unwrap();
        put(&db, 0..100, 0);
        for (round, gibibytes) in [3, 24, 60, 80].into_iter().enumerate() {
            // The new groups have blocks of their own, in the new part.
            db.grow(gibibytes << 30).unwrap();
            put(&db, 0..100, round as u64 + 1);
            db.flush().unwrap();
            assert_there(&db, 0..100, round as u64 + 1);
        }
        db.close().unwrap();
        let db = Db::open(&path, limits).unwrap();
        assert_there(&db, 0..100, 4);
    });
}

/// A durable put is in the file, although nothing was closed.
#[test]
fn a_durable_put_is_in_the_file() {
    in_folder(|folder| {
        let (path, copy) = (folder.join("store"), folder.join("copy"));
        let durable = || small().durability(Durability::Sync);
        let db = Db::create(&path, durable()).unwrap();
        put(&db, 0..300, 0);
        // As another process would find it after a crash of this one.
        let (from, to) = (File::open(&path).unwrap(), File::create(&copy).unwrap());
        let mut part = vec![0; MIB as usize];
        for offset in (0..128 * MIB).step_by(MIB as usize) {
            from.read_exact_at(&mut part, offset).unwrap();
            to.write_all_at(&part, offset).unwrap();
        }
        let crashed = Db::open(&copy, durable()).unwrap();
        assert_there(&crashed, 0..300, 0);
        assert_eq!(crashed.recovery().records, 300);
    });
}
