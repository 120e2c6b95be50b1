//! Handles that keep a store open: clones, and handles of a store that was closed.

use std::io::Read;

use vmio_kv::{Db, Durability, Error, Options, WriteBatch};

fn options() -> Options {
    crate::support::options()
        .memory_bytes(32 << 20)
        .volume_bytes(64 << 20)
        .max_volume_bytes(64 << 20)
        .durability(Durability::None)
}

#[test]
fn the_error_of_a_second_opening_names_the_open_handles() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let db = Db::create(&path, options()).unwrap();
    db.put(b"key", b"value").unwrap();
    let open_handles = || match Db::open(&path, options()) {
        Err(Error::StillOpen { volume, handles }) => {
            assert!(volume.contains("store"), "{volume}");
            handles
        }
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("it was opened twice"),
    };
    assert_eq!(open_handles(), "an open `Db`");
    let clone = db.clone();
    db.close().unwrap();
    assert_eq!(open_handles(), "an open `Db`", "a clone of one that was closed");
    let keyspace = clone.default_keyspace().clone();
    let (snapshot, scan, reader) = (keyspace.snapshot(), keyspace.scan(..), keyspace.reader(b"key").unwrap().unwrap());
    let segment = clone.segment(0).unwrap();
    let mut batch = WriteBatch::new();
    batch.put(&keyspace, b"a", b"b").unwrap();
    drop(clone);
    assert_eq!(
        open_handles(),
        "a keyspace's handle, a segment's handle, a snapshot, a scan, a value's reader and a batch"
    );
    drop((keyspace, segment, scan, reader));
    assert_eq!(open_handles(), "a snapshot and a batch");
    let snapshot = [snapshot.clone(), snapshot];
    drop(batch);
    let [first, second] = snapshot;
    drop(first);
    assert_eq!(open_handles(), "a snapshot");
    assert_eq!(second.get(b"key").unwrap().as_deref(), Some(&b"value"[..]));
    drop(second);
    assert_eq!(Db::open(&path, options()).unwrap().get(b"key").unwrap().as_deref(), Some(&b"value"[..]));
}

/// Scans own their view: no other handle is needed.
#[test]
fn a_scan_outlives_the_handle_that_began_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let scans: Vec<Box<dyn Iterator<Item = _> + Send>> = {
        let db = Db::create(&path, options()).unwrap();
        (0..100_u8).for_each(|number| db.put(&[number], &[number]).unwrap());
        let of_keyspace = db.keyspace("default").unwrap().scan(..);
        vec![Box::new(db.scan(..)), Box::new(of_keyspace), Box::new(db.snapshot().prefix(b""))]
    };
    for scan in scans {
        let pairs = std::thread::spawn(|| scan.collect::<Result<Vec<_>, _>>().unwrap()).join().unwrap();
        assert_eq!(pairs, (0..100).map(|number| (vec![number], vec![number])).collect::<Vec<_>>());
    }
    Db::open(&path, options()).unwrap();
}

#[test]
fn a_close_counts_for_all_clones() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let db = Db::create(&path, options()).unwrap();
    let clones = [db.clone(), db.clone()];
    clones[0].put(b"key", b"value").unwrap();
    let mut reader = db.reader(b"key").unwrap().unwrap();
    let keyspace = db.keyspace_or_create("keyspace").unwrap();
    let segment = db.segment(0).unwrap();
    let mut batch = WriteBatch::new();
    batch.put(&db, b"a", b"b").unwrap();
    db.close().unwrap();
    let is_closed = |result: Result<(), Error>| assert!(matches!(result, Err(Error::Closed { .. })), "{result:?}");
    for clone in &clones {
        assert_eq!(clone.get(b"key").unwrap().as_deref(), Some(&b"value"[..]), "it can be read on");
        is_closed(clone.put(b"key", b"other"));
        is_closed(clone.put(b"key", &vec![1; 2 << 20]));
        is_closed(clone.delete(b"key"));
        is_closed(clone.delete_with(b"key", Durability::Sync));
        is_closed(clone.write(&batch));
        is_closed(clone.pop_first().map(|_| ()));
        is_closed(clone.clear());
        is_closed(clone.drop_keyspace("keyspace"));
        is_closed(clone.keyspace_or_create("new").map(|_| ()));
        is_closed(clone.create_segment().map(|_| ()));
        is_closed(clone.flush());
        is_closed(clone.collect_garbage());
        is_closed(clone.grow(1 << 30));
        clone.sync().unwrap();
        clone.stats().unwrap();
    }
    is_closed(keyspace.put(b"key", b"value"));
    is_closed(segment.keyspace_or_create("new").map(|_| ()));
    let mut read = Vec::new();
    reader.read_to_end(&mut read).unwrap();
    assert_eq!(read, b"value");
    let [first, second] = clones;
    first.close().unwrap();
    drop((second, reader, keyspace, segment, batch));
    let db = Db::open(&path, options()).unwrap();
    assert_eq!((db.get(b"key").unwrap().as_deref(), db.keyspace_names().unwrap().len()), (Some(&b"value"[..]), 2));
    // The end of the last clone closes it as well.
    let clone = db.clone();
    db.put(b"last", b"value").unwrap();
    drop(db);
    clone.put(b"key", b"after").unwrap();
    drop(clone);
    let db = Db::open(&path, options()).unwrap();
    assert!(db.contains(b"last").unwrap() && db.get(b"key").unwrap().as_deref() == Some(&b"after"[..]));
}
