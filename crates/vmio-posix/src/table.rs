//! The files that the process has mapped.

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::{FileType, Stat, fstat};
use vmio::SignalsBlocked;
use vmio::backing::Identity;

use crate::file::{File, identity_of};
use crate::windows::Place;

/// The mapped files, found by address or identity. They are few, so a list is enough.
pub(crate) struct Table {
    files: Mutex<Vec<Arc<File>>>,
    /// Their number, for reading without the lock.
    count: AtomicUsize,
}

/// The locked table. Signals stay blocked meanwhile, since a handler of the program's may read and write files.
pub(crate) struct LockedTable<'a> {
    files: MutexGuard<'a, Vec<Arc<File>>>,
    count: &'a AtomicUsize,
    _signals: SignalsBlocked,
}

impl Table {
    pub(crate) fn new() -> Self {
        Table { files: Mutex::default(), count: AtomicUsize::new(0) }
    }

    /// Whether no file is mapped.
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    pub(crate) fn lock(&self) -> LockedTable<'_> {
        let signals = SignalsBlocked::new();
        let files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        LockedTable { files, count: &self.count, _signals: signals }
    }

    /// The file behind a descriptor, if it is mapped and its pages are vmio's own.
    pub(crate) fn file_behind(&self, fd: BorrowedFd<'_>) -> Option<(Arc<File>, Stat)> {
        if self.is_empty() {
            return None;
        }
        let stat = fstat(fd).ok().filter(is_regular)?;
        let file = self.lock().by_identity(identity_of(&stat)).filter(|file| !file.uses_page_cache())?;
        Some((file, stat))
    }

    /// Whether a range of addresses overlaps those of a file.
    pub(crate) fn overlap(&self, addresses: &Range<usize>) -> bool {
        !self.is_empty() && self.lock().overlap(addresses)
    }
}

impl LockedTable<'_> {
    pub(crate) fn by_identity(&self, identity: Identity) -> Option<Arc<File>> {
        self.files.iter().find(|file| file.identity == identity).cloned()
    }

    pub(crate) fn by_address(&self, address: usize) -> Option<(Arc<File>, Place)> {
        self.files.iter().find_map(|file| Some((Arc::clone(file), file.windows().find(address)?)))
    }

    pub(crate) fn overlap(&self, addresses: &Range<usize>) -> bool {
        self.overlapping(addresses).next().is_some()
    }

    /// The files with addresses in a range.
    pub(crate) fn overlapping(&self, addresses: &Range<usize>) -> impl Iterator<Item = &Arc<File>> {
        self.files.iter().filter(|file| file.windows().overlap(addresses))
    }

    pub(crate) fn insert(&mut self, file: Arc<File>) {
        self.files.push(file);
        self.count.store(self.files.len(), Ordering::Release);
    }

    /// Removes a file and closes it. If another thread still uses the file, that thread closes it.
    pub(crate) fn close(&mut self, file: Arc<File>) -> Result<(), vmio::Error> {
        self.files.retain(|present| !Arc::ptr_eq(present, &file));
        let closed = Arc::into_inner(file).map_or(Ok(()), File::close);
        self.count.store(self.files.len(), Ordering::Release);
        closed
    }

    pub(crate) fn all(&self) -> Vec<Arc<File>> {
        self.files.clone()
    }
}

/// Whether it is a regular file: vmio does not serve others.
pub(crate) fn is_regular(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
}
