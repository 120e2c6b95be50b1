//! Linux mmap, with one msync of the whole file a commit. A crash may leave any part of it.

use super::super::records::{Change, Record};
use super::{Session, Setup, Store, file};
use crate::bench::content::PAGE_BYTES;
use crate::bench::engines::mmap::LinuxMapping;
use crate::bench::pattern::Pattern;

/// A file of records, mapped by Linux.
pub struct MmapStore(LinuxMapping);

impl Store for MmapStore {
    type Session<'a> = &'a MmapStore;

    fn create(setup: &Setup) -> anyhow::Result<()> {
        file::create(setup)
    }

    fn open(setup: &Setup) -> anyhow::Result<Self> {
        Ok(Self(LinuxMapping::of_file(&file::path(setup), setup.pages * PAGE_BYTES, true)?))
    }

    fn session(&self) -> anyhow::Result<Self::Session<'_>> {
        Ok(self)
    }

    fn settle(&self) -> anyhow::Result<()> {
        self.0.advise_pattern(Pattern::Uniform)
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
