//! All inodes and entries that can be read.

use std::collections::{BTreeMap, BTreeSet};

use crate::check::read_whole;
use crate::directories::{self, Found};
use crate::format::entry::Entry;
use crate::format::geometry::{Geometry, ROOT};
use crate::format::inode::Kind;
use crate::inodes::loaded::Loaded;
use crate::medium::Medium;

/// All inodes and entries that can be read.
pub(super) struct Survey {
    pub(super) inodes: BTreeMap<u64, Loaded>,
    /// Inodes that are neither free nor readable.
    pub(super) unreadable: BTreeSet<u64>,
    pub(super) names: Vec<Name>,
    /// Directories some of whose entries cannot be read.
    pub(super) faulty: BTreeSet<u64>,
    /// The places in `names` of each inode's.
    by_inode: BTreeMap<u64, Vec<usize>>,
}

/// An entry.
pub(super) struct Name {
    pub(super) directory: u64,
    pub(super) slot: u32,
    pub(super) at: u64,
    pub(super) entry: Entry,
}

impl Name {
    /// The name as a text.
    pub(super) fn shown(&self) -> String {
        format!("{:?} in directory {}", String::from_utf8_lossy(&self.entry.name), self.directory)
    }
}

impl Survey {
    pub(super) fn read(medium: &dyn Medium, geometry: &Geometry) -> Survey {
        let mut survey = Survey {
            inodes: BTreeMap::new(),
            unreadable: BTreeSet::new(),
            names: Vec::new(),
            faulty: BTreeSet::new(),
            by_inode: BTreeMap::new(),
        };
        for ino in (0..geometry.areas).flat_map(|area| geometry.inodes_of(area)) {
            match read_whole(medium, geometry, ino) {
                Ok(None) => (),
                Ok(Some(loaded)) => _ = survey.inodes.insert(ino, loaded),
                Err(_) => _ = survey.unreadable.insert(ino),
            }
        }
        for (ino, loaded) in survey.inodes.iter().filter(|(_, loaded)| loaded.inode.kind == Kind::Directory) {
            for found in directories::scan(medium, loaded) {
                let Ok(found) = found else {
                    survey.faulty.insert(*ino);
                    continue;
                };
                for Found { slot, at, entry } in found {
                    match entry {
                        Ok(entry) => survey.names.push(Name { directory: *ino, slot, at, entry }),
                        Err(_) => _ = survey.faulty.insert(*ino),
                    }
                }
            }
        }
        for (place, name) in survey.names.iter().enumerate() {
            survey.by_inode.entry(name.entry.ino).or_default().push(place);
        }
        survey
    }

    /// The names of an inode.
    pub(super) fn names_of(&self, ino: u64) -> impl Iterator<Item = &Name> {
        self.by_inode.get(&ino).into_iter().flatten().map(|place| &self.names[*place])
    }

    /// Whether a directory is under the root, and not by way of another one. Each on the way has a name where it says that it is.
    pub(super) fn leads_up(&self, directory: u64, without: u64) -> bool {
        let mut above = directory;
        // A cycle has an end here.
        for _ in 0..=self.inodes.len() {
            if above == ROOT || above == without {
                return above == ROOT;
            }
            let Some(loaded) = self.inodes.get(&above).filter(|loaded| loaded.inode.kind == Kind::Directory) else {
                return false;
            };
            let home = loaded.inode.parent_or_device;
            if !self.names_of(above).any(|name| name.directory == home) {
                return false;
            }
            above = home;
        }
        false
    }

    pub(super) fn has_name(&self, ino: u64) -> bool {
        self.by_inode.contains_key(&ino)
    }

    /// Whether there is no inode of this number, as its own bytes say.
    pub(super) fn is_free(&self, geometry: &Geometry, ino: u64) -> bool {
        ino >= geometry.all_inodes() || !self.inodes.contains_key(&ino) && !self.unreadable.contains(&ino)
    }

    /// Whether there are no names but those that were found: no directory is damaged, nor an inode that may be one.
    pub(super) fn names_are_known(&self) -> bool {
        let is_other = |ino: &u64| self.names_of(*ino).any(|name| name.entry.kind != Kind::Directory);
        self.faulty.is_empty() && self.unreadable.iter().all(is_other)
    }
}
