//! Decides for each stretch of a file whether the kernel reads ahead in it. It learns that from how the stretch came
//! in, and from how much of it was used. A *stay* is the time that a stretch spends in memory, from coming in to being
//! unmapped.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::sys::sparse_array::SparseArray;

/// Stays for which the kernel reads ahead in a stretch before it has to prove itself again. Until then its pages come
/// in whether used or not.
const STAYS: u32 = 16;
/// Stretches of a file with read-ahead at the same time. Each may cost the kernel two areas, of which a process has
/// 65,530.
const STRETCHES_MAX: u32 = 4096;

/// The largest window with which vmio lets the kernel read ahead: nobody would count what a larger one reads beyond a
/// stretch. It is Linux's usual window.
pub(super) const WINDOW_BYTES: u64 = 128 << 10;

/// Some pages stayed in memory when the stretch was last dropped, or it is not dropped yet.
const IS_LEFT_OVER: u32 = 1 << 31;
/// The caller has advised that accesses to the stretch are scattered.
const IS_RANDOM: u32 = 1 << 30;
/// The caller has advised that accesses go upwards.
const IS_SEQUENTIAL: u32 = 1 << 29;
/// The remaining stays for which the kernel reads ahead in the stretch.
const STAYS_MASK: u32 = 0xff;

/// The caller's advice on how a stretch is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Advised {
    Random,
    Sequential,
}

/// The state of a stretch at the end of a stay.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stay {
    /// The size of the stretch.
    pub(super) pages: u64,
    /// Pages that were mapped.
    pub(super) mapped: u64,
    /// Pages that were in memory.
    pub(super) cached: u64,
    /// Whether the program had stored to any page.
    pub(super) is_dirty: bool,
}

/// The read-ahead of all stretches of a file.
pub(super) struct ReadAhead {
    stretches: SparseArray<AtomicU32>,
    /// The number of stretches with read-ahead, and below it the most that may have it.
    count: AtomicU32,
    count_max: u32,
    /// Whether the caller has advised of any stretch.
    has_advice: AtomicBool,
}

impl ReadAhead {
    /// `window_bytes` is the kernel's read-ahead window, if the kernel tells it.
    pub(super) fn new(stretches: usize, window_bytes: Option<u64>) -> io::Result<Self> {
        let is_bounded = window_bytes.is_some_and(|bytes| bytes <= WINDOW_BYTES);
        let count_max = if is_bounded { STRETCHES_MAX } else { 0 };
        Ok(ReadAhead {
            stretches: SparseArray::new(stretches)?,
            count: AtomicU32::new(0),
            count_max,
            has_advice: AtomicBool::new(false),
        })
    }

    /// Whether the kernel reads ahead there.
    pub(super) fn is_on(&self, stretch: u64) -> bool {
        self.load(stretch) & STAYS_MASK > 0
    }

    /// Ends a stay: the stretch is unmapped. Returns whether the kernel is to read ahead from now on, if that changes.
    pub(super) fn end_stay(&self, stretch: u64, stay: Stay) -> Option<bool> {
        let known = self.load(stretch);
        self.store(stretch, known | IS_LEFT_OVER);
        if known & (IS_RANDOM | IS_SEQUENTIAL) != 0 {
            return None;
        }
        let is_on = known & STAYS_MASK > 0;
        let left = match is_on {
            // The kernel maps neighbours of used pages too, so fewer pages were used than are mapped.
            true if stay.is_dirty || stay.mapped * 2 < stay.cached => 0,
            true => (known & STAYS_MASK) - 1,
            false if known & IS_LEFT_OVER != 0 || stay.is_dirty || stay.mapped * 8 < stay.pages * 7 => 0,
            false if self.count.load(Ordering::Relaxed) >= self.count_max => 0,
            false => STAYS,
        };
        self.set_stays(stretch, left);
        (is_on != (left > 0)).then_some(left > 0)
    }

    /// Begins a stay: the stretch was dropped. `is_left_over` says that some of its pages stayed.
    pub(super) fn begin_stay(&self, stretch: u64, is_left_over: bool) {
        let known = self.load(stretch) & !IS_LEFT_OVER;
        self.store(stretch, if is_left_over { known | IS_LEFT_OVER } else { known });
    }

    /// Whether the kernel's window is at most [`WINDOW_BYTES`].
    pub(super) fn is_bounded(&self) -> bool {
        self.count_max > 0
    }

    /// Whether the caller has advised of any stretch.
    pub(super) fn has_advice(&self) -> bool {
        self.has_advice.load(Ordering::Relaxed)
    }

    /// Whether the caller has advised that accesses are scattered.
    pub(super) fn is_advised_against(&self, stretch: u64) -> bool {
        self.load(stretch) & IS_RANDOM != 0
    }

    /// Whether the caller has advised that accesses go upwards.
    pub(super) fn is_sequential(&self, stretch: u64) -> bool {
        self.load(stretch) & IS_SEQUENTIAL != 0
    }

