//! The reader-thread engine itself: the rights it needs, its threads, and how it goes together with others.

use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use vmio::{Access, Advice, Engine, Error, Mapping, MappingOptions};

use crate::support::child::{RIGHT, compare_address, expect_sigbus_at, install_handler, isolated};
use crate::support::device::{Device, READ_EIO};
use crate::support::reader_thread::{available, cache, numbered, open, read_into, write_from};
use crate::support::{PAGE, Random, at, cache_of, check_empty, is_root, load, store, watchdog};

#[test]
fn without_the_right_the_error_names_all_ways_to_get_it() {
    if !is_root("taking rights away") {
        return;
    }
    if fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd").is_ok_and(|value| value.trim() == "1") {
        return test_depth::skipped("every user may handle page faults here");
    }
    isolated("reader_thread::without_the_right_the_error_names_all_ways_to_get_it", || {
        // SAFETY: changes the credentials of this process, which runs only this test.
        unsafe {
            assert_eq!(libc::setgroups(0, std::ptr::null()), 0);
            assert_eq!(libc::setgid(65534), 0);
            assert_eq!(libc::setuid(65534), 0);
        }
        match cache_of(256).engine(Engine::ReaderThread).build() {
            Err(error @ Error::KernelFaultsDenied { .. }) => {
                let message = error.to_string();
                for way in ["CAP_SYS_PTRACE", "vm.unprivileged_userfaultfd=1", "/dev/userfaultfd"] {
                    assert!(message.contains(way), "{message}");
                }
            }
            Err(error) => panic!("{error}"),
            Ok(_) if fs::File::options().read(true).write(true).open("/dev/userfaultfd").is_ok() => {}
            Ok(_) => panic!("it was built without a right"),
        }
        // The other engine needs none.
        let map = open(&cache_of(256).engine(Engine::Sigbus).build().unwrap(), &Device::of_pages(8));
        store(&map, 0, 1);
    })
    .succeeds();
}

fn threads_of_this_process() -> usize {
    fs::read_dir("/proc/self/task").unwrap().count()
}

