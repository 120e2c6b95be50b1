//! Backups and what is restored from them: all of one moment, or an error and no store.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::{Random, assert_sound, options};
use vmio::backing::{Access, FileBacking};
use vmio_kv::{Damage, Db, Durability, Error, KEY_BYTES_MAX, Options, WriteBatch, restore};

/// The contents of each keyspace, by segment and name.
type Model = BTreeMap<(u32, String), BTreeMap<Vec<u8>, Vec<u8>>>;

const MIB: usize = 1 << 20;

fn volatile() -> Options {
    options().memory_bytes(64 << 20).volume_bytes(512 << 20).max_volume_bytes(1 << 30).durability(Durability::None)
}

fn contents(db: &Db) -> Model {
    let of_keyspace = |name: String| {
        let keyspace = db.keyspace(&name).unwrap();
        ((keyspace.segment(), name), keyspace.scan(..).map(Result::unwrap).collect())
    };
    db.keyspace_names().unwrap().into_iter().map(of_keyspace).collect()
}

fn backup(db: &Db) -> Vec<u8> {
    let mut stream = Vec::new();
    let counts = db.backup(&mut stream, |_| {}).unwrap();
    assert_eq!(counts.stream_bytes, stream.len() as u64);
    stream
}

/// The contents of the store that a backup restores, which must be sound.
fn restored(stream: &[u8], folder: &Path) -> Result<Model, Error> {
    let path = folder.join("restored");
    restore(stream, &path, options(), |_| {})?;
    assert_sound(FileBacking::open(&path, Access::ReadOnly).unwrap(), &options(), "restored");
    let db = Db::open(&path, options()).unwrap();
    assert_eq!(db.recovery().records, 0, "an opening reads nothing back");
    let model = contents(&db);
    db.close().unwrap();
    std::fs::remove_file(&path).unwrap();
    Ok(model)
}

fn files(folder: &Path) -> Vec<String> {
    let name = |entry: io::Result<std::fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
    std::fs::read_dir(folder).unwrap().map(name).collect()
}

/// Values of all lengths at which something changes: empty, the longest beside its key and the next, whole parts and not.
fn value(random: &mut Random, number: u64) -> Vec<u8> {
    let bytes = match number {
        0 => 0,
        1 => 256 << 10,
        2 => (256 << 10) + 1,
        3 => MIB,
        4 => 2 * MIB + 1,
        5 => 3 * MIB - 1,
        _ => random.below(300) as usize,
    };
    (0..bytes).map(|at| (at >> 12) as u8 ^ (at as u8) ^ number as u8).collect()
}

fn key(number: u64) -> Vec<u8> {
    match number {
        0 => vec![0],
        1 => vec![0xff; KEY_BYTES_MAX],
        2 => [vec![0xff; KEY_BYTES_MAX - 1], vec![0]].concat(),
        3 => [b"long".repeat(4000), b"a".to_vec()].concat(),
        4 => [b"long".repeat(4000), b"b".to_vec()].concat(),
        _ => number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()[..1 + number as usize % 8].to_vec(),
    }
}

#[test]
fn a_restored_store_has_all_that_the_backup_shows() {
    let folder = tempfile::tempdir().unwrap();
    let db = Db::create(folder.path().join("store"), volatile().memtable_bytes(256 << 10)).unwrap();
    let (mut model, mut random) = (Model::new(), Random(7));
    let segments = [db.segment(0).unwrap(), db.create_segment().unwrap(), db.create_segment().unwrap()];
    model.insert((0, "default".to_owned()), BTreeMap::new());
    for name in ["z", "a", &"n".repeat(64), "ключи", "none", "default"] {
        // The last segment has no keyspace.
        let segment = if name == "default" { 0 } else { name.len() % 2 };
        let keyspace = segments[segment].keyspace_or_create(name).unwrap();
        let records = model.entry((segment as u32, name.to_owned())).or_default();
        for number in (0..3000).filter(|_| name != "none") {
            // Of large values there are few: all keyspaces have other ones.
            let value = value(&mut random, if number < 6 { number } else { 6 + number });
            keyspace.put(&key(number), &value).unwrap();
            records.insert(key(number), value);
        }
        for number in (0..3000).step_by(3).filter(|number| *number > 6) {
            keyspace.delete(&key(number)).unwrap();
            records.remove(&key(number));
        }
    }
    assert_eq!(contents(&db), model);
    let stream = backup(&db);
    assert_eq!(restored(&stream, folder.path()).unwrap(), model);
    // A backup of the restored store differs in nothing but its ID.
    let path = folder.path().join("again");
    restore(&stream[..], &path, options(), |_| {}).unwrap();
    let again = Db::open(&path, options()).unwrap();
    assert_eq!(again.segments().unwrap().len(), 3);
    assert_eq!(again.stats().unwrap().volume_bytes, db.stats().unwrap().volume_bytes);
    assert_eq!(backup(&again).len(), stream.len());
    db.close().unwrap();
}

