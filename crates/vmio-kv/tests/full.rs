//! A full store is opened, deleted from, closed and killed again and again, and loses nothing: openings take space as well.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use vmio::backing::{Access, Backing, MemoryBacking};
use vmio_kv::{Db, Durability, Error, Options};

/// A process's view of the disk: once the process is killed, nothing more reaches the disk.
struct OfProcess {
    disk: Arc<MemoryBacking>,
    is_killed: Arc<AtomicBool>,
}

impl OfProcess {
    fn check(&self) -> io::Result<()> {
        if self.is_killed.load(Ordering::SeqCst) { Err(io::Error::other("the process is gone")) } else { Ok(()) }
    }
}

impl Backing for OfProcess {
    fn len(&self) -> u64 {
        self.disk.len()
    }

    fn access(&self) -> Access {
        self.disk.access()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.disk.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.check()?;
        self.disk.write_at(offset, data)
    }

    fn flush(&self) -> io::Result<()> {
        self.check()
    }

    fn set_len(&self, _len: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn discard(&self, _range: Range<u64>) -> io::Result<()> {
        Ok(())
    }

    fn describe(&self) -> String {
        "disk".to_owned()
    }
}

fn options() -> Options {
    crate::support::options().memory_bytes(32 << 20).memtable_bytes(64 << 10).compaction_threads(1).growth_factor(2)
}

fn key(number: u64) -> Vec<u8> {
    format!("{number:08}").into_bytes()
}

fn openings_of_a_full_store(ends_by_a_kill: bool) {
    let disk = Arc::new(MemoryBacking::new(64 << 20).unwrap());
    let open = |is_killed: &Arc<AtomicBool>| {
        let backing = OfProcess { disk: Arc::clone(&disk), is_killed: Arc::clone(is_killed) };
        Db::open_on(backing, options())
    };
    let db = Db::create_on(Arc::clone(&disk), options()).unwrap();
    let puts =
        (0..).take_while(|number| db.put_with(&key(*number), &[1; 5000], Durability::None).is_ok()).count() as u64;
    db.flush().unwrap();
    db.collect_garbage().unwrap();
    db.close().unwrap();
    let mut deleted = Vec::new();
    for round in 0..40 {
        let is_killed = Arc::new(AtomicBool::new(false));
        let db = open(&is_killed).unwrap_or_else(|error| panic!("round {round}: {error}"));
        match db.delete(&key(round * 7)) {
            Ok(()) => deleted.push(round * 7),
            Err(Error::Full { .. }) => {}
            Err(error) => panic!("round {round}: {error}"),
        }
        if ends_by_a_kill {
            is_killed.store(true, Ordering::SeqCst);
            drop(db);
        } else {
            db.close().unwrap();
        }
    }
    // The test would be useless if no put succeeded.
    assert!(!deleted.is_empty(), "no deletion");
    let db = open(&Arc::default()).unwrap();
    for number in 0..puts {
        assert_eq!(db.get(&key(number)).unwrap().is_some(), !deleted.contains(&number), "key {number}");
    }
    db.close().unwrap();
    crate::support::assert_sound(disk, &options(), "after all openings");
}

#[test]
fn a_full_store_is_opened_and_closed_again_and_again() {
    openings_of_a_full_store(false);
}

#[test]
fn a_full_store_is_opened_and_killed_again_and_again() {
    openings_of_a_full_store(true);
}

#[test]
fn a_new_store_of_any_length_takes_puts() {
    for (mebibytes, memory) in
        [(32, 32), (32, 256), (36, 256), (48, 256), (48, 1024), (64, 512), (64, 1024), (128, 4096)]
    {
        let disk = MemoryBacking::new(mebibytes << 20).unwrap();
        let db = Db::create_on(disk, crate::support::options().memory_bytes(memory << 20)).unwrap();
        let put = |number: u64| db.put_with(&key(number), &[1; 1000], Durability::None);
        (0..1000).for_each(|number| put(number).unwrap_or_else(|error| panic!("{mebibytes}, {memory}: {error}")));
        db.close().unwrap();
    }
}
