//! Locks that tell a process which others have mapped a file: docs/formats/file-locks.md.

use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;

use crate::backing::Access;
use crate::error::{Error, Result};
use crate::file_user::{FileUser, Holder};
use crate::sys::byte_locks::{self, HeldLock, LockKind};
use crate::sys::fork::Generation;

/// The first of the locked bytes. It lies far behind the end of any file, so that nobody locks these bytes by chance.
const BASE: u64 = 1 << 62;
/// One byte for each kind of user that shares the file.
const CACHED_READERS: Range<u64> = BASE..BASE + 1;
const MANAGED_WRITERS: Range<u64> = BASE + 1..BASE + 2;
const MANAGED_READERS: Range<u64> = BASE + 2..BASE + 3;
const SUCCESSORS: Range<u64> = BASE + 3..BASE + 4;
/// The bytes that a cached writer locks against all other users.
const USERS: Range<u64> = BASE..BASE + 3;
const ALL: Range<u64> = BASE..BASE + 4;
/// The limit of attempts: a conflicting lock may be gone when its holder is asked for.
const ATTEMPTS_MAX: u32 = 8;

impl FileUser {
    /// The user that caches pages of its own.
    pub(crate) fn cached(access: Access) -> Self {
        match access {
            Access::ReadOnly => FileUser::CachedReader,
            Access::ReadWrite => FileUser::CachedWriter,
        }
    }

    /// The user of the kernel's pages.
    pub(crate) fn managed(access: Access) -> Self {
        match access {
            Access::ReadOnly => FileUser::ManagedReader,
            Access::ReadWrite => FileUser::ManagedWriter,
        }
    }

    /// The kind of its lock, the bytes that it locks, and the ranges that must be free of others' locks.
    fn locks(self) -> (LockKind, Range<u64>, &'static [Range<u64>]) {
        match self {
            FileUser::CachedWriter => (LockKind::Exclusive, USERS, &[SUCCESSORS]),
            FileUser::CachedReader => (LockKind::Shared, CACHED_READERS, &[MANAGED_WRITERS, SUCCESSORS]),
            FileUser::ManagedWriter => (LockKind::Shared, MANAGED_WRITERS, &[CACHED_READERS, SUCCESSORS]),
            FileUser::ManagedReader => (LockKind::Shared, MANAGED_READERS, &[SUCCESSORS]),
            FileUser::Successor => (LockKind::Shared, SUCCESSORS, &[]),
        }
    }

    fn lock(self, file: BorrowedFd<'_>, path: &str) -> Result<()> {
        match self.find_holder(file).map_err(Error::system("locking the file"))? {
            None => Ok(()),
            Some(holder) => Err(Error::InUse { backing: path.to_owned(), holder, wanted: self }),
        }
    }

    /// Takes the locks. If another process prevents that, returns its holder and takes none.
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
        // All users check these ranges after taking their own lock: of two that come at the same time, at least one sees the other.
        for bytes in kept_free {
            if let Some(held) = byte_locks::held_by_others(file, bytes)? {
                unlock(file)?;
                return Ok(Some(Holder::of(&held)));
            }
        }
        Ok(None)
    }
}

/// The locks on a file that a process has opened. They belong to the open file, which forked children share, and remain the
/// parent's there.
pub(super) struct FileLocks(Generation);

impl FileLocks {
    pub(super) fn of_this_process() -> io::Result<Self> {
        Ok(FileLocks(Generation::of_this_process()?))
    }

    /// Refuses in a forked child.
    pub(super) fn check_not_forked(&self) -> Result<()> {
        if self.0.is_current() { Ok(()) } else { Err(Error::Forked) }
    }

    /// Locks the file as some kind of user; `path` is its name for messages.
    pub(super) fn lock(&self, user: FileUser, file: BorrowedFd<'_>, path: &str) -> Result<()> {
        self.check_not_forked()?;
        user.lock(file, path)
    }

    /// Releases the lock of any kind of user.
    pub(super) fn unlock(&self, file: BorrowedFd<'_>) -> io::Result<()> {
        self.check_not_forked().map_err(io::Error::other)?;
        unlock(file)
    }
}

fn unlock(file: BorrowedFd<'_>) -> io::Result<()> {
    byte_locks::unlock(file, &ALL)
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

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::thread;

    use super::*;

    /// Both lock their own byte as shared, and look at the other's: at least one must see the other, at any timing.
    #[test]
    fn a_cached_reader_and_a_managed_writer_are_never_in_together() {
        const ROUNDS: u32 = 20_000;
        let file = tempfile::NamedTempFile::new().unwrap();
        let arrived = AtomicU32::new(0);
        // Both threads spin until they go on together: a thread that must be woken would come too late to meet the other.
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
