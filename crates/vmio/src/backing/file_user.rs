//! Which processes may have a file mapped at the same time, and the locks by which they know: docs/formats/file-locks.md.

use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;

use crate::backing::Access;
use crate::error::{Error, Result};
use crate::sys::byte_locks::{self, HeldLock, LockKind};

/// The first of the bytes that are locked: far behind all that a file holds, so that nobody locks them by chance.
const BASE: u64 = 1 << 62;
/// One byte for each kind of user that does not keep everybody off.
const CACHED_READERS: Range<u64> = BASE..BASE + 1;
const MANAGED_WRITERS: Range<u64> = BASE + 1..BASE + 2;
const MANAGED_READERS: Range<u64> = BASE + 2..BASE + 3;
const SUCCESSORS: Range<u64> = BASE + 3..BASE + 4;
/// What a cached writer keeps everybody off from.
const USERS: Range<u64> = BASE..BASE + 3;
const ALL: Range<u64> = BASE..BASE + 4;
/// A lock that is in our way may be gone when we ask whose it is.
const ATTEMPTS_MAX: u32 = 8;

/// How a process has a file mapped, as far as others must know. Cached pages are a process's own, and the other engines'
/// way; with [`crate::Engine::Managed`] pages are the kernel's, the same in all processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileUser {
    /// Keeps pages of its own and stores to them: nobody else would see its stores in time. Alone.
    CachedWriter,
    /// Keeps pages of its own, which must not become old: shares with all that do not store.
    CachedReader,
    /// Stores to the kernel's pages: shares with all that look at those.
    ManagedWriter,
    /// Looks at the kernel's pages: shares with all but a cached writer.
    ManagedReader,
    /// A cached writer that comes in spite of anybody who has the file mapped, and sees to it by other means that their stores and its
    /// own do not meet. Others than successors are kept off from then on.
    Successor,
}

impl FileUser {
    /// A mapping through a cache that takes the faults.
    pub(crate) fn cached(access: Access) -> Self {
        match access {
            Access::ReadOnly => FileUser::CachedReader,
            Access::ReadWrite => FileUser::CachedWriter,
        }
    }

    /// A mapping whose faults the kernel takes.
    pub(crate) fn managed(access: Access) -> Self {
        match access {
            Access::ReadOnly => FileUser::ManagedReader,
            Access::ReadWrite => FileUser::ManagedWriter,
        }
    }

    /// What it locks, and where nobody else may have locked anything.
    fn locks(self) -> (LockKind, Range<u64>, &'static [Range<u64>]) {
        match self {
            FileUser::CachedWriter => (LockKind::Exclusive, USERS, &[SUCCESSORS]),
            FileUser::CachedReader => (LockKind::Shared, CACHED_READERS, &[MANAGED_WRITERS, SUCCESSORS]),
            FileUser::ManagedWriter => (LockKind::Shared, MANAGED_WRITERS, &[CACHED_READERS, SUCCESSORS]),
            FileUser::ManagedReader => (LockKind::Shared, MANAGED_READERS, &[SUCCESSORS]),
            FileUser::Successor => (LockKind::Shared, SUCCESSORS, &[]),
        }
    }

    /// Locks a file as this kind of user; `path` is its name for messages.
    pub(super) fn lock(self, file: BorrowedFd<'_>, path: &str) -> Result<()> {
        match self.find_holder(file).map_err(Error::system("locking the file"))? {
            None => Ok(()),
            Some(holder) => Err(Error::InUse { backing: path.to_owned(), holder, wanted: self }),
        }
    }

    /// Takes the locks; if somebody keeps us off, says who and takes none.
    fn find_holder(self, file: BorrowedFd<'_>) -> io::Result<Option<Holder>> {
        let (kind, bytes, kept_free) = self.locks();
        let mut attempts = 0;
        while !byte_locks::try_lock(file, kind, &bytes)? {
            attempts += 1;
            match byte_locks::held_by_others(file, &bytes)? {
                Some(held) => return Ok(Some(Holder::of(&held))),
                None if attempts == ATTEMPTS_MAX => return Ok(Some(Holder::Stranger)),
                None => {}
            }
        }
        // Looked for after our own lock, as the others do: of two that come at the same time, one sees the other.
        for bytes in kept_free {
            if let Some(held) = byte_locks::held_by_others(file, bytes)? {
                unlock(file)?;
                return Ok(Some(Holder::of(&held)));
            }
        }
        Ok(None)
    }

