//! Writes the log to the device: in large pieces by a thread of its own, or at once by a thread that needs records durable.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::MutexGuard;
use vmio::SignalsBlocked;

use crate::durability::Durability;
use crate::error::Result;
use crate::format::block::Block;
use crate::format::chunk::CHUNK_BYTES;
use crate::format::geometry::BLOCK_BYTES;
use crate::log::Log;
use crate::log::WRITE_BYTES;
use crate::log::state::{State, TAIL_CHUNKS_MAX};
use crate::log::tail_chunk::{ChunkMemory, TailChunk};

/// How long the writer waits if nothing is due.
const LONG: Duration = Duration::from_secs(3600);

/// The thread that writes the appended bytes.
pub(crate) struct LogWriter {
    log: Arc<Log>,
    thread: Option<JoinHandle<()>>,
}

impl LogWriter {
    /// Starts the thread.
    pub(crate) fn start(log: &Arc<Log>) -> std::io::Result<Self> {
        let its = Arc::clone(log);
        let _signals = SignalsBlocked::new();
        let thread = std::thread::Builder::new().name("vmio-kv-log".to_owned()).spawn(move || its.write_behind())?;
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
    fn write_behind(&self) {
        loop {
            let mut state = self.state();
            // Deadlines count also while there is always something to write.
            let mut left = self.deadline.left();
            while !state.stopping && !left.is_zero() && (state.failed.is_some() || state.unwritten() < WRITE_BYTES) {
                self.changed.wait_for(&mut state, left.min(LONG));
                left = self.deadline.left();
            }
            if state.stopping {
                return;
            }
            let (is_due, has_failed) = (left.is_zero(), state.failed.is_some());
            if is_due {
                // Later records have their own deadline: they may come too late for this flush.
                self.deadline.clear(&state);
            }
            drop(state);
            // The next appender gets the error.
            let done = if is_due { self.sync_all() } else { self.write(false) };
            if let Err(error) = done
                && !has_failed
            {
                tracing::error!(%error, "the log could not be written");
            }
            self.make_spare();
        }
    }

    /// Keeps a durability's promise for records below a number: waits until they are durable, or sets a deadline.
    pub(crate) fn keep(&self, durability: Durability, end: u64) -> Result<()> {
        match durability {
            Durability::None => Ok(()),
            Durability::Periodic(period) => {
                self.make_durable_within(period);
                Ok(())
            }
            Durability::Sync => self.sync(end),
        }
    }

    /// Makes all appended records durable within a period.
    fn make_durable_within(&self, period: Duration) {
        let at = self.deadline.after(period);
        // An earlier deadline is set: its flush has yet to begin, and includes all records of now.
        if self.deadline.is_by(at) {
            return;
        }
        let state = self.state();
        if self.deadline.bring_forward(at, &state) {
            drop(state);
            self.changed.notify_all();
        }
    }

    /// Waits until all records below a number are durable. One thread flushes for all records appended before its write; threads that come
    /// meanwhile share the next flush.
    pub(crate) fn sync(&self, end: u64) -> Result<()> {
        let mut state = self.state();
        loop {
            self.segment.ownership.fenced()?;
            if state.durable >= end {
                return Ok(());
            }
            if let Some(why) = &state.failed {
                return Err(self.stopped(why));
            }
            if !state.is_flushing {
                break;
            }
            self.flushed.wait(&mut state);
        }
        state.is_flushing = true;
        drop(state);
        let done = self.write_and_flush();
        let mut state = self.state();
        state.is_flushing = false;
        match &done {
            Ok(reached) => {
                debug_assert!(*reached <= state.next_sequence, "record {reached} is flushed before it is appended");
                state.durable = state.durable.max(*reached);
            }
            Err(error) => {
                // The device's contents are unknown now: no more writes are acknowledged.
                state.failed.get_or_insert_with(|| error.with_causes());
                self.changed.notify_all();
            }
        }
        drop(state);
        // All threads that the flush has served go on, and one of the others flushes for the rest.
        self.flushed.notify_all();
        done.map(drop)
    }

    /// Makes all appended records durable. Returns the number behind the last one.
    fn write_and_flush(&self) -> Result<u64> {
        let _writing = self.writing.lock();
        // Records that were appended while a piece was written are included.
        let reached = self.write_locked(true)?;
        // Records that a new owner has not read must not be acknowledged.
        self.device().flush().and_then(|()| self.segment.ownership.check_flushed())?;
        Ok(reached)
    }

    /// Appends a record that says that all others are durable, so that damage to the last ones is not taken for a torn end.
    fn vouch_for_all(&self) -> Result<()> {
        let mut state = self.turn();
        if state.failed.is_some() || !self.vouch(&mut state, 0) {
            return Ok(());
        }
        drop(state);
        self.sync_all()
    }

    /// Makes all appended records durable.
    pub(crate) fn sync_all(&self) -> Result<()> {
        let end = self.state().next_sequence;
        self.sync(end)
    }

    fn write(&self, all: bool) -> Result<()> {
        let writing = self.writing.lock();
        let written = self.write_locked(all);
        // A thread that wants to flush has waited for the lock, and would wait for the next round as well.
        MutexGuard::unlock_fair(writing);
        written.map(drop)
    }

    /// Writes appended bytes that are not on the device; whole blocks only, unless `all` is set. Returns the number behind the last
    /// appended record. The caller holds `writing`.
    fn write_locked(&self, all: bool) -> Result<u64> {
        let (last, aim, end) = {
            let state = self.state();
            let last = state.appender.chunk();
            let aim = if all { last.filled() } else { last.filled() - last.filled() % BLOCK_BYTES };
            (last.header.offset, aim, state.next_sequence)
        };
        loop {
            let (chunk, from, aim, refers_ahead) = {
                let mut state = self.state();
                if let Some(why) = &state.failed {
                    return Err(self.stopped(why));
                }
                let chunk = Arc::clone(&state.chunks[0]);
                let aim = if chunk.header.offset == last { aim } else { chunk.filled() };
                if chunk.header.offset == last && state.written >= aim {
                    return Ok(end);
                }
                // Taken with the end: later records may refer to values that are not flushed.
                let refers_ahead = std::mem::take(&mut state.refers_ahead);
                (chunk, state.written, aim, refers_ahead)
            };
            let is_last = chunk.header.offset == last;
            let start = from - from % BLOCK_BYTES;
            let stop = aim.min(start + WRITE_BYTES);
            // Large values are durable before any record of them is.
            let flushed = if refers_ahead { self.device().flush() } else { Ok(()) };
            let mut written = flushed.and_then(|()| self.write_piece(&chunk, start, stop));
            let is_through = !is_last && stop == aim;
            if is_through {
                // A page of the unit's previous generation may have come in since it was taken, by an earlier prefetch. From now on the
                // device has what was written, and until then readers use the chunk in memory.
                let drop_pages = || self.device().drop_pages(chunk.header.offset, CHUNK_BYTES as u64);
                written = written.and_then(|()| drop_pages());
            }
            drop(chunk);
            let mut state = self.state();
            match written {
                Ok(()) if is_through => {
                    state.written = 0;
                    let chunk = state.chunks.remove(0);
                    debug_assert!(
                        stop == chunk.filled(),
                        "chunk {} leaves memory before it is written",
                        chunk.header.offset
                    );
                    self.tails.store(Arc::new(state.chunks.clone()));
                    // Unless a reader still has it.
                    if let Some(chunk) = Arc::into_inner(chunk) {
                        state.spare = Some(chunk.into_memory());
                    }
                }
                Ok(()) => {
                    debug_assert!(
                        state.written <= stop,
                        "byte {stop} of a chunk is written after byte {}",
                        state.written
                    );
                    state.written = stop;
                }
                Err(error) => {
                    state.failed.get_or_insert_with(|| error.with_causes());
                    self.changed.notify_all();
                    return Err(error);
                }
            }
            drop(state);
            // Appenders may be waiting for it.
            self.changed.notify_all();
        }
    }

    /// Writes a part of a chunk, from a block's beginning on. A last block that is not full is copied, since appends go on in it.
    fn write_piece(&self, chunk: &TailChunk, start: usize, end: usize) -> Result<()> {
        let bytes = chunk.bytes();
        let at = |place: usize| chunk.header.offset + place as u64;
        let whole = end - end % BLOCK_BYTES;
        if whole > start {
            self.device().write(at(start), &bytes[start..whole])?;
        }
        if end <= whole {
            return Ok(());
        }
        let mut last = Box::new(Block::ZERO);
        last.0[..end - whole].copy_from_slice(&bytes[whole..end]);
        debug_assert!(whole < CHUNK_BYTES);
        self.device().write(at(whole), &last.0)
    }

    /// Provides memory for the next chunk before an appender needs it.
    fn make_spare(&self) {
        let is_wanted = |state: &State| {
            state.spare.is_none() && state.chunks.len() < TAIL_CHUNKS_MAX && state.appender.space() < CHUNK_BYTES / 2
        };
        if is_wanted(&self.state()) {
            let spare = ChunkMemory::new();
            self.state().spare.get_or_insert(spare);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
    use std::time::Instant;

    use super::*;
    use crate::device::failing_backing::FailingBacking;
    use crate::format::record::RecordKind;
    use crate::log::Append;
    use crate::volume::free_reserve::SpacePriority;
    use crate::{Db, Options};

    const VALUE_BYTES: usize = 64 << 10;
    const PUTS: usize = 300;

    fn wait_until(is_so: impl Fn() -> bool) {
        while !is_so() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn an_appender_waits_for_one_write_of_a_slow_device_not_for_a_chunk() {
        let backing = Arc::new(FailingBacking::new(64 << 20));
        let options = Options::new().memory_bytes(32 << 20).durability(Durability::None);
        let db = Db::create_on(Arc::clone(&backing), options).expect("a store");
        let done = AtomicUsize::new(0);
        backing.let_through(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0..PUTS {
                    db.put(&number.to_le_bytes(), &[number as u8; VALUE_BYTES]).expect("space");
                    done.fetch_add(1, Ordering::SeqCst);
                }
            });
            // As much as may be in memory alone, and the bytes of the first write.
            let held = 5 * (1 << 20) / VALUE_BYTES;
            wait_until(|| done.load(Ordering::SeqCst) >= held);
            std::thread::sleep(Duration::from_millis(50));
            let before = done.load(Ordering::SeqCst);
            assert!(before <= held + 2, "{before} puts of 64 KiB, and nothing was written");
            backing.let_through(2);
            wait_until(|| done.load(Ordering::SeqCst) > before);
            std::thread::sleep(Duration::from_millis(50));
            let after = done.load(Ordering::SeqCst);
            assert!(after <= before + 2 * (WRITE_BYTES / VALUE_BYTES) + 2, "{after} puts, {before} before two writes");
            backing.let_through(u64::MAX);
        });
        db.sync().expect("written");
        for number in 0..PUTS {
            let value = db.get(&number.to_le_bytes()).expect("read").expect("there");
            assert!(value.len() == VALUE_BYTES && value.iter().all(|byte| *byte == number as u8));
        }
    }

    #[test]
    fn deadlines_are_kept_while_the_device_is_behind() {
        let backing = Arc::new(FailingBacking::new(64 << 20));
        let period = Duration::from_millis(50);
        let options = Options::new().memory_bytes(64 << 20).durability(Durability::Periodic(period));
        let db = Db::create_on(Arc::clone(&backing), options).expect("a store");
        backing.slow_down(10);
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // The same keys again: nothing is compacted.
                for number in (0..64_u64).cycle().take_while(|_| !is_over.load(Ordering::SeqCst)) {
                    db.put(&number.to_le_bytes(), &[7; VALUE_BYTES]).expect("space");
                }
            });
            wait_until(|| db.default_keyspace().keyspace().log.state().unwritten() > 4 << 20);
            let before = backing.flushes();
            // The log is always full of unwritten records.
            let started = Instant::now();
            wait_until(|| backing.flushes() >= before + 2 || started.elapsed() > Duration::from_secs(30));
            is_over.store(true, Ordering::SeqCst);
            assert!(backing.flushes() >= before + 2, "nothing was flushed");
        });
    }

    /// Each thread's record is in the log before a flush may end, so that the number of flushes does not depend on scheduling.
    #[test]
    fn threads_that_wait_for_a_flush_share_the_next_one() {
        const THREADS: usize = 32;
        const RECORDS: u64 = 16;
        const AT_AN_END: u64 = u64::MAX;
        let backing = Arc::new(FailingBacking::new(64 << 20));
        let options = Options::new().memory_bytes(32 << 20).durability(Durability::None);
        let db = Db::create_on(Arc::clone(&backing), options).expect("a store");
        let log = &db.default_keyspace().open().unwrap().home.log;
        let keyspace = db.default_keyspace().keyspace().number;
        let numbers: Vec<AtomicU64> = (0..THREADS).map(|_| AtomicU64::new(0)).collect();
        let before = backing.flushes();
        backing.let_flushes_through(0);
        std::thread::scope(|scope| {
            for number in &numbers {
                scope.spawn(move || {
                    for _ in 0..RECORDS {
                        let record = Append { kind: RecordKind::Put, keyspace, key: b"key", value: b"value" };
                        let at = log.append_one_record(&record, SpacePriority::Put).expect("space");
                        number.store(at.sequence, Ordering::SeqCst);
                        log.sync(at.sequence + 1).expect("flushed");
                    }
                    number.store(AT_AN_END, Ordering::SeqCst);
                });
            }
            loop {
                let durable = log.state().durable;
                wait_until(|| numbers.iter().all(|number| number.load(Ordering::SeqCst) >= durable));
                if numbers.iter().all(|number| number.load(Ordering::SeqCst) == AT_AN_END) {
                    break;
                }
                backing.let_flushes_through(1);
                wait_until(|| log.state().durable > durable);
            }
        });
        backing.let_flushes_through(u64::MAX);
        let (flushes, records) = (backing.flushes() - before, THREADS as u64 * RECORDS);
        assert!(flushes * 8 <= records, "{flushes} flushes for {records} records of {THREADS} threads");
    }
}
