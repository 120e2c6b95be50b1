//! userfaultfd with reader threads: a faulting thread sleeps, also in a system call, until a reader thread has resolved its fault.
//! A miss costs two context switches. In return the program is free of the rules for signals, and of most rules for pointers.

use std::io;
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};

use crate::engine::memfd_frames::Tracker;
use crate::engine::reader::{self, BusyCount, Desk};
use crate::engine::refusals::Refusals;
use crate::engine::{DeactivatableFrames, FaultCalls, FaultEngine, MemfdFrames, Prepare};
use crate::options::Engine;
use crate::sys::fault_messages::accept;
use crate::sys::fork::Generation;
use crate::sys::kernel::KernelFeatures;
use crate::sys::reservation::Reservation;
use crate::sys::thread::OwnThread;
use crate::sys::userfaultfd::Userfaultfd;

/// Delivers faults as messages to its own threads. Needs the right to handle faults of system calls.
pub(crate) struct ReaderThreadEngine {
    desk: Arc<Desk>,
    readers: Vec<Reader>,
    /// For ranges whose stores the kernel notes, where it can: it notes them for all ranges of a userfaultfd or none.
    tracker: Option<Tracker>,
    generation: Generation,
}

struct Reader {
    busy: Arc<BusyCount>,
    thread: OwnThread,
}

impl ReaderThreadEngine {
    /// Starts this many reader threads, which read the faults of a userfaultfd and handle them by `calls`.
    pub(crate) fn start(
        userfaultfd: Arc<Userfaultfd>,
        calls: FaultCalls,
        readers: usize,
        features: KernelFeatures,
    ) -> io::Result<Self> {
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let messages =
            |tracking| Userfaultfd::open_for_messages(tracking).map_err(|_| io::ErrorKind::Unsupported.into());
        let tracker = Tracker::open(features, messages).ok();
        let userfaultfds =
            [Some(userfaultfd), tracker.as_ref().map(Tracker::userfaultfd)].into_iter().flatten().collect();
        let mut engine = ReaderThreadEngine {
            desk: Arc::new(Desk { userfaultfds, calls, refusals: Refusals::new(), stop }),
            readers: Vec::with_capacity(readers),
            tracker,
            generation: Generation::of_this_process()?,
        };
        for number in 0..readers {
            // On an error, the drop of the engine ends the threads that already run.
            let busy = Arc::new(BusyCount::default());
            let thread = reader::spawn(number, Arc::clone(&engine.desk), Arc::clone(&busy))?;
            engine.readers.push(Reader { busy, thread });
        }
        Ok(engine)
    }
}

impl FaultEngine for ReaderThreadEngine {
    fn engine(&self) -> Engine {
        Engine::ReaderThread
    }

    fn attach(&self, range: &Reservation) -> io::Result<()> {
        self.desk.userfaultfds[0].register(range.base() as usize, range.len())
    }

    fn deactivatable(
        &self,
        len: usize,
        align: usize,
        prepare: Prepare<'_>,
    ) -> io::Result<(Reservation, Box<dyn DeactivatableFrames>)> {
        let tracker = self.tracker.clone().ok_or(io::ErrorKind::Unsupported)?;
        MemfdFrames::reserve(len, align, tracker, prepare)
    }

    fn handles_faults_in_their_threads(&self) -> bool {
        false
    }

    fn detach(&self, range: &Reservation) {
        // A faulting thread goes on as soon as any reader has resolved its page. It may close the mapping while another reader
        // still handles its message.
        self.readers.iter().for_each(|reader| reader.busy.wait_for_end());
        let start = range.base() as usize;
        self.desk.refusals.forget(start..start + range.len());
    }

    unsafe fn accept(&self, address: usize, len: usize) {
        // If this fails, the refusals end by themselves a little later.
        // SAFETY: the caller vouches that the range is attached, and that none of its pages is in memory or can come there.
        let _ = unsafe { accept(address, len) };
    }
}

impl Drop for ReaderThreadEngine {
    fn drop(&mut self) {
        if !self.generation.is_current() {
            return; // The threads that the event would stop are the parent's.
        }
        if let Err(error) = rustix::io::write(&self.desk.stop, &1_u64.to_ne_bytes()) {
            tracing::error!(%error, "the readers of the cache cannot be told to end");
            return;
        }
        self.readers.drain(..).for_each(|reader| reader.thread.end("a reader of the cache"));
    }
}
