//! Why a miss could not be served.

use crate::cache::read_failures::ReadFailure;
use crate::cache::region::Region;
use crate::error::Error;
use crate::sys::PAGE_BYTES;

/// Why a page could not be brought in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultError {
    /// It could not be read, or did not verify.
    Unreadable(ReadFailure),
    /// The cache is full of pages that cannot be given up.
    Exhausted(&'static str),
    /// A store to a read-only mapping.
    ReadOnly,
    /// A store to a page that could not be read.
    Poisoned,
    /// The page lies behind the end of the mapping, which has been shortened.
    BeyondEnd,
    /// The kernel refused to install or un-protect the page.
    Refused(i32),
}

impl FaultError {
    /// The error to return for a page of a region.
    pub(crate) fn into_error(self, region: &Region, page: u64) -> Error {
        match self {
            FaultError::Unreadable(failure) => region.read_error(page, failure),
            FaultError::Exhausted(why) => {
                Error::CacheExhausted { capacity_pages: u64::from(region.shared.memory.capacity_pages()), why }
            }
            FaultError::BeyondEnd => {
                let start = page * PAGE_BYTES as u64;
                Error::OutOfRange { range: start..start + PAGE_BYTES as u64, len: region.table.len() }
            }
            FaultError::ReadOnly => Error::ReadOnly { backing: region.backing.describe() },
            FaultError::Poisoned => region.read_error(page, region.why_poisoned(page)),
            FaultError::Refused(code) => {
                Error::System { operation: "making a page visible", source: std::io::Error::from_raw_os_error(code) }
            }
        }
    }
}
