//! Buffers in which records are put together: there is no allocating where a page is spilled.

use std::sync::{Mutex, MutexGuard, TryLockError};

use crate::journal::format::Page;
use crate::sys::cpu;

/// Pages of a buffer: short records are written from it in one request.
pub(crate) const BUFFER_PAGES: usize = 16;
const BUFFERS: usize = 16;

/// A fixed set of buffers.
pub(crate) struct RecordBuffers(Box<[Mutex<Box<[Page]>>]>);

impl RecordBuffers {
    pub(crate) fn new() -> Self {
        RecordBuffers((0..BUFFERS).map(|_| Mutex::new(vec![Page::ZERO; BUFFER_PAGES].into_boxed_slice())).collect())
    }

    /// Takes a buffer with whatever is in it. Never sleeps on a lock, so a signal handler gets another buffer than the
    /// thread that it interrupted; yields the core while all are in use.
    pub(crate) fn acquire(&self) -> MutexGuard<'_, Box<[Page]>> {
        let start = cpu::current();
        loop {
            for step in 0..BUFFERS {
                match self.0[(start + step) % BUFFERS].try_lock() {
                    Ok(buffer) => return buffer,
                    Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
                    Err(TryLockError::WouldBlock) => {}
                }
            }
            std::thread::yield_now();
        }
    }
}
