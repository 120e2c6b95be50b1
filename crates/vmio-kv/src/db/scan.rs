//! Going through a region.

use crate::error::Result;
use crate::log::Log;
use crate::region::RegionCursor;

/// Keys and values in order. Ends with the first error.
pub struct Scan<'region> {
    log: &'region Log,
    cursor: RegionCursor<'region>,
    has_failed: bool,
}

impl<'region> Scan<'region> {
    pub(super) fn new(log: &'region Log, cursor: RegionCursor<'region>) -> Result<Self> {
        Ok(Scan { log, cursor, has_failed: false })
    }
}

impl Iterator for Scan<'_> {
    type Item = Result<(Vec<u8>, Vec<u8>)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.has_failed {
            return None;
        }
        let next = self.cursor.next().and_then(|found| match found {
            Some(known) => {
                let value = self.log.read(known.pointer, |record| record.value.to_vec())?;
                Ok(Some((known.bytes, value)))
            }
            None => Ok(None),
        });
        self.has_failed = next.is_err();
        next.transpose()
    }
}
