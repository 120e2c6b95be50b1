//! A file that is read once, from its beginning to its end, through a mapping.

use std::fs;
use std::io::Read;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use anyhow::{Context, bail};
use vmio::{Access, Advice, AvailableMemory, Cache, Mapping, MappingOptions};
use vmio_report::machine::memory_bytes;
use vmio_report::progress::ByteProgress;
use vmio_report::size::format_size;

/// Bytes copied out of the mapping at a time.
pub const CHUNK_BYTES: usize = 1 << 20;

/// The read-ahead window of a sequential pass.
const WINDOW_BYTES: u32 = 128 << 10;

/// A file, mapped for reading. An empty file has no mapping.
pub struct Source {
    mapping: Option<Mapping>,
    len_bytes: u64,
}

/// A cache for one pass over a file.
pub fn build_cache(capacity_bytes: u64) -> anyhow::Result<Cache> {
    warn_of_size(capacity_bytes);
    Cache::builder()
        .capacity(capacity_bytes)
        .build()
        .context("cannot build the cache (--cache sets its size; `vmio doctor` says what is missing)")
}

/// Warns of a cache that is larger than the memory. A cache takes memory as it needs it, so the kernel would notice late.
pub fn warn_of_size(cache_bytes: u64) {
    if let Some(available_bytes) =
        AvailableMemory::now().cgroup_bytes.filter(|available_bytes| *available_bytes < cache_bytes)
    {
        let (cache, available) = (format_size(cache_bytes), format_size(available_bytes));
        eprintln!(
            "vmio: warning: --cache {cache} is more than this process's memory cgroup leaves, {available}: the kernel may kill the \
             process; --cache auto takes half of the available memory"
        );
    } else if let Some(memory_bytes) = memory_bytes().filter(|memory_bytes| *memory_bytes < cache_bytes) {
        let (cache, memory) = (format_size(cache_bytes), format_size(memory_bytes));
        eprintln!(
            "vmio: warning: --cache {cache} is more than this machine's memory, {memory}: choose a smaller size, or --cache auto"
        );
    }
}

impl Source {
    /// Maps a regular file, a block device, or an NVMe namespace by its character device. Files in persistent memory bypass the page cache.
    pub fn open(cache: &Cache, path: &Path) -> anyhow::Result<Self> {
        let metadata = fs::metadata(path).with_context(|| format!("cannot open {}", path.display()))?;
        let kind = metadata.file_type();
        if !kind.is_file() && !kind.is_block_device() && !kind.is_char_device() {
            bail!("{} is neither a regular file nor a device: only those can be mapped", path.display());
        }
        if kind.is_file() && metadata.len() == 0 {
            // This open checks the permission to read, as for any other file.
            let file = fs::File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
            // A file of /proc, for example.
            if file.take(1).read(&mut [0])? > 0 {
                bail!(
                    "{} has contents but no length, and cannot be mapped: copy it to a regular file first",
                    path.display()
                );
            }
            return Ok(Self { mapping: None, len_bytes: 0 });
        }
        let backing = cache.open_backing(path, Access::ReadOnly)?;
        let mapping = Mapping::open(cache, backing, MappingOptions::new())
            .with_context(|| format!("cannot map {}", path.display()))?;
        let len_bytes = mapping.len();
        mapping.advise(0..len_bytes, Advice::Sequential { window_bytes: WINDOW_BYTES })?;
        Ok(Self { mapping: Some(mapping), len_bytes })
    }

    /// The length of the file at its opening.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Passes the contents to `consume`, in order, with progress on the terminal.
    pub fn for_each_chunk(
        &self,
        what: &str,
        mut consume: impl FnMut(u64, &[u8]) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let Some(mapping) = &self.mapping else { return Ok(()) };
        let progress = ByteProgress::start(what, self.len_bytes);
        let mut buffer = vec![0; CHUNK_BYTES];
        let mut offset = 0;
        while offset < self.len_bytes {
            let chunk = (self.len_bytes - offset).min(CHUNK_BYTES as u64);
            let bytes = &mut buffer[..chunk as usize];
            mapping.read_at(offset, bytes).with_context(|| format!("cannot read {chunk} bytes at offset {offset}"))?;
            consume(offset, bytes)?;
            offset += chunk;
            progress.add(chunk);
        }
        Ok(())
    }
}
