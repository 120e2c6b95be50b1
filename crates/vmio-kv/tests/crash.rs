//! The power fails while a store works: after opening it again it holds what was acknowledged as durable, and of what came
//! later a part without holes, batches whole.
//!
//! Each seed is a history of its own; `VMIO_TEST_SEEDS=17..18` runs one again, `VMIO_TEST_SEEDS=0..5000` many.

#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeMap;

use support::simulated_disk::SimulatedDisk;
use support::{Random, assert_sound};
use vmio_kv::{Db, Durability, Error, Options, WriteBatch};

const VOLUME_BYTES: u64 = 52 << 20;
const KEYS: u64 = 400;
/// Lives of a store; each ends with a power cut.
const LIVES: u64 = 4;

/// A value is one byte, so many times.
type Model = BTreeMap<(u8, Vec<u8>), (u8, usize)>;

fn options() -> Options {
    Options::new()
        .memory_bytes(32 << 20)
        .memory_level_bytes(6 << 10)
        .growth_factor(3)
        .durability(Durability::None)
        .max_space_amplification(1.1)
}

fn key(number: u64) -> Vec<u8> {
    match number % 3 {
        0 => format!("{number}").into_bytes(),
        1 => format!("a front that many keys share, longer than an entry's window {number:04}").into_bytes(),
        _ => vec![b'k'; 1 + number as usize / 4],
    }
}

/// What a store holds, by region.
fn contents(db: &Db) -> Result<Model, Error> {
    let mut all = Model::new();
    for (index, name) in ["default", "other"].into_iter().enumerate() {
        let Ok(region) = db.region(name) else { continue };
        for found in region.scan(..) {
            let (key, value) = found?;
            let byte = value.first().copied().unwrap_or(0);
            assert!(value.iter().all(|other| *other == byte));
            all.insert((index as u8, key), (byte, value.len()));
        }
    }
    Ok(all)
}

/// A history: the states that the store went through, and which of them was acknowledged as durable.
struct History {
    states: Vec<Model>,
    durable: usize,
}

fn live(db: &Db, random: &mut Random, history: &mut History) -> Result<(), Error> {
    let other = db.region_or_create("other")?;
    for _ in 0..random.below(500) {
        let mut state = history.states.last().unwrap().clone();
        let mut batch = WriteBatch::new();
        let operations = if random.below(4) == 0 { 1 + random.below(30) } else { 1 };
        for _ in 0..operations {
            let (region, which) = if random.below(3) == 0 { (&other, 1) } else { (db.default_region(), 0) };
            let key = key(random.below(KEYS));
            if random.below(4) == 0 {
                batch.delete(region, &key)?;
                state.remove(&(which, key));
            } else {
                // Some of them fill chunks.
                let most = if random.below(4) == 0 { 60_000 } else { 300 };
                let (byte, bytes) = (random.below(256) as u8, random.below(most) as usize);
                batch.put(region, &key, &vec![byte; bytes])?;
                state.insert((which, key), (if bytes == 0 { 0 } else { byte }, bytes));
            }
        }
        let durability = if random.below(8) == 0 { Durability::Sync } else { Durability::None };
        // What fails may have been done all the same, but not for want of room.
        history.states.push(state);
        match db.write_with(&batch, durability) {
            Err(Error::Full { .. }) => {
                history.states.pop();
                continue;
            }
            done => done?,
        }
        if durability == Durability::Sync {
            history.durable = history.states.len() - 1;
        }
        if random.below(60) == 0 {
            db.flush()?;
            history.durable = history.states.len() - 1;
        }
        if random.below(25) == 0 {
            db.collect_garbage()?;
        }
    }
    Ok(())
}

/// How many records recovery has brought back, and spills there were: that the test tests something.
#[derive(Default)]
struct Seen {
    records: u64,
    entries: u64,
    states_lost: u64,
    chunks_collected: u64,
    bytes_moved: u64,
}

