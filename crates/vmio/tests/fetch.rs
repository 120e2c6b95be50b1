//! Asynchronous misses: what was fetched is there, under any executor; nothing is lost or left behind when futures are
//! dropped, reads fail, the cache is tiny, or the mapping closes.
#![allow(clippy::single_range_in_vec_init)]

use std::future::Future;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use futures::executor::block_on;
use futures::future::{join_all, try_join_all};
use vmio::backing::{Backing, FileBacking, Identity};
use vmio::probe::{KernelFeature, Probe, probe};
use vmio::{Access, Advice, Cache, Error, Fetch, Mapping, MappingOptions};

use crate::support::device::{Device, READ_EIO, READ_SHORT, WRITE_EIO};
use crate::support::{
    PAGE, Random, SPAN, at, cache_of, check_budget, check_empty, has_io_uring, is_managed, load, map_file,
    minimal_cache, numbered_file, roomy_cache, store, tiny_cache, watchdog,
};

fn numbered_device(pages: u64) -> Arc<Device> {
    let device = Device::of_pages(pages);
    (0..pages).for_each(|page| device.set_word(at(page), page + 1));
    device
}

fn map_device(cache: &Cache, device: &Arc<Device>) -> Mapping {
    Mapping::open(cache, device.backing(), MappingOptions::new()).unwrap()
}

fn fetch_page(map: &Mapping, page: u64) -> Fetch {
    map.fetch([at(page)..at(page + 1)])
}

/// Runs a check over a file, which is read through io_uring where there is any, and over a device, which is not.
fn over_each_backing(pages: u64, cache: impl Fn() -> Cache, check: impl Fn(&Cache, &Mapping)) {
    let folder = tempfile::tempdir().unwrap();
    let path = numbered_file(folder.path(), pages);
    let run = |open: &dyn Fn(&Cache) -> Mapping| {
        let cache = cache();
        let map = open(&cache);
        check(&cache, &map);
        check_budget(&cache, &[&map]);
        map.close().unwrap();
        if !is_managed("") {
            check_empty(&cache);
        }
    };
    run(&|cache| map_file(cache, &path));
    if !is_managed("a mapping of memory") {
        run(&|cache| map_device(cache, &numbered_device(pages)));
    }
}

// ---- what comes

#[test]
fn what_was_fetched_does_not_miss() {
    over_each_backing(3 * SPAN, roomy_cache, |cache, map| {
        let ranges = [at(5)..at(5) + 1, at(SPAN - 3)..at(SPAN + 70), at(1000) + 5..at(1000) + 5, at(1100)..at(1101)];
        block_on(map.fetch(ranges)).unwrap();
        let wanted: Vec<u64> = [5, 1100].into_iter().chain(SPAN - 3..SPAN + 70).collect();
        wanted.iter().for_each(|page| assert!(map.is_resident(at(*page)), "page {page}"));
        let stats = cache.stats();
        wanted.iter().for_each(|page| assert_eq!(load(map, at(*page)), page + 1));
        assert_eq!(cache.stats().load_misses, stats.load_misses);
        if !is_managed("") {
            assert_eq!(stats.resident_pages, wanted.len() as u64);
            assert_eq!(stats.reads, 5, "the 73 pages in three runs");
        }
        // What is there needs nobody.
        block_on(map.fetch([at(5)..at(6)])).unwrap();
        assert_eq!(cache.stats().reads, stats.reads);
    });
}

#[test]
fn files_come_through_io_uring_and_others_do_not() {
    if is_managed("io_uring") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = numbered_file(folder.path(), 100);
    let fetched = |cache: Cache| {
        let map = map_file(&cache, &path);
        block_on(map.fetch([at(0)..at(100)])).unwrap();
        (cache.stats().fetched_pages, cache.stats().resident_pages)
    };
    assert_eq!(fetched(roomy_cache()), (if has_io_uring() { 100 } else { 0 }, 100));
    assert_eq!(fetched(cache_of(1024).without(KernelFeature::IoUring).build().unwrap()), (0, 100));
    let cache = roomy_cache();
    let map = map_device(&cache, &numbered_device(100));
    block_on(map.fetch([at(0)..at(100)])).unwrap();
    assert_eq!((cache.stats().fetched_pages, cache.stats().resident_pages), (0, 100));
}

