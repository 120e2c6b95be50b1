//! Files and their mappings: one region per file and process, thousands of mappings,
//! sparse giants, read-only mappings, locked memory.

use std::path::Path;
use std::thread;

use vmio::backing::FileBacking;
use vmio::{Access, Advice, Cache, Engine, Error, LockMemory, Mapping, MappingOptions, UnsupportedBy};

use crate::support::child::{install_handler, isolated};
use crate::support::denial::limit_locked_memory;
use crate::support::{
    PAGE, at, cache_of, check_empty, is_managed, is_root, load, locked_kib, read, roomy_cache, store, tiny_cache,
    watchdog,
};

fn open(cache: &Cache, path: &Path, access: Access) -> vmio::Result<Mapping> {
    Mapping::open(cache, FileBacking::open(path, access)?, MappingOptions::new())
}

fn file_of(pages: u64) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(pages * PAGE).unwrap();
    file
}

// ---- one region per file

#[test]
fn a_file_opened_twice_is_one_region() {
    let cache = roomy_cache();
    let file = file_of(16);
    let first = open(&cache, file.path(), Access::ReadWrite).unwrap();
    let link = file.path().with_extension("link");
    std::fs::hard_link(file.path(), &link).unwrap();
    let second = open(&cache, &link, Access::ReadWrite).unwrap();
    std::fs::remove_file(link).unwrap();
    assert_eq!(first.as_ptr(), second.as_ptr());
    store(&first, at(3), 5);
    assert_eq!(load(&second, at(3)), 5);
    second.set_len(20 * PAGE).unwrap();
    assert_eq!(first.len(), 20 * PAGE);
    first.close().unwrap();
    assert_eq!(load(&second, at(3)), 5);
    second.close().unwrap();
    check_empty(&cache);
    // With the last handle the region goes: the next one is new.
    let third = open(&cache, file.path(), Access::ReadWrite).unwrap();
    assert_eq!((load(&third, at(3)), third.len()), (5, 20 * PAGE));
}

#[test]
fn a_pin_keeps_the_region_open() {
    let cache = roomy_cache();
    let file = file_of(16);
    let map = open(&cache, file.path(), Access::ReadWrite).unwrap();
    let pin = map.pin(at(2)..at(3), Access::ReadWrite).unwrap();
    map.close().unwrap();
    // SAFETY: the pinned page is writable as long as the pin lives.
    unsafe { pin.as_mut_ptr().unwrap().write_volatile(9) };
    let again = open(&cache, file.path(), Access::ReadWrite).unwrap();
    assert_eq!(again.as_ptr() as usize + 2 * PAGE as usize, pin.as_ptr() as usize);
    drop(again);
    drop(pin);
    check_empty(&cache);
    assert_eq!(std::fs::read(file.path()).unwrap()[2 * PAGE as usize], 9);
}

#[test]
fn a_second_opening_that_differs_is_refused() {
    let (cache, other) = (roomy_cache(), tiny_cache());
    let file = file_of(4);
    let map = open(&cache, file.path(), Access::ReadOnly).unwrap();
    assert!(matches!(open(&other, file.path(), Access::ReadOnly), Err(Error::AlreadyMapped { .. })));
    assert!(matches!(open(&cache, file.path(), Access::ReadWrite), Err(Error::AlreadyMapped { .. })));
    assert_eq!(open(&cache, file.path(), Access::ReadOnly).unwrap().as_ptr(), map.as_ptr());
    drop(map);
    open(&other, file.path(), Access::ReadWrite).unwrap();
}

