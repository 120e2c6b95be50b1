//! The managed engine: the kernel takes the faults, vmio keeps the budget by and by, and processes share files.

use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use vmio::backing::{FileBacking, MemoryBacking};
use vmio::{
    Access, Advice, Cache, Engine, Error, LockMemory, Mapping, MappingOptions, OnReadError, PageVerifier, UnsupportedBy,
};

use crate::support::child::{command, is_child, isolated};
use crate::support::denial::{deny, limit_locked_memory};
use crate::support::{
    PAGE, Random, SPAN, at, cache_of, capacity_of, check_empty, is_root, load, locked_kib, read, store, watchdog,
};

fn managed(pages: u64) -> Cache {
    let cache = cache_of(pages).engine(Engine::Managed).build().unwrap();
    assert_eq!(cache.engine(), Engine::Managed);
    cache
}

fn open(cache: &Cache, path: &Path, access: Access) -> vmio::Result<Mapping> {
    Mapping::open(cache, FileBacking::open(path, access)?, MappingOptions::new())
}

/// A file with blocks of its own, and no page of it in memory.
fn file_of(pages: u64) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), vec![0; (pages * PAGE) as usize]).unwrap();
    file.as_file().sync_all().unwrap();
    // SAFETY: gives advice about an open file.
    unsafe { libc::posix_fadvise(file.as_file().as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    file
}

/// Pages of a mapping that this process has mapped, by the kernel's count.
fn mapped(map: &Mapping) -> u64 {
    map.residency(0..map.len()).resident_pages()
}

/// Whether a page of a file is in memory. Asked so that the question brings none in: a read with RWF_NOWAIT starts the
/// kernel's read-ahead.
fn is_in_page_cache(file: &tempfile::NamedTempFile, page: u64) -> bool {
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
    let mut state = 0u8;
    // SAFETY: a new area, which nothing touches and which ends here; the kernel writes a byte for its one page.
    unsafe {
        let area =
            mmap(std::ptr::null_mut(), PAGE as usize, ProtFlags::READ, MapFlags::SHARED, file, at(page)).unwrap();
        assert_eq!(libc::mincore(area, PAGE as usize, &raw mut state), 0);
        munmap(area, PAGE as usize).unwrap();
    }
    state & 1 == 1
}

/// Waits for what the reclaimer does in the background; the watchdog ends a wait in vain.
fn until(what: impl Fn() -> bool) {
    while !what() {
        thread::sleep(Duration::from_millis(1));
    }
}

// ---- the budget

/// Four times what fits is read and stored to: little more is mapped than the budget allows, and nothing of what was stored is lost. On
/// a machine that is busy with other tests the reclaimer is late at times, so there is more for some of the samples.
#[test]
fn a_file_larger_than_the_cache_stays_within_the_budget() {
    let _watchdog = watchdog("a_file_larger_than_the_cache_stays_within_the_budget");
    const CAPACITY: u64 = 16 * SPAN;
    let least = CAPACITY / 2;
    test_depth::one_of(
        3,
        || mapped_beside_accesses(CAPACITY),
        |mapped| mapped.lower_quartile <= CAPACITY * 5 / 4 && mapped.median > least,
    );
}

/// Pages that are mapped while four times as many are loaded and stored to as fit.
#[derive(Debug)]
struct Mapped {
    lower_quartile: u64,
    median: u64,
}

fn mapped_beside_accesses(capacity: u64) -> Mapped {
    let pages = 4 * capacity;
    let file = file_of(pages);
    let cache = managed(capacity);
    let map = open(&cache, file.path(), Access::ReadWrite).unwrap();
    let mut stored = vec![0; pages as usize];
    let mut random = Random(7);
    let mut samples = Vec::new();
    for count in 0..3 * pages {
        let page = random.below(pages);
        assert_eq!(load(&map, at(page)), stored[page as usize]);
        if count % 3 == 0 {
            stored[page as usize] = count;
            store(&map, at(page), count);
        }
        if count % 512 == 0 {
            samples.push(mapped(&map));
        }
    }
    samples.sort_unstable();
    until(|| cache.stats().resident_pages <= capacity);
    let stats = cache.stats();
    assert!(stats.evicted_clean + stats.evicted_dirty > capacity && stats.writes > 0, "{stats:?}");
    map.close().unwrap();
    check_empty(&cache);
    let bytes = std::fs::read(file.path()).unwrap();
    for (page, value) in (0..).zip(&stored) {
        assert_eq!(bytes[at(page) as usize..][..8], value.to_le_bytes(), "page {page}");
    }
    Mapped { lower_quartile: samples[samples.len() / 4], median: samples[samples.len() / 2] }
}

#[test]
fn files_share_one_budget() {
    let _watchdog = watchdog("files_share_one_budget");
    let files = [file_of(1024), file_of(1024), file_of(1024)];
    let cache = managed(1024);
    let maps: Vec<_> = files.iter().map(|file| open(&cache, file.path(), Access::ReadOnly).unwrap()).collect();
    for map in &maps {
        (0..1024).for_each(|page| assert_eq!(load(map, at(page)), 0));
    }
    until(|| maps.iter().map(mapped).sum::<u64>() <= 1024);
    drop(maps);
    check_empty(&cache);
}

/// Another mapping of a file, of which vmio knows nothing, comes and goes: its pages are not taken for the cache's.
#[test]
fn other_mappings_of_the_process_do_not_count() {
    let _watchdog = watchdog("other_mappings_of_the_process_do_not_count");
    isolated("managed::other_mappings_of_the_process_do_not_count", || {
        let (own, other) = (file_of(1024), file_of(8 * SPAN));
        let cache = managed(2048);
        let map = open(&cache, own.path(), Access::ReadOnly).unwrap();
        let foreign = open(&managed(64 * SPAN), other.path(), Access::ReadOnly).unwrap();
        let mut left = Vec::new();
        for _ in 0..3 {
            (0..1024).for_each(|page| assert_eq!(load(&map, at(page)), 0));
            foreign.advise(0..foreign.len(), Advice::WillNeed).unwrap();
            assert_eq!(mapped(&foreign), 8 * SPAN);
            thread::sleep(Duration::from_millis(30));
            // Neither the other's pages, nor what was given up and is loaded again, and counts twice until it goes.
            until(|| cache.stats().resident_pages <= 2048);
            foreign.advise(0..foreign.len(), Advice::DontNeed).unwrap();
            left.push(mapped(&map));
        }
        // Where the processor is wanted elsewhere a count is out of date, and each time a quarter of the budget goes before the next count.
        assert!(left.iter().any(|left| *left >= 512), "{left:?} pages are left of 1024 that fit");
    })
    .succeeds();
}

#[test]
fn a_range_of_high_rank_outlives_a_stream() {
    let _watchdog = watchdog("a_range_of_high_rank_outlives_a_stream");
    const CAPACITY: u64 = 16 * SPAN;
    const KEPT: u64 = CAPACITY / 4;
    let file = file_of(5 * CAPACITY);
    let cache = managed(CAPACITY);
    let map = open(&cache, file.path(), Access::ReadOnly).unwrap();
    map.advise(0..at(KEPT), Advice::Priority(0)).unwrap();
    map.advise(at(KEPT)..map.len(), Advice::Priority(255)).unwrap();
    for page in 0..5 * CAPACITY {
        assert_eq!(load(&map, at(page)), 0);
        if page % 256 == 0 {
            // The stream must not run away from the reclaimer, however busy the machine is.
            until(|| cache.stats().resident_pages <= CAPACITY);
        }
    }
    let kept = map.residency(0..at(KEPT)).resident_pages();
    assert!(kept >= KEPT * 3 / 4, "{kept} of {KEPT} pages were kept");
    assert!(cache.stats().evicted_clean >= 3 * CAPACITY, "{:?}", cache.stats());
}

/// Nothing has to be given up, but too much is dirty.
#[test]
fn dirty_pages_above_the_ratio_are_written() {
    let _watchdog = watchdog("dirty_pages_above_the_ratio_are_written");
    let file = file_of(1024);
    let cache = cache_of(8192).dirty_ratio(0.05).engine(Engine::Managed).build().unwrap();
    let map = open(&cache, file.path(), Access::ReadWrite).unwrap();
    (0..1024).for_each(|page| store(&map, at(page), page));
    if !vmio::probe::probe().cachestat.is_yes() {
        return test_depth::skipped("this kernel does not tell what is dirty");
    }
    if !test_depth::comes_true(|| cache.stats().dirty_pages > 0 || cache.stats().writes > 0) {
        return test_depth::skipped("the file system of temporary files does not tell what is dirty");
    }
    until(|| cache.stats().writes > 0 && cache.stats().dirty_pages <= 410);
    (0..1024).for_each(|page| assert_eq!(load(&map, at(page)), page));
}

// ---- advice and pins

#[test]
fn advice_fetches_and_gives_up() {
    let file = file_of(64);
    let cache = managed(1024);
    let map = open(&cache, file.path(), Access::ReadWrite).unwrap();
    assert_eq!(mapped(&map), 0);
    map.advise(at(8)..at(24), Advice::WillNeed).unwrap();
    assert!((8..24).all(|page| map.is_resident(at(page))) && !map.is_resident(at(40)));
    (0..64).for_each(|page| store(&map, at(page), page + 1));
    let pin = map.pin(at(10) + 5..at(12), Access::ReadWrite).unwrap();
    let second = map.pin(at(11)..at(13), Access::ReadOnly).unwrap();
    map.advise(0..map.len(), Advice::DontNeed).unwrap();
    let left = |map: &Mapping| (0..64).filter(|page| map.is_resident(at(*page))).collect::<Vec<_>>();
    assert_eq!(left(&map), [10, 11, 12], "pinned pages stay, and only those");
    assert_eq!(std::fs::read(file.path()).unwrap()[at(63) as usize], 64, "what was dirty is in the file");
    drop(pin);
    map.advise(0..map.len(), Advice::DontNeed).unwrap();
    assert_eq!(left(&map), [11, 12]);
    assert_eq!(cache.stats().pinned_pages, 2);
    drop(second);
    map.advise(0..map.len(), Advice::DontNeed).unwrap();
    assert_eq!(mapped(&map), 0);
    for advice in [Advice::Fresh, Advice::Free, Advice::Sequential { window_bytes: 0 }, Advice::Normal] {
        map.advise(0..map.len(), advice).unwrap();
    }
    (0..64).for_each(|page| assert_eq!(load(&map, at(page)), page + 1));
}

/// Cold pages count until they have left the page cache. A load before that finds them in memory.
#[test]
fn what_is_cold_is_inactive_and_counts() {
    let _watchdog = watchdog("what_is_cold_is_inactive_and_counts");
    let file = file_of(64);
    let cache = managed(1024);
    let map = open(&cache, file.path(), Access::ReadWrite).unwrap();
    (0..64).for_each(|page| store(&map, at(page), page + 1));
    let pin = map.pin(at(10)..at(12), Access::ReadWrite).unwrap();
    // Again and again: what waits already is not counted twice.
    for _ in 0..3 {
        map.advise(at(2)..at(40), Advice::Cold).unwrap();
        assert_eq!(mapped(&map), 64 - 36, "all but what is pinned");
        until(|| cache.stats().resident_pages == 64);
        (2..40).for_each(|page| assert_eq!(load(&map, at(page)), page + 1));
    }
    map.advise(at(2)..at(40), Advice::Cold).unwrap();
    drop(pin);
    // What goes first.
    cache.resize(capacity_of(256)).unwrap();
    let other = file_of(400);
    let others = open(&cache, other.path(), Access::ReadOnly).unwrap();
    others.advise(0..others.len(), Advice::Random).unwrap();
    (0..400).for_each(|page| assert_eq!(load(&others, at(page)), 0));
    until(|| {
        (0..400).for_each(|page| _ = load(&others, at(page)));
        !is_in_page_cache(&file, 20)
    });
    (0..64).for_each(|page| assert_eq!(load(&map, at(page)), page + 1));
}

/// Pins lock their pages in memory, and a process may lock so much and no more.
#[test]
fn pins_beyond_what_may_be_locked_are_refused() {
    isolated("managed::pins_beyond_what_may_be_locked_are_refused", || {
        limit_locked_memory(64 * PAGE);
        let (file, cache) = (file_of(256), managed(512));
        let map = open(&cache, file.path(), Access::ReadWrite).unwrap();
        let is_refused = |pages: std::ops::Range<u64>| match map.pin(at(pages.start)..at(pages.end), Access::ReadWrite)
        {
            Err(error @ Error::System { .. }) => assert!(error.to_string().contains("ulimit -l"), "{error}"),
            Err(error) => panic!("{error}"),
            Ok(_) => panic!("pages {pages:?} are pinned"),
        };
        let pin = map.pin(0..at(16), Access::ReadWrite).unwrap();
        is_refused(100..164);
        is_refused(0..65);
        assert_eq!((cache.stats().pinned_pages, locked_kib()), (16, 64));
        // Of pages that are pinned already, only the others count.
        let larger = map.pin(0..at(64), Access::ReadOnly).unwrap();
        is_refused(64..65);
        drop((pin, larger));
        assert_eq!((cache.stats().pinned_pages, locked_kib()), (0, 0));
        let pin = map.pin(at(100)..at(164), Access::ReadWrite).unwrap();
        drop(pin);
        limit_locked_memory(0);
        is_refused(0..1);
        map.advise(0..map.len(), Advice::DontNeed).unwrap();
        assert_eq!(mapped(&map), 0, "what could not be pinned can be given up");
        store(&map, at(7), 7);
        map.close().unwrap();
        check_empty(&cache);
    })
    .succeeds();
}

/// Everything that could be given up is pinned: the reclaimer must neither loop for ever nor give up what is pinned.
#[test]
fn pins_hold_against_the_reclaimer() {
    let _watchdog = watchdog("pins_hold_against_the_reclaimer");
    let file = file_of(2048);
    let cache = managed(512);
    let map = open(&cache, file.path(), Access::ReadWrite).unwrap();
    let pin = map.pin(0..at(384), Access::ReadWrite).unwrap();
    assert!(matches!(map.pin(at(384)..at(385), Access::ReadOnly), Err(Error::TooManyPins { .. })));
    for _ in 0..3 {
        (384..2048).for_each(|page| assert_eq!(load(&map, at(page)), 0));
        assert_eq!(map.residency(0..at(384)).resident_pages(), 384);
    }
    until(|| cache.stats().resident_pages <= 512);
    assert!(matches!(map.set_len(at(100)), Err(Error::Resize { .. })));
    drop(pin);
    map.set_len(at(100)).unwrap();
}

// ---- processes

/// The program sees it, as the kernel maps it, though it lies behind what the mapping takes for the end.
#[test]
fn what_others_have_appended_is_within_the_budget() {
    const PAGES: u64 = 4096;
    let _watchdog = watchdog("what_others_have_appended_is_within_the_budget");
    let file = file_of(16);
    let cache = managed(512);
    let options = MappingOptions::new().reserve(at(PAGES));
    let map = Mapping::open(&cache, FileBacking::open(file.path(), Access::ReadOnly).unwrap(), options).unwrap();
    std::fs::write(file.path(), vec![1; at(PAGES) as usize]).unwrap();
    file.as_file().sync_all().unwrap();
    for page in 0..PAGES {
        // SAFETY: the byte lies in the file and in the mapping's addresses.
        assert_eq!(unsafe { map.as_ptr().add(at(page) as usize).read_volatile() }, 1);
    }
    until(|| cache.stats().evicted_clean >= PAGES - 512);
}

#[test]
fn what_others_have_appended_stays_when_the_file_becomes_longer() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), [1; 100]).unwrap();
    let cache = managed(4 * SPAN);
    let options = MappingOptions::new().reserve(at(4));
    let map = Mapping::open(&cache, FileBacking::open(file.path(), Access::ReadWrite).unwrap(), options).unwrap();
    std::os::unix::fs::FileExt::write_all_at(file.as_file(), &[2; 100], 100).unwrap();
    map.set_len(300).unwrap();
    let mut bytes = [0xff; 300];
    map.read_at(0, &mut bytes).unwrap();
    let expected = [[1; 100], [2; 100], [0; 100]].concat();
    assert_eq!(bytes.as_slice(), expected);
    // What is stored behind the end is not part of the file, and nobody has appended.
    // SAFETY: the byte lies in the mapping's last page, and nobody else accesses it.
    unsafe { map.as_ptr().cast_mut().add(310).write_volatile(3) };
    map.set_len(at(1)).unwrap();
    let mut bytes = [0xff; 100];
    map.read_at(300, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 100]);
}

