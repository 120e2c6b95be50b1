//! Compactions that run at the same time, and a compaction of which a part fails.

use std::time::{Duration, Instant};

use vmio::backing::{Backing, MemoryBacking};

use super::*;
use crate::device::failing_backing::FailingBacking;
use crate::format::catalogue::Root;
use crate::format::free_log::Freed;
use crate::format::geometry::{ALLOCATION_UNIT_BYTES, BLOCK_BYTES, unit_of};
use crate::format::unit_table::Purpose;
use crate::tree::Tree;
use crate::{Db, Durability, KeyspaceHandle, Options};

fn options() -> Options {
    Options::new().memory_bytes(32 << 20).memtable_bytes(20 << 10).durability(Durability::None)
}

fn key(number: u64) -> Vec<u8> {
    format!("{number:08}").into_bytes()
}

fn put(keyspace: &KeyspaceHandle, numbers: impl Iterator<Item = u64>, value: &[u8]) {
    numbers.for_each(|number| keyspace.put(&key(number), value).expect("space"));
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Waits until no merge runs, and those that ran have committed and freed the blocks that they replaced.
fn wait_for_compactions(home: &OpenSegment) {
    home.segment.merges.wait();
    drop(home.committing.lock().expect("no thread has panicked"));
}

/// Where the last leaf of a tree is.
fn last_leaf(keyspace: &KeyspaceHandle, root: Root) -> u64 {
    let keyspace = keyspace.keyspace();
    let tree = Tree::new(&keyspace.log, keyspace.number, root, keyspace.version().epoch);
    let last = tree.blocks().expect("read").iter().last().expect("it has a leaf");
    last.offset + last.bytes() - BLOCK_BYTES as u64
}

fn evict_all(db: &Db, backing: &FailingBacking) {
    let device = &db.default_keyspace().open().unwrap().home.store.device;
    (0..backing.len() / ALLOCATION_UNIT_BYTES).for_each(|unit| device.evict(unit));
}

fn begin_to_compact(db: &Db, keyspace: &KeyspaceHandle) {
    assert!(keyspace.keyspace().rotate_memtable());
    db.opened().unwrap().segments.store().compactions.put(keyspace.keyspace());
}

#[test]
fn two_keyspaces_are_compacted_at_once() {
    let backing = Arc::new(FailingBacking::new(128 << 20));
    let db = Db::create_on(Arc::clone(&backing), options().compaction_threads(2)).expect("a store");
    let keyspaces = ["left", "right"].map(|name| db.keyspace_or_create(name).expect("space"));
    keyspaces.iter().for_each(|keyspace| put(keyspace, 0..300, b"old"));
    db.flush().expect("compacted");
    evict_all(&db, &backing);
    let [left, right] = &keyspaces;
    let root = left.keyspace().version().levels[1].active.expect("a tree");
    backing.hold_next(unit_of(last_leaf(left, root)));
    keyspaces.iter().for_each(|keyspace| put(keyspace, 0..300, b"new"));
    begin_to_compact(&db, left);
    assert!(backing.wait_for_read(|| !left.keyspace().has_immutable()));
    begin_to_compact(&db, right);
    wait_until("it waits for the other one", || !right.keyspace().has_immutable());
    assert!(left.keyspace().has_immutable());
    backing.go_on();
    wait_until("it goes on", || !left.keyspace().has_immutable());
    let is_new =
        |number| keyspaces.iter().all(|keyspace| keyspace.get(&key(number)).expect("read").as_deref() == Some(b"new"));
    assert!((0..300).all(is_new));
}

#[test]
fn a_level_takes_compactions_while_it_is_compacted_itself() {
    let backing = Arc::new(FailingBacking::new(128 << 20));
    let options = options().compaction_threads(2).growth_factor(2);
    let db = Db::create_on(Arc::clone(&backing), options.clone()).expect("a store");
    let (home, keyspace) = (&db.default_keyspace().open().unwrap().home, db.default_keyspace().keyspace());
    let trees = || keyspace.version().levels;
    let mut expected = std::collections::BTreeMap::new();
    // Less than a full memtable: no thread flushes it.
    let mut put_some = |round: u64| {
        let numbers = (0..300).map(|number| (number * 7 + round * 13) % 5000);
        put(&db, numbers.clone(), &round.to_le_bytes());
        expected.extend(numbers.map(|number| (number, round)));
        assert!(keyspace.rotate_memtable());
        expected.clone()
    };
    let compaction = || keyspace.begin_compaction(Due::Full).filter(Compaction::is_flush);
    let check = |db: &Db, expected: &std::collections::BTreeMap<u64, u64>| {
        for (number, round) in expected {
            assert_eq!(db.get(&key(*number)).expect("read"), Some(round.to_le_bytes().to_vec()));
        }
        assert_eq!(db.scan(..).keys().count(), expected.len());
    };
    let held = (0..).find_map(|round| {
        put_some(round);
        home.finish_compaction(compaction().expect("the memory is due")).expect("compacted");
        keyspace.begin_compaction(Due::Full)
    });
    let held = held.expect("the level is full");
    let compacting = trees()[1].compacting;
    assert!(compacting.is_some() && trees()[1].active.is_none());
    let mut all = Default::default();
    for round in 100..104 {
        all = put_some(round);
        home.finish_compaction(compaction().expect("the memory is due")).expect("compacted");
        assert!(trees()[1].active.is_some() && trees()[1].compacting == compacting);
        check(&db, &all);
    }
    assert!(keyspace.begin_compaction(Due::Full).is_none(), "the level is full again, but not compacted yet");
    let committed = home.segment.keyspaces().into_iter().find(|entry| entry.number == keyspace.number);
    assert_eq!(committed.map(|entry| entry.levels), Some(trees()), "the commit says the same");
    let last = compacting.map(|root| root.entries);
    home.finish_compaction(held).expect("compacted");
    assert_eq!((trees()[1].compacting, trees()[2].active.map(|root| root.entries)), (None, last));
    check(&db, &all);
    // Entries that have come in meanwhile are next.
    home.finish_compaction(keyspace.begin_compaction(Due::Full).expect("the level is full")).expect("compacted");
    assert!(trees()[1].active.is_none());
    check(&db, &all);
    db.close().expect("closed");
    check(&Db::open_on(backing, options).expect("opened"), &all);
}

#[test]
fn when_a_part_fails_all_parts_give_back_their_blocks() {
    let backing = Arc::new(FailingBacking::new(128 << 20));
    let options = options().compaction_threads(3).growth_factor(100);
    let db = Db::create_on(Arc::clone(&backing), options).expect("a store");
    put(&db, 0..9000, b"old");
    db.flush().expect("compacted");
    let keyspace = db.default_keyspace().keyspace();
    let root = keyspace.version().levels[1].active.expect("a tree");
    assert!(root.blocks > 40, "{root:?}");
    evict_all(&db, &backing);
    // All leaves but the last ones are in memory.
    assert!((0..8000).all(|number| db.contains(&key(number)).expect("read")));
    backing.fail(Some(unit_of(last_leaf(&db, root))));
    put(&db, (0..9000).step_by(30), b"new");
    let taken_blocks = || db.default_keyspace().open().unwrap().home.segment.allocator().taken_blocks();
    // The compaction before may still be freeing the blocks that it has replaced.
    wait_for_compactions(&db.default_keyspace().open().unwrap().home);
    let before = taken_blocks();
    begin_to_compact(&db, &db);
    wait_until("the compaction has not failed", || keyspace.has_failed());
    wait_for_compactions(&db.default_keyspace().open().unwrap().home);
    assert_eq!(taken_blocks(), before);
    backing.fail(None);
    // The cache remembers a failed read as long as the page is in memory.
    evict_all(&db, &backing);
    for number in 0..9000 {
        let expected: &[u8] = if number % 30 == 0 { b"new" } else { b"old" };
        assert_eq!(db.get(&key(number)).expect("read").as_deref(), Some(expected));
    }
}

/// An entry that is replaced says where its value is: if that cannot be read, the merge fails at its end.
#[test]
fn a_merge_that_fails_at_its_end_frees_its_tree() {
    let backing = Arc::new(FailingBacking::new(256 << 20));
    let db = Db::create_on(Arc::clone(&backing), options().compaction_threads(1)).expect("a store");
    let keyspace = db.default_keyspace();
    keyspace.put(b"00000000x", &vec![7; 2 << 20]).expect("space");
    put(keyspace, 0..20_000, b"old");
    db.flush().expect("compacted");
    db.collect_garbage().expect("merged");
    keyspace.delete(b"00000000x").expect("space");
    db.flush().expect("compacted");
    let home = &db.default_keyspace().open().unwrap().home;
    let head = {
        let allocator = home.segment.allocator();
        let of_values = allocator.units().filter(|(_, of)| of.purpose == Purpose::Extents);
        of_values.map(|(unit, _)| unit).last().expect("a large value")
    };
    evict_all(&db, &backing);
    backing.fail(Some(head));
    let mut failures = 0;
    for round in 0..100_u64 {
        let numbers = (0..360).map(|place| (place * 55 + round * 13) % 20_000);
        put(keyspace, numbers, b"new");
        let _ = db.flush();
        // Nothing else runs: the blocks taken now are those taken after a failed merge.
        wait_for_compactions(home);
        let before = home.segment.allocator().taken_blocks();
        // A failed keyspace rests, except for an explicit merge of everything.
        if home.merge_all(keyspace.keyspace()).is_err() {
            failures += 1;
            wait_for_compactions(home);
            assert_eq!(home.segment.allocator().taken_blocks(), before, "round {round}");
        }
        if failures == 3 {
            return;
        }
    }
    panic!("{failures} merges have failed");
}

/// Sequence numbers grow for all keyspaces of a segment, also while one of them has nothing to do.
#[test]
fn a_keyspace_that_was_idle_for_long_takes_writes() {
    let disk = Arc::new(MemoryBacking::new(64 << 20).expect("memory"));
    let options = || Options::new().memory_bytes(32 << 20);
    let db = Db::create_on(Arc::clone(&disk), options()).expect("a store");
    let (busy, idle) = (db.keyspace_or_create("busy").expect("space"), db.keyspace_or_create("idle").expect("space"));
    busy.put(b"a", b"1").expect("space");
    db.flush().expect("space");
    busy.keyspace().log.skip_numbers(1 << 46);
    busy.put(b"b", b"2").expect("space");
    db.flush().expect("space");
    drop((busy, idle));
    db.close().expect("written");
    let db = Db::open_on(Arc::clone(&disk), options()).expect("it is whole");
    let (busy, idle) = (db.keyspace("busy").expect("there"), db.keyspace("idle").expect("there"));
    assert_eq!(busy.get(b"b").expect("read"), Some(b"2".to_vec()));
    busy.put(b"c", b"3").expect("space");
    db.flush().expect("space");
    busy.keyspace().log.skip_numbers(1 << 47);
    let snapshot = db.snapshot();
    idle.put(b"d", b"4").expect("space");
    assert_eq!(snapshot.keyspace("idle").expect("there").get(b"d").expect("read"), None);
    db.flush().expect("space");
    idle.put(b"e", b"5").expect("space");
    drop((snapshot, busy, idle));
    db.close().expect("written");
    let db = Db::open_on(disk, options()).expect("it is whole");
    let idle = db.keyspace("idle").expect("there");
    assert_eq!(
        (idle.get(b"d").expect("read"), idle.get(b"e").expect("read")),
        (Some(b"4".to_vec()), Some(b"5".to_vec()))
    );
}

#[test]
fn a_flush_retries_after_it_has_found_no_space() {
    let db = Db::create_on(MemoryBacking::new(64 << 20).expect("memory"), options()).expect("a store");
    (0..100).for_each(|number| db.put(&key(number), b"value").expect("space"));
    let segment = Arc::clone(&db.default_keyspace().open().unwrap().home.segment);
    let held: Vec<u64> = std::iter::from_fn(|| segment.take_chunk().ok()).collect();
    assert!(matches!(db.flush(), Err(Error::Full { .. })), "{} chunks are held", held.len());
    held.into_iter().for_each(|offset| segment.allocator().free(Freed { offset, blocks: ALLOCATION_UNIT_BLOCKS }));
    db.flush().expect("there is space again");
}
