//! Writes that count together or not at all.

use std::sync::Arc;

use crate::db::{RegionHandle, check_key, check_value};
use crate::error::Result;
use crate::format::record::RecordKind;
use crate::log::Append;
use crate::region::Region;

/// Writes to any regions of one store: after a crash all of them are there, or none.
#[derive(Default)]
pub struct WriteBatch {
    operations: Vec<Operation>,
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
}

impl WriteBatch {
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the setting of a key's value.
    pub fn put(&mut self, region: &RegionHandle, key: &[u8], value: &[u8]) -> Result<()> {
        check_value(value)?;
        self.add(region, RecordKind::Put, key, value)
    }

    /// Adds the deletion of a key.
    pub fn delete(&mut self, region: &RegionHandle, key: &[u8]) -> Result<()> {
        self.add(region, RecordKind::Delete, key, &[])
    }

    fn add(&mut self, region: &RegionHandle, kind: RecordKind, key: &[u8], value: &[u8]) -> Result<()> {
        check_key(key)?;
        let region = Arc::clone(region.region());
        self.operations.push(Operation { region, kind, key: key.into(), value: value.into() });
        Ok(())
    }

    /// How many writes it has.
    pub fn len(&self) -> usize {
        self.operations.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    pub(crate) fn operations(&self) -> &[Operation] {
        &self.operations
    }
}
