//! The log of a running process.

use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use rustix::process::{Pid, getpid};
use smallvec::SmallVec;

use crate::entry::{
    ENTRY_ALIGN_BYTES, FILE_BYTES_MAX, FILE_FRONT_BYTES, Front, Incarnation, Kind, PATH_BYTES_MAX, entry_bytes,
};
use crate::error::{Error, Result};
use crate::file_number::FileNumber;
use crate::files::{Files, Introduction, LoggedFile};
use crate::folder::{Folder, NewLog, random};
use crate::header::{ENTRIES_START_BYTES, Header};
use crate::identity::FileIdentity;
use crate::options::LogOptions;
use crate::space::Space;

/// Buffers, with headers and padding, that are written without an allocation: signal handlers write, too.
const BUFFERS_ON_STACK: usize = 16;
static PADDING: [u8; ENTRY_ALIGN_BYTES as usize] = [0; ENTRY_ALIGN_BYTES as usize];

/// The log of this process for the files under a folder. Threads share it.
///
/// A forked child has no log, and may only drop its parent's. An exec closes the descriptors without dropping the log, which then remains
/// for [`crate::recover`]: run a checkpoint before.
pub struct Log {
    path: PathBuf,
    folder: Folder,
    turn: Mutex<()>,
    owner: Option<Pid>,
    pub(crate) space: Space,
    /// Locked for reading during the write and the application of an operation, and for writing while the log is emptied.
    header: RwLock<Header>,
    pub(crate) files: Files,
    /// A write to the log failed, so that its contents are unknown.
    has_failed: AtomicBool,
}

/// An operation that is durable in the log, and perhaps not yet in the file. While it exists, no checkpoint drops it, and nobody retires
/// its file. Write the bytes to the file, then drop this.
///
/// A thread may have only one, and must not call [`Log::checkpoint`] or [`Log::retire`] meanwhile: these would wait for it.
#[must_use = "once this is dropped, the log may drop the operation: write the bytes to the file first"]
pub struct Unapplied<'a> {
    position: u64,
    _header: RwLockReadGuard<'a, Header>,
}

impl Unapplied<'_> {
    /// The position of the operation in the log. Recovery replays operations in this order.
    pub fn position(&self) -> u64 {
        self.position
    }
}

impl Log {
    /// Creates a log for files under a folder, in its subfolder `.vmio`. The files should be on the same file system.
    pub fn create(under: &Path, options: LogOptions) -> Result<Self> {
        let file_bytes = options.file_bytes()?;
        let (folder, new) = loop {
            let folder = Folder::create(under)?;
            if let Some(new) = folder.new_log()? {
                break (folder.placed(options), new);
            }
        };
        let (header, new, space) = Self::begin(&folder, new, file_bytes, options)?;
        let path = folder.finish(new)?;
        let log = Log {
            path,
            folder,
            turn: Mutex::new(()),
            owner: options.owner(),
            space,
            header: RwLock::new(header),
            files: Files::default(),
            has_failed: AtomicBool::new(false),
        };
        log.folder.sync()?;
        Ok(log)
    }

    fn begin(folder: &Folder, new: NewLog, file_bytes: u64, options: LogOptions) -> Result<(Header, NewLog, Space)> {
        let begun = (|| {
            let log = new.identity()?;
            let header = |generation| -> Result<Header> {
                let secret = random().map_err(new.failed("drawing a random number for"))?;
                Ok(Header {
                    incarnation: Incarnation { generation, secret },
                    file_bytes,
                    log,
                    owner: std::process::id(),
                })
            };
            let headers = [header(0)?, header(1)?];
            // Both descriptors refer to one open file, and share its lock.
            let file = new.file.try_clone().map_err(new.failed("opening"))?;
            let space = Space::create(options.place(file), [&headers[0], &headers[1]], options.open_directly());
            let space = space.map_err(new.failed("preparing"))?;
            Ok((headers[1], space))
        })();
        match begun {
            Ok((header, space)) => Ok((header, new, space)),
            Err(error) => {
                folder.abandon(new);
                Err(error)
            }
        }
    }

