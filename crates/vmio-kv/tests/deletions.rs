//! Many deletions: scans past them, from both ends and from the middle, compared with a map, and while writers run.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::{Random, assert_sound};
use proptest::prelude::*;
use vmio::backing::MemoryBacking;
use vmio_kv::{Db, Durability, KeyspaceSnapshot, Options, WriteBatch};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

const KEYS: u16 = 3000;

#[derive(Clone, Debug)]
enum Step {
    Put(u16),
    Delete(u16),
    /// Every n-th of some keys.
    PutMany(u16, u16, u8),
    DeleteMany(u16, u16, u8),
    /// Keys that are deleted together, and some of them that are put.
    Batch(u16, u8),
    /// This many from either end.
    Pop(u8, bool),
    Clear,
    Snapshot,
    End(prop::sample::Index),
    Flush,
    Collect,
    Reopen,
}

/// Where a scan begins after each step, in the newest state and in a snapshot.
type Look = (u16, prop::sample::Index);

fn steps() -> impl Strategy<Value = Vec<(Step, Look)>> {
    let key = || 0..KEYS;
    let step = prop_oneof![
        3 => key().prop_map(Step::Put),
        2 => key().prop_map(Step::Delete),
        2 => (key(), 1..KEYS, 1_u8..80).prop_map(|(first, count, step)| Step::PutMany(first, count, step)),
        5 => (key(), 1..KEYS, 1_u8..3).prop_map(|(first, count, step)| Step::DeleteMany(first, count, step)),
        1 => (key(), any::<u8>()).prop_map(|(first, count)| Step::Batch(first, count)),
        2 => (any::<u8>(), any::<bool>()).prop_map(|(count, is_last)| Step::Pop(count, is_last)),
        1 => Just(Step::Clear),
        2 => Just(Step::Snapshot),
        1 => any::<prop::sample::Index>().prop_map(Step::End),
        2 => Just(Step::Flush),
        1 => Just(Step::Collect),
        1 => Just(Step::Reopen),
    ];
    proptest::collection::vec((step, (key(), any::<prop::sample::Index>())), 1..40)
}

/// Some keys are prefixes of others, and some are longer than their known part in leaves.
fn key(number: u16) -> Vec<u8> {
    match number {
        0..300 => vec![b'a'; 1 + usize::from(number)],
        300..600 => format!("b{}/{number:04}", "long".repeat(300)).into_bytes(),
        _ => format!("c a middle that many keys share {number:04}").into_bytes(),
    }
}

fn options() -> Options {
    crate::support::options()
        .memory_bytes(33 << 20)
        .memtable_bytes(40 << 10)
        .growth_factor(2)
        .durability(Durability::None)
        .max_volume_bytes(256 << 20)
}

