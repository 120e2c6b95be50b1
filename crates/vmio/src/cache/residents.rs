//! Counts of pages in memory, by span and by priority, and the way of their spans into the policy's queues.

use vmio_core::page::occupancy::PriorityChange;

use crate::cache::region::Region;
use crate::policy::SpanRef;
use crate::sys::cpu;

impl Region {
    /// Counts one more page of a span in memory or on its way in. Waits while the span's memory is given back. Call it
    /// before changing the word of an absent page, and before looking whether the page may come in at all.
    pub(crate) fn add_resident(&self, span: u64) {
        let priority = self.table.span(span).enter();
        self.shared.telemetry.counters.add_resident(cpu::current(), priority, 1);
    }

    /// Counts this many fewer pages of a span in memory. Call it after the words say so.
    pub(crate) fn remove_resident(&self, span: u64, pages: u32) {
        let priority = self.table.span(span).leave(pages);
        self.shared.telemetry.counters.add_resident(cpu::current(), priority, -i64::from(pages));
    }

    /// Takes the pages of all spans out of the counts. No thread will touch them.
    pub(crate) fn forget_residents(&self) {
        for span in (0..self.table.spans()).map(|number| self.table.span(number)) {
            let pages = i64::from(span.resident());
            self.shared.telemetry.counters.add_resident(cpu::current(), span.priority(), -pages);
        }
    }

    /// Puts a span into the policy's queues if it is in none. Call it after its count of resident pages went up.
    pub(crate) fn queue_span(&self, number: u64) {
        let span = self.table.span(number);
        if span.claim_queued() {
            self.count_priority_change(span.set_region(
                std::ptr::from_ref(self).cast(),
                number,
                self.advised.priority(),
            ));
            debug_assert_eq!(span.region_and_number().1, number);
            self.order().policy.admit(SpanRef::new(span));
        }
    }

    /// Gives a span a priority of its own.
    pub(crate) fn set_span_priority(&self, number: u64, priority: u8) {
        let span = self.table.span(number);
        self.count_priority_change(span.set_priority(priority));
        if span.was_queued() {
            self.order().policy.reprioritize(SpanRef::new(span));
        }
    }

    fn count_priority_change(&self, PriorityChange { pages, from, to }: PriorityChange) {
        if from != to {
            let core = cpu::current();
            self.shared.telemetry.counters.add_resident(core, from, -i64::from(pages));
            self.shared.telemetry.counters.add_resident(core, to, i64::from(pages));
        }
    }
}