    /// The path of the log.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The descriptors of its file and of its folder. Nobody else may close them.
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.space.as_fd(), self.folder.as_fd()]
    }

    /// The descriptor of its [`crate::DirectFile`].
    pub fn direct_descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.space.direct_fd()
    }

    /// The most bytes of one operation. Write longer ones in parts.
    pub fn data_bytes_max(&self) -> u64 {
        let file_bytes = entry_bytes((FILE_FRONT_BYTES + PATH_BYTES_MAX) as u64);
        (self.space.entries_bytes_max() - file_bytes - ENTRY_ALIGN_BYTES) & !(ENTRY_ALIGN_BYTES - 1)
    }

    /// Returns the number of a file, which gets one if it has none. Recovery looks at `path` first: call this again when the file is renamed.
    pub fn file(&self, identity: FileIdentity, path: &Path) -> Result<FileNumber> {
        self.check_owner()?;
        let absolute = std::path::absolute(path);
        let path = absolute.map_err(|source| Error::Io { action: "finding", path: path.to_owned(), source })?;
        self.files.add(identity, path)
    }

    /// Logs a write of `buffers` at `offset` of a file that was `len_before` bytes long. When this returns, the write is durable and survives
    /// a crash. If it fails, recovery writes all of the bytes or none.
    ///
    /// `len_before` is the file's length without calls that are under way. Recovery makes the file at least that long, since earlier changes of
    /// its length may not have reached the device.
    pub fn write(
        &self,
        file: FileNumber,
        offset: u64,
        len_before: u64,
        buffers: &[IoSlice<'_>],
    ) -> Result<Unapplied<'_>> {
        self.check_owner()?;
        let file = self.files.get(file)?;
        file.check_not_kept()?;
        let bytes = buffers.iter().map(|buffer| buffer.len() as u64).sum();
        if offset.checked_add(bytes).is_none_or(|end| end > FILE_BYTES_MAX) || len_before > FILE_BYTES_MAX {
            return Err(Error::OutOfRange { offset, bytes });
        }
        let bytes_max = self.data_bytes_max();
        if bytes > bytes_max {
            return Err(Error::TooLong { bytes, bytes_max });
        }
        let header = self.lock_for_operation();
        if bytes == 0 {
            return Ok(Unapplied { position: self.space.tail(), _header: header });
        }
        let front = Front {
            kind: Kind::Write,
            file: file.number.number(),
            offset,
            len_before,
            data_bytes: bytes as u32,
            data_checksum: buffers.iter().fold(0, |sum, buffer| crc32c::crc32c_append(sum, buffer)),
        };
        let position = self.append(&header, &file, front, buffers)?;
        Ok(Unapplied { position, _header: header })
    }

    /// Retires a file: recovery does not replay its operations so far. `sync` makes the file durable (fdatasync), once all operations are
    /// applied. If the log has no operation of the file, `sync` is not called. Other threads may write meanwhile.
    ///
    /// If `sync` fails, the file is [kept](Self::keep), since the next flush would succeed without the lost bytes. An error of the kind
    /// `NotFound` says that nothing was flushed. The caller may then try again.
    pub fn retire(&self, file: FileNumber, sync: impl FnOnce() -> io::Result<()>) -> Result<()> {
        self.check_owner()?;
        let file = self.files.get(file)?;
        let (generation, until) = {
            let header = self.lock_alone();
            (header.incarnation.generation, self.space.tail())
        };
        if file.is_retired() {
            return file.check_not_kept();
        }
        file.flush(sync)?;
        let header = self.lock_for_operation();
        // A flush by another descriptor may have reported the failure.
        let _flushes = file.lock_flushes()?;
        // A checkpoint in between has dropped the operations already.
        if header.incarnation.generation != generation {
            return Ok(());
        }
        let number = file.number.number();
        let front =
            Front { kind: Kind::Retire, file: number, offset: until, len_before: 0, data_bytes: 0, data_checksum: 0 };
        self.append(&header, &file, front, &[])?;
        file.set_retired(until);
        Ok(())
    }

    /// Keeps the operations of a file for [`crate::recover`], because they could not be written to the file; a later flush would not report
    /// that. From here on writes to the file, its retirement and checkpoints fail. [`retire`](Self::retire) and
    /// [`checkpoint`](Self::checkpoint) do this themselves when a flush fails.
    pub fn keep(&self, file: FileNumber) -> Result<()> {
        self.check_owner()?;
        self.files.get(file)?.keep();
        Ok(())
    }

    /// Gives up the number of a retired file that will not be written to any more.
    pub fn forget(&self, file: FileNumber) -> Result<()> {
        self.check_owner()?;
        self.files.remove(file)
    }

    /// Empties the log. It calls `sync` with each file that has operations, to make the file durable (fdatasync). Operations of other
    /// threads wait meanwhile. `sync` must not add or forget files. If it fails, the file is kept, as by [`retire`](Self::retire).
    pub fn checkpoint(&self, sync: impl FnMut(FileNumber) -> io::Result<()>) -> Result<()> {
        self.check_owner()?;
        let mut header = self.lock_alone();
        if self.space.tail() == ENTRIES_START_BYTES && !self.has_failed.load(Ordering::Acquire) {
            return Ok(());
        }
        self.files.check_none_kept()?;
        self.files.flush_unretired(sync)?;
        let secret = random().map_err(self.failed("drawing a random number for"))?;
        let incarnation = Incarnation { generation: header.incarnation.generation + 1, secret };
        let next = Header { incarnation, ..*header };
        // If this fails, the header may have reached the device all the same: then no operation may follow in the old incarnation.
        self.has_failed.store(true, Ordering::Release);
        self.space.write_header(&next).map_err(self.failed("writing the header of"))?;
        *header = next;
        self.space.reset();
        self.files.reset();
        self.has_failed.store(false, Ordering::Release);
        Ok(())
    }

    /// Removes the log if all files are retired. Otherwise it remains for [`crate::recover`].
    pub fn close(self) -> Result<()> {
        self.check_owner()?;
        if !self.files.are_retired() {
            return Err(Error::NotRetired { path: self.path.clone() });
        }
        // Removed here and not by the drop, which cannot return an error.
        self.folder.remove_log(&self.path).map_err(self.failed("removing"))
    }

    /// Waits for this process's turn to write to files that other processes write, too, each with a log in the same folder. During its turn it
    /// [writes](Self::write), applies and [retires](Self::retire), so that no replay undoes another process's write.
    pub fn turn(&self) -> Result<Turn<'_>> {
        self.check_owner()?;
        let among_threads = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        self.folder.lock().map_err(self.failed("waiting for the folder of"))?;
        Ok(Turn { log: self, _among_threads: among_threads })
    }

    /// Writes an entry, preceded by the one that introduces its file if that is missing. Returns the entry's position.
    fn append(&self, header: &Header, file: &LoggedFile, front: Front, data: &[IoSlice<'_>]) -> Result<u64> {
        if self.has_failed.load(Ordering::Acquire) {
            return Err(Error::Failed { log: self.path.clone() });
        }
        let generation = header.incarnation.generation;
        let introduction = file.introduction(generation);
        let introduction_bytes = introduction.as_ref().map_or(0, |data| entry_bytes(data.len() as u64));
        let needed_bytes = introduction_bytes + entry_bytes(front.data_bytes.into());
        let start = self.space.reserve(needed_bytes).map_err(|free_bytes| Error::Full { needed_bytes, free_bytes })?;
        let position = start + introduction_bytes;

        let mut introduced = Introduction::new();
        if let Some(data) = introduction {
            let data_bytes = data.len() as u32;
            let data_checksum = crc32c::crc32c(&data);
            let kind = Kind::File;
            let front = Front { kind, file: front.file, offset: 0, len_before: 0, data_bytes, data_checksum };
            introduced.extend_from_slice(&front.encode(header.incarnation, start));
            introduced.extend_from_slice(&data);
            introduced.resize(introduction_bytes as usize, 0);
        }
        let encoded = front.encode(header.incarnation, position);
        let mut buffers = SmallVec::<[IoSlice<'_>; BUFFERS_ON_STACK]>::new();
        buffers.extend([IoSlice::new(&introduced), IoSlice::new(&encoded)]);
        buffers.extend(data.iter().copied());
        let padding = u64::from(front.data_bytes).next_multiple_of(ENTRY_ALIGN_BYTES) - u64::from(front.data_bytes);
        buffers.push(IoSlice::new(&PADDING[..padding as usize]));
        buffers.retain(|buffer| !buffer.is_empty());

        if front.kind == Kind::Write {
            file.set_logged(start + needed_bytes);
        }
        if let Err(source) = self.space.write(start, &mut buffers) {
            self.has_failed.store(true, Ordering::Release);
            return Err(self.failed("writing")(source));
        }
        if !introduced.is_empty() {
            file.set_introduced(generation);
        }
        Ok(position)
    }

    fn check_owner(&self) -> Result<()> {
        match self.owner {
            Some(owner) if owner != getpid() => {
                Err(Error::Forked { log: self.path.clone(), owner: owner.as_raw_nonzero().get() })
            }
            _ => Ok(()),
        }
    }

    fn failed(&self, action: &'static str) -> impl Fn(io::Error) -> Error {
        move |source| Error::Io { action, path: self.path.clone(), source }
    }

    #[cfg(test)]
    pub(crate) fn generation(&self) -> u64 {
        self.lock_for_operation().incarnation.generation
    }

    fn lock_for_operation(&self) -> RwLockReadGuard<'_, Header> {
        self.header.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until all logged operations are applied.
    fn lock_alone(&self) -> RwLockWriteGuard<'_, Header> {
        self.header.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The turn to write to files that other processes write, too: [`Log::turn`].
#[must_use = "the turn ends when this is dropped"]
pub struct Turn<'a> {
    log: &'a Log,
    _among_threads: MutexGuard<'a, ()>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        // A forked child shares the lock with its parent, which has the turn.
        if self.log.check_owner().is_err() {
            return;
        }
        if let Err(error) = self.log.folder.unlock() {
            tracing::warn!(folder = %self.log.path.display(), %error, "cannot end the turn of this process");
        }
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        // In a forked child, locks may be held by threads that exist in the parent only.
        if self.check_owner().is_err() || !self.path.exists() || !self.files.are_retired() {
            return;
        }
        if let Err(error) = self.folder.remove_log(&self.path) {
            tracing::warn!(log = %self.path.display(), %error, "cannot remove a log that is not needed any more");
        }
    }
}
