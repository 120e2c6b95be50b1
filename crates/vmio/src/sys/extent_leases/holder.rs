//! This process as a holder of leases of a mount: the medium, the connection to the server, and the maps that it may recall parts of.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{SocketAddr, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use rustix::fs::{MemfdFlags, fstatfs, memfd_create};
use rustix::ioctl::{Getter, ioctl};
use rustix::mm::MapFlags;
use rustix::process::geteuid;
use vmio_pmfs_protocol::{
    HOLDERS_BYTE, MESSAGE_BYTES, MOUNT, MOUNT_BYTES, Message, Mount, Persistence, receive_with, send_with,
};

use super::leased_map::Pieces;
use super::slots::Slots;
use crate::sys::byte_locks::{self, LockKind};
use crate::sys::fork::PerProcess;
use crate::sys::signal::SignalsBlocked;
use crate::sys::thread;

/// FUSE_SUPER_MAGIC of the kernel's headers.
const FUSE: i64 = 0x6573_5546;
/// How long the server has to answer at first.
const GREETED_WITHIN: Duration = Duration::from_secs(5);

/// The holders of this process.
static HOLDERS: PerProcess<Mutex<Holders>> = PerProcess::new();

/// Whether this process, or one before it, has ever wanted one.
static HAVE_BEGUN: AtomicBool = AtomicBool::new(false);

/// By the device number of the mount, and whether they store.
type Holders = HashMap<(u64, bool), Arc<Holder>>;

/// This process as a holder of leases of a mount.
pub(super) struct Holder {
    /// Its number with the server.
    pub(super) number: u64,
    /// The medium, for loads, and for stores if this holder stores.
    pub(super) medium: File,
    /// An empty file: a touch of it is a SIGBUS.
    pub(super) nothing: File,
    /// The way in which stores become durable.
    pub(super) persistence: Persistence,
    /// Whether the kernel writes stores through a mapping of the medium back from the caches when it is asked to (msync, fdatasync). A device in mode devdax
    /// has no such call.
    pub(super) kernel_writes_back: bool,
    /// The lengths of files that grow, as the server reads them.
    pub(super) slots: Slots,
    connection: UnixStream,
    state: Mutex<State>,
    /// Held while a map begins or ends: whether it is the last one of its file decides what is given back.
    pub(super) beginning: Mutex<()>,
}

#[derive(Default)]
struct State {
    maps: Vec<(u64, Weak<Pieces>)>,
    /// The connection has ended, and with it all leases.
    is_over: bool,
}

