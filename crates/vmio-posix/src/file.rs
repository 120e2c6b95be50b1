//! One mapped file.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::{Stat, fstat};
use vmio::backing::{Backing, DaxBacking, FileBacking, Identity};
use vmio::{Access, Advice, Cache, Engine, FrameHint, Mapping, MappingOptions, ProgramMap, SharedMap};

use crate::errno::{self, Errno};
use crate::files_kept_open::MapFile;
use crate::own_descriptors;
use crate::preallocation;
use crate::watched::Watched;
use crate::windows::Windows;

/// Address space is reserved in multiples of this.
const GRANULE_BYTES: u64 = 1 << 30;
/// The least address space of a file, so that it can grow in place. It costs no memory.
const RESERVED_BYTES_MIN: u64 = 16 << 30;

/// A file of which the program has mapped something, or had mapped something and still has it open.
pub(crate) struct File {
    /// Its path when it was opened, for messages.
    pub(crate) path: PathBuf,
    pub(crate) identity: Identity,
    pub(crate) mapping: Mapping,
    /// Changed only while the table of files is locked.
    pub(crate) windows: Mutex<Windows>,
    /// Held while vmio changes the length of the file or of the mapping.
    length: Mutex<()>,
    uses_page_cache: bool,
    /// While it is mapped.
    _watched: Option<Watched>,
    opened: OpenedFile,
}

/// A file that vmio has opened, to map it. Closing it ends the program's record locks on it.
pub(crate) enum OpenedFile {
    /// Read and written by system calls.
    Called(Arc<FileBacking>),
    /// On persistent memory, read and written by loads and stores. At ring 0 these are cheaper than system calls.
    Copied(Arc<DaxBacking>),
}

impl OpenedFile {
    /// Opens once more what the program has open.
    fn open(cache: &Cache, fd: BorrowedFd<'_>, access: Access) -> Result<Self, vmio::Error> {
        // By the descriptor: the path may name another file by now.
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let opened = match cache.engine() == Engine::Ring0 && is_on_persistent_memory(fd, access) {
            true => OpenedFile::Copied(Arc::new(DaxBacking::open(path, access)?)),
            false => OpenedFile::Called(Arc::new(cache.submit_for(FileBacking::open(path, access)?))),
        };
        match &opened {
            OpenedFile::Called(backing) => register([backing.file(), backing.direct_reads()].into_iter().flatten())?,
            OpenedFile::Copied(backing) => register([backing.as_fd()])?,
        }
        Ok(opened)
    }

    pub(crate) fn identity(&self) -> Identity {
        self.backing().identity().unwrap_or(Identity { device: 0, inode: 0 })
    }

    fn backing(&self) -> Arc<dyn Backing> {
        match self {
            OpenedFile::Called(backing) => Arc::clone(backing) as Arc<dyn Backing>,
            OpenedFile::Copied(backing) => Arc::clone(backing) as Arc<dyn Backing>,
        }
    }

    /// The file itself.
    fn file(&self) -> Option<BorrowedFd<'_>> {
        match self {
            OpenedFile::Called(backing) => backing.file(),
            OpenedFile::Copied(backing) => Some(backing.as_fd()),
        }
    }
}

/// Whether copies can read and write the file, all of which can be mapped. It opens nothing, since closing that would end the program's record
/// locks on the file.
fn is_on_persistent_memory(fd: BorrowedFd<'_>, access: Access) -> bool {
    let all = fstat(fd).map(|stat| (stat.st_size as u64).max(1).next_multiple_of(GRANULE_BYTES));
    if ProgramMap::is_of_pmfs(fd) {
        let map = |all, file: &MapFile| SharedMap::by_extents(file.descriptor().ok()?, all, access).ok()?;
        let is_there = |all| MapFile::of(fd).is_ok_and(|file| map(all, &file).is_some_and(|map| map.is_persistent()));
        return all.is_ok_and(is_there);
    }
    all.is_ok_and(|all| SharedMap::open(fd, all, access).is_ok_and(|map| map.is_persistent()))
}

/// The reason why a file cannot be mapped. `opened` has the file, if vmio opened one to map it.
pub(crate) struct NotMapped {
    pub(crate) error: vmio::Error,
    pub(crate) opened: Option<OpenedFile>,
}

impl From<vmio::Error> for NotMapped {
    fn from(error: vmio::Error) -> Self {
        NotMapped { error, opened: None }
    }
}

/// Records descriptors as vmio's own until it closes them.
fn register<'fd>(descriptors: impl IntoIterator<Item = BorrowedFd<'fd>>) -> Result<(), vmio::Error> {
    match descriptors.into_iter().all(|fd| own_descriptors::insert(fd.as_raw_fd())) {
        true => Ok(()),
        false => Err(vmio::Error::System {
            operation: "recording descriptors with such large numbers",
            source: Errno::MFILE.into(),
        }),
    }
}