/// As container runtimes do: io_uring_setup fails with EPERM, for the calling thread and those that it starts.
#[test]
fn where_io_uring_is_denied_threads_read() {
    use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
    if is_managed("io_uring") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = numbered_file(folder.path(), 100);
    let denied = std::thread::spawn(move || {
        let rules = [(libc::SYS_io_uring_setup, Vec::new())].into_iter().collect();
        let refusal = SeccompAction::Errno(libc::EPERM as u32);
        let arch = std::env::consts::ARCH.try_into().unwrap();
        let filter = SeccompFilter::new(rules, SeccompAction::Allow, refusal, arch).unwrap();
        seccompiler::apply_filter(&BpfProgram::try_from(filter).unwrap()).unwrap();
        let found = probe().kernel.into_iter().find(|(feature, _)| *feature == KernelFeature::IoUring).unwrap().1;
        assert!(matches!(&found, Probe::No(why) if why.contains("seccomp") || why.contains("sysctl")), "{found:?}");
        let cache = roomy_cache();
        let map = map_file(&cache, &path);
        block_on(map.fetch([at(0)..at(40), at(60)..at(100)])).unwrap();
        assert_eq!((cache.stats().fetched_pages, cache.stats().resident_pages), (0, 80));
        assert_eq!((load(&map, at(39)), load(&map, at(99))), (40, 100));
    });
    denied.join().unwrap();
}

#[test]
fn stored_and_inactive_pages_stay_what_they_are() {
    over_each_backing(4 * SPAN, minimal_cache, |cache, map| {
        for round in 0..6 {
            (0..4 * SPAN).step_by(2).for_each(|page| store(map, at(page) + 8 * (round + 1), page + round));
            block_on(map.fetch([at(0)..at(4 * SPAN)])).unwrap();
            check_budget(cache, &[map]);
        }
        for page in 0..4 * SPAN {
            assert_eq!(load(map, at(page)), page + 1);
            (0..6).for_each(|round| {
                let stored = if page % 2 == 0 { page + round } else { 0 };
                assert_eq!(load(map, at(page) + 8 * (round + 1)), stored, "page {page}");
            });
        }
    });
}

#[test]
fn the_last_partial_page_ends_with_zeros() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    std::fs::write(&path, vec![7; 3 * PAGE as usize + 1001]).unwrap();
    let cache = roomy_cache();
    let map = map_file(&cache, &path);
    block_on(map.fetch([0..map.len()])).unwrap();
    assert_eq!(load(&map, at(3) + 992), 0x0707_0707_0707_0707);
    assert_eq!(load(&map, at(3) + 1000), 7);
    assert_eq!(load(&map, at(4) - 8), 0);
    assert!(matches!(block_on(map.fetch([at(3)..map.len() + 1])), Err(Error::OutOfRange { .. })));
    map.set_len(at(10)).unwrap();
    block_on(map.fetch([at(3)..at(10)])).unwrap();
    assert_eq!((load(&map, at(3) + 1000), load(&map, at(9))), (7, 0));
}

#[test]
fn fresh_pages_are_not_read() {
    over_each_backing(SPAN, roomy_cache, |cache, map| {
        if is_managed("fresh ranges") {
            return;
        }
        map.advise(at(10)..at(20), Advice::Fresh).unwrap();
        block_on(map.fetch([at(0)..at(30)])).unwrap();
        assert_eq!((cache.stats().fresh_fills, cache.stats().read_bytes), (10, 20 * PAGE));
        (0..30).for_each(|page| assert_eq!(load(map, at(page)), if (10..20).contains(&page) { 0 } else { page + 1 }));
    });
}

