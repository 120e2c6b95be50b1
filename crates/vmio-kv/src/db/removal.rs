//! Clearing and dropping keyspaces.

use std::sync::{Arc, PoisonError, Weak};

use crate::db::Db;
use crate::db::keyspace_handle::{DEFAULT_KEYSPACE, KeyspaceHandle};
use crate::db::open_segment::OpenSegment;
use crate::db::segments::Segments;
use crate::error::{Error, Result};
use crate::keyspace::{Keyspace, Removed};
use crate::volume::committed::Changes;

impl KeyspaceHandle {
    /// Deletes all keys, durably and atomically. On a [`Db`] it clears the default keyspace.
    ///
    /// It also makes earlier writes to keyspaces of the same segment durable. It reads the keyspace's leaves, to free space and to count
    /// garbage; writers of the keyspace wait meanwhile. Snapshots and scans that began before still show the keys.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let db = vmio_kv::Db::create(folder.path().join("store"), vmio_kv::Options::new())?;
    /// let orders = db.keyspace_or_create("orders")?;
    /// orders.put(b"1", b"open")?;
    /// orders.clear()?;
    /// assert_eq!(orders.first()?, None);
    /// db.drop_keyspace("orders")?;
    /// assert!(matches!(orders.put(b"2", b"open"), Err(vmio_kv::Error::NoKeyspace { .. })));
    /// # Ok(())
    /// # }
    /// ```
    pub fn clear(&self) -> Result<()> {
        let open = self.open()?;
        // No keyspace is created meanwhile: it would have to wait for threads that look at all keyspaces.
        let _naming = open.home.store.in_doubt();
        open.home.remove(&open.keyspace, true)
    }
}

impl Db {
    /// Drops a keyspace with all of its keys, durably and atomically, as [`KeyspaceHandle::clear`] does. Its handles fail with
    /// [`Error::NoKeyspace`] from then on. Its name can be used again.
    ///
    /// # Errors
    ///
    /// [`Error::NoKeyspace`] if there is none of that name; [`Error::KeyspaceStays`] for [`DEFAULT_KEYSPACE`].
    pub fn drop_keyspace(&self, name: &str) -> Result<()> {
        self.opened()?.segments.drop_keyspace(name)
    }
}

impl Segments {
    fn drop_keyspace(&self, name: &str) -> Result<()> {
        let store = self.store();
        if name == DEFAULT_KEYSPACE {
            return Err(Error::KeyspaceStays { name: name.to_owned() });
        }
        let _naming = store.in_doubt();
        let keyspace = store.keyspaces().get(name).cloned();
        let no_keyspace = || Error::NoKeyspace { volume: store.device.name().to_owned(), name: name.to_owned() };
        let keyspace = keyspace.ok_or_else(no_keyspace)?;
        self.of(&keyspace).remove(&keyspace, false)?;
        store.remove_keyspace(&keyspace);
        Ok(())
    }
}

impl OpenSegment {
    /// Deletes all that a keyspace has, and the keyspace itself unless it `stays`.
    fn remove(&self, keyspace: &Arc<Keyspace>, stays: bool) -> Result<()> {
        self.store.check_writable()?;
        // A record that the collector moves meanwhile would come back.
        let collecting = self.collecting();
        self.store.compactions.forget_apart();
        self.log.check_goes_on()?;
        let removal = keyspace.begin_removal()?;
        let Removed { garbage, extents, retired } = removal.contents()?;
        // The keyspace's later records must have higher numbers, and numbers that a crash loses are used again.
        let (log_offset, log_sequence) = self.log.end();
        self.log.sync(log_sequence)?;
        let committing = self.committing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut allocator = self.segment.allocator();
        garbage.of_log().for_each(|(unit, bytes)| allocator.add_garbage(unit, bytes));
        drop(allocator);
        let entry = Keyspace::empty_entry(keyspace.number, &keyspace.name, log_offset, log_sequence);
        let mut changes = Changes { extents, log: Some(self.log.position()), ..Changes::default() };
        changes.replay = Some(self.replay_from(&entry));
        match stays {
            true => changes.keyspaces.push(entry.clone()),
            false => changes.removed.push(keyspace.number),
        }
        match self.segment.commit(changes, &retired) {
            Ok(epoch) => {
                if !stays {
                    self.dropped.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(keyspace));
                }
                removal.publish(epoch, retired, stays.then_some(&entry));
            }
            Err(error) => {
                removal.fail(&error.with_causes());
                return Err(error);
            }
        }
        drop(committing);
        drop(collecting);
        self.segment.give_back()?;
        self.update_free_reserve();
        self.store.collector.wake();
        Ok(())
    }

    /// The segment's keyspaces, and dropped ones that may still be read.
    pub(super) fn readable_keyspaces(&self) -> Vec<Arc<Keyspace>> {
        let mut dropped = self.dropped.lock().unwrap_or_else(PoisonError::into_inner);
        dropped.retain(|keyspace| keyspace.strong_count() > 0);
        self.keyspaces().into_iter().chain(dropped.iter().filter_map(Weak::upgrade)).collect()
    }
}
