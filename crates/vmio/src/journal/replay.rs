//! Bringing committed pages into their files: what a checkpoint and a recovery have in common.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, PoisonError};
use std::thread;

use zerocopy::{FromZeros, IntoBytes};

use crate::backing::Backing;
use crate::error::{Error, Result};
use crate::journal::format::{Page, Place};
use crate::journal::ring::Ring;
use crate::journal::scan::{Image, Scan};
use crate::sys::PAGE_BYTES;
use crate::sys::signal::SignalsBlocked;

/// Pages of the log that are read at once (256 KiB).
const WINDOW_PAGES: usize = 64;
/// Threads that write at a time: images lie together in the log, and apart in the files.
const WRITERS_MAX: usize = 16;
/// What they add to their nice value, as the cache's workers do.
const NICE: i32 = 5;

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
    write_pages(ring, scan, files)?;
    for file in scan.lengths.keys() {
        let data = file_of(ring, files, *file)?;
        data.flush().map_err(failed(data))?;
    }
    Ok(())
}

/// Writes the pages of all files, read from the log in its order: a window at a time, and several at the same time.
fn write_pages(ring: &Ring, scan: &Scan, files: &Files<'_>) -> Result<()> {
    let mut pages: Vec<(Place, Image)> = scan.pages.iter().map(|(place, image)| (*place, *image)).collect();
    pages.sort_unstable_by_key(|(_, image)| image.position);
    let window_of = |image: &Image| image.position / WINDOW_PAGES as u64;
    let windows: Vec<_> = pages.chunk_by_mut(|(_, a), (_, b)| window_of(a) == window_of(b)).collect();
    // Only of a device is there something to be gained.
    let writers = if files.values().all(|data| data.direct_reads().is_some()) { WRITERS_MAX } else { 1 };
    let writers = writers.min(windows.len());
    let windows = Mutex::new(windows.into_iter());
    let next = || windows.lock().unwrap_or_else(PoisonError::into_inner).next();
    let write = || -> Result<()> {
        let mut buffer = vec![Page::new_zeroed(); WINDOW_PAGES];
        while let Some(window) = next() {
            let written = write_window(ring, scan, files, window, &mut buffer);
            if written.is_err() {
                while next().is_some() {}
                return written;
            }
        }
        Ok(())
    };
    if writers < 2 {
        return write();
    }
    let _signals = SignalsBlocked::new();
    thread::scope(|scope| {
        // Of threads that cannot be had, the others do the work.
        let write_aside = || {
            // Whoever stores or commits meanwhile comes first on busy cores; that failing is no reason to stop.
            let _ = rustix::process::nice(NICE);
            write()
        };
        let spawn = |_| thread::Builder::new().name("vmio-replay".into()).spawn_scoped(scope, write_aside).ok();
        let others: Vec<_> = (1..writers).filter_map(spawn).collect();
        let own = write();
        let panicked = |_| Err(Error::system("writing what is committed")(io::Error::other("a thread has panicked")));
        others.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).fold(own, Result::and)
    })
}

/// Writes pages whose images lie within a window of the log, neighbours in a file together.
fn write_window(
    ring: &Ring,
    scan: &Scan,
    files: &Files<'_>,
    window: &mut [(Place, Image)],
    buffer: &mut [Page],
) -> Result<()> {
    let [(_, first), ..] = window else { return Ok(()) };
    let first = first.position;
    let last = window.last().map_or(first, |(_, image)| image.position);
    let images = &mut buffer[..=(last - first) as usize];
    if ring.read(first, images.as_mut_bytes()).is_err() {
        // What cannot be read may lie between the images, in a place that nobody needs since its write failed.
        for part in window.chunk_by(|(_, a), (_, b)| a.position + 1 == b.position) {
            let (_, image) = part[0];
            let at = (image.position - first) as usize;
            let wanted = images[at..at + part.len()].as_mut_bytes();
            ring.read(image.position, wanted).map_err(Error::journal(ring.device(), "reading"))?;
        }
    }
    let damaged = |image: &Image| ring.uuid.checksum(&images[(image.position - first) as usize].0) != image.checksum;
    if let Some((_, image)) = window.iter().find(|(_, image)| damaged(image)) {
        return Err(Error::JournalDamaged {
            journal: ring.device().describe(),
            offset: ring.offset(image.position),
            what: "the image of a committed page is not what was written",
        });
    }
    window.sort_unstable_by_key(|(place, _)| *place);
    let follows = |(a, x): &(Place, Image), (b, y): &(Place, Image)| {
        a.file == b.file && a.page + 1 == b.page && x.position + 1 == y.position
    };
    for run in window.chunk_by(follows) {
        let (place, image) = run[0];
        let data = file_of(ring, files, place.file)?;
        let offset = place.page * PAGE_BYTES as u64;
        // A page behind the committed end is none of the commit's: the file has been cut since, or never reached it.
        let len = scan.lengths.get(&place.file).copied().unwrap_or(0).min(data.len());
        let bytes = len.saturating_sub(offset).min((run.len() * PAGE_BYTES) as u64) as usize;
        if bytes > 0 {
            let at = (image.position - first) as usize;
            data.write_at(offset, &images[at..at + run.len()].as_bytes()[..bytes]).map_err(failed(data))?;
        }
    }
    Ok(())
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
