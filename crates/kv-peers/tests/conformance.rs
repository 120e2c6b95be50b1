//! Every engine of this build passes the same checks.

use std::error::Error;
use std::path::Path;

use kv_peers::{NotBuilt, Peers};
use vmio_measure::kv::{EngineKind, Keyspace, Setup, Stores};

type TestResult = Result<(), Box<dyn Error>>;

fn read(keyspace: &dyn Keyspace, key: &[u8]) -> anyhow::Result<Option<Vec<u8>>> {
    let mut value = None;
    let is_there = keyspace.get(key, &mut |bytes| value = Some(bytes.to_vec()))?;
    assert_eq!(is_there, value.is_some());
    Ok(value)
}

fn scan(keyspace: &dyn Keyspace, from: &[u8], records: usize) -> anyhow::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut seen = Vec::new();
    let count = keyspace.scan(from, records, &mut |key, value| seen.push((key.to_vec(), value.to_vec())))?;
    assert_eq!(count, seen.len());
    Ok(seen)
}

fn key(number: u32) -> Vec<u8> {
    format!("key{number:06}").into_bytes()
}

fn value(number: u32) -> Vec<u8> {
    (0..number % 300).map(|index| (index * 7 + number) as u8).collect()
}

const KEYS: u32 = 5000;

fn setup(folder: &Path) -> Setup {
    Setup {
        page_trace: None,
        folder: folder.to_owned(),
        memory_bytes: 64 << 20,
        data_bytes: 1 << 20,
        written_bytes: 2 << 20,
        keyspaces: 1,
        sync_writes: false,
        // In whichever order they are put.
        puts_in_order: true,
        filter_bytes: 1 << 20,
    }
}

fn conforms(kind: EngineKind) -> TestResult {
    holds_what_was_put(kind)?;
    keeps_keyspaces_apart(kind)
}

/// Puts, replaces and deletes, and checks the contents: at once, after a flush, and after another opening.
fn holds_what_was_put(kind: EngineKind) -> TestResult {
    let folder = tempfile::tempdir()?;
    let setup = setup(folder.path());
    let engine = Peers.open(kind, &setup)?;
    let keyspace = engine.keyspace(0);
    for number in (0..KEYS).rev() {
        keyspace.put(&key(number), b"to be replaced")?;
        keyspace.put(&key(number), &value(number))?;
        if number % 3 == 0 {
            keyspace.delete(&key(number))?;
        }
    }
    keyspace.delete(b"never there")?;
    engine.sync()?;
    check(keyspace, KEYS)?;
    engine.flush()?;
    check(keyspace, KEYS)?;
    engine.close()?;
    let engine = Peers.open(kind, &setup)?;
    check(engine.keyspace(0), KEYS)?;
    Ok(engine.close()?)
}

/// Each keyspace has its own value for each key, also after another opening. All writes are durable when they return.
fn keeps_keyspaces_apart(kind: EngineKind) -> TestResult {
    const KEYSPACES: u32 = 20;
    let folder = tempfile::tempdir()?;
    let setup = Setup { keyspaces: KEYSPACES, sync_writes: true, puts_in_order: false, ..setup(folder.path()) };
    let engine = Peers.open(kind, &setup)?;
    for keyspace in 0..KEYSPACES {
        for number in 0..5 {
            engine.keyspace(keyspace).put(&key(number), &value(100 * keyspace + number))?;
        }
        engine.keyspace(keyspace).delete(&key(keyspace % 5))?;
    }
    engine.flush()?;
    engine.close()?;
    let engine = Peers.open(kind, &setup)?;
    for keyspace in 0..KEYSPACES {
        let there = (0..5).filter(|number| *number != keyspace % 5);
        let expected: Vec<_> = there.map(|number| (key(number), value(100 * keyspace + number))).collect();
        assert_eq!(scan(engine.keyspace(keyspace), b"a", usize::MAX)?, expected, "keyspace {keyspace}");
    }
    Ok(engine.close()?)
}

fn check(keyspace: &dyn Keyspace, keys: u32) -> TestResult {
    for number in 0..keys {
        let expected = (number % 3 != 0).then(|| value(number));
        assert_eq!(read(keyspace, &key(number))?, expected, "{number}");
    }
    assert_eq!(read(keyspace, b"never there")?, None);
    let there = |from: u32| (from..keys).filter(|number| number % 3 != 0).map(|number| (key(number), value(number)));
    assert_eq!(scan(keyspace, b"a", usize::MAX)?, there(0).collect::<Vec<_>>());
    // From a key that was deleted: the scan begins at the next one.
    assert_eq!(scan(keyspace, &key(999), 10)?, there(999).take(10).collect::<Vec<_>>());
    assert_eq!(scan(keyspace, b"l", 10)?, []);
    Ok(())
}

#[test]
fn vmio_conforms() -> TestResult {
    conforms(EngineKind::Vmio)
}

#[test]
fn vmio_conforms_over_the_module() -> TestResult {
    if Path::new("/dev/vmio").exists() {
        return conforms(EngineKind::VmioKernel);
    }
    let folder = tempfile::tempdir()?;
    let error = Peers.open(EngineKind::VmioKernel, &setup(folder.path())).map(drop).expect_err("there is no module");
    assert!(format!("{error:#}").contains("/dev/vmio"), "{error:#}");
    Ok(())
}

#[test]
fn lmdb_conforms() -> TestResult {
    conforms(EngineKind::Lmdb)
}

#[cfg(feature = "redb")]
#[test]
fn redb_conforms() -> TestResult {
    conforms(EngineKind::Redb)
}

#[cfg(feature = "fjall")]
#[test]
fn fjall_conforms() -> TestResult {
    conforms(EngineKind::Fjall)
}

#[cfg(feature = "rocksdb")]
#[test]
fn rocksdb_conforms_however_it_is_set() -> TestResult {
    for kind in [EngineKind::Rocksdb, EngineKind::RocksdbLz4, EngineKind::RocksdbDefault] {
        conforms(kind)?;
    }
    Ok(())
}

#[test]
fn engines_that_this_build_lacks_are_refused() {
    for kind in EngineKind::ALL {
        assert_eq!(kind.name().parse(), Ok(kind));
        let setup = setup(Path::new(""));
        if Peers.check(kind).is_err() {
            let error = Peers.open(kind, &setup).map(drop).expect_err("it is not there");
            assert_eq!(error.downcast_ref(), Some(&NotBuilt { engine: kind }));
        }
    }
    assert!("leveldb".parse::<EngineKind>().is_err());
}
