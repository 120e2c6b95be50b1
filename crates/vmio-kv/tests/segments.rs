//! Several segments in one volume: each with its own log and space, with one set of names, one cache and one point in time.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::support::gate::{Gate, Gated};
use crate::support::simulated_disk::SimulatedDisk;
use crate::support::{Random, assert_sound};
use vmio_kv::{Db, Durability, Error, KeyspaceHandle, Options, SegmentHandle, WriteBatch};

const MIB: u64 = 1 << 20;

fn options() -> Options {
    crate::support::options()
        .memory_bytes(32 << 20)
        .memtable_bytes(64 << 10)
        .growth_factor(3)
        .compaction_threads(2)
        .durability(Durability::None)
        .max_volume_bytes(512 * MIB)
}

fn value(number: u64, bytes: usize) -> Vec<u8> {
    number.to_le_bytes().repeat(bytes / 8)
}

fn put_all(keyspace: &KeyspaceHandle, numbers: std::ops::Range<u64>, bytes: usize) {
    numbers.for_each(|number| keyspace.put(&number.to_be_bytes(), &value(number, bytes)).unwrap());
}

fn assert_contents(keyspace: &KeyspaceHandle, keys: u64, bytes: usize, when: &str) {
    let mut found = 0;
    for (number, entry) in keyspace.scan(..).enumerate() {
        let (key, stored) = entry.unwrap();
        assert_eq!(key, (number as u64).to_be_bytes(), "{when}: {keyspace:?}");
        assert_eq!(stored, value(number as u64, bytes), "{when}: {keyspace:?}");
        found += 1;
    }
    assert_eq!(found, keys, "{when}: {keyspace:?}");
}

fn numbers(db: &Db) -> Vec<u32> {
    db.segments().unwrap().iter().map(SegmentHandle::number).collect()
}

#[test]
fn a_second_segment_has_its_own_keyspaces_and_shares_names() {
    // The collector moves no records then, which an opening would read back.
    let options = || options().values_in_leaves(false);
    let disk = SimulatedDisk::new(3, &[64 * MIB]);
    let db = Db::create_on(disk.open(0), options()).unwrap();
    assert_eq!((numbers(&db), db.segment(0).unwrap().keyspace_names().unwrap()), (vec![0], vec!["default".to_owned()]));
    assert!(matches!(db.segment(1), Err(Error::NoSegment { number: 1, .. })));
    let segment = db.create_segment().unwrap();
    let hot = segment.keyspace_or_create("hot").unwrap();
    let cold = db.keyspace_or_create("cold").unwrap();
    assert_eq!((hot.segment(), cold.segment(), db.default_keyspace().segment()), (1, 0, 0));
    assert_eq!(db.keyspace("hot").unwrap().segment(), 1);
    assert_eq!(segment.keyspace_or_create("hot").unwrap().segment(), 1);
    let elsewhere = segment.keyspace_or_create("cold").unwrap_err();
    assert!(
        matches!(&elsewhere, Error::KeyspaceElsewhere { name, found: 0, wanted: 1 } if name == "cold"),
        "{elsewhere}"
    );
    assert_eq!(db.keyspace_or_create("hot").unwrap().segment(), 1, "it is where it is");
    for (keyspace, bytes) in [(&hot, 1000), (&cold, 300), (db.default_keyspace(), 200)] {
        put_all(keyspace, 0..5000, bytes);
    }
    let large = value(7, 3 << 20);
    hot.put(b"\xff", &large).unwrap();
    hot.delete(b"\xff").unwrap();

    let mut batch = WriteBatch::new();
    batch.put(&hot, b"a", b"1").unwrap();
    let error = batch.put(&cold, b"a", b"1").unwrap_err();
    let names = ("hot", "cold");
    assert!(
        matches!(&error, Error::BatchAcrossSegments { first, second } if (&**first, &**second) == names),
        "{error}"
    );
    assert_eq!(batch.len(), 1, "it was not added");
    batch.delete(&hot, b"a").unwrap();
    db.write(&batch).unwrap();
    // Nor does another store write it.
    let other = Db::create_on(SimulatedDisk::new(4, &[64 * MIB]).open(0), options()).unwrap();
    assert!(matches!(other.write(&batch), Err(Error::BatchAcrossSegments { .. })));

    let stats: Vec<_> = db.segments().unwrap().iter().map(|segment| segment.stats().unwrap()).collect();
    let sum = db.stats().unwrap();
    assert_eq!(stats.iter().map(|stats| stats.log_bytes).sum::<u64>(), sum.log_bytes);
    assert_eq!(stats.iter().map(|stats| stats.segment_bytes).sum::<u64>() + 2 * MIB, sum.volume_bytes);
    assert!(
        stats.iter().all(|stats| stats.log_bytes >= 4 * MIB && stats.space_bytes < stats.segment_bytes),
        "{stats:?}"
    );
    db.flush().unwrap();
    db.collect_garbage().unwrap();
    db.close().unwrap();
    let report = assert_sound(disk.open(0), &options(), "closed");
    assert_eq!((report.segments, report.keyspaces), (2, 3));

    let db = Db::open_on(disk.open(0), options()).unwrap();
    assert_eq!((numbers(&db), db.recovery().records), (vec![0, 1], 0));
    assert_eq!(db.segment(1).unwrap().keyspace_names().unwrap(), ["hot"]);
    assert_eq!(db.keyspace_names().unwrap(), ["cold", "default", "hot"]);
    for (name, bytes) in [("hot", 1000), ("cold", 300), ("default", 200)] {
        assert_contents(&db.keyspace(name).unwrap(), 5000, bytes, "opened");
    }
    assert_eq!(db.create_segment().err().map(|error| error.to_string().contains("memory_bytes")), Some(true));
}

