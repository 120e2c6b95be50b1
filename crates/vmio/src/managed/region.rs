//! One file that the kernel maps for us.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use vmio_core::page::{SPAN_BYTES, SPAN_PAGES};

use crate::backing::{Access, Backing};
use crate::error::{Error, Result, UnsupportedBy};
use crate::managed::arrivals::Arrivals;
use crate::managed::page_cost;
use crate::managed::pattern::Pattern;
use crate::managed::pins::Pins;
use crate::managed::read_ahead::ReadAhead;
use crate::mapped_file::file_end;
use crate::options::{MappingOptions, OnReadError};
use crate::sys::file_map::FileMap;
use crate::sys::sparse_array::SparseArray;
use crate::sys::{PAGE_BYTES, kernel, page_cache};

/// A mapped file, as the reclaimer sees it.
pub(crate) struct ManagedRegion {
    pub(super) map: FileMap,
    /// A second mapping of the file for the reader thread: see [`Self::scout`].
    scout: OnceLock<Option<FileMap>>,
    /// The backing's own open file description: it has the lock, and records failed writes.
    pub(super) file: File,
    pub(super) backing: Box<dyn Backing>,
    pub(super) access: Access,
    pub(super) pins: Pins,
    len: AtomicU64,
    priority: AtomicU32,
    /// By span: the priority plus one; 0 for the priority of the region.
    priorities: SparseArray<AtomicU32>,
    /// By stretch: when it came in or was last unmapped, in the ledger's time; 0 if never.
    pub(super) ages: SparseArray<AtomicU32>,
    /// By stretch: how many pages have come in.
    pub(super) arrivals: Arrivals,
    /// How the program goes through the file. Only the owner of the ledger calls [`Pattern::look`].
    pub(super) pattern: Mutex<Pattern>,
    /// By stretch: whether the kernel reads ahead.
    pub(super) read_ahead: ReadAhead,
    /// Admits one change of length at a time.
    len_lock: Mutex<()>,
    has_failed: AtomicBool,
    failure: Mutex<Option<io::ErrorKind>>,
}

impl ManagedRegion {
    /// Maps the backing's file, or takes over the mapping `present`. Takes no memory until touched.
    pub(super) fn new(
        backing: Box<dyn Backing>,
        options: &MappingOptions,
        stretch_pages: u64,
        present: Option<FileMap>,
    ) -> Result<Self> {
        if options.verifier.is_some() {
            let why = "pages reach the program and the device without passing vmio: use Engine::Sigbus";
            return Err(Error::Unsupported { by: UnsupportedBy::ManagedEngine, what: "a page verifier", why });
        }
        if options.journal.is_some() {
            let why = "Linux writes dirty pages to the file whenever it likes: use Engine::Sigbus";
            return Err(Error::Unsupported { by: UnsupportedBy::ManagedEngine, what: "an atomic mapping", why });
        }
        if options.floor_bytes > 0 || options.ceiling_bytes.is_some() {
            let why =
                "the managed engine keeps one budget for all files: use Engine::Sigbus, or a cache for each mapping";
            return Err(Error::Unsupported {
                by: UnsupportedBy::ManagedEngine,
                what: "a floor or a ceiling of a mapping",
                why,
            });
        }
        if options.on_read_error != OnReadError::Sigbus {
            let why = "the kernel answers a load that fails with a SIGBUS: use Engine::Sigbus";
            return Err(Error::Unsupported { by: UnsupportedBy::ManagedEngine, what: "OnReadError::Poison", why });
        }
        let Some(file) = backing.file() else {
            let why = "the kernel can only map files and block devices: use Engine::Sigbus, or a FileBacking";
            return Err(Error::Unsupported {
                by: UnsupportedBy::ManagedEngine,
                what: "a backing that is no file",
                why,
            });
        };
        let file = file.try_clone_to_owned().map_err(Error::system("duplicating a descriptor")).map(File::from)?;
        let access = options.access_to(&*backing)?;
        let len = backing.len();
        let reserved = match &present {
            Some(map) => map.len(),
            None => options.reserved_bytes(len)?,
        };
        let build = || -> io::Result<_> {
            let map = match present {
                Some(map) => map,
                None => FileMap::new(file.as_fd(), reserved, access == Access::ReadWrite)?,
            };
            map.no_read_ahead(&(0..reserved as u64))?;
            let everything = 0..reserved as u64;
            let is_never_whole = stretch_pages < SPAN_PAGES as u64 || !kernel::reads_by_huge_pages();
            let break_even_pages = if is_never_whole { 0 } else { page_cost::break_even_pages(&*backing) };
            let whole_until = match is_never_whole {
                true => {
                    // The kernel unmaps a huge page as a whole, and nobody would count the part outside the stretch.
                    map.small_pages_only()?;
                    None
                }
                // A store to a huge page would make all of it dirty.
                false if access == Access::ReadWrite || break_even_pages > 0 => {
                    // Undoes what a parent process may have set.
                    map.read_by_pages(&everything)?;
                    Some(0)
                }
                false => map.read_by_huge_pages(&everything)?.then_some(stretches_of(reserved, stretch_pages) as u64),
            };
            let stretches = stretches_of(reserved, stretch_pages);
            Ok((
                map,
                Pattern::new(whole_until, break_even_pages),
                SparseArray::new(reserved.div_ceil(SPAN_BYTES))?,
                SparseArray::new(stretches)?,
                Arrivals::new(stretches)?,
                ReadAhead::new(stretches, page_cache::read_ahead_window(file.as_fd()))?,
            ))
        };
        let (map, pattern, priorities, ages, arrivals, read_ahead) =
            build().map_err(Error::system("mapping the file"))?;
        Ok(ManagedRegion {
            map,
            scout: OnceLock::new(),
            file,
            backing,
            access,
            pins: Pins::default(),
            len: AtomicU64::new(len),
            priority: AtomicU32::new(options.priority.into()),
            priorities,
            ages,
            arrivals,
            pattern: Mutex::new(pattern),
            read_ahead,
            len_lock: Mutex::new(()),
            has_failed: AtomicBool::new(false),
            failure: Mutex::new(None),
        })
    }

