//! Looks at bytes in a buffer of the thread, not in the cache, if a second look soon is unlikely.

use std::cell::RefCell;

use zerocopy::IntoBytes;

use crate::device::Device;
use crate::error::Result;
use crate::format::block::{Block, Kind, Sealed, unseal};
use crate::format::geometry::BLOCK_BYTES;

/// The most blocks that one look reads past the mapping.
pub(super) const BYPASS_BLOCKS_MAX: usize = 4;
/// A cache has space if more than one in this number of its pages is free. Evictors free some hundreds at a time.
const FREE_SHARE: u64 = 8;

thread_local! {
    /// The thread's idle buffers. There are several because a thread looks at a record while it looks at the record's leaf.
    static BYPASS_BUFFERS: RefCell<Vec<Box<[Block; BYPASS_BLOCKS_MAX]>>> = const { RefCell::new(Vec::new()) };
}

impl Device {
    /// Shows `look` published bytes that are neither in memory nor worth a place there, read past the mapping into a buffer of the thread.
    /// `None` if the bytes are in memory or worth a place there, or are too many.
    pub(crate) fn bypass_look<Answer>(
        &self,
        offset: u64,
        bytes: usize,
        look: impl FnOnce(&[u8]) -> Result<Answer>,
    ) -> Result<Option<Answer>> {
        let start = offset - offset % BLOCK_BYTES as u64;
        let end = offset.saturating_add(bytes as u64).div_ceil(BLOCK_BYTES as u64).saturating_mul(BLOCK_BYTES as u64);
        let blocks = ((end - start) / BLOCK_BYTES as u64) as usize;
        if !(1..=BYPASS_BLOCKS_MAX).contains(&blocks) || end > self.len() {
            return Ok(None);
        }
        let is_resident = |block: u64| self.mapping.is_resident(start + block * BLOCK_BYTES as u64);
        if (0..blocks as u64).all(is_resident) || self.admission.admits(start / BLOCK_BYTES as u64, || self.has_space())
        {
            return Ok(None);
        }
        self.touched(start..end, false);
        let idle = BYPASS_BUFFERS.with_borrow_mut(Vec::pop);
        let mut buffer = idle.unwrap_or_else(|| Box::new([Block::ZERO; BYPASS_BLOCKS_MAX]));
        let bytes_read = &mut buffer.as_mut_bytes()[..blocks * BLOCK_BYTES];
        let at = (offset - start) as usize;
        let answer = self.read(start, bytes_read).and_then(|()| look(&bytes_read[at..at + bytes]));
        BYPASS_BUFFERS.with_borrow_mut(|idle| idle.push(buffer));
        answer.map(Some)
    }

    pub(super) fn has_space(&self) -> bool {
        let stats = self.cache.stats();
        stats.free_pages > stats.capacity_pages / FREE_SHARE
    }

