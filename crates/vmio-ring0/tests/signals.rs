//! Signals of threads in the machine: handlers find what they would find outside.

#![allow(clippy::unwrap_used)]

mod support;

use std::arch::asm;
use std::cell::Cell;
use std::io::{Read, Write};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use vmio_ring0::{Machine, is_inside, leave};

type Handler = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);

fn install(signal: i32, handler: Handler, flags: i32, mask: &[i32]) {
    // SAFETY: the handlers of this file do what handlers may.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | flags;
        for signal in mask {
            libc::sigaddset(&raw mut action.sa_mask, *signal);
        }
        assert_eq!(libc::sigaction(signal, &raw const action, ptr::null_mut()), 0);
    }
}

/// Sends the calling thread signals from another one, each some time after the one before, until the body ends.
fn under_signals<T>(signal: i32, every: Duration, body: impl FnOnce() -> T) -> T {
    // SAFETY: names the thread, which waits for the sender below.
    let thread = unsafe { libc::pthread_self() };
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                std::thread::sleep(every);
                // SAFETY: as above.
                unsafe { libc::pthread_kill(thread, signal) };
            }
        });
        let result = body();
        is_over.store(true, Ordering::Relaxed);
        result
    })
}

fn entered() -> Option<&'static Machine> {
    let machine = support::machine()?;
    machine.enter().unwrap();
    Some(machine)
}

thread_local! {
    static SEEN: Cell<u32> = const { Cell::new(0) };
    static FOUND: Cell<Found> = const { Cell::new(Found { rip: 0, rsp: 0, rbx: 0, here: 0, xmm: 0, inside: true }) };
}

#[derive(Clone, Copy)]
struct Found {
    rip: u64,
    rsp: u64,
    rbx: u64,
    /// An address on the handler's stack.
    here: u64,
    xmm: u64,
    inside: bool,
}

extern "C" fn note(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let place = 0_u8;
    // SAFETY: the kernel passes the context to such a handler, with the state of the vector registers.
    let (registers, xmm) = unsafe {
        let context = &*context.cast::<libc::ucontext_t>();
        (context.uc_mcontext.gregs, (*context.uc_mcontext.fpregs)._xmm[9].element)
    };
    FOUND.set(Found {
        rip: registers[libc::REG_RIP as usize] as u64,
        rsp: registers[libc::REG_RSP as usize] as u64,
        rbx: registers[libc::REG_R15 as usize] as u64,
        here: &raw const place as u64,
        xmm: u64::from(xmm[0]) | u64::from(xmm[1]) << 32,
        inside: is_inside(),
    });
    SEEN.set(SEEN.get() + 1);
    NOTED.fetch_add(1, Ordering::Relaxed);
}

/// How often `note` was called, in any thread.
static NOTED: AtomicU32 = AtomicU32::new(0);

/// Spins until the word changes; returns the range of the loop's instructions and the stack pointer there.
#[inline(never)]
fn spin(word: &Cell<u32>, until: u32) -> (u64, u64, u64, u64) {
    let (start, end, stack): (u64, u64, u64);
    let pattern = 0x0123_4567_89ab_cdef_u64;
    let mut found = 0_u64;
    // SAFETY: the loop reads a word that a handler of this thread changes.
    unsafe {
        asm!(
            "movq xmm9, {pattern}",
            "lea {start}, [rip + 3f]",
            "lea {end}, [rip + 4f]",
            "mov {stack}, rsp",
            "mov r15, {pattern}",
            "3:",
            "cmp dword ptr [{word}], {until:e}",
            "jb 3b",
            "4:",
            "movq {found}, xmm9",
            pattern = in(reg) pattern,
            start = out(reg) start,
            end = out(reg) end,
            stack = out(reg) stack,
            found = inout(reg) found,
            word = in(reg) word.as_ptr(),
            until = in(reg) until,
            out("xmm9") _,
            out("r15") _,
            options(nostack),
        );
    }
    assert_eq!(found, pattern);
    (start, end, stack, pattern)
}

