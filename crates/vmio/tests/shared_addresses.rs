//! One file at several addresses: one page in memory, one state of it, whatever address it is touched at.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use vmio::backing::FileBacking;
use vmio::{
    Access, Advice, Cache, Engine, Error, FrameHint, Mapping, MappingOptions, OnReadError, UnsupportedBy, View,
};

use crate::support::child::{Ended, fork, install_handler, isolated};
use crate::support::device::{Device, READ_EIO};
use crate::support::minimal_cache;
use crate::support::reader_thread;
use crate::support::views::{Addresses, available, open, options};
use crate::support::{
    PAGE, Random, SPAN, at, cache_of, check_empty, engine, is_managed, load, roomy_cache, store, tiny_cache, watchdog,
};

const VIEWS_MAX: usize = 15;

/// Touches pages of another part of the mapping until the others have been evicted.
fn push_out(file: &Addresses, pages: std::ops::Range<u64>) {
    pages.for_each(|page| {
        file.load(0, at(page));
    });
}

#[test]
fn a_store_at_one_address_is_seen_at_the_others_at_once() {
    if !available() {
        return;
    }
    let cache = roomy_cache();
    let device = Device::of_pages(2 * SPAN);
    let file = Addresses::open(&cache, &device, 3);
    let mut random = Random(3);
    for round in 1..20_000 {
        let offset = at(random.below(2 * SPAN)) + 8 * random.below(PAGE / 8);
        let [here, there] = [(); 2].map(|()| random.below(4) as usize);
        file.store(here, offset, round);
        assert_eq!(file.load(there, offset), round, "stored at {here}, loaded at {there}");
    }
    file.map.sync().unwrap();
    (0..2 * SPAN * PAGE).step_by(8).for_each(|offset| assert_eq!(device.word(offset), file.load(0, offset)));
}

/// The kernel notes stores here: so what comes along with a store's miss is clean, and written only if it is stored to.
#[test]
fn stores_in_a_row_are_read_ahead_of_and_nothing_else_is_written() {
    if !available() {
        return;
    }
    let cache = roomy_cache();
    let device = Device::of_pages(2 * SPAN);
    let map = open(&cache, &device);
    let stored = 3..SPAN + 20;
    stored.clone().for_each(|page| store(&map, at(page) + 8, page));
    let stats = cache.stats();
    assert!(stats.store_misses <= SPAN / 16, "{stats:?}");
    map.sync().unwrap();
    assert_eq!(cache.stats().written_bytes, (stored.end - stored.start) * PAGE);
    stored.for_each(|page| assert_eq!(device.word(at(page) + 8), page));
    map.close().unwrap();
    check_empty(&cache);
}

#[test]
fn a_page_is_in_memory_once_and_read_once() {
    if !available() {
        return;
    }
    let cache = roomy_cache();
    let device = Device::of_pages(SPAN);
    let file = Addresses::open(&cache, &device, 2);
    file.map.advise(0..file.map.len(), Advice::Random).unwrap();
    for which in 0..3 {
        (0..SPAN).for_each(|page| assert_eq!(file.load(which, at(page)), 0));
        let stats = cache.stats();
        // A page of page tables at each address, and one of page words.
        assert_eq!((stats.table_pages, stats.resident_pages), (2 + which as u64, SPAN), "{stats:?}");
        assert_eq!((stats.load_misses, stats.minor_faults), (SPAN, which as u64 * SPAN), "{stats:?}");
    }
    (0..SPAN).for_each(|page| assert_eq!(device.reads_of(page), 1));
    file.map.advise(0..file.map.len(), Advice::DontNeed).unwrap();
    assert_eq!((cache.stats().resident_pages, cache.stats().table_pages), (0, 0), "{:?}", cache.stats());
    drop(file);
    check_empty(&cache);
}

