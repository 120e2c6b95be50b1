//! The file system of a store's file is full, though its volume is not. Puts are refused; deletions and collections go on in reserved
//! space; once there is space again, puts go on.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

use crate::support::assert_sound;
use vmio::backing::{Access, Backing, FileBacking, MemoryBacking};
use vmio_kv::{Db, Durability, Error, FullPlace, Options};

const MIB: u64 = 1 << 20;
const UNIT: u64 = 2 * MIB;
const VOLUME_BYTES: u64 = 192 * MIB;

/// A file of a file system with little space: a write needs allocated space.
#[derive(Clone)]
struct Sparse {
    memory: Arc<MemoryBacking>,
    space: Arc<Mutex<Space>>,
}

struct Space {
    units_max: usize,
    /// Units that have space.
    allocated: BTreeSet<u64>,
}

impl Sparse {
    fn new(units_max: usize) -> Self {
        let space = Space { units_max, allocated: BTreeSet::new() };
        Sparse { memory: Arc::new(MemoryBacking::new(VOLUME_BYTES).unwrap()), space: Arc::new(Mutex::new(space)) }
    }

    fn set_units_max(&self, units_max: usize) {
        self.space.lock().unwrap().units_max = units_max;
    }

    fn units(&self) -> usize {
        self.space.lock().unwrap().allocated.len()
    }
}

impl Backing for Sparse {
    fn len(&self) -> u64 {
        self.memory.len()
    }

    fn access(&self) -> Access {
        self.memory.access()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.memory.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let space = self.space.lock().unwrap();
        let mut units = offset / UNIT..(offset + data.len() as u64).div_ceil(UNIT);
        assert!(units.all(|unit| space.allocated.contains(&unit)), "{offset}: a write to a hole may find no space");
        self.memory.write_at(offset, data)
    }

    fn flush(&self) -> io::Result<()> {
        self.memory.flush()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.memory.set_len(len)
    }

    fn discard(&self, range: Range<u64>) -> io::Result<()> {
        let mut space = self.space.lock().unwrap();
        (range.start / UNIT..range.end / UNIT).for_each(|unit| _ = space.allocated.remove(&unit));
        Ok(())
    }

    fn allocate(&self, range: Range<u64>) -> io::Result<()> {
        let mut space = self.space.lock().unwrap();
        for unit in range.start / UNIT..range.end / UNIT {
            if !space.allocated.contains(&unit) && space.allocated.len() >= space.units_max {
                return Err(io::Error::from_raw_os_error(libc::ENOSPC));
            }
            space.allocated.insert(unit);
        }
        Ok(())
    }

    fn describe(&self) -> String {
        "sparse".to_owned()
    }
}

fn options() -> Options {
    crate::support::options()
        .memory_bytes(32 * MIB)
        .memtable_bytes(256 << 10)
        .compaction_threads(1)
        .max_volume_bytes(VOLUME_BYTES)
        .durability(Durability::None)
}

fn value(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(500)
}

fn key(number: u64) -> [u8; 8] {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
}

/// Puts until the file system has no space; returns the number of the first that was refused.
fn fill(db: &Db, first: u64) -> u64 {
    for number in first.. {
        match db.put(&key(number), &value(number)) {
            Ok(()) => {}
            Err(Error::Full { place: FullPlace::FileSystem, .. }) => return number,
            Err(error) => panic!("number {number}: {error}"),
        }
    }
    unreachable!()
}

fn assert_there(db: &Db, numbers: impl Iterator<Item = u64>) {
    numbers.for_each(|number| {
        assert!(db.get(&key(number)).unwrap().is_some_and(|found| found == value(number)), "{number}")
    });
}

