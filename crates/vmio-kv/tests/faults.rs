//! Each single read, write and flush of a store's life fails in turn, once or from then on. No answer is wrong, each error says what
//! failed, and on a healthy device all acknowledged writes are there.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::support::assert_sound;
use vmio::backing::{Access, Backing, MemoryBacking};
use vmio_kv::{Db, Durability, Error, KeyspaceHandle, Options, WriteBatch};

/// The failing operations of a device, from the operation with that number on.
#[derive(Clone, Copy, Debug)]
struct Fault {
    first: u64,
    errno: i32,
    for_ever: bool,
    /// Reads and flushes succeed.
    writes_alone: bool,
}

impl Fault {
    const NONE: Fault = Fault { first: u64::MAX, errno: 0, for_ever: false, writes_alone: false };
}

struct FailingDevice {
    disk: Arc<MemoryBacking>,
    fault: Fault,
    operations: Arc<AtomicU64>,
}

impl FailingDevice {
    fn operation(&self, is_write: bool) -> io::Result<()> {
        if self.fault.writes_alone && !is_write {
            return Ok(());
        }
        let number = self.operations.fetch_add(1, Ordering::Relaxed);
        let fails = number == self.fault.first || (self.fault.for_ever && number > self.fault.first);
        if fails { Err(io::Error::from_raw_os_error(self.fault.errno)) } else { Ok(()) }
    }
}

impl Backing for FailingDevice {
    fn len(&self) -> u64 {
        self.disk.len()
    }

    fn access(&self) -> Access {
        Access::ReadWrite
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.operation(false)?;
        self.disk.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        // A failed operation may have been done in part.
        let half = if data.len() > 4096 { &data[..data.len() / 2 / 4096 * 4096] } else { &[] };
        self.operation(true).or_else(|error| self.disk.write_at(offset, half).and(Err(error)))?;
        self.disk.write_at(offset, data)
    }

    fn flush(&self) -> io::Result<()> {
        self.operation(false)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.disk.set_len(len)
    }

    fn describe(&self) -> String {
        "failing device".to_owned()
    }
}

fn options(compaction_threads: usize) -> Options {
    crate::support::options()
        .compaction_threads(compaction_threads)
        .memory_bytes(32 << 20)
        .memtable_bytes(4 << 10)
        .growth_factor(2)
        .durability(Durability::Sync)
}

fn key(number: u64) -> Vec<u8> {
    if number.is_multiple_of(2) {
        number.to_be_bytes().to_vec()
    } else {
        format!("a front that is shared {number:09}").into()
    }
}

type Possible = BTreeSet<Option<Vec<u8>>>;