#[test]
fn a_handler_finds_the_registers_of_the_program() {
    let Some(machine) = entered() else { return };
    install(libc::SIGUSR1, note, 0, &[]);
    under_signals(libc::SIGUSR1, Duration::from_millis(2), || {
        let mut in_loop = 0;
        for round in 0..1000 {
            let (start, end, stack, pattern) = SEEN.with(|seen| spin(seen, seen.get() + 1));
            let found = FOUND.get();
            // One that came just before the loop has found other registers.
            if !(start..=end).contains(&found.rip) {
                continue;
            }
            assert_eq!((found.rsp, found.rbx, found.xmm), (stack, pattern, pattern));
            assert!(stack - found.here < 1 << 16, "the handler runs on the program's stack");
            assert!(!found.inside);
            assert!(is_inside(), "round {round}");
            in_loop += 1;
            if in_loop == 20 {
                return;
            }
        }
        panic!("{in_loop} of 1000 signals came in the loop");
    });
    assert!(machine.counts_of_thread().interruptions >= 20);
    leave();
}

#[test]
fn calls_that_wait_are_interrupted_or_begin_again() {
    let Some(_machine) = entered() else { return };
    let (mut reader, mut writer) = std::io::pipe().unwrap();
    let stack = 0_u8;
    let mut bytes = [0; 4];
    install(libc::SIGUSR1, note, 0, &[]);
    under_signals(libc::SIGUSR1, Duration::from_millis(20), || {
        use std::os::fd::AsRawFd;
        // SAFETY: reads into an array of ours.
        let got = unsafe { libc::read(reader.as_raw_fd(), bytes.as_mut_ptr().cast(), 4) };
        assert_eq!((got, std::io::Error::last_os_error().raw_os_error()), (-1, Some(libc::EINTR)));
        assert!(is_inside());
        let found = FOUND.get();
        assert!(&raw const stack as u64 - found.here < 1 << 16, "the handler runs on the program's stack");
    });
    install(libc::SIGUSR1, note, libc::SA_RESTART, &[]);
    let before = SEEN.get();
    under_signals(libc::SIGUSR1, Duration::from_millis(2), || {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let before = NOTED.load(Ordering::Relaxed);
                while NOTED.load(Ordering::Relaxed) < before + 10 {
                    std::thread::sleep(Duration::from_millis(1));
                }
                writer.write_all(b"1234").unwrap();
            });
            reader.read_exact(&mut bytes).unwrap();
        });
    });
    assert_eq!((&bytes, is_inside()), (b"1234", true));
    assert!(SEEN.get() > before);
    leave();
}

#[test]
fn masks_are_the_programs() {
    let Some(_machine) = entered() else { return };
    install(libc::SIGUSR1, note, 0, &[libc::SIGUSR2]);
    install(libc::SIGUSR2, note, 0, &[]);
    fn set(signals: &[i32]) -> libc::sigset_t {
        // SAFETY: makes a set of ours.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            signals.iter().for_each(|signal| _ = libc::sigaddset(&raw mut set, *signal));
            set
        }
    }
    let blocked = move || {
        let mut set = set(&[]);
        // SAFETY: the C library writes the set.
        unsafe {
            assert_eq!(libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), &raw mut set), 0);
            (1..=31).filter(|signal| libc::sigismember(&raw const set, *signal) == 1).collect::<Vec<_>>()
        }
    };
    let both = set(&[libc::SIGUSR1, libc::SIGUSR2]);
    // SAFETY: changes the mask of this thread, and sends it signals that it handles.
    unsafe {
        assert_eq!(blocked(), []);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const both, ptr::null_mut());
        assert_eq!(blocked(), [libc::SIGUSR1, libc::SIGUSR2]);
        libc::raise(libc::SIGUSR1);
        libc::raise(libc::SIGUSR2);
        assert_eq!(SEEN.get(), 0);
        let mut pending = set(&[]);
        libc::sigpending(&raw mut pending);
        assert_eq!(libc::sigismember(&raw const pending, libc::SIGUSR1), 1);
        // One is taken by the program itself.
        let one = set(&[libc::SIGUSR2]);
        let time = libc::timespec { tv_sec: 10, tv_nsec: 0 };
        assert_eq!(libc::sigtimedwait(&raw const one, ptr::null_mut(), &raw const time), libc::SIGUSR2);
        // A wait with another mask lets the other one come, and it alone.
        let others = set(&[libc::SIGUSR2]);
        assert_eq!(libc::sigsuspend(&raw const others), -1);
        assert_eq!((SEEN.get(), blocked()), (1, vec![libc::SIGUSR1, libc::SIGUSR2]));
        libc::raise(libc::SIGUSR1);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const both, ptr::null_mut());
        assert_eq!((SEEN.get(), blocked()), (2, vec![]));
        assert!(is_inside());
        // The mask goes on to children and threads.
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const both, ptr::null_mut());
        let of_thread = std::thread::spawn(blocked).join().unwrap();
        assert_eq!(of_thread, [libc::SIGUSR1, libc::SIGUSR2]);
        let child = libc::fork();
        if child == 0 {
            libc::_exit(i32::from(blocked() != [libc::SIGUSR1, libc::SIGUSR2]));
        }
        let mut status = -1;
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        assert_eq!((status, is_inside()), (0, true));
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const both, ptr::null_mut());
    }
    leave();
    // Outside it is as it was inside.
    assert_eq!(blocked(), []);
}

