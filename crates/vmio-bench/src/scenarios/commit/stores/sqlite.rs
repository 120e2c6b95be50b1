//! SQLite: a table of records, changed through incremental blob I/O, which writes the changed bytes alone into their page.

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, bail};
use rusqlite::{Connection, MAIN_DB, TransactionBehavior};

use super::super::records::{Change, RECORD_BYTES, RECORDS_PER_PAGE, Record, record_after};
use super::{Session, Setup, Store};

/// A database file; every thread has a connection.
pub struct SqliteStore {
    setup: Setup,
    /// The log's file goes with the last connection.
    connection: Mutex<Connection>,
}

/// A connection.
pub struct SqliteSession(Connection);

const TABLE: &str = "records";
const COLUMN: &str = "data";
/// A checkpoint comes after 1000 pages by default.
const SETTLING_RECORDS: i64 = 1200 * RECORDS_PER_PAGE as i64;
const BUSY_LIMIT: Duration = Duration::from_secs(60);

impl SqliteStore {
    fn path(setup: &Setup) -> PathBuf {
        setup.folder.join("records.sqlite")
    }

    fn connection(&self) -> MutexGuard<'_, Connection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn connect(setup: &Setup) -> anyhow::Result<Connection> {
        let connection = Connection::open(Self::path(setup)).context("cannot open the SQLite database")?;
        connection.busy_timeout(BUSY_LIMIT)?;
        let mode: String = connection.pragma_update_and_check(None, "journal_mode", "wal", |row| row.get(0))?;
        if mode != "wal" {
            bail!("SQLite has no WAL mode here, but {mode}");
        }
        connection.pragma_update(None, "synchronous", "full")?;
        // Negative is KiB. Half of the memory for the caches, half for the kernel's.
        let cache_kib = (setup.cache_bytes / 2 / u64::from(setup.threads)) >> 10;
        connection.pragma_update(None, "cache_size", -(cache_kib as i64))?;
        Ok(connection)
    }
}

impl Store for SqliteStore {
    type Session<'a> = SqliteSession;

    fn create(setup: &Setup) -> anyhow::Result<()> {
        let mut connection = Self::connect(setup)?;
        connection.execute_batch("CREATE TABLE records (id INTEGER PRIMARY KEY, data BLOB NOT NULL)")?;
        let transaction = connection.transaction()?;
        {
            let mut insert = transaction.prepare("INSERT INTO records (id, data) VALUES (?1, ?2)")?;
            let mut record = [0; RECORD_BYTES];
            for number in 0..setup.records() {
                record_after(number, 0, &mut record);
                insert.execute((number as i64, record.as_slice()))?;
            }
        }
        Ok(transaction.commit()?)
    }

    fn open(setup: &Setup) -> anyhow::Result<Self> {
        Ok(Self { setup: setup.clone(), connection: Mutex::new(Self::connect(setup)?) })
    }

    fn session(&self) -> anyhow::Result<Self::Session<'_>> {
        Ok(SqliteSession(Self::connect(&self.setup)?))
    }

    fn settle(&self) -> anyhow::Result<()> {
        // More pages than it leaves in the log: its file grows no further.
        self.connection().execute("UPDATE records SET data = data WHERE id < ?1", [SETTLING_RECORDS])?;
        self.checkpoint()
    }

    fn checkpoint(&self) -> anyhow::Result<()> {
        // The log's file keeps its length, as between automatic checkpoints.
        let busy: i64 = self.connection().query_row("PRAGMA wal_checkpoint(RESTART)", (), |row| row.get(0))?;
        if busy != 0 {
            bail!("SQLite's checkpoint was held up by a reader");
        }
        Ok(())
    }
}

impl Session for SqliteSession {
    fn read(&mut self, number: u64, record: &mut Record) -> anyhow::Result<()> {
        let mut select = self.0.prepare_cached("SELECT data FROM records WHERE id = ?1")?;
        Ok(select.query_row([number as i64], |row| {
            let data = row.get_ref(0)?.as_blob()?;
            match <&Record>::try_from(data) {
                Ok(data) => *record = *data,
                // As wrong as any.
                Err(_) => record.fill(0),
            }
            Ok(())
        })?)
    }

    fn commit(&mut self, changes: &[Change]) -> anyhow::Result<()> {
        let transaction = self.0.transaction_with_behavior(TransactionBehavior::Immediate)?;
        if let Some(first) = changes.first() {
            let mut blob = transaction.blob_open(MAIN_DB, TABLE, COLUMN, first.record as i64, false)?;
            for change in changes {
                blob.reopen(change.record as i64)?;
                blob.write_at(&change.bytes(), change.start())?;
            }
        }
        Ok(transaction.commit()?)
    }

    fn load(&mut self, page: u64) -> anyhow::Result<()> {
        self.read(page * RECORDS_PER_PAGE, &mut [0; RECORD_BYTES])
    }
}
