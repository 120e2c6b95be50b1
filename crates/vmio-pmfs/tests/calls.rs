//! Calls one by one.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use crate::support::{GEOMETRY, contents, fill, made, made_of, patterned, sound, tree};
use vmio_pmfs::{Changes, Error, Fs, Geometry, Kind, Medium, New, ROOT, Replace, Simulated};

fn file(fs: &Fs, directory: u64, name: &str) -> u64 {
    fs.create(directory, name.as_bytes(), New::File, 0o644, (1, 2)).unwrap().ino
}

fn folder(fs: &Fs, directory: u64, name: &str) -> u64 {
    fs.create(directory, name.as_bytes(), New::Directory, 0o755, (1, 2)).unwrap().ino
}

#[test]
fn what_is_written_is_there_after_a_remount() {
    let medium = made();
    let fs = Fs::mount(medium.clone()).unwrap();
    let docs = folder(&fs, ROOT, "docs");
    let long = "n".repeat(255);
    let a = file(&fs, docs, &long);
    let bytes = patterned(1, 3 * 65536 + 17);
    for (index, part) in bytes.chunks(65536).enumerate() {
        assert_eq!(fs.write(a, index as u64 * 65536, part).unwrap(), part.len());
    }
    fs.create(docs, b"link", New::Symlink(b"../there"), 0o777, (0, 0)).unwrap();
    fs.link(a, ROOT, b"other").unwrap();
    fs.rename(docs, long.as_bytes(), ROOT, b"moved", Replace::No).unwrap();
    let before = tree(&fs);
    assert_eq!(before.len(), 4);
    let space = fs.space();
    drop(fs);
    let (after, rolled_back) = sound(medium.clone(), "remount");
    assert_eq!((after, rolled_back), (before, 0));
    let fs = Fs::mount(medium).unwrap();
    assert_eq!(fs.space(), space, "the scan finds the same blocks free");
    let moved = fs.lookup(ROOT, b"moved").unwrap();
    assert_eq!((moved.links, moved.uid, moved.gid, moved.mode), (2, 1, 2, 0o644));
    assert_eq!(contents(&fs, moved.ino), bytes);
}

#[test]
fn each_mistake_has_its_error() {
    let fs = Fs::mount(made()).unwrap();
    let (a, d) = (file(&fs, ROOT, "a"), folder(&fs, ROOT, "d"));
    let e = folder(&fs, d, "e");
    assert!(matches!(fs.lookup(ROOT, b"none"), Err(Error::NoEntry { .. })));
    assert!(matches!(fs.lookup(a, b"none"), Err(Error::NotADirectory { .. })));
    assert!(matches!(fs.create(ROOT, b"a", New::File, 0, (0, 0)), Err(Error::EntryExists { .. })));
    assert!(matches!(fs.create(ROOT, b"a/b", New::File, 0, (0, 0)), Err(Error::BadName { .. })));
    assert!(matches!(fs.create(ROOT, b"..", New::File, 0, (0, 0)), Err(Error::BadName { .. })));
    assert!(matches!(fs.create(ROOT, &[b'x'; 256], New::File, 0, (0, 0)), Err(Error::NameTooLong { .. })));
    assert!(matches!(fs.unlink(ROOT, b"d"), Err(Error::IsADirectory { .. })));
    assert!(matches!(fs.remove_directory(ROOT, b"a"), Err(Error::NotADirectory { .. })));
    assert!(matches!(fs.remove_directory(ROOT, b"d"), Err(Error::NotEmpty { .. })));
    assert!(matches!(fs.rename(ROOT, b"d", e, b"x", Replace::Yes), Err(Error::IntoItself { .. })));
    assert!(matches!(fs.rename(d, b"e", ROOT, b"d", Replace::Yes), Err(Error::NotEmpty { .. })));
    assert!(matches!(fs.rename(ROOT, b"a", ROOT, b"d", Replace::Yes), Err(Error::IsADirectory { .. })));
    assert!(matches!(fs.rename(ROOT, b"d", ROOT, b"a", Replace::Yes), Err(Error::NotADirectory { .. })));
    assert!(matches!(fs.rename(ROOT, b"a", ROOT, b"d", Replace::No), Err(Error::EntryExists { .. })));
    assert!(matches!(fs.link(d, ROOT, b"l"), Err(Error::IsADirectory { .. })));
    assert!(matches!(fs.write(a, u64::MAX - 1, b"x"), Err(Error::FileTooLarge { .. })));
    assert!(matches!(fs.write(d, 0, b"x"), Err(Error::IsADirectory { .. })));
    assert!(matches!(fs.attributes(99), Err(Error::NoInode { ino: 99 })));
    assert!(matches!(fs.attributes(0), Err(Error::NoInode { ino: 0 })));
    assert!(matches!(fs.attributes(u64::MAX), Err(Error::NoInode { .. })));
}

