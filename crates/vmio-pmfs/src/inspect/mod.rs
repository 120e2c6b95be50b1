//! The structures of a medium as they are, for people who look into a damaged one. Nothing is changed, and nothing needs to be sound but a superblock.

mod inode;
mod slot;

use std::ops::Range;
use std::sync::Arc;

pub use inode::{EntryFound, ExtentFound, InodeFound};
pub use slot::SlotFound;

use crate::alloc::{Allocator, Used, joined};
use crate::check::Fault;
use crate::error::{Error, Result};
use crate::format::geometry::{BLOCK_BYTES, Geometry, ROOT};
use crate::format::journal_entry::Said;
use crate::format::superblock::Superblock;
use crate::inodes::loaded::Loaded;
use crate::inodes::read_inode;
use crate::journal::recovery::read_journal;
use crate::medium::Medium;
use crate::medium::overlay::Overlay;
use crate::repair::recover_appends;

/// A medium that is looked at.
pub struct Inspection {
    medium: Arc<dyn Medium>,
    superblock: Superblock,
}

/// The parts of an area, as bytes of the medium.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Area {
    /// All of it.
    pub bytes: Range<u64>,
    /// The journal.
    pub journal: Range<u64>,
    /// The place for overwritten data.
    pub saves: Range<u64>,
    /// The slots of growing files.
    pub slots: Range<u64>,
    /// The inode table.
    pub inodes: Range<u64>,
    /// The numbers of its inodes.
    pub numbers: Range<u64>,
    /// The blocks that files may have.
    pub pool: Range<u64>,
}

/// A journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalFound {
    /// The first byte.
    pub at: u64,
    /// How many entries it has room for.
    pub places: usize,
    /// The whole entries: place, lap, transaction and statement.
    pub entries: Vec<(usize, u16, u64, Said)>,
    /// The number of the newest transaction, and whether it is over. If not, the next mount rolls it back.
    pub newest: Option<(u64, bool)>,
}

impl Inspection {
    /// Looks at a medium as it is.
    ///
    /// # Errors
    ///
    /// Those of [`Superblock::read`].
    pub fn new(medium: Arc<dyn Medium>) -> Result<Inspection> {
        let superblock = Superblock::read(&*medium)?;
        Ok(Inspection { medium, superblock })
    }

    /// Looks at a medium as the next mount would find it: without what a crash has cut short, and with what was appended durably.
    ///
    /// # Errors
    ///
    /// As [`Self::new`], and [`Error::Damaged`] where a journal cannot be rolled back.
    pub fn recovered(medium: Arc<dyn Medium>) -> Result<Inspection> {
        let recovered: Arc<dyn Medium> = Arc::new(Overlay::new(medium));
        let inspection = Inspection::new(recovered)?;
        recover_appends(&inspection.medium, inspection.superblock)?;
        Ok(inspection)
    }

    /// The superblock.
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    fn geometry(&self) -> &Geometry {
        &self.superblock.geometry
    }

    /// The areas.
    pub fn areas(&self) -> Vec<Area> {
        let geometry = self.geometry();
        let area = |area| {
            let (journal, saves, blocks, pool) =
                (geometry.journal_at(area), geometry.saves_at(area), geometry.area(area), geometry.pool(area));
            let slots = geometry.slots_at(area);
            let inodes = geometry.inode_at(u64::from(area) * u64::from(geometry.inodes));
            let bytes = |blocks: Range<u64>| blocks.start * BLOCK_BYTES..blocks.end * BLOCK_BYTES;
            Area {
                bytes: bytes(blocks),
                journal: journal..saves,
                saves: saves..slots,
                slots: slots..inodes,
                inodes: inodes..pool.start * BLOCK_BYTES,
                numbers: geometry.inodes_of(area),
                pool: bytes(pool),
            }
        };
        (0..geometry.areas).map(area).collect()
    }

    /// The journals, by area.
    pub fn journals(&self) -> Vec<JournalFound> {
        let journal = |area| {
            let seen = read_journal(&*self.medium, self.geometry(), area);
            let entries = seen.entries.iter().enumerate();
            let entries = entries
                .filter_map(|(place, entry)| entry.map(|entry| (place, entry.lap, entry.transaction, entry.said)));
            JournalFound { at: seen.at, places: seen.entries.len(), entries: entries.collect(), newest: seen.newest }
        };
        (0..self.geometry().areas).map(journal).collect()
    }

    /// The slots of growing files that say something.
    pub fn slots(&self) -> Vec<SlotFound> {
        slot::read(&*self.medium, self.geometry())
    }

    /// An inode with all that it has, used or free.
    ///
    /// # Errors
    ///
    /// [`Error::NoInode`] if there can be none of this number.
    pub fn inode(&self, ino: u64) -> Result<InodeFound> {
        inode::read(&*self.medium, self.geometry(), ino)
    }

    /// The entries of a directory, in the order of the medium, and faults of others. Only an inode that can be read has any.
    ///
    /// # Errors
    ///
    /// [`Error::NoInode`], [`Error::NotADirectory`], [`Error::Damaged`] where the inode itself is damaged.
    pub fn entries(&self, directory: u64) -> Result<(Vec<EntryFound>, Vec<Fault>)> {
        let loaded = self.load(directory)?;
        loaded.expect_directory()?;
        Ok(inode::entries(&*self.medium, &loaded))
    }

    /// The inode of a path from the root on. Symbolic links are not followed.
    ///
    /// # Errors
    ///
    /// As [`Self::entries`], and [`Error::NoEntry`].
    pub fn find(&self, path: &[u8]) -> Result<u64> {
        let mut ino = ROOT;
        for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".") {
            let loaded = self.load(ino)?;
            loaded.expect_directory()?;
            let (entries, _) = inode::entries(&*self.medium, &loaded);
            let found = entries.into_iter().find(|entry| entry.name == name);
            ino = found.ok_or_else(|| Error::no_entry(ino, name))?.ino;
        }
        Ok(ino)
    }

    fn load(&self, ino: u64) -> Result<Loaded> {
        let inode = read_inode(&*self.medium, self.geometry(), ino)?.ok_or(Error::NoInode { ino })?;
        Loaded::of(&*self.medium, self.geometry(), ino, inode)
    }

    /// The blocks that no readable inode has, as ranges that do not touch each other, and the faults of the inodes that cannot be read: their
    /// blocks are among the ranges.
    pub fn free_runs(&self) -> (Vec<Range<u64>>, Vec<Fault>) {
        let geometry = self.geometry();
        let (used, mut faults) = (Used::new(geometry), Vec::new());
        for ino in (0..geometry.areas).flat_map(|area| geometry.inodes_of(area)) {
            match self.load(ino) {
                Ok(loaded) => loaded.all_runs().into_iter().for_each(|run| used.mark(run)),
                Err(Error::NoInode { .. }) => (),
                Err(error) => {
                    faults.push(Fault { at: geometry.inode_at(ino), what: format!("inode {ino}: {error}") });
                }
            }
        }
        (joined(Allocator::new(geometry, &used).runs()), faults)
    }
}
