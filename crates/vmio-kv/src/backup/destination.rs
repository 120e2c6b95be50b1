//! Where the contents of a store go: into a backup, or into another store.

use std::io::Read;

use crate::error::Result;

/// The parts of a store that no keyspace has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoreShape {
    /// The volume's length.
    pub(crate) volume_bytes: u64,
    /// Segments that the store has, numbered from 0.
    pub(crate) segments: u32,
}

/// Takes the contents of a store, one keyspace after the other.
pub(crate) trait Destination {
    /// Begins a keyspace. The records that follow are its own, in the order of their keys.
    fn begin_keyspace(&mut self, segment: u32, name: &str) -> Result<()>;

    /// Takes a key with a value of [`crate::backup::block::SMALL_VALUE_BYTES_MAX`] bytes at most.
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()>;

    /// Takes a key with a longer value, which it reads to its end.
    fn put_large(&mut self, key: &[u8], value_bytes: u64, source: &mut dyn Read) -> Result<()>;
}