// ---- executors

#[test]
fn tasks_of_tokio_fetch_and_look() {
    let _watchdog = watchdog("tasks_of_tokio_fetch_and_look");
    over_each_backing(4 * SPAN, tiny_cache, |_, map| {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(3).build().unwrap();
        let tasks: Vec<_> = (0..24_u64)
            .map(|seed| {
                let map = map.clone();
                runtime.spawn(async move {
                    let mut random = Random(seed);
                    for _ in 0..100 {
                        let page = random.below(4 * SPAN);
                        fetch_page(&map, page).await.unwrap();
                        assert_eq!(load(&map, at(page)), page + 1);
                    }
                })
            })
            .collect();
        runtime.block_on(async {
            for task in tasks {
                task.await.unwrap();
            }
        });
    });
}

#[test]
fn many_fetches_get_on_in_a_cache_of_few_pages() {
    let _watchdog = watchdog("many_fetches_get_on_in_a_cache_of_few_pages");
    over_each_backing(4 * SPAN, minimal_cache, |_, map| {
        let mut random = Random(1);
        for _ in 0..30 {
            // Far more than may be under way, many of them for the same pages.
            let pages: Vec<u64> = (0..64).map(|_| random.below(4 * SPAN - 40)).collect();
            let fetches = pages.iter().map(|page| map.fetch([at(*page)..at(page + page % 40)]));
            block_on(try_join_all(fetches)).unwrap();
            pages.iter().for_each(|page| assert_eq!(load(map, at(*page)), page + 1));
            store(map, at(pages[0]) + 8, 1);
        }
    });
}

#[test]
fn threads_that_touch_wait_for_what_is_under_way() {
    let _watchdog = watchdog("threads_that_touch_wait_for_what_is_under_way");
    over_each_backing(2 * SPAN, minimal_cache, |_, map| {
        std::thread::scope(|scope| {
            for seed in 0..3 {
                scope.spawn(move || {
                    let mut random = Random(seed);
                    for _ in 0..1000 {
                        let page = random.below(2 * SPAN);
                        match random.below(4) {
                            0 => assert_eq!(load(map, at(page)), page + 1),
                            1 => drop(fetch_page(map, page)),
                            2 => map.ensure(at(page)..at(page + 1)).unwrap(),
                            _ => store(map, at(page) + 16, page),
                        }
                    }
                });
            }
            let mut random = Random(9);
            for _ in 0..300 {
                let page = random.below(2 * SPAN - 8);
                block_on(map.fetch([at(page)..at(page + 8)])).unwrap();
                assert_eq!(load(map, at(page)), page + 1);
                if random.below(8) == 0 {
                    map.advise(at(page)..at(page + 8), Advice::DontNeed).unwrap();
                }
            }
        });
    });
}

// ---- dropping and closing

#[test]
fn a_dropped_future_leaves_its_fetch_to_itself() {
    let _watchdog = watchdog("a_dropped_future_leaves_its_fetch_to_itself");
    over_each_backing(4 * SPAN, roomy_cache, |_, map| {
        for first in (0..4 * SPAN).step_by(64) {
            let mut fetch = pin!(map.fetch([at(first)..at(first + 64)]));
            let _ = fetch.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        }
        while !(0..4 * SPAN).all(|page| map.is_resident(at(page))) {
            std::thread::yield_now();
        }
    });
}

#[test]
fn a_mapping_closes_while_fetches_are_under_way() {
    let _watchdog = watchdog("a_mapping_closes_while_fetches_are_under_way");
    for round in 0..20 {
        over_each_backing(4 * SPAN, tiny_cache, |_, map| {
            map.prefetch([0..map.len()]).unwrap();
            drop(map.fetch([0..map.len()]));
            (0..100).for_each(|page| drop(fetch_page(map, 17 * page)));
            let mut fetch = pin!(fetch_page(map, round));
            let _ = fetch.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        });
    }
}

