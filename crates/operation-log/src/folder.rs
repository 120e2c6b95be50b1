//! The folder of logs, their names, and the lock that shows whether a log's owner is running.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FlockOperation, Mode, OFlags};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::error::{Error, Result};
use crate::identity::{FileIdentity, stat_of};
use crate::options::LogOptions;

/// The name of the folder of logs, a subfolder of the one that is given.
pub const FOLDER_NAME: &str = ".vmio";
/// The extension of a log's name.
const FINISHED: &str = "log";
/// The extension of a log's name before it is complete.
const UNFINISHED: &str = "new";
/// Attempts to create a log whose name is taken, or that a recovery takes for an abandoned one.
const ATTEMPTS_MAX: u32 = 64;

/// The folder of logs. Its files are opened by its descriptor: a user who may write to the parent folder could replace it by a link at any
/// time.
pub(crate) struct Folder {
    path: PathBuf,
    file: File,
}

/// A log that has its lock but not yet its name.
pub(crate) struct NewLog {
    pub(crate) file: File,
    path: PathBuf,
}

impl Folder {
    /// Opens the folder, which is created if necessary.
    pub(crate) fn create(under: &Path) -> Result<Self> {
        let path = absolute(under)?.join(FOLDER_NAME);
        let folder = loop {
            // Only for its owner: the logs have data of all files under the folder.
            match fs::DirBuilder::new().mode(0o700).create(&path) {
                Err(source) if source.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(Error::Io { action: "making the folder", path, source });
                }
                _ => {}
            }
            // A process that has removed the last log meanwhile has removed the folder, too.
            if let Some(folder) = Self::at(path.clone())? {
                break folder;
            }
        };
        // The owner of the folder could take logs out of it and put them back later, to be replayed too late.
        let uid = stat_of(&folder.file).map_err(|source| folder.failed("looking at", source))?.stx_uid;
        match uid == rustix::process::geteuid().as_raw() {
            true => Ok(folder),
            false => Err(Error::FolderOfAnother { folder: folder.path, uid }),
        }
    }

    /// Gives its descriptor a number in the options' range.
    pub(crate) fn placed(self, options: LogOptions) -> Self {
        Folder { file: options.place(self.file), ..self }
    }

    /// The folder at a path; `None` if there is none.
    fn at(path: PathBuf) -> Result<Option<Self>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match rustix::fs::open(&path, flags, Mode::empty()) {
            Ok(file) => Ok(Some(Folder { path, file: file.into() })),
            Err(rustix::io::Errno::NOENT) => Ok(None),
            Err(error) => Err(Error::Io { action: "opening the folder", path, source: error.into() }),
        }
    }

    /// The folder of logs, if there is one.
    pub(crate) fn open(under: &Path) -> Result<Option<Self>> {
        let under = absolute(under)?;
        fs::read_dir(&under).map_err(|source| Error::Io { action: "reading", path: under.clone(), source })?;
        let path = under.join(FOLDER_NAME);
        match fs::symlink_metadata(&path) {
            Ok(metadata) if metadata.is_dir() => Self::at(path),
            Ok(_) => Err(Error::Io { action: "reading the folder", path, source: io::ErrorKind::NotADirectory.into() }),
            Err(source) if source.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(Error::Io { action: "reading the folder", path, source }),
        }
    }

    /// Its parent folder.
    pub(crate) fn under(&self) -> &Path {
        self.path.parent().unwrap_or(&self.path)
    }

    /// A new file that is locked, and that no recovery will take away; `None` if the folder has gone meanwhile.
    pub(crate) fn new_log(&self) -> Result<Option<NewLog>> {
        let failed = |path: &Path, source| Error::Io { action: "creating", path: path.to_owned(), source };
        for _ in 0..ATTEMPTS_MAX {
            let name = format!("{}-{:016x}", std::process::id(), random().map_err(|error| failed(&self.path, error))?);
            let path = self.path.join(&name).with_extension(UNFINISHED);
            let name = Path::new(&name).with_extension(UNFINISHED);
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            let file = match rustix::fs::openat(&self.file, &name, flags, Mode::RUSR | Mode::WUSR) {
                Ok(file) => File::from(file),
                Err(rustix::io::Errno::EXIST) => continue,
                Err(rustix::io::Errno::NOENT) => return Ok(None),
                Err(error) => return Err(failed(&path, error.into())),
            };
            // A recovery that came between has the lock, or had it and removed the file.
            if try_lock(&file).and_then(|is_locked| Ok(is_locked && has_name(&file)?)).map_err(|e| failed(&path, e))? {
                return Ok(Some(NewLog { file, path }));
            }
        }
        Err(failed(&self.path, io::ErrorKind::AlreadyExists.into()))
    }

    /// Gives a log its name, now that it is whole.
    pub(crate) fn finish(&self, new: NewLog) -> Result<PathBuf> {
        let path = new.path.with_extension(FINISHED);
        let renamed = rustix::fs::renameat(&self.file, name_of(&new.path), &self.file, name_of(&path));
        renamed.map_err(|error| new.failed("naming")(error.into()))?;
        Ok(path)
    }

    /// Removes a log that has no name yet.
    pub(crate) fn abandon(&self, new: NewLog) {
        if let Err(error) = self.remove(&new.path) {
            tracing::warn!(path = %new.path.display(), %error, "a log that could not be made is left behind");
        }
    }

    /// Opens a log; `None` if it has gone meanwhile.
    pub(crate) fn open_log(&self, path: &Path) -> Result<Option<File>> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        match rustix::fs::openat(&self.file, name_of(path), flags, Mode::empty()) {
            Ok(file) => Ok(Some(file.into())),
            Err(rustix::io::Errno::NOENT) => Ok(None),
            Err(error) => Err(Error::Io { action: "opening", path: path.to_owned(), source: error.into() }),
        }
    }

    /// Removes a file of the folder.
    pub(crate) fn remove(&self, path: &Path) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.file, name_of(path), AtFlags::empty())?)
    }

    /// Makes given and removed names durable, the folder's own included.
    pub(crate) fn sync(&self) -> Result<()> {
        let failed = |path: &Path, source| Error::Io { action: "flushing the folder", path: path.to_owned(), source };
        self.file.sync_all().map_err(|error| failed(&self.path, error))?;
        let under = self.under();
        File::open(under).and_then(|folder| folder.sync_all()).map_err(|error| failed(under, error))
    }

    /// Removes a log, and the folder if it was the last.
    pub(crate) fn remove_log(&self, log: &Path) -> io::Result<()> {
        self.remove(log)?;
        self.remove_if_empty();
        Ok(())
    }

    /// Removes the folder, if nobody has a log there.
    pub(crate) fn remove_if_empty(&self) {
        // A folder that stays does no harm.
        let _ = fs::remove_dir(&self.path);
    }

    /// Waits for the lock of the folder. Processes that write to the same files take it in turn.
    pub(crate) fn lock(&self) -> io::Result<()> {
        loop {
            match rustix::fs::flock(&self.file, FlockOperation::LockExclusive) {
                Err(rustix::io::Errno::INTR) => {}
                outcome => return Ok(outcome?),
            }
        }
    }

    pub(crate) fn unlock(&self) -> io::Result<()> {
        Ok(rustix::fs::flock(&self.file, FlockOperation::Unlock)?)
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// The logs in it, the most recently written ones last.
    pub(crate) fn logs(&self) -> Result<Vec<PathBuf>> {
        let mut logs: Vec<_> = self.with_ending(FINISHED)?;
        logs.sort_by_cached_key(|path| {
            let stat = rustix::fs::statat(&self.file, name_of(path), AtFlags::SYMLINK_NOFOLLOW);
            (stat.ok().map(|stat| (stat.st_mtime, stat.st_mtime_nsec)), path.clone())
        });
        Ok(logs)
    }

    /// Removes the unfinished logs of processes that died while they made them. No such log has ever acknowledged anything.
    pub(crate) fn remove_unfinished(&self) -> Result<()> {
        for path in self.with_ending(UNFINISHED)? {
            let Some(file) = self.open_log(&path)? else { continue };
            let failed = |source| Error::Io { action: "removing", path: path.clone(), source };
            if try_lock(&file).and_then(|is_locked| Ok(is_locked && has_name(&file)?)).map_err(failed)? {
                self.remove(&path).map_err(failed)?;
            }
        }
        Ok(())
    }

    fn with_ending(&self, ending: &str) -> Result<Vec<PathBuf>> {
        let failed = |error: rustix::io::Errno| self.failed("reading the folder", error.into());
        let mut paths = Vec::new();
        for entry in Dir::read_from(&self.file).map_err(failed)? {
            let path = self.path.join(OsStr::from_bytes(entry.map_err(failed)?.file_name().to_bytes()));
            if path.extension().is_some_and(|found| found == ending) {
                paths.push(path);
            }
        }
        Ok(paths)
    }

    fn failed(&self, action: &'static str, source: io::Error) -> Error {
        Error::Io { action, path: self.path.clone(), source }
    }
}

