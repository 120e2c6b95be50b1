//! With the reader-thread engine, system calls are given pointers to pages that are not in memory, and pages that cannot be
//! had fail an access without blocking its thread.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use vmio::{Access, Advice, Engine, Error, Mapping, MappingOptions, OnReadError};

use crate::support::child::{RIGHT, compare_address, expect_sigbus_at, install_handler, isolated};
use crate::support::device::{Device, READ_EIO};
use crate::support::reader_thread::{available, cache, is_efault, numbered, open, read_into, write_from};
use crate::support::{PAGE, at, cache_of, check_empty, load, read, store, watchdog};

// ---- what system calls may do

#[test]
fn system_calls_read_and_write_absent_pages() {
    if !available() {
        return;
    }
    let _watchdog = watchdog("system_calls_read_and_write_absent_pages");
    const PAGES: u64 = 3000;
    // One call moves several times what the cache holds, so that pages come, go and are stored to within it.
    for access in [Access::ReadOnly, Access::ReadWrite] {
        let cache = cache(640);
        let (from, to) = (numbered(PAGES), Device::of_pages(PAGES));
        let source = Mapping::open(&cache, from.backing(), MappingOptions::new().access(Access::ReadOnly)).unwrap();
        let target = open(&cache, &to);
        let mut file = tempfile::tempfile().unwrap();
        if access == Access::ReadOnly {
            assert_eq!(write_from(&source, 16, PAGES * PAGE - 16, &file).unwrap(), PAGES * PAGE - 16);
            let mut bytes = Vec::new();
            std::io::Seek::rewind(&mut file).unwrap();
            file.read_to_end(&mut bytes).unwrap();
            assert_eq!(bytes, from.contents()[16..]);
        } else {
            file.write_all(&from.contents()).unwrap();
            std::io::Seek::rewind(&mut file).unwrap();
            assert_eq!(read_into(&target, 0, PAGES * PAGE, &file).unwrap(), PAGES * PAGE);
            target.sync().unwrap();
            assert!(to.contents() == from.contents());
        }
        assert!(cache.stats().resident_pages <= 640);
        drop((source, target));
        check_empty(&cache);
    }
}

/// The kernel's own stores to a clean page trap like those of the program.
#[test]
fn a_system_call_stores_to_pages_that_were_written_back() {
    if !available() {
        return;
    }
    let _watchdog = watchdog("a_system_call_stores_to_pages_that_were_written_back");
    let cache = cache(640);
    let device = Device::of_pages(64);
    let map = open(&cache, &device);
    let (reader, mut writer) = std::io::pipe().unwrap();
    for round in 1..=50_u8 {
        writer.write_all(&[round; 3 * PAGE as usize]).unwrap();
        let mut done = 0;
        while done < 3 * PAGE {
            done += read_into(&map, at(5) + done, 3 * PAGE - done, &reader).unwrap();
        }
        map.sync().unwrap();
        let expected = u64::from_ne_bytes([round; 8]);
        (5..8).for_each(|page| assert_eq!(device.word(at(page) + 8), expected));
    }
}

#[test]
fn threads_wait_on_a_futex_in_an_evicted_page() {
    if !available() {
        return;
    }
    let _watchdog = watchdog("threads_wait_on_a_futex_in_an_evicted_page");
    let cache = cache(640);
    let device = Device::of_pages(8);
    let map = open(&cache, &device);
    // SAFETY: an aligned word of the mapping, accessed as atomic only.
    let word = unsafe { AtomicU32::from_ptr(map.as_mut_ptr().add(at(3) as usize).cast()) };
    let futex = |operation: i32, value: u32| {
        // SAFETY: the word lives as long as the mapping; no timeout is given.
        unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, value, std::ptr::null::<u8>()) }
    };
    for round in 1..=20 {
        map.advise(0..map.len(), Advice::DontNeed).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                // The kernel reads the word itself: the first time from an absent page.
                while futex(libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG, round - 1) != 0 {
                    let error = std::io::Error::last_os_error().raw_os_error().unwrap();
                    assert!([libc::EAGAIN, libc::EINTR].contains(&error), "{error}");
                    if word.load(Ordering::SeqCst) == round {
                        break;
                    }
                }
            });
            thread::sleep(Duration::from_millis(2));
            map.advise(0..map.len(), Advice::DontNeed).unwrap();
            word.store(round, Ordering::SeqCst);
            assert!(futex(libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, 1) >= 0);
        });
    }
}

extern "C" fn ignore(_signal: i32) {}