    /// Shows `look` a published node that will most likely not be wanted again soon: it comes into the cache only if it is worth a place
    /// there.
    pub(crate) fn bypass_look_at_node<Answer>(
        &self,
        kind: Kind,
        offset: u64,
        look: impl Fn(&Sealed<'_>) -> Result<Answer>,
    ) -> Result<Answer> {
        let bypassed = self.bypass_look(offset, BLOCK_BYTES, |bytes| {
            let whole = bytes.first_chunk().and_then(|block| unseal(block, kind, offset).ok());
            whole.map(|sealed| look(&sealed)).transpose()
        })?;
        match bypassed.flatten() {
            Some(answer) => Ok(answer),
            // Or the node is damaged: the read into the cache reports that.
            None => self.look_at_node(kind, offset, look),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use vmio::Cache;
    use vmio::backing::MemoryBacking;

    use super::*;
    use crate::error::Error;
    use crate::format::block::{Label, Uuid, seal};
    use crate::format::geometry::ALLOCATION_UNIT_BYTES;

    #[test]
    fn bytes_wanted_once_do_not_come_into_a_full_cache() -> Result<()> {
        let cache = Cache::builder().capacity(32 << 20).build()?;
        let device = Device::open(
            &cache,
            Arc::new(MemoryBacking::new(64 * ALLOCATION_UNIT_BYTES)?),
            64 * ALLOCATION_UNIT_BYTES,
        )?;
        let block = |number: u64| ALLOCATION_UNIT_BYTES + number * BLOCK_BYTES as u64;
        (0..200).try_for_each(|number| device.write(block(number), &[number as u8; BLOCK_BYTES]))?;
        let bypass_look = |number, bytes| device.bypass_look(block(number), bytes, |bytes| Ok(bytes.to_vec()));
        assert_eq!(bypass_look(0, 8)?, None, "there is space");
        for number in 0..2 * (32 << 20) / BLOCK_BYTES as u64 {
            device.look(8 * ALLOCATION_UNIT_BYTES + number * BLOCK_BYTES as u64, 1, |_| Ok(()))?;
        }
        (1..100).try_for_each(|number| bypass_look(number, 8).map(drop))?;
        let seen = bypass_look(150, 2 * BLOCK_BYTES)?.expect("it was not wanted before");
        assert!(
            seen[..BLOCK_BYTES].iter().all(|byte| *byte == 150) && seen[BLOCK_BYTES..].iter().all(|byte| *byte == 151)
        );
        assert!(!device.mapping.is_resident(block(150)));
        assert_eq!(bypass_look(150, 8)?, None, "it is wanted again");
        assert_eq!(bypass_look(160, 8 * BLOCK_BYTES)?, None, "it is too long");
        device.look(block(170), 8, |_| Ok(()))?;
        assert_eq!(bypass_look(170, 8)?, None, "it is in memory");
        device.fetch(std::iter::once(block(180)..block(181)));
        assert_eq!(bypass_look(180, 8)?, None, "it is on its way");
        assert_eq!(bypass_look(63 * ALLOCATION_UNIT_BYTES / BLOCK_BYTES as u64, 8)?, None, "it is beyond the end");
        Ok(())
    }

    #[test]
    fn a_leaf_wanted_once_does_not_come_into_a_full_cache() -> Result<()> {
        let cache = Cache::builder().capacity(32 << 20).build()?;
        let device = Device::open(
            &cache,
            Arc::new(MemoryBacking::new(64 * ALLOCATION_UNIT_BYTES)?),
            64 * ALLOCATION_UNIT_BYTES,
        )?;
        device.know_unit(1, true, 2)?;
        let place = |number: u64| ALLOCATION_UNIT_BYTES + number * BLOCK_BYTES as u64;
        for number in 0..4 {
            let mut block = Block::ZERO;
            let label = Label { kind: Kind::Leaf, keyspace: 1, offset: place(number), epoch: 10 + number };
            seal(&mut block.0, Uuid::from_bytes([9; 16]), label, 0);
            // The last one is damaged.
            block.0[4000] = u8::from(number == 3);
            device.write(place(number), &block.0)?;
        }
        for number in 0..2 * (32 << 20) / BLOCK_BYTES as u64 {
            device.look(8 * ALLOCATION_UNIT_BYTES + number * BLOCK_BYTES as u64, 1, |_| Ok(()))?;
        }
        let epoch = |number| device.bypass_look_at_node(Kind::Leaf, place(number), |leaf| Ok(leaf.epoch));
        for number in 0..3 {
            assert_eq!(epoch(number)?, 10 + number);
            assert!(!device.mapping.is_resident(place(number)));
        }
        assert_eq!(epoch(1)?, 11);
        assert!(device.mapping.is_resident(place(1)), "it was wanted again");
        assert!(matches!(epoch(3), Err(Error::Io(vmio::Error::Corrupt { .. }))), "{:?}", epoch(3));
        Ok(())
    }
}
