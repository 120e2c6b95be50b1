//! A region as it was at one moment, whatever is written to it later.

use std::sync::Arc;

use crate::region::memory_level::{MemoryLevel, Staying};
use crate::region::{Region, Version};

/// A region at one moment: a version, and of its level in memory what was there by then.
pub(crate) struct View {
    pub(crate) version: Arc<Version>,
    /// Records from this number on came later.
    pub(crate) before: u64,
}

impl View {
    /// What there is at present.
    ///
    /// If the level in memory is frozen between the two steps, the moment is that: it was after the call began.
    pub(crate) fn begin(region: &Region) -> View {
        let version = region.version();
        let before = version.memory.stay().begin_view();
        View { version, before }
    }

    /// The same of several regions, in the order of their numbers, at one and the same moment: of a batch all is seen or nothing.
    pub(crate) fn begin_all<'region>(regions: impl Iterator<Item = &'region Region> + Clone) -> Vec<View> {
        loop {
            let versions: Vec<Arc<Version>> = regions.clone().map(Region::version).collect();
            // Whoever writes a batch holds all its levels at once, too.
            let levels: Vec<Staying<'_>> = versions.iter().map(|version| version.memory.stay()).collect();
            let is_current =
                |(version, region): (&Arc<Version>, &Region)| Arc::ptr_eq(&version.memory, &region.version().memory);
            if !versions.iter().zip(regions.clone()).all(is_current) {
                // A level was frozen before it was held: what came then may be seen in other regions.
                continue;
            }
            let bounds: Vec<u64> = levels.iter().map(Staying::begin_view).collect();
            drop(levels);
            return versions.into_iter().zip(bounds).map(|(version, before)| View { version, before }).collect();
        }
    }
}

impl View {
    /// Whether nothing was written since. The caller has the region's turn: so that stays.
    pub(crate) fn is_newest(&self, region: &Region) -> bool {
        Arc::ptr_eq(&self.version, &region.version()) && self.version.memory.stay().is_before(self.before)
    }
}

impl Drop for View {
    fn drop(&mut self) {
        let memory: &MemoryLevel = &self.version.memory;
        memory.release(self.before);
    }
}
