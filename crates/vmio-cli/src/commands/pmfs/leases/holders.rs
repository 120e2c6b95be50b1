//! The processes that may hold leases, each by its connection to the server. Only those may that can open the medium themselves.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, OFlags, SealFlags, fcntl_add_seals, fcntl_getfl, fstat, memfd_create};
use rustix::io::Errno;
use rustix::process::{PidfdFlags, pidfd_open};
use vmio_pmfs::{Access, MappedFile, Medium};
use vmio_pmfs_protocol::{CLOSED, Message, SLOT_BYTES, SLOTS, receive_with, send_with};

use super::Leases;

/// The most processes that hold leases at the same time.
const HOLDERS_MAX: usize = 4096;
/// A connection's thread does little.
const STACK_BYTES: usize = 128 << 10;
/// A message is shorter than the buffer of any connection: a holder that does not take it in time does not read at all.
const SENT_WITHIN: Duration = Duration::from_millis(100);
/// How long a process has to show the medium.
const GREETED_WITHIN: Duration = Duration::from_secs(5);
/// A process whose connection has ended since it was killed is gone soon.
const ENDED_WITHIN: Duration = Duration::from_secs(1);
/// After an error, such as too many open descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// The processes that may hold leases.
pub struct Holders {
    socket: Vec<u8>,
    listener: UnixListener,
    /// Device and inode of the medium.
    medium: (u64, u64),
    present: AtomicUsize,
    all: Mutex<HashMap<u64, Holder>>,
}

struct Holder {
    connection: Arc<UnixStream>,
    process: i32,
    /// Whether it has the medium open for stores.
    may_store: bool,
    /// The lengths of its growing files, in sealed memory that it shares.
    slots: Arc<MappedFile>,
    /// The files of which it may have leases.
    files: BTreeSet<u64>,
    /// It has not answered, and is granted nothing more.
    is_lost: bool,
}

fn random() -> io::Result<u64> {
    let mut random = [0; 8];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    Ok(u64::from_ne_bytes(random))
}