/// No record in memory, and no durable record of either log, is lost when the other log had less.
#[test]
fn each_log_is_read_back_separately() {
    let disk = SimulatedDisk::new(5, &[64 * MIB]);
    let db = Db::create_on(disk.open(0), options().memtable_bytes(1 << 20)).unwrap();
    let other = db.create_segment().unwrap().keyspace_or_create("other").unwrap();
    put_all(&other, 0..300, 1000);
    put_all(&db, 0..200, 1000);
    other.put_with(&300_u64.to_be_bytes(), &value(300, 1000), Durability::Sync).unwrap();
    disk.cut_power_after(0);
    drop((other, db));
    let disk = disk.after_power_cut();
    assert_sound(disk.open(0), &options(), "dead");
    let db = Db::open_on(disk.open(0), options()).unwrap();
    assert_contents(&db.keyspace("other").unwrap(), 301, 1000, "opened");
    assert!(db.recovery().records >= 301, "{:?}", db.recovery());
    // Records of the other log that were not made durable may be there or not, but leave no hole.
    let found = db.scan(..).keys().count() as u64;
    assert_contents(&db, found, 1000, "opened");
}

/// A snapshot has everything that was written before something that it has, in all segments.
#[test]
fn a_snapshot_shows_all_segments_at_one_moment() {
    let disk = SimulatedDisk::new(5, &[64 * MIB]);
    let db = Db::create_on(disk.open(0), options().memtable_bytes(20 << 10)).unwrap();
    let second = db.create_segment().unwrap().keyspace_or_create("second").unwrap();
    let (is_over, looks) = (AtomicBool::new(false), AtomicUsize::new(0));
    let number = |found: Option<Vec<u8>>| found.map_or(0, |found| u64::from_le_bytes(found[..8].try_into().unwrap()));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // However rarely the other thread gets to run.
            for number in (1_u64..)
                .take_while(|number| *number < 40_000 || *number < 4_000_000 && looks.load(Ordering::Relaxed) <= 10)
            {
                db.put(b"count", &value(number, 64)).unwrap();
                second.put(b"count", &value(number, 64)).unwrap();
            }
            is_over.store(true, Ordering::Relaxed);
        });
        let mut seen = std::collections::BTreeSet::new();
        while !is_over.load(Ordering::Relaxed) {
            let snapshot = db.snapshot();
            let (first, second) = (number(snapshot.get(b"count").unwrap()), {
                number(snapshot.keyspace("second").unwrap().get(b"count").unwrap())
            });
            assert!(first == second || first == second + 1, "{first} and then {second}");
            seen.insert(first);
            looks.store(seen.len(), Ordering::Relaxed);
        }
        assert!(seen.len() > 10, "{seen:?}");
    });
}

