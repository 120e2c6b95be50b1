//! Checkpoints: copies of one moment, by a clone of the file or of the records, that open at once.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::support::{assert_sound, options};
use vmio::backing::{Access, FileBacking};
use vmio_kv::{Db, Durability, Error, Options, SegmentHandle, WriteBatch};

/// The tests of the command mount file systems as well.
#[allow(dead_code, reason = "those tests need all of it")]
#[path = "../../vmio-cli/tests/common/disk.rs"]
mod disk;

use disk::{Disk, FileSystem};

const MIB: usize = 1 << 20;
const KEYS: u32 = 300;
/// Checkpoints during the writes, and writes to each.
const ROUNDS: u64 = 4;
const WRITES: u64 = 100;

fn succeeded(command: &mut Command) -> Result<String, Box<dyn std::error::Error>> {
    let output = command.output()?;
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

fn volatile() -> Options {
    options()
        .memory_bytes(48 << 20)
        .memtable_bytes(128 << 10)
        .volume_bytes(192 << 20)
        .max_volume_bytes(1 << 30)
        .durability(Durability::None)
}

/// Puts the same number under all keys of two keyspaces, and now and then a large value of it.
fn write(db: &Db, number: u64) {
    let other = db.keyspace("other").unwrap();
    let mut batch = WriteBatch::new();
    for key in 0..KEYS {
        let keyspace = if key % 2 == 0 { db.default_keyspace() } else { &other };
        batch.put(keyspace, &key.to_be_bytes(), &number.to_le_bytes().repeat(20)).unwrap();
    }
    db.write(&batch).unwrap();
    if number.is_multiple_of(8) {
        db.keyspace("large").unwrap().put(b"large", &number.to_le_bytes().repeat(MIB / 8)).unwrap();
    }
}

fn create(path: &Path) -> Db {
    let db = Db::create(path, volatile()).unwrap();
    db.keyspace_or_create("other").unwrap();
    // In another segment, with a log of its own.
    db.create_segment().unwrap().keyspace_or_create("large").unwrap();
    write(&db, 0);
    db
}

/// The number that all keys of the copy have.
fn number_in(path: &Path) -> u64 {
    assert_sound(FileBacking::open(path, Access::ReadOnly).unwrap(), &options(), "a checkpoint");
    let db = Db::open(path, volatile()).unwrap();
    let scans = [db.scan(..), db.keyspace("other").unwrap().scan(..)];
    let values: Vec<Vec<u8>> = scans.into_iter().flatten().map(|record| record.unwrap().1).collect();
    assert_eq!(values.len(), KEYS as usize);
    assert!(values.iter().all(|value| *value == values[0]), "a batch was copied in part");
    let large = db.keyspace("large").unwrap().get(b"large").unwrap().unwrap();
    assert_eq!(large, large[..8].repeat(MIB / 8));
    // It is a store like any other.
    db.put(b"new", b"value").unwrap();
    db.flush().unwrap();
    db.close().unwrap();
    u64::from_le_bytes(values[0][..8].try_into().unwrap())
}

fn check_while_writers_go_on(folder: &Path) {
    let db = create(&folder.join("store"));
    // How many writes there may be and are: no more than the disk has space for.
    let (allowed, written) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for number in 1..=ROUNDS * WRITES {
                assert!(test_depth::comes_true(|| number <= allowed.load(Ordering::Acquire)), "no checkpoint ends");
                write(&db, number);
                written.store(number, Ordering::Release);
            }
        });
        let copy = folder.join("copy");
        for round in 0..ROUNDS {
            allowed.fetch_add(WRITES, Ordering::Release);
            let is_under_way = || written.load(Ordering::Acquire) > round * WRITES + 3 || writer.is_finished();
            assert!(test_depth::comes_true(is_under_way), "nobody writes");
            let before = written.load(Ordering::Acquire);
            db.checkpoint(&copy).unwrap();
            let number = number_in(&copy);
            assert!(number >= before, "{number} is older than {before}, which was written before the call");
            std::fs::remove_file(&copy).unwrap();
        }
    });
    db.close().unwrap();
    assert_sound(FileBacking::open(folder.join("store"), Access::ReadOnly).unwrap(), &options(), "the store");
}

#[test]
fn a_copy_of_the_records_shows_one_moment() {
    // On a file system that clones no files, where there is one.
    let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    check_while_writers_go_on(folder.path());
}

#[test]
fn a_clone_of_the_file_shows_one_moment() {
    let folder = tempfile::tempdir().unwrap();
    let Some(disk) = Disk::new(folder.path(), FileSystem::Xfs).unwrap() else { return };
    check_while_writers_go_on(disk.path());
}

#[test]
fn a_clone_takes_no_space_and_ends_in_its_file_system() {
    let folder = tempfile::tempdir().unwrap();
    let Some(disk) = Disk::new(folder.path(), FileSystem::Xfs).unwrap() else { return };
    let db = Db::create(disk.path().join("store"), volatile()).unwrap();
    (0..40_u32).for_each(|key| db.put(&key.to_be_bytes(), &vec![key as u8; 2 * MIB]).unwrap());
    db.flush().unwrap();
    let free = || {
        let found = rustix::fs::statvfs(disk.path()).unwrap();
        found.f_bfree * found.f_frsize
    };
    let (before, clone) = (free(), disk.path().join("clone"));
    db.checkpoint(&clone).unwrap();
    assert!(free() + (8 << 20) > before, "{} bytes were taken", before - free());
    assert!(std::fs::metadata(&clone).unwrap().blocks() * 512 > 80 << 20);
    // Both change on their own.
    db.put(b"apple", b"red").unwrap();
    let copied = Db::open(&clone, options()).unwrap();
    assert_eq!(copied.recovery().records, 0);
    assert_eq!(copied.get(b"apple").unwrap(), None);
    copied.put(&7_u32.to_be_bytes(), b"7").unwrap();
    copied.close().unwrap();
    assert_eq!(db.get(&7_u32.to_be_bytes()).unwrap(), Some(vec![7; 2 * MIB]));
    // Into another file system go the records.
    let elsewhere = folder.path().join("elsewhere");
    db.checkpoint(&elsewhere).unwrap();
    assert_eq!(Db::open(&elsewhere, options()).unwrap().get(b"apple").unwrap().as_deref(), Some(&b"red"[..]));
    db.close().unwrap();
}

#[test]
fn a_checkpoint_has_all_segments_and_overwrites_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (path, copy) = (folder.path().join("store"), folder.path().join("copy"));
    let db = create(&path);
    db.create_segment().unwrap();
    let segments = |db: &Db| -> Vec<Vec<String>> {
        let names = |segment: SegmentHandle| segment.keyspace_names().unwrap();
        db.segments().unwrap().into_iter().map(names).collect()
    };
    std::fs::write(&copy, "mine").unwrap();
    let refused = db.checkpoint(&copy).unwrap_err();
    assert!(matches!(&refused, Error::FileExists { path } if *path == copy.display().to_string()), "{refused}");
    assert_eq!(std::fs::read(&copy).unwrap(), b"mine");
    std::fs::remove_file(&copy).unwrap();
    db.checkpoint(&copy).unwrap();
    let expected = segments(&db);
    db.close().unwrap();
    let opened = Db::open(&copy, options().read_only(true)).unwrap();
    assert_eq!((opened.recovery().records, segments(&opened)), (0, expected));
    // Of a store that is only read, too.
    let second = folder.path().join("second");
    opened.checkpoint(&second).unwrap();
    assert_eq!(number_in(&second), 0);
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
    assert_eq!(left.len(), 3, "{left:?}");
}