    /// A second mapping (the *scout*): faults there read whole huge pages ahead without mapping them for the program.
    pub(super) fn scout(&self) -> Option<&FileMap> {
        let open = || {
            let scout = FileMap::new(self.file.as_fd(), self.map.len(), false).ok()?;
            let all = 0..scout.len() as u64;
            scout.no_read_ahead(&all).ok()?;
            scout.read_by_huge_pages(&all).ok()?.then_some(scout)
        };
        self.scout.get_or_init(open).as_ref()
    }

    /// Whether a miss reads all of a stretch.
    pub(super) fn reads_whole(&self, bytes: &Range<u64>) -> bool {
        let pattern = self.pattern.lock().unwrap_or_else(PoisonError::into_inner);
        pattern.reads_whole(bytes.start / SPAN_BYTES as u64)
    }

    // ---- geometry

    pub(super) fn len(&self) -> u64 {
        self.len.load(Ordering::SeqCst)
    }

    pub(super) fn store_len(&self, len: u64) {
        self.len.store(len, Ordering::SeqCst);
    }

    /// The byte range of all pages of the file.
    pub(super) fn extent(&self) -> Range<u64> {
        0..self.len().next_multiple_of(PAGE_BYTES as u64)
    }

    /// All bytes that may be in memory: other processes may have made the file longer than [`Self::len`].
    pub(super) fn reach(&self) -> Range<u64> {
        let file = file_end::file_len(&*self.backing).unwrap_or(u64::MAX);
        let longest = self.map.len() as u64;
        0..file.max(self.len()).min(longest).next_multiple_of(PAGE_BYTES as u64)
    }

    pub(super) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Waits until no change of length is under way, and keeps others from beginning.
    pub(super) fn lock_len(&self) -> MutexGuard<'_, ()> {
        self.len_lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // ---- priorities

    /// Sets the priority of the spans that a range of pages touches.
    pub(super) fn set_priority(&self, pages: Range<u64>, priority: u8) {
        let all = pages == (0..self.len().div_ceil(PAGE_BYTES as u64));
        if all {
            self.priority.store(priority.into(), Ordering::Relaxed);
        }
        for span in pages.start / SPAN_PAGES as u64..pages.end.div_ceil(SPAN_PAGES as u64) {
            let own = self.priorities.get(span as usize);
            // A span without a priority of its own follows the mapping, and its entry costs no memory.
            if !all || own.load(Ordering::Relaxed) != 0 {
                own.store(u32::from(priority) + 1, Ordering::Relaxed);
            }
        }
    }

    /// The priority of a page.
    pub(super) fn priority(&self, page: u64) -> u8 {
        let own = self.priorities.get(page as usize / SPAN_PAGES).load(Ordering::Relaxed);
        own.checked_sub(1).unwrap_or_else(|| self.priority.load(Ordering::Relaxed)) as u8
    }

    // ---- failures

    /// Whether a write or flush has failed. The kernel may then hold pages for clean that are not: vmio must not drop
    /// them.
    pub(super) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::SeqCst)
    }

    /// Remembers a failure for good, and returns it as the error of a sync. All later syncs fail too.
    pub(super) fn note_failure(&self, source: io::Error) -> Error {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(source.kind());
        self.has_failed.store(true, Ordering::SeqCst);
        Error::Flush { backing: self.backing.describe(), source }
    }

    /// Fails if another process has cut the file: bytes behind its new end are gone, stored to or not.
    pub(super) fn check_not_shortened(&self) -> Result<()> {
        file_end::check_not_shortened(&*self.backing, self.len())
    }

    /// The error of a sync after a failure.
    pub(super) fn check_not_failed(&self) -> Result<()> {
        match *self.failure.lock().unwrap_or_else(PoisonError::into_inner) {
            None => Ok(()),
            Some(kind) => Err(Error::Flush { backing: self.backing.describe(), source: kind.into() }),
        }
    }
}

fn stretches_of(reserved: usize, stretch_pages: u64) -> usize {
    (reserved / PAGE_BYTES).div_ceil(stretch_pages as usize)
}