impl Holders {
    /// Makes the server's socket, under a name that is its own, for a medium by its device and inode.
    pub fn new(medium: (u64, u64)) -> io::Result<Holders> {
        let socket = format!("vmio-pmfs-{:016x}", random()?).into_bytes();
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&socket)?)?;
        Ok(Holders { socket, listener, medium, present: AtomicUsize::new(0), all: Mutex::default() })
    }

    /// The abstract name of the server's socket.
    pub fn socket(&self) -> &[u8] {
        &self.socket
    }

    /// Accepts holders for as long as the process lives.
    pub fn serve(self: &Arc<Self>, leases: &Arc<Leases>) -> io::Result<()> {
        let (holders, leases) = (Arc::clone(self), Arc::clone(leases));
        let accept = move || {
            for connection in holders.listener.incoming() {
                if let Err(error) = connection.and_then(|connection| holders.accept(connection, &leases)) {
                    tracing::warn!(%error, "a process gets no leases");
                    thread::sleep(PAUSE);
                }
            }
        };
        thread::Builder::new().name("pmfs-holders".to_owned()).stack_size(STACK_BYTES).spawn(accept)?;
        Ok(())
    }

    fn accept(self: &Arc<Self>, connection: UnixStream, leases: &Arc<Leases>) -> io::Result<()> {
        if self.present.fetch_add(1, Ordering::Relaxed) >= HOLDERS_MAX {
            self.present.fetch_sub(1, Ordering::Relaxed);
            return Err(io::Error::other(format!("there are {HOLDERS_MAX} holders of leases already")));
        }
        let (holders, leases) = (Arc::clone(self), Arc::clone(leases));
        let serve = move || {
            match holders.greet(connection) {
                Ok((number, connection, alive)) => holders.serve_one(number, connection, &alive, &leases),
                Err(error) => tracing::debug!(%error, "a process gets no leases"),
            }
            holders.present.fetch_sub(1, Ordering::Relaxed);
        };
        let spawned = thread::Builder::new().name("pmfs-holder".to_owned()).stack_size(STACK_BYTES).spawn(serve);
        if spawned.is_err() {
            self.present.fetch_sub(1, Ordering::Relaxed);
        }
        spawned.map(drop)
    }

    /// Makes a process a holder if it shows that it has the medium open.
    fn greet(&self, connection: UnixStream) -> io::Result<(u64, Arc<UnixStream>, OwnedFd)> {
        let process = rustix::net::sockopt::socket_peercred(&connection)?.pid;
        let alive = pidfd_open(process, PidfdFlags::empty())?;
        connection.set_write_timeout(Some(SENT_WITHIN))?;
        connection.set_read_timeout(Some(GREETED_WITHIN))?;
        let may_store = self.may_store(&receive_with(&connection, &mut [0])?)?;
        connection.set_read_timeout(None)?;
        let slots = File::from(memfd_create("vmio-lengths", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
        slots.set_len((SLOTS * SLOT_BYTES) as u64)?;
        fcntl_add_seals(&slots, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        // The process changes words of it at any time: the server changes them in place, too.
        let mapped = MappedFile::new(slots.try_clone()?, Access::Write).map_err(io::Error::other)?;
        // Nobody guesses it: by its number a holder gives leases back.
        let number = random()?;
        let connection = Arc::new(connection);
        let holder = Holder {
            connection: Arc::clone(&connection),
            process: process.as_raw_nonzero().get(),
            may_store,
            slots: Arc::new(mapped),
            files: BTreeSet::new(),
            is_lost: false,
        };
        self.lock().insert(number, holder);
        let told = send_with(&connection, &Message::Hello { holder: number }.to_bytes(), slots.as_fd());
        if told.is_err() {
            self.lock().remove(&number);
        }
        told.map(|()| (number, connection, alive))
    }

    /// Whether a descriptor of the medium is open for stores; an error if it is no such descriptor, or not open for loads.
    fn may_store(&self, shown: &OwnedFd) -> io::Result<bool> {
        let (stat, flags) = (fstat(shown)?, fcntl_getfl(shown)?);
        let is_medium = (stat.st_dev, stat.st_ino) == self.medium && !flags.contains(OFlags::PATH);
        match flags & OFlags::RWMODE {
            OFlags::RDONLY if is_medium => Ok(false),
            OFlags::RDWR if is_medium => Ok(true),
            _ => Err(io::ErrorKind::PermissionDenied.into()),
        }
    }

    /// Takes a holder's messages until it is gone.
    fn serve_one(&self, number: u64, connection: Arc<UnixStream>, alive: &OwnedFd, leases: &Leases) {
        let has_left = receive(number, &connection, alive, leases).is_ok();
        let has_leases = || self.lock().get(&number).is_some_and(|holder| !holder.files.is_empty() || holder.is_lost);
        if !has_left && has_leases() && !has_ended(alive, Some(ENDED_WITHIN)) {
            // It has closed the connection, and may still store to what it had.
            leases.revoke(number);
            drop(connection);
            has_ended(alive, None);
        }
        leases.gone(number);
    }

    /// The files of which a holder that ends may have leases. It is granted nothing more.
    pub fn files_of(&self, number: u64) -> BTreeSet<u64> {
        let mut all = self.lock();
        let Some(holder) = all.get_mut(&number) else { return BTreeSet::new() };
        holder.is_lost = true;
        holder.files.clone()
    }

    /// Forgets a holder that has ended.
    pub fn forget(&self, number: u64) {
        self.lock().remove(&number);
    }

    /// Notes that a holder is about to have a lease of a file; false if there is no such holder, or it may not store and wants to.
    pub fn will_hold(&self, number: u64, ino: u64, stores: bool) -> bool {
        let mut all = self.lock();
        let holder = all.get_mut(&number).filter(|holder| !holder.is_lost && holder.may_store >= stores);
        holder.map(|holder| holder.files.insert(ino)).is_some()
    }

    /// Whether a holder may have a lease of a file.
    pub fn may_hold(&self, number: u64, ino: u64) -> bool {
        self.lock().get(&number).is_some_and(|holder| holder.files.contains(&ino))
    }

    /// Notes that a holder has no lease of a file any more.
    pub fn holds_no_more(&self, number: u64, ino: u64) {
        if let Some(holder) = self.lock().get_mut(&number) {
            holder.files.remove(&ino);
        }
    }

    /// Sends a message to a holder.
    pub fn tell(&self, number: u64, message: Message) {
        let Some(connection) = self.lock().get(&number).map(|holder| Arc::clone(&holder.connection)) else { return };
        if let Err(error) = message.send(&*connection) {
            tracing::debug!(%error, number, "a process cannot be asked for a lease");
        }
    }

    /// The word that a holder has stored in a slot, as long as it is there.
    pub fn word(&self, number: u64, slot: u32) -> Option<u64> {
        let slots = Arc::clone(&self.lock().get(&number)?.slots);
        Some(slots.load_word(u64::from(slot) * SLOT_BYTES as u64))
    }

    /// Keeps a holder that is lost from storing another length in a slot. It may go on at any moment, so the bit is set in place.
    pub fn close_slot(&self, number: u64, slot: u32) {
        let slots = self.lock().get(&number).map(|holder| Arc::clone(&holder.slots));
        if let Some(slots) = slots {
            slots.set_bits(u64::from(slot) * SLOT_BYTES as u64, CLOSED);
        }
    }

    /// A holder has lost all its leases: it is granted nothing more, and drops everything as soon as it looks. Returns its process and the
    /// files of which it may have had any.
    pub fn lose(&self, number: u64) -> Option<(i32, BTreeSet<u64>)> {
        let mut all = self.lock();
        let holder = all.get_mut(&number)?;
        holder.is_lost = true;
        _ = holder.connection.shutdown(Shutdown::Write);
        Some((holder.process, std::mem::take(&mut holder.files)))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Holder>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes a holder's messages until it has left; an error if the connection or the process ends before.
fn receive(number: u64, connection: &UnixStream, alive: &OwnedFd, leases: &Leases) -> io::Result<()> {
    loop {
        let mut ready = [PollFd::new(connection, PollFlags::IN), PollFd::new(alive, PollFlags::IN)];
        match poll(&mut ready, None) {
            Err(Errno::INTR) => continue,
            polled => polled?,
        };
        // A forked child may keep the connection, but not the leases.
        if ready[0].revents().is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        match Message::receive(connection)? {
            Message::Returned { ino, from_block, turn } => leases.end_lease(ino, number, from_block, turn),
            Message::Left => return Ok(()),
            Message::Hello { .. } | Message::Recall { .. } => return Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

/// Waits for the end of a process; for ever without a limit.
fn has_ended(process: &OwnedFd, within: Option<Duration>) -> bool {
    let limit = within.and_then(|within| Timespec::try_from(within).ok());
    loop {
        match poll(&mut [PollFd::new(process, PollFlags::IN)], limit.as_ref()) {
            Err(Errno::INTR) => {}
            ended => return ended.is_ok_and(|ready| ready > 0),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use fuser::FileHandle;
    use vmio_pmfs::{Error, Fs, Geometry, New, ROOT};
    use vmio_pmfs_protocol::{MESSAGE_BYTES, Request, SEED_OF_MEMORY, sealed};

    use super::super::{LOADS, STORES, TAKING_ROOM_BACK_MAX};
    use super::*;

    /// The outcome of showing a descriptor to the server of a medium.
    fn shown(medium: &File, descriptor: &File) -> io::Result<bool> {
        let metadata = medium.metadata()?;
        let holders = Holders::new((metadata.dev(), metadata.ino()))?;
        let (ours, theirs) = UnixStream::pair()?;
        send_with(&theirs, &[0], descriptor.as_fd())?;
        let (number, _, _) = holders.greet(ours)?;
        // A lease for loads, and one for stores.
        assert!(holders.will_hold(number, 7, false) && holders.may_hold(number, 7));
        Ok(holders.will_hold(number, 7, true))
    }

    #[test]
    fn a_process_holds_leases_for_what_it_may_do_with_the_medium_and_no_others() {
        let (medium, other) = (tempfile::NamedTempFile::new().unwrap(), tempfile::tempfile().unwrap());
        let opened = |read, write| File::options().read(read).write(write).open(medium.path()).unwrap();
        let of_medium = medium.as_file();
        assert!(shown(of_medium, &opened(true, true)).unwrap());
        assert!(!shown(of_medium, &opened(true, false)).unwrap(), "a lease for stores");
        let path_alone = rustix::fs::open(medium.path(), OFlags::PATH, rustix::fs::Mode::empty()).unwrap();
        for refused in [&opened(false, true), &other, &File::from(path_alone)] {
            let error = shown(of_medium, refused).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{refused:?}");
        }
    }

    /// The call that has found no space would else find none again: the process asks for as much as it has given back.
    #[test]
    fn room_that_is_taken_back_is_not_leased_before_the_call_is_over() {
        let image = tempfile::NamedTempFile::new().unwrap();
        image.as_file().set_len(16 << 20).unwrap();
        let medium: Arc<dyn Medium> = Arc::new(MappedFile::open(image.path(), Access::Write).unwrap());
        Fs::make(&medium, Geometry::of(medium.len(), 1), false, (0, 0)).unwrap();
        let fs = Arc::new(Fs::mount(medium).unwrap());
        let ino = fs.create(ROOT, b"log", New::File, 0o644, (0, 0)).unwrap().ino;
        let metadata = image.as_file().metadata().unwrap();
        let holders = Arc::new(Holders::new((metadata.dev(), metadata.ino())).unwrap());
        let leases = Leases::new(Arc::clone(&fs), Arc::clone(&holders), Duration::from_secs(60), false);
        // A process that is about to append.
        let (ours, theirs) = UnixStream::pair().unwrap();
        let opened = File::options().read(true).write(true).open(image.path()).unwrap();
        send_with(&theirs, &[0], opened.as_fd()).unwrap();
        let (number, _connection, _alive) = holders.greet(ours).unwrap();
        let slots = File::from(receive_with(&theirs, &mut [0; MESSAGE_BYTES]).unwrap());
        let slots = MappedFile::new(slots, Access::Write).unwrap();
        slots.write(0, &sealed(0, SEED_OF_MEMORY).to_le_bytes());
        let asks = || leases.lease(ino, FileHandle(LOADS | STORES), &Request::to_grow(number, 0)).map(drop);
        asks().unwrap();
        let no_space = || Error::NoSpace { wanted: 1 };
        thread::scope(|scope| {
            scope.spawn(|| match Message::receive(&theirs).unwrap() {
                Message::Recall { ino, from_block, turn } => leases.end_lease(ino, number, from_block, turn),
                other => panic!("{other:?}"),
            });
            let mut calls = 0;
            let again = leases.without_leases(|| {
                calls += 1;
                if calls == 1 { Err(no_space()) } else { Ok(asks()) }
            });
            assert_eq!((again.unwrap(), calls), (Err(libc::EAGAIN), 2));
        });
        asks().unwrap();
        // As many threads as may take room back do that already.
        leases.taking_room_back.store(TAKING_ROOM_BACK_MAX, Ordering::SeqCst);
        let refused = leases.without_leases(|| Err::<(), _>(no_space()));
        assert!(matches!(refused, Err(Error::NoSpace { .. })) && fs.is_growing(ino), "{refused:?}");
    }
}
