//! What an address belongs to: one look-up, no lock, in the trap path.

use std::io;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::sys::sparse_array::SparseArray;

/// Address space is handed out in units of this to what a fault has to find.
pub(crate) const GRANULE_BYTES: usize = 1 << 30;

/// User addresses have 47 bits.
const GRANULES: usize = 1 << 17;
const _: () = assert!(GRANULES * GRANULE_BYTES == 1 << 47);

/// What some ranges of whole granules belong to.
pub(crate) struct AddressTable<T: 'static> {
    slots: OnceLock<SparseArray<AtomicPtr<T>>>,
}

impl<T> AddressTable<T> {
    pub(crate) const fn new() -> Self {
        AddressTable { slots: OnceLock::new() }
    }

    /// What an address belongs to.
    pub(crate) fn find(&self, address: usize) -> Option<&'static T> {
        let slots = self.slots.get().filter(|slots| address / GRANULE_BYTES < slots.len())?;
        let found = slots.get(address / GRANULE_BYTES).load(Ordering::Acquire);
        // SAFETY: it is removed before it is dropped, and whoever touches a mapping that is being closed breaks the
        // contract of `Mapping::as_ptr`.
        unsafe { found.as_ref() }
    }

    /// Makes the addresses of a range find something, which has to be removed before it is dropped.
    pub(crate) fn insert(&self, addresses: Range<usize>, target: &T) -> io::Result<()> {
        if self.slots.get().is_none() {
            let _ = self.slots.set(SparseArray::new(GRANULES)?);
        }
        self.of(addresses).for_each(|slot| slot.store(std::ptr::from_ref(target).cast_mut(), Ordering::Release));
        Ok(())
    }

    /// The opposite of [`Self::insert`]. What another has put there stays: a forked child gives the addresses of its parent's mappings,
    /// which it does not have, to its own.
    pub(crate) fn remove(&self, addresses: Range<usize>, target: &T) {
        let target = std::ptr::from_ref(target).cast_mut();
        self.of(addresses).for_each(|slot| {
            let _ = slot.compare_exchange(target, std::ptr::null_mut(), Ordering::Release, Ordering::Relaxed);
        });
    }

    fn of(&self, addresses: Range<usize>) -> impl Iterator<Item = &AtomicPtr<T>> {
        let granules = addresses.start / GRANULE_BYTES..addresses.end.div_ceil(GRANULE_BYTES);
        self.slots.get().into_iter().flat_map(move |slots| granules.clone().map(|granule| slots.get(granule)))
    }
}
