//! Telling a forked child from the process that built the cache.
//!
//! A child inherits the userfaultfd, whose ioctls would act on the *parent*, and handles whose drop would sync. The
//! generation is in a page that the kernel wipes in the child (MADV_WIPEONFORK), so the check is one load.

use std::io;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use crate::sys::PAGE_BYTES;
use crate::sys::reservation::Reservation;
use crate::sys::sparse_array::SparseArray;

static PAGE: OnceLock<SparseArray<AtomicU32>> = OnceLock::new();
static LAST: AtomicU32 = AtomicU32::new(0);

/// The process in which something was created. [`Generation::is_current`] is false in its forked children.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Generation(u32);

impl Generation {
    /// The calling process's generation. The first call allocates: not for the trap path.
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

    /// Whether the caller is the process of this generation, and not a forked child of it.
    #[inline]
    pub(crate) fn is_current(self) -> bool {
        PAGE.get().is_some_and(|page| page.get(0).load(Ordering::Relaxed) == self.0)
    }
}

/// A value that only the process which made it may use or drop.
///
/// Examples are a thread's handle, a ring, and anything with memory that children do not get. So are values with locks,
/// which another thread of the parent may have held at the fork.
///
/// A forked child finds nothing here, and dropping it there does nothing. By then the memory at the value's addresses
/// is the child's own. A thread of the child may have the ID of one of its parent's.
///
/// # Examples
///
/// ```
/// let pool = vmio::OfProcess::new(vec![1, 2, 3])?;
/// let length = pool.map(Vec::len);
/// // In a forked child both are `None`.
/// assert_eq!((pool.get().map(Vec::len), length.get()), (Some(3), Some(&3)));
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct OfProcess<T> {
    /// Initialized in the process of `generation`; not to be touched in others.
    value: MaybeUninit<T>,
    generation: Generation,
}

impl<T> OfProcess<T> {
    /// Makes a value that belongs to the calling process.
    ///
    /// # Errors
    ///
    /// The system has no memory for the mark of the process, which is made once.
    pub fn new(value: T) -> io::Result<Self> {
        Ok(OfProcess { value: MaybeUninit::new(value), generation: Generation::of_this_process()? })
    }

    /// Returns the value; `None` in a forked child.
    #[inline]
    pub fn get(&self) -> Option<&T> {
        // SAFETY: in the process of the generation there is a value.
        self.generation.is_current().then(|| unsafe { self.value.assume_init_ref() })
    }

    /// Returns the value for changes; `None` in a forked child.
    #[inline]
    pub fn get_mut(&mut self) -> Option<&mut T> {
        // SAFETY: in the process of the generation there is a value.
        self.generation.is_current().then(|| unsafe { self.value.assume_init_mut() })
    }

    /// Makes another value from this one, for the same process. Makes nothing in a forked child.
    pub fn map<U>(&self, make: impl FnOnce(&T) -> U) -> OfProcess<U> {
        let value = self.get().map_or_else(MaybeUninit::uninit, |value| MaybeUninit::new(make(value)));
        OfProcess { value, generation: self.generation }
    }

    /// Returns the value and consumes this; `None` in a forked child, where the value is leaked.
    pub fn into_inner(self) -> Option<T> {
        let this = ManuallyDrop::new(self);
        // SAFETY: in the process of the generation there is a value; `this` is never dropped, so nobody sees the value
        // again.
        this.generation.is_current().then(|| unsafe { this.value.assume_init_read() })
    }
}

impl<T: Clone> Clone for OfProcess<T> {
    fn clone(&self) -> Self {
        self.map(T::clone)
    }
}

impl<T> Drop for OfProcess<T> {
    fn drop(&mut self) {
        if self.generation.is_current() {
            // SAFETY: in the process of the generation there is a value, and nothing else drops it.
            unsafe { self.value.assume_init_drop() };
        }
    }
}

impl<T> std::fmt::Debug for OfProcess<T> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("OfProcess").field("generation", &self.generation).finish_non_exhaustive()
    }
}

/// A value of which each process has one of its own, locks above all. A forked child begins with a new one, whatever
/// other threads of its parent were doing with theirs.
pub(crate) struct PerProcess<T: 'static> {
    /// Never freed: a child cannot tell whether another thread uses it. A line of forks leaves one for each process.
    present: AtomicPtr<(Generation, T)>,
}

impl<T: Default> PerProcess<T> {
    pub(crate) const fn new() -> Self {
        PerProcess { present: AtomicPtr::new(ptr::null_mut()) }
    }

    /// The value of the calling process. The first call allocates.
    pub(crate) fn get(&self) -> io::Result<&'static T> {
        let found = self.present.load(Ordering::Acquire);
        // SAFETY: the pointer is null, or to a value that is never freed.
        if let Some((generation, value)) = unsafe { found.as_ref() }
            && generation.is_current()
        {
            return Ok(value);
        }
        let new = Box::into_raw(Box::new((Generation::of_this_process()?, T::default())));
        let present = match self.present.compare_exchange(found, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => new,
            Err(faster) => {
                // SAFETY: it comes from `Box::into_raw` above, and nobody else has seen it.
                drop(unsafe { Box::from_raw(new) });
                faster
            }
        };
        // SAFETY: it is not null, and its value is never freed.
        Ok(unsafe { &(*present).1 })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// A child neither finds nor drops the value.
    #[test]
    fn a_value_of_the_parents_is_nothing_to_a_child() {
        struct Ends(i32);
        impl Drop for Ends {
            fn drop(&mut self) {
                // SAFETY: ends the process at once.
                unsafe { libc::_exit(self.0) };
            }
        }
        let values = [OfProcess::new(Ends(1)).unwrap(), OfProcess::new(Ends(2)).unwrap()];
        // SAFETY: the child makes system calls and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let [mut dropped, taken] = values;
            let made = dropped.map(|_| Ends(4));
            let is_found = made.get().is_some() || dropped.get().is_some() || dropped.get_mut().is_some();
            drop((made, dropped));
            let is_found = taken.into_inner().is_some() || is_found;
            // SAFETY: ends the process at once.
            unsafe { libc::_exit(3 * i32::from(is_found)) };
        }
        let mut status = 0;
        // SAFETY: the status is ours.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0);
        assert!(values.iter().all(|value| value.get().is_some()));
        values.into_iter().for_each(|value| std::mem::forget(value.into_inner()));
    }

    #[test]
    fn a_child_has_a_lock_of_its_own() {
        static LOCKED: PerProcess<Mutex<u32>> = PerProcess::new();
        *LOCKED.get().unwrap().lock().unwrap() = 7;
        let held = LOCKED.get().unwrap().lock().unwrap();
        // SAFETY: the child makes system calls, allocates a little, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let is_new = LOCKED.get().is_ok_and(|lock| lock.try_lock().is_ok_and(|value| *value == 0));
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(i32::from(!is_new)) };
        }
        let mut status = 0;
        // SAFETY: the status is ours.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!((status, *held), (0, 7));
        drop(held);
        assert_eq!(*LOCKED.get().unwrap().lock().unwrap(), 7);
    }
}
