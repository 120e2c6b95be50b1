//! A store as a whole: deep trees, units that change their purpose, many openings, several writers.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::support::child::{install_handler, isolated};
use crate::support::denial::deny;
use crate::support::simulated_disk::SimulatedDisk;
use rustix::process::{Resource, Rlimit, setrlimit};
use vmio::backing::MemoryBacking;
use vmio_kv::{Db, Durability, Engine, Error, Options, Stats, WriteBatch};

fn options(memtable_bytes: u64) -> Options {
    crate::support::options()
        .memory_bytes(32 << 20)
        .memtable_bytes(memtable_bytes)
        .growth_factor(4)
        .durability(Durability::None)
}

fn key(number: u64) -> Vec<u8> {
    format!("user{number:020}").into_bytes()
}

/// More than the cache holds, written and read by rings that a thread of the kernel polls.
#[test]
fn a_store_with_polled_submissions_has_what_was_put() {
    const KEYS: u64 = 24_000;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let polled = || options(256 << 10).volume_bytes(128 << 20).poll_submissions(true);
    let value = |number: u64| number.to_le_bytes().repeat(250);
    let db = match Db::create(&path, polled()) {
        Err(error) if error.to_string().contains("polls") || format!("{error:?}").contains("polls") => {
            return test_depth::skipped(error);
        }
        created => created.unwrap(),
    };
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path().join("comm"));
    assert!(tasks.into_iter().any(|name| std::fs::read_to_string(name).is_ok_and(|name| name.starts_with("iou-sqp-"))));
    (0..KEYS).for_each(|number| db.put(&key(number), &value(number)).unwrap());
    db.close().unwrap();
    let db = Db::open(&path, polled()).unwrap();
    for number in (0..KEYS).rev().step_by(3) {
        assert_eq!(db.get(&key(number)).unwrap(), Some(value(number)), "record {number}");
    }
}

/// Most leaves of a deep tree stay as they are when keys come in order.
#[test]
fn keys_in_order_are_found_in_deep_trees() {
    const KEYS: u64 = 120_000;
    let db = Db::create_on(MemoryBacking::new(256 << 20).unwrap(), options(256 << 10)).unwrap();
    for number in 0..KEYS {
        db.put(&key(number), &number.to_le_bytes()).unwrap();
    }
    // Then some in between, so that few leaves change.
    for number in (0..KEYS).step_by(9_973) {
        db.put(&key(number), b"changed").unwrap();
    }
    db.flush().unwrap();
    let changed = |number: u64| number.is_multiple_of(9_973);
    for number in 0..KEYS {
        let expected = if changed(number) { b"changed".to_vec() } else { number.to_le_bytes().to_vec() };
        assert_eq!(db.get(&key(number)).unwrap(), Some(expected), "{number}");
    }
    let mut count = 0;
    for (found, number) in db.scan(..).zip(0..) {
        assert_eq!(found.unwrap().0, key(number));
        count += 1;
    }
    assert_eq!(count, KEYS);
    assert!(db.stats().unwrap().level_entries >= KEYS);
}

