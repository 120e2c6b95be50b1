//! Growing and shrinking the file under a mapping.

use std::sync::PoisonError;

use crate::backing::Access;
use crate::error::{Error, Result};
use crate::mapping::Mapping;
use crate::sys::PAGE_BYTES;
use crate::sys::signal::SignalsBlocked;

impl Mapping {
    /// Changes the length of the file and of the mapping. Growth stays within [`crate::MappingOptions::reserve`]; new
    /// bytes are zeros. Bytes that are cut off must not be in use: accesses to them are a SIGBUS from now on, and
    /// pinned pages among them are an error.
    pub fn set_len(&self, len: u64) -> Result<()> {
        self.opened.check_not_forked()?;
        let region = self.region();
        if region.access == Access::ReadOnly {
            return Err(Error::ReadOnly { backing: region.backing.describe() });
        }
        if len > region.reserved() {
            return Err(Error::BeyondReservation { requested: len, reserved: region.reserved() });
        }
        let old = {
            let _signals = SignalsBlocked::new();
            // A sync and a change of length would tread on each other's feet.
            let _no_sync = region.sync_lock.lock().unwrap_or_else(PoisonError::into_inner);
            let old = region.len();
            if len < old {
                self.shrink(old, len)?
            } else {
                self.set_backing_len(len)?
            }
            region.store_len(len);
            old
        };
        let tail = old % PAGE_BYTES as u64;
        if len > old && tail != 0 {
            // Whatever the program stored behind the old end in the last page is not part of the file.
            let end = len.min(old - tail + PAGE_BYTES as u64);
            self.write_at(old, &vec![0; (end - old) as usize])?;
        }
        Ok(())
    }

    fn set_backing_len(&self, len: u64) -> Result<()> {
        let region = self.region();
        region.backing.set_len(len).map_err(|source| Error::Resize {
            backing: region.backing.describe(),
            requested: len,
            source,
        })
    }

    fn shrink(&self, old: u64, len: u64) -> Result<()> {
        let region = self.region();
        let cut_off = len.div_ceil(PAGE_BYTES as u64)..region.pages();
        if cut_off.clone().any(|page| region.word(page).load().pins() > 0) {
            return Err(Error::Resize {
                backing: region.backing.describe(),
                requested: len,
                source: std::io::Error::other("pages behind the new end are pinned"),
            });
        }
        // No fault and no write-back reaches the pages behind the new end after this line; those that do already
        // must be over before the file is cut, or they would lengthen it again.
        region.store_len(len);
        let kept = len.div_ceil(PAGE_BYTES as u64).saturating_sub(1)..cut_off.end;
        kept.for_each(|page| region.word(page).wait_while(|word| word.is_busy() || word.in_flight()));
        if let Err(error) = self.set_backing_len(len) {
            region.store_len(old);
            return Err(error);
        }
        self.discard_pages(cut_off).map_err(Error::system("unmapping the pages that were cut off"))
    }
}
