//! System calls that hold pages of a region.

use std::sync::atomic::{AtomicBool, AtomicU32};

/// A region's part in the holds of its pages.
#[derive(Default)]
pub(crate) struct CallsOfRegion {
    pub(in crate::cache) holds: AtomicU32,
    pub(in crate::cache) is_closing: AtomicBool,
    /// Threads that wait for its holds to end their steps.
    pub(in crate::cache) leaving: AtomicU32,
}
