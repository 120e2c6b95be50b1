//! Pages brought in by a call in place of a trap: which ones, with how few reads, and what is an error.

use vmio::backing::FileBacking;
use vmio::{Advice, Error, Mapping, MappingOptions, OnReadError};

use crate::support::device::{Device, READ_EIO};
use crate::support::{PAGE, SPAN, at, check_budget, check_empty, is_managed, load, minimal_cache, roomy_cache, store};

fn numbered(pages: u64) -> std::sync::Arc<Device> {
    let device = Device::of_pages(pages);
    (0..pages).for_each(|page| device.set_word(at(page), page + 1));
    device
}

#[test]
fn what_was_ensured_does_not_miss() {
    let folder = tempfile::tempdir().unwrap();
    let cache = roomy_cache();
    let path = folder.path().join("file");
    let bytes: Vec<u8> = (0..200 * PAGE + 123).map(|at| (at / PAGE) as u8).collect();
    std::fs::write(&path, &bytes).unwrap();
    let map = Mapping::open(&cache, FileBacking::open(&path, vmio::Access::ReadWrite).unwrap(), MappingOptions::new());
    let map = map.unwrap();
    map.ensure(at(3) + 5..at(3) + 6).unwrap();
    map.ensure(at(7) - 1..at(9) + 1).unwrap();
    map.ensure(at(200)..map.len()).unwrap();
    map.ensure(at(50)..at(50)).unwrap();
    for page in 0..=200 {
        let wanted = page == 3 || (6..=9).contains(&page) || page == 200;
        assert!(!wanted || map.is_resident(at(page)), "page {page}");
        assert!(wanted || is_managed("") || !map.is_resident(at(page)), "page {page}");
    }
    let misses = cache.stats().load_misses;
    assert_eq!(load(&map, at(7)) & 0xff, 7);
    assert_eq!(load(&map, at(200)) & 0xff, 200);
    assert_eq!(cache.stats().load_misses, misses);
    assert!(matches!(map.ensure(at(200)..map.len() + 1), Err(Error::OutOfRange { .. })));
    assert!(!map.is_resident(map.len()));
}

#[test]
fn absent_neighbours_come_with_one_read() {
    if is_managed("a mapping of memory") {
        return;
    }
    let cache = roomy_cache();
    let map = Mapping::open(&cache, numbered(2 * SPAN).backing(), MappingOptions::new()).unwrap();
    let reads = || cache.stats().reads;
    map.ensure(at(SPAN - 16)..at(SPAN + 16)).unwrap();
    assert_eq!(reads(), 1);
    map.ensure(at(SPAN - 16)..at(SPAN + 16)).unwrap();
    assert_eq!(reads(), 1, "all of them were there");
    // 90 absent pages on one side of those and 10 on the other.
    map.ensure(at(SPAN - 26)..at(SPAN + 106)).unwrap();
    assert_eq!(reads(), 5, "10 pages, and 90 in runs of 32");
    map.advise(at(4)..at(30), Advice::WillNeed).unwrap();
    assert_eq!(reads(), 6);
    (SPAN - 26..SPAN + 106).for_each(|page| assert_eq!(load(&map, at(page)), page + 1));
    map.close().unwrap();
    check_empty(&cache);
}

#[test]
fn a_range_larger_than_the_cache_passes_through_it() {
    if is_managed("a mapping of memory") {
        return;
    }
    let cache = minimal_cache();
    let map = Mapping::open(&cache, numbered(4 * SPAN).backing(), MappingOptions::new()).unwrap();
    (0..4 * SPAN).step_by(3).for_each(|page| store(&map, at(page) + 8, page));
    map.ensure(0..map.len()).unwrap();
    check_budget(&cache, &[&map]);
    for page in 0..4 * SPAN {
        let stored = if page % 3 == 0 { page } else { 0 };
        assert_eq!((load(&map, at(page)), load(&map, at(page) + 8)), (page + 1, stored));
    }
    map.close().unwrap();
    check_empty(&cache);
}

#[test]
fn an_unreadable_page_is_an_error_and_its_neighbours_are_not() {
    if is_managed("a mapping of memory") {
        return;
    }
    let cache = roomy_cache();
    for poison in [false, true] {
        let device = numbered(64);
        device.set_faults(10, READ_EIO);
        let how = if poison { OnReadError::Poison(*b"POISONED") } else { OnReadError::Sigbus };
        let map = Mapping::open(&cache, device.backing(), MappingOptions::new().on_read_error(how)).unwrap();
        for _ in 0..2 {
            let failed = map.ensure(at(4)..at(20)).unwrap_err();
            assert!(matches!(failed, Error::Read { offset, .. } if offset == at(10)), "{failed}");
        }
        (4..10).for_each(|page| assert!(map.is_resident(at(page))));
        map.ensure(at(11)..at(20)).unwrap();
        device.set_faults(10, 0);
        map.advise(at(10)..at(11), Advice::DontNeed).unwrap();
        map.ensure(at(10)..at(11)).unwrap();
        assert_eq!(load(&map, at(10)), 11);
        map.close().unwrap();
        check_empty(&cache);
    }
}
