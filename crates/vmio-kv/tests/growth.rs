//! A volume grows while it is in use, by itself or on request, and a crash during growth loses nothing.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::simulated_disk::SimulatedDisk;
use crate::support::{Random, assert_sound};
use vmio::backing::{Access, FileBacking};
use vmio_kv::{Db, Durability, Error, Options};

const MIB: u64 = 1 << 20;
const UNIT: u64 = 2 * MIB;

fn options() -> Options {
    crate::support::options()
        .memory_bytes(32 << 20)
        .memtable_bytes(64 << 10)
        .growth_factor(3)
        .durability(Durability::None)
}

fn value(number: u64, bytes: usize) -> Vec<u8> {
    number.to_le_bytes().repeat(bytes / 8)
}

/// Puts until there is no space; returns the number of keys then.
fn fill(db: &Db, from: u64, bytes: usize) -> u64 {
    for number in from.. {
        match db.put(&number.to_be_bytes(), &value(number, bytes)) {
            Ok(()) => {}
            Err(Error::Full { .. }) => return number,
            Err(error) => panic!("{error}"),
        }
    }
    unreachable!()
}

fn assert_contents(db: &Db, keys: u64, bytes: usize) {
    let mut found = 0;
    for (number, entry) in db.scan(..).enumerate() {
        let (key, stored) = entry.unwrap();
        assert_eq!(key, (number as u64).to_be_bytes());
        assert_eq!(stored, value(number as u64, bytes));
        found += 1;
    }
    assert_eq!(found, keys);
}

#[test]
fn a_store_grows_as_requested_up_to_its_limit() {
    let disk = SimulatedDisk::new(3, &[40 * MIB]);
    let db = Db::create_on(disk.open(0), options().max_volume_bytes(96 * MIB)).unwrap();
    for wrong in [0, 40 * MIB, 40 * MIB + UNIT - 1, 96 * MIB + UNIT] {
        let error = db.grow(wrong).unwrap_err();
        assert!(
            matches!(error, Error::VolumeLength { least, most, .. } if (least, most) == (42 * MIB, 96 * MIB)),
            "{error}"
        );
    }
    db.grow(70 * MIB + 4096).unwrap();
    assert_eq!((db.stats().unwrap().volume_bytes, disk.contents(0).len() as u64), (70 * MIB, 70 * MIB));
}

#[test]
fn a_full_store_has_space_again_after_it_has_grown() {
    let disk = SimulatedDisk::new(3, &[40 * MIB]);
    let db = Db::create_on(disk.open(0), options()).unwrap();
    let first = fill(&db, 0, 1000);
    assert!(matches!(db.grow(64 * MIB), Err(Error::VolumeLength { .. })), "it was opened without leave to");
    db.close().unwrap();

    let db = Db::open_on(disk.open(0), options().max_volume_bytes(96 * MIB)).unwrap();
    // Unless a compaction has made it grow before.
    if let Err(error) = db.grow(70 * MIB) {
        assert!(matches!(error, Error::VolumeLength { least, .. } if least > 70 * MIB), "{error}");
    }
    assert!(db.stats().unwrap().volume_bytes >= 70 * MIB, "{:?}", db.stats().unwrap());
    // By itself, up to its limit.
    let second = fill(&db, first, 1000);
    assert_eq!((db.stats().unwrap().volume_bytes, disk.contents(0).len() as u64), (96 * MIB, 96 * MIB));
    assert!(second - first > 40_000, "{first} keys, then {second}");
    assert_contents(&db, second, 1000);
    db.close().unwrap();
    assert_sound(disk.open(0), &options(), "full again");
    let db = Db::open_on(disk.open(0), options()).unwrap();
    assert_contents(&db, second, 1000);
}

#[test]
fn a_file_grows_by_itself_up_to_its_limit() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let limits = options().volume_bytes(32 * MIB).max_volume_bytes(112 * MIB);
    let db = Db::create(&path, limits.clone()).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 32 * MIB);
    let keys = fill(&db, 0, 100_000);
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 112 * MIB);
    assert!(keys > 700, "{keys}");
    // A collection may still find some space, but not for ever, and the file is as long as it may be.
    db.delete(&0_u64.to_be_bytes()).unwrap();
    let more = (keys..keys + 40).map(|number| db.put(&number.to_be_bytes(), &value(number, 100_000)));
    let refused = more.filter_map(Result::err).next();
    assert!(matches!(refused, Some(Error::Full { .. })), "{refused:?}");
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 112 * MIB);
    drop(db);
    assert_sound(FileBacking::open(&path, Access::ReadOnly).unwrap(), &options(), "full");
    assert!(Db::open(&path, limits).unwrap().get(&1_u64.to_be_bytes()).unwrap().is_some());
}

#[test]
fn a_file_grows_for_a_value_larger_than_itself() {
    let folder = tempfile::tempdir().unwrap();
    let limits = options().volume_bytes(32 * MIB).max_volume_bytes(256 * MIB);
    let db = Db::create(folder.path().join("store"), limits).unwrap();
    let large = value(7, 100 << 20);
    db.put(b"large", &large).unwrap();
    assert!(db.get(b"large").unwrap().unwrap() == large);
    let full = db.put(b"too large", &value(8, 200 << 20)).unwrap_err();
    assert!(matches!(full, Error::Full { .. }), "{full}");
    assert!(db.get(b"large").unwrap().unwrap() == large);
}

