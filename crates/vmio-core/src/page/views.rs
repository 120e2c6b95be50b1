//! Which of a region's ranges of addresses show a span: the mapping's own range, and those of its views.

use crate::atomic::{AtomicU32, Ordering, sleep_on, wake_all};

/// The most ranges of addresses of one region, the mapping's own (number 0) among them.
pub const VIEWS_MAX: usize = 16;
const BEING_PREPARED: u32 = VIEWS_MAX as u32;

/// Some of a region's ranges of addresses, by number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ViewSet(u32);

impl ViewSet {
    /// The mapping's own range alone.
    pub const OWN: ViewSet = ViewSet(1);

    /// Whether the set holds that view.
    #[inline]
    pub fn contains(self, view: usize) -> bool {
        self.0 >> view & 1 == 1
    }

    /// The views of both sets.
    #[inline]
    pub fn union(self, other: Self) -> Self {
        ViewSet(self.0 | other.0)
    }

    /// The number of views beside the mapping's own range.
    #[inline]
    pub fn others(self) -> u32 {
        (self.0 & !Self::OWN.0).count_ones()
    }

    /// The numbers of the views.
    #[inline]
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..VIEWS_MAX).filter(move |view| self.contains(*view))
    }
}

/// The views at which a span has page tables, or is about to have them. A thread that adds or clears one is counted in
/// the span, or has closed it. All zeros is none.
#[derive(Default)]
pub struct SpanViews(AtomicU32);

impl SpanViews {
    /// The views at which pages of the span may be mapped. A view joins them before its first page is mapped: so the
    /// owner of a page's word misses no view of the page.
    #[inline]
    pub fn ready(&self) -> ViewSet {
        ViewSet(self.0.load(Ordering::SeqCst) & ((1 << BEING_PREPARED) - 1))
    }

    /// The right to prepare a view, for one caller, until [`Self::finish`]. Other callers get false, once the view is
    /// ready. Preparing is a system call or two, and waits for nothing.
    #[inline]
    pub fn begin(&self, view: usize) -> bool {
        let (ready, preparing) = (1 << view, 1 << (BEING_PREPARED as usize + view));
        let mut seen = self.0.load(Ordering::SeqCst);
        loop {
            if seen & ready != 0 {
                return false;
            }
            if seen & preparing != 0 {
                sleep_on(&self.0, seen);
                seen = self.0.load(Ordering::SeqCst);
                continue;
            }
            match self.0.compare_exchange(seen, seen | preparing, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return true,
                Err(changed) => seen = changed,
            }
        }
    }

    /// Marks the view as ready.
    #[inline]
    pub fn finish(&self, view: usize) {
        let (ready, preparing) = (1 << view, 1 << (BEING_PREPARED as usize + view));
        // One step: both bits change.
        self.0.fetch_xor(ready | preparing, Ordering::SeqCst);
        wake_all(&self.0);
    }

    /// Removes a view that shows the span no longer. No thread tries to add it.
    #[inline]
    pub fn remove(&self, view: usize) {
        self.0.fetch_and(!(1 << view), Ordering::SeqCst);
    }

    /// Takes all views; the span is closed.
    #[inline]
    pub fn take(&self) -> ViewSet {
        ViewSet(self.0.swap(0, Ordering::SeqCst))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_view_is_prepared_by_one_and_then_ready_for_all() {
        let views = SpanViews::default();
        assert!(views.begin(15) && views.begin(0));
        assert_eq!(views.ready(), ViewSet::default());
        std::thread::scope(|scope| {
            let other = scope.spawn(|| views.begin(15));
            views.finish(15);
            assert!(!other.join().unwrap(), "prepared twice");
        });
        views.finish(0);
        assert_eq!(views.ready().iter().collect::<Vec<_>>(), [0, 15]);
        assert_eq!((views.ready().others(), ViewSet::OWN.others()), (1, 0));
        views.remove(0);
        assert_eq!(views.take().iter().collect::<Vec<_>>(), [15]);
        assert!(views.begin(15));
    }
}
