//! The inodes that the kernel knows. A number is no other inode's before the kernel has forgotten it: else the kernel would take a request for the
//! former one to the next.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use vmio_pmfs::{Attributes, Error, Fs, Result};

/// How often the kernel was told of each inode. These are in use for the file system, as those are that are open.
pub struct Known {
    fs: Arc<Fs>,
    told: Mutex<HashMap<u64, u64>>,
}

impl Known {
    pub fn new(fs: Arc<Fs>) -> Known {
        Known { fs, told: Mutex::default() }
    }

    /// Counts that the kernel is about to be told of an inode. An error if that is gone by now.
    pub fn tell(&self, of: &Attributes) -> Result<()> {
        if let Some(count) = self.told().get_mut(&of.ino) {
            *count += 1;
            return Ok(());
        }
        self.fs.open(of.ino)?;
        if self.fs.attributes(of.ino)?.generation != of.generation {
            self.fs.close(of.ino)?;
            return Err(Error::NoInode { ino: of.ino });
        }
        let is_first = {
            let mut told = self.told();
            let count = told.entry(of.ino).or_default();
            *count += 1;
            *count == 1
        };
        if is_first { Ok(()) } else { self.fs.close(of.ino) }
    }

    /// The kernel has forgotten an inode as often.
    pub fn forget(&self, ino: u64, times: u64) -> Result<()> {
        let mut told = self.told();
        // Nobody tells the kernel of the root.
        let Some(count) = told.get_mut(&ino) else { return Ok(()) };
        *count = count.saturating_sub(times);
        if *count > 0 {
            return Ok(());
        }
        told.remove(&ino);
        drop(told);
        self.fs.close(ino)
    }

    /// The kernel has forgotten all, with the mount.
    pub fn forget_all(&self) -> Result<()> {
        let all = std::mem::take(&mut *self.told());
        all.into_keys().try_for_each(|ino| self.fs.close(ino))
    }

    fn told(&self) -> MutexGuard<'_, HashMap<u64, u64>> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
