//! Mappings: files as ranges of addresses.

mod advice;
mod cached_file;
mod cached_region;
mod commit;
mod direct_file;
mod ensure;
mod fetch;
mod load_store;
mod pin;
mod pinned_ranges;
mod residency;
mod resize;
mod sync;
mod view;

use std::ops::Range;
use std::os::fd::BorrowedFd;

pub use fetch::Fetch;
pub use pin::Pin;
pub use residency::Residency;
pub use view::View;

use crate::backing::{Access, Backing, DaxBacking};
use crate::error::{Error, Result};
use crate::kernel_engine::KernelFile;
use crate::managed::ManagedFile;
use crate::mapped_file::MappedFile;
use crate::mapping::cached_file::CachedFile;
use crate::mapping::direct_file::DirectFile;
use crate::open::{Cache, FaultBackend};
use crate::options::MappingOptions;
use crate::sys::file_map::FileMap;

/// A file, device or other backing as a range of addresses.
///
/// The cache keeps the useful part in memory. This is a handle: a clone is the same mapping.
///
/// Loads and stores through [`Self::as_ptr`] and [`Self::as_mut_ptr`] cost the same as on ordinary memory while their page is
/// resident. A miss fetches the page. Handles to the same file in one process share one region.
///
/// With [`crate::Engine::Sigbus`], the default, the first miss kills a thread that blocks SIGBUS. System calls fail with EFAULT on
/// pages that are not resident: [`Self::pin`] the range, or use [`Self::read_at`] and [`Self::write_at`]. The [table of the
/// crate](crate) compares the engines.
///
/// # Examples
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("data");
/// use vmio::backing::FileBacking;
/// use vmio::{Cache, Mapping, MappingOptions};
///
/// let cache = Cache::builder().capacity(16 << 20).build()?;
/// let map = Mapping::open(&cache, FileBacking::create(&path, 1 << 20)?, MappingOptions::new())?;
/// // SAFETY: the byte lies in the mapping, and no other thread accesses it.
/// unsafe { map.as_mut_ptr().add(5000).write(7) };
/// map.sync()?;
/// let mut byte = [0];
/// map.read_at(5000, &mut byte)?;
/// assert_eq!(byte, [7]);
/// map.close()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Mapping {
    handle: Handle,
}

/// A handle of the engine that serves the mapping.
#[derive(Clone)]
enum Handle {
    /// Faults are vmio's: [`crate::Engine::Sigbus`] and [`crate::Engine::ReaderThread`].
    Cached(CachedFile),
    /// Faults are the kernel's: [`crate::Engine::Managed`].
    Managed(ManagedFile),
    /// Faults are the kernel module's: [`crate::Engine::Kernel`].
    Kernel(KernelFile),
    /// Faults are the kernel's, and there is no cache: [`Mapping::open_direct`].
    Direct(DirectFile),
}

// SAFETY (of the Send and Sync that the compiler derives): Region is shared through atomics and locks only; the raw
// pointers that `as_ptr` and `as_mut_ptr` give out are the caller's to use soundly.

impl Mapping {
    /// Maps a backing through a cache.
    ///
    /// Opening the same file again in this process returns another handle to the same region, with the options of the first.
    ///
    /// # Errors
    ///
    /// - [`Error::InUse`] if another process maps the file in a way that excludes this one (see [`crate::backing::FileUser`]), and
    ///   [`Error::AlreadyMapped`] if this process does.
    /// - [`Error::BadOption`], [`Error::Unsupported`] or [`Error::FloorsTooHigh`] for options that contradict each other, the
    ///   engine or the backing. [`Error::ReadOnly`] for a read-write mapping of a read-only backing.
    /// - [`Error::System`] if the kernel refuses address space, memory or a descriptor.
    pub fn open(cache: &Cache, backing: impl Backing + 'static, options: MappingOptions) -> Result<Mapping> {
        let backing = Box::new(backing);
        let handle = match cache.backend() {
            FaultBackend::Cached(core) => Handle::Cached(CachedFile::open(core, backing, options)?),
            FaultBackend::Managed(core) => Handle::Managed(ManagedFile::open(core, backing, options)?),
            FaultBackend::Kernel(core) => Handle::Kernel(KernelFile::open(core, backing, options)?),
        };
        Ok(Mapping { handle })
    }

