//! Compares the cost of staged appends, as in SplitFS, with appends that the kernel writes. docs/benchmarks/posix.md has the results.
//!
//! ```text
//! cargo run --release -p vmio-posix --example staged_appends -- DIR
//! ```
//!
//! DIR must be on an XFS with exchangeable blocks (`mkfs.xfs -i exchange=1`, since Linux 6.10); elsewhere the relinks are left out.

use std::error::Error;
use std::ffi::c_ulong;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::ptr;
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, fallocate};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap};

const APPEND_BYTES: usize = 4096;
/// Appends between two syncs.
const APPENDS: [usize; 4] = [1, 10, 64, 512];
const ROUNDS: usize = 60;

/// A way to append bytes durably.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Write calls, and an fdatasync.
    Written,
    /// Copies to a mapped staging file, whose blocks then become the file's.
    Relinked,
    /// Copies to memory, one write call for all of them, and an fdatasync.
    Copied,
}

/// The structure of XFS_IOC_EXCHANGE_RANGE.
#[repr(C)]
struct ExchangeRange {
    file1_fd: i32,
    pad: u32,
    file1_offset: u64,
    file2_offset: u64,
    length: u64,
    flags: u64,
}

/// `_IOW('X', 129, struct xfs_exchange_range)`.
const XFS_IOC_EXCHANGE_RANGE: c_ulong = 1 << 30 | (size_of::<ExchangeRange>() as c_ulong) << 16 | 0x58 << 8 | 129;
/// Up to the ends of both files, whose lengths are exchanged, too.
const TO_END: u64 = 1;
/// Durable when it returns.
const DSYNC: u64 = 2;

/// A file that grows, and its staging file.
struct Appended {
    way: Way,
    file: File,
    staging: File,
    staged: *mut u8,
    memory: Vec<u8>,
    len: usize,
}

impl Appended {
    fn new(dir: &Path, way: Way, bytes_per_sync: usize) -> io::Result<Self> {
        let (file, staging) = (tempfile::tempfile_in(dir)?, tempfile::tempfile_in(dir)?);
        let mut staged = ptr::null_mut();
        if way == Way::Relinked {
            let len = bytes_per_sync * ROUNDS;
            // SAFETY: a new mapping, at an address of the kernel's choice.
            staged = unsafe {
                mmap(ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, staging.as_fd(), 0)?
            }
            .cast();
        }
        Ok(Appended { way, file, staging, staged, memory: vec![1; bytes_per_sync], len: 0 })
    }

    /// Prepares blocks and pages for the next appends, as a background thread would.
    fn prepare(&self, bytes: usize) -> io::Result<()> {
        if self.way == Way::Relinked {
            fallocate(&self.staging, FallocateFlags::empty(), self.len as u64, bytes as u64)?;
            // SAFETY: within the mapping, whose contents it does not change.
            unsafe { madvise(self.staged.add(self.len).cast(), bytes, Advice::LinuxPopulateWrite)? };
        }
        Ok(())
    }

    fn append(&mut self, at: usize, bytes: &[u8]) -> io::Result<()> {
        match self.way {
            Way::Written => self.file.write_all(bytes)?,
            Way::Relinked => {
                // SAFETY: within the mapping, which nobody else uses.
                unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.staged.add(self.len + at), bytes.len()) }
            }
            Way::Copied => self.memory[at..at + bytes.len()].copy_from_slice(bytes),
        }
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        let (start, end) = (self.len as u64, (self.len + self.memory.len()) as u64);
        match self.way {
            Way::Written => self.file.sync_data()?,
            Way::Relinked => {
                let range = ExchangeRange {
                    file1_fd: self.staging.as_raw_fd(),
                    pad: 0,
                    file1_offset: start,
                    file2_offset: start,
                    length: end - start,
                    flags: TO_END | DSYNC,
                };
                // SAFETY: the structure of this request, of two files that are open.
                if unsafe { libc::ioctl(self.file.as_raw_fd(), XFS_IOC_EXCHANGE_RANGE, &raw const range) } != 0 {
                    return Err(io::Error::last_os_error());
                }
            }
            Way::Copied => {
                self.file.write_all_at(&self.memory, start)?;
                self.file.sync_data()?;
            }
        }
        self.len = end as usize;
        Ok(())
    }

    /// The times of the appends and of the sync after them.
    fn round(&mut self, appends: usize) -> io::Result<(Duration, Duration)> {
        self.prepare(appends * APPEND_BYTES)?;
        let bytes = [self.len as u8; APPEND_BYTES];
        let start = Instant::now();
        (0..appends).try_for_each(|append| self.append(append * APPEND_BYTES, &bytes))?;
        let appended = Instant::now();
        self.sync()?;
        Ok((appended - start, appended.elapsed()))
    }
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times[times.len() / 2].as_secs_f64() * 1e6
}

fn main() -> Result<(), Box<dyn Error>> {
    let dir = std::env::args_os().nth(1).ok_or("usage: staged_appends DIR")?;
    println!("appends of 4 KiB a sync   way       appends    sync");
    for appends in APPENDS {
        let ways = [("written", Way::Written), ("relinked", Way::Relinked), ("copied", Way::Copied)];
        let mut sides = Vec::new();
        for (name, way) in ways {
            sides.push((name, Appended::new(dir.as_ref(), way, appends * APPEND_BYTES)?, Vec::new(), Vec::new()));
        }
        for _ in 0..ROUNDS {
            // In turns, so that the device is equally fast for each.
            let mut left_out = None;
            for (name, side, appending, syncing) in &mut sides {
                match side.round(appends) {
                    Ok((append, sync)) => {
                        appending.push(append);
                        syncing.push(sync);
                    }
                    Err(error) if side.way == Way::Relinked => left_out = Some((*name, error)),
                    Err(error) => return Err(error.into()),
                }
            }
            if let Some((name, error)) = left_out {
                println!("{appends:>23}   {name:<9} left out: {error}");
                sides.retain(|(_, side, ..)| side.way != Way::Relinked);
            }
        }
        for (name, _, appending, syncing) in sides {
            println!("{appends:>23}   {name:<9} {:>5.1} µs {:>7.1} µs", median(appending), median(syncing));
        }
    }
    Ok(())
}
