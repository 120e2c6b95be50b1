//! When writes become durable.

use std::time::Duration;

/// When a write becomes durable. A crash loses only the end of a segment's log: all writes up to some point survive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Durability {
    /// At the next write and flush of the log, at the latest when the store is closed. Until then up to 8 MiB of the log stay in this
    /// process's memory, and a kill of the process loses them. A power cut loses all writes since the last device flush. Other writes, a
    /// close, and the end of a memtable's flush or of a compaction flush the device.
    None,
    /// After this time at the latest, or as soon as the device has taken the earlier writes. A kill or a power cut loses newer writes.
    /// Given with a single write, this applies to that write, whatever the store's default is.
    Periodic(Duration),
    /// When the call returns: neither a kill nor a power cut loses the write. Writers that wait at the same time share a flush of the device.
    Sync,
}
