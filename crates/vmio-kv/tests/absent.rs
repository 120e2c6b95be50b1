//! Look-ups of absent keys, with and without filters of leaves.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use vmio::backing::MemoryBacking;
use vmio_kv::{Db, Durability, Options};

const KEYS: u64 = 20_000;

fn key(number: u64) -> [u8; 8] {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
}

fn options() -> Options {
    crate::support::options()
        .memory_bytes(64 << 20)
        .memtable_bytes(64 << 10)
        .growth_factor(3)
        .durability(Durability::None)
}

/// A leaf in which a look-up found nothing is not read again for keys that it lacks, until its block has other contents.
#[test]
fn leaves_that_lack_a_key_are_not_read_twice() {
    let looks = |filter_bytes: u64| {
        let pages = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&pages);
        // The flush compacts all at once: there is one tree, of the same height with and without filters.
        let options = options().memtable_bytes(8 << 20).filter_bytes(filter_bytes).observe_pages(move |_, is_store| {
            counted.fetch_add(u64::from(!is_store), Ordering::Relaxed);
        });
        let db = Db::create_on(MemoryBacking::new(256 << 20).unwrap(), options).unwrap();
        (0..KEYS).for_each(|number| db.put(&key(2 * number), &number.to_le_bytes()).unwrap());
        db.flush().unwrap();
        let absent = |round: u64| {
            let before = pages.load(Ordering::Relaxed);
            (0..KEYS).for_each(|number| assert_eq!(db.get(&key(2 * (number + round * KEYS) + 1)).unwrap(), None));
            pages.load(Ordering::Relaxed) - before
        };
        let (_, second) = (absent(0), absent(1));
        for (number, found) in (0..KEYS).map(|number| (number, db.get(&key(2 * number)).unwrap())) {
            assert_eq!(found.as_deref(), Some(&number.to_le_bytes()[..]));
        }
        let several: Vec<_> = (0..2000).map(key).collect();
        let found = db.multi_get(&several).unwrap();
        assert!(found.iter().enumerate().all(|(number, found)| found.is_some() == (number % 2 == 0)));
        second
    };
    let (without, with) = (looks(0), looks(1 << 20));
    assert!(with + KEYS * 9 / 10 < without, "{with} pages looked at, {without} without filters");
}

/// Levels are merged again and again, and blocks are reused: no key that was put counts as absent.
#[test]
fn keys_put_later_are_found() {
    let options = options().filter_bytes(8 << 10).compaction_threads(2);
    let db = Db::create_on(MemoryBacking::new(256 << 20).unwrap(), options).unwrap();
    for round in 0..40 {
        let numbers = round * 2000..(round + 1) * 2000;
        numbers.clone().for_each(|number| assert_eq!(db.get(&key(number)).unwrap(), None, "{number}"));
        numbers.clone().for_each(|number| db.put(&key(number), &number.to_le_bytes()).unwrap());
        for number in (0..numbers.end).step_by(7) {
            assert_eq!(db.get(&key(number)).unwrap().as_deref(), Some(&number.to_le_bytes()[..]), "{number}");
        }
    }
    assert!(matches!(
        Db::create_on(MemoryBacking::new(64 << 20).unwrap(), crate::support::options().filter_bytes(33 << 20)),
        Err(vmio_kv::Error::Option { option: "filter_bytes", .. })
    ));
}
