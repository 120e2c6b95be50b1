//! Reading the log back: which commits are whole, and which version of each page is the committed one.

use std::collections::BTreeMap;
use std::io;

use zerocopy::{FromZeros, IntoBytes};

use crate::journal::format::{CommittedFile, Header, Page, RecordHead, RecordKind, RecordPage};
use crate::journal::place::Place;
use crate::journal::ring::Ring;
use crate::journal::version::Version;

/// Pages in one read of the search for records behind the end of the log.
const SEARCH_PAGES: u64 = 256;
/// Pages of the log in one read for the first pages of records (256 KiB).
const WINDOW_PAGES: u64 = 64;

/// The committed version of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Committed {
    /// The last version.
    pub(crate) version: Version,
    /// The position and the checksum of the last image, if there is one.
    pub(crate) image: Option<(u64, u32)>,
}

/// A page of a record whose commit record has not come yet.
struct Pending {
    record: u64,
    commit: u64,
    place: Place,
    version: Version,
    /// The checksum of an image; `None` for a delta.
    checksum: Option<u32>,
}

/// The contents of a part of the log.
pub(crate) struct Scan {
    /// The beginning of the scan: versions before it are in the files.
    pub(crate) tail: u64,
    /// The last commit found, or the header's.
    pub(crate) commit: u64,
    /// Commits found that the files do not hold yet.
    pub(crate) commits: u64,
    /// The position behind the last commit record, or the beginning of the scan.
    pub(crate) committed_end: u64,
    /// The first position that holds no whole record.
    pub(crate) end: u64,
    /// The committed pages.
    pub(crate) pages: BTreeMap<Place, Committed>,
    /// The committed lengths of files in bytes.
    pub(crate) lengths: BTreeMap<u32, u64>,
    /// The files hold all commits whose records lie before this position.
    applied: u64,
    pending: Vec<Pending>,
}

impl Scan {
    /// Begins at the tail of a header.
    pub(crate) fn new(header: &Header) -> Self {
        Scan {
            tail: header.tail,
            commit: header.commit,
            commits: 0,
            committed_end: header.tail,
            end: header.tail,
            applied: header.applied,
            pages: BTreeMap::new(),
            lengths: BTreeMap::new(),
            pending: Vec::new(),
        }
    }

    /// Takes the next record.
    pub(crate) fn add(&mut self, record: &RecordPage) {
        let RecordHead { kind, position, commit, pages, .. } = record.head;
        for ((place, checksum), image) in record.places().zip(position + 1..) {
            let version = Version::image(image);
            self.pending.push(Pending { record: position, commit, place, version, checksum: Some(checksum) });
        }
        for delta in record.deltas() {
            let version = Version::delta(position, delta.base);
            self.pending.push(Pending { record: position, commit, place: delta.place, version, checksum: None });
        }
        self.end = position + 1 + u64::from(pages);
        if kind == RecordKind::Commit {
            let is_applied = position < self.applied;
            let files: BTreeMap<u32, CommittedFile> =
                record.files().filter(|_| !is_applied).map(|file| (file.file, file)).collect();
            self.commit = self.commit.max(commit);
            self.commits += u64::from(!is_applied);
            self.committed_end = self.end;
            self.lengths.extend(files.values().map(|file| (file.file, file.len)));
            for page in self.pending.extract_if(.., |page| page.commit <= commit) {
                if files.get(&page.place.file).is_some_and(|file| file.since <= page.version.position) {
                    let before = self.pages.get(&page.place).and_then(|committed| committed.image);
                    let image = page.checksum.map(|checksum| (page.version.position, checksum)).or(before);
                    self.pages.insert(page.place, Committed { version: page.version, image });
                }
            }
        }
    }

    /// The first position that is needed once all committed pages are in their files. A spill that belongs to a later
    /// commit may lie before the last commit record.
    pub(crate) fn first_needed(&self) -> u64 {
        self.pending.iter().map(|page| page.record).min().unwrap_or(self.committed_end).min(self.committed_end)
    }
}

