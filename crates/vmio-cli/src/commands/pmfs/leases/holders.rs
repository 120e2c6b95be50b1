//! The processes that may hold leases, each by its connection to the server.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::FileExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::{PidfdFlags, pidfd_open};
use vmio_pmfs_protocol::{Message, SLOT_BYTES};

use super::Leases;

/// The most processes that hold leases at the same time.
const HOLDERS_MAX: usize = 4096;
/// A connection's thread does little.
const STACK_BYTES: usize = 128 << 10;
/// A message is shorter than the buffer of any connection: a holder that does not take it in time does not read at all.
const SENT_WITHIN: Duration = Duration::from_millis(100);
/// A process whose connection has ended since it was killed is gone soon.
const ENDED_WITHIN: Duration = Duration::from_secs(1);

/// The processes that may hold leases.
pub struct Holders {
    socket: Vec<u8>,
    listener: UnixListener,
    all: Mutex<HashMap<u64, Holder>>,
}

struct Holder {
    connection: UnixStream,
    process: i32,
    /// The lengths of its growing files.
    slots: Option<Arc<File>>,
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
    /// Makes the server's socket, under a name that is its own.
    pub fn new() -> io::Result<Holders> {
        let socket = format!("vmio-pmfs-{:016x}", random()?).into_bytes();
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&socket)?)?;
        Ok(Holders { socket, listener, all: Mutex::default() })
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
                let accepted = connection.and_then(|connection| holders.accept(connection, &leases));
                if let Err(error) = accepted {
                    tracing::warn!(%error, "a process gets no leases");
                }
            }
        };
        thread::Builder::new().name("pmfs-holders".to_owned()).stack_size(STACK_BYTES).spawn(accept)?;
        Ok(())
    }

    fn accept(self: &Arc<Self>, connection: UnixStream, leases: &Arc<Leases>) -> io::Result<()> {
        if self.lock().len() >= HOLDERS_MAX {
            return Err(io::Error::other(format!("there are {HOLDERS_MAX} holders of leases already")));
        }
        let process = rustix::net::sockopt::socket_peercred(&connection)?.pid;
        let alive = pidfd_open(process, PidfdFlags::empty())?;
        let process = process.as_raw_nonzero().get();
        // Nobody guesses it: by its number a holder gives leases back.
        let number = random()?;
        connection.set_write_timeout(Some(SENT_WITHIN))?;
        let messages = connection.try_clone()?;
        self.lock().insert(number, Holder { connection, process, slots: None, files: BTreeSet::new(), is_lost: false });
        let (holders, leases) = (Arc::clone(self), Arc::clone(leases));
        let serve = move || holders.serve_one(number, &messages, &alive, &leases);
        let spawned = thread::Builder::new().name("pmfs-holder".to_owned()).stack_size(STACK_BYTES).spawn(serve);
        if spawned.is_err() {
            self.lock().remove(&number);
        }
        spawned.map(drop)
    }

    /// Takes a holder's messages until it is gone.
    fn serve_one(&self, number: u64, messages: &UnixStream, alive: &OwnedFd, leases: &Leases) {
        let has_left = self.receive(number, messages, leases).is_ok();
        if !has_left && !has_ended(alive, Some(ENDED_WITHIN)) {
            // It has closed the connection, and may still store to what it had.
            leases.revoke(number);
            has_ended(alive, None);
        }
        // From here on it is granted nothing. Its memory stays until the lengths there are known.
        let files = self.lock().get_mut(&number).map(|holder| {
            holder.is_lost = true;
            std::mem::take(&mut holder.files)
        });
        leases.gone(number, files.unwrap_or_default());
        self.lock().remove(&number);
    }

    /// Takes a holder's messages until it has left; an error if the connection ends before.
    fn receive(&self, number: u64, messages: &UnixStream, leases: &Leases) -> io::Result<()> {
        Message::Hello { holder: number }.send(messages)?;
        let slots = Arc::new(receive_slots(messages)?);
        if let Some(holder) = self.lock().get_mut(&number) {
            holder.slots = Some(slots);
        }
        loop {
            match Message::receive(messages)? {
                Message::Returned { ino, from_block } => leases.returned(ino, number, from_block),
                Message::Left => return Ok(()),
                Message::Hello { .. } | Message::Recall { .. } => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
    }

    /// Notes that a holder is about to have a lease of a file; false if there is no such holder.
    pub fn will_hold(&self, number: u64, ino: u64) -> bool {
        self.lock().get_mut(&number).filter(|holder| !holder.is_lost).map(|holder| holder.files.insert(ino)).is_some()
    }

    /// Notes that a holder has no lease of a file any more.
    pub fn holds_no_more(&self, number: u64, ino: u64) {
        if let Some(holder) = self.lock().get_mut(&number) {
            holder.files.remove(&ino);
        }
    }

    /// Asks a holder for a lease.
    pub fn recall(&self, number: u64, ino: u64, from_block: u32) {
        let Some(Ok(connection)) = self.lock().get(&number).map(|holder| holder.connection.try_clone()) else { return };
        if let Err(error) = (Message::Recall { ino, from_block }).send(&connection) {
            tracing::warn!(%error, number, "a process cannot be asked for a lease");
        }
    }

    /// The length that a holder has stored in a slot, as long as it is there.
    pub fn length(&self, number: u64, slot: u32) -> Option<u64> {
        let slots = self.lock().get(&number)?.slots.clone()?;
        let mut bytes = [0; SLOT_BYTES];
        slots.read_exact_at(&mut bytes, u64::from(slot) * SLOT_BYTES as u64).ok()?;
        Some(u64::from_ne_bytes(bytes))
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

/// Receives the descriptor of a holder's memory.
fn receive_slots(from: &UnixStream) -> io::Result<File> {
    let (mut byte, mut space) = ([0], [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))]);
    let mut control = RecvAncillaryBuffer::new(&mut space);
    recvmsg(from, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut received = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let descriptor = received.next().and_then(|mut descriptors| descriptors.next());
    descriptor.map(File::from).ok_or_else(|| io::ErrorKind::InvalidData.into())
}
