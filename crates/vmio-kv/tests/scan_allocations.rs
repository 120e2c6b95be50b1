//! A scan allocates memory once for each key and once for each value, which the caller gets.

#![allow(clippy::unwrap_used)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use vmio::backing::MemoryBacking;
use vmio_kv::{Db, Durability, Options};

const RECORDS: u64 = 100_000;

thread_local! {
    static ASKED: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

fn count() {
    // A thread that is ending does not count.
    let _ = ASKED.try_with(|asked| asked.set(asked.get() + 1));
}

// SAFETY: each call is passed unchanged to the system's allocator, which keeps the trait's contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps GlobalAlloc's contract, which is what the system requires.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps GlobalAlloc's contract, which is what the system requires.
        unsafe { System.dealloc(place, layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count();
        // SAFETY: the caller keeps GlobalAlloc's contract, which is what the system requires.
        unsafe { System.realloc(place, layout, bytes) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Leaves know keys of 12 bytes in full, and lack the ends of keys of 20.
#[test]
fn a_scan_allocates_only_keys_and_values() {
    let hash = |number: u64| number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let short = |number| format!("{:012x}", hash(number) >> 16);
    let long = |number| format!("user{:016x}", hash(number));
    let keys: [(usize, &dyn Fn(u64) -> String); 2] = [(12, &short), (20, &long)];
    for (key_bytes, key) in keys {
        let options = Options::new().memory_bytes(64 << 20).durability(Durability::None);
        let db = Db::create_on(MemoryBacking::new(128 << 20).unwrap(), options).unwrap();
        (0..RECORDS).for_each(|number| db.put(key(number).as_bytes(), &number.to_le_bytes()).unwrap());
        db.flush().unwrap();
        for _ in 0..2 {
            let before = ASKED.get();
            assert_eq!(db.scan(..).map(Result::unwrap).count() as u64, RECORDS);
            let asked = ASKED.get() - before;
            println!("{:.2} for each record with a key of {key_bytes} bytes", asked as f64 / RECORDS as f64);
            assert!(asked < RECORDS * 9 / 4, "{asked} times for {RECORDS} records with keys of {key_bytes} bytes");
        }
        db.close().unwrap();
    }
}
