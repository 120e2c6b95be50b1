//! The governor: chooses the capacity of a cache by what an observer sees of memory. It shrinks the cache at once where
//! memory runs short, and grows it little by little where memory does not.

use std::ops::RangeInclusive;

/// The margin that stays free: a sixteenth of the room, within these bounds.
const MARGIN_BYTES: RangeInclusive<u64> = 4 << 20..=1 << 30;
const MARGIN_SHARE: u64 = 16;
/// If threads wait for memory for more of the time than this, the cache shrinks.
const STALLED: f64 = 0.1;
/// If threads wait for no more of the time than this, a look is calm.
const CALM: f64 = 0.01;
/// The number of calm looks before the cache grows, and between two steps of growth.
const CALM_LOOKS: u32 = 50;
const LOOKS_BETWEEN: u32 = 10;
/// The cache grows by one part in the first number, and shrinks because of stalls by one part in the second.
const GROWTH_SHARE: u64 = 16;
const SHRINKAGE_SHARE: u64 = 8;
/// A step of growth has this many bytes at least.
const GROWTH_BYTES_MIN: u64 = 1 << 20;

/// The result of a look at memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Observation {
    /// The most memory that the cache could have, with what it has, if all others had no more than now.
    pub(crate) room_bytes: u64,
    /// The part of the time since the last look in which threads waited for memory.
    pub(crate) stalled: f64,
}

/// Decides which capacity follows the present one.
pub(crate) struct Governor {
    bounds: RangeInclusive<u64>,
    calm_looks: u32,
}

impl Governor {
    /// For a capacity within bounds, in bytes.
    pub(crate) fn new(bounds: RangeInclusive<u64>) -> Self {
        Governor { bounds, calm_looks: 0 }
    }

    /// The capacity to begin with.
    pub(crate) fn first(&self, seen: Observation) -> u64 {
        self.bounded(seen.room_bytes - 2 * margin_bytes(seen))
    }

    /// The capacity that should follow the present one. While nothing changes, the capacity settles. It grows to two
    /// margins below the room. It shrinks only when less than half a margin is left, to one margin below the room.
    pub(crate) fn decide(&mut self, capacity: u64, seen: Observation) -> u64 {
        let margin = margin_bytes(seen);
        let grown_most = seen.room_bytes - 2 * margin;
        let is_short = capacity > seen.room_bytes - margin / 2;
        self.calm_looks = if is_short || seen.stalled > CALM { 0 } else { self.calm_looks + 1 };
        let next = if is_short {
            seen.room_bytes - margin
        } else if seen.stalled > STALLED {
            capacity - capacity / SHRINKAGE_SHARE
        } else if self.calm_looks >= CALM_LOOKS && capacity < grown_most {
            self.calm_looks -= LOOKS_BETWEEN;
            grown_most.min(capacity + (capacity / GROWTH_SHARE).max(GROWTH_BYTES_MIN))
        } else {
            capacity
        };
        self.bounded(next)
    }

    fn bounded(&self, capacity: u64) -> u64 {
        capacity.clamp(*self.bounds.start(), *self.bounds.end())
    }
}

/// A third of the room at most, so that little room is not all margin.
fn margin_bytes(seen: Observation) -> u64 {
    let share = seen.room_bytes / MARGIN_SHARE;
    share.clamp(*MARGIN_BYTES.start(), *MARGIN_BYTES.end()).min(seen.room_bytes / 3)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn seen(room_mib: u64, stalled: f64) -> Observation {
        Observation { room_bytes: room_mib * MIB, stalled }
    }

    #[test]
    fn it_shrinks_at_once_and_grows_by_and_by() {
        let mut governor = Governor::new(8 * MIB..=4096 * MIB);
        assert_eq!(governor.first(seen(1024, 0.0)), 896 * MIB);
        assert_eq!(governor.decide(896 * MIB, seen(512, 0.0)), 480 * MIB);
        assert_eq!(governor.decide(480 * MIB, seen(4, 0.0)), 8 * MIB);
        assert_eq!(governor.decide(480 * MIB, seen(1024, 0.5)), 420 * MIB);
        for _ in 0..CALM_LOOKS - 1 {
            assert_eq!(governor.decide(320 * MIB, seen(1024, 0.0)), 320 * MIB);
        }
        assert_eq!(governor.decide(320 * MIB, seen(1024, 0.0)), 340 * MIB);
        assert_eq!(governor.decide(340 * MIB, seen(1024, 0.0)), 340 * MIB);
    }

    #[test]
    fn mild_stalls_keep_it_from_growing() {
        let mut governor = Governor::new(8 * MIB..=4096 * MIB);
        for _ in 0..10 * CALM_LOOKS {
            assert_eq!(governor.decide(100 * MIB, seen(1024, 0.05)), 100 * MIB);
        }
    }

    proptest! {
        /// Under constant input the capacity goes in one direction only, and then stays within its bounds and the room.
        #[test]
        fn it_does_not_oscillate(
            first in 8..10_000_u64,
            room in 0..10_000_u64,
            stalled in prop_oneof![Just(0.0), Just(0.05), 0.0..1.0],
            (floor, ceiling) in (8..5000_u64, 5000..10_000_u64),
        ) {
            let mut governor = Governor::new(floor * MIB..=ceiling * MIB);
            let mut capacity = governor.bounded(first * MIB);
            let mut last_change = None;
            for _ in 0..20_000 {
                let next = governor.decide(capacity, seen(room, stalled));
                if next != capacity {
                    let grows = next > capacity;
                    prop_assert!(last_change.is_none_or(|grew| grew == grows), "{capacity} and then {next}");
                    last_change = Some(grows);
                }
                capacity = next;
            }
            prop_assert_eq!(governor.decide(capacity, seen(room, stalled)), capacity);
            prop_assert!((floor * MIB..=ceiling * MIB).contains(&capacity));
            prop_assert!(capacity <= room * MIB || capacity == floor * MIB);
        }
    }
}
