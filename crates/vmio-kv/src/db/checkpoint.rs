//! Checkpoints: copies of a store that open at once, made while it is written to.

use std::path::Path;

use vmio::backing::{Backing, NewFile};

use crate::db::Db;
use crate::db::new_store::{NewStore, check_absent, publish};
use crate::device::ClonedVolume;
use crate::error::{Error, Result};

impl Db {
    /// Makes a copy of the store in a new file, while writers go on. The copy is a store of its own, which opens at once.
    ///
    /// It has all writes that returned before this call, and shows each batch and transaction whole or not at all. The file gets its
    /// name once the copy is complete and durable; until then there is no such file, also after a crash.
    ///
    /// On XFS and Btrfs, the copy in the same file system is a clone of the file: it takes no time and shares its space with the store until one of
    /// them changes. Anywhere else the call copies all records into a new store. That takes as long as a backup with its restore, and
    /// 64 MiB of memory or more besides [`crate::Options::memory_bytes`].
    ///
    /// # Errors
    ///
    /// [`Error::FileExists`] if there is a file; [`Error::Full`] if there is no space. Nothing is left then.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let (path, copy) = (folder.path().join("store"), folder.path().join("copy"));
    /// use vmio_kv::{Db, Options};
    ///
    /// let db = Db::create(&path, Options::new())?;
    /// db.put(b"apple", b"red")?;
    /// db.checkpoint(&copy)?;
    /// db.put(b"apple", b"green")?;
    /// let copy = Db::open(&copy, Options::new())?;
    /// assert_eq!(copy.get(b"apple")?.as_deref(), Some(&b"red"[..]));
    /// # Ok(())
    /// # }
    /// ```
    pub fn checkpoint(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        check_absent(path)?;
        match self.clone_to(path)? {
            true => Ok(()),
            false => self.copy_to(path),
        }
    }

    /// Makes a clone of the volume's file, if the file system clones files.
    fn clone_to(&self, path: &Path) -> Result<bool> {
        let store = self.opened()?.segments.store();
        if !store.device.can_be_cloned() {
            return Ok(false);
        }
        // The clone is what a power cut would leave, so an opening of it finds all that is durable now.
        if !store.options.reads_only() {
            self.flush()?;
        }
        let file = NewFile::create(path, 0)?;
        let backing = file.backing()?;
        match store.device.clone_to(&backing)? {
            ClonedVolume::Refused => return Ok(false),
            ClonedVolume::Complete => {}
        }
        let volume = backing.describe();
        let failed = |source| Error::Device { volume, action: "flushing", offset: 0, source };
        backing.flush().map_err(failed)?;
        publish(file, path)?;
        Ok(true)
    }

    /// Copies the records of a snapshot into a new store.
    fn copy_to(&self, path: &Path) -> Result<()> {
        let snapshot = self.snapshot();
        let shape = self.shape()?;
        let store = self.opened()?.segments.store();
        let options = store.options.clone().of_checkpoint(store.keyspaces().len(), shape.segments);
        let mut new = NewStore::begin(path, shape, options)?;
        snapshot.copy_to(&mut new)?;
        new.publish(path)
    }
}
