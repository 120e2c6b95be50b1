//! The state of the log that appenders and the writer share.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::log::tail_chunk::{Appender, ChunkMemory, TailChunk};

/// The most chunks in memory: one that is filled, and others on their way to the device.
pub(super) const TAIL_CHUNKS_MAX: usize = 4;

/// The state that appenders and the writer share.
pub(super) struct State {
    /// The chunks in memory. The last one is the appender's.
    pub(super) chunks: Vec<Arc<TailChunk>>,
    pub(super) appender: Appender,
    /// Memory for the next chunk.
    pub(super) spare: Option<ChunkMemory>,
    /// Bytes of the oldest chunk that are on the device.
    pub(super) written: usize,
    /// Whether a record that was not written yet refers to a large value that may not be durable.
    pub(super) refers_ahead: bool,
    pub(super) next_sequence: u64,
    /// Records with lower numbers are durable.
    pub(super) durable: u64,
    /// The highest number that a record of the kind Durable has vouched for.
    pub(super) vouched: u64,
    /// The chunks that an opening would read back, with their first numbers, the oldest first.
    pub(super) to_read_back: VecDeque<(u64, u64)>,
    /// How far an opening has read the log back again; `None` if none does.
    pub(super) replayed: Option<(u64, u64)>,
    /// Whether an appender has released the lock for a while. No record of others may come between its own.
    pub(super) is_appending: bool,
    /// Whether a thread is making durable all records that existed when it began to write.
    pub(super) is_flushing: bool,
    pub(super) failed: Option<String>,
    pub(super) stopping: bool,
}

impl State {
    /// Bytes that are in memory alone.
    pub(super) fn unwritten(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.filled()).sum::<usize>() - self.written
    }
}
