//! Bringing committed pages into their files: what a checkpoint and a recovery have in common.

use std::collections::BTreeMap;
use std::io;

use zerocopy::{FromZeros, IntoBytes};

use crate::backing::Backing;
use crate::error::{Error, Result};
use crate::journal::format::{Page, Place};
use crate::journal::ring::Ring;
use crate::journal::scan::{Image, Scan};
use crate::sys::PAGE_BYTES;

/// Pages of the longest write (1 MiB).
const RUN_PAGES_MAX: usize = 256;

/// The files of a journal by their numbers.
pub(crate) type Files<'a> = BTreeMap<u32, &'a dyn Backing>;

/// Writes all committed pages into the files, gives these their committed lengths, and flushes them. Doing it again does
/// no harm, however far it came.
pub(crate) fn replay(ring: &Ring, scan: &Scan, files: &Files<'_>) -> Result<()> {
    for (file, len) in &scan.lengths {
        let data = file_of(ring, files, *file)?;
        if data.len() < *len {
            data.set_len(*len).map_err(failed(data))?;
        }
    }
    let mut buffer = vec![Page::new_zeroed(); RUN_PAGES_MAX];
    let mut run: Vec<(Place, Image)> = Vec::with_capacity(RUN_PAGES_MAX);
    for (place, image) in &scan.pages {
        let follows = |(last, _): &(Place, Image)| last.file == place.file && last.page + 1 == place.page;
        if run.len() == RUN_PAGES_MAX || !run.last().is_none_or(follows) {
            write_run(ring, scan, files, &run, &mut buffer)?;
            run.clear();
        }
        run.push((*place, *image));
    }
    write_run(ring, scan, files, &run, &mut buffer)?;
    for file in scan.lengths.keys() {
        let data = file_of(ring, files, *file)?;
        data.flush().map_err(failed(data))?;
    }
    Ok(())
}

/// Writes neighbouring pages of a file.
fn write_run(ring: &Ring, scan: &Scan, files: &Files<'_>, run: &[(Place, Image)], buffer: &mut [Page]) -> Result<()> {
    let Some((first, _)) = run.first() else { return Ok(()) };
    let mut slot = 0;
    for part in run.chunk_by(|(_, a), (_, b)| a.position + 1 == b.position) {
        let pages = &mut buffer[slot..slot + part.len()];
        let position = part[0].1.position;
        ring.read(position, pages.as_mut_bytes()).map_err(Error::journal(ring.device(), "reading"))?;
        for (page, (_, image)) in pages.iter().zip(part) {
            if ring.uuid.checksum(&page.0) != image.checksum {
                return Err(Error::JournalDamaged {
                    journal: ring.device().describe(),
                    offset: ring.offset(image.position),
                    what: "the image of a committed page is not what was written",
                });
            }
        }
        slot += part.len();
    }
    let data = file_of(ring, files, first.file)?;
    let offset = first.page * PAGE_BYTES as u64;
    // A page behind the committed end is none of the commit's: the file has been cut since, or never reached it.
    let len = scan.lengths.get(&first.file).copied().unwrap_or(0).min(data.len());
    let bytes = len.saturating_sub(offset).min((slot * PAGE_BYTES) as u64) as usize;
    if bytes == 0 {
        return Ok(());
    }
    data.write_at(offset, &buffer.as_bytes()[..bytes]).map_err(failed(data))
}

fn file_of<'a>(ring: &Ring, files: &Files<'a>, file: u32) -> Result<&'a dyn Backing> {
    files.get(&file).copied().ok_or_else(|| Error::JournalDamaged {
        journal: ring.device().describe(),
        offset: 0,
        what: "a commit names a file that the header does not know",
    })
}

fn failed(data: &dyn Backing) -> impl FnOnce(io::Error) -> Error {
    let file = data.describe();
    move |source| Error::Checkpoint { file, source }
}
