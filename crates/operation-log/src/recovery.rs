//! What is done for the logs that dead processes have left.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};

use crate::error::{Damage, Error, Result};
use crate::folder::{Folder, has_name, try_lock};
use crate::identity::{FileIdentity, stat_of};
use crate::locate::Search;
use crate::recovery_lock::RecoveryLock;
use crate::replay;
use crate::scan::{Contents, FileWork};

/// What was found and done.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Recovery {
    /// The logs, in the order in which they were replayed: those that were written to last at the end.
    pub logs: Vec<RecoveredLog>,
}

/// A log, and what became of it.
#[derive(Debug)]
#[non_exhaustive]
pub struct RecoveredLog {
    /// Where it lies, or lay.
    pub path: PathBuf,
    /// The process that wrote it, if that is known.
    pub owner: Option<u32>,
    /// Operations that were being written: nobody was told that they are durable, and they are in no file.
    pub torn: u64,
    /// The files that it has operations for which may not be in the file.
    pub files: Vec<RecoveredFile>,
    /// What became of it.
    pub state: LogState,
}

/// What became of a log.
#[derive(Debug)]
pub enum LogState {
    /// Its process lives.
    InUse,
    /// Everything that it holds is in the files, durably, and it was removed; or would be.
    Recovered,
    /// It could not be replayed, and was left as it is.
    Left(Error),
}

/// A file that a log has operations for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecoveredFile {
    /// What it was called.
    pub path: PathBuf,
    /// What it is called now; `None` if it is gone, and its operations with it.
    pub found_at: Option<PathBuf>,
    /// Operations that are replayed.
    pub operations: u64,
    /// Their data.
    pub bytes: u64,
}

/// Brings into the files under a folder what the logs of dead processes hold, makes it durable, and removes those logs.
/// A log is replayed wholly or left. Whenever this is cut short, it can be run again; who runs it while another does waits for that one.
///
/// To be run before the files are used again: what was written to them meanwhile would be overwritten.
pub fn recover(under: &Path) -> Result<Recovery> {
    go_through(under, Action::Replay)
}

