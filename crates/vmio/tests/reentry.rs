//! The trap path inside other code: a signal handler of the program touches mapped memory whatever it interrupts, and
//! a miss leaves `errno` alone. Timers disturb a whole process, so these run in processes of their own.

use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::thread;

use futures::executor::block_on;
use vmio::backing::{Backing, FileBacking};
use vmio::{Access, Advice, Mapping, MappingOptions};

use crate::support::child::{install_handler, isolated};
use crate::support::device::{Device, READ_EIO};
use crate::support::{PAGE, Random, at, check_empty, load, read, store, tiny_cache, watchdog};

const PAGES: u64 = 1000;

static BASE: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
static TICKS: AtomicU64 = AtomicU64::new(0);
/// Handlers that run at the moment: a tick goes to any thread of the process.
static RUNNING: AtomicU64 = AtomicU64::new(0);
/// A page that the handler loads too: what the interrupted thread is about, perhaps.
static WANTED: AtomicU64 = AtomicU64::new(0);
/// The last tick sets no timer.
const ENOUGH_TICKS: u64 = 1500;
/// The word of each page that the handler alone stores to.
const HANDLERS_WORD: u64 = 64;

/// Loads and stores in a few pages of the mapping: some resident, some not. Then the interrupted thread has some time of its own until
/// the next tick, however long this one took.
extern "C" fn on_tick(_signal: i32) {
    RUNNING.fetch_add(1, Ordering::SeqCst);
    let base = BASE.load(Ordering::SeqCst);
    if !base.is_null() {
        touch_pages(base);
    }
    if TICKS.load(Ordering::SeqCst) < ENOUGH_TICKS {
        set_timer();
    }
    RUNNING.fetch_sub(1, Ordering::SeqCst);
}

fn touch_pages(base: *mut u8) {
    let tick = TICKS.fetch_add(1, Ordering::SeqCst) + 1;
    // SAFETY: as below.
    unsafe { AtomicU64::from_ptr(base.add(at(WANTED.load(Ordering::SeqCst)) as usize).cast()) }.load(Ordering::SeqCst);
    for step in 0..4_u64 {
        let page = tick.wrapping_mul(7919).wrapping_add(step * 131) % PAGES;
        // SAFETY: within the mapping, which outlives the timer; aligned, and atomic like all other accesses to it.
        unsafe {
            let word = AtomicU64::from_ptr(base.add((at(page) + HANDLERS_WORD) as usize).cast());
            if word.load(Ordering::SeqCst) < tick {
                word.store(tick, Ordering::SeqCst);
            }
        }
    }
}

/// Ticks once, in 200 µs.
fn set_timer() {
    let [never, soon] = [0, 200].map(|tv_usec| libc::timeval { tv_sec: 0, tv_usec });
    let timer = libc::itimerval { it_interval: never, it_value: soon };
    // SAFETY: a valid timer; the handler is installed.
    assert_eq!(unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const timer, std::ptr::null_mut()) }, 0);
}

/// Runs `work` over and over under the timer until the handler has run often enough.
fn under_ticks(pages_of_cache: Option<u64>, work: impl Fn(&Mapping, &mut Random)) {
    under_ticks_over(Device::of_pages(PAGES).backing(), pages_of_cache, work);
}

/// The same over a backing of that many pages.
fn under_ticks_over(
    backing: impl Backing + 'static,
    pages_of_cache: Option<u64>,
    work: impl Fn(&Mapping, &mut Random),
) {
    let _watchdog = watchdog("the test under ticks");
    let cache = pages_of_cache.map_or_else(tiny_cache, |pages| crate::support::cache_of(pages).build().unwrap());
    let map = Mapping::open(&cache, backing, MappingOptions::new()).unwrap();
    install_handler(libc::SIGALRM, on_tick as *const () as usize, libc::SA_RESTART);
    BASE.store(map.as_mut_ptr(), Ordering::SeqCst);
    set_timer();
    let mut random = Random(5);
    while TICKS.load(Ordering::SeqCst) < ENOUGH_TICKS {
        work(&map, &mut random);
    }
    BASE.store(std::ptr::null_mut(), Ordering::SeqCst);
    while RUNNING.load(Ordering::SeqCst) > 0 {
        thread::yield_now();
    }
    assert!((0..PAGES).any(|page| load(&map, at(page) + HANDLERS_WORD) > 0));
    map.close().unwrap();
    check_empty(&cache);
}

