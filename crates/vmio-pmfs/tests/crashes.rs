//! Every call on a medium that records stores: each state that a crash may leave is mounted, checked and compared.
//!
//! A crash leaves all stores up to a fence, and any of the words stored since. Where these are few, all subsets are tried; else the beginnings
//! in the order of stores, each one alone, each one missing, and subsets of a seed.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use crate::crash_states::{Recording, crashed, explore, explore_moves, subsets};
use crate::support::{GEOMETRY, Numbers, fill, made, made_of, patterned, sound, tree};
use vmio_pmfs::{
    ALIGNED, Appends, Changes, Fs, Geometry, Holes, Length, Medium, New, Overlay, Precondition, ROOT, RangeChange,
    Replace, Rewrite,
};

pub fn create(fs: &Fs, directory: u64, name: &str, new: New<'_>) -> u64 {
    fs.create(directory, name.as_bytes(), new, 0o755, (1, 1)).unwrap().ino
}

pub fn ino(fs: &Fs, name: &str) -> u64 {
    fs.lookup(ROOT, name.as_bytes()).unwrap().ino
}

pub fn resize(fs: &Fs, ino: u64, size: u64) {
    fs.set_attributes(ino, &Changes { size: Some(size), ..Changes::default() }).unwrap();
}

/// Two files with contents, a folder and a file in it.
pub fn some_files(fs: &Fs) {
    for (seed, name) in [(1, "a"), (2, "b")] {
        let ino = create(fs, ROOT, name, New::File);
        fs.write(ino, 0, &patterned(seed, 10_000)).unwrap();
    }
    let folder = create(fs, ROOT, "d", New::Directory);
    create(fs, folder, "inner", New::File);
    create(fs, ROOT, "empty", New::Directory);
}

/// A file whose first 2 MiB are an aligned extent, with some contents.
pub fn aligned_file(fs: &Fs) {
    let ino = create(fs, ROOT, "a", New::File);
    fs.allocate(ino, 0, 2 << 20).unwrap();
    fs.write(ino, 0, &patterned(3, 20_000)).unwrap();
}

/// A file of 2 MiB, which was written in pieces and lies in holes.
pub fn large_file(fs: &Fs) {
    let ino = create(fs, ROOT, "a", New::File);
    for at in (0..2 << 20).step_by(65_536) {
        fs.write(ino, at, &patterned(at, 65_536)).unwrap();
    }
}

/// A file of more extents than its inode has room for.
pub fn chained_file(fs: &Fs) {
    let ino = create(fs, ROOT, "a", New::File);
    for block in 0..20 {
        fs.write(ino, block * 8192, &patterned(block, 300)).unwrap();
    }
}

#[test]
fn names_are_made_whole_or_not_at_all() {
    explore("create", some_files, |fs| _ = create(fs, ROOT, "new", New::File));
    explore("create in an empty directory", |_| (), |fs| _ = create(fs, ROOT, "new", New::File));
    explore("create with a long name", some_files, |fs| _ = create(fs, ROOT, &"n".repeat(200), New::File));
    explore("mkdir", some_files, |fs| _ = create(fs, ROOT, "new", New::Directory));
    explore("symlink", some_files, |fs| _ = create(fs, ROOT, "new", New::Symlink(b"somewhere/else")));
    explore("link", some_files, |fs| _ = fs.link(ino(fs, "a"), ino(fs, "d"), b"hard").unwrap());
    let seen = explore(
        "create again",
        |fs| {
            some_files(fs);
            fs.unlink(ROOT, b"a").unwrap();
        },
        |fs| _ = create(fs, ROOT, "new", New::File),
    );
    assert!(seen.rolled_back > 0, "{seen:?}");
}

#[test]
fn names_are_removed_whole_or_not_at_all() {
    explore("unlink", some_files, |fs| fs.unlink(ROOT, b"a").unwrap());
    explore(
        "unlink of one of two",
        |fs| {
            some_files(fs);
            fs.link(ino(fs, "a"), ROOT, b"two").unwrap();
        },
        |fs| fs.unlink(ROOT, b"a").unwrap(),
    );
    explore("unlink while open", some_files, |fs| {
        fs.open(ino(fs, "a")).unwrap();
        fs.unlink(ROOT, b"a").unwrap();
    });
    explore("unlink with a chain", chained_file, |fs| fs.unlink(ROOT, b"a").unwrap());
    explore("rmdir", some_files, |fs| fs.remove_directory(ROOT, b"empty").unwrap());
}

