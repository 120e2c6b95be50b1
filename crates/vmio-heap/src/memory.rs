//! The addresses of a heap, and the mapping behind them.

use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::ptr;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise};
use vmio::backing::FileBacking;
use vmio::{Cache, Engine, Mapping, MappingOptions};

use crate::engine::HeapEngine;
use crate::error::HeapError;
use crate::options::HeapOptions;

/// The memory of a heap.
pub(crate) struct HeapMemory {
    /// The address of its first byte.
    pub(crate) start: usize,
    /// Its length in bytes.
    pub(crate) length: usize,
    /// The mapped file, which has no name any more.
    pub(crate) file: File,
    /// The folder in which it was made, for copies.
    pub(crate) folder: File,
    /// Keeps the memory mapped. A plain mapping has none, and stays as long as the process.
    _mapping: Option<(Mapping, Cache)>,
}

impl HeapMemory {
    pub(crate) fn open(options: &HeapOptions) -> Result<Self, HeapError> {
        let path = options.file.as_path();
        let failed = |source| HeapError::Create { path: path.to_owned(), source };
        let folder = File::open(options.folder()).map_err(failed)?;
        // The heap will hold all of the program's data, so nobody else may open the file before its name is gone.
        let mut created = File::options();
        created.read(true).write(true).create_new(true).mode(0o600);
        let file = created.open(path).map_err(failed)?;
        let mapped = match options.engine {
            HeapEngine::Managed => managed(options, &file),
            HeapEngine::Mmap => plain(&file, options.heap_bytes),
        };
        // However the process ends, its heap is worthless then, and takes no space.
        fs::remove_file(path).map_err(failed)?;
        let (start, mapping) = mapped?;
        Ok(Self { start, length: options.heap_bytes as usize, file, folder, _mapping: mapping })
    }
}

type Mapped = (usize, Option<(Mapping, Cache)>);

fn managed(options: &HeapOptions, file: &File) -> Result<Mapped, HeapError> {
    let cache = Cache::builder().engine(Engine::Managed).capacity(options.cache_bytes).build()?;
    // Through /proc: this opens the very same file, whatever the path names by now.
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
    let start = start.map_err(|error| HeapError::Map(error.into()))?;
    // A child without its copy yet, or from a call that runs no fork handlers, would change its parent's heap.
    // SAFETY: the advice is about the range just mapped, and changes nothing in this process.
    unsafe { madvise(start, length, Advice::LinuxDontFork) }.map_err(|error| HeapError::Map(error.into()))?;
    Ok((start as usize, None))
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
    /// The child's stores would reach the parent's heap, under the feet of its threads.
    #[test]
    fn a_child_that_nobody_has_given_a_copy_has_no_heap() {
        let folder = tempfile::tempdir().unwrap();
        for engine in [HeapEngine::Managed, HeapEngine::Mmap] {
            let options = HeapOptions::new(folder.path().join("heap"), 16 << 20).engine(engine);
            let memory = HeapMemory::open(&options).unwrap();
            let first = memory.start as *mut u8;
            // SAFETY: the byte is the heap's, which nobody uses.
            unsafe { first.write_volatile(1) };
            // SAFETY: the child makes a store and a system call.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: a store that ends the child, or the test.
                unsafe { first.write_volatile(2) };
                // SAFETY: ends the child at once.
                unsafe { libc::_exit(0) };
            }
            let mut status = 0;
            // SAFETY: the status is ours to write.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV, "{engine:?}: {status}");
            // SAFETY: the byte is the heap's, which nobody uses.
            assert_eq!(unsafe { first.read_volatile() }, 1);
        }
    }
}