fn is_end_of_file(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::UnexpectedEof
}

/// The identity of an open file.
pub(crate) fn identity_of(stat: &Stat) -> Identity {
    Identity { device: stat.st_dev, inode: stat.st_ino }
}

impl File {
    /// Maps an open file through the cache; `end` is the last byte that the program wants.
    pub(crate) fn open(
        cache: &Cache,
        fd: BorrowedFd<'_>,
        path: PathBuf,
        access: Access,
        end: u64,
    ) -> Result<Self, NotMapped> {
        let opened = OpenedFile::open(cache, fd, access)?;
        let backing = opened.backing();
        let wanted = backing.len().max(end).saturating_mul(2).max(RESERVED_BYTES_MIN);
        let reserved = wanted.next_multiple_of(GRANULE_BYTES);
        let uses_page_cache = cache.engine() == Engine::Managed;
        let mut options = MappingOptions::new().access(access).reserve(reserved);
        if !uses_page_cache {
            options = options.frames(FrameHint::SharedAddresses);
        }
        let mapping = match Mapping::open(cache, Arc::clone(&backing), options) {
            Ok(mapping) => mapping,
            Err(error) => {
                // The caller may have to keep it open.
                let _ = backing.unlock();
                return Err(NotMapped { error, opened: Some(opened) });
            }
        };
        register(mapping.descriptor())?;
        let windows = if uses_page_cache {
            let windows = Windows::of_page_cache(&mapping, reserved);
            let operation = "advising Linux of a mapping";
            windows.map_err(|errno| vmio::Error::System { operation, source: errno.into() })?
        } else {
            Windows::of(&mapping, reserved)
        };
        let windows = Mutex::new(windows);
        let identity = opened.identity();
        let length = Mutex::new(());
        let base = mapping.as_ptr() as usize;
        let watched = opened.file().map(|fd| Watched::new(base, reserved, fd, uses_page_cache));
        Ok(File { path, identity, mapping, windows, length, uses_page_cache, _watched: watched, opened })
    }

    /// Adopts a file that this child inherited, mapped, from its parent; an error if the child may not open it.
    ///
    /// # Safety
    /// The process has just been forked from the one that has the file, and has done nothing yet.
    pub(crate) unsafe fn inherited(cache: &Cache, theirs: &File) -> Result<Self, vmio::Error> {
        let missing = || vmio::Error::System { operation: "finding a parent's file", source: Errno::BADF.into() };
        let fd = theirs.opened.file().ok_or_else(missing)?;
        if !fstat(fd).is_ok_and(|stat| identity_of(&stat) == theirs.identity) {
            return Err(missing());
        }
        let access = theirs.mapping.access();
        let opened = OpenedFile::open(cache, fd, access)?;
        let addresses = theirs.windows().addresses().ok_or_else(missing)?;
        let (base, reserved) = (addresses.start, addresses.len() as u64);
        let options = MappingOptions::new().access(access);
        // SAFETY: the parent mapped it so that children inherit it, and from now on only the file's windows unmap parts of it.
        let mapping = unsafe { Mapping::adopt(cache, opened.backing(), options, addresses)? };
        if let Err(error) = register(mapping.descriptor()) {
            // The addresses belong to the program.
            std::mem::forget(mapping);
            return Err(error);
        }
        // SAFETY: the mapping has just adopted them.
        let windows = Mutex::new(unsafe { theirs.windows().inherited() });
        let watched = opened.file().map(|fd| Watched::new(base, reserved, fd, true));
        let (path, identity) = (theirs.path.clone(), theirs.identity);
        Ok(File {
            path,
            identity,
            mapping,
            windows,
            length: Mutex::new(()),
            uses_page_cache: true,
            _watched: watched,
            opened,
        })
    }

    /// Writes the dirty pages, and frees everything.
    pub(crate) fn close(self) -> Result<(), vmio::Error> {
        // Views are handles of the mapping.
        drop(self.windows);
        match self.mapping.close() {
            // Another process has made the file shorter: pages behind its end need not be written.
            Err(vmio::Error::Write { source, .. }) if self.uses_page_cache && is_end_of_file(&source) => Ok(()),
            closed => closed,
        }
    }

    pub(crate) fn windows(&self) -> MutexGuard<'_, Windows> {
        self.windows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether its pages are those of Linux's page cache, which all processes share. Linux then does the calls on the file.
    pub(crate) fn uses_page_cache(&self) -> bool {
        self.uses_page_cache
    }

