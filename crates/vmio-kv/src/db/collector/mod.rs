//! Garbage collection of the log: it appends the live records of the chunks with the most garbage again, and frees the chunks.
//!
//! A thread of the store does this while writers and compactions run, one chunk after the other; a writer that finds no space does the
//! same. Where the garbage is not known yet, or recovery still needs its chunks, the collection first flushes and compacts: `garbage_search`.

pub(super) mod collecting;
mod garbage_search;
mod moves;
pub(super) mod pace;
pub(super) mod thread;
pub(super) mod wake;

use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};

use crate::db::open_segment::OpenSegment;
use crate::error::{Error, Result};
use crate::format::free_log::Freed;
use crate::format::geometry::{ALLOCATION_UNIT_BLOCKS, ALLOCATION_UNIT_BYTES, unit_of};
use crate::format::superblock::Superblock;
use crate::volume::committed::Changes;
use crate::volume::epoch::RetiredBlocks;
use crate::volume::free_reserve::SpacePriority;
use crate::volume::log_chunks::LogSpace;
use crate::volume::merges::Moment;
use collecting::{Collecting, SpaceState};
use garbage_search::Effort;

/// When space is short, chunks with at least this much garbage are collected.
const GARBAGE_BYTES_MIN: u64 = ALLOCATION_UNIT_BYTES / 16;
/// Chunks that one commit frees, unless a thread waits for them.
const CHUNKS_A_COMMIT: usize = 8;
/// The garbage beyond the limit that the collector leaves during writes to the log: an eighth of the longest that the volume may be, within
/// these bounds.
const SLACK_BYTES: std::ops::RangeInclusive<u64> = 4 << 20..=24 << 20;
/// The same while there are no writes.
const IDLE_SLACK_BYTES: u64 = 4 * ALLOCATION_UNIT_BYTES;

/// How little garbage is little enough.
#[derive(Clone, Copy, Debug)]
enum Goal {
    /// The log takes at most its limit plus `slack_bytes`.
    Limit { slack_bytes: u64 },
    /// `chunks` chunks are free for writes of this priority.
    FreeChunks { priority: SpacePriority, chunks: u64 },
}

/// Result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// A chunk was emptied: there may be more.
    Emptied,
    /// The goal is reached.
    Reached,
    /// The collection goes on after a wait: compactions that reveal garbage are running, or merges hold chunks that are empty, or the moved
    /// records are still in memory.
    WaitFirst,
    /// There is nothing more to gain.
    NothingToGain,
}

impl OpenSegment {
    /// Locks the collection; waits while another thread collects.
    pub(super) fn collecting(&self) -> MutexGuard<'_, Collecting> {
        self.collector.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes beyond the limit that background collection tolerates.
    fn slack_bytes(&self) -> u64 {
        let most = self.store.device.units_max() * ALLOCATION_UNIT_BYTES / 8;
        most.clamp(*SLACK_BYTES.start(), *SLACK_BYTES.end())
    }

    /// The log's space once the emptied chunks are freed.
    fn space_to_be(&self, state: &Collecting) -> LogSpace {
        let emptied = state.emptied.len() as u64;
        let mut space = self.segment.allocator().log_chunks.space();
        space.bytes -= emptied * ALLOCATION_UNIT_BYTES;
        // What each counts as garbage: `LogChunks` never counts all of a chunk.
        space.garbage_bytes -= emptied * (ALLOCATION_UNIT_BYTES - 1);
        space
    }

    /// The least garbage that makes a chunk worth a collection, in bytes; `None` if the goal is reached.
    fn least_garbage(&self, state: &Collecting, goal: Goal) -> Option<u64> {
        let amplification_max = self.store.options.space_amplification();
        match goal {
            Goal::FreeChunks { priority, chunks } => {
                self.segment.check_space(priority, chunks).is_err().then_some(GARBAGE_BYTES_MIN)
            }
            Goal::Limit { slack_bytes } => {
                let space = self.space_to_be(state);
                let is_too_large = space.bytes > self.limit(space) + slack_bytes;
                is_too_large.then_some((ALLOCATION_UNIT_BYTES as f64 * (1.0 - 1.0 / amplification_max)) as u64)
            }
        }
    }

    /// How long the log may be. Possible garbage that is not known as such yet does not count as live.
    fn limit(&self, space: LogSpace) -> u64 {
        let known_live = space.bytes - space.garbage_bytes;
        let live = known_live - self.bytes_in_doubt(known_live).min(known_live);
        (live as f64 * self.store.options.space_amplification()) as u64
    }

