//! A new file that gets its name when it is complete: nobody ever opens half a file, even after a kill of the process.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, CWD, RenameFlags};

use crate::backing::{Access, DaxBacking, FileBacking};
use crate::{Error, Result};

/// A new file that gets its name when it is complete, unless something else has the name by then.
///
/// Where the file system supports it (`O_TMPFILE`), the file has no name until then, and goes with the process. Elsewhere it has a
/// temporary name in the same folder, and stays there after a kill of the process.
///
/// # Examples
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("data");
/// use vmio::backing::{Backing, NewFile};
///
/// // Direct writes want aligned memory.
/// #[repr(align(4096))]
/// struct Page([u8; 4096]);
///
/// let new = NewFile::create(&path, 4096)?;
/// let backing = new.backing()?;
/// backing.write_at(0, &Page([7; 4096]).0)?;
/// backing.flush()?;
/// assert!(!path.exists());
/// new.publish()?;
/// assert_eq!(std::fs::read(&path)?, [7; 4096]);
/// # Ok(())
/// # }
/// ```
pub struct NewFile {
    file: File,
    /// The final name.
    path: PathBuf,
    /// The temporary name, if there is one.
    temporary: Option<PathBuf>,
}

/// The limit of temporary names to try. Names of other files, perhaps left by a killed process, are passed over.
const NAMES_MAX: usize = 1000;

impl NewFile {
    /// Makes a sparse file of `len` zeros, whose final name is `path`.
    ///
    /// It follows links at `path`, even if their target does not exist yet.
    ///
    /// # Errors
    ///
    /// [`Error::Open`].
    pub fn create(path: impl AsRef<Path>, len: u64) -> Result<Self> {
        let path = path.as_ref();
        let made = linked(path).and_then(|path| Self::unnamed(&path).or_else(|_| Self::named(&path)));
        let sized = made.and_then(|new| new.file.set_len(len).map(|()| new));
        sized.map_err(failed(path))
    }

    fn unnamed(path: &Path) -> io::Result<Self> {
        let mut options = File::options();
        let file = options.read(true).write(true).custom_flags(libc::O_TMPFILE).open(folder_of(path))?;
        Ok(NewFile { file, path: path.to_owned(), temporary: None })
    }

    fn named(path: &Path) -> io::Result<Self> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let mut refused = io::ErrorKind::AlreadyExists.into();
        for _ in 0..NAMES_MAX {
            let mut name = OsString::from(".");
            name.push(path.file_name().unwrap_or_default());
            name.push(format!(".{}-{}.new", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed)));
            let temporary = folder_of(path).join(name);
            match File::options().read(true).write(true).create_new(true).open(&temporary) {
                Ok(file) => return Ok(NewFile { file, path: path.to_owned(), temporary: Some(temporary) }),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => refused = error,
                Err(error) => return Err(error),
            }
        }
        Err(refused)
    }

    /// Opens the file once more. Messages call it by its final name.
    ///
    /// # Errors
    ///
    /// [`Error::Open`].
    pub fn backing(&self) -> Result<FileBacking> {
        FileBacking::open_as(&self.opened(), &self.path, Access::ReadWrite)
    }

    /// Opens the file once more, for copies if it is on persistent memory. Messages call it by its final name.
    ///
    /// # Errors
    ///
    /// [`Error::NotDax`] on anything else, and [`Error::Open`].
    pub fn dax_backing(&self) -> Result<DaxBacking> {
        DaxBacking::open_as(&self.opened(), &self.path, Access::ReadWrite)
    }

    fn opened(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.file.as_raw_fd()).into()
    }

    /// Gives the file its name, durably. The contents must be durable before the call.
    ///
    /// # Errors
    ///
    /// [`Error::Open`], with [`io::ErrorKind::AlreadyExists`] if something else has the name. The new file is then deleted.
    pub fn publish(mut self) -> Result<()> {
        let named = match self.temporary.take() {
            None => {
                let follow = AtFlags::SYMLINK_FOLLOW;
                rustix::fs::linkat(CWD, self.opened(), CWD, &self.path, follow).map_err(io::Error::from)
            }
            Some(temporary) => rename_to_free(&temporary, &self.path).inspect_err(|_| self.temporary = Some(temporary)),
        };
        // Syncs the file too: some file systems keep the name with it.
        let durable =
            named.and_then(|()| self.file.sync_all()).and_then(|()| File::open(folder_of(&self.path))?.sync_all());
        durable.map_err(failed(&self.path))
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary
            && let Err(error) = std::fs::remove_file(temporary)
        {
            tracing::warn!(path = %temporary.display(), %error, "a file that was not finished stays");
        }
    }
}

fn failed(path: &Path) -> impl Fn(io::Error) -> Error + '_ {
    |source| Error::Open { path: path.display().to_string(), source }
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The path that links lead to, up to a path that is no link.
fn linked(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_owned();
    // Linux follows as many links.
    for _ in 0..40 {
        match std::fs::read_link(&path) {
            Ok(target) => path = folder_of(&path).join(target),
            Err(_) => return Ok(path),
        }
    }
    Err(rustix::io::Errno::LOOP.into())
}

/// Renames a file unless something has the name.
fn rename_to_free(old: &Path, new: &Path) -> io::Result<()> {
    use rustix::io::Errno;
    match rustix::fs::renameat_with(CWD, old, CWD, new, RenameFlags::NOREPLACE) {
        // Some file systems support neither this nor links, and refuse links in the same way.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
            std::fs::hard_link(old, new)?;
            std::fs::remove_file(old)
        }
        renamed => Ok(renamed?),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::backing::Backing;

    /// As direct writes want it.
    #[repr(align(4096))]
    struct Page([u8; 4096]);

    fn assert_publishes(make: impl Fn(&Path) -> io::Result<NewFile>) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new");
        let files = || std::fs::read_dir(folder.path()).unwrap().count();
        let (first, second) = (make(&path).unwrap(), make(&path).unwrap());
        for (new, byte) in [(&first, 1), (&second, 2)] {
            new.file.set_len(4096).unwrap();
            let backing = new.backing().unwrap();
            backing.write_at(0, &Page([byte; 4096]).0).unwrap();
            backing.flush().unwrap();
            assert_eq!(backing.describe(), path.display().to_string());
        }
        assert!(!path.exists());
        first.publish().unwrap();
        let refused = second.publish();
        assert!(matches!(refused, Err(Error::Open { source, .. }) if source.kind() == io::ErrorKind::AlreadyExists));
        assert_eq!((std::fs::read(&path).unwrap(), files()), (vec![1; 4096], 1));
        drop(make(&folder.path().join("other")).unwrap());
        assert_eq!(files(), 1, "what was not published is gone");
    }

    #[test]
    fn one_of_two_gets_the_name() {
        assert_publishes(NewFile::named);
        let folder = tempfile::tempdir().unwrap();
        match NewFile::unnamed(&folder.path().join("new")) {
            Ok(_) => assert_publishes(NewFile::unnamed),
            Err(error) => test_depth::skipped(format_args!("files without a name: {error}")),
        }
    }
}
