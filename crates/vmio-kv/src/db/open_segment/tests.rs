//! A batch that has begun finds space, whatever else takes space meanwhile.

use std::sync::Arc;

use crate::device::failing_backing::FailingBacking;
use crate::extents::Stored;
use crate::format::extents::Extent;
use crate::format::geometry::ALLOCATION_UNIT_BLOCKS;
use crate::format::unit_table::Purpose;
use crate::keyspace::memtable::NEWEST;
use crate::volume::allocator::Cursor;
use crate::volume::segment::Segment;
use crate::{Db, Durability, Error, KeyspaceHandle, Options, WriteBatch};

const VALUE_BYTES: usize = 100_000;
/// Eight chunks of them.
const VALUES: u32 = 150;

/// A batch waits for the device, with a part of its records in the log. Meanwhile `take` takes all the space that it gets, and its result
/// holds that space to the end. The batch must complete, and the store must go on.
fn batch_during<Taken>(take: impl FnOnce(&Db) -> Taken) {
    let backing = Arc::new(FailingBacking::new(64 << 20));
    let options = Options::new().memory_bytes(32 << 20).memtable_bytes(64 << 10).durability(Durability::None);
    let db = Db::create_on(Arc::clone(&backing), options.clone()).expect("a store");
    let mut batch = WriteBatch::new();
    for number in 0..VALUES {
        batch.put(&db, &number.to_be_bytes(), &[7; VALUE_BYTES]).expect("a key");
    }
    backing.let_through(0);
    let taken = std::thread::scope(|scope| {
        let writer = scope.spawn(|| db.write(&batch));
        while !db.default_keyspace().open().unwrap().home.log.is_behind() {
            std::thread::yield_now();
        }
        let taken = take(&db);
        backing.let_through(u64::MAX);
        writer.join().expect("no panic").expect("a batch that has begun finds space");
        taken
    });
    db.sync().expect("the log goes on");
    match db.put(b"one more", &[1; 1000]) {
        Ok(()) | Err(Error::Full { .. }) => {}
        Err(error) => panic!("{error}"),
    }
    drop(taken);
    db.put(b"one more", &[1; 1000]).expect("there is space again");
    db.close().expect("closed");
    let db = Db::open_on(backing, options).expect("a store");
    for number in 0..VALUES {
        let value = db.get(&number.to_be_bytes()).expect("read");
        assert!(value.is_some_and(|value| value == [7; VALUE_BYTES]), "value {number}");
    }
}

#[test]
fn large_values_leave_a_batch_its_space() {
    batch_during(|db| {
        let keyspace = db.default_keyspace();
        let (mut stored, value) = (Vec::new(), vec![1; 2 << 20]);
        loop {
            let segment = &keyspace.open().unwrap().home.segment;
            match Stored::write(segment, keyspace.keyspace().number, b"large", value.len() as u64, &mut &value[..]) {
                Ok(one) => stored.push(one),
                Err(Error::Full { .. }) => break,
                Err(error) => panic!("{error}"),
            }
        }
        assert!(stored.len() > 2, "{} large values", stored.len());
        stored
    });
}

/// The blocks of an unfinished compaction.
struct Nodes {
    segment: Arc<Segment>,
    cursor: Cursor,
    runs: Vec<Extent>,
}

impl Drop for Nodes {
    fn drop(&mut self) {
        self.segment.allocator().leave(&mut self.cursor);
        self.segment.abandon(self.runs.drain(..).map(Into::into));
    }
}

#[test]
fn compactions_leave_a_batch_its_space() {
    batch_during(|db| {
        let handle = db.default_keyspace();
        let segment = Arc::clone(&handle.open().unwrap().home.segment);
        let mut nodes = Nodes { segment, cursor: Cursor::default(), runs: Vec::new() };
        loop {
            let Nodes { segment, cursor, runs } = &mut nodes;
            match segment.take_nodes(cursor, Purpose::Leaves(1), handle.keyspace().number, ALLOCATION_UNIT_BLOCKS) {
                Ok(run) => runs.push(run),
                Err(Error::Full { .. }) => break,
                Err(error) => panic!("{error}"),
            }
        }
        assert!(nodes.runs.len() > 2, "{} units", nodes.runs.len());
        nodes
    });
}

#[test]
fn nothing_comes_between_the_records_of_a_batch_that_waits() {
    let backing = Arc::new(FailingBacking::new(64 << 20));
    let options = Options::new().memory_bytes(32 << 20).durability(Durability::None);
    let db = Db::create_on(Arc::clone(&backing), options).expect("a store");
    let other = db.keyspace_or_create("other").expect("a keyspace");
    let mut batch = WriteBatch::new();
    for number in 0..VALUES {
        batch.put(&db, &number.to_be_bytes(), &[7; VALUE_BYTES]).expect("a key");
    }
    backing.let_through(0);
    std::thread::scope(|scope| {
        scope.spawn(|| db.write(&batch).expect("space"));
        let log = &db.default_keyspace().open().unwrap().home.log;
        while !log.is_behind() {
            std::thread::yield_now();
        }
        scope.spawn(|| other.put(b"key", b"value").expect("space"));
        scope.spawn(|| other.put(b"longer", &[1; VALUE_BYTES]).expect("space"));
        // They have arrived by then; otherwise the test sees no fault.
        std::thread::sleep(std::time::Duration::from_millis(50));
        backing.let_through(u64::MAX);
    });
    let number_of = |handle: &KeyspaceHandle, key: &[u8]| {
        let (log, keyspace) = (&handle.open().unwrap().home.log, handle.keyspace());
        let pointer = keyspace.find(&keyspace.version(), NEWEST, key).expect("read").expect("there");
        log.read(pointer, |record| record.sequence).expect("read")
    };
    let first = number_of(db.default_keyspace(), &0_u32.to_be_bytes());
    let last = number_of(db.default_keyspace(), &(VALUES - 1).to_be_bytes());
    for key in [&b"key"[..], b"longer"] {
        let number = number_of(&other, key);
        assert!(!(first..last).contains(&number), "{number} between {first} and {last}");
    }
}
