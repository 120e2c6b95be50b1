//! A plain access to a page that is not available is a SIGBUS with the right address, delivered to the handler that the
//! program had before the cache was built, or fatal. Each case runs in a process of its own.

use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, Ordering};

use vmio::backing::FileBacking;
use vmio::{Access, Mapping, MappingOptions, OnReadError};

use crate::support::child::{RIGHT, compare_address, expect_sigbus_at, install_handler, isolated};
use crate::support::device::{Device, READ_EIO, WRITE_EIO};
use crate::support::{PAGE, at, cache_of, load, roomy_cache, store};

const PLAIN_HANDLER: i32 = 44;

extern "C" fn plain_handler(_signal: i32) {
    // SAFETY: async-signal-safe.
    unsafe { libc::_exit(PLAIN_HANDLER) }
}

fn unreadable(options: MappingOptions) -> Mapping {
    let device = Device::of_pages(64);
    device.set_faults(7, READ_EIO);
    Mapping::open(&roomy_cache(), device.backing(), options).unwrap()
}

#[test]
fn a_load_of_an_unreadable_page_reaches_the_previous_handler_with_its_address() {
    isolated("sigbus::a_load_of_an_unreadable_page_reaches_the_previous_handler_with_its_address", || {
        install_handler(libc::SIGBUS, compare_address as *const () as usize, libc::SA_SIGINFO);
        let map = unreadable(MappingOptions::new());
        assert_eq!(load(&map, at(6)), 0);
        expect_sigbus_at(map.as_ptr() as usize + (at(7) + 264) as usize);
        load(&map, at(7) + 264);
    })
    .exits_with(RIGHT);
}

#[test]
fn a_store_to_an_unreadable_page_reaches_the_previous_handler_with_its_address() {
    isolated("sigbus::a_store_to_an_unreadable_page_reaches_the_previous_handler_with_its_address", || {
        install_handler(libc::SIGBUS, compare_address as *const () as usize, libc::SA_SIGINFO | libc::SA_ONSTACK);
        let map = unreadable(MappingOptions::new());
        expect_sigbus_at(map.as_ptr() as usize + (at(7) + 8) as usize);
        store(&map, at(7) + 8, 1);
    })
    .exits_with(RIGHT);
}

#[test]
fn a_handler_without_siginfo_is_chained_too() {
    isolated("sigbus::a_handler_without_siginfo_is_chained_too", || {
        install_handler(libc::SIGBUS, plain_handler as *const () as usize, 0);
        load(&unreadable(MappingOptions::new()), at(7));
    })
    .exits_with(PLAIN_HANDLER);
}

/// A handler may ask to be called once: it returns, and the instruction that runs again ends the program.
#[test]
fn a_handler_for_one_signal_is_called_once() {
    extern "C" fn returning_handler(_signal: i32) {
        static CALLS: AtomicU32 = AtomicU32::new(0);
        if CALLS.fetch_add(1, Ordering::Relaxed) > 0 {
            // SAFETY: async-signal-safe.
            unsafe { libc::_exit(PLAIN_HANDLER) }
        }
    }
    isolated("sigbus::a_handler_for_one_signal_is_called_once", || {
        install_handler(libc::SIGBUS, returning_handler as *const () as usize, libc::SA_RESETHAND);
        load(&unreadable(MappingOptions::new()), at(7));
    })
    .dies_of(libc::SIGBUS);
}

#[test]
fn with_the_default_action_an_unreadable_page_is_fatal() {
    isolated("sigbus::with_the_default_action_an_unreadable_page_is_fatal", || {
        install_handler(libc::SIGBUS, libc::SIG_DFL, 0);
        load(&unreadable(MappingOptions::new()), at(7));
    })
    .dies_of(libc::SIGBUS);
}

#[test]
fn ignoring_the_signal_does_not_make_an_unreadable_page_spin() {
    isolated("sigbus::ignoring_the_signal_does_not_make_an_unreadable_page_spin", || {
        install_handler(libc::SIGBUS, libc::SIG_IGN, 0);
        load(&unreadable(MappingOptions::new()), at(7));
    })
    .dies_of(libc::SIGBUS);
}

#[test]
fn a_store_that_misses_an_unreadable_page_is_a_signal_with_poison_too() {
    isolated("sigbus::a_store_that_misses_an_unreadable_page_is_a_signal_with_poison_too", || {
        install_handler(libc::SIGBUS, compare_address as *const () as usize, libc::SA_SIGINFO);
        let map = unreadable(MappingOptions::new().on_read_error(OnReadError::Poison([1; 8])));
        expect_sigbus_at(map.as_ptr() as usize + at(7) as usize);
        store(&map, at(7), 1);
    })
    .exits_with(RIGHT);
}

#[test]
fn a_store_to_a_poisoned_page_is_a_signal() {
    isolated("sigbus::a_store_to_a_poisoned_page_is_a_signal", || {
        install_handler(libc::SIGBUS, compare_address as *const () as usize, libc::SA_SIGINFO);
        let map = unreadable(MappingOptions::new().on_read_error(OnReadError::Poison([1; 8])));
        assert_eq!(load(&map, at(7)), u64::from_le_bytes([1; 8]));
        expect_sigbus_at(map.as_ptr() as usize + (at(7) + 16) as usize);
        store(&map, at(7) + 16, 1);
    })
    .exits_with(RIGHT);
}

