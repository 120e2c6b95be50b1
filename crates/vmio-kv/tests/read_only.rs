//! A store that is opened read-only shows what any opening shows, and nothing is written to its volume.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;

use crate::support::Random;
use crate::support::simulated_disk::SimulatedDisk;
use vmio::backing::{Access, Backing};
use vmio_kv::{Db, Durability, Error, Options, WriteBatch};

const VOLUME_BYTES: u64 = 128 << 20;

/// A device that refuses writes: any write is a mistake.
struct WriteProtected<B>(B);

impl<B: Backing> Backing for WriteProtected<B> {
    fn len(&self) -> u64 {
        self.0.len()
    }

    fn access(&self) -> Access {
        Access::ReadOnly
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        panic!("{} bytes were written at {offset}", data.len());
    }

    fn flush(&self) -> io::Result<()> {
        panic!("it was flushed");
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        panic!("it was made {len} bytes long");
    }

    fn discard(&self, range: Range<u64>) -> io::Result<()> {
        panic!("{range:?} was given back");
    }

    fn describe(&self) -> String {
        self.0.describe()
    }
}

fn options() -> Options {
    // Levels of some thousand records.
    crate::support::options().memory_bytes(32 << 20).memtable_bytes(64 << 10).durability(Durability::None)
}

type Pairs = BTreeMap<(String, Vec<u8>), Vec<u8>>;

/// All of a store's contents, by scans, and each key by a look-up.
fn pairs(db: &Db) -> Pairs {
    let mut pairs = Pairs::new();
    for name in db.keyspace_names().unwrap() {
        let keyspace = db.keyspace(&name).unwrap();
        for pair in keyspace.scan(..) {
            let (key, value) = pair.unwrap();
            assert!(keyspace.get(&key).unwrap().as_ref() == Some(&value), "{name} {key:?}");
            pairs.insert((name.clone(), key), value);
        }
    }
    pairs
}

/// Writes, and leaves the store at any moment.
fn write_some(db: &Db, random: &mut Random) {
    let keyspaces = [db.default_keyspace().clone(), db.keyspace_or_create("other").unwrap()];
    for _ in 0..random.below(12_000) {
        let (keyspace, key) = (&keyspaces[random.below(2) as usize], random.below(5000).to_be_bytes());
        match random.below(1000) {
            0 => db.flush().unwrap(),
            1 => keyspace.put(&key, &vec![7; (1 << 20) + random.below(1 << 20) as usize]).unwrap(),
            2..300 => keyspace.delete(&key).unwrap(),
            _ => keyspace.put(&key, &vec![random.below(256) as u8; random.below(600) as usize]).unwrap(),
        }
    }
    db.sync().unwrap();
}

#[test]
fn after_a_power_cut_it_shows_what_a_writable_opening_shows() {
    for seed in 0..test_depth::pick(4, 10) {
        let mut random = Random(seed);
        let mut disk = SimulatedDisk::new(seed, &[VOLUME_BYTES]);
        drop(Db::create_on(disk.open(0), options()).unwrap());
        let mut recovered = 0;
        for _ in 0..2 {
            let db = Db::open_on(disk.open(0), options()).unwrap();
            write_some(&db, &mut random);
            disk.cut_power_after(random.below(20));
            for _ in 0..random.below(3000) {
                let _ = db.put(&random.below(5000).to_be_bytes(), b"perhaps");
            }
            drop(db);
            disk = disk.after_power_cut();
            let reader = Db::open_on(WriteProtected(disk.open(0)), options().read_only(true)).unwrap();
            let (found, recovery) = (pairs(&reader), reader.recovery());
            reader.close().unwrap();
            let db = Db::open_on(disk.open(0), options()).unwrap();
            assert_eq!((db.recovery().records, db.recovery().log_bytes), (recovery.records, recovery.log_bytes));
            assert!(found == pairs(&db), "seed {seed}: {} pairs", found.len());
            recovered += recovery.records;
        }
        assert!(recovered > 0, "seed {seed}");
    }
}

#[test]
fn all_writes_are_refused_and_reads_go_on() {
    let disk = SimulatedDisk::new(1, &[VOLUME_BYTES]);
    let db = Db::create_on(disk.open(0), options()).unwrap();
    db.put(b"key", b"value").unwrap();
    db.close().unwrap();
    let open = |options: Options| Db::open_on(WriteProtected(disk.open(0)), options.read_only(true));
    let db = open(options()).unwrap();
    let large = vec![1; 2 << 20];
    let mut batch = WriteBatch::new();
    batch.put(db.default_keyspace(), b"key", b"other").unwrap();
    let refused = [
        ("put", db.put(b"key", b"other")),
        ("put of a large value", db.put(b"key", &large)),
        ("put from a stream", db.put_stream(b"key", large.len() as u64, large.as_slice())),
        ("delete", db.delete(b"key")),
        ("write", db.write(&batch)),
        ("flush", db.flush()),
        ("grow", db.grow(2 * VOLUME_BYTES)),
        ("collect_garbage", db.collect_garbage()),
        ("keyspace_or_create", db.keyspace_or_create("new").map(drop)),
        ("create_segment", db.create_segment().map(drop)),
    ];
    for (what, result) in refused {
        assert!(matches!(result, Err(Error::ReadOnly { .. })), "{what}: {result:?}");
    }
    db.sync().unwrap();
    assert_eq!(db.get(b"key").unwrap().as_deref(), Some(&b"value"[..]));
    assert_eq!(db.snapshot().keyspace("default").unwrap().get(b"key").unwrap().as_deref(), Some(&b"value"[..]));
    assert_eq!(db.keyspace_or_create("default").unwrap().name(), "default");
    db.close().unwrap();
    let took_over = open(options().take_over(true));
    assert!(matches!(took_over, Err(Error::Option { option: "read_only", .. })), "{took_over:?}");
    let created = Db::create_on(SimulatedDisk::new(2, &[VOLUME_BYTES]).open(0), options().read_only(true));
    assert!(matches!(created, Err(Error::Option { option: "read_only", .. })), "{created:?}");
}

#[test]
fn a_memtable_filled_from_the_log_makes_no_reader_wait() {
    let disk = SimulatedDisk::new(3, &[VOLUME_BYTES]);
    let few = crate::support::options().memory_bytes(256 << 20).durability(Durability::None);
    let db = Db::create_on(disk.open(0), few).unwrap();
    (0..60_000_u64).for_each(|number| db.put(&number.to_be_bytes(), b"a value").unwrap());
    db.close().unwrap();
    // The records that fitted into the writer's memory are many times what this opening's memtable is to have.
    let reader = Db::open_on(WriteProtected(disk.open(0)), options().read_only(true)).unwrap();
    assert_eq!(reader.recovery().records, 60_000);
    assert_eq!(reader.scan(..).count(), 60_000);
    assert!(matches!(reader.put(b"key", b"value"), Err(Error::ReadOnly { .. })));
    reader.close().unwrap();
}

#[test]
fn reads_leave_the_file_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let db = Db::create(&path, options().volume_bytes(VOLUME_BYTES)).unwrap();
    write_some(&db, &mut Random(5));
    let written = pairs(&db);
    db.close().unwrap();
    let before = std::fs::read(&path).unwrap();
    let reader = Db::open(&path, options().read_only(true)).unwrap();
    assert!(written == pairs(&reader));
    reader.close().unwrap();
    assert!(before == std::fs::read(&path).unwrap(), "the file has changed");
    Db::open(&path, options()).unwrap().put(b"key", b"other").unwrap();
}