/// From a key on, both ways; and the whole range.
fn check(keyspace: &KeyspaceSnapshot, model: &Model, from: u16) {
    let from = key(from);
    let pairs = |found: Option<(&Vec<u8>, &Vec<u8>)>| found.map(|(key, value)| (key.clone(), value.clone()));
    for bound in [Bound::Included(from.clone()), Bound::Excluded(from)] {
        let slice = bound.as_ref().map(Vec::as_slice);
        let up = model.range::<[u8], _>((slice, Bound::Unbounded));
        for (found, expected) in keyspace.scan((bound.clone(), Bound::Unbounded)).take(3).zip(up) {
            assert_eq!(Some(found.unwrap()), pairs(Some(expected)));
        }
        let first = keyspace.scan((bound.clone(), Bound::Unbounded)).next().transpose().unwrap();
        assert_eq!(first, pairs(model.range::<[u8], _>((slice, Bound::Unbounded)).next()));
        let last = keyspace.scan((Bound::Unbounded, bound.clone())).next_back().transpose().unwrap();
        assert_eq!(last, pairs(model.range::<[u8], _>((Bound::Unbounded, slice)).next_back()));
    }
    let up: Vec<_> = keyspace.scan(..).map(Result::unwrap).collect();
    assert!(up.iter().map(|(key, value)| (key, value)).eq(model), "{} and {}", up.len(), model.len());
    let down: Vec<_> = keyspace.scan(..).keys().rev().map(Result::unwrap).collect();
    assert!(down.iter().eq(model.keys().rev()), "{} and {}", down.len(), model.len());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: test_depth::pick(24, 200), ..ProptestConfig::default() })]

    #[test]
    fn scans_past_deletions_show_what_a_map_does(steps in steps()) {
        let backing = Arc::new(MemoryBacking::new(128 << 20).unwrap());
        let mut db = Db::create_on(Arc::clone(&backing), options()).unwrap();
        let mut model = Model::new();
        let mut snapshots: Vec<(KeyspaceSnapshot, Model)> = Vec::new();
        for (number, (step, (from, which))) in steps.into_iter().enumerate() {
            let value = number.to_le_bytes().to_vec();
            let put = |model: &mut Model, of: u16| {
                db.put(&key(of), &value).unwrap();
                model.insert(key(of), value.clone());
            };
            let delete = |model: &mut Model, of: u16| {
                db.delete(&key(of)).unwrap();
                model.remove(&key(of));
            };
            let many = |first: u16, count: u16, step: u8| {
                (first..KEYS.min(first.saturating_add(count))).step_by(usize::from(step))
            };
            match step {
                Step::Put(of) => put(&mut model, of),
                Step::Delete(of) => delete(&mut model, of),
                Step::PutMany(first, count, step) => {
                    many(first, count, step).for_each(|of| put(&mut model, of));
                }
                Step::DeleteMany(first, count, step) => {
                    many(first, count, step).for_each(|of| delete(&mut model, of));
                }
                Step::Batch(first, count) => {
                    let mut batch = WriteBatch::new();
                    for of in many(first, u16::from(count), 1) {
                        if of % 50 == 7 {
                            batch.put(&db, &key(of), &value).unwrap();
                            model.insert(key(of), value.clone());
                        } else {
                            batch.delete(&db, &key(of)).unwrap();
                            model.remove(&key(of));
                        }
                    }
                    db.write(&batch).unwrap();
                }
                Step::Pop(count, is_last) => {
                    for _ in 0..count {
                        let (popped, expected) = match is_last {
                            true => (db.pop_last().unwrap(), model.pop_last()),
                            false => (db.pop_first().unwrap(), model.pop_first()),
                        };
                        assert_eq!(popped, expected);
                    }
                }
                Step::Clear => {
                    db.default_keyspace().clear().unwrap();
                    model.clear();
                }
                Step::Snapshot => snapshots.push((db.default_keyspace().snapshot(), model.clone())),
                Step::End(which) if !snapshots.is_empty() => {
                    let (snapshot, model) = snapshots.swap_remove(which.index(snapshots.len()));
                    check(&snapshot, &model, from);
                }
                Step::End(_) => {}
                Step::Flush => db.flush().unwrap(),
                Step::Collect => db.collect_garbage().unwrap(),
                Step::Reopen => {
                    snapshots.clear();
                    db.close().unwrap();
                    db = Db::open_on(Arc::clone(&backing), options()).unwrap();
                }
            }
            check(&db.default_keyspace().snapshot(), &model, from);
            if !snapshots.is_empty() {
                let (snapshot, model) = &snapshots[which.index(snapshots.len())];
                check(snapshot, model, from);
            }
        }
        snapshots.clear();
        db.close().unwrap();
        assert_sound(backing, &options(), "in the end");
    }
}

fn number_key(number: u64) -> Vec<u8> {
    format!("{number:06}").into_bytes()
}

/// Ends the writers, also if the test fails.
struct Ends<'flag>(&'flag AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// One key moves from place to place, each time in a batch that deletes the old one and puts the new one: every scan finds exactly one.
#[test]
fn scans_during_writes_miss_nothing() {
    const PLACES: u64 = 2000;
    let db = Db::create_on(MemoryBacking::new(256 << 20).unwrap(), options().memtable_bytes(4 << 20)).unwrap();
    let places = |writer: u64| writer * PLACES..(writer + 1) * PLACES;
    // Deleted keys everywhere, so that scans have something to skip.
    for number in 0..2 * PLACES {
        db.put(&number_key(number), b"x").unwrap();
        db.delete(&number_key(number)).unwrap();
    }
    (0..2).for_each(|writer| db.put(&number_key(places(writer).start), b"here").unwrap());
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (db, is_over) = (&db, &is_over);
        let move_about = |writer: u64| {
            let mut random = Random(writer + 1);
            let mut at = places(writer).start;
            for step in 0_u64.. {
                let to = places(writer).start + random.below(PLACES);
                let mut batch = WriteBatch::new();
                batch.delete(db, &number_key(at)).unwrap();
                batch.put(db, &number_key(to), b"here").unwrap();
                db.write(&batch).unwrap();
                at = to;
                // Neighbours are deleted once more, so that there is much to skip wherever the key is.
                for other in (to + 1..to + 80).filter(|other| places(writer).contains(other)) {
                    db.delete(&number_key(other)).unwrap();
                }
                if is_over.load(Ordering::Relaxed) {
                    return step;
                }
            }
            0
        };
        let writers: Vec<_> = (0..2_u64).map(|writer| scope.spawn(move || move_about(writer))).collect();
        let ends = Ends(is_over);
        for round in 0..2000 {
            let snapshot = db.default_keyspace().snapshot();
            for writer in 0..2 {
                let range = || number_key(places(writer).start)..number_key(places(writer).end);
                let up: Vec<_> = snapshot.scan(range()).keys().map(Result::unwrap).collect();
                let down: Vec<_> = snapshot.scan(range()).keys().rev().map(Result::unwrap).collect();
                assert_eq!(up.len(), 1, "round {round}: {up:?}");
                assert_eq!(up, down);
            }
            // Rarely: it removes deletions that have nothing below them.
            if round % 100 == 99 {
                db.flush().unwrap();
            }
        }
        drop(ends);
        let steps: Vec<u64> = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
        assert!(steps.iter().all(|steps| *steps > 0), "{steps:?}");
    });
}
