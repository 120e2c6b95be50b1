//! Verifiers and poison on the engine of the kernel module, where there is one: no page is mapped before it was verified.
#![allow(clippy::single_range_in_vec_init)]

use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::executor::block_on;
use vmio::backing::FileBacking;
use vmio::{Access, Advice, Cache, Error, Mapping, MappingOptions, OnReadError, PageVerifier};

use crate::support::child::isolated;
use crate::support::kernel_module::{Block, has_module, on_disk};
use crate::support::{
    PAGE, Random, at, cache_of, check_budget, check_empty, load, numbered_file, read, store, watchdog,
};

/// Accepts pages that hold their number, and counts those that it is given.
#[derive(Clone, Default)]
struct Numbered(Arc<AtomicU64>);

impl PageVerifier for Numbered {
    fn verify(&self, offset: u64, page: &[u8]) -> bool {
        self.0.fetch_add(1, Ordering::Relaxed);
        page[..8] == (offset / PAGE + 1).to_le_bytes()
    }

    fn seal(&self, _offset: u64, _page: &mut [u8]) {}

    fn seals(&self) -> bool {
        false
    }
}

fn open_verified(cache: &Cache, path: &Path, verifier: &Numbered, options: MappingOptions) -> Mapping {
    let backing = FileBacking::open(path, Access::ReadWrite).unwrap();
    Mapping::open(cache, backing, options.verifier(verifier.clone())).unwrap()
}

/// Puts something else in a page's place, past all caches.
fn overwrite_on_disk(path: &Path, page: u64, word: u64) {
    let mut block = Block([0; PAGE as usize]);
    block.0[..8].copy_from_slice(&word.to_le_bytes());
    let file = File::options().write(true).custom_flags(libc::O_DIRECT).open(path).unwrap();
    file.write_all_at(&block.0, at(page)).unwrap();
}

/// However often they are evicted: by loads, stores, calls, pins and fetches.
#[test]
fn pages_are_verified_each_time_they_arrive() {
    if !has_module() {
        return;
    }
    let _watchdog = watchdog("pages_are_verified_each_time_they_arrive");
    const PAGES: u64 = 1024;
    let folder = tempfile::tempdir().unwrap();
    let path = numbered_file(folder.path(), PAGES);
    let cache = cache_of(256).build().unwrap();
    let verifier = Numbered::default();
    let map = open_verified(&cache, &path, &verifier, MappingOptions::new());
    let verified = || verifier.0.swap(0, Ordering::Relaxed);
    (0..PAGES).for_each(|page| assert_eq!(load(&map, at(page)), page + 1));
    assert!(verified() >= PAGES);
    map.advise(0..map.len(), Advice::DontNeed).unwrap();
    map.ensure(at(0)..at(8)).unwrap();
    assert_eq!(verified(), 8);
    map.ensure(at(0)..at(8)).unwrap();
    assert_eq!(read(&map, at(4)..at(16)).unwrap()[..8], 5_u64.to_le_bytes());
    drop(map.pin(at(8)..at(20), Access::ReadOnly).unwrap());
    block_on(map.fetch([at(16)..at(24)])).unwrap();
    (24..26).for_each(|page| map.write_at(at(page) + 8, &[1; PAGE as usize - 8]).unwrap());
    drop(map.pin(at(26)..at(30), Access::ReadWrite).unwrap());
    store(&map, at(30) + 8, 1);
    assert_eq!(verified(), 23);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let map = &map;
            scope.spawn(move || {
                let mut random = Random(thread);
                for _ in 0..2000 {
                    let page = random.below(PAGES);
                    assert_eq!(load(map, at(page)), page + 1);
                    store(map, at(page) + 16 + 8 * thread, page);
                }
            });
        }
    });
    assert!(verified() > 1000);
    check_budget(&cache, &[&map]);
    map.close().unwrap();
    assert_eq!(on_disk(&path, 30), 31);
    check_empty(&cache);
}

/// It is an error for who calls, and poison for who loads, until the device has the right page again.
#[test]
fn a_page_that_does_not_verify_is_an_error_or_poison() {
    if !has_module() {
        return;
    }
    let _watchdog = watchdog("a_page_that_does_not_verify_is_an_error_or_poison");
    let folder = tempfile::tempdir().unwrap();
    let path = numbered_file(folder.path(), 64);
    overwrite_on_disk(&path, 5, 99);
    let cache = cache_of(256).build().unwrap();
    const POISON: [u8; 8] = *b"!poison!";
    let poisons = MappingOptions::new().on_read_error(OnReadError::Poison(POISON));
    let map = open_verified(&cache, &path, &Numbered::default(), poisons);
    let is_corrupt = |error: Error| match error {
        Error::Corrupt { offset, .. } => assert_eq!(offset, at(5)),
        error => panic!("{error}"),
    };
    let refuse_all = || {
        is_corrupt(map.ensure(at(4)..at(7)).unwrap_err());
        is_corrupt(read(&map, at(4) + 5..at(6)).unwrap_err());
        is_corrupt(map.write_at(at(5), &[1]).unwrap_err());
        is_corrupt(map.pin(at(5)..at(6), Access::ReadOnly).err().unwrap());
        is_corrupt(block_on(map.fetch([at(5)..at(6)])).unwrap_err());
    };
    refuse_all();
    let failed = map.failed_reads();
    assert!(failed > 0);
    assert_eq!(load(&map, at(5)).to_le_bytes(), POISON);
    assert_eq!(load(&map, at(5) + PAGE - 8).to_le_bytes(), POISON);
    assert!(map.failed_reads() > failed);
    is_corrupt(map.take_read_error().unwrap());
    assert!(map.take_read_error().is_none());
    // Also where it stands in memory.
    refuse_all();
    assert_eq!((load(&map, at(4)), load(&map, at(6))), (5, 7));
    assert_eq!(load(&map, at(5)).to_le_bytes(), POISON);
    overwrite_on_disk(&path, 5, 6);
    map.ensure(at(5)..at(6)).unwrap();
    assert_eq!(load(&map, at(5)), 6);
    store(&map, at(5) + 8, 7);
    map.close().unwrap();
    check_empty(&cache);
}