#[test]
fn a_read_only_store_is_backed_up() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let db = Db::create(&path, volatile()).unwrap();
    db.put(b"apple", b"red").unwrap();
    let model = contents(&db);
    db.close().unwrap();
    let db = Db::open(&path, options().read_only(true)).unwrap();
    assert_eq!(restored(&backup(&db), folder.path()).unwrap(), model);
}

/// Batches put the same number everywhere; a backup that shows a batch in part shows two numbers.
#[test]
fn a_backup_shows_one_moment_while_writers_go_on() {
    const KEYS: u32 = 400;
    let folder = tempfile::tempdir().unwrap();
    let db = Db::create(folder.path().join("store"), volatile().memtable_bytes(128 << 10)).unwrap();
    let other = db.keyspace_or_create("other").unwrap();
    let write = |number: u64| {
        let mut batch = WriteBatch::new();
        for key in 0..KEYS {
            let keyspace = if key % 2 == 0 { db.default_keyspace() } else { &other };
            batch.put(keyspace, &key.to_be_bytes(), &number.to_le_bytes().repeat(20)).unwrap();
        }
        db.write(&batch).unwrap();
    };
    write(0);
    let is_over = AtomicBool::new(false);
    let streams: Vec<Vec<u8>> = std::thread::scope(|scope| {
        scope.spawn(|| (1..).take_while(|_| !is_over.load(Ordering::Relaxed)).for_each(write));
        let streams = (0..5).map(|_| backup(&db)).collect();
        is_over.store(true, Ordering::Relaxed);
        streams
    });
    let mut numbers = Vec::new();
    for stream in streams {
        let model = restored(&stream, folder.path()).unwrap();
        let values: Vec<&Vec<u8>> = model.values().flat_map(BTreeMap::values).collect();
        assert_eq!(values.len(), KEYS as usize);
        assert!(values.iter().all(|value| *value == values[0]), "a batch was shown in part");
        numbers.push(u64::from_le_bytes(values[0][..8].try_into().unwrap()));
    }
    assert!(numbers.is_sorted());
}

/// A later write than the snapshot's comes between two blocks of the backup.
#[test]
fn a_write_during_a_backup_is_not_in_it() {
    let folder = tempfile::tempdir().unwrap();
    let db = Db::create(folder.path().join("store"), volatile()).unwrap();
    db.put(b"1", &vec![1; 2 * MIB]).unwrap();
    db.put(b"2", b"old").unwrap();
    let model = contents(&db);
    let mut stream = Vec::new();
    let write = || {
        db.put(b"2", b"new").unwrap();
        db.keyspace_or_create("new").unwrap().put(b"3", b"new").unwrap();
    };
    db.backup(&mut stream, |_| write()).unwrap();
    assert_eq!(db.get(b"2").unwrap().as_deref(), Some(&b"new"[..]));
    assert_eq!(restored(&stream, folder.path()).unwrap(), model);
}

/// A small backup.
fn small_backup(folder: &Path) -> Vec<u8> {
    let db = Db::create(folder.join("small"), volatile()).unwrap();
    db.put(b"apple", b"red").unwrap();
    db.put(b"pear", b"green").unwrap();
    db.keyspace_or_create("colors").unwrap().put(b"", b"").unwrap_err();
    db.keyspace_or_create("colors").unwrap().put(b"red", b"").unwrap();
    let stream = backup(&db);
    db.close().unwrap();
    std::fs::remove_file(folder.join("small")).unwrap();
    stream
}

#[test]
fn a_backup_that_was_cut_off_or_changed_is_an_error_and_no_store() {
    let folder = tempfile::tempdir().unwrap();
    let stream = small_backup(folder.path());
    let path = folder.path().join("restored");
    let fails = |stream: &[u8], what: &str| match restore(stream, &path, options(), |_| {}) {
        Ok(_) => panic!("{what}: it was restored"),
        Err(error @ Error::DamagedBackup { offset, .. }) => {
            assert!(offset <= stream.len() as u64, "{what}: {error}");
            error
        }
        Err(error) => panic!("{what}: {error}"),
    };
    // Some places, since each attempt makes a file. The reader's own tests try all.
    for bytes in (0..stream.len()).step_by(9).chain([stream.len() - 1]) {
        let error = fails(&stream[..bytes], &format!("{bytes} bytes"));
        assert!(matches!(error, Error::DamagedBackup { damage: Damage::Length, offset, .. } if offset == bytes as u64));
    }
    for at in (4..stream.len()).step_by(9) {
        let mut changed = stream.clone();
        changed[at] ^= 1 << (at % 8);
        fails(&changed, &format!("byte {at}"));
    }
    let error = fails(&[&stream[..], b"x"].concat(), "a byte more");
    assert!(error.to_string().ends_with("more bytes follow it"), "{error}");
    fails(&[&stream[..], &stream[..]].concat(), "twice");
    // Blocks of another backup of the same store, at the same place.
    let other = small_backup(folder.path());
    assert_eq!(other.len(), stream.len());
    fails(&[&stream[..32], &other[32..]].concat(), "another backup's blocks");
    assert_eq!(files(folder.path()), Vec::<String>::new(), "nothing is left");
}

