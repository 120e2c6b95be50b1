//! A collection and a compaction at its worst moment.

use std::thread;
use std::time::{Duration, Instant};

use vmio::backing::MemoryBacking;

use super::*;
use crate::keyspace::Due;
use crate::{Db, Durability, Options};

/// A flush is committed and its levels are not visible yet: its records are in no level that a collection looks at.
#[test]
fn a_chunk_stays_between_the_commit_of_a_compaction_and_its_publication() {
    const KEYS: u32 = 3000;
    let options = Options::new().memory_bytes(32 << 20).memtable_bytes(1 << 20).durability(Durability::None);
    let db = Db::create_on(MemoryBacking::new(128 << 20).expect("memory"), options).expect("a store");
    (0..KEYS).for_each(|number| db.put(&number.to_be_bytes(), &[1; 1000]).expect("space"));
    db.sync().expect("written");
    let open = db.default_keyspace().open().expect("open");
    let (home, keyspace) = (&open.home, &open.keyspace);
    let chunk = home.log.chunks_to_read_back()[0];
    assert!(!home.log.open_chunks().contains(&chunk));
    assert!(keyspace.rotate_memtable());
    let compaction = keyspace.begin_compaction(Due::Full).expect("the memory is due");
    // A writer delays the publication.
    let turn = keyspace.begin_write().expect("a turn");
    let epoch = home.segment.epoch();
    thread::scope(|scope| {
        let compacted = scope.spawn(|| home.finish_compaction(compaction));
        let began = Instant::now();
        while home.segment.epoch() == epoch {
            assert!(began.elapsed() < Duration::from_secs(60), "it is committed");
            thread::yield_now();
        }
        let emptied = scope.spawn(|| home.move_live_records(unit_of(chunk)));
        // A collection that does not wait for the publication would end in this time.
        thread::sleep(Duration::from_millis(200));
        drop(turn);
        compacted.join().expect("no panic").expect("compacted");
        assert!(emptied.join().expect("no panic").expect("read"), "all of it was moved");
    });
    let mut state = home.collecting();
    state.emptied.push((unit_of(chunk), home.segment.merges.moment()));
    assert!(home.give_up_emptied(&mut state, 1).expect("committed"));
    drop(state);
    (0..KEYS).for_each(|number| {
        assert!(db.get(&number.to_be_bytes()).expect("read").is_some(), "{number}");
    });
}
