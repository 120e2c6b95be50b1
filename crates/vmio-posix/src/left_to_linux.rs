//! The files of which Linux has mapped something shared: it and vmio would not see each other's stores, so that all later
//! mappings of them are Linux's as well.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use vmio::SignalsBlocked;
use vmio::backing::Identity;

/// By device and inode. Never taken out: nobody tells when the last such mapping goes.
static FILES: Mutex<BTreeSet<(u64, u64)>> = Mutex::new(BTreeSet::new());

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

fn files() -> MutexGuard<'static, BTreeSet<(u64, u64)>> {
    FILES.lock().unwrap_or_else(PoisonError::into_inner)
}
