//! A table of the owners of address ranges: one look-up without a lock, for the trap path.

use std::io;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::sys::sparse_array::SparseArray;

/// The unit in which ranges that a fault must find get their address space.
pub(crate) const GRANULE_BYTES: usize = 1 << 30;

/// User addresses have 47 bits.
const GRANULES: usize = 1 << 17;
const _: () = assert!(GRANULES * GRANULE_BYTES == 1 << 47);

/// A table of the owners of ranges, in whole granules.
pub(crate) struct AddressTable<T: 'static> {
    slots: OnceLock<SparseArray<AtomicPtr<T>>>,
}

impl<T> AddressTable<T> {
    pub(crate) const fn new() -> Self {
        AddressTable { slots: OnceLock::new() }
    }

    /// The owner of an address.
    pub(crate) fn find(&self, address: usize) -> Option<&'static T> {
        let slots = self.slots.get().filter(|slots| address / GRANULE_BYTES < slots.len())?;
        let found = slots.get(address / GRANULE_BYTES).load(Ordering::Acquire);
        // SAFETY: an owner is taken out before it is dropped. Code that touches a mapping while it closes breaks the
        // contract of `Mapping::as_ptr`.
        unsafe { found.as_ref() }
    }

    /// Enters the owner of a range. Before its drop, [`Self::remove`] must take it out.
    pub(crate) fn insert(&self, addresses: Range<usize>, target: &T) -> io::Result<()> {
        if self.slots.get().is_none() {
            let _ = self.slots.set(SparseArray::new(GRANULES)?);
        }
        self.of(addresses).for_each(|slot| slot.store(std::ptr::from_ref(target).cast_mut(), Ordering::Release));
        Ok(())
    }

    /// Undoes [`Self::insert`]. Entries of another owner stay: a forked child does not have its parent's mappings, and
    /// may give their addresses to its own.
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
