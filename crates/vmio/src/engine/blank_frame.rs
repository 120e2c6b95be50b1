//! A frame that is filled before its page is there.

use std::mem;

use crate::engine::Frames;
use crate::sys::PAGE_BYTES;

/// A frame that belongs to no page. Its owner may fill it; it is free again when this is dropped.
pub(crate) struct BlankFrame<'a> {
    owner: &'a dyn Frames,
    number: u32,
    memory: *mut [u8; PAGE_BYTES],
}

#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "no engine there has frames of its own"))]
impl<'a> BlankFrame<'a> {
    /// The owner's frame of that number.
    ///
    /// # Safety
    /// The memory is the frame's. It lasts as long as the owner, and nobody else uses it until [`Frames::discard`].
    pub(crate) unsafe fn new(owner: &'a dyn Frames, number: u32, memory: *mut u8) -> Self {
        BlankFrame { owner, number, memory: memory.cast() }
    }

    /// Its bytes, whatever they are by now.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the memory is this frame's alone, by the promise of `new`, and lasts as long as the owner, which is borrowed.
        unsafe { &mut *self.memory }
    }

    /// The number of the frame, for the owner that gives it to a page.
    pub(crate) fn into_number(self) -> u32 {
        let number = self.number;
        mem::forget(self);
        number
    }
}

impl Drop for BlankFrame<'_> {
    fn drop(&mut self) {
        self.owner.discard(self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::engine::InstallError;
    use crate::sys::unmap::UnmapList;

    /// Frames that count what is given back.
    #[derive(Default)]
    struct Counted {
        discarded: AtomicU32,
    }

    impl Frames for Counted {
        unsafe fn install(&self, _address: usize, _data: &[u8], _protect: bool) -> Result<(), InstallError> {
            Err(InstallError { installed_bytes: 0, source: io::ErrorKind::OutOfMemory.into() })
        }

        fn protect(&self, _address: usize, _len: usize) -> io::Result<()> {
            Ok(())
        }

        fn unprotect(&self, _address: usize, _len: usize) -> io::Result<()> {
            Ok(())
        }

        fn unmaps_scattered(&self) -> bool {
            true
        }

        unsafe fn unmap(&self, _pages: &mut UnmapList) -> u64 {
            0
        }

        fn discard(&self, number: u32) {
            self.discarded.fetch_add(number, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_frame_that_no_page_gets_goes_back() {
        let (frames, mut memory) = (Counted::default(), [7; PAGE_BYTES]);
        // SAFETY: each frame is the only one that uses the memory, while it lasts.
        let mut blank = |number| unsafe { BlankFrame::new(&frames, number, memory.as_mut_ptr()) };
        let mut read_in_vain = blank(1);
        read_in_vain.bytes().fill(8);
        drop(read_in_vain);
        assert_eq!(frames.discarded.load(Ordering::Relaxed), 1);
        // SAFETY: these frames install nothing.
        assert!(unsafe { frames.install_blank(0, blank(10), false) }.is_err());
        assert_eq!(frames.discarded.load(Ordering::Relaxed), 11);
        assert_eq!(blank(100).into_number(), 100);
        assert_eq!((frames.discarded.load(Ordering::Relaxed), memory), (11, [8; PAGE_BYTES]));
    }
}
