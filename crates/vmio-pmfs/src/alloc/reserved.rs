//! Blocks that files are about to grow into. They are neither any file's nor free for others, in memory alone.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use super::Run;

/// The blocks that files are about to grow into, by inode.
#[derive(Default)]
pub(crate) struct Reserved(Mutex<BTreeMap<u64, Reservation>>);

/// The rest of an aligned extent, whose first blocks are a file's last ones.
#[derive(Clone, Copy)]
struct Reservation {
    /// The block of the file that the first one becomes.
    block: u32,
    run: Run,
    /// A process may store to them already: they go to nobody else.
    is_leased: bool,
}

impl Reserved {
    /// Takes up to `most` blocks that are to become a file's from this block on.
    pub(crate) fn take(&self, ino: u64, block: u32, most: u64) -> Option<Run> {
        let mut all = self.0.lock();
        let reservation = all.get_mut(&ino).filter(|there| there.block == block)?;
        let taken = Run { start: reservation.run.start, count: most.min(reservation.run.count) };
        reservation.block += taken.count as u32;
        reservation.run = Run { start: taken.end(), count: reservation.run.count - taken.count };
        if reservation.run.count == 0 {
            all.remove(&ino);
        }
        Some(taken)
    }

    /// Keeps blocks that are to become a file's from this block on. Returns those that were kept for it before.
    pub(crate) fn put(&self, ino: u64, block: u32, run: Run) -> Option<Run> {
        self.0.lock().insert(ino, Reservation { block, run, is_leased: false }).map(|before| before.run)
    }

    /// Leases the blocks that are kept for a file from this block on: they stay until [`Self::remove`].
    pub(crate) fn lease(&self, ino: u64, block: u32) -> Option<Run> {
        let mut all = self.0.lock();
        let reservation = all.get_mut(&ino).filter(|there| there.block == block)?;
        reservation.is_leased = true;
        Some(reservation.run)
    }

    /// Those of a file.
    pub(crate) fn of(&self, ino: u64) -> Option<Run> {
        self.0.lock().get(&ino).map(|reservation| reservation.run)
    }

    /// Whether there are any for this file.
    pub(crate) fn is_for(&self, ino: u64) -> bool {
        self.0.lock().contains_key(&ino)
    }

    /// The file does not grow any more.
    pub(crate) fn remove(&self, ino: u64) -> Option<Run> {
        self.0.lock().remove(&ino).map(|before| before.run)
    }

    /// No file gets what was kept for it, unless it is leased.
    pub(crate) fn drain(&self) -> Vec<Run> {
        let mut drained = Vec::new();
        self.0.lock().retain(|_, reservation| {
            if !reservation.is_leased {
                drained.push(reservation.run);
            }
            reservation.is_leased
        });
        drained
    }

    /// All that others may have, by [`Self::drain`].
    pub(crate) fn runs(&self) -> Vec<Run> {
        self.0.lock().values().filter(|reservation| !reservation.is_leased).map(|reservation| reservation.run).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_taken_in_order_and_only_by_their_file() {
        let reserved = Reserved::default();
        assert_eq!(reserved.put(7, 513, Run { start: 1025, count: 511 }), None);
        assert_eq!((reserved.take(8, 513, 1), reserved.take(7, 512, 1)), (None, None));
        assert_eq!(reserved.take(7, 513, 11), Some(Run { start: 1025, count: 11 }));
        assert_eq!(reserved.runs(), [Run { start: 1036, count: 500 }]);
        assert_eq!(reserved.take(7, 524, 1000), Some(Run { start: 1036, count: 500 }));
        assert_eq!(reserved.remove(7), None);
        reserved.put(7, 1, Run { start: 1, count: 1 });
        assert_eq!(reserved.put(7, 2, Run { start: 2, count: 1 }), Some(Run { start: 1, count: 1 }));
        assert_eq!((reserved.lease(7, 1), reserved.lease(7, 2)), (None, Some(Run { start: 2, count: 1 })));
        assert_eq!(reserved.drain(), [], "a process may store to it");
        assert_eq!(reserved.remove(7), Some(Run { start: 2, count: 1 }));
        reserved.put(7, 2, Run { start: 2, count: 1 });
        assert_eq!(reserved.drain(), [Run { start: 2, count: 1 }]);
        assert_eq!(reserved.runs(), []);
    }
}
