//! Pages in memory: advice, misses on purpose, and queries.

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr;

use vmio::{Advice, Reuse};

use crate::failure::{Failure, contain, report};
use crate::ffi::cache::unknown;
use crate::ffi::mapping::{range, vmio_mapping};
use crate::ffi::memory::{bytes_at, given, read_array};
use crate::status::vmio_status;

/// Nothing special: no read-ahead.
pub const VMIO_ADVICE_NORMAL: u32 = 0;
/// Accesses jump about: no read-ahead.
pub const VMIO_ADVICE_RANDOM: u32 = 1;
/// Accesses go upwards: a miss reads `value` bytes from its page on; 0 for the most, 128 KiB.
pub const VMIO_ADVICE_SEQUENTIAL: u32 = 2;
/// The range will be wanted soon: read it now, as far as the cache has pages for it.
pub const VMIO_ADVICE_WILL_NEED: u32 = 3;
/// The range will not be wanted soon: write its dirty pages and give all its pages up.
pub const VMIO_ADVICE_DONT_NEED: u32 = 4;
/// The device holds garbage that the program is about to write over: misses fill pages with zeros instead of reading.
pub const VMIO_ADVICE_FRESH: u32 = 5;
/// The program needs the contents no more: drop them without writing. Loads before the next store get undefined bytes.
pub const VMIO_ADVICE_FREE: u32 = 6;
/// The order of eviction: `value` is 0 (keep) to 255 (evict first).
pub const VMIO_ADVICE_PRIORITY: u32 = 7;
/// How often each page is wanted, for pages that come in from now on: `value` is VMIO_REUSE_*.
pub const VMIO_ADVICE_REUSE: u32 = 8;
/// Only the device's contents count: drop pages in memory without writing them, and forget which were fresh. For
/// programs that write the file past the mapping; stores since the last sync are lost.
pub const VMIO_ADVICE_INVALIDATE: u32 = 9;
/// The program needs the range no more for now: its pages are evicted before those in use, when the cache needs space.
pub const VMIO_ADVICE_COLD: u32 = 10;

/// Not known: the cache finds out.
pub const VMIO_REUSE_UNKNOWN: u32 = 0;
/// Once, or several times within a short while, as by a scan: no page counts as wanted again.
pub const VMIO_REUSE_ONCE: u32 = 1;
/// Again and again, if only after a long time: every page counts as wanted often from the first time on.
pub const VMIO_REUSE_OFTEN: u32 = 2;

/// A range of bytes of a mapping.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct vmio_range {
    /// Where it begins.
    pub offset: u64,
    /// Its length; VMIO_TO_END for all that follows.
    pub len: u64,
}

/// Tells the cache how a range will be used: VMIO_ADVICE_*, with a value for those that take one, else 0. Priorities,
/// read-ahead and reuse are kept per 2 MiB, and set for all 2 MiB that the range touches. Other advice applies to whole
/// pages.
#[unsafe(no_mangle)]
pub extern "C" fn vmio_advise(
    mapping: Option<&vmio_mapping>,
    offset: u64,
    len: u64,
    advice: u32,
    value: u32,
) -> vmio_status {
    report(|| {
        let mapping = &given(mapping, "mapping")?.0;
        Ok(mapping.advise(range(mapping, offset, len)?, advice_of(advice, value)?)?)
    })
}

/// Makes every page that a range touches resident, as loads would, but without the trap. Nothing holds them afterwards.
#[unsafe(no_mangle)]
pub extern "C" fn vmio_ensure(mapping: Option<&vmio_mapping>, offset: u64, len: u64) -> vmio_status {
    report(|| {
        let mapping = &given(mapping, "mapping")?.0;
        Ok(mapping.ensure(range(mapping, offset, len)?)?)
    })
}

/// Begins to read ranges that will be wanted soon, and returns at once: a guess, which takes little from others. A call
/// brings in an eighth of the cache at most, of the ranges that come first. A page that cannot be read is an error of
/// the access that needs it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmio_prefetch(
    mapping: Option<&vmio_mapping>,
    ranges: *const vmio_range,
    count: usize,
) -> vmio_status {
    report(|| {
        let mapping = &given(mapping, "mapping")?.0;
        // SAFETY: the caller vouches for the array.
        let ranges = unsafe { read_array(ranges, count) };
        let ranges = ranges.iter().map(|wanted| range(mapping, wanted.offset, wanted.len));
        Ok(mapping.prefetch(ranges.collect::<Result<Vec<_>, _>>()?)?)
    })
}

