//! Threads that write committed pages into their files at the same time.
//!
//! The threads last. To start one, or to take memory for it, changes the address space. Meanwhile the kernel keeps
//! every thread waiting that fetches or protects a page.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, OnceLock, PoisonError};

use rayon_core::{ThreadPool, ThreadPoolBuilder};

use crate::error::{Error, Result};
use crate::journal::chain::CHAIN_PAGES;
use crate::journal::format::Page;
use crate::sys::signal::SignalsBlocked;

/// Threads that write at the same time: committed pages lie apart in the files.
const WRITERS: usize = 16;
/// Pages that a thread takes at a time, in the order of the files.
pub(super) const PART_PAGES: usize = 64;
/// The addition to the threads' nice value, as for the cache's workers. With 15, the rate of commits of 16 pages fell
/// by 6 %, since checkpoints took longer and the log was full more often. Stores beside them waited no less.
const NICE: i32 = 5;

/// A pool of threads, started at the first use, and working memory for each of them.
#[derive(Default)]
pub(crate) struct Writers {
    /// Holds `None` if threads are not available: then the caller works alone.
    pool: OnceLock<Option<ThreadPool>>,
    rooms: [Mutex<Room>; WRITERS],
}

/// The working memory of a writer, taken at its first use.
#[derive(Default)]
pub(super) struct Room {
    /// Pages as they will be in a file.
    pub(super) pages: Vec<Page>,
    /// The records from which a page is assembled.
    pub(super) chain: Vec<Page>,
}

impl Writers {
    /// Runs `work` on all threads if that is `worth_it`, or on the caller's. Returns when all are done, with the first
    /// error.
    pub(super) fn run(&self, worth_it: bool, work: impl Fn(&mut Room) -> Result<()> + Sync) -> Result<()> {
        let work_in = |room: usize| {
            let mut room = self.rooms[room].lock().unwrap_or_else(PoisonError::into_inner);
            room.pages.resize(PART_PAGES, Page::ZERO);
            room.chain.resize(CHAIN_PAGES, Page::ZERO);
            work(&mut room)
        };
        let pool = if worth_it { self.pool.get_or_init(start).as_ref() } else { None };
        let Some(pool) = pool else { return work_in(0) };
        let panicked = |_| Err(Error::system("writing what is committed")(io::Error::other("a thread has panicked")));
        let caught = |room| catch_unwind(AssertUnwindSafe(|| work_in(room))).unwrap_or_else(panicked);
        pool.broadcast(|thread| caught(thread.index())).into_iter().collect()
    }
}

fn start() -> Option<ThreadPool> {
    // The threads inherit the signal mask of the thread that starts them.
    let _signals = SignalsBlocked::new();
    let builder = ThreadPoolBuilder::new()
        .num_threads(WRITERS)
        .thread_name(|number| format!("vmio-replay-{number}"))
        .start_handler(|_| step_back());
    builder.build().inspect_err(|error| tracing::warn!(%error, "checkpoints are written by one thread")).ok()
}

/// Puts the calling thread behind threads that store or commit on busy cores. A failure is no reason to stop.
pub(super) fn step_back() {
    let _ = rustix::process::nice(NICE);
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn failure(why: &'static str) -> Result<()> {
        Err(Error::system("a test")(io::Error::other(why)))
    }

    /// Runs `odd` on one of the threads. Returns the result that the caller gets, and how many other threads ended.
    fn run_with_one(writers: &Writers, odd: impl Fn() -> Result<()> + Sync) -> (Result<()>, usize) {
        let (calls, ended) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let told = writers.run(true, |room| {
            assert_eq!((room.pages.len(), room.chain.len()), (PART_PAGES, CHAIN_PAGES));
            if calls.fetch_add(1, Ordering::Relaxed) == WRITERS / 2 {
                return odd();
            }
            ended.fetch_add(1, Ordering::Relaxed);
            Ok(())
        });
        (told, ended.into_inner())
    }

    #[test]
    fn the_error_of_one_thread_is_told_to_the_caller_when_all_have_ended() {
        let (told, ended) = run_with_one(&Writers::default(), || failure("no luck"));
        assert!(told.is_err_and(|error| format!("{error:?}").contains("no luck")));
        assert_eq!(ended, WRITERS - 1);
    }

    #[test]
    fn the_panic_of_one_thread_is_told_as_an_error_and_the_others_work_on() {
        let writers = Writers::default();
        let (told, ended) = run_with_one(&writers, || panic!("as the test wants it"));
        assert!(told.is_err_and(|error| format!("{error:?}").contains("panicked")));
        assert_eq!(ended, WRITERS - 1);
        // The working memory of the thread that panicked is used again.
        let (told, ended) = run_with_one(&writers, || Ok(()));
        assert!(told.is_ok() && ended == WRITERS - 1);
    }

    #[test]
    fn the_caller_works_alone_where_threads_are_not_worth_it() {
        let calls = AtomicUsize::new(0);
        let told = Writers::default().run(false, |_| {
            calls.fetch_add(1, Ordering::Relaxed);
            failure("no luck")
        });
        assert!(told.is_err() && calls.into_inner() == 1);
    }
}
