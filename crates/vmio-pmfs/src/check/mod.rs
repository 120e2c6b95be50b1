//! Reads a whole file system and trusts nothing.

mod tree;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::alloc::Run;
use crate::error::{Damage, Error, Result};
use crate::format::geometry::{BLOCK_BYTES, Geometry, ROOT};
use crate::format::growth_slot::{GrowthSlot, SLOT_BYTES, Said};
use crate::format::inode::{Inode, Kind, STATE_BYTES};
use crate::format::superblock::Superblock;
use crate::inodes::growth_slots;
use crate::inodes::loaded::Loaded;
use crate::inodes::{inode_bytes, read_inode};
use crate::journal::Journals;
use crate::medium::Medium;
use crate::medium::overlay::Overlay;

/// Something that is not as it must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The byte of the medium, or of the structure, that it is about.
    pub at: u64,
    /// The fault, in words.
    pub what: String,
}

/// Counts of a file system's contents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// Files and everything else that is no directory.
    pub files: u64,
    /// Directories, with the root.
    pub directories: u64,
    /// Blocks that they have.
    pub blocks: u64,
    /// Inodes without a name, which the next mount deletes.
    pub orphans: u64,
}

/// The outcome of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The superblock.
    pub superblock: Superblock,
    /// Counts of its contents.
    pub census: Census,
    /// Transactions that a crash has cut short, which the next mount rolls back. The check sees the file system without them.
    pub unfinished: usize,
    /// Files that a process has appended to durably: the next mount makes them longer.
    pub appends: usize,
    /// All faults.
    pub faults: Vec<Fault>,
}

/// The inodes in use.
type Inodes = BTreeMap<u64, Loaded>;

/// The inodes whose bytes are neither those of one in use nor of a free one.
type Unreadable = BTreeSet<u64>;

/// Checks the file system of a medium, as the next mount would find it. Changes nothing.
///
/// # Errors
///
/// Those of [`Superblock::read`]. Everything else that is wrong is in the report.
pub fn check(medium: Arc<dyn Medium>) -> Result<Report> {
    let superblock = Superblock::read(&*medium)?;
    let geometry = superblock.geometry;
    let mut report = Report { superblock, census: Census::default(), unfinished: 0, appends: 0, faults: Vec::new() };
    for (at, read) in Superblock::both(&*medium) {
        match read {
            Ok(copy) if copy == superblock => (),
            Ok(_) => report.add(at, "the superblock differs from its copy"),
            Err(error) => report.add(at, error),
        }
    }
    let recovered: Arc<dyn Medium> = Arc::new(Overlay::new(medium));
    match Journals::recover(&recovered, &geometry) {
        Ok((_, unfinished)) => report.unfinished = unfinished,
        Err(error) => report.add(0, error),
    }
    let (inodes, unreadable) = report.read_inodes(&*recovered, &geometry);
    report.check_blocks(&geometry, &inodes);
    report.check_growth(&*recovered, &geometry, &inodes);
    tree::check(&mut report, &*recovered, &geometry, &inodes, &unreadable);
    Ok(report)
}

impl Report {
    /// Whether nothing is wrong.
    pub fn is_sound(&self) -> bool {
        self.faults.is_empty()
    }

    fn add(&mut self, at: u64, what: impl ToString) {
        self.faults.push(Fault { at, what: what.to_string() });
    }

    fn read_inodes(&mut self, medium: &dyn Medium, geometry: &Geometry) -> (Inodes, Unreadable) {
        let (mut inodes, mut unreadable) = (Inodes::new(), Unreadable::new());
        for ino in (0..geometry.areas).flat_map(|area| geometry.inodes_of(area)) {
            let at = geometry.inode_at(ino);
            match read_whole(medium, geometry, ino) {
                Ok(None) => (),
                Ok(Some(loaded)) => {
                    self.check_inode(geometry, &loaded);
                    if loaded.inode.kind == Kind::Symlink
                        && let Err(error) = loaded.target(medium)
                    {
                        self.add(at, format!("inode {ino}: {error}"));
                    }
                    if let Err(error) = loaded.xattrs(medium) {
                        self.add(at, format!("inode {ino}: {error}"));
                    }
                    inodes.insert(ino, loaded);
                }
                Err(error) => {
                    unreadable.insert(ino);
                    self.add(at, format!("inode {ino}: {error}"));
                }
            }
        }
        (inodes, unreadable)
    }

