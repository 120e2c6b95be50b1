//! Taking all that a region has, and regions themselves.

use std::sync::{Arc, PoisonError, Weak};

use crate::db::segments::Segments;
use crate::db::{DEFAULT_REGION, Db, OpenSegment, RegionHandle};
use crate::error::{Error, Result};
use crate::region::{Region, Removed};
use crate::volume::commit::Changes;

impl RegionHandle {
    /// Has no key have a value, durably and at once: after a crash all of it is there, or nothing. Of a [`Db`] it is the region that is
    /// there from the start. What was written before to regions of the same segment is durable as well.
    ///
    /// Its leaves are read for that, to give room back and to count what is garbage of the log; writers of the region wait meanwhile.
    /// Snapshots and scans from before show what was there.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let db = vmio_kv::Db::create(folder.path().join("store"), vmio_kv::Options::new())?;
    /// let orders = db.region_or_create("orders")?;
    /// orders.put(b"1", b"open")?;
    /// orders.clear()?;
    /// assert_eq!(orders.first()?, None);
    /// db.drop_region("orders")?;
    /// assert!(matches!(orders.put(b"2", b"open"), Err(vmio_kv::Error::NoRegion { .. })));
    /// # Ok(())
    /// # }
    /// ```
    pub fn clear(&self) -> Result<()> {
        let open = self.open()?;
        // Nobody creates a region meanwhile, who would wait for those who look at all of them.
        let _naming = open.home.store.in_doubt();
        open.home.remove(&open.region, true)
    }
}

impl Db {
    /// Has a region be no more, with all that it has: durably and at once, as [`RegionHandle::clear`] does. Handles of it are
    /// [`Error::NoRegion`] from then on; its name may be given to another one. [`DEFAULT_REGION`] stays: [`Error::RegionStays`].
    pub fn drop_region(&self, name: &str) -> Result<()> {
        self.opened()?.segments.drop_region(name)
    }
}

impl Segments {
    fn drop_region(&self, name: &str) -> Result<()> {
        let store = self.store();
        if name == DEFAULT_REGION {
            return Err(Error::RegionStays { name: name.to_owned() });
        }
        let _naming = store.in_doubt();
        let region = store.regions().get(name).cloned();
        let no_region = || Error::NoRegion { volume: store.device.name().to_owned(), name: name.to_owned() };
        let region = region.ok_or_else(no_region)?;
        self.of(&region).remove(&region, false)?;
        store.remove_region(&region);
        Ok(())
    }
}

impl OpenSegment {
    /// Takes all that a region has, and the region itself unless it `stays`.
    fn remove(&self, region: &Arc<Region>, stays: bool) -> Result<()> {
        self.store.check_writable()?;
        // What is moved meanwhile would come back.
        let collecting = self.collecting();
        self.store.spills.forget_apart();
        self.log.check_goes_on()?;
        let removal = region.begin_removal()?;
        let Removed { garbage, extents, outdated } = removal.contents()?;
        // The region's later records have higher numbers; and those that a crash loses are given again.
        let (log_offset, log_sequence) = self.log.end();
        self.log.sync(log_sequence)?;
        let committing = self.committing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut allocator = self.segment.allocator();
        garbage.of_log().for_each(|(unit, bytes)| allocator.add_garbage(unit, bytes));
        drop(allocator);
        let entry = Region::empty_entry(region.number, &region.name, log_offset, log_sequence);
        let mut changes = Changes { extents, log: Some(self.log.position()), ..Changes::default() };
        changes.replay = Some(self.replay_from(&entry));
        match stays {
            true => changes.regions.push(entry.clone()),
            false => changes.removed.push(region.number),
        }
        match self.segment.commit(changes, &outdated) {
            Ok(epoch) => {
                if !stays {
                    self.dropped.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(region));
                }
                removal.publish(epoch, outdated, stays.then_some(&entry));
            }
            Err(error) => {
                removal.fail(&error.with_causes());
                return Err(error);
            }
        }
        drop(committing);
        drop(collecting);
        self.segment.give_back()?;
        self.keep_reserve();
        self.store.collector.wake();
        Ok(())
    }

    /// Its regions, and those that are no more but that somebody may still read.
    pub(super) fn readable_regions(&self) -> Vec<Arc<Region>> {
        let mut dropped = self.dropped.lock().unwrap_or_else(PoisonError::into_inner);
        dropped.retain(|region| region.strong_count() > 0);
        self.regions().into_iter().chain(dropped.iter().filter_map(Weak::upgrade)).collect()
    }
}
