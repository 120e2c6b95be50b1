//! A store and maps, one for each of two keyspaces: after any steps both hold the same, also after closing, and after losing what was not
//! durable. The second keyspace is in the first one's segment, or has its own.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use crate::support::assert_sound;
use proptest::prelude::*;
use vmio::backing::MemoryBacking;
use vmio_kv::{Db, Durability, Error, KeyspaceHandle, KeyspaceSnapshot, Options, Snapshot, WriteBatch};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// The contents of the two keyspaces.
type Models = [Model; 2];

const NAMES: [&str; 2] = ["default", "second"];

#[derive(Clone, Debug)]
enum Step {
    Put(u16, u8),
    /// A value of more than 1 MiB.
    PutLarge(u16, u8),
    /// A part of a value, from a byte on.
    GetRange(u16, u32),
    Delete(u16),
    Batch(Vec<(u16, Option<u8>)>),
    Get(u16),
    MultiGet(Vec<u16>),
    Scan(Range),
    Prefix(u16),
    Many(u16, u16),
    First,
    Last,
    PopFirst,
    PopLast,
    Clear,
    /// Drops the second keyspace, and creates it again.
    Drop,
    Flush,
    Collect,
    Reopen,
    Snapshot,
    /// Compares a key, and a range, in a snapshot.
    Look(prop::sample::Index, Range),
    /// Compares all of a snapshot, and ends it.
    End(prop::sample::Index),
}

/// Snapshots, and their expected contents.
type Snapshots = Vec<(Snapshot, Models)>;

/// Steps, and the keyspace of each step.
fn steps() -> impl Strategy<Value = Vec<(usize, Step)>> {
    let key = 0_u16..3000;
    let step = prop_oneof![
        4 => (key.clone(), any::<u8>()).prop_map(|(key, value)| Step::Put(key, value)),
        1 => (0_u16..8, any::<u8>()).prop_map(|(key, seed)| Step::PutLarge(key, seed)),
        1 => (0_u16..40, 0_u32..3 << 20).prop_map(|(key, from)| Step::GetRange(key, from)),
        2 => key.clone().prop_map(Step::Delete),
        1 => proptest::collection::vec((key.clone(), any::<Option<u8>>()), 1..20).prop_map(Step::Batch),
        2 => key.clone().prop_map(Step::Get),
        1 => proptest::collection::vec(key.clone(), 0..150).prop_map(Step::MultiGet),
        2 => ranges().prop_map(Step::Scan),
        1 => key.clone().prop_map(Step::Prefix),
        2 => (key.clone(), 1_u16..1500).prop_map(|(first, count)| Step::Many(first, count)),
        1 => prop_oneof![Just(Step::First), Just(Step::Last)],
        2 => prop_oneof![Just(Step::PopFirst), Just(Step::PopLast)],
        1 => prop_oneof![Just(Step::Clear), Just(Step::Drop)],
        1 => Just(Step::Flush),
        2 => Just(Step::Collect),
        3 => Just(Step::Reopen),
        2 => Just(Step::Snapshot),
        3 => (any::<prop::sample::Index>(), ranges()).prop_map(|(which, range)| Step::Look(which, range)),
        1 => any::<prop::sample::Index>().prop_map(Step::End),
    ];
    proptest::collection::vec((prop_oneof![2 => Just(0), 1 => Just(1)], step), 1..60)
}

/// Keys of several lengths, some of which are prefixes of others, and many of which share long prefixes: most of some hundred bytes, some
/// of several KiB, and a few of up to 64 KiB.
fn key(number: u16) -> Vec<u8> {
    match number % 4 {
        1 if number % 8 == 5 && number > 900 => {
            let shared = if number % 40 == 37 { 65_000 } else { 5_000 };
            format!("{}/{number:04}{}", "long".repeat(shared / 4), "e".repeat(usize::from(number) % 500)).into_bytes()
        }
        2 if number % 200 == 2 => vec![b'y'; usize::from(number) * 13 + 2000],
        0 => format!("{number:05}").into_bytes(),
        1 => format!("a long front that all of these keys share/{:06}/{number}", number % 7).into_bytes(),
        2 => vec![b'x'; 1 + usize::from(number) / 20],
        _ => number.to_be_bytes().to_vec(),
    }
}

fn value(number: u16, seed: u8) -> Vec<u8> {
    // Long enough that some writes fill a chunk.
    vec![seed; 8 * (usize::from(number % 200) + usize::from(seed))]
}

