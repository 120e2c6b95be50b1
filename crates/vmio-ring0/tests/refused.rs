//! A fault handler whose own accesses the host refuses, as behind the end of a file that was cut: the signal comes outside, and the handler goes on.

#![allow(clippy::unwrap_used)]

mod support;

use std::arch::{asm, global_asm};
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use vmio_ring0::{FramePool, Machine, ManagedRange, Pages, Rights, SignalsDeferred, is_inside, leave};

const PAGE_BYTES: usize = 4096;
const RANGE_BYTES: usize = 2 << 20;

// A load that returns 1 if it is refused, by the handler of SIGBUS below.
global_asm!("refused_load:", "mov al, [rdi]", "xor eax, eax", "ret", "refused_load_landing:", "mov eax, 1", "ret",);

unsafe extern "C" {
    fn refused_load(address: *const u8) -> u32;
    static refused_load_landing: [u8; 0];
}

struct Managed {
    range: ManagedRange,
    /// Of a file that is shorter.
    source: AtomicUsize,
}

static MANAGED: OnceLock<Managed> = OnceLock::new();
static REFUSALS: AtomicU32 = AtomicU32::new(0);
static TAKEN_IN_HANDLER: AtomicBool = AtomicBool::new(false);
static IN_HANDLER: AtomicBool = AtomicBool::new(false);
static USR1: AtomicU32 = AtomicU32::new(0);
/// Whether another signal waits when the fault handler loads.
static RAISES: AtomicBool = AtomicBool::new(false);

/// Fills the page with ones, unless it can load from the source.
fn on_fault(address: usize, _: bool) -> bool {
    let Some(managed) = MANAGED.get() else { return false };
    let pages = managed.range.pages();
    IN_HANDLER.store(true, Ordering::Relaxed);
    if RAISES.load(Ordering::Relaxed) {
        // SAFETY: sends a signal that is handled, and waits from here on.
        unsafe { libc::raise(libc::SIGUSR1) };
    }
    let source = managed.source.load(Ordering::Relaxed) as *const u8;
    // SAFETY: whatever comes of the load, the handler of SIGBUS ends it.
    let is_refused = source.is_null() || unsafe { refused_load(source) } == 1;
    let frame = pages.pool().take().unwrap();
    // SAFETY: the frame is ours, and the page's alone.
    let is_mapped = unsafe {
        ptr::write_bytes(pages.pool().address(frame), u8::from(is_refused), PAGE_BYTES);
        pages.map(address & !(PAGE_BYTES - 1), frame, Rights::ReadWrite)
    };
    IN_HANDLER.store(false, Ordering::Relaxed);
    is_mapped.unwrap()
}

extern "C" fn on_sigbus(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    REFUSALS.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the context is the handler's; the other signal waits until this one has ended.
    unsafe {
        let registers = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
        registers[libc::REG_RIP as usize] = (&raw const refused_load_landing).addr() as i64;
        // As calls do in handlers.
        asm!("pxor xmm15, xmm15", out("xmm15") _);
        libc::raise(libc::SIGUSR1);
    }
}

/// Touches managed memory by itself.
extern "C" fn on_usr1(_: libc::c_int) {
    TAKEN_IN_HANDLER.fetch_or(IN_HANDLER.load(Ordering::Relaxed), Ordering::Relaxed);
    let Some(managed) = MANAGED.get() else { return };
    managed.source.store(0, Ordering::Relaxed);
    // SAFETY: a page of the range that the test does not touch.
    let byte = unsafe { ((managed.range.addresses().start + 100 * PAGE_BYTES) as *const u8).read_volatile() };
    USR1.fetch_add(u32::from(byte), Ordering::Relaxed);
}

fn managed(machine: &'static Machine) -> &'static Managed {
    // SAFETY: a new mapping without rights, of which the part that is managed stays ours.
    let start = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        libc::mmap(ptr::null_mut(), 2 * RANGE_BYTES, libc::PROT_NONE, flags, -1, 0)
    };
    assert_ne!(start, libc::MAP_FAILED);
    let start = (start as usize).next_multiple_of(RANGE_BYTES);
    let pages = Pages::new(machine, FramePool::new(machine, 64, 64).unwrap());
    MANAGED.get_or_init(|| Managed {
        // SAFETY: nobody else knows of the addresses.
        range: unsafe { ManagedRange::new(pages, start..start + RANGE_BYTES, Rights::ReadWrite, on_fault) }.unwrap(),
        source: AtomicUsize::new(0),
    })
}

