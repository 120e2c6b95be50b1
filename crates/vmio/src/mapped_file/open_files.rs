//! Which files the process has open: one region per file and process, from the first handle to the last.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};

use crate::backing::{Access, Backing, Identity};
use crate::cache::Cache;
use crate::error::{Error, Result};
use crate::mapped_file::OpenedFile;
use crate::mapped_file::opened::{OpenRegion, Opened};
use crate::options::MappingOptions;
use crate::sys::fork::Generation;

static OPEN_FILES: Mutex<BTreeMap<Identity, OpenFile>> = Mutex::new(BTreeMap::new());
static FILE_CLOSED: Condvar = Condvar::new();

/// A file that some mapping of the process has open, or is about to close.
struct OpenFile {
    opened: Weak<dyn OpenedFile>,
    generation: Generation,
}

/// The file's place among those that are open; given up when dropped.
pub(crate) struct Entry {
    identity: Identity,
    generation: Generation,
}

impl Drop for Entry {
    fn drop(&mut self) {
        // In a forked child, another thread of the parent may have held the lock when it was copied.
        if self.generation.is_current() {
            OPEN_FILES.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.identity);
            FILE_CLOSED.notify_all();
        }
    }
}

/// What the process has open of the file behind a backing, through this cache, or through none; else what `start` makes of it, once other
/// processes are kept off.
pub(crate) fn open<R: OpenRegion>(
    cache: Option<&Cache>,
    backing: Box<dyn Backing>,
    options: MappingOptions,
    start: impl FnOnce(Box<dyn Backing>, MappingOptions) -> Result<R>,
) -> Result<Arc<Opened<R>>> {
    let generation = match cache {
        Some(cache) => cache.generation(),
        None => Generation::of_this_process().map_err(Error::system("noting the process"))?,
    };
    let start = |backing: Box<dyn Backing>, options: MappingOptions| {
        if !generation.is_current() {
            return Err(Error::Forked);
        }
        backing.lock(R::file_user(options.access_to(&*backing)?))?;
        start(backing, options)
    };
    let Some(identity) = backing.identity() else {
        return Ok(Arc::new(Opened::new(start(backing, options)?, None)));
    };
    let mut open_files = OPEN_FILES.lock().unwrap_or_else(PoisonError::into_inner);
    while let Some(present) = open_files.get(&identity) {
        if !present.generation.is_current() {
            break; // Inherited by a forked child: the parent's.
        }
        if let Some(opened) = present.opened.upgrade() {
            let wanted = options.access.unwrap_or_else(|| backing.access());
            let how = if cache.is_some_and(|cache| !opened.belongs_to(cache)) {
                "through another cache"
            } else if wanted == Access::ReadWrite && opened.access() == Access::ReadOnly {
                "read-only"
            } else if !opened.commits_to(options.journal.as_ref()) {
                "without this journal"
            } else if let Ok(opened) = (opened as Arc<dyn Any + Send + Sync>).downcast() {
                return Ok(opened);
            } else {
                "by another engine"
            };
            // Dropping what may be the last handle takes this lock.
            drop(open_files);
            return Err(Error::AlreadyMapped { backing: backing.describe(), how });
        }
        // Its last handle is going: it syncs and unlocks the file.
        open_files = FILE_CLOSED.wait(open_files).unwrap_or_else(PoisonError::into_inner);
    }
    let opened = Arc::new(Opened::new(start(backing, options)?, Some(Entry { identity, generation })));
    let weak: Weak<dyn OpenedFile> = Arc::downgrade(&opened) as _;
    open_files.insert(identity, OpenFile { opened: weak, generation });
    Ok(opened)
}
