//! The format of a volume on the device: docs/formats/volume.md in code. It converts bytes only, and reads and writes no device.

pub(crate) mod bitmap;
pub(crate) mod block;
pub(crate) mod branch;
pub(crate) mod catalogue;
pub(crate) mod child;
pub(crate) mod chunk;
pub(crate) mod extents;
pub(crate) mod free_log;
pub(crate) mod geometry;
pub(crate) mod leaf;
pub(crate) mod leaf_builder;
pub(crate) mod owner;
pub(crate) mod pivot;
pub(crate) mod pointer;
pub(crate) mod record;
pub(crate) mod superblock;
pub(crate) mod unit_table;
pub(crate) mod volume_header;
