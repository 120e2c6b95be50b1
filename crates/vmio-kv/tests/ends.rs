//! The first and the last key of a keyspace.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use vmio::backing::MemoryBacking;
use vmio_kv::{Db, Durability};

fn store() -> Db {
    // Everything is compacted all the time.
    let options = crate::support::options().memory_bytes(32 << 20).memtable_bytes(6 << 10).growth_factor(2);
    Db::create_on(MemoryBacking::new(128 << 20).unwrap(), options.durability(Durability::None)).unwrap()
}

#[test]
fn a_large_value_is_popped_whole() {
    let db = store();
    db.put(b"large", &vec![3; 3 << 20]).unwrap();
    assert_eq!(db.first().unwrap(), db.last().unwrap());
    assert!(db.pop_last().unwrap() == Some((b"large".to_vec(), vec![3; 3 << 20])));
    assert_eq!((db.pop_first().unwrap(), db.pop_last().unwrap(), db.first().unwrap()), (None, None, None));
}

/// Each key is popped once, by any thread, from either end.
#[test]
fn threads_that_pop_get_different_keys() {
    const THREADS: u64 = 3;
    const KEYS: u64 = 2000;
    let db = store();
    let (popped, writing) = (Mutex::new(Vec::new()), AtomicUsize::new(THREADS as usize));
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (db, popped, writing) = (&db, &popped, &writing);
            scope.spawn(move || {
                for number in 0..KEYS {
                    // In no order, so that new keys come before the first one and after the last.
                    let number = (number * 7919 % KEYS) * THREADS + thread;
                    db.put(&number.to_be_bytes(), &number.to_le_bytes()).unwrap();
                }
                writing.fetch_sub(1, Ordering::SeqCst);
            });
            scope.spawn(move || {
                let mut own = Vec::new();
                loop {
                    // Set first: a thread that finds nothing afterwards will never find anything.
                    let are_written = writing.load(Ordering::SeqCst) == 0;
                    match if thread == 0 { db.pop_last() } else { db.pop_first() }.unwrap() {
                        Some(pair) => own.push(pair),
                        None if are_written => break,
                        None => {}
                    }
                }
                popped.lock().unwrap().append(&mut own);
            });
        }
    });
    let popped = popped.into_inner().unwrap();
    assert_eq!(popped.len() as u64, THREADS * KEYS);
    for (key, value) in &popped {
        let number = u64::from_be_bytes(key.as_slice().try_into().unwrap());
        assert_eq!(value[..], number.to_le_bytes());
    }
    assert_eq!(popped.iter().collect::<BTreeSet<_>>().len() as u64, THREADS * KEYS);
    assert_eq!(db.first().unwrap(), None);
}