/// No two pieces of the value are the same.
fn large_value(seed: u8) -> Vec<u8> {
    let bytes = (1 << 20) + 1 + usize::from(seed) * 4099;
    (0..bytes).map(|at| (at >> 13) as u8 ^ at as u8 ^ seed).collect()
}

fn options(compaction_threads: usize) -> Options {
    // Everything is compacted, to several levels.
    crate::support::options()
        .compaction_threads(compaction_threads)
        .memory_bytes(33 << 20)
        .memtable_bytes(20 << 10)
        // Few, so that leaves share places.
        .filter_bytes(2 << 10)
        .growth_factor(2)
        .durability(Durability::None)
        .max_space_amplification(1.1)
        .max_volume_bytes(256 << 20)
}

fn same(db: &KeyspaceSnapshot, model: &Model) {
    let all: Vec<(Vec<u8>, Vec<u8>)> = db.scan(..).map(Result::unwrap).collect();
    let expected: Vec<(Vec<u8>, Vec<u8>)> = model.clone().into_iter().collect();
    assert_eq!(all.len(), expected.len());
    assert_eq!(all, expected);
}

/// A scan: two keys, their kinds of bounds, and the end that each step takes.
#[derive(Clone, Debug)]
struct Range {
    keys: [u16; 2],
    bounds: [u8; 2],
    ends: u64,
}

fn ranges() -> impl Strategy<Value = Range> {
    // Up, down, or from both ends.
    let ends = prop_oneof![Just(0), Just(u64::MAX), any::<u64>()];
    let keys = [0_u16..3000, 0..3000];
    (keys, [0_u8..3, 0..3], ends).prop_map(|(keys, bounds, ends)| Range { keys, bounds, ends })
}

impl Range {
    fn bounds(&self) -> [Bound<Vec<u8>>; 2] {
        let mut keys = self.keys.map(key);
        // One range in eight has its ends the wrong way round.
        if keys[0] > keys[1] && self.ends % 8 != 1 {
            keys.reverse();
        }
        let [from, to] = keys;
        let bound = |key, kind| match kind {
            0 => Bound::Included(key),
            1 => Bound::Excluded(key),
            _ => Bound::Unbounded,
        };
        [bound(from, self.bounds[0]), bound(to, self.bounds[1])]
    }

    fn expected(&self, model: &Model) -> VecDeque<(Vec<u8>, Vec<u8>)> {
        let [lower, upper] = self.bounds();
        let is_within = |key: &Vec<u8>| {
            let above = match &lower {
                Bound::Included(lower) => key >= lower,
                Bound::Excluded(lower) => key > lower,
                Bound::Unbounded => true,
            };
            above
                && match &upper {
                    Bound::Included(upper) => key <= upper,
                    Bound::Excluded(upper) => key < upper,
                    Bound::Unbounded => true,
                }
        };
        model.iter().filter(|(key, _)| is_within(key)).map(|(key, value)| (key.clone(), value.clone())).collect()
    }

    fn check(&self, keyspace: &KeyspaceSnapshot, model: &Model) {
        let mut expected = self.expected(model);
        let [lower, upper] = self.bounds();
        let mut keys = keyspace.scan((lower.clone(), upper.clone())).keys();
        let mut scan = keyspace.scan((lower, upper));
        for step in 0..200 {
            let wanted = if self.ends >> (step % 64) & 1 == 0 {
                let wanted = expected.pop_front();
                assert_eq!(scan.next().transpose().unwrap(), wanted, "step {step} of {self:?}");
                assert_eq!(keys.next().transpose().unwrap(), wanted.clone().map(|(key, _)| key));
                wanted
            } else {
                let wanted = expected.pop_back();
                assert_eq!(scan.next_back().transpose().unwrap(), wanted, "step {step} of {self:?}");
                assert_eq!(keys.next_back().transpose().unwrap(), wanted.clone().map(|(key, _)| key));
                wanted
            };
            if wanted.is_none() {
                break;
            }
        }
        // From anywhere else, any number of times.
        for number in [self.ends % 3000, self.ends / 3000 % 3000] {
            let (all, from) = (self.expected(model), key(number as u16));
            scan.seek(&from);
            scan.seek_back(&from);
            let above = all.iter().find(|(key, _)| *key >= from);
            let below = all.iter().rfind(|(key, _)| *key <= from);
            // Both go past the key only if it is there.
            if let (Some(above), Some(below)) = (above, below)
                && above == below
            {
                assert_eq!(scan.next().transpose().unwrap().as_ref(), Some(above));
            }
            let mut up = keyspace.scan(..);
            up.seek(&from);
            assert_eq!(up.next().transpose().unwrap(), model.range(from.clone()..).next().map(owned));
            up.seek_back(&from);
            up.seek(b"");
            assert_eq!(up.next_back().transpose().unwrap(), model.range(..=from).next_back().map(owned));
            assert_eq!(up.next().transpose().unwrap(), first_but_one(model, number as u16));
        }
    }
}

