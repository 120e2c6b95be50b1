//! One reader thread: takes fault messages, has the faults resolved, and wakes the waiting threads.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use rustix::event::{Timespec, epoll};
use vmio_core::futex;

use crate::engine::FaultCalls;
use crate::engine::refusals::Refusals;
use crate::sys::PAGE_BYTES;
use crate::sys::abort::AbortOnUnwind;
use crate::sys::fault_messages::{Fault, accept};
use crate::sys::signal::{FaultAccess, Resolution};
use crate::sys::thread::{self, OwnThread};
use crate::sys::userfaultfd::Userfaultfd;

const FAULT: u64 = 0;
const STOP: u64 = 1;

/// The part that the readers of an engine share.
pub(super) struct Desk {
    /// The userfaultfds for stores that trap and, if the kernel can, for stores that it tracks.
    pub(super) userfaultfds: Vec<Arc<Userfaultfd>>,
    pub(super) calls: FaultCalls,
    pub(super) refusals: Refusals,
    /// Readable once the readers have to end.
    pub(super) stop: OwnedFd,
}

/// Starts a reader. It ends when the desk's `stop` becomes readable.
pub(super) fn spawn(number: usize, desk: Arc<Desk>, busy: Arc<BusyCount>) -> io::Result<OwnThread> {
    let events = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    // A fault wakes one sleeping reader, not all of them.
    let one_of_us = epoll::EventFlags::IN | epoll::EventFlags::EXCLUSIVE;
    for userfaultfd in &desk.userfaultfds {
        epoll::add(&events, userfaultfd.fd(), epoll::EventData::new_u64(FAULT), one_of_us)?;
    }
    epoll::add(&events, &desk.stop, epoll::EventData::new_u64(STOP), epoll::EventFlags::IN)?;
    thread::spawn(format!("vmio-reader-{number}"), move || {
        // Without readers the threads of the program would sleep for ever.
        let _must_go_on = AbortOnUnwind::new();
        Reader { desk, events, busy }.run();
    })
}

struct Reader {
    desk: Arc<Desk>,
    events: OwnedFd,
    busy: Arc<BusyCount>,
}

impl Reader {
    fn run(&self) {
        while self.wait() {
            while self.desk.userfaultfds.iter().any(|userfaultfd| self.handle_next(userfaultfd)) {}
            while self.end_refusal() {}
        }
    }

    /// Sleeps until there is a fault, or a refusal to end; false once the engine stops.
    fn wait(&self) -> bool {
        let limit = self.desk.refusals.time_left();
        let limit = limit.map(|left| Timespec { tv_sec: 0, tv_nsec: i64::from(left.subsec_nanos()) });
        let mut ready = [MaybeUninit::<epoll::Event>::uninit(); 3];
        match epoll::wait(&self.events, &mut ready, limit.as_ref()) {
            Ok((ready, _)) => ready.iter().all(|event| event.data.u64() != STOP),
            // Interrupted, by a debugger for example.
            Err(_) => true,
        }
    }

    /// Handles one fault; false if there is none.
    fn handle_next(&self, userfaultfd: &Userfaultfd) -> bool {
        // Begins before the message is taken, so that `wait_for_end` misses no fault in between.
        let _busy = self.busy.begin();
        let Some(Fault { address, access }) = userfaultfd.next_fault() else { return false };
        if (self.desk.calls.resolve)(address, access) == Resolution::Declined {
            self.refuse(userfaultfd, address);
        }
        userfaultfd.wake(address);
        true
    }

    /// Makes the access to an unavailable page fail. If the page has become resident meanwhile, the faulting thread finds that out
    /// by itself.
    fn refuse(&self, userfaultfd: &Userfaultfd, address: usize) {
        let mut refused = Ok(());
        if (self.desk.calls.while_absent)(address, &mut || refused = userfaultfd.refuse(address))
            && refused.is_ok()
            && let Some(oldest) = self.desk.refusals.add(address)
        {
            self.accept(oldest);
        }
    }

    /// Ends a refusal whose time is over; false if there is none.
    fn end_refusal(&self) -> bool {
        // Begins before the address leaves the list: a thread that unmaps the page waits for this.
        let _busy = self.busy.begin();
        let Some(address) = self.desk.refusals.take_ended() else { return false };
        self.accept(address);
        true
    }

    /// Makes accesses to a refused page faults again. For a page in memory, mapping it at this address ends the refusal.
    fn accept(&self, address: usize) {
        let is_absent = (self.desk.calls.while_absent)(address, &mut || {
            // SAFETY: the page is absent and stays so: it has no contents. Its range is registered: this reader counted as busy
            // when it took the address from the list. A thread that unmaps a range waits for busy readers, then takes its addresses
            // off the list.
            let _ = unsafe { accept(address, PAGE_BYTES) };
        });
        if !is_absent {
            (self.desk.calls.resolve)(address, FaultAccess::Load);
        }
    }
}

/// A count that is odd while a reader handles a fault: it rises by one at the beginning and at the end.
#[derive(Default)]
pub(super) struct BusyCount(AtomicU32);

impl BusyCount {
    fn begin(&self) -> Busy<'_> {
        self.0.fetch_add(1, Ordering::SeqCst);
        // A thread removes a region from the table of faults, and then reads the count. Either it finds the reader busy, or the
        // reader's count rose later, and the reader does not find the region.
        fence(Ordering::SeqCst);
        Busy(self)
    }

    /// Waits for the end of the fault that the reader handles, if there is one.
    pub(super) fn wait_for_end(&self) {
        fence(Ordering::SeqCst);
        let seen = self.0.load(Ordering::SeqCst);
        while seen % 2 == 1 && self.0.load(Ordering::SeqCst) == seen {
            futex::wait(&self.0, seen);
        }
    }
}

struct Busy<'a>(&'a BusyCount);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_add(1, Ordering::SeqCst);
        futex::wake_all(&self.0.0);
    }
}
