//! Mounting: the superblock, the journals, and a scan of all inodes.

use std::collections::HashMap;
use std::sync::Arc;
use std::thread;

use parking_lot::Mutex;

use super::growing::Released;
use super::rewriting::Wanted;
use super::{Fs, Recovered};
use crate::alloc::{Allocator, Reserved, Run, Used};
use crate::check::Fault;
use crate::data::Mode;
use crate::directories::Index;
use crate::error::{Damage, Error, Result};
use crate::format::geometry::{BLOCK_BYTES, Geometry, ROOT};
use crate::format::inode::{INODE_BYTES, Inode, Kind};
use crate::format::superblock::Superblock;
use crate::inodes::block_map::BlockMap;
use crate::inodes::free::{FreeInodes, FreeNumbers};
use crate::inodes::growth_slots::GrowthSlots;
use crate::inodes::loaded::Loaded;
use crate::inodes::lost_leases::LostLeases;
use crate::inodes::read_inode;
use crate::inodes::volume::Volume;
use crate::journal::Journals;
use crate::medium::Medium;

/// The outcome of the scan of an area's inodes.
struct Scan {
    free: FreeNumbers,
    orphans: Vec<u64>,
}

impl Superblock {
    /// Reads the superblock of a medium: its copy if the first one is damaged.
    ///
    /// # Errors
    ///
    /// [`Error::NoFileSystem`], [`Error::NewerVersion`], [`Error::UnknownFeatures`], [`Error::CutOff`], [`Error::Damaged`].
    pub fn read(medium: &dyn Medium) -> Result<Superblock> {
        let read = |at| Superblock::read_at(medium, at);
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

    /// Reads the superblock or the copy that lies at byte `at`.
    fn read_at(medium: &dyn Medium, at: u64) -> Result<Superblock> {
        let mut block = [0; BLOCK_BYTES as usize];
        if medium.len() < at + BLOCK_BYTES {
            return Err(Error::TooSmall { bytes: medium.len(), least: at + BLOCK_BYTES });
        }
        medium.read(at, &mut block);
        Superblock::from_block(&block, at)
    }

    /// The superblock and its copy: where each lies, and what is read there.
    pub fn both(medium: &dyn Medium) -> [(u64, Result<Superblock>); 2] {
        let copy = Geometry::copy_at(medium.len()).unwrap_or_default();
        [0, copy].map(|at| (at, Superblock::read_at(medium, at)))
    }
}

impl Fs {
    /// Mounts the file system of a medium, which nobody else uses: rolls back what a crash has cut short, and finds out what is free.
    ///
    /// # Errors
    ///
    /// Those of [`Superblock::read`], and [`Error::Damaged`].
    pub fn mount(medium: Arc<dyn Medium>) -> Result<Fs> {
        Fs::mount_in(medium, Mode::Strict)
    }

    /// Mounts the file system of a medium, as [`Self::mount`] does, in a mode.
    ///
    /// # Errors
    ///
    /// As [`Self::mount`].
    pub fn mount_in(medium: Arc<dyn Medium>, mode: Mode) -> Result<Fs> {
        let superblock = Superblock::read(&*medium)?;
        let geometry = superblock.geometry;
        let (journals, transactions) = Journals::recover(&medium, &geometry)?;
        expect_root(&*medium, &geometry)?;
        let used = Used::new(&geometry);
        let scans: Vec<Result<Scan>> = thread::scope(|scope| {
            let (medium, used) = (&*medium, &used);
            let spawn = |area| thread::Builder::new().spawn_scoped(scope, move || scan(medium, &geometry, area, used));
            let threads: Vec<_> = (0..geometry.areas).map(|area| (area, spawn(area))).collect();
            let scanned = threads.into_iter().map(|(area, thread)| match thread {
                Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
                // There are as many threads as there can be.
                Err(_) => scan(medium, &geometry, area, used),
            });
            scanned.collect()
        });
        let scans = scans.into_iter().collect::<Result<Vec<Scan>>>()?;
        let orphans: Vec<u64> = scans.iter().flat_map(|scan| &scan.orphans).copied().collect();
        let free = scans.into_iter().map(|scan| scan.free).collect();
        let allocator = Allocator::new(&geometry, &used);
        let recovered = Recovered { transactions, orphans: orphans.len(), appends: 0 };
        let mut fs = Fs::assembled(medium, superblock, mode, journals, allocator, free, recovered);
        // No slot is of an inode that is no more.
        let appended = fs.recover_appends(Released::Free, |_| false);
        for Fault { at, what } in &appended.ignored {
            tracing::warn!(at, what, "the slot of a growing file is damaged: what it says is ignored");
        }
        fs.recovered.appends = appended.longer;
        for ino in orphans {
            fs.delete_orphan(ino)?;
        }
        Ok(fs)
    }

