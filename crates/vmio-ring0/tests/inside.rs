//! What an ordinary program does, done in the machine.

#![allow(clippy::unwrap_used)]

mod support;

use std::arch::asm;
use std::cell::Cell;
use std::fs;
use std::io::Write as _;
use std::process::Command;
use std::ptr;
use std::time::{Duration, Instant};

use vmio_ring0::{Error, Level, Machine, is_inside, leave};

/// The ring that the processor says it is in.
fn ring() -> u64 {
    let code: u64;
    // SAFETY: reads a register.
    unsafe { asm!("mov {}, cs", out(reg) code, options(nomem, nostack, preserves_flags)) };
    code & 3
}

/// Runs a body in the machine, and says where it ran.
fn inside<T>(machine: &'static Machine, body: impl FnOnce() -> T) -> T {
    machine.enter().unwrap();
    let (ring, begun) = (ring(), is_inside());
    let result = body();
    let ended = is_inside();
    leave();
    assert_eq!((ring, begun, ended), (if machine.level() == Level::Ring0 { 0 } else { 3 }, true, true));
    assert!(!is_inside());
    result
}

#[test]
fn a_thread_enters_and_leaves() {
    let Some(machine) = support::machine() else { return };
    assert_eq!((ring(), is_inside()), (3, false));
    leave();
    for _ in 0..10 {
        inside(machine, || machine.enter().unwrap());
    }
    assert_eq!((ring(), is_inside()), (3, false));
    println!("at {}: {:?}", machine.level(), machine.counts_of_thread());
}

#[test]
fn it_prints_and_reads_and_writes_files() {
    let Some(machine) = support::machine() else { return };
    let path = std::env::temp_dir().join(format!("vmio-ring0-{}", std::process::id()));
    let text = "written inside\n".repeat(1000);
    let read = inside(machine, || {
        println!("printed at {}", machine.level());
        fs::File::create(&path).unwrap().write_all(text.as_bytes()).unwrap();
        fs::read_to_string(&path).unwrap()
    });
    assert_eq!(read, text);
    assert_eq!(fs::read_to_string(&path).unwrap(), text);
    // A failure is the program's, with its errno.
    let missing = inside(machine, || fs::File::open("/no/such/file"));
    assert_eq!(missing.unwrap_err().raw_os_error(), Some(libc::ENOENT));
    fs::remove_file(path).unwrap();
}

#[test]
fn new_memory_is_there_at_a_touch() {
    const GIB: usize = 1 << 30;
    let Some(machine) = support::machine() else { return };
    let numbers = inside(machine, || (0..1_000_000_u64).collect::<Vec<_>>());
    assert_eq!(numbers.iter().sum::<u64>(), 499_999_500_000);
    let before = machine.counts_of_thread().gigabytes;
    inside(machine, || {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping overlaps nothing, and is unmapped when its bytes are used no more.
        unsafe {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let start = libc::mmap(ptr::null_mut(), 4 * GIB, access, flags, -1, 0).cast::<u8>();
            assert_ne!(start.cast(), libc::MAP_FAILED);
            for byte in (0..4 * GIB).step_by(GIB / 2) {
                start.add(byte).write(byte.count_ones() as u8 + 1);
            }
            for byte in (0..4 * GIB).step_by(GIB / 2) {
                assert_eq!(start.add(byte).read(), byte.count_ones() as u8 + 1);
            }
            libc::munmap(start.cast(), 4 * GIB);
        }
    });
    assert!(machine.counts_of_thread().gigabytes >= before + 3, "{:?}", machine.counts_of_thread());
}

#[test]
fn vector_registers_outlive_system_calls() {
    let Some(machine) = support::machine() else { return };
    if !is_x86_feature_detected!("avx") {
        return test_depth::skipped("the processor has no AVX");
    }
    let pattern: [u64; 4] = [1, 0x0123_4567_89ab_cdef, u64::MAX, 1 << 63];
    let mut found = [0_u64; 4];
    let (control, sum) = inside(machine, || {
        // SAFETY: the system call has no arguments; the registers that change are named.
        unsafe {
            asm!(
                "vmovdqu ymm7, [{from}]",
                "syscall",
                "vmovdqu [{to}], ymm7",
                from = in(reg) &raw const pattern,
                to = in(reg) &raw mut found,
                inlateout("rax") libc::SYS_getppid => _,
                lateout("rcx") _,
                lateout("r11") _,
                out("ymm7") _,
            );
        }
        let mut control = 0_u32;
        // SAFETY: stores a register to a word of ours.
        unsafe { asm!("stmxcsr [{}]", in(reg) &raw mut control) };
        (control, (1..1000).map(|number| 1.0 / f64::from(number)).sum::<f64>())
    });
    assert_eq!(found, pattern);
    assert_eq!(control & 0xffc0, 0x1f80);
    assert!((sum - 7.484_470_860_550_345).abs() < 1e-9, "{sum}");
}