fn owned((key, value): (&Vec<u8>, &Vec<u8>)) -> (Vec<u8>, Vec<u8>) {
    (key.clone(), value.clone())
}

/// The first entry, unless it is the last up to a key, which was taken.
fn first_but_one(model: &Model, number: u16) -> Option<(Vec<u8>, Vec<u8>)> {
    let taken = model.range(..=key(number)).next_back()?.0;
    model.range(..taken.clone()).next().map(owned)
}

fn same_values(keyspace: &KeyspaceSnapshot, model: &Model, numbers: &[u16]) {
    let keys: Vec<Vec<u8>> = numbers.iter().map(|number| key(*number)).collect();
    let expected: Vec<_> = keys.iter().map(|key| model.get(key).cloned()).collect();
    assert_eq!(keyspace.multi_get(&keys).unwrap(), expected);
}

fn same_prefix(keyspace: &KeyspaceSnapshot, model: &Model, number: u16) {
    let whole = key(number);
    let prefix = &whole[..whole.len().min(usize::from(number) % 9)];
    let found: Vec<_> = keyspace.prefix(prefix).rev().map(Result::unwrap).collect();
    let expected: Vec<_> = model.iter().rev().filter(|(key, _)| key.starts_with(prefix)).map(owned).collect();
    assert_eq!(found, expected);
}

fn apply(
    db: &Db,
    keyspaces: &[KeyspaceHandle; 2],
    models: &mut Models,
    snapshots: &mut Snapshots,
    step: &(usize, Step),
) {
    let (which, step) = step;
    if let Step::Snapshot = step {
        snapshots.push((db.snapshot(), models.clone()));
        return;
    }
    let (keyspace, model) = (&keyspaces[*which], &mut models[*which]);
    match step {
        Step::Put(number, seed) => {
            let (key, value) = (key(*number), value(*number, *seed));
            keyspace.put(&key, &value).unwrap();
            model.insert(key, value);
        }
        Step::PutLarge(number, seed) => {
            let (key, value) = (key(*number), large_value(*seed));
            keyspace.put_stream(&key, value.len() as u64, value.as_slice()).unwrap();
            model.insert(key, value);
        }
        Step::GetRange(number, from) => {
            let from = *from as usize;
            let expected = model.get(&key(*number)).map(|value| {
                let end = value.len().min(from + 100_000);
                value[from.min(end)..end].to_vec()
            });
            let (from, end) = (from as u64, from as u64 + 100_000);
            assert!(keyspace.get_range(&key(*number), from..end).unwrap() == expected);
        }
        Step::Delete(number) => {
            keyspace.delete(&key(*number)).unwrap();
            model.remove(&key(*number));
        }
        Step::Batch(writes) => {
            let mut batch = WriteBatch::new();
            for (number, seed) in writes {
                let key = key(*number);
                match seed {
                    Some(seed) => {
                        batch.put(keyspace, &key, &value(*number, *seed)).unwrap();
                        model.insert(key, value(*number, *seed));
                    }
                    None => {
                        batch.delete(keyspace, &key).unwrap();
                        model.remove(&key);
                    }
                }
            }
            db.write(&batch).unwrap();
        }
        Step::Get(number) => assert_eq!(keyspace.get(&key(*number)).unwrap().as_ref(), model.get(&key(*number))),
        Step::MultiGet(numbers) => same_values(&keyspace.snapshot(), model, numbers),
        Step::Scan(range) => range.check(&keyspace.snapshot(), model),
        Step::Prefix(number) => same_prefix(&keyspace.snapshot(), model, *number),
        Step::Many(first, count) => {
            for number in *first..first + count {
                let (key, value) = (key(number), value(number, *count as u8));
                keyspace.put(&key, &value).unwrap();
                model.insert(key, value);
            }
        }
        Step::First => assert_eq!(keyspace.first().unwrap(), model.iter().next().map(owned)),
        Step::Last => assert_eq!(keyspace.last().unwrap(), model.iter().next_back().map(owned)),
        Step::PopFirst => assert_eq!(keyspace.pop_first().unwrap(), model.pop_first()),
        Step::PopLast => assert_eq!(keyspace.pop_last().unwrap(), model.pop_last()),
        Step::Clear => {
            keyspace.clear().unwrap();
            model.clear();
        }
        Step::Drop => {
            let second = &keyspaces[1];
            db.drop_keyspace(NAMES[1]).unwrap();
            assert!(matches!(second.put(b"key", b"value"), Err(Error::NoKeyspace { .. })));
            assert!(matches!(second.get(b"key"), Err(Error::NoKeyspace { .. })));
            assert!(matches!(second.scan(..).next(), Some(Err(Error::NoKeyspace { .. }))));
            db.segment(second.segment()).unwrap().keyspace_or_create(NAMES[1]).unwrap();
            models[1].clear();
        }
        Step::Flush => db.flush().unwrap(),
        Step::Collect => db.collect_garbage().unwrap(),
        // The store is closed when its last handle is dropped.
        Step::Reopen => snapshots.clear(),
        Step::Look(which, range) if !snapshots.is_empty() => {
            let (snapshot, models) = &snapshots[which.index(snapshots.len())];
            let (snapshot, model) =
                (snapshot.keyspace(keyspace.name()).unwrap(), &models[usize::from(keyspace.name() != NAMES[0])]);
            let key = key(range.keys[0]);
            assert_eq!(snapshot.get(&key).unwrap().as_ref(), model.get(&key));
            assert_eq!(snapshot.contains(&key).unwrap(), model.contains_key(&key));
            let is_same = |value: &[u8]| model.get(&key).is_some_and(|expected| expected == value);
            assert_eq!(snapshot.get_ref(&key, is_same).unwrap(), model.contains_key(&key).then_some(true));
            same_values(snapshot, model, &(range.keys[0]..3000).step_by(37).collect::<Vec<_>>());
            range.check(snapshot, model);
        }
        Step::End(which) if !snapshots.is_empty() => {
            let (snapshot, models) = snapshots.swap_remove(which.index(snapshots.len()));
            same_all(&snapshot, &models);
        }
        Step::Look(..) | Step::End(_) | Step::Snapshot => {}
    }
}

