//! Reads of single pages that begin in the calling thread, where they need not wait. This saves a thread switch against
//! a ring, and while one thread installs pages another asks for more.
//!
//! The caller claims the page, with signals blocked until the read is under way. From then on the page belongs to a
//! thread that does nothing but install pages. That thread keeps the rules of a ring's thread, and never has to evict.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::cache::fetch::claim::Claimed;
use crate::cache::fetch::door::Door;
use crate::cache::fetch::request::{Request, Urgency};
use crate::cache::region::Region;
use crate::cache::shared::Shared;
use crate::sys::abort::AbortOnUnwind;
use crate::sys::aio::{Aio, Ended};
use crate::sys::mpsc_queue::{LocalQueue, MpscQueue, Node};
use crate::sys::reservation::Reservation;
use crate::sys::signal::SignalsBlocked;
use crate::sys::thread::{self, OwnThread};
use crate::sys::{PAGE_BYTES, cpu};

/// The reads, and the thread in which they end.
pub(super) struct CallerReads {
    reads: Arc<Reads>,
    thread: OwnThread,
}

struct Reads {
    aio: Aio,
    /// A page for each read that may be under way.
    buffers: Reservation,
    slots: Box<[Slot]>,
}

/// A place for a read under way, with its buffer and its request.
#[derive(Default)]
struct Slot {
    is_taken: AtomicBool,
    request: MpscQueue<Request>,
}

impl CallerReads {
    /// For this many pages under way. A read that would have to wait goes through the door, to the thread of the ring.
    pub(super) fn start(
        shared: &Arc<Shared>,
        pages: u32,
        door: &Arc<Door>,
        spent: &Arc<MpscQueue<Request>>,
    ) -> io::Result<Self> {
        let mut buffers = Reservation::zeroed(pages as usize * PAGE_BYTES, PAGE_BYTES)?;
        // A fork during a read into a buffer must not leave the device's bytes with the child.
        buffers.leave_out_on_fork()?;
        buffers.small_pages_only()?;
        let slots = std::iter::repeat_with(Slot::default).take(pages as usize).collect();
        let reads = Arc::new(Reads { aio: Aio::new(pages)?, buffers, slots });
        let mut ended = Ended::of(pages);
        let (shared, at_door, spent, ours) =
            (Arc::clone(shared), Arc::clone(door), Arc::clone(spent), Arc::clone(&reads));
        let thread = thread::spawn("vmio-fetch-end", move || {
            // Without this thread, threads of the program would sleep for ever.
            let _must_go_on = AbortOnUnwind::new();
            // A region's reference to the shared state must never be the last one here.
            let _shared = shared;
            let mut request = LocalQueue::default();
            loop {
                match ours.aio.wait(&mut ended, |slot, result| ours.end(slot, result, &mut request, &at_door, &spent)) {
                    Ok(true) => {}
                    Ok(false) => return,
                    // Not logged: a subscriber may take locks, and this thread owns pages.
                    Err(_) => std::thread::sleep(std::time::Duration::from_millis(10)),
                }
            }
        })?;
        Ok(CallerReads { reads, thread })
    }

    /// Begins the read of a request for one page of a region. Gives the request back if it has to wait, or needs more
    /// than a read.
    pub(super) fn begin(&self, region: &Region, mut request: Node<Request>) -> Option<Node<Request>> {
        let reads = &*self.reads;
        let wanted = request.only_page().filter(|_| request.urgency == Urgency::Wanted);
        let (Some(page), Some(file)) = (wanted, region.backing.direct_reads()) else { return Some(request) };
        let limit = shares(region.shared.pages_in_flight()).0 as usize;
        let Some(at) = reads.take_slot(limit) else { return Some(request) };
        let slot = &reads.slots[at];
        // A signal handler that touches the page would wait for this very thread.
        let signals = SignalsBlocked::new();
        let claimed = region.claim(cpu::current(), page, 1, Urgency::Wanted);
        if !matches!(claimed, Claimed::Absent(_)) {
            drop(signals);
            slot.release();
            if !matches!(claimed, Claimed::Present(_)) {
                return Some(request);
            }
            request.finish();
            return None;
        }
        slot.request.push(request);
        // SAFETY: the slot is taken for this read; the request keeps the region open, and with it the file.
        let begun = unsafe { reads.aio.read(at as u64, file, reads.buffer(at), page * PAGE_BYTES as u64) };
        if begun.is_ok() {
            return None;
        }
        region.fail_charged_loads(page..page + 1);
        drop(signals);
        let request = slot.take_request(&mut LocalQueue::default());
        slot.release();
        request
    }

    /// Ends the thread. No request is left.
    pub(super) fn stop(self) {
        if let Err(error) = self.reads.aio.stop() {
            return tracing::error!(%error, "a thread that fetches pages cannot be ended");
        }
        self.thread.end("a thread that fetches pages");
    }
}