impl NewLog {
    /// The identity of the file.
    pub(crate) fn identity(&self) -> Result<FileIdentity> {
        FileIdentity::of(&self.file).map_err(self.failed("looking at"))
    }

    pub(crate) fn failed(&self, action: &'static str) -> impl Fn(io::Error) -> Error + use<> {
        let path = self.path.clone();
        move |source| Error::Io { action, path: path.clone(), source }
    }
}

/// The name of a log in its folder.
fn name_of(path: &Path) -> &OsStr {
    path.file_name().unwrap_or_default()
}

/// Takes the lock that a log's owner has while it lives; false if the lock is taken. It belongs to the open file: neither another
/// descriptor that the process closes nor a thread that ends gives it up.
pub(crate) fn try_lock(file: &File) -> io::Result<bool> {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Whether the file is still in its folder.
pub(crate) fn has_name(file: &File) -> io::Result<bool> {
    Ok(stat_of(file)?.stx_nlink > 0)
}

/// 64 bits that nobody can guess.
pub(crate) fn random() -> io::Result<u64> {
    let mut bytes = [0; 8];
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(u64::from_le_bytes(bytes))
}

fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).map_err(|source| Error::Io { action: "finding", path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unfinished_logs_of_the_dead_go_and_those_of_the_living_stay() {
        let under = tempfile::tempdir().unwrap();
        assert!(Folder::open(under.path()).unwrap().is_none());
        let folder = Folder::create(under.path()).unwrap();
        let [living, dead] = [(); 2].map(|()| folder.new_log().unwrap().unwrap());
        let [living_path, dead_path] = [&living, &dead].map(|log| log.path.clone());
        drop(dead);
        let again = Folder::open(under.path()).unwrap().unwrap();
        again.remove_unfinished().unwrap();
        assert!(living_path.exists() && !dead_path.exists());
        let file = living.file.try_clone().unwrap();
        let path = folder.finish(living).unwrap();
        assert_eq!(again.logs().unwrap(), std::slice::from_ref(&path));
        assert!(!try_lock(&folder.open_log(&path).unwrap().unwrap()).unwrap());
        drop(file);
        assert!(try_lock(&folder.open_log(&path).unwrap().unwrap()).unwrap());
    }

    #[test]
    fn the_last_log_takes_the_folder_with_it() {
        let under = tempfile::tempdir().unwrap();
        let folder = Folder::create(under.path()).unwrap();
        let [first, second] = [(); 2].map(|()| folder.finish(folder.new_log().unwrap().unwrap()).unwrap());
        folder.remove_log(&first).unwrap();
        assert!(Folder::open(under.path()).unwrap().is_some());
        folder.remove_log(&second).unwrap();
        assert!(Folder::open(under.path()).unwrap().is_none() && folder.new_log().unwrap().is_none());
        let again = Folder::create(under.path()).unwrap();
        assert!(again.new_log().unwrap().is_some() && folder.new_log().unwrap().is_none());
    }

    /// A log that is closed removes an empty folder, even one that another process has just created and not opened yet.
    #[test]
    fn processes_that_come_and_go_are_in_nobodys_way() {
        let under = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| (0..2000).for_each(|_| Folder::create(under.path()).unwrap().remove_if_empty()));
            }
        });
    }

    #[test]
    fn a_link_that_takes_its_place_leads_nowhere() {
        let (under, victim) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let folder = Folder::create(under.path()).unwrap();
        let new = folder.new_log().unwrap().unwrap();
        let of_others = ["notes.new", "notes.log"].map(|name| victim.path().join(name));
        for path in &of_others {
            fs::write(path, "others'").unwrap();
        }
        fs::rename(under.path().join(FOLDER_NAME), under.path().join("moved")).unwrap();
        std::os::unix::fs::symlink(victim.path(), under.path().join(FOLDER_NAME)).unwrap();

        folder.remove_unfinished().unwrap();
        assert_eq!(folder.logs().unwrap(), Vec::<PathBuf>::new());
        let log = folder.finish(new).unwrap();
        assert_eq!(folder.logs().unwrap(), std::slice::from_ref(&log));
        folder.remove_log(&log).unwrap();
        assert!(of_others.iter().all(|path| path.exists()));
        assert_eq!(fs::read_dir(victim.path()).unwrap().count(), 2);
    }

    #[test]
    fn no_log_is_made_in_a_folder_of_another_user() {
        let under = tempfile::tempdir().unwrap();
        fs::create_dir(under.path().join(FOLDER_NAME)).unwrap();
        if std::os::unix::fs::chown(under.path().join(FOLDER_NAME), Some(65534), None).is_err() {
            return test_depth::skipped("only root can give a folder away, and make files in it then");
        }
        assert!(matches!(Folder::create(under.path()), Err(Error::FolderOfAnother { uid: 65534, .. })));
    }

    #[test]
    fn what_is_no_folder_is_said() {
        let under = tempfile::tempdir().unwrap();
        assert!(matches!(Folder::open(&under.path().join("none")), Err(Error::Io { action: "reading", .. })));
        fs::write(under.path().join(FOLDER_NAME), "").unwrap();
        assert!(Folder::open(under.path()).is_err());
    }
}
