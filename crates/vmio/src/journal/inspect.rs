//! Inspects a journal without changing it.

use crate::backing::{Backing, Identity};
use crate::error::Result;
use crate::journal::format::{JournaledFile, RecordHead, RecordKind};
use crate::journal::lock;
use crate::journal::recovery::{damage, read, torn_at};
use crate::sys::PAGE_BYTES;

/// What a journal holds, and what opening it would do.
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
    /// The version of its format.
    pub version: u32,
    /// Its identity.
    pub uuid: String,
    /// How often it has been opened, its creation included.
    pub incarnation: u64,
    /// The length of its log in bytes.
    pub capacity_bytes: u64,
    /// The number of the last commit that its files hold as a whole.
    pub applied_commit: u64,
    /// The number of the last commit, which the files hold after the journal has been opened.
    pub last_commit: u64,
    /// Commits that opening would bring into the files.
    pub commits: u64,
    /// Pages that it would write to them.
    pub pages: u64,
    /// Bytes of whole records behind the last commit, which it would forget.
    pub bytes_discarded: u64,
    /// The byte at which a record begins that is not whole, as a crash leaves it.
    pub torn_at: Option<u64>,
    /// The byte from which on something is missing that had been durable. No crash does that, and the journal cannot be opened.
    pub damaged_at: Option<u64>,
    /// Its files.
    pub files: Vec<InspectedFile>,
    /// The records that are still needed, in order.
    pub records: Vec<Record>,
}

/// A file of a journal.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct InspectedFile {
    /// The path that it was given when it joined.
    pub path: String,
    /// Its identity at that time.
    pub identity: Option<Identity>,
    /// Pages that opening would write to it.
    pub pages: u64,
    /// The length that it would be given at least, if there are commits for it.
    pub len: Option<u64>,
}

/// A record of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Record {
    /// The kind of the record.
    pub kind: RecordKind,
    /// The byte of the journal at which it begins.
    pub offset: u64,
    /// The number of the commit that it belongs to; 0 for a void.
    pub commit: u64,
    /// Page images or deltas in it, or pages that a void skips.
    pub pages: u32,
}

impl Inspection {
    /// Reads a journal that no process has open.
    ///
    /// # Errors
    ///
    /// [`crate::Error::NotAJournal`] if there is none, [`crate::Error::Journal`] if it cannot be read, [`crate::Error::InUse`].
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
