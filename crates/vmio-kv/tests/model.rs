//! A store beside a plain map: whatever is done to both, they hold the same, also after closing, and after losing what was not
//! durable.

#![allow(clippy::unwrap_used)]

mod support;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use proptest::prelude::*;
use support::assert_sound;
use vmio::backing::MemoryBacking;
use vmio_kv::{Db, Durability, Options, RegionSnapshot, Snapshot, WriteBatch};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

#[derive(Clone, Debug)]
enum Step {
    Put(u16, u8),
    Delete(u16),
    Batch(Vec<(u16, Option<u8>)>),
    Get(u16),
    MultiGet(Vec<u16>),
    Scan(Range),
    Prefix(u16),
    Many(u16, u16),
    Flush,
    Collect,
    Reopen,
    Snapshot,
    /// Compares a key, and a range, in a snapshot.
    Look(prop::sample::Index, Range),
    /// Compares all of a snapshot, and ends it.
    End(prop::sample::Index),
}

/// Snapshots, and what they have to show.
type Snapshots = Vec<(Snapshot, Model)>;

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let key = 0_u16..3000;
    let step = prop_oneof![
        4 => (key.clone(), any::<u8>()).prop_map(|(key, value)| Step::Put(key, value)),
        2 => key.clone().prop_map(Step::Delete),
        1 => proptest::collection::vec((key.clone(), any::<Option<u8>>()), 1..20).prop_map(Step::Batch),
        2 => key.clone().prop_map(Step::Get),
        1 => proptest::collection::vec(key.clone(), 0..150).prop_map(Step::MultiGet),
        2 => ranges().prop_map(Step::Scan),
        1 => key.clone().prop_map(Step::Prefix),
        2 => (key.clone(), 1_u16..1500).prop_map(|(first, count)| Step::Many(first, count)),
        1 => Just(Step::Flush),
        2 => Just(Step::Collect),
        1 => Just(Step::Reopen),
        2 => Just(Step::Snapshot),
        3 => (any::<prop::sample::Index>(), ranges()).prop_map(|(which, range)| Step::Look(which, range)),
        1 => any::<prop::sample::Index>().prop_map(Step::End),
    ];
    proptest::collection::vec(step, 1..60)
}

