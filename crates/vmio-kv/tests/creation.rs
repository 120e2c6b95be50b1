//! A store is created as a whole or not at all. Whatever a crash leaves of it, the next process opens it or creates it. If several
//! processes create it at the same time, one of them succeeds.

use std::fs::{self, File};
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::assert_sound;
use crate::support::simulated_disk::SimulatedDisk;
use vmio_kv::{Db, Error, Options};

const VOLUME_BYTES: u64 = 32 << 20;

fn options() -> Options {
    crate::support::options().memory_bytes(32 << 20).volume_bytes(VOLUME_BYTES)
}

/// Whether a process has the store open.
fn is_in_use(error: &Error) -> bool {
    let is_of_file = matches!(error, Error::Io(vmio::Error::InUse { .. } | vmio::Error::AlreadyMapped { .. }));
    is_of_file || matches!(error, Error::StillOpen { .. })
}

/// Opens or creates the store, and uses it.
fn assert_usable(path: &Path, when: &str) {
    let db = Db::open_or_create(path, options()).unwrap_or_else(|error| panic!("{when}: {error}"));
    db.put(b"key", b"value").unwrap();
    db.close().unwrap();
    assert_eq!(Db::open(path, options()).unwrap().get(b"key").unwrap().unwrap(), b"value", "{when}");
}

#[test]
fn a_power_cut_at_any_operation_of_creation_leaves_nothing_or_a_store() {
    let (mut seed, mut cuts, mut whole) = (0, 0, 0);
    for operation in 0.. {
        let mut was_cut = false;
        for _ in 0..2 {
            seed += 1;
            let disk = SimulatedDisk::new(seed, &[VOLUME_BYTES]);
            disk.cut_power_after(operation);
            let created = Db::create_on(disk.open(0), options());
            was_cut |= disk.has_lost_power();
            let after = disk.after_power_cut();
            drop(created);
            let failed = |error: Error| -> Db { panic!("operation {operation}, seed {seed}: {error}") };
            let db = match Db::open_on(after.open(0), options()) {
                Err(Error::NoVolume { .. }) => Db::create_on(after.open(0), options()).unwrap_or_else(failed),
                opened => {
                    whole += 1;
                    assert_sound(after.open(0), &options(), "after a cut");
                    opened.unwrap_or_else(failed)
                }
            };
            db.put(b"key", b"value").unwrap_or_else(|error| drop(failed(error)));
            db.close().unwrap_or_else(|error| drop(failed(error)));
            let db = Db::open_on(after.open(0), options()).unwrap_or_else(failed);
            assert_eq!(db.get(b"key").unwrap().unwrap(), b"value", "operation {operation}, seed {seed}");
        }
        if !was_cut {
            break;
        }
        cuts += 1;
    }
    assert!(cuts > 10 && whole > 0, "{cuts} operations; {whole} times there was a store");
}

#[test]
fn empty_and_zeroed_files_become_stores() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    for bytes in [0, 4096, 1 << 20, VOLUME_BYTES, 2 * VOLUME_BYTES] {
        File::create(&path).unwrap().set_len(bytes).unwrap();
        assert_usable(&path, &format!("{bytes} zeros"));
    }
}

#[test]
fn files_with_other_contents_stay_as_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notes");
    fs::write(&path, "not to be lost").unwrap();
    let refused = |result: vmio_kv::Result<Db>| match result {
        Err(Error::OtherContent { .. }) => assert_eq!(fs::read(&path).unwrap(), b"not to be lost"),
        other => panic!("{other:?}"),
    };
    refused(Db::create(&path, options()));
    refused(Db::open_or_create(&path, options()));
}

#[test]
fn a_dangling_link_leads_to_the_store() {
    let folder = tempfile::tempdir().unwrap();
    let (link, path) = (folder.path().join("link"), folder.path().join("store"));
    std::os::unix::fs::symlink("store", &link).unwrap();
    assert_usable(&link, "a link");
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink() && fs::symlink_metadata(&path).unwrap().is_file());
}

/// A process that looks meanwhile never sees a half of the store, and an existing store is not created again.
#[test]
fn of_simultaneous_creations_one_succeeds() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    for round in 0..20 {
        let (start, is_over) = (Barrier::new(4), AtomicBool::new(false));
        let created = std::thread::scope(|scope| {
            scope.spawn(|| {
                start.wait();
                while !is_over.load(Ordering::SeqCst) {
                    match Db::open(&path, options().read_only(true)) {
                        Err(Error::Io(vmio::Error::Open { .. })) => {}
                        Err(error) if is_in_use(&error) => {}
                        seen => panic!("round {round}: {seen:?}"),
                    }
                }
            });
            let create = |number: u8| {
                let (start, path) = (&start, &path);
                scope.spawn(move || {
                    start.wait();
                    let created =
                        if number < 2 { Db::create(path, options()) } else { Db::open_or_create(path, options()) };
                    created.inspect(|db| db.put(b"creator", &[number]).unwrap())
                })
            };
            let creators: Vec<_> = (0..3).map(create).collect();
            let created: Vec<_> = creators.into_iter().map(|creator| creator.join().unwrap()).collect();
            is_over.store(true, Ordering::SeqCst);
            created
        });
        let winner = created.iter().position(Result::is_ok).unwrap();
        for (number, result) in created.iter().enumerate() {
            match result {
                Ok(_) => assert_eq!(number, winner, "round {round}: two have it"),
                Err(Error::VolumeExists { .. }) => {}
                Err(error) => assert!(is_in_use(error), "round {round}: {error}"),
            }
        }
        drop(created);
        let db = Db::open(&path, options()).unwrap();
        assert_eq!(db.get(b"creator").unwrap().unwrap(), [winner as u8]);
        drop(db);
        let files: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(files, ["store"], "nothing else stays");
        fs::remove_file(&path).unwrap();
    }
}

/// A failed creation removes neither other stores nor the target of a link.
#[test]
fn a_failed_creation_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("no folder").join("store");
    assert!(matches!(Db::open_or_create(&missing, options()), Err(Error::Io(vmio::Error::Open { .. }))));
    let path = folder.path().join("store");
    assert!(Db::create(&path, options().memtable_bytes(1 << 20).filter_bytes(u64::MAX)).is_err());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}