#[test]
fn a_medium_with_something_else_is_refused_unless_it_may_be_overwritten() {
    let medium: Arc<dyn Medium> = made();
    assert!(matches!(Fs::make(&medium, GEOMETRY, false, (0, 0)), Err(Error::HasFileSystem)));
    Fs::make(&medium, GEOMETRY, true, (0, 0)).unwrap();
    let other: Arc<dyn Medium> = Arc::new(Simulated::new(GEOMETRY.bytes()));
    assert!(matches!(Fs::mount(Arc::clone(&other)), Err(Error::NoFileSystem { .. })));
    other.write(0, b"#!/bin/sh");
    assert!(matches!(Fs::make(&other, GEOMETRY, false, (0, 0)), Err(Error::HasOtherContent { .. })));
    let small: Arc<dyn Medium> = Arc::new(Simulated::new(1 << 20));
    assert!(matches!(Fs::make(&small, GEOMETRY, false, (0, 0)), Err(Error::TooSmall { .. })));
}

#[test]
fn a_layout_that_cannot_be_is_refused() {
    let wrong = [
        Geometry { areas: 0, ..GEOMETRY },
        Geometry { inodes: 0, ..GEOMETRY },
        Geometry { inodes: 17, ..GEOMETRY },
        Geometry { journal_blocks: 13, ..GEOMETRY },
        Geometry { save_blocks: 0, ..GEOMETRY },
        Geometry { save_blocks: u32::MAX, ..GEOMETRY },
        Geometry { blocks: GEOMETRY.blocks + 1, ..GEOMETRY },
        // A part of the medium: nobody would find the superblock's copy.
        Geometry { blocks: GEOMETRY.blocks - 512, areas: 1, ..GEOMETRY },
    ];
    for geometry in wrong {
        let medium: Arc<dyn Medium> = Arc::new(Simulated::new(GEOMETRY.bytes() + 4096));
        let made = Fs::make(&medium, geometry, true, (0, 0));
        assert!(matches!(made, Err(Error::Layout { .. })), "{geometry:?}: {made:?}");
    }
    let medium: Arc<dyn Medium> = Arc::new(Simulated::new(GEOMETRY.bytes() + 4096));
    Fs::make(&medium, GEOMETRY, true, (0, 0)).unwrap();
    medium.write(100, &[9; 8]);
    assert!(Fs::mount(medium).is_ok(), "the copy is found");
}

#[test]
fn the_copy_of_the_superblock_is_used_if_the_first_is_damaged() {
    let medium = made();
    medium.write(100, &[9; 8]);
    assert!(Fs::mount(medium.clone()).is_ok());
    assert_eq!(vmio_pmfs::check(medium.clone()).unwrap().faults.len(), 1);
    medium.write(GEOMETRY.bytes() - 4000, &[9; 8]);
    assert!(matches!(Fs::mount(medium), Err(Error::Damaged { structure: "the superblock", .. })));
}

#[test]
fn a_file_without_a_name_lives_until_its_last_close() {
    let medium = made();
    let fs = Fs::mount(medium.clone()).unwrap();
    let free = fs.space();
    // The root's first block stays.
    let (a, b) = (file(&fs, ROOT, "a"), file(&fs, ROOT, "b"));
    fs.write(a, 0, &patterned(1, 9000)).unwrap();
    fs.write(b, 0, &patterned(2, 9000)).unwrap();
    for ino in [a, a, b] {
        fs.open(ino).unwrap();
    }
    fs.unlink(ROOT, b"a").unwrap();
    fs.unlink(ROOT, b"b").unwrap();
    fs.close(a).unwrap();
    assert_eq!(contents(&fs, a), patterned(1, 9000));
    fs.close(a).unwrap();
    assert!(matches!(fs.attributes(a), Err(Error::NoInode { .. })));
    let crashed = Arc::new(medium.copy());
    assert_eq!(vmio_pmfs::check(crashed.clone()).unwrap().census.orphans, 1);
    let after = Fs::mount(crashed).unwrap();
    assert_eq!(after.recovered().orphans, 1);
    assert_eq!(after.space().free_blocks, free.free_blocks - 1);
    assert_eq!(after.space().free_inodes, free.free_inodes);
    fs.close(b).unwrap();
    assert_eq!(fs.space(), after.space());
}

