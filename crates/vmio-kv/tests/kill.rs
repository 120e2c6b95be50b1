//! A process that writes to a store is killed at random moments, again and again. All acknowledged durable writes are there, and of later
//! writes, for each thread, a part without holes, batches whole. Scans run meanwhile, and in some lives the device fails now and then: a
//! thread that gets an error stops.
//!
//!
//! A file that outlives the process holds the expected state: for each thread the operations begun, the operations returned, and the
//! operations known to be durable. The operations follow from a seed. `VMIO_TEST_LIVES=1000` runs long.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::support::child::{command, is_child};
use crate::support::failing_file::{FailingFile, OneIn};
use crate::support::{Random, assert_sound};
use tempfile::TempDir;
use vmio::backing::{Access, Backing, DaxBacking, FileBacking};
use vmio_kv::{Db, Durability, Error, KeyspaceHandle, Options, WriteBatch};

const NAME: &str = "kill::acknowledged_writes_survive_kills";
const FOLDER: &str = "VMIO_TEST_FOLDER";
const LIFE: &str = "VMIO_TEST_LIFE";
const THREADS: u64 = 3;
const KEYS: u64 = 900;
const KEYSPACES: [&str; 3] = ["default", "second", "third"];
/// A store gets no space back from records replaced in the last lives: after this many lives the test takes another store.
const LIVES_OF_A_STORE: u64 = 20;

type Place = (usize, Vec<u8>);
type Contents = BTreeMap<Place, Vec<u8>>;
type Operation = Vec<(Place, Option<Vec<u8>>)>;

/// What the expected-state file counts for a thread.
#[derive(Clone, Copy, Debug)]
#[repr(u64)]
enum Counter {
    Begun,
    Returned,
    Durable,
}

/// The expected-state file.
struct Expected(File);

impl Expected {
    fn open(folder: &Path) -> Self {
        Expected(
            File::options().read(true).write(true).create(true).truncate(false).open(folder.join("expected")).unwrap(),
        )
    }

    fn place(thread: u64, counter: Counter) -> u64 {
        (thread * 3 + counter as u64) * 8
    }

    fn set(&self, thread: u64, counter: Counter, count: u64) {
        self.0.write_all_at(&count.to_le_bytes(), Self::place(thread, counter)).unwrap();
    }

    fn get(&self, thread: u64, counter: Counter) -> u64 {
        let mut count = [0; 8];
        self.0.read_exact_at(&mut count, Self::place(thread, counter)).unwrap();
        u64::from_le_bytes(count)
    }

    fn reset(&self) {
        for thread in 0..THREADS {
            [Counter::Begun, Counter::Returned, Counter::Durable].into_iter().for_each(|of| self.set(thread, of, 0));
        }
    }
}

/// Lives differ in when their writes are durable.
fn durability(life: u64) -> Durability {
    match life % 3 {
        0 => Durability::Sync,
        1 => Durability::None,
        _ => Durability::Periodic(Duration::from_millis(5)),
    }
}

fn options(life: u64) -> Options {
    crate::support::options()
        .memory_bytes(32 << 20)
        .memtable_bytes(16 << 10)
        .growth_factor(3)
        .max_volume_bytes(4 << 30)
        .durability(durability(life))
}

/// One in this many operations of the device fails; 0 for none.
fn one_in(life: u64) -> u64 {
    if life % 4 == 3 { 300 } else { 0 }
}

fn random_of(life: u64, thread: u64) -> Random {
    Random(life << 8 | thread)
}

/// A key that only this thread writes.
fn key(thread: u64, number: u64) -> Vec<u8> {
    let number = number * THREADS + thread;
    if number.is_multiple_of(2) {
        number.to_be_bytes().to_vec()
    } else {
        format!("a front that is shared {number:09}").into()
    }
}

