//! A process's log, while it lives.

use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use rustix::process::{Pid, getpid};
use smallvec::SmallVec;

use crate::entry::{FILE_BYTES_MAX, FILE_FRONT_BYTES, Front, Kind, Life, PATH_BYTES_MAX, UNIT_BYTES, entry_bytes};
use crate::error::{Error, Result};
use crate::files::{FileNumber, Files, Introduction, LoggedFile};
use crate::folder::{Folder, NewLog, random};
use crate::header::{ENTRIES_START_BYTES, Header};
use crate::identity::FileIdentity;
use crate::options::LogOptions;
use crate::space::Space;

/// So many buffers, and what goes around them, are written without an allocation: signal handlers write, too.
const BUFFERS_ON_STACK: usize = 16;
static PADDING: [u8; UNIT_BYTES as usize] = [0; UNIT_BYTES as usize];

/// The log of this process for the files under a folder. Threads share it.
///
/// A forked child has none: all that it may do with its parent's is to drop it. What closes descriptors without dropping
/// (exec) leaves the log to [`crate::recover`]; so checkpoint before.
pub struct Log {
    path: PathBuf,
    folder: Folder,
    turn: Mutex<()>,
    owner: Option<Pid>,
    pub(crate) space: Space,
    /// Held for reading while an operation is written and applied, for writing while the log is begun anew.
    header: RwLock<Header>,
    pub(crate) files: Files,
    /// A write of the log failed, so that what it holds is not known.
    has_failed: AtomicBool,
}

/// An operation that the log has, durably, and the file perhaps not yet. While there is one, no checkpoint forgets it, nor
/// does anybody retire its file: bring the bytes into the file, then drop this.
///
/// A thread has one at most, and calls no [`Log::checkpoint`] nor [`Log::retire`] meanwhile: these would wait for it.
#[must_use = "once this is dropped, the log may forget the operation: bring the bytes into the file before"]
pub struct Unapplied<'a> {
    position: u64,
    _life: RwLockReadGuard<'a, Header>,
}

impl Unapplied<'_> {
    /// Where the operation stands in the log. Recovery replays operations in this order.
    pub fn position(&self) -> u64 {
        self.position
    }
}