/// Units of nodes become chunks of the log, and are read as such.
#[test]
fn units_that_held_nodes_hold_records_later() {
    const KEYS: u64 = 60_000;
    let db = Db::create_on(MemoryBacking::new(96 << 20).unwrap(), options(64 << 10)).unwrap();
    (0..KEYS).for_each(|number| db.put(&key(number), b"small").unwrap());
    (0..KEYS).for_each(|number| db.delete(&key(number)).unwrap());
    // Nothing is left of the trees; their blocks are free one commit later.
    for number in 0..3 {
        db.flush().unwrap();
        db.put(&key(KEYS + number), b"one").unwrap();
    }
    let mut records = 0;
    loop {
        match db.put(&key(2 * KEYS + records), &vec![records as u8; 20_000]) {
            Ok(()) => records += 1,
            Err(Error::Full { .. }) => break,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(records > 3_000);
    for number in 0..records {
        assert_eq!(db.get(&key(2 * KEYS + number)).unwrap(), Some(vec![number as u8; 20_000]), "{number} of {records}");
    }
}

#[test]
fn opening_takes_no_space() {
    let disk = Arc::new(MemoryBacking::new(64 << 20).unwrap());
    let db = Db::create_on(Arc::clone(&disk), options(1 << 20)).unwrap();
    db.put(b"key", b"value").unwrap();
    db.close().unwrap();
    let space = || {
        let db = Db::open_on(Arc::clone(&disk), options(1 << 20)).unwrap();
        assert_eq!(db.get(b"key").unwrap().as_deref(), Some(&b"value"[..]));
        let space = db.stats().unwrap().space_bytes;
        db.close().unwrap();
        space
    };
    let first = space();
    (0..40).for_each(|_| assert_eq!(space(), first));
}

/// A full store can be read, and says that it is full.
#[test]
fn a_full_store_opens_and_refuses_writes() {
    let disk = Arc::new(MemoryBacking::new(32 << 20).unwrap());
    let db = Db::create_on(Arc::clone(&disk), options(4 << 20)).unwrap();
    let mut written = 0;
    let refused = loop {
        match db.put(&key(written), &vec![1; 100_000]) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, Error::Full { .. }), "{refused}");
    db.sync().unwrap();
    drop(db);
    let db = Db::open_on(disk, options(4 << 20)).unwrap();
    for number in 0..written {
        assert_eq!(db.get(&key(number)).unwrap().map(|value| value.len()), Some(100_000), "{number} of {written}");
    }
    assert!(matches!(db.put(b"one more", &vec![1; 1 << 20]), Err(Error::Full { .. })));
}

/// Batches over two keyspaces, single writes to both, and compactions, all at once: no thread waits for ever, and no batch is seen or
/// recovered in part.
#[test]
fn writers_of_several_keyspaces_do_not_wait_for_each_other_for_ever() {
    let (done, is_done) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        let disk = Arc::new(MemoryBacking::new(256 << 20).unwrap());
        let db = Db::create_on(Arc::clone(&disk), options(8 << 10)).unwrap();
        let (left, right) = (db.keyspace_or_create("left").unwrap(), db.keyspace_or_create("right").unwrap());
        std::thread::scope(|scope| {
            for writer in 0..3_u64 {
                let (db, left, right) = (&db, &left, &right);
                scope.spawn(move || {
                    for number in 0..4_000_u64 {
                        let key = key(number % 500 + writer * 1_000);
                        let mut batch = WriteBatch::new();
                        batch.put(left, &key, &number.to_le_bytes()).unwrap();
                        batch.put(right, &key, &number.to_le_bytes()).unwrap();
                        db.write(&batch).unwrap();
                        left.put(&[b"l", &key[..]].concat(), b"alone").unwrap();
                        right.put(&[b"r", &key[..]].concat(), b"alone").unwrap();
                    }
                });
            }
        });
        drop((left, right));
        db.close().unwrap();
        let db = Db::open_on(disk, options(8 << 10)).unwrap();
        let (left, right) = (db.keyspace("left").unwrap(), db.keyspace("right").unwrap());
        for writer in 0..3 {
            for number in 0..500 {
                let key = key(number + writer * 1_000);
                let expected = (3_500 + number).to_le_bytes().to_vec();
                assert_eq!(left.get(&key).unwrap(), Some(expected.clone()));
                assert_eq!(right.get(&key).unwrap(), Some(expected));
            }
        }
        done.send(()).unwrap();
    });
    match is_done.recv_timeout(Duration::from_secs(240)) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("they wait for each other"),
        _ => thread.join().unwrap(),
    }
}

/// More than the cache holds, read together and in place, in one level after another.
#[test]
fn values_are_read_together_and_in_place() {
    const KEYS: u64 = 40_000;
    let disk = Arc::new(MemoryBacking::new(256 << 20).unwrap());
    let value = |number: u64| vec![number as u8; if number.is_multiple_of(1000) { 300_000 } else { 700 }];
    let db = Db::create_on(Arc::clone(&disk), options(512 << 10)).unwrap();
    (0..KEYS).for_each(|number| db.put(&key(number), &value(number)).unwrap());
    db.close().unwrap();
    let db = Db::open_on(disk, options(512 << 10)).unwrap();
    db.put(&key(3), b"new").unwrap();
    db.delete(&key(4)).unwrap();
    let expected = |number: u64| match number {
        3 => Some(b"new".to_vec()),
        4 => None,
        number => (number < KEYS).then(|| value(number)),
    };
    let numbers: Vec<u64> = (0..500).map(|number| number * 7_919 % (KEYS + 1_000)).chain([3, 4, 3, 1000]).collect();
    let keys: Vec<Vec<u8>> = numbers.iter().map(|number| key(*number)).collect();
    for (number, value) in numbers.iter().zip(db.multi_get(&keys).unwrap()) {
        assert_eq!(value, expected(*number), "{number}");
        let length = db.get_ref(&key(*number), |bytes| (bytes == value.clone().unwrap()).then_some(bytes.len()));
        assert_eq!(length.unwrap().flatten(), value.map(|value| value.len()));
    }
    assert!(matches!(db.multi_get(&[&b"key"[..], b""]), Err(Error::KeyLength { bytes: 0, .. })));
    assert_eq!(db.multi_get::<&[u8]>(&[]).unwrap(), Vec::<Option<Vec<u8>>>::new());
}