/// Waits for this many threads: one that has been joined is listed a little longer.
fn wait_for_threads(count: usize) {
    while threads_of_this_process() != count {
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn readers_end_with_their_cache() {
    if !available() {
        return;
    }
    isolated("reader_thread::readers_end_with_their_cache", || {
        let _watchdog = watchdog("readers_end_with_their_cache");
        let before = threads_of_this_process();
        let descriptors = fs::read_dir("/proc/self/fd").unwrap().count();
        for count in 1..=100 {
            let cache = cache_of(256).engine(Engine::ReaderThread).readers(5).workers(2).build().unwrap();
            wait_for_threads(before + 7);
            if count % 4 == 0 {
                let device = numbered(300);
                let map = open(&cache, &device);
                (0..300).for_each(|page| store(&map, at(page), count));
                // The mapping keeps the cache alive.
                drop(cache);
                assert_eq!(load(&map, at(1)), count);
            }
        }
        wait_for_threads(before);
        assert_eq!(fs::read_dir("/proc/self/fd").unwrap().count(), descriptors);
    })
    .succeeds();
}

#[test]
fn a_bad_number_of_readers_is_refused() {
    for readers in [0, 1025] {
        let built = cache_of(256).engine(Engine::ReaderThread).readers(readers).build();
        assert!(matches!(built, Err(Error::BadOption { option: "readers", .. })));
    }
}

/// A reader waits for others' finite work only, never for another fault: one is enough for any number of threads.
#[test]
fn one_reader_serves_many_threads() {
    if !available() {
        return;
    }
    let _watchdog = watchdog("one_reader_serves_many_threads");
    const PAGES: u64 = 1000;
    let cache = cache_of(256).engine(Engine::ReaderThread).readers(1).build().unwrap();
    assert_eq!(cache.engine(), Engine::ReaderThread);
    let device = Device::of_pages(PAGES);
    device.slow_writes(Duration::from_micros(100));
    let map = open(&cache, &device);
    thread::scope(|scope| {
        for thread in 0..24 {
            let map = &map;
            scope.spawn(move || {
                let mut stored = vec![0_u64; PAGES as usize];
                let mut random = Random(thread);
                for _ in 0..300 {
                    let page = random.below(PAGES);
                    let slot = at(page) + 8 * thread;
                    assert_eq!(load(map, slot), stored[page as usize]);
                    stored[page as usize] += 1;
                    match random.below(8) {
                        0 => map.write_at(slot, &stored[page as usize].to_le_bytes()).unwrap(),
                        1 => {
                            let pin = map.pin(slot..slot + 8, Access::ReadOnly).unwrap();
                            store(map, slot, stored[page as usize]);
                            drop(pin);
                        }
                        2 => {
                            store(map, slot, stored[page as usize]);
                            map.flush(slot..slot + 8).unwrap();
                        }
                        _ => store(map, slot, stored[page as usize]),
                    }
                }
            });
        }
    });
    map.close().unwrap();
    check_empty(&cache);
}

/// A fault may still be in a reader's hands when its thread, woken for the sake of another one, has gone on and closed
/// the mapping.
#[test]
fn a_mapping_may_be_closed_right_after_its_faults() {
    if !available() {
        return;
    }
    const THREADS: usize = 6;
    const ROUNDS: usize = 400;
    let _watchdog = watchdog("a_mapping_may_be_closed_right_after_its_faults");
    let cache = cache_of(256).engine(Engine::ReaderThread).readers(THREADS).build().unwrap();
    let device = numbered(4);
    // Long enough that all their messages are taken.
    device.slow_reads(Duration::from_micros(300));
    let (round, address, done) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for number in 1..=ROUNDS {
                    while round.load(Ordering::SeqCst) < number {
                        thread::yield_now();
                    }
                    // SAFETY: the mapping is closed when all threads have counted themselves below.
                    let word = unsafe { (address.load(Ordering::SeqCst) as *const u64).read_volatile() };
                    assert_eq!(word, (at(1) / 8) ^ 0x5EED);
                    done.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        for number in 1..=ROUNDS {
            let options = MappingOptions::new().access(Access::ReadOnly);
            let map = Mapping::open(&cache, device.backing(), options).unwrap();
            address.store(map.as_ptr() as usize + PAGE as usize, Ordering::SeqCst);
            round.store(number, Ordering::SeqCst);
            while done.load(Ordering::SeqCst) < number * THREADS {
                thread::yield_now();
            }
            drop(map);
        }
    });
    check_empty(&cache);
}

#[test]
fn both_engines_serve_one_process() {
    if !available() {
        return;
    }
    isolated("reader_thread::both_engines_serve_one_process", || {
        let _watchdog = watchdog("both_engines_serve_one_process");
        install_handler(libc::SIGBUS, compare_address as *const () as usize, libc::SA_SIGINFO);
        let (sleeping, signalled) = (cache(256), cache_of(256).engine(Engine::Sigbus).build().unwrap());
        let devices = [numbered(1000), numbered(1000)];
        let maps = [open(&sleeping, &devices[0]), open(&signalled, &devices[1])];
        thread::scope(|scope| {
            for thread in 0..4 {
                let maps = &maps;
                scope.spawn(move || {
                    let mut random = Random(thread);
                    for _ in 0..3000 {
                        let (map, page) = (&maps[random.below(2) as usize], random.below(1000));
                        assert_eq!(load(map, at(page) + 8 * 9), (at(page) / 8 + 9) ^ 0x5EED);
                        store(map, at(page) + 8 * thread, thread);
                    }
                });
            }
        });
        // From a page of one to a page of the other, through the kernel: only the first may be absent.
        map_to_map(&maps[0], &maps[1]);
        // The handler of the one passes on what the other refuses.
        devices[0].set_faults(5, READ_EIO);
        maps[0].advise(0..maps[0].len(), Advice::DontNeed).unwrap();
        expect_sigbus_at(maps[0].as_ptr() as usize + at(5) as usize);
        load(&maps[0], at(5));
    })
    .exits_with(RIGHT);
}

fn map_to_map(from: &Mapping, to: &Mapping) {
    from.advise(0..from.len(), Advice::DontNeed).unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    let pin = to.pin(at(7)..at(8), Access::ReadWrite).unwrap();
    assert_eq!(write_from(from, at(6), PAGE, &writer).unwrap(), PAGE);
    assert_eq!(read_into(to, at(7), PAGE, &reader).unwrap(), PAGE);
    drop(pin);
    assert_eq!(load(to, at(7) + 800), load(from, at(6) + 800));
}
