//! The mode that the process was started with (`vmio run --mode`).

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use rustix::process::getpid;

use crate::settings::{Mode, Settings};

static IS_ON: AtomicBool = AtomicBool::new(false);
static IS_STRICT: AtomicBool = AtomicBool::new(false);
static HAS_CACHE: AtomicBool = AtomicBool::new(false);
/// The number of the process. A child by vfork has another, though it shares this memory until it runs another program.
static PROCESS: AtomicI32 = AtomicI32::new(0);

/// Finds out which mode the process has, when the library is loaded.
pub(super) fn start() {
    let settings = Settings::of_this_process();
    let mode = settings.and_then(|settings| settings.mode);
    HAS_CACHE.store(settings.is_some_and(|settings| settings.mode_cache_bytes.is_some()), Ordering::Relaxed);
    IS_ON.store(mode.is_some(), Ordering::Relaxed);
    IS_STRICT.store(mode == Some(Mode::Strict), Ordering::Relaxed);
    belongs_to_this_process();
}

/// Records the process's number, at the start and in a forked child.
pub(super) fn belongs_to_this_process() {
    PROCESS.store(getpid().as_raw_nonzero().get(), Ordering::Relaxed);
}

/// Whether the process was started with a mode.
#[inline]
pub(crate) fn is_on() -> bool {
    IS_ON.load(Ordering::Relaxed)
}

/// Whether each write must be durable and atomic.
#[inline]
pub(crate) fn is_strict() -> bool {
    IS_STRICT.load(Ordering::Relaxed)
}

/// Whether leased files are cached in this process, so that Linux has only the bytes written back.
#[inline]
pub(crate) fn has_cache() -> bool {
    HAS_CACHE.load(Ordering::Relaxed)
}

/// Whether the caller is this process, and not a child by vfork, which shares its memory until it runs another program.
pub(super) fn is_in_this_process() -> bool {
    PROCESS.load(Ordering::Relaxed) == getpid().as_raw_nonzero().get()
}