/// Two processes store to one file through caches that are both too small for it.
#[test]
fn processes_share_a_file() {
    const NAME: &str = "managed::processes_share_a_file";
    const FILE: &str = "VMIO_TEST_FILE";
    const PAGES: u64 = 2000;
    let _watchdog = watchdog(NAME);
    let fill = |map: &Mapping, slot: u64| (1..PAGES).for_each(|page| store(map, at(page) + 8 * slot, page + slot));
    if is_child(NAME) {
        let path = std::env::var(FILE).unwrap();
        let map = open(&managed(512), Path::new(&path), Access::ReadWrite).unwrap();
        until(|| load(&map, 0) == 1);
        fill(&map, 1);
        store(&map, 8, 2);
        until(|| load(&map, 0) == 3);
        std::process::exit(0); // Without a sync: the stores are in the file all the same.
    }
    let file = file_of(PAGES);
    let cache = managed(512);
    let map = open(&cache, file.path(), Access::ReadWrite).unwrap();
    let mut child = command(NAME).env(FILE, file.path()).stdout(Stdio::null()).spawn().unwrap();
    store(&map, 0, 1);
    fill(&map, 0);
    until(|| load(&map, 8) == 2);
    for page in 1..PAGES {
        assert_eq!((load(&map, at(page)), load(&map, at(page) + 8)), (page, page + 1));
    }
    store(&map, 0, 3);
    assert!(child.wait().unwrap().success());
    map.close().unwrap();
    check_empty(&cache);
}

