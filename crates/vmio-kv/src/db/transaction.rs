//! Transactions: reads of one moment, and writes that are applied together if nothing that was read has changed.

mod attempts;
mod commit;
mod reads;
mod scan;
mod state;
mod two_ends;
mod writes;

use crate::db::Db;
use crate::db::keyspace_handle::KeyspaceHandle;
use crate::db::lengths::{check_key, check_value_length};
use crate::db::open_handle::OpenHandle;
use crate::db::open_handles::HandleKind;
pub(super) use crate::db::transaction::attempts::{ATTEMPTS_MAX, pause};
pub(super) use crate::db::transaction::state::State;
use crate::durability::Durability;
use crate::error::Result;
use crate::key_range::KeyRange;
pub use scan::TransactionScan;
pub use writes::Savepoint;

impl Db {
    /// Begins a transaction. [`Self::transact`] also runs it again after a conflict.
    pub fn transaction(&self) -> Transaction {
        let begin = |opened: &std::sync::Arc<crate::db::opened::Opened>| State::begin(&opened.segments);
        Transaction { handle: self.handle.map(HandleKind::Transaction, begin) }
    }
}

/// Reads and writes that take effect together at the commit, or not at all.
///
/// Transactions are optimistic: they wait for no other writer before their commit. That fails with
/// [`Error::Conflict`](crate::Error::Conflict) if a value that the transaction has read has changed since it began. Writers of any kind count, also plain puts. A key that is absent, and a
/// range that was scanned, count as read. So committed transactions have the results that they would have one after the other.
///
/// Reads show all keyspaces at the moment when the transaction began, with its own writes on top. The drop of a transaction discards its
/// writes. Until then it holds what it shows, as a [`Snapshot`](crate::Snapshot) does.
///
/// A transaction may read all keyspaces, and write to those of one segment.
///
/// # Examples
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// use vmio_kv::{Db, Error, Options};
///
/// let db = Db::create(folder.path().join("store"), Options::new())?;
/// db.put(b"seats", &[1])?;
///
/// let mut mine = db.transaction();
/// let mut theirs = db.transaction();
/// for (booking, name) in [(&mut mine, b"Ada"), (&mut theirs, b"Bob")] {
///     assert_eq!(booking.get(&db, b"seats")?, Some(vec![1]));
///     booking.put(&db, b"seats", &[0])?;
///     booking.put(&db, b"seat 1", name)?;
/// }
/// mine.commit()?;
/// assert!(matches!(theirs.commit(), Err(Error::Conflict { key, .. }) if key == b"seats"));
/// assert_eq!(db.get(b"seat 1")?.as_deref(), Some(&b"Ada"[..]));
/// # Ok(())
/// # }
/// ```
pub struct Transaction {
    handle: OpenHandle<State>,
}

impl Transaction {
    /// A key's value, as the transaction sees it.
    ///
    /// # Errors
    ///
    /// [`Error::NoKeyspace`](crate::Error::NoKeyspace) for a keyspace that was created after the transaction began.
    pub fn get(&self, keyspace: &KeyspaceHandle, key: &[u8]) -> Result<Option<Vec<u8>>> {
        check_key(key)?;
        self.handle.get()?.get(keyspace.open()?, key)
    }

    /// Whether a key has a value, as the transaction sees it.
    pub fn contains(&self, keyspace: &KeyspaceHandle, key: &[u8]) -> Result<bool> {
        check_key(key)?;
        self.handle.get()?.contains(keyspace.open()?, key)
    }

    /// Iterates over the keys and values of a range in order, from both ends, as the transaction sees them.
    ///
    /// A scan that stops early has read the keys up to the last one that it has returned. A scan that has ended has read the whole range.
    pub fn scan(&self, keyspace: &KeyspaceHandle, range: impl Into<KeyRange>) -> Result<TransactionScan<'_>> {
        TransactionScan::begin(&self.handle, keyspace.open()?, range.into())
    }

    /// Sets a key's value.
    ///
    /// # Errors
    ///
    /// [`Error::BatchAcrossSegments`](crate::Error::BatchAcrossSegments) if the transaction has written to another segment,
    /// [`Error::KeyLength`](crate::Error::KeyLength), [`Error::ValueLength`](crate::Error::ValueLength). Nothing is written then.
    pub fn put(&mut self, keyspace: &KeyspaceHandle, key: &[u8], value: &[u8]) -> Result<()> {
        check_key(key)?;
        check_value_length(value.len() as u64)?;
        self.handle.get_mut()?.write(keyspace.open()?, key, Some(value))
    }

    /// Deletes a key. A key that has no value is no error.
    pub fn delete(&mut self, keyspace: &KeyspaceHandle, key: &[u8]) -> Result<()> {
        check_key(key)?;
        self.handle.get_mut()?.write(keyspace.open()?, key, None)
    }

    /// The present state of the writes, for [`Self::rollback_to`].
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let db = vmio_kv::Db::create(folder.path().join("store"), vmio_kv::Options::new())?;
    /// let mut transaction = db.transaction();
    /// transaction.put(&db, b"order", b"open")?;
    /// let savepoint = transaction.savepoint()?;
    /// transaction.put(&db, b"discount", b"10")?;
    /// transaction.rollback_to(savepoint)?;
    /// transaction.commit()?;
    /// assert!(db.contains(b"order")? && !db.contains(b"discount")?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn savepoint(&mut self) -> Result<Savepoint> {
        Ok(self.handle.get_mut()?.writes.savepoint())
    }

    /// Discards the writes since a savepoint. Later savepoints end, and this one stays. Reads since then still count.
    ///
    /// # Errors
    ///
    /// [`Error::NoSavepoint`](crate::Error::NoSavepoint) if the savepoint has ended, or if it is another transaction's.
    pub fn rollback_to(&mut self, savepoint: Savepoint) -> Result<()> {
        self.handle.get_mut()?.writes.roll_back_to(savepoint)
    }

    /// Applies all writes atomically, as a [`WriteBatch`](crate::WriteBatch) does, if nothing that the transaction has read has changed.
    /// A transaction without writes always succeeds.
    ///
    /// # Errors
    ///
    /// [`Error::Conflict`](crate::Error::Conflict) if it has changed; nothing is written then. [`Error::TransactionTooLong`] if the
    /// transaction has read so much that writers are faster than the check. All errors of [`Db::write`].
    ///
    /// [`Error::TransactionTooLong`]: crate::Error::TransactionTooLong
    pub fn commit(mut self) -> Result<()> {
        self.handle.get_mut()?.commit(None)
    }

    /// Applies all writes, with a durability for this commit.
    pub fn commit_with(mut self, durability: Durability) -> Result<()> {
        self.handle.get_mut()?.commit(Some(durability))
    }
}

impl std::fmt::Debug for Transaction {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "transaction")?;
        self.handle.get().map_or(Ok(()), |state| write!(out, " of {}", state.volume()))
    }
}
