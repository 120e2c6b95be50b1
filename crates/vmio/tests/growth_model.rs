//! A file that ends within a page, is stored to behind that end and grows behaves like a vector: what lies behind the end is no part of
//! it. With commits to a journal, and without.

use std::sync::Arc;

use proptest::prelude::*;
use vmio::backing::MemoryBacking;
use vmio::journal::{Journal, JournalOptions};
use vmio::{Advice, Mapping, MappingOptions};

use crate::support::{PAGE, is_managed, load_bytes, minimal_cache, store_bytes};

const PAGES_MAX: u64 = 4;

#[derive(Clone, Copy, Debug)]
enum Step {
    /// A byte so far from the start.
    Store(u64, u8),
    /// So far from the end: perhaps behind it.
    StoreAtEnd(i64, u8),
    /// The same byte at the same place as the last time: behind the end it was no part of the file, and may be by now.
    StoreAgain,
    /// By this many bytes.
    Grow(u64),
    /// Or commit.
    Sync,
    DontNeed,
    /// Synchronized before, closed, and opened again.
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => (0..PAGES_MAX * PAGE, 1..=u8::MAX).prop_map(|(at, byte)| Step::Store(at, byte)),
        4 => (-1..3_i64, 1..=u8::MAX).prop_map(|(distance, byte)| Step::StoreAtEnd(distance, byte)),
        4 => Just(Step::StoreAgain),
        3 => prop_oneof![4 => 1..5_u64, 1 => 1..PAGE].prop_map(Step::Grow),
        5 => Just(Step::Sync),
        2 => Just(Step::DontNeed),
        1 => Just(Step::Reopen),
    ]
}

fn check(len: u64, steps: &[Step], is_atomic: bool) {
    let (cache, disk) = (minimal_cache(), Arc::new(MemoryBacking::new(len).unwrap()));
    let journal = Journal::create(MemoryBacking::new(16 << 20).unwrap(), JournalOptions::new()).unwrap();
    let open = || {
        let options = MappingOptions::new().reserve(PAGES_MAX * PAGE);
        let options = if is_atomic { options.atomic(&journal) } else { options };
        Mapping::open(&cache, Arc::clone(&disk), options).unwrap()
    };
    let sync = |map: &Mapping| if is_atomic { map.commit().map(drop).unwrap() } else { map.sync().unwrap() };
    let mut map = open();
    let mut expected = vec![0; len as usize];
    let mut last = (0, 0);
    for step in steps {
        match *step {
            Step::Store(..) | Step::StoreAtEnd(..) | Step::StoreAgain => {
                last = match *step {
                    Step::Store(at, byte) => (at, byte),
                    Step::StoreAtEnd(distance, byte) => (map.len().saturating_add_signed(distance), byte),
                    _ => last,
                };
                let (at, byte) = (last.0 % map.len().next_multiple_of(PAGE), last.1);
                store_bytes(&map, at, &[byte]);
                if let Some(stored) = expected.get_mut(at as usize) {
                    *stored = byte;
                }
            }
            Step::Grow(by) => {
                let len = (map.len() + by).min(PAGES_MAX * PAGE);
                map.set_len(len).unwrap();
                expected.resize(len as usize, 0);
            }
            Step::Sync => sync(&map),
            Step::DontNeed => map.advise(0..map.len(), Advice::DontNeed).unwrap(),
            Step::Reopen => {
                sync(&map);
                map.close().unwrap();
                map = open();
            }
        }
        assert_eq!(map.len(), expected.len() as u64, "after {step:?}");
        let found = load_bytes(&map, 0..map.len());
        let wrong = found.iter().zip(&expected).position(|(found, expected)| found != expected);
        assert_eq!(wrong, None, "a byte is wrong after {step:?}, atomic: {is_atomic}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: test_depth::pick(1000, 20_000), max_shrink_iters: 2000, ..ProptestConfig::default() })]
    #[test]
    fn what_lies_behind_the_end_is_no_part_of_a_file(
        len in 1..2 * PAGE,
        steps in prop::collection::vec(step(), 1..40),
        is_atomic: bool,
    ) {
        if !is_managed("a mapping of what is no file") {
            check(len, &steps, is_atomic);
        }
    }
}
