//! The file or block device of a volume, opened in the way that serves the cache's engine best.

use std::path::Path;
use std::sync::Arc;

use vmio::backing::{Access, Backing, DaxBacking, FileBacking, NewFile};
use vmio::{Cache, Engine};

use crate::error::Result;

/// A volume's file or block device, open.
pub(crate) struct VolumeFile {
    pub(crate) backing: Arc<dyn Backing>,
    pub(crate) is_device: bool,
}

impl VolumeFile {
    /// Opens an existing file or block device.
    pub(crate) fn open(cache: &Cache, path: &Path, access: Access) -> Result<Self> {
        Self::open_with(cache, || DaxBacking::open(path, access), || FileBacking::open(path, access))
    }

    /// Opens a new file.
    pub(crate) fn of_new(cache: &Cache, new: &NewFile) -> Result<Self> {
        Self::open_with(cache, || new.dax_backing(), || new.backing())
    }

    /// On persistent memory, loads and stores are cheaper at ring 0 than system calls. Elsewhere a bad cell ends the process if a thread
    /// meets it in a miss, where the system call is an error.
    fn open_with(
        cache: &Cache,
        by_copies: impl FnOnce() -> vmio::Result<DaxBacking>,
        by_calls: impl FnOnce() -> vmio::Result<FileBacking>,
    ) -> Result<Self> {
        if cache.engine() == Engine::Ring0
            && let Ok(backing) = by_copies()
        {
            return Ok(VolumeFile { backing: Arc::new(backing), is_device: false });
        }
        // If it cannot be opened, this says why.
        let backing = cache.submit_for(by_calls()?);
        let is_device = backing.is_device();
        Ok(VolumeFile { backing: Arc::new(backing), is_device })
    }
}
