//! A forked child has no access to its parent's store: every call is refused, every drop does nothing, and the child waits for none of the
//! locks that threads of the parent held at the fork.

use std::collections::BTreeSet;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::support::child::{Ended, fork, isolated};
use vmio_kv::{
    Db, Durability, Error, Keys, KeyspaceHandle, KeyspaceSnapshot, Options, Readers, Savepoint, Scan, SegmentHandle,
    Snapshot, Transaction, ValueReader, WriteBatch, check,
};

const LARGE: usize = 3 << 20;
const FORKS: usize = 12;

fn options() -> Options {
    // Everything is compacted all the time.
    let options = crate::support::options().memory_bytes(32 << 20).memtable_bytes(6 << 10).growth_factor(2);
    options.volume_bytes(256 << 20).max_volume_bytes(1 << 30).durability(Durability::None)
}

fn key(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}

/// Calls of a child that are refused, by name.
#[derive(Default)]
struct Refused(BTreeSet<&'static str>);

impl Refused {
    fn call<T>(&mut self, name: &'static str, result: vmio_kv::Result<T>) {
        self.0.insert(name);
        match result {
            Err(Error::Forked) => {}
            Err(error) => panic!("{name}: {error}"),
            Ok(_) => panic!("{name}: it worked"),
        }
    }

    /// One error, and then nothing.
    fn goes_through<T>(&mut self, name: &'static str, mut items: impl DoubleEndedIterator<Item = vmio_kv::Result<T>>) {
        self.call(name, items.next().unwrap());
        assert!(items.next().is_none() && items.next_back().is_none(), "{name}");
    }
}

/// One of each kind of handle of a store.
struct Everything {
    db: Db,
    other: KeyspaceHandle,
    segment: SegmentHandle,
    snapshot: Snapshot,
    of_keyspace: KeyspaceSnapshot,
    scan: Scan,
    keys: Keys,
    readers: Readers,
    reader: ValueReader,
    batch: WriteBatch,
    transaction: Transaction,
    savepoint: Savepoint,
}

impl Everything {
    fn of(db: &Db) -> Self {
        let other = db.keyspace_or_create("other").unwrap();
        (0..50).for_each(|number| other.put(&key(number), &[1; 100]).unwrap());
        other.put(b"large", &vec![7; LARGE]).unwrap();
        let (mut scan, mut readers) = (other.scan(..), other.scan(..).readers());
        assert!(scan.next().unwrap().is_ok() && scan.next_back().unwrap().is_ok() && readers.next().unwrap().is_ok());
        let mut reader = other.reader(b"large").unwrap().unwrap();
        reader.read_exact(&mut [0; 10]).unwrap();
        let mut batch = WriteBatch::new();
        batch.put(&other, b"batched", b"x").unwrap();
        let mut transaction = db.transaction();
        transaction.put(&other, b"child", b"x").unwrap();
        assert!(transaction.scan(&other, ..).unwrap().next().unwrap().is_ok());
        Everything {
            savepoint: transaction.savepoint().unwrap(),
            transaction,
            segment: db.segments().unwrap().pop().unwrap(),
            snapshot: db.snapshot(),
            of_keyspace: other.snapshot(),
            keys: other.scan(..).keys(),
            scan,
            readers,
            reader,
            batch,
            other,
            db: db.clone(),
        }
    }

    /// Calls everything, and drops everything.
    fn ask_and_drop(self) -> Refused {
        let mut refused = Refused::default();
        let Everything {
            db, other, segment, snapshot, of_keyspace, scan, keys, readers, mut reader, mut batch, ..
        } = self;
        let (mut transaction, savepoint) = (self.transaction, self.savepoint);
        // Values that do not change are known.
        assert_eq!((other.name(), other.segment(), of_keyspace.name(), segment.number()), ("other", 0, "other", 1));
        assert!(db.recovery().records == 0 && db.default_keyspace().name() == "default");
        assert!(batch.len() == 1 && !batch.is_empty() && reader.len() == LARGE as u64);
        let _ = format!("{db:?} {other:?} {segment:?} {snapshot:?} {of_keyspace:?} {reader:?} {transaction:?}");
        db_is_refused(&mut refused, &db, &batch);
        keyspace_is_refused(&mut refused, &db);
        keyspace_is_refused(&mut refused, &other);
        refused.call("keyspace_or_create", segment.keyspace_or_create("of the child"));
        refused.call("keyspace_names", segment.keyspace_names());
        refused.call("stats", segment.stats());
        refused.call("keyspace", snapshot.keyspace("other"));
        refused.call("keyspace_names", snapshot.keyspace_names().map(|_| ()));
        for snapshot in [&*snapshot, &of_keyspace, &*db.snapshot(), &other.snapshot(), &*snapshot.clone()] {
            snapshot_is_refused(&mut refused, snapshot);
        }
        refused.goes_through("scan", scan);
        refused.goes_through("keys", keys);
        refused.goes_through("readers", readers);
        let failed = reader.read(&mut [0; 10]).unwrap_err();
        refused.call::<()>("reader", Err(failed.downcast::<Error>().unwrap()));
        reader.seek(SeekFrom::Start(5)).unwrap();
        refused.call("put", batch.put(&other, b"a", b"b"));
        refused.call("delete", batch.delete(&other, b"a"));
        refused.call("put", WriteBatch::new().put(&other, b"a", b"b"));
        refused.call("savepoint", transaction.savepoint());
        refused.call("rollback_to", transaction.rollback_to(savepoint));
        transaction_is_refused(&mut refused, transaction, &other);
        transaction_is_refused(&mut refused, db.transaction(), &other);
        refused.0.insert("transaction");
        refused.call("commit", db.transaction().commit());
        refused.call("transact", db.transact(|transaction| transaction.put(&other, b"child", b"x")));
        refused.call("transact", db.transact(|_| vmio_kv::Result::Ok(())));
        refused.call("close", db.clone().close());
        refused.call("close", db.close());
        refused
    }
}

fn db_is_refused(refused: &mut Refused, db: &Db, batch: &WriteBatch) {
    refused.call("keyspace", db.keyspace("other"));
    refused.call("keyspace_or_create", db.keyspace_or_create("of the child"));
    refused.call("drop_keyspace", db.drop_keyspace("other"));
    refused.call("create_segment", db.create_segment());
    refused.call("segments", db.segments());
    refused.call("segment", db.segment(0));
    refused.call("keyspace_names", db.keyspace_names());
    refused.call("write", db.write(batch));
    refused.call("write", db.write(&WriteBatch::new()));
    refused.call("write_with", db.write_with(batch, Durability::Sync));
    refused.call("keyspace", db.snapshot().keyspace("other"));
    refused.call("sync", db.sync());
    refused.call("flush", db.flush());
    refused.call("collect_garbage", db.collect_garbage());
    refused.call("forget_former_owners", db.forget_former_owners());
    refused.call("stats", db.stats());
    refused.call("grow", db.grow(512 << 20));
    refused.call("backup", db.backup(io::sink(), |_| {}));
    refused.call("checkpoint", db.checkpoint("/proc/no such file"));
}

fn transaction_is_refused(refused: &mut Refused, mut transaction: Transaction, keyspace: &KeyspaceHandle) {
    refused.call("get", transaction.get(keyspace, &key(1)));
    refused.call("contains", transaction.contains(keyspace, &key(1)));
    refused.call("scan", transaction.scan(keyspace, ..).map(|_| ()));
    refused.call("put", transaction.put(keyspace, b"child", b"x"));
    refused.call("delete", transaction.delete(keyspace, b"child"));
    refused.call("commit_with", transaction.commit_with(Durability::Sync));
}

fn keyspace_is_refused(refused: &mut Refused, keyspace: &KeyspaceHandle) {
    let large = vec![1; LARGE];
    refused.call("put", keyspace.put(b"child", b"x"));
    refused.call("put", keyspace.put(b"child", &large));
    refused.call("put_with", keyspace.put_with(b"child", b"x", Durability::Sync));
    refused.call("put_stream", keyspace.put_stream(b"child", LARGE as u64, &large[..]));
    refused.call("put_stream_with", keyspace.put_stream_with(b"child", 5, &large[..], Durability::Sync));
    refused.call("compare_and_set", keyspace.compare_and_set(b"child", None, Some(b"x")));
    refused.call("compare_and_set_with", keyspace.compare_and_set_with(b"child", None, None, Durability::Sync));
    refused.call("delete", keyspace.delete(b"child"));
    refused.call("delete_with", keyspace.delete_with(b"child", Durability::Sync));
    refused.call("get", keyspace.get(&key(1)));
    refused.call("get_ref", keyspace.get_ref(&key(1), |_| ()));
    refused.call("get_range", keyspace.get_range(&key(1), ..));
    refused.call("multi_get", keyspace.multi_get(&[key(1)]));
    refused.call("contains", keyspace.contains(&key(1)));
    refused.call("reader", keyspace.reader(b"large"));
    refused.goes_through("scan", keyspace.scan(..));
    refused.goes_through("prefix", keyspace.prefix(b"a"));
    refused.goes_through("readers", keyspace.scan(..).readers());
    let (mut scan, mut keys) = (keyspace.scan(..), keyspace.clone().scan(..).keys());
    scan.seek(b"a");
    refused.goes_through("seek", scan);
    keys.seek_back(b"a");
    refused.goes_through("seek_back", keys);
    refused.call("first", keyspace.first());
    refused.call("last", keyspace.last());
    refused.call("pop_first", keyspace.pop_first());
    refused.call("pop_last", keyspace.pop_last());
    refused.call("clear", keyspace.clear());
    snapshot_is_refused(refused, &keyspace.snapshot());
    refused.0.insert("snapshot");
}

fn snapshot_is_refused(refused: &mut Refused, snapshot: &KeyspaceSnapshot) {
    refused.call("get", snapshot.get(&key(1)));
    refused.call("get_ref", snapshot.get_ref(&key(1), |_| ()));
    refused.call("get_range", snapshot.get_range(&key(1), ..));
    refused.call("multi_get", snapshot.multi_get(&[key(1)]));
    refused.call("contains", snapshot.contains(&key(1)));
    refused.call("reader", snapshot.reader(b"large"));
    refused.goes_through("scan", snapshot.scan(..));
    refused.goes_through("prefix", snapshot.prefix(b"a"));
}

/// Public methods of a store's handles.
fn public_methods() -> BTreeSet<&'static str> {
    let sources = [
        include_str!("../src/db.rs"),
        include_str!("../src/db/backup.rs"),
        include_str!("../src/db/checkpoint.rs"),
        include_str!("../src/db/compare_and_set.rs"),
        include_str!("../src/db/ends.rs"),
        include_str!("../src/db/growth.rs"),
        include_str!("../src/db/large_values.rs"),
        include_str!("../src/db/keyspace_handle.rs"),
        include_str!("../src/db/removal.rs"),
        include_str!("../src/db/scan.rs"),
        include_str!("../src/db/segment_handle.rs"),
        include_str!("../src/db/snapshot.rs"),
        include_str!("../src/db/transaction.rs"),
        include_str!("../src/db/transaction/attempts.rs"),
        include_str!("../src/db/transaction/scan.rs"),
        include_str!("../src/db/value_reader.rs"),
        include_str!("../src/db/write_batch.rs"),
    ];
    let lines = sources.into_iter().flat_map(str::lines);
    let names = lines.filter_map(|line| line.strip_prefix("    pub fn ")?.split(['(', '<']).next());
    // Constructors, and methods that need no access to the store.
    let others =
        ["create", "create_on", "open", "open_on", "open_or_create", "new", "name", "number", "len", "is_empty"];
    let known: BTreeSet<&str> = others.into_iter().chain(["recovery", "default_keyspace"]).collect();
    // A handle knows its segment's number; finding a segment needs the store.
    names.filter(|name| !known.contains(name)).collect()
}

