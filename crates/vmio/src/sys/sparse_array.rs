//! Arrays of which most elements are never touched. Only written elements use memory.

use std::io;
use std::marker::PhantomData;
use std::ops::Range;
use std::slice;

use vmio_core::zero_init::ZeroInit;

use crate::sys::PAGE_BYTES;
use crate::sys::reservation::Reservation;

/// A fixed-length array of zero-initialised elements, shared through `&`.
pub(crate) struct SparseArray<T: ZeroInit> {
    reservation: Reservation,
    len: usize,
    elements: PhantomData<T>,
}

impl<T: ZeroInit> SparseArray<T> {
    /// Reserves `len` elements; costs address space only.
    pub(crate) fn new(len: usize) -> io::Result<Self> {
        let bytes = len.max(1).checked_mul(size_of::<T>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let reservation = Reservation::zeroed(bytes.next_multiple_of(PAGE_BYTES), PAGE_BYTES)?;
        reservation.small_pages_only()?;
        Ok(SparseArray { reservation, len, elements: PhantomData })
    }

    /// Makes an array of as many elements as fit a reservation of zeros.
    pub(crate) fn over(reservation: Reservation) -> Self {
        let len = reservation.len() / size_of::<T>();
        SparseArray { reservation, len, elements: PhantomData }
    }

    /// The number of elements.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Address and length in bytes of elements that fill whole pages of memory. If the caller gives that memory back,
    /// the elements are as at first.
    pub(crate) fn pages_of(&self, elements: Range<usize>) -> (usize, usize) {
        assert!(elements.start <= elements.end && elements.end <= self.len, "{elements:?} of {}", self.len);
        let (start, len) = (elements.start * size_of::<T>(), elements.len() * size_of::<T>());
        assert!(start.is_multiple_of(PAGE_BYTES) && len.is_multiple_of(PAGE_BYTES), "{elements:?} share a page");
        (self.reservation.base() as usize + start, len)
    }

    /// The element at `index`. Panics for a wrong index, which is a bug of the caller.
    #[inline]
    pub(crate) fn get(&self, index: usize) -> &T {
        assert!(index < self.len, "index {index} of a sparse array of {}", self.len);
        // SAFETY: in bounds by the assertion. The kernel has zeroed the memory, and T is valid there (ZeroInit). The
        // memory stays mapped as long as self. Only shared references are ever made.
        unsafe { &*self.reservation.base().cast::<T>().add(index) }
    }

    /// Some elements. Panics for a wrong range, which is a bug of the caller.
    #[inline]
    pub(crate) fn slice(&self, elements: Range<usize>) -> &[T] {
        assert!(elements.start <= elements.end && elements.end <= self.len, "{elements:?} of {}", self.len);
        // SAFETY: in bounds by the assertion. The kernel has zeroed the memory, and T is valid there (ZeroInit). The
        // memory stays mapped as long as self. Only shared references are ever made.
        unsafe { slice::from_raw_parts(self.reservation.base().cast::<T>().add(elements.start), elements.len()) }
    }
}
