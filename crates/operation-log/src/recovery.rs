//! Replaying the logs of dead processes.

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

/// The result of a recovery.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Recovery {
    /// The logs in the order of their replay: the most recently written ones come last.
    pub logs: Vec<RecoveredLog>,
}

/// A log and its state after the recovery.
#[derive(Debug)]
#[non_exhaustive]
pub struct RecoveredLog {
    /// Its path.
    pub path: PathBuf,
    /// The process that wrote it, if known.
    pub owner: Option<u32>,
    /// Operations that a crash has cut short: they were never acknowledged as durable, and no file has them.
    pub torn: u64,
    /// The files with operations that may not be durable in the file.
    pub files: Vec<RecoveredFile>,
    /// Its state.
    pub state: LogState,
}

/// The state of a log after the recovery.
#[derive(Debug)]
pub enum LogState {
    /// Its process is running.
    InUse,
    /// Its operations are durable in the files, and it was removed. In a preview: they would be.
    Recovered,
    /// It could not be replayed, and stays as it was.
    NotReplayed(Error),
}

/// A file with operations in a log.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecoveredFile {
    /// Its path when it was logged.
    pub path: PathBuf,
    /// Its present path; `None` if it is gone, with its operations.
    pub found_at: Option<PathBuf>,
    /// The number of operations to replay.
    pub operations: u64,
    /// The bytes of their data.
    pub bytes: u64,
}

/// Replays the logs of dead processes into the files under a folder, makes the files durable, and removes the logs.
///
/// A log is replayed as a whole or not at all. After an interruption, run this again. If two recoveries run at a time, one waits for the
/// other. Run it before any program uses the files again: it would overwrite later writes.
///
/// # Errors
/// If the folder cannot be read. A log that cannot be replayed is not an error: see [`LogState::NotReplayed`].
pub fn recover(under: &Path) -> Result<Recovery> {
    go_through(under, Action::Replay)
}

/// Returns what [`recover`] would do, and changes nothing.
///
/// # Errors
/// If the folder cannot be read.
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
                log.state = LogState::NotReplayed(error);
                recovery.logs.push(log);
            }
        }
    }
    if action == Action::Replay {
        folder.remove_if_empty();
    }
    Ok(recovery)
}

/// False if the log does not exist any more, because another recovery was faster.
fn recover_log(folder: &Folder, log: &mut RecoveredLog, action: Action) -> Result<bool> {
    let path = log.path.clone();
    let failed = |action| {
        let path = path.clone();
        move |source| Error::Io { action, path, source }
    };
    let Some(file) = folder.open_log(&path)? else { return Ok(false) };
    // Wait for another recovery: its caller, like ours, may use the files as soon as it is done.
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

    // All permissions are checked before anything is written, so that a log is not replayed in part and again later.
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
    // A log that came back after a power cut would be replayed over later writes.
    folder.sync()?;
    Ok(true)
}

/// Reads a log that may be trusted: it belongs to this user, and is not a copy.
fn read(file: &File, path: &Path) -> Result<Contents> {
    let failed = |source| Error::Io { action: "reading", path: path.to_owned(), source };
    let damaged = |damage| Error::Damaged { log: path.to_owned(), damage };
    // Or a user could make another, such as root, write to files that only the other may write to.
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

/// Finds the files: at their former paths, or anywhere below the folder.
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
            // It counts as gone only if it cannot be in a folder that could not be read.
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

/// A device number may change with a reboot. A file on the log's file system is still on that.
fn present_identity(identity: FileIdentity, contents: &Contents, here: u64) -> FileIdentity {
    let device = if identity.device == contents.log.device { here } else { identity.device };
    FileIdentity { device, ..identity }
}
