//! Concurrent transactions have results that they would have one after the other, in an order that their callers could have seen.
//!
//! Each value counts the writes to its key. So the history tells which transaction has read from, or written over, which other one: an edge
//! of a graph. Another edge leads from a transaction that had returned to each one that began later. A cycle disproves serializability.

use std::collections::{BTreeMap, HashMap};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::support::Random;
use crate::support::simulated_disk::SimulatedDisk;
use vmio_kv::{Db, Durability, Error, KeyspaceHandle, Options, Transaction};

const THREADS: u64 = 4;
const KEYS: u64 = 6;

fn options() -> Options {
    // Everything is flushed all the time.
    let options = crate::support::options().memory_bytes(32 << 20).memtable_bytes(6 << 10).growth_factor(2);
    options.max_volume_bytes(512 << 20).durability(Durability::None)
}

/// A store with two keyspaces, of two segments.
fn store(seed: u64) -> (Db, [KeyspaceHandle; 2]) {
    let db = Db::create_on(SimulatedDisk::new(seed, &[64 << 20]).open(0), options()).unwrap();
    let other = db.create_segment().unwrap().keyspace_or_create("other").unwrap();
    let first = db.keyspace_or_create("first").unwrap();
    (db, [first, other])
}

/// A key, by its keyspace and number.
type Key = (usize, u64);

/// A committed transaction.
#[derive(Default)]
struct Committed {
    begun: u64,
    returned: u64,
    /// How often each key had been written to.
    reads: BTreeMap<Key, u64>,
    /// How often each key has been written to with this write.
    writes: BTreeMap<Key, u64>,
}

fn bytes(key: u64) -> [u8; 8] {
    key.to_be_bytes()
}

fn count(value: &[u8]) -> u64 {
    u64::from_le_bytes(value.try_into().unwrap())
}

/// Reads some keys one by one and in ranges, and writes to some of these.
fn run(
    transaction: &mut Transaction,
    keyspaces: &[KeyspaceHandle; 2],
    random: &mut Random,
    committed: &mut Committed,
) -> vmio_kv::Result<()> {
    let home = random.below(2) as usize;
    for _ in 0..1 + random.below(4) {
        let place = random.below(2) as usize;
        let key = random.below(KEYS);
        match random.below(4) {
            0 => {
                // An absent key of the range was written to no time.
                let range = key..(key + random.below(4)).min(KEYS);
                let mut seen: BTreeMap<u64, u64> = range.clone().map(|key| (key, 0)).collect();
                let scan = transaction.scan(&keyspaces[place], bytes(range.start)..bytes(range.end))?;
                for found in scan {
                    let (key, value) = found?;
                    seen.insert(u64::from_be_bytes(key.try_into().unwrap()), count(&value));
                }
                // What it has written itself is no read.
                for (key, times) in seen {
                    if !committed.writes.contains_key(&(place, key)) {
                        committed.reads.insert((place, key), times);
                    }
                }
            }
            1 => {
                let found = transaction.get(&keyspaces[place], &bytes(key))?.map_or(0, |value| count(&value));
                match committed.writes.get(&(place, key)) {
                    Some(own) => assert_eq!(found, *own),
                    None => drop(committed.reads.insert((place, key), found)),
                }
            }
            _ => {
                let times = transaction.get(&keyspaces[home], &bytes(key))?.map_or(0, |value| count(&value));
                if !committed.writes.contains_key(&(home, key)) {
                    committed.reads.insert((home, key), times);
                    committed.writes.insert((home, key), times + 1);
                    transaction.put(&keyspaces[home], &bytes(key), &(times + 1).to_le_bytes())?;
                }
            }
        }
    }
    Ok(())
}

