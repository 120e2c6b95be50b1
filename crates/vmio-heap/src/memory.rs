//! The addresses of a heap, and what keeps them there.

use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::ptr;

use rustix::mm::{MapFlags, ProtFlags};
use vmio::backing::FileBacking;
use vmio::{Cache, Engine, Mapping, MappingOptions};

use crate::engine::HeapEngine;
use crate::error::HeapError;
use crate::options::HeapOptions;

/// The memory of a heap.
pub(crate) struct HeapMemory {
    /// The address of its first byte.
    pub(crate) start: usize,
    /// Its bytes.
    pub(crate) length: usize,
    /// The same file, which has no name any more.
    pub(crate) file: File,
    /// Where it was made, for others beside it.
    pub(crate) folder: File,
    /// Keeps it there; nothing does for a plain mapping, which stays as long as the process.
    _mapping: Option<(Mapping, Cache)>,
}

impl HeapMemory {
    pub(crate) fn open(options: &HeapOptions) -> Result<Self, HeapError> {
        let path = options.file.as_path();
        let failed = |source| HeapError::Create { path: path.to_owned(), source };
        let folder = File::open(options.folder()).map_err(failed)?;
        // Whatever the program knows is in its heap, so nobody else may open it before the name is gone.
        let mut created = File::options();
        created.read(true).write(true).create_new(true).mode(0o600);
        let file = created.open(path).map_err(failed)?;
        let mapped = match options.engine {
            HeapEngine::Managed => managed(options, &file),
            HeapEngine::Mmap => plain(&file, options.heap_bytes),
        };
        // Whatever ends the process, its heap is worth nothing then, and takes no room.
        fs::remove_file(path).map_err(failed)?;
        let (start, mapping) = mapped?;
        Ok(Self { start, length: options.heap_bytes as usize, file, folder, _mapping: mapping })
    }
}

type Mapped = (usize, Option<(Mapping, Cache)>);

fn managed(options: &HeapOptions, file: &File) -> Result<Mapped, HeapError> {
    let cache = Cache::builder().engine(Engine::Managed).capacity(options.cache_bytes).build()?;
    // Through /proc: the very same file, whatever the path names by now.
    let same = format!("/proc/self/fd/{}", file.as_raw_fd());
    let backing = FileBacking::create(same, options.heap_bytes)?;
    let mapping = Mapping::open(&cache, backing, MappingOptions::new())?;
    Ok((mapping.as_mut_ptr() as usize, Some((mapping, cache))))
}

fn plain(file: &File, bytes: u64) -> Result<Mapped, HeapError> {
    file.set_len(bytes).map_err(HeapError::Map)?;
    let (protection, length) = (ProtFlags::READ | ProtFlags::WRITE, bytes as usize);
    // SAFETY: the kernel chooses the addresses, where nothing is.
    let start = unsafe { rustix::mm::mmap(ptr::null_mut(), length, protection, MapFlags::SHARED, file.as_fd(), 0) };
    start.map(|start| (start as usize, None)).map_err(|error| HeapError::Map(error.into()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn nobody_else_may_open_it_while_it_has_a_name() {
        let folder = tempfile::tempdir().unwrap();
        for engine in [HeapEngine::Managed, HeapEngine::Mmap] {
            let options = HeapOptions::new(folder.path().join("heap"), 16 << 20).engine(engine);
            let memory = HeapMemory::open(&options).unwrap();
            assert_eq!(memory.file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        }
    }
}
