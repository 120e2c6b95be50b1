//! Files that vmio opened or has mapped, and needs no more while the program has record locks on them. Closing any descriptor of such a file
//! would end the locks, so they stay open until the program closes one itself, or has no locks any more.

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::{OFlags, fcntl_getfl, fstat};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use vmio::SignalsBlocked;
use vmio::backing::Identity;

use crate::file::{OpenedFile, identity_of};
use crate::lock_calls::LOCK_CALLS;
use crate::locks;
use crate::own_descriptors;

/// The lowest number for a descriptor of vmio's.
const FROM: i32 = 512;

pub(crate) type Files = Vec<Kept>;

/// A file that stays open.
pub(crate) enum Kept {
    /// Opened to be mapped.
    Opened(OpenedFile),
    /// The descriptor of a mapping by leases.
    OfMap(Descriptor),
}

impl Kept {
    fn identity(&self) -> Identity {
        match self {
            Kept::Opened(file) => file.identity(),
            Kept::OfMap(file) => file.identity,
        }
    }

    /// A descriptor of a mapping that nobody uses any more.
    fn unused(&mut self) -> Option<Identity> {
        match self {
            Kept::Opened(_) => None,
            Kept::OfMap(file) => Arc::get_mut(&mut file.file).is_some().then_some(file.identity),
        }
    }
}

/// A descriptor by which a file is mapped.
pub(crate) struct Descriptor {
    identity: Identity,
    /// The accesses for which it is open.
    mode: OFlags,
    file: Arc<OwnedFd>,
}

/// vmio's own descriptor of a file that it maps by leases: of any open file that is open for the same accesses. It closes only where that ends no record
/// locks of the program's.
pub(crate) struct MapFile(Option<Descriptor>);

impl fmt::Debug for MapFile {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_tuple("MapFile").field(&self.0.as_ref().map(|file| &file.file)).finish()
    }
}

impl MapFile {
    /// Takes one that was kept open, so that a file has no more of them than it had mappings at once. Else duplicates the program's.
    pub(crate) fn of(fd: BorrowedFd<'_>) -> Result<MapFile, Errno> {
        let (identity, mode) = (identity_of(&fstat(fd)?), fcntl_getfl(fd)? & OFlags::RWMODE);
        let _no_handlers = SignalsBlocked::new();
        let mut files = files();
        let is_wanted =
            |kept: &Kept| matches!(kept, Kept::OfMap(file) if file.identity == identity && file.mode == mode);
        if let Some(at) = files.iter().position(is_wanted)
            && let Kept::OfMap(file) = files.swap_remove(at)
        {
            return Ok(MapFile(Some(file)));
        }
        drop(files);
        // Programs expect the lowest numbers for themselves.
        let file = fcntl_dupfd_cloexec(fd, FROM).or_else(|_| fcntl_dupfd_cloexec(fd, 3))?;
        own_descriptors::insert(file.as_raw_fd());
        let of_map = MapFile(Some(Descriptor { identity, mode, file: Arc::new(file) }));
        // The program may have put another file there since.
        let is_same =
            of_map.descriptor().is_ok_and(|file| fstat(file).is_ok_and(|stat| identity_of(&stat) == identity));
        if is_same { Ok(of_map) } else { Err(Errno::BADF) }
    }

    /// The descriptor, for a mapping.
    pub(crate) fn descriptor(&self) -> Result<Arc<OwnedFd>, Errno> {
        self.0.as_ref().map(|file| Arc::clone(&file.file)).ok_or(Errno::BADF)
    }

    /// The file.
    pub(crate) fn as_fd(&self) -> Result<BorrowedFd<'_>, Errno> {
        self.0.as_ref().map(|file| file.file.as_fd()).ok_or(Errno::BADF)
    }
}

impl Drop for MapFile {
    fn drop(&mut self) {
        let Some(file) = self.0.take() else { return };
        keep_any(Kept::OfMap(file));
        close_unused();
    }
}

/// Closes the descriptors of former mappings of files that the program has no record locks on, and is not about to lock.
fn close_unused() {
    let _no_handlers = SignalsBlocked::new();
    let mut files = files();
    // Of the thread that answers the server, too, which may have a mapping for a moment longer.
    let mut unused: Vec<Identity> = files.iter_mut().filter_map(Kept::unused).collect();
    unused.dedup();
    if let Some(_excluded) = LOCK_CALLS.exclude() {
        unused.retain(|file| !locks::is_locked_by_program(*file));
        files.retain_mut(|kept| kept.unused().is_none_or(|file| !unused.contains(&file)));
    }
    ARE_THERE.store(!files.is_empty(), Ordering::Release);
}

static FILES: Mutex<Files> = Mutex::new(Files::new());
/// Whether there may be any. If not, callers need not look.
static ARE_THERE: AtomicBool = AtomicBool::new(false);

/// Keeps a file open.
pub(crate) fn keep(file: OpenedFile) {
    keep_any(Kept::Opened(file));
}

fn keep_any(file: Kept) {
    let _no_handlers = SignalsBlocked::new();
    files().push(file);
    ARE_THERE.store(true, Ordering::Release);
}

/// Whether any may be open.
pub(crate) fn are_there() -> bool {
    ARE_THERE.load(Ordering::Acquire)
}

/// Closes our descriptor of a file when the program closes one of its own, which ends the locks anyway.
pub(crate) fn release(file: Identity) {
    let _no_handlers = SignalsBlocked::new();
    files().retain(|kept| kept.identity() != file);
}

/// Forgets them in a forked child, which may use their numbers for other files later: only the parent closes them. Those of mappings are the child's own
/// copies.
pub(crate) fn are_left_to_parent(files: &mut Files) {
    for kept in std::mem::take(files) {
        match kept {
            Kept::Opened(file) => std::mem::forget(file),
            Kept::OfMap(file) => drop(file),
        }
    }
    ARE_THERE.store(false, Ordering::Release);
}

/// All of them. Signals must be blocked.
pub(crate) fn files() -> MutexGuard<'static, Files> {
    FILES.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_being_locked_keeps_one_descriptor() {
        let file = tempfile::tempfile().unwrap();
        let first = MapFile::of(file.as_fd()).unwrap();
        let number = first.as_fd().unwrap().as_raw_fd();
        assert!(own_descriptors::contains(number));
        let locking = LOCK_CALLS.begin();
        drop(first);
        for _ in 0..3 {
            let again = MapFile::of(file.as_fd()).unwrap();
            assert_eq!(again.as_fd().unwrap().as_raw_fd(), number);
        }
        drop(locking);
        let another = tempfile::tempfile().unwrap();
        drop(MapFile::of(another.as_fd()).unwrap());
        assert!(!are_there());
        // A mapping still has it.
        let of_map = MapFile::of(file.as_fd()).unwrap();
        let used = of_map.descriptor().unwrap();
        drop(of_map);
        assert!(fstat(&used).is_ok() && are_there());
        drop(used);
        close_unused();
    }
}
