//! The end of a file: its last page is written at its exact length, a change of length is exact, and a file that
//! somebody else has truncated is never lengthened again.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use vmio::backing::FileBacking;
use vmio::{Access, Advice, Cache, Engine, Error, Mapping, MappingOptions, Unit};

use crate::support::device::Device;
use crate::support::{PAGE, at, engine, is_managed, load, read, roomy_cache, store, store_bytes, tiny_cache, watchdog};

fn open(cache: &Cache, path: &Path) -> Mapping {
    let backing = FileBacking::open(path, Access::ReadWrite).unwrap();
    Mapping::open(cache, backing, MappingOptions::new()).unwrap()
}

fn len(path: &Path) -> u64 {
    path.metadata().unwrap().len()
}

#[test]
fn the_last_page_is_written_at_its_exact_length() {
    let cache = roomy_cache();
    let folder = tempfile::tempdir().unwrap();
    for tail in [1, 7, 511, 512, 513, 1000, 4095] {
        let path = folder.path().join(tail.to_string());
        let bytes: Vec<u8> = (0..5 * PAGE + tail).map(|at| at as u8 ^ (at >> 8) as u8).collect();
        std::fs::write(&path, &bytes).unwrap();
        let map = open(&cache, &path);
        assert_eq!(read(&map, 0..map.len()).unwrap(), bytes);
        // What a store leaves behind the end stays out of the file.
        store_bytes(&map, at(5), &[0xEE; PAGE as usize]);
        map.sync().unwrap();
        let mut expected = bytes.clone();
        expected[at(5) as usize..].fill(0xEE);
        assert_eq!(std::fs::read(&path).unwrap(), expected, "tail of {tail}");
        map.advise(0..map.len(), Advice::DontNeed).unwrap();
        assert_eq!(read(&map, 0..map.len()).unwrap(), expected);
        // SAFETY: the last page, whose bytes behind the end are zeros when it comes in.
        let behind = unsafe { map.as_ptr().add(map.len() as usize).read_volatile() };
        assert_eq!(behind, 0);
        map.close().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), expected);
    }
}

#[test]
fn growth_brings_zeros_and_exact_lengths() {
    let cache = roomy_cache();
    let file = tempfile::NamedTempFile::new().unwrap();
    let map = open(&cache, file.path());
    assert!(map.is_empty());
    map.sync().unwrap();
    let mut expected = Vec::new();
    for (round, new) in (1_u8..).zip([1, 10, 4096, 4097, 5000, 12_288, 100_001, 100_002, 3_000_000]) {
        map.set_len(new).unwrap();
        assert_eq!((map.len(), len(file.path())), (new, new));
        expected.resize(new as usize, 0);
        assert_eq!(read(&map, 0..new).unwrap(), expected);
        map.write_at(new - 1, &[round]).unwrap();
        expected[new as usize - 1] = round;
        store_bytes(&map, new, &vec![0xEE; (new.next_multiple_of(PAGE) - new) as usize]);
        if round % 2 == 0 {
            map.sync().unwrap();
        }
    }
    map.close().unwrap();
    assert_eq!(std::fs::read(file.path()).unwrap(), expected);
}

#[test]
fn shrinking_drops_what_is_cut_off_for_good() {
    let cache = tiny_cache();
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(400 * PAGE).unwrap();
    let map = open(&cache, file.path());
    for new in [399 * PAGE + 5, 300 * PAGE, 299 * PAGE + 4000, 1, 0] {
        (0..map.len().div_ceil(PAGE)).for_each(|page| store(&map, at(page), 5));
        map.set_len(new).unwrap();
        assert_eq!(len(file.path()), new);
        map.sync().unwrap();
        assert_eq!(len(file.path()), new, "a write brought back what was cut off");
        assert!(is_managed("") || cache.stats().resident_pages <= new.div_ceil(PAGE));
        map.set_len(400 * PAGE).unwrap();
        let bytes = read(&map, new..map.len()).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 0), "cut at {new}: cut-off bytes came back");
        map.set_len(new.next_multiple_of(PAGE)).unwrap();
    }
    map.close().unwrap();
    crate::support::check_empty(&cache);
}

#[test]
fn pinned_pages_are_not_cut_off() {
    let cache = roomy_cache();
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(10 * PAGE).unwrap();
    let map = open(&cache, file.path());
    let pin = map.pin(at(8)..at(9), Access::ReadWrite).unwrap();
    assert!(matches!(map.set_len(8 * PAGE), Err(Error::Resize { .. })));
    assert_eq!((map.len(), len(file.path())), (10 * PAGE, 10 * PAGE));
    map.set_len(8 * PAGE + 1).unwrap();
    drop(pin);
    map.set_len(PAGE).unwrap();
}

/// A change of length that is refused, by the backing or because of a pin, has changed nothing, whatever evicts and
/// writes back in the meantime.
#[test]
fn a_refused_cut_loses_nothing() {
    if is_managed("a mapping of a device in memory") {
        return;
    }
    let _watchdog = watchdog("a_refused_cut_loses_nothing");
    const PAGES: u64 = 300;
    for pinned in [false, true] {
        let cache = roomy_cache();
        let device = Device::of_pages(PAGES);
        let map = Mapping::open(&cache, device.backing(), MappingOptions::new()).unwrap();
        let pin = pinned.then(|| map.pin(at(PAGES - 1)..at(PAGES), Access::ReadOnly).unwrap());
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    // Refused while the new length is tried.
                    let _ = map.advise(0..at(PAGES), Advice::DontNeed);
                }
            });
            let mut lost = None;
            for version in 1..=60 {
                // Write-back beside the attempts, of pages around and behind the refused end.
                for page in 0..PAGES {
                    map.write_at(at(page), &version_bytes(version)).unwrap();
                    if page % 20 == 0 {
                        assert!(matches!(map.set_len(at(version) + 100), Err(Error::Resize { .. })));
                        assert_eq!(map.len(), at(PAGES));
                    }
                }
                let expected = version_bytes(version);
                lost = lost.or((0..PAGES).find(|page| read(&map, at(*page)..at(page + 1)).unwrap() != expected));
            }
            done.store(true, Ordering::Relaxed);
            assert_eq!(lost, None, "a page was lost; pinned: {pinned}");
        });
        drop(pin);
    }
}

