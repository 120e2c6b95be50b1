//! The heap of this process: mapped memory that is mimalloc's only memory.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use libmimalloc_sys as mimalloc;

use crate::error::HeapError;
use crate::fork;
use crate::memory::HeapMemory;
use crate::options::{HEAP_BYTES_MIN, HeapOptions};

/// The heap, which stays as long as the process.
static HEAP: OnceLock<HeapMemory> = OnceLock::new();
/// Lets one thread at a time start the heap.
static BEGINNING: Mutex<()> = Mutex::new(());

/// The address of the heap's first byte.
static START: AtomicUsize = AtomicUsize::new(0);
static LENGTH: AtomicUsize = AtomicUsize::new(0);

/// Gives this process its heap, for as long as it lives. Earlier allocations stay where they are.
///
/// # Errors
///
/// If the file exists already or cannot be made or mapped, if the heap is shorter than [`HEAP_BYTES_MIN`] or vmio
/// has no such cache, or if the process has a heap.
pub fn start(options: &HeapOptions) -> Result<(), HeapError> {
    let _one_at_a_time = BEGINNING.lock().unwrap_or_else(PoisonError::into_inner);
    if HEAP.get().is_some() {
        return Err(HeapError::AlreadyThere);
    }
    if options.heap_bytes < HEAP_BYTES_MIN {
        return Err(HeapError::TooSmall);
    }
    let memory = HeapMemory::open(options)?;
    let memory = HEAP.get_or_init(|| memory);
    if !give_to_mimalloc(memory) {
        return Err(HeapError::TooSmall);
    }
    fork::follow(memory);
    START.store(memory.start, Ordering::Relaxed);
    // From here on the allocator uses it.
    LENGTH.store(memory.length, Ordering::Release);
    Ok(())
}

/// Gives the memory to mimalloc. Returns whether there is enough for it.
fn give_to_mimalloc(memory: &'static HeapMemory) -> bool {
    /// Never give memory back: a shared mapping's would not become zeros, which mimalloc counts on.
    const PURGE_DELAY: i32 = 15;
    /// Let threads take their first segments from the same memory, which is not given back.
    const EAGER_COMMIT_DELAY: i32 = 14;
    /// Never ask the kernel for more, once this is used up.
    const ARENA_RESERVE: i32 = 23;
    // SAFETY: the memory is mapped for as long as the process lives, holds zeros, and nobody else uses it. Nothing has called mimalloc
    // before.
    unsafe {
        mimalloc::mi_option_set(mimalloc::mi_option_limit_os_alloc, 1);
        mimalloc::mi_option_set(PURGE_DELAY, -1);
        mimalloc::mi_option_set(EAGER_COMMIT_DELAY, 0);
        mimalloc::mi_option_set(ARENA_RESERVE, 0);
        let mut arena = Default::default();
        let (is_committed, is_pinned, is_zero, is_exclusive) = (true, true, true, false);
        mimalloc::mi_manage_os_memory_ex(
            memory.start as *const _,
            memory.length,
            is_committed,
            is_pinned,
            is_zero,
            -1,
            is_exclusive,
            &raw mut arena,
        )
    }
}

/// Whether this process has a heap.
#[inline]
pub fn is_there() -> bool {
    LENGTH.load(Ordering::Acquire) != 0
}

/// Whether an address lies in the heap.
#[inline]
pub fn contains(address: usize) -> bool {
    address.wrapping_sub(START.load(Ordering::Relaxed)) < LENGTH.load(Ordering::Acquire)
}
