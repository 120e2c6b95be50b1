//! What the levels in memory of all regions take together, for the cache, which has the rest.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Condvar, Mutex};

/// A count of bytes that somebody waits for to change by more than a little.
pub(crate) struct LevelMemory {
    bytes: AtomicU64,
    step_bytes: u64,
    is_over: Mutex<bool>,
    changed: Condvar,
}

impl LevelMemory {
    /// Nothing yet; who waits is told of each multiple of `step_bytes` that it comes past.
    pub(crate) fn new(step_bytes: u64) -> Self {
        LevelMemory {
            bytes: AtomicU64::new(0),
            step_bytes: step_bytes.max(1),
            is_over: Mutex::new(false),
            changed: Condvar::new(),
        }
    }

    /// So many more.
    pub(super) fn add(&self, bytes: u64) {
        let before = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.tell(before, before + bytes);
    }

    /// So many fewer.
    pub(super) fn remove(&self, bytes: u64) {
        let before = self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.tell(before, before - bytes);
    }

    fn tell(&self, before: u64, after: u64) {
        if before / self.step_bytes != after / self.step_bytes {
            // Whoever is between looking and waiting holds it.
            drop(self.is_over.lock());
            self.changed.notify_all();
        }
    }

    /// What it is, rounded up by a step and less; once that is not `known`. `None` when it is over.
    pub(crate) fn wait(&self, known: Option<u64>) -> Option<u64> {
        let mut is_over = self.is_over.lock();
        loop {
            let bytes = (self.bytes.load(Ordering::Relaxed) / self.step_bytes + 1) * self.step_bytes;
            if *is_over {
                return None;
            }
            if Some(bytes) != known {
                return Some(bytes);
            }
            self.changed.wait(&mut is_over);
        }
    }

    /// Nobody need wait any more.
    pub(crate) fn end(&self) {
        *self.is_over.lock() = true;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_told_and_what_is_in_between_is_not() {
        let memory = LevelMemory::new(100);
        assert_eq!(memory.wait(None), Some(100));
        memory.add(250);
        assert_eq!(memory.wait(Some(100)), Some(300));
        memory.remove(40);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| memory.wait(Some(300)));
            memory.remove(20);
            assert_eq!(waits.join().expect("no panic"), Some(200));
        });
        memory.end();
        assert_eq!(memory.wait(None), None);
    }
}
