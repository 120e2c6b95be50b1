//! Calls that are durable when they return: SplitFS's sync mode (thesis §4.4), and all calls but writes in strict mode.
//!
//! - Data, in sync mode: files that the program opens for writing under the folders get O_DSYNC, so that writes of the C library are durable,
//!   too (`opening`).
//! - Names and attributes: we find the folder or file before the call and flush it after the call (`target`), without ending the program's
//!   record locks. On ext4, XFS and Btrfs, flushing a folder includes the inode of a new file.

mod opening;
mod target;

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use rustix::io::Errno;

pub(crate) use opening::{open, opened_stream};
pub(crate) use target::{Before, Target};

use crate::entry;
use crate::settings::{Mode, Settings};

const OFF: u8 = 0;
/// Names and attributes.
const ALL_BUT_DATA: u8 = 1;
/// Data as well, by O_DSYNC.
const ALL: u8 = 2;

static WHAT: AtomicU8 = AtomicU8::new(OFF);
static FLUSHES: AtomicU64 = AtomicU64::new(0);

/// Reads the mode, when the library is loaded.
pub(crate) fn start() {
    let what = match Settings::of_this_process().and_then(|settings| settings.mode) {
        Some(Mode::Sync) => ALL,
        Some(Mode::Strict) => ALL_BUT_DATA,
        Some(Mode::Posix) | None => OFF,
    };
    WHAT.store(what, Ordering::Relaxed);
}

/// Whether calls of the program's must be durable.
#[inline]
pub(crate) fn is_on() -> bool {
    WHAT.load(Ordering::Relaxed) != OFF && !entry::is_inside()
}

/// Whether descriptors get O_DSYNC.
fn is_for_data() -> bool {
    WHAT.load(Ordering::Relaxed) == ALL
}

/// Resets the count in a forked child, which has flushed nothing yet.
pub(crate) fn reset_in_child() {
    FLUSHES.store(0, Ordering::Relaxed);
}

/// The number of flushes for calls of the program's.
pub(crate) fn flushes() -> u64 {
    FLUSHES.load(Ordering::Relaxed)
}

/// Makes a call, and then its changes durable; `None` if the call has failed and has set errno.
pub(crate) fn make_durable<T, const TARGETS: usize>(
    targets: impl FnOnce() -> [Option<Target>; TARGETS],
    call: impl FnOnce() -> Option<T>,
) -> Option<Result<T, Errno>> {
    let targets = entry::as_vmio(targets);
    let outcome = call();
    entry::as_vmio_undisturbed(|| {
        let outcome = outcome?;
        for target in targets.into_iter().flatten() {
            if let Err(error) = target.flush() {
                return Some(Err(error));
            }
        }
        Some(Ok(outcome))
    })
}
