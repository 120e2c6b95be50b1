//! Holes, zeros and blocks behind the end of a file.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use crate::support::{contents, fill, made, patterned, sound, tree};
use vmio_pmfs::{Changes, Error, Fs, Length, Medium, New, ROOT, RangeChange, Seek};

fn file(fs: &Fs, bytes: &[u8]) -> u64 {
    let ino = fs.create(ROOT, b"a", New::File, 0o644, (1, 2)).unwrap().ino;
    for (index, part) in bytes.chunks(65_536).enumerate() {
        fs.write(ino, index as u64 * 65_536, part).unwrap();
    }
    ino
}

fn blocks(fs: &Fs, ino: u64) -> u64 {
    fs.attributes(ino).unwrap().blocks
}

#[test]
fn a_punched_hole_has_no_blocks_and_reads_as_zeros() {
    let medium = made();
    let fs = Fs::mount(medium.clone()).unwrap();
    let mut bytes = patterned(1, 50_000);
    let a = file(&fs, &bytes);
    for (at, len, left) in [(5000, 10_000, 12), (100, 50, 12), (0, 4096, 11), (45_000, 9_000, 9), (90_000, 5000, 9)] {
        fs.change_range(a, RangeChange::Punch, at, len).unwrap();
        let end = (at + len).min(50_000) as usize;
        bytes[end.min(at as usize)..end].fill(0);
        assert!(contents(&fs, a) == bytes, "{at} {len}");
        assert_eq!(blocks(&fs, a), left, "{at} {len}");
    }
    assert!(matches!(fs.change_range(a, RangeChange::Punch, u64::MAX - 1, 9), Err(Error::FileTooLarge { .. })));
    let before = tree(&fs);
    assert_eq!(sound(Arc::new(medium.copy()), "holes"), (before, 0));
}

#[test]
fn many_holes_are_one_change() {
    let medium = made();
    let fs = Fs::mount(medium.clone()).unwrap();
    let a = file(&fs, b"");
    for block in 0..600_u64 {
        fs.write(a, block * 8192, &block.to_le_bytes()).unwrap();
    }
    fs.change_range(a, RangeChange::Punch, 10, 500 * 8192).unwrap();
    assert!(contents(&fs, a)[..500 * 8192].iter().skip(10).all(|byte| *byte == 0));
    let before = tree(&fs);
    assert_eq!(sound(Arc::new(medium.copy()), "many holes"), (before, 0));
}

/// A full medium has space again by it: nothing is allocated first.
#[test]
fn a_full_medium_lets_holes_be_punched() {
    let fs = Fs::mount(made()).unwrap();
    let a = file(&fs, &patterned(1, 50_000));
    fill(&fs, "rest");
    fs.change_range(a, RangeChange::Punch, 1000, 40_000).unwrap();
    assert_eq!(fs.space().free_blocks, 9);
    let zero = RangeChange::Zero(Length::Stays);
    assert!(matches!(fs.change_range(a, zero, 0, 49_152), Err(Error::NoSpace { .. })));
    assert_eq!(fs.space().free_blocks, 9);
}

#[test]
fn zeroed_ranges_have_blocks() {
    let fs = Fs::mount(made()).unwrap();
    let mut bytes = patterned(1, 50_000);
    let a = file(&fs, &bytes);
    fs.change_range(a, RangeChange::Punch, 8192, 8192).unwrap();
    fs.change_range(a, RangeChange::Zero(Length::Stays), 9000, 10_000).unwrap();
    bytes[8192..19_000].fill(0);
    assert!(contents(&fs, a) == bytes);
    assert_eq!(blocks(&fs, a), 13);
    fs.change_range(a, RangeChange::Zero(Length::Stays), 49_000, 10_000).unwrap();
    bytes[49_000..].fill(0);
    assert!(contents(&fs, a) == bytes);
    fs.change_range(a, RangeChange::Zero(Length::Grows), 55_000, 10_000).unwrap();
    bytes.resize(65_000, 0);
    assert!(contents(&fs, a) == bytes);
    assert_eq!(blocks(&fs, a), 16);
}

#[test]
fn blocks_behind_the_end_wait_for_the_file() {
    let medium = made();
    let fs = Fs::mount(medium.clone()).unwrap();
    let a = file(&fs, &patterned(1, 5000));
    fs.change_range(a, RangeChange::Allocate(Length::Stays), 0, 2 << 20).unwrap();
    let (space, found) = (fs.space(), fs.attributes(a).unwrap());
    assert_eq!((found.size, found.blocks), (5000, 512));
    fs.write(a, 5000, &patterned(2, 60_000)).unwrap();
    fs.write(a, 100_000, b"end").unwrap();
    assert_eq!(fs.space(), space, "they are written in place");
    let bytes = contents(&fs, a);
    assert_eq!(bytes[5000..65_000], patterned(2, 60_000));
    assert!(bytes[65_000..100_000].iter().all(|byte| *byte == 0));
    let (before, shared) = (tree(&fs), Arc::new(medium.copy()));
    assert_eq!(sound(shared.clone(), "reserved"), (before, 0));
    assert_eq!(Fs::mount(shared).unwrap().space(), space);
    // As on ext4, any truncation gives them back.
    fs.set_attributes(a, &Changes { size: Some(100_003), ..Changes::default() }).unwrap();
    assert_eq!(blocks(&fs, a), 25);
}

