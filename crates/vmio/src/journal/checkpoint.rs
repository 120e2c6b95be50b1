//! Writing committed pages into their files in the background, so that the log can be used again.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use vmio_core::futex;

use crate::error::{Error, Result};
use crate::journal::core::Core;
use crate::journal::failure::failed_at;
use crate::journal::joined::Joined;
use crate::journal::place::Place;
use crate::journal::replay::replay;
use crate::journal::scan::{RecordPages, Scan};
use crate::journal::version::Version;
use crate::journal::writers::{self, Writers};
use crate::sys::abort::AbortOnUnwind;
use crate::sys::thread::{self, OwnThread};

/// After this many pages of the log the thread yields its core. A store that has just been woken would otherwise wait
/// for the end of the time slice: milliseconds.
const YIELD_PAGES: u64 = 16;

/// Starts the thread; it ends after `Checkpoints::stop`.
pub(crate) fn spawn(core: Arc<Core>) -> io::Result<OwnThread> {
    thread::spawn("vmio-journal", move || {
        writers::step_back();
        // Threads that wait for a checkpoint would wait for ever.
        let _must_not_panic = AbortOnUnwind::new();
        let (checkpoints, writers) = (&core.checkpoints, Writers::default());
        loop {
            let (asked, done) = (checkpoints.asked.load(Ordering::SeqCst), checkpoints.done.load(Ordering::SeqCst));
            if asked == done {
                futex::wait(&checkpoints.asked, asked);
                continue;
            }
            let stopping = checkpoints.stopping.load(Ordering::SeqCst);
            let mut said = None;
            if !stopping {
                let failure = checkpoint(&core, &writers).err();
                said = failure.as_ref().map(Error::to_string);
                *checkpoints.failure.lock().unwrap_or_else(PoisonError::into_inner) = failure;
            }
            checkpoints.done.store(asked, Ordering::SeqCst);
            futex::wake_all(&checkpoints.done);
            // Log it last: a waiting thread may hold a lock that the logger needs.
            if let Some(error) = said {
                tracing::error!(error, "a checkpoint failed; the journal keeps what is committed");
            }
            if stopping {
                return;
            }
        }
    })
}

/// Writes the committed pages into the files, and frees the part of the log that is no longer needed.
fn checkpoint(core: &Core, writers: &Writers) -> Result<()> {
    let log = &core.log;
    let end = log.durable();
    if core.checkpoints.applied() == end {
        return Ok(());
    }
    let mut scan = Scan::new(&core.header());
    let mut records = RecordPages::new(&log.ring, end);
    let mut yielded_at = scan.end;
    while scan.end < end {
        if scan.end - yielded_at >= YIELD_PAGES {
            yielded_at = scan.end;
            std::thread::yield_now();
        }
        let record = records.read(scan.end).map_err(failed_at(log.ring.device(), "reading"))?;
        let record = record.ok_or_else(|| Error::JournalDamaged {
            journal: log.ring.device().describe(),
            offset: log.ring.offset(scan.end),
            what: "a record is missing that had been durable",
        })?;
        scan.add(&record);
    }
    // Cloned, so that a thread that joins a file need not wait.
    let files: BTreeMap<u32, Arc<Joined>> =
        core.files().iter().map(|joined| (joined.file, Arc::clone(joined))).collect();
    let from_memory = |place: Place, version: Version, target: &mut [u8]| {
        files.get(&place.file).is_some_and(|joined| joined.copy_from_memory(place.page, version, target))
    };
    let backings = files.iter().map(|(file, joined)| (*file, &*joined.data)).collect();
    replay(&log.ring, &scan, &backings, &from_memory, writers)?;
    // From here on, not before, readers use the files: copies that were not flushed might still vanish.
    for (place, committed) in &scan.pages {
        if let Some(joined) = files.get(&place.file) {
            joined.index.clear(place.page, committed.version);
        }
    }
    let tail = scan.first_needed();
    debug_assert!(log.tail() <= tail && tail <= end, "tail {tail} of {} to {end}", log.tail());
    core.change_header(|header| {
        header.tail = tail;
        header.applied = end;
        header.commit = scan.commit;
    })?;
    log.advance_tail(tail);
    let before = core.checkpoints.applied.swap(end, Ordering::SeqCst);
    debug_assert!(before < end && end <= log.durable());
    Ok(())
}
