//! Numbers of free inodes, by area.

use parking_lot::Mutex;

use crate::error::{Error, Result};
use crate::format::geometry::Geometry;

/// Numbers of free inodes.
pub(crate) struct FreeInodes {
    inodes: u32,
    areas: Vec<Mutex<FreeNumbers>>,
}

/// The free numbers of an area, counted from its first.
#[derive(Default)]
pub(crate) struct FreeNumbers {
    /// A bit for each number.
    words: Vec<u64>,
    count: u64,
    /// No word before this one has a free number.
    from: usize,
}

impl FreeNumbers {
    /// None of an area.
    pub(crate) fn new(geometry: &Geometry) -> FreeNumbers {
        FreeNumbers { words: vec![0; geometry.inodes.div_ceil(u64::BITS) as usize], count: 0, from: 0 }
    }

    /// Adds a number that is not among them.
    pub(crate) fn add(&mut self, index: u64) {
        let (word, bit) = ((index / 64) as usize, 1 << (index % 64));
        debug_assert_eq!(self.words[word] & bit, 0, "inode {index} of an area is free twice");
        self.words[word] |= bit;
        self.count += 1;
        self.from = self.from.min(word);
    }

    /// Takes the lowest.
    fn take(&mut self) -> Option<u64> {
        let word = self.from + self.words[self.from..].iter().position(|word| *word != 0)?;
        let bit = self.words[word].trailing_zeros();
        self.words[word] &= !(1 << bit);
        self.count -= 1;
        self.from = word;
        Some(word as u64 * 64 + u64::from(bit))
    }
}

impl FreeInodes {
    /// From the free numbers of each area.
    pub(crate) fn new(geometry: &Geometry, areas: Vec<FreeNumbers>) -> FreeInodes {
        FreeInodes { inodes: geometry.inodes, areas: areas.into_iter().map(Mutex::new).collect() }
    }

    /// Takes one, of this area if it has any, else of the one that has most.
    pub(crate) fn take(&self, home: u32) -> Result<u64> {
        let home = home as usize % self.areas.len();
        let take = |area: usize| Some(area as u64 * u64::from(self.inodes) + self.areas[area].lock().take()?);
        if let Some(ino) = take(home) {
            return Ok(ino);
        }
        // Others may take from it meanwhile; then the next one has most.
        loop {
            let counts = (0..self.areas.len()).map(|area| (self.areas[area].lock().count, area));
            match counts.max() {
                Some((1.., richest)) => {
                    if let Some(ino) = take(richest) {
                        return Ok(ino);
                    }
                }
                _ => return Err(Error::NoInodes),
            }
        }
    }

    /// Gives a number back.
    pub(crate) fn give_back(&self, ino: u64) {
        let inodes = u64::from(self.inodes);
        self.areas[(ino / inodes) as usize].lock().add(ino % inodes);
    }

    /// How many there are.
    pub(crate) fn count(&self) -> u64 {
        self.areas.iter().map(|area| area.lock().count).sum()
    }
}