#[test]
fn a_future_keeps_the_mapping_open() {
    let folder = tempfile::tempdir().unwrap();
    let path = numbered_file(folder.path(), 64);
    let cache = roomy_cache();
    let map = map_file(&cache, &path);
    store(&map, at(1) + 8, 77);
    let fetch = map.fetch([0..map.len()]);
    drop(map);
    block_on(fetch).unwrap();
    assert_eq!(std::fs::read(&path).unwrap()[PAGE as usize + 8], 77, "closed with the future, it has been written");
}

#[test]
fn a_mapping_is_cut_while_its_pages_are_fetched() {
    let _watchdog = watchdog("a_mapping_is_cut_while_its_pages_are_fetched");
    let folder = tempfile::tempdir().unwrap();
    let path = numbered_file(folder.path(), 4 * SPAN);
    let cache = roomy_cache();
    let map = map_file(&cache, &path);
    for _ in 0..20 {
        let fetch = map.fetch([at(0)..at(4 * SPAN)]);
        map.set_len(at(SPAN)).unwrap();
        match block_on(fetch) {
            Ok(()) | Err(Error::OutOfRange { .. }) => {}
            Err(error) => assert!(is_managed(""), "{error}"),
        }
        assert!((SPAN..4 * SPAN).all(|page| !map.is_resident(at(page))));
        map.set_len(at(4 * SPAN)).unwrap();
        map.advise(0..map.len(), Advice::DontNeed).unwrap();
    }
    map.close().unwrap();
}

// ---- guesses

#[test]
fn a_guess_comes_but_takes_little() {
    let _watchdog = watchdog("a_guess_comes_but_takes_little");
    over_each_backing(
        8 * SPAN,
        || cache_of(2 * SPAN).build().unwrap(),
        |cache, map| {
            map.prefetch([at(8)..at(16), at(100)..at(101)]).unwrap();
            while !(8..16).all(|page| map.is_resident(at(page))) || !map.is_resident(at(100)) {
                std::thread::yield_now();
            }
            map.prefetch([at(SPAN)..at(8 * SPAN)]).unwrap();
            assert!(map.prefetch([at(0)..at(8 * SPAN + 1)]).is_err());
            // In use, and filling most of the cache: what is guessed does not push it out.
            let in_use = || (0..SPAN + SPAN / 2).for_each(|page| assert_eq!(load(map, at(page)), page + 1));
            in_use();
            if is_managed("") {
                return;
            }
            let guessed = map.residency(at(2 * SPAN)..map.len()).resident_pages();
            assert!(guessed <= SPAN / 4, "{guessed} pages, an eighth of the cache at most");
            let stats = cache.stats();
            assert!(stats.free_pages > 0, "{stats:?}");
        },
    );
}

/// A guess may have half of what may be under way: here that is less than a page.
#[test]
fn a_guess_comes_where_one_page_may_be_under_way() {
    let _watchdog = watchdog("a_guess_comes_where_one_page_may_be_under_way");
    over_each_backing(
        SPAN,
        || cache_of(2 * SPAN).pages_in_flight(1).build().unwrap(),
        |_, map| {
            map.prefetch([at(8)..at(12)]).unwrap();
            while !(8..12).all(|page| map.is_resident(at(page))) {
                std::thread::yield_now();
            }
        },
    );
}

// ---- failures