/// What was only loaded, at whatever addresses, is not written; what was stored to at any is written once.
#[test]
fn clean_pages_are_not_written() {
    if !available() {
        return;
    }
    let cache = cache_of(700).build().unwrap();
    let device = Device::of_pages(4 * SPAN);
    let file = Addresses::open(&cache, &device, 2);
    let touch = |pages: std::ops::Range<u64>| {
        for page in pages {
            (0..3).for_each(|which| assert_eq!(file.load((page as usize + which) % 3, at(page) + 8), 0));
        }
    };
    touch(0..4 * SPAN);
    file.store(2, at(7), 1);
    assert_eq!(file.load(1, at(7)), 1);
    file.map.sync().unwrap();
    touch(0..64);
    file.store(1, at(9), 1);
    (0..3).for_each(|_| touch(0..4 * SPAN));
    file.map.sync().unwrap();
    touch(0..4 * SPAN);
    file.map.sync().unwrap();
    let written: Vec<u64> = (0..4 * SPAN).filter(|page| device.writes_of(*page) > 0).collect();
    assert_eq!(written, [7, 9]);
    assert_eq!((device.writes_of(7), device.writes_of(9)), (1, 1));
}

/// Stores that only a view has seen are written by syncs and by evictions, and come back from the file.
#[test]
fn stores_at_a_view_reach_the_file() {
    if !available() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let cache = cache_of(700).build().unwrap();
    let pages = 6 * SPAN;
    let map = Mapping::open(&cache, FileBacking::create(&path, at(pages)).unwrap(), options()).unwrap();
    let file = Addresses { views: vec![map.view().unwrap(), map.view().unwrap()], map };
    for round in 1..=3 {
        // First mapped at all addresses, so that the kernel alone knows of the stores.
        (0..pages).for_each(|page| {
            (0..3).for_each(|which| assert_eq!(file.load(which, at(page)), file.load(0, at(page))));
            file.store(1, at(page), round * pages + page);
        });
        if round % 2 == 1 {
            file.map.sync().unwrap();
            let bytes = std::fs::read(&path).unwrap();
            for page in 0..pages {
                let word = u64::from_le_bytes(bytes[at(page) as usize..][..8].try_into().unwrap());
                assert_eq!(word, round * pages + page);
            }
        }
        (0..pages).for_each(|page| assert_eq!(file.load(0, at(page)), round * pages + page));
    }
    assert!(cache.stats().evicted_dirty > 0, "{:?}", cache.stats());
    drop(file);
    check_empty(&cache);
    let map = Mapping::open(&cache, FileBacking::open(&path, Access::ReadWrite).unwrap(), options()).unwrap();
    (0..pages).for_each(|page| assert_eq!(load(&map, at(page)), 3 * pages + page));
}

#[test]
fn what_was_stored_at_a_view_outlives_it() {
    if !available() {
        return;
    }
    let cache = roomy_cache();
    let device = Device::of_pages(4 * SPAN);
    let map = open(&cache, &device);
    for round in 1..40 {
        let view = map.view().unwrap();
        let file = Addresses { map: map.clone(), views: vec![view] };
        (0..4 * SPAN).step_by(97).for_each(|page| {
            assert_eq!([file.load(0, at(page)), file.load(1, at(page))], [round - 1; 2]);
            file.store(1, at(page), round);
        });
        drop(file);
        match round % 3 {
            0 => map.sync().unwrap(),
            1 => map.advise(0..map.len(), Advice::DontNeed).unwrap(),
            _ => continue,
        }
        (0..4 * SPAN).step_by(97).for_each(|page| assert_eq!(device.word(at(page)), round, "round {round}"));
    }
    let tables = cache.stats().table_pages;
    assert_eq!(tables, 2 * 4, "page tables of views are left: {:?}", cache.stats());
    drop(map);
    check_empty(&cache);
}

