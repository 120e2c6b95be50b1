//! The inodes that the kernel knows. A number is no other inode's before the kernel has forgotten it: else the kernel would take a request for the
//! former one to the next.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use vmio_pmfs::{Attributes, Error, Fs, Result};

/// The inodes that the kernel was told of. These are in use for the file system, as those are that are open.
pub struct Known {
    fs: Arc<Fs>,
    told: Mutex<HashMap<u64, Told>>,
}

/// An inode by its number, and how often the kernel was told of it.
struct Told {
    generation: u32,
    times: u64,
}

impl Known {
    pub fn new(fs: Arc<Fs>) -> Known {
        Known { fs, told: Mutex::default() }
    }

    /// Counts that the kernel is about to be told of an inode. An error if that is gone by now.
    pub fn tell(&self, of: &Attributes) -> Result<()> {
        let gone = || Error::NoInode { ino: of.ino };
        if let Some(told) = self.told().get_mut(&of.ino) {
            // It may be the next one of its number.
            if told.generation != of.generation {
                return Err(gone());
            }
            told.times += 1;
            return Ok(());
        }
        self.fs.remember(of.ino)?;
        if self.fs.attributes(of.ino)?.generation != of.generation {
            self.fs.forget_number(of.ino)?;
            return Err(gone());
        }
        let is_first = {
            let mut all = self.told();
            let told = all.entry(of.ino).or_insert(Told { generation: of.generation, times: 0 });
            told.times += 1;
            told.times == 1
        };
        if is_first { Ok(()) } else { self.fs.forget_number(of.ino) }
    }

    /// The kernel has forgotten an inode as often.
    pub fn forget(&self, ino: u64, times: u64) -> Result<()> {
        let mut told = self.told();
        // Nobody tells the kernel of the root.
        let Some(known) = told.get_mut(&ino) else { return Ok(()) };
        known.times = known.times.saturating_sub(times);
        if known.times > 0 {
            return Ok(());
        }
        told.remove(&ino);
        drop(told);
        self.fs.forget_number(ino)
    }

    /// The kernel has forgotten all, with the mount.
    pub fn forget_all(&self) -> Result<()> {
        let all = std::mem::take(&mut *self.told());
        all.into_keys().try_for_each(|ino| self.fs.forget_number(ino))
    }

    fn told(&self) -> MutexGuard<'_, HashMap<u64, Told>> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
