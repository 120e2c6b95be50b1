//! Every engine of this build does the same.

use std::error::Error;
use std::path::Path;

use kv_peers::{NotBuilt, Peers};
use vmio_measure::kv::{EngineKind, Region, Setup, Stores};

type TestResult = Result<(), Box<dyn Error>>;

fn read(region: &dyn Region, key: &[u8]) -> anyhow::Result<Option<Vec<u8>>> {
    let mut value = None;
    let is_there = region.get(key, &mut |bytes| value = Some(bytes.to_vec()))?;
    assert_eq!(is_there, value.is_some());
    Ok(value)
}

fn scan(region: &dyn Region, from: &[u8], records: usize) -> anyhow::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut seen = Vec::new();
    let count = region.scan(from, records, &mut |key, value| seen.push((key.to_vec(), value.to_vec())))?;
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
        regions: 1,
        sync_writes: false,
        // Whatever the order is that they are put in.
        puts_in_order: true,
        filter_bytes: 1 << 20,
    }
}

fn conforms(kind: EngineKind) -> TestResult {
    holds_what_was_put(kind)?;
    keeps_regions_apart(kind)
}

/// Puts, replaces and deletes, and finds what should be there: at once, after a flush, and after opening it anew.
fn holds_what_was_put(kind: EngineKind) -> TestResult {
    let folder = tempfile::tempdir()?;
    let setup = setup(folder.path());
    let engine = Peers.open(kind, &setup)?;
    let region = engine.region(0);
    for number in (0..KEYS).rev() {
        region.put(&key(number), b"to be replaced")?;
        region.put(&key(number), &value(number))?;
        if number % 3 == 0 {
            region.delete(&key(number))?;
        }
    }
    region.delete(b"never there")?;
    engine.sync()?;
    check(region, KEYS)?;
    engine.flush()?;
    check(region, KEYS)?;
    engine.close()?;
    let engine = Peers.open(kind, &setup)?;
    check(engine.region(0), KEYS)?;
    Ok(engine.close()?)
}

/// In each region each key has a value of its own, also when it was opened anew. All writes are durable when they return.
fn keeps_regions_apart(kind: EngineKind) -> TestResult {
    const REGIONS: u32 = 20;
    let folder = tempfile::tempdir()?;
    let setup = Setup { regions: REGIONS, sync_writes: true, puts_in_order: false, ..setup(folder.path()) };
    let engine = Peers.open(kind, &setup)?;
    for region in 0..REGIONS {
        for number in 0..5 {
            engine.region(region).put(&key(number), &value(100 * region + number))?;
        }
        engine.region(region).delete(&key(region % 5))?;
    }
    engine.flush()?;
    engine.close()?;
    let engine = Peers.open(kind, &setup)?;
    for region in 0..REGIONS {
        let there = (0..5).filter(|number| *number != region % 5);
        let expected: Vec<_> = there.map(|number| (key(number), value(100 * region + number))).collect();
        assert_eq!(scan(engine.region(region), b"a", usize::MAX)?, expected, "region {region}");
    }
    Ok(engine.close()?)
}

fn check(region: &dyn Region, keys: u32) -> TestResult {
    for number in 0..keys {
        let expected = (number % 3 != 0).then(|| value(number));
        assert_eq!(read(region, &key(number))?, expected, "{number}");
    }
    assert_eq!(read(region, b"never there")?, None);
    let there = |from: u32| (from..keys).filter(|number| number % 3 != 0).map(|number| (key(number), value(number)));
    assert_eq!(scan(region, b"a", usize::MAX)?, there(0).collect::<Vec<_>>());
    // From a key that was deleted: the next one is the first.
    assert_eq!(scan(region, &key(999), 10)?, there(999).take(10).collect::<Vec<_>>());
    assert_eq!(scan(region, b"l", 10)?, []);
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
fn what_a_build_lacks_is_refused() {
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
