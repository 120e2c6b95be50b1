//! Writes that count together or not at all.

use std::sync::Arc;

use crate::db::{Held, Holder, OpenRegion, OpenSegment, RegionHandle, check_key, check_value_length};
use crate::error::{Error, Result};
use crate::extents::Stored;
use crate::format::record::RecordKind;
use crate::log::Append;
use crate::region::Region;

/// Writes to any regions of one segment: after a crash all of them are there, or none.
#[derive(Default)]
pub struct WriteBatch {
    /// What it has, once it has any.
    writes: Option<Held<Writes>>,
    count: usize,
}

/// Writes to regions of one segment.
pub(crate) struct Writes {
    pub(crate) home: Arc<OpenSegment>,
    pub(crate) operations: Vec<Operation>,
}

pub(crate) struct Operation {
    pub(crate) region: Arc<Region>,
    kind: RecordKind,
    key: Box<[u8]>,
    value: Box<[u8]>,
}

impl Operation {
    pub(crate) fn append(&self) -> Append<'_> {
        Append { kind: self.kind, region: self.region.number, key: &self.key, value: &self.value }
    }

    /// The same, of a value that was `stored` if it is large.
    pub(crate) fn append_as<'bytes>(&'bytes self, stored: Option<&'bytes Stored>) -> Append<'bytes> {
        match stored {
            Some(stored) => Append { kind: RecordKind::Extents, value: stored.record_value(), ..self.append() },
            None => self.append(),
        }
    }
}

impl WriteBatch {
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the setting of a key's value. One over 256 KiB is written on its own before the batch is. If the region is in another segment
    /// than those before it, that is [`Error::BatchAcrossSegments`], and nothing is added.
    pub fn put(&mut self, region: &RegionHandle, key: &[u8], value: &[u8]) -> Result<()> {
        check_value_length(value.len() as u64)?;
        self.add(region, RecordKind::Put, key, value)
    }

    /// Adds the deletion of a key. The same goes for the region.
    pub fn delete(&mut self, region: &RegionHandle, key: &[u8]) -> Result<()> {
        self.add(region, RecordKind::Delete, key, &[])
    }

    fn add(&mut self, handle: &RegionHandle, kind: RecordKind, key: &[u8], value: &[u8]) -> Result<()> {
        let OpenRegion { home, region } = handle.open()?;
        check_key(key)?;
        let none = |open: &OpenRegion| Writes { home: Arc::clone(&open.home), operations: Vec::new() };
        let writes = self.writes.get_or_insert_with(|| handle.hold(Holder::Batch, none)).get_mut()?;
        if !Arc::ptr_eq(&writes.home, home) {
            let first = writes.operations.first().map_or_else(String::new, |first| first.region.name.clone());
            return Err(Error::BatchAcrossSegments { first, second: handle.name().to_owned() });
        }
        let region = Arc::clone(region);
        writes.operations.push(Operation { region, kind, key: key.into(), value: value.into() });
        self.count += 1;
        Ok(())
    }

    /// How many writes it has.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// What it has, if it has any.
    pub(crate) fn writes(&self) -> Result<Option<&Writes>> {
        self.writes.as_ref().map(Held::get).transpose()
    }
}
