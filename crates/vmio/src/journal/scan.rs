//! Reading the log back: which commits are whole, and which image of each page is the committed one.

use std::collections::BTreeMap;
use std::io;

use zerocopy::{FromZeros, IntoBytes};

use crate::journal::format::{CommittedFile, Header, Page, Place, RecordHead, RecordKind, RecordPage};
use crate::journal::ring::Ring;

/// Pages that are read at once in search of records behind the end of the log.
const SEARCH_PAGES: u64 = 256;

/// Where a page's image lies, and its checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Image {
    pub(crate) position: u64,
    pub(crate) checksum: u32,
}

/// A page of a record whose commit has not been met yet.
struct Pending {
    record: u64,
    commit: u64,
    place: Place,
    image: Image,
}

/// What a part of the log holds.
pub(crate) struct Scan {
    /// The last commit, or the one that the scan began with.
    pub(crate) commit: u64,
    /// Commits met that the files do not hold yet.
    pub(crate) commits: u64,
    /// Behind the last commit record, or where the scan began.
    pub(crate) committed_end: u64,
    /// The first position that holds no whole record.
    pub(crate) end: u64,
    /// The committed pages.
    pub(crate) pages: BTreeMap<Place, Image>,
    /// Committed lengths of files in bytes.
    pub(crate) lengths: BTreeMap<u32, u64>,
    /// The files hold what the commits before this position brought.
    applied: u64,
    pending: Vec<Pending>,
}

impl Scan {
    /// Begins where a header says.
    pub(crate) fn new(header: &Header) -> Self {
        Scan {
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
            let image = Image { position: image, checksum };
            self.pending.push(Pending { record: position, commit, place, image });
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
                if files.get(&page.place.file).is_some_and(|file| file.since <= page.image.position) {
                    self.pages.insert(page.place, page.image);
                }
            }
        }
    }

    /// The first position that is needed once all committed pages are in their files: spills may lie before the commit
    /// record of a commit that they do not belong to.
    pub(crate) fn first_needed(&self) -> u64 {
        self.pending.iter().map(|page| page.record).min().unwrap_or(self.committed_end).min(self.committed_end)
    }
}

/// Reads the record at a position with its images into `pages`; `None` if it is not whole, or not one.
pub(crate) fn read_record(ring: &Ring, position: u64, pages: &mut Vec<Page>) -> io::Result<Option<RecordPage>> {
    let Some(record) = read_record_page(ring, position)? else { return Ok(None) };
    let holds_images = record.head.kind != RecordKind::Void;
    let images = if holds_images { record.head.pages as usize } else { 0 };
    pages.resize(1 + images, Page::new_zeroed());
    ring.read(position, pages.as_mut_bytes())?;
    let images_match = || record.places().zip(&pages[1..]).all(|((_, sum), image)| sum == ring.uuid.checksum(&image.0));
    Ok(images_match().then_some(record))
}

/// Reads the first page of the record at a position.
pub(crate) fn read_record_page(ring: &Ring, position: u64) -> io::Result<Option<RecordPage>> {
    let mut page = [Page::new_zeroed()];
    ring.read(position, page.as_mut_bytes())?;
    Ok(RecordPage::decode(ring.uuid, &page[0]).filter(|record| {
        let RecordHead { position: own, incarnation, pages, .. } = record.head;
        own == position && incarnation == ring.incarnation && u64::from(pages) < ring.capacity_pages()
    }))
}

/// Whether a record behind `end` says that what lies at `end` had been durable: then it was not lost in a crash, where
/// anything may be lost that was not flushed, but is damaged. Returns the end of what had been durable.
pub(crate) fn find_damage(ring: &Ring, end: u64, limit: u64) -> io::Result<Option<u64>> {
    let mut found = None;
    let mut pages = vec![Page::new_zeroed(); SEARCH_PAGES as usize];
    for start in (end..limit).step_by(SEARCH_PAGES as usize) {
        let count = SEARCH_PAGES.min(limit - start) as usize;
        ring.read(start, pages[..count].as_mut_bytes())?;
        for (position, page) in (start..).zip(&pages[..count]) {
            let head = RecordPage::decode(ring.uuid, page).map(|record| record.head);
            let durable = head.filter(|head| head.position == position && head.incarnation == ring.incarnation);
            found = found.max(durable.map(|head| head.durable).filter(|durable| *durable > end));
        }
    }
    Ok(found)
}
