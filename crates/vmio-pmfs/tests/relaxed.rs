//! Relaxed mode: a crash may tear the data of a call, and nothing else.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use vmio_pmfs::{
    Access, Fs, Geometry, Holes, Inspection, Length, MappedFile, Medium, Mode, New, ROOT, RangeChange, Replace,
};

use crate::crash_states::explore_in;
use crate::crashes::{aligned_file, chained_file, create, ino, resize, some_files};
use crate::support::{Node, Tree, made, patterned, sound};

/// Whether nothing but bytes of `/a` differs from the tree before, each of which is what it was or what the call makes of it.
fn is_torn(found: &Tree, before: &Tree, after: &Tree) -> bool {
    let (Node::File(links, old), Node::File(_, new)) = (&before["/a"], &after["/a"]) else { return false };
    let Some(Node::File(found_links, bytes)) = found.get("/a") else { return false };
    let others_are_same =
        found.len() == before.len() && found.iter().all(|(path, node)| path == "/a" || before.get(path) == Some(node));
    let is_either = |at: usize| bytes[at] == old[at] || new.get(at) == Some(&bytes[at]);
    others_are_same && links == found_links && bytes.len() == old.len() && (0..old.len()).all(is_either)
}

/// Tries all states that a crash may leave of a call on `/a`. Returns how many are torn.
fn tears(what: &str, prepare: impl Fn(&Fs), call: impl Fn(&Fs)) -> usize {
    let seen = explore_in(Mode::Relaxed, what, prepare, call, is_torn);
    assert!(seen.before > 0 && seen.after > 0, "{what}: {seen:?}");
    seen.between
}

#[test]
fn writes_are_torn_at_the_most_in_what_they_overwrite() {
    let write =
        |at: u64, len: usize| move |fs: &Fs| assert_eq!(fs.write(ino(fs, "a"), at, &patterned(9, len)).unwrap(), len);
    for (what, at, len) in [
        ("a write of a few bytes", 4000, 200),
        ("a write of some blocks", 100, 6000),
        ("a write across the end", 9_500, 1000),
    ] {
        assert!(tears(what, some_files, write(at, len)) > 0, "{what}");
    }
    assert!(tears("a write in an aligned extent", aligned_file, write(1000, 9000)) > 0);
    assert!(tears("a write to a chain", chained_file, write(15 * 8192, 5000)) > 0);
    assert!(tears("a write that fills holes", chained_file, write(3 * 8192, 20_000)) > 0);
    // Nothing that was there is overwritten.
    assert_eq!(tears("an append", some_files, write(10_000, 300)), 0);
    assert_eq!(tears("an append to another block", some_files, write(10_000, 9000)), 0);
    assert_eq!(tears("a write far behind the end", some_files, write(50_000, 100)), 0);
    assert_eq!(tears("the first write", |fs| _ = create(fs, ROOT, "a", New::File), write(0, 5000)), 0);
}

#[test]
fn ranges_of_zeros_are_torn_and_their_blocks_are_not() {
    let change =
        |change: RangeChange, at: u64, len: u64| move |fs: &Fs| fs.change_range(ino(fs, "a"), change, at, len).unwrap();
    let zero = RangeChange::Zero(Length::Grows);
    assert!(tears("zero", some_files, change(zero, 1000, 8000)) > 0);
    assert!(tears("zero in an aligned extent", aligned_file, change(zero, 5000, 9000)) > 0);
    assert!(tears("zero over holes", chained_file, change(zero, 3 * 8192, 20_000)) > 0);
    assert!(tears("punch", some_files, change(RangeChange::Punch, 3000, 6000)) > 0);
    assert_eq!(tears("allocate", some_files, change(RangeChange::Allocate(Length::Grows), 0, 40_000)), 0);
}

#[test]
fn all_else_is_whole() {
    let whole = |what: &str, call: fn(&Fs)| {
        let seen = explore_in(Mode::Relaxed, what, some_files, call, |_, _, _| false);
        assert!(seen.before > 0 && seen.after > 0, "{what}: {seen:?}");
    };
    whole("create", |fs| _ = create(fs, ROOT, "new", New::File));
    whole("rename over a file", |fs| fs.rename(ROOT, b"a", ROOT, b"b", Replace::Yes).unwrap());
    whole("unlink", |fs| fs.unlink(ROOT, b"a").unwrap());
    whole("truncate", |fs| resize(fs, ino(fs, "a"), 5000));
    whole("truncate up", |fs| resize(fs, ino(fs, "a"), 30_000));
}

