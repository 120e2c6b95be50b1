//! Mounting: the superblock, the journals, and a scan of all inodes.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::thread;

use parking_lot::Mutex;

use super::{Fs, Recovered};
use crate::alloc::{Allocator, Run};
use crate::directories::Index;
use crate::error::{Damage, Error, Result};
use crate::format::geometry::{BLOCK_BYTES, Geometry, ROOT};
use crate::format::inode::{INODE_BYTES, Inode, Kind};
use crate::format::superblock::Superblock;
use crate::inodes::free::FreeInodes;
use crate::inodes::loaded::Loaded;
use crate::inodes::lost_leases::LostLeases;
use crate::inodes::read_inode;
use crate::inodes::volume::Volume;
use crate::journal::Journals;
use crate::medium::Medium;

/// The outcome of the scan of an area's inodes.
#[derive(Default)]
struct Scan {
    free: BTreeSet<u64>,
    used: Vec<Run>,
    orphans: Vec<u64>,
}

impl Superblock {
    /// Reads the superblock of a medium: its copy if the first one is damaged.
    ///
    /// # Errors
    ///
    /// [`Error::NoFileSystem`], [`Error::NewerVersion`], [`Error::UnknownFeatures`], [`Error::CutOff`], [`Error::Damaged`].
    pub fn read(medium: &dyn Medium) -> Result<Superblock> {
        let read = |at| {
            let mut block = [0; BLOCK_BYTES as usize];
            if medium.len() < at + BLOCK_BYTES {
                return Err(Error::TooSmall { bytes: medium.len(), least: at + BLOCK_BYTES });
            }
            medium.read(at, &mut block);
            Superblock::from_block(&block, at)
        };
        let superblock = match read(0) {
            Err(error @ (Error::Damaged { .. } | Error::NoFileSystem { .. })) => {
                let copy = Geometry::copy_at(medium.len()).map(read);
                let Some(Ok(copy)) = copy else { return Err(error) };
                tracing::warn!(%error, "the superblock is damaged: its copy is used");
                copy
            }
            other => other?,
        };
        if superblock.geometry.bytes() > medium.len() {
            return Err(Error::CutOff { bytes: medium.len(), wanted: superblock.geometry.bytes() });
        }
        Ok(superblock)
    }
}

impl Fs {
    /// Mounts the file system of a medium, which nobody else uses: rolls back what a crash has cut short, and finds out what is free.
    ///
    /// # Errors
    ///
    /// Those of [`Superblock::read`], and [`Error::Damaged`].
    pub fn mount(medium: Arc<dyn Medium>) -> Result<Fs> {
        let superblock = Superblock::read(&*medium)?;
        let geometry = superblock.geometry;
        let (journals, transactions) = Journals::recover(&medium, &geometry)?;
        expect_root(&*medium, &geometry)?;
        let scans: Vec<Result<Scan>> = thread::scope(|scope| {
            let medium = &*medium;
            let spawn = |area| thread::Builder::new().spawn_scoped(scope, move || scan(medium, &geometry, area));
            let threads: Vec<_> = (0..geometry.areas).map(|area| (area, spawn(area))).collect();
            let scanned = threads.into_iter().map(|(area, thread)| match thread {
                Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
                // There are as many threads as there can be.
                Err(_) => scan(medium, &geometry, area),
            });
            scanned.collect()
        });
        let scans = scans.into_iter().collect::<Result<Vec<Scan>>>()?;
        let used = scans.iter().flat_map(|scan| &scan.used).copied().collect();
        let orphans: Vec<u64> = scans.iter().flat_map(|scan| &scan.orphans).copied().collect();
        let free = scans.into_iter().map(|scan| scan.free).collect();
        let allocator = Allocator::new(&geometry, used)?;
        let fs = Fs {
            volume: Volume { medium, geometry, journals, allocator, lost: LostLeases::default() },
            superblock,
            recovered: Recovered { transactions, orphans: orphans.len() },
            free_inodes: FreeInodes::new(&geometry, free),
            nodes: Mutex::new(HashMap::new()),
            renames: Mutex::new(()),
        };
        for ino in orphans {
            fs.delete_orphan(ino)?;
        }
        Ok(fs)
    }

    fn delete_orphan(&self, ino: u64) -> Result<()> {
        let orphan = Loaded::load(&self.volume, ino)?;
        if orphan.inode.kind == Kind::Directory && !Index::load(&*self.volume.medium, &orphan)?.is_empty() {
            return Err(damaged_inode(self.geometry(), ino, "number of links", 0));
        }
        let mut transaction = self.volume.journals.begin(self.volume.home());
        orphan.remove(&self.volume, &mut transaction);
        transaction.commit()?;
        self.volume.free(orphan.all_runs());
        self.free_inodes.give_back(ino);
        Ok(())
    }
}

fn damaged_inode(geometry: &Geometry, ino: u64, field: &'static str, found: u64) -> Error {
    Error::Damaged { structure: "an inode", at: geometry.inode_at(ino), damage: Damage::Field { field, found } }
}

/// The root would be deleted if it counted no links.
fn expect_root(medium: &dyn Medium, geometry: &Geometry) -> Result<()> {
    match read_inode(medium, geometry, ROOT)? {
        Some(Inode { kind: Kind::Directory, links: 1.., .. }) => Ok(()),
        Some(Inode { kind: Kind::Directory, links, .. }) => {
            Err(damaged_inode(geometry, ROOT, "number of links", links.into()))
        }
        other => Err(damaged_inode(geometry, ROOT, "kind", other.map_or(0, |root| root.kind as u64))),
    }
}

fn scan(medium: &dyn Medium, geometry: &Geometry, area: u32) -> Result<Scan> {
    let mut scan = Scan::default();
    let mut block = [0; BLOCK_BYTES as usize];
    for ino in geometry.inodes_of(area) {
        let at = geometry.inode_at(ino);
        let in_block = (at % BLOCK_BYTES) as usize;
        if in_block == 0 || ino == geometry.inodes_of(area).start {
            medium.read(at - in_block as u64, &mut block);
        }
        let mut bytes = [0; INODE_BYTES];
        bytes.copy_from_slice(&block[in_block..in_block + INODE_BYTES]);
        match Inode::from_bytes(ino, &bytes, at)? {
            None => _ = scan.free.insert(ino),
            Some(inode) => {
                let loaded = Loaded::of(medium, geometry, ino, inode)?;
                scan.used.extend(loaded.all_runs());
                if loaded.inode.links == 0 {
                    scan.orphans.push(ino);
                }
            }
        }
    }
    Ok(scan)
}
