//! The store gate: keeps pages from becoming writable for a moment, while a commit protects them.

use crossbeam_utils::CachePadded;

use crate::atomic::{AtomicU32, Ordering, seq_cst_fence_for_loom, sleep_on, wake_all};

/// Counters of the threads inside; several, so that cores do not fight for one cache line.
const SHARDS: usize = if cfg!(loom) { 1 } else { 16 };

/// A thread is inside the gate while it makes a page writable. Closing the gate waits until no thread is inside. A thread inside waits
/// for no other thread and for no device. Entering and leaving are async-signal-safe.
pub struct StoreGate {
    /// Odd while the gate is closed. Each change adds one.
    phase: AtomicU32,
    inside: [CachePadded<AtomicU32>; SHARDS],
}

/// A thread inside the gate; dropping this leaves the gate.
pub struct Passing<'a> {
    gate: &'a StoreGate,
    inside: &'a AtomicU32,
}

/// An open gate.
impl Default for StoreGate {
    fn default() -> Self {
        StoreGate { phase: AtomicU32::new(0), inside: std::array::from_fn(|_| CachePadded::new(AtomicU32::new(0))) }
    }
}

impl StoreGate {
    /// Enters the gate, unless it is closed.
    #[inline]
    pub fn try_enter(&self, core: usize) -> Option<Passing<'_>> {
        let inside: &AtomicU32 = &self.inside[core % SHARDS];
        inside.fetch_add(1, Ordering::SeqCst);
        seq_cst_fence_for_loom();
        let passing = Passing { gate: self, inside };
        // If the gate was closed in between, the closing thread may not have seen us.
        (!self.is_closed()).then_some(passing)
    }

    /// Waits until the gate is open.
    #[inline]
    pub fn wait(&self) {
        loop {
            let phase = self.phase.load(Ordering::SeqCst);
            if phase.is_multiple_of(2) {
                return;
            }
            sleep_on(&self.phase, phase);
        }
    }

    /// Closes the gate, and waits until no thread is inside. One thread at a time.
    #[inline]
    pub fn close(&self) {
        self.phase.fetch_add(1, Ordering::SeqCst);
        seq_cst_fence_for_loom();
        for inside in &self.inside {
            loop {
                let count = inside.load(Ordering::SeqCst);
                if count == 0 {
                    break;
                }
                sleep_on(inside, count);
            }
        }
    }

    /// Opens the gate that [`Self::close`] has closed, and wakes the threads that wait for it.
    #[inline]
    pub fn open(&self) {
        self.phase.fetch_add(1, Ordering::SeqCst);
        wake_all(&self.phase);
    }

    fn is_closed(&self) -> bool {
        !self.phase.load(Ordering::SeqCst).is_multiple_of(2)
    }
}

impl Drop for Passing<'_> {
    fn drop(&mut self) {
        self.inside.fetch_sub(1, Ordering::SeqCst);
        if self.gate.is_closed() {
            wake_all(self.inside);
        }
    }
}