#[test]
fn a_handler_that_touches_the_mapping_may_interrupt_misses() {
    isolated("reentry::a_handler_that_touches_the_mapping_may_interrupt_misses", || {
        under_ticks(None, |map, random| {
            for _ in 0..100 {
                let offset = at(random.below(PAGES));
                store(map, offset, load(map, offset) + 1);
            }
        });
    })
    .succeeds();
}

#[test]
fn a_handler_that_touches_the_mapping_may_interrupt_syncs() {
    isolated("reentry::a_handler_that_touches_the_mapping_may_interrupt_syncs", || {
        under_ticks(None, |map, random| {
            (0..20).for_each(|_| store(map, at(random.below(PAGES)), 1));
            match random.below(3) {
                0 => map.sync().unwrap(),
                1 => map.flush(at(random.below(PAGES))..map.len()).unwrap(),
                _ => map.sync_begin().unwrap().wait().unwrap(),
            }
        });
    })
    .succeeds();
}

#[test]
fn a_handler_that_touches_the_mapping_may_interrupt_pins_and_copies() {
    isolated("reentry::a_handler_that_touches_the_mapping_may_interrupt_pins_and_copies", || {
        under_ticks(None, |map, random| {
            let first = random.below(PAGES - 20);
            let access = if random.below(2) == 0 { Access::ReadOnly } else { Access::ReadWrite };
            let pin = map.pin(at(first)..at(first + 20), access).unwrap();
            read(map, at(random.below(PAGES))..map.len()).unwrap();
            map.write_at(at(random.below(PAGES - 1)), &[0; 32]).unwrap();
            drop(pin);
        });
    })
    .succeeds();
}

#[test]
fn a_handler_that_touches_the_mapping_may_interrupt_advice() {
    isolated("reentry::a_handler_that_touches_the_mapping_may_interrupt_advice", || {
        under_ticks(None, |map, random| {
            let first = random.below(PAGES - 200);
            let range = at(first)..at(first + 200);
            match random.below(5) {
                0 => map.advise(range, Advice::DontNeed).unwrap(),
                1 => map.advise(range, Advice::WillNeed).unwrap(),
                2 => map.advise(range, Advice::Priority(first as u8)).unwrap(),
                3 => map.advise(range, Advice::Free).unwrap(),
                _ => store(map, at(first), 1),
            }
            map.take_read_error();
        });
    })
    .succeeds();
}

#[test]
fn a_handler_that_touches_the_mapping_may_interrupt_other_mappings_opens_and_closes() {
    isolated("reentry::a_handler_that_touches_the_mapping_may_interrupt_other_mappings_opens_and_closes", || {
        let cache = tiny_cache();
        under_ticks(Some(256), |_, _| {
            let device = Device::of_pages(100);
            let other = Mapping::open(&cache, device.backing(), MappingOptions::new()).unwrap();
            (0..100).for_each(|page| store(&other, at(page), 1));
            other.close().unwrap();
            assert!((0..100).all(|page| device.word(at(page)) == 1));
        });
    })
    .succeeds();
}