// ---- what it does not do

#[test]
fn what_it_cannot_promise_is_refused() {
    struct Verifier;
    impl PageVerifier for Verifier {
        fn verify(&self, _offset: u64, _page: &[u8]) -> bool {
            true
        }
        fn seal(&self, _offset: u64, _page: &mut [u8]) {}
    }
    let file = file_of(4);
    let cache = managed(512);
    let refused = |result: vmio::Result<Mapping>| {
        assert!(matches!(result, Err(Error::Unsupported { by: UnsupportedBy::ManagedEngine, .. })), "{result:?}")
    };
    let backing = || FileBacking::open(file.path(), Access::ReadWrite).unwrap();
    refused(Mapping::open(&cache, backing(), MappingOptions::new().verifier(Verifier)));
    refused(Mapping::open(&cache, backing(), MappingOptions::new().on_read_error(OnReadError::Poison([1; 8]))));
    refused(Mapping::open(&cache, MemoryBacking::new(PAGE).unwrap(), MappingOptions::new()));
    let locked = cache_of(512).engine(Engine::Managed).lock_memory(LockMemory::Require).build();
    assert!(matches!(locked, Err(Error::Unsupported { by: UnsupportedBy::ManagedEngine, .. })));
    // And nothing stays behind of a refusal: neither the lock nor the name.
    open(&cache, file.path(), Access::ReadWrite).unwrap().close().unwrap();
}