#[test]
fn renames_are_whole() {
    let rename = |fs: &Fs, from, name: &str, to, new_name: &str| {
        fs.rename(from, name.as_bytes(), to, new_name.as_bytes(), Replace::Yes).unwrap();
    };
    explore("rename", some_files, |fs| rename(fs, ROOT, "a", ROOT, "new"));
    explore("rename over a file", some_files, |fs| rename(fs, ROOT, "a", ROOT, "b"));
    explore("rename over an open file", some_files, |fs| {
        fs.open(ino(fs, "b")).unwrap();
        rename(fs, ROOT, "a", ROOT, "b");
    });
    explore("rename into a folder", some_files, |fs| rename(fs, ROOT, "a", ino(fs, "d"), "a"));
    explore("rename over a file of a folder", some_files, |fs| rename(fs, ROOT, "a", ino(fs, "d"), "inner"));
    explore("rename of a folder", some_files, |fs| rename(fs, ROOT, "d", ino(fs, "empty"), "d"));
    let exchange = |fs: &Fs, from, name: &str, to, other: &str| {
        fs.exchange(from, name.as_bytes(), to, other.as_bytes()).unwrap();
    };
    explore("exchange", some_files, |fs| exchange(fs, ROOT, "a", ROOT, "b"));
    explore("exchange with a folder", some_files, |fs| exchange(fs, ROOT, "a", ROOT, "d"));
    explore("exchange of a file of a folder and a folder", some_files, |fs| {
        exchange(fs, ino(fs, "d"), "inner", ROOT, "empty");
    });
    explore("rename over a folder", some_files, |fs| rename(fs, ROOT, "d", ROOT, "empty"));
}

#[test]
fn writes_are_whole() {
    let write = |at: u64, len: usize| {
        move |fs: &Fs| {
            assert_eq!(fs.write(ino(fs, "a"), at, &patterned(9, len)).unwrap(), len);
        }
    };
    explore("the first write", |fs| _ = create(fs, ROOT, "a", New::File), write(0, 5000));
    explore("a write in a hole", some_files, write(100, 6000));
    explore("a write of a few bytes", some_files, write(4000, 200));
    explore("an append", some_files, write(10_000, 300));
    explore("an append to another block", some_files, write(10_000, 9000));
    explore("a write across the end", some_files, write(9_500, 1000));
    explore("a write far behind the end", some_files, write(50_000, 100));
    explore("a write in an aligned extent", aligned_file, write(1000, 9000));
    explore("a write of bytes in an aligned extent", aligned_file, write(4093, 7));
    explore("a write across the end of an aligned extent", aligned_file, write((2 << 20) - 3000, 6000));
    explore("a write to a chain", chained_file, write(15 * 8192, 5000));
    explore("a write that fills holes of a chain", chained_file, write(3 * 8192, 60_000));
    explore("an append that begins an aligned extent", large_file, write(2 << 20, 60_000));
    explore(
        "an append to an aligned extent that has begun",
        |fs| {
            large_file(fs);
            write(2 << 20, 60_000)(fs);
        },
        write((2 << 20) + 50_000, 20_000),
    );
    explore(
        "an append after a truncation",
        |fs| {
            some_files(fs);
            resize(fs, ino(fs, "a"), 5000);
        },
        write(7000, 2000),
    );
}

#[test]
fn lengths_change_whole() {
    explore("truncate to nothing", some_files, |fs| resize(fs, ino(fs, "a"), 0));
    explore("truncate in a block", some_files, |fs| resize(fs, ino(fs, "a"), 5000));
    explore("truncate up", some_files, |fs| resize(fs, ino(fs, "a"), 30_000));
    explore(
        "truncate up after down",
        |fs| {
            some_files(fs);
            resize(fs, ino(fs, "a"), 4500);
        },
        |fs| resize(fs, ino(fs, "a"), 8000),
    );
    explore("truncate of an aligned extent", aligned_file, |fs| resize(fs, ino(fs, "a"), 100_000));
    explore("truncate of a chain", chained_file, |fs| resize(fs, ino(fs, "a"), 12 * 8192));
    explore("truncate of a chain into the inode", chained_file, |fs| resize(fs, ino(fs, "a"), 3 * 8192));
    explore(
        "truncate of a long chain on a full medium",
        |fs| {
            let ino = create(fs, ROOT, "a", New::File);
            for block in 0..320 {
                fs.write(ino, block * 8192, &patterned(block, 300)).unwrap();
            }
            fill(fs, "rest");
        },
        |fs| resize(fs, ino(fs, "a"), 100 * 8192),
    );
    explore("allocate", some_files, |fs| fs.allocate(ino(fs, "a"), 5000, 100_000).unwrap());
}

