//! Transactions that run again after a conflict.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::time::Duration;

use crate::db::Db;
use crate::db::transaction::Transaction;
use crate::error::{Error, Result};

/// How often a transaction runs at most.
pub(in crate::db) const ATTEMPTS_MAX: u32 = 100;
/// The longest pause between two attempts.
const PAUSE_US_MAX: u64 = 5_000;

impl Db {
    /// Runs a transaction and commits it. After a conflict it runs again, 100 times at most, with pauses in between. So `run` must have no
    /// other effects.
    ///
    /// An error of `run` discards the writes, and is returned.
    ///
    /// # Errors
    ///
    /// [`Error::Conflict`] if each attempt had a conflict; else the first other error of `run` or of the commit.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let db = vmio_kv::Db::create(folder.path().join("store"), vmio_kv::Options::new())?;
    /// let count = || {
    ///     db.transact(|transaction| -> vmio_kv::Result<u8> {
    ///         let count = transaction.get(&db, b"visits")?.map_or(1, |count| count[0] + 1);
    ///         transaction.put(&db, b"visits", &[count])?;
    ///         Ok(count)
    ///     })
    /// };
    /// assert_eq!((count()?, count()?), (1, 2));
    /// # Ok(())
    /// # }
    /// ```
    pub fn transact<T, E: From<Error>>(&self, mut run: impl FnMut(&mut Transaction) -> Result<T, E>) -> Result<T, E> {
        for attempt in 1.. {
            let mut transaction = self.transaction();
            let answer = run(&mut transaction)?;
            match transaction.commit() {
                Err(Error::Conflict { .. } | Error::TransactionTooLong { .. }) if attempt < ATTEMPTS_MAX => {
                    pause(attempt);
                }
                done => return done.map(|()| answer).map_err(E::from),
            }
        }
        unreachable!("the last attempt returns")
    }
}

/// Waits for a random time: the longer, the more attempts there were. So transactions that conflict come one after the other.
pub(in crate::db) fn pause(attempt: u32) {
    let most = PAUSE_US_MAX.min(1 << attempt.min(16));
    // Its keys are random.
    let random = RandomState::new().build_hasher().finish();
    std::thread::sleep(Duration::from_micros(random % most));
}