    fn check_inode(&mut self, geometry: &Geometry, loaded: &Loaded) {
        let (ino, at) = (loaded.ino, geometry.inode_at(loaded.ino));
        let Inode { kind, mode, size, links, .. } = loaded.inode;
        if mode & !0o7777 != 0 {
            self.add(at, format!("inode {ino} has mode {mode:#o}"));
        }
        // A file may have blocks behind its end.
        if kind != Kind::File && u64::from(loaded.map.end()) > size.div_ceil(BLOCK_BYTES) {
            let end = loaded.map.end();
            self.add(at, format!("inode {ino} of {size} bytes has blocks up to block {end}"));
        }
        match (links, kind) {
            (0, _) => self.census.orphans += 1,
            (_, Kind::Directory) => self.census.directories += 1,
            _ => self.census.files += 1,
        }
    }

    /// Whether each slot of a growing file that says something is of such a file.
    fn check_growth(&mut self, medium: &dyn Medium, geometry: &Geometry, inodes: &Inodes) {
        for at in (0..geometry.areas).flat_map(|area| geometry.slots(area)) {
            let mut bytes = [0; SLOT_BYTES];
            medium.read(at, &mut bytes);
            let (slot, end) = match GrowthSlot::from_bytes(&bytes, at) {
                Said::Nothing => continue,
                Said::Length(slot, end) => (slot, end),
                Said::Damaged => {
                    self.add(at, growth_slots::DAMAGED);
                    continue;
                }
            };
            let file = inodes.get(&slot.ino);
            match growth_slots::fault(&slot, end, file) {
                Some(fault) => self.add(at, fault),
                None => self.appends += usize::from(file.is_some_and(|file| file.inode.size < end)),
            }
        }
    }

    /// Whether each block has one owner, and is one that can be owned.
    fn check_blocks(&mut self, geometry: &Geometry, inodes: &Inodes) {
        let of = |loaded: &Loaded| {
            let ino = loaded.ino;
            loaded.all_runs().into_iter().map(move |run| (run, ino)).collect::<Vec<_>>()
        };
        let mut owned: Vec<(Run, u64)> = inodes.values().flat_map(of).collect();
        owned.sort_unstable();
        self.census.blocks = owned.iter().map(|(run, _)| run.count).sum();
        for (run, ino) in &owned {
            let pool = geometry.pool(geometry.area_of(run.start));
            if run.start < pool.start || run.end() > pool.end {
                self.add(run.start * BLOCK_BYTES, format!("inode {ino} has {} blocks that are no file's", run.count));
            }
        }
        for pair in owned.windows(2) {
            let [(one, first), (other, second)] = pair else { continue };
            if one.end() > other.start {
                let at = other.start * BLOCK_BYTES;
                self.add(at, format!("block {} is inode {first}'s and inode {second}'s", other.start));
            }
        }
        if inodes.get(&ROOT).is_none_or(|root| root.inode.kind != Kind::Directory) {
            self.add(geometry.inode_at(ROOT), "there is no root directory");
        }
    }
}

/// Reads an inode with the map of its blocks; nothing if it is free, with zeros where a free one has them.
pub(crate) fn read_whole(medium: &dyn Medium, geometry: &Geometry, ino: u64) -> Result<Option<Loaded>> {
    if let Some(inode) = read_inode(medium, geometry, ino)? {
        return Loaded::of(medium, geometry, ino, inode).map(Some);
    }
    let bytes = inode_bytes(medium, geometry, ino)?;
    let mut state = [0; STATE_BYTES];
    state.copy_from_slice(&bytes[..STATE_BYTES]);
    match u64::from_le_bytes(state) {
        0 => Ok(None),
        found => {
            let damage = Damage::Field { field: "first word, though it is free,", found };
            Err(Error::Damaged { structure: "an inode", at: geometry.inode_at(ino), damage })
        }
    }
}
