//! A thread that fetches pages through a ring of its own: it claims them, reads them, installs them, and tells the waiting
//! threads.
//!
//! While the thread owns page words, and it hardly ever owns none, it allocates and frees nothing, takes no lock that the program
//! may hold, touches no mapped memory, and waits for finite work only. Threads that ask for more pages free its finished
//! requests. The one exception is a waker, which is the program's code: see [`crate::Mapping::fetch`].

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::time::Duration;

use crate::cache::evictor::Evictor;
use crate::cache::fault_error::FaultError;
use crate::cache::fetch::caller_reads::{CallerReads, shares};
use crate::cache::fetch::claim::Claimed;
use crate::cache::fetch::door::Door;
use crate::cache::fetch::read_buffers::{ReadBuffers, Run};
use crate::cache::fetch::request::{FetchedRegion, Request, Urgency};
use crate::cache::fruitless_rounds::{FruitlessRounds, PATIENCE_ABOVE_FLOORS, WRITES_FAIL};
use crate::cache::merge_buffers::DIRECT_PAGES;
use crate::cache::page_buffers::WINDOW_PAGES_MAX;
use crate::cache::pass::Goal;
use crate::cache::region::Region;
use crate::cache::shared::Shared;
use crate::cache::tables::TABLE_PAGES;
use crate::sys::abort::AbortOnUnwind;
use crate::sys::mpsc_queue::{LocalQueue, MpscQueue, Node};
use crate::sys::ring::Ring;
use crate::sys::thread::{self, OwnThread};
use crate::sys::{PAGE_BYTES, cpu};
use crate::telemetry::counters::Counter;

/// How long to leave a page alone that another thread owns.
const BUSY: Duration = Duration::from_micros(50);
/// How long to wait for a page of the budget before looking again.
const SHORT: Duration = Duration::from_millis(1);

/// The thread sleeps until one in this many of the reads under way has ended: with many reads, a wake-up for each is most of the
/// work.
const WAKE_UP_SHARE: u32 = 8;
/// The thread installs this many reads that have ended together. Then it tells the threads that wait for them, and begins the
/// reads that these ask for next: devices answer in bursts, and should not lie idle until a whole burst is installed.
const INSTALLED_AT_A_TIME: u32 = 4;

/// The thread, and the way to it.
pub(super) struct RingFetcher {
    door: Arc<Door>,
    thread: OwnThread,
    /// Reads that need not go through the ring.
    caller_reads: Option<CallerReads>,
}

impl RingFetcher {
    /// Starts a fetcher with up to this many pages under way. Finished requests go to `spent`.
    pub(super) fn start(shared: &Arc<Shared>, pages: u32, spent: &Arc<MpscQueue<Request>>) -> io::Result<Self> {
        let door = Arc::new(Door::new()?);
        let (made, is_made) = mpsc::sync_channel(1);
        let (of_callers, of_ring) = shares(pages);
        let (of_both, spent_by_ring, at_door) = (Arc::clone(shared), Arc::clone(spent), Arc::clone(&door));
        let thread = thread::spawn("vmio-fetch", move || {
            let fetching = Fetching::new(of_both, at_door, spent_by_ring, of_ring);
            let started = fetching.map(|fetching| (made.send(Ok(())), fetching)).map_err(|error| made.send(Err(error)));
            if let Ok((_, mut fetching)) = started {
                // Without this thread, threads of the program would sleep for ever.
                let _must_go_on = AbortOnUnwind::new();
                fetching.run();
            }
        })?;
        match is_made.recv() {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Err(error),
            Err(_) => return Err(io::Error::other("the thread has panicked")),
        }
        let caller_reads = (of_callers > 0).then(|| CallerReads::start(shared, of_callers, &door, spent));
        let caller_reads = caller_reads.transpose().unwrap_or_else(|error| {
            tracing::debug!(%error, "no Linux AIO: all pages are fetched by the thread of the ring");
            None
        });
        Ok(RingFetcher { door, thread, caller_reads })
    }