/// Fresh pages are nobody's contents, and a page that does not verify can be made one.
#[test]
fn fresh_pages_are_not_verified() {
    if !has_module() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = numbered_file(folder.path(), 64);
    let cache = cache_of(256).build().unwrap();
    let verifier = Numbered::default();
    let map = open_verified(&cache, &path, &verifier, MappingOptions::new());
    map.advise(at(8)..at(16), Advice::Fresh).unwrap();
    (8..16).for_each(|page| assert_eq!(load(&map, at(page)), 0));
    assert_eq!(verifier.0.load(Ordering::Relaxed), 0);
    overwrite_on_disk(&path, 20, 0);
    assert!(matches!(map.ensure(at(20)..at(21)), Err(Error::Corrupt { .. })));
    map.advise(at(20)..at(21), Advice::Fresh).unwrap();
    drop(map.pin(at(20)..at(21), Access::ReadWrite).unwrap());
    store(&map, at(20), 21);
    map.close().unwrap();
    assert_eq!(on_disk(&path, 20), 21);
}

/// Also of one that was read ahead, before anybody said that it is fresh.
#[test]
fn a_page_that_came_ahead_and_became_fresh_can_be_stored_to() {
    if !has_module() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = numbered_file(folder.path(), 64);
    (20..64).for_each(|page| overwrite_on_disk(&path, page, 0));
    let cache = cache_of(256).build().unwrap();
    let map = open_verified(&cache, &path, &Numbered::default(), MappingOptions::new());
    (0..20).for_each(|page| assert_eq!(load(&map, at(page)), page + 1));
    assert!(map.is_resident(at(20)), "it was read ahead");
    map.advise(at(20)..map.len(), Advice::Fresh).unwrap();
    (20..64).for_each(|page| store(&map, at(page), page + 1));
    map.close().unwrap();
    (0..64).for_each(|page| assert_eq!(on_disk(&path, page), page + 1));
}

/// The other side of a copy may have to be verified, too: neither waits for the other for ever.
#[test]
fn copies_from_one_verified_mapping_to_another_end() {
    if !has_module() {
        return;
    }
    let _watchdog = watchdog("copies_from_one_verified_mapping_to_another_end");
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (numbered_file(folder.path(), 64), folder.path().join("to"));
    let cache = cache_of(256).build().unwrap();
    let source = open_verified(&cache, &from, &Numbered::default(), MappingOptions::new());
    FileBacking::create(&to, 64 * PAGE).unwrap();
    (0..64).for_each(|page| overwrite_on_disk(&to, page, page + 1));
    let target = open_verified(&cache, &to, &Numbered::default(), MappingOptions::new());
    // SAFETY: the bytes lie in the mapping, and nobody stores to them.
    let bytes = unsafe { std::slice::from_raw_parts(source.as_ptr(), 64 * PAGE as usize) };
    target.write_at(0, &bytes[..32 * PAGE as usize]).unwrap();
    source.advise(0..source.len(), Advice::DontNeed).unwrap();
    target.advise(0..target.len(), Advice::DontNeed).unwrap();
    // SAFETY: the bytes lie in the mapping, and nothing else refers to them.
    let place = unsafe { std::slice::from_raw_parts_mut(target.as_mut_ptr(), 64 * PAGE as usize) };
    source.read_at(0, place).unwrap();
    overwrite_on_disk(&from, 40, 0);
    source.advise(0..source.len(), Advice::DontNeed).unwrap();
    assert!(matches!(source.read_at(0, place), Err(Error::Corrupt { offset, .. }) if offset == at(40)));
    (0..64).for_each(|page| assert_eq!(load(&target, at(page)), page + 1));
}

/// A page that does not verify, without poison: as with Linux mmap.
#[test]
fn a_load_of_a_page_that_does_not_verify_is_a_sigbus() {
    if !has_module() {
        return;
    }
    isolated("kernel_verify_before_map::a_load_of_a_page_that_does_not_verify_is_a_sigbus", || {
        let folder = tempfile::tempdir().unwrap();
        let path = numbered_file(folder.path(), 8);
        overwrite_on_disk(&path, 5, 99);
        let cache = cache_of(256).build().unwrap();
        let map = open_verified(&cache, &path, &Numbered::default(), MappingOptions::new());
        assert_eq!(load(&map, at(4)), 5);
        load(&map, at(5));
    })
    .dies_of(libc::SIGBUS);
}
