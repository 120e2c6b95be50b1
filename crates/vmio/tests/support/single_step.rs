//! The instructions of this thread, looked at one by one: with its trap flag set the processor traps after each.

use std::arch::asm;
use std::sync::atomic::{AtomicU64, Ordering};

/// Instructions that make stores to persistent memory durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flushes {
    /// clwb, clflushopt and clflush: each writes a line of 64 bytes back.
    pub lines: u64,
    /// sfence: waits for them, and for stores past the caches.
    pub fences: u64,
}

static LINES: AtomicU64 = AtomicU64::new(0);
static FENCES: AtomicU64 = AtomicU64::new(0);

/// Counts them while an action runs, which must not block signals, and not run in two threads at the same time.
pub fn flushes_of(action: impl FnOnce()) -> Flushes {
    const TRAP_FLAG: i32 = 0x100;
    LINES.store(0, Ordering::Relaxed);
    FENCES.store(0, Ordering::Relaxed);
    // SAFETY: the handler fits the flags. The flag changes no other state, and is taken back.
    unsafe {
        let mut handler: libc::sigaction = std::mem::zeroed();
        handler.sa_sigaction = on_trap as *const () as usize;
        handler.sa_flags = libc::SA_SIGINFO;
        assert_eq!(libc::sigaction(libc::SIGTRAP, &raw const handler, std::ptr::null_mut()), 0);
        asm!("pushfq", "or qword ptr [rsp], {flag}", "popfq", flag = const TRAP_FLAG);
        action();
        asm!("pushfq", "and qword ptr [rsp], {others}", "popfq", others = const !TRAP_FLAG);
    }
    Flushes { lines: LINES.load(Ordering::Relaxed), fences: FENCES.load(Ordering::Relaxed) }
}

/// Looks at the instruction that comes next.
extern "C" fn on_trap(_signal: i32, _info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel hands over the thread's registers; code can be read, and goes on behind any of these instructions.
    let next: [u8; 4] = unsafe {
        let context = &*context.cast::<libc::ucontext_t>();
        (context.uc_mcontext.gregs[libc::REG_RIP as usize] as *const [u8; 4]).read_unaligned()
    };
    let (is_memory, operation) = (|byte: u8| byte >> 6 != 3, |byte: u8| byte >> 3 & 7);
    match next {
        [0x0F, 0xAE, 0xF8, _] => FENCES.fetch_add(1, Ordering::Relaxed),
        [0x66, 0x0F, 0xAE, byte] if is_memory(byte) && operation(byte) >= 6 => LINES.fetch_add(1, Ordering::Relaxed),
        [0x0F, 0xAE, byte, _] if is_memory(byte) && operation(byte) == 7 => LINES.fetch_add(1, Ordering::Relaxed),
        _ => 0,
    };
}