#[test]
fn a_file_cut_off_by_others_is_an_error_of_sync() {
    let file = file_of(20);
    let cache = managed(512);
    let map = open(&cache, file.path(), Access::ReadWrite).unwrap();
    (0..20).for_each(|page| store(&map, at(page), 5));
    file.as_file().set_len(9 * PAGE).unwrap();
    for _ in 0..2 {
        assert!(matches!(map.sync(), Err(Error::Write { offset, failed_pages: 11, .. }) if offset == 9 * PAGE));
        assert!(matches!(map.flush(0..at(1)), Err(Error::Write { .. })));
    }
    assert!(matches!(read(&map, at(11)..at(12)), Err(Error::Read { .. })));
    assert!(map.write_at(at(11), b"x").is_err());
    assert!(matches!(map.pin(at(8)..at(10), Access::ReadOnly), Err(Error::Read { .. })));
    assert_eq!(cache.stats().pinned_pages, 0);
    assert_eq!(file.path().metadata().unwrap().len(), 9 * PAGE);
    assert!(map.close().is_err());
    assert_eq!(std::fs::read(file.path()).unwrap()[at(8) as usize], 5);
}

// ---- failures

/// A loop device over a file that its file system has no room for: writes fail.
struct FullDevice {
    folder: tempfile::TempDir,
    device: Option<String>,
}

