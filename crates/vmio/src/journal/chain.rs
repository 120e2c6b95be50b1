//! Assembling a version of a page: its deltas, over the image below them or the page in the file.

use std::io;

use crate::journal::delta::{Delta, deltas};
use crate::journal::format::{Page, RECORD_FRONT_BYTES, RecordHead, RecordKind};
use crate::journal::place::Place;
use crate::journal::ring::Ring;
use crate::journal::version::{CHAIN_MAX, Version};

/// Record buffers that the deltas of one version need.
pub(crate) const CHAIN_PAGES: usize = CHAIN_MAX as usize;

/// The contents below all deltas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bottom {
    /// The image at a position of the log.
    Image(u64),
    /// The page in the file.
    File,
}

/// Reads a version of a page into `target`; `read_bottom` reads the contents below its deltas. `room` takes
/// [`CHAIN_PAGES`] records.
///
/// Versions before `tail` are in the file. The file may hold newer versions as well, whole or in part, since a
/// checkpoint has written them or is writing them. That does no harm: the deltas from `tail` on change the same bytes
/// again.
///
/// If the tail moves on meanwhile, the result may be garbage or an error: callers look at the tail again.
pub(crate) fn read_version<E>(
    ring: &Ring,
    tail: u64,
    (place, newest): (Place, Version),
    room: &mut [Page],
    target: &mut [u8],
    failed: impl Fn(u64, io::Error) -> E,
    read_bottom: impl FnOnce(Bottom, &mut [u8]) -> Result<(), E>,
) -> Result<(), E> {
    let missing = |position| failed(position, io::ErrorKind::InvalidData.into());
    let mut version = Some(newest);
    let mut count = 0;
    let bottom = loop {
        match version.filter(|version| version.position >= tail) {
            Some(Version { position, depth: 0 }) => break Bottom::Image(position),
            Some(Version { position, .. }) => {
                let record = room.get_mut(count).ok_or_else(|| missing(position))?;
                ring.read(position, &mut record.0).map_err(|error| failed(position, error))?;
                let is_right = |head: &RecordHead| head.position == position && head.incarnation == ring.incarnation;
                let head = RecordHead::decode(ring.uuid, record).filter(|(head, _)| is_right(head));
                let delta = head.and_then(|_| delta_of(record, place)).ok_or_else(|| missing(position))?;
                // The base lies before its delta, so this loop ends.
                version = delta.base;
                count += 1;
            }
            None => break Bottom::File,
        }
    };
    read_bottom(bottom, target)?;
    room[..count].iter().rev().filter_map(|record| delta_of(record, place)).for_each(|delta| delta.apply(target));
    Ok(())
}

/// The delta of a page in a record whose checksum is right.
fn delta_of(record: &Page, place: Place) -> Option<Delta<'_>> {
    let (head, rows) = RecordHead::fields(record)?;
    if head.kind != RecordKind::Delta {
        return None;
    }
    deltas(&record.0[RECORD_FRONT_BYTES..], rows, head.position).find(|delta| delta.place == place)
}
