//! The parts that others have taken away from a map, and how often parts of it were leased.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The number of losses of which the parts are known.
const KNOWN: u32 = 8;
/// Added for a lease. The losses are in the lower half.
const GRANT: u64 = 1 << 32;

/// Counts leases and losses of parts. A loss takes everything from a block on.
pub(super) struct Changes {
    counts: AtomicU64,
    /// Where the last losses began, each at its number modulo [`KNOWN`].
    from_blocks: [AtomicU32; KNOWN as usize],
}

impl Changes {
    pub(super) const fn new() -> Changes {
        Changes { counts: AtomicU64::new(0), from_blocks: [const { AtomicU32::new(0) }; KNOWN as usize] }
    }

    /// A number that each lease and each loss changes.
    #[inline]
    pub(super) fn now(&self) -> u64 {
        self.counts.load(Ordering::SeqCst)
    }

    /// A part was leased.
    pub(super) fn granted(&self) {
        self.counts.fetch_add(GRANT, Ordering::SeqCst);
    }

    /// Everything from a block on is about to be taken away. One thread at a time says so.
    pub(super) fn lost(&self, from_block: u32) {
        let number = self.counts.load(Ordering::SeqCst) as u32;
        self.from_blocks[(number % KNOWN) as usize].store(from_block, Ordering::SeqCst);
        self.counts.fetch_add(1, Ordering::SeqCst);
    }

    /// Whether a block, or one before it, may have been taken away since the number was `before`.
    pub(super) fn has_lost(&self, before: u64, block: u32) -> bool {
        let first = before as u32;
        let lost = |now: u64| (now as u32).wrapping_sub(first);
        // The place of one more may be changing just now.
        let all = lost(self.now());
        let is_known = |lost: u32| lost < KNOWN;
        let is_among = |number: u32| {
            let place = (first.wrapping_add(number) % KNOWN) as usize;
            self.from_blocks[place].load(Ordering::SeqCst) <= block
        };
        !is_known(all) || (0..all).any(is_among) || !is_known(lost(self.now()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_and_losses_behind_a_block_take_nothing_of_it() {
        let changes = Changes::new();
        let before = changes.now();
        changes.granted();
        changes.lost(11);
        changes.lost(700);
        assert_ne!(changes.now(), before);
        assert!(!changes.has_lost(before, 10) && changes.has_lost(before, 11) && changes.has_lost(before, 12));
        let later = changes.now();
        changes.lost(0);
        changes.granted();
        assert!(changes.has_lost(later, 0) && !changes.has_lost(changes.now(), u32::MAX));
    }

    #[test]
    fn more_losses_than_are_known_may_have_taken_anything() {
        let changes = Changes::new();
        // The numbers of losses begin anew, and then count as leases.
        changes.counts.store(u64::from(u32::MAX - 2), Ordering::SeqCst);
        let before = changes.now();
        for _ in 0..KNOWN - 1 {
            changes.lost(90);
            assert!(!changes.has_lost(before, 89) && changes.has_lost(before, 90));
        }
        changes.lost(90);
        assert!(changes.has_lost(before, 89));
    }
}
