//! Writing committed pages into their files, for checkpoints and for recovery.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, PoisonError};

use zerocopy::IntoBytes;

use crate::backing::Backing;
use crate::error::{Error, Result};
use crate::journal::chain::{Bottom, read_version};
use crate::journal::failure::failed_at;
use crate::journal::format::Page;
use crate::journal::place::Place;
use crate::journal::ring::Ring;
use crate::journal::scan::{Committed, Scan};
use crate::journal::version::Version;
use crate::journal::writers::{PART_PAGES, Room, Writers};
use crate::sys::PAGE_BYTES;

/// The files of a journal by their numbers.
pub(crate) type Files<'a> = BTreeMap<u32, &'a dyn Backing>;
/// Copies a version of a page from memory; false if it is not there.
pub(crate) type FromMemory<'a> = &'a (dyn Fn(Place, Version, &mut [u8]) -> bool + Sync);

/// Writes all committed pages into the files, gives them their committed lengths, and flushes them. To repeat it does
/// no harm, however far it came.
pub(crate) fn replay(
    ring: &Ring,
    scan: &Scan,
    files: &Files<'_>,
    memory: FromMemory<'_>,
    writers: &Writers,
) -> Result<()> {
    for (file, len) in &scan.lengths {
        let data = file_of(ring, files, *file)?;
        if data.len() < *len {
            data.set_len(*len).map_err(failed(data))?;
        }
    }
    write_pages(&Replay { ring, scan, files, memory }, writers)?;
    for file in scan.lengths.keys() {
        let data = file_of(ring, files, *file)?;
        data.flush().map_err(failed(data))?;
    }
    Ok(())
}

/// The input that all threads share.
struct Replay<'a> {
    ring: &'a Ring,
    scan: &'a Scan,
    files: &'a Files<'a>,
    memory: FromMemory<'a>,
}

/// A page to write.
type Todo = (Place, Committed);

/// Writes the pages of all files in their order; several threads work at the same time.
fn write_pages(replay: &Replay<'_>, writers: &Writers) -> Result<()> {
    let pages: Vec<Todo> = replay.scan.pages.iter().map(|(place, committed)| (*place, *committed)).collect();
    // Several threads pay off only on devices.
    let of_devices = replay.files.values().all(|data| data.direct_reads().is_some());
    let parts = Mutex::new(pages.chunks(PART_PAGES));
    let next = || parts.lock().unwrap_or_else(PoisonError::into_inner).next();
    writers.run(of_devices && pages.len() > PART_PAGES, |room| {
        while let Some(part) = next() {
            let written = write_part(replay, part, room);
            if written.is_err() {
                while next().is_some() {}
                return written;
            }
            // Yields as `checkpoint.rs` does: see `YIELD_PAGES`.
            std::thread::yield_now();
        }
        Ok(())
    })
}

/// Writes some pages; neighbours in a file go in one write.
fn write_part(replay: &Replay<'_>, part: &[Todo], room: &mut Room) -> Result<()> {
    let Room { pages: buffer, chain } = room;
    for (todo, page) in part.iter().zip(&mut *buffer) {
        read_committed(replay, todo, page, chain)?;
    }
    let follows = |(a, _): &Todo, (b, _): &Todo| a.file == b.file && a.page + 1 == b.page;
    let mut at = 0;
    for run in part.chunk_by(follows) {
        let (place, _) = run[0];
        let data = file_of(replay.ring, replay.files, place.file)?;
        let offset = place.page * PAGE_BYTES as u64;
        // A page behind the committed end does not belong to the commit: the file has been cut since, or never reached
        // it.
        let len = replay.scan.lengths.get(&place.file).copied().unwrap_or(0).min(data.len());
        let bytes = len.saturating_sub(offset).min((run.len() * PAGE_BYTES) as u64) as usize;
        if bytes > 0 {
            data.write_at(offset, &buffer[at..at + run.len()].as_bytes()[..bytes]).map_err(failed(data))?;
        }
        at += run.len();
    }
    Ok(())
}

/// Reads the committed version of a page: from memory, or assembled from the log and the file.
fn read_committed(replay: &Replay<'_>, (place, committed): &Todo, page: &mut Page, room: &mut [Page]) -> Result<()> {
    let Replay { ring, scan, files, memory } = replay;
    if memory(*place, committed.version, &mut page.0) {
        return Ok(());
    }
    let data = &file_of(ring, files, place.file)?;
    let damaged = |position, what| Error::JournalDamaged {
        journal: ring.device().describe(),
        offset: ring.offset(position),
        what,
    };
    let unreadable = |position, error: io::Error| match error.kind() {
        io::ErrorKind::InvalidData => damaged(position, "what a commit has changed of a page is missing"),
        _ => failed_at(ring.device(), "reading")(error),
    };
    let read_bottom = |bottom, page: &mut [u8]| match bottom {
        Bottom::Image(position) => {
            ring.read(position, page).map_err(|error| unreadable(position, error))?;
            match committed.image {
                Some((at, checksum)) if at == position && checksum != ring.uuid.checksum(page) => {
                    Err(damaged(position, "the image of a committed page is not what was written"))
                }
                _ => Ok(()),
            }
        }
        Bottom::File => {
            let read = data.read_at(place.page * PAGE_BYTES as u64, page).map_err(failed(*data))?;
            // Bytes behind the end of the file are zeros.
            page[read.min(PAGE_BYTES)..].fill(0);
            Ok(())
        }
    };
    let wanted = (*place, committed.version);
    read_version(ring, scan.tail, wanted, room, &mut page.0, unreadable, read_bottom)
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
