//! The backing that suits a path.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;

use super::{Cache, FaultBackend};
use crate::backing::{Access, Backing, DaxBacking, FileBacking, NvmeBacking};
use crate::error::Result;
use crate::options::Engine;

impl Cache {
    /// Opens a file or a device with the backing that serves it best in this cache.
    ///
    /// | the path is | backing |
    /// |---|---|
    /// | a file with DAX, on persistent memory | [`DaxBacking`]; [`FileBacking`] under [`Engine::Managed`] and [`Engine::Kernel`], for which the kernel reads |
    /// | the character device of an NVMe namespace, as `/dev/ng0n1` | [`NvmeBacking`] |
    /// | another file, or a block device | [`FileBacking`] |
    ///
    /// # Errors
    ///
    /// Those of the backing's own `open`.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use vmio::{Access, Cache, Mapping, MappingOptions};
    ///
    /// let cache = Cache::builder().capacity(1 << 30).build()?;
    /// let file = cache.open_backing("/mnt/pmem/data", Access::ReadWrite)?;
    /// let map = Mapping::open(&cache, file, MappingOptions::new())?;
    /// # Ok::<(), vmio::Error>(())
    /// ```
    pub fn open_backing(&self, path: impl AsRef<Path>, access: Access) -> Result<Arc<dyn Backing>> {
        let path = path.as_ref();
        // If it cannot be looked at, the file's backing says why.
        let kind = fs::metadata(path).map(|metadata| metadata.file_type()).ok();
        if kind.is_some_and(|kind| kind.is_char_device()) {
            return Ok(Arc::new(NvmeBacking::open(path, access)?));
        }
        let the_kernel_reads = matches!(self.engine(), Engine::Managed | Engine::Kernel);
        let may_have_dax = !the_kernel_reads && kind.is_some_and(|kind| kind.is_file());
        if may_have_dax && let Ok(backing) = DaxBacking::open(path, access) {
            return Ok(Arc::new(backing));
        }
        Ok(Arc::new(self.submit_for(FileBacking::open(path, access)?)))
    }

    /// Has a file or block device read and written without system calls, if the cache was built with
    /// [`CacheBuilder::poll_submissions`](crate::CacheBuilder::poll_submissions). Changes nothing otherwise, and nothing for files without direct
    /// I/O.
    pub fn submit_for(&self, file: FileBacking) -> FileBacking {
        match &self.backend {
            FaultBackend::Cached(core) => file.through(core.polled.clone()),
            FaultBackend::Managed(_) | FaultBackend::Kernel(_) => file,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::io::Write;

    use super::*;

    #[test]
    fn opens_files_and_says_what_cannot_be_opened() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&[7; 4096]).unwrap();
        let cache = Cache::builder().capacity(16 << 20).build().unwrap();
        let open = |path: &Path| cache.open_backing(path, Access::ReadOnly);
        assert_eq!(open(file.path()).unwrap().len(), 4096);
        let missing = file.path().with_extension("missing");
        let said = open(&missing).map(drop).unwrap_err().to_string();
        assert!(said.contains(missing.to_str().unwrap()), "{said}");
        // A character device of another kind.
        let error = open(Path::new("/dev/null")).map(drop).unwrap_err();
        let said = std::error::Error::source(&error).unwrap().to_string();
        assert!(said.contains("NVMe"), "{said}");
    }
}
