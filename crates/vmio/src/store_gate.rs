//! Keeping pages from becoming writable for a moment, while a commit protects them.

use crossbeam_utils::CachePadded;

use crate::atomic::{AtomicU32, Ordering, between_seq_cst, sleep_on, wake_all};

/// Counts of who is inside, so that cores do not fight for one line.
const SHARDS: usize = if cfg!(loom) { 1 } else { 16 };

/// A thread that makes a page writable is inside meanwhile. The thread that closes the gate waits until nobody is: those inside wait for
/// nobody, and for no device. Coming and going is async-signal-safe.
pub(crate) struct StoreGate {
    /// Odd while the gate is closed; counts on with each change.
    phase: AtomicU32,
    inside: [CachePadded<AtomicU32>; SHARDS],
}

/// Somebody inside; dropping it leaves.
pub(crate) struct Passing<'a> {
    gate: &'a StoreGate,
    inside: &'a AtomicU32,
}

impl StoreGate {
    /// An open one.
    pub(crate) fn new() -> Self {
        StoreGate { phase: AtomicU32::new(0), inside: std::array::from_fn(|_| CachePadded::new(AtomicU32::new(0))) }
    }

    /// Comes in, unless the gate is closed.
    pub(crate) fn try_enter(&self, core: usize) -> Option<Passing<'_>> {
        let inside: &AtomicU32 = &self.inside[core % SHARDS];
        inside.fetch_add(1, Ordering::SeqCst);
        between_seq_cst();
        let passing = Passing { gate: self, inside };
        // If it was closed in between, who closed it may not have seen us.
        (!self.is_closed()).then_some(passing)
    }

    /// Waits until the gate is open.
    pub(crate) fn wait(&self) {
        loop {
            let phase = self.phase.load(Ordering::SeqCst);
            if phase.is_multiple_of(2) {
                return;
            }
            sleep_on(&self.phase, phase);
        }
    }

    /// Lets nobody in, and waits until nobody is inside. One thread at a time.
    pub(crate) fn close(&self) {
        self.phase.fetch_add(1, Ordering::SeqCst);
        between_seq_cst();
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

    /// Ends what [`Self::close`] began.
    pub(crate) fn open(&self) {
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
