//! Finding the caches of a running process.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, Dir, Mode, OFlags, openat, readlinkat};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::telemetry::misses::Misses;
use crate::telemetry::snapshot::{PageError, Snapshot};
use crate::telemetry::{layout, miss_ring};

/// A process whose caches are read: this one or another. The process need not help, and notices nothing.
///
/// # Examples
///
/// ```
/// use vmio::telemetry::Reader;
///
/// let cache = vmio::Cache::builder().capacity(8 << 20).build()?;
/// let reader = Reader::open(std::process::id())?;
/// let snapshot = &reader.snapshots()?[0];
/// assert_eq!(snapshot.stats.capacity_pages, cache.stats().capacity_pages);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Reader {
    process_id: u32,
    /// The process ID in the PID namespace of the process.
    own_process_id: u32,
    /// Its folder in /proc. It is stale once the process has ended, even if another process has the same ID by then.
    folder: OwnedFd,
    handle: OwnedFd,
}

/// The reason why a process cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// There is no process with this ID, or it has ended.
    #[error("there is no process {process_id}")]
    NoSuchProcess {
        /// The process ID.
        process_id: u32,
    },
    /// The process belongs to another user.
    #[error(
        "no right to look at process {process_id}: that takes the same user (and a process that may be traced) or \
         CAP_SYS_PTRACE"
    )]
    Denied {
        /// The process ID.
        process_id: u32,
    },
    /// The reader does not understand a stat page of the process.
    #[error("cannot read a stat page of process {process_id}")]
    Page {
        /// The process ID.
        process_id: u32,
        /// The fault of the page.
        #[source]
        source: PageError,
    },
    /// The kernel refuses for another reason.
    #[error("cannot look at process {process_id}")]
    System {
        /// The process ID.
        process_id: u32,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
}

impl Reader {
    /// Finds a process by its ID.
    ///
    /// # Errors
    ///
    /// Each of [`ReadError`].
    pub fn open(process_id: u32) -> Result<Reader, ReadError> {
        let refused = |error: Errno| refused(process_id, error);
        let pid = i32::try_from(process_id).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or(ReadError::NoSuchProcess { process_id })?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = openat(CWD, format!("/proc/{process_id}"), flags, Mode::empty()).map_err(refused)?;
        // pidfd_open refuses the ID of a thread that is no process.
        let handle = pidfd_open(pid, PidfdFlags::empty()).map_err(refused)?;
        let mut reader = Reader { process_id, own_process_id: process_id, folder, handle };
        // If the process had ended before pidfd_open, this read through its folder would fail. So both belong to the
        // same process.
        reader.own_process_id = reader.innermost_process_id()?;
        Ok(reader)
    }

    /// Returns the process ID that [`Self::open`] was given.
    pub fn process_id(&self) -> u32 {
        self.process_id
    }

    /// Takes a snapshot of each cache of the process, in the order in which the process built them.
    ///
    /// The list is empty if the process does not use vmio, has no cache open, or may not publish its counts.
    ///
    /// # Errors
    ///
    /// Each of [`ReadError`].
    pub fn snapshots(&self) -> Result<Vec<Snapshot>, ReadError> {
        Ok(self.pages()?.into_iter().map(|(_, snapshot)| snapshot).collect())
    }

    /// Takes snapshots as [`Self::snapshots`] does, and returns each with its stat page, which stays open.
    ///
    /// # Errors
    ///
    /// Each of [`ReadError`].
    pub fn pages(&self) -> Result<Vec<(OpenPage, Snapshot)>, ReadError> {
        if self.wait_for_end(Duration::ZERO)? {
            return Err(ReadError::NoSuchProcess { process_id: self.process_id });
        }
        let mut pages = Vec::new();
        for file in self.published(layout::FILE_NAME)? {
            let page = OpenPage { process_id: self.process_id, file };
            match page.snapshot() {
                // A forked child has its parent's descriptors, so a page may be the parent's.
                Ok(snapshot) if snapshot.process_id == self.own_process_id => pages.push((page, snapshot)),
                Ok(_) | Err(ReadError::Page { source: PageError::Unfinished, .. }) => {}
                Err(error) => return Err(error),
            }
        }
        // The process may have duplicated a descriptor.
        pages.sort_by_key(|(_, snapshot)| snapshot.cache_number);
        pages.dedup_by_key(|(_, snapshot)| snapshot.cache_number);
        Ok(pages)
    }

