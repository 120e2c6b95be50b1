//! Repairs of what inodes say of their names: counts, and the directory that a directory is in. An inode without a name gets one in `lost+found`.

use std::collections::BTreeMap;

use super::Work;
use super::survey::Survey;
use crate::directories::{Index, Room};
use crate::error::{Error, Result};
use crate::format::entry::Entry;
use crate::format::geometry::ROOT;
use crate::format::inode::Kind;
use crate::fs::Fs;
use crate::fs::names::New;
use crate::inodes::loaded::Loaded;
use crate::inodes::volume::Volume;

/// The directory in the root that gets what has no name.
const LOST_AND_FOUND: &[u8] = b"lost+found";

/// The statement of all names about an inode.
#[derive(Clone, Copy, Default)]
struct Said {
    names: u32,
    /// Directories in it.
    inside: u32,
    is_filled: bool,
    /// The directory that the last of its names is in.
    home: u64,
}

impl Said {
    /// The links that an inode with a name has.
    fn links(&self, kind: Kind) -> u32 {
        match kind {
            Kind::Directory => 2 + self.inside,
            _ => self.names.max(1),
        }
    }
}

pub(super) fn repair(fs: &Fs, mut survey: Survey, work: &mut Work) -> Result<()> {
    if !survey.names_are_known() {
        return Ok(());
    }
    let said = said_by_names(&survey);
    let numbers: Vec<u64> = survey.inodes.keys().copied().collect();
    let mut lost = Vec::new();
    for ino in numbers {
        let said_of = said.get(&ino).copied().unwrap_or_default();
        let is_homeless = said_of.names == 1 && is_elsewhere(&survey, &said, ino, said_of.home);
        let Some(loaded) = survey.inodes.get_mut(&ino) else { continue };
        let (at, kind, links) = (fs.volume.geometry.inode_at(ino), loaded.inode.kind, loaded.inode.links);
        let is_root = ino == ROOT;
        match said_of.names + u32::from(is_root) {
            0 if links == 0 && !said_of.is_filled => {
                let mut transaction = fs.volume.journals.begin(fs.volume.home());
                loaded.remove(&fs.volume, &mut transaction);
                transaction.commit()?;
                // Another inode may have its blocks, too. The next survey finds out.
                work.orphans += 1;
            }
            0 => lost.push((ino, said_of)),
            // Which of its names is its own cannot be known.
            2.. if kind == Kind::Directory => (),
            _ => {
                let parent = loaded.inode.parent_or_device;
                let wanted = said_of.links(kind);
                let mut what = Vec::new();
                if is_homeless {
                    loaded.inode.parent_or_device = said_of.home;
                    let home = said_of.home;
                    what.push(format!(
                        "directory {ino} said that it is in directory {parent}: it says {home} now, which has its name"
                    ));
                }
                if is_root && parent != ROOT && kind == Kind::Directory {
                    loaded.inode.parent_or_device = ROOT;
                    what.push(format!("the root said that it is in directory {parent}: it says itself now"));
                }
                if links != wanted && (kind == Kind::Directory || !is_root) {
                    loaded.inode.links = wanted;
                    what.push(format!("inode {ino} counted {links} links: it counts {wanted} now"));
                }
                if !what.is_empty() {
                    store(&fs.volume, loaded)?;
                    what.into_iter().for_each(|what| work.add(at, what));
                }
            }
        }
    }
    for (ino, said_of) in lost {
        match keep(fs, ino, &said_of) {
            Ok(name) => {
                let at = fs.volume.geometry.inode_at(ino);
                work.add(at, format!("inode {ino} had no name: it is lost+found/{name} now"));
            }
            // The others have no room either; nor if `lost+found` is something else.
            Err(_) => break,
        }
    }
    Ok(())
}

fn said_by_names(survey: &Survey) -> BTreeMap<u64, Said> {
    let mut all: BTreeMap<u64, Said> = BTreeMap::new();
    for name in &survey.names {
        let said = all.entry(name.entry.ino).or_default();
        (said.names, said.home) = (said.names + 1, name.directory);
        let said = all.entry(name.directory).or_default();
        said.is_filled = true;
        said.inside += u32::from(name.entry.kind == Kind::Directory);
    }
    all
}

/// Whether a directory says another place than that of its only name, which leads up to the root without it.
fn is_elsewhere(survey: &Survey, said: &BTreeMap<u64, Said>, ino: u64, home: u64) -> bool {
    let is = survey
        .inodes
        .get(&ino)
        .is_some_and(|loaded| loaded.inode.kind == Kind::Directory && loaded.inode.parent_or_device != home);
    if !is || ino == ROOT {
        return false;
    }
    let mut above = home;
    for _ in 0..=survey.inodes.len() {
        match said.get(&above) {
            _ if above == ROOT => return true,
            _ if above == ino => return false,
            Some(Said { names: 1, home, .. }) => above = *home,
            _ => return false,
        }
    }
    false
}

fn store(volume: &Volume, loaded: &mut Loaded) -> Result<()> {
    let mut transaction = volume.journals.begin(volume.home());
    loaded.store(volume, &mut transaction, None);
    transaction.commit()
}

/// Gives an inode a name in `lost+found`: its number. Returns the name.
fn keep(fs: &Fs, ino: u64, said: &Said) -> Result<String> {
    let volume = &fs.volume;
    let mut lost = lost_and_found(fs)?;
    let mut index = Index::load(&*volume.medium, &lost)?;
    let mut name = format!("#{ino}");
    while index.get(name.as_bytes()).is_some() {
        name.push('~');
    }
    let mut loaded = Loaded::load(volume, ino)?;
    let kind = loaded.inode.kind;
    let room = Room::find(volume, &mut lost, &index, name.len())?;
    let entry = Entry { ino, kind, name: name.clone().into_bytes() };
    loaded.inode.links = said.links(kind);
    if kind == Kind::Directory {
        loaded.inode.parent_or_device = lost.ino;
        lost.inode.links += 1;
    }
    let mut transaction = volume.journals.begin(volume.home());
    room.put(&mut transaction, &lost, &entry);
    lost.store(volume, &mut transaction, room.remapped());
    loaded.store(volume, &mut transaction, None);
    transaction.commit()?;
    room.settle(volume, &mut index, entry);
    Ok(name)
}

/// The directory `lost+found`, which is made if there is none.
fn lost_and_found(fs: &Fs) -> Result<Loaded> {
    let root = Loaded::load(&fs.volume, ROOT)?;
    let known = Index::load(&*fs.volume.medium, &root)?.get(LOST_AND_FOUND);
    let ino = match known {
        Some(known) => known.ino,
        None => {
            let owner = (root.inode.uid, root.inode.gid);
            fs.create(ROOT, LOST_AND_FOUND, New::Directory, 0o700, owner)?.ino
        }
    };
    let loaded = Loaded::load(&fs.volume, ino)?;
    match loaded.inode.kind {
        Kind::Directory if loaded.inode.links > 0 => Ok(loaded),
        _ => Err(Error::NotADirectory { ino }),
    }
}
