//! A hash map of plain structs that lives in a file and survives a crash at any instant: loads and stores on a mapping, and
//! a commit where the map is consistent. Nothing in it knows of logs or recovery.
//!
//!     cargo run --example persistent_map -- FOLDER          # counts up until it is stopped; try kill -9
//!     cargo run --example persistent_map -- FOLDER check    # says what is there
#![allow(missing_docs)]

use std::mem::size_of;
use std::path::Path;

use vmio::backing::{Access, FileBacking};
use vmio::journal::{Journal, JournalOptions};
use vmio::{Cache, Mapping, MappingOptions};

const SLOTS: u64 = 1 << 16;
const JOURNAL_BYTES: u64 = 64 << 20;

/// How many entries there are, and what they add up to.
#[derive(Clone, Copy)]
#[repr(C)]
struct Header {
    entries: u64,
    sum: u64,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Entry {
    /// 0 for a slot that is free.
    key: u64,
    count: u64,
}

/// Maps keys above 0 to counts.
struct PersistentMap {
    mapping: Mapping,
}

impl PersistentMap {
    const BYTES: u64 = (size_of::<Header>() + SLOTS as usize * size_of::<Entry>()) as u64;

    /// Opens the map in a folder as the last commit left it, or a new one.
    fn open(folder: &Path) -> vmio::Result<Self> {
        let (log, data) = (folder.join("journal"), folder.join("map"));
        let journal = if log.exists() {
            let (journal, recovered) = Journal::open_file(&log, JournalOptions::new())?;
            println!("recovered to commit {}: {} pages", recovered.last_commit, recovered.pages_replayed);
            journal
        } else {
            Journal::create_file(&log, JOURNAL_BYTES, JournalOptions::new())?
        };
        let file = if data.exists() {
            FileBacking::open(&data, Access::ReadWrite)?
        } else {
            FileBacking::create(&data, Self::BYTES)?
        };
        let cache = Cache::builder().capacity(8 << 20).build()?;
        Ok(PersistentMap { mapping: Mapping::open(&cache, file, MappingOptions::new().atomic(&journal))? })
    }

    fn header(&mut self) -> &mut Header {
        // SAFETY: the mapping starts with a header, any bytes are one, and the borrow of self keeps other references away.
        unsafe { &mut *self.mapping.as_mut_ptr().cast() }
    }

    fn slot(&mut self, slot: u64) -> &mut Entry {
        let offset = size_of::<Header>() + (slot % SLOTS) as usize * size_of::<Entry>();
        // SAFETY: as above; the entry lies within the mapping, aligned.
        unsafe { &mut *self.mapping.as_mut_ptr().add(offset).cast() }
    }

    /// The entry of a key, or the free slot where it belongs.
    fn find(&mut self, key: u64) -> &mut Entry {
        let first = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let found = (first..first + SLOTS).find(|slot| [0, key].contains(&self.slot(*slot).key));
        self.slot(found.expect("a slot is free"))
    }

    fn get(&mut self, key: u64) -> u64 {
        self.find(key).count
    }

    /// Adds to a key's count: three stores, in two pages.
    fn add(&mut self, key: u64, amount: u64) {
        let entry = self.find(key);
        let is_new = entry.key == 0;
        entry.key = key;
        entry.count += amount;
        let header = self.header();
        header.entries += u64::from(is_new);
        header.sum += amount;
    }

    /// Makes all that was added since the last commit durable, or none of it.
    fn commit(&self) -> vmio::Result<u64> {
        self.mapping.commit()
    }

    /// Whether the header is true of the entries.
    fn check(&mut self) -> bool {
        let mut found = Header { entries: 0, sum: 0 };
        for slot in 0..SLOTS {
            let Entry { key, count } = *self.slot(slot);
            found.entries += u64::from(key != 0);
            found.sum += count;
        }
        let header = *self.header();
        println!("{} entries that add up to {} after {} rounds", found.entries, found.sum, self.get(1));
        (found.entries, found.sum) == (header.entries, header.sum)
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let folder = arguments.first().ok_or("usage: persistent_map FOLDER [check]")?;
    run(Path::new(folder), arguments.len() > 1)
}

/// Counts up for ever, or says whether the map is consistent.
pub fn run(folder: &Path, checks: bool) -> Result<(), Box<dyn std::error::Error>> {
    let mut map = PersistentMap::open(folder)?;
    if checks {
        return if map.check() { Ok(()) } else { Err("the map is not consistent".into()) };
    }
    for round in 1.. {
        // Key 1 counts the rounds; the others are anywhere in the file.
        map.add(1, 1);
        let rounds = map.get(1);
        for step in 0..100 {
            map.add(2 + (rounds * 7919 + step * step * 104_729) % (SLOTS / 2), step);
        }
        if round % 3 == 0 {
            map.commit()?;
            println!("committed {rounds}");
        }
    }
    Ok(())
}
