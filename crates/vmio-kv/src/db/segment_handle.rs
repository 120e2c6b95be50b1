//! The handle of a segment.

use std::sync::Arc;

use crate::db::keyspace_handle::KeyspaceHandle;
use crate::db::open_handle::OpenHandle;
use crate::db::open_handles::HandleKind;
use crate::db::open_segment::OpenSegment;
use crate::db::segments::Segments;
use crate::db::stats::SegmentStats;
use crate::error::Result;

/// A handle of a segment: some keyspaces with a log and space of their own. See [`crate::Db::create_segment`].
///
/// Keyspaces of different segments share no log. A batch cannot write to both. A crash may lose the earlier write of one segment and keep
/// the later write of another, unless the earlier one was durable. A [`crate::Snapshot`] still shows all segments at one moment.
///
/// Each segment collects its own garbage, and can be full by itself.
#[derive(Clone)]
pub struct SegmentHandle {
    number: u32,
    handle: OpenHandle<OpenedSegment>,
}

/// A segment, with the store's list of segments.
#[derive(Clone)]
struct OpenedSegment {
    segments: Arc<Segments>,
    segment: Arc<OpenSegment>,
}

impl SegmentHandle {
    pub(super) fn new(segments: &Arc<Segments>, segment: Arc<OpenSegment>) -> Self {
        let number = segment.segment.number;
        let handle = segments
            .store()
            .open_handle(HandleKind::Segment, || OpenedSegment { segments: Arc::clone(segments), segment });
        SegmentHandle { number, handle }
    }

    pub(super) fn of_all(segments: &Arc<Segments>) -> Vec<Self> {
        segments.all().into_iter().map(|segment| SegmentHandle::new(segments, segment)).collect()
    }

    /// The segment's number, which never changes. The first one has 0.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The keyspace of a name. If there is none in any segment, it is created durably in this one.
    ///
    /// # Errors
    ///
    /// [`crate::Error::KeyspaceElsewhere`] if another segment has it.
    pub fn keyspace_or_create(&self, name: &str) -> Result<KeyspaceHandle> {
        let OpenedSegment { segments, segment } = self.handle.get()?;
        segments.keyspace_or_create(name, Some(segment))
    }

    /// The names of the segment's keyspaces.
    pub fn keyspace_names(&self) -> Result<Vec<String>> {
        Ok(self.handle.get()?.segment.keyspaces().iter().map(|keyspace| keyspace.name.clone()).collect())
    }

    /// The segment's sizes and counts.
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