    /// The superblock of the last commit whose compaction is visible to readers. Between a commit and its publication, the levels that a
    /// look-up sees lack the records that recovery no longer reads.
    fn published_superblock(&self) -> Superblock {
        let _committing = self.committing.lock().unwrap_or_else(PoisonError::into_inner);
        self.segment.superblock()
    }

    /// Allows the collection of chunks that recovery would no longer read.
    fn allow_collection(&self) {
        let chunks = self.log.take_chunks_before(self.published_superblock().log_replay_sequence);
        let mut allocator = self.segment.allocator();
        chunks.into_iter().for_each(|chunk| allocator.log_chunks.allow(unit_of(chunk)));
    }

    /// The same after an opening, for all chunks that recovery has not read.
    pub(super) fn allow_collection_of_old(&self) {
        let mut open = self.log.open_chunks();
        open.extend(self.log.chunks_to_read_back());
        self.segment.allocator().log_chunks.allow_all_but(|unit| open.contains(&(unit * ALLOCATION_UNIT_BYTES)));
    }

    /// Empties a chunk, if the goal is not reached and a chunk is worth it. In the background it otherwise looks for garbage.
    fn step(&self, state: &mut Collecting, goal: Goal, in_background: bool) -> Result<Step> {
        self.allow_collection();
        self.give_up_emptied(state, CHUNKS_A_COMMIT)?;
        let Some(least) = self.least_garbage(state, goal) else { return Ok(Step::Reached) };
        // Merges hold the emptied chunks: more moves would take space and free none yet.
        if state.emptied.len() >= 2 * CHUNKS_A_COMMIT {
            return Ok(Step::WaitFirst);
        }
        let next = || self.segment.allocator().log_chunks.most_garbage();
        // A merge of levels reveals more garbage than moves of that much live data would gain.
        let gains_little = next().is_none_or(|(_, garbage)| garbage < ALLOCATION_UNIT_BYTES / 4 * 3);
        if in_background
            && gains_little
            && self.is_cheap_to_uncover_garbage()
            && self.begin_to_uncover_garbage()
            && self.collector.pace.closeness() < 0.5
        {
            return Ok(Step::WaitFirst);
        }
        while let Some((unit, _)) = next().filter(|(_, garbage)| *garbage >= least) {
            match self.move_live_records(unit) {
                Ok(true) => {
                    state.emptied.push((unit, self.segment.merges.moment()));
                    return Ok(Step::Emptied);
                }
                Ok(false) => {}
                // Other threads may have freed enough space.
                Err(Error::Full { .. }) => return Ok(Step::NothingToGain),
                // A keyspace refuses writes because the store is being closed: nothing is wrong with the chunk.
                Err(_) if self.store.compactions.is_stopping() => return Ok(Step::NothingToGain),
                Err(error) => self.exclude_chunk(unit, error)?,
            }
        }
        if self.give_up_emptied(state, 1)? && self.least_garbage(state, goal).is_none() {
            return Ok(Step::Reached);
        }
        match in_background && self.begin_to_uncover_garbage() {
            true => Ok(Step::WaitFirst),
            false => Ok(Step::NothingToGain),
        }
    }

    /// Collects until the log is within its limit, or until the present contents yield no more.
    pub(super) fn collect_all(&self) -> Result<()> {
        self.store.check_writable()?;
        let mut state = self.collecting();
        self.log.check_goes_on()?;
        self.store.compactions.forget_apart();
        // Blocks that readers held until now.
        self.segment.give_back()?;
        let goal = Goal::Limit { slack_bytes: 0 };
        for effort in [Effort::FlushMemtables, Effort::MergeLevels] {
            // Less than a chunk is not worth a merge; of large values nothing is known before the merge.
            let is_short =
                self.least_garbage(&state, goal).is_none() || self.bytes_in_doubt_now() < ALLOCATION_UNIT_BYTES;
            if effort == Effort::MergeLevels && is_short && !self.has_large_in_doubt() {
                break;
            }
            self.uncover_all_garbage(effort)?;
            // Later writes are left to the next collection.
            let chunks = self.segment.allocator().log_chunks.len();
            for _ in 0..chunks {
                if self.step(&mut state, goal, false)? != Step::Emptied {
                    break;
                }
            }
            self.give_up_emptied(&mut state, 1)?;
        }
        drop(state);
        // A compaction that has ended may still hold the blocks that it has replaced.
        self.segment.merges.wait();
        self.segment.give_back()?;
        self.discard_free(1);
        Ok(())
    }

