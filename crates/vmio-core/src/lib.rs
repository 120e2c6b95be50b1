//! The state that the threads of a cache share: of pages and spans, the budget, free frames, and the gate of stores. Loom explores page words,
//! occupancy, views, the budget, free frames and the gate.
//!
//! A part of the crates `vmio` and `vmio-ring0`, for them alone: its items change in any version. It stands by itself so that loom's models are built
//! and run without the rest.

pub mod atomic;
pub mod budget;
pub mod free_frames;
pub mod futex;
pub mod futex_lock;
pub mod page;
pub mod store_gate;
pub mod zero_init;

/// The page size that vmio is built for, in bytes.
pub const PAGE_BYTES: usize = 4096;
/// Bytes that one page table maps, or one huge page in its place.
pub const HUGE_PAGE_BYTES: usize = 2 << 20;
