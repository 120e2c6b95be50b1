//! Reads many blocks past the cache at once, for a caller that wants each of them once.

use std::cell::Cell;
use std::mem;
use std::ops::Range;

use zerocopy::IntoBytes;

use crate::device::Device;
use crate::device::bypass_look::BYPASS_BLOCKS_MAX;
use crate::format::block::Block;
use crate::format::geometry::BLOCK_BYTES;

/// The most blocks that one batch reads: 256 KiB.
const BLOCKS_MAX: usize = 64;

/// One read serves two wanted blocks if at most this many blocks lie between them. That costs less than another read, both on a device that
/// is quick with sequential reads and on one that takes processor time for each read.
const BETWEEN_MAX: u64 = 8;

thread_local! {
    /// The thread's last buffer, for the next batch.
    static IDLE: Cell<Option<Box<[Block]>>> = const { Cell::new(None) };
}

/// Blocks that were read; check the checksum before you believe them.
#[derive(Default)]
pub(crate) struct BypassBatch {
    /// The blocks' numbers in the volume, ascending.
    numbers: Vec<u64>,
    /// Bit *n*: block *n* of those was read.
    come: u64,
    blocks: Option<Box<[Block]>>,
}

impl BypassBatch {
    /// How many blocks were read.
    pub(crate) fn blocks(&self) -> usize {
        self.numbers.len()
    }

    /// The bytes of a range, if all of it was read.
    pub(crate) fn get(&self, range: Range<u64>) -> Option<&[u8]> {
        let wanted = blocks_of(&range);
        let first = self.numbers.binary_search(&wanted.start).ok()?;
        let places = first..first + (wanted.end - wanted.start) as usize;
        let is_there = |place: usize| self.come & 1 << place != 0;
        if self.numbers.get(places.end - 1) != Some(&(wanted.end - 1)) || !places.clone().all(is_there) {
            return None;
        }
        let at = (range.start % BLOCK_BYTES as u64) as usize;
        self.blocks.as_ref()?.get(places)?.as_bytes().get(at..at + (range.end - range.start) as usize)
    }
}

impl Drop for BypassBatch {
    fn drop(&mut self) {
        if let Some(blocks) = self.blocks.take() {
            // A thread that is ending has no slot any more.
            let _ = IDLE.try_with(|idle| idle.set(Some(blocks)));
        }
    }
}

/// The blocks that a range touches.
fn blocks_of(range: &Range<u64>) -> Range<u64> {
    range.start / BLOCK_BYTES as u64..range.end.div_ceil(BLOCK_BYTES as u64)
}

impl Device {
    /// Reads ranges of the log that the caller is about to look at, except those in memory. Pages worth a place in the cache are read into
    /// it in the background, as are long ranges. A later look reports failed reads.
    pub(crate) fn bypass_read(&self, ranges: impl Iterator<Item = Range<u64>>) -> BypassBatch {
        let mut numbers = Vec::with_capacity(BLOCKS_MAX);
        let mut into_cache = Vec::new();
        for range in ranges.filter(|range| !range.is_empty() && range.end <= self.len()) {
            let blocks = blocks_of(&range);
            if blocks.clone().all(|block| self.mapping.is_resident(block * BLOCK_BYTES as u64)) {
                continue;
            }
            // Several records in one block count as one read: they are no reason to admit the block.
            let is_begun = numbers.contains(&blocks.start);
            if is_begun && blocks.clone().all(|block| numbers.contains(&block)) {
                continue;
            }
            let count = (blocks.end - blocks.start) as usize;
            if count > BYPASS_BLOCKS_MAX.min(BLOCKS_MAX - numbers.len())
                || !is_begun && self.admission.admits(blocks.start, || self.has_space())
            {
                into_cache.push(range);
            } else {
                self.touched(range, false);
                numbers.extend(blocks);
            }
        }
        self.prefetch(into_cache.into_iter());
        if numbers.is_empty() {
            return BypassBatch::default();
        }
        numbers.sort_unstable();
        numbers.dedup();
        let mut blocks = IDLE.take().unwrap_or_else(|| vec![Block::ZERO; BLOCKS_MAX].into());
        let mut come = 0;
        let reads =
            numbers.iter().zip(&mut blocks).map(|(number, block)| (number * BLOCK_BYTES as u64, &mut block.0[..]));
        self.batches.read(&*self.backing, reads, |place, read| {
            come |= u64::from(matches!(read, Ok(BLOCK_BYTES))) << place;
        });
        BypassBatch { numbers, come, blocks: Some(blocks) }
    }
}

