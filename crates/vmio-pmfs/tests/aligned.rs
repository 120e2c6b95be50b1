//! Aligned extents of files that grow by small writes.

#![allow(clippy::unwrap_used)]

use crate::support::{Numbers, contents, fill, made_of, patterned, sound, tree};
use vmio_pmfs::{ALIGNED, Changes, Fs, Geometry, New, Precondition, ROOT, Rewrite, Space};

/// One area of 32 MiB.
const GEOMETRY: Geometry = Geometry { blocks: 16 * 512, areas: 1, inodes: 1024, journal_blocks: 14, save_blocks: 16 };

fn file(fs: &Fs, name: &str) -> u64 {
    fs.create(ROOT, name.as_bytes(), New::File, 0o644, (0, 0)).unwrap().ino
}

/// Appends in pieces of `piece` bytes until the file has `to` bytes.
fn append(fs: &Fs, ino: u64, piece: usize, to: u64) {
    let mut size = fs.attributes(ino).unwrap().size;
    while size < to {
        let bytes = patterned(size, piece.min((to - size) as usize));
        size += fs.write(ino, size, &bytes).unwrap() as u64;
    }
}

#[test]
fn files_that_grow_by_small_appends_get_aligned_extents_from_their_second_on() {
    for piece in [1000, 4096, 65_536] {
        let medium = made_of(GEOMETRY);
        let fs = Fs::mount(medium.clone()).unwrap();
        let (a, b) = (file(&fs, "a"), file(&fs, "b"));
        let free = fs.space();
        // In turns, so that neither has the blocks behind its own to itself.
        for to in (1..=7 * 16).map(|part| part << 16) {
            append(&fs, a, piece, to);
            append(&fs, b, piece, to);
            append(&fs, file(&fs, &format!("{to}")), 4096, 4096);
        }
        for ino in [a, b] {
            assert_eq!(fs.aligned_extents(ino).unwrap(), (2, 3), "pieces of {piece}");
        }
        let space = fs.space();
        assert!(space.free_blocks <= free.free_blocks - 2 * 7 * 256, "blocks that are reserved count as free");
        let before = tree(&fs);
        drop(fs);
        assert_eq!(sound(medium.clone(), "grown").0, before);
        assert_eq!(Fs::mount(medium).unwrap().space(), space, "nothing of a reservation is on the medium");
    }
}

/// A log that is opened for each append.
#[test]
fn a_file_goes_on_in_its_extent_when_it_is_opened_again() {
    let medium = made_of(GEOMETRY);
    let mut fs = Fs::mount(medium.clone()).unwrap();
    let a = file(&fs, "a");
    for to in (1..=6 * 8).map(|part| part << 17) {
        fs.open(a).unwrap();
        append(&fs, a, 50_000, to);
        fs.close(a).unwrap();
        if to % (3 << 17) == 0 {
            drop(fs);
            fs = Fs::mount(medium.clone()).unwrap();
        }
    }
    assert_eq!(fs.aligned_extents(a).unwrap(), (2, 3));
}

#[test]
fn others_get_what_was_reserved_before_space_runs_out() {
    let fs = Fs::mount(made_of(GEOMETRY)).unwrap();
    let a = file(&fs, "a");
    append(&fs, a, 65_536, (2 << 20) + 4096);
    fill(&fs, "rest");
    fs.unlink(ROOT, b"rest").unwrap();
    append(&fs, a, 65_536, 5 << 20);
    assert_eq!(contents(&fs, a).len(), 5 << 20);
}

#[test]
fn a_reservation_ends_with_the_growth_of_its_file() {
    let medium = made_of(GEOMETRY);
    let fs = Fs::mount(medium.clone()).unwrap();
    let size = |ino, size| fs.set_attributes(ino, &Changes { size: Some(size), ..Changes::default() }).unwrap();
    let empty = fs.space();
    let extents = |fs: &Fs| fs.space().aligned_free_blocks;
    let a = file(&fs, "a");
    append(&fs, a, 65_536, 2 << 20);
    let before = extents(&fs);
    append(&fs, a, 65_536, (2 << 20) + 65_536);
    assert_eq!(extents(&fs), before - 512);
    size(a, 2 << 20);
    assert_eq!(extents(&fs), before, "it is truncated");
    append(&fs, a, 65_536, (2 << 20) + 65_536);
    fs.unlink(ROOT, b"a").unwrap();
    assert_eq!(fs.space().free_blocks, empty.free_blocks - 1, "the root has a block");
    assert_eq!(fs.free_runs().into_iter().map(|run| run.end - run.start).sum::<u64>(), fs.space().free_blocks);
}

