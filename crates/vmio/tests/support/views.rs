//! Plain loads and stores at the several addresses of a file.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use vmio::{Cache, Engine, FrameHint, Mapping, MappingOptions, View};

use super::device::Device;
use super::{PAGE, engine, is_managed, kernel_can_note_stores};

/// Whether the suite runs with an engine and a kernel that show a file at several addresses.
pub fn available() -> bool {
    !is_managed("several addresses") && kernel_can_note_stores()
}

/// The same of files: the kernel module maps these at several addresses, too.
pub fn available_for_files() -> bool {
    engine() == Engine::Kernel || available()
}

/// Maps a device that may have several addresses.
pub fn open(cache: &Cache, device: &Arc<Device>) -> Mapping {
    Mapping::open(cache, device.backing(), options()).unwrap()
}

/// How such a mapping is opened.
pub fn options() -> MappingOptions {
    MappingOptions::new().frames(FrameHint::SharedAddresses)
}

/// The mapping, and this many views of it.
pub struct Addresses {
    /// The mapping.
    pub map: Mapping,
    /// Its views.
    pub views: Vec<View>,
}

impl Addresses {
    /// Opens a device at its own addresses and at those of some views.
    pub fn open(cache: &Cache, device: &Arc<Device>, views: usize) -> Self {
        let map = open(cache, device);
        let views = (0..views).map(|_| map.view().unwrap()).collect();
        Addresses { map, views }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        1 + self.views.len()
    }

    /// Where the range of that number begins; the mapping's own is number 0.
    pub fn base(&self, which: usize) -> *mut u8 {
        if which == 0 { self.map.as_mut_ptr() } else { self.views[which - 1].as_mut_ptr() }
    }

    /// A plain load of the aligned word at a byte offset.
    pub fn load(&self, which: usize, offset: u64) -> u64 {
        self.word(which, offset).load(Ordering::SeqCst)
    }

    /// A plain store to it.
    pub fn store(&self, which: usize, offset: u64, value: u64) {
        self.word(which, offset).store(value, Ordering::SeqCst);
    }

    fn word(&self, which: usize, offset: u64) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.map.len().next_multiple_of(PAGE));
        // SAFETY: aligned, within the pages of a range that lives as long as the reference, and only accessed as atomic.
        unsafe { AtomicU64::from_ptr(self.base(which).add(offset as usize).cast()) }
    }
}