#[test]
fn threads_of_a_thread_inside_enter_by_themselves() {
    thread_local! {
        static OWN: Cell<u64> = const { Cell::new(7) };
    }
    let Some(machine) = support::machine() else { return };
    let answers = inside(machine, || {
        OWN.set(1);
        let threads: Vec<_> = (0..4)
            .map(|number| {
                std::thread::spawn(move || {
                    let began_inside = is_inside();
                    inside(machine, || OWN.set(OWN.get() + number));
                    (began_inside, OWN.get())
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    assert_eq!(answers, [(false, 7), (false, 8), (false, 9), (false, 10)]);
    assert_eq!(OWN.get(), 1);
}

#[test]
fn threads_come_and_go() {
    let Some(machine) = support::machine() else { return };
    // Ten thousand in all, in the deep suite.
    for round in 0..test_depth::pick(20, 2500) {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                std::thread::spawn(move || {
                    machine.enter().unwrap();
                    let numbers = vec![round; 1000];
                    // Every other thread ends inside.
                    if round % 2 == 0 {
                        leave();
                    }
                    numbers.len()
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| assert_eq!(thread.join().unwrap(), 1000));
    }
}

#[test]
fn handlers_of_signals_run() {
    thread_local! {
        static SEEN: Cell<u32> = const { Cell::new(0) };
    }
    extern "C" fn handler(_: libc::c_int) {
        SEEN.set(SEEN.get() + 1);
    }
    let Some(machine) = support::machine() else { return };
    // SAFETY: the handler touches a cell of its thread alone. Nobody else in this process uses the signal.
    unsafe { libc::signal(libc::SIGUSR1, handler as *const () as libc::sighandler_t) };
    inside(machine, || {
        // SAFETY: sends a signal whose handler is installed.
        unsafe { libc::raise(libc::SIGUSR1) };
    });
    assert_eq!(SEEN.get(), 1);
    // SAFETY: names the thread, which is joined below after its last use.
    let thread = unsafe { libc::pthread_self() };
    let waits = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        // SAFETY: as above.
        unsafe { libc::pthread_kill(thread, libc::SIGUSR1) };
    });
    inside(machine, || {
        while SEEN.get() < 2 {
            std::hint::spin_loop()
        }
    });
    waits.join().unwrap();
    assert!(machine.counts_of_thread().interruptions >= 1);
}

#[test]
fn the_clock_is_the_same_inside() {
    let Some(machine) = support::machine() else { return };
    let before = Instant::now();
    let (first, second) = inside(machine, || (Instant::now(), Instant::now()));
    let after = Instant::now();
    assert!(before <= first && first <= second && second <= after, "{before:?} {first:?} {second:?} {after:?}");
}

#[test]
fn a_child_is_outside() {
    let Some(machine) = support::machine() else { return };
    let status = inside(machine, || {
        // SAFETY: the child only enters, which looks at the process, and ends.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                let is_refused = matches!(machine.enter(), Err(Error::Forked));
                libc::_exit(if is_refused && ring() == 3 { 7 } else { 1 });
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            status
        }
    });
    assert_eq!(libc::WEXITSTATUS(status), 7);
    let output = inside(machine, || Command::new("/bin/echo").arg("a child").output()).unwrap();
    assert_eq!(output.stdout, b"a child\n");
}

#[test]
fn what_the_host_refuses_ends_in_its_signal() {
    thread_local! {
        static FAULT: Cell<(i32, usize)> = const { Cell::new((0, 0)) };
    }
    extern "C" fn handler(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
        // SAFETY: the kernel passes both to such a handler.
        let (address, registers) =
            unsafe { ((*info).si_addr() as usize, &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs) };
        FAULT.set((signal, address));
        if signal == libc::SIGSEGV {
            // SAFETY: the test's own page.
            unsafe { libc::mprotect(address as *mut _, 4096, libc::PROT_READ | libc::PROT_WRITE) };
        } else {
            // Past the two bytes of UD2.
            registers[libc::REG_RIP as usize] += 2;
        }
    }
    let Some(machine) = support::machine() else { return };
    // SAFETY: a new page of ours; a handler for signals that no other test here raises.
    let page = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let page = libc::mmap(ptr::null_mut(), 4096, libc::PROT_READ, flags, -1, 0).cast::<u8>();
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        for signal in [libc::SIGSEGV, libc::SIGILL] {
            assert_eq!(libc::sigaction(signal, &action, ptr::null_mut()), 0);
        }
        page
    };
    let departures = machine.counts_of_thread().departures;
    machine.enter().unwrap();
    // SAFETY: the handler makes the page writable, and the store is executed again.
    unsafe { page.write_volatile(5) };
    let (went_on_inside, fault) = (is_inside(), FAULT.get());
    assert_eq!((went_on_inside, fault), (true, (libc::SIGSEGV, page as usize)));
    // SAFETY: the handler goes on behind the instruction.
    unsafe { asm!("ud2", options(nostack)) };
    let (went_on_inside, fault) = (is_inside(), FAULT.get());
    assert_eq!((went_on_inside, fault.0), (true, libc::SIGILL));
    assert_eq!(machine.counts_of_thread().departures, departures + 2);
    leave();
    // SAFETY: nobody uses the page any more.
    unsafe { libc::munmap(page.cast(), 4096) };
}

#[test]
fn interrupts_are_on_again_after_a_call() {
    const INTERRUPTS: u64 = 1 << 9;
    let Some(machine) = support::machine() else { return };
    machine.enter().unwrap();
    let flags: u64;
    // SAFETY: at ring 0 the flags switch interrupts off; at ring 3 they do not. The call asks for a number.
    unsafe {
        asm!(
            "push 2",
            "popfq",
            "syscall",
            "pushfq",
            "pop {flags}",
            flags = lateout(reg) flags,
            inlateout("rax") libc::SYS_getppid => _,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    leave();
    assert_eq!(flags & INTERRUPTS, INTERRUPTS);
}
