//! The cost of a search for the next key with a value behind deleted ones: counted, not timed.

use std::ops::Bound;
use std::sync::Arc;

use vmio::backing::MemoryBacking;

use super::*;
use crate::{Db, Durability, Options};

/// The most entries that a search passes once the gaps are known.
const FEW: u64 = 100;

fn store() -> Db {
    let options = Options::new().memory_bytes(64 << 20).growth_factor(2).durability(Durability::None);
    Db::create_on(MemoryBacking::new(256 << 20).unwrap(), options).unwrap()
}

fn key(number: u64) -> Vec<u8> {
    format!("job {number:08}").into_bytes()
}

fn first_in(
    keyspace: &Keyspace,
    view: &Arc<View>,
    bound: Bound<&[u8]>,
    direction: Direction,
) -> (Option<Vec<u8>>, u64) {
    let mut cursor = KeyspaceCursor::seek(keyspace, view, bound, direction).unwrap();
    let found = cursor.next(|_| false).unwrap().map(|entry| entry.key);
    (found.map(|known| known.bytes), cursor.looked)
}

/// The first key from a bound on, and how many entries the search passed.
fn first(db: &Db, bound: Bound<&[u8]>, direction: Direction) -> (Option<Vec<u8>>, u64) {
    let keyspace = db.default_keyspace().keyspace();
    first_in(keyspace, &Arc::new(View::begin(keyspace)), bound, direction)
}

#[test]
fn a_queue_costs_the_same_as_it_goes_on() {
    for flushed in [false, true] {
        let db = store();
        let mut most = 0;
        db.put(&key(0), b"job").unwrap();
        for number in 0..5000 {
            db.put(&key(number + 1), b"job").unwrap();
            let (found, looked) = first(&db, Bound::Unbounded, Direction::Up);
            assert_eq!(found, Some(key(number)));
            most = most.max(looked);
            db.delete(&key(number)).unwrap();
            if flushed && number % 1500 == 1 {
                db.flush().unwrap();
            }
        }
        assert!(most <= FEW, "a look went by {most} entries");
    }
}

#[test]
fn a_queue_in_the_other_direction_costs_the_same_as_it_goes_on() {
    let db = store();
    let mut most = 0;
    db.put(&key(9999), b"job").unwrap();
    for number in (5000..9999).rev() {
        db.put(&key(number), b"job").unwrap();
        let (found, looked) = first(&db, Bound::Unbounded, Direction::Down);
        assert_eq!(found, Some(key(number + 1)));
        most = most.max(looked);
        db.delete(&key(number + 1)).unwrap();
    }
    assert!(most <= FEW, "a look went by {most} entries");
}

#[test]
fn a_stack_costs_the_same_however_much_was_taken_from_it() {
    let db = store();
    db.put(&key(0), b"bottom").unwrap();
    (1..5000).for_each(|number| db.put(&key(number), b"job").unwrap());
    let mut most = 0;
    for number in (1..5000).rev() {
        let (found, looked) = first(&db, Bound::Unbounded, Direction::Down);
        assert_eq!(found, Some(key(number)));
        most = most.max(looked);
        db.delete(&key(number)).unwrap();
    }
    assert!(most <= FEW, "a look went by {most} entries");
}

const MANY: u64 = 20_000;
/// The one key that is not deleted.
const LEFT: u64 = 12_345;

/// A store with many deleted keys: their puts and deletions are in memtables or in levels.
fn delete_many(values_flushed: bool, deletions_flushed: bool, below: bool) -> Db {
    let db = store();
    if below {
        // The lowest level has all keys, so that the deletions are kept.
        (0..MANY).for_each(|number| db.put(&key(number), b"old").unwrap());
        db.flush().unwrap();
        db.collect_garbage().unwrap();
    }
    (0..MANY).for_each(|number| db.put(&key(number), b"job").unwrap());
    if values_flushed {
        db.flush().unwrap();
    }
    (0..MANY).filter(|number| *number != LEFT).for_each(|number| db.delete(&key(number)).unwrap());
    if deletions_flushed {
        db.flush().unwrap();
    }
    db
}