fn version_bytes(version: u64) -> Vec<u8> {
    vec![version as u8; PAGE as usize]
}

#[test]
fn a_file_truncated_by_others_gives_errors_and_is_never_lengthened() {
    if is_managed("keeping what others have cut off the file") {
        return;
    }
    let cache = roomy_cache();
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(20 * PAGE + 100).unwrap();
    let map = open(&cache, file.path());
    (0..21).step_by(2).for_each(|page| store(&map, at(page), 5));
    file.as_file().set_len(9 * PAGE + 10).unwrap();
    for _ in 0..3 {
        assert!(matches!(map.sync(), Err(Error::Write { .. })));
        assert_eq!(len(file.path()), 9 * PAGE + 10, "the file was lengthened");
    }
    assert!(matches!(read(&map, at(11)..at(12)), Err(Error::Read { .. })));
    assert!(matches!(map.pin(at(9)..at(10), Access::ReadOnly), Err(Error::Read { .. })));
    // What is in memory stays, what lies before the cut reaches the file.
    assert_eq!(load(&map, at(10)), 5);
    assert_eq!(load(&map, at(20)), 5);
    let bytes = std::fs::read(file.path()).unwrap();
    (0..9).step_by(2).for_each(|page| assert_eq!(bytes[at(page) as usize], 5, "page {page}"));
    assert!(map.close().is_err());
    assert_eq!(len(file.path()), 9 * PAGE + 10);
    crate::support::check_empty(&cache);
}

#[test]
fn a_file_lengthened_by_others_keeps_their_bytes() {
    if engine() == Engine::Kernel {
        return test_depth::skipped("the module writes the last page up to where the file ends by then");
    }
    let cache = roomy_cache();
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(PAGE + 100).unwrap();
    let map = open(&cache, file.path());
    store(&map, at(1), 5);
    std::os::unix::fs::FileExt::write_all_at(file.as_file(), &[9; 5000], PAGE + 100).unwrap();
    map.close().unwrap();
    let bytes = std::fs::read(file.path()).unwrap();
    assert_eq!(bytes.len() as u64, PAGE + 5100);
    assert_eq!(bytes[at(1) as usize], 5);
    assert!(bytes[PAGE as usize + 100..].iter().all(|byte| *byte == 9));
}

#[test]
fn a_mapping_grows_within_its_reservation_only() {
    let cache = roomy_cache();
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(5000).unwrap();
    let map = open(&cache, file.path());
    match map.set_len((1 << 30) + 1) {
        Err(Error::BeyondReservation { requested, reserved }) => {
            assert_eq!((requested, reserved), ((1 << 30) + 1, 1 << 30));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!((map.len(), len(file.path())), (5000, 5000));
    map.set_len(1 << 30).unwrap();
    map.write_at((1 << 30) - 1, b"x").unwrap();
    map.close().unwrap();
    let backing = FileBacking::open(file.path(), Access::ReadWrite).unwrap();
    let map = Mapping::open(&cache, backing, MappingOptions::new().reserve(3 << 30)).unwrap();
    map.set_len(3 << 30).unwrap();
    assert_eq!(read(&map, (1 << 30) - 1..(1 << 30) + 1).unwrap(), b"x\0");
    map.close().unwrap();
    assert_eq!(len(file.path()), 3 << 30);
}

/// A file that fills the address space set aside for it: there is nothing behind its last page, not even a page word.
#[test]
fn read_ahead_ends_with_the_reservation() {
    const LAST: u64 = (1 << 30) / PAGE - 1;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    drop(FileBacking::create(&path, at(LAST + 1)).unwrap());
    for (unit, window_bytes) in [(Unit::Kib4, 0), (Unit::Kib64, 0), (Unit::Kib64, 4096)] {
        let backing = FileBacking::open(&path, Access::ReadWrite).unwrap();
        let map = Mapping::open(&roomy_cache(), backing, MappingOptions::new().unit(unit)).unwrap();
        map.advise(0..map.len(), Advice::Sequential { window_bytes }).unwrap();
        for page in [LAST, LAST - 20, LAST - 40] {
            load(&map, at(page));
            store(&map, at(page), page);
        }
        map.ensure(at(LAST - 100)..map.len()).unwrap();
        assert_eq!([LAST, LAST - 20].map(|page| load(&map, at(page))), [LAST, LAST - 20]);
        map.close().unwrap();
    }
}

/// An evictor may take the page at the end while the file grows: what the program has stored behind the end never becomes part of it.
#[test]
fn growth_shows_zeros_whatever_is_evicted_meanwhile() {
    let _watchdog = watchdog("growth_shows_zeros_whatever_is_evicted_meanwhile");
    let cache = roomy_cache();
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(100).unwrap();
    let map = open(&cache, file.path());
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                map.advise(0..100, Advice::DontNeed).unwrap();
            }
        });
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                load(&map, 0);
            }
        });
        let rounds = test_depth::pick(1000, 20_000);
        let shown = (0..rounds).find(|_| {
            map.set_len(100).unwrap();
            store(&map, 200, 0x47);
            map.set_len(PAGE).unwrap();
            load(&map, 200) != 0
        });
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(shown, None, "in this round it was part of the file");
    });
}
