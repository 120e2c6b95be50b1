//! A store beside a plain map: whatever is done to both, they hold the same, also after closing, and after losing what was not
//! durable.

#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use support::assert_sound;
use vmio::backing::MemoryBacking;
use vmio_kv::{Db, Durability, Options, WriteBatch};

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
}

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

fn same(db: &Db, model: &Model) {
    let all: Vec<(Vec<u8>, Vec<u8>)> = db.scan(&[]).unwrap().map(Result::unwrap).collect();
    let expected: Vec<(Vec<u8>, Vec<u8>)> = model.clone().into_iter().collect();
    assert_eq!(all.len(), expected.len());
    assert_eq!(all, expected);
}

fn apply(db: &Db, model: &mut Model, step: &Step) {
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
            let some: Vec<_> = db.scan(&from).unwrap().take(50).map(Result::unwrap).collect();
            let expected: Vec<_> =
                model.range(from..).take(50).map(|(key, value)| (key.clone(), value.clone())).collect();
            assert_eq!(some, expected);
        }
        Step::Many(first, count) => {
            for number in *first..first + count {
                let (key, value) = (key(number), value(number, *count as u8));
                db.put(&key, &value).unwrap();
                model.insert(key, value);
            }
        }
        Step::Flush => db.flush().unwrap(),
        Step::Reopen => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]
    #[test]
    fn a_store_holds_what_a_map_does(steps in steps()) {
        let disk = Arc::new(MemoryBacking::new(256 << 20).unwrap());
        let mut db = Db::create_on(Arc::clone(&disk), options()).unwrap();
        let mut model = Model::new();
        for step in &steps {
            apply(&db, &mut model, step);
            if matches!(step, Step::Reopen) {
                db.close().unwrap();
                assert_sound(Arc::clone(&disk), &options(), "before it is opened again");
                db = Db::open_on(Arc::clone(&disk), options()).unwrap();
                same(&db, &model);
            }
        }
        same(&db, &model);
        db.close().unwrap();
        let db = Db::open_on(disk, options()).unwrap();
        same(&db, &model);
        for number in 0..3000 {
            let key = key(number);
            let found = db.get(&key).unwrap();
            prop_assert_eq!(found.as_ref(), model.get(&key));
        }
    }
}
