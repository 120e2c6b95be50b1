//! Garbage collection of the log: the live records of the chunks with the most garbage are appended anew, and the chunks given up.
//!
//! What is moved is put again, or deleted again, within its region's write turn, and only if the index still points to the old
//! record. So the log's order stays that of the writes, and reading it back needs no rule for what was moved.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLockReadGuard, RwLockWriteGuard};

use crate::db::OpenSegment;
use crate::error::{Error, Result};
use crate::format::chunk::CHUNK_BYTES;
use crate::format::free_log::Freed;
use crate::format::geometry::{UNIT_BLOCKS, UNIT_BYTES, unit_of};
use crate::format::unit_table::Purpose;
use crate::log::{Append, Visited};
use crate::region::Region;
use crate::region::memory_level::NEWEST;
use crate::volume::commit::Changes;
use crate::volume::era::Outdated;
use crate::volume::reserve::Claim;

/// Garbage that is not worth a collection of its own while there is room.
const SLACK_BYTES: u64 = 4 * UNIT_BYTES;
/// When room is short, chunks are collected that have this much garbage.
const GARBAGE_BYTES_MIN: u64 = UNIT_BYTES / 16;

/// Whoever changes levels on the device holds it, beside others who do; who collects garbage has it alone.
#[derive(Default)]
pub(crate) struct Upkeep {
    /// Chunks that cannot be read: they are left alone.
    damaged: BTreeSet<u64>,
    /// Where the log ended when a collection found nothing to gain.
    was_in_vain: Option<u64>,
}

/// What has been collected since the store was opened.
#[derive(Default)]
pub(crate) struct Collected {
    pub(crate) chunks: AtomicU64,
    pub(crate) moved_bytes: AtomicU64,
}

/// How much of the log is live.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LogSpace {
    pub(crate) bytes: u64,
    pub(crate) garbage_bytes: u64,
}

/// When there is little enough garbage.
#[derive(Clone, Copy, Debug)]
struct Goal {
    /// When the log takes no more than this beside its limit,
    slack_bytes: u64,
    /// and puts find that many chunks.
    chunks: u64,
}

/// Where garbage is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effort {
    /// Where it is known to be.
    Known,
    /// Also in chunks that are read on opening: what is in memory is spilled, so that they need not be.
    Memory,
    /// Also what is known only when the levels meet: they are all merged.
    Levels,
}

impl OpenSegment {
    /// Waits until nobody spills, or collects.
    pub(super) fn upkeep(&self) -> RwLockWriteGuard<'_, Upkeep> {
        self.upkeep.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until nobody collects.
    pub(super) fn upkeep_beside(&self) -> RwLockReadGuard<'_, Upkeep> {
        self.upkeep.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The log's chunks, those that are `left_out` aside.
    pub(super) fn log_space(&self, left_out: &BTreeSet<u64>) -> LogSpace {
        let mut space = LogSpace::default();
        for (offset, garbage) in self.chunks() {
            if !left_out.contains(&offset) {
                space.bytes += UNIT_BYTES;
                space.garbage_bytes += garbage;
            }
        }
        space
    }

    /// All chunks that have not been given up, and how much of each is garbage.
    fn chunks(&self) -> Vec<(u64, u64)> {
        let segment = &self.segment;
        let allocator = segment.allocator();
        let chunks = allocator.units().filter(|(unit, of)| of.purpose == Purpose::Log && !segment.lives.is_over(*unit));
        chunks.map(|(unit, of)| (unit * UNIT_BYTES, u64::from(of.garbage).min(UNIT_BYTES))).collect()
    }

    /// Bytes of garbage from which on a chunk is to be collected; none if the goal is reached.
    fn least_garbage(&self, goal: Goal) -> Option<u64> {
        if self.segment.check_room(Claim::Put, goal.chunks).is_err() {
            return Some(GARBAGE_BYTES_MIN);
        }
        let space = self.log_space(&self.log.open_chunks());
        let most = self.store.options.space_amplification();
        let live_bytes = space.bytes - space.garbage_bytes;
        let is_too_large = space.bytes as f64 > live_bytes as f64 * most + goal.slack_bytes as f64;
        is_too_large.then_some((UNIT_BYTES as f64 * (1.0 - 1.0 / most)) as u64)
    }

    /// Collects what is due, in the background. As long as nothing is, spills go on.
    pub(super) fn collect_due(&self) -> Result<()> {
        let is_short = self.segment.check_room(Claim::Put, 1).is_err() && !self.grow_for(Claim::Put, 1);
        let effort = if is_short { Effort::Levels } else { Effort::Memory };
        let goal = Goal { slack_bytes: SLACK_BYTES, chunks: 1 };
        let is_worth_it = |least| effort == Effort::Levels || self.has_garbage(&self.upkeep_beside(), least);
        if self.least_garbage(goal).is_some_and(is_worth_it) {
            self.collect(&mut self.upkeep(), goal, effort)?;
        }
        Ok(())
    }

