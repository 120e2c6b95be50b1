//! The bytes of pages on their way in: in a buffer, or at once in the frame that their page will have.

use crate::cache::page_buffers::PageBuffer;
use crate::engine::BlankFrame;

/// Where a read puts its bytes.
pub(super) enum ReadTarget<'a> {
    /// From where they are copied when their pages are there.
    Buffer(PageBuffer<'a>),
    /// Of the only page.
    Frame(BlankFrame<'a>),
}

impl ReadTarget<'_> {
    /// The bytes of the first page, and of those behind it as far as there is room.
    pub(super) fn bytes(&mut self) -> &mut [u8] {
        match self {
            ReadTarget::Buffer(buffer) => buffer.bytes(),
            ReadTarget::Frame(frame) => frame.bytes(),
        }
    }
}

/// The bytes that pages get when they are installed.
pub(super) enum Contents<'a> {
    /// Copies of these bytes, of whole pages.
    Copies(&'a [u8]),
    /// A single page gets this frame, which has its bytes.
    Frame(BlankFrame<'a>),
}