/// They were stored in place before the crash.
#[test]
fn bytes_of_a_write_that_a_crash_cut_short_are_never_seen() {
    let medium = made();
    let fs = Fs::mount(medium.clone()).unwrap();
    let a = file(&fs, &patterned(1, 5000));
    for (at, len) in [(0, 24_576), (32_768, 67_000)] {
        fs.change_range(a, RangeChange::Allocate(Length::Stays), at, len).unwrap();
    }
    let crashed = Arc::new(medium.copy());
    medium.record();
    fs.write(a, 20_000, &[0xEE; 30_000]).unwrap();
    let epochs = medium.recorded();
    for store in epochs[..epochs.len() - 2].iter().flatten() {
        crashed.write(store.at, &store.bytes);
    }
    let fs = Fs::mount(crashed).unwrap();
    assert_eq!((fs.recovered().transactions, fs.attributes(a).unwrap().size), (1, 5000));
    fs.set_attributes(a, &Changes { size: Some(60_000), ..Changes::default() }).unwrap();
    let bytes = contents(&fs, a);
    assert_eq!(bytes[..5000], patterned(1, 5000));
    assert!(bytes[5000..].iter().all(|byte| *byte == 0));
}

#[test]
fn data_and_holes_are_found() {
    let fs = Fs::mount(made()).unwrap();
    let a = file(&fs, &patterned(1, 20_000));
    fs.change_range(a, RangeChange::Punch, 4096, 8192).unwrap();
    fs.set_attributes(a, &Changes { size: Some(30_000), ..Changes::default() }).unwrap();
    let seek = |offset, wanted| fs.seek(a, offset, wanted).unwrap();
    let data = [0, 100, 5000, 12_288, 20_100, 20_480, 30_000].map(|offset| seek(offset, Seek::Data));
    assert_eq!(data, [Some(0), Some(100), Some(12_288), Some(12_288), Some(20_100), None, None]);
    let holes = [0, 5000, 12_288, 20_479, 20_480, 29_999, 30_000].map(|offset| seek(offset, Seek::Hole));
    assert_eq!(holes, [Some(4096), Some(5000), Some(20_480), Some(20_480), Some(20_480), Some(29_999), None]);
    fs.write(a, 29_000, b"x").unwrap();
    assert_eq!(seek(29_500, Seek::Hole), Some(30_000), "the end is a hole");
    assert!(matches!(fs.seek(ROOT, 0, Seek::Data), Err(Error::IsADirectory { .. })));
}

#[test]
fn names_change_their_inodes() {
    let medium = made();
    let fs = Fs::mount(medium.clone()).unwrap();
    let a = file(&fs, b"text");
    let new = |at, name: &[u8]| fs.create(at, name, New::Directory, 0o755, (0, 0)).unwrap().ino;
    let (d, e) = (new(ROOT, b"d"), new(ROOT, b"e"));
    let inner = new(d, b"inner");
    assert!(matches!(fs.exchange(ROOT, b"a", ROOT, b"none"), Err(Error::NoEntry { .. })));
    assert!(matches!(fs.exchange(ROOT, b"d", d, b"inner"), Err(Error::IntoItself { .. })));
    assert!(matches!(fs.exchange(d, b"inner", ROOT, b"d"), Err(Error::IntoItself { .. })));
    fs.exchange(ROOT, b"a", ROOT, b"a").unwrap();
    fs.exchange(ROOT, b"a", d, b"inner").unwrap();
    let links = |ino| fs.attributes(ino).unwrap().links;
    assert_eq!((links(ROOT), links(d), links(inner)), (5, 2, 2));
    assert_eq!((fs.lookup(d, b"inner").unwrap().ino, fs.lookup(ROOT, b"a").unwrap().ino), (a, inner));
    assert_eq!(fs.parent(inner).unwrap(), ROOT);
    fs.exchange(ROOT, b"a", ROOT, b"e").unwrap();
    assert_eq!((fs.lookup(ROOT, b"a").unwrap().ino, fs.lookup(ROOT, b"e").unwrap().ino), (e, inner));
    fs.remove_directory(ROOT, b"e").unwrap();
    let before = tree(&fs);
    assert_eq!(sound(medium, "exchanged"), (before, 0));
}
