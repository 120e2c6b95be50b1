//! Which region an address belongs to: one look-up, no lock, in the trap path.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::cache::region::{GRANULE_BYTES, Region};
use crate::error::{Error, Result};
use crate::sys::reservation::Reservation;
use crate::sys::sparse_array::SparseArray;

/// User addresses have 47 bits.
const GRANULES: usize = 1 << 17;
const _: () = assert!(GRANULES as u64 * GRANULE_BYTES == 1 << 47);

static TABLE: OnceLock<SparseArray<AtomicPtr<Region>>> = OnceLock::new();

/// The region whose range holds the address.
pub(crate) fn find(address: usize) -> Option<&'static Region> {
    let slot = TABLE.get().filter(|table| address / (GRANULE_BYTES as usize) < table.len())?;
    let region = slot.get(address / GRANULE_BYTES as usize).load(Ordering::Acquire);
    // SAFETY: a region is removed before it is dropped, and whoever touches a mapping that is being closed breaks the
    // contract of `Mapping::as_ptr`.
    unsafe { region.as_ref() }
}

/// Makes the faults of a range find its region.
pub(crate) fn insert(range: &Reservation, region: &Region) -> Result<()> {
    if TABLE.get().is_none() {
        let table = SparseArray::new(GRANULES).map_err(Error::system("reserving the table of mappings"))?;
        let _ = TABLE.set(table);
    }
    set(range, std::ptr::from_ref(region).cast_mut());
    Ok(())
}

/// The opposite of [`insert`].
pub(crate) fn remove(range: &Reservation) {
    set(range, std::ptr::null_mut());
}

fn set(range: &Reservation, value: *mut Region) {
    let Some(table) = TABLE.get() else { return };
    let first = range.base() as usize / GRANULE_BYTES as usize;
    let granules = range.len() / GRANULE_BYTES as usize;
    for granule in first..first + granules {
        table.get(granule).store(value, Ordering::Release);
    }
}