    /// What somebody who wants to be this kind of user can do about another one.
    pub(crate) fn way_round(self, holder: Holder) -> &'static str {
        match (self, holder) {
            (_, Holder::Stranger) => "end its lock (`lslocks` shows it)",
            (_, Holder::User(FileUser::CachedWriter | FileUser::Successor)) => {
                "close it there, or open it with Engine::Managed in both"
            }
            (FileUser::CachedWriter, Holder::User(FileUser::CachedReader)) => {
                "close it there, or open it read-only here too"
            }
            (FileUser::ManagedWriter, Holder::User(_)) => {
                "close it there, open it with Engine::Managed there too, or read-only here"
            }
            (_, Holder::User(_)) => "close it there, or open it with Engine::Managed here too",
        }
    }
}

/// Gives the lock of any kind of user up.
pub(super) fn unlock(file: BorrowedFd<'_>) -> io::Result<()> {
    byte_locks::unlock(file, &ALL)
}

/// Who holds a lock that keeps us off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// Another process that maps the file.
    User(FileUser),
    /// Somebody with a lock that is none of vmio's and covers the whole file.
    Stranger,
}

impl Holder {
    fn of(held: &HeldLock) -> Self {
        let of_kind = |user: &FileUser| {
            let (kind, bytes, _) = user.locks();
            held.kind == kind && held.bytes == bytes
        };
        let users = [
            FileUser::CachedWriter,
            FileUser::CachedReader,
            FileUser::ManagedWriter,
            FileUser::ManagedReader,
            FileUser::Successor,
        ];
        users.into_iter().find(of_kind).map_or(Holder::Stranger, Holder::User)
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Holder::User(FileUser::CachedWriter) => "another process has it mapped for writing",
            Holder::User(FileUser::Successor) => "another process has taken it over, and has it mapped for writing",
            Holder::User(FileUser::CachedReader) => "another process has it mapped read-only",
            Holder::User(FileUser::ManagedWriter) => "another process has it mapped for writing with Engine::Managed",
            Holder::User(FileUser::ManagedReader) => "another process has it mapped read-only with Engine::Managed",
            Holder::Stranger => "a lock (fcntl) that is not vmio's covers all of it",
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::thread;

    use super::*;

    /// Both share their own byte and look at the other's: at least one must see the other, however close they come.
    #[test]
    fn a_cached_reader_and_a_managed_writer_are_never_in_together() {
        const ROUNDS: u32 = 20_000;
        let file = tempfile::NamedTempFile::new().unwrap();
        let arrived = AtomicU32::new(0);
        // All go on together, from spinning: who has to be woken comes too late to meet the other.
        let meet = |times: u32| {
            arrived.fetch_add(1, Ordering::SeqCst);
            while arrived.load(Ordering::SeqCst) < 2 * times {
                thread::yield_now();
            }
        };
        let play = |user: FileUser| -> Vec<bool> {
            let file = File::open(file.path()).unwrap();
            let enter = |round| {
                meet(2 * round + 1);
                let entered = match user.lock(file.as_fd(), "it") {
                    Ok(()) => true,
                    Err(Error::InUse { holder: Holder::User(_), .. }) => false,
                    Err(error) => panic!("{error}"),
                };
                meet(2 * round + 2);
                unlock(file.as_fd()).unwrap();
                entered
            };
            (0..ROUNDS).map(enter).collect()
        };
        let (readers, writers) = thread::scope(|scope| {
            let reader = scope.spawn(|| play(FileUser::CachedReader));
            (play(FileUser::ManagedWriter), reader.join().unwrap())
        });
        assert!(readers.iter().zip(&writers).all(|(reader, writer)| !(*reader && *writer)));
        assert!(readers.iter().chain(&writers).any(|entered| *entered));
    }
}
