//! An atomic mapping.

use std::path::PathBuf;

use tracing::subscriber::NoSubscriber;
use vmio::Access;
use vmio::backing::FileBacking;
use vmio::journal::{Journal, JournalOptions};
use vmio_measure::engines::Engine;
use vmio_measure::engines::vmio::VmioEngine;
use vmio_measure::pattern::Pattern;

use super::super::records::{Change, Record};
use super::{Session, Setup, Store, file};

/// A file of records, mapped, and its journal.
pub struct VmioStore {
    engine: VmioEngine,
    journal: Journal,
}

fn journal_path(setup: &Setup) -> PathBuf {
    setup.folder.join("journal")
}

impl Store for VmioStore {
    type Session<'a> = &'a VmioStore;

    fn create(setup: &Setup) -> anyhow::Result<()> {
        file::create(setup)?;
        // As a journal is that has gone round once: its first writes are no dearer than those that follow.
        file::write_blocks(&journal_path(setup), setup.journal_bytes, |_, _| {})?;
        let device = FileBacking::open(journal_path(setup), Access::ReadWrite)?;
        Journal::create(device, JournalOptions::new())?;
        Ok(())
    }

    fn open(setup: &Setup) -> anyhow::Result<Self> {
        let (journal, _) = Journal::open_file(journal_path(setup), JournalOptions::new())?;
        // It warns that a commit of all the cache would not fit the journal: a commit here is a few pages.
        let engine = tracing::subscriber::with_default(NoSubscriber::new(), || {
            VmioEngine::open_atomic(&file::path(setup), setup.cache_bytes, &journal)
        })?;
        Ok(Self { engine, journal })
    }

    fn session(&self) -> anyhow::Result<Self::Session<'_>> {
        Ok(self)
    }

    fn settle(&self) -> anyhow::Result<()> {
        self.engine.advise_pattern(Pattern::Uniform)
    }

    fn checkpoint(&self) -> anyhow::Result<()> {
        Ok(self.journal.checkpoint()?)
    }

    fn stores_held_us_max(&self) -> Option<f64> {
        Some(self.journal.usage().stores_held_ns_max as f64 / 1e3)
    }

    fn close(self) -> anyhow::Result<()> {
        self.engine.finish()
    }
}

impl Session for &VmioStore {
    fn read(&mut self, number: u64, record: &mut Record) -> anyhow::Result<()> {
        file::read(&self.engine.pointer(), number, record);
        Ok(())
    }

    fn commit(&mut self, changes: &[Change]) -> anyhow::Result<()> {
        file::change(&self.engine.pointer(), changes);
        self.engine.mapping().commit()?;
        Ok(())
    }

    fn load(&mut self, page: u64) -> anyhow::Result<()> {
        file::load(&self.engine.pointer(), page);
        Ok(())
    }

    fn store(&mut self, page: u64) -> anyhow::Result<()> {
        file::store(&self.engine.pointer(), page);
        Ok(())
    }
}
