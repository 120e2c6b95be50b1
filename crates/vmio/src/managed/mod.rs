//! The managed engine: Linux's own mmap takes the faults, and a background reclaimer keeps the resident pages within
//! the budget from outside, before the kernel has to reclaim.
//!
//! A mapping of this engine holds a [`ManagedFile`]. `region` is one mapped file. `ledger` records which pages of all
//! files are in memory, and in which order they go. `reclaimer` is the background thread. docs/design/managed-engine.md
//! gives the reasons.
//!
//! Three words have a meaning of their own here:
//!
//! - A *stretch* is the unit in which pages are given up: 512 neighbouring pages, fewer in a small cache.
//! - A stretch *in line* is unmapped and still in memory. It waits for its turn to leave the page cache.
//! - A *family* is the processes that keep one budget together: a process and its forked children.

mod ahead;
mod arrivals;
mod counts;
mod family;
mod fetch;
mod file;
mod given_back;
mod ledger;
mod open_managed;
mod page_cost;
mod pattern;
mod pins;
mod read_ahead;
mod reclaimer;
mod region;
mod survey;
mod throttle;

use std::io;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, mpsc};

pub(crate) use file::ManagedFile;
pub(crate) use reclaimer::{Limits, Reclaimer};

use crate::cache::fetch::Pool;
use crate::elastic::Follower;
use crate::managed::family::Family;
use crate::sys::fork::Generation;
use crate::sys::hold;
use crate::sys::thread::{self, OwnThread};

/// The reclaimer and its thread, which ends with the last handle or mapping of the cache.
pub(crate) struct ManagedCore {
    pub(crate) reclaimer: Arc<Reclaimer>,
    thread: Mutex<Option<OwnThread>>,
    /// The threads that fetch pages; started at the first fetch.
    pub(crate) pool: OnceLock<Pool>,
    pub(crate) starting: Mutex<()>,
    /// Changes the capacity, if the caller leaves that to vmio.
    pub(crate) follower: OnceLock<Follower>,
}

impl ManagedCore {
    pub(crate) fn start(limits: Limits) -> io::Result<Self> {
        let family = Arc::new(Family::new(limits.capacity_pages)?);
        Self::start_in(family, limits)
    }

    /// Starts the engine of a forked child, which keeps one budget together with its parent.
    pub(crate) fn start_in_child(parent: &ManagedCore, generation: Generation) -> io::Result<Self> {
        let family = Arc::clone(parent.reclaimer.family());
        let limits = Limits { generation, ..parent.reclaimer.limits_now() };
        Self::start_in(family, limits)
    }

    fn start_in(family: Arc<Family>, limits: Limits) -> io::Result<Self> {
        let reclaimer = Arc::new(Reclaimer::new(family, limits)?);
        let its = Arc::clone(&reclaimer);
        let (begun, has_begun) = mpsc::channel();
        let thread = thread::spawn("vmio-reclaimer", move || {
            // The program should run between two rounds of the reclaimer.
            if let Err(error) = thread::shorten_time_slice() {
                tracing::debug!(%error, "on busy cores the reclaimer may come late");
            }
            // A child may have been forked while its parent held threads back.
            hold::end();
            let _ = begun.send(());
            its.run();
        })?;
        // On busy cores a new thread waits long for its first run, and until then nobody keeps the budget.
        let _ = has_begun.recv();
        Ok(ManagedCore {
            reclaimer,
            thread: Mutex::new(Some(thread)),
            pool: OnceLock::new(),
            starting: Mutex::new(()),
            follower: OnceLock::new(),
        })
    }
}

impl Drop for ManagedCore {
    fn drop(&mut self) {
        let Some(thread) = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take() else { return };
        if self.reclaimer.generation().is_current() {
            self.reclaimer.stop();
            thread.end("the reclaimer of the cache");
        }
    }
}
