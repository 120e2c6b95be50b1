//! The index of a directory, in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use super::scan::{Found, scan};
use crate::error::{Damage, Error, Result};
use crate::format::entry::{Entry, SLOTS_A_BLOCK, slots_of};
use crate::format::inode::Kind;
use crate::inodes::loaded::Loaded;
use crate::medium::Medium;

/// An entry of a directory, as users see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// The inode.
    pub ino: u64,
    /// Its kind.
    pub kind: Kind,
    /// The name.
    pub name: Vec<u8>,
    /// The place from which a listing goes on behind this entry. It stays, whatever happens to other entries.
    pub cookie: u64,
}

/// The entry of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) ino: u64,
    pub(crate) kind: Kind,
    /// The first slot of the entry.
    pub(crate) slot: u32,
}

/// The index of a directory.
#[derive(Default)]
pub(crate) struct Index {
    by_name: BTreeMap<Arc<[u8]>, Known>,
    by_slot: BTreeMap<u32, Arc<[u8]>>,
    free: BTreeSet<u32>,
    blocks: u32,
}

impl Index {
    /// Reads a directory.
    pub(crate) fn load(medium: &dyn Medium, directory: &Loaded) -> Result<Index> {
        let mut index = Index::default();
        for slots in scan(medium, directory) {
            let slots = slots?;
            index.add_block();
            for Found { slot, at, entry } in slots {
                let entry = entry?;
                if index.get(&entry.name).is_some() {
                    let damage = Damage::Field { field: "second entry of a name, for inode", found: entry.ino };
                    return Err(Error::Damaged { structure: "a directory", at, damage });
                }
                index.insert(entry, slot);
            }
        }
        Ok(index)
    }

    pub(crate) fn get(&self, name: &[u8]) -> Option<Known> {
        self.by_name.get(name).copied()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// All names.
    pub(crate) fn names(&self) -> impl Iterator<Item = (&[u8], Known)> {
        self.by_name.iter().map(|(name, known)| (&**name, *known))
    }

    /// The entries from a cookie on; 0 is the beginning.
    pub(crate) fn entries_from(&self, cookie: u64) -> impl Iterator<Item = Named> {
        let first = u32::try_from(cookie).map_or(Bound::Excluded(u32::MAX), Bound::Included);
        self.by_slot.range((first, Bound::Unbounded)).filter_map(|(slot, name)| {
            let known = self.by_name.get(name)?;
            Some(Named { ino: known.ino, kind: known.kind, name: name.to_vec(), cookie: u64::from(*slot) + 1 })
        })
    }

    /// The first of `slots` free slots in a row, in one block.
    pub(super) fn free_slots(&self, slots: usize) -> Option<u32> {
        let in_row = |first: u32| {
            first as usize % SLOTS_A_BLOCK + slots <= SLOTS_A_BLOCK
                && (first + 1..first + slots as u32).all(|slot| self.free.contains(&slot))
        };
        self.free.iter().copied().find(|first| in_row(*first))
    }

    pub(super) fn add_block(&mut self) {
        let first = self.blocks * SLOTS_A_BLOCK as u32;
        self.free.extend(first..first + SLOTS_A_BLOCK as u32);
        self.blocks += 1;
    }

    pub(super) fn insert(&mut self, entry: Entry, slot: u32) {
        for taken in slot..slot + slots_of(entry.name.len()) as u32 {
            self.free.remove(&taken);
        }
        let name: Arc<[u8]> = entry.name.into();
        self.by_slot.insert(slot, Arc::clone(&name));
        self.by_name.insert(name, Known { ino: entry.ino, kind: entry.kind, slot });
    }

    /// Has a name mean another inode, at the same place.
    pub(crate) fn retarget(&mut self, name: &[u8], ino: u64, kind: Kind) {
        if let Some(known) = self.by_name.get_mut(name) {
            (known.ino, known.kind) = (ino, kind);
        }
    }

    pub(crate) fn remove(&mut self, name: &[u8]) {
        if let Some(known) = self.by_name.remove(name) {
            self.by_slot.remove(&known.slot);
            self.free.extend(known.slot..known.slot + slots_of(name.len()) as u32);
        }
    }
}
