//! A stream with all contents of a store: its bytes, and its writer and reader. docs/formats/backup.md is this module in words.

pub(crate) mod block;
mod counts;
mod destination;
mod parts;
mod reader;
mod writer;

pub use counts::BackupCounts;
pub(crate) use destination::{Destination, StoreShape};
pub(crate) use reader::BackupReader;
pub(crate) use writer::BackupWriter;

#[cfg(test)]
mod tests;
