//! Managed memory whose pages have their numbers.

use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use vmio_ring0::{FramePool, Machine, ManagedRange, Pages, Rights};

pub const PAGE_BYTES: usize = 4096;
const RANGE_BYTES: usize = 4 << 20;
pub const PAGES: usize = RANGE_BYTES / PAGE_BYTES;

static RANGE: OnceLock<ManagedRange> = OnceLock::new();
/// How many faults are refused from now on.
pub static REFUSALS: AtomicU32 = AtomicU32::new(0);
/// Called in the fault handler.
pub static AT_FAULT: OnceLock<fn()> = OnceLock::new();

fn on_fault(address: usize, _: bool) -> bool {
    let Some(range) = RANGE.get() else { return false };
    if let Some(at_fault) = AT_FAULT.get() {
        at_fault();
    }
    if REFUSALS.load(Ordering::Relaxed) > 0 {
        REFUSALS.fetch_sub(1, Ordering::Relaxed);
        return false;
    }
    let Some(frame) = range.pages().pool().take() else { return false };
    let memory: *mut u64 = range.pages().pool().address(frame).cast();
    // SAFETY: the frame is this page's alone.
    unsafe {
        memory.write(((address - range.addresses().start) / PAGE_BYTES) as u64);
        range.pages().map(address & !(PAGE_BYTES - 1), frame, Rights::ReadWrite).unwrap()
    }
}

/// Makes the memory; threads that touch it enter.
pub fn manage(machine: &'static Machine) {
    RANGE.get_or_init(|| range(machine));
    machine.enter_on_touch().unwrap();
}

/// New memory.
pub fn range(machine: &'static Machine) -> ManagedRange {
    // SAFETY: a new mapping without rights, of which nobody else knows.
    let start = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        libc::mmap(ptr::null_mut(), 2 * RANGE_BYTES, libc::PROT_NONE, flags, -1, 0)
    };
    assert_ne!(start, libc::MAP_FAILED);
    let start = (start as usize).next_multiple_of(RANGE_BYTES);
    let pages = Pages::new(machine, FramePool::new(machine, PAGES as u32, 16).unwrap());
    // SAFETY: the addresses are ours.
    unsafe { ManagedRange::new(pages, start..start + RANGE_BYTES, Rights::ReadWrite, on_fault).unwrap() }
}

/// Loads from a page, by which the thread enters; false if that was not the page's word.
pub fn touch(page: usize) -> bool {
    let Some(range) = RANGE.get() else { return false };
    // SAFETY: the address is managed.
    let word = unsafe { ((range.addresses().start + page * PAGE_BYTES) as *const u64).read_volatile() };
    word == page as u64
}
