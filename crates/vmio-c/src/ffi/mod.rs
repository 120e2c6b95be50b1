//! The interface that C sees. The documentation here becomes that of `vmio.h`, so it is written for C.
//!
//! Handles come as `Option<&T>` and `Option<Box<T>>`, which are C's pointers with NULL as `None`. The header says that
//! a pointer is NULL, or one that a call of the library gave out and has not taken back. The type then says the rest.
#![allow(non_camel_case_types, reason = "the names are C's")]
#![allow(clippy::missing_safety_doc, reason = "the contract is the header's first paragraph, in C's words")]

pub mod cache;
pub mod error;
pub mod journal;
pub mod mapping;
mod memory;
pub mod pin;
pub mod residency;
pub mod sync;

/// Handles go from thread to thread, and are used by several at a time.
const _: () = {
    const fn shared_by_threads<T: Send + Sync>() {}
    shared_by_threads::<cache::vmio_cache>();
    shared_by_threads::<journal::vmio_journal>();
    shared_by_threads::<mapping::vmio_mapping>();
    shared_by_threads::<pin::vmio_pinned>();
    shared_by_threads::<sync::vmio_sync_handle>();
};
