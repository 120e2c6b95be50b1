//! The heap of this process: a mapping that is mimalloc's only memory.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use libmimalloc_sys as mimalloc;
use vmio::backing::FileBacking;
use vmio::{Cache, Engine, Mapping, MappingOptions};

use crate::settings::Settings;
use crate::{c_library, fork};

/// What a process has once its heap is there, and as long as it lives.
pub(crate) struct Heap {
    /// Keeps the memory there.
    mapping: Mapping,
    _cache: Cache,
    /// The same file, which has no name any more.
    pub(crate) file: File,
    /// Where it was made, for others beside it.
    pub(crate) folder: File,
}

/// Why a process cannot have its heap.
#[derive(Debug, thiserror::Error)]
enum StartError {
    #[error(
        "{path}: {source} (the heap's file is made anew, in a folder that may be written to: name one that is not there)"
    )]
    Create { path: String, source: io::Error },
    #[error(transparent)]
    Vmio(#[from] vmio::Error),
    #[error("the heap is too small: give --heap-size 128M or more")]
    TooSmall,
}

static HEAP: OnceLock<Heap> = OnceLock::new();

/// Where it lies; nowhere before it is there.
static START: AtomicUsize = AtomicUsize::new(0);
static LENGTH: AtomicUsize = AtomicUsize::new(0);

/// Linux's numbers for the C library's callers end before this; the tools of coreutils use it for failures of their own.
const CANNOT_START: i32 = 125;

/// The loader calls it before the program begins.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = at_load;

extern "C" fn at_load() {
    let Some(settings) = Settings::of_this_process() else { return };
    if let Err(error) = start(&settings) {
        let message = format!("vmio run: no heap: {error}\n");
        let _ = rustix::io::write(rustix::stdio::stderr(), message.as_bytes());
        // A program that is larger than memory would be killed in the middle of its work.
        std::process::exit(CANNOT_START);
    }
}

fn start(settings: &Settings) -> Result<(), StartError> {
    c_library::find_code();
    let heap = open(settings)?;
    let (start, length) = (heap.mapping.as_mut_ptr() as usize, heap.mapping.len() as usize);
    if !give_to_mimalloc(start, length) {
        return Err(StartError::TooSmall);
    }
    if HEAP.set(heap).is_ok() {
        fork::follow();
        START.store(start, Ordering::Relaxed);
        // From here on it is used.
        LENGTH.store(length, Ordering::Release);
    }
    Ok(())
}

fn open(settings: &Settings) -> Result<Heap, StartError> {
    let path = settings.file.as_path();
    let failed = |source| StartError::Create { path: path.display().to_string(), source };
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let folder = File::open(folder).map_err(failed)?;
    let file = File::options().read(true).write(true).create_new(true).open(path).map_err(failed)?;
    let cache = Cache::builder().engine(Engine::Managed).capacity(settings.cache_bytes).build();
    let mapped = cache.and_then(|cache| {
        let backing = FileBacking::create(path, settings.heap_bytes)?;
        Ok((Mapping::open(&cache, backing, MappingOptions::new())?, cache))
    });
    // Whatever ends the process, its heap is worth nothing then, and takes no room.
    fs::remove_file(path).map_err(failed)?;
    let (mapping, cache) = mapped?;
    Ok(Heap { mapping, _cache: cache, file, folder })
}

/// Whether it was enough for it.
fn give_to_mimalloc(start: usize, length: usize) -> bool {
    /// Never give memory back: that of a shared mapping would not become zeros, as mimalloc counts on.
    const PURGE_DELAY: i32 = 15;
    /// Threads take their first segments from memory that is not given back, too.
    const EAGER_COMMIT_DELAY: i32 = 14;
    /// Nor ask the kernel for more, once this is used up.
    const ARENA_RESERVE: i32 = 23;
    // SAFETY: the memory is mapped for as long as the process lives, holds zeros and is used by nobody else. mimalloc has not
    // been called before.
    unsafe {
        mimalloc::mi_option_set(mimalloc::mi_option_limit_os_alloc, 1);
        mimalloc::mi_option_set(PURGE_DELAY, -1);
        mimalloc::mi_option_set(EAGER_COMMIT_DELAY, 0);
        mimalloc::mi_option_set(ARENA_RESERVE, 0);
        let mut arena = Default::default();
        let (is_committed, is_pinned, is_zero, is_exclusive) = (true, true, true, false);
        mimalloc::mi_manage_os_memory_ex(
            start as *const _,
            length,
            is_committed,
            is_pinned,
            is_zero,
            -1,
            is_exclusive,
            &raw mut arena,
        )
    }
}

impl Heap {
    /// That of this process.
    pub(crate) fn current() -> Option<&'static Heap> {
        HEAP.get()
    }

    /// Its memory, as the address of the first byte and the length.
    pub(crate) fn memory(&self) -> (usize, usize) {
        (START.load(Ordering::Relaxed), LENGTH.load(Ordering::Acquire))
    }

    pub(crate) fn file(&self) -> impl AsFd + '_ {
        &self.file
    }
}

/// Whether there is one.
#[inline]
pub(crate) fn is_there() -> bool {
    LENGTH.load(Ordering::Acquire) != 0
}

/// Whether an address lies in it.
#[inline]
pub(crate) fn contains(address: usize) -> bool {
    address.wrapping_sub(START.load(Ordering::Relaxed)) < LENGTH.load(Ordering::Acquire)
}
