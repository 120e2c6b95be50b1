//! Threads that leave the machine where no handler of a signal then runs are in the machine afterwards.

#![allow(clippy::unwrap_used)]

mod support;

use std::arch::asm;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use vmio_ring0::{is_inside, leave};

/// Runs the body in a child whose only thread this is: the one to which the kernel gives signals of the process first. Its status, as far as it has not
/// stopped.
fn in_child(body: impl FnOnce()) -> libc::pid_t {
    // SAFETY: the child runs the body and ends.
    match unsafe { libc::fork() } {
        0 => {
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
            // SAFETY: ends the child without its parent's destructors.
            unsafe { libc::_exit(i32::from(done.is_err())) }
        }
        child => {
            assert!(child > 0);
            child
        }
    }
}

fn status_of(child: libc::pid_t) -> libc::c_int {
    let mut status = -1;
    // SAFETY: the kernel writes the word.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, libc::WUNTRACED) }, child);
    status
}

#[test]
fn a_thread_whose_stack_grows_stays_inside() {
    const PAGE_BYTES: usize = 4096;
    const ROOM: usize = 32 << 20;
    const GROWN: usize = 2 << 20;
    let Some(machine) = support::machine() else { return };
    // SAFETY: a new mapping, of whose addresses the last ones become a stack with free addresses below it.
    let end = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let start = libc::mmap(ptr::null_mut(), ROOM, libc::PROT_NONE, flags | libc::MAP_NORESERVE, -1, 0);
        assert_ne!(start, libc::MAP_FAILED);
        libc::munmap(start, ROOM);
        let place = start.byte_add(ROOM - PAGE_BYTES);
        let flags = flags | libc::MAP_GROWSDOWN | libc::MAP_FIXED;
        assert_eq!(libc::mmap(place, PAGE_BYTES, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0), place);
        place as usize + PAGE_BYTES
    };
    machine.enter().unwrap();
    // SAFETY: has a stack of its own meanwhile, and calls nothing.
    unsafe {
        asm!(
            "mov {kept}, rsp",
            "mov rsp, {end}",
            "2:",
            "push rsp",
            "dec {count}",
            "jnz 2b",
            // As a function with a large array has it.
            "sub rsp, 0x48000",
            "mov byte ptr [rsp + 0x20000], 1",
            "mov rsp, {kept}",
            kept = out(reg) _,
            end = in(reg) end,
            count = inout(reg) GROWN / 8 => _,
        );
    }
    assert!(is_inside());
    leave();
}

#[test]
fn a_thread_that_a_signal_stops_goes_on_inside() {
    if support::machine().is_none() {
        return;
    }
    let child = in_child(|| {
        // SAFETY: a group of processes with a parent elsewhere, so that it may stop.
        unsafe { libc::setpgid(0, 0) };
        let machine = support::machine().unwrap();
        machine.enter().unwrap();
        for signal in [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU] {
            // SAFETY: stops the process, until its parent lets it go on.
            unsafe { libc::kill(libc::getpid(), signal) };
            assert!(is_inside(), "after signal {signal}");
        }
    });
    for signal in [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU] {
        let status = status_of(child);
        assert!(libc::WIFSTOPPED(status) && libc::WSTOPSIG(status) == signal, "{status:x} for signal {signal}");
        // SAFETY: the child has stopped.
        unsafe { libc::kill(child, libc::SIGCONT) };
    }
    assert_eq!(status_of(child), 0);
}

static TAKEN: AtomicU32 = AtomicU32::new(0);

extern "C" fn take(_: libc::c_int) {
    TAKEN.fetch_add(1, Ordering::Relaxed);
}

#[test]
fn threads_stay_inside_that_another_one_spares_a_signal_of_the_process() {
    const THREADS: usize = 2;
    if support::machine().is_none() {
        return;
    }
    let child = in_child(|| {
        let machine = support::machine().unwrap();
        // SAFETY: the handler counts.
        unsafe { libc::signal(libc::SIGUSR1, take as *const () as libc::sighandler_t) };
        let is_over = AtomicBool::new(false);
        let spin = || {
            machine.enter().unwrap();
            while !is_over.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
            let inside = is_inside();
            leave();
            inside
        };
        let sender = sender_to_this_process();
        std::thread::scope(|scope| {
            let spinning: Vec<_> = (0..THREADS).map(|_| scope.spawn(spin)).collect();
            machine.enter().unwrap();
            // Without system calls, which find signals outside.
            while TAKEN.load(Ordering::Relaxed) < 2000 {
                std::hint::spin_loop();
            }
            // SAFETY: the process is a child's.
            unsafe { libc::kill(sender, libc::SIGKILL) };
            let inside = is_inside();
            is_over.store(true, Ordering::Relaxed);
            let others = spinning.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>();
            assert!(inside && others.iter().all(|inside| *inside), "{inside} {others:?}");
        });
    });
    assert_eq!(status_of(child), 0);
}

/// A process that sends the calling one signals.
fn sender_to_this_process() -> libc::pid_t {
    let parent = std::process::id() as libc::pid_t;
    in_child(|| {
        loop {
            std::thread::sleep(std::time::Duration::from_micros(100));
            // SAFETY: the parent has a handler. It may have ended.
            if unsafe { libc::kill(parent, libc::SIGUSR1) } != 0 {
                return;
            }
        }
    })
}

/// The values that the handler below has got, in order.
static GOT: [AtomicU32; 64] = [const { AtomicU32::new(0) }; 64];
static COUNT: AtomicU32 = AtomicU32::new(0);

extern "C" fn note_value(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes the structure.
    let value = unsafe { (*info).si_value().sival_ptr.addr() as u32 };
    if let Some(got) = GOT.get(COUNT.fetch_add(1, Ordering::Relaxed) as usize) {
        got.store(value, Ordering::Relaxed);
    }
}

#[test]
fn queued_signals_come_in_order_with_their_values() {
    const SIGNALS: u32 = 20;
    let signal = libc::SIGRTMIN() + 3;
    if support::machine().is_none() {
        return;
    }
    let child = in_child(|| {
        let machine = support::machine().unwrap();
        machine.enter().unwrap();
        for to_thread in [false, true] {
            COUNT.store(0, Ordering::Relaxed);
            // SAFETY: the handler stores to words; the signals are this thread's own.
            unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = note_value as *const () as usize;
                action.sa_flags = libc::SA_SIGINFO;
                assert_eq!(libc::sigaction(signal, &raw const action, ptr::null_mut()), 0);
                let mut set: libc::sigset_t = std::mem::zeroed();
                libc::sigaddset(&raw mut set, signal);
                libc::sigprocmask(libc::SIG_BLOCK, &raw const set, ptr::null_mut());
                for value in 0..SIGNALS {
                    let value = libc::sigval { sival_ptr: ptr::without_provenance_mut(value as usize) };
                    if to_thread {
                        assert_eq!(pthread_sigqueue(libc::pthread_self(), signal, value), 0);
                    } else {
                        assert_eq!(libc::sigqueue(libc::getpid(), signal, value), 0);
                    }
                }
                libc::sigprocmask(libc::SIG_UNBLOCK, &raw const set, ptr::null_mut());
            }
            assert!(is_inside());
            let got: Vec<u32> = GOT[..SIGNALS as usize].iter().map(|got| got.load(Ordering::Relaxed)).collect();
            assert_eq!(got, (0..SIGNALS).collect::<Vec<_>>());
        }
    });
    assert_eq!(status_of(child), 0);
}

unsafe extern "C" {
    fn pthread_sigqueue(thread: libc::pthread_t, signal: libc::c_int, value: libc::sigval) -> libc::c_int;
}
