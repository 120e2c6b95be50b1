//! Files that vmio must not map from now on. Linux has a shared mapping of them, and neither mapping would see the other's stores; or the
//! engine cannot map them.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use vmio::SignalsBlocked;
use vmio::backing::Identity;

/// Device and inode of each. They stay for good: vmio does not learn when Linux's last such mapping goes.
pub(crate) type Files = BTreeSet<(u64, u64)>;

static FILES: Mutex<Files> = Mutex::new(Files::new());

/// Whether vmio must not map a file.
pub(crate) fn contains(file: Identity) -> bool {
    let _no_handlers = SignalsBlocked::new();
    files().contains(&(file.device, file.inode))
}

/// Records that vmio must not map a file.
pub(crate) fn insert(file: Identity) {
    let _no_handlers = SignalsBlocked::new();
    files().insert((file.device, file.inode));
}

/// All of them. Signals must be blocked.
pub(crate) fn files() -> MutexGuard<'static, Files> {
    FILES.lock().unwrap_or_else(PoisonError::into_inner)
}
