//! Copies bytes by plain loads and stores, which may miss.

use crate::backing::Access;
use crate::error::{Error, Result};
use crate::mapping::Mapping;
use crate::shared_map::NotThere;
use crate::sys::persistent_memory;
use crate::sys::signal;

impl Mapping {
    /// Makes [`Self::load_at`] and [`Self::store_at`] return an error for a page that is not available.
    ///
    /// Without this call such a page raises SIGBUS, as for any load.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if the handler of SIGBUS cannot be installed.
    pub fn recover_loads(&self) -> Result<()> {
        signal::recover_copies().map_err(Error::system("installing a handler of SIGBUS"))
    }

    /// Copies bytes out as [`Self::read_at`] does, but by plain loads: for pages in memory there is no system call, no look-up and
    /// no pin.
    ///
    /// Of bytes stored at the same time some may be old and some new. It is safe in signal handlers. The thread must not block
    /// SIGBUS.
    ///
    /// # Errors
    ///
    /// [`NotThere`] for a page that is not available, after a call of [`Self::recover_loads`], and in a forked child, which does
    /// not have the mapping.
    ///
    /// # Panics
    ///
    /// If the range reaches beyond the mapping.
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
    /// map.recover_loads()?;
    /// map.store_at(100, b"hello").unwrap();
    /// let mut found = [0; 5];
    /// map.load_at(100, &mut found).unwrap();
    /// assert_eq!(&found, b"hello");
    /// # Ok(())
    /// # }
    /// ```
    #[inline]
    pub fn load_at(&self, offset: u64, buffer: &mut [u8]) -> std::result::Result<(), NotThere> {
        let from = self.address_of(offset, buffer.len())?.cast_const();
        // SAFETY: the range is mapped for loads, the buffer borrowed; what others store meanwhile is seen in part.
        unsafe { persistent_memory::move_bytes(buffer.as_mut_ptr(), from, buffer.len()) }.map_err(|_| NotThere)
    }

    /// Copies bytes in by plain stores, as [`Self::load_at`] copies them out. They are durable after [`Self::sync`].
    ///
    /// # Errors
    ///
    /// Those of [`Self::load_at`].
    ///
    /// # Panics
    ///
    /// If the range reaches beyond the mapping, or the mapping is read-only.
    #[inline]
    pub fn store_at(&self, offset: u64, bytes: &[u8]) -> std::result::Result<(), NotThere> {
        assert!(self.access() == Access::ReadWrite, "a store to a mapping for loads");
        let to = self.address_of(offset, bytes.len())?;
        // SAFETY: the range is mapped for stores, and safe code has only pointers and atomics of it.
        unsafe { persistent_memory::move_bytes(to, bytes.as_ptr(), bytes.len()) }.map_err(|_| NotThere)
    }

    fn address_of(&self, offset: u64, bytes: usize) -> std::result::Result<*mut u8, NotThere> {
        self.file().check_not_forked().map_err(|_| NotThere)?;
        let end = offset.checked_add(bytes as u64);
        assert!(end.is_some_and(|end| end <= self.len()), "{bytes} bytes at {offset} of {}", self.len());
        Ok(self.as_ptr().cast_mut().wrapping_add(offset as usize))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::io;

    use crate::backing::{Access, Backing, MemoryBacking};
    use crate::{Cache, Mapping, MappingOptions, NotThere, PAGE_BYTES};

    const PAGES: u64 = 4096;

    #[test]
    fn what_is_stored_is_what_is_loaded_also_after_eviction() {
        let cache = Cache::builder().capacity(6 << 20).build().unwrap();
        let len = PAGES * PAGE_BYTES as u64;
        let map = Mapping::open(&cache, MemoryBacking::new(len).unwrap(), MappingOptions::new()).unwrap();
        map.recover_loads().unwrap();
        // Across pages, and more than the cache takes.
        let at = |page: u64| page * PAGE_BYTES as u64 + 4000;
        for page in 0..PAGES - 1 {
            map.store_at(at(page), &[page as u8; 200]).unwrap();
        }
        let mut found = [0; 200];
        for page in 0..PAGES - 1 {
            map.load_at(at(page), &mut found).unwrap();
            assert_eq!(found, [page as u8; 200], "page {page}");
        }
        map.read_at(at(7), &mut found).unwrap();
        assert_eq!(found, [7; 200]);
    }

    /// A device whose second page cannot be read.
    struct Broken(MemoryBacking);

    impl Backing for Broken {
        fn len(&self) -> u64 {
            self.0.len()
        }
        fn access(&self) -> Access {
            self.0.access()
        }
        fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
            let page = PAGE_BYTES as u64;
            match offset < 2 * page && offset + buffer.len() as u64 > page {
                true => Err(io::Error::from_raw_os_error(libc::EIO)),
                false => self.0.read_at(offset, buffer),
            }
        }
        fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
            self.0.write_at(offset, data)
        }
        fn flush(&self) -> io::Result<()> {
            self.0.flush()
        }
        fn set_len(&self, len: u64) -> io::Result<()> {
            self.0.set_len(len)
        }
        fn describe(&self) -> String {
            "a broken device".to_owned()
        }
    }

    #[test]
    fn a_page_that_cannot_be_had_is_an_error() {
        let cache = Cache::builder().capacity(6 << 20).build().unwrap();
        let page = PAGE_BYTES as u64;
        let broken = Broken(MemoryBacking::new(4 * page).unwrap());
        let map = Mapping::open(&cache, broken, MappingOptions::new()).unwrap();
        map.recover_loads().unwrap();
        let mut found = [1; 100];
        assert_eq!(map.load_at(page - 50, &mut found), Err(NotThere));
        assert_eq!(map.store_at(page, &found), Err(NotThere));
        map.load_at(2 * page, &mut found).unwrap();
        assert_eq!(found, [0; 100]);
        assert!(map.failed_reads() >= 2);
    }
}