fn operation(random: &mut Random, thread: u64) -> Operation {
    let writes = if random.below(4) == 0 { 1 + random.below(12) } else { 1 };
    let write = |random: &mut Random| {
        let place = (random.below(KEYSPACES.len() as u64) as usize, key(thread, random.below(KEYS)));
        let longest = if random.below(300) == 0 { 40_000 } else { 300 };
        let value = vec![random.below(256) as u8; random.below(longest) as usize];
        (place, (random.below(5) > 0).then_some(value))
    };
    (0..writes).map(|_| write(random)).collect()
}

fn store_of(folder: &Path) -> PathBuf {
    folder.join("store.kv")
}

/// Writes and scans until the process is killed.
fn live(folder: &Path, life: u64) {
    let expected = Expected::open(folder);
    let file: Arc<dyn Backing> = match DaxBacking::open(store_of(folder), Access::ReadWrite) {
        Ok(file) => Arc::new(file),
        Err(_) => Arc::new(FileBacking::open(store_of(folder), Access::ReadWrite).unwrap()),
    };
    let failing = OneIn::default();
    let backing = FailingFile { file, one_in: failing.clone(), random: AtomicU64::new(life) };
    let db = Db::open_on(backing, options(life)).unwrap();
    println!("open");
    let keyspaces: Vec<_> = KEYSPACES.iter().map(|name| db.keyspace_or_create(name).unwrap()).collect();
    failing.store(one_in(life), Ordering::Relaxed);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (db, keyspaces, expected) = (&db, &keyspaces, &expected);
            scope.spawn(move || stop_at(write(db, keyspaces, expected, life, thread), life));
        }
        scope.spawn(|| stop_at(scan(&keyspaces), life));
    });
}

/// In lives with failures an error ends the thread, and nothing else does: the process has to be killed.
fn stop_at(end: Result<Infallible, Error>, life: u64) {
    let Err(error) = end;
    if one_in(life) == 0 {
        println!("life {life}: {error}");
        std::process::exit(1);
    }
    loop {
        std::thread::park();
    }
}

fn write(
    db: &Db,
    keyspaces: &[KeyspaceHandle],
    expected: &Expected,
    life: u64,
    thread: u64,
) -> Result<Infallible, Error> {
    let mut random = random_of(life, thread);
    let mut number = 0;
    loop {
        number += 1;
        let mut batch = WriteBatch::new();
        for ((keyspace, key), value) in operation(&mut random, thread) {
            match value {
                Some(value) => batch.put(&keyspaces[keyspace], &key, &value)?,
                None => batch.delete(&keyspaces[keyspace], &key)?,
            }
        }
        expected.set(thread, Counter::Begun, number);
        db.write(&batch)?;
        expected.set(thread, Counter::Returned, number);
        if durability(life) == Durability::Sync {
            expected.set(thread, Counter::Durable, number);
        } else if number % 500 == thread {
            db.sync()?;
            expected.set(thread, Counter::Durable, number);
        }
        if number.is_multiple_of(4000) {
            db.flush()?;
        }
    }
}

/// Each key once, in order, and only keys that are written.
fn scan(keyspaces: &[KeyspaceHandle]) -> Result<Infallible, Error> {
    let known: BTreeSet<Vec<u8>> =
        (0..THREADS).flat_map(|thread| (0..KEYS).map(move |number| key(thread, number))).collect();
    loop {
        for keyspace in keyspaces {
            let mut last = None;
            for found in keyspace.scan(..) {
                let (key, _) = found?;
                let in_order = last.as_ref().is_none_or(|last| *last < key);
                if !in_order || !known.contains(&key) {
                    println!("scanned {} after {last:?}", key.escape_ascii());
                    std::process::exit(1);
                }
                last = Some(key);
            }
        }
    }
}