/// Loads from a page that was not touched, with its registers full; returns the byte and what became of a vector register.
fn load(address: usize) -> (u8, u64) {
    let (byte, kept): (u64, u64);
    // SAFETY: loads from managed memory.
    unsafe {
        asm!(
            "movq xmm15, {mark}",
            "movzx {byte}, byte ptr [{address}]",
            "movq {kept}, xmm15",
            mark = in(reg) 0x0123_4567_89ab_cdef_u64,
            address = in(reg) address,
            byte = out(reg) byte,
            kept = out(reg) kept,
            out("xmm15") _,
        );
    }
    (byte as u8, kept)
}

fn install_handlers() {
    // SAFETY: the handlers do what handlers may.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_sigbus as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigfillset(&raw mut action.sa_mask);
        assert_eq!(libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut()), 0);
        libc::signal(libc::SIGUSR1, on_usr1 as *const () as usize);
    }
}

#[test]
fn a_fault_handler_goes_on_after_a_refusal_and_signals_wait_for_its_end() {
    let Some(machine) = support::machine() else { return };
    let managed = managed(machine);
    let file = tempfile::tempfile().unwrap();
    file.set_len(PAGE_BYTES as u64).unwrap();
    install_handlers();
    // SAFETY: a new mapping of two pages of the file, which has one.
    let source =
        unsafe { libc::mmap(ptr::null_mut(), 2 * PAGE_BYTES, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0) };
    assert_ne!(source, libc::MAP_FAILED);
    machine.enter_on_touch().unwrap();
    machine.enter().unwrap();
    let start = managed.range.addresses().start;
    for turn in 0..10_u32 {
        managed.source.store(source as usize, Ordering::Relaxed);
        assert_eq!(load(start + 2 * turn as usize * PAGE_BYTES), (0, 0x0123_4567_89ab_cdef));
        managed.source.store(source as usize + PAGE_BYTES, Ordering::Relaxed);
        let before = USR1.load(Ordering::Relaxed);
        assert_eq!(load(start + (2 * turn as usize + 1) * PAGE_BYTES), (1, 0x0123_4567_89ab_cdef), "turn {turn}");
        assert_eq!(REFUSALS.load(Ordering::Relaxed), turn + 1);
        assert_eq!(USR1.load(Ordering::Relaxed), before + 1, "the other signal came once");
        assert!(is_inside(), "turn {turn}");
    }
    leave();
    assert!(!TAKEN_IN_HANDLER.load(Ordering::Relaxed), "a signal came in the middle of the fault handler");
}

/// A page whose memory the kernel has given up, as after an error of the hardware. It tells the thread by a SIGBUS at once.
fn bad_page() -> *const u8 {
    extern "C" fn is_told(_: libc::c_int) {}
    // SAFETY: a handler that does nothing, and a new mapping, which nobody else uses.
    unsafe {
        libc::signal(libc::SIGBUS, is_told as *const () as usize);
        let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let page = libc::mmap(ptr::null_mut(), PAGE_BYTES, rights, flags, -1, 0);
        assert_ne!(page, libc::MAP_FAILED);
        page.cast::<u8>().write(1);
        assert_eq!(libc::madvise(page, PAGE_BYTES, libc::MADV_HWPOISON), 0);
        page.cast()
    }
}

#[test]
fn bad_memory_is_refused_whatever_waits() {
    if std::env::var_os("VMIO_TEST_RING0").is_none() {
        return test_depth::skipped("takes memory from the machine for good: a guest's alone");
    }
    let machine = support::machine().unwrap();
    let managed = managed(machine);
    let [plain, deferred, waiting, in_handler, waiting_in_handler] = [(); 5].map(|()| bad_page());
    install_handlers();
    machine.enter_on_touch().unwrap();
    machine.enter().unwrap();
    let start = managed.range.addresses().start;
    let refusals = || REFUSALS.load(Ordering::Relaxed);
    // SAFETY: the handler of SIGBUS ends the load.
    assert_eq!((unsafe { refused_load(plain) }, refusals()), (1, 1));
    {
        let _deferred = SignalsDeferred::new().unwrap();
        // SAFETY: as above.
        assert_eq!((unsafe { refused_load(deferred) }, refusals()), (1, 2));
        // SAFETY: sends a signal that is handled, and waits from here on.
        unsafe { libc::raise(libc::SIGUSR1) };
        // SAFETY: as above.
        assert_eq!((unsafe { refused_load(waiting) }, refusals()), (1, 3));
    }
    for (page, (source, raises)) in [(in_handler, false), (waiting_in_handler, true)].into_iter().enumerate() {
        RAISES.store(raises, Ordering::Relaxed);
        managed.source.store(source as usize, Ordering::Relaxed);
        assert_eq!(load(start + page * PAGE_BYTES), (1, 0x0123_4567_89ab_cdef), "raises: {raises}");
        assert_eq!(refusals(), 4 + page as u32);
        assert!(is_inside());
    }
    leave();
    assert!(!TAKEN_IN_HANDLER.load(Ordering::Relaxed), "a signal came in the middle of the fault handler");
}
