//! A thread outside enters by touching managed memory.

#![allow(clippy::unwrap_used)]

mod support;

use std::cell::Cell;
use std::ptr;
use std::sync::OnceLock;

use vmio_ring0::{FramePool, ManagedRange, Pages, Rights, is_inside, leave};

const PAGE_BYTES: usize = 4096;
const RANGE_BYTES: usize = 2 << 20;
/// Pages from here on are not to be had.
const LAST: usize = 300;

static RANGE: OnceLock<ManagedRange> = OnceLock::new();

fn on_fault(address: usize, _: bool) -> bool {
    let Some(range) = RANGE.get() else { return false };
    let page = (address - range.addresses().start) / PAGE_BYTES;
    if page >= LAST {
        return false;
    }
    let Some(frame) = range.pages().pool().take() else { return false };
    let memory: *mut u64 = range.pages().pool().address(frame).cast();
    // SAFETY: the frame is this page's alone.
    unsafe {
        memory.write(page as u64);
        range.pages().map(address & !(PAGE_BYTES - 1), frame, Rights::ReadWrite).unwrap()
    }
}

#[test]
fn a_touch_enters_and_a_refusal_is_a_sigbus() {
    thread_local! {
        static FAULT: Cell<usize> = const { Cell::new(0) };
    }
    extern "C" fn on_sigbus(_: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
        // SAFETY: the kernel passes both to such a handler. The load that is skipped is that of `load`.
        unsafe {
            FAULT.set((*info).si_addr() as usize);
            (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs[libc::REG_RIP as usize] += LOAD_BYTES;
        }
    }
    const LOAD_BYTES: i64 = 3;
    /// Loads a word by an instruction of three bytes; 77 if a handler skips it. Says whether vector registers were preserved.
    fn load(address: usize) -> (u64, bool) {
        let mut word = 77_u64;
        let (pattern, mut found) = ([0x1234_5678_9abc_def0_u64, 3], [0_u64; 2]);
        // SAFETY: the address is managed, and the others are ours.
        unsafe {
            std::arch::asm!(
                "movdqu xmm9, [{pattern}]",
                "mov rax, [rdi]",
                "movdqu [{found}], xmm9",
                pattern = in(reg) &raw const pattern,
                found = in(reg) &raw mut found,
                in("rdi") address,
                inout("rax") word,
                out("xmm9") _,
            );
        }
        (word, found == pattern)
    }
    let Some(machine) = support::machine() else { return };
    // SAFETY: a new mapping without rights, of which nobody else knows.
    let start = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        libc::mmap(ptr::null_mut(), 2 * RANGE_BYTES, libc::PROT_NONE, flags, -1, 0)
    };
    assert_ne!(start, libc::MAP_FAILED);
    let start = (start as usize).next_multiple_of(RANGE_BYTES);
    let pages = Pages::new(machine, FramePool::new(machine, 512, 16).unwrap());
    // SAFETY: the addresses are ours.
    RANGE.get_or_init(|| unsafe {
        ManagedRange::new(pages, start..start + RANGE_BYTES, Rights::ReadWrite, on_fault).unwrap()
    });
    machine.enter_on_touch().unwrap();
    // SAFETY: the handler touches a cell of its thread, and the context that it is given.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_sigbus as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        assert_eq!(libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut()), 0);
    }
    for page in 0..20 {
        assert!(!is_inside());
        assert_eq!(load(start + page * PAGE_BYTES), (page as u64, true));
        assert!(is_inside());
        leave();
    }
    for page in [LAST, LAST + 100] {
        let address = start + page * PAGE_BYTES;
        assert_eq!(load(address), (77, true));
        assert_eq!((FAULT.get(), is_inside()), (address, true));
        assert_eq!((load(start), is_inside()), ((0, true), true));
    }
    leave();
    let words = std::thread::spawn(move || (20..40).map(|page| load(start + page * PAGE_BYTES)).collect::<Vec<_>>());
    assert_eq!(words.join().unwrap(), (20..40).map(|page| (page, true)).collect::<Vec<_>>());
    // A handler that interrupts guest code, or a system call of it, touches managed memory: it enters.
    thread_local! {
        static SEEN: Cell<(usize, bool)> = const { Cell::new((0, false)) };
    }
    extern "C" fn on_usr1(_: libc::c_int) {
        let began_inside = is_inside();
        let page = SEEN.get().0 % 20;
        let start = RANGE.get().map_or(0, |range| range.addresses().start);
        let right = load(start + page * PAGE_BYTES) == (page as u64, true) && is_inside();
        SEEN.set((SEEN.get().0 + 1, right && !began_inside));
    }
    // SAFETY: the handler touches a cell of its thread, and managed memory.
    unsafe { libc::signal(libc::SIGUSR1, on_usr1 as *const () as libc::sighandler_t) };
    machine.enter().unwrap();
    let mut processors = 0;
    for round in 0..60 {
        // SAFETY: sends a signal whose handler is installed.
        unsafe { libc::raise(libc::SIGUSR1) };
        assert_eq!((SEEN.get(), is_inside()), ((round + 1, true), true));
        if round == 10 {
            processors = machine.descriptors().len();
        }
    }
    assert_eq!(machine.descriptors().len(), processors, "no processor is lost");
    // SAFETY: names the thread, which goes on until the signals have come.
    let thread = unsafe { libc::pthread_self() };
    let sender = std::thread::spawn(move || {
        for _ in 0..20 {
            std::thread::sleep(std::time::Duration::from_millis(1));
            // SAFETY: as above.
            unsafe { libc::pthread_kill(thread, libc::SIGUSR1) };
        }
    });
    // Signals that come at once are one; the last one comes alone.
    while !sender.is_finished() {
        std::hint::spin_loop();
    }
    sender.join().unwrap();
    assert!(SEEN.get().0 > 60 && SEEN.get().1 && is_inside());
    assert_eq!(load(start + 7 * PAGE_BYTES), (7, true));
    leave();
}
