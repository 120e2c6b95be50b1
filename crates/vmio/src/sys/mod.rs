//! The system calls, signal handling and raw memory on which vmio is built.
//!
//! Only this module, [`crate::engine`], and the copy loops of [`crate::mapping`] and [`crate::cache`] have `unsafe`
//! code. Everything here is async-signal-safe unless it says otherwise.

pub(crate) mod abort;
pub(crate) mod address_table;
pub(crate) mod aio;
pub(crate) mod batch_ring;
pub(crate) mod byte_locks;
pub(crate) mod cancellation;
pub(crate) mod chained_action;
pub(crate) mod cpu;
pub(crate) mod errno;
pub(crate) mod extent_leases;
pub(crate) mod fault_messages;
pub(crate) mod file_map;
pub(crate) mod fork;
pub(crate) mod growing_map;
pub(crate) mod guest_mode;
pub(crate) mod hold;
pub(crate) mod kernel;
pub(crate) mod mapped_pages;
pub(crate) mod memory_file;
pub(crate) mod mpsc_queue;
pub(crate) mod nvme;
pub(crate) mod own_memory;
pub(crate) mod page_cache;
pub(crate) mod page_scan;
pub(crate) mod pagemap;
pub(crate) mod persistent_map;
pub(crate) mod persistent_memory;
pub(crate) mod polled_rings;
pub(crate) mod positioned;
pub(crate) mod probes;
pub(crate) mod published_memory;
pub(crate) mod reservation;
pub(crate) mod ring;
pub(crate) mod signal;
pub(crate) mod sparse_array;
pub(crate) mod sparse_vec;
pub(crate) mod task_stat;
pub(crate) mod thread;
pub(crate) mod unmap;
pub(crate) mod userfaultfd;
pub(crate) mod vmio_module;

/// The page size that vmio is built for, in bytes; [`crate::CacheBuilder::build`] refuses to run on any other.
pub const PAGE_BYTES: usize = vmio_core::PAGE_BYTES;
/// The memory that one page table maps, or one huge page in its place.
pub(crate) const HUGE_PAGE_BYTES: usize = 2 << 20;
