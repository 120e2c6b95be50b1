//! Records that are scanned again and again are moved together in the log, and nothing else changes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::Random;
use crate::support::simulated_disk::SimulatedDisk;
use vmio::backing::{Backing, MemoryBacking};
use vmio_kv::{Db, Durability, Options};

/// Their records take three times the cache: so a full scan finds none of them there.
const KEYS: u64 = 60_000;
const VALUE_BYTES: usize = 800;
const VOLUME_BYTES: u64 = 512 << 20;

fn options() -> Options {
    crate::support::options().memory_bytes(32 << 20).durability(Durability::None)
}

fn key(number: u64) -> Vec<u8> {
    format!("{number:08}").into_bytes()
}

fn value(number: u64, round: u64) -> Vec<u8> {
    let mut value = vec![(number + round) as u8; VALUE_BYTES];
    value[..8].copy_from_slice(&number.to_le_bytes());
    value[8..16].copy_from_slice(&round.to_le_bytes());
    value
}

fn round(number: u64, value: &[u8]) -> u64 {
    let part = |at: usize| u64::from_le_bytes(value[at..at + 8].try_into().unwrap());
    assert_eq!((value.len(), part(0)), (VALUE_BYTES, number));
    assert!(value[16..].iter().all(|byte| *byte == (number + part(8)) as u8));
    part(8)
}

/// A store whose records are in another order than their keys.
fn shuffled(backing: impl Backing + 'static, options: Options) -> Db {
    let db = Db::create_on(backing, options).unwrap();
    // Without a common divisor.
    (0..KEYS).map(|place| place * 7919 % KEYS).for_each(|number| db.put(&key(number), &value(number, 0)).unwrap());
    db.flush().unwrap();
    db
}

