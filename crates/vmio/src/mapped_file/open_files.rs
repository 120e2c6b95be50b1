//! Which files the process has open: one region per file and process, from the first handle to the last.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};

use crate::backing::{Access, Backing, Identity};
use crate::cache::Cache;
use crate::error::{Error, Result};
use crate::mapped_file::OpenedFile;
use crate::mapped_file::opened::{OpenRegion, Opened};
use crate::options::MappingOptions;
use crate::sys::fork::{Generation, PerProcess};

static OPEN_FILES: PerProcess<OpenFiles> = PerProcess::new();

/// The files that mappings of the process have open, or are about to close.
#[derive(Default)]
struct OpenFiles {
    files: Mutex<BTreeMap<Identity, Weak<dyn OpenedFile>>>,
    file_closed: Condvar,
}

impl OpenFiles {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Identity, Weak<dyn OpenedFile>>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The file's place among those that are open; given up when dropped.
pub(crate) struct Entry {
    identity: Identity,
    open_files: &'static OpenFiles,
    generation: Generation,
}

impl Drop for Entry {
    fn drop(&mut self) {
        // A forked child has files of its own.
        if self.generation.is_current() {
            self.open_files.lock().remove(&self.identity);
            self.open_files.file_closed.notify_all();
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
    let open_files = OPEN_FILES.get().map_err(Error::system("noting the process"))?;
    let mut files = open_files.lock();
    while let Some(present) = files.get(&identity) {
        if let Some(opened) = present.upgrade() {
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
            drop(files);
            return Err(Error::AlreadyMapped { backing: backing.describe(), how });
        }
        // Its last handle is going: it syncs and unlocks the file.
        files = open_files.file_closed.wait(files).unwrap_or_else(PoisonError::into_inner);
    }
    let region = start(backing, options)?;
    let opened = Arc::new(Opened::new(region, Some(Entry { identity, open_files, generation })));
    files.insert(identity, Arc::downgrade(&opened) as _);
    Ok(opened)
}
