//! A store on the kernel module's engine, if the module is loaded: `cargo xtask vm-tests --kernel 6.12 --module` loads it in a guest, and
//! runs this there.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use vmio_kv::{Db, Durability, Engine, Error, Options, check};

const RECORDS: u32 = 6_000;
/// The kind of blocks that are leaves: docs/formats/volume.md.
const LEAF: u8 = 8;

fn options() -> Options {
    Options::new()
        .memory_bytes(32 << 20)
        .memtable_bytes(64 << 10)
        .growth_factor(4)
        .volume_bytes(256 << 20)
        .durability(Durability::None)
        .engine(Engine::Kernel)
}

fn key(number: u32) -> Vec<u8> {
    format!("key {:08}", number.wrapping_mul(2_654_435_761)).into_bytes()
}

fn value(number: u32) -> Vec<u8> {
    number.to_le_bytes().repeat(1500)
}

fn has_module() -> bool {
    let is_there = Path::new("/dev/vmio").exists();
    if !is_there {
        test_depth::skipped("no kernel module");
    }
    is_there
}

/// Flushed, collected, opened again; the store's nodes and records come and go, since the cache holds a part of them.
#[test]
fn a_store_lives_on_the_module() {
    if !has_module() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("volume");
    let db = Db::create(&path, options()).unwrap();
    (0..RECORDS).for_each(|number| db.put(&key(number), &value(number + 1)).unwrap());
    (0..RECORDS).step_by(2).for_each(|number| db.put(&key(number), &value(number)).unwrap());
    (0..RECORDS).step_by(10).for_each(|number| db.delete(&key(number)).unwrap());
    let expected = |number: u32| match number {
        _ if number.is_multiple_of(10) => None,
        _ if number.is_multiple_of(2) => Some(value(number)),
        _ => Some(value(number + 1)),
    };
    let is_right = |db: &Db| {
        for number in 0..RECORDS {
            assert_eq!(db.get(&key(number)).unwrap(), expected(number), "record {number}");
        }
        let keys: Vec<Vec<u8>> = (0..RECORDS).step_by(613).map(key).collect();
        let found = db.snapshot().multi_get(&keys).unwrap();
        assert!(found.into_iter().eq((0..RECORDS).step_by(613).map(expected)));
        let mut all: Vec<_> = (0..RECORDS).filter_map(|number| Some((key(number), expected(number)?))).collect();
        all.sort();
        assert!(db.scan(..).map(Result::unwrap).eq(all));
    };
    is_right(&db);
    db.close().unwrap();
    let db = Db::open(&path, options()).unwrap();
    is_right(&db);
    db.close().unwrap();
    let report = check(&path, &options(), |_| {}).unwrap();
    assert!(report.is_clean(), "{:#?}", report.problems);
}

/// Contents of nodes that do not verify are never used.
#[test]
fn a_damaged_node_is_an_error() {
    if !has_module() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("volume");
    let db = Db::create(&path, options()).unwrap();
    (0..RECORDS).for_each(|number| db.put(&key(number), &value(number)).unwrap());
    db.flush().unwrap();
    db.close().unwrap();
    // All leaves, by their kind, get a wrong byte.
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let mut block = vec![0; 4096];
    let mut damaged = 0;
    for offset in (0..file.metadata().unwrap().len()).step_by(4096) {
        file.read_exact_at(&mut block, offset).unwrap();
        if block.starts_with(b"vmkv") && block[8] == LEAF {
            file.write_all_at(&[!block[2000]], offset + 2000).unwrap();
            damaged += 1;
        }
    }
    assert!(damaged > 20, "{damaged} leaves");
    file.sync_all().unwrap();
    drop(file);
    let db = Db::open(&path, options()).unwrap();
    let failed = (0..RECORDS).filter(|number| match db.get(&key(*number)) {
        Ok(found) => {
            assert_eq!(found, Some(value(*number)));
            false
        }
        Err(Error::Io(vmio::Error::Corrupt { .. })) => true,
        Err(error) => panic!("{error}"),
    });
    assert_eq!(failed.count(), RECORDS as usize);
}
