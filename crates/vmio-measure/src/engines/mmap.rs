//! Linux mmap, for comparison.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::ptr::{self, NonNull};

use anyhow::Context;

use super::Engine;
use super::pointer::PointerAccess;
use crate::cgroup;
use crate::content::PAGE_BYTES;
use crate::pattern::Pattern;

/// Memory mapped by the kernel; unmapped when dropped.
pub struct LinuxMapping {
    base: NonNull<u8>,
    len_bytes: u64,
    cgroup: Option<PathBuf>,
}

// SAFETY: the value owns its address range until it drops; its methods hand out raw pointers and
// `PointerAccess`, whose accesses are atomic, so sharing it adds no unsynchronised access.
unsafe impl Send for LinuxMapping {}
// SAFETY: as above.
unsafe impl Sync for LinuxMapping {}

impl LinuxMapping {
    /// Maps the first `len_bytes` of a file, shared.
    pub fn of_file(path: &Path, len_bytes: u64, write: bool) -> anyhow::Result<Self> {
        let file = File::options().read(true).write(write).open(path);
        let file = file.with_context(|| format!("cannot open {}", path.display()))?;
        let protection = libc::PROT_READ | if write { libc::PROT_WRITE } else { 0 };
        Self::map(len_bytes, protection, libc::MAP_SHARED, file.as_raw_fd())
            .with_context(|| format!("cannot map {}", path.display()))
    }

    /// Private zeroed memory of small pages.
    pub fn anonymous(len_bytes: u64) -> anyhow::Result<Self> {
        let mapping =
            Self::map(len_bytes, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)?;
        mapping.advise(0, len_bytes, libc::MADV_NOHUGEPAGE)?;
        Ok(mapping)
    }

    fn map(len_bytes: u64, protection: i32, flags: i32, file: i32) -> io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let base = unsafe { libc::mmap(ptr::null_mut(), len_bytes as usize, protection, flags, file, 0) };
        match NonNull::new(base.cast::<u8>()) {
            Some(base) if base.as_ptr().cast() != libc::MAP_FAILED => Ok(Self { base, len_bytes, cgroup: None }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Remembers the cgroup that holds this mapping's budget, to see when it is full.
    pub fn with_cgroup(mut self, cgroup: Option<PathBuf>) -> Self {
        self.cgroup = cgroup;
        self
    }

    /// Gives the kernel `advice` (an `MADV_` constant that keeps the content) about a range.
    pub fn advise(&self, offset: u64, len_bytes: u64, advice: i32) -> anyhow::Result<()> {
        assert!(offset + len_bytes <= self.len_bytes && advice != libc::MADV_DONTNEED);
        // SAFETY: the range is inside the mapping, which we own, and the advice changes no bytes.
        let result =
            unsafe { libc::madvise(self.base.as_ptr().add(offset as usize).cast(), len_bytes as usize, advice) };
        check(result, "madvise")
    }

    /// Tells the kernel what to expect.
    pub fn advise_pattern(&self, pattern: Pattern) -> anyhow::Result<()> {
        let advice = match pattern {
            Pattern::Uniform | Pattern::Zipf(_) => libc::MADV_RANDOM,
            Pattern::Sequential => libc::MADV_SEQUENTIAL,
            // Linux reads around a fault of its own accord.
            Pattern::Blocks(_) => libc::MADV_NORMAL,
        };
        self.advise(0, self.len_bytes, advice)
    }

    /// Writes every dirty page back and waits.
    pub fn sync(&self) -> anyhow::Result<()> {
        // SAFETY: the range is the mapping, which lives as long as `self`.
        let result = unsafe { libc::msync(self.base.as_ptr().cast(), self.len_bytes as usize, libc::MS_SYNC) };
        check(result, "msync")
    }

    /// How many pages of a range are in memory.
    pub fn resident_pages(&self, offset: u64, len_bytes: u64) -> anyhow::Result<u64> {
        assert!(offset + len_bytes <= self.len_bytes);
        let mut pages = vec![0_u8; len_bytes.div_ceil(PAGE_BYTES) as usize];
        // SAFETY: the range is inside the mapping and the vector has a byte for each of its pages.
        let result = unsafe {
            libc::mincore(self.base.as_ptr().add(offset as usize).cast(), len_bytes as usize, pages.as_mut_ptr().cast())
        };
        check(result, "mincore")?;
        Ok(pages.iter().filter(|page| **page & 1 != 0).count() as u64)
    }

    /// Loads and stores of the mapping.
    pub fn pointer(&self) -> PointerAccess<'_> {
        // SAFETY: the mapping lives as long as the borrow of `self`; every thread reaches it through this type, whose accesses are atomic
        // words.
        unsafe { PointerAccess::new(self.base.as_ptr(), self.len_bytes) }
    }
}

impl Drop for LinuxMapping {
    fn drop(&mut self) {
        // SAFETY: the range is ours, and all its borrowers are gone.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len_bytes as usize) };
    }
}

impl Engine for LinuxMapping {
    type Access<'a> = PointerAccess<'a>;

    fn access(&self) -> anyhow::Result<Self::Access<'_>> {
        Ok(self.pointer())
    }

    fn cached_bytes(&self) -> Option<u64> {
        cgroup::usage_bytes(self.cgroup.as_deref()?)
    }

    fn finish(self) -> anyhow::Result<()> {
        self.sync()
    }
}

fn check(result: i32, call: &str) -> anyhow::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()).with_context(|| format!("{call} failed")) }
}
