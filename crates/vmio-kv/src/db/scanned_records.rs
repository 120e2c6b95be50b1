//! Which records scans read again and again, though they lie apart.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::format::geometry::BLOCK_BYTES;
use crate::format::pointer::Pointer;

/// A move of fewer records, or records of fewer blocks, is not worth a write.
pub(super) const BLOCKS_MIN: usize = 8;
/// Records lie apart if this many times as many blocks were read for them as they fill.
const APART: u64 = 2;
/// A record is moved when this many scans have read it: about as many later scans have to save a read before the move has paid.
const SCANS: u32 = 8;
/// One record in this many is remembered.
const SAMPLED: u64 = 16;
/// How many records are remembered: 256 KiB of memory.
const SAMPLES: usize = 1 << 16;
/// The low bits of a sample count how often its record was read; the others identify the record.
const COUNT_BITS: u32 = 4;

/// Samples of the records that scans have read past the cache of late. A record that scans read once is not worth a write.
pub(crate) struct ScannedRecords(Box<[AtomicU32]>);

impl ScannedRecords {
    pub(super) fn new() -> Self {
        ScannedRecords((0..SAMPLES).map(|_| AtomicU32::new(0)).collect())
    }

    /// Whether records lie apart, if a scan has read `blocks_read` blocks for them, and whether scans have read them often before. If they
    /// cannot be moved now, the answer is true again only after as many scans.
    pub(super) fn are_apart_again(&self, records: impl Iterator<Item = Pointer> + Clone, blocks_read: usize) -> bool {
        let bytes: u64 = records.clone().map(|record| u64::from(record.record_bytes())).sum();
        if blocks_read < BLOCKS_MIN || (blocks_read as u64) <= APART * bytes.div_ceil(BLOCK_BYTES as u64) {
            return false;
        }
        // Each record is counted, not only those up to the first that was read often.
        records.filter(|record| self.mark(record.offset())).count() > 0
    }

    /// Counts a read of a record that is sampled. Returns whether it has been read often.
    fn mark(&self, offset: u64) -> bool {
        let hash = offset.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        if hash >> 32 & (SAMPLED - 1) != 0 {
            return false;
        }
        let (slot, name) = (&self.0[(hash >> 48) as usize % SAMPLES], hash as u32 >> COUNT_BITS);
        let before = slot.load(Ordering::Relaxed);
        let count = if before >> COUNT_BITS == name { before & ((1 << COUNT_BITS) - 1) } else { 0 };
        // Threads that meet here may lose a count.
        slot.store((name << COUNT_BITS) | ((count + 1) % (SCANS + 1)), Ordering::Relaxed);
        count == SCANS
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::pointer::PointerKind;

    #[test]
    fn only_records_that_lie_apart_and_are_read_often_are_worth_a_move() {
        let scanned = ScannedRecords::new();
        let records =
            |step: u64| (0..64).map(move |place| Pointer::new(PointerKind::Value, (2 << 20) + place * step, 128));
        // They fill two blocks.
        let often =
            |step: u64, blocks: usize| (0..20).filter(|_| scanned.are_apart_again(records(step), blocks)).count();
        assert_eq!(often(128, 4), 0);
        // Too few blocks are not worth it, though half of them would do.
        assert_eq!(often(4096, BLOCKS_MIN - 1), 0);
        // The ninth and the eighteenth time.
        assert_eq!(often(4096, 64), 20 / (SCANS as usize + 1));
        assert!(
            !scanned.are_apart_again(
                (0..64).map(|place| Pointer::new(PointerKind::Value, (9 << 20) + place * 4096, 128)),
                64
            )
        );
    }
}