#[test]
fn deleted_keys_are_gone_by_once() {
    for case in 0..8 {
        let db = delete_many(case & 1 > 0, case & 2 > 0, case & 4 > 0);
        let (below, above) = (key(LEFT - 5000), key(LEFT + 5000));
        // Once from either end.
        let (_, once) = first(&db, Bound::Unbounded, Direction::Up);
        let (_, back) = first(&db, Bound::Unbounded, Direction::Down);
        assert!(once + back <= MANY + 1000, "case {case}: {once} and {back}");
        for (bound, direction) in [
            (Bound::Unbounded, Direction::Up),
            (Bound::Unbounded, Direction::Down),
            (Bound::Included(&*below), Direction::Up),
            (Bound::Excluded(&*below), Direction::Up),
            (Bound::Included(&*above), Direction::Down),
            (Bound::Excluded(&*above), Direction::Down),
        ] {
            let (found, looked) = first(&db, bound, direction);
            assert_eq!(found, Some(key(LEFT)));
            assert!(looked <= FEW, "case {case}, {bound:?} {direction:?}: went by {looked} entries");
        }
        for (bound, direction) in
            [(Bound::Included(&*above), Direction::Up), (Bound::Excluded(&*below), Direction::Down)]
        {
            let (found, looked) = first(&db, bound, direction);
            assert_eq!(found, None);
            assert!(looked <= FEW, "case {case}, {bound:?} {direction:?}: went by {looked} entries");
        }
    }
}

#[test]
fn gaps_outlive_a_flush_and_are_cut_by_puts() {
    let db = delete_many(true, false, true);
    first(&db, Bound::Unbounded, Direction::Up);
    first(&db, Bound::Unbounded, Direction::Down);
    for _ in 0..3 {
        db.flush().unwrap();
        let (found, looked) = first(&db, Bound::Unbounded, Direction::Up);
        assert_eq!(found, Some(key(LEFT)));
        assert!(looked <= FEW, "went by {looked} entries");
    }
    let mut expected = vec![LEFT];
    for number in [500, 7, 19_000, 19_001, 0, MANY - 1] {
        db.put(&key(number), b"new").unwrap();
        expected.push(number);
        expected.sort_unstable();
        let keyspace = db.default_keyspace().keyspace();
        for direction in [Direction::Up, Direction::Down] {
            let view = Arc::new(View::begin(keyspace));
            let mut cursor = KeyspaceCursor::seek(keyspace, &view, Bound::Unbounded, direction).unwrap();
            let mut found = Vec::new();
            while let Some(Entry { key: known, .. }) = cursor.next(|_| false).unwrap() {
                found.push(known.bytes);
            }
            if direction == Direction::Down {
                found.reverse();
            }
            assert_eq!(found, expected.iter().map(|number| key(*number)).collect::<Vec<_>>());
            let most = FEW * (expected.len() as u64 + 1);
            assert!(cursor.looked <= most, "went by {} entries", cursor.looked);
        }
    }
}

#[test]
fn a_snapshot_goes_by_keys_that_it_does_not_show_once() {
    for is_flushed in [false, true] {
        let db = store();
        let keyspace = db.default_keyspace().keyspace();
        let begin = || Arc::new(View::begin(keyspace));
        let look = |view: &Arc<View>, direction| first_in(keyspace, view, Bound::Unbounded, direction);
        db.put(&key(LEFT), b"job").unwrap();
        if is_flushed {
            db.flush().unwrap();
        }
        let before = begin();
        let others = || (0..MANY).filter(|number| *number != LEFT);
        others().for_each(|number| db.put(&key(number), b"job").unwrap());
        let full = begin();
        others().for_each(|number| db.delete(&key(number)).unwrap());
        db.delete(&key(LEFT)).unwrap();
        let after = begin();
        // Later puts are not for these views, nor are gaps that others find.
        db.put(&key(1), b"again").unwrap();
        first(&db, Bound::Unbounded, Direction::Up);
        for (view, lowest, highest) in
            [(&before, Some(LEFT), Some(LEFT)), (&full, Some(0), Some(MANY - 1)), (&after, None, None)]
        {
            for direction in [Direction::Up, Direction::Down] {
                let wanted = if direction == Direction::Up { lowest } else { highest };
                assert_eq!(look(view, direction).0, wanted.map(key));
                let (found, looked) = look(view, direction);
                assert_eq!(found, wanted.map(key));
                assert!(looked <= FEW, "{is_flushed} {direction:?}: went by {looked} entries");
            }
        }
    }
}

