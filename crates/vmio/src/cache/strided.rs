//! Read-ahead of misses that are a constant distance apart: a thread reads the pages ahead at the same time as the missed
//! one, through a ring that no other thread has meanwhile. docs/design/read-ahead.md says when.

use vmio_core::page::snapshot::State;
use vmio_core::page::strides::Stride;

use crate::cache::page_buffers::{PageBuffer, WINDOW_PAGES_MAX};
use crate::cache::region::Region;
use crate::sys::batch_ring::BatchRing;
use crate::sys::{PAGE_BYTES, thread};
use crate::telemetry::counters::Counter;

/// Pages on their way in, ahead of a miss. Their words say Loading, by us, and they have their budget.
pub(super) struct StridedRead<'a> {
    ring: Box<BatchRing>,
    buffer: PageBuffer<'a>,
    missed: u64,
    stride: i64,
    /// Bit *n*: the page *n* strides away is one of them.
    claimed: u32,
}

impl StridedRead<'_> {
    fn page(&self, steps: u32) -> Option<u64> {
        self.missed.checked_add_signed(self.stride * i64::from(steps))
    }
}

fn place_in_buffer(steps: u32) -> std::ops::Range<usize> {
    let start = steps as usize * PAGE_BYTES;
    start..start + PAGE_BYTES
}

impl Region {
    /// Begins to read ahead of a load that has missed, if the load continues a stride. The caller has found no advice against
    /// it, and the missed page has its budget. Waits for nobody.
    #[inline(never)]
    pub(super) fn begin_strided(&self, core: usize, page: u64) -> Option<StridedRead<'_>> {
        let is_single = self.table.unit.pages() == 1 && !self.views.shares_addresses;
        if !is_single || self.backing.direct_reads().is_none() || self.table.sequence_at(page).is_row() {
            return None;
        }
        let knows_thread = self.shared.paging.engine.handles_faults_in_their_threads();
        let stride = self.read_ahead.strides.missed(if knows_thread { thread::current() } else { 0 }, page)?;
        let read = self.claim_strided(core, page, stride);
        if read.is_none() {
            self.read_ahead.strides.keep(stride, page);
        }
        read
    }

    fn claim_strided(&self, core: usize, page: u64, stride: Stride) -> Option<StridedRead<'_>> {
        let file = self.backing.direct_reads()?;
        let ring = self.shared.reads.stride_rings.rings.pop()?;
        let buffer = self.shared.reads.page_buffers.acquire(core);
        let mut read = StridedRead { ring, buffer, missed: page, stride: stride.pages, claimed: 0 };
        let mut last = page;
        for steps in 1..=stride.window.min(WINDOW_PAGES_MAX as u64 - 1) as u32 {
            let Some(ahead) = read.page(steps).filter(|ahead| *ahead < self.table.pages()) else { break };
            // Pages in memory, or on their way, are passed over.
            if self.table.peek(ahead).state() == State::Absent {
                if !self.claim_ahead(core, ahead) {
                    break;
                }
                let bytes = std::ptr::from_mut(&mut read.buffer.bytes()[place_in_buffer(steps)]);
                // SAFETY: the part is for this page alone; the buffer and the file stay until `end_strided` has waited.
                let added = unsafe { read.ring.read(u64::from(steps), file, bytes, ahead * PAGE_BYTES as u64) };
                if !added {
                    self.fail_charged_loads(ahead..ahead + 1);
                    break;
                }
                read.claimed |= 1 << steps;
            }
            last = ahead;
        }
        self.read_ahead.strides.keep(stride, last);
        read.ring.submit();
        Some(read)
    }

    /// Makes pages visible that were read ahead. A page whose read failed stays absent, for the thread that touches it.
    #[inline(never)]
    pub(super) fn end_strided(&self, core: usize, read: StridedRead<'_>) {
        let StridedRead { mut ring, mut buffer, claimed, .. } = read;
        let page = |steps: u32| read.missed.wrapping_add_signed(read.stride * i64::from(steps));
        let mut failed = claimed;
        let is_whole = ring.wait(|token, arrived| {
            let steps = token as u32;
            let data = &mut buffer.bytes()[place_in_buffer(steps)];
            if self.install_read_ahead(core, page(steps), data, arrived) {
                failed &= !(1 << steps);
            }
        });
        if is_whole {
            let _ = self.shared.reads.stride_rings.rings.push(ring);
        } else {
            // The next user of the ring must not begin reads that the kernel has not taken; and nothing is freed here.
            std::mem::forget(ring);
        }
        (1..WINDOW_PAGES_MAX as u32).filter(|steps| failed & 1 << steps != 0).for_each(|steps| {
            self.fail_charged_loads(page(steps)..page(steps) + 1);
        });
        self.shared.telemetry.count(core, Counter::ReadAheadPages, u64::from((claimed & !failed).count_ones()));
    }
}