#[test]
fn a_number_that_is_used_again_has_another_generation() {
    let fs = Fs::mount(made()).unwrap();
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..200 {
        let made = fs.create(ROOT, b"a", New::File, 0, (0, 0)).unwrap();
        assert!(seen.insert((made.ino, made.generation)));
        fs.unlink(ROOT, b"a").unwrap();
    }
}

#[test]
fn bytes_behind_the_end_are_zeros_when_the_file_grows() {
    let fs = Fs::mount(made()).unwrap();
    let a = file(&fs, ROOT, "a");
    fs.write(a, 0, &[7; 6000]).unwrap();
    let size = |size| fs.set_attributes(a, &Changes { size: Some(size), ..Changes::default() }).unwrap();
    size(100);
    size(5000);
    assert!(contents(&fs, a)[100..].iter().all(|byte| *byte == 0));
    fs.write(a, 0, &[7; 8192]).unwrap();
    size(4200);
    fs.write(a, 9000, &[8]).unwrap();
    let bytes = contents(&fs, a);
    assert!(bytes[..4200].iter().all(|byte| *byte == 7) && bytes[4200..9000].iter().all(|byte| *byte == 0));
    size(0);
    assert_eq!(fs.attributes(a).unwrap().blocks, 0);
}

#[test]
fn a_full_file_system_refuses_and_has_space_again() {
    let medium = made();
    let fs = Fs::mount(medium.clone()).unwrap();
    let a = file(&fs, ROOT, "a");
    let free = fs.space();
    let chunk = patterned(5, GEOMETRY.write_bytes_max());
    let mut end = 0;
    let error = loop {
        match fs.write(a, end, &chunk) {
            Ok(written) => end += written as u64,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::NoSpace { .. }));
    assert!(end > free.free_blocks * 4096 - 2 * chunk.len() as u64, "{end} of {} blocks", free.free_blocks);
    assert_eq!(fs.attributes(a).unwrap().size, end);
    let mut last = vec![0; chunk.len()];
    fs.read(a, end - chunk.len() as u64, &mut last).unwrap();
    assert_eq!(last, chunk);
    fs.unlink(ROOT, b"a").unwrap();
    assert_eq!(fs.space(), vmio_pmfs::Space { free_inodes: free.free_inodes + 1, ..free });
    let mut names = 0;
    let error = loop {
        match fs.create(ROOT, format!("{names}").as_bytes(), New::File, 0, (0, 0)) {
            Ok(_) => names += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::NoInodes));
    assert_eq!(names, GEOMETRY.all_inodes() - 2);
    drop(fs);
    assert_eq!(sound(medium, "full").0.len() as u64, names);
}

#[test]
fn large_allocations_get_aligned_extents_and_keep_them() {
    let medium = made();
    let fs = Fs::mount(medium.clone()).unwrap();
    let a = file(&fs, ROOT, "a");
    let aligned = fs.space().aligned_free_blocks;
    fs.allocate(a, 0, 2 << 20).unwrap();
    let left = fs.space();
    assert_eq!(left.aligned_free_blocks, aligned - 512);
    assert!(contents(&fs, a).iter().all(|byte| *byte == 0));
    fs.allocate(a, 10 << 20, 0).unwrap();
    assert_eq!(fs.attributes(a).unwrap().size, 2 << 20, "no bytes are nothing");
    for (seed, at) in [(1, 0), (2, 77), (3, 500_000)] {
        fs.write(a, at, &patterned(seed, 40_000)).unwrap();
    }
    assert_eq!(fs.space(), left, "overwrites are in place");
    let bytes = contents(&fs, a);
    assert_eq!(bytes[77..40_077], patterned(2, 40_000));
    assert_eq!(bytes[500_000..540_000], patterned(3, 40_000));
    drop(fs);
    sound(medium, "aligned");
}

#[test]
fn a_file_of_many_extents_shrinks_and_grows() {
    let medium = made();
    let fs = Fs::mount(medium.clone()).unwrap();
    let a = file(&fs, ROOT, "a");
    // Every other block: an extent each.
    for block in 0..600_u64 {
        fs.write(a, block * 8192, &block.to_le_bytes()).unwrap();
    }
    let check_blocks = |fs: &Fs, a| {
        let bytes = contents(fs, a);
        for (block, part) in bytes.chunks(8192).enumerate() {
            assert_eq!(part[..8], (block as u64).to_le_bytes());
            assert!(part[8..].iter().all(|byte| *byte == 0));
        }
    };
    check_blocks(&fs, a);
    drop(fs);
    sound(medium.clone(), "many extents");
    let fs = Fs::mount(medium.clone()).unwrap();
    for size in [590 * 8192, 100 * 8192, 20 * 8192, 5 * 8192] {
        fs.set_attributes(a, &Changes { size: Some(size), ..Changes::default() }).unwrap();
        check_blocks(&fs, a);
        sound(Arc::new(medium.copy()), "a smaller one");
    }
    assert_eq!(fs.attributes(a).unwrap().blocks, 5, "the chain is gone");
}

