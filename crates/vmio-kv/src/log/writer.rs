//! How records get to the device: in large pieces by a thread of the log's own, or at once by whoever needs them durable.

use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::error::Result;
use crate::format::block::Block;
use crate::format::chunk::CHUNK_BYTES;
use crate::format::geometry::BLOCK_BYTES;
use crate::log::{Log, State, WRITE_BYTES};

/// How long to wait where nothing is due.
const LONG: Duration = Duration::from_secs(3600);

/// The thread that writes what has come together.
pub(crate) struct LogWriter {
    log: Arc<Log>,
    thread: Option<JoinHandle<()>>,
}

impl LogWriter {
    /// Starts it; it makes all durable once in a period, if there is one.
    pub(crate) fn start(log: &Arc<Log>, period: Option<Duration>) -> std::io::Result<Self> {
        let its = Arc::clone(log);
        let thread =
            std::thread::Builder::new().name("vmio-kv-log".to_owned()).spawn(move || its.write_behind(period))?;
        Ok(LogWriter { log: Arc::clone(log), thread: Some(thread) })
    }
}

impl Drop for LogWriter {
    fn drop(&mut self) {
        if let Err(error) = self.log.sync_all().and_then(|()| self.log.vouch_for_all()) {
            tracing::error!(%error, "what was written last is not durable");
        }
        self.log.state().stopping = true;
        self.log.changed.notify_all();
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that writes the log has panicked");
        }
    }
}

impl Log {
    fn write_behind(&self, period: Option<Duration>) {
        let mut flushed = Instant::now();
        loop {
            let mut state = self.state();
            let mut is_due = false;
            while !state.stopping && !is_due && (state.failed.is_some() || unwritten(&state) < WRITE_BYTES) {
                let left = period.map_or(Duration::MAX, |period| period.saturating_sub(flushed.elapsed()));
                is_due = left.is_zero();
                if !is_due {
                    let waited = self.changed.wait_timeout(state, left.min(LONG));
                    state = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
            }
            if state.stopping {
                return;
            }
            let has_failed = state.failed.is_some();
            drop(state);
            if is_due {
                flushed = Instant::now();
            }
            // Who appends next is told of a failure.
            let done = if is_due { self.sync_all() } else { self.write(false) };
            if let Err(error) = done
                && !has_failed
            {
                tracing::error!(%error, "the log could not be written");
            }
        }
    }

    /// Returns once all records with numbers below this one are durable. Threads that wait for the same flush share it.
    pub(crate) fn sync(&self, end: u64) -> Result<()> {
        if self.state().durable >= end {
            return Ok(());
        }
        let writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let reached = {
            let state = self.state();
            if state.durable >= end {
                return Ok(());
            }
            state.next_sequence
        };
        self.write_locked(true)?;
        let flushed = self.device().flush();
        drop(writing);
        let mut state = self.state();
        match flushed {
            Ok(()) => {
                state.durable = state.durable.max(reached);
                Ok(())
            }
            Err(error) => {
                // What the device holds now is not known: nothing is acknowledged any more.
                state.failed.get_or_insert_with(|| error.to_string());
                self.changed.notify_all();
                Err(error)
            }
        }
    }

    /// Says in the log that all of it is durable: so damage to its last records is not taken for a torn end.
    fn vouch_for_all(&self) -> Result<()> {
        let _appending = self.appending.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = self.state();
        if state.failed.is_some() || !self.vouch(&mut state, 0) {
            return Ok(());
        }
        drop(state);
        self.sync_all()
    }

    /// All that was appended.
    pub(crate) fn sync_all(&self) -> Result<()> {
        let end = self.state().next_sequence;
        self.sync(end)
    }

    fn write(&self, all: bool) -> Result<()> {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        self.write_locked(all)
    }

    /// Writes what is not on the device, whole blocks only unless it is to be all. The caller holds `writing`.
    fn write_locked(&self, all: bool) -> Result<()> {
        loop {
            let (chunk, from, filled, is_full) = {
                let state = self.state();
                if let Some(why) = &state.failed {
                    return Err(self.stopped(why));
                }
                let chunk = Arc::clone(&state.chunks[0]);
                let filled = chunk.filled();
                (chunk, state.written, filled, state.chunks.len() > 1)
            };
            let start = from - from % BLOCK_BYTES;
            let whole = filled - filled % BLOCK_BYTES;
            let written = self.write_piece(&chunk, start, whole, if all || is_full { filled } else { whole });
            // A page of the unit's former life may have come in since it was taken, by a read that was asked for before. From now on
            // what is read is what was written, and until then readers have the chunk in memory.
            let drop_pages = || self.device().drop_pages(chunk.header.offset, CHUNK_BYTES as u64);
            let written = if is_full { written.and_then(|()| drop_pages()) } else { written };
            let mut state = self.state();
            match written {
                Ok(()) if is_full => {
                    state.written = 0;
                    state.chunks.remove(0);
                    self.tails.store(Arc::new(state.chunks.clone()));
                    self.changed.notify_all();
                }
                Ok(()) => {
                    state.written = if all { filled } else { from.max(whole) };
                    return Ok(());
                }
                Err(error) => {
                    state.failed.get_or_insert_with(|| error.to_string());
                    self.changed.notify_all();
                    return Err(error);
                }
            }
        }
    }

    fn write_piece(&self, chunk: &super::TailChunk, start: usize, whole: usize, end: usize) -> Result<()> {
        let bytes = chunk.bytes();
        let at = |place: usize| chunk.header.offset + place as u64;
        if whole > start {
            for (index, piece) in bytes[start..whole].chunks(WRITE_BYTES).enumerate() {
                self.device().write(at(start + index * WRITE_BYTES), piece)?;
            }
        }
        let whole = whole.max(start);
        if end <= whole {
            return Ok(());
        }
        // The block that is not full: a copy, since others append to it.
        let mut last = Box::new(Block::ZERO);
        last.0[..end - whole].copy_from_slice(&bytes[whole..end]);
        debug_assert!(whole < CHUNK_BYTES);
        self.device().write(at(whole), &last.0)
    }
}

/// Bytes that are in memory alone.
pub(super) fn unwritten(state: &State) -> usize {
    state.chunks.iter().map(|chunk| chunk.filled()).sum::<usize>() - state.written
}