/// No store may be lost, nor may a load at any address see an older one, whatever goes on meanwhile.
#[test]
fn stores_that_race_with_eviction_and_sync_are_not_lost() {
    if !available() {
        return;
    }
    let _watchdog = watchdog("stores_that_race_with_eviction_and_sync_are_not_lost");
    const PAGES: u64 = 96;
    const STORERS: usize = 2;
    let cache = roomy_cache();
    let device = Device::of_pages(PAGES);
    let file = Addresses::open(&cache, &device, 2);
    let done = AtomicBool::new(false);
    let counts: Vec<Vec<u64>> = thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                file.map.advise(0..file.map.len(), Advice::DontNeed).unwrap();
            }
        });
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                file.map.sync().unwrap();
            }
        });
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let view = file.map.view().unwrap();
                let passing = Addresses { map: file.map.clone(), views: vec![view] };
                (0..PAGES).for_each(|page| {
                    // A word of its own: nobody else stores there.
                    let count = passing.load(1, at(page) + 64);
                    passing.store(1, at(page) + 64, count + 1);
                    assert_eq!(passing.load(0, at(page) + 64), count + 1);
                });
            }
        });
        let storers: Vec<_> = (0..STORERS)
            .map(|number| {
                let file = &file;
                scope.spawn(move || {
                    let mut random = Random(number as u64 + 5);
                    let mut counts = vec![0_u64; PAGES as usize];
                    for _ in 0..60_000 {
                        let page = random.below(PAGES);
                        let offset = at(page) + 8 * number as u64;
                        let [here, there] = [(); 2].map(|()| random.below(3) as usize);
                        let count = &mut counts[page as usize];
                        assert_eq!(file.load(here, offset), *count, "page {page} went back in time");
                        *count += 1;
                        file.store(there, offset, *count);
                    }
                    counts
                })
            })
            .collect();
        let counts = storers.into_iter().map(|storer| storer.join().unwrap()).collect();
        done.store(true, Ordering::Relaxed);
        counts
    });
    file.map.sync().unwrap();
    for page in 0..PAGES {
        for (number, counts) in counts.iter().enumerate() {
            assert_eq!(device.word(at(page) + 8 * number as u64), counts[page as usize], "page {page}");
        }
        assert_eq!(device.word(at(page) + 64), file.load(0, at(page) + 64), "page {page}");
    }
    drop(file);
    check_empty(&cache);
}

/// The same in a cache that is much smaller than the file, evicting by itself.
#[test]
fn threads_at_several_addresses_of_a_file_larger_than_the_cache_lose_nothing() {
    if !available() {
        return;
    }
    let _watchdog = watchdog("threads_at_several_addresses_of_a_file_larger_than_the_cache_lose_nothing");
    const PAGES: u64 = 4 * SPAN;
    let cache = tiny_cache();
    let device = Device::of_pages(PAGES);
    let file = Addresses::open(&cache, &device, 3);
    thread::scope(|scope| {
        for number in 0..4_u64 {
            let file = &file;
            scope.spawn(move || {
                let mut random = Random(number);
                let mut counts = vec![0_u64; PAGES as usize];
                for _ in 0..15_000 {
                    let page = random.below(PAGES);
                    let offset = at(page) + 8 * number;
                    let [here, there] = [(); 2].map(|()| random.below(4) as usize);
                    let count = &mut counts[page as usize];
                    assert_eq!(file.load(here, offset), *count, "page {page} went back in time");
                    if random.below(3) > 0 {
                        *count += 1;
                        file.store(there, offset, *count);
                    }
                }
            });
        }
        (0..20).for_each(|_| file.map.sync().unwrap());
    });
    let expected: Vec<u64> = (0..at(PAGES)).step_by(8).map(|offset| file.load(0, offset)).collect();
    file.map.sync().unwrap();
    (0..at(PAGES)).step_by(8).zip(&expected).for_each(|(offset, word)| assert_eq!(device.word(offset), *word));
    drop(file);
    check_empty(&cache);
}

