//! Each write keeps its promise of durability, whatever the store's default is, through power cuts that leave only flushed bytes.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use vmio::backing::{Access, Backing, MemoryBacking};
use vmio_kv::{Db, Durability, KeyspaceHandle, Options, WriteBatch};

const VOLUME_BYTES: u64 = 32 << 20;
const SOON: Durability = Durability::Periodic(Duration::from_millis(20));
const LATE: Durability = Durability::Periodic(Duration::from_secs(3600));
/// Longer than any flush takes: a wait this long has no end.
const PATIENCE: Duration = Duration::from_secs(30);

/// A disk with a cache: only flushed bytes survive a power cut.
struct Disk {
    live: MemoryBacking,
    durable: Mutex<Vec<u8>>,
    written: Mutex<Vec<Range<u64>>>,
    flushes: AtomicU64,
}

impl Disk {
    fn new() -> Arc<Self> {
        Self::of(vec![0; VOLUME_BYTES as usize])
    }

    fn of(durable: Vec<u8>) -> Arc<Self> {
        let live = MemoryBacking::new(VOLUME_BYTES).unwrap();
        live.write_at(0, &durable).unwrap();
        let (durable, written, flushes) = (Mutex::new(durable), Mutex::default(), AtomicU64::new(0));
        Arc::new(Disk { live, durable, written, flushes })
    }

    fn after_power_cut(&self) -> Arc<Disk> {
        Self::of(self.durable.lock().unwrap().clone())
    }

    fn flushes(&self) -> u64 {
        self.flushes.load(Ordering::SeqCst)
    }
}

impl Backing for Disk {
    fn len(&self) -> u64 {
        self.live.len()
    }

    fn access(&self) -> Access {
        self.live.access()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.live.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.live.write_at(offset, data)?;
        self.written.lock().unwrap().push(offset..offset + data.len() as u64);
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        let mut durable = self.durable.lock().unwrap();
        for range in std::mem::take(&mut *self.written.lock().unwrap()) {
            self.live.read_at(range.start, &mut durable[range.start as usize..range.end as usize])?;
        }
        self.flushes.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    fn set_len(&self, _len: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn describe(&self) -> String {
        "a disk with a cache".to_owned()
    }
}

fn options(default: Durability) -> Options {
    crate::support::options().memory_bytes(32 << 20).durability(default)
}

const KEY: &[u8] = b"key";

/// The ways to write, and the length of the key's value afterwards, which differs each time.
type Write = (&'static str, fn(&Db, &KeyspaceHandle, Durability), Option<usize>);

fn large() -> Vec<u8> {
    vec![3; (1 << 20) + 1]
}

fn put(_: &Db, keyspace: &KeyspaceHandle, durability: Durability) {
    keyspace.put_with(KEY, b"v", durability).unwrap();
}

fn put_large(_: &Db, keyspace: &KeyspaceHandle, durability: Durability) {
    keyspace.put_with(KEY, &large(), durability).unwrap();
}

fn put_stream(_: &Db, keyspace: &KeyspaceHandle, durability: Durability) {
    keyspace.put_stream_with(KEY, 4, &b"four"[..], durability).unwrap();
}

fn put_large_stream(_: &Db, keyspace: &KeyspaceHandle, durability: Durability) {
    let value = large();
    keyspace.put_stream_with(KEY, value.len() as u64, &value[..], durability).unwrap();
}

fn delete(_: &Db, keyspace: &KeyspaceHandle, durability: Durability) {
    keyspace.delete_with(KEY, durability).unwrap();
}

fn batch(db: &Db, keyspace: &KeyspaceHandle, durability: Durability) {
    let mut batch = WriteBatch::new();
    batch.put(keyspace, b"other", b"w").unwrap();
    batch.put(keyspace, KEY, b"vv").unwrap();
    db.write_with(&batch, durability).unwrap();
}

fn batch_with_large(db: &Db, keyspace: &KeyspaceHandle, durability: Durability) {
    let mut batch = WriteBatch::new();
    batch.put(keyspace, KEY, &large()).unwrap();
    batch.delete(keyspace, b"other").unwrap();
    db.write_with(&batch, durability).unwrap();
}

const WRITES: [Write; 7] = [
    ("put", put, Some(1)),
    ("put of a large value", put_large, Some((1 << 20) + 1)),
    ("put_stream", put_stream, Some(4)),
    ("put_stream of a large value", put_large_stream, Some((1 << 20) + 1)),
    ("delete", delete, None),
    ("batch", batch, Some(2)),
    ("batch with a large value", batch_with_large, Some((1 << 20) + 1)),
];

fn length_after_power_cut(disk: &Disk) -> Option<usize> {
    let db = Db::open_on(disk.after_power_cut(), options(LATE)).unwrap();
    db.get(KEY).unwrap().map(|value| value.len())
}

#[test]
fn a_period_given_with_a_write_is_kept() {
    for default in [Durability::None, Durability::Sync, LATE] {
        let disk = Disk::new();
        let db = Db::create_on(Arc::clone(&disk), options(default)).unwrap();
        let keyspace = db.default_keyspace().clone();
        for (name, write, expected) in WRITES {
            write(&db, &keyspace, SOON);
            let (started, mut seen) = (Instant::now(), u64::MAX);
            loop {
                let flushes = disk.flushes();
                if flushes != seen && length_after_power_cut(&disk) == expected {
                    break;
                }
                seen = flushes;
                let waited = started.elapsed();
                assert!(waited < PATIENCE, "default {default:?}: a {name} with {SOON:?} is not durable");
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

#[test]
fn sync_given_with_a_write_is_kept() {
    for default in [Durability::None, LATE] {
        let disk = Disk::new();
        let db = Db::create_on(Arc::clone(&disk), options(default)).unwrap();
        let keyspace = db.default_keyspace().clone();
        for (name, write, expected) in WRITES {
            write(&db, &keyspace, Durability::Sync);
            assert_eq!(length_after_power_cut(&disk), expected, "default {default:?}: a {name}");
        }
    }
}

#[test]
fn a_write_with_late_or_no_durability_flushes_nothing() {
    for default in [Durability::Sync, LATE, Durability::None] {
        for durability in [Durability::None, LATE, Durability::Periodic(Duration::MAX)] {
            let disk = Disk::new();
            let db = Db::create_on(Arc::clone(&disk), options(default)).unwrap();
            let keyspace = db.default_keyspace().clone();
            let before = disk.flushes();
            (0..100).for_each(|_| put(&db, &keyspace, durability));
            (0..100).for_each(|_| delete(&db, &keyspace, durability));
            (0..100).for_each(|_| batch(&db, &keyspace, durability));
            assert_eq!(disk.flushes(), before, "default {default:?}, writes with {durability:?}");
        }
    }
}

#[test]
fn an_earlier_deadline_comes_before_one_that_was_set_already() {
    let disk = Disk::new();
    let db = Db::create_on(Arc::clone(&disk), options(LATE)).unwrap();
    let keyspace = db.default_keyspace().clone();
    // The writer sleeps for an hour.
    keyspace.put(b"other", b"w").unwrap();
    std::thread::sleep(Duration::from_millis(50));
    let before = disk.flushes();
    put(&db, &keyspace, SOON);
    let started = Instant::now();
    while disk.flushes() == before {
        assert!(started.elapsed() < PATIENCE, "nothing was flushed");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(length_after_power_cut(&disk), Some(1));
    // One flush was enough for both.
    assert_eq!(disk.flushes(), before + 1);
}