    /// Begins a request for pages of a region, or passes it to the thread.
    pub(super) fn submit(&self, region: &Region, request: Request) {
        let request = Node::new(request);
        let left = match &self.caller_reads {
            Some(reads) => reads.begin(region, request),
            None => Some(request),
        };
        if let Some(request) = left {
            self.door.submit(request);
        }
    }

    /// Ends the threads. No request is left.
    pub(super) fn stop(self) {
        self.caller_reads.into_iter().for_each(CallerReads::stop);
        self.door.stopping.store(true, Ordering::SeqCst);
        self.door.wake.wake();
        self.thread.end("a thread that fetches pages");
    }
}

/// A read under way.
#[derive(Clone, Copy)]
struct Read {
    /// Its request's place in the table.
    request: usize,
    page: u64,
    run: Run,
}

/// The result of a look at a place in the table.
enum Progress {
    /// A read has begun, or a request has ended.
    Made,
    /// There is nothing to do but wait for reads.
    None,
    /// Another thread owns a page.
    Busy,
    /// As many pages are under way as may be.
    Full,
    /// There is no budget.
    Short,
}

/// The result of evicting for a request.
enum Room {
    /// There are free pages now, or the request has ended.
    Made,
    /// Its mapping is at its ceiling and had nothing to give up.
    NoneInMapping,
    /// No mapping had anything to give up.
    None,
}

struct Fetching {
    shared: Arc<Shared>,
    door: Arc<Door>,
    spent: Arc<MpscQueue<Request>>,
    ring: Ring,
    buffers: ReadBuffers,
    /// The reads under way, by the first page of their buffers.
    reads: Vec<Option<Read>>,
    under_way: u32,
    /// Requests that wait for a place in the table.
    pending: LocalQueue<Request>,
    /// The requests that the thread works on. A place is empty, or its request is not finished.
    table: Vec<Option<Node<Request>>>,
    /// The empty places of the table.
    places: Vec<usize>,
    /// Places of requests that have pages left to look at, the next one first.
    round_robin: VecDeque<usize>,
    finished: LocalQueue<Request>,
    evictor: Evictor,
    fruitless: FruitlessRounds,
}

impl Fetching {
    fn new(shared: Arc<Shared>, door: Arc<Door>, spent: Arc<MpscQueue<Request>>, pages: u32) -> io::Result<Self> {
        let (mut ring, buffers) = (Ring::new(pages, Arc::clone(&door.wake))?, ReadBuffers::new(pages)?);
        // SAFETY: reads go to runs that are taken, and nobody looks at those.
        unsafe { ring.register(buffers.all()) };
        let evictor = Evictor::new(DIRECT_PAGES, &shared.write_back.merge_buffers)?;
        let requests = pages as usize;
        Ok(Fetching {
            shared,
            door,
            spent,
            ring,
            buffers,
            reads: vec![None; pages as usize],
            under_way: 0,
            pending: LocalQueue::default(),
            table: std::iter::repeat_with(|| None).take(requests).collect(),
            places: (0..requests).rev().collect(),
            round_robin: VecDeque::with_capacity(requests),
            finished: LocalQueue::default(),
            evictor,
            fruitless: FruitlessRounds::new(),
        })
    }

    fn run(&mut self) {
        loop {
            let limit = self.begin_reads();
            self.tell();
            if self.door.stopping.load(Ordering::SeqCst) && self.buffers.are_free() && self.pending.is_empty() {
                return;
            }
            let door = &self.door;
            let enough = self.under_way / WAKE_UP_SHARE;
            self.ring.sleep(limit, enough, || !door.requests.is_empty() || door.stopping.load(Ordering::SeqCst));
            self.end_reads();
        }
    }

