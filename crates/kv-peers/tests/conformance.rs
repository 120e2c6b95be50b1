//! Every engine of this build does the same.

use std::error::Error;

use kv_peers::{Engine, EngineKind, Setup};

type TestResult = Result<(), Box<dyn Error>>;

fn read(engine: &dyn Engine, key: &[u8]) -> anyhow::Result<Option<Vec<u8>>> {
    let mut value = None;
    let is_there = engine.get(key, &mut |bytes| value = Some(bytes.to_vec()))?;
    assert_eq!(is_there, value.is_some());
    Ok(value)
}

fn scan(engine: &dyn Engine, from: &[u8], records: usize) -> anyhow::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut seen = Vec::new();
    let count = engine.scan(from, records, &mut |key, value| seen.push((key.to_vec(), value.to_vec())))?;
    assert_eq!(count, seen.len());
    Ok(seen)
}

fn key(number: u32) -> Vec<u8> {
    format!("key{number:06}").into_bytes()
}

fn value(number: u32) -> Vec<u8> {
    (0..number % 300).map(|index| (index * 7 + number) as u8).collect()
}

/// Puts, replaces and deletes, and finds what should be there: at once, after a flush, and after opening it anew.
fn conforms(kind: EngineKind) -> TestResult {
    const KEYS: u32 = 5000;
    let folder = tempfile::tempdir()?;
    let setup =
        Setup { folder: folder.path().to_owned(), memory_bytes: 64 << 20, data_bytes: 1 << 20, written_bytes: 2 << 20 };
    let engine = kind.open(&setup)?;
    for number in (0..KEYS).rev() {
        engine.put(&key(number), b"to be replaced")?;
        engine.put(&key(number), &value(number))?;
        if number % 3 == 0 {
            engine.delete(&key(number))?;
        }
    }
    engine.delete(b"never there")?;
    engine.sync()?;
    check(engine.as_ref(), KEYS)?;
    engine.flush()?;
    check(engine.as_ref(), KEYS)?;
    engine.close()?;
    let engine = kind.open(&setup)?;
    check(engine.as_ref(), KEYS)?;
    Ok(engine.close()?)
}

fn check(engine: &dyn Engine, keys: u32) -> TestResult {
    for number in 0..keys {
        let expected = (number % 3 != 0).then(|| value(number));
        assert_eq!(read(engine, &key(number))?, expected, "{number}");
    }
    assert_eq!(read(engine, b"never there")?, None);
    let there = |from: u32| (from..keys).filter(|number| number % 3 != 0).map(|number| (key(number), value(number)));
    assert_eq!(scan(engine, b"a", usize::MAX)?, there(0).collect::<Vec<_>>());
    // From a key that was deleted: the next one is the first.
    assert_eq!(scan(engine, &key(999), 10)?, there(999).take(10).collect::<Vec<_>>());
    assert_eq!(scan(engine, b"l", 10)?, []);
    Ok(())
}

#[test]
fn vmio_conforms() -> TestResult {
    conforms(EngineKind::Vmio)
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
fn what_a_build_lacks_is_refused() {
    for kind in EngineKind::ALL {
        assert_eq!(kind.name().parse(), Ok(kind));
        let setup = Setup { folder: "".into(), memory_bytes: 64 << 20, data_bytes: 0, written_bytes: 0 };
        if let Some(feature) = kind.missing_feature() {
            let error = kind.open(&setup).map(drop).expect_err("it is not there");
            assert!(error.to_string().contains(feature), "{error}");
        }
    }
    assert!("leveldb".parse::<EngineKind>().is_err());
}
