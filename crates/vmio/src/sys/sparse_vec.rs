//! A vector in memory that is reserved at once: it never allocates later, so that code may add to it that must not.

use std::io;
use std::marker::PhantomData;
use std::slice;

use crate::sys::PAGE_BYTES;
use crate::sys::reservation::Reservation;

/// A vector of up to a fixed number of elements. Only the part that was in use takes memory.
pub(crate) struct SparseVec<T: Copy> {
    reservation: Reservation,
    capacity: usize,
    len: usize,
    elements: PhantomData<T>,
}

impl<T: Copy> SparseVec<T> {
    /// An empty one; costs address space only.
    pub(crate) fn with_capacity(capacity: usize) -> io::Result<Self> {
        const { assert!(align_of::<T>() <= PAGE_BYTES) };
        let bytes = capacity.max(1).checked_mul(size_of::<T>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let reservation = Reservation::zeroed(bytes.next_multiple_of(PAGE_BYTES), PAGE_BYTES)?;
        Ok(SparseVec { reservation, capacity, len: 0, elements: PhantomData })
    }

    /// Adds an element; false if there is no room.
    pub(crate) fn push(&mut self, element: T) -> bool {
        if self.len == self.capacity {
            return false;
        }
        // SAFETY: within the reservation, whose part behind `len` nobody has references to.
        unsafe { self.reservation.base().cast::<T>().add(self.len).write(element) };
        self.len += 1;
        true
    }

    /// Takes an element out; the order of the others stays.
    pub(crate) fn remove(&mut self, index: usize) -> T {
        let removed = self.as_slice()[index];
        self.as_mut_slice().copy_within(index + 1.., index);
        self.len -= 1;
        removed
    }

    /// The elements, in the order in which they came.
    pub(crate) fn as_slice(&self) -> &[T] {
        // SAFETY: the first `len` elements were written, and change through `&mut self` alone.
        unsafe { slice::from_raw_parts(self.reservation.base().cast::<T>(), self.len) }
    }

    /// The elements, for changes.
    pub(crate) fn as_mut_slice(&mut self) -> &mut [T] {
        // SAFETY: as above; the reference is the only one.
        unsafe { slice::from_raw_parts_mut(self.reservation.base().cast::<T>(), self.len) }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn elements_keep_their_order() {
        let mut vec = SparseVec::with_capacity(4).unwrap();
        assert!([7, 8, 9, 10].into_iter().all(|element| vec.push(element)));
        assert!(!vec.push(11), "it is full");
        assert_eq!(vec.remove(1), 8);
        assert!(vec.push(11));
        vec.as_mut_slice()[0] = 6;
        assert_eq!(vec.as_slice(), [6, 9, 10, 11]);
    }
}
