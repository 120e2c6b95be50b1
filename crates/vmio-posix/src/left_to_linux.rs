//! The files of which Linux has mapped something shared: it and vmio would not see each other's stores, so that all later
//! mappings of them are Linux's as well.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use vmio::SignalsBlocked;
use vmio::backing::Identity;

/// By device and inode. Never taken out: nobody tells when the last such mapping goes.
pub(crate) type Files = BTreeSet<(u64, u64)>;

static FILES: Mutex<Files> = Mutex::new(Files::new());

/// Whether vmio must not map a file.
pub(crate) fn contains(file: Identity) -> bool {
    let _no_handlers = SignalsBlocked::new();
    files().contains(&(file.device, file.inode))
}

/// Linux maps a file shared.
pub(crate) fn insert(file: Identity) {
    let _no_handlers = SignalsBlocked::new();
    files().insert((file.device, file.inode));
}

/// All of them. With signals blocked only.
pub(crate) fn files() -> MutexGuard<'static, Files> {
    FILES.lock().unwrap_or_else(PoisonError::into_inner)
}
