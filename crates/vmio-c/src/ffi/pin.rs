//! Ranges that stay in memory.

use std::mem::MaybeUninit;

use vmio::Pin;

use crate::failure::{contain, report};
use crate::ffi::mapping::{access, range, vmio_mapping};
use crate::ffi::memory::{given, hand_out};
use crate::status::vmio_status;

/// A range that stays in memory.
pub struct vmio_pinned {
    /// Kept for the sake of its end.
    _pin: Pin,
}

/// Makes a range resident and keeps it so until vmio_unpin. System calls may get pointers into it, and may write there
/// as well if `access` is VMIO_READ_WRITE (it stays dirty until then). Pins may hold three quarters of the cache.
#[unsafe(no_mangle)]
pub extern "C" fn vmio_pin(
    mapping: Option<&vmio_mapping>,
    offset: u64,
    len: u64,
    access: u32,
    pinned: Option<&mut MaybeUninit<*mut vmio_pinned>>,
) -> vmio_status {
    report(|| {
        hand_out(pinned, "pinned", || {
            let mapping = &given(mapping, "mapping")?.0;
            let access = self::access(access, "access")?;
            Ok(vmio_pinned { _pin: mapping.pin(range(mapping, offset, len)?, access)? })
        })
    })
}

/// Unpins the range, and closes the mapping if all its handles are closed. NULL does nothing.
#[unsafe(no_mangle)]
pub extern "C" fn vmio_unpin(pinned: Option<Box<vmio_pinned>>) {
    contain((), || drop(pinned));
}
