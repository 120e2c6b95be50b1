//! Writes a leaf: collects entries, and the records that the leaf is to hold, until it is full.

use zerocopy::IntoBytes;
use zerocopy::byteorder::little_endian::{U16, U32, U64};

use crate::format::block::{Block, HEADER_BYTES, Kind, Label, Uuid, seal};
use crate::format::geometry::BLOCK_BYTES;
use crate::format::leaf::{
    ENTRIES_AT, ENTRIES_MAX, Entry, EntryRow, InlineRow, KnownKey, LeafRow, PREFIX_BYTES_MAX, common_prefix,
};
use crate::format::pointer::{Pointer, PointerKind, WINDOW_BYTES};

/// Bytes of the key that a record in the leaf has.
fn rest_bytes(entry: &Entry, prefix_bytes: usize) -> usize {
    entry.key.bytes.len().saturating_sub(prefix_bytes + WINDOW_BYTES)
}

/// Bytes of an entry in a leaf with that prefix.
fn bytes_of(entry: &Entry, prefix_bytes: usize) -> usize {
    let inline = |value: &Vec<u8>| size_of::<InlineRow>() + rest_bytes(entry, prefix_bytes) + value.len();
    size_of::<EntryRow>() + entry.value.as_ref().map_or(0, inline)
}

/// Collects entries in order until a leaf is full.
#[derive(Default)]
pub(crate) struct LeafBuilder {
    entries: Vec<Entry>,
    prefix_bytes: usize,
    /// Bytes of the entries and their records.
    bytes: usize,
}

impl LeafBuilder {
    /// The length of the prefix with another entry, and the bytes of all, if the entry fits.
    fn with(&self, entry: &Entry) -> Option<(usize, usize)> {
        let key = &entry.key;
        let prefix_bytes = match self.entries.first() {
            Some(first) => common_prefix(&first.key.bytes[..self.prefix_bytes], &key.bytes),
            None => key.bytes.len().min(PREFIX_BYTES_MAX),
        };
        // With a shorter prefix, records in the leaf have more of their keys.
        let before = match prefix_bytes == self.prefix_bytes {
            true => self.bytes,
            false => self.entries.iter().map(|entry| bytes_of(entry, prefix_bytes)).sum(),
        };
        let bytes = before + bytes_of(entry, prefix_bytes);
        let has_space = self.entries.len() < ENTRIES_MAX && bytes <= BLOCK_BYTES - ENTRIES_AT - prefix_bytes;
        has_space.then_some((prefix_bytes, bytes))
    }

    /// Appends an entry whose key is greater than all before; returns the entry if it does not fit.
    pub(crate) fn push(&mut self, entry: Entry) -> Result<(), Entry> {
        match self.with(&entry) {
            Some((prefix_bytes, bytes)) => {
                (self.prefix_bytes, self.bytes) = (prefix_bytes, bytes);
                // Between the first and the last key only the bytes that the leaf stores are needed.
                if let [_, .., before] = self.entries.as_mut_slice()
                    && before.value.is_none()
                {
                    before.key.forget_end();
                }
                self.entries.push(entry);
                Ok(())
            }
            None => Err(entry),
        }
    }

    /// The first key and the last.
    pub(crate) fn ends(&self) -> Option<(&KnownKey, &KnownKey)> {
        Some((&self.entries.first()?.key, &self.entries.last()?.key))
    }

    /// Bytes of memory that the keys take.
    #[cfg(test)]
    pub(super) fn key_capacity(&self) -> usize {
        self.entries.iter().map(|entry| entry.key.bytes.capacity()).sum()
    }

    /// Returns the leaf's block, and empties the builder.
    pub(crate) fn finish(&mut self, segment: Uuid, keyspace: u32, offset: u64, epoch: u64) -> Block {
        let LeafBuilder { entries, prefix_bytes, .. } = std::mem::take(self);
        let mut block = Block::ZERO;
        let mut window_bytes = WINDOW_BYTES;
        let mut at = ENTRIES_AT + entries.len() * size_of::<EntryRow>();
        for (index, Entry { key, value }) in entries.iter().enumerate() {
            let rest = &key.bytes[prefix_bytes..];
            let known = rest.len().min(WINDOW_BYTES);
            let complete = key.complete && known == rest.len();
            if !complete {
                window_bytes = window_bytes.min(known);
            }
            let mut window = [0; WINDOW_BYTES];
            window[..known].copy_from_slice(&rest[..known]);
            let pointer = match value {
                None => {
                    assert_ne!(key.pointer.kind(), PointerKind::Inline, "a record of another leaf");
                    key.pointer
                }
                Some(value) => {
                    let rest = &rest[known..];
                    let row = InlineRow {
                        entry: index as u8,
                        rest_bytes: U16::new(rest.len() as u16),
                        value_bytes: U16::new(value.len() as u16),
                    };
                    let start = at;
                    for part in [row.as_bytes(), rest, value] {
                        block.0[at..at + part.len()].copy_from_slice(part);
                        at += part.len();
                    }
                    Pointer::new(PointerKind::Inline, offset + start as u64, (at - start) as u32)
                }
            };
            let pointer = pointer.with_known(known, complete).to_bits();
            let row = EntryRow { window, hash: U32::new(key.hash), pointer: U64::new(pointer) };
            let place = ENTRIES_AT + index * size_of::<EntryRow>();
            block.0[place..place + size_of::<EntryRow>()].copy_from_slice(row.as_bytes());
        }
        let row = LeafRow {
            prefix_bytes: U16::new(prefix_bytes as u16),
            window_bytes: window_bytes as u8,
            reserved: 0,
            writes: U32::ZERO,
        };
        block.0[HEADER_BYTES..ENTRIES_AT].copy_from_slice(row.as_bytes());
        if let Some(first) = entries.first() {
            block.0[BLOCK_BYTES - prefix_bytes..].copy_from_slice(&first.key.bytes[..prefix_bytes]);
        }
        seal(&mut block.0, segment, Label { kind: Kind::Leaf, keyspace, offset, epoch }, entries.len() as u16);
        block
    }
}