#[test]
fn files_shrink_on_a_full_medium() {
    // All places of the inode in use; more than 200 changed places.
    for (extents, kept) in [(10, 0), (10, 7), (600, 300), (600, 250), (600, 2), (600, 0)] {
        let medium = made();
        let fs = Fs::mount(medium.clone()).unwrap();
        let a = file(&fs, ROOT, "a");
        for block in 0..extents {
            fs.write(a, block * 8192, &block.to_le_bytes()).unwrap();
        }
        fill(&fs, "rest");
        let before = contents(&fs, a);
        let size = kept * 8192 + 4000;
        let shrunk = fs.set_attributes(a, &Changes { size: Some(size), ..Changes::default() });
        assert_eq!(shrunk.unwrap_or_else(|error| panic!("{extents} to {kept}: {error}")).size, size);
        assert_eq!(contents(&fs, a), before[..size as usize]);
        let (tree, space) = (tree(&fs), fs.space());
        drop(fs);
        assert_eq!(sound(medium.clone(), "shrunk"), (tree, 0));
        assert_eq!(Fs::mount(medium).unwrap().space(), space);
    }
}

/// A write that changes a place in each of 140 blocks of a chain needs two entries for each.
#[test]
fn the_largest_change_fits_the_smallest_journal() {
    let geometry = Geometry { blocks: 512 * 200, areas: 1, inodes: 64, save_blocks: 256, ..GEOMETRY };
    let medium = made_of(geometry);
    let fs = Fs::mount(medium.clone()).unwrap();
    let a = file(&fs, ROOT, "a");
    let mut other = 1000;
    for block in 0..140 {
        fs.write(a, block * 4096, b"x").unwrap();
        for _ in 0..254 {
            fs.write(a, other * 4096, b"y").unwrap();
            other += 2;
        }
    }
    let bytes = patterned(1, 140 * 4096);
    assert_eq!(fs.write(a, 0, &bytes).unwrap(), bytes.len());
    let mut read = vec![0; bytes.len()];
    fs.read(a, 0, &mut read).unwrap();
    assert_eq!(read, bytes);
}

#[test]
fn listings_go_on_where_they_were_while_names_come_and_go() {
    let fs = Fs::mount(made()).unwrap();
    for number in 0..40 {
        file(&fs, ROOT, &format!("{number:0width$}", width = 1 + number * 6));
    }
    let first = fs.list(ROOT, 0, 10).unwrap();
    for named in &first {
        fs.unlink(ROOT, &named.name).unwrap();
    }
    file(&fs, ROOT, "new");
    let rest = fs.list(ROOT, first[9].cookie, 100).unwrap();
    let names: std::collections::BTreeSet<_> = first.iter().chain(&rest).map(|named| named.name.clone()).collect();
    assert_eq!(names.len(), 40);
    assert!(first.iter().all(|named| named.kind == Kind::File));
}

/// Threads create, write, rename and remove in each other's directories.
#[test]
fn many_threads_leave_a_sound_file_system() {
    let medium = made();
    let fs = Fs::mount(medium.clone()).unwrap();
    let folders: Vec<u64> = (0..3).map(|number| folder(&fs, ROOT, &format!("d{number}"))).collect();
    std::thread::scope(|scope| {
        for thread in 0..4_usize {
            let (fs, folders) = (&fs, &folders);
            scope.spawn(move || {
                for round in 0..test_depth::pick(150, 3000) {
                    let (from, to) = (folders[(thread + round) % 3], folders[round % 3]);
                    let name = format!("{}", (thread * 7 + round * 3) % 10);
                    let name = name.as_bytes();
                    // Others may have been faster, in any of these.
                    let made = fs.create(from, name, New::File, 0o644, (0, 0));
                    if let Ok(made) = made {
                        _ = fs.write(made.ino, 0, &patterned(round as u64, 5000));
                    }
                    _ = fs.rename(from, name, to, b"target", Replace::Yes);
                    _ = fs.rename(ROOT, format!("d{}", round % 3).as_bytes(), from, b"d", Replace::Yes);
                    _ = fs.rename(from, b"d", ROOT, format!("d{}", round % 3).as_bytes(), Replace::Yes);
                    _ = fs.unlink(to, name);
                    _ = fs.list(to, 0, 100);
                }
            });
        }
    });
    let before = tree(&fs);
    drop(fs);
    assert_eq!(sound(medium, "threads").0, before);
}

