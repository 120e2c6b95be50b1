//! Files that vmio opened or has mapped, and needs no more while the program has record locks on them. Closing any descriptor of such a file
//! would end the locks, so they stay open until the program closes one itself.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use vmio::SignalsBlocked;
use vmio::backing::Identity;

use crate::file::OpenedFile;
use crate::locks;

pub(crate) type Files = Vec<Kept>;

/// A file that stays open.
pub(crate) enum Kept {
    /// Opened to be mapped.
    Opened(OpenedFile),
    /// The descriptor of a mapping by leases.
    OfMap(Identity, #[allow(dead_code, reason = "it closes the descriptor")] Arc<OwnedFd>),
}

impl Kept {
    fn identity(&self) -> Identity {
        match self {
            Kept::Opened(file) => file.identity(),
            Kept::OfMap(identity, _) => *identity,
        }
    }
}

static FILES: Mutex<Files> = Mutex::new(Files::new());
/// Whether there may be any. If not, callers need not look.
static ARE_THERE: AtomicBool = AtomicBool::new(false);

/// Keeps a file open.
pub(crate) fn keep(file: OpenedFile) {
    keep_any(Kept::Opened(file));
}

/// Closes the descriptor of a mapping by leases, or keeps it open if the program has record locks on the file.
pub(crate) fn close_of_map(identity: Identity, file: Arc<OwnedFd>) {
    if locks::is_locked_by_program(identity) {
        keep_any(Kept::OfMap(identity, file));
    }
}

fn keep_any(file: Kept) {
    let _no_handlers = SignalsBlocked::new();
    files().push(file);
    ARE_THERE.store(true, Ordering::Release);
}

/// Whether any may be open.
pub(crate) fn are_there() -> bool {
    ARE_THERE.load(Ordering::Acquire)
}

/// Closes our descriptor of a file when the program closes one of its own, which ends the locks anyway.
pub(crate) fn release(file: Identity) {
    let _no_handlers = SignalsBlocked::new();
    files().retain(|kept| kept.identity() != file);
}

/// Forgets them in a forked child, which may use their numbers for other files: only the parent closes them.
pub(crate) fn are_left_to_parent(files: &mut Files) {
    std::mem::forget(std::mem::take(files));
    ARE_THERE.store(false, Ordering::Release);
}

/// All of them. Signals must be blocked.
pub(crate) fn files() -> MutexGuard<'static, Files> {
    FILES.lock().unwrap_or_else(PoisonError::into_inner)
}