/// What a store may hold: for each key the acknowledged value, and the values whose writes have failed since.
#[derive(Default)]
struct Model(BTreeMap<(&'static str, Vec<u8>), Possible>);

impl Model {
    fn write(&mut self, place: (&'static str, Vec<u8>), value: Option<Vec<u8>>, is_acknowledged: bool) {
        let possible = self.0.entry(place).or_insert_with(|| Possible::from([None]));
        if is_acknowledged {
            possible.clear();
        }
        possible.insert(value);
    }

    fn check(&self, keyspace: &KeyspaceHandle, name: &'static str, fault: Fault) -> Result<(), Error> {
        let mut expected: BTreeMap<&[u8], &Possible> = BTreeMap::new();
        for ((of, key), possible) in &self.0 {
            if *of != name {
                continue;
            }
            expected.insert(key, possible);
            let found = keyspace.get(key)?;
            assert!(possible.contains(&found), "{fault:?}: {} of {name}", key.escape_ascii());
        }
        let mut seen = 0;
        for found in keyspace.scan(..) {
            let (key, value) = found?;
            let possible = expected.get(key.as_slice());
            assert!(possible.is_some_and(|possible| possible.contains(&Some(value))), "{fault:?}: a scan of {name}");
            seen += 1;
        }
        let certain = expected.values().filter(|possible| !possible.contains(&None)).count();
        assert!(seen >= certain, "{fault:?}: a scan of {name} has {seen} keys of {certain}");
        Ok(())
    }
}

/// A life: reads everything, and writes some.
fn live(db: &Db, model: &mut Model, from: u64, fault: Fault) -> Result<(), Error> {
    let other = db.keyspace_or_create("other")?;
    model.check(db.default_keyspace(), "default", fault)?;
    model.check(&other, "other", fault)?;
    for number in from..from + 24 {
        let (first, second) = (key(number * 7 % 40), key(number * 3 % 40));
        let value = number.to_le_bytes().repeat(1 + number as usize % 40);
        let mut batch = WriteBatch::new();
        batch.put(db.default_keyspace(), &first, &value)?;
        batch.put(&other, &first, &value)?;
        batch.delete(&other, &second)?;
        let written = db.write(&batch);
        model.write(("default", first.clone()), Some(value.clone()), written.is_ok());
        model.write(("other", first.clone()), Some(value), written.is_ok());
        if second != first || written.is_err() {
            model.write(("other", second), None, written.is_ok());
        } else {
            model.write(("other", second), None, true);
        }
        written?;
        if number % 12 == 5 {
            let value = vec![number as u8; (1 << 20) + 5000];
            let written = db.put(b"large", &value);
            model.write(("default", b"large".to_vec()), Some(value), written.is_ok());
            written?;
        }
        if number % 9 == 8 {
            db.flush()?;
        }
    }
    model.check(db.default_keyspace(), "default", fault)?;
    model.check(&other, "other", fault)
}

fn assert_typed(error: &Error, fault: Fault) {
    let is_failure =
        matches!(error, Error::Io(_) | Error::Device { .. } | Error::Stopped { .. } | Error::NoVolume { .. });
    assert!(is_failure && !error.to_string().is_empty(), "{fault:?}: {error}");
}

/// Two lives on a failing device, and one on a healthy one; returns the number of operations.
fn run(fault: Fault) -> u64 {
    let options = || options(1 + fault.first as usize % 3);
    let disk = Arc::new(MemoryBacking::new(48 << 20).unwrap());
    let operations = Arc::new(AtomicU64::new(0));
    let device = |fault| FailingDevice { disk: Arc::clone(&disk), fault, operations: Arc::clone(&operations) };
    let mut model = Model::default();
    for from in [0, 24] {
        let db =
            if from == 0 { Db::create_on(device(fault), options()) } else { Db::open_on(device(fault), options()) };
        let lived = db.and_then(|db| live(&db, &mut model, from, fault).and_then(|()| db.close()));
        if let Err(error) = lived {
            assert_typed(&error, fault);
        }
    }
    let failed = operations.load(Ordering::Relaxed);
    let db = match Db::open_on(device(Fault::NONE), options()) {
        Ok(db) => db,
        Err(Error::NoVolume { .. }) if model.0.is_empty() => return failed,
        Err(error) => panic!("{fault:?}: {error}"),
    };
    live(&db, &mut model, 48, fault).unwrap_or_else(|error| panic!("{fault:?}: {error}"));
    db.close().unwrap();
    assert_sound(disk, &options(), &format!("{fault:?}"));
    failed
}

/// Until a run has no operation with that number.
fn at_every_point(errno: i32, for_ever: bool, writes_alone: bool) -> u64 {
    let (mut first, mut points) = (0, 0);
    while run(Fault { first, errno, for_ever, writes_alone }) > first {
        first += test_depth::step(11, 1);
        points += 1;
    }
    assert!(first > 50 && points > 3, "{first}, {points} of them");
    first
}

#[test]
fn an_operation_fails_once() {
    println!("{} operations", at_every_point(libc::EIO, false, false));
}

#[test]
fn all_operations_fail_from_one_on() {
    println!("{} operations", at_every_point(libc::EIO, true, false));
}

#[test]
fn the_device_is_full_from_a_write_on() {
    println!("{} writes", at_every_point(libc::ENOSPC, true, true));
}

/// Whatever fails while a keyspace is created, the keyspace is in no other segment when the store is opened again.
#[test]
fn a_keyspace_whose_creation_may_have_failed_is_not_created_in_another_segment() {
    let (mut refused, mut others) = (0, 0);
    for operation in 0.. {
        let operations = Arc::new(AtomicU64::new(0));
        let disk = Arc::new(MemoryBacking::new(64 << 20).unwrap());
        let fault = Fault { first: 1 << 40, errno: libc::EIO, ..Fault::NONE };
        let device = FailingDevice { disk: Arc::clone(&disk), fault, operations: Arc::clone(&operations) };
        let options =
            || crate::support::options().memory_bytes(32 << 20).volume_bytes(64 << 20).max_volume_bytes(256 << 20);
        let db = Db::create_on(device, options()).unwrap();
        let second = db.create_segment().unwrap();
        operations.store(fault.first - operation, Ordering::Relaxed);
        let created = second.keyspace_or_create("name").map(drop);
        operations.store(0, Ordering::Relaxed);
        if created.is_err() {
            match db.keyspace_or_create("name") {
                Err(Error::Stopped { why, .. }) if why.contains("segment 1") => refused += 1,
                other => panic!("after operation {operation}: {other:?}"),
            }
            others += u64::from(db.keyspace_or_create("another").is_ok());
        }
        drop((second, db));
        let db = Db::open_on(disk, options()).unwrap_or_else(|error| panic!("after operation {operation}: {error}"));
        db.keyspace_or_create("name").unwrap();
        if created.is_ok() {
            break;
        }
    }
    assert!(refused > 3 && others > 0, "{refused} refused, {others} others created");
}