/// A page under way may be what the handler touches, in a thread that allocates or frees, or hands a request over.
#[test]
fn a_handler_that_touches_the_mapping_may_interrupt_fetches() {
    isolated("reentry::a_handler_that_touches_the_mapping_may_interrupt_fetches", || {
        let work = |map: &Mapping, random: &mut Random| {
            let fetches: Vec<_> = (0..32)
                .map(|_| {
                    let first = random.below(PAGES - 40);
                    let garbage = vec![0_u8; random.below(5000) as usize];
                    map.ensure(at(first)..at(first + 1)).unwrap();
                    drop(garbage);
                    map.fetch([at(first)..at(first + 1 + random.below(40)), at(first + 10)..at(first + 11)])
                })
                .collect();
            map.prefetch([at(0)..at(20), at(PAGES / 2)..at(PAGES)]).unwrap();
            for (number, fetch) in fetches.into_iter().enumerate() {
                if number % 3 > 0 {
                    block_on(fetch).unwrap();
                }
            }
            store(map, at(random.below(PAGES)), 1);
        };
        let folder = tempfile::tempdir().unwrap();
        let file = FileBacking::create(folder.path().join("file"), PAGES * PAGE).unwrap();
        under_ticks_over(file, Some(256), work);
        TICKS.store(0, Ordering::SeqCst);
        under_ticks(Some(256), work);
    })
    .succeeds();
}

/// The read of a single page begins in the thread that asks for it: a handler on top of that must not wait for the page before.
#[test]
fn a_handler_may_touch_the_page_that_the_thread_begins_to_read() {
    isolated("reentry::a_handler_may_touch_the_page_that_the_thread_begins_to_read", || {
        let folder = tempfile::tempdir().unwrap();
        let file = FileBacking::create(folder.path().join("file"), PAGES * PAGE).unwrap();
        under_ticks_over(file, Some(256), |map, random| {
            for _ in 0..100 {
                let page = random.below(PAGES);
                WANTED.store(page, Ordering::SeqCst);
                block_on(map.fetch(std::iter::once(at(page)..at(page + 1)))).unwrap();
            }
            map.advise(0..map.len(), Advice::DontNeed).unwrap();
        });
    })
    .succeeds();
}

#[test]
fn a_handler_may_interrupt_many_threads() {
    isolated("reentry::a_handler_may_interrupt_many_threads", || {
        under_ticks(None, |map, random| {
            let seed = random.next();
            thread::scope(|scope| {
                for thread in 0..4 {
                    scope.spawn(move || {
                        let mut random = Random(seed ^ thread);
                        (0..200).for_each(|_| store(map, at(random.below(PAGES)) + 8 * thread, 1));
                        map.flush(0..at(10)).unwrap();
                    });
                }
            });
        });
    })
    .succeeds();
}

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap()
}

fn set_errno(value: i32) {
    // SAFETY: the calling thread's own errno.
    unsafe { *libc::__errno_location() = value };
}

#[test]
fn a_miss_leaves_errno_alone() {
    let cache = tiny_cache();
    let device = Device::of_pages(2000);
    let map = Mapping::open(&cache, device.backing(), MappingOptions::new()).unwrap();
    // Loads, stores, stores to clean pages, with direct reclaim and failing writes beside them.
    (0..20).for_each(|page| device.set_faults(page, crate::support::device::WRITE_EIO));
    for page in 0..2000 {
        set_errno(1234);
        load(&map, at(page));
        assert_eq!(errno(), 1234);
        if page % 3 != 0 {
            store(&map, at(page), 1);
            assert_eq!(errno(), 1234);
        }
    }
    device.set_all_faults(0);
}

/// The trap path runs on the thread's small alternate stack: also on its longest way, through eviction and read-ahead.
#[test]
fn misses_fit_the_alternate_stack() {
    let cache = crate::support::minimal_cache();
    let device = Device::of_pages(2000);
    device.set_faults(77, READ_EIO);
    let map = Arc::new(Mapping::open(&cache, device.backing(), MappingOptions::new()).unwrap());
    map.advise(0..map.len(), Advice::Sequential { window_bytes: 32 * PAGE as u32 }).unwrap();
    let threads: Vec<_> = (0..4)
        .map(|thread| {
            let map = Arc::clone(&map);
            thread::spawn(move || {
                for page in (0..2000).filter(|page| *page != 77) {
                    store(&map, at(page) + 8 * thread, page);
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    for page in (0..2000).filter(|page| *page != 77) {
        (0..4).for_each(|thread| assert_eq!(load(&map, at(page) + 8 * thread), page));
    }
}