/// While it exists, no holder begins. A thread that forks has it, so that the child knows all descriptors of its parent's holders.
pub(crate) struct HeldHolders(Option<MutexGuard<'static, Holders>>);

/// Waits for holders that are beginning.
pub(crate) fn hold_holders() -> HeldHolders {
    // Without memory for the list there are none. Most programs have none, and make no list.
    let has_begun = HAVE_BEGUN.load(Ordering::SeqCst);
    HeldHolders(has_begun.then(|| HOLDERS.get().ok().map(lock)).flatten())
}

impl HeldHolders {
    /// Closes the descriptors of the parent's holders, in a child just after its fork. With the connection, the parent's leases would stay after its end;
    /// with the medium, its lock.
    pub(crate) fn close_in_child(self) {
        let holders = self.0.iter().flat_map(|holders| holders.values());
        for fd in holders.flat_map(|holder| holder.descriptors()) {
            // SAFETY: the child has its parent's descriptors, and drops none of these values: the list of holders is never freed.
            unsafe { rustix::io::close(fd.as_raw_fd()) };
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The mount that a file is of; `None` if it is of something else.
fn mount_of(file: BorrowedFd<'_>) -> Option<Mount> {
    // SAFETY: the server fills this number of bytes. To other file systems the request is unknown.
    let asked = unsafe { ioctl(file, Getter::<{ MOUNT }, [u8; MOUNT_BYTES]>::new()) };
    Mount::from_bytes(&asked.ok()?)
}

/// Whether a file is of a mounted vmio-pmfs.
pub(crate) fn is_of_pmfs(file: BorrowedFd<'_>) -> bool {
    fstatfs(file).is_ok_and(|found| found.f_type == FUSE) && mount_of(file).is_some()
}

impl Holder {
    /// The holder for a file; `None` if it is not of a mounted vmio-pmfs, or this process may not use the medium.
    pub(super) fn of(file: BorrowedFd<'_>, device: u64, stores: bool) -> io::Result<Option<Arc<Holder>>> {
        let Some(mount) = mount_of(file) else { return Ok(None) };
        let _signals = SignalsBlocked::new();
        HAVE_BEGUN.store(true, Ordering::SeqCst);
        let mut holders = lock(HOLDERS.get()?);
        if let Some(holder) = holders.get(&(device, stores)).filter(|holder| !lock(&holder.state).is_over) {
            return Ok(Some(Arc::clone(holder)));
        }
        let holder = match Holder::begin(&mount, stores) {
            Ok(holder) => Arc::new(holder),
            Err(error) => {
                tracing::debug!(%error, medium = %mount.medium.display(), "no leases: the kernel serves the file");
                return Ok(None);
            }
        };
        let served = Arc::clone(&holder);
        thread::spawn("vmio-leases", move || served.serve())?;
        holders.insert((device, stores), Arc::clone(&holder));
        Ok(Some(holder))
    }

    fn begin(mount: &Mount, stores: bool) -> io::Result<Holder> {
        let connection = UnixStream::connect_addr(&SocketAddr::from_abstract_name(&mount.socket)?)?;
        connection.set_read_timeout(Some(GREETED_WITHIN))?;
        // A stranger's server could name any file that this process may write.
        let (server, owner) = (rustix::net::sockopt::socket_peercred(&connection)?.uid, mount.medium.metadata()?.uid());
        if ![0, geteuid().as_raw(), owner].contains(&server.as_raw()) {
            return Err(io::Error::other("the server belongs to another user"));
        }
        let medium = File::options().read(true).write(stores).open(&mount.medium)?;
        let metadata = medium.metadata()?;
        if (metadata.dev(), metadata.ino()) != (mount.device, mount.inode) {
            return Err(io::Error::other("the medium's path names another file by now"));
        }
        let byte = HOLDERS_BYTE..HOLDERS_BYTE + 1;
        if !byte_locks::try_lock(medium.as_fd(), LockKind::Shared, &byte)? {
            return Err(io::Error::other("the file system is about to be mounted"));
        }
        send_with(&connection, &[0], medium.as_fd())?;
        let mut hello = [0; MESSAGE_BYTES];
        let slots = Slots::new(&File::from(receive_with(&connection, &mut hello)?))?;
        let Some(Message::Hello { holder }) = Message::from_bytes(&hello) else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        connection.set_read_timeout(None)?;
        let nothing = File::from(memfd_create("vmio-not-leased", MemfdFlags::CLOEXEC)?);
        Ok(Holder {
            number: holder,
            medium,
            nothing,
            persistence: mount.persistence,
            kernel_writes_back: !metadata.file_type().is_char_device(),
            slots,
            connection,
            state: Mutex::default(),
            beginning: Mutex::default(),
        })
    }

    /// How it maps parts of the medium.
    pub(super) fn map_flags(&self) -> MapFlags {
        match self.persistence {
            Persistence::ByFence => MapFlags::SHARED_VALIDATE | MapFlags::SYNC,
            Persistence::ByFlush | Persistence::Assumed => MapFlags::SHARED,
        }
    }

    /// Its descriptors, which must stay open.
    pub(super) fn descriptors(&self) -> [BorrowedFd<'_>; 3] {
        [self.medium.as_fd(), self.nothing.as_fd(), self.connection.as_fd()]
    }

    /// Adds a map, whose parts the server may recall from now on; false if all leases have ended.
    pub(super) fn add(&self, ino: u64, map: &Arc<Pieces>) -> bool {
        let mut state = lock(&self.state);
        state.maps.push((ino, Arc::downgrade(map)));
        !state.is_over
    }

    /// Removes a map. Returns whether it was the last one of its file, and the server is still there.
    pub(super) fn remove(&self, ino: u64, map: &Arc<Pieces>) -> bool {
        let mut state = lock(&self.state);
        state.maps.retain(|(_, other)| !std::ptr::eq(other.as_ptr(), Arc::as_ptr(map)));
        !state.is_over && state.maps.iter().all(|(other, _)| *other != ino)
    }

    fn maps_of(&self, wanted: impl Fn(u64) -> bool) -> Vec<Arc<Pieces>> {
        let state = lock(&self.state);
        state.maps.iter().filter(|(ino, _)| wanted(*ino)).filter_map(|(_, map)| map.upgrade()).collect()
    }

    /// Answers the server until the connection ends.
    fn serve(&self) {
        loop {
            match Message::receive(&self.connection) {
                Ok(Message::Recall { ino, from_block, turn }) => {
                    self.maps_of(|other| other == ino).iter().for_each(|map| map.take_away(from_block));
                    if (Message::Returned { ino, from_block, turn }).send(&self.connection).is_err() {
                        break;
                    }
                }
                Ok(_) => {}
                Err(error) => {
                    tracing::debug!(%error, "the connection for leases has ended");
                    break;
                }
            }
        }
        lock(&self.state).is_over = true;
        // A map that comes later is told.
        self.maps_of(|_| true).iter().for_each(|map| map.take_away(0));
        // Now the medium may be mounted anew, and what this holder had may become others'.
        let byte = HOLDERS_BYTE..HOLDERS_BYTE + 1;
        if let Err(error) = byte_locks::unlock(self.medium.as_fd(), &byte) {
            tracing::warn!(%error, "cannot unlock the medium");
        }
        if let Err(error) = Message::Left.send(&self.connection) {
            tracing::debug!(%error, "the server is gone");
        }
        _ = self.connection.shutdown(std::net::Shutdown::Both);
    }
}
