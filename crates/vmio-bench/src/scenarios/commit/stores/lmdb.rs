//! LMDB: a tree of records by number.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, bail};
use heed::byteorder::BigEndian;
use heed::types::{Bytes, U64};
use heed::{Database, Env, EnvOpenOptions, PutFlags};
use vmio_measure::content::PAGE_BYTES;

use super::super::records::{CHANGED_BYTES, Change, RECORD_BYTES, RECORDS_PER_PAGE, Record, record_after};
use super::{Session, Setup, Store};

/// An environment with one database in it.
pub struct LmdbStore {
    env: Env,
    records: Database<U64<BigEndian>, Bytes>,
}

impl LmdbStore {
    fn folder(setup: &Setup) -> PathBuf {
        setup.folder.join("lmdb")
    }
}

impl Store for LmdbStore {
    type Session<'a> = &'a LmdbStore;

    fn create(setup: &Setup) -> anyhow::Result<()> {
        fs::create_dir(Self::folder(setup)).context("cannot create LMDB's folder")?;
        let store = Self::open(setup)?;
        let mut transaction = store.env.write_txn()?;
        let mut record = [0; RECORD_BYTES];
        for number in 0..setup.records() {
            record_after(number, 0, &mut record);
            // In order: full pages, as the other stores have them.
            store.records.put_with_flags(&mut transaction, PutFlags::APPEND, &number, &record)?;
        }
        transaction.commit()?;
        store.close()
    }

    fn open(setup: &Setup) -> anyhow::Result<Self> {
        // Addresses, no memory: the tree, the pages that wait to be used again, and as much again.
        let map_bytes = (setup.pages * PAGE_BYTES * 4).max(64 << 20);
        // SAFETY: the folder is this run's, and nobody changes its files but through this environment.
        let env = unsafe { EnvOpenOptions::new().map_size(map_bytes as usize).open(Self::folder(setup)) };
        let env = env.context("cannot open the LMDB environment")?;
        let mut transaction = env.write_txn()?;
        let records = env.create_database(&mut transaction, None)?;
        transaction.commit()?;
        Ok(Self { env, records })
    }

    fn session(&self) -> anyhow::Result<Self::Session<'_>> {
        Ok(self)
    }

    fn close(self) -> anyhow::Result<()> {
        self.env.prepare_for_closing().wait();
        Ok(())
    }
}

impl Session for &LmdbStore {
    fn read(&mut self, number: u64, record: &mut Record) -> anyhow::Result<()> {
        let transaction = self.env.read_txn()?;
        let data = self.records.get(&transaction, &number)?;
        // One that is missing is as wrong as any.
        *record = data.and_then(|data| Record::try_from(data).ok()).unwrap_or([0; RECORD_BYTES]);
        Ok(())
    }

    fn commit(&mut self, changes: &[Change]) -> anyhow::Result<()> {
        let mut transaction = self.env.write_txn()?;
        for change in changes {
            let data = self.records.get(&transaction, &change.record)?;
            let Some(mut record) = data.and_then(|data| Record::try_from(data).ok()) else {
                bail!("record {} is missing", change.record);
            };
            record[change.start()..][..CHANGED_BYTES].copy_from_slice(&change.bytes());
            self.records.put(&mut transaction, &change.record, &record)?;
        }
        Ok(transaction.commit()?)
    }

    fn load(&mut self, page: u64) -> anyhow::Result<()> {
        let transaction = self.env.read_txn()?;
        let data = self.records.get(&transaction, &(page * RECORDS_PER_PAGE))?;
        std::hint::black_box(data.and_then(|data| data.first()));
        Ok(())
    }
}
