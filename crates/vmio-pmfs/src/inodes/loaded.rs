//! An inode in memory, with the map of its blocks.

use std::ops::Range;

use super::block_map::{BlockMap, Piece};
use super::leases::Leases;
use super::read_inode;
use super::volume::{Taken, Volume};
use crate::alloc::Run;
use crate::error::{Damage, Error, Result};
use crate::format::geometry::{BLOCK_BYTES, Geometry, MAP_CHANGES_MAX};
use crate::format::inode::{Inode, Kind, STATE_BYTES, SYMLINK_BYTES_MAX};
use crate::format::target;
use crate::format::xattrs::Xattrs;
use crate::journal::Transaction;
use crate::medium::Medium;

/// An inode in memory, with the map of its blocks.
pub(crate) struct Loaded {
    pub(crate) ino: u64,
    /// Its byte of the medium.
    pub(crate) at: u64,
    pub(crate) inode: Inode,
    pub(crate) map: BlockMap,
    pub(crate) leases: Leases,
}

/// Blocks that change hands with a change of a map.
pub(crate) struct Remapped<'volume> {
    /// No longer the file's, once the change is committed.
    pub(crate) freed: Vec<Run>,
    /// New blocks of the chain.
    chain: Vec<Taken<'volume>>,
}

impl Remapped<'_> {
    fn new_chain(&self) -> Vec<u64> {
        self.chain.iter().flat_map(|taken| &taken.runs).flat_map(|run| run.start..run.end()).collect()
    }

    /// The change is committed.
    pub(crate) fn settle(self, volume: &Volume) {
        self.chain.into_iter().for_each(Taken::keep);
        volume.free(self.freed);
    }

    /// The change is committed, and others may have what is no longer the file's.
    pub(crate) fn settle_shared(self) {
        self.chain.into_iter().for_each(Taken::keep);
    }
}

impl Loaded {
    /// Reads an inode that is in use.
    pub(crate) fn load(volume: &Volume, ino: u64) -> Result<Loaded> {
        let inode = read_inode(&*volume.medium, &volume.geometry, ino)?.ok_or(Error::NoInode { ino })?;
        Loaded::of(&*volume.medium, &volume.geometry, ino, inode)
    }

    /// Reads the map of an inode. Nothing of it is leased.
    pub(crate) fn of(medium: &dyn Medium, geometry: &Geometry, ino: u64, inode: Inode) -> Result<Loaded> {
        let map = BlockMap::load(medium, geometry, ino, &inode)?;
        if inode.attributes >= geometry.blocks {
            let damage = Damage::Field { field: "block of extended attributes", found: inode.attributes };
            return Err(Error::Damaged { structure: "an inode", at: geometry.inode_at(ino), damage });
        }
        Ok(Loaded { ino, at: geometry.inode_at(ino), inode, map, leases: Leases::default() })
    }

    /// All blocks that it has: those of its contents, of its chain, and of its extended attributes.
    pub(crate) fn all_runs(&self) -> Vec<Run> {
        let mut runs = self.map.all_runs();
        runs.extend(self.attributes_run());
        runs
    }

    /// The block of its extended attributes.
    pub(crate) fn attributes_run(&self) -> Option<Run> {
        (self.inode.attributes != 0).then_some(Run { start: self.inode.attributes, count: 1 })
    }

    /// Reads its extended attributes.
    pub(crate) fn xattrs(&self, medium: &dyn Medium) -> Result<Xattrs> {
        let Some(run) = self.attributes_run() else { return Ok(Xattrs::default()) };
        let at = run.start * BLOCK_BYTES;
        let mut block = [0; BLOCK_BYTES as usize];
        medium.read(at, &mut block);
        Xattrs::from_block(self.ino, &block, at)
    }

    /// Reads the target of a symbolic link.
    pub(crate) fn target(&self, medium: &dyn Medium) -> Result<Vec<u8>> {
        let mut target = vec![0; (self.inode.size as usize).min(SYMLINK_BYTES_MAX)];
        let at = match self.map.piece(0, 1) {
            Piece::There { run, .. } => run.start * BLOCK_BYTES,
            Piece::Hole { .. } => {
                let damage = Damage::MissingBlocks { first: 0, count: 1 };
                return Err(Error::Damaged { structure: "a symbolic link", at: self.at, damage });
            }
        };
        medium.read(at, &mut target);
        target::check(self.ino, self.inode.parent_or_device, &target, at)?;
        Ok(target)
    }

    /// A process that fills blocks behind the end decides on the end. It is asked for them first.
    pub(crate) fn expect_no_growth(&self) -> Result<()> {
        match self.leases.growth() {
            Some(growth) => Err(Error::Leased { ino: self.ino, from_block: growth.block }),
            None => Ok(()),
        }
    }