/// Reads the record at a position, with its images, into `pages`. `None` if it is incomplete or no record.
pub(crate) fn read_record(ring: &Ring, position: u64, pages: &mut Vec<Page>) -> io::Result<Option<RecordPage>> {
    let Some(record) = read_record_page(ring, position)? else { return Ok(None) };
    let holds_images = record.head.kind != RecordKind::Void;
    let images = if holds_images { record.head.pages as usize } else { 0 };
    pages.resize(1 + images, Page::new_zeroed());
    ring.read(position, pages.as_mut_bytes())?;
    let images_match = || record.places().zip(&pages[1..]).all(|((_, sum), image)| sum == ring.uuid.checksum(&image.0));
    Ok(images_match().then_some(record))
}

/// Reads the first page of the record at a position; `None` if there is no record.
pub(crate) fn read_record_page(ring: &Ring, position: u64) -> io::Result<Option<RecordPage>> {
    let mut page = [Page::new_zeroed()];
    ring.read(position, page.as_mut_bytes())?;
    Ok(decode_at(ring, position, &page[0]))
}

fn decode_at(ring: &Ring, position: u64, page: &Page) -> Option<RecordPage> {
    RecordPage::decode(ring.uuid, page).filter(|record| {
        let RecordHead { position: own, incarnation, pages, .. } = record.head;
        own == position && incarnation == ring.incarnation && u64::from(pages) < ring.capacity_pages()
    })
}

/// Reads the first pages of records one after another, many in one request.
pub(crate) struct RecordPages<'a> {
    ring: &'a Ring,
    end: u64,
    start: u64,
    window: Vec<Page>,
}

impl<'a> RecordPages<'a> {
    /// Reads the log before `end`.
    pub(crate) fn new(ring: &'a Ring, end: u64) -> Self {
        RecordPages { ring, end, start: 0, window: Vec::new() }
    }

    /// Like [`read_record_page`], for a position before the end.
    pub(crate) fn read(&mut self, position: u64) -> io::Result<Option<RecordPage>> {
        if !(self.start..self.start + self.window.len() as u64).contains(&position) {
            self.start = position;
            self.window.resize(WINDOW_PAGES.min(self.end - position) as usize, Page::ZERO);
            if self.ring.read(position, self.window.as_mut_bytes()).is_err() {
                // The unreadable page may be a later one, in a place that nobody needs since its write failed.
                self.window.truncate(1);
                self.ring.read(position, self.window.as_mut_bytes())?;
            }
        }
        Ok(decode_at(self.ring, position, &self.window[(position - self.start) as usize]))
    }
}

/// Damage at the end of a log that no crash explains. (A crash may lose anything that was not flushed.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Damage {
    /// A record is missing that had been durable, as a record behind it or the header says.
    Record,
    /// There are records of a later incarnation. Its header had been durable before them, so the header that was read
    /// is too old.
    Header,
}

impl Damage {
    /// A description for users.
    pub(crate) fn what(self) -> &'static str {
        match self {
            Damage::Record => "a record is missing that had been durable",
            Damage::Header => "there are records of a later opening than the newest header that is whole",
        }
    }
}

/// Looks behind `end` for records that prove damage at `end`.
pub(crate) fn find_damage(ring: &Ring, end: u64, limit: u64) -> io::Result<Option<Damage>> {
    let mut found = None;
    let mut pages = vec![Page::new_zeroed(); SEARCH_PAGES as usize];
    for start in (end..limit).step_by(SEARCH_PAGES as usize) {
        let count = SEARCH_PAGES.min(limit - start) as usize;
        ring.read(start, pages[..count].as_mut_bytes())?;
        for (position, page) in (start..).zip(&pages[..count]) {
            let Some(head) = RecordPage::decode(ring.uuid, page).map(|record| record.head) else { continue };
            if head.incarnation > ring.incarnation {
                return Ok(Some(Damage::Header));
            }
            if head.position == position && head.incarnation == ring.incarnation && head.durable > end {
                found = Some(Damage::Record);
            }
        }
    }
    Ok(found)
}
