//! References to regions, in lists and queues that regions are built on.

/// The region that an entry of a list or queue is about. The list need not know more of it than which one it is, and does not
/// keep it; whoever looks into the region knows what does.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct RegionRef(*const ());

// SAFETY: the pointer is not dereferenced here, and a region is shared between threads anyway.
unsafe impl Send for RegionRef {}
// SAFETY: the pointer is not dereferenced here, and a reference is never changed in place.
unsafe impl Sync for RegionRef {}

impl RegionRef {
    /// A reference to the region at this address.
    pub(super) fn new(region: *const ()) -> Self {
        RegionRef(region)
    }

    /// The address of the region.
    pub(super) fn address(self) -> *const () {
        self.0
    }
}
