//! The commit of a transaction.
//!
//! A transaction is serialized at its commit: nobody writes to the keyspaces that it has read or writes to, and all that it has read is
//! found to have the same values then. So it is as if all of it happened at that moment.

use std::sync::Arc;

use crate::db::condition::Condition;
use crate::db::operation::Operation;
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
        let mut read = Read::new(self, &reads, home.segment.number);
        // Space that only they hold may be what the write needs.
        self.views.clear();
        read.make_durable()?;
        let keyspaces: Vec<Arc<Keyspace>> = read.of.iter().map(|of| Arc::clone(&of.keyspace)).collect();
        let keyspaces: Vec<&Arc<Keyspace>> = keyspaces.iter().collect();
        if operations.iter().any(Operation::is_large) && !keyspaces.is_empty() {
            // A conflict that is there already shall not cost a gibibyte.
            read.move_on()?;
        }
        let stored = home.store_large(&operations)?;
        for check in 1..=CHECKS_MAX {
            let condition = Condition { keyspaces: &keyspaces, holds: &|| read.is_unchanged_in_memory() };
            if home.write_if(&condition, &operations, &stored, durability)? {
                return Ok(());
            }
            if check < CHECKS_MAX {
                read.move_on()?;
            }
        }
        Err(Error::TransactionTooLong { checks: CHECKS_MAX })
    }
}

/// The reads of a transaction, and the moment at which they are known to hold.
struct Read<'reads> {
    reads: &'reads Reads,
    of: Vec<OfKeyspace>,
    /// The segment that is written to.
    home: u32,
}

struct OfKeyspace {
    place: usize,
    keyspace: Arc<Keyspace>,
    view: Arc<View>,
}

impl<'reads> Read<'reads> {
    fn new(state: &State, reads: &'reads Reads, home: u32) -> Self {
        let of = |place: usize| {
            let (keyspace, view) = &state.views[place];
            OfKeyspace { place, keyspace: Arc::clone(keyspace), view: Arc::clone(view) }
        };
        Read { reads, of: reads.places().map(of).collect(), home }
    }

    /// Makes durable what the views show of other segments. Otherwise a crash might lose it and keep what was written because of it.
    fn make_durable(&self) -> Result<()> {
        let mut last = self.home;
        for OfKeyspace { keyspace, .. } in &self.of {
            // They are in the order of their segments.
            if keyspace.segment() != self.home && keyspace.segment() != last {
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
            // A newer record of the same value may not be durable yet.
            if keyspace.segment() != self.home
                && (reads.keys.iter().any(|key| newer.has(key)) || reads.ranges().any(|range| newer.has_within(&range)))
            {
                return Ok(false);
            }
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
        let now = View::begin_all(self.of.iter().map(|of| &*of.keyspace));
        self.make_durable()?;
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
