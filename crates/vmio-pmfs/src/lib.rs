//! A file system as a library over byte-addressable memory. Large files get aligned extents of 2 MiB, and every call is atomic and durable.
//!
//! [`Fs::make`] writes an empty file system to a [`Medium`], [`Fs::mount`] opens one, [`check()`] verifies one without changing it,
//! [`Inspection`] shows its structures, and [`repair()`] repairs one.

mod alloc;
mod check;
mod data;
mod directories;
mod error;
mod format;
mod fs;
mod inodes;
mod inspect;
mod journal;
mod medium;
mod repair;

pub use check::{Census, Fault, Report, check};
pub use data::{Length, Mode, Seek};
pub use directories::Named;
pub use error::{Damage, Error, Result};
pub use format::geometry::{BLOCK_BYTES, EXTENT_BYTES, Geometry, ROOT};
pub use format::inode::{Kind, NAME_BYTES_MAX, SYMLINK_BYTES_MAX, Time};
pub use format::journal_entry::Said;
pub use format::superblock::{Superblock, VERSION};
pub use format::xattrs::ALIGNED;
pub use fs::attributes::{Attributes, Changes};
pub use fs::files::RangeChange;
pub use fs::gathering::Gathered;
pub use fs::growing::Appends;
pub use fs::leasing::{Holes, Lease, LeasedExtent};
pub use fs::names::{New, Replace};
pub use fs::rewriting::Rewrite;
pub use fs::xattrs::Precondition;
pub use fs::{Fs, Recovered, Space};
pub use inspect::{Area, EntryFound, ExtentFound, InodeFound, Inspection, JournalFound, SlotFound};
pub use medium::Medium;
pub use medium::mapped::{Access, MappedFile};
pub use medium::overlay::Overlay;
pub use medium::simulated::{Simulated, Store};
pub use repair::{Repaired, repair};
