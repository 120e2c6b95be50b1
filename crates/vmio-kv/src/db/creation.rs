//! Creates a store atomically: a crash leaves nothing, and only one of several concurrent creators succeeds.

use std::io;
use std::path::Path;
use std::sync::Arc;

use vmio::Cache;
use vmio::backing::{Access, Backing, FileBacking, NewFile};

use crate::db::Db;
use crate::device::VolumeFile;
use crate::error::{Error, Result};
use crate::format::geometry::ALLOCATION_UNIT_BYTES;
use crate::options::Options;
use crate::volume::Volume;
use crate::volume::content::Content;

/// How often an open-or-create is tried: if another process creates the store meanwhile, the next attempt opens it.
const ATTEMPTS_MAX: usize = 3;

impl Db {
    /// Creates a store in a new file, or in a file or block device that is empty or begins with zeros.
    ///
    /// A new file gets its name once the store is complete and durable. If a crash cuts a creation in place short, the file or device
    /// counts as empty. If several processes create a store at once, one succeeds.
    ///
    /// # Errors
    ///
    /// [`Error::OtherContent`] if the file or device holds something else, and [`Error::VolumeExists`] if it holds a store;
    /// [`Options::overwrite`] allows both. [`Error::VolumeExists`] or [`vmio::Error::InUse`] if another process creates it at the same
    /// time.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("store");
    /// use vmio_kv::{Db, Error, Options};
    ///
    /// Db::create(&path, Options::new())?.close()?;
    /// assert!(matches!(Db::create(&path, Options::new()), Err(Error::VolumeExists { .. })));
    /// let db = Db::open(&path, Options::new())?;
    /// assert_eq!(db.recovery().records, 0);
    /// # Ok(())
    /// # }
    /// ```
    pub fn create(path: impl AsRef<Path>, options: Options) -> Result<Db> {
        let path = path.as_ref();
        crate::volume::check_length(options.new_volume_bytes())?;
        let wanted = options.new_volume_bytes() / ALLOCATION_UNIT_BYTES * ALLOCATION_UNIT_BYTES;
        // Before a file is made.
        options.check_creates()?;
        let cache = options.cache()?;
        loop {
            match open_if_there(&cache, path)? {
                Some(file) => return Self::create_in_place(&cache, file, wanted, options),
                None => {
                    if let Some(created) = Self::create_aside(&cache, path, wanted, &options)? {
                        return Ok(created);
                    }
                }
            }
        }
    }

    /// Creates the store in a file without a name, and names it at the end. `None` if another file has the name by then. Others find the
    /// file in use.
    fn create_aside(cache: &Cache, path: &Path, wanted: u64, options: &Options) -> Result<Option<Db>> {
        let new = NewFile::create(path, wanted)?;
        let file = VolumeFile::of_new(cache, &new)?;
        let db = Self::create_in(cache, file.backing, options.clone().discard_unless_said(true))?;
        match new.publish() {
            Err(error) if is_open_error(&error, io::ErrorKind::AlreadyExists) => Ok(None),
            published => Ok(published.map(|()| Some(db))?),
        }
    }

    fn create_in_place(cache: &Cache, file: VolumeFile, wanted: u64, options: Options) -> Result<Db> {
        let VolumeFile { backing, is_device } = file;
        if !options.overwrites() {
            // Another's file must not be made longer either. If a store is created there meanwhile, the lock shows it.
            Content::of(&*backing)?.check_nothing(&backing.describe())?;
        }
        if !is_device && backing.len() < wanted {
            backing.set_len(wanted).map_err(|source| Error::Device {
                volume: backing.describe(),
                action: "lengthening",
                offset: wanted,
                source,
            })?;
        }
        Self::create_in(cache, backing, options.discard_unless_said(!is_device))
    }

    /// Opens the store at a path, or creates one if there is no file, an empty one, or one that begins with zeros. [`Options::overwrite`]
    /// is ignored.
    ///
    /// # Errors
    ///
    /// [`Error::OtherContent`] if the file or device holds something else.
    pub fn open_or_create(path: impl AsRef<Path>, options: Options) -> Result<Db> {
        let path = path.as_ref();
        let options = options.overwrite(false);
        let mut attempts = 0;
        loop {
            attempts += 1;
            let content = match FileBacking::open(path, Access::ReadOnly) {
                Ok(backing) => Content::of(&backing)?,
                Err(error) if is_open_error(&error, io::ErrorKind::NotFound) => Content::Nothing,
                Err(error) => return Err(error.into()),
            };
            let done = match content {
                Content::Nothing => Self::create(path, options.clone()),
                Content::Volume => return Self::open(path, options),
                Content::Other => return Err(Error::OtherContent { volume: path.display().to_string() }),
            };
            match done {
                Err(Error::VolumeExists { .. }) if attempts < ATTEMPTS_MAX => {}
                done => return done,
            }
        }
    }

    /// Creates a store on a backing that is empty or begins with zeros; see [`Self::create`].
    pub fn create_on(backing: impl Backing + 'static, options: Options) -> Result<Db> {
        options.check_creates()?;
        Self::create_in(&options.cache()?, Arc::new(backing), options)
    }

    pub(super) fn create_in(cache: &Cache, backing: Arc<dyn Backing>, options: Options) -> Result<Db> {
        let options = options.take_over(false);
        let device = Self::map(cache, backing, &options)?;
        let volume = Volume::create(device, options.overwrites())?;
        Self::start(volume, options)
    }
}

fn open_if_there(cache: &Cache, path: &Path) -> Result<Option<VolumeFile>> {
    match VolumeFile::open(cache, path, Access::ReadWrite) {
        Ok(file) => Ok(Some(file)),
        Err(Error::Io(error)) if is_open_error(&error, io::ErrorKind::NotFound) => Ok(None),
        Err(error) => Err(error),
    }
}

pub(super) fn is_open_error(error: &vmio::Error, kind: io::ErrorKind) -> bool {
    matches!(error, vmio::Error::Open { source, .. } if source.kind() == kind)
}