/// Scans a whole store until that many bytes have been moved; `seen` gets each key and the round of its value.
fn scan_until_moved(db: &Db, bytes: u64, direction: Direction, seen: impl Fn(u64, u64)) {
    let began = Instant::now();
    while db.stats().unwrap().reorganized_bytes < bytes {
        assert!(began.elapsed() < Duration::from_secs(300), "{:?}", db.stats().unwrap());
        let mut scan = db.scan(..);
        while let Some(found) = if direction == Direction::Up { scan.next() } else { scan.next_back() } {
            let (key, value) = found.unwrap();
            let number = std::str::from_utf8(&key).unwrap().parse().unwrap();
            seen(number, round(number, &value));
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Up,
    Down,
}

#[test]
fn repeated_scans_touch_fewer_pages() {
    let backing = Arc::new(MemoryBacking::new(VOLUME_BYTES).unwrap());
    // The last page that this thread has touched, and the number of changes.
    let (last, turns) = (AtomicU64::new(0), Arc::new(AtomicU64::new(0)));
    let (its_turns, scanner) = (Arc::clone(&turns), thread::current().id());
    let observe = move |page, _| {
        if thread::current().id() == scanner && last.swap(page, Ordering::Relaxed) != page {
            its_turns.fetch_add(1, Ordering::Relaxed);
        }
    };
    let db = shuffled(Arc::clone(&backing), options().observe_pages(observe));
    let expected = |number: u64| (key(number), value(number, 0));
    let turns_of_a_scan = || {
        let before = turns.load(Ordering::Relaxed);
        assert!(db.scan(..).map(Result::unwrap).eq((0..KEYS).map(expected)));
        turns.load(Ordering::Relaxed) - before
    };
    let snapshot = db.snapshot();
    let before = turns_of_a_scan();
    scan_until_moved(&db, KEYS * VALUE_BYTES as u64 * 3 / 4, Direction::Up, |_, round| assert_eq!(round, 0));
    db.flush().unwrap();
    let after = turns_of_a_scan();
    println!("{before} times another page before, {after} after");
    assert!(after * 2 < before, "{before} times another page before, {after} after");
    assert!(snapshot.scan(..).rev().map(Result::unwrap).eq((0..KEYS).rev().map(expected)));
    drop(snapshot);
    db.close().unwrap();
    crate::support::assert_sound(Arc::clone(&backing), &options(), "after the scans");
    let db = Db::open_on(backing, options()).unwrap();
    assert!(db.scan(..).map(Result::unwrap).eq((0..KEYS).map(expected)));
}

#[test]
fn reorganization_can_be_switched_off() {
    let backing = Arc::new(MemoryBacking::new(VOLUME_BYTES).unwrap());
    let db = shuffled(Arc::clone(&backing), options().reorganize_scanned(false));
    (0..12).for_each(|_| assert_eq!(db.scan(..).count() as u64, KEYS));
    assert_eq!(db.stats().unwrap().reorganized_bytes, 0);
}

/// A put or a deletion between the scan and the move wins.
#[test]
fn a_move_does_not_overwrite_later_writes() {
    /// One in this many keys is written to.
    const WRITTEN: u64 = 4_000;
    let backing = Arc::new(MemoryBacking::new(VOLUME_BYTES).unwrap());
    let db = shuffled(Arc::clone(&backing), options().memtable_bytes(64 << 10).growth_factor(2));
    let (is_over, db_of_all) = (AtomicBool::new(false), &db);
    // One thread writes a key: so it knows the expected value.
    let write = |thread: u64| {
        let mut random = Random(thread + 1);
        let mut newest = vec![Some(0); WRITTEN as usize / 2];
        let mut round = 0;
        while !is_over.load(Ordering::Relaxed) {
            let place = random.below(newest.len() as u64);
            let number = 2 * place + thread;
            round += 1;
            newest[place as usize] = if random.below(4) == 0 {
                db_of_all.delete(&key(number)).unwrap();
                None
            } else {
                db_of_all.put(&key(number), &value(number, round)).unwrap();
                Some(round)
            };
            if round % 8 == 0 {
                thread::sleep(Duration::from_millis(1));
            }
        }
        newest
    };
    let newest = thread::scope(|scope| {
        let writers = [0, 1].map(|thread| scope.spawn(move || write(thread)));
        scan_until_moved(&db, KEYS * VALUE_BYTES as u64 / 2, Direction::Down, |_, _| ());
        is_over.store(true, Ordering::Relaxed);
        writers.map(|writer| writer.join().unwrap())
    });
    let check = |db: &Db| {
        for number in 0..WRITTEN {
            let found = db.get(&key(number)).unwrap().map(|value| round(number, &value));
            assert_eq!(found, newest[(number % 2) as usize][(number / 2) as usize], "key {number}");
        }
    };
    check(&db);
    db.collect_garbage().unwrap();
    check(&db);
    db.close().unwrap();
    crate::support::assert_sound(Arc::clone(&backing), &options(), "after the writes");
    check(&Db::open_on(backing, options()).unwrap());
}

/// If the power fails amid moves, each key has its acknowledged durable value, or a later one: no older value, though moves put older
/// values again.
#[test]
fn a_power_cut_amid_moves_brings_no_older_value_back() {
    /// One key in this many is written to, just behind the scan: its record is about to be moved.
    const WRITTEN: u64 = 16;
    let put = |db: &Db, number: u64, round, durability| db.put_with(&key(number), &value(number, round), durability);
    let options = || options().memtable_bytes(256 << 10).growth_factor(3);
    const ALL_BYTES: u64 = KEYS * VALUE_BYTES as u64;
    for seed in 0..test_depth::pick(2, 5) {
        let mut random = Random(seed);
        let disk = SimulatedDisk::new(seed, &[VOLUME_BYTES / 2]);
        let db = shuffled(disk.open(0), options());
        let mut newest = vec![0; (KEYS / WRITTEN) as usize];
        let (mut durable, mut next_round) = (newest.clone(), 1);
        // Amid the moves, which go on for some scans.
        let fails_at = ALL_BYTES / 8 + random.below(ALL_BYTES / 5);
        let mut has_power = true;
        'life: loop {
            for (place, found) in db.scan(..).enumerate() {
                if found.is_err() || disk.has_lost_power() {
                    break 'life;
                }
                if place % 64 != 0 {
                    continue;
                }
                if has_power && db.stats().unwrap().reorganized_bytes > fails_at {
                    disk.cut_power_after(random.below(400));
                    has_power = false;
                }
                let written = (place as u64 - random.below(64).min(place as u64)) / WRITTEN;
                newest[written as usize] = next_round;
                let durability = if next_round % 16 == 0 { Durability::Sync } else { Durability::None };
                match put(&db, written * WRITTEN, next_round, durability) {
                    Ok(()) if durability == Durability::Sync => durable.clone_from(&newest),
                    Ok(()) => {}
                    Err(_) => break 'life,
                }
                next_round += 1;
            }
        }
        assert!(!has_power, "seed {seed} ended before its power cut");
        assert!(db.stats().unwrap().reorganized_bytes > fails_at);
        drop(db);
        let disk = disk.after_power_cut();
        crate::support::assert_sound(disk.open(0), &options(), &format!("seed {seed}"));
        let db = Db::open_on(disk.open(0), options()).unwrap();
        for number in 0..KEYS {
            let found = round(number, &db.get(&key(number)).unwrap().unwrap());
            if number % WRITTEN > 0 {
                assert_eq!(found, 0, "key {number} in seed {seed}");
                continue;
            }
            let place = (number / WRITTEN) as usize;
            let may_be = durable[place]..=newest[place];
            assert!(may_be.contains(&found), "key {number} in seed {seed}: {found}, not {may_be:?}");
        }
    }
}
