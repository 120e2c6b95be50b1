//! The cost of reading one page by itself. Where it is low, as on zram, reading more than the program asks for costs
//! more than it saves.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{FileType, OFlags, SeekFrom};
use vmio_core::page::SPAN_BYTES;

use crate::backing::Backing;
use crate::sys::PAGE_BYTES;
use crate::sys::fork::PerProcess;

/// The number of reads, of which the median counts.
const READS: u64 = 5;
/// The time to read 2 MiB at once, about. On any fast device most of it is the memory's.
const WHOLE: Duration = Duration::from_micros(700);
/// A break-even at or below this many pages counts as 0: a whole stretch is then worth reading on any device but
/// memory.
const FEW_PAGES: u64 = 32;
/// The highest break-even. With this many pages a whole stretch is worth reading on any device: a look seldom finds
/// that all its pages have come in.
const MANY_PAGES: u64 = 128;

/// A page that may be read directly.
#[repr(align(4096))]
struct Page([u8; PAGE_BYTES]);

/// The number of pages of a whole stretch (512) that a program must need to make reading all of it worthwhile. 0 if
/// that is few, or not known.
///
/// The first call for a device reads five pages past the page cache. It uses a descriptor that is open already: to
/// close another would release the program's record locks.
pub(super) fn break_even_pages(backing: &dyn Backing) -> u64 {
    /// The results, by device.
    static KNOWN: PerProcess<Mutex<BTreeMap<u64, u64>>> = PerProcess::new();
    let measured = || -> io::Result<u64> {
        let Some(direct) = backing.direct_reads() else { return Ok(0) };
        let status = rustix::fs::fstat(direct)?;
        let is_device = FileType::from_raw_mode(status.st_mode).is_block_device();
        let device = if is_device { status.st_rdev } else { status.st_dev };
        if backing.len() < SPAN_BYTES as u64 || !rustix::fs::fcntl_getfl(direct)?.contains(OFlags::DIRECT) {
            return Ok(0);
        }
        let known = || KNOWN.get().map(|known| known.lock().unwrap_or_else(PoisonError::into_inner));
        if let Some(pages) = known()?.get(&device) {
            return Ok(*pages);
        }
        // A file that has no data yet is not read: the read would not reach its device.
        let Some(places) = places_with_data(direct, backing.len(), is_device) else { return Ok(0) };
        let pages = pages_for(time_of_a_page(direct, &places)?);
        tracing::debug!(device, pages, "pages from which on reading a whole stretch is worthwhile");
        known()?.insert(device, pages);
        Ok(pages)
    };
    measured().unwrap_or_else(|error| {
        tracing::debug!(%error, "what a page costs is not known");
        0
    })
}

fn pages_for(time_of_a_page: Duration) -> u64 {
    let pages = (WHOLE.as_nanos() / time_of_a_page.as_nanos().max(1)) as u64;
    if pages <= FEW_PAGES { 0 } else { pages.min(MANY_PAGES) }
}

/// Five pages, spread over a file, that lie on the device.
fn places_with_data(file: BorrowedFd<'_>, len: u64, is_device: bool) -> Option<Vec<u64>> {
    let part = len / READS;
    let place = |index| {
        let from = part * index / PAGE_BYTES as u64 * PAGE_BYTES as u64;
        let data = if is_device { from } else { rustix::fs::seek(file, SeekFrom::Data(from)).ok()? };
        let page = data.next_multiple_of(PAGE_BYTES as u64);
        (page + PAGE_BYTES as u64 <= from + part).then_some(page)
    };
    (0..READS).map(place).collect()
}

fn time_of_a_page(file: BorrowedFd<'_>, places: &[u64]) -> io::Result<Duration> {
    let mut page = Page([0; PAGE_BYTES]);
    let mut times = Vec::new();
    for place in places {
        let began = Instant::now();
        rustix::io::pread(file, &mut page.0, *place)?;
        times.push(began.elapsed());
    }
    times.sort_unstable();
    Ok(times[times.len() / 2])
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::backing::{Access, FileBacking};

    #[test]
    fn a_stretch_is_worthwhile_for_few_pages_unless_the_device_is_memory() {
        assert_eq!(pages_for(Duration::from_micros(100)), 0);
        assert_eq!(pages_for(Duration::from_micros(70)), 0);
        assert_eq!(pages_for(Duration::from_micros(10)), 70);
        assert_eq!(pages_for(Duration::from_micros(3)), MANY_PAGES);
        assert_eq!(pages_for(Duration::ZERO), MANY_PAGES);
    }

    #[test]
    fn only_what_is_on_the_device_is_measured() {
        const LEN: u64 = 10 << 20;
        let file = tempfile::NamedTempFile::new_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        file.as_file().set_len(LEN).unwrap();
        let found = || places_with_data(file.as_file().as_fd(), LEN, false);
        assert_eq!(found(), None);
        assert_eq!(break_even_pages(&FileBacking::open(file.path(), Access::ReadOnly).unwrap()), 0);
        std::fs::write(file.path(), vec![1; LEN as usize]).unwrap();
        file.as_file().sync_all().unwrap();
        assert_eq!(found().unwrap(), [0, 2, 4, 6, 8].map(|mib| mib << 20));
        // A file with space that nobody has written to yet.
        file.as_file().set_len(0).unwrap();
        rustix::fs::fallocate(file.as_file(), rustix::fs::FallocateFlags::empty(), 0, LEN).unwrap();
        assert_eq!(found(), None);
    }
}