    /// Notes the caller's advice on stretches, or its end. The caller of this function has told the kernel.
    pub(super) fn advise(&self, stretches: Range<u64>, advised: Option<Advised>) {
        self.has_advice.fetch_or(advised.is_some(), Ordering::Relaxed);
        let mark = match advised {
            None => 0,
            Some(Advised::Random) => IS_RANDOM,
            Some(Advised::Sequential) => IS_SEQUENTIAL,
        };
        for stretch in stretches {
            self.set_stays(stretch, 0);
            let known = self.load(stretch);
            let advised = known & !(IS_RANDOM | IS_SEQUENTIAL) | mark;
            if advised != known {
                self.store(stretch, advised);
            }
        }
    }

    fn set_stays(&self, stretch: u64, left: u32) {
        let known = self.load(stretch);
        match (known & STAYS_MASK > 0, left > 0) {
            (false, true) => _ = self.count.fetch_add(1, Ordering::Relaxed),
            (true, false) => _ = self.count.fetch_sub(1, Ordering::Relaxed),
            (false, false) => return,
            (true, true) => {}
        }
        self.store(stretch, known & !STAYS_MASK | left);
    }

    fn load(&self, stretch: u64) -> u32 {
        self.stretches.get(stretch as usize).load(Ordering::Relaxed)
    }

    /// Callers hold the ledger.
    fn store(&self, stretch: u64, known: u32) {
        self.stretches.get(stretch as usize).store(known, Ordering::Relaxed);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const WHOLE: Stay = Stay { pages: 64, mapped: 56, cached: 64, is_dirty: false };

    fn read_ahead() -> ReadAhead {
        ReadAhead::new(2 * STRETCHES_MAX as usize, Some(WINDOW_BYTES)).unwrap()
    }

    /// A whole stay, after which no page is left over.
    fn pass(ahead: &ReadAhead, stretch: u64, stay: Stay) -> Option<bool> {
        let told = ahead.end_stay(stretch, stay);
        ahead.begin_stay(stretch, false);
        told
    }

    #[test]
    fn what_came_in_whole_reads_ahead_for_some_stays() {
        let ahead = read_ahead();
        assert_eq!(pass(&ahead, 3, Stay { mapped: 55, ..WHOLE }), None);
        assert_eq!(pass(&ahead, 3, WHOLE), Some(true));
        assert!(ahead.is_on(3) && !ahead.is_on(2) && !ahead.is_on(4));
        for _ in 1..STAYS {
            assert_eq!(pass(&ahead, 3, WHOLE), None);
        }
        assert_eq!(pass(&ahead, 3, WHOLE), Some(false));
        assert_eq!(pass(&ahead, 3, WHOLE), Some(true));
    }

    #[test]
    fn who_reads_too_much_at_a_time_reads_nothing_ahead() {
        for window in [None, Some(8 << 20)] {
            assert_eq!(pass(&ReadAhead::new(8, window).unwrap(), 3, WHOLE), None);
        }
    }

    #[test]
    fn what_is_stored_to_does_not() {
        let ahead = read_ahead();
        assert_eq!(pass(&ahead, 0, Stay { is_dirty: true, ..WHOLE }), None);
        assert_eq!(pass(&ahead, 0, WHOLE), Some(true));
        assert_eq!(pass(&ahead, 0, Stay { is_dirty: true, ..WHOLE }), Some(false));
    }

    #[test]
    fn what_was_read_ahead_in_vain_ends_it() {
        let ahead = read_ahead();
        assert_eq!(pass(&ahead, 0, WHOLE), Some(true));
        assert_eq!(pass(&ahead, 0, Stay { mapped: 16, cached: 32, ..WHOLE }), None);
        assert_eq!(pass(&ahead, 0, Stay { mapped: 15, cached: 32, ..WHOLE }), Some(false));
    }

    #[test]
    fn what_gathered_over_several_stays_did_not_come_in_whole() {
        let ahead = read_ahead();
        ahead.end_stay(0, Stay { mapped: 40, ..WHOLE });
        ahead.begin_stay(0, true);
        assert_eq!(ahead.end_stay(0, WHOLE), None);
        // The stretch is still in line, and already in use again.
        assert_eq!(ahead.end_stay(0, WHOLE), None);
        ahead.begin_stay(0, false);
        assert_eq!(ahead.end_stay(0, WHOLE), Some(true));
    }

    #[test]
    fn the_caller_knows_better() {
        let ahead = read_ahead();
        assert_eq!(pass(&ahead, 0, WHOLE), Some(true));
        ahead.advise(0..2, Some(Advised::Random));
        assert!(!ahead.is_on(0));
        assert_eq!((pass(&ahead, 0, WHOLE), pass(&ahead, 1, WHOLE)), (None, None));
        ahead.advise(0..1, None);
        assert_eq!((pass(&ahead, 0, WHOLE), pass(&ahead, 1, WHOLE)), (Some(true), None));
    }

    #[test]
    fn not_too_many_do_at_a_time() {
        let ahead = read_ahead();
        let max = u64::from(STRETCHES_MAX);
        assert!((0..max).all(|stretch| pass(&ahead, stretch, WHOLE) == Some(true)));
        assert_eq!(pass(&ahead, max, WHOLE), None);
        assert_eq!(pass(&ahead, 7, Stay { is_dirty: true, ..WHOLE }), Some(false));
        assert_eq!(pass(&ahead, max, WHOLE), Some(true));
    }
}
