//! Restores a store from a backup.

use std::io::Read;
use std::path::Path;

use crate::backup::{BackupCounts, BackupReader};
use crate::db::new_store::{NewStore, check_absent};
use crate::error::Result;
use crate::options::Options;

/// Makes a new store of a backup, which [`crate::Db::backup`] has written.
///
/// The file gets its name once the stream has been read to its end, every checksum was right, and all of it is durable. Until then there
/// is no such file, also after a crash. Open the store afterwards.
///
/// The new store has the keyspaces and the segments of the old one. Unless the options give a length, its file is as long as the old one's
/// was, and grows where that is too short. `observe` is called after each MiB or less.
///
/// # Errors
///
/// [`Error::FileExists`](crate::Error::FileExists) if there is a file;
/// [`Error::DamagedBackup`](crate::Error::DamagedBackup) with the byte where the stream is damaged or cut off;
/// [`Error::Full`](crate::Error::Full) if the store does not fit. Nothing is left of the new store then.
///
/// # Examples
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let (path, copy) = (folder.path().join("store"), folder.path().join("copy"));
/// use vmio_kv::{Db, Error, Options};
///
/// let mut backup = Vec::new();
/// Db::create(&path, Options::new())?.backup(&mut backup, |_| {})?;
/// let cut_off = vmio_kv::restore(&backup[..100], &copy, Options::new(), |_| {});
/// assert!(matches!(cut_off, Err(Error::DamagedBackup { offset: 100, .. })));
/// assert!(!copy.exists());
/// # Ok(())
/// # }
/// ```
pub fn restore(
    input: impl Read,
    path: impl AsRef<Path>,
    options: Options,
    mut observe: impl FnMut(&BackupCounts),
) -> Result<BackupCounts> {
    let path = path.as_ref();
    options.check_creates()?;
    // Before the input is read.
    check_absent(path)?;
    let (reader, shape) = BackupReader::begin(input)?;
    let mut store = NewStore::begin(path, shape, options)?;
    let counts = reader.copy_to(shape, &mut store, &mut observe)?;
    store.publish(path)?;
    Ok(counts)
}