/// A file of 5 MiB in pieces, with those of small files between them.
fn scattered(fs: &Fs) -> u64 {
    let a = file(fs, "a");
    // From the end on, nothing is an append.
    for part in (0..80).rev() {
        fs.write(a, part << 16, &patterned(part, 65_536)).unwrap();
        append(fs, file(fs, &format!("{part}")), 4096, 4096);
    }
    assert_eq!(fs.aligned_extents(a).unwrap(), (0, 2));
    a
}

#[test]
fn a_file_in_pieces_is_rewritten_once_nobody_uses_it() {
    let medium = made_of(GEOMETRY);
    let fs = Fs::mount(medium.clone()).unwrap();
    let a = scattered(&fs);
    let (before, free) = (tree(&fs), fs.space().free_blocks);
    fs.open(a).unwrap();
    fs.remember(a).unwrap();
    assert_eq!(fs.rewrite_aligned(a).unwrap(), Rewrite::InUse);
    fs.close(a).unwrap();
    assert_eq!(fs.rewrite_step(a, 0).unwrap(), Rewrite::Moved(1));
    assert_eq!(fs.rewrite_aligned(a).unwrap(), Rewrite::Done);
    assert_eq!(fs.aligned_extents(a).unwrap(), (2, 2));
    assert!(fs.space().free_blocks >= free, "the old blocks are free");
    assert!(fs.rewrite_aligned(ROOT).is_err());
    assert!(tree(&fs) == before);
    fs.forget_number(a).unwrap();
    drop(fs);
    assert!(sound(medium, "rewritten").0 == before);
}

#[test]
fn a_rewriting_stops_where_no_extent_is_whole() {
    let medium = made_of(GEOMETRY);
    let fs = Fs::mount(medium.clone()).unwrap();
    let a = scattered(&fs);
    let rest = file(&fs, "rest");
    fs.allocate(rest, 0, fs.space().aligned_free_blocks * 4096 - (2 << 20)).unwrap();
    let before = contents(&fs, a);
    assert_eq!(fs.rewrite_aligned(a).unwrap(), Rewrite::NoSpace);
    assert_eq!(fs.aligned_extents(a).unwrap(), (1, 2));
    fill(&fs, "more");
    assert_eq!(fs.rewrite_aligned(a).unwrap(), Rewrite::NoSpace);
    assert!(contents(&fs, a) == before);
    let before = tree(&fs);
    drop(fs);
    assert!(sound(medium, "stopped").0 == before);
}