impl Device {
    /// Reads ascending ranges of the log past the cache, except those in memory. It reads a small gap between two of them as well, so that
    /// one read serves both. Returns how many ranges were dealt with: as many as fit.
    pub(crate) fn bypass_read_nearby(&self, ranges: impl Iterator<Item = Range<u64>>) -> (BypassBatch, usize) {
        let mut runs: Vec<Range<u64>> = Vec::new();
        let (mut count, mut dealt_with) = (0, 0);
        for range in ranges {
            let blocks = blocks_of(&range);
            let is_wanted = !range.is_empty() && range.end <= self.len() && blocks.clone().count() <= BYPASS_BLOCKS_MAX;
            if is_wanted && !blocks.clone().all(|block| self.mapping.is_resident(block * BLOCK_BYTES as u64)) {
                let near = runs.last_mut().filter(|run| blocks.start <= run.end + BETWEEN_MAX);
                let from = near.as_ref().map_or(blocks.start, |run| run.end);
                count += blocks.end.saturating_sub(from) as usize;
                if count > BLOCKS_MAX {
                    break;
                }
                match near {
                    Some(run) => run.end = run.end.max(blocks.end),
                    None => runs.push(blocks),
                }
                self.touched(range, false);
            }
            dealt_with += 1;
        }
        let bypassed = if runs.is_empty() { BypassBatch::default() } else { self.read_runs(&runs) };
        (bypassed, dealt_with)
    }

    /// Reads ascending runs of blocks, which must fit.
    fn read_runs(&self, runs: &[Range<u64>]) -> BypassBatch {
        let numbers: Vec<u64> = runs.iter().cloned().flatten().collect();
        let mut blocks = IDLE.take().unwrap_or_else(|| vec![Block::ZERO; BLOCKS_MAX].into());
        let mut rest = &mut blocks[..];
        let reads = runs.iter().map(|run| {
            let place;
            (place, rest) = mem::take(&mut rest).split_at_mut((run.end - run.start) as usize);
            (run.start * BLOCK_BYTES as u64, place.as_mut_bytes())
        });
        let mut come = 0;
        self.batches.read(&*self.backing, reads, |place, read| {
            let first = numbers.partition_point(|number| *number < runs[place].start);
            let whole = read.unwrap_or(0) / BLOCK_BYTES;
            (first..first + whole).for_each(|place| come |= 1 << place);
        });
        BypassBatch { numbers, come, blocks: Some(blocks) }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use vmio::Cache;
    use vmio::backing::{Backing, FileBacking};

    use super::*;
    use crate::error::Result;
    use crate::format::geometry::ALLOCATION_UNIT_BYTES;

    const BLOCK: u64 = BLOCK_BYTES as u64;

    #[test]
    fn ranges_wanted_once_are_read_together_and_stay_out_of_a_full_cache() -> Result<()> {
        let folder = tempfile::tempdir().expect("a folder");
        let backing = Arc::new(FileBacking::create(folder.path().join("volume"), 64 * ALLOCATION_UNIT_BYTES)?);
        let cache = Cache::builder().capacity(32 << 20).build()?;
        let device = Device::open(&cache, Arc::clone(&backing) as Arc<dyn Backing>, 0)?;
        let place = |block: u64| ALLOCATION_UNIT_BYTES + block * BLOCK;
        (0..400).try_for_each(|block| device.write(place(block), &Block([block as u8; BLOCK_BYTES]).0))?;
        // The cache is full of something else.
        for block in 0..2 * (32 << 20) / BLOCK {
            device.look(8 * ALLOCATION_UNIT_BYTES + block * BLOCK, 1, |_| Ok(()))?;
        }
        device.bypass_look(place(399), 8, |_| Ok(()))?;
        device.look(place(7), 1, |_| Ok(()))?;
        let range = |from: u64, bytes: u64| from..from + bytes;
        let wanted = [
            range(place(30) + 100, 50),
            range(place(10) + 4000, 200),
            // The same block again, and one that is in memory.
            range(place(30) + 4000, 96),
            range(place(7), 10),
            // Too long, and beyond the end.
            range(place(200), BLOCK * BYPASS_BLOCKS_MAX as u64 + 1),
            range(64 * ALLOCATION_UNIT_BYTES - 10, 20),
        ];
        let bypassed = device.bypass_read(wanted.iter().cloned());
        let of = |range: &Range<u64>| bypassed.get(range.clone()).map(<[u8]>::to_vec);
        assert_eq!(of(&wanted[0]), Some(vec![30; 50]));
        assert_eq!(of(&wanted[1]), Some([vec![10; 96], vec![11; 104]].concat()));
        assert_eq!(of(&wanted[2]), Some(vec![30; 96]));
        wanted[3..].iter().for_each(|other| assert_eq!(of(other), None));
        assert_eq!(of(&range(place(31), 1)), None);
        assert!([10, 11, 30].into_iter().all(|block| !device.mapping.is_resident(place(block))));
        // Wanted again so soon, it comes into the cache.
        let again = device.bypass_read(std::iter::once(wanted[0].clone()));
        assert_eq!(again.get(wanted[0].clone()), None);
        assert_eq!(device.look(place(30), 1, |bytes| Ok(bytes[0]))?, 30);
        // No more than fits at a time.
        let many = device.bypass_read((40..180).map(|block| range(place(block), BLOCK)));
        let come: Vec<_> = (40..180).filter(|block| many.get(range(place(*block), BLOCK)).is_some()).collect();
        assert_eq!(come, Vec::from_iter(40..40 + BLOCKS_MAX as u64));
        Ok(())
    }
}