/// Fills the file system, deletes, opens the store again, collects, and goes on once there is space, which `free` makes.
fn lives_through_a_full_file_system(open: impl Fn(bool) -> Db, free: impl FnOnce()) {
    let db = open(true);
    let end = fill(&db, 0);
    assert!(end > 1000, "{end} puts");
    assert!(db.stats().unwrap().volume_bytes <= VOLUME_BYTES, "a longer volume has no space either");
    assert_there(&db, 0..end);
    // A second opening changes nothing.
    for number in 0..200 {
        db.delete(&key(number)).unwrap_or_else(|error| panic!("deletion {number}: {error}"));
    }
    db.sync().unwrap();
    db.close().unwrap();
    let db = open(false);
    (0..200).for_each(|number| assert!(db.get(&key(number)).unwrap().is_none()));
    for number in 200..end - 1000 {
        db.delete(&key(number)).unwrap_or_else(|error| panic!("deletion {number}: {error}"));
    }
    assert_there(&db, end - 1000..end);
    // The space of the deleted records is enough for more.
    db.collect_garbage().unwrap();
    let again = fill(&db, end);
    assert!(again > end + 1000, "{} puts in what was deleted", again - end);
    assert_there(&db, end - 1000..again);
    free();
    // The same store, without another opening.
    (again..again + 1000).for_each(|number| db.put(&key(number), &value(number)).unwrap());
    db.put(b"large", &vec![7; 5 << 20]).unwrap();
    assert_there(&db, end - 1000..again + 1000);
    db.close().unwrap();
    let db = open(false);
    assert_there(&db, end - 1000..again + 1000);
    db.close().unwrap();
}

#[test]
fn space_is_allocated_before_it_is_written_to() {
    let file = Sparse::new(40);
    let open = |is_new| {
        let open = if is_new { Db::create_on } else { Db::open_on };
        open(file.clone(), options()).unwrap()
    };
    lives_through_a_full_file_system(open, || file.set_units_max(60));
    assert_sound(file.memory.clone(), &options(), "closed");
}

/// Reserved units keep their space while others fill the file system, and other free units lose it.
#[test]
fn reserved_units_keep_their_space() {
    let file = Sparse::new(usize::MAX);
    let db = Db::create_on(file.clone(), options()).unwrap();
    let at_first = file.units();
    (0..20_000).for_each(|number| db.put(&key(number), &value(number)).unwrap());
    (0..20_000).for_each(|number| db.delete(&key(number)).unwrap());
    db.collect_garbage().unwrap();
    // Taken units, the reserve, and twice the free units that are collected before a discard.
    let taken = (db.stats().unwrap().space_bytes / UNIT) as usize;
    assert!(
        file.units() <= taken + at_first + 16,
        "{} units of which {taken} are taken, and {at_first} at first",
        file.units()
    );
    file.set_units_max(0);
    (0..100).for_each(|number| db.delete(&key(number)).unwrap());
    db.collect_garbage().unwrap();
    db.close().unwrap();
}

/// A small file system, mounted until it is dropped.
struct Disk(PathBuf);

impl Disk {
    /// `None` if this user may not mount one.
    fn new(folder: &Path, mount: &[&str]) -> Option<Self> {
        let place = folder.join("disk");
        std::fs::create_dir(&place).unwrap();
        let done = Command::new("mount").args(mount).arg(&place).status();
        if !done.is_ok_and(|status| status.success()) {
            test_depth::skipped("no file system can be mounted");
            return None;
        }
        Some(Disk(place))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

fn on_a_real_one(folder: &Path, mount: &[&str]) {
    let Some(disk) = Disk::new(folder, mount) else { return };
    let (store, ballast) = (disk.0.join("store"), disk.0.join("ballast"));
    let file = File::create(&ballast).unwrap();
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, 30 * MIB).unwrap();
    let open =
        |is_new| if is_new { Db::create(&store, options()).unwrap() } else { Db::open(&store, options()).unwrap() };
    lives_through_a_full_file_system(open, || {
        file.set_len(0).unwrap();
        file.sync_all().unwrap();
    });
    assert!(std::fs::metadata(&store).unwrap().blocks() * 512 < VOLUME_BYTES / 2 + 60 * MIB);
    assert_sound(FileBacking::open(&store, Access::ReadOnly).unwrap(), &options(), "closed");
}

#[test]
fn a_full_ext4() {
    // In memory if possible: it is flushed again and again.
    let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let image = folder.path().join("image");
    File::create(&image).unwrap().set_len(130 * MIB).unwrap();
    let made = Command::new("mkfs.ext4").args(["-q", "-F", "-m", "0"]).arg(&image).status();
    if !made.is_ok_and(|status| status.success()) {
        return test_depth::skipped("mkfs.ext4 is not installed");
    }
    on_a_real_one(folder.path(), &["-o", "loop", image.to_str().unwrap()]);
}

#[test]
fn a_full_tmpfs() {
    let folder = tempfile::tempdir().unwrap();
    on_a_real_one(folder.path(), &["-t", "tmpfs", "-o", "size=110m", "vmio-test"]);
}
