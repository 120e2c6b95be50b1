//! The committed state of a segment, and changes to it.

use std::collections::BTreeSet;

use crate::format::catalogue::{self, KeyspaceEntry};
use crate::format::extents::Extent;
use crate::format::free_log::Freed;
use crate::format::geometry::Group;
use crate::format::superblock::Superblock;
use crate::volume::allocator::Cursor;
use crate::volume::block_runs::BlockRuns;

/// The state of the last commit, from which the next one goes on.
pub(crate) struct Committed {
    /// The places of the superblock's two copies.
    pub(super) copies: [u64; 2],
    pub(super) epoch: u64,
    pub(super) superblock: Superblock,
    /// The keyspaces, by blocks of the catalogue.
    pub(super) catalogue: Vec<Vec<KeyspaceEntry>>,
    pub(super) free_log_blocks: Vec<u64>,
    /// Retired blocks that may still be read: the free log has them, and the bitmap has them as taken.
    pub(super) waiting: BTreeSet<Freed>,
    pub(super) cursor: Cursor,
    /// Why commits have stopped: the state on the device is not known.
    pub(super) failed: Option<String>,
}

/// The changes of a commit.
#[derive(Default)]
pub(crate) struct Changes {
    /// New keyspaces, and others in their new state.
    pub(crate) keyspaces: Vec<KeyspaceEntry>,
    /// Numbers of dropped keyspaces.
    pub(crate) removed: Vec<u32>,
    /// Nodes that the keyspaces refer to now.
    pub(crate) taken: BlockRuns,
    /// Extents that the keyspaces refer to now.
    pub(crate) extents: Vec<Extent>,
    /// The place and number of the record from which an opening reads the log back, if that has changed.
    pub(crate) replay: Option<(u64, u64)>,
    /// The newest generation of the log, and the number of the first record that is not durable.
    pub(crate) log: Option<(u64, u64)>,
    /// The next keyspace's number.
    pub(crate) next_keyspace: Option<u32>,
    /// The owner's epoch from now on.
    pub(crate) owner_epoch: Option<u64>,
    /// The segment's groups from now on, if it has more or longer ones.
    pub(crate) groups: Option<Vec<Group>>,
    /// Whether units beyond the write fence are needed.
    pub(crate) extend_write_fence: bool,
}

impl Committed {
    pub(super) fn new(
        copies: [u64; 2],
        epoch: u64,
        superblock: Superblock,
        catalogue: Vec<Vec<KeyspaceEntry>>,
        free_log_blocks: Vec<u64>,
    ) -> Self {
        // The blocks of the free log were freed as it was read. Its own blocks are freed by the next commit.
        Committed {
            copies,
            epoch,
            superblock,
            catalogue,
            free_log_blocks,
            waiting: BTreeSet::new(),
            cursor: Cursor::default(),
            failed: None,
        }
    }

    pub(super) fn keyspaces(&self) -> impl Iterator<Item = &KeyspaceEntry> {
        self.catalogue.iter().flatten()
    }

    /// The catalogue with the changed keyspaces and without the removed ones, and which of its blocks have changed.
    pub(super) fn changed_catalogue(
        &self,
        keyspaces: &[KeyspaceEntry],
        removed: &[u32],
    ) -> (Vec<Vec<KeyspaceEntry>>, BTreeSet<usize>) {
        let mut catalogue = self.catalogue.clone();
        let mut changed = BTreeSet::new();
        for (index, block) in catalogue.iter_mut().enumerate() {
            let before = block.len();
            block.retain(|entry| !removed.contains(&entry.number));
            changed.extend((block.len() < before).then_some(index));
        }
        for keyspace in keyspaces {
            let is_it = |entry: &KeyspaceEntry| entry.number == keyspace.number;
            let block = catalogue.iter().position(|block| block.iter().any(is_it));
            let block = match block {
                Some(block) => {
                    catalogue[block]
                        .iter_mut()
                        .filter(|entry| is_it(entry))
                        .for_each(|entry| *entry = keyspace.clone());
                    block
                }
                None => {
                    // In the place of a dropped keyspace, if there is one.
                    let with_space = catalogue.iter().position(|block| block.len() < catalogue::KEYSPACES);
                    let block = with_space.unwrap_or_else(|| {
                        catalogue.push(Vec::new());
                        catalogue.len() - 1
                    });
                    catalogue[block].push(keyspace.clone());
                    block
                }
            };
            changed.insert(block);
        }
        (catalogue, changed)
    }
}
