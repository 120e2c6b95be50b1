//! One reader thread: takes fault messages, has the faults resolved, wakes the threads that wait.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use rustix::event::{Timespec, epoll};

use crate::engine::FaultCalls;
use crate::engine::refusals::Refusals;
use crate::sys::PAGE_BYTES;
use crate::sys::abort::AbortOnUnwind;
use crate::sys::fault_messages::{Fault, accept};
use crate::sys::futex;
use crate::sys::signal::{FaultAccess, Resolution};
use crate::sys::thread::{self, OwnThread};
use crate::sys::userfaultfd::Userfaultfd;

const FAULT: u64 = 0;
const STOP: u64 = 1;

/// What the readers of an engine share.
pub(super) struct Desk {
    /// For stores that trap, and for stores that the kernel tracks, if it can.
    pub(super) userfaultfds: Vec<Arc<Userfaultfd>>,
    pub(super) calls: FaultCalls,
    pub(super) refusals: Refusals,
    /// Readable once the readers are to end.
    pub(super) stop: OwnedFd,
}

/// Starts a reader. It ends when the desk's `stop` becomes readable.
pub(super) fn spawn(number: usize, desk: Arc<Desk>, busy: Arc<BusyCount>) -> io::Result<OwnThread> {
    let events = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    // One sleeping reader is woken for a fault, not all of them.
    let one_of_us = epoll::EventFlags::IN | epoll::EventFlags::EXCLUSIVE;
    for userfaultfd in &desk.userfaultfds {
        epoll::add(&events, userfaultfd.fd(), epoll::EventData::new_u64(FAULT), one_of_us)?;
    }
    epoll::add(&events, &desk.stop, epoll::EventData::new_u64(STOP), epoll::EventFlags::IN)?;
    thread::spawn(format!("vmio-reader-{number}"), move || {
        // Without its readers the threads of the program would sleep for ever.
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
        // Begun before the message is taken: no fault is missed in between.
        let _busy = self.busy.begin();
        let Some(Fault { address, access }) = userfaultfd.next_fault() else { return false };
        if (self.desk.calls.resolve)(address, access) == Resolution::Declined {
            self.refuse(userfaultfd, address);
        }
        userfaultfd.wake(address);
        true
    }

    /// Makes the access to a page that is not available fail. If it has become resident meanwhile, its thread finds that
    /// out by itself.
    fn refuse(&self, userfaultfd: &Userfaultfd, address: usize) {
        let mut refused = Ok(());
        if (self.desk.calls.while_absent)(address, &mut || refused = userfaultfd.refuse(address))
            && refused.is_ok()
            && let Some(oldest) = self.desk.refusals.add(address)
        {
            self.accept(oldest);
        }
    }

    /// Ends a refusal that has stood for long enough; false if there is none.
    fn end_refusal(&self) -> bool {
        // Begun before it is taken from the list: whoever unmaps the page waits for this.
        let _busy = self.busy.begin();
        let Some(address) = self.desk.refusals.take_ended() else { return false };
        self.accept(address);
        true
    }

    /// Makes accesses to a refused page faults again. A page that is in memory is refused no longer, once it is mapped
    /// at this address.
    fn accept(&self, address: usize) {
        let is_absent = (self.desk.calls.while_absent)(address, &mut || {
            // SAFETY: the page is absent and stays so: it has no contents. Its range is registered: the address was
            // taken from the list while this reader counts as busy, and who unmaps a range waits for that, then takes it off the list.
            let _ = unsafe { accept(address, PAGE_BYTES) };
        });
        if !is_absent {
            (self.desk.calls.resolve)(address, FaultAccess::Load);
        }
    }
}

/// Odd while a reader handles a fault; it rises by one at the beginning and at the end.
#[derive(Default)]
pub(super) struct BusyCount(AtomicU32);

impl BusyCount {
    fn begin(&self) -> Busy<'_> {
        self.0.fetch_add(1, Ordering::SeqCst);
        // A thread that removes a region from the table of faults, and then reads the count, finds the reader busy; or the
        // reader, whose count rose after that, does not find the region.
        fence(Ordering::SeqCst);
        Busy(self)
    }

    /// Waits until a fault that is being handled has been.
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