impl FullDevice {
    fn of_pages(pages: u64) -> Option<Self> {
        let run = |program: &str, arguments: &[&str]| {
            let output = Command::new(program).args(arguments).output().ok()?;
            output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
        };
        let mut full = FullDevice { folder: tempfile::tempdir().unwrap(), device: None };
        let folder = full.folder.path().to_str().unwrap();
        run("mount", &["-t", "tmpfs", "-o", "size=256k", "vmio-test", folder])?;
        let file = full.folder.path().join("sparse");
        std::fs::File::create(&file).unwrap().set_len(pages * PAGE).unwrap();
        full.device = Some(run("losetup", &["--find", "--show", file.to_str().unwrap()])?);
        Some(full)
    }
}

impl Drop for FullDevice {
    fn drop(&mut self) {
        if let Some(device) = &self.device {
            let _ = Command::new("losetup").args(["--detach", device]).status();
        }
        let _ = Command::new("umount").args(["--lazy"]).arg(self.folder.path()).status();
    }
}

/// After a failed write the kernel takes pages for clean that are not. No later sync may succeed, and what is in memory
/// must stay there as long as the mapping is open.
#[test]
fn a_failed_write_fails_every_later_sync() {
    if !is_root("a device that fails") {
        return;
    }
    let _watchdog = watchdog("a_failed_write_fails_every_later_sync");
    let Some(full) = FullDevice::of_pages(4096) else { return test_depth::skipped("no loop device can be made") };
    let cache = managed(512);
    let map = open(&cache, Path::new(full.device.as_ref().unwrap()), Access::ReadWrite).unwrap();
    (0..256).for_each(|page| store(&map, at(page), page + 1));
    for _ in 0..3 {
        assert!(matches!(map.sync(), Err(Error::Flush { .. })));
        assert!(matches!(map.flush(0..at(1)), Err(Error::Flush { .. })));
        assert!(matches!(map.sync_begin().unwrap().wait(), Err(Error::Flush { .. })));
    }
    // Reading all of the device would push those pages out.
    map.advise(0..map.len(), Advice::DontNeed).unwrap();
    (256..4096).for_each(|page| assert_eq!(load(&map, at(page)), 0));
    (0..256).for_each(|page| assert_eq!(load(&map, at(page)), page + 1));
    assert!(cache.stats().write_errors > 0);
    assert!(map.close().is_err());
}

