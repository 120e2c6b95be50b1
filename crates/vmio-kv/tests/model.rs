//! A store beside a plain map: whatever is done to both, they hold the same, also after closing, and after losing what was not
//! durable.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use vmio::backing::MemoryBacking;
use vmio_kv::{Db, Durability, Options, RegionSnapshot, Snapshot, WriteBatch};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

#[derive(Clone, Debug)]
enum Step {
    Put(u16, u8),
    Delete(u16),
    Batch(Vec<(u16, Option<u8>)>),
    Get(u16),
    Scan(u16),
    Many(u16, u16),
    Flush,
    Reopen,
    Snapshot,
    /// Compares a key, and all from it on, in a snapshot.
    Look(prop::sample::Index, u16),
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
        1 => key.clone().prop_map(Step::Scan),
        2 => (key.clone(), 1_u16..1500).prop_map(|(first, count)| Step::Many(first, count)),
        1 => Just(Step::Flush),
        1 => Just(Step::Reopen),
        2 => Just(Step::Snapshot),
        3 => (any::<prop::sample::Index>(), key.clone()).prop_map(|(which, key)| Step::Look(which, key)),
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
    vec![seed; usize::from(number % 200) + usize::from(seed)]
}

fn options() -> Options {
    // Everything spills, to several levels.
    Options::new().memory_bytes(32 << 20).memory_level_bytes(20 << 10).growth_factor(2).durability(Durability::None)
}

fn same(db: &RegionSnapshot, model: &Model) {
    let all: Vec<(Vec<u8>, Vec<u8>)> = db.scan(&[]).unwrap().map(Result::unwrap).collect();
    let expected: Vec<(Vec<u8>, Vec<u8>)> = model.clone().into_iter().collect();
    assert_eq!(all.len(), expected.len());
    assert_eq!(all, expected);
}

fn some(model: &Model, from: Vec<u8>) -> Vec<(Vec<u8>, Vec<u8>)> {
    model.range(from..).take(50).map(|(key, value)| (key.clone(), value.clone())).collect()
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
        Step::Scan(number) => {
            let from = key(*number);
            let found: Vec<_> = db.scan(&from).unwrap().take(50).map(Result::unwrap).collect();
            assert_eq!(found, some(model, from));
        }
        Step::Many(first, count) => {
            for number in *first..first + count {
                let (key, value) = (key(number), value(number, *count as u8));
                db.put(&key, &value).unwrap();
                model.insert(key, value);
            }
        }
        Step::Flush => db.flush().unwrap(),
        // The store is closed when nobody holds any of it.
        Step::Reopen => snapshots.clear(),
        Step::Snapshot => snapshots.push((db.snapshot(), model.clone())),
        Step::Look(which, number) if !snapshots.is_empty() => {
            let (snapshot, model) = &snapshots[which.index(snapshots.len())];
            let key = key(*number);
            assert_eq!(snapshot.get(&key).unwrap().as_ref(), model.get(&key));
            assert_eq!(snapshot.contains(&key).unwrap(), model.contains_key(&key));
            let found: Vec<_> = snapshot.scan(&key).unwrap().take(50).map(Result::unwrap).collect();
            assert_eq!(found, some(model, key));
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
        let disk = Arc::new(MemoryBacking::new(256 << 20).unwrap());
        let mut db = Db::create_on(Arc::clone(&disk), options()).unwrap();
        let (mut model, mut snapshots) = (Model::new(), Snapshots::new());
        for step in &steps {
            apply(&db, &mut model, &mut snapshots, step);
            if matches!(step, Step::Reopen) {
                db.close().unwrap();
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
