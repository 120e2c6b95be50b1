//! The heap of this process: mapped memory that is mimalloc's only memory.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use libmimalloc_sys as mimalloc;

use crate::error::HeapError;
use crate::fork;
use crate::memory::HeapMemory;
use crate::options::{HEAP_BYTES_MIN, HeapOptions};

/// Stays as long as the process.
static HEAP: OnceLock<HeapMemory> = OnceLock::new();
/// One begins at a time.
static BEGINNING: Mutex<()> = Mutex::new(());

/// Where it lies; nowhere before it is there.
static START: AtomicUsize = AtomicUsize::new(0);
static LENGTH: AtomicUsize = AtomicUsize::new(0);

/// Gives this process its heap, for as long as it lives. What was allocated before stays where it is.
///
/// # Errors
///
/// If the file is there already or cannot be made or mapped, or the process has a heap.
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
    fork::follow();
    START.store(memory.start, Ordering::Relaxed);
    // From here on it is used.
    LENGTH.store(memory.length, Ordering::Release);
    Ok(())
}

/// Whether it was enough for it.
fn give_to_mimalloc(memory: &'static HeapMemory) -> bool {
    /// Never give memory back: that of a shared mapping would not become zeros, as mimalloc counts on.
    const PURGE_DELAY: i32 = 15;
    /// Threads take their first segments from memory that is not given back, too.
    const EAGER_COMMIT_DELAY: i32 = 14;
    /// Nor ask the kernel for more, once this is used up.
    const ARENA_RESERVE: i32 = 23;
    // SAFETY: the memory is mapped for as long as the process lives, holds zeros and is used by nobody else. mimalloc has not
    // been called before.
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

/// That of this process.
pub(crate) fn current() -> Option<&'static HeapMemory> {
    HEAP.get()
}

/// Whether this process has one.
#[inline]
pub fn is_there() -> bool {
    LENGTH.load(Ordering::Acquire) != 0
}

/// Whether an address lies in it.
#[inline]
pub fn contains(address: usize) -> bool {
    address.wrapping_sub(START.load(Ordering::Relaxed)) < LENGTH.load(Ordering::Acquire)
}
