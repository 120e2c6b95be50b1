//! Repairs of entries: those that lead to nothing, and those that say something else than the inode.

use std::collections::BTreeSet;

use super::Work;
use super::survey::{Name, Survey};
use crate::directories;
use crate::error::Result;
use crate::format::entry::Entry;
use crate::format::geometry::{Geometry, ROOT};
use crate::format::inode::Kind;
use crate::fs::Fs;

/// The repair of an entry.
enum Verdict {
    /// It stays, or nothing about it is provable.
    Stays,
    /// It is removed.
    Goes(String),
    /// It says another kind.
    Becomes(Kind),
}

pub(super) fn repair(fs: &Fs, survey: Survey, work: &mut Work) -> Result<()> {
    let volume = &fs.volume;
    let mut seen = BTreeSet::new();
    for name in &survey.names {
        let verdict = match seen.insert((name.directory, &name.entry.name, name.entry.ino)) {
            true => judge(&volume.geometry, &survey, name),
            false => Verdict::Goes("is there twice, for the same inode".to_owned()),
        };
        let Some(directory) = survey.inodes.get(&name.directory) else { continue };
        if let Verdict::Stays = verdict {
            continue;
        }
        let mut transaction = volume.journals.begin(volume.home());
        let what = match verdict {
            Verdict::Stays => continue,
            Verdict::Goes(why) => {
                directories::erase(&mut transaction, directory, name.slot);
                format!("{} {why}: it is removed", name.shown())
            }
            Verdict::Becomes(kind) => {
                let entry = Entry { kind, ..name.entry.clone() };
                directories::retarget(&mut transaction, directory, name.slot, &entry);
                format!("{} was said to be a {:?}: it says {kind:?} now, as its inode", name.shown(), name.entry.kind)
            }
        };
        transaction.commit()?;
        work.add(name.at, what);
    }
    Ok(())
}

fn judge(geometry: &Geometry, survey: &Survey, name: &Name) -> Verdict {
    let ino = name.entry.ino;
    if survey.is_free(geometry, ino) {
        return Verdict::Goes(format!("is inode {ino}, which is free"));
    }
    if ino == ROOT {
        return Verdict::Goes("is the root, which has no name".to_owned());
    }
    let Some(named) = survey.inodes.get(&ino) else { return Verdict::Stays };
    let kind = named.inode.kind;
    if kind == Kind::Directory && named.inode.parent_or_device != name.directory {
        // The directory and another name agree on where it is. In a cycle, this name may be the only way to it.
        let home = named.inode.parent_or_device;
        let is_there = survey.names_of(ino).any(|other| other.directory == home);
        if is_there && survey.leads_up(home, ino) {
            return Verdict::Goes(format!("is directory {ino}, which is in directory {home}"));
        }
    }
    match kind == name.entry.kind {
        true => Verdict::Stays,
        false => Verdict::Becomes(kind),
    }
}