    /// Collects until the log is within its limit, or nothing more can be gained.
    pub(super) fn collect_all(&self) -> Result<()> {
        self.store.check_writable()?;
        let mut upkeep = self.upkeep();
        self.store.spills.forget_apart();
        // What somebody has read until now.
        self.segment.give_back()?;
        // What was overwritten in memory alone is not counted yet.
        self.spill_memories(&upkeep)?;
        self.collect(&mut upkeep, Goal { slack_bytes: 0, chunks: 1 }, Effort::Levels)?;
        drop(upkeep);
        self.discard_free();
        Ok(())
    }

    /// Makes room for a write that was refused; tells whether it is worth another try.
    pub(super) fn make_room(&self, claim: Claim, chunks: u64) -> Result<bool> {
        let mut upkeep = self.upkeep();
        let has_room = || {
            let lacks_none = self.regions().iter().all(|region| !region.lacks_room());
            lacks_none && self.segment.check_room(claim, chunks).is_ok()
        };
        let spill_again = |upkeep: &Upkeep| {
            let mut lacking = self.regions().into_iter().filter(|region| region.lacks_room());
            lacking.try_for_each(|region| self.spill_all(&region, false, upkeep))
        };
        // Somebody else may have made it meanwhile.
        self.store.spills.forget_apart();
        self.segment.give_back()?;
        spill_again(&upkeep)?;
        let (_, end) = self.log.end();
        if has_room() {
            return Ok(true);
        }
        if upkeep.was_in_vain == Some(end) {
            return Ok(false);
        }
        self.collect(&mut upkeep, Goal { slack_bytes: SLACK_BYTES, chunks }, Effort::Levels)?;
        spill_again(&upkeep)?;
        let has_room = has_room();
        upkeep.was_in_vain = (!has_room).then(|| self.log.end().1);
        Ok(has_room)
    }

