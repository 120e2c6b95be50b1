//! Counts of events in a machine.

use std::ops::AddAssign;
use std::sync::atomic::{AtomicU64, Ordering};

/// Of one virtual processor.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) exits: AtomicU64,
    pub(crate) system_calls: AtomicU64,
    pub(crate) gigabytes: AtomicU64,
    pub(crate) interruptions: AtomicU64,
    pub(crate) departures: AtomicU64,
    pub(crate) faults: AtomicU64,
}

impl Counters {
    /// Counts one; only the virtual processor's own thread does.
    pub(crate) fn count(counter: &AtomicU64) {
        counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
}

/// Events so far, in all threads or in one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Returns of KVM_RUN, for whatever reason.
    pub exits: u64,
    /// System calls that were forwarded to the host.
    pub system_calls: u64,
    /// Gigabytes of address space that came into the machine at a touch.
    pub gigabytes: u64,
    /// Exits for signals, which the program's handlers then took.
    pub interruptions: u64,
    /// Threads that went on outside the machine because of what they did: an access that the host refuses, or an instruction that traps.
    pub departures: u64,
    /// Faults on managed pages, which the program's handler was asked to resolve.
    pub faults: u64,
    /// Times that TLBs of other virtual processors were emptied, for as many pages as there were at once; of the machine as a whole.
    pub shootdowns: u64,
}

impl AddAssign<&Counters> for Counts {
    fn add_assign(&mut self, counters: &Counters) {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        self.exits += read(&counters.exits);
        self.system_calls += read(&counters.system_calls);
        self.gigabytes += read(&counters.gigabytes);
        self.interruptions += read(&counters.interruptions);
        self.departures += read(&counters.departures);
        self.faults += read(&counters.faults);
    }
}
