//! Read-ahead before the program: the stretches that it has not come to yet, and the thread that makes the kernel read
//! them.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::managed::region::ManagedRegion;
use crate::sys::PAGE_BYTES;
use crate::sys::page_cache;
use crate::sys::thread::{self, OwnThread};

/// A program that has not come to a stretch read ahead within this time is not expected any more.
const PATIENCE: Duration = Duration::from_millis(250);

/// A stretch that was read ahead and that nobody has touched.
pub(super) struct Waiting {
    pub(super) region: Arc<ManagedRegion>,
    pub(super) stretch: u64,
    since: Instant,
}

/// The stretches that wait for the program.
#[derive(Default)]
pub(super) struct Ahead {
    waiting: Vec<Waiting>,
}

impl Ahead {
    pub(super) fn insert(&mut self, region: &Arc<ManagedRegion>, stretch: u64) {
        self.waiting.push(Waiting { region: Arc::clone(region), stretch, since: Instant::now() });
    }

    pub(super) fn remove_region(&mut self, region: &Arc<ManagedRegion>) {
        self.waiting.retain(|waiting| !Arc::ptr_eq(&waiting.region, region));
    }

    /// Forgets the stretches that the program has come to. If space is needed, returns those that have waited longer
    /// than [`PATIENCE`]. (`mapped` gives the number of mapped pages of a stretch.)
    pub(super) fn settle(&mut self, is_needed: bool, mapped: impl Fn(&ManagedRegion, u64) -> u64) -> Vec<Waiting> {
        self.waiting.retain(|waiting| mapped(&waiting.region, waiting.stretch) == 0);
        self.waiting.extract_if(.., |waiting| is_needed && waiting.since.elapsed() > PATIENCE).collect()
    }

    /// Stretches that wait, with their regions.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Waiting> {
        self.waiting.iter()
    }
}

/// A stretch to read.
pub(super) struct Request {
    pub(super) region: Arc<ManagedRegion>,
    pub(super) stretch: u64,
    /// Its byte range in the file.
    pub(super) bytes: Range<u64>,
}

/// The thread that makes the kernel read. On some devices the call takes as long as the read itself.
pub(super) struct Reader {
    shared: Arc<Queue>,
    thread: Option<OwnThread>,
}

#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    woken: Condvar,
}

#[derive(Default)]
struct State {
    requests: VecDeque<Request>,
    is_over: bool,
}

impl Reader {
    pub(super) fn start() -> io::Result<Self> {
        let shared = Arc::new(Queue::default());
        let its = Arc::clone(&shared);
        let thread = thread::spawn("vmio-read-ahead", move || its.run())?;
        Ok(Reader { shared, thread: Some(thread) })
    }

    pub(super) fn request(&self, requests: impl IntoIterator<Item = Request>) {
        self.shared.state().requests.extend(requests);
        self.shared.woken.notify_one();
    }

    /// Drops all requests for a region.
    pub(super) fn forget(&self, region: &Arc<ManagedRegion>) {
        self.shared.state().requests.retain(|request| !Arc::ptr_eq(&request.region, region));
    }

    /// Ends the thread.
    pub(super) fn stop(&mut self) {
        let mut state = self.shared.state();
        state.is_over = true;
        state.requests.clear();
        drop(state);
        self.shared.woken.notify_one();
        if let Some(thread) = self.thread.take() {
            thread.end("the thread that reads ahead");
        }
    }
}

impl Queue {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        loop {
            let mut state = self.state();
            let Request { region, stretch, bytes } = loop {
                if state.is_over {
                    return;
                }
                match state.requests.pop_front() {
                    Some(request) => break request,
                    None => state = self.woken.wait(state).unwrap_or_else(PoisonError::into_inner),
                }
            };
            drop(state);
            let known = region.arrivals.get(stretch);
            if known.is_in_line || known.read * (PAGE_BYTES as u64) < bytes.end - bytes.start {
                continue; // It was given up since, so nobody would count its pages.
            }
            // Read-ahead is a hint: an access that needs an unreadable page gets the error.
            if let Err(error) = read(&region, &bytes) {
                tracing::debug!(%error, "no read-ahead");
            }
        }
    }
}

fn read(region: &ManagedRegion, bytes: &Range<u64>) -> io::Result<()> {
    if region.reads_whole(bytes)
        && let Some(scout) = region.scout()
    {
        scout.populate(bytes)?;
        return scout.unmap(bytes);
    }
    page_cache::read_ahead(region.file(), bytes)
}