/// One thread closes while another opens: the file is this process's own all along.
#[test]
fn threads_open_and_close_the_same_file_at_once() {
    let _watchdog = watchdog("threads_open_and_close_the_same_file_at_once");
    let cache = tiny_cache();
    let file = file_of(8);
    thread::scope(|scope| {
        for thread in 0..4 {
            let (cache, path) = (&cache, file.path());
            scope.spawn(move || {
                for count in 1..=200 {
                    let map = open(cache, path, Access::ReadWrite)
                        .unwrap_or_else(|error| panic!("thread {thread}, opening {count}: {error}"));
                    store(&map, at(thread), count);
                    map.close().unwrap();
                }
            });
        }
    });
    check_empty(&cache);
    let map = open(&cache, file.path(), Access::ReadOnly).unwrap();
    (0..4).for_each(|thread| assert_eq!(load(&map, at(thread)), 200));
}

// ---- many and huge

#[test]
fn a_thousand_files_share_one_cache() {
    isolated("files::a_thousand_files_share_one_cache", || {
        const FILES: u64 = 1000;
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: reads and writes a limit of ours.
        unsafe {
            libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        }
        // A mapping takes two descriptors.
        let files = FILES.min(limit.rlim_cur.saturating_sub(100) / 2);
        println!("{files} files");
        let cache = tiny_cache();
        let folder = tempfile::tempdir().unwrap();
        let path = |file: u64| folder.path().join(file.to_string());
        let maps: Vec<Mapping> = (0..files)
            .map(|file| {
                let backing = FileBacking::create(path(file), 3 * PAGE + file).unwrap();
                Mapping::open(&cache, backing, MappingOptions::new()).unwrap()
            })
            .collect();
        for round in 0..3 {
            for (file, map) in (0..).zip(&maps) {
                (0..3).for_each(|page| assert_eq!(load(map, at(page)), if round == 0 { 0 } else { file + round }));
                (0..3).for_each(|page| store(map, at(page), file + round + 1));
                assert!(is_managed("") || cache.stats().resident_pages <= 640);
            }
        }
        maps.into_iter().for_each(|map| map.close().unwrap());
        check_empty(&cache);
        for file in 0..files {
            let bytes = std::fs::read(path(file)).unwrap();
            assert_eq!(bytes.len() as u64, 3 * PAGE + file);
            assert_eq!(bytes[at(2) as usize..][..8], (file + 3).to_le_bytes());
        }
    })
    .succeeds();
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = |name: &str| -> u64 {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    line("VmRSS:") + line("VmPTE:")
}

#[test]
fn a_sparse_giant_costs_nothing_until_it_is_touched() {
    isolated("files::a_sparse_giant_costs_nothing_until_it_is_touched", || {
        const TIB: u64 = 1 << 40;
        let file = tempfile::NamedTempFile::new().unwrap();
        // As far as the file system goes, up to 8 TiB.
        let len = [8, 4, 1].iter().map(|tib| tib * TIB - 3 * PAGE).find(|len| file.as_file().set_len(*len).is_ok());
        let Some(len) = len else { return test_depth::skipped("the file system has no room for sparse terabytes") };
        let cache = tiny_cache();
        let before = resident_kib();
        let map = open(&cache, file.path(), Access::ReadWrite).unwrap();
        assert_eq!(map.len(), len);
        for step in 0..100 {
            let offset = (len / 100 * step).next_multiple_of(PAGE);
            assert_eq!(load(&map, offset), 0);
            store(&map, offset, step + 1);
        }
        map.sync().unwrap();
        let after = resident_kib();
        assert!(after < before + 8 * 1024, "{before} KiB before, {after} KiB after");
        map.advise(0..len, Advice::Priority(200)).unwrap();
        map.advise(0..len, Advice::Sequential { window_bytes: 0 }).unwrap();
        let offset = (len / 100 * 99).next_multiple_of(PAGE);
        map.advise(offset..offset + PAGE, Advice::DontNeed).unwrap();
        assert_eq!(load(&map, offset), 100);
        map.close().unwrap();
        check_empty(&cache);
    })
    .succeeds();
}

/// To give all of it up, or to cut it off, costs what is in memory and not what the file could hold.
#[test]
fn giving_up_a_sparse_giant_costs_what_is_resident() {
    let _watchdog = watchdog("giving_up_a_sparse_giant_costs_what_is_resident");
    isolated("files::giving_up_a_sparse_giant_costs_what_is_resident", || {
        const LEN: u64 = 1 << 40;
        let file = tempfile::NamedTempFile::new().unwrap();
        if file.as_file().set_len(LEN).is_err() {
            return test_depth::skipped("the file system has no room for a sparse terabyte");
        }
        let cache = tiny_cache();
        let map = open(&cache, file.path(), Access::ReadWrite).unwrap();
        (0..10).for_each(|step| store(&map, LEN / 10 * step / PAGE * PAGE, step + 1));
        let before = resident_kib();
        let check = |what: &str| {
            let after = resident_kib();
            assert!(after < before + 4 * 1024, "{what}: {before} KiB before, {after} KiB after");
        };
        map.advise(0..LEN, Advice::DontNeed).unwrap();
        check("dont-need");
        // Linux itself may hold a page for a moment.
        while cache.engine() == Engine::Managed && cache.stats().resident_pages > 0 {
            std::thread::sleep(std::time::Duration::from_millis(1));
            map.advise(0..LEN, Advice::DontNeed).unwrap();
        }
        assert_eq!(cache.stats().resident_pages, 0);
        assert_eq!(load(&map, LEN / 10 * 7 / PAGE * PAGE), 8);
        map.set_len(PAGE).unwrap();
        check("set_len");
        assert_eq!(load(&map, 0), 1);
        map.close().unwrap();
        check_empty(&cache);
    })
    .succeeds();
}

// ---- read-only

#[test]
fn a_read_only_mapping_can_be_read_and_nothing_else() {
    let cache = tiny_cache();
    let file = file_of(1000);
    std::os::unix::fs::FileExt::write_all_at(file.as_file(), &7_u64.to_le_bytes(), at(999)).unwrap();
    let map = open(&cache, file.path(), Access::ReadOnly).unwrap();
    let is_read_only = |result: vmio::Result<()>| assert!(matches!(result, Err(Error::ReadOnly { .. })), "{result:?}");
    for _ in 0..2 {
        (0..999).for_each(|page| assert_eq!(load(&map, at(page)), 0));
        assert_eq!(load(&map, at(999)), 7);
        is_read_only(map.write_at(0, b"x"));
        is_read_only(map.pin(0..PAGE, Access::ReadWrite).map(drop));
        is_read_only(map.set_len(PAGE));
        is_read_only(map.advise(0..PAGE, Advice::Fresh));
        is_read_only(map.advise(0..PAGE, Advice::Free));
        map.advise(0..PAGE, Advice::WillNeed).unwrap();
        map.advise(0..map.len(), Advice::DontNeed).unwrap();
        map.sync().unwrap();
    }
    assert_eq!(cache.stats().written_bytes, 0);
    map.close().unwrap();
    let backing = FileBacking::open(file.path(), Access::ReadOnly).unwrap();
    let wants_more = MappingOptions::new().access(Access::ReadWrite);
    assert!(matches!(Mapping::open(&cache, backing, wants_more), Err(Error::ReadOnly { .. })));
}

#[test]
fn a_store_to_a_file_mapped_read_only_is_a_segmentation_fault() {
    isolated("files::a_store_to_a_file_mapped_read_only_is_a_segmentation_fault", || {
        install_handler(libc::SIGSEGV, libc::SIG_DFL, 0);
        let file = file_of(4);
        let map = open(&roomy_cache(), file.path(), Access::ReadOnly).unwrap();
        store(&map, at(1), 1);
    })
    .dies_of(libc::SIGSEGV);
}

// ---- ranges and options

#[test]
fn ranges_outside_the_mapping_are_errors() {
    let cache = roomy_cache();
    let file = file_of(4);
    let map = open(&cache, file.path(), Access::ReadWrite).unwrap();
    let len = map.len();
    let backwards = std::ops::Range { start: 10, end: 5 };
    for range in [len..len + 1, 0..len + 1, backwards, u64::MAX - 1..u64::MAX, len + 1..len + 1] {
        let is_outside = |result: vmio::Result<()>| assert!(matches!(result, Err(Error::OutOfRange { .. })));
        is_outside(map.flush(range.clone()));
        is_outside(map.pin(range.clone(), Access::ReadOnly).map(drop));
        is_outside(map.advise(range.clone(), Advice::WillNeed));
        assert!(!map.is_resident(range.start.max(len)));
        assert!(map.residency(range.clone()).resident_pages() == 0);
    }
    assert!(map.read_at(len, &mut [0; 1]).is_err());
    assert!(map.read_at(u64::MAX, &mut [0; 8]).is_err());
    assert!(map.write_at(len - 4, &[0; 5]).is_err());
    map.read_at(len, &mut []).unwrap();
    map.flush(len..len).unwrap();
    assert!(map.pin(len..len, Access::ReadWrite).unwrap().is_empty());
}

#[test]
fn an_empty_file_is_an_empty_mapping() {
    let cache = roomy_cache();
    let file = file_of(0);
    let map = open(&cache, file.path(), Access::ReadWrite).unwrap();
    assert!(map.is_empty());
    for advice in
        [Advice::WillNeed, Advice::DontNeed, Advice::Fresh, Advice::Free, Advice::Invalidate, Advice::Priority(1)]
    {
        map.advise(0..0, advice).unwrap();
    }
    assert!(read(&map, 0..1).is_err());
    map.sync().unwrap();
    map.close().unwrap();
    assert_eq!(file.path().metadata().unwrap().len(), 0);
}

// ---- locked memory

/// A cache locks all of a range, whatever of it is resident: no limit is high enough, and it says so before anything fails.
#[test]
fn a_cache_is_locked_only_by_who_may_lock_without_limit() {
    isolated("files::a_cache_is_locked_only_by_who_may_lock_without_limit", || {
        limit_locked_memory(64 << 20);
        match cache_of(300).lock_memory(LockMemory::Require).build() {
            Err(Error::BadOption { option: "lock_memory", .. }) => {}
            Err(Error::Unsupported { by: UnsupportedBy::ManagedEngine, what: "LockMemory::Require", .. })
                if is_managed("") => {}
            // The module's memory is never swapped.
            Ok(cache) if cache.engine() == Engine::Kernel => {}
            other => panic!("{other:?}"),
        }
        for lock in [LockMemory::Auto, LockMemory::Never] {
            let cache = cache_of(300).lock_memory(lock).build().unwrap();
            let file = file_of(1000);
            let map = open(&cache, file.path(), Access::ReadWrite).unwrap();
            (0..1000).for_each(|page| store(&map, at(page), page));
            assert_eq!(locked_kib(), 0);
            map.close().unwrap();
            check_empty(&cache);
        }
    })
    .succeeds();
}

#[test]
fn a_locked_cache_evicts_like_any_other() {
    if !is_root("locking memory") || is_managed("a cache locked in memory") {
        return;
    }
    isolated("files::a_locked_cache_evicts_like_any_other", || {
        let cache = cache_of(300).lock_memory(LockMemory::Require).build().unwrap();
        let file = file_of(1000);
        let map = open(&cache, file.path(), Access::ReadWrite).unwrap();
        assert!(locked_kib() >= 1 << 20, "the range is not locked");
        for round in 0..3 {
            for page in 0..1000 {
                assert_eq!(load(&map, at(page)), round * page);
                store(&map, at(page), (round + 1) * page);
            }
            assert!(cache.stats().resident_pages <= 300);
            assert!(resident_kib() < 40 * 1024, "evicted pages stay in memory");
        }
        map.sync().unwrap();
        map.advise(0..map.len(), Advice::DontNeed).unwrap();
        assert_eq!(load(&map, at(500)), 1500);
        map.set_len(100 * PAGE).unwrap();
        map.close().unwrap();
        check_empty(&cache);
    })
    .succeeds();
}
