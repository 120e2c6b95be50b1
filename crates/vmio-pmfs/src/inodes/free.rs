//! Numbers of free inodes, by area.

use std::collections::BTreeSet;

use parking_lot::Mutex;

use crate::error::{Error, Result};
use crate::format::geometry::Geometry;

/// Numbers of free inodes.
pub(crate) struct FreeInodes {
    inodes: u32,
    areas: Vec<Mutex<BTreeSet<u64>>>,
}

impl FreeInodes {
    /// From the free numbers of each area.
    pub(crate) fn new(geometry: &Geometry, areas: Vec<BTreeSet<u64>>) -> FreeInodes {
        FreeInodes { inodes: geometry.inodes, areas: areas.into_iter().map(Mutex::new).collect() }
    }

    /// Takes one, of this area if it has any, else of the one that has most.
    pub(crate) fn take(&self, home: u32) -> Result<u64> {
        if let Some(ino) = self.areas[home as usize % self.areas.len()].lock().pop_first() {
            return Ok(ino);
        }
        loop {
            let most = self.areas.iter().max_by_key(|area| area.lock().len()).ok_or(Error::NoInodes)?;
            let mut most = most.lock();
            match most.pop_first() {
                Some(ino) => return Ok(ino),
                None if most.is_empty() && self.count_but_locked() == 0 => return Err(Error::NoInodes),
                None => (),
            }
        }
    }

    /// Gives a number back.
    pub(crate) fn give_back(&self, ino: u64) {
        self.areas[(ino / u64::from(self.inodes)) as usize].lock().insert(ino);
    }

    /// How many there are.
    pub(crate) fn count(&self) -> u64 {
        self.areas.iter().map(|area| area.lock().len() as u64).sum()
    }

    fn count_but_locked(&self) -> usize {
        self.areas.iter().filter_map(|area| Some(area.try_lock()?.len())).sum()
    }
}