    /// Whether pages in memory may be newer than the kernel's.
    pub(crate) fn keeps_stores(&self) -> bool {
        self.is_writable() && !self.uses_page_cache
    }

    /// Whether its mapping allows stores.
    pub(crate) fn is_writable(&self) -> bool {
        self.mapping.access() == Access::ReadWrite
    }

    /// The length of the file, which other processes may have changed. The mapping gets it, too.
    pub(crate) fn adopt_length(&self) -> Result<u64, Errno> {
        if !self.keeps_stores() || self.len_of_file()? == self.mapping.len() {
            return Ok(self.mapping.len());
        }
        let _alone = self.alone();
        self.adopt()
    }

    /// Sets its length. Bytes that another process has cut off stay cut off.
    pub(crate) fn truncate(&self, len: u64) -> Result<(), Errno> {
        let _alone = self.alone();
        self.adopt()?;
        self.set_len(len)
    }

    /// Makes it longer by a number of bytes, and returns where they begin. Nobody else appends there.
    pub(crate) fn append(&self, bytes: u64) -> Result<u64, Errno> {
        let _alone = self.alone();
        let len = self.adopt()?;
        if bytes > 0 {
            self.set_len(len.checked_add(bytes).ok_or(Errno::FBIG)?)?;
        }
        Ok(len)
    }

    /// Makes it at least this long, for a write.
    pub(crate) fn grow(&self, len: u64) -> Result<(), Errno> {
        let _alone = self.alone();
        if len > self.mapping.len() { self.set_len(len) } else { Ok(()) }
    }

    /// With [`Self::alone`] held.
    fn adopt(&self) -> Result<u64, Errno> {
        let len = self.len_of_file()?;
        if len != self.mapping.len() {
            self.set_len(len)?;
        }
        Ok(len)
    }

    fn len_of_file(&self) -> Result<u64, Errno> {
        let file = self.opened.file().ok_or(Errno::BADF)?;
        Ok(fstat(file)?.st_size as u64)
    }

    fn set_len(&self, len: u64) -> Result<(), Errno> {
        self.mapping.set_len(len).map_err(|error| errno::of(&error))
    }

    fn alone(&self) -> MutexGuard<'_, ()> {
        self.length.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns when the stores to a part of the file are durable.
    pub(crate) fn sync(&self, bytes: Range<u64>) -> Result<(), Errno> {
        // Bytes that another process has cut off must not come back.
        self.adopt_length()?;
        let part = self.within(bytes);
        self.mapping.flush(part).map_err(|error| errno::of(&error))
    }

    /// Whether a write of its pages has failed, where they are those of Linux's page cache. All syncs fail from then on.
    pub(crate) fn has_failed(&self) -> bool {
        self.mapping.flush(0..0).is_err()
    }

    /// Writes the dirty pages of a part and drops the part from memory: the kernel then has all bytes, and readers see its changes.
    pub(crate) fn give_up(&self, bytes: Range<u64>) -> Result<(), Errno> {
        let page = vmio::PAGE_BYTES as u64;
        let whole = bytes.start / page * page..bytes.end.checked_next_multiple_of(page).unwrap_or(u64::MAX);
        self.mapping.advise(self.within(whole), Advice::DontNeed).map_err(|error| errno::of(&error))
    }

    /// Returns when all stores are durable, and readers of the file see them.
    pub(crate) fn sync_all(&self) -> Result<(), Errno> {
        self.adopt_length()?;
        self.mapping.sync().map_err(|error| errno::of(&error))
    }

    /// Whether the program has nothing of it mapped: Linux then does the calls on the file.
    pub(crate) fn is_idle(&self) -> bool {
        self.windows().is_idle()
    }

    /// Prepares for a mapping of the file by Linux as well. A private mapping needs the stores in the file now. A shared one would soon
    /// show other bytes than vmio's, and fails.
    pub(crate) fn prepare_for_linux(&self, is_shared: bool) -> Result<(), Errno> {
        match self.keeps_stores() && !self.is_idle() {
            false => Ok(()),
            true if is_shared => Err(Errno::AGAIN),
            true => self.sync_all(),
        }
    }

    /// Allocates the holes of a part that stores will reach, with `--preallocate`.
    pub(crate) fn preallocate(&self, bytes: &Range<u64>) -> Result<(), Errno> {
        self.opened.file().map_or(Ok(()), |fd| preallocation::allocate(fd, bytes))
    }

    /// The part of a range that lies within the file's length, as vmio knows it.
    pub(crate) fn within(&self, bytes: Range<u64>) -> Range<u64> {
        let end = bytes.end.min(self.mapping.len());
        bytes.start.min(end)..end
    }
}
