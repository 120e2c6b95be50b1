//! Directories that damage has made parts of themselves, or as long as none can be: no call waits for itself, and no repair cuts off what can be read.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use vmio_pmfs::{Damage, Error, Fs, Inspection, Kind, New, ROOT, Replace, Simulated, check, repair};

use crate::damage::retarget;
use crate::repair::{Numbered, PARENT, inode_at, set, some};

const SIZE: usize = 32;

/// The inner directory says that it is in `empty`, which is in it and has a name of it.
fn cycle() -> (Arc<Simulated>, Numbered, u64) {
    let (medium, at) = some();
    let fs = Fs::mount(medium.clone()).unwrap();
    let empty = fs.lookup(at.inner, b"empty").unwrap().ino;
    fs.create(empty, b"loop", New::Directory, 0o755, (0, 0)).unwrap();
    drop(fs);
    retarget(&*medium, empty, b"loop", at.inner, Kind::Directory);
    set(&medium, at.inner, PARENT, &empty.to_le_bytes());
    (medium, at, empty)
}

#[test]
fn the_only_way_to_a_cycle_is_not_cut_off() {
    let (medium, at, _) = cycle();
    let repaired = repair(medium.clone()).unwrap();
    assert!(!repaired.report.is_sound(), "{:#?}", repaired.done);
    assert!(repaired.done.iter().all(|done| !done.what.contains("which is in directory")), "{:#?}", repaired.done);
    assert_eq!(Inspection::new(medium).unwrap().find(b"/folder/inner/two").unwrap(), at.two);
}

/// Each call locks one directory and then the other. So two calls that begin at different ones would wait for each other.
#[test]
fn calls_in_a_cycle_are_refused() {
    let (medium, at, empty) = cycle();
    type Call = fn(&Fs, u64, &[u8]) -> vmio_pmfs::Result<()>;
    let calls: [(&str, Call); 7] = [
        ("lookup", |fs, at, name| fs.lookup(at, name).map(drop)),
        ("rmdir", |fs, at, name| fs.remove_directory(at, name)),
        ("unlink", |fs, at, name| fs.unlink(at, name)),
        ("create", |fs, at, _| fs.create(at, b"new", New::File, 0o644, (0, 0)).map(drop)),
        ("rename", |fs, at, name| fs.rename(at, name, at, b"new", Replace::Yes)),
        ("rename from elsewhere", |fs, at, name| fs.rename(ROOT, b"one", at, name, Replace::Yes)),
        ("exchange", |fs, at, name| fs.exchange(at, name, ROOT, b"one")),
    ];
    let fs = Fs::mount(medium).unwrap();
    for (ino, name) in [(at.inner, &b"empty"[..]), (empty, b"loop")] {
        for (what, call) in calls {
            let error = call(&fs, ino, name).unwrap_err();
            let is_cycle = matches!(error, Error::Damaged { damage: Damage::Cycle { ino: found }, .. } if found == ino);
            assert!(is_cycle, "{what} in {ino}: {error}");
        }
    }
    // What is not in it goes on.
    fs.create(at.folder, b"new", New::Directory, 0o755, (0, 0)).unwrap();
    fs.rename(at.folder, b"new", ROOT, b"new", Replace::No).unwrap();
    fs.remove_directory(ROOT, b"new").unwrap();
    // A directory that is open without a name has no way up.
    let gone = fs.create(ROOT, b"gone", New::Directory, 0o755, (0, 0)).unwrap().ino;
    fs.open(gone).unwrap();
    fs.remove_directory(ROOT, b"gone").unwrap();
    assert!(matches!(fs.lookup(gone, b"x"), Err(Error::NoEntry { .. })));
}

#[test]
fn the_missing_blocks_of_a_directory_are_one_fault_however_many_there_are() {
    let blocks = (1_u64 << 26) - 1;
    let (medium, at) = some();
    set(&medium, at.folder, SIZE, &(blocks * 4096).to_le_bytes());
    let (entries, faults) = Inspection::new(medium.clone()).unwrap().entries(at.folder).unwrap();
    assert_eq!((entries.len(), faults.len(), faults[0].at), (2, 1, inode_at(&medium, at.folder)));
    assert!(faults[0].what.contains(&format!("{} of them", blocks - 1)), "{}", faults[0].what);
    let repaired = repair(medium.clone()).unwrap();
    assert_eq!((repaired.done.len(), repaired.report.faults.len()), (0, check(medium.clone()).unwrap().faults.len()));
    // Blocks behind the greatest length are not read: their slots would have no numbers.
    let free = Fs::mount(medium.clone()).unwrap().free_runs()[0].start;
    let place = [(blocks as u32 + 1).to_le_bytes(), 1_u32.to_le_bytes()].concat();
    set(&medium, at.folder, 96 + 16, &[&place[..], &free.to_le_bytes()].concat());
    assert_eq!(repair(medium.clone()).unwrap().done, []);
    set(&medium, at.folder, SIZE, &((blocks + 1) * 4096).to_le_bytes());
    let found = Inspection::new(medium).unwrap().inode(at.folder).unwrap();
    assert!(found.faults.iter().any(|fault| fault.what.contains("its length is")), "{:?}", found.faults);
}
