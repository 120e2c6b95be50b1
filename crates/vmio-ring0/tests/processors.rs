//! Virtual processors: threads get them wherever they enter, and give them back.

#![allow(clippy::unwrap_used)]

#[path = "support/managed.rs"]
mod managed;
mod support;

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use vmio_ring0::{Machine, is_inside, leave};

thread_local! {
    static IS_COUNTED: Cell<bool> = const { Cell::new(false) };
}

static ALLOCATIONS: AtomicU32 = AtomicU32::new(0);

fn count() {
    ALLOCATIONS.fetch_add(u32::from(IS_COUNTED.get()), Ordering::Relaxed);
}

unsafe extern "C" {
    fn __libc_malloc(len: usize) -> *mut libc::c_void;
    fn __libc_calloc(count: usize, len: usize) -> *mut libc::c_void;
}

/// The C library and Rust allocate by these two here.
#[unsafe(no_mangle)]
unsafe extern "C" fn malloc(len: usize) -> *mut libc::c_void {
    count();
    // SAFETY: as the caller has it.
    unsafe { __libc_malloc(len) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn calloc(number: usize, len: usize) -> *mut libc::c_void {
    count();
    // SAFETY: as the caller has it.
    unsafe { __libc_calloc(number, len) }
}

/// How many processors there are once one of them is free: where KVM can map a pool, that has one for itself.
fn processors_with_a_free_one(machine: &'static Machine) -> usize {
    let enter_once = || {
        machine.enter().unwrap();
        leave();
    };
    std::thread::spawn(enter_once).join().unwrap();
    processors(machine)
}

/// The first descriptor is the machine's own.
fn processors(machine: &Machine) -> usize {
    machine.descriptors().len() - 1
}

#[test]
fn a_thread_that_enters_in_a_handler_allocates_nothing() {
    extern "C" fn touches(_: libc::c_int) {
        // As if the signal had interrupted the allocator.
        IS_COUNTED.set(true);
        let is_right = managed::touch(5);
        IS_COUNTED.set(false);
        assert!(is_right && is_inside());
        leave();
    }
    let Some(machine) = support::machine() else { return };
    managed::manage(machine);
    // SAFETY: the handler does what handlers may.
    unsafe { libc::signal(libc::SIGUSR1, touches as *const () as libc::sighandler_t) };
    let enter = || {
        std::hint::black_box(Box::new(1));
        // SAFETY: sends a signal that is handled.
        unsafe { libc::raise(libc::SIGUSR1) };
    };
    let before = processors_with_a_free_one(machine);
    // The first thread takes that, the second has one made.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            enter();
            scope.spawn(enter).join().unwrap();
        });
    });
    assert_eq!(processors(machine), before + 1);
    assert_eq!(ALLOCATIONS.load(Ordering::Relaxed), 0);
}

#[test]
fn a_thread_that_enters_at_its_end_gives_its_processor_back() {
    static PAGE: AtomicUsize = AtomicUsize::new(0);
    struct Touches;
    impl Drop for Touches {
        fn drop(&mut self) {
            assert!(managed::touch(PAGE.fetch_add(1, Ordering::Relaxed)));
            leave();
        }
    }
    thread_local! {
        static TOUCHES: Touches = const { Touches };
    }
    let Some(machine) = support::machine() else { return };
    managed::manage(machine);
    let before = processors_with_a_free_one(machine);
    for round in 0..20 {
        let thread = std::thread::spawn(|| {
            // Destructors run in the order from the last to the first.
            TOUCHES.with(|_| ());
            assert!(managed::touch(PAGE.fetch_add(1, Ordering::Relaxed)));
            leave();
        });
        thread.join().unwrap();
        assert_eq!((PAGE.load(Ordering::Relaxed), processors(machine)), (2 * round + 2, before));
    }
}

#[test]
fn threads_enter_after_one_could_not() {
    let Some(machine) = support::machine() else { return };
    machine.enter().unwrap();
    leave();
    let set_limit = |limit: &libc::rlimit| {
        // SAFETY: the kernel reads the structure.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, limit) }, 0);
    };
    let mut before = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes the structure.
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_AS, &raw mut before) }, 0);
    std::thread::spawn(move || {
        // No more memory from here on.
        set_limit(&libc::rlimit { rlim_cur: 1, ..before });
        let refused = machine.enter().is_err();
        set_limit(&before);
        assert!(refused && !is_inside());
        machine.enter().unwrap();
        assert!(is_inside());
        leave();
    })
    .join()
    .unwrap();
}