#[test]
fn a_search_ends_at_the_end_of_its_range() {
    let db = delete_many(true, false, false);
    let keyspace = db.default_keyspace().keyspace();
    let view = Arc::new(View::begin(keyspace));
    let (from, to) = (key(100), key(110));
    let mut cursor = KeyspaceCursor::seek(keyspace, &view, Bound::Included(&from), Direction::Up).unwrap();
    let found = cursor.next(|known| known.compare_to(&to) == Some(Ordering::Greater)).unwrap();
    let found = found.map(|entry| entry.key);
    assert_eq!(found, None);
    assert!(cursor.looked <= 12, "went by {} entries", cursor.looked);
}

#[test]
fn a_key_of_a_lower_level_is_shown_though_newer_ones_are_skipped() {
    for direction in [Direction::Up, Direction::Down] {
        let db = store();
        let keyspace = db.default_keyspace().keyspace();
        // The last of the keys that are looked at together.
        let left = if direction == Direction::Up { 32 * 64 - 1 } else { 0 };
        db.put(&key(left), b"below").unwrap();
        db.flush().unwrap();
        let view = Arc::new(View::begin(keyspace));
        (0..32 * 64).for_each(|number| db.put(&key(number), b"later").unwrap());
        for _ in 0..3 {
            assert_eq!(first_in(keyspace, &view, Bound::Unbounded, direction).0, Some(key(left)));
        }
    }
}

/// A queue whose jobs come again: each put cuts the gap, and is deleted again.
#[test]
fn a_gap_that_was_cut_is_joined_again() {
    let db = store();
    (0..6000).for_each(|number| db.put(&key(number), b"job").expect("space"));
    (0..5999).for_each(|number| db.delete(&key(number)).expect("space"));
    let last = Some(key(5999));
    assert_eq!(first(&db, Bound::Unbounded, Direction::Up).0, last);
    for number in (100..5000).step_by(49) {
        db.put(&key(number), b"again").expect("space");
        db.delete(&key(number)).expect("space");
    }
    let looks: Vec<u64> = std::iter::repeat_with(|| first(&db, Bound::Unbounded, Direction::Up))
        .map(|(found, looked)| {
            assert_eq!(found, last);
            looked
        })
        .take(2)
        .collect();
    assert!(looks[0] >= 100 && looks[1] <= FEW, "went by {looks:?} entries");
}

#[test]
fn gaps_of_a_cleared_keyspace_do_not_hide_what_older_views_show() {
    let db = store();
    let keyspace = db.default_keyspace().keyspace();
    (0..MANY).for_each(|number| db.put(&key(number), b"job").unwrap());
    let before = Arc::new(View::begin(keyspace));
    db.default_keyspace().clear().unwrap();
    let cleared = Arc::new(View::begin(keyspace));
    assert_eq!(cleared.before, before.before, "nothing was written in between");
    (0..MANY).for_each(|number| db.delete(&key(number)).unwrap());
    for direction in [Direction::Up, Direction::Down] {
        assert_eq!(first_in(keyspace, &cleared, Bound::Unbounded, direction).0, None);
        assert_eq!(first(&db, Bound::Unbounded, direction).0, None);
        let (_, looked) = first(&db, Bound::Unbounded, direction);
        assert!(looked <= FEW, "went by {looked} entries");
    }
    assert_eq!(first_in(keyspace, &before, Bound::Unbounded, Direction::Up).0, Some(key(0)));
    assert_eq!(first_in(keyspace, &before, Bound::Unbounded, Direction::Down).0, Some(key(MANY - 1)));
}