#[test]
fn ignored_signals_leave_the_thread_where_it_is() {
    let Some(machine) = entered() else { return };
    let before = machine.counts_of_thread().departures;
    under_signals(libc::SIGWINCH, Duration::from_micros(200), || {
        for round in 0..20_000 {
            // SAFETY: asks for a number.
            unsafe { libc::getppid() };
            assert!(round % 1000 != 0 || is_inside());
        }
    });
    for _ in 0..10 {
        // SAFETY: the child only ends. The signal of its end is ignored by default.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::_exit(0);
            }
            assert_eq!(libc::waitpid(child, ptr::null_mut(), 0), child);
        }
    }
    assert!(is_inside());
    assert_eq!(machine.counts_of_thread().departures, before);
    leave();
}

#[test]
fn a_handler_has_its_alternate_stack() {
    const BYTES: usize = 64 << 10;
    let Some(_machine) = entered() else { return };
    let mut memory = vec![0_u8; BYTES];
    let place = memory.as_mut_ptr();
    let range = place as u64..place as u64 + BYTES as u64;
    const AUTODISARM: i32 = 1 << 31;
    for flags in [0, AUTODISARM] {
        let stack = libc::stack_t { ss_sp: place.cast(), ss_flags: flags, ss_size: BYTES };
        // SAFETY: the memory lives until the stack is disabled.
        assert_eq!(unsafe { libc::sigaltstack(&raw const stack, ptr::null_mut()) }, 0);
        install(libc::SIGUSR1, note, libc::SA_ONSTACK, &[]);
        for _ in 0..3 {
            // SAFETY: sends a signal that is handled.
            unsafe { libc::raise(libc::SIGUSR1) };
            assert!(range.contains(&FOUND.get().here) && is_inside());
        }
    }
    let none = libc::stack_t { ss_sp: ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };
    // SAFETY: the thread is not on the stack.
    assert_eq!(unsafe { libc::sigaltstack(&raw const none, ptr::null_mut()) }, 0);
    leave();
}

#[test]
fn a_backtrace_leads_from_a_handler_to_the_program() {
    static FRAMES: AtomicU64 = AtomicU64::new(0);
    static HAS_CALLER: AtomicU32 = AtomicU32::new(0);
    unsafe extern "C" {
        fn backtrace(addresses: *mut *mut libc::c_void, count: libc::c_int) -> libc::c_int;
    }
    extern "C" fn trace(_: libc::c_int, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
        let mut addresses = [ptr::null_mut(); 64];
        // SAFETY: the C library writes as many addresses as there is room for.
        let count = unsafe { backtrace(addresses.as_mut_ptr(), 64) };
        let caller = waits_in_a_call as *const () as usize;
        let has_caller = addresses[..count as usize].iter().any(|at| (caller..caller + 256).contains(&at.addr()));
        FRAMES.store(count as u64, Ordering::Relaxed);
        // The last one may come after the call.
        HAS_CALLER.fetch_max(u32::from(has_caller), Ordering::Relaxed);
    }
    #[inline(never)]
    extern "C" fn waits_in_a_call() -> i32 {
        let time = libc::timespec { tv_sec: 10, tv_nsec: 0 };
        // SAFETY: the kernel reads the time. The result is used, so that this is no jump.
        std::hint::black_box(unsafe { libc::nanosleep(&raw const time, ptr::null_mut()) })
    }
    // The first call loads what it needs.
    trace(0, ptr::null_mut(), ptr::null_mut());
    let Some(_machine) = entered() else { return };
    install(libc::SIGUSR1, trace, 0, &[]);
    let slept = under_signals(libc::SIGUSR1, Duration::from_millis(20), || waits_in_a_call());
    assert_eq!(slept, -1);
    let (frames, has_caller) = (FRAMES.load(Ordering::Relaxed), HAS_CALLER.load(Ordering::Relaxed));
    assert_eq!(has_caller, 1, "{frames} frames");
    assert!(is_inside());
    leave();
}
