//! Writes of a key on condition of its value.

use crate::db::keyspace_handle::KeyspaceHandle;
use crate::db::lengths::{check_key, check_value_length};
use crate::db::transaction::{ATTEMPTS_MAX, State, pause};
use crate::durability::Durability;
use crate::error::{Error, Result};

impl KeyspaceHandle {
    /// Sets a key's value to `new` if it is `expected`, and returns whether it did. `None` stands for no value: expected, it means that
    /// the key is absent; as the new value, it deletes the key.
    ///
    /// # Errors
    ///
    /// [`Error::Conflict`] if others wrote the key at each of 100 attempts. [`Error::Full`] also where a put would find space: the space that
    /// the look at the old value holds is not free before this ends.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let db = vmio_kv::Db::create(folder.path().join("store"), vmio_kv::Options::new())?;
    /// assert!(db.compare_and_set(b"leader", None, Some(b"node 1"))?);
    /// assert!(!db.compare_and_set(b"leader", None, Some(b"node 2"))?);
    /// assert_eq!(db.get(b"leader")?.as_deref(), Some(&b"node 1"[..]));
    /// assert!(db.compare_and_set(b"leader", Some(b"node 1"), None)?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn compare_and_set(&self, key: &[u8], expected: Option<&[u8]>, new: Option<&[u8]>) -> Result<bool> {
        self.compare_and_set_with(key, expected, new, self.open()?.durability())
    }

    /// Sets a key's value to `new` if it is `expected`, with a durability for this write.
    pub fn compare_and_set_with(
        &self,
        key: &[u8],
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
        durability: Durability,
    ) -> Result<bool> {
        let open = self.open()?;
        check_key(key)?;
        check_value_length(new.map_or(0, |new| new.len() as u64))?;
        for attempt in 1.. {
            let mut transaction = State::begin_on(open);
            if transaction.get(open, key)?.as_deref() != expected {
                return Ok(false);
            }
            transaction.write(open, key, new)?;
            match transaction.commit(Some(durability)) {
                // Somebody else has written it: the next look tells whether that is the expected value again.
                Err(Error::Conflict { .. } | Error::TransactionTooLong { .. }) if attempt < ATTEMPTS_MAX => {
                    pause(attempt)
                }
                done => return done.map(|()| true),
            }
        }
        unreachable!("the last attempt returns")
    }
}