#[test]
fn an_unreadable_page_fails_the_fetch_and_nothing_else() {
    let _watchdog = watchdog("an_unreadable_page_fails_the_fetch_and_nothing_else");
    if is_managed("a mapping of memory") {
        return;
    }
    let cache = roomy_cache();
    let device = numbered_device(200);
    // Once by threads that read, once by io_uring, whose reads all fail over a descriptor that cannot be read: then
    // the backing reads page by page, and has the same faults.
    for by_ring in [false, true] {
        device.set_faults(10, READ_EIO);
        device.set_faults(70, READ_SHORT);
        let map = if by_ring {
            Mapping::open(&cache, Unreadable::over(&device), MappingOptions::new()).unwrap()
        } else {
            map_device(&cache, &device)
        };
        for _ in 0..2 {
            match block_on(map.fetch([at(3)..at(60)])) {
                Err(Error::Read { offset, source, .. }) => {
                    assert_eq!((offset, source.raw_os_error()), (at(10), Some(libc::EIO)));
                }
                other => panic!("{other:?}"),
            }
            assert!(!map.is_resident(at(10)));
        }
        match block_on(map.fetch([at(70)..at(71)])) {
            Err(Error::Read { offset, source, .. }) => {
                assert_eq!((offset, source.kind()), (at(70), io::ErrorKind::UnexpectedEof));
            }
            other => panic!("{other:?}"),
        }
        assert!(matches!(map.take_read_error(), Some(Error::Read { .. })));
        let results = block_on(join_all((80..144).map(|page| fetch_page(&map, page % 100))));
        assert_eq!(results.iter().filter(|result| result.is_err()).count(), 1, "page 10 was among them");
        device.set_faults(10, 0);
        device.set_faults(70, 0);
        block_on(map.fetch([0..map.len()])).unwrap();
        (0..200).for_each(|page| assert_eq!(load(&map, at(page)), page + 1));
        map.close().unwrap();
        check_empty(&cache);
    }
}

#[test]
fn a_file_cut_behind_our_back_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = numbered_file(folder.path(), 64);
    let cache = roomy_cache();
    let map = map_file(&cache, &path);
    std::fs::File::options().write(true).open(&path).unwrap().set_len(at(30) + 100).unwrap();
    if is_managed("an error at the very page") {
        return;
    }
    match block_on(map.fetch([at(20)..at(40)])) {
        Err(Error::Read { offset, source, .. }) => {
            assert_eq!((offset, source.kind()), (at(30), io::ErrorKind::UnexpectedEof));
        }
        other => panic!("{other:?}"),
    }
    (20..30).for_each(|page| assert_eq!(load(&map, at(page)), page + 1));
    assert!(!map.is_resident(at(30)));
}

#[test]
fn a_page_that_does_not_verify_fails_the_fetch() {
    if is_managed("a page verifier") {
        return;
    }
    struct Numbers;
    impl vmio::PageVerifier for Numbers {
        fn verify(&self, offset: u64, page: &[u8]) -> bool {
            page[..8] == (offset / PAGE + 1).to_le_bytes()
        }
        fn seal(&self, _offset: u64, _page: &mut [u8]) {}
    }
    let folder = tempfile::tempdir().unwrap();
    let path = numbered_file(folder.path(), 64);
    std::os::unix::fs::FileExt::write_all_at(&std::fs::File::options().write(true).open(&path).unwrap(), b"!", at(17))
        .unwrap();
    let cache = roomy_cache();
    let options = MappingOptions::new().verifier(Numbers);
    let map = Mapping::open(&cache, FileBacking::open(&path, Access::ReadOnly).unwrap(), options).unwrap();
    let failed = block_on(map.fetch([0..map.len()])).unwrap_err();
    assert!(matches!(failed, Error::Corrupt { offset, .. } if offset == at(17)), "{failed}");
    (0..64).for_each(|page| assert_eq!(map.is_resident(at(page)), page != 17, "page {page}"));
    map.close().unwrap();
    check_empty(&cache);
}