    /// Installs the pages of all reads that have ended.
    fn end_reads(&mut self) {
        let mut installed = 0;
        while let Some((token, result)) = self.ring.completed() {
            self.end_read(token as usize, result);
            installed += 1;
            if installed % INSTALLED_AT_A_TIME == 0 {
                self.tell();
                self.begin_reads();
                self.ring.submit();
            }
        }
        self.tell();
    }

    /// Begins the reads that can begin, one of each request, round-robin. Returns how long the ring may sleep, if not for ever.
    fn begin_reads(&mut self) -> Option<Duration> {
        self.door.requests.take_all(&mut self.pending);
        let mut limit = None;
        let mut idle = 0;
        self.fill_table();
        while idle < self.round_robin.len()
            && let Some(at) = self.round_robin.front().copied()
        {
            match self.work_on(at) {
                Progress::Made => idle = 0,
                Progress::None => idle += 1,
                Progress::Busy => {
                    limit = Some(BUSY);
                    idle += 1;
                }
                Progress::Full => return limit,
                Progress::Short => match self.make_room(at) {
                    Room::Made => idle = 0,
                    Room::NoneInMapping => {
                        // The other requests need not wait for this one.
                        limit = Some(SHORT);
                        idle += 1;
                    }
                    Room::None => return Some(SHORT),
                },
            }
            self.round_robin.pop_front();
            if self.table[at].as_mut().is_some_and(|request| request.next_pages().is_some()) {
                self.round_robin.push_back(at);
            }
            self.fill_table();
        }
        limit
    }

    /// Moves requests that have not begun to the empty places of the table.
    fn fill_table(&mut self) {
        while let Some(at) = self.places.last().copied()
            && let Some(request) = self.pending.pop_front()
        {
            self.places.pop();
            self.table[at] = Some(request);
            self.round_robin.push_back(at);
        }
    }

    /// Claims the next absent pages of a request and begins their read.
    fn work_on(&mut self, at: usize) -> Progress {
        let core = cpu::current();
        let limit = shares(self.shared.pages_in_flight()).1.min(self.buffers.pages());
        while let Some(request) = self.table[at].as_mut() {
            let Some((page, wanted)) = request.next_pages() else {
                return if self.finish_if_through(at) { Progress::Made } else { Progress::None };
            };
            if request.region().is_none_or(FetchedRegion::is_closing) {
                request.abandon();
                continue;
            }
            if request.urgency == Urgency::Guessed && self.buffers.taken() >= (limit / 2).max(1) {
                return Progress::None;
            }
            // A cache that has shrunk may have more under way than it would begin.
            let room = limit.saturating_sub(self.buffers.taken()).min(WINDOW_PAGES_MAX as u32);
            let Some(mut run) = (room > 0).then(|| self.buffers.find(wanted.min(room.into()) as u32)).flatten() else {
                return Progress::Full;
            };
            let claimed = request.region().map(|region| region.claim(core, page, run.pages.into(), request.urgency));
            match claimed {
                None => {}
                Some(Claimed::Present(pages)) => request.advance(pages),
                // The end of a read of ours wakes us anyway.
                Some(Claimed::Busy) => return if self.is_read(at, page) { Progress::None } else { Progress::Busy },
                Some(Claimed::Short) if request.urgency == Urgency::Guessed => request.abandon(),
                Some(Claimed::Short) => return Progress::Short,
                Some(Claimed::Failed(why)) => {
                    request.fail(page, why);
                    request.advance(if why == FaultError::BeyondEnd { wanted } else { 1 });
                }
                Some(Claimed::Absent(pages)) => {
                    run.pages = pages as u32;
                    self.begin_read(at, page, run);
                    return Progress::Made;
                }
            }
        }
        Progress::None
    }

