//! The files of a log.

use std::collections::HashMap;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use smallvec::SmallVec;
use zerocopy::IntoBytes;

use crate::entry::{FILE_FRONT_BYTES, PATH_BYTES_MAX};
use crate::error::{Error, Result};
use crate::file_number::FileNumber;
use crate::identity::{FileIdentity, IdentityFields};

/// The data of an entry that introduces a file; on the stack unless its path is unusually long.
pub(crate) type Introduction = SmallVec<[u8; 512]>;

/// The file was introduced in no generation.
const NEVER: u64 = u64::MAX;

/// A file of a log.
pub(crate) struct LoggedFile {
    pub(crate) number: FileNumber,
    identity: FileIdentity,
    path: Mutex<PathBuf>,
    /// The generation in which the entry that introduces it is durable.
    introduced_in: AtomicU64,
    /// The end of its last operation in the log; 0 if there is none.
    logged_to: AtomicU64,
    /// Its operations before this position are in the file.
    retired_to: AtomicU64,
    /// Whether its operations are kept for the recovery.
    is_kept: AtomicBool,
    /// Held during a flush of the file and, if the flush fails, until the file is kept.
    flush: Mutex<()>,
}

impl LoggedFile {
    /// The data of the entry that introduces it, unless the generation has such an entry already.
    pub(crate) fn introduction(&self, generation: u64) -> Option<Introduction> {
        if self.introduced_in.load(Ordering::Acquire) == generation {
            return None;
        }
        let mut data = Introduction::new();
        data.extend_from_slice(IdentityFields::from(self.identity).as_bytes());
        debug_assert_eq!(data.len(), FILE_FRONT_BYTES);
        data.extend_from_slice(self.path.lock().unwrap_or_else(PoisonError::into_inner).as_os_str().as_bytes());
        Some(data)
    }

    /// To be called once the introduction is durable, since other threads' operations rely on it.
    pub(crate) fn set_introduced(&self, generation: u64) {
        self.introduced_in.store(generation, Ordering::Release);
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.path.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes that an operation that ends there is about to be written.
    pub(crate) fn set_logged(&self, end: u64) {
        self.logged_to.fetch_max(end, Ordering::AcqRel);
    }

    pub(crate) fn set_retired(&self, until: u64) {
        self.retired_to.fetch_max(until, Ordering::AcqRel);
    }

    pub(crate) fn keep(&self) {
        self.is_kept.store(true, Ordering::Release);
    }

    pub(crate) fn check_not_kept(&self) -> Result<()> {
        if self.is_kept.load(Ordering::Acquire) { Err(Error::Kept { path: self.path() }) } else { Ok(()) }
    }

    /// Makes the file durable, or keeps its operations if that fails. Linux reports bytes that it could not write to one flush only, and
    /// the next flush succeeds without them. So no other flush may run before the file is kept.
    pub(crate) fn flush(&self, sync: impl FnOnce() -> io::Result<()>) -> Result<()> {
        let _alone = self.lock_flushes()?;
        sync().map_err(|error| {
            // The caller says that there was no flush.
            if error.kind() != io::ErrorKind::NotFound {
                self.keep();
            }
            Error::Sync(error)
        })
    }

    /// Waits for a flush that is under way. While the guard is held there is no other flush, and none has failed before.
    pub(crate) fn lock_flushes(&self) -> Result<MutexGuard<'_, ()>> {
        let alone = self.flush.lock().unwrap_or_else(PoisonError::into_inner);
        self.check_not_kept()?;
        Ok(alone)
    }

    /// Whether all its operations are durable in the file.
    pub(crate) fn is_retired(&self) -> bool {
        self.logged_to.load(Ordering::Acquire) <= self.retired_to.load(Ordering::Acquire)
    }

    /// Forgets the positions after the log was emptied. Nobody writes meanwhile.
    fn reset(&self) {
        self.logged_to.store(0, Ordering::Release);
        self.retired_to.store(0, Ordering::Release);
    }
}

/// All files of a log.
#[derive(Default)]
pub(crate) struct Files(RwLock<Table>);

#[derive(Default)]
struct Table {
    by_number: HashMap<FileNumber, Arc<LoggedFile>>,
    by_identity: HashMap<FileIdentity, FileNumber>,
    used: u32,
}

impl Files {
    /// The number of a file, which gets one if it has none. Its path is `path` from now on.
    pub(crate) fn add(&self, identity: FileIdentity, path: PathBuf) -> Result<FileNumber> {
        let bytes = path.as_os_str().len();
        if bytes > PATH_BYTES_MAX {
            return Err(Error::PathTooLong { bytes, bytes_max: PATH_BYTES_MAX });
        }
        let mut table = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = table.by_identity.get(&identity).and_then(|number| table.by_number.get(number)) {
            let mut known_path = known.path.lock().unwrap_or_else(PoisonError::into_inner);
            if *known_path != path {
                *known_path = path;
                known.introduced_in.store(NEVER, Ordering::Release);
            }
            return Ok(known.number);
        }
        let number = FileNumber::of_number(table.used);
        let too_many =
            Error::BadOption { option: "files", value: table.used.into(), expected: "at most 2^32 in one log" };
        table.used = table.used.checked_add(1).ok_or(too_many)?;
        let file = LoggedFile {
            number,
            identity,
            path: Mutex::new(path),
            introduced_in: AtomicU64::new(NEVER),
            logged_to: AtomicU64::new(0),
            retired_to: AtomicU64::new(0),
            is_kept: AtomicBool::new(false),
            flush: Mutex::new(()),
        };
        table.by_identity.insert(identity, number);
        table.by_number.insert(number, Arc::new(file));
        Ok(number)
    }

    pub(crate) fn get(&self, number: FileNumber) -> Result<Arc<LoggedFile>> {
        let table = self.0.read().unwrap_or_else(PoisonError::into_inner);
        table.by_number.get(&number).cloned().ok_or(Error::UnknownFile(number))
    }

    /// Removes a retired file.
    pub(crate) fn remove(&self, number: FileNumber) -> Result<()> {
        let mut table = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let file = table.by_number.get(&number).ok_or(Error::UnknownFile(number))?;
        if !file.is_retired() {
            return Err(Error::NotRetired { path: file.path() });
        }
        let identity = file.identity;
        table.by_identity.remove(&identity);
        table.by_number.remove(&number);
        Ok(())
    }

    /// Makes all files durable that are not retired; stops at the first failure.
    pub(crate) fn flush_unretired(&self, mut sync: impl FnMut(FileNumber) -> io::Result<()>) -> Result<()> {
        let table = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let mut unretired = table.by_number.values().filter(|file| !file.is_retired());
        unretired.try_for_each(|file| file.flush(|| sync(file.number)))
    }

    /// Fails if operations of a file are kept.
    pub(crate) fn check_none_kept(&self) -> Result<()> {
        let table = self.0.read().unwrap_or_else(PoisonError::into_inner);
        table.by_number.values().filter(|file| !file.is_retired()).try_for_each(|file| file.check_not_kept())
    }

    /// Whether all are retired.
    pub(crate) fn are_retired(&self) -> bool {
        let table = self.0.read().unwrap_or_else(PoisonError::into_inner);
        table.by_number.values().all(|file| file.is_retired())
    }

    pub(crate) fn reset(&self) {
        let table = self.0.read().unwrap_or_else(PoisonError::into_inner);
        table.by_number.values().for_each(|file| file.reset());
    }
}