/// What [`recover`] would do.
pub fn preview(under: &Path) -> Result<Recovery> {
    go_through(under, Action::Look)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Action {
    Replay,
    Look,
}

fn go_through(under: &Path, action: Action) -> Result<Recovery> {
    let mut recovery = Recovery::default();
    let Some(folder) = Folder::open(under)? else { return Ok(recovery) };
    if action == Action::Replay {
        folder.remove_unfinished()?;
    }
    for path in folder.logs()? {
        let mut log = RecoveredLog { path, owner: None, torn: 0, files: Vec::new(), state: LogState::Recovered };
        match recover_log(&folder, &mut log, action) {
            Ok(true) => recovery.logs.push(log),
            Ok(false) => {}
            Err(error) => {
                log.state = LogState::Left(error);
                recovery.logs.push(log);
            }
        }
    }
    if action == Action::Replay {
        folder.remove_if_empty();
    }
    Ok(recovery)
}

/// False if the log has gone meanwhile, as it has if another recovery was faster.
fn recover_log(folder: &Folder, log: &mut RecoveredLog, action: Action) -> Result<bool> {
    let path = log.path.clone();
    let failed = |action| {
        let path = path.clone();
        move |source| Error::Io { action, path, source }
    };
    let Some(file) = folder.open_log(&path)? else { return Ok(false) };
    // Another recovery is waited for. Its caller may use the files as soon as it is done; so may ours.
    let _recovering = RecoveryLock::wait_for(&file).map_err(failed("locking"))?;
    if !try_lock(&file).map_err(failed("locking"))? {
        log.state = LogState::InUse;
        return Ok(true);
    }
    if !has_name(&file).map_err(failed("looking at"))? {
        return Ok(false);
    }
    let contents = read(&file, &path)?;
    (log.owner, log.torn) = (Some(contents.owner), contents.torn);
    let work = contents.work().map_err(|damage| Error::Damaged { log: path.clone(), damage })?;
    let work: Vec<FileWork> = work.into_values().collect();
    log.files = locate(folder, &contents, &work)?;

    // All that can be refused is asked for before anything is written, so that no log is replayed in part and again later.
    let present = || log.files.iter().zip(&work).filter_map(|(file, work)| Some((file.found_at.as_ref()?, work)));
    let here = device_of(folder)?;
    for (at, work) in present() {
        replay::check(at, present_identity(work.file.identity, &contents, here))?;
    }
    if action == Action::Look {
        return Ok(true);
    }
    for (at, work) in present() {
        let target = replay::open(at, present_identity(work.file.identity, &contents, here))?;
        replay::replay(&file, &contents, work, &target, at)?;
    }
    folder.remove(&path).map_err(failed("removing"))?;
    // A log that came back after a power cut would be replayed over what was written since.
    folder.sync()?;
    Ok(true)
}

/// Reads a log that may be trusted: one of this user's own, and no copy.
fn read(file: &File, path: &Path) -> Result<Contents> {
    let failed = |source| Error::Io { action: "reading", path: path.to_owned(), source };
    let damaged = |damage| Error::Damaged { log: path.to_owned(), damage };
    // Or a user could have another, such as root, write to files that only that one may write to.
    let uid = stat_of(file).map_err(failed)?.stx_uid;
    if uid != rustix::process::geteuid().as_raw() {
        return Err(Error::OwnedByAnother { log: path.to_owned(), uid });
    }
    let contents = Contents::read(file).map_err(failed)?.map_err(damaged)?;
    let found = FileIdentity::of(file).map_err(failed)?;
    if (found.inode, found.birth) != (contents.log.inode, contents.log.birth) {
        return Err(damaged(Damage::Copy { original: contents.log.inode, found: found.inode }));
    }
    Ok(contents)
}

/// Finds the files: at the path that they had, or anywhere below the folder.
fn locate(folder: &Folder, contents: &Contents, work: &[FileWork]) -> Result<Vec<RecoveredFile>> {
    let here = device_of(folder)?;
    let mut files = Vec::with_capacity(work.len());
    let mut missing = BTreeSet::new();
    let mut unknown = Vec::with_capacity(work.len());
    for work in work {
        let identity = present_identity(work.file.identity, contents, here);
        let path = &work.file.path;
        let found = FileIdentity::at(path);
        let is_there = matches!(&found, Ok(Some(found)) if *found == identity);
        unknown.push(found.err());
        if !is_there {
            missing.insert(identity);
        }
        files.push(RecoveredFile {
            path: path.clone(),
            found_at: is_there.then(|| path.clone()),
            operations: work.writes.len() as u64,
            bytes: work.bytes,
        });
    }
    if missing.is_empty() {
        return Ok(files);
    }
    let mut search = Search::of(missing, folder.under());
    for ((file, work), unknown) in files.iter_mut().zip(work).zip(unknown) {
        if file.found_at.is_some() {
            continue;
        }
        file.found_at = search.found.get(&present_identity(work.file.identity, contents, here)).cloned();
        if file.found_at.is_none() {
            // It counts as gone only if nothing speaks for its being where nobody could look.
            search.check_complete(&file.path)?;
            if let Some(source) = unknown {
                return Err(Error::File { action: "looking at", path: file.path.clone(), source });
            }
        }
    }
    Ok(files)
}

fn device_of(folder: &Folder) -> Result<u64> {
    let failed = |source| Error::Io { action: "looking at", path: folder.under().to_owned(), source };
    let folder = File::open(folder.under()).map_err(failed)?;
    Ok(FileIdentity::of(folder).map_err(failed)?.device)
}

/// Device numbers change with a reboot. What was on the log's file system is still there.
fn present_identity(identity: FileIdentity, contents: &Contents, here: u64) -> FileIdentity {
    let device = if identity.device == contents.log.device { here } else { identity.device };
    FileIdentity { device, ..identity }
}