/// Bytes that a call stores to overwrite 64 KiB, and the places of the file's blocks before and behind it.
fn stored(mode: Mode, prepare: fn(&Fs)) -> (usize, bool) {
    let medium = made();
    prepare(&Fs::mount(medium.clone()).unwrap());
    let fs = Fs::mount_in(medium.clone(), mode).unwrap();
    assert_eq!(fs.mode(), mode);
    let file = ino(&fs, "a");
    let extents = || Inspection::new(medium.clone()).unwrap().inode(file).unwrap().extents;
    fs.write(file, 0, &[3; 65_536]).unwrap();
    let before = extents();
    medium.record();
    fs.write(file, 0, &[4; 65_536]).unwrap();
    let bytes = medium.recorded().iter().flatten().map(|store| store.bytes.len()).sum();
    (bytes, extents() == before)
}

#[test]
fn nothing_is_copied_and_no_block_moves() {
    let few = 65_536 + 1000;
    for prepare in [some_files as fn(&Fs), aligned_file] {
        let (bytes, stays) = stored(Mode::Relaxed, prepare);
        assert!(bytes < few && stays, "{bytes}");
    }
    assert!(matches!(stored(Mode::Strict, aligned_file), (131_072.., true)));
    assert!(matches!(stored(Mode::Strict, some_files), (_, false)));
}

/// What a full medium refuses, it refuses before a byte has changed.
#[test]
fn a_write_that_fails_changes_nothing() {
    let medium = made();
    let fs = Fs::mount_in(medium.clone(), Mode::Relaxed).unwrap();
    some_files(&fs);
    crate::support::fill(&fs, "all");
    let before = crate::support::tree(&fs);
    assert!(fs.write(ino(&fs, "a"), 5000, &[9; 60_000]).is_err());
    fs.lease(ino(&fs, "b"), 1, 0..9, Holes::Keep, 9).unwrap();
    fs.write(ino(&fs, "b"), 5000, &[9; 1000]).unwrap();
    fs.end_lease(ino(&fs, "b"), 1, 0).unwrap();
    assert_eq!(crate::support::tree(&fs)["/a"], before["/a"]);
    drop(fs);
    sound(medium, "full");
}

/// Prints how long writes take in both modes, in the best of many rounds: other programs disturb some of them.
#[test]
fn writes_take_their_time_in_both_modes() {
    let rounds = test_depth::pick(2, 400);
    for (what, bytes, is_aligned) in [
        ("4 KiB", 4096, false),
        ("4 KiB of an aligned extent", 4096, true),
        ("64 KiB of an aligned extent", 65_536, true),
    ] {
        for mode in [Mode::Strict, Mode::Relaxed] {
            let best = best_round(mode, bytes, is_aligned, rounds);
            println!("writes of {what}, {mode:?}: {:.0} ns each", best.as_nanos() as f64 / CALLS as f64);
        }
    }
}

/// Writes of a round.
const CALLS: u64 = 100;

fn best_round(mode: Mode, bytes: usize, is_aligned: bool, rounds: u64) -> Duration {
    let file = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
    file.as_file().set_len(64 << 20).unwrap();
    let medium: Arc<dyn Medium> = Arc::new(MappedFile::open(file.path(), Access::Write).unwrap());
    Fs::make(&medium, Geometry::of(medium.len(), 2), false, (0, 0)).unwrap();
    let fs = Fs::mount_in(medium, mode).unwrap();
    let ino = create(&fs, ROOT, "a", New::File);
    let size = if is_aligned { 16 << 20 } else { 1 << 20 };
    match is_aligned {
        true => fs.allocate(ino, 0, size).unwrap(),
        false => (0..size).step_by(4096).for_each(|at| _ = fs.write(ino, at, &[1; 4096]).unwrap()),
    }
    let contents = vec![7; bytes];
    let round = |round: u64| {
        let begin = Instant::now();
        for call in 0..CALLS {
            fs.write(ino, (round * CALLS + call) * 7 * bytes as u64 % size, &contents).unwrap();
        }
        begin.elapsed()
    };
    (0..rounds).map(round).min().unwrap()
}
