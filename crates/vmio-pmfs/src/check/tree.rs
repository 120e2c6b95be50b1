//! Whether names and inodes agree.

use std::collections::{BTreeMap, BTreeSet};

use super::{Inodes, Report, Unreadable};
use crate::directories::Index;
use crate::format::entry::check_name;
use crate::format::geometry::{Geometry, ROOT};
use crate::format::inode::Kind;
use crate::medium::Medium;

/// The inodes by what directories say of them.
#[derive(Default)]
struct Said {
    /// Names of each inode.
    names: BTreeMap<u64, u32>,
    /// Directories that have entries.
    filled: BTreeSet<u64>,
    /// Directories in each.
    subdirectories: BTreeMap<u64, u32>,
    /// The directories that each directory has a name in.
    parents: BTreeMap<u64, Vec<u64>>,
}

pub(super) fn check(
    report: &mut Report,
    medium: &dyn Medium,
    geometry: &Geometry,
    inodes: &Inodes,
    unreadable: &Unreadable,
) {
    let said = read_directories(report, medium, geometry, inodes, unreadable);
    for (ino, loaded) in inodes {
        let at = geometry.inode_at(*ino);
        let names = said.names.get(ino).copied().unwrap_or(0);
        let links = loaded.inode.links;
        if loaded.inode.kind != Kind::Directory {
            if names != links {
                report.add(at, format!("inode {ino} counts {links} names and has {names}"));
            }
            continue;
        }
        let names = names + u32::from(*ino == ROOT);
        let inside = said.subdirectories.get(ino).copied().unwrap_or(0);
        match (names, links) {
            (0, 0) if said.filled.contains(ino) => {
                report.add(at, format!("directory {ino} has no name, and entries"));
            }
            (0, 0) => (),
            (1, links) if links == 2 + inside => (),
            (1, links) => report.add(at, format!("directory {ino} counts {links} links and has {}", 2 + inside)),
            (names, links) => report.add(at, format!("directory {ino} has {names} names and {links} links")),
        }
        let parent = loaded.inode.parent_or_device;
        let is_in = match *ino {
            ROOT => parent == ROOT,
            ino => links == 0 || said.parents.get(&ino).is_some_and(|parents| parents.contains(&parent)),
        };
        if !is_in {
            report.add(at, format!("directory {ino} says that it is in directory {parent}, which has no name of it"));
        }
    }
    check_reachable(report, geometry, inodes);
}

fn read_directories(
    report: &mut Report,
    medium: &dyn Medium,
    geometry: &Geometry,
    inodes: &Inodes,
    unreadable: &Unreadable,
) -> Said {
    let mut said = Said::default();
    for (directory, loaded) in inodes.iter().filter(|(_, loaded)| loaded.inode.kind == Kind::Directory) {
        let at = geometry.inode_at(*directory);
        let index = match Index::load(medium, loaded) {
            Ok(index) => index,
            Err(error) => {
                report.add(at, format!("directory {directory}: {error}"));
                continue;
            }
        };
        if !index.is_empty() {
            said.filled.insert(*directory);
        }
        for (name, known) in index.names() {
            let shown = String::from_utf8_lossy(name);
            if check_name(name).is_err() {
                report.add(at, format!("directory {directory} has the name {shown:?}"));
            }
            match inodes.get(&known.ino) {
                // It has a fault of its own.
                None if unreadable.contains(&known.ino) => (),
                None => {
                    report.add(at, format!("{shown:?} in directory {directory} is inode {}, which is free", known.ino))
                }
                Some(named) if named.inode.kind != known.kind => {
                    let (is, says) = (named.inode.kind, known.kind);
                    report.add(at, format!("{shown:?} in directory {directory} is a {is:?} and said to be a {says:?}"));
                }
                Some(_) => (),
            }
            *said.names.entry(known.ino).or_default() += 1;
            if known.kind == Kind::Directory {
                *said.subdirectories.entry(*directory).or_default() += 1;
                said.parents.entry(known.ino).or_default().push(*directory);
            }
        }
    }
    said
}

/// Whether each directory with a name is under the root: a cycle is not.
fn check_reachable(report: &mut Report, geometry: &Geometry, inodes: &Inodes) {
    for (ino, loaded) in inodes.iter().filter(|(_, one)| one.inode.kind == Kind::Directory && one.inode.links > 0) {
        let (mut above, mut steps) = (loaded.inode.parent_or_device, 0);
        while above != ROOT && steps <= inodes.len() {
            match inodes.get(&above) {
                Some(parent) => above = parent.inode.parent_or_device,
                None => break,
            }
            steps += 1;
        }
        if above != ROOT {
            report.add(geometry.inode_at(*ino), format!("directory {ino} is not under the root"));
        }
    }
}