#[test]
fn what_a_holder_appends_becomes_part_of_the_file_whole() {
    let leased = |fs: &Fs| assert!(!fs.lease_to_grow(ino(fs, "a"), 1, Appends::Volatile).unwrap().extents.is_empty());
    let grown = move |by: u64| {
        move |fs: &Fs| {
            leased(fs);
            let size = fs.attributes(ino(fs, "a")).unwrap().size;
            fs.grown(ino(fs, "a"), 1, size + by).unwrap();
        }
    };
    for by in [1, 3000, 5000, 40_000] {
        explore("grown", some_files, grown(by));
    }
    // Leased blocks that are not aligned are overwritten in place, and not anew.
    let overwrite = |fs: &Fs| {
        fs.lease(ino(fs, "a"), 1, 0..10, Holes::Keep, 10).unwrap();
        fs.write(ino(fs, "a"), 3000, &[9; 4000]).unwrap();
    };
    explore("a leased overwrite", some_files, overwrite);
}

#[test]
fn ranges_change_whole() {
    let change =
        |change: RangeChange, at: u64, len: u64| move |fs: &Fs| fs.change_range(ino(fs, "a"), change, at, len).unwrap();
    let (grows, stays) = (RangeChange::Zero(Length::Grows), RangeChange::Zero(Length::Stays));
    explore("punch", some_files, change(RangeChange::Punch, 3000, 6000));
    explore("punch in a block", some_files, change(RangeChange::Punch, 100, 50));
    explore("punch across the end", some_files, change(RangeChange::Punch, 5000, 50_000));
    explore("punch in an aligned extent", aligned_file, change(RangeChange::Punch, 5000, 9000));
    explore("punch in a chain", chained_file, change(RangeChange::Punch, 3 * 8192 + 100, 12 * 8192));
    explore("zero", some_files, change(grows, 3000, 6500));
    explore("zero across the end", some_files, change(grows, 3000, 20_000));
    explore("zero up to the end", some_files, change(stays, 3000, 20_000));
    explore("zero in an aligned extent", aligned_file, change(stays, 5000, 9000));
    let reserved = |fs: &Fs| {
        some_files(fs);
        change(RangeChange::Allocate(Length::Stays), 0, 40_000)(fs);
        // Bytes that a crash may leave behind the end, where nobody may ever see them.
        let (a, b) = (ino(fs, "a"), ino(fs, "b"));
        fs.write(a, 10_000, &patterned(4, 20_000)).unwrap();
        resize(fs, a, 10_000);
        change(RangeChange::Allocate(Length::Stays), 0, 40_000)(fs);
        fs.write(b, 0, b"other").unwrap();
    };
    explore("an append to reserved blocks", reserved, |fs| _ = fs.write(ino(fs, "a"), 10_000, &[5; 9000]).unwrap());
    explore("a write behind the end, in reserved blocks", reserved, |fs| {
        fs.write(ino(fs, "a"), 25_000, &[5; 3000]).unwrap();
    });
    explore("truncate up into reserved blocks", reserved, |fs| resize(fs, ino(fs, "a"), 30_000));
    explore("allocate over reserved blocks", reserved, |fs| fs.allocate(ino(fs, "a"), 0, 60_000).unwrap());
}

#[test]
fn extended_attributes_change_whole() {
    let set = |fs: &Fs, name: &str, bytes: usize| {
        fs.set_xattr(ino(fs, "a"), name.as_bytes(), &patterned(5, bytes), Precondition::None).unwrap();
    };
    let has_one = |fs: &Fs| {
        some_files(fs);
        set(fs, "user.one", 100);
    };
    explore("the first attribute", some_files, |fs| set(fs, "user.one", 100));
    explore("a second attribute", has_one, |fs| set(fs, "trusted.two", 1000));
    explore("another value", has_one, |fs| set(fs, "user.one", 7));
    explore("the last attribute's end", has_one, |fs| fs.remove_xattr(ino(fs, "a"), b"user.one").unwrap());
    explore("unlink with attributes", has_one, |fs| fs.unlink(ROOT, b"a").unwrap());
    let full = |fs: &Fs| {
        has_one(fs);
        fill(fs, "rest");
    };
    explore("another value on a full medium", full, |fs| set(fs, "user.one", 700));
    let wish = |fs: &Fs, of| fs.set_xattr(ino(fs, of), ALIGNED.as_bytes(), b"1", Precondition::Absent).unwrap();
    explore("the alignment wish", has_one, |fs| wish(fs, "a"));
    let wishing = |fs: &Fs| {
        some_files(fs);
        wish(fs, "d");
    };
    explore("a new file that inherits the wish", wishing, |fs| _ = create(fs, ino(fs, "d"), "new", New::File));
    explore("the wish's end", wishing, |fs| fs.remove_xattr(ino(fs, "d"), ALIGNED.as_bytes()).unwrap());
}

