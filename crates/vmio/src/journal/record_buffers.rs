//! Buffers in which records are assembled, since a spill must not allocate.

use std::sync::{Mutex, MutexGuard, TryLockError};

use crate::journal::format::Page;
use crate::sys::cpu;

/// Pages of a buffer. One request writes a short record from it.
pub(crate) const BUFFER_PAGES: usize = 16;
const BUFFERS: usize = 16;

/// A fixed set of buffers.
pub(crate) struct RecordBuffers(Box<[Mutex<Box<[Page]>>]>);

impl RecordBuffers {
    pub(crate) fn new() -> Self {
        RecordBuffers((0..BUFFERS).map(|_| Mutex::new(vec![Page::ZERO; BUFFER_PAGES].into_boxed_slice())).collect())
    }

    /// Takes a buffer, with the remains of earlier records in it. It never sleeps on a lock, so a signal handler gets
    /// another buffer than the thread that it interrupted. It yields the core while all buffers are in use.
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
