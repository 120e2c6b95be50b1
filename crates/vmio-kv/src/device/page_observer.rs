//! Tells a callback which pages of the volume a store uses.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::format::geometry::BLOCK_BYTES;

/// Called for each page of 4 KiB that is looked at or stored to.
#[derive(Clone)]
pub(crate) struct PageObserver(Arc<Observe>);

/// The page's number in the volume, and whether it is stored to.
type Observe = dyn Fn(u64, bool) + Send + Sync;

impl PageObserver {
    pub(crate) fn new(observe: impl Fn(u64, bool) + Send + Sync + 'static) -> Self {
        PageObserver(Arc::new(observe))
    }

    /// Reports the pages of a range of bytes.
    #[cold]
    pub(super) fn tell(&self, bytes: Range<u64>, is_store: bool) {
        let page = BLOCK_BYTES as u64;
        (bytes.start / page..bytes.end.div_ceil(page)).for_each(|page| (self.0)(page, is_store));
    }
}

impl fmt::Debug for PageObserver {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("PageObserver")
    }
}
