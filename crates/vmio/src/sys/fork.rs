//! Telling a forked child from the process that built the cache.
//!
//! A child inherits the userfaultfd, whose ioctls would act on the *parent*, and handles whose drop would sync. The
//! generation lives in a page that the kernel wipes in the child (MADV_WIPEONFORK), so the check is one load.

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::sys::PAGE_BYTES;
use crate::sys::reservation::Reservation;
use crate::sys::sparse_array::SparseArray;

static PAGE: OnceLock<SparseArray<AtomicU32>> = OnceLock::new();
static LAST: AtomicU32 = AtomicU32::new(0);

/// The process in which something was created; [`Generation::is_current`] is false in its forked children.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Generation(u32);

impl Generation {
    /// The calling process's generation. Allocates at its first call: not for the trap path.
    pub(crate) fn of_this_process() -> io::Result<Self> {
        let page = match PAGE.get() {
            Some(page) => page,
            None => {
                let reservation = Reservation::zeroed(PAGE_BYTES, PAGE_BYTES)?;
                reservation.wipe_on_fork()?;
                PAGE.get_or_init(|| SparseArray::over(reservation))
            }
        };
        let word = page.get(0);
        let fresh = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        match word.compare_exchange(0, fresh, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Ok(Generation(fresh)),
            Err(current) => Ok(Generation(current)),
        }
    }

    /// Whether the caller is still the process that this was taken in, and not a forked child of it.
    #[inline]
    pub(crate) fn is_current(self) -> bool {
        PAGE.get().is_some_and(|page| page.get(0).load(Ordering::Relaxed) == self.0)
    }
}
