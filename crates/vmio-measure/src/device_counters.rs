//! The bytes and requests that the block device under a folder got, from the kernel's counts.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::{array, io};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

/// Counters of a block device. They also count the requests of other users of the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceCounters {
    /// Bytes read.
    pub read_bytes: u64,
    /// Requests to read, merged ones counted once.
    pub read_requests: u64,
    /// Writes.
    pub writes: DeviceWrites,
}

/// The counters of a block device's writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceWrites {
    /// Bytes written.
    pub bytes: u64,
    /// Requests to write, merged ones counted once.
    pub requests: u64,
    /// Requests to flush; a device without a cache that loses power gets none.
    pub flushes: u64,
}

/// The kernel counts in sectors of this length, whatever the device's own are.
const SECTOR_BYTES: u64 = 512;

impl DeviceCounters {
    /// The counters of the device under a folder, after everything dirty in its file system is written. None if there is no such device, as
    /// in memory or over a network, or if it has counted nothing.
    pub fn now(folder: &Path) -> anyhow::Result<Option<Self>> {
        let file = File::open(folder).with_context(|| format!("cannot open {}", folder.display()))?;
        // SAFETY: the descriptor is open for the duration of the call; the call gets no memory.
        if unsafe { libc::syncfs(file.as_raw_fd()) } != 0 {
            bail!("cannot sync the file system of {}: {}", folder.display(), io::Error::last_os_error());
        }
        let device = file.metadata()?.dev();
        let stat = format!("/sys/dev/block/{}:{}/stat", libc::major(device), libc::minor(device));
        Ok(fs::read_to_string(stat).ok().and_then(|line| Self::parse(&line)))
    }

    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split_whitespace().map(str::parse);
        let fields: [u64; 16] = array::from_fn(|_| fields.next().and_then(Result::ok).unwrap_or(0));
        let [read_requests, _, read_sectors, _, requests, _, sectors, ..] = fields;
        let writes = DeviceWrites { bytes: sectors * SECTOR_BYTES, requests, flushes: fields[15] };
        (fields != [0; 16]).then_some(Self { read_bytes: read_sectors * SECTOR_BYTES, read_requests, writes })
    }

    /// The counts since `earlier`.
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            read_bytes: self.read_bytes - earlier.read_bytes,
            read_requests: self.read_requests - earlier.read_requests,
            writes: self.writes.since(&earlier.writes),
        }
    }
}

impl DeviceWrites {
    /// The counts since `earlier`.
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            bytes: self.bytes - earlier.bytes,
            requests: self.requests - earlier.requests,
            flushes: self.flushes - earlier.flushes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_taken_where_the_kernel_puts_them() {
        let line = "  10 1 20 5 30 2 40 6 0 7 11 0 0 0 0 50 9\n";
        let writes = DeviceWrites { bytes: 40 * 512, requests: 30, flushes: 50 };
        let expected = DeviceCounters { read_bytes: 20 * 512, read_requests: 10, writes };
        assert_eq!(DeviceCounters::parse(line), Some(expected));
        assert_eq!(DeviceCounters::parse(""), None);
    }
}