fn write_until(db: &Db, writer: u64, is_over: &AtomicBool, written: &AtomicU64) {
    let other = db.keyspace_or_create("busy").unwrap();
    for number in 0.. {
        if is_over.load(Ordering::Relaxed) {
            return;
        }
        let key = key(number % 500 + 1000 * writer);
        match number % 100 {
            0 => db.put(&key, &vec![9; LARGE]).unwrap(),
            1 => db.put_with(&key, b"durable", Durability::Sync).unwrap(),
            2 => assert!(db.snapshot().scan(..).take(30).all(|found| found.is_ok())),
            3 => drop(db.stats().unwrap()),
            _ => other.put(&key, &number.to_le_bytes()).unwrap(),
        }
        written.fetch_add(1, Ordering::Relaxed);
    }
}

fn is_sound(path: &Path) {
    let report = check(path, &options(), |_| {}).unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
}

#[test]
fn every_call_of_a_child_is_refused_and_every_drop_is_quiet() {
    isolated("fork::every_call_of_a_child_is_refused_and_every_drop_is_quiet", || {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store");
        let db = Db::create(&path, options()).unwrap();
        db.create_segment().unwrap();
        let (is_over, written) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for writer in 0..3 {
                let (db, is_over, written) = (db.clone(), &is_over, &written);
                scope.spawn(move || write_until(&db, writer, is_over, written));
            }
            for round in 0..FORKS {
                let before = written.load(Ordering::Relaxed);
                while written.load(Ordering::Relaxed) < before + 20 {
                    std::thread::yield_now();
                }
                let mut all = Some(Everything::of(&db));
                let ended = fork(|| {
                    let refused = all.take().unwrap().ask_and_drop();
                    let methods = public_methods();
                    let missing: Vec<_> = methods.difference(&refused.0).collect();
                    assert!(missing.is_empty(), "no call of {missing:?}");
                    0
                });
                assert_eq!(ended, Ended::Exit(0), "round {round}");
            }
            // The child may have its own store.
            let own = folder.path().join("of the child");
            let ended = fork(|| {
                let db = Db::create(&own, options()).unwrap();
                db.put(b"key", b"value").unwrap();
                assert_eq!(db.get(b"key").unwrap().as_deref(), Some(&b"value"[..]));
                assert!(Db::open(&path, options()).is_err(), "the parent has it");
                db.close().unwrap();
                0
            });
            assert_eq!(ended, Ended::Exit(0));
            is_sound(&own);
            is_over.store(true, Ordering::Relaxed);
        });
        assert!(!db.contains(b"child").unwrap());
        db.close().unwrap();
        is_sound(&path);
        let db = Db::open(&path, options()).unwrap();
        assert!(!db.contains(b"child").unwrap() && !db.keyspace("other").unwrap().contains(b"child").unwrap());
        assert_eq!(db.keyspace_names().unwrap(), ["busy", "default", "other"]);
    })
    .succeeds();
}

