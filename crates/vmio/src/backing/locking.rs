//! A lock that lasts only if its user starts.

use std::sync::Arc;

use crate::backing::{Backing, FileUser};
use crate::error::Result;

/// The lock on a backing while its user starts. The drop unlocks it: closing the file is not enough, since a child forked meanwhile
/// has the file open too.
pub(crate) struct Locking(Option<Arc<dyn Backing>>);

impl Locking {
    /// Locks a backing for this kind of user, and returns the lock and the backing.
    pub(crate) fn begin(backing: Box<dyn Backing>, user: FileUser) -> Result<(Self, Box<dyn Backing>)> {
        let backing: Arc<dyn Backing> = Arc::from(backing);
        backing.lock(user)?;
        Ok((Locking(Some(Arc::clone(&backing))), Box::new(backing)))
    }

    /// Keeps the lock: the user has started, and unlocks the backing at its end.
    pub(crate) fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for Locking {
    fn drop(&mut self) {
        if let Some(backing) = &self.0
            && let Err(error) = backing.unlock()
        {
            tracing::warn!(backing = backing.describe(), %error, "unlocking failed");
        }
    }
}