    /// Whether a page of a request's region is being read here.
    fn is_read(&self, at: usize, page: u64) -> bool {
        let region_of = |at: usize| self.table[at].as_ref()?.region().map(|region| std::ptr::from_ref(&**region));
        self.reads.iter().flatten().any(|read| {
            (read.page..read.page + u64::from(read.run.pages)).contains(&page)
                && region_of(read.request) == region_of(at)
        })
    }

    fn begin_read(&mut self, at: usize, page: u64, run: Run) {
        let Some(request) = self.table[at].as_mut() else { return };
        self.buffers.take(run);
        self.reads[run.first as usize] = Some(Read { request: at, page, run });
        self.under_way += 1;
        request.reads += 1;
        request.advance(run.pages.into());
        match request.region().and_then(|region| region.backing.direct_reads()) {
            // SAFETY: the run was taken for this read, and the file is the region's, which the request keeps open.
            Some(file) => unsafe {
                self.ring.read(run.first.into(), file, self.buffers.bytes(run), page * PAGE_BYTES as u64)
            },
            None => self.end_read(run.first as usize, -libc::EBADF),
        }
    }

    /// Installs the pages of a read that has ended.
    fn end_read(&mut self, first: usize, result: i32) {
        let Some(Read { request: at, page, run }) = self.reads[first].take() else { return };
        self.under_way -= 1;
        if let Some(request) = self.table[at].as_mut() {
            // SAFETY: the run was taken for this read, which has ended.
            let data = unsafe { &mut *self.buffers.bytes(run) };
            let failed = request.region().and_then(|region| region.settle_fetched(cpu::current(), page, data, result));
            if let Some((page, why)) = failed {
                request.fail(page, why);
            }
            request.reads -= 1;
        }
        self.buffers.release(run);
        self.finish_if_through(at);
    }

    fn finish_if_through(&mut self, at: usize) -> bool {
        if let Some(request) = self.table[at].as_mut()
            && request.reads == 0
            && request.next_pages().is_none()
            && let Some(request) = self.table[at].take()
        {
            self.finished.push_back(request);
            self.places.push(at);
            return true;
        }
        false
    }

    /// Tells the threads that wait for finished requests.
    fn tell(&mut self) {
        while let Some(mut request) = self.finished.pop_front() {
            request.finish();
            self.spent.push(request);
        }
    }

    /// Evicts for a request, as a fault does for itself.
    fn make_room(&mut self, at: usize) -> Room {
        let shared = &*self.shared;
        shared.telemetry.count(cpu::current(), Counter::DirectReclaims, 1);
        let Some(request) = self.table[at].as_mut() else { return Room::Made };
        let tenant = request.region().and_then(|region| region.at_ceiling(1 + TABLE_PAGES));
        if let Some(tenant) = tenant {
            let goal = if request.rounds_at_ceiling > 1 { Goal::EvictHard } else { Goal::EVICT };
            if self.evictor.pass_of(shared, tenant, tenant.batch_pages(), goal).freed > 0 {
                request.rounds_at_ceiling = 0;
                return Room::Made;
            }
            request.rounds_at_ceiling += 1;
            if SHORT * request.rounds_at_ceiling > PATIENCE_ABOVE_FLOORS {
                request.urgency = Urgency::Overdue;
            }
            return Room::NoneInMapping;
        }
        shared.workers.wake(true);
        // Time in which nothing had to be evicted does not count.
        if self.fruitless.count() == 0 {
            self.fruitless.end();
        }
        let pass = self.evictor.pass(shared, DIRECT_PAGES, self.fruitless.goal());
        if pass.freed > 0 {
            self.fruitless.end();
            return Room::Made;
        }
        self.fruitless.add(pass);
        if self.fruitless.writes_fail()
            && !shared.memory.is_shrinking()
            && let Some((page, _)) = request.next_pages()
        {
            self.fruitless.end();
            request.fail(page, FaultError::Exhausted(WRITES_FAIL));
            request.abandon();
            self.finish_if_through(at);
            return Room::Made;
        }
        Room::None
    }
}
