//! A segment of a store, as users hold it.

use std::sync::Arc;

use crate::db::open_handle::OpenHandle;
use crate::db::segments::Segments;
use crate::db::{HandleKind, OpenSegment, KeyspaceHandle, SegmentStats};
use crate::error::Result;

/// A segment of a store: some keyspaces, a log that they share, and space of their own in the volume. See [`crate::Db::create_segment`].
///
/// Keyspaces of different segments share no log: writes to them are never in one batch, and what is durable of one says nothing of the
/// other; after a crash one may have what was written later, and the other not what was written before, unless that had been acknowledged as
/// durable. A [`crate::Snapshot`] shows the keyspaces of all segments at one moment all the same. Garbage is collected, and a full segment
/// is full, each for itself.
#[derive(Clone)]
pub struct SegmentHandle {
    number: u32,
    handle: OpenHandle<OpenedSegment>,
}

/// A segment, and all others.
#[derive(Clone)]
struct OpenedSegment {
    segments: Arc<Segments>,
    segment: Arc<OpenSegment>,
}

impl SegmentHandle {
    pub(super) fn new(segments: &Arc<Segments>, segment: Arc<OpenSegment>) -> Self {
        let number = segment.segment.number;
        let handle = segments.store().open_handle(HandleKind::Segment, || OpenedSegment { segments: Arc::clone(segments), segment });
        SegmentHandle { number, handle }
    }

    /// Its number: 0 for the one that is there from the start, and counted on from there. It stays.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// A keyspace by its name; it is created here, durably, if no segment has it. If another one has, that is
    /// [`crate::Error::KeyspaceElsewhere`].
    pub fn keyspace_or_create(&self, name: &str) -> Result<KeyspaceHandle> {
        let OpenedSegment { segments, segment } = self.handle.get()?;
        segments.keyspace_or_create(name, Some(segment))
    }

    /// The names of its keyspaces.
    pub fn keyspace_names(&self) -> Result<Vec<String>> {
        Ok(self.handle.get()?.segment.keyspaces().iter().map(|keyspace| keyspace.name.clone()).collect())
    }

    /// How much there is of what in it.
    pub fn stats(&self) -> Result<SegmentStats> {
        Ok(self.handle.get()?.segment.stats())
    }
}

impl std::fmt::Debug for SegmentHandle {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "segment {}", self.number)?;
        self.handle.get().map_or(Ok(()), |open| write!(out, " of {}", open.segment.store.device.name()))
    }
}
