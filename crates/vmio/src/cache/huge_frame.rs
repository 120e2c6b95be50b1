//! A place for a huge page on its way from a device, or from a span that has given it up.

use std::io;

use vmio_core::page::SPAN_BYTES;

use crate::engine::FaultEngine;
use crate::sys::reservation::Reservation;

/// A place for a huge page that belongs to no span. A huge page that a span has given up takes the next read as it is. The kernel
/// would fill a new one with zeros first, which takes as long as the read from a fast device.
pub(crate) struct HugeFrame {
    /// Without memory between uses: a read allocates it.
    pub(super) new: Reservation,
    /// Receives the huge page that a span gives up. Attached, as the kernel demands of a range that it moves pages to.
    pub(super) recycled: Reservation,
    pub(super) is_full: bool,
}

impl HugeFrame {
    pub(super) fn reserve(engine: &dyn FaultEngine) -> io::Result<Self> {
        let reserve = || -> io::Result<Reservation> {
            let mut range = Reservation::zeroed(SPAN_BYTES, SPAN_BYTES)?;
            range.leave_out_on_fork()?;
            range.prefer_huge_pages()?;
            Ok(range)
        };
        let (new, recycled) = (reserve()?, reserve()?);
        engine.attach(&recycled)?;
        Ok(HugeFrame { new, recycled, is_full: false })
    }

    /// Whether it holds a huge page that a span has given up, with the page's share of the budget.
    pub(crate) fn is_full(&self) -> bool {
        self.is_full
    }

    /// Where the next read goes, or has gone.
    pub(super) fn memory(&self) -> &Reservation {
        if self.is_full { &self.recycled } else { &self.new }
    }
}

/// Whether the frame that a pass is to fill is full.
pub(super) fn is_full(frame: &Option<&mut HugeFrame>) -> bool {
    frame.as_ref().is_some_and(|frame| frame.is_full())
}