/// A group has 25 GiB; unused parts of the file take no space.
#[test]
fn a_volume_grows_beyond_a_group() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let limits = options().volume_bytes(64 * MIB).max_volume_bytes(80 << 30);
    let db = Db::create(&path, limits.clone()).unwrap();
    db.put(b"before", b"1").unwrap();
    for gibibytes in [24, 60, 80] {
        db.grow(gibibytes << 30).unwrap();
        db.put(&[gibibytes as u8], b"2").unwrap();
        db.flush().unwrap();
    }
    drop(db);
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 80 << 30);
    let report = assert_sound(FileBacking::open(&path, Access::ReadOnly).unwrap(), &options(), "grown");
    assert_eq!(report.units, (80 << 30) / UNIT - 1);
    let db = Db::open(&path, limits).unwrap();
    assert_eq!(db.scan(..).map(Result::unwrap).count(), 4);
    assert!(matches!(db.grow(81 << 30), Err(Error::VolumeLength { .. })));
}

#[test]
fn readers_and_writers_go_on_while_it_grows() {
    let disk = SimulatedDisk::new(3, &[48 * MIB]);
    let db = Db::create_on(disk.open(0), options().max_volume_bytes(160 * MIB)).unwrap();
    let is_over = AtomicBool::new(false);
    let written = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for number in 0..60_000_u64 {
                db.put(&number.to_be_bytes(), &value(number, 1000)).unwrap();
            }
            is_over.store(true, Ordering::Relaxed);
        });
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                for number in (0..60_000_u64).step_by(97) {
                    let found = db.get(&number.to_be_bytes()).unwrap();
                    assert!(found.is_none_or(|found| found == value(number, 1000)));
                }
            }
        });
        for mibibytes in (50..120).step_by(10) {
            // It may have grown so far by itself.
            let _ = db.grow(mibibytes * MIB);
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        writer.join().is_ok()
    });
    assert!(written);
    assert_contents(&db, 60_000, 1000);
    db.close().unwrap();
    assert_sound(disk.open(0), &options(), "grown");
}

/// The power fails at each step of growth: the old contents are there, and the volume grows again.
#[test]
fn a_crash_during_growth_leaves_the_volume_as_it_was_or_longer() {
    let (mut cut_short, mut lengths) = (0, std::collections::BTreeSet::new());
    let is_enough = |cut_short: usize, lengths: usize| cut_short > 5 && lengths > 15;
    for seed in 0..60 {
        // Where a cut falls depends on the threads as well: more seeds until there were enough.
        if seed >= test_depth::pick(12, 60) && is_enough(cut_short, lengths.len()) {
            break;
        }
        let limits = options().max_volume_bytes(160 * MIB);
        let mut random = Random(seed);
        let mut disk = SimulatedDisk::new(seed, &[32 * MIB]);
        let db = Db::create_on(disk.open(0), limits.clone()).unwrap();
        for number in 0..50_u64 {
            db.put_with(&number.to_be_bytes(), &value(number, 1000), Durability::Sync).unwrap();
        }
        db.close().unwrap();
        let mut keys = 50_u64;
        for life in 0..3 {
            let when = format!("seed {seed}, life {life}");
            disk.cut_power_after(random.below(90));
            let mut reached = 0;
            if let Ok(db) = Db::open_on(disk.open(0), limits.clone()) {
                reached = db.stats().unwrap().volume_bytes;
                while db.grow(reached + UNIT * (1 + random.below(9))).is_ok() {
                    reached = db.stats().unwrap().volume_bytes;
                    // In new units, as far as they are needed.
                    if (0..1 + random.below(6)).any(|_| db.put(&[0xff; 9], &vec![7; 1_000_000]).is_err()) {
                        break;
                    }
                    if db.put_with(&keys.to_be_bytes(), &value(keys, 1000), Durability::Sync).is_err() {
                        break;
                    }
                    keys += 1;
                }
            }
            // If the volume is as long as it may be before that.
            if !disk.has_lost_power() {
                disk.cut_power_after(0);
            }
            disk = disk.after_power_cut();
            let report = assert_sound(disk.open(0), &options(), &when);
            cut_short += report.notes.iter().filter(|note| note.what.contains("growth was cut short")).count();
            let db = Db::open_on(disk.open(0), limits.clone()).unwrap_or_else(|error| panic!("{when}: {error}"));
            assert!(
                db.stats().unwrap().volume_bytes >= reached,
                "{when}: what had grown is {} long",
                db.stats().unwrap().volume_bytes
            );
            lengths.insert(db.stats().unwrap().volume_bytes);
            for number in 0..keys {
                assert_eq!(db.get(&number.to_be_bytes()).unwrap(), Some(value(number, 1000)), "{when}");
            }
            // Unacknowledged writes may be there.
            db.delete(&keys.to_be_bytes()).unwrap();
            db.close().unwrap();
            let report = assert_sound(disk.open(0), &options(), &format!("{when}, opened"));
            assert!(
                !report.notes.iter().any(|note| note.what.contains("opening goes on")),
                "{when}: {:?}",
                report.notes
            );
        }
    }
    println!("growth was cut short {cut_short} times, and {} lengths were seen", lengths.len());
    assert!(is_enough(cut_short, lengths.len()), "{cut_short} times, {} lengths", lengths.len());
}

#[test]
fn impossible_volumes_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    for bytes in [u64::MAX, 1 << 48, (315 * 12_852 + 1) * 2 * MIB] {
        let refused = Db::create(&path, options().volume_bytes(64 * MIB).max_volume_bytes(bytes)).unwrap_err();
        assert!(
            matches!(refused, Error::Option { option: "max_volume_bytes", value, .. } if value == bytes),
            "{refused}"
        );
        assert!(!path.exists());
    }
}