/// A medium that calls a function before each fence.
struct Fenced {
    below: Arc<Simulated>,
    before: std::sync::Mutex<Option<Box<dyn Fn() + Send>>>,
}

impl Medium for Fenced {
    fn len(&self) -> u64 {
        self.below.len()
    }

    fn read(&self, at: u64, into: &mut [u8]) {
        self.below.read(at, into);
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        self.below.write(at, bytes);
    }

    fn fence(&self) {
        if let Some(before) = &*self.before.lock().unwrap() {
            before();
        }
        self.below.fence();
    }
}

/// A program that knows the number of a new file, from an earlier file for instance, opens it before its creation has returned.
#[test]
fn a_file_that_is_opened_while_it_is_made_is_one() {
    let medium = Arc::new(Fenced { below: made(), before: std::sync::Mutex::default() });
    let fs = Arc::new(Fs::mount(medium.clone()).unwrap());
    let number = file(&fs, ROOT, "a");
    fs.unlink(ROOT, b"a").unwrap();
    let openers: Arc<std::sync::Mutex<Vec<std::thread::JoinHandle<bool>>>> = Arc::default();
    *medium.before.lock().unwrap() = Some(Box::new({
        let (fs, openers) = (Arc::downgrade(&fs), Arc::clone(&openers));
        move || {
            let (fs, (done, is_done)) = (fs.upgrade().unwrap(), std::sync::mpsc::channel());
            openers.lock().unwrap().push(std::thread::spawn(move || {
                let opened = fs.open(number).is_ok();
                _ = done.send(());
                opened
            }));
            // If the file is locked, the opener goes on when this thread does.
            _ = is_done.recv_timeout(std::time::Duration::from_millis(300));
        }
    }));
    // The number goes to the same processor's next file. Threads that were moved have another one, and try again.
    assert!((0..100).any(|name| file(&fs, ROOT, &format!("{name}")) == number));
    *medium.before.lock().unwrap() = None;
    let openers = std::mem::take(&mut *openers.lock().unwrap());
    assert!(openers.into_iter().map(|opener| opener.join().unwrap()).filter(|opened| *opened).count() > 0);
    let name = fs.list(ROOT, 0, 200).unwrap().into_iter().find(|named| named.ino == number).unwrap().name;
    fs.unlink(ROOT, &name).unwrap();
    assert_eq!(fs.attributes(number).unwrap().links, 0, "the file is open");
}

/// WineFS's calls need ten entries of the journal at the most.
#[test]
fn calls_need_few_entries_of_the_journal() {
    let medium = made();
    let fs = Fs::mount(medium.clone()).unwrap();
    let (a, d) = (file(&fs, ROOT, "a"), folder(&fs, ROOT, "d"));
    file(&fs, d, "there");
    fs.write(a, 0, &patterned(1, 20_000)).unwrap();
    let entries = |call: &dyn Fn()| {
        medium.record();
        call();
        // Behind the superblock, and where the second area begins.
        let in_journal = |at: u64| (4096..15 * 4096).contains(&at) || (4 << 20..(4 << 20) + 14 * 4096).contains(&at);
        medium.recorded().iter().flatten().filter(|store| in_journal(store.at)).count() / 8
    };
    assert_eq!(entries(&|| _ = file(&fs, ROOT, "new")), 5);
    let counts = [
        entries(&|| _ = folder(&fs, ROOT, "folder")),
        entries(&|| _ = fs.link(a, ROOT, b"link").unwrap()),
        entries(&|| fs.unlink(ROOT, b"link").unwrap()),
        entries(&|| fs.rename(ROOT, b"a", ROOT, b"b", Replace::No).unwrap()),
        entries(&|| fs.rename(ROOT, b"b", d, b"there", Replace::Yes).unwrap()),
        entries(&|| fs.remove_directory(ROOT, b"folder").unwrap()),
        entries(&|| _ = fs.write(a, 20_000, &patterned(2, 9000)).unwrap()),
        entries(&|| _ = fs.write(a, 5000, &patterned(3, 4000)).unwrap()),
    ];
    assert!(counts.iter().all(|count| (3..=10).contains(count)), "{counts:?}");
}