/// The same if nobody syncs before the reclaimer has to write.
#[test]
fn a_failed_write_of_the_reclaimer_is_an_error_of_sync() {
    if !is_root("a device that fails") {
        return;
    }
    let _watchdog = watchdog("a_failed_write_of_the_reclaimer_is_an_error_of_sync");
    let Some(full) = FullDevice::of_pages(4096) else { return test_depth::skipped("no loop device can be made") };
    let cache = managed(512);
    let map = open(&cache, Path::new(full.device.as_ref().unwrap()), Access::ReadWrite).unwrap();
    (0..4096).for_each(|page| store(&map, at(page), page + 1));
    assert!(matches!(map.sync(), Err(Error::Flush { .. })));
    drop(map);
    assert_eq!(cache.stats().drop_failures, 1);
}

// ---- where userfaultfd is denied

/// The same number on every architecture.
const SYS_CACHESTAT: libc::c_long = 451;

#[test]
fn auto_is_managed_where_userfaultfd_is_denied() {
    const NAME: &str = "managed::auto_is_managed_where_userfaultfd_is_denied";
    let _watchdog = watchdog(NAME);
    if is_child(NAME) {
        tracing_subscriber::fmt().with_writer(std::io::stderr).init();
        deny(&[libc::SYS_userfaultfd, libc::SYS_process_madvise, SYS_CACHESTAT]);
        let sigbus = cache_of(512).engine(Engine::Sigbus).build();
        assert!(matches!(sigbus, Err(Error::NoUserfaultfd { .. })), "{sigbus:?}");
        let cache = cache_of(512).engine(Engine::Auto).build().unwrap();
        assert_eq!(cache.engine(), Engine::Managed);
        let file = file_of(3000);
        let map = open(&cache, file.path(), Access::ReadWrite).unwrap();
        for round in 0..2 {
            for page in 0..3000 {
                assert_eq!(load(&map, at(page)), round * page);
                store(&map, at(page), (round + 1) * page);
            }
            until(|| cache.stats().resident_pages <= 512 && mapped(&map) <= 512);
        }
        assert!(cache.stats().evicted_dirty + cache.stats().evicted_clean > 2000, "{:?}", cache.stats());
        map.close().unwrap();
        check_empty(&cache);
        assert_eq!(std::fs::read(file.path()).unwrap()[at(2999) as usize..][..8], 5998_u64.to_le_bytes());
        return;
    }
    let output = command(NAME).stdin(Stdio::null()).output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{log}\n{}", String::from_utf8_lossy(&output.stdout));
    assert!(log.contains("WARN") && log.contains("seccomp") && log.contains("Engine::Managed"), "{log}");
}