fn same_all(snapshot: &Snapshot, models: &Models) {
    NAMES.iter().zip(models).for_each(|(name, model)| same(snapshot.keyspace(name).unwrap(), model));
}

fn keyspaces(db: &Db) -> [KeyspaceHandle; 2] {
    NAMES.map(|name| db.keyspace(name).unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: test_depth::pick(16, 40), ..ProptestConfig::default() })]
    #[test]
    fn a_store_holds_what_maps_do(steps in steps(), compaction_threads in 1_usize..=4, has_two_segments: bool) {
        let options = options(compaction_threads);
        // The first segment gets the whole file when it is created.
        let disk = Arc::new(MemoryBacking::new(128 << 20).unwrap());
        let mut db = Db::create_on(Arc::clone(&disk), options.clone()).unwrap();
        if has_two_segments {
            db.create_segment().unwrap().keyspace_or_create(NAMES[1]).unwrap();
        } else {
            db.keyspace_or_create(NAMES[1]).unwrap();
        }
        let (mut models, mut snapshots) = (Models::default(), Snapshots::new());
        for step in &steps {
            apply(&db, &keyspaces(&db), &mut models, &mut snapshots, step);
            if matches!(step, (_, Step::Reopen)) {
                db.close().unwrap();
                assert_sound(Arc::clone(&disk), &options, "before it is opened again");
                db = Db::open_on(Arc::clone(&disk), options.clone()).unwrap();
                same_all(&db.snapshot(), &models);
            }
        }
        same_all(&db.snapshot(), &models);
        snapshots.drain(..).for_each(|(snapshot, models)| same_all(&snapshot, &models));
        db.close().unwrap();
        let db = Db::open_on(disk, options).unwrap();
        same_all(&db.snapshot(), &models);
        for (keyspace, model) in keyspaces(&db).iter().zip(&models) {
            for number in 0..3000 {
                let key = key(number);
                let found = keyspace.get(&key).unwrap();
                prop_assert_eq!(found.as_ref(), model.get(&key));
            }
        }
        prop_assert_eq!(db.segments().unwrap().len(), 1 + usize::from(has_two_segments));
    }
}