    /// Returns the misses of a cache of the process; 1 is the first cache that it built.
    ///
    /// `None` if there is no such cache, or if it does not publish its misses.
    ///
    /// # Errors
    ///
    /// Each of [`ReadError`].
    pub fn misses(&self, cache_number: u64) -> Result<Option<Misses>, ReadError> {
        for file in self.published(miss_ring::FILE_NAME)? {
            let misses = Misses::of(file, self.own_process_id, cache_number);
            let misses = misses.map_err(|source| ReadError::System { process_id: self.process_id, source })?;
            if misses.is_some() {
                return Ok(misses);
            }
        }
        Ok(None)
    }

    /// The memory files of this name that the process has open.
    fn published(&self, name: &str) -> Result<Vec<File>, ReadError> {
        let refused = |error| self.refused(error);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let descriptors = openat(&self.folder, "fd", flags, Mode::empty()).map_err(refused)?;
        let wanted = format!("/memfd:{name} (deleted)");
        let mut files = Vec::new();
        for entry in Dir::read_from(&descriptors).map_err(refused)? {
            let entry = entry.map_err(refused)?;
            match readlinkat(&descriptors, entry.file_name(), Vec::new()) {
                Ok(target) if target.as_bytes() == wanted.as_bytes() => {}
                // Another kind of file, the folder itself, or a descriptor closed since.
                Ok(_) | Err(Errno::INVAL | Errno::NOENT) => continue,
                Err(error) => return Err(refused(error)),
            }
            // If the descriptor is another file by now, opening it must not block or claim a terminal.
            let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
            match openat(&descriptors, entry.file_name(), flags, Mode::empty()) {
                Ok(file) => files.push(File::from(file)),
                Err(Errno::NOENT | Errno::NXIO) => {}
                Err(error) => return Err(refused(error)),
            }
        }
        Ok(files)
    }

    /// Waits for the process to end, for `limit` at most, and returns whether it has ended.
    ///
    /// # Errors
    ///
    /// [`ReadError::System`].
    pub fn wait_for_end(&self, limit: Duration) -> Result<bool, ReadError> {
        let until = Instant::now().checked_add(limit);
        loop {
            let timeout = until.map(|until| {
                let left = until.saturating_duration_since(Instant::now());
                Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) }
            });
            match poll(&mut [PollFd::new(&self.handle, PollFlags::IN)], timeout.as_ref()) {
                Ok(ended) => return Ok(ended > 0),
                Err(Errno::INTR) => {}
                Err(error) => return Err(self.refused(error)),
            }
        }
    }

    /// The process ID as the process itself knows it.
    fn innermost_process_id(&self) -> Result<u32, ReadError> {
        let status = openat(&self.folder, "status", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        let mut text = String::new();
        let read = File::from(status.map_err(|error| self.refused(error))?).read_to_string(&mut text);
        read.map_err(|error| match Errno::from_io_error(&error) {
            Some(error) => self.refused(error),
            None => ReadError::System { process_id: self.process_id, source: error },
        })?;
        let numbers = text.lines().find_map(|line| line.strip_prefix("NSpid:"));
        let innermost = numbers.and_then(|numbers| numbers.split_whitespace().next_back()?.parse().ok());
        // A kernel without PID namespaces does not have the line.
        Ok(innermost.unwrap_or(self.process_id))
    }

    fn refused(&self, error: Errno) -> ReadError {
        refused(self.process_id, error)
    }
}

/// The stat page of a cache, kept open. It stays readable after the cache or its process has ended, with all that the
/// cache did until then.
#[derive(Debug)]
pub struct OpenPage {
    process_id: u32,
    file: File,
}

impl OpenPage {
    /// Takes a snapshot of the cache, or of its final state.
    ///
    /// One call reads the page. The page is complete if its first word is.
    ///
    /// # Errors
    ///
    /// [`ReadError::Page`] and [`ReadError::System`].
    pub fn snapshot(&self) -> Result<Snapshot, ReadError> {
        let system = |source| ReadError::System { process_id: self.process_id, source };
        let metadata = self.file.metadata().map_err(system)?;
        // A file that is too long for any page need not be read to its end to be refused.
        let len =
            if metadata.is_file() { metadata.len().min(layout::file_bytes(layout::CORES_MAX) as u64 + 1) } else { 0 };
        let mut bytes = vec![0; len as usize];
        let read = self.file.read_at(&mut bytes, 0).map_err(system)?;
        bytes.truncate(read);
        Snapshot::parse(&bytes).map_err(|source| ReadError::Page { process_id: self.process_id, source })
    }
}

fn refused(process_id: u32, error: Errno) -> ReadError {
    match error {
        Errno::NOENT | Errno::SRCH | Errno::INVAL => ReadError::NoSuchProcess { process_id },
        Errno::ACCESS | Errno::PERM => ReadError::Denied { process_id },
        error => ReadError::System { process_id, source: error.into() },
    }
}