/// Page tables are charged with the page that they are for: threads that each held some and waited for more would wait
/// for ever.
#[test]
fn many_threads_at_many_addresses_of_a_tiny_cache_get_on() {
    if !available() {
        return;
    }
    let _watchdog = watchdog("many_threads_at_many_addresses_of_a_tiny_cache_get_on");
    const SPANS: u64 = 128;
    let cache = minimal_cache();
    let backing = tempfile::NamedTempFile::new().unwrap();
    let map = Mapping::open(&cache, FileBacking::create(backing.path(), at(SPANS * SPAN)).unwrap(), options()).unwrap();
    let file = Addresses { views: (0..3).map(|_| map.view().unwrap()).collect(), map };
    thread::scope(|scope| {
        for number in 0..SPANS {
            let file = &file;
            scope.spawn(move || {
                let mut random = Random(number);
                let mut counts = vec![0; SPANS as usize];
                for _ in 0..100 {
                    let span = random.below(SPANS);
                    let offset = at(span * SPAN + span) + 8 * number;
                    let [here, there] = [(); 2].map(|()| random.below(4) as usize);
                    assert_eq!(file.load(here, offset), counts[span as usize]);
                    counts[span as usize] += 1;
                    file.store(there, offset, counts[span as usize]);
                }
            });
        }
    });
    let stats = cache.stats();
    assert!(stats.resident_pages + stats.table_pages <= stats.capacity_pages, "{stats:?}");
    drop(file);
    check_empty(&cache);
}

/// read(2) into memory.
fn read_zeros(target: *mut u8) -> isize {
    let zeros = File::open("/dev/zero").unwrap();
    // SAFETY: the target is a page of the caller's that nobody else uses; should it be absent, that is an error.
    unsafe { libc::read(zeros.as_raw_fd(), target.cast(), PAGE as usize) }
}

#[test]
fn a_page_pinned_at_a_view_is_there_for_system_calls() {
    if !available() {
        return;
    }
    let cache = tiny_cache();
    let device = Device::of_pages(8 * SPAN);
    let file = Addresses::open(&cache, &device, 2);
    file.store(0, at(9), 7);
    // With these two, a call brings in what it needs.
    if !matches!(engine(), Engine::ReaderThread | Engine::Ring0) {
        // In memory, but not mapped here.
        assert_eq!(read_zeros(file.views[1].as_mut_ptr().wrapping_add(at(9) as usize)), -1);
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EFAULT));
    }
    let pins = [&file.views[0], &file.views[1]].map(|view| view.pin(at(9)..at(10), Access::ReadWrite).unwrap());
    let own = file.map.pin(at(9)..at(10), Access::ReadWrite).unwrap();
    for round in 1..6 {
        for pin in pins.iter().chain([&own]) {
            file.store(1, at(9), round);
            push_out(&file, SPAN..8 * SPAN);
            file.map.sync().unwrap();
            assert_eq!(device.word(at(9)), round);
            assert_eq!(read_zeros(pin.as_mut_ptr().unwrap()), PAGE as isize, "{}", std::io::Error::last_os_error());
            assert_eq!(file.load(0, at(9)), 0);
        }
    }
    drop(pins);
    drop(own);
    file.map.sync().unwrap();
    assert_eq!(device.word(at(9)), 0);
}

/// The answer that a page is not available stands at one address. It ends there also if the page comes in at another.
#[test]
fn a_page_refused_at_a_view_is_had_there_once_it_is_in_memory() {
    if !available() || !reader_thread::available() {
        return;
    }
    let _watchdog = watchdog("a_page_refused_at_a_view_is_had_there_once_it_is_in_memory");
    let device = Device::of_pages(SPAN);
    let file = Addresses::open(&reader_thread::cache(256), &device, 2);
    let mut sink = tempfile::tempfile().unwrap();
    let mut send = |which: usize| {
        // SAFETY: the page lies in a range that lives; nobody stores to it.
        let page = unsafe { std::slice::from_raw_parts(file.base(which).add(at(5) as usize), PAGE as usize) };
        sink.write(page).map_err(|error| error.raw_os_error())
    };
    device.set_faults(5, READ_EIO);
    assert_eq!(send(1), Err(Some(libc::EFAULT)));
    device.set_faults(5, 0);
    assert_eq!(file.load(0, at(5)), 0);
    while send(1).is_err() {
        thread::yield_now();
    }
    assert_eq!(send(2), Ok(PAGE as usize));
}

/// A pin keeps the addresses that it points to.
#[test]
fn a_pin_outlives_the_handle_to_its_view() {
    if !available() {
        return;
    }
    let cache = roomy_cache();
    let device = Device::of_pages(8);
    let map = open(&cache, &device);
    let view = map.view().unwrap();
    let pin = view.pin(at(2)..at(3), Access::ReadWrite).unwrap();
    drop((view, map));
    // SAFETY: the pinned page is ours to write.
    unsafe { pin.as_mut_ptr().unwrap().cast::<u64>().write_volatile(5) };
    drop(pin);
    assert_eq!(device.word(at(2)), 5);
    check_empty(&cache);
}