/// Keys of several lengths, some of which are fronts of others, and many of which share long fronts.
fn key(number: u16) -> Vec<u8> {
    match number % 4 {
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

fn options() -> Options {
    // Everything spills, to several levels.
    Options::new()
        .memory_bytes(32 << 20)
        .memory_level_bytes(20 << 10)
        .growth_factor(2)
        .durability(Durability::None)
        .max_space_amplification(1.1)
}

fn same(db: &RegionSnapshot, model: &Model) {
    let all: Vec<(Vec<u8>, Vec<u8>)> = db.scan(..).map(Result::unwrap).collect();
    let expected: Vec<(Vec<u8>, Vec<u8>)> = model.clone().into_iter().collect();
    assert_eq!(all.len(), expected.len());
    assert_eq!(all, expected);
}

/// A scan: two keys, which kinds of bounds they are, and from which end each step is taken.
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

    fn check(&self, region: &RegionSnapshot, model: &Model) {
        let mut expected = self.expected(model);
        let [lower, upper] = self.bounds();
        let mut keys = region.scan((lower.clone(), upper.clone())).keys();
        let mut scan = region.scan((lower, upper));
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
        // From anywhere else, as often as one likes.
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
            let mut up = region.scan(..);
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

fn same_values(region: &RegionSnapshot, model: &Model, numbers: &[u16]) {
    let keys: Vec<Vec<u8>> = numbers.iter().map(|number| key(*number)).collect();
    let expected: Vec<_> = keys.iter().map(|key| model.get(key).cloned()).collect();
    assert_eq!(region.multi_get(&keys).unwrap(), expected);
}

fn same_prefix(region: &RegionSnapshot, model: &Model, number: u16) {
    let whole = key(number);
    let prefix = &whole[..whole.len().min(usize::from(number) % 9)];
    let found: Vec<_> = region.prefix(prefix).rev().map(Result::unwrap).collect();
    let expected: Vec<_> = model.iter().rev().filter(|(key, _)| key.starts_with(prefix)).map(owned).collect();
    assert_eq!(found, expected);
}

fn apply(db: &Db, model: &mut Model, snapshots: &mut Snapshots, step: &Step) {
    match step {
        Step::Put(number, seed) => {
            let (key, value) = (key(*number), value(*number, *seed));
            db.put(&key, &value).unwrap();
            model.insert(key, value);
        }
        Step::Delete(number) => {
            db.delete(&key(*number)).unwrap();
            model.remove(&key(*number));
        }
        Step::Batch(writes) => {
            let mut batch = WriteBatch::new();
            for (number, seed) in writes {
                let key = key(*number);
                match seed {
                    Some(seed) => {
                        batch.put(db.default_region(), &key, &value(*number, *seed)).unwrap();
                        model.insert(key, value(*number, *seed));
                    }
                    None => {
                        batch.delete(db.default_region(), &key).unwrap();
                        model.remove(&key);
                    }
                }
            }
            db.write(&batch).unwrap();
        }
        Step::Get(number) => assert_eq!(db.get(&key(*number)).unwrap().as_ref(), model.get(&key(*number))),
        Step::MultiGet(numbers) => same_values(&db.snapshot(), model, numbers),
        Step::Scan(range) => range.check(&db.snapshot(), model),
        Step::Prefix(number) => same_prefix(&db.snapshot(), model, *number),
        Step::Many(first, count) => {
            for number in *first..first + count {
                let (key, value) = (key(number), value(number, *count as u8));
                db.put(&key, &value).unwrap();
                model.insert(key, value);
            }
        }
        Step::Flush => db.flush().unwrap(),
        Step::Collect => db.collect_garbage().unwrap(),
        // The store is closed when nobody holds any of it.
        Step::Reopen => snapshots.clear(),
        Step::Snapshot => snapshots.push((db.snapshot(), model.clone())),
        Step::Look(which, range) if !snapshots.is_empty() => {
            let (snapshot, model) = &snapshots[which.index(snapshots.len())];
            let key = key(range.keys[0]);
            assert_eq!(snapshot.get(&key).unwrap().as_ref(), model.get(&key));
            assert_eq!(snapshot.contains(&key).unwrap(), model.contains_key(&key));
            let is_same = |value: &[u8]| model.get(&key).is_some_and(|expected| expected == value);
            assert_eq!(snapshot.get_ref(&key, is_same).unwrap(), model.contains_key(&key).then_some(true));
            same_values(snapshot, model, &(range.keys[0]..3000).step_by(37).collect::<Vec<_>>());
            range.check(snapshot, model);
        }
        Step::End(which) if !snapshots.is_empty() => {
            let (snapshot, model) = snapshots.swap_remove(which.index(snapshots.len()));
            same(&snapshot, &model);
        }
        Step::Look(..) | Step::End(_) => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]
    #[test]
    fn a_store_holds_what_a_map_does(steps in steps()) {
        let disk = Arc::new(MemoryBacking::new(80 << 20).unwrap());
        let mut db = Db::create_on(Arc::clone(&disk), options()).unwrap();
        let (mut model, mut snapshots) = (Model::new(), Snapshots::new());
        for step in &steps {
            apply(&db, &mut model, &mut snapshots, step);
            if matches!(step, Step::Reopen) {
                db.close().unwrap();
                assert_sound(Arc::clone(&disk), &options(), "before it is opened again");
                db = Db::open_on(Arc::clone(&disk), options()).unwrap();
                same(&db.snapshot(), &model);
            }
        }
        same(&db.snapshot(), &model);
        snapshots.drain(..).for_each(|(snapshot, model)| same(&snapshot, &model));
        db.close().unwrap();
        let db = Db::open_on(disk, options()).unwrap();
        same(&db.snapshot(), &model);
        for number in 0..3000 {
            let key = key(number);
            let found = db.get(&key).unwrap();
            prop_assert_eq!(found.as_ref(), model.get(&key));
        }
    }
}