/// What cannot be adopted stays as it was; what is adopted goes with its mapping.
#[test]
fn a_child_adopts_what_its_parent_has_mapped() {
    isolated("managed::a_child_adopts_what_its_parent_has_mapped", || {
        const RESERVED: u64 = 1 << 30;
        let (cache, file) = (managed(512), file_of(SPAN));
        let backing = FileBacking::open(file.path(), Access::ReadWrite).unwrap();
        let map = Mapping::open(&cache, backing, MappingOptions::new().reserve(RESERVED)).unwrap();
        store(&map, at(3), 55);
        let first = 55;
        let addresses = map.as_ptr() as usize..map.as_ptr() as usize + RESERVED as usize;
        // SAFETY: the advice changes no contents.
        let advised = unsafe { libc::madvise(addresses.start as *mut _, RESERVED as usize, libc::MADV_DOFORK) };
        assert_eq!(advised, 0);
        let adopted = || {
            let of_another_engine = cache_of(1024).engine(Engine::Sigbus).build();
            let own = cache.in_child().unwrap();
            let adopt = |cache: &Cache| {
                let backing = FileBacking::open(file.path(), Access::ReadWrite).unwrap();
                // SAFETY: the child has them from its parent, and nothing else in it unmaps them.
                unsafe { Mapping::adopt(cache, backing, MappingOptions::new(), addresses.clone()) }
            };
            // SAFETY: the word lies in the parent's mapping, which the child has.
            let word = || unsafe { std::ptr::read_volatile((addresses.start + 3 * PAGE as usize) as *const u64) };
            if let Ok(other) = of_another_engine {
                assert!(matches!(other.in_child(), Err(Error::BadOption { option: "engine", .. })));
                assert!(matches!(adopt(&other), Err(Error::BadOption { option: "engine", .. })));
            }
            assert_eq!(word(), first);
            let adopted = adopt(&own).unwrap();
            assert_eq!((adopted.as_ptr() as usize, load(&adopted, at(3)), word()), (addresses.start, first, first));
            store(&adopted, at(4), 77);
            adopted.close().unwrap();
            // SAFETY: asks about an address.
            let is_there = unsafe { libc::msync(addresses.start as *mut _, PAGE as usize, libc::MS_ASYNC) } == 0;
            assert!(!is_there, "still mapped");
        };
        // SAFETY: the child's parent has no thread that holds what the child needs.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(adopted)).is_err();
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(i32::from(failed)) };
        }
        let mut status = 0;
        // SAFETY: the status is ours.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!((status, load(&map, at(4))), (0, 77));
    })
    .succeeds();
}