/// Blocks of each kind of inode move, and those of open files stay.
#[test]
fn extents_become_whole_when_few_blocks_of_them_are_in_use() {
    let medium = made_of(GEOMETRY);
    let fs = Fs::mount(medium.clone()).unwrap();
    let mut numbers = Numbers::new(3);
    let names: Vec<String> = (0..300).map(|number| format!("{number}")).collect();
    for name in &names {
        match numbers.next() % 8 {
            0 => {
                let folder = fs.create(ROOT, name.as_bytes(), New::Directory, 0o755, (0, 0)).unwrap().ino;
                fs.create(folder, b"inner", New::File, 0o644, (0, 0)).unwrap();
            }
            1 => _ = fs.create(ROOT, name.as_bytes(), New::Symlink(b"target"), 0o777, (0, 0)).unwrap(),
            _ => append(&fs, file(&fs, name), 40_000, 1 + numbers.next() % 130_000),
        }
    }
    for name in names.iter().filter(|_| !numbers.next().is_multiple_of(4)) {
        // A folder stays.
        _ = fs.unlink(ROOT, name.as_bytes());
    }
    assert!(fs.has_many_holes());
    let (before, space) = (tree(&fs), fs.space());
    let all = fs.list(ROOT, 0, 1000).unwrap();
    all.iter().for_each(|named| fs.open(named.ino).unwrap());
    let gathered = fs.gather(100).unwrap();
    assert_eq!(fs.space().free_blocks, space.free_blocks);
    let extents = |space: &Space| space.aligned_free_blocks / 512;
    assert_eq!(extents(&fs.space()), extents(&space) + gathered.extents);
    all.iter().for_each(|named| fs.close(named.ino).unwrap());
    let (open, mut sum) = (gathered, gathered.extents);
    loop {
        let gathered = fs.gather(100).unwrap();
        sum += gathered.extents;
        if gathered.extents == 0 {
            break;
        }
    }
    assert!(sum > open.extents, "{open:?}, {sum} in all");
    assert_eq!(extents(&fs.space()), extents(&space) + sum);
    assert!(!fs.has_many_holes(), "{:?}", fs.space());
    assert!(tree(&fs) == before);
    let space = fs.space();
    drop(fs);
    assert!(sound(medium.clone(), "gathered").0 == before);
    assert_eq!(Fs::mount(medium).unwrap().space(), space);
}

/// Threads write, create and remove while others move blocks.
#[test]
fn blocks_move_while_files_are_used() {
    let medium = made_of(GEOMETRY);
    let fs = Fs::mount(medium.clone()).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..2_u64 {
            let fs = &fs;
            scope.spawn(move || {
                let mut numbers = Numbers::new(thread);
                let mut there: Vec<Option<(u64, Vec<u8>)>> = vec![None; 60];
                for _ in 0..test_depth::pick(1500, 20_000) {
                    let slot = (numbers.next() % 60) as usize;
                    let name = format!("{thread}-{slot}");
                    if let Some((ino, bytes)) = there[slot].take() {
                        assert!(contents(fs, ino) == bytes, "{name}");
                        fs.unlink(ROOT, name.as_bytes()).unwrap();
                    } else {
                        let bytes = patterned(numbers.next() % 1000, 1 + (numbers.next() % 60_000) as usize);
                        let ino = file(fs, &name);
                        fs.write(ino, 0, &bytes).unwrap();
                        there[slot] = Some((ino, bytes));
                    }
                }
            });
        }
        let fs = &fs;
        scope.spawn(move || (0..test_depth::pick(60, 600)).for_each(|_| _ = fs.gather(4).unwrap()));
    });
    let before = tree(&fs);
    let space = fs.space();
    drop(fs);
    assert!(sound(medium.clone(), "moved").0 == before);
    assert_eq!(Fs::mount(medium).unwrap().space(), space);
}

#[test]
fn files_wait_in_a_queue_for_their_rewriting() {
    let fs = Fs::mount(made_of(GEOMETRY)).unwrap();
    assert_eq!(fs.next_wanted(), None);
    let a = scattered(&fs);
    fs.lease(a, 1, 0..10, vmio_pmfs::Holes::Keep, 10).unwrap();
    assert_eq!(fs.next_wanted(), Some(a), "it is leased in pieces");
    assert_eq!(fs.rewrite_aligned(a).unwrap(), Rewrite::InUse);
    [7, 8, 7].into_iter().for_each(|ino| fs.wants_alignment(ino));
    assert_eq!([(); 3].map(|()| fs.next_wanted()), [Some(7), Some(8), None]);
}