/// A signal that arrives while the kernel waits for a page neither fails the call nor tears its data.
#[test]
fn signals_interrupt_neither_faults_nor_copies() {
    if !available() {
        return;
    }
    isolated("system_calls::signals_interrupt_neither_faults_nor_copies", || {
        let _watchdog = watchdog("signals_interrupt_neither_faults_nor_copies");
        let cache = cache(256);
        let device = numbered(2000);
        device.slow_reads(Duration::from_micros(100));
        let map = open(&cache, &device);
        install_handler(libc::SIGALRM, ignore as *const () as usize, libc::SA_RESTART);
        let interval = libc::timeval { tv_sec: 0, tv_usec: 300 };
        let timer = libc::itimerval { it_interval: interval, it_value: interval };
        // SAFETY: a valid timer; its handler is installed.
        assert_eq!(unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const timer, std::ptr::null_mut()) }, 0);
        let expected = device.contents();
        for first in (0..2000).step_by(100) {
            let mut file = tempfile::tempfile().unwrap();
            let mut done = 0;
            while done < 100 * PAGE {
                done += write_from(&map, at(first) + done, 100 * PAGE - done, &file).unwrap();
            }
            let mut bytes = Vec::new();
            std::io::Seek::rewind(&mut file).unwrap();
            file.read_to_end(&mut bytes).unwrap();
            assert!(bytes == expected[at(first) as usize..at(first + 100) as usize]);
            assert_eq!(load(&map, at(first) + 8), (at(first) / 8 + 1) ^ 0x5EED);
        }
    })
    .succeeds();
}

#[test]
fn a_thread_that_blocks_every_signal_may_fault() {
    if !available() {
        return;
    }
    let cache = cache(256);
    let device = numbered(1000);
    let map = open(&cache, &device);
    thread::scope(|scope| {
        scope.spawn(|| {
            // SAFETY: changes the mask of this thread, which ends below.
            unsafe {
                let mut all = std::mem::zeroed();
                libc::sigfillset(&raw mut all);
                assert_eq!(libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, std::ptr::null_mut()), 0);
            }
            (0..1000).for_each(|page| {
                assert_eq!(load(&map, at(page)), (at(page) / 8) ^ 0x5EED);
                store(&map, at(page), page);
            });
        });
    });
}

#[test]
fn no_signal_handler_is_installed() {
    if !available() {
        return;
    }
    isolated("system_calls::no_signal_handler_is_installed", || {
        install_handler(libc::SIGBUS, libc::SIG_DFL, 0);
        let map = open(&cache(256), &Device::of_pages(8));
        store(&map, 0, 1);
        // SAFETY: reads the present action.
        let action = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            assert_eq!(libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut action), 0);
            action.sa_sigaction
        };
        assert_eq!(action, libc::SIG_DFL);
    })
    .succeeds();
}

// ---- pages that are not available

#[test]
fn a_load_of_an_unreadable_page_is_a_signal_with_its_address() {
    if !available() {
        return;
    }
    isolated("system_calls::a_load_of_an_unreadable_page_is_a_signal_with_its_address", || {
        install_handler(libc::SIGBUS, compare_address as *const () as usize, libc::SA_SIGINFO);
        let device = Device::of_pages(8);
        device.set_faults(3, READ_EIO);
        let map = open(&cache(256), &device);
        assert_eq!(load(&map, at(2)), 0);
        expect_sigbus_at(map.as_ptr() as usize + (at(3) + 24) as usize);
        load(&map, at(3) + 24);
    })
    .exits_with(RIGHT);
}

