//! At ring 0 a program may break its own page tables: its process ends, at the next signal at the latest, and nothing else.

#![allow(clippy::unwrap_used)]

mod support;

use std::arch::asm;

use vmio_ring0::{Level, Machine, is_at_ring_0, is_inside, leave};

/// Runs a body in a forked child, in a machine of its own; returns how the child ended.
fn status_of_child(body: impl FnOnce()) -> i32 {
    // SAFETY: the child does nothing but the body, and ends.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            let limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            libc::setrlimit(libc::RLIMIT_CORE, &raw const limit);
            // KVM runs for ever what it finds no page tables for, and returns for signals.
            libc::alarm(2);
            if Machine::start(Level::Ring0).and_then(Machine::enter).is_ok() && is_at_ring_0() {
                body();
            }
            libc::_exit(0);
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        status
    }
}

#[test]
fn a_program_that_breaks_its_page_tables_ends_alone() {
    let Some(machine) = support::machine() else { return };
    if machine.level() != Level::Ring0 {
        return test_depth::skipped("this host emulates ring 0, where page tables have no use");
    }
    machine.enter().unwrap();
    let status = status_of_child(|| {
        // SAFETY: breaks the program, which is what the test is about: no page is mapped from here on.
        unsafe { asm!("mov cr3, {}", in(reg) 0x1000_u64) }
    });
    let status_of_segments = status_of_child(|| {
        let nothing = [0_u8; 10];
        // SAFETY: as above: no trap has a handler from here on, and the next instruction traps.
        unsafe { asm!("lidt [{}]", "ud2", in(reg) nothing.as_ptr()) }
    });
    assert!(is_inside(), "the parent has left its machine");
    leave();
    for status in [status, status_of_segments] {
        assert!(libc::WIFSIGNALED(status) || libc::WEXITSTATUS(status) != 0, "{status:#x}");
        println!("the child's status: {status:#x}");
    }
}