fn run(seed: u64, seen: &mut Seen) {
    let mut random = Random(seed);
    let mut disk = SimulatedDisk::new(seed, &[VOLUME_BYTES]);
    Db::create_on(disk.open(0), options()).unwrap().close().unwrap();
    let mut history = History { states: vec![Model::new()], durable: 0 };
    for round in 0..LIVES {
        let most = [30, 300, 1500][random.below(3) as usize];
        disk.die_after(random.below(most));
        match Db::open_on(disk.open(0), options()) {
            Ok(db) => {
                let _ = live(&db, &mut random, &mut history);
                let stats = db.stats();
                seen.entries += stats.level_entries;
                seen.chunks_collected += stats.collected_chunks;
                seen.bytes_moved += stats.moved_bytes;
                if random.below(3) == 0 {
                    let is_closed = db.close().is_ok();
                    if is_closed {
                        history.durable = history.states.len() - 1;
                    }
                }
            }
            Err(error) => assert!(disk.is_dead(), "seed {seed}, life {round}: {error}"),
        }
        disk = disk.after_power_cut();
        assert_sound(disk.open(0), &options(), &format!("seed {seed}, after life {round}"));
        let db = match Db::open_on(disk.open(0), options()) {
            Ok(db) => db,
            Err(error) => panic!("seed {seed}, after life {round}: {error}"),
        };
        seen.records += db.recovery().records;
        let found = contents(&db).unwrap_or_else(|error| panic!("seed {seed}, after life {round}: {error}"));
        let possible = &history.states[history.durable..];
        let place = possible.iter().rposition(|state| *state == found);
        let Some(place) = place else {
            panic!("seed {seed}, after life {round}: {} entries are no state since the acknowledged one", found.len());
        };
        seen.states_lost += (possible.len() - 1 - place) as u64;
        let entries: Vec<_> = found.iter().step_by(7).collect();
        for ((which, key), value) in entries {
            let region = db.region(if *which == 0 { "default" } else { "other" }).unwrap();
            let (byte, bytes) = *value;
            assert_eq!(region.get(key).unwrap(), Some(vec![byte; bytes]), "seed {seed}, after life {round}");
        }
        db.close().unwrap();
        assert_sound(disk.open(0), &options(), &format!("seed {seed}, closed after life {round}"));
        history = History { states: vec![found], durable: 0 };
    }
}

#[test]
fn what_was_acknowledged_survives_power_cuts() {
    let seeds = std::env::var("VMIO_TEST_SEEDS").unwrap_or_else(|_| "0..40".to_owned());
    let (first, end) = seeds.split_once("..").expect("VMIO_TEST_SEEDS is FIRST..END");
    let mut seen = Seen::default();
    for seed in first.parse().unwrap()..end.parse().unwrap() {
        run(seed, &mut seen);
    }
    println!(
        "{} records read back, {} entries on the device, {} states lost, {} chunks collected, {} bytes moved",
        seen.records, seen.entries, seen.states_lost, seen.chunks_collected, seen.bytes_moved
    );
    assert!(seen.records > 0 && seen.entries > 0 && seen.states_lost > 0);
    assert!(seen.chunks_collected > 0 && seen.bytes_moved > 0);
}

/// What a spill has taken is part of no commit but its own: of one that never came nothing stays taken.
#[test]
fn commits_beside_a_spill_leave_nothing_of_it_behind() {
    for seed in 0..12 {
        let disk = SimulatedDisk::new(seed, &[VOLUME_BYTES]);
        let db = Db::create_on(disk.open(0), options()).unwrap();
        disk.die_after(200 + 60 * seed);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0.. {
                    if db.put(&key(number * 7 % 3000), &[1; 100]).is_err() {
                        break;
                    }
                }
            });
            scope.spawn(|| (0..1000).find(|number| db.region_or_create(&format!("region {number}")).is_err()));
        });
        drop(db);
        let disk = disk.after_power_cut();
        assert_sound(disk.open(0), &options(), &format!("seed {seed}"));
        Db::open_on(disk.open(0), options()).unwrap().close().unwrap();
        assert_sound(disk.open(0), &options(), &format!("seed {seed}, opened"));
    }
}

/// What a failed flush has lost stays lost, though the next one succeeds: nothing behind it is acknowledged.
#[test]
fn nothing_is_acknowledged_after_a_flush_has_failed() {
    for seed in 0..20 {
        let disk = SimulatedDisk::new(seed, &[VOLUME_BYTES]);
        let db = Db::create_on(disk.open(0), options().durability(Durability::Sync)).unwrap();
        db.put(b"first", b"1").unwrap();
        disk.fail_flushes(1);
        db.put(b"second", &[2; 20_000]).unwrap_err();
        let third = db.put(b"third", b"3").is_ok();
        disk.die_after(0);
        drop(db);
        let db = Db::open_on(disk.after_power_cut().open(0), options()).unwrap();
        assert_eq!(db.get(b"first").unwrap().as_deref(), Some(&b"1"[..]), "seed {seed}");
        assert!(!third || db.get(b"third").unwrap().is_some(), "seed {seed}: it was acknowledged");
    }
}