#[test]
fn gaps_from_before_a_clear_do_not_hide_later_puts() {
    let db = delete_many(true, false, false);
    let keyspace = db.default_keyspace().keyspace();
    first(&db, Bound::Unbounded, Direction::Up);
    first(&db, Bound::Unbounded, Direction::Down);
    let before = Arc::new(View::begin(keyspace));
    db.default_keyspace().clear().unwrap();
    for number in [7, 19_000] {
        db.put(&key(number), b"new").unwrap();
    }
    assert_eq!(first(&db, Bound::Unbounded, Direction::Up).0, Some(key(7)));
    assert_eq!(first(&db, Bound::Unbounded, Direction::Down).0, Some(key(19_000)));
    for direction in [Direction::Up, Direction::Down] {
        let (found, looked) = first_in(keyspace, &before, Bound::Unbounded, direction);
        assert_eq!(found, Some(key(LEFT)));
        assert!(looked <= FEW, "went by {looked} entries");
    }
}

#[test]
fn a_view_of_an_idle_memtable_learns_nothing_of_its_successor() {
    let db = delete_many(true, true, true);
    let keyspace = db.default_keyspace().keyspace();
    let before = Arc::new(View::begin(keyspace));
    let turn = keyspace.begin_write().unwrap();
    keyspace.begin_memtable_at(keyspace.log.end());
    drop(turn);
    db.put(&key(7), b"new").unwrap();
    assert_eq!(first_in(keyspace, &before, Bound::Unbounded, Direction::Up).0, Some(key(LEFT)));
    assert_eq!(first(&db, Bound::Unbounded, Direction::Up).0, Some(key(7)));
}

#[test]
fn an_opening_knows_no_gaps_and_finds_earlier_puts() {
    let backing = Arc::new(MemoryBacking::new(256 << 20).unwrap());
    let options = Options::new().memory_bytes(64 << 20).durability(Durability::None);
    let db = Db::create_on(Arc::clone(&backing), options.clone()).unwrap();
    (0..MANY).for_each(|number| db.put(&key(number), b"job").unwrap());
    db.flush().unwrap();
    (0..MANY).for_each(|number| db.delete(&key(number)).unwrap());
    assert_eq!(first(&db, Bound::Unbounded, Direction::Up).0, None);
    db.put(&key(LEFT), b"again").unwrap();
    db.close().unwrap();
    let db = Db::open_on(backing, options).unwrap();
    for direction in [Direction::Up, Direction::Down] {
        assert!(first(&db, Bound::Unbounded, direction).1 > 1000, "they are gone by once");
        let (found, looked) = first(&db, Bound::Unbounded, direction);
        assert_eq!(found, Some(key(LEFT)));
        assert!(looked <= FEW, "went by {looked} entries");
    }
    db.put(&key(3), b"new").unwrap();
    assert_eq!(first(&db, Bound::Unbounded, Direction::Up).0, Some(key(3)));
}

#[test]
fn a_queue_that_is_popped_costs_the_same_as_it_goes_on() {
    let db = store();
    db.put(&key(0), b"job").unwrap();
    let mut most = 0;
    for number in 0..5000 {
        db.put(&key(number + 1), b"job").unwrap();
        assert_eq!(db.pop_first().unwrap(), Some((key(number), b"job".to_vec())));
        most = most.max(first(&db, Bound::Unbounded, Direction::Up).1);
    }
    assert!(most <= FEW, "a look went by {most} entries");
    assert_eq!(db.pop_last().unwrap(), Some((key(5000), b"job".to_vec())));
    assert_eq!(db.pop_first().unwrap(), None);
}