#[test]
fn a_handle_that_outlives_its_store_is_refused() {
    let db = Db::create_on(MemoryBacking::new(64 << 20).unwrap(), options(8 << 10)).unwrap();
    let keyspace = db.keyspace_or_create("keyspace").unwrap();
    drop(db);
    assert!(matches!(keyspace.put(b"key", b"value"), Err(Error::Stopped { .. })));
}

/// An unreadable record is where a crash has torn the log, unless it is known to have been durable.
#[test]
fn damage_to_durable_records_is_reported_and_not_taken_for_a_torn_end() {
    let (first, second) = ([0xa1; 64], [0xb2; 64]);
    // Nothing says that the newest record was durable, until the store is closed; for each of the others the record after its neighbour
    // does.
    for (value, is_closed, is_damage) in [(first, false, true), (second, false, false), (second, true, true)] {
        let mut disk = SimulatedDisk::new(1, &[48 << 20]);
        let db = Db::create_on(disk.open(0), options(1 << 20).durability(Durability::Sync)).unwrap();
        db.put(b"first", &first).unwrap();
        db.put(b"second", &second).unwrap();
        if is_closed {
            db.close().unwrap();
        } else {
            disk.cut_power_after(0);
            drop(db);
            disk = disk.after_power_cut();
        }
        let place = disk.contents(0).windows(64).position(|bytes| bytes == value).unwrap();
        disk.corrupt(0, place as u64, |byte| *byte ^= 1);
        match Db::open_on(disk.open(0), options(1 << 20)) {
            Err(Error::Damaged { offset, .. }) => assert!(is_damage && offset < place as u64, "{offset}, {place}"),
            Err(error) => panic!("{error}"),
            Ok(db) => {
                assert!(!is_damage);
                assert_eq!(db.get(b"first").unwrap().as_deref(), Some(&first[..]));
                assert_eq!(db.get(b"second").unwrap(), None);
            }
        }
    }
}