    /// A file system of these parts.
    pub(crate) fn assembled(
        medium: Arc<dyn Medium>,
        superblock: Superblock,
        mode: Mode,
        journals: Journals,
        allocator: Allocator,
        free: Vec<FreeNumbers>,
        recovered: Recovered,
    ) -> Fs {
        let geometry = superblock.geometry;
        let (lost, reserved) = (LostLeases::default(), Reserved::default());
        let slots = GrowthSlots::new(&geometry);
        Fs {
            volume: Volume { medium, geometry, mode, journals, allocator, lost, reserved, slots },
            superblock,
            recovered,
            free_inodes: FreeInodes::new(&geometry, free),
            nodes: Mutex::new(HashMap::new()),
            renames: Mutex::new(()),
            wanted: Wanted::default(),
        }
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

/// Blocks that a scan reads at once: most of an inode table is in memory that is read for the first time.
const SCANNED_BYTES: usize = 64 << 10;

fn scan(medium: &dyn Medium, geometry: &Geometry, area: u32, used: &Used) -> Result<Scan> {
    let mut scan = Scan { free: FreeNumbers::new(geometry), orphans: Vec::new() };
    let (inodes, first) = (geometry.inodes_of(area), u64::from(area) * u64::from(geometry.inodes));
    let mut bytes = vec![0; SCANNED_BYTES];
    let mut next = inodes.start;
    while next < inodes.end {
        let count = (inodes.end - next).min((SCANNED_BYTES / INODE_BYTES) as u64);
        let read = &mut bytes[..count as usize * INODE_BYTES];
        medium.read(geometry.inode_at(next), read);
        for (ino, inode) in (next..).zip(read.as_chunks::<INODE_BYTES>().0) {
            match Inode::from_bytes(ino, inode, geometry.inode_at(ino))? {
                None => scan.free.add(ino - first),
                Some(inode) => {
                    all_runs(medium, geometry, ino, &inode, |run| used.add(run))?;
                    if inode.links == 0 {
                        scan.orphans.push(ino);
                    }
                }
            }
        }
        next += count;
    }
    Ok(scan)
}

/// Visits all blocks of an inode. Most inodes have no chain: then nothing is built to know them.
fn all_runs(
    medium: &dyn Medium,
    geometry: &Geometry,
    ino: u64,
    inode: &Inode,
    mut visit: impl FnMut(Run) -> Result<()>,
) -> Result<()> {
    if inode.attributes != 0 {
        visit(Run { start: inode.attributes, count: 1 })?;
    }
    if inode.chain != 0 {
        return BlockMap::load(medium, geometry, ino, inode)?.all_runs().into_iter().try_for_each(visit);
    }
    let mut extents = inode.extents;
    extents.sort_unstable_by_key(|extent| (extent.file_block, extent.count));
    let mut end = 0;
    for extent in extents.iter().filter(|extent| extent.count > 0) {
        let next = extent.file_block.checked_add(extent.count);
        match next.filter(|_| extent.file_block >= end) {
            Some(next) => end = next,
            None => return Err(damaged_inode(geometry, ino, "extent at block", extent.file_block.into())),
        }
    }
    let there = extents.iter().filter(|extent| extent.count > 0);
    there.map(|extent| Run { start: extent.start, count: extent.count.into() }).try_for_each(visit)
}