    /// Nobody has blocks of the file from one on.
    pub(crate) fn expect_unleased(&self, from_block: u32) -> Result<()> {
        match self.leases.overlap(&(from_block..u32::MAX)) {
            true => Err(Error::Leased { ino: self.ino, from_block }),
            false => Ok(()),
        }
    }

    pub(crate) fn expect_directory(&self) -> Result<()> {
        match self.inode.kind {
            Kind::Directory => Ok(()),
            _ => Err(Error::NotADirectory { ino: self.ino }),
        }
    }

    pub(crate) fn expect_file(&self) -> Result<()> {
        match self.inode.kind {
            Kind::File => Ok(()),
            Kind::Directory => Err(Error::IsADirectory { ino: self.ino }),
            _ => Err(Error::WrongKind { ino: self.ino }),
        }
    }

    /// Gives blocks of the file other blocks of the medium, or none. After an error the map is to be loaded again. Leased blocks stay:
    /// [`Error::Leased`].
    pub(crate) fn remap<'volume>(
        &mut self,
        volume: &'volume Volume,
        changes: &[(Range<u32>, Vec<Run>)],
    ) -> Result<Remapped<'volume>> {
        let leased = |blocks: &Range<u32>| self.leases.overlap(blocks) && !self.map.runs_of(blocks.clone()).is_empty();
        let taken_away = changes.iter().map(|(blocks, _)| blocks).filter(|blocks| leased(blocks));
        if let Some(first) = taken_away.min_by_key(|blocks| blocks.start) {
            return Err(Error::Leased { ino: self.ino, from_block: first.start });
        }
        let mut remapped = Remapped { freed: Vec::new(), chain: Vec::new() };
        // A run is an extent, and the one that it is put into the middle of becomes two.
        let extents = changes
            .iter()
            .map(|(blocks, runs)| {
                // A run that goes on where the extent before it ends needs none of its own.
                let merged = runs.first().is_some_and(|run| self.map.goes_on_at(blocks.start, run.start));
                runs.len() - usize::from(merged) + usize::from(self.map.is_inside_one(blocks))
            })
            .sum();
        while self.map.is_short_of(extents) {
            let block = volume.take(1)?;
            self.map.extend_chain(block.runs[0].start);
            remapped.chain.push(block);
        }
        for (blocks, runs) in changes {
            remapped.freed.extend(self.map.replace(blocks.clone(), runs));
        }
        let Some(blocks) = self.map.new_chain_wanted() else { return Ok(remapped) };
        let chain = match volume.take(blocks as u64) {
            // A full medium must let files become smaller. The journal has an entry for each block.
            Err(Error::NoSpace { .. })
                if changes.iter().all(|(_, runs)| runs.is_empty())
                    && blocks + 2 <= MAP_CHANGES_MAX.min(volume.geometry.save_blocks as usize) =>
            {
                remapped.freed.extend(self.map.renew_in_place(blocks));
                return Ok(remapped);
            }
            chain => chain?,
        };
        let blocks = chain.runs.iter().flat_map(|run| run.start..run.end()).collect();
        let old = self.map.renew(blocks);
        // Blocks that were to become the old chain's go back by themselves.
        let never_used: Vec<Run> = remapped.chain.iter().flat_map(|taken| taken.runs.clone()).collect();
        remapped.freed.extend(old.into_iter().filter(|run| !never_used.contains(run)));
        remapped.chain = vec![chain];
        Ok(remapped)
    }

    /// Puts the inode as it is in memory now into a transaction.
    pub(crate) fn store(
        &mut self,
        volume: &Volume,
        transaction: &mut Transaction<'_>,
        remapped: Option<&Remapped<'_>>,
    ) {
        self.map.store(transaction, self.ino, &mut self.inode, &remapped.map(Remapped::new_chain).unwrap_or_default());
        transaction.set(volume.geometry.inode_at(self.ino), &self.inode.to_bytes(self.ino));
    }

    /// Puts a new inode into a transaction: its place has been free.
    pub(crate) fn store_new(&mut self, volume: &Volume, transaction: &mut Transaction<'_>) {
        self.map.store(transaction, self.ino, &mut self.inode, &[]);
        let (at, bytes) = (volume.geometry.inode_at(self.ino), self.inode.to_bytes(self.ino));
        let (state, rest) = bytes.split_at(STATE_BYTES);
        transaction.fresh(at + STATE_BYTES as u64, rest);
        transaction.set(at, state);
    }

    /// Puts the end of an inode into a transaction. Its blocks are free once that is committed.
    pub(crate) fn remove(&self, volume: &Volume, transaction: &mut Transaction<'_>) {
        transaction.set(volume.geometry.inode_at(self.ino), &[0; STATE_BYTES]);
    }
}