#[test]
fn moved_blocks_keep_their_contents() {
    explore_moves("a rewriting", GEOMETRY, large_file, |fs| {
        assert_eq!(fs.rewrite_aligned(ino(fs, "a")).unwrap(), Rewrite::Done);
        assert_eq!(fs.aligned_extents(ino(fs, "a")).unwrap(), (1, 1));
    });
    // Files fill the first extents; then most of them go.
    let few_of_many = |fs: &Fs| {
        let names = (0..48).map(|number| format!("{number}"));
        for (seed, name) in names.clone().enumerate() {
            let ino = create(fs, ROOT, &name, New::File);
            (0..2).for_each(|part| _ = fs.write(ino, part << 16, &patterned(seed as u64, 60_000)).unwrap());
        }
        names.skip(8).filter(|name| !name.ends_with('7')).for_each(|name| fs.unlink(ROOT, name.as_bytes()).unwrap());
    };
    explore_moves("a gathering", Geometry { blocks: 8 * 512, areas: 1, ..GEOMETRY }, few_of_many, |fs| {
        let gathered = fs.gather(8).unwrap();
        assert!(gathered.extents > 0 && gathered.moved_blocks > 0, "{gathered:?}");
    });
}

/// A mounted file system goes on after one crash as if it had not been: the next calls are whole as well.
#[test]
fn a_crash_after_a_recovery_rolls_back_nothing_old() {
    let medium = made();
    let fs = Fs::mount(medium.clone()).unwrap();
    some_files(&fs);
    drop(fs);
    let before = Arc::new(medium.copy());
    let fs = Fs::mount(medium.clone()).unwrap();
    medium.record();
    fs.write(ino(&fs, "a"), 0, &patterned(7, 3000)).unwrap();
    let epochs = medium.recorded();
    // In place, but not committed.
    let end = epochs.len() - 2;
    let state = crashed(&before, &epochs[..end], &vec![true; epochs[end - 1].len()]);
    let fs = Fs::mount(Arc::clone(&state)).unwrap();
    assert_eq!(fs.recovered().transactions, 1);
    fs.write(ino(&fs, "a"), 0, &patterned(8, 3000)).unwrap();
    let after = tree(&fs);
    drop(fs);
    let (found, rolled_back) = sound(state, "after the second life");
    assert_eq!(rolled_back, 0);
    assert!(found == after);
}

/// Crash, recovery, another call, and another crash: each call is whole, whatever the first one has left in the journal.
#[test]
fn calls_after_a_recovery_are_whole_too() {
    // One area, so both calls have the same journal.
    let medium = made_of(Geometry { areas: 1, ..GEOMETRY });
    let fs = Fs::mount(medium.clone()).unwrap();
    for (seed, name) in [(1, "a"), (2, "b")] {
        let ino = create(&fs, ROOT, name, New::File);
        fs.allocate(ino, 0, 2 << 20).unwrap();
        fs.write(ino, (2 << 20) - 8000, &patterned(seed, 8000)).unwrap();
    }
    let (before, tree_before) = (Arc::new(medium.copy()), tree(&fs));
    medium.record();
    // It saves old data and makes the file longer. The second call needs fewer entries.
    fs.write(ino(&fs, "a"), (2 << 20) - 3000, &patterned(3, 6000)).unwrap();
    let (epochs, tree_after) = (medium.recorded(), tree(&fs));
    let mut numbers = Numbers::new(0);
    for end in 1..=epochs.len() {
        for set in subsets(epochs[end - 1].len(), test_depth::pick(6, 60), &mut numbers) {
            let what = format!("fence {end} of {}, stores {set:?}", epochs.len());
            let state = crashed(&before, &epochs[..end], &set);
            let recording = Arc::new(Recording::new(Arc::clone(&state)));
            let fs = Fs::mount(recording.clone()).unwrap();
            let between = tree(&fs);
            assert!(between == tree_before || between == tree_after, "{what}");
            let mounted = recording.epochs().len();
            fs.write(ino(&fs, "b"), (2 << 20) - 8000, &patterned(4, 6000)).unwrap();
            let (after, stores) = (tree(&fs), recording.epochs());
            for again in mounted..=stores.len() {
                let medium = Overlay::new(Arc::clone(&state));
                for (at, bytes) in stores[..again].iter().flatten() {
                    medium.write(*at, bytes);
                }
                let what = format!("{what}, then fence {again} of {}", stores.len());
                let found = sound(Arc::new(medium), &what).0;
                assert!(found == between || found == after, "{what}: the tree is neither before nor after");
            }
        }
    }
}

