//! Taking, checking and returning the lease (`F_SETLEASE`) of a file.

use std::ffi::c_int;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::PathBuf;
use std::ptr;
use std::sync::atomic::Ordering;

use rustix::fs::{Mode as FileMode, OFlags, SeekFrom, fcntl_getfl, fstat, seek};
use rustix::io::Errno;
use vmio::{Access, Cache, ProgramMap};

use super::cached_file::CachedFile;
use super::call::NEVER_CUT;
use super::description::Description;
use super::description_table;
use super::lease_requests::BREAK_SIGNAL;
use super::leased_file::LeasedFile;
use super::mode::{has_cache, is_strict};
use super::strict::{Logged, Logs};
use super::unserved_reason::UnservedReason;
use crate::entry;
use crate::file::identity_of;
use crate::locks;
use crate::settings::Settings;
use crate::table::is_regular;

/// Commands of fcntl for which the libc crate has no names.
const F_SETSIG: c_int = 10;
const F_SETOWN_EX: c_int = 15;
const F_OWNER_TID: c_int = 0;

#[repr(C)]
struct Owner {
    kind: c_int,
    id: libc::pid_t,
}

/// Takes a lease of a file under the folders, and maps the file: in a cache if `cache_for` has one.
pub(super) fn take(
    fd: BorrowedFd<'_>,
    thread: libc::pid_t,
    description: &Description,
    logs: &mut Logs,
    cache_for: impl FnOnce(&Settings) -> Option<&'static Cache>,
) -> Result<(), UnservedReason> {
    let settings = Settings::of_this_process().ok_or(UnservedReason::NotAsked)?;
    // What cannot be served takes no descriptor.
    About::of(fd, settings)?;
    let has_own = description.own.get().is_some();
    let own = description.own.get().map_or_else(|| description.own.take(fd), Ok)?;
    // Else the program has closed its descriptor meanwhile, and the number may be another file's.
    let is_known = description_table::of_descriptor(fd.as_raw_fd()).is_some_and(|now| ptr::eq(now, description));
    let taken = match is_known {
        true => take_by(own, settings, thread, description, logs, cache_for),
        false => Err(Errno::BADF.into()),
    };
    if taken.is_err()
        && !has_own
        && let Ok(stat) = fstat(own)
    {
        // Else it stays as long as the program's.
        locks::unless_locked(identity_of(&stat), || description.own.close());
    }
    taken
}

/// The same by vmio's own descriptor.
fn take_by(
    own: BorrowedFd<'_>,
    settings: &Settings,
    thread: libc::pid_t,
    description: &Description,
    logs: &mut Logs,
    cache_for: impl FnOnce(&Settings) -> Option<&'static Cache>,
) -> Result<(), UnservedReason> {
    // From here on by vmio's own descriptor: the program's may be another file's by now.
    let About { path, flags, len, is_of_pmfs, access, lease } = About::of(own, settings)?;
    // Calls of other processes and copies in this one meet on the medium, so the kernel need not keep others out. A log needs that.
    let is_write_only = flags & OFlags::RWMODE == OFlags::WRONLY;
    let wants_extents = is_of_pmfs && (is_write_only || !is_strict());
    let of_extents = if wants_extents { LeasedFile::of_extents(own, len, access)? } else { None };
    let of_extents = of_extents.filter(|file| file.is_persistent() || !(has_cache() || is_strict()));
    let is_shared = of_extents.is_some() && !is_strict();
    if is_write_only && of_extents.is_none() && !is_strict() {
        return Err(UnservedReason::WriteOnly);
    }
    if !is_shared {
        set(own, thread, lease).map_err(UnservedReason::Lease)?;
    }
    description.has_kernel_lease.store(!is_shared, Ordering::Release);
    let taken = (|fd: BorrowedFd<'_>| {
        // With the kernel's lease, nobody else changes the length any more.
        let len = fstat(fd)?.st_size as u64;
        let position = seek(fd, SeekFrom::Current(0))?;
        let mut leased = match (of_extents, flags & OFlags::RWMODE) {
            (Some(file), _) => file,
            (None, OFlags::WRONLY) => LeasedFile::of_writes_alone(),
            // A write-back by a descriptor with O_APPEND would append the page.
            (None, _) if flags.contains(OFlags::APPEND) => {
                LeasedFile::new(fd, len, access, settings.stores_after_bytes)?
            }
            (None, _) => mapped(fd, len, access, settings, cache_for)?,
        };
        if settings.report.is_some() {
            leased = leased.counted();
        }
        if is_strict() && lease == libc::F_WRLCK {
            let logged = Logged::new(logs, settings, fd, &path)?;
            description.log_key.store(logged.key(), Ordering::Release);
            leased = leased.with_log(logged);
        }
        let leased_by_extents = leased.has_extents();
        description.put_leased(Box::new(leased));
        description.flags.store(flags.bits() as i32, Ordering::Relaxed);
        // A call learns the length of a file that others use, too.
        description.known_length.forget();
        if !leased_by_extents {
            description.known_length.learn(len, NEVER_CUT);
        }
        description.position.store(position, Ordering::Relaxed);
        Ok::<(), UnservedReason>(())
    })(own);
    if taken.is_err() {
        give_back(own);
    }
    taken
}