    /// Takes over a mapping that this forked child has from its parent, which mapped the file through [`Engine::Managed`].
    ///
    /// From now on the addresses belong to this mapping; after an error they stay as they are.
    ///
    /// # Safety
    ///
    /// The addresses are those of the parent's whole [`Mapping`] of the backing's file. They are mapped in this process
    /// (MADV_DOFORK), and nothing else in it unmaps them.
    ///
    /// # Errors
    ///
    /// Those of [`Self::open`]; [`Error::BadOption`] with a cache of another engine than [`Engine::Managed`].
    ///
    /// [`Engine::Managed`]: crate::Engine::Managed
    pub unsafe fn adopt(
        cache: &Cache,
        backing: impl Backing + 'static,
        options: MappingOptions,
        addresses: Range<usize>,
    ) -> Result<Mapping> {
        let FaultBackend::Managed(core) = cache.backend() else {
            let expected = "Managed: with the others a child has none of its parent's mappings";
            return Err(Error::BadOption { option: "engine", value: format!("{:?}", cache.engine()), expected });
        };
        // SAFETY: the caller vouches that the addresses are a mapping that the parent had, which nobody else unmaps.
        let present =
            unsafe { FileMap::adopted(addresses) }.map_err(Error::system("advising the kernel of a mapping"))?;
        Ok(Mapping { handle: Handle::Managed(ManagedFile::adopt(core, Box::new(backing), options, present)?) })
    }

    /// Maps persistent memory without a cache: loads and stores go to the device, by huge pages where the file's extents allow it.
    ///
    /// The kernel fills the page tables once. After that there are no misses and no evictions.
    ///
    /// A store is durable after [`Self::flush`] of its range, which writes the touched lines back from the processor's caches
    /// (clwb). It is also durable after [`Self::sync`], which makes the kernel do the same for all pages with stores. The bytes of
    /// [`Self::write_at`] are durable when the call returns. Before these points, a store may become durable at any time, in any
    /// order.
    ///
    /// Other processes may map the file too, as with [`crate::Engine::Managed`]. A load or store that the device refuses is a
    /// SIGBUS. Only [`crate::Advice::WillNeed`] has an effect: it fills page tables.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] for options that need a cache, and those of [`Self::open`].
    pub fn open_direct(backing: DaxBacking, options: MappingOptions) -> Result<Mapping> {
        Ok(Mapping { handle: Handle::Direct(DirectFile::open(backing, options)?) })
    }

    fn file(&self) -> &dyn MappedFile {
        match &self.handle {
            Handle::Cached(file) => file,
            Handle::Managed(file) => file,
            Handle::Kernel(file) => file,
            Handle::Direct(file) => file,
        }
    }

    /// Returns the length in bytes.
    #[inline]
    pub fn len(&self) -> u64 {
        match &self.handle {
            Handle::Cached(file) => file.region().table.len(),
            Handle::Managed(file) => file.len(),
            Handle::Kernel(file) => file.len(),
            Handle::Direct(file) => file.len(),
        }
    }

    /// Returns whether the mapping has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether stores are allowed.
    pub fn access(&self) -> Access {
        self.file().access()
    }

    /// Returns the description of the backing, for messages.
    pub fn describe(&self) -> String {
        self.file().describe()
    }

