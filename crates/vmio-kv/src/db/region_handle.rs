//! A region of a store, as users hold it.

use std::sync::Arc;

use crate::db::reading::Reading;
use crate::db::{OpenSegment, RegionSnapshot, Scan, check_key, check_value_length};
use crate::error::Result;
use crate::format::record::RecordKind;
use crate::key_range::KeyRange;
use crate::log::{Append, LOG_VALUE_BYTES_MAX};
use crate::options::Durability;
use crate::region::memory_level::{NEWEST, room_for};
use crate::region::{Region, Version, View};
use crate::volume::reserve::Claim;

/// A region of a store: a name space of keys.
#[derive(Clone)]
pub struct RegionHandle {
    /// The segment that it is in.
    pub(super) home: Arc<OpenSegment>,
    pub(super) region: Arc<Region>,
}

impl RegionHandle {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.region.name
    }

    /// The number of the segment that it is in.
    pub fn segment(&self) -> u32 {
        self.region.segment()
    }

    pub(crate) fn home(&self) -> &Arc<OpenSegment> {
        &self.home
    }

    pub(crate) fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Sets a key's value.
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.put_with(key, value, self.home.store.options.default_durability())
    }

    /// The same, with a durability of its own.
    pub fn put_with(&self, key: &[u8], value: &[u8], durability: Durability) -> Result<()> {
        check_key(key)?;
        check_value_length(value.len() as u64)?;
        if value.len() > LOG_VALUE_BYTES_MAX {
            return self.put_large(key, value.len() as u64, &mut &*value, durability);
        }
        self.write_one(RecordKind::Put, key, value, durability)
    }

    /// Has a key have no value. It is no error if it has none.
    pub fn delete(&self, key: &[u8]) -> Result<()> {
        self.delete_with(key, self.home.store.options.default_durability())
    }

    /// The same, with a durability of its own.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// use vmio_kv::Durability;
    ///
    /// let db = vmio_kv::Db::create(folder.path().join("store"), vmio_kv::Options::new())?;
    /// db.put(b"session", b"open")?;
    /// db.delete_with(b"session", Durability::Periodic(std::time::Duration::from_millis(100)))?;
    /// assert!(!db.contains(b"session")?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn delete_with(&self, key: &[u8], durability: Durability) -> Result<()> {
        check_key(key)?;
        self.write_one(RecordKind::Delete, key, &[], durability)
    }

    fn write_one(&self, kind: RecordKind, key: &[u8], value: &[u8], durability: Durability) -> Result<()> {
        let claim = if kind == RecordKind::Delete { Claim::Delete } else { Claim::Put };
        let record = Append { kind, region: self.region.number, key, value };
        self.home.write_where_room(claim, || self.try_write_one(&record, claim, durability))
    }

    fn try_write_one(&self, record: &Append<'_>, claim: Claim, durability: Durability) -> Result<()> {
        let home = &self.home;
        let admitted = home.admit(self.region.room_to_begin() + room_for(record.key))?;
        let turn = self.region.begin_write()?;
        let at = home.log.append_one_record(record, claim)?;
        let is_full = turn.put(record.key, at.sequence, at.pointer);
        drop(turn);
        drop(admitted);
        home.spill_if_due(&self.region, is_full);
        home.slow_down(1, u64::from(at.pointer.record_bytes()));
        home.log.keep(durability, at.sequence + 1)
    }

    /// The region as it is now: what is written later is not seen.
    pub fn snapshot(&self) -> RegionSnapshot {
        RegionSnapshot::new(self.clone(), View::begin(&self.region))
    }

    /// A key's value.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.newest(&self.region.current()).get(key)
    }

    /// Has `look` see a key's value where it lies, and returns what it answers; it is not called if there is none. The value's pages
    /// are pinned meanwhile: for long values that is cheaper than a copy, for short ones [`Self::get`] is.
    pub fn get_ref<Answer>(&self, key: &[u8], look: impl FnOnce(&[u8]) -> Answer) -> Result<Option<Answer>> {
        self.newest(&self.region.current()).get_ref(key, look)
    }

    /// The values of several keys, in their order, all as they are now. What has to be read for them from the device is
    /// read together.
    pub fn multi_get<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<Vec<u8>>>> {
        self.snapshot().multi_get(keys)
    }

    /// Whether a key has a value.
    pub fn contains(&self, key: &[u8]) -> Result<bool> {
        self.newest(&self.region.current()).contains(key)
    }

    /// Keys and values of a range in order, as they are now: what is written meanwhile is not seen.
    pub fn scan(&self, range: impl Into<KeyRange>) -> Scan<'_> {
        Scan::new(self, Arc::new(View::begin(&self.region)), range.into())
    }

    /// The same of the keys that begin with a prefix.
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Scan<'_> {
        self.scan(KeyRange::prefix(prefix))
    }

    pub(super) fn newest<'region>(&'region self, version: &'region Version) -> Reading<'region> {
        Reading { region: &self.region, version, before: NEWEST }
    }
}

impl std::fmt::Debug for RegionHandle {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "region {:?} of {}", self.region.name, self.home.store.device.name())
    }
}