#[test]
fn an_access_behind_the_last_page_is_a_signal() {
    isolated("sigbus::an_access_behind_the_last_page_is_a_signal", || {
        install_handler(libc::SIGBUS, compare_address as *const () as usize, libc::SA_SIGINFO);
        let map = unreadable(MappingOptions::new());
        expect_sigbus_at(map.as_ptr() as usize + at(64) as usize);
        // SAFETY: the address is reserved for the mapping; the access is a SIGBUS, which is what is tested.
        unsafe { map.as_ptr().add(at(64) as usize).read_volatile() };
    })
    .exits_with(RIGHT);
}

#[test]
fn a_cache_full_of_unwritable_pages_is_a_signal_for_a_load() {
    isolated("sigbus::a_cache_full_of_unwritable_pages_is_a_signal_for_a_load", || {
        install_handler(libc::SIGBUS, compare_address as *const () as usize, libc::SA_SIGINFO);
        let device = Device::of_pages(1000);
        device.set_all_faults(WRITE_EIO);
        let map = Mapping::open(&cache_of(256).build().unwrap(), device.backing(), MappingOptions::new()).unwrap();
        for page in 0..1000 {
            expect_sigbus_at(map.as_ptr() as usize + at(page) as usize);
            store(&map, at(page), 1);
        }
    })
    .exits_with(RIGHT);
}

#[test]
fn a_file_truncated_by_others_is_a_signal_behind_its_new_end() {
    isolated("sigbus::a_file_truncated_by_others_is_a_signal_behind_its_new_end", || {
        install_handler(libc::SIGBUS, compare_address as *const () as usize, libc::SA_SIGINFO);
        let file = tempfile::NamedTempFile::new().unwrap();
        let backing = FileBacking::create(file.path(), 64 * PAGE).unwrap();
        let map = Mapping::open(&roomy_cache(), backing, MappingOptions::new()).unwrap();
        file.as_file().set_len(10 * PAGE).unwrap();
        assert_eq!(load(&map, at(9)), 0);
        assert!(matches!(map.pin(at(10)..at(11), Access::ReadOnly), Err(vmio::Error::Read { .. })));
        expect_sigbus_at(map.as_ptr() as usize + (at(10) + 8) as usize);
        load(&map, at(10) + 8);
    })
    .exits_with(RIGHT);
}

#[test]
fn a_store_to_a_read_only_mapping_is_a_segmentation_fault() {
    isolated("sigbus::a_store_to_a_read_only_mapping_is_a_segmentation_fault", || {
        install_handler(libc::SIGSEGV, libc::SIG_DFL, 0);
        let device = Device::of_pages(4);
        let options = MappingOptions::new().access(Access::ReadOnly);
        let map = Mapping::open(&roomy_cache(), device.backing(), options).unwrap();
        assert_eq!(load(&map, at(1)), 0);
        store(&map, at(1), 1);
    })
    .dies_of(libc::SIGSEGV);
}

#[test]
fn a_bus_error_elsewhere_in_the_program_reaches_the_previous_handler() {
    isolated("sigbus::a_bus_error_elsewhere_in_the_program_reaches_the_previous_handler", || {
        install_handler(libc::SIGBUS, compare_address as *const () as usize, libc::SA_SIGINFO);
        let _map = unreadable(MappingOptions::new());
        let file = tempfile::tempfile().unwrap();
        // SAFETY: maps an empty file, so that the load behind its end is a SIGBUS.
        unsafe {
            let base =
                libc::mmap(std::ptr::null_mut(), PAGE as usize, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0);
            expect_sigbus_at(base as usize);
            base.cast::<u8>().read_volatile();
        }
    })
    .exits_with(RIGHT);
}

#[test]
fn a_signal_sent_by_kill_reaches_the_previous_handler() {
    isolated("sigbus::a_signal_sent_by_kill_reaches_the_previous_handler", || {
        install_handler(libc::SIGBUS, plain_handler as *const () as usize, 0);
        let _map = unreadable(MappingOptions::new());
        // SAFETY: a signal to ourselves.
        unsafe { libc::raise(libc::SIGBUS) };
    })
    .exits_with(PLAIN_HANDLER);
}

/// A program may install its handler between two caches: it is still the one before ours.
#[test]
fn a_handler_installed_after_the_first_cache_is_chained_by_the_second() {
    isolated("sigbus::a_handler_installed_after_the_first_cache_is_chained_by_the_second", || {
        let _first = roomy_cache();
        install_handler(libc::SIGBUS, compare_address as *const () as usize, libc::SA_SIGINFO);
        let map = unreadable(MappingOptions::new());
        expect_sigbus_at(map.as_ptr() as usize + at(7) as usize);
        load(&map, at(7));
    })
    .exits_with(RIGHT);
}

/// A fault cannot be ignored; a signal that somebody sends can.
#[test]
fn a_program_that_ignores_sigbus_lives_when_somebody_sends_it() {
    isolated("sigbus::a_program_that_ignores_sigbus_lives_when_somebody_sends_it", || {
        install_handler(libc::SIGBUS, libc::SIG_IGN, 0);
        let map = unreadable(MappingOptions::new());
        // SAFETY: a signal to ourselves.
        unsafe { libc::kill(libc::getpid(), libc::SIGBUS) };
        assert_eq!(load(&map, at(6)), 0, "and vmio goes on");
    })
    .succeeds();
}

#[test]
fn a_program_that_ignores_sigbus_dies_of_a_fault() {
    isolated("sigbus::a_program_that_ignores_sigbus_dies_of_a_fault", || {
        install_handler(libc::SIGBUS, libc::SIG_IGN, 0);
        load(&unreadable(MappingOptions::new()), at(7));
    })
    .dies_of(libc::SIGBUS);
}