/// Returns whether the page of a byte is in memory right now; false behind the end. The answer may change at once.
#[unsafe(no_mangle)]
pub extern "C" fn vmio_is_resident(mapping: Option<&vmio_mapping>, offset: u64) -> bool {
    contain(false, || mapping.is_some_and(|mapping| mapping.0.is_resident(offset)))
}

/// Finds out which of the pages of 4096 bytes that a range touches are in memory. It sets `pages[n]` to 1 or 0 for
/// each, as far as its `count` elements go, and `*resident` to the number of all resident ones. Either may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmio_residency(
    mapping: Option<&vmio_mapping>,
    offset: u64,
    len: u64,
    pages: *mut u8,
    count: usize,
    resident: Option<&mut MaybeUninit<u64>>,
) -> vmio_status {
    report(|| {
        let mapping = &given(mapping, "mapping")?.0;
        let seen = mapping.residency(range(mapping, offset, len)?);
        // SAFETY: the caller vouches for the array.
        let pages = unsafe { bytes_at(pages, count) };
        for (page, number) in pages.iter_mut().zip(0..seen.pages()) {
            page.write(seen.is_resident(number).into());
        }
        if let Some(resident) = resident {
            resident.write(seen.resident_pages());
        }
        Ok(())
    })
}

/// Copies bytes out of the mapping. A page that cannot be read is an error, not a signal.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmio_read_at(
    mapping: Option<&vmio_mapping>,
    offset: u64,
    buffer: *mut c_void,
    bytes: usize,
) -> vmio_status {
    report(|| {
        let mapping = &given(mapping, "mapping")?.0;
        // SAFETY: the caller vouches for the buffer.
        let buffer = unsafe { bytes_at(given_buffer(buffer, bytes)?, bytes) };
        Ok(mapping.read_at(offset, zeroed(buffer))?)
    })
}

/// Copies bytes into the mapping, as by stores.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmio_write_at(
    mapping: Option<&vmio_mapping>,
    offset: u64,
    data: *const c_void,
    bytes: usize,
) -> vmio_status {
    report(|| {
        let mapping = &given(mapping, "mapping")?.0;
        // SAFETY: the caller vouches for the data.
        let data = unsafe { read_array(given_buffer(data.cast_mut(), bytes)?.cast_const(), bytes) };
        Ok(mapping.write_at(offset, data)?)
    })
}

fn given_buffer(buffer: *mut c_void, bytes: usize) -> Result<*mut u8, Failure> {
    if buffer.is_null() && bytes > 0 {
        return Err(Failure::invalid(format!("the buffer of {bytes} bytes is NULL")));
    }
    Ok(buffer.cast())
}

/// Slices of bytes must be initialised.
fn zeroed(buffer: &mut [MaybeUninit<u8>]) -> &mut [u8] {
    buffer.fill(MaybeUninit::new(0));
    // SAFETY: every byte has just been set.
    unsafe { &mut *(ptr::from_mut(buffer) as *mut [u8]) }
}

fn advice_of(advice: u32, value: u32) -> Result<Advice, Failure> {
    let takes_value = matches!(advice, VMIO_ADVICE_SEQUENTIAL | VMIO_ADVICE_PRIORITY | VMIO_ADVICE_REUSE);
    if value != 0 && !takes_value {
        return Err(unknown("value", value, "0 with this advice"));
    }
    Ok(match advice {
        VMIO_ADVICE_NORMAL => Advice::Normal,
        VMIO_ADVICE_RANDOM => Advice::Random,
        VMIO_ADVICE_SEQUENTIAL => Advice::Sequential { window_bytes: value },
        VMIO_ADVICE_WILL_NEED => Advice::WillNeed,
        VMIO_ADVICE_DONT_NEED => Advice::DontNeed,
        VMIO_ADVICE_COLD => Advice::Cold,
        VMIO_ADVICE_FRESH => Advice::Fresh,
        VMIO_ADVICE_FREE => Advice::Free,
        VMIO_ADVICE_INVALIDATE => Advice::Invalidate,
        VMIO_ADVICE_PRIORITY => {
            Advice::Priority(u8::try_from(value).map_err(|_| unknown("value", value, "a priority from 0 to 255"))?)
        }
        VMIO_ADVICE_REUSE => Advice::Reuse(match value {
            VMIO_REUSE_UNKNOWN => Reuse::Unknown,
            VMIO_REUSE_ONCE => Reuse::Once,
            VMIO_REUSE_OFTEN => Reuse::Often,
            other => return Err(unknown("value", other, "VMIO_REUSE_*")),
        }),
        other => return Err(unknown("advice", other, "VMIO_ADVICE_*")),
    })
}
