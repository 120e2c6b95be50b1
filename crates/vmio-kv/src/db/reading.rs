//! Reads of a keyspace by key.

use crate::db::lengths::check_key;
use crate::error::Result;
use crate::format::pointer::{Pointer, PointerKind};
use crate::keyspace::{Keyspace, Version};

/// The most keys of one joint look-up: the blocks read for them must stay in the cache until they are used.
const TOGETHER_MAX: usize = 64;
/// Bytes of records that are read together.
const RECORD_BYTES_MAX: u64 = 4 << 20;

/// A keyspace at one moment.
pub(super) struct Reading<'keyspace> {
    pub(super) keyspace: &'keyspace Keyspace,
    pub(super) version: &'keyspace Version,
    /// Records in memtables from this number on are not seen.
    pub(super) before: u64,
}

impl Reading<'_> {
    pub(super) fn find(&self, key: &[u8]) -> Result<Option<Pointer>> {
        check_key(key)?;
        self.keyspace.find(self.version, self.before, key)
    }

    pub(super) fn contains(&self, key: &[u8]) -> Result<bool> {
        Ok(self.find(key)?.is_some())
    }

    pub(super) fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        check_key(key)?;
        let found = self.keyspace.look_up(self.version, self.before, key, |record| record.value.to_vec())?;
        match found.filter(|(pointer, _)| pointer.kind() != PointerKind::Tombstone) {
            // The look-up has read the record to compare its key.
            Some((pointer, Some(value))) if pointer.kind() != PointerKind::Extents => Ok(Some(value)),
            Some((pointer, _)) => self.value(key, pointer).map(Some),
            None => Ok(None),
        }
    }

    pub(super) fn get_ref<Answer>(&self, key: &[u8], look: impl FnOnce(&[u8]) -> Answer) -> Result<Option<Answer>> {
        let Some(pointer) = self.find(key)? else { return Ok(None) };
        if pointer.kind() == PointerKind::Extents {
            return Ok(Some(look(&self.value(key, pointer)?)));
        }
        self.keyspace.log.read_pinned(pointer, |record| look(record.value)).map(Some)
    }

    pub(super) fn multi_get<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<Vec<u8>>>> {
        let mut values = Vec::with_capacity(keys.len());
        for keys in keys.chunks(TOGETHER_MAX) {
            let keys: Vec<&[u8]> = keys.iter().map(AsRef::as_ref).collect();
            keys.iter().try_for_each(|key| check_key(key))?;
            let found = self.keyspace.find_many(self.version, self.before, &keys)?;
            let mut bytes = 0;
            let together = found.iter().flatten().take_while(|record| {
                bytes += u64::from(record.record_bytes());
                bytes <= RECORD_BYTES_MAX
            });
            self.keyspace.log.fetch(together.copied());
            for (key, pointer) in keys.iter().zip(found) {
                values.push(pointer.map(|pointer| self.value(key, pointer)).transpose()?);
            }
        }
        Ok(values)
    }
}