/// Memtables and the cache share the memory.
#[test]
fn the_cache_gets_the_memory_that_memtables_do_not_take() {
    const MIB: u64 = 1 << 20;
    let options = crate::support::options().memory_bytes(64 * MIB).durability(Durability::None);
    let db = Db::create_on(MemoryBacking::new(256 * MIB).unwrap(), options).unwrap();
    // The cache follows when it can.
    let wait_until = |what: &str, holds: &dyn Fn(Stats) -> bool| {
        let since = Instant::now();
        while !holds(db.stats().unwrap()) {
            assert!(since.elapsed() < Duration::from_secs(240), "{what}: {:?}", db.stats().unwrap());
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    // Besides the log's end and the cache's own buffers.
    let is_idle = |stats: Stats| stats.cache_bytes >= (64 - 8 - 8) * MIB;
    wait_until("nothing is in memory", &is_idle);
    let mut number = 0_u64;
    while db.stats().unwrap().memtable_bytes < 7 * MIB {
        for _ in 0..1000 {
            number += 1;
            db.put(&number.to_be_bytes(), b"value").unwrap();
        }
    }
    wait_until("a level is nearly full", &|stats| stats.cache_bytes <= (64 - 8) * MIB - stats.memtable_bytes);
    assert!(db.stats().unwrap().cache_bytes >= (64 - 8 - 16 - 8) * MIB);
    db.flush().unwrap();
    wait_until("it has been compacted", &is_idle);
    assert_eq!(db.get(&number.to_be_bytes()).unwrap().as_deref(), Some(&b"value"[..]));
}

/// However many keyspaces there are, together their memtables take a quarter, and one may take all of that.
#[test]
fn memtables_of_many_keyspaces_share_one_budget() {
    const MIB: u64 = 1 << 20;
    const KEYSPACES: u64 = 300;
    let options =
        crate::support::options().memory_bytes(64 * MIB).durability(Durability::None).max_volume_bytes(1 << 30);
    let db = Db::create_on(MemoryBacking::new(1 << 30).unwrap(), options).unwrap();
    let keyspaces: Vec<_> =
        (0..KEYSPACES).map(|number| db.keyspace_or_create(&format!("keyspace {number}")).unwrap()).collect();
    let mut most = 0;
    for number in 0..700_000_u64 {
        // Some have more than others.
        let keyspace = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        keyspaces[((keyspace % KEYSPACES) * (keyspace % 7) / 6) as usize].put(&number.to_be_bytes(), b"value").unwrap();
        if number % 1000 == 0 {
            let stats = db.stats().unwrap();
            most = most.max(stats.memtable_bytes);
            assert!(stats.memtable_bytes <= 16 * MIB, "{stats:?}");
        }
    }
    assert!(most > 4 * MIB, "{most} bytes at most: the memory is used");
    for number in (0..700_000_u64).step_by(997) {
        let keyspace = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        let keyspace = &keyspaces[((keyspace % KEYSPACES) * (keyspace % 7) / 6) as usize];
        assert_eq!(keyspace.get(&number.to_be_bytes()).unwrap().as_deref(), Some(&b"value"[..]));
    }
}

/// Each keyspace has its share: more keyspaces than the memory allows are refused.
#[test]
fn too_many_keyspaces_for_the_memory_are_an_error() {
    const MIB: u64 = 1 << 20;
    let disk = Arc::new(MemoryBacking::new(256 * MIB).unwrap());
    let options = |memory| crate::support::options().memory_bytes(memory).durability(Durability::None);
    let is_refused = |error: &Error| matches!(error, Error::Option { option: "memory_bytes", .. });
    let db = Db::create_on(Arc::clone(&disk), options(40 * MIB)).unwrap();
    for number in 1..320 {
        db.keyspace_or_create(&format!("keyspace {number}")).unwrap();
    }
    let error = db.keyspace_or_create("one more").unwrap_err();
    assert!(is_refused(&error), "{error}");
    db.close().unwrap();
    let error = Db::open_on(Arc::clone(&disk), options(32 * MIB)).unwrap_err();
    assert!(is_refused(&error), "{error}");
    Db::open_on(disk, options(40 * MIB)).unwrap();
}

/// A file that was created and holds no store would be in the way of the next attempt.
#[test]
fn a_failed_creation_leaves_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("volume");
    let refused = |options: Options| {
        let Err(error) = Db::open_or_create(&path, options) else { panic!("it cannot be opened so") };
        assert!(!path.exists(), "{error}");
        error
    };
    assert!(matches!(refused(options(64 << 10).memory_bytes(1)), Error::Option { option: "memory_bytes", .. }));
    let of_engine = |engine| refused(options(64 << 10).engine(engine));
    assert!(matches!(
        of_engine(Engine::Managed),
        Error::Io(vmio::Error::Unsupported { by: vmio::UnsupportedBy::ManagedEngine, .. })
    ));
    if !Path::new("/dev/vmio").exists() {
        assert!(matches!(of_engine(Engine::Kernel), Error::Io(vmio::Error::NoKernelModule { .. })));
    }
    // Where no file may be so long.
    let outcome = isolated("store::a_failed_creation_leaves_no_file", || {
        let most = Some(1 << 20);
        setrlimit(Resource::Fsize, Rlimit { current: most, maximum: most }).unwrap();
        install_handler(libc::SIGXFSZ, libc::SIG_IGN, 0);
        refused(options(64 << 10));
        // Where only the managed engine is available.
        deny(&[libc::SYS_userfaultfd]);
        assert!(matches!(
            of_engine(Engine::Auto),
            Error::Io(vmio::Error::Unsupported { by: vmio::UnsupportedBy::ManagedEngine, .. })
        ));
    });
    outcome.succeeds();
    Db::open_or_create(&path, options(64 << 10)).unwrap().close().unwrap();
}

/// The observer is told of each page that is read, cached pages too, and of those that are stored to.
#[test]
fn pages_are_observed() {
    let (loads, stores) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (of_loads, of_stores) = (Arc::clone(&loads), Arc::clone(&stores));
    // Merges go on beside the look-ups, in other threads.
    let reader = std::thread::current().id();
    let observed = options(256 << 10).observe_pages(move |page, is_store| {
        assert!(page < (64 << 20) / 4096, "{page}");
        if is_store || std::thread::current().id() == reader {
            (if is_store { &of_stores } else { &of_loads }).fetch_add(1, Ordering::Relaxed);
        }
    });
    let db = Db::create_on(MemoryBacking::new(64 << 20).unwrap(), observed).unwrap();
    (0..5000).for_each(|number| db.put(&key(number), b"a value").unwrap());
    db.flush().unwrap();
    assert!(stores.load(Ordering::Relaxed) >= 5000 * 24 / 4096, "the leaves");
    let mut before = loads.load(Ordering::Relaxed);
    for _ in 0..3 {
        db.get(&key(77)).unwrap();
        let now = loads.load(Ordering::Relaxed);
        assert!((2..=8).contains(&(now - before)), "a leaf, a record, and what leads there: {}", now - before);
        before = now;
    }
}
