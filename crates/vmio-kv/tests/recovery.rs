//! The log that recovery reads after a crash is bounded, however slowly the memtables fill.

use std::time::{Duration, Instant};

use crate::support::assert_sound;
use crate::support::simulated_disk::SimulatedDisk;
use vmio_kv::{Db, Durability, Options};

const MIB: u64 = 1 << 20;
const LIMIT: u64 = 16 * MIB;
const CHUNK: u64 = 2 * MIB;

fn options() -> Options {
    crate::support::options().memory_bytes(64 << 20).durability(Durability::None).max_recovery_log_bytes(LIMIT)
}

/// Writes until the log is several times as long as the limit, cuts the power, and opens the store again.
fn crash_after(keyspaces: u64, value_bytes: usize, records: u64) {
    let disk = SimulatedDisk::new(7, &[128 * MIB]);
    let db = Db::create_on(disk.open(0), options()).unwrap();
    let handles: Vec<_> = (0..keyspaces).map(|number| db.keyspace_or_create(&format!("{number}")).unwrap()).collect();
    let value = vec![5; value_bytes];
    for number in 0..records {
        // The first one is rarely written to.
        let keyspace = if number % 40 == 0 { 0 } else { number % keyspaces };
        handles[keyspace as usize].put(&number.to_be_bytes(), &value).unwrap();
    }
    db.sync().unwrap();
    assert!(db.stats().unwrap().log_bytes > 4 * LIMIT);
    let started = Instant::now();
    while db.stats().unwrap().recovery_log_bytes > LIMIT {
        assert!(
            started.elapsed() < Duration::from_secs(240),
            "{} bytes would be read",
            db.stats().unwrap().recovery_log_bytes
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    disk.cut_power_after(0);
    drop((handles, db));
    let disk = disk.after_power_cut();
    assert_sound(disk.open(0), &options(), "after the crash");
    let db = Db::open_on(disk.open(0), options()).unwrap();
    let recovery = db.recovery();
    assert!(recovery.log_bytes <= LIMIT + CHUNK, "{recovery:?}");
    let entries = db.stats().unwrap().level_entries;
    assert!(entries > 0 && recovery.records + entries >= records, "{recovery:?}, {entries} entries");
    for number in (0..records).step_by(11) {
        let keyspace = if number % 40 == 0 { 0 } else { number % keyspaces };
        let keyspace = db.keyspace(&format!("{keyspace}")).unwrap();
        assert_eq!(keyspace.get(&number.to_be_bytes()).unwrap().as_ref(), Some(&value), "{number}");
    }
}

#[test]
fn a_crash_among_small_values_leaves_no_more_to_read_than_the_limit() {
    crash_after(1, 900, 80_000);
}

#[test]
fn a_crash_among_large_values_leaves_no_more_to_read_than_the_limit() {
    crash_after(1, 250_000, 290);
}

#[test]
fn a_rarely_written_keyspace_does_not_hold_the_others_log() {
    crash_after(5, 30_000, 2400);
}

/// The power fails at any time of an opening that has to flush because it has less memory than the writer had.
#[test]
fn an_opening_that_flushes_may_be_cut_short() {
    let large = crate::support::options().memory_bytes(1 << 30).durability(Durability::None);
    let small = crate::support::options().memory_bytes(32 << 20).durability(Durability::None).compaction_threads(1);
    let disk = SimulatedDisk::new(3, &[256 * MIB]);
    let db = Db::create_on(disk.open(0), large.clone()).unwrap();
    for number in 0..200_000_u64 {
        // Many keys twice, and some deleted.
        let mut key = [(number.wrapping_mul(7919) % 130_000).to_be_bytes(); 5].concat();
        key.extend_from_slice(b"behind what is alike");
        match number % 11 {
            3 => db.delete(&key).unwrap(),
            _ => db.put(&key, &number.to_le_bytes()).unwrap(),
        }
    }
    db.sync().unwrap();
    disk.cut_power_after(0);
    drop(db);
    let all = |db: &Db| db.scan(..).map(|pair| pair.unwrap()).collect::<Vec<_>>();
    let db = Db::open_on(disk.after_power_cut().open(0), large.clone().read_only(true)).unwrap();
    assert!(db.stats().unwrap().memtable_bytes > 10 * MIB);
    let expected = all(&db);
    drop(db);
    let mut was_cut = 0;
    for at in [3, 12, 25, 60, 200] {
        let cut = disk.after_power_cut();
        cut.cut_power_after(at);
        was_cut += usize::from(Db::open_on(cut.open(0), small.clone()).is_err());
        let cut = cut.after_power_cut();
        assert_sound(cut.open(0), &small, &format!("after a power cut at {at}"));
        let db = Db::open_on(cut.open(0), small.clone()).unwrap();
        assert!(db.stats().unwrap().memtable_bytes <= 8 * MIB);
        assert!(all(&db) == expected, "cut at {at}");
        drop(db);
        assert_sound(cut.open(0), &small, &format!("opened after a power cut at {at}"));
    }
    assert!(was_cut > 2, "{was_cut} openings were cut short");
}

#[test]
fn an_impossible_limit_is_refused() {
    let disk = SimulatedDisk::new(1, &[64 * MIB]);
    let error = Db::create_on(disk.open(0), options().max_recovery_log_bytes(CHUNK)).unwrap_err();
    assert!(error.to_string().contains("max_recovery_log_bytes"), "{error}");
    let error = Db::create_on(disk.open(0), options().durability(Durability::Periodic(Duration::ZERO))).unwrap_err();
    assert!(error.to_string().contains("durability"), "{error}");
}