    /// Makes space for a write that was refused; returns whether another try is worthwhile.
    pub(super) fn make_space(&self, priority: SpacePriority, chunks: u64) -> Result<bool> {
        let mut state = self.collecting();
        let goal = Goal::FreeChunks { priority, chunks };
        let has_space = || {
            let lacks_none = self.keyspaces().iter().all(|keyspace| !keyspace.lacks_space());
            lacks_none && self.segment.check_space(priority, chunks).is_ok()
        };
        let compact_again = || {
            let mut lacking = self.keyspaces().into_iter().filter(|keyspace| keyspace.lacks_space());
            lacking.try_for_each(|keyspace| self.compact_all(&keyspace))
        };
        // Another thread may have made space meanwhile.
        self.store.compactions.forget_apart();
        self.segment.give_back()?;
        if has_space() {
            return Ok(true);
        }
        let space_state =
            || SpaceState { log_end: self.log.end().1, free_units: self.segment.allocator().free_units() };
        if state.gained_nothing_at == Some(space_state()) {
            return Ok(false);
        }
        compact_again()?;
        if has_space() {
            return Ok(true);
        }
        self.log.check_goes_on()?;
        for effort in [Effort::None, Effort::FlushMemtables, Effort::MergeLevels] {
            self.uncover_all_garbage(effort)?;
            while self.step(&mut state, goal, false)? == Step::Emptied {
                self.give_up_emptied(&mut state, 1)?;
                // Readers may hold the freed chunks: then more moves would take the space that is reserved for deletions.
                if self.store.compactions.is_stopping() || self.segment.check_space(SpacePriority::Delete, 1).is_err() {
                    break;
                }
            }
            if self.segment.check_space(priority, chunks).is_ok() {
                break;
            }
        }
        compact_again()?;
        if !has_space() {
            // Blocks that running merges have replaced become free when the merges end.
            self.segment.merges.wait();
            self.segment.give_back()?;
        }
        let has_space = has_space();
        state.gained_nothing_at = (!has_space).then(space_state);
        Ok(has_space)
    }

    /// Empties a chunk that a former owner may still write to; afterwards nothing refers to the chunk, and recovery does not read it.
    pub(super) fn empty_former_owners_chunk(&self, chunk: u64) -> Result<()> {
        let mut state = self.collecting();
        self.flush_memtables_at_once()?;
        self.allow_collection();
        if !self.move_live_records(unit_of(chunk))? {
            return Err(self.segment.ownership.stopped("the former owner's last chunk is read back"));
        }
        state.emptied.push((unit_of(chunk), self.segment.merges.moment()));
        self.give_up_emptied(&mut state, 1).map(|_| ())
    }

    /// Excludes a chunk from collections that is damaged or unreadable, or that has records of a keyspace that refuses writes. A reader that
    /// needs a record of the chunk gets the error. Other errors are returned.
    fn exclude_chunk(&self, unit: u64, error: Error) -> Result<()> {
        if !matches!(error, Error::Damaged { .. } | Error::Stopped { .. } | Error::Device { .. } | Error::Io(_)) {
            return Err(error);
        }
        tracing::error!(%error, "a chunk of the log is not collected");
        self.segment.allocator().log_chunks.forbid(unit);
        Ok(())
    }

    /// Frees the emptied chunks that no merge holds, if there are at least `least` of them; returns whether there were.
    fn give_up_emptied(&self, state: &mut Collecting, least: usize) -> Result<bool> {
        let merges = &self.segment.merges;
        let count = state.emptied.iter().take_while(|(_, since)| merges.have_ended_before(*since)).count();
        if count < least.max(1) {
            return Ok(false);
        }
        let chunk =
            |(unit, _): &(u64, Moment)| Freed { offset: unit * ALLOCATION_UNIT_BYTES, blocks: ALLOCATION_UNIT_BLOCKS };
        let chunks: Vec<Freed> = state.emptied[..count].iter().map(chunk).collect();
        // The records' successors must not be lost after the chunks are.
        self.log.sync_all()?;
        // Later publications must belong to a later commit.
        let committing = self.committing.lock().unwrap_or_else(PoisonError::into_inner);
        let epoch = self.segment.commit(Changes { log: Some(self.log.position()), ..Changes::default() }, &chunks)?;
        for chunk in &chunks {
            self.segment.chunk_generations.end(unit_of(chunk.offset), epoch);
            self.segment.allocator().log_chunks.end(unit_of(chunk.offset));
        }
        state.emptied.drain(..count);
        self.collector.chunks.fetch_add(chunks.len() as u64, Ordering::Relaxed);
        let retired = RetiredBlocks::new(&self.segment.reclaimable, chunks);
        for keyspace in self.readable_keyspaces() {
            keyspace.publish_freed_chunks(&retired, epoch);
        }
        drop(committing);
        drop(retired);
        self.segment.give_back()?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests;