#[test]
fn a_segment_needs_space_within_the_longest_volume() {
    let disk = SimulatedDisk::new(3, &[64 * MIB]);
    let db = Db::create_on(disk.open(0), options().max_volume_bytes(64 * MIB)).unwrap();
    let error = db.create_segment().unwrap_err();
    assert!(matches!(error, Error::Full { wanted, .. } if wanted >= 64 * MIB), "{error}");
    db.put(b"key", b"value").unwrap();
    db.close().unwrap();
    assert_eq!(disk.contents(0).len() as u64, 64 * MIB);

    // Each has 8 MiB of the memory for its log.
    let db = Db::open_on(disk.open(0), options().memory_bytes(64 << 20).max_volume_bytes(2 << 30)).unwrap();
    let cache_bytes = || db.stats().unwrap().cache_bytes;
    let began = std::time::Instant::now();
    let wait_until = |what: &str, is_so: &dyn Fn() -> bool| {
        while !is_so() {
            assert!(began.elapsed() < std::time::Duration::from_secs(60), "{what}: {} bytes", cache_bytes());
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    };
    // It begins with the memory besides full memtables, and gets what they do not take.
    wait_until("the cache has the rest", &|| cache_bytes() > 45 * MIB);
    let with_one = cache_bytes();
    for more in 1..5 {
        db.create_segment().unwrap();
        wait_until("it gives up some of it", &|| cache_bytes().abs_diff(with_one - more * 8 * MIB) <= MIB);
    }
    let error = db.create_segment().unwrap_err();
    assert!(matches!(error, Error::Option { option: "memory_bytes", value: 67_108_864, .. }), "{error}");
    db.close().unwrap();
    assert!(matches!(
        Db::open_on(disk.open(0), options().memory_bytes(32 << 20)),
        Err(Error::Option { option: "memory_bytes", .. })
    ));
    assert_eq!(Db::open_on(disk.open(0), options().memory_bytes(128 << 20)).unwrap().segments().unwrap().len(), 5);
}

/// Puts until there is no space; returns the number of keys then.
fn fill(keyspace: &KeyspaceHandle, from: u64, most: u64, bytes: usize) -> u64 {
    for number in from..from + most {
        match keyspace.put(&number.to_be_bytes(), &value(number, bytes)) {
            Ok(()) => {}
            Err(Error::Full { .. }) => return number,
            Err(error) => panic!("{error}"),
        }
    }
    from + most
}

/// Segments grow in turn, so that their groups alternate, until the whole volume is taken.
#[test]
fn segments_grow_separately_until_the_volume_is_full() {
    let disk = SimulatedDisk::new(9, &[40 * MIB]);
    let limits = || options().max_volume_bytes(400 * MIB);
    let db = Db::create_on(disk.open(0), limits()).unwrap();
    let other = db.create_segment().unwrap().keyspace_or_create("other").unwrap();
    let mut keys = [0; 2];
    let mut rounds = 0;
    loop {
        let before = keys;
        keys[0] = fill(&db, keys[0], 60, 300_000);
        keys[1] = fill(&other, keys[1], 60, 300_000);
        rounds += 1;
        if keys == before {
            break;
        }
    }
    assert_eq!(db.stats().unwrap().volume_bytes, 400 * MIB);
    assert!(rounds > 4 && keys.iter().all(|keys| *keys > 200), "{keys:?} after {rounds} rounds");
    let sizes: Vec<u64> =
        db.segments().unwrap().iter().map(|segment| segment.stats().unwrap().segment_bytes / MIB).collect();
    assert!(sizes.iter().sum::<u64>() >= 396 && sizes.iter().all(|size| *size > 100), "{sizes:?}");
    db.close().unwrap();
    drop(other);
    assert_sound(disk.open(0), &options(), "full");
    let db = Db::open_on(disk.open(0), options().max_volume_bytes(400 * MIB)).unwrap();
    let other = db.keyspace("other").unwrap();
    assert_contents(&db, keys[0], 300_000, "opened");
    assert_contents(&other, keys[1], 300_000, "opened");
    (0..keys[0]).for_each(|number| db.delete(&number.to_be_bytes()).unwrap());
    db.collect_garbage().unwrap();
    // Space that one segment frees does not go to the other; growth of the volume goes to the first one that needs it.
    assert!(fill(&other, keys[1], 1, 300_000) == keys[1]);
    db.close().unwrap();
    drop(other);
    let db = Db::open_on(disk.open(0), options().max_volume_bytes(440 * MIB)).unwrap();
    let other = db.keyspace("other").unwrap();
    let more = fill(&other, keys[1], 60, 300_000);
    assert!(
        more > keys[1] + 10 && db.segments().unwrap()[1].stats().unwrap().segment_bytes / MIB > sizes[1],
        "{more} after {}",
        keys[1]
    );
    put_all(&db, 0..100, 300_000);
    db.close().unwrap();
    drop(other);
    assert_sound(disk.open(0), &options(), "grown");
    let db = Db::open_on(disk.open(0), options()).unwrap();
    assert_contents(&db.keyspace("other").unwrap(), more, 300_000, "grown");
    assert_contents(&db, 100, 300_000, "grown");
}

/// The power fails at each step of creating a segment: the old contents are there, and the next creation succeeds.
#[test]
fn a_crash_while_a_segment_is_created_leaves_it_there_or_not() {
    let (mut with, mut without) = (0, 0);
    let step = test_depth::step(5, 1);
    // How many operations there are depends on the threads as well: from other ones on until there were enough.
    for first in 0..step.max(3) {
        crashes_while_a_segment_is_created((first..).step_by(step as usize), &mut with, &mut without);
        if with > 0 && with * step > 2 && without > 2 && without * step > 10 {
            break;
        }
    }
    println!("{with} crashes left the segment, {without} did not");
    assert!(with > 0 && with * step > 2 && without > 2 && without * step > 10, "{with} with, {without} without");
}

/// Until a creation is through. Counts the crashes that left the segment, and those that did not.
fn crashes_while_a_segment_is_created(after: impl Iterator<Item = u64>, with: &mut u64, without: &mut u64) {
    for operations in after {
        let when = format!("power fails after {operations} operations");
        let disk = SimulatedDisk::new(operations, &[40 * MIB]);
        let db = Db::create_on(disk.open(0), options()).unwrap();
        put_all(&db, 0..50, 1000);
        db.sync().unwrap();
        disk.cut_power_after(operations);
        let created = db.create_segment().and_then(|segment| {
            let keyspace = segment.keyspace_or_create("other")?;
            keyspace.put_with(b"key", b"value", Durability::Sync)
        });
        let is_whole = created.is_ok();
        drop(db);
        let disk = disk.after_power_cut();
        assert_sound(disk.open(0), &options(), &when);
        let db = Db::open_on(disk.open(0), options()).unwrap_or_else(|error| panic!("{when}: {error}"));
        assert_contents(&db, 50, 1000, &when);
        match db.segments().unwrap().len() {
            1 => *without += 1,
            2 if is_whole => {}
            2 => *with += 1,
            more => panic!("{when}: {more} segments"),
        }
        if is_whole {
            assert_eq!(db.keyspace("other").unwrap().get(b"key").unwrap().as_deref(), Some(&b"value"[..]), "{when}");
        }
        if db.segments().unwrap().len() == 1 {
            db.create_segment().unwrap_or_else(|error| panic!("{when}: {error}"));
        }
        put_all(&db.segment(1).unwrap().keyspace_or_create("other").unwrap(), 0..100, 40_000);
        put_all(&db, 50..1000, 40_000 / 8 * 8);
        db.close().unwrap();
        let report = assert_sound(disk.open(0), &options(), &format!("{when}, closed"));
        assert_eq!(report.segments, 2, "{when}");
        if is_whole {
            break;
        }
    }
}

/// An owner is stopped while it creates a segment, at one of its writes after the other (`VMIO_TEST_STEP=1` takes each). Another owner
/// takes the store over, and needs the space where the segment was to be. Late writes of the former owner hit none of it, and the former
/// owner owns neither segment.
#[test]
fn a_segment_that_is_created_late_hits_nothing_of_the_new_owner() {
    let step = test_depth::step(7, 3);
    // How many writes there are depends on the threads as well: from other ones on until there were enough.
    let is_enough = |stopped: &u64| stopped * step > 15 && *stopped > 1;
    let rounds = (0..step.max(3)).map(|first| creations_stopped((first..).step_by(step as usize)));
    let stopped = rounds.inspect(|stopped| println!("stopped at {stopped} writes")).find(is_enough);
    assert!(stopped.is_some(), "a creation has too few writes");
}

/// Until a creation is through. Returns how many were stopped.
fn creations_stopped(after: impl Iterator<Item = u64>) -> u64 {
    let mut stopped = 0;
    for stop_after in after {
        let when = format!("stopped after {stop_after}");
        let disk = SimulatedDisk::new(stop_after, &[32 * MIB]);
        let options = || options().fenced(true);
        Db::create_on(disk.open(0), options()).unwrap().close().unwrap();
        let gate = Gate::default();
        let old = Db::open_on(Gated { backing: disk.open(0), gate: gate.clone() }, options()).unwrap();
        put_all(&old, 0..100, 1000);
        old.flush().unwrap();
        let is_over = AtomicBool::new(false);
        gate.stop_after(stop_after);
        let is_done = std::thread::scope(|scope| {
            let creating = scope.spawn(|| {
                let created = old.create_segment();
                is_over.store(true, Ordering::SeqCst);
                created
            });
            if !gate.wait_until_stopped(|| is_over.load(Ordering::SeqCst)) {
                gate.open();
                creating.join().unwrap().unwrap();
                return true;
            }
            let new = Db::open_on(disk.open(0), options().take_over(true)).unwrap();
            let segments = new.segments().unwrap().len();
            let mut random = Random(stop_after);
            if random.below(2) == 0 {
                new.create_segment()
                    .map(drop)
                    .or_else(|error| if segments == 2 { Ok(()) } else { Err(error) })
                    .unwrap();
            }
            put_all(&new, 100..320, 150_000);
            if let Ok(second) = new.segment(1) {
                put_all(&second.keyspace_or_create("second").unwrap(), 0..40, 150_000);
            }
            gate.open();
            let late = creating.join().unwrap();
            // The owner may have been about to report success: then the segment is there.
            let is_fenced = matches!(late, Err(Error::Fenced { .. }));
            assert!(is_fenced || segments == 2, "{when}: {late:?}");
            let fenced = |done: Result<(), Error>| matches!(done, Err(Error::Fenced { .. }));
            assert!(fenced(old.put_with(b"late", b"1", Durability::Sync)), "{when}: two own the first segment");
            if let Ok(created) = late {
                assert!(fenced(created.keyspace_or_create("late").map(drop)), "{when}: two own the second segment");
            }
            new.flush().unwrap();
            new.close().unwrap();
            false
        });
        drop(old);
        if is_done {
            break;
        }
        stopped += 1;
        assert_sound(disk.open(0), &options(), &when);
        let db = Db::open_on(disk.open(0), options()).unwrap();
        for number in 100..320_u64 {
            assert_eq!(db.get(&number.to_be_bytes()).unwrap(), Some(value(number, 150_000)), "{when}");
        }
        if let Ok(second) = db.keyspace("second") {
            assert_contents(&second, 40, 150_000, &when);
        }
    }
    stopped
}