#[test]
fn a_newer_version_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let mut stream = small_backup(folder.path());
    stream[12] = 2;
    let checksum = crc32c(&stream[12..32]);
    stream[8..12].copy_from_slice(&checksum.to_le_bytes());
    let refused = restore(&stream[..], folder.path().join("restored"), options(), |_| {});
    assert!(matches!(refused, Err(Error::NewerVersion { found: 2, known: 1, .. })), "{refused:?}");
}

/// CRC-32C, bit by bit.
fn crc32c(bytes: &[u8]) -> u32 {
    let step = |sum: u32, _: u32| if sum & 1 == 1 { sum >> 1 ^ 0x82f6_3b78 } else { sum >> 1 };
    !bytes.iter().fold(u32::MAX, |sum, byte| (0..8).fold(sum ^ u32::from(*byte), step))
}

#[test]
fn an_existing_file_stays() {
    let folder = tempfile::tempdir().unwrap();
    let stream = small_backup(folder.path());
    let path = folder.path().join("taken");
    std::fs::write(&path, "mine").unwrap();
    let refused = restore(&stream[..], &path, options(), |_| {}).unwrap_err();
    assert!(matches!(&refused, Error::FileExists { path: named } if *named == path.display().to_string()));
    // It comes to be while the stream is read.
    std::fs::remove_file(&path).unwrap();
    let refused = restore(&stream[..], &path, options(), |_| std::fs::write(&path, "mine").unwrap()).unwrap_err();
    assert!(matches!(refused, Error::FileExists { .. }), "{refused}");
    assert_eq!(std::fs::read(&path).unwrap(), b"mine");
    assert_eq!(files(folder.path()), ["taken"]);
}

#[test]
fn a_backup_that_does_not_fit_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let db = Db::create(folder.path().join("store"), volatile()).unwrap();
    let value = vec![7; 200 << 10];
    (0..1000_u32).for_each(|number| db.put(&number.to_be_bytes(), &value).unwrap());
    let stream = backup(&db);
    db.close().unwrap();
    std::fs::remove_file(folder.path().join("store")).unwrap();
    let options = options().max_volume_bytes(128 << 20);
    let refused = restore(&stream[..], folder.path().join("restored"), options, |_| {});
    assert!(matches!(refused, Err(Error::Full { .. })), "{refused:?}");
    assert_eq!(files(folder.path()), Vec::<String>::new());
}

/// A stream that fails after some bytes, in both directions.
struct Failing<S> {
    stream: S,
    left: usize,
}

impl<S> Failing<S> {
    fn take(&mut self, bytes: usize) -> io::Result<usize> {
        let taken = bytes.min(self.left);
        if taken == 0 && bytes > 0 {
            return Err(io::Error::other("the cable is out"));
        }
        self.left -= taken;
        Ok(taken)
    }
}

impl<S: Read> Read for Failing<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let bytes = self.take(buffer.len())?;
        self.stream.read(&mut buffer[..bytes])
    }
}

impl<S: Write> Write for Failing<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = self.take(bytes.len())?;
        self.stream.write(&bytes[..taken])
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

#[test]
fn a_stream_that_fails_is_named_with_its_byte() {
    let folder = tempfile::tempdir().unwrap();
    let db = Db::create(folder.path().join("store"), volatile()).unwrap();
    db.put(b"film", &vec![3; 3 * MIB]).unwrap();
    let stream = backup(&db);
    for left in [0, 40, MIB, 2 * MIB + 300, stream.len() - 1] {
        let failed = db.backup(Failing { stream: Vec::new(), left }, |_| {}).unwrap_err();
        assert!(matches!(failed, Error::WriteBackup { offset, .. } if offset <= left as u64), "{failed}");
        let input = Failing { stream: &stream[..], left };
        let failed = restore(input, folder.path().join("restored"), options(), |_| {}).unwrap_err();
        assert!(matches!(failed, Error::ReadBackup { offset, .. } if offset == left as u64), "{failed:?}");
    }
    // The stream's own damage is named also within a large value.
    let mut changed = stream.clone();
    changed[2 * MIB] ^= 1;
    let failed = restore(&changed[..], folder.path().join("restored"), options(), |_| {}).unwrap_err();
    assert!(matches!(failed, Error::DamagedBackup { damage: Damage::Checksum, .. }), "{failed}");
    db.close().unwrap();
    assert_eq!(files(folder.path()), ["store"]);
}
