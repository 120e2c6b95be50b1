//! Waiting until all threads that entered before a certain moment have left, without keeping newcomers out.

use vmio_core::atomic::{AtomicU32, AtomicU64, Ordering, sleep_on, wake_all};

/// Counts the threads inside by the epoch in which they entered. It tells only two epochs apart: one must be drained
/// before the epoch after the next begins. To enter and to leave is async-signal-safe and waits for nobody.
pub(crate) struct DrainGate {
    epoch: AtomicU64,
    inside: [AtomicU32; 2],
}

/// A thread inside; dropping this leaves.
pub(crate) struct Inside<'a> {
    gate: &'a DrainGate,
    epoch: u64,
}

impl DrainGate {
    pub(crate) fn new(epoch: u64) -> Self {
        DrainGate { epoch: AtomicU64::new(epoch), inside: [AtomicU32::new(0), AtomicU32::new(0)] }
    }

    /// Enters, in the present epoch.
    pub(crate) fn enter(&self) -> Inside<'_> {
        loop {
            let epoch = self.epoch.load(Ordering::SeqCst);
            let inside = Inside { gate: self, epoch };
            self.inside(epoch).fetch_add(1, Ordering::SeqCst);
            // If the epoch ended in between, the draining thread may not have seen us.
            if self.epoch.load(Ordering::SeqCst) == epoch {
                return inside;
            }
        }
    }

    /// The present epoch.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::SeqCst)
    }

    /// Leaves for a thread whose [`Inside`] was forgotten.
    pub(crate) fn leave(&self, epoch: u64) {
        drop(Inside { gate: self, epoch });
    }

    /// Ends the present epoch and returns it. One thread at a time may do so, after it has drained the epoch before.
    pub(crate) fn advance(&self) -> u64 {
        self.epoch.fetch_add(1, Ordering::SeqCst)
    }

    /// Waits until all threads that entered in an epoch that has ended have left.
    pub(crate) fn drain(&self, ended: u64) {
        let inside = self.inside(ended);
        loop {
            let count = inside.load(Ordering::SeqCst);
            if count == 0 {
                return;
            }
            sleep_on(inside, count);
        }
    }

    fn inside(&self, epoch: u64) -> &AtomicU32 {
        &self.inside[(epoch % 2) as usize]
    }
}

impl Inside<'_> {
    /// The epoch in which the thread entered.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        let inside = self.gate.inside(self.epoch);
        let before = inside.fetch_sub(1, Ordering::SeqCst);
        debug_assert!(before > 0, "more have left than came in");
        // A thread that drains sleeps on the count that it saw last, whatever that was.
        wake_all(inside);
    }
}
