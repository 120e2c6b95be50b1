//! Opening a journal: it brings committed pages into the files, and forgets all others.

use std::collections::BTreeMap;

use crate::backing::{Backing, FileUser, Locking};
use crate::error::{Error, Result};
use crate::journal::failure::failed_at;
use crate::journal::format::{Header, JournaledFile, LOG_START_BYTES, RecordPage, VERSION};
use crate::journal::replay::replay;
use crate::journal::ring::{Ring, read_header};
use crate::journal::scan::{Damage, Scan, find_damage, read_record, read_record_page};
use crate::journal::writers::Writers;
use crate::sys::PAGE_BYTES;

/// The result of opening a journal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecoveryReport {
    /// The number of the last commit. The files hold exactly that one.
    pub last_commit: u64,
    /// Commits that the files did not hold yet.
    pub commits: u64,
    /// Pages that recovery wrote into the files.
    pub pages_replayed: u64,
    /// Bytes of whole records behind the last commit, which recovery discarded.
    pub bytes_discarded: u64,
    /// The byte of the journal at which an incomplete record begins: the crash came during its write, or it was never
    /// flushed.
    pub torn_at: Option<u64>,
    /// The files that recovery brought up to date.
    pub files: Vec<String>,
}

/// Opens one of the files that a journal names.
pub(crate) type OpenFile<'a> = &'a dyn Fn(&JournaledFile) -> Result<Box<dyn Backing>>;

/// Reads the header and the log, and shows each record to `show`. Changes nothing.
pub(crate) fn read(device: Box<dyn Backing>, show: &mut dyn FnMut(&RecordPage)) -> Result<(Ring, Header, Scan)> {
    let header = read_header(&*device).map_err(failed_at(&*device, "reading"))?;
    let header = header.map_err(|reason| Error::NotAJournal { journal: device.describe(), reason })?;
    let log_bytes = device.len().saturating_sub(LOG_START_BYTES);
    if log_bytes / (PAGE_BYTES as u64) < header.capacity_pages {
        let reason =
            format!("it has been cut: {} pages of {} are left", log_bytes / PAGE_BYTES as u64, header.capacity_pages);
        return Err(Error::NotAJournal { journal: device.describe(), reason });
    }
    let ring = Ring::new(device, &header);
    let mut scan = Scan::new(&header);
    let limit = header.tail + header.capacity_pages;
    let mut pages = Vec::new();
    let failed = |source| failed_at(ring.device(), "reading")(source);
    while scan.end < limit {
        match read_record(&ring, scan.end, &mut pages).map_err(failed)? {
            Some(record) if scan.end + 1 + u64::from(record.head.pages) <= limit => {
                show(&record);
                scan.add(&record);
            }
            _ => break,
        }
    }
    Ok((ring, header, scan))
}

/// The damage at the end of the log and its byte in the journal, if there is any.
pub(crate) fn damage(ring: &Ring, header: &Header, scan: &Scan) -> Result<Option<(u64, Damage)>> {
    let limit = header.tail + header.capacity_pages;
    let found = find_damage(ring, scan.end, limit).map_err(failed_at(ring.device(), "reading"))?;
    let is_short = scan.committed_end < header.applied;
    Ok(found.or(is_short.then_some(Damage::Record)).map(|damage| (ring.offset(scan.end), damage)))
}

/// The byte at which an incomplete record begins, if it can be told from space never used.
pub(crate) fn torn_at(ring: &Ring, scan: &Scan) -> Result<Option<u64>> {
    let begun = read_record_page(ring, scan.end).map_err(failed_at(ring.device(), "reading"))?.is_some();
    Ok(begun.then(|| ring.offset(scan.end)))
}

/// Brings the files up to date, and begins the next incarnation of the journal with an empty log.
pub(crate) fn recover(device: Box<dyn Backing>, open_file: OpenFile<'_>) -> Result<(Ring, Header, RecoveryReport)> {
    let (ring, header, scan) = read(device, &mut |_| {})?;
    if let Some((offset, damage)) = damage(&ring, &header, &scan)? {
        return Err(Error::JournalDamaged { journal: ring.device().describe(), offset, what: damage.what() });
    }
    let (mut files, mut locks) = (BTreeMap::new(), Vec::new());
    for file in header.files.iter().filter(|file| scan.lengths.contains_key(&file.file)) {
        let data = open_file(file)?;
        check_identity(&ring, file, &*data)?;
        let (locking, data) = Locking::begin(data, FileUser::CachedWriter)?;
        files.insert(file.file, data);
        locks.push(locking);
    }
    let backings = files.iter().map(|(file, data)| (*file, &**data)).collect();
    replay(&ring, &scan, &backings, &|_, _, _| false, &Writers::default())?;
    let report = RecoveryReport {
        last_commit: scan.commit,
        commits: scan.commits,
        pages_replayed: scan.pages.len() as u64,
        bytes_discarded: (scan.end - scan.committed_end) * PAGE_BYTES as u64,
        torn_at: torn_at(&ring, &scan)?,
        files: files.values().map(|data| data.describe()).collect(),
    };
    drop(locks);
    // Records of the previous incarnation may lie beyond the end. In the next one they count for nothing.
    let next = Header {
        version: VERSION,
        sequence: header.sequence + 1,
        incarnation: header.incarnation + 1,
        tail: scan.committed_end,
        applied: scan.committed_end,
        commit: scan.commit,
        files: Vec::new(),
        ..header
    };
    ring.write_header(&next).map_err(failed_at(ring.device(), "writing"))?;
    ring.device().flush().map_err(failed_at(ring.device(), "flushing"))?;
    Ok((ring.reborn(&next), next, report))
}

fn check_identity(ring: &Ring, file: &JournaledFile, data: &dyn Backing) -> Result<()> {
    let (then, now) = (file.identity.map(|identity| identity.inode), data.identity().map(|identity| identity.inode));
    if then == now {
        return Ok(());
    }
    Err(Error::JournaledFile {
        journal: ring.device().describe(),
        path: file.path.clone(),
        reason: "it is not the file that joined the journal, but another one of that name",
    })
}
