//! How many pages of a span are in memory or on their way in: the gate that its memory is given back behind.

use crate::atomic::{AtomicU32, Ordering, sleep_on, wake_all};

/// The memory of the span is being given back: nobody may come in.
const CLOSED: u32 = 1 << 31;
/// Somebody waits for the gate to open.
const WAITERS: u32 = 1 << 30;

/// A count that can be closed while it is zero. Who changes the word of an absent page, to fetch it or otherwise, is
/// counted first; so behind a closed gate no page is in memory, and no word changes. All zeros is empty and open.
#[derive(Default)]
pub(crate) struct Occupancy(AtomicU32);

impl Occupancy {
    /// Counts one more, once the gate is open. Whoever has closed it waits for nobody.
    pub(crate) fn enter(&self) {
        let mut seen = self.0.load(Ordering::SeqCst);
        loop {
            let wanted = if seen & CLOSED == 0 { seen + 1 } else { seen | WAITERS };
            match self.0.compare_exchange(seen, wanted, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) if seen & CLOSED == 0 => return,
                Ok(_) => {
                    sleep_on(&self.0, wanted);
                    seen = self.0.load(Ordering::SeqCst);
                }
                Err(changed) => seen = changed,
            }
        }
    }

    /// Counts that many fewer.
    pub(crate) fn leave(&self, count: u32) {
        let before = self.0.fetch_sub(count, Ordering::SeqCst);
        debug_assert!(before & CLOSED == 0 && before >= count);
    }

    /// How many are counted.
    pub(crate) fn count(&self) -> u32 {
        self.0.load(Ordering::SeqCst) & !(CLOSED | WAITERS)
    }

    /// Somebody waits for the gate to open.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn is_awaited(&self) -> bool {
        self.0.load(Ordering::SeqCst) & WAITERS != 0
    }

    /// Closes the gate if it is open and nobody is counted.
    pub(crate) fn try_close(&self) -> bool {
        self.0.compare_exchange(0, CLOSED, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Opens it again, by whoever has closed it.
    pub(crate) fn open(&self) {
        let before = self.0.swap(0, Ordering::SeqCst);
        debug_assert!(before & CLOSED != 0);
        if before & WAITERS != 0 {
            wake_all(&self.0);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn it_closes_only_when_empty_and_only_once() {
        let pages = Occupancy::default();
        pages.enter();
        assert!(!pages.try_close());
        pages.leave(1);
        assert!(pages.try_close() && !pages.try_close());
        assert_eq!(pages.count(), 0);
        pages.open();
        assert!(pages.try_close());
    }

    #[test]
    fn who_comes_meanwhile_waits_until_it_opens() {
        let (pages, opened) = (Occupancy::default(), AtomicBool::new(false));
        assert!(pages.try_close());
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    pages.enter();
                    assert!(opened.load(Ordering::SeqCst), "in through a closed gate");
                });
            }
            while pages.0.load(Ordering::SeqCst) & WAITERS == 0 {
                std::thread::yield_now();
            }
            opened.store(true, Ordering::SeqCst);
            pages.open();
        });
        assert_eq!(pages.count(), 4);
    }
}