/// How many of the pages that may be under way are for reads that begin in callers, and how many for reads of the ring.
pub(super) fn shares(pages_in_flight: u32) -> (u32, u32) {
    let of_callers = pages_in_flight / 2;
    (of_callers, pages_in_flight - of_callers)
}

impl Reads {
    fn take_slot(&self, limit: usize) -> Option<usize> {
        let mut slots = self.slots.iter().take(limit);
        slots.position(|slot| !slot.is_taken.load(Ordering::Relaxed) && !slot.is_taken.swap(true, Ordering::Acquire))
    }

    fn buffer(&self, slot: usize) -> *mut [u8] {
        let start = self.buffers.base().wrapping_add(slot * PAGE_BYTES);
        std::ptr::slice_from_raw_parts_mut(start, PAGE_BYTES)
    }

    /// Installs a page that was read, and tells the threads that wait for it. A read that could not begin without
    /// waiting goes to the ring.
    fn end(&self, token: u64, result: i32, queue: &mut LocalQueue<Request>, door: &Door, spent: &MpscQueue<Request>) {
        let at = token as usize;
        let slot = &self.slots[at];
        let Some(mut request) = slot.take_request(queue) else { return };
        let page = request.only_page();
        if let (Some(page), Some(region)) = (page, request.region()) {
            if result == -libc::EAGAIN {
                region.fail_charged_loads(page..page + 1);
                slot.release();
                return door.submit(request);
            }
            // SAFETY: the slot was taken for this read, which has ended.
            let data = unsafe { &mut *self.buffer(at) };
            if let Some((page, why)) = region.settle_fetched(cpu::current(), page, data, result) {
                request.fail(page, why);
            }
        }
        slot.release();
        request.abandon();
        request.finish();
        spent.push(request);
    }
}

impl Slot {
    fn take_request(&self, queue: &mut LocalQueue<Request>) -> Option<Node<Request>> {
        self.request.take_all(queue);
        queue.pop_front()
    }

    fn release(&self) {
        self.is_taken.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::backing::{Access, FileBacking};
    use crate::cache::fetch::outcome::Outcome;
    use crate::cache::fetch::request::FetchedRegion;
    use crate::cache::region::REGIONS;
    use crate::{Cache, Mapping, MappingOptions};

    #[test]
    fn single_absent_pages_begin_and_all_else_is_given_back() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&[7; 8 * PAGE_BYTES]).unwrap();
        file.as_file().sync_data().unwrap();
        let flags = rustix::io::ReadWriteFlags::NOWAIT;
        if rustix::io::preadv2(&file, &mut [std::io::IoSliceMut::new(&mut [0])], 0, flags).is_err() {
            return test_depth::skipped("the file system cannot say whether a read would have to wait");
        }
        let cache = Cache::builder().capacity(64 << 20).build().unwrap();
        let backing = FileBacking::open(file.path(), Access::ReadOnly).unwrap();
        let map = Mapping::open(&cache, backing, MappingOptions::new()).unwrap();
        let region = REGIONS.find(map.as_ptr() as usize).unwrap();
        let (door, spent) = (Arc::new(Door::new().unwrap()), Arc::default());
        let Ok(reads) = CallerReads::start(&region.shared, 2, &door, &spent) else {
            return test_depth::skipped("no Linux AIO");
        };
        let begins = |pages, urgency| {
            let outcome = Arc::new(Outcome::of_parts(1));
            let request = Request::new(FetchedRegion::new(region), vec![pages], urgency, Some(Arc::clone(&outcome)));
            reads.begin(region, Node::new(request)).is_none().then_some(outcome)
        };
        assert!(begins(0..2, Urgency::Wanted).is_none());
        assert!(begins(0..1, Urgency::Guessed).is_none());
        region.begin_load(3).unwrap();
        assert!(begins(3..4, Urgency::Wanted).is_none(), "it is in the hands of another");
        region.fail_load(3);
        for slot in &reads.reads.slots {
            slot.is_taken.store(true, Ordering::SeqCst);
        }
        assert!(begins(0..1, Urgency::Wanted).is_none(), "there is no buffer");
        reads.reads.slots.iter().for_each(Slot::release);
        let mut queue = LocalQueue::default();
        let mut is_served = || {
            let outcome = begins(5..6, Urgency::Wanted).expect("absent");
            while outcome.poll(std::task::Waker::noop()).is_pending() {
                door.requests.take_all(&mut queue);
                if queue.pop_front().is_some() {
                    return false;
                }
                std::thread::yield_now();
            }
            true
        };
        // Where the device is busy a read would have to wait, and its request comes to the door. The next one begins anew.
        let mut came_back = 0;
        while !is_served() {
            came_back += 1;
            assert!(came_back < 100, "each read would have had to wait");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        assert!(region.table.is_active(5));
        let outcome = begins(5..6, Urgency::Wanted).expect("present");
        assert!(outcome.poll(std::task::Waker::noop()).is_ready());
        reads.stop();
    }
}