impl Log {
    /// Makes a log for files under this folder, which should be on the same file system. It lies in the folder `.vmio` there.
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
                Ok(Header { life: Life { generation, secret }, file_bytes, log, owner: std::process::id() })
            };
            let headers = [header(0)?, header(1)?];
            // The same open file: the lock is that of both descriptors.
            let file = new.file.try_clone().map_err(new.failed("opening"))?;
            let space =
                Space::create(options.place(file), [&headers[0], &headers[1]]).map_err(new.failed("preparing"))?;
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

    /// Where the log lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The descriptors that it has open: of its file, and of the folder that it lies in. Nobody else may close them.
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.space.as_fd(), self.folder.as_fd()]
    }

    /// The most bytes that one operation may have: longer ones need to be written in parts.
    pub fn data_bytes_max(&self) -> u64 {
        let file_bytes = entry_bytes((FILE_FRONT_BYTES + PATH_BYTES_MAX) as u64);
        (self.space.entries_bytes_max() - file_bytes - UNIT_BYTES) & !(UNIT_BYTES - 1)
    }

    /// A number for a file. `path` is where recovery looks first; call this again when the file has another name.
    pub fn file(&self, identity: FileIdentity, path: &Path) -> Result<FileNumber> {
        self.check_owner()?;
        let absolute = std::path::absolute(path);
        let path = absolute.map_err(|source| Error::Io { action: "finding", path: path.to_owned(), source })?;
        self.files.add(identity, path)
    }

    /// Logs that the bytes of `buffers` are to be at `offset` of the file, which was `len_before` bytes long. When this
    /// returns, they will be, whatever happens; if it fails, all of them will be or none.
    ///
    /// `len_before` is the length in the file, without what other calls under way will add to it: recovery makes the file
    /// at least that long, since what lengthened it may not have reached the device.
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
        let life = self.life();
        if bytes == 0 {
            return Ok(Unapplied { position: self.space.tail(), _life: life });
        }
        let front = Front {
            kind: Kind::Write,
            file: file.number.number(),
            offset,
            len_before,
            data_bytes: bytes as u32,
            data_checksum: buffers.iter().fold(0, |sum, buffer| crc32c::crc32c_append(sum, buffer)),
        };
        let position = self.append(&life, &file, front, buffers)?;
        Ok(Unapplied { position, _life: life })
    }

    /// Has recovery replay nothing that the log has of the file so far. `sync` makes the file durable (fdatasync) and is
    /// not called if the log has nothing. Before it is, all that was written is applied; others may write meanwhile.
    ///
    /// If `sync` fails, the file is [kept](Self::keep), since the next one would succeed without the bytes that this one has lost. An error of
    /// the kind `NotFound` says that nothing was flushed: then this may be called again.
    pub fn retire(&self, file: FileNumber, sync: impl FnOnce() -> io::Result<()>) -> Result<()> {
        self.check_owner()?;
        let file = self.files.get(file)?;
        let (generation, until) = {
            let header = self.alone();
            (header.life.generation, self.space.tail())
        };
        if file.is_retired() {
            return file.check_not_kept();
        }
        file.flush(sync)?;
        let life = self.life();
        // A flush by another descriptor may have told of what this one did not.
        let _flushes = file.lock_flushes()?;
        // A checkpoint that came between has forgotten everything already.
        if life.life.generation != generation {
            return Ok(());
        }
        let number = file.number.number();
        let front =
            Front { kind: Kind::Retire, file: number, offset: until, len_before: 0, data_bytes: 0, data_checksum: 0 };
        self.append(&life, &file, front, &[])?;
        file.set_retired(until);
        Ok(())
    }

    /// Has the log keep what it has of a file for [`crate::recover`], since the file could not be brought to have it: a flush that
    /// succeeds later would not say so. From here on the file is neither written to nor retired, and there is no checkpoint.
    /// [`retire`](Self::retire) and [`checkpoint`](Self::checkpoint) do so by themselves when a flush fails.
    pub fn keep(&self, file: FileNumber) -> Result<()> {
        self.check_owner()?;
        self.files.get(file)?.keep();
        Ok(())
    }

    /// Gives up the number of a file that is retired, and will be written to no more.
    pub fn forget(&self, file: FileNumber) -> Result<()> {
        self.check_owner()?;
        self.files.remove(file)
    }

    /// Begins the log anew. `sync` gets each file that it has operations for and makes that durable (fdatasync). Operations
    /// of other threads wait meanwhile; `sync` gives no file a number and gives none up. If it fails, the file is kept, as by
    /// [`retire`](Self::retire).
    pub fn checkpoint(&self, sync: impl FnMut(FileNumber) -> io::Result<()>) -> Result<()> {
        self.check_owner()?;
        let mut header = self.alone();
        if self.space.tail() == ENTRIES_START_BYTES && !self.has_failed.load(Ordering::Acquire) {
            return Ok(());
        }
        self.files.check_none_kept()?;
        self.files.flush_unretired(sync)?;
        let secret = random().map_err(self.failed("drawing a random number for"))?;
        let life = Life { generation: header.life.generation + 1, secret };
        let next = Header { life, ..*header };
        // If this fails, it may have reached the device nevertheless: then no operation may follow in the old life.
        self.has_failed.store(true, Ordering::Release);
        self.space.write_header(&next).map_err(self.failed("writing the header of"))?;
        *header = next;
        self.space.begin_anew();
        self.files.begin_anew();
        self.has_failed.store(false, Ordering::Release);
        Ok(())
    }

    /// Removes the log, if all files are retired. If they are not, it is left to [`crate::recover`].
    pub fn close(self) -> Result<()> {
        self.check_owner()?;
        if !self.files.are_retired() {
            return Err(Error::NotRetired { path: self.path.clone() });
        }
        // What follows is the drop, whose answer nobody would hear.
        self.folder.remove_log(&self.path).map_err(self.failed("removing"))
    }

    /// Waits for the turn to write to files that other processes write, too, each with a log in the same folder: who has it
    /// [writes](Self::write), applies, and [retires](Self::retire), so that no replay ever undoes what another has written.
    pub fn turn(&self) -> Result<Turn<'_>> {
        self.check_owner()?;
        let among_threads = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        self.folder.lock().map_err(self.failed("waiting for the folder of"))?;
        Ok(Turn { log: self, _among_threads: among_threads })
    }

    /// Writes an entry, and before it the one that introduces its file, if that is missing. Where it begins.
    fn append(&self, header: &Header, file: &LoggedFile, front: Front, data: &[IoSlice<'_>]) -> Result<u64> {
        if self.has_failed.load(Ordering::Acquire) {
            return Err(Error::Failed { log: self.path.clone() });
        }
        let generation = header.life.generation;
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
            introduced.extend_from_slice(&front.encode(header.life, start));
            introduced.extend_from_slice(&data);
            introduced.resize(introduction_bytes as usize, 0);
        }
        let encoded = front.encode(header.life, position);
        let mut buffers = SmallVec::<[IoSlice<'_>; BUFFERS_ON_STACK]>::new();
        buffers.extend([IoSlice::new(&introduced), IoSlice::new(&encoded)]);
        buffers.extend(data.iter().copied());
        let padding = u64::from(front.data_bytes).next_multiple_of(UNIT_BYTES) - u64::from(front.data_bytes);
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
        self.life().life.generation
    }

    fn life(&self) -> RwLockReadGuard<'_, Header> {
        self.header.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until everything that was logged is applied.
    fn alone(&self) -> RwLockWriteGuard<'_, Header> {
        self.header.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The turn to write to what other processes write, too: [`Log::turn`].
#[must_use = "it ends when this is dropped"]
pub struct Turn<'a> {
    log: &'a Log,
    _among_threads: MutexGuard<'a, ()>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        // A forked child shares the lock with its parent, whose turn it is.
        if self.log.check_owner().is_err() {
            return;
        }
        if let Err(error) = self.log.folder.unlock() {
            tracing::warn!(folder = %self.log.path.display(), %error, "the turn of this process does not end");
        }
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        // Locks may be held in a forked child by threads that it does not have.
        if self.check_owner().is_err() || !self.path.exists() || !self.files.are_retired() {
            return;
        }
        if let Err(error) = self.folder.remove_log(&self.path) {
            tracing::warn!(log = %self.path.display(), %error, "a log that nobody needs is left behind");
        }
    }
}
