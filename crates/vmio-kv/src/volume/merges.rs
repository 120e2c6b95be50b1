//! The running merges of levels. A chunk of the log is given up only once all merges have ended that began before it became empty.
//!
//! A merge that begins later drops the entries that point into the chunk. One that began before may have such an entry in a new leaf
//! already. The entry would outlive the chunk, and then point into the unit's next contents.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

/// The merges under way, by when they began.
#[derive(Clone, Default)]
pub(crate) struct Merges(Arc<Shared>);

#[derive(Default)]
struct Shared {
    running: Mutex<Running>,
    ended: Condvar,
}

#[derive(Default)]
struct Running {
    /// Rises with each merge that begins, and each moment that is taken.
    now: u64,
    /// When each merge began.
    began: BTreeSet<u64>,
}

/// A merge that is under way while this exists.
pub(crate) struct UnderWay {
    merges: Merges,
    since: u64,
}

/// A moment between the beginnings of merges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(u64);

impl Merges {
    /// Begins a merge. The caller looks at its inputs later.
    pub(crate) fn begin(&self) -> UnderWay {
        let mut running = self.0.running.lock();
        running.now += 1;
        let since = running.now;
        running.began.insert(since);
        drop(running);
        UnderWay { merges: self.clone(), since }
    }

    /// A moment that comes before all later merges.
    pub(crate) fn moment(&self) -> Moment {
        let mut running = self.0.running.lock();
        running.now += 1;
        Moment(running.now)
    }

    /// Whether all merges have ended that began before a moment.
    pub(crate) fn have_ended_before(&self, moment: Moment) -> bool {
        self.0.running.lock().have_ended_before(moment)
    }

    /// Waits until all merges have ended that began before this call.
    pub(crate) fn wait(&self) {
        let moment = self.moment();
        let mut running = self.0.running.lock();
        while !running.have_ended_before(moment) {
            self.0.ended.wait(&mut running);
        }
    }
}

impl Running {
    fn have_ended_before(&self, moment: Moment) -> bool {
        self.began.first().is_none_or(|since| *since > moment.0)
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let was_there = self.merges.0.running.lock().began.remove(&self.since);
        debug_assert!(was_there, "a merge ends once");
        self.merges.0.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_merges_do_not_have_to_end() {
        let merges = Merges::default();
        assert!(merges.have_ended_before(merges.moment()));
        let first = merges.begin();
        let between = merges.moment();
        let second = merges.begin();
        let after = merges.moment();
        assert!(!merges.have_ended_before(between));
        drop(first);
        assert!(merges.have_ended_before(between));
        assert!(!merges.have_ended_before(after));
        std::thread::scope(|scope| {
            scope.spawn(|| merges.wait());
            drop(second);
        });
        assert!(merges.have_ended_before(after));
    }
}
