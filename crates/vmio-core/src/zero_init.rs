//! Types that memory fresh from the kernel is valid for.

use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64};

/// A type whose all-zero bytes are a valid value that needs no drop.
///
/// # Safety
/// The implementor vouches for both.
pub unsafe trait ZeroInit: Sync + Send {}

// SAFETY: zero is a valid value of the integer inside, and nothing needs a drop.
unsafe impl ZeroInit for AtomicU32 {}
// SAFETY: zero is a valid value of the integer inside, and nothing needs a drop.
unsafe impl ZeroInit for AtomicU64 {}
// SAFETY: zero is the null pointer, and nothing needs a drop.
unsafe impl<T> ZeroInit for AtomicPtr<T> {}
