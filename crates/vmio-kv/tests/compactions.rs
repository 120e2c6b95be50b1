//! Several keyspaces and levels are compacted at the same time, each by several threads, while readers and collections run.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::{Random, assert_sound};
use vmio::backing::MemoryBacking;
use vmio_kv::{Db, Durability, KeyspaceHandle, Options};

const KEYS: u64 = 20_000;
const KEYSPACES: u64 = 4;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn options() -> Options {
    let options = crate::support::options().memory_bytes(48 << 20).memtable_bytes(24 << 10).growth_factor(3);
    options.compaction_threads(4).durability(Durability::None)
}

/// Some keys differ only in their records.
fn key(number: u64) -> Vec<u8> {
    if number.is_multiple_of(5) {
        format!("a front that many keys share, longer than an entry's window {number:06}").into_bytes()
    } else {
        number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes().to_vec()
    }
}

fn write(keyspace: &KeyspaceHandle, model: &mut Model, random: &mut Random, writes: u64) {
    for _ in 0..writes {
        let key = key(random.below(KEYS));
        if random.below(6) == 0 {
            keyspace.delete(&key).unwrap();
            model.remove(&key);
        } else {
            let value = vec![random.below(256) as u8; random.below(60) as usize];
            keyspace.put(&key, &value).unwrap();
            model.insert(key, value);
        }
    }
}

fn same(keyspace: &KeyspaceHandle, model: &Model) {
    let mut expected = model.iter();
    for found in keyspace.scan(..) {
        let (key, value) = found.unwrap();
        assert_eq!(Some((&key, &value)), expected.next());
    }
    assert_eq!(expected.next(), None);
}

#[test]
fn keyspaces_are_compacted_concurrently() {
    let disk = Arc::new(MemoryBacking::new(512 << 20).unwrap());
    let (mut models, mut trees) = (vec![Model::new(); KEYSPACES as usize], 0);
    for life in 0..3 {
        let db = Db::open_on(Arc::clone(&disk), options());
        let db = if life == 0 { Db::create_on(Arc::clone(&disk), options()) } else { db }.unwrap();
        let keyspaces: Vec<KeyspaceHandle> =
            (0..KEYSPACES).map(|number| db.keyspace_or_create(&format!("keyspace {number}")).unwrap()).collect();
        keyspaces.iter().zip(&models).for_each(|(keyspace, model)| same(keyspace, model));
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let others = scope.spawn(|| {
                let mut snapshots = 0;
                // Once at least, however fast the writers were.
                while snapshots == 0 || !is_over.load(Ordering::Relaxed) {
                    // The snapshot stays the same.
                    let snapshot = db.snapshot();
                    let all =
                        |keyspace: &str| snapshot.keyspace(keyspace).unwrap().scan(..).map(Result::unwrap).collect();
                    let before: Vec<_> = all("keyspace 1");
                    if snapshots % 8 == 3 {
                        db.collect_garbage().unwrap();
                    }
                    assert!(before == all("keyspace 1"));
                    snapshots += 1;
                }
                snapshots
            });
            let write = |(number, (keyspace, model)): (usize, (&KeyspaceHandle, &mut Model))| {
                write(keyspace, model, &mut Random(life * KEYSPACES + number as u64), 30_000);
            };
            let pairs = keyspaces.iter().zip(&mut models).enumerate();
            let writers: Vec<_> = pairs.map(|pair| scope.spawn(move || write(pair))).collect();
            let written: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
            is_over.store(true, Ordering::Relaxed);
            assert!(written.into_iter().all(|written| written.is_ok()));
            assert!(others.join().is_ok());
        });
        // A collection may have merged all levels.
        for (number, (keyspace, model)) in keyspaces.iter().zip(&mut models).enumerate() {
            write(keyspace, model, &mut Random(1000 + life * KEYSPACES + number as u64), 300);
        }
        db.flush().unwrap();
        keyspaces.iter().zip(&models).for_each(|(keyspace, model)| same(keyspace, model));
        drop(keyspaces);
        db.close().unwrap();
        let report = assert_sound(Arc::clone(&disk), &options(), &format!("after life {life}"));
        trees += report.trees;
    }
    assert!(trees > 3 * KEYSPACES, "{trees} trees after three lives");
}
