//! Blocks of a file, which has 2³² − 1 of them at most.

use std::ops::Range;

use crate::sys::{HUGE_PAGE_BYTES, PAGE_BYTES};

/// The block that a map shows at an offset, if its first one is `first`; `None` behind the last block of all.
pub(super) fn block_at(first: u32, offset: u64) -> Option<u32> {
    u32::try_from(offset / PAGE_BYTES as u64).ok()?.checked_add(first)
}

/// The blocks that a map shows at a range of bytes, of which the last one is whole.
pub(super) fn blocks_of(first: u32, bytes: &Range<u64>) -> Option<Range<u32>> {
    let end = bytes.end.checked_next_multiple_of(PAGE_BYTES as u64)?;
    Some(block_at(first, bytes.start)?..block_at(first, end)?)
}

/// The blocks around one that a huge page has. Fewer at the end of all blocks.
pub(super) fn of_huge_page(block: u32) -> Range<u32> {
    let each = (HUGE_PAGE_BYTES / PAGE_BYTES) as u32;
    let first = block / each * each;
    first..first.saturating_add(each)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_no_block_behind_the_last() {
        let (page, most) = (PAGE_BYTES as u64, u64::from(u32::MAX));
        assert_eq!([block_at(0, most * page), block_at(0, (most + 1) * page)], [Some(u32::MAX), None]);
        assert_eq!([block_at(u32::MAX - 1, page), block_at(u32::MAX - 1, 2 * page)], [Some(u32::MAX), None]);
        assert_eq!(blocks_of(3, &(page..2 * page + 1)), Some(4..6));
        assert_eq!([blocks_of(0, &(0..u64::MAX)), blocks_of(u32::MAX, &(0..page))], [None, None]);
        assert_eq!([of_huge_page(0), of_huge_page(1023)], [0..512, 512..1024]);
        assert_eq!(of_huge_page(u32::MAX), u32::MAX - 511..u32::MAX);
    }
}