/// The contents of a store, for each thread's keys.
fn contents(db: &Db) -> Vec<Contents> {
    let mut all = vec![Contents::new(); THREADS as usize];
    let threads: BTreeMap<Vec<u8>, u64> =
        (0..THREADS).flat_map(|thread| (0..KEYS).map(move |number| (key(thread, number), thread))).collect();
    for (index, name) in KEYSPACES.into_iter().enumerate() {
        let Ok(keyspace) = db.keyspace(name) else { continue };
        for found in keyspace.scan(..) {
            let (key, value) = found.unwrap();
            let thread = threads[&key];
            all[thread as usize].insert((index, key), value);
        }
    }
    all
}

/// The number of a thread's operations that the store holds; `before` becomes their result.
fn replayed(before: &mut Contents, found: &Contents, life: u64, thread: u64, begun: u64) -> Option<u64> {
    let mut random = random_of(life, thread);
    let mut newest = None;
    let mut state = before.clone();
    for number in 0..=begun {
        if state == *found {
            newest = Some(number);
        }
        for (place, value) in operation(&mut random, thread) {
            match value {
                Some(value) => state.insert(place, value),
                None => state.remove(&place),
            };
        }
    }
    before.clone_from(found);
    newest
}

#[test]
fn acknowledged_writes_survive_kills() {
    if is_child(NAME) {
        let folder = PathBuf::from(std::env::var_os(FOLDER).unwrap());
        return live(&folder, std::env::var(LIFE).unwrap().parse().unwrap());
    }
    live_and_die(&tempfile::tempdir().unwrap());
}

/// Bytes are copied there, and no flush follows them.
#[test]
fn acknowledged_writes_to_persistent_memory_survive_kills() {
    match std::env::var_os("VMIO_TEST_DAX") {
        Some(folder) => live_and_die(&tempfile::tempdir_in(folder).unwrap()),
        None => test_depth::skipped("VMIO_TEST_DAX names no folder on persistent memory"),
    }
}

fn live_and_die(folder: &TempDir) {
    let lives = test_depth::number("VMIO_TEST_LIVES", 9, 40);
    let expected = Expected::open(folder.path());
    let mut random = Random(std::process::id().into());
    let mut before = vec![Contents::new(); THREADS as usize];
    let (mut operations, mut lost) = (0, 0);
    for life in 0..lives {
        if life % LIVES_OF_A_STORE == 0 {
            let _ = std::fs::remove_file(store_of(folder.path()));
            Db::create(store_of(folder.path()), options(life)).unwrap().close().unwrap();
            before.iter_mut().for_each(Contents::clear);
        }
        expected.reset();
        let mut run = command(NAME);
        run.env(FOLDER, folder.path()).env(LIFE, life.to_string());
        let mut child = run.stdout(Stdio::piped()).stdin(Stdio::null()).spawn().unwrap();
        // Sometimes before the store is open.
        if random.below(8) > 0 {
            let lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
            assert!(lines.map_while(Result::ok).any(|line| line.contains("open")), "life {life} ended by itself");
        }
        std::thread::sleep(Duration::from_millis(random.below(250)));
        child.kill().unwrap();
        let status = child.wait().unwrap();
        assert_eq!(status.code(), None, "life {life} ended by itself: {status}");

        let backing = FileBacking::open(store_of(folder.path()), Access::ReadOnly).unwrap();
        assert_sound(backing, &options(life), &format!("life {life}"));
        let db = Db::open(store_of(folder.path()), options(life)).unwrap();
        let found = contents(&db);
        db.close().unwrap();
        for thread in 0..THREADS {
            let counted = |counter| expected.get(thread, counter);
            let (begun, durable) = (counted(Counter::Begun), counted(Counter::Durable));
            let place = thread as usize;
            let there = replayed(&mut before[place], &found[place], life, thread, begun);
            let Some(there) = there.filter(|there| *there >= durable) else {
                panic!(
                    "life {life}, thread {thread}: {there:?} operations of {begun} are there, {durable} were durable"
                );
            };
            operations += there;
            lost += counted(Counter::Returned).saturating_sub(there);
        }
    }
    println!("{operations} operations survived, {lost} that had returned did not and need not");
    // A life may end before it has begun.
    assert!(operations > 0 || lives < 4);
}