/// A call on one of four names in one of two folders, as it comes.
fn random_call(fs: &Fs, numbers: &mut Numbers) {
    let folder = |number: u64| if number.is_multiple_of(2) { ROOT } else { ino(fs, "d") };
    let name = |number: u64| vec![b'a' + (number % 4) as u8; 1 + (number % 4) as usize * 60];
    let (at, to) = (folder(numbers.next()), folder(numbers.next()));
    let (one, other) = (name(numbers.next()), name(numbers.next()));
    let (kind, place, len) = (numbers.next() % 8, numbers.next() % 40_000, 1 + numbers.next() % 9000);
    let found = fs.lookup(at, &one).map(|found| found.ino);
    // A call that is not possible does nothing.
    match (kind, found) {
        (0, _) => _ = fs.create(at, &one, New::File, 0o644, (0, 0)),
        (1, _) => _ = fs.unlink(at, &one),
        (2, _) => _ = fs.rename(at, &one, to, &other, Replace::Yes),
        (3, Ok(found)) => _ = fs.link(found, to, &other),
        (4, Ok(found)) => resize(fs, found, place),
        (_, Ok(found)) => _ = fs.write(found, place, &patterned(len, len as usize)).unwrap(),
        (_, Err(_)) => _ = fs.create(at, &one, New::File, 0o644, (0, 0)),
    }
}

/// After many calls, blocks, slots and inodes have been in use before, and journals have come around.
#[test]
fn random_calls_are_whole_after_others() {
    for seed in test_depth::seeds(10, 400) {
        let mut numbers = Numbers::new(seed);
        let medium = made();
        let fs = Fs::mount(medium.clone()).unwrap();
        create(&fs, ROOT, "d", New::Directory);
        for _ in 0..50 + 150 * (seed % 3) {
            random_call(&fs, &mut numbers);
        }
        for call in 0..4 {
            let (before, tree_before) = (Arc::new(medium.copy()), tree(&fs));
            medium.record();
            random_call(&fs, &mut numbers);
            let (epochs, tree_after) = (medium.recorded(), tree(&fs));
            for end in 1..=epochs.len() {
                for set in subsets(epochs[end - 1].len(), test_depth::pick(3, 20), &mut numbers) {
                    let what = format!("seed {seed}, call {call}, fence {end}, stores {set:?}");
                    let found = sound(crashed(&before, &epochs[..end], &set), &what).0;
                    assert!(
                        found == tree_before || found == tree_after,
                        "{what}: the tree is neither before nor after"
                    );
                }
            }
        }
    }
}

/// Two calls at the same time, in the journals of two processors: a crash may find either of them anywhere.
#[test]
fn calls_of_two_processors_are_whole_each() {
    let on = |processor: usize| {
        let mut set = rustix::thread::CpuSet::new();
        set.set(processor);
        rustix::thread::sched_setaffinity(None, &set)
    };
    if on(0).and_then(|()| on(1)).is_err() {
        return test_depth::skipped("there is one processor");
    }
    let medium = made();
    let fs = Fs::mount(medium.clone()).unwrap();
    let folders = ["one", "two"].map(|name| create(&fs, ROOT, name, New::Directory));
    // The folders have their first blocks, so that the calls touch nothing in common.
    for folder in folders {
        create(&fs, folder, "there", New::File);
    }
    let before = Arc::new(medium.copy());
    let [one, two] = [0, 1].map(|processor| {
        on(processor).unwrap();
        medium.record();
        create(&fs, folders[processor], "new", New::File);
        medium.recorded()
    });
    drop(fs);
    let mut rolled_back_most = 0;
    for (first, second) in (0..one.len()).flat_map(|first| (0..two.len()).map(move |second| (first, second))) {
        let state = Overlay::new(Arc::clone(&before) as Arc<dyn Medium>);
        for store in one[..first].iter().chain(&two[..second]).flatten() {
            state.write(store.at, &store.bytes);
        }
        let (found, rolled_back) = sound(Arc::new(state), &format!("fences {first} and {second}"));
        rolled_back_most = rolled_back_most.max(rolled_back);
        // The last store of a call is its COMMIT.
        assert_eq!(found.contains_key("/one/new"), first == one.len() - 1, "fences {first} and {second}");
        assert_eq!(found.contains_key("/two/new"), second == two.len() - 1, "fences {first} and {second}");
    }
    assert_eq!(rolled_back_most, 2);
}