/// A file that grew large is rewritten before anybody maps it, if that copies little of it.
#[test]
fn a_large_file_gets_an_aligned_start_when_it_is_closed() {
    let medium = made_of(Geometry { blocks: 64 * 512, ..GEOMETRY });
    let fs = Fs::mount(medium.clone()).unwrap();
    for (name, extents, is_wanted) in [("short", 7, false), ("long", 8, true)] {
        let ino = file(&fs, name);
        fs.open(ino).unwrap();
        append(&fs, ino, 1 << 20, extents << 21);
        assert_eq!((fs.aligned_extents(ino).unwrap(), fs.next_wanted()), ((extents - 1, extents), None), "{name}");
        fs.close(ino).unwrap();
        assert_eq!(fs.next_wanted(), is_wanted.then_some(ino), "{name}");
        if is_wanted {
            let before = contents(&fs, ino);
            assert_eq!(fs.rewrite_aligned(ino).unwrap(), Rewrite::Done);
            assert_eq!(fs.aligned_extents(ino).unwrap(), (extents, extents));
            assert!(contents(&fs, ino) == before);
            fs.open(ino).unwrap();
            fs.close(ino).unwrap();
            assert_eq!(fs.next_wanted(), None);
        }
    }
    let apart = file(&fs, "apart");
    fs.open(apart).unwrap();
    for part in (0..40).rev() {
        fs.write(apart, part * 450_000, &patterned(part, 450_000)).unwrap();
        append(&fs, file(&fs, &format!("{part}")), 4096, 4096);
    }
    assert_eq!(fs.aligned_extents(apart).unwrap(), (0, 8));
    fs.close(apart).unwrap();
    assert_eq!(fs.next_wanted(), None, "all of it lies in pieces");
    // Nor one of which a part in the middle does, too.
    let later = file(&fs, "later");
    fs.open(later).unwrap();
    append(&fs, later, 1 << 20, 4 << 20);
    for part in (10..40).rev() {
        fs.write(later, part * 450_000, &patterned(part, 450_000)).unwrap();
        append(&fs, file(&fs, &format!("later {part}")), 4096, 4096);
    }
    assert_eq!(fs.aligned_extents(later).unwrap(), (1, 8));
    fs.close(later).unwrap();
    assert_eq!(fs.next_wanted(), None, "more than its start lies in pieces");
    // Nor one that ends with its last use.
    let gone = file(&fs, "gone");
    fs.open(gone).unwrap();
    append(&fs, gone, 1 << 20, 8 << 21);
    fs.unlink(ROOT, b"gone").unwrap();
    fs.close(gone).unwrap();
    assert_eq!(fs.next_wanted(), None, "it is gone");
    drop(fs);
    sound(medium, "grown");
}

/// Blocks of an extent that is not whole yet stay where they are when they are written again.
#[test]
fn overwrites_leave_an_extent_that_grows_where_it_is() {
    let medium = made_of(GEOMETRY);
    let fs = Fs::mount(medium.clone()).unwrap();
    let a = file(&fs, "a");
    append(&fs, a, 65_536, 3 << 20);
    let mut numbers = Numbers::new(1);
    let mut expected = contents(&fs, a);
    for _ in 0..40 {
        let at = (2 << 20) + (numbers.next() % (1 << 20)) as usize;
        let bytes = patterned(numbers.next() % 1000, 5000);
        fs.write(a, at as u64, &bytes).unwrap();
        expected.resize(expected.len().max(at + 5000), 0);
        expected[at..at + 5000].copy_from_slice(&bytes);
    }
    append(&fs, a, 65_536, 4 << 20);
    assert_eq!(fs.aligned_extents(a).unwrap(), (1, 2));
    assert_eq!(contents(&fs, a)[..expected.len()], expected);
    drop(fs);
    sound(medium, "overwritten");
}

#[test]
fn a_small_file_that_wishes_it_grows_into_an_aligned_extent() {
    let medium = made_of(GEOMETRY);
    let fs = Fs::mount(medium.clone()).unwrap();
    let (wishing, other) = (file(&fs, "wishing"), file(&fs, "other"));
    fs.set_xattr(wishing, ALIGNED.as_bytes(), b"1", Precondition::None).unwrap();
    for to in (1..=32).map(|part| part << 16) {
        append(&fs, wishing, 4096, to);
        append(&fs, other, 4096, to);
    }
    assert_eq!((fs.aligned_extents(wishing).unwrap(), fs.aligned_extents(other).unwrap()), ((1, 1), (0, 1)));
    drop(fs);
    sound(medium, "wishing");
}
