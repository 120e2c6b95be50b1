//! The commit of a transaction.
//!
//! A transaction is serialized at its commit: nobody writes to the keyspaces that it has read or writes to, and all that it has read is
//! found to have the same values then. So it is as if all of it happened at that moment.

use std::sync::Arc;

use crate::db::condition::Condition;
use crate::db::transaction::reads::Reads;
use crate::db::transaction::state::State;
use crate::durability::Durability;
use crate::error::{Error, Result};
use crate::keyspace::{Keyspace, View};

/// How many checks may end too late.
const CHECKS_MAX: u32 = 8;

impl State {
    /// Writes if nothing that was read has changed. Without a durability it is the store's default.
    pub(in crate::db) fn commit(&mut self, durability: Option<Durability>) -> Result<()> {
        let Some((home, _)) = self.writes.home() else { return Ok(()) };
        let home = Arc::clone(home);
        let durability = durability.unwrap_or_else(|| home.store.options.default_durability());
        let operations = self.writes.take();
        let reads = std::mem::take(self.reads.get_mut());
        let mut read = Read::new(self, &reads);
        read.make_durable(home.segment.number)?;
        let keyspaces: Vec<&Arc<Keyspace>> = read.of.iter().map(|of| of.keyspace).collect();
        for _ in 0..CHECKS_MAX {
            let condition = Condition { keyspaces: &keyspaces, holds: &|| read.is_unchanged_in_memory() };
            if home.write_if(&condition, &operations, durability)? {
                return Ok(());
            }
            read.move_on()?;
        }
        Err(Error::TransactionTooLong { checks: CHECKS_MAX })
    }
}

/// The reads of a transaction, and the moment at which they are known to hold.
struct Read<'state> {
    reads: &'state Reads,
    of: Vec<OfKeyspace<'state>>,
}

struct OfKeyspace<'state> {
    place: usize,
    keyspace: &'state Arc<Keyspace>,
    view: Arc<View>,
}

impl<'state> Read<'state> {
    fn new(state: &'state State, reads: &'state Reads) -> Self {
        let of = |place: usize| {
            let (keyspace, view) = &state.views[place];
            OfKeyspace { place, keyspace, view: Arc::clone(view) }
        };
        Read { reads, of: reads.places().map(of).collect() }
    }

    /// Makes durable what was read from other segments. Otherwise a crash might lose it and keep what was written because of it.
    fn make_durable(&self, home: u32) -> Result<()> {
        let mut last = home;
        for OfKeyspace { keyspace, .. } in &self.of {
            // They are in the order of their segments.
            if keyspace.segment() != home && keyspace.segment() != last {
                keyspace.log.sync_all()?;
                last = keyspace.segment();
            }
        }
        Ok(())
    }

    /// Checks by memtables alone that nothing has changed; false if that cannot be told. The caller keeps writers out.
    fn is_unchanged_in_memory(&self) -> Result<bool> {
        for OfKeyspace { place, keyspace, view } in &self.of {
            let Some(newer) = keyspace.newer_than(view) else { return Ok(false) };
            let reads = self.reads.of(*place);
            for key in &reads.keys {
                if newer.has_changed(key)? {
                    return Err(conflict(keyspace, key));
                }
            }
            for range in reads.ranges() {
                if let Some(key) = newer.changed_in(&range)? {
                    return Err(conflict(keyspace, &key));
                }
            }
        }
        Ok(true)
    }

    /// Compares with the present, while others write. From then on only later changes have to be looked for.
    fn move_on(&mut self) -> Result<()> {
        let now = View::begin_all(self.of.iter().map(|of| &**of.keyspace));
        for (OfKeyspace { place, keyspace, view }, now) in self.of.iter_mut().zip(now) {
            let (now, reads) = (Arc::new(now), self.reads.of(*place));
            for key in &reads.keys {
                if keyspace.differs(key, [view, &now])? {
                    return Err(conflict(keyspace, key));
                }
            }
            for range in reads.ranges() {
                if let Some(key) = keyspace.first_difference(&range, [view, &now])? {
                    return Err(conflict(keyspace, &key));
                }
            }
            *view = now;
        }
        Ok(())
    }
}

fn conflict(keyspace: &Keyspace, key: &[u8]) -> Error {
    Error::Conflict { keyspace: keyspace.name.clone(), key: key.to_vec() }
}
