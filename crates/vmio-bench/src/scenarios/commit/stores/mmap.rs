//! Linux mmap, with one msync of the whole file a commit. A crash may leave any part of it.

use vmio_measure::content::PAGE_BYTES;
use vmio_measure::engines::mmap::LinuxMapping;
use vmio_measure::pattern::Pattern;

use super::super::records::{Change, Record};
use super::{Session, Setup, Store, file};

/// A file of records, mapped by Linux.
pub struct MmapStore(LinuxMapping);

impl Store for MmapStore {
    type Session<'a> = &'a MmapStore;

    fn create(setup: &Setup) -> anyhow::Result<()> {
        file::create(setup)
    }

    fn open(setup: &Setup) -> anyhow::Result<Self> {
        let mapping = LinuxMapping::of_file(&file::path(setup), setup.pages * PAGE_BYTES, true)?;
        // Before anything is read: read-ahead makes large folios, and msync writes all of one that was stored to.
        mapping.advise_pattern(Pattern::Uniform)?;
        Ok(Self(mapping))
    }

    fn session(&self) -> anyhow::Result<Self::Session<'_>> {
        Ok(self)
    }
}

impl Session for &MmapStore {
    fn read(&mut self, number: u64, record: &mut Record) -> anyhow::Result<()> {
        file::read(&self.0.pointer(), number, record);
        Ok(())
    }

    fn commit(&mut self, changes: &[Change]) -> anyhow::Result<()> {
        file::change(&self.0.pointer(), changes);
        // One call for all pages: one for each would flush the device as often.
        self.0.sync()
    }

    fn load(&mut self, page: u64) -> anyhow::Result<()> {
        file::load(&self.0.pointer(), page);
        Ok(())
    }

    fn store(&mut self, page: u64) -> anyhow::Result<()> {
        file::store(&self.0.pointer(), page);
        Ok(())
    }
}
