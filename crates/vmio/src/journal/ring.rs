//! The ring of pages that holds the log. Positions count on for ever, and pages are used again.

use std::io;

use zerocopy::{FromZeros, IntoBytes};

use crate::backing::Backing;
use crate::journal::format::{HEADER_BYTES, HEADER_COPIES, Header, LOG_START_BYTES, Page, Uuid};
use crate::sys::PAGE_BYTES;

/// A journal's device, addressed by positions in the log.
pub(crate) struct Ring {
    device: Box<dyn Backing>,
    capacity_pages: u64,
    pub(crate) uuid: Uuid,
    pub(crate) incarnation: u64,
}

impl Ring {
    pub(crate) fn new(device: Box<dyn Backing>, header: &Header) -> Self {
        let Header { capacity_pages, uuid, incarnation, .. } = *header;
        Ring { device, capacity_pages, uuid, incarnation }
    }

    /// The same device in the next incarnation of the journal.
    pub(crate) fn reborn(self, header: &Header) -> Self {
        Ring::new(self.device, header)
    }

    /// The length of the log in pages.
    pub(crate) fn capacity_pages(&self) -> u64 {
        self.capacity_pages
    }

    pub(crate) fn device(&self) -> &dyn Backing {
        &*self.device
    }

    /// The byte of the device that belongs to a position.
    pub(crate) fn offset(&self, position: u64) -> u64 {
        LOG_START_BYTES + position % self.capacity_pages * PAGE_BYTES as u64
    }

    /// Writes whole pages.
    pub(crate) fn write(&self, position: u64, bytes: &[u8]) -> io::Result<()> {
        let (front, rest) = bytes.split_at(self.bytes_to_end(position).min(bytes.len()));
        self.device.write_at(self.offset(position), front)?;
        if rest.is_empty() { Ok(()) } else { self.device.write_at(LOG_START_BYTES, rest) }
    }

    /// Reads whole pages.
    pub(crate) fn read(&self, position: u64, bytes: &mut [u8]) -> io::Result<()> {
        let (front, rest) = bytes.split_at_mut(self.bytes_to_end(position).min(bytes.len()));
        read_exactly(&*self.device, self.offset(position), front)?;
        if rest.is_empty() { Ok(()) } else { read_exactly(&*self.device, LOG_START_BYTES, rest) }
    }

    /// Writes a header over the older copy.
    pub(crate) fn write_header(&self, header: &Header) -> io::Result<()> {
        let offset = header.sequence % HEADER_COPIES * HEADER_BYTES as u64;
        self.device.write_at(offset, header.encode().as_bytes())
    }

    fn bytes_to_end(&self, position: u64) -> usize {
        usize::try_from((self.capacity_pages - position % self.capacity_pages) * PAGE_BYTES as u64)
            .unwrap_or(usize::MAX)
    }
}

/// The newer valid copy of the header. If neither is valid, the inner error says why.
pub(crate) fn read_header(device: &dyn Backing) -> io::Result<Result<Header, String>> {
    let mut newest: Result<Header, String> = Err("it is too short".into());
    for copy in 0..HEADER_COPIES {
        let mut pages = vec![Page::new_zeroed(); HEADER_BYTES / PAGE_BYTES];
        if device.read_at(copy * HEADER_BYTES as u64, pages.as_mut_bytes())? < HEADER_BYTES {
            continue;
        }
        match (Header::decode(pages.as_bytes()), &newest) {
            (Ok(header), Ok(other)) if header.sequence <= other.sequence => {}
            (Ok(header), _) => newest = Ok(header),
            (Err(_), Ok(_)) => {}
            (Err(wrong), Err(_)) => newest = Err(wrong),
        }
    }
    Ok(newest)
}

fn read_exactly(device: &dyn Backing, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
    if device.read_at(offset, bytes)? == bytes.len() { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}