#[test]
fn views_grow_and_shrink_with_the_file() {
    if !available() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let cache = roomy_cache();
    let map = Mapping::open(&cache, FileBacking::create(&path, at(3)).unwrap(), options()).unwrap();
    let file = Addresses { views: vec![map.view().unwrap()], map };
    file.map.set_len(at(2 * SPAN)).unwrap();
    assert_eq!(file.views[0].len(), at(2 * SPAN));
    file.store(1, at(2 * SPAN - 1), 4);
    assert_eq!(file.load(0, at(2 * SPAN - 1)), 4);
    file.map.set_len(at(3) + 8).unwrap();
    // Behind the end in the last page: not part of the file, wherever it is stored.
    file.store(1, at(3) + 16, 9);
    file.map.set_len(at(2 * SPAN)).unwrap();
    for offset in [at(3) + 16, at(2 * SPAN - 1)] {
        assert_eq!([file.load(0, offset), file.load(1, offset)], [0; 2]);
    }
    file.store(1, at(4), 6);
    drop(file);
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!((bytes.len() as u64, bytes[at(4) as usize]), (at(2 * SPAN), 6));
}

#[test]
fn a_store_to_a_view_of_a_read_only_mapping_is_a_segmentation_fault() {
    if !available() {
        return;
    }
    isolated("shared_addresses::a_store_to_a_view_of_a_read_only_mapping_is_a_segmentation_fault", || {
        let device = Device::of_pages(4);
        device.set_word(at(1), 8);
        let map = Mapping::open(&roomy_cache(), device.backing(), options().access(Access::ReadOnly)).unwrap();
        let file = Addresses { views: vec![map.view().unwrap()], map };
        assert_eq!((file.load(1, at(1)), file.load(0, at(1))), (8, 8));
        assert!(matches!(file.views[0].pin(0..8, Access::ReadWrite), Err(Error::ReadOnly { .. })));
        file.store(1, at(1), 1);
    })
    .dies_of(libc::SIGSEGV);
}

#[test]
fn a_view_may_forbid_stores_that_others_allow() {
    if !available() {
        return;
    }
    isolated("shared_addresses::a_view_may_forbid_stores_that_others_allow", || {
        let device = Device::of_pages(4);
        let file = Addresses::open(&roomy_cache(), &device, 2);
        let words = || [file.load(0, at(1)), file.load(1, at(1)), file.load(2, at(1)), file.load(1, at(2))];
        file.store(1, at(1), 3);
        file.views[0].allow_stores(false).unwrap();
        // One page was mapped for stores before, and the other is not there yet.
        file.store(2, at(1), 4);
        file.store(0, at(2), 5);
        assert_eq!(words(), [4, 4, 4, 5]);
        file.map.sync().unwrap();
        file.views[0].allow_stores(true).unwrap();
        file.store(1, at(1), 6);
        file.store(1, at(2), 7);
        file.store(1, at(3), 8);
        assert_eq!(words(), [6, 6, 6, 7]);
        file.map.sync().unwrap();
        assert_eq!([1, 2, 3].map(|page| device.word(at(page))), [6, 7, 8]);
        file.views[0].allow_stores(false).unwrap();
        assert_eq!(words(), [6, 6, 6, 7]);
        install_handler(libc::SIGSEGV, libc::SIG_DFL, 0);
        file.store(1, at(1), 9);
    })
    .dies_of(libc::SIGSEGV);
}

