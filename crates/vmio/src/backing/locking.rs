//! A lock that lasts only if what it was taken for comes about.

use std::sync::Arc;

use crate::backing::{Backing, FileUser};
use crate::error::Result;

/// The lock on a backing while its user is being started. Given up when dropped: to close the file is not enough, since a child that was forked
/// meanwhile has it open, too.
pub(crate) struct Locking(Option<Arc<dyn Backing>>);

impl Locking {
    /// Locks a backing for this kind of user. What comes with the lock is the backing.
    pub(crate) fn begin(backing: Box<dyn Backing>, user: FileUser) -> Result<(Self, Box<dyn Backing>)> {
        let backing: Arc<dyn Backing> = Arc::from(backing);
        backing.lock(user)?;
        Ok((Locking(Some(Arc::clone(&backing))), Box::new(backing)))
    }

    /// The user has been started, and unlocks it at its end.
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