/// Returns zeros, and forks before some of them: the child ends with its first bytes.
struct ForkingSource<'child> {
    left: usize,
    is_child: &'child AtomicBool,
    child: &'child AtomicU64,
}

impl Read for ForkingSource<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.left = self.left.saturating_sub(1);
        if self.left == 0 && self.child.load(Ordering::Relaxed) == 0 {
            // SAFETY: the child makes few calls, and ends.
            match unsafe { libc::fork() } {
                0 => {
                    self.is_child.store(true, Ordering::Relaxed);
                    // SAFETY: it has no preconditions.
                    unsafe { libc::alarm(20) };
                }
                child => self.child.store(child as u64, Ordering::Relaxed),
            }
        }
        buffer.fill(0);
        Ok(buffer.len())
    }
}

/// A child that is forked during a call gets an error from that call, and has written nothing.
#[test]
fn a_child_forked_during_a_call_is_refused() {
    isolated("fork::a_child_forked_during_a_call_is_refused", || {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store");
        let db = Db::create(&path, options()).unwrap();
        for (bytes, before) in [(5, 1), (LARGE, 1), (LARGE, 3)] {
            let (is_child, child) = (AtomicBool::new(false), AtomicU64::new(0));
            let source = ForkingSource { left: before, is_child: &is_child, child: &child };
            let put = db.put_stream(b"streamed", bytes as u64, source);
            if is_child.load(Ordering::Relaxed) {
                // SAFETY: ends the child at once.
                unsafe { libc::_exit(if matches!(put, Err(Error::Forked)) { 0 } else { 1 }) };
            }
            put.unwrap();
            let mut status = 0;
            // SAFETY: the status is ours to write.
            unsafe { libc::waitpid(child.load(Ordering::Relaxed) as i32, &raw mut status, 0) };
            assert_eq!(status, 0, "{bytes} bytes, forked before read {before}");
            assert_eq!(db.get(b"streamed").unwrap().map(|value| value.len()), Some(bytes));
        }
        db.close().unwrap();
        is_sound(&path);
    })
    .succeeds();
}