    /// Returns the file descriptor of the kernel module's attachment ([`crate::Engine::Kernel`]) or of the file
    /// ([`crate::Engine::Managed`]); `None` for other mappings.
    ///
    /// See [`Cache::descriptors`].
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match &self.handle {
            Handle::Kernel(file) => Some(file.descriptor()),
            Handle::Managed(file) => Some(file.descriptor()),
            Handle::Cached(_) | Handle::Direct(_) => None,
        }
    }

    /// Returns the address of the first byte.
    ///
    /// It is valid for loads of [`Self::len`] bytes as long as a handle or a [`Pin`] exists. Loads behind the last page are a
    /// SIGBUS.
    #[inline]
    pub fn as_ptr(&self) -> *const u8 {
        match &self.handle {
            Handle::Cached(file) => file.region().table.base().cast_const(),
            Handle::Managed(file) => file.base().cast_const(),
            Handle::Kernel(file) => file.base().cast_const(),
            Handle::Direct(file) => file.base().cast_const(),
        }
    }

    /// Returns the address of the first byte, for stores; a store to a read-only mapping is a SIGSEGV.
    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.file().base()
    }

    /// Returns all bytes as a slice. A page that cannot be read is a SIGBUS.
    ///
    /// # Safety
    ///
    /// As long as the slice lives, nobody stores to the mapping or shortens it. Nobody outside the process changes the file either:
    /// after an eviction, the next read of a page would change the slice.
    pub unsafe fn as_slice(&self) -> &[u8] {
        // SAFETY: the range is mapped as long as self; the caller vouches for the absence of writers.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len() as usize) }
    }

    /// Copies bytes out of the mapping.
    ///
    /// It is sound beside other threads in `read_at` and `write_at`: of bytes that they write at the same time, some may be old and
    /// some new.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`]; [`Error::Read`] or [`Error::Corrupt`] for a page that cannot be read; [`Error::CacheExhausted`].
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> vmio::Result<()> {
    /// # use vmio::backing::MemoryBacking;
    /// # use vmio::{Cache, Mapping, MappingOptions};
    /// # let cache = Cache::builder().capacity(16 << 20).build()?;
    /// # if cache.engine() == vmio::Engine::Managed { return Ok(()) }
    /// # let map = Mapping::open(&cache, MemoryBacking::new(1 << 20)?, MappingOptions::new())?;
    /// map.write_at(10, b"hello")?;
    /// let mut found = [0; 5];
    /// map.read_at(10, &mut found)?;
    /// assert_eq!(&found, b"hello");
    /// # Ok(())
    /// # }
    /// ```
    pub fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.check_range(&(offset..offset.saturating_add(buffer.len() as u64)))?;
        self.file().read_at(offset, buffer)
    }

    /// Copies bytes into the mapping. Like stores they are durable after [`Self::sync`]. See [`Self::read_at`].
    ///
    /// # Errors
    ///
    /// Those of [`Self::read_at`], and [`Error::ReadOnly`].
    pub fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.check_range(&(offset..offset.saturating_add(data.len() as u64)))?;
        self.file().write_at(offset, data)
    }

    /// Takes the first read error since the last call: of a page that poison has replaced ([`crate::OnReadError::Poison`]), or of
    /// an unreadable page.
    pub fn take_read_error(&self) -> Option<Error> {
        if let Err(error) = self.file().check_not_forked() {
            return Some(error);
        }
        self.file().take_read_error()
    }

    /// Returns the number of failed reads of pages since the opening.
    ///
    /// The number rises before poison replaces a page ([`crate::OnReadError::Poison`]).
    ///
    /// With it a reader makes sure that it has read no poison: take the number, call [`Self::ensure`], read the pages, and take the
    /// number again. If both are equal, there was none, even if the cache evicted pages meanwhile and read them again. Else
    /// [`Self::read_at`] returns the error.
    #[inline]
    pub fn failed_reads(&self) -> u64 {
        match &self.handle {
            Handle::Cached(file) => file.region().read_failures.count(),
            Handle::Kernel(file) => file.failed_reads(),
            // These engines have no poison.
            Handle::Managed(_) | Handle::Direct(_) => 0,
        }
    }

    /// Syncs and, with the last handle, unmaps. A drop does the same, but can only log a failure.
    ///
    /// # Errors
    ///
    /// Those of [`Self::sync`]; with the last handle, [`Error::Lost`] for unwritable pages.
    pub fn close(self) -> Result<()> {
        match self.handle {
            Handle::Cached(file) => file.close(),
            Handle::Managed(file) => file.close(),
            Handle::Kernel(file) => file.close(),
            Handle::Direct(file) => file.close(),
        }
    }

    /// Refuses a range that reaches outside the mapping.
    fn check_range(&self, range: &Range<u64>) -> Result<()> {
        self.file().check_not_forked()?;
        if range.start <= range.end && range.end <= self.len() {
            return Ok(());
        }
        Err(Error::OutOfRange { range: range.clone(), len: self.len() })
    }
}

impl std::fmt::Debug for Mapping {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Mapping of {} ({} bytes, {:?})", self.describe(), self.len(), self.access())
    }
}
