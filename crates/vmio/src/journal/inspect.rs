//! Inspects a journal without changing it.

use crate::backing::{Backing, Identity};
use crate::error::Result;
use crate::journal::format::{JournaledFile, RecordHead, RecordKind};
use crate::journal::lock;
use crate::journal::recovery::{damage, read, torn_at};
use crate::sys::PAGE_BYTES;

/// The contents of a journal, and the effect that opening it would have.
///
/// # Examples
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("journal");
/// use vmio::Access;
/// use vmio::backing::FileBacking;
/// use vmio::journal::{Inspection, Journal, JournalOptions};
///
/// drop(Journal::create_file(&path, 1 << 20, JournalOptions::new())?);
/// let found = Inspection::of(FileBacking::open(&path, Access::ReadOnly)?)?;
/// assert_eq!((found.commits, found.damaged_at), (0, None));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Inspection {
    /// The version of the journal's format.
    pub version: u32,
    /// The identity of the journal.
    pub uuid: String,
    /// How often the journal has been opened, its creation included.
    pub incarnation: u64,
    /// The length of the log in bytes.
    pub capacity_bytes: u64,
    /// The number of the last commit that the files hold as a whole.
    pub applied_commit: u64,
    /// The number of the last commit. The files hold it once the journal has been opened.
    pub last_commit: u64,
    /// Commits that opening would bring into the files.
    pub commits: u64,
    /// Pages that opening would write to the files.
    pub pages: u64,
    /// Bytes of whole records behind the last commit, which opening would discard.
    pub bytes_discarded: u64,
    /// The byte at which an incomplete record begins, as a crash leaves one.
    pub torn_at: Option<u64>,
    /// The byte from which on durable records are missing. No crash does that, and the journal cannot be opened.
    pub damaged_at: Option<u64>,
    /// The files of the journal.
    pub files: Vec<InspectedFile>,
    /// The records that are still needed, in order.
    pub records: Vec<Record>,
}

/// A file of a journal.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct InspectedFile {
    /// The path of the file when it joined.
    pub path: String,
    /// The identity of the file at that time.
    pub identity: Option<Identity>,
    /// Pages that opening would write to the file.
    pub pages: u64,
    /// The least length that opening would give the file, if there are commits for it.
    pub len: Option<u64>,
}

/// A record of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Record {
    /// The kind of the record.
    pub kind: RecordKind,
    /// The byte of the journal at which the record begins.
    pub offset: u64,
    /// The number of the commit that it belongs to; 0 for a void.
    pub commit: u64,
    /// Page images or deltas in the record, or pages that a void skips.
    pub pages: u32,
}

impl Inspection {
    /// Reads a journal that no process has open.
    ///
    /// # Errors
    ///
    /// [`crate::Error::NotAJournal`] if the device holds none, [`crate::Error::Journal`] if reading fails,
    /// [`crate::Error::InUse`].
    pub fn of(device: impl Backing + 'static) -> Result<Self> {
        let (_locked, device) = lock(Box::new(device))?;
        let mut found = Vec::new();
        let (ring, header, scan) = read(device, &mut |record| found.push((record.head, record.pages())))?;
        let file = |file: &JournaledFile| InspectedFile {
            path: file.path.clone(),
            identity: file.identity,
            pages: scan.pages.keys().filter(|place| place.file == file.file).count() as u64,
            len: scan.lengths.get(&file.file).copied(),
        };
        let record = |(head, pages): &(RecordHead, u32)| Record {
            kind: head.kind,
            offset: ring.offset(head.position),
            commit: head.commit,
            pages: *pages,
        };
        Ok(Inspection {
            version: header.version,
            uuid: header.uuid.to_string(),
            incarnation: header.incarnation,
            capacity_bytes: header.capacity_pages * PAGE_BYTES as u64,
            applied_commit: header.commit,
            last_commit: scan.commit,
            commits: scan.commits,
            pages: scan.pages.len() as u64,
            bytes_discarded: (scan.end - scan.committed_end) * PAGE_BYTES as u64,
            torn_at: torn_at(&ring, &scan)?,
            damaged_at: damage(&ring, &header, &scan)?.map(|(offset, _)| offset),
            files: header.files.iter().map(file).collect(),
            records: found.iter().map(record).collect(),
        })
    }
}