#[test]
fn a_forked_child_has_no_view() {
    if !available() {
        return;
    }
    isolated("shared_addresses::a_forked_child_has_no_view", || {
        install_handler(libc::SIGSEGV, libc::SIG_DFL, 0);
        let device = Device::of_pages(8);
        let file = Addresses::open(&roomy_cache(), &device, 1);
        file.store(1, at(1), 11);
        assert_eq!(fork(|| file.load(1, at(1)) as i32), Ended::Signal(libc::SIGSEGV));
        assert_eq!(fork(|| i32::from(!matches!(file.map.view(), Err(Error::Forked)))), Ended::Exit(0));
        let pinned = fork(|| i32::from(!matches!(file.views[0].pin(0..8, Access::ReadOnly), Err(Error::Forked))));
        assert_eq!(pinned, Ended::Exit(0));
        let mut file = Some(file);
        assert_eq!(
            fork(|| {
                drop(file.take());
                0
            }),
            Ended::Exit(0)
        );
        let file = file.unwrap();
        assert_eq!((file.load(0, at(1)), device.word(at(1))), (11, 0));
        file.map.sync().unwrap();
        assert_eq!(device.word(at(1)), 11);
    })
    .succeeds();
}

#[test]
fn without_the_hint_the_error_says_what_to_do() {
    let cache = cache_of(256).frames(FrameHint::ReadMostly).build().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = || FileBacking::create(folder.path().join("file"), PAGE).unwrap();
    let refusal = |cache: &Cache, options| Mapping::open(cache, file(), options).unwrap().view().map(drop).unwrap_err();
    if is_managed("") {
        let error = refusal(&cache, options());
        assert!(
            matches!(error, Error::Unsupported { by: UnsupportedBy::ManagedEngine, .. })
                && error.to_string().contains("SharedAddresses"),
            "{error}"
        );
        return;
    }
    for hint in [FrameHint::Auto, FrameHint::ReadMostly, FrameHint::Mixed] {
        let error = refusal(&cache, MappingOptions::new().frames(hint));
        assert!(matches!(error, Error::OneAddress { .. }) && error.to_string().contains("SharedAddresses"), "{error}");
    }
    // The machine notes stores without the kernel.
    if engine() != Engine::Ring0 {
        let needed = vmio::probe::KernelFeature::WpAsync;
        let error = refusal(&cache_of(256).without(needed).build().unwrap(), options());
        assert!(matches!(error, Error::OneAddress { .. }) && error.to_string().contains("Linux 6.7"), "{error}");
    }
    let poison = options().on_read_error(OnReadError::Poison([1; 8]));
    let error = Mapping::open(&cache, file(), poison).map(drop).unwrap_err();
    assert!(matches!(error, Error::BadOption { option: "frames", .. }), "{error}");
}

#[test]
fn views_are_limited_and_a_dropped_one_makes_room() {
    if !available() {
        return;
    }
    let cache = roomy_cache();
    let device = Device::of_pages(8);
    let map = open(&cache, &device);
    let mut views: Vec<View> = (0..VIEWS_MAX).map(|_| map.view().unwrap()).collect();
    let refused = map.view().map(drop);
    assert!(matches!(refused, Err(Error::TooManyViews { limit: 15, .. })), "{refused:?}");
    views.swap_remove(4);
    views.push(map.view().unwrap());
    let file = Addresses { map, views };
    (0..file.count()).for_each(|which| file.store(which, at(1) + 8 * which as u64, 1));
    file.map.sync().unwrap();
    (0..file.count()).for_each(|which| assert_eq!(device.word(at(1) + 8 * which as u64), 1));
}

/// A second open of a file gives its one range of addresses; views are how it gets more.
#[test]
fn opening_the_file_again_gives_no_other_address() {
    if !available() {
        return;
    }
    let cache = roomy_cache();
    let file = tempfile::NamedTempFile::new().unwrap();
    let first = Mapping::open(&cache, FileBacking::create(file.path(), PAGE).unwrap(), options()).unwrap();
    let again = Mapping::open(&cache, FileBacking::open(file.path(), Access::ReadWrite).unwrap(), options()).unwrap();
    assert_eq!(first.as_ptr(), again.as_ptr());
    let view = again.view().unwrap();
    assert_ne!(first.as_ptr(), view.as_ptr());
    store(&first, 8, 3);
    drop((first, again));
    // SAFETY: the view lives, and nobody stores to the file.
    assert_eq!(unsafe { view.as_slice() }[8], 3);
}
