//! The bytes of a file system (docs/formats/pmfs.md): layouts and checksums, no access to a medium.

pub(crate) mod chain;
pub(crate) mod entry;
pub(crate) mod geometry;
pub(crate) mod growth_slot;
pub(crate) mod inode;
pub(crate) mod journal_entry;
pub(crate) mod superblock;
pub(crate) mod target;
pub(crate) mod xattrs;