    fn collect(&self, upkeep: &mut Upkeep, goal: Goal, most: Effort) -> Result<()> {
        self.log.check_goes_on()?;
        self.store.spills.forget_apart();
        for effort in [Effort::Known, Effort::Memory, Effort::Levels] {
            let Some(least) = self.least_garbage(goal) else { return Ok(()) };
            match effort {
                Effort::Known => {}
                Effort::Memory if most == Effort::Levels || self.has_garbage(upkeep, least) => {
                    self.spill_memories(upkeep)?;
                }
                _ if most != Effort::Levels => return Ok(()),
                Effort::Memory | Effort::Levels => {
                    for region in self.regions() {
                        self.spill_all(&region, true, upkeep)?;
                    }
                }
            }
            while let Some(least) = self.least_garbage(goal) {
                if self.store.spills.is_stopping() {
                    return Ok(());
                }
                // A collection may go on for long.
                self.keep_recovery_short(Some(upkeep))?;
                let has_moved = self.collect_some(upkeep, least)?;
                // What was given up may be held by readers: then more moves would take what is kept for deletions.
                if !has_moved || self.segment.check_room(Claim::Delete, 1).is_err() {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Whether a chunk that is not written to has that much garbage.
    fn has_garbage(&self, upkeep: &Upkeep, least: u64) -> bool {
        let open = self.log.open_chunks();
        let is_worth_it = |(chunk, garbage): &(u64, u64)| {
            *garbage >= least && !open.contains(chunk) && !upkeep.damaged.contains(chunk)
        };
        self.chunks().iter().any(is_worth_it)
    }

    /// Has nothing in memory that was there: so the log is read back from here on.
    fn spill_memories(&self, upkeep: &Upkeep) -> Result<()> {
        self.regions().iter().try_for_each(|region| self.spill_memory(region, upkeep))
    }

    /// The same for one region. What a spill that failed has left is lost to no reader, and stays.
    pub(super) fn spill_memory(&self, region: &Region, upkeep: &Upkeep) -> Result<()> {
        if region.has_failed() {
            return Ok(());
        }
        self.spill_all(region, false, upkeep)?;
        if region.freeze() {
            self.spill_all(region, false, upkeep)?;
        }
        Ok(())
    }

    /// Chunks with that much garbage, the most first. Recovery does not need them: what they hold is in levels on the device, or
    /// nowhere.
    fn victims(&self, upkeep: &mut Upkeep, least: u64) -> Result<Vec<u64>> {
        let superblock = self.segment.superblock();
        let replayed = unit_of(superblock.log_replay_from) * UNIT_BYTES;
        let open = self.log.open_chunks();
        let mut chunks = self.chunks();
        chunks.retain(|(chunk, garbage)| {
            *garbage >= least && !open.contains(chunk) && *chunk != replayed && !upkeep.damaged.contains(chunk)
        });
        chunks.sort_unstable_by_key(|(_, garbage)| std::cmp::Reverse(*garbage));
        let mut victims = Vec::new();
        for (chunk, _) in chunks {
            match self.log.first_sequence(chunk) {
                Ok(first) if first < superblock.log_replay_sequence => victims.push(chunk),
                Ok(_) => {}
                Err(error) => Self::leave_alone(upkeep, chunk, error)?,
            }
        }
        Ok(victims)
    }

    /// A chunk that is damaged stays as it is, and so does one with records of a region that takes no writes: whoever needs a record
    /// of it will be told.
    fn leave_alone(upkeep: &mut Upkeep, chunk: u64, error: Error) -> Result<()> {
        if !matches!(error, Error::Damaged { .. } | Error::Stopped { .. }) {
            return Err(error);
        }
        tracing::error!(%error, "a chunk of the log is not collected");
        upkeep.damaged.insert(chunk);
        Ok(())
    }

    /// Collects chunks until about one chunk's worth has been moved; tells whether there were any.
    fn collect_some(&self, upkeep: &mut Upkeep, least: u64) -> Result<bool> {
        let regions: BTreeMap<u32, Arc<Region>> =
            self.regions().into_iter().map(|region| (region.number, region)).collect();
        let (mut moved, mut emptied) = (0, Vec::new());
        for chunk in self.victims(upkeep, least)? {
            match self.move_live(chunk, &regions, &mut moved, upkeep) {
                Ok(()) => emptied.push(Freed { offset: chunk, blocks: UNIT_BLOCKS }),
                // Others may have made room enough.
                Err(Error::Full { .. }) => break,
                // Its regions take no writes since the store is being closed: there is nothing wrong with the chunk.
                Err(_) if self.store.spills.is_stopping() => break,
                Err(error) => Self::leave_alone(upkeep, chunk, error)?,
            }
            if moved >= CHUNK_BYTES as u64 {
                break;
            }
        }
        if emptied.is_empty() {
            return Ok(false);
        }
        self.give_up(emptied)?;
        self.collected.moved_bytes.fetch_add(moved, Ordering::Relaxed);
        Ok(true)
    }

    /// Has nothing be referred to in a chunk that a former owner may still write to; nor is the log read back from there any more.
    pub(super) fn leave_chunk(&self, chunk: u64) -> Result<()> {
        let upkeep = self.upkeep();
        self.spill_memories_at_once(&upkeep)?;
        let regions = self.regions().into_iter().map(|region| (region.number, region)).collect();
        self.move_live(chunk, &regions, &mut 0, &upkeep)?;
        self.give_up(vec![Freed { offset: chunk, blocks: UNIT_BLOCKS }])
    }

    /// Gives up chunks of which no record is the newest of its key.
    fn give_up(&self, chunks: Vec<Freed>) -> Result<()> {
        // What has taken the place of their records must not be lost when they are.
        self.log.sync_all()?;
        let epoch = self.segment.commit(Changes { log: Some(self.log.position()), ..Changes::default() }, &chunks)?;
        for chunk in &chunks {
            self.segment.lives.end(unit_of(chunk.offset), epoch);
        }
        self.collected.chunks.fetch_add(chunks.len() as u64, Ordering::Relaxed);
        let outdated = Outdated::new(&self.segment.retired, chunks);
        for region in self.readable_regions() {
            region.outlive(&outdated, epoch);
        }
        drop(outdated);
        self.segment.give_back()
    }

    /// Appends anew what is live in a chunk.
    fn move_live(
        &self,
        chunk: u64,
        regions: &BTreeMap<u32, Arc<Region>>,
        moved: &mut u64,
        upkeep: &Upkeep,
    ) -> Result<()> {
        let chunk = self.log.read_chunk(chunk)?;
        self.log.walk(&chunk, |record| {
            // Regions that are not there were never committed.
            let Some(region) = regions.get(&record.region) else { return Ok(()) };
            if self.move_record(region, &record, upkeep)? {
                *moved += u64::from(record.pointer.record_bytes());
            }
            Ok(())
        })
    }

    /// Appends a record anew if it is the newest of its key.
    fn move_record(&self, region: &Region, record: &Visited<'_>, upkeep: &Upkeep) -> Result<bool> {
        loop {
            let version = region.version();
            // First: what is put while the levels are looked through makes a difference below.
            let in_memory = version.in_memory(record.key, NEWEST);
            if region.newest(&version, NEWEST, record.key)? != Some(record.pointer) {
                return Ok(false);
            }
            let Some(turn) = region.try_begin_write()? else {
                // Who waits for room waits for this thread.
                self.spill_all(region, false, upkeep)?;
                if region.lacks_room() {
                    return Err(self.segment.full(UNIT_BYTES));
                }
                continue;
            };
            // Nobody else changes the levels on the device.
            if turn.in_memory(record.key) != in_memory {
                return Ok(false);
            }
            let append = Append { kind: record.kind, region: region.number, key: record.key, value: record.value };
            let at = self.log.append_one_record(&append, Claim::Move)?;
            let is_full = turn.put(record.key, at.sequence, at.pointer);
            drop(turn);
            if is_full && region.freeze() {
                self.spill_all(region, false, upkeep)?;
            }
            return Ok(true);
        }
    }
}