/// Runs transactions of several threads, with flushes and collections in between. Returns those that were committed.
fn history(seed: u64, commits: u64) -> Vec<Committed> {
    let (db, keyspaces) = store(seed);
    let (clock, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    let tick = || clock.fetch_add(1, Ordering::SeqCst);
    std::thread::scope(|scope| {
        let worker = |thread: u64| {
            let (db, keyspaces, tick) = (&db, &keyspaces, &tick);
            move || {
                let mut random = Random(seed * THREADS + thread + 1);
                let mut history: Vec<Committed> = Vec::new();
                while (history.len() as u64) < commits {
                    let mut committed = Committed { begun: tick(), ..Committed::default() };
                    let mut transaction = db.transaction();
                    run(&mut transaction, keyspaces, &mut random, &mut committed).unwrap();
                    // Others get in between.
                    if random.below(3) == 0 {
                        std::thread::yield_now();
                    }
                    match transaction.commit() {
                        Ok(()) => {
                            committed.returned = tick();
                            history.push(committed);
                        }
                        Err(Error::Conflict { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
                history
            }
        };
        let workers: Vec<_> = (0..THREADS).map(|thread| scope.spawn(worker(thread))).collect();
        let upkeep = scope.spawn(|| {
            let mut random = Random(seed + 1);
            let mut number = 0_u64;
            while !is_over.load(Ordering::Relaxed) {
                for keyspace in &keyspaces {
                    // Other keys, so that memtables fill.
                    (0..20).for_each(|_| keyspace.put(&bytes(KEYS + random.below(500)), &bytes(number)).unwrap());
                }
                number += 1;
                match number % 64 {
                    0 => db.collect_garbage().unwrap(),
                    16 | 32 | 48 => db.flush().unwrap(),
                    _ => std::thread::yield_now(),
                }
            }
        });
        let history = workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect();
        is_over.store(true, Ordering::Relaxed);
        upkeep.join().unwrap();
        history
    })
}

/// Whether the transactions can be put into an order that explains all that they have read.
fn is_serializable(history: &[Committed]) -> bool {
    let mut writers: HashMap<(Key, u64), usize> = HashMap::new();
    for (number, committed) in history.iter().enumerate() {
        for (key, times) in &committed.writes {
            if writers.insert((*key, *times), number).is_some() {
                // Two have written over the same value: an update was lost.
                return false;
            }
        }
    }
    let mut after: Vec<Vec<usize>> = vec![Vec::new(); history.len()];
    for (number, committed) in history.iter().enumerate() {
        for (key, times) in &committed.reads {
            let (from, over) = (writers.get(&(*key, *times)), writers.get(&(*key, *times + 1)));
            if *times > 0 && from.is_none() {
                return false;
            }
            from.into_iter().for_each(|from| after[*from].push(number));
            over.into_iter().filter(|over| **over != number).for_each(|over| after[number].push(*over));
        }
        let later = history.iter().enumerate().filter(|(_, other)| other.begun > committed.returned);
        after[number].extend(later.map(|(other, _)| other));
    }
    let mut before = vec![0; history.len()];
    after.iter().flatten().for_each(|number| before[*number] += 1);
    let mut next: Vec<usize> = (0..history.len()).filter(|number| before[*number] == 0).collect();
    let mut ordered = 0;
    while let Some(number) = next.pop() {
        ordered += 1;
        for other in &after[number] {
            before[*other] -= 1;
            if before[*other] == 0 {
                next.push(*other);
            }
        }
    }
    ordered == history.len()
}

#[test]
fn the_checker_finds_anomalies() {
    let transaction = |begun, reads: &[(u64, u64)], writes: &[(u64, u64)]| {
        let of = |some: &[(u64, u64)]| some.iter().map(|(key, times)| ((0, *key), *times)).collect();
        Committed { begun, returned: begun + 10, reads: of(reads), writes: of(writes) }
    };
    let update = |begun, times| transaction(begun, &[(1, times)], &[(1, times + 1)]);
    assert!(is_serializable(&[update(0, 0), update(1, 1), transaction(2, &[(1, 0)], &[])]));
    assert!(!is_serializable(&[update(0, 0), update(1, 0)]), "a lost update");
    let both = |begun, written| transaction(begun, &[(1, 0), (2, 0)], &[(written, 1)]);
    assert!(!is_serializable(&[both(0, 1), both(1, 2)]), "write skew");
    assert!(!is_serializable(&[update(0, 0), transaction(20, &[(1, 0)], &[])]), "a stale read");
    let two = transaction(0, &[(1, 0), (2, 0)], &[(1, 1), (2, 1)]);
    assert!(!is_serializable(&[two, transaction(1, &[(1, 1), (2, 0)], &[])]), "half of a transaction");
}

#[test]
fn concurrent_transactions_are_serializable() {
    for seed in test_depth::seeds(2, 40) {
        let history = history(seed, 400);
        let writing = history.iter().filter(|committed| !committed.writes.is_empty()).count();
        assert!(writing > 100, "{writing} transactions of {} wrote", history.len());
        assert!(is_serializable(&history), "VMIO_TEST_SEEDS={seed}..{}", seed + 1);
    }
}

#[test]
fn no_update_is_lost() {
    let (db, keyspaces) = store(3);
    const EACH: u64 = 200;
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (db, keyspaces) = (&db, &keyspaces);
            scope.spawn(move || {
                for number in 0..EACH {
                    // By turns, two ways to count.
                    let keyspace = &keyspaces[(number % 2) as usize];
                    let next = |old: Option<Vec<u8>>| old.map_or(1, |old| count(&old) + 1).to_le_bytes();
                    if thread % 2 == 0 {
                        db.transact(|transaction| {
                            let old = transaction.get(keyspace, b"count")?;
                            transaction.put(keyspace, b"count", &next(old))
                        })
                        .unwrap();
                    } else {
                        loop {
                            let old = keyspace.get(b"count").unwrap();
                            let new = next(old.clone());
                            if keyspace.compare_and_set(b"count", old.as_deref(), Some(&new)).unwrap() {
                                break;
                            }
                        }
                    }
                    keyspace.put(&bytes(thread << 32 | number), &[9; 100]).unwrap();
                }
            });
        }
    });
    for keyspace in &keyspaces {
        assert_eq!(keyspace.get(b"count").unwrap().map(|value| count(&value)), Some(THREADS * EACH / 2));
    }
}

/// Each of two threads reads the key that the other one writes, at the same time: one of them at least has to see the other's write.
#[test]
fn commits_at_the_same_time_see_each_other() {
    const ROUNDS: u64 = 3000;
    let (db, keyspaces) = store(5);
    let barrier = Barrier::new(2);
    let commits = |own: usize| {
        let (db, keyspaces, barrier) = (&db, &keyspaces, &barrier);
        move || {
            let read = |round: u64| {
                let mut transaction = db.transaction();
                let other = transaction.get(&keyspaces[1 - own], b"round").unwrap().map_or(0, |value| count(&value));
                transaction.put(&keyspaces[own], b"round", &round.to_le_bytes()).unwrap();
                (transaction, other)
            };
            let mut seen = Vec::new();
            for round in 1..=ROUNDS {
                let (mut transaction, mut other) = read(round);
                barrier.wait();
                while let Err(error) = transaction.commit() {
                    assert!(matches!(error, Error::Conflict { .. }), "{error}");
                    (transaction, other) = read(round);
                }
                seen.push(other);
                barrier.wait();
            }
            seen
        }
    };
    let [left, right] = std::thread::scope(|scope| {
        let threads = [0, 1].map(|own| scope.spawn(commits(own)));
        threads.map(|thread| thread.join().unwrap())
    });
    for (round, (left, right)) in (1..).zip(left.into_iter().zip(right)) {
        assert!(left == round || right == round, "in round {round} they saw {left} and {right}");
    }
}
