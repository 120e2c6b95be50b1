//! The level in memory: keys in order, and where their newest records are.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{RwLock, RwLockReadGuard};

use crate::format::pointer::Pointer;

/// What an entry takes besides its key's bytes: its share of a node, the key's allocation, and the pointer.
const ENTRY_BYTES: u64 = 64;

type Entries = BTreeMap<Box<[u8]>, Entry>;

#[derive(Clone, Copy)]
struct Entry {
    sequence: u64,
    pointer: Pointer,
}

/// A level in memory.
pub(crate) struct MemoryLevel {
    entries: RwLock<Entries>,
    bytes: AtomicU64,
    /// The number of the first record that may be in it, and where that is in the log.
    pub(crate) first_sequence: u64,
    pub(crate) log_offset: u64,
}

impl MemoryLevel {
    /// An empty one, for records from this number on.
    pub(crate) fn new(first_sequence: u64, log_offset: u64) -> Self {
        MemoryLevel { entries: RwLock::default(), bytes: AtomicU64::new(0), first_sequence, log_offset }
    }

    /// About how many bytes of memory it takes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.read().is_empty()
    }

    /// Sets the newest record of a key; returns what is replaced.
    pub(crate) fn insert(&self, key: &[u8], sequence: u64, pointer: Pointer) -> Option<Pointer> {
        let mut entries = self.entries.write();
        if let Some(entry) = entries.get_mut(key) {
            if sequence < entry.sequence {
                return Some(pointer);
            }
            let replaced = std::mem::replace(entry, Entry { sequence, pointer });
            return Some(replaced.pointer);
        }
        entries.insert(key.into(), Entry { sequence, pointer });
        self.bytes.fetch_add(ENTRY_BYTES + key.len() as u64, Ordering::Relaxed);
        None
    }

    pub(crate) fn get(&self, key: &[u8]) -> Option<Pointer> {
        self.entries.read().get(key).map(|entry| entry.pointer)
    }

    /// Some entries in order, from a bound on.
    pub(crate) fn some_from(&self, from: Bound<&[u8]>, most: usize) -> Vec<(Box<[u8]>, Pointer)> {
        let entries: RwLockReadGuard<'_, Entries> = self.entries.read();
        let range = entries.range::<[u8], _>((from, Bound::Unbounded));
        range.take(most).map(|(key, entry)| (key.clone(), entry.pointer)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::pointer::PointerKind;

    fn pointer(offset: u64) -> Pointer {
        Pointer::new(PointerKind::Value, offset, 64)
    }

    #[test]
    fn the_newest_record_of_a_key_counts() {
        let level = MemoryLevel::new(1, 0);
        assert_eq!(level.insert(b"a", 5, pointer(8)), None);
        assert_eq!(level.insert(b"a", 7, pointer(16)), Some(pointer(8)));
        assert_eq!(level.insert(b"a", 6, pointer(24)), Some(pointer(24)), "an older one is garbage at once");
        assert_eq!(level.get(b"a"), Some(pointer(16)));
        assert_eq!(level.get(b"b"), None);
        assert_eq!(level.bytes(), ENTRY_BYTES + 1);
    }
}