#[test]
fn a_cache_full_of_unwritable_pages_fails_a_fetch_in_place_of_hanging_it() {
    let _watchdog = watchdog("a_cache_full_of_unwritable_pages_fails_a_fetch_in_place_of_hanging_it");
    if is_managed("a mapping of memory") {
        return;
    }
    for by_ring in [false, true] {
        let cache = minimal_cache();
        let device = numbered_device(SPAN);
        let map = if by_ring {
            Mapping::open(&cache, Unreadable::over(&device), MappingOptions::new()).unwrap()
        } else {
            map_device(&cache, &device)
        };
        device.set_all_faults(WRITE_EIO);
        let refused = (0..SPAN).find(|page| map.write_at(at(*page) + 8, b"stored").is_err()).unwrap();
        let failed = block_on(map.fetch([at(refused)..at(refused) + 1])).unwrap_err();
        assert!(matches!(failed, Error::CacheExhausted { .. }), "{failed}");
        // A guess is no error, and brings nothing.
        map.prefetch([at(refused)..at(refused + 1)]).unwrap();
        device.set_all_faults(0);
        block_on(map.fetch([at(refused)..at(SPAN)])).unwrap();
        (0..refused).for_each(|page| assert_eq!(load(&map, at(page)), page + 1));
        map.close().unwrap();
        check_empty(&cache);
    }
}

#[test]
fn slow_reads_hold_nobody_up_who_polls() {
    let _watchdog = watchdog("slow_reads_hold_nobody_up_who_polls");
    if is_managed("a mapping of memory") {
        return;
    }
    let cache = tiny_cache();
    let device = numbered_device(64);
    device.hold_reads(true);
    let map = map_device(&cache, &device);
    let mut fetch = pin!(fetch_page(&map, 5));
    let is_pending = fetch.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending();
    let is_resident = map.is_resident(at(5));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // The load has most likely begun by then.
            std::thread::sleep(Duration::from_millis(100));
            device.hold_reads(false);
        });
        assert_eq!(load(&map, at(5)), 6, "the load waits for the fetch");
    });
    assert!(is_pending && !is_resident, "pending: {is_pending}, resident: {is_resident}");
    block_on(fetch).unwrap();
    assert_eq!(device.reads_of(5), 1);
}

#[test]
fn what_was_on_its_way_in_when_it_was_given_up_is_read_again() {
    let _watchdog = watchdog("what_was_on_its_way_in_when_it_was_given_up_is_read_again");
    if is_managed("a mapping of memory") {
        return;
    }
    let device = numbered_device(64);
    device.slow_reads(Duration::from_millis(300));
    let map = map_device(&tiny_cache(), &device);
    let mut fetch = pin!(fetch_page(&map, 5));
    assert!(fetch.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    // It is read, and has not arrived.
    while device.reads_of(5) == 0 {
        std::thread::yield_now();
    }
    // Before the advice: the fetch may read the page again as soon as that is through.
    device.set_word(at(5), 77);
    map.advise(at(5)..at(6), Advice::DontNeed).unwrap();
    let _ = block_on(fetch);
    assert_eq!(load(&map, at(5)), 77);
}

/// A device that says to be a file which cannot be read: what io_uring tries there fails.
struct Unreadable {
    device: crate::support::device::DeviceBacking,
    file: std::fs::File,
}

impl Unreadable {
    fn over(device: &Arc<Device>) -> Self {
        let file = std::fs::File::options().write(true).open("/dev/null").unwrap();
        Unreadable { device: device.backing(), file }
    }
}

impl Backing for Unreadable {
    fn len(&self) -> u64 {
        self.device.len()
    }
    fn access(&self) -> Access {
        self.device.access()
    }
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.device.read_at(offset, buffer)
    }
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.device.write_at(offset, data)
    }
    fn flush(&self) -> io::Result<()> {
        self.device.flush()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.device.set_len(len)
    }
    fn identity(&self) -> Option<Identity> {
        None
    }
    fn direct_reads(&self) -> Option<BorrowedFd<'_>> {
        Some(self.file.as_fd())
    }
    fn describe(&self) -> String {
        "unreadable".to_owned()
    }
}