#[test]
fn an_unreadable_page_fails_a_system_call_until_it_can_be_read() {
    if !available() {
        return;
    }
    let _watchdog = watchdog("an_unreadable_page_fails_a_system_call_until_it_can_be_read");
    let cache = cache(256);
    let device = numbered(8);
    device.set_faults(3, READ_EIO);
    let map = open(&cache, &device);
    let file = tempfile::tempfile().unwrap();
    is_efault(write_from(&map, at(3), 8, &file));
    is_efault(write_from(&map, at(3) + 8, PAGE - 8, &file));
    assert_eq!(write_from(&map, at(2), 2 * PAGE, &file).unwrap(), PAGE, "what lies before the page");
    assert!(matches!(map.take_read_error(), Some(Error::Read { offset, .. }) if offset == at(3)));
    device.set_faults(3, 0);
    // Its refusal ends soon.
    while write_from(&map, at(3), PAGE, &file).is_err() {
        thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(load(&map, at(3)), (at(3) / 8) ^ 0x5EED);
    map.close().unwrap();
    check_empty(&cache);
}

/// The library's own accesses do not wait for a refusal to end, and end it.
#[test]
fn a_page_that_has_become_readable_is_had_at_once() {
    if !available() {
        return;
    }
    let cache = cache(256);
    let device = numbered(200);
    let map = open(&cache, &device);
    let file = tempfile::tempfile().unwrap();
    for page in (0..100).step_by(7) {
        device.set_faults(page, READ_EIO);
        is_efault(write_from(&map, at(page), 8, &file));
        device.set_faults(page, 0);
        match page % 3 {
            0 => assert_eq!(read(&map, at(page)..at(page) + 8).unwrap(), ((at(page) / 8) ^ 0x5EED).to_le_bytes()),
            1 => drop(map.pin(at(page)..at(page + 1), Access::ReadWrite).unwrap()),
            _ => map.write_at(at(page) + 8, &[1]).unwrap(),
        }
        assert_eq!(load(&map, at(page)), (at(page) / 8) ^ 0x5EED);
        assert_eq!(write_from(&map, at(page), PAGE, &file).unwrap(), PAGE);
    }
    // Read-ahead ends refusals as well.
    device.set_all_faults(READ_EIO);
    (101..110).for_each(|page| is_efault(write_from(&map, at(page), 8, &file)));
    device.set_all_faults(0);
    map.advise(at(100)..map.len(), Advice::Sequential { window_bytes: 16 * PAGE as u32 }).unwrap();
    (100..110).for_each(|page| assert_eq!(load(&map, at(page)), (at(page) / 8) ^ 0x5EED));
    // When its time has come, a refusal that has ended so takes nothing along.
    (0..200).for_each(|page| store(&map, at(page) + 16, page));
    thread::sleep(Duration::from_millis(250));
    (0..200).for_each(|page| assert_eq!(load(&map, at(page) + 16), page));
    map.close().unwrap();
    check_empty(&cache);
}

#[test]
fn growth_brings_pages_that_were_refused() {
    if !available() {
        return;
    }
    let cache = cache(256);
    let file = tempfile::NamedTempFile::new().unwrap();
    let out = tempfile::tempfile().unwrap();
    let backing = vmio::backing::FileBacking::create(file.path(), PAGE).unwrap();
    let map = Mapping::open(&cache, backing, MappingOptions::new()).unwrap();
    for len in 1..50 {
        is_efault(write_from(&map, at(len), 8, &out));
        is_efault(write_from(&map, at(len + 10), 8, &out));
        map.set_len(at(len + 1)).unwrap();
        assert_eq!(write_from(&map, at(len), PAGE, &out).unwrap(), PAGE);
        store(&map, at(len), len);
    }
    map.close().unwrap();
    check_empty(&cache);
}

#[test]
fn a_system_call_reads_poison_and_stores_none() {
    if !available() {
        return;
    }
    let _watchdog = watchdog("a_system_call_reads_poison_and_stores_none");
    let cache = cache(256);
    let device = numbered(8);
    device.set_faults(3, READ_EIO);
    let options = MappingOptions::new().on_read_error(OnReadError::Poison([7; 8]));
    let map = Mapping::open(&cache, device.backing(), options).unwrap();
    let mut file = tempfile::tempfile().unwrap();
    assert_eq!(write_from(&map, at(3), PAGE, &file).unwrap(), PAGE);
    std::io::Seek::rewind(&mut file).unwrap();
    is_efault(read_into(&map, at(3), 8, &file));
    // The page was given up for that; it comes back as what it is now.
    device.set_faults(3, 0);
    while read_into(&map, at(3), 8, &file).is_err() {
        thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(load(&map, at(3)), u64::from_ne_bytes([7; 8]), "the first bytes of the file");
    assert_eq!(load(&map, at(3) + 8), (at(3) / 8 + 1) ^ 0x5EED);
    map.close().unwrap();
    check_empty(&cache);
}

#[test]
fn more_refusals_than_a_reader_remembers() {
    if !available() {
        return;
    }
    let _watchdog = watchdog("more_refusals_than_a_reader_remembers");
    const PAGES: u64 = 3000;
    let cache = cache_of(256).engine(Engine::ReaderThread).readers(1).build().unwrap();
    let device = numbered(PAGES);
    device.set_all_faults(READ_EIO);
    let map = open(&cache, &device);
    let file = tempfile::tempfile().unwrap();
    (0..PAGES).for_each(|page| is_efault(write_from(&map, at(page), 8, &file)));
    device.set_all_faults(0);
    for page in 0..PAGES {
        while write_from(&map, at(page), 8, &file).is_err() {
            thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(load(&map, at(page)), (at(page) / 8) ^ 0x5EED);
    }
}
