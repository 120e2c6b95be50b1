//! A log on persistent memory: entries are stores.

use std::io::IoSlice;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::Ordering;

use operation_log::DirectFile;
use vmio::{Access, SharedMap};

use super::logs::counts;
use crate::own_descriptors;

/// The mapping of a log's file.
pub(super) struct MappedLog(SharedMap);

impl MappedLog {
    /// Maps a log; `None` where stores are not durable by themselves.
    pub(super) fn open(file: BorrowedFd<'_>, bytes: u64) -> Option<Box<dyn DirectFile>> {
        let map = SharedMap::open(file, bytes, Access::ReadWrite).ok().filter(SharedMap::is_persistent)?;
        if let Some((_, shared)) = map.descriptors() {
            shared.iter().for_each(|fd| _ = own_descriptors::insert(fd.as_raw_fd()));
        }
        Some(Box::new(MappedLog(map)))
    }
}

impl DirectFile for MappedLog {
    fn store(&self, mut offset: u64, buffers: &[IoSlice<'_>]) -> bool {
        for buffer in buffers {
            if self.0.write_at(offset, buffer).is_err() {
                return false;
            }
            offset += buffer.len() as u64;
        }
        // A lease that was lost meanwhile, or before, has left the map to the page cache.
        if !self.0.is_persistent() {
            return false;
        }
        counts().stores.fetch_add(1, Ordering::Relaxed);
        true
    }

    fn needs_no_zeros(&self) -> bool {
        // The extents of vmio-pmfs have blocks.
        self.0.descriptors().is_some()
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.descriptors().map(|(own, _)| own)
    }
}