/// The facts that decide whether a file is served, and how.
struct About {
    path: PathBuf,
    flags: OFlags,
    len: u64,
    is_of_pmfs: bool,
    access: Access,
    /// The lease to ask the kernel for.
    lease: c_int,
}

impl About {
    /// An error if the file cannot be served.
    fn of(fd: BorrowedFd<'_>, settings: &Settings) -> Result<About, UnservedReason> {
        let stat = fstat(fd).ok().filter(is_regular).ok_or(UnservedReason::NotAsked)?;
        let path = settings.path_under(fd).ok_or(UnservedReason::NotAsked)?;
        // A write clears these bits, a store does not.
        if FileMode::from_raw_mode(stat.st_mode).intersects(FileMode::SUID | FileMode::SGID) {
            return Err(UnservedReason::SetIdBits);
        }
        let flags = fcntl_getfl(fd)?;
        if flags.intersects(OFlags::DIRECT | OFlags::PATH) {
            return Err(UnservedReason::Flags);
        }
        let is_of_pmfs = ProgramMap::is_of_pmfs(fd);
        let (access, lease) = match flags & OFlags::RWMODE {
            OFlags::RDONLY => (Access::ReadOnly, libc::F_RDLCK),
            OFlags::RDWR => (Access::ReadWrite, libc::F_WRLCK),
            // Where the process maps the medium itself, it can append.
            OFlags::WRONLY if is_of_pmfs => (Access::ReadWrite, libc::F_WRLCK),
            OFlags::WRONLY if is_strict() => (Access::ReadOnly, libc::F_WRLCK),
            _ => return Err(UnservedReason::WriteOnly),
        };
        Ok(About { path, flags, len: stat.st_size as u64, is_of_pmfs, access, lease })
    }
}

/// Maps a leased file: in the cache of this process if there is one, unless the file is in persistent memory.
fn mapped(
    fd: BorrowedFd<'_>,
    len: u64,
    access: Access,
    settings: &Settings,
    cache_for: impl FnOnce(&Settings) -> Option<&'static Cache>,
) -> std::io::Result<LeasedFile> {
    let shared = || LeasedFile::new(fd, len, access, settings.stores_after_bytes);
    let Some(cache) = cache_for(settings) else { return shared() };
    if let Ok(shared) = shared()
        && shared.is_persistent()
    {
        return Ok(shared);
    }
    let cached = CachedFile::open(cache, fd, len, access);
    cached.map_or_else(shared, |file| Ok(LeasedFile::of_cached(file, access)))
}

/// Takes a lease, and asks the kernel to signal the thread when it breaks the lease.
fn set(fd: BorrowedFd<'_>, thread: libc::pid_t, lease: c_int) -> Result<(), Errno> {
    let owner = Owner { kind: F_OWNER_TID, id: thread };
    let is_leased = control(fd, F_SETSIG, BREAK_SIGNAL as usize) == 0
        && control(fd, F_SETOWN_EX, &raw const owner as usize) == 0
        && control(fd, libc::F_SETLEASE, lease as usize) == 0;
    // SAFETY: the address of the thread's errno is always valid.
    is_leased.then_some(()).ok_or_else(|| Errno::from_raw_os_error(unsafe { *libc::__errno_location() }))
}

/// Returns a lease.
pub(super) fn give_back(fd: BorrowedFd<'_>) {
    control(fd, libc::F_SETLEASE, libc::F_UNLCK as usize);
}

/// Whether the kernel is breaking the lease of a description, because somebody else opens or cuts the file.
pub(super) fn is_being_broken(description: &Description) -> bool {
    if !description.has_kernel_lease.load(Ordering::Acquire) {
        return false;
    }
    let taken = if description.flags.load(Ordering::Relaxed) & libc::O_ACCMODE == libc::O_RDONLY {
        libc::F_RDLCK
    } else {
        libc::F_WRLCK
    };
    description.own.get().is_some_and(|own| control(own, libc::F_GETLEASE, 0) != taken)
}

/// The C library's fcntl, not the one that this library exports.
fn control(fd: BorrowedFd<'_>, command: c_int, argument: usize) -> c_int {
    // SAFETY: the commands above take numbers; F_SETOWN_EX reads a structure in the caller's frame.
    entry::as_vmio(|| unsafe { libc::fcntl(fd.as_raw_fd(), command, argument) })
}
