//! Whatever lies where a journal should be: an error at worst, never a panic, and never pages that were not committed.
#![no_main]

use std::io;
use std::sync::{Arc, Mutex, OnceLock};

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use vmio::Access;
use vmio::backing::Backing;
use vmio::journal::{Inspection, Journal, JournalOptions};

const PAGE: usize = 4096;
const HEADER: usize = 64 << 10;
const LOG_START: usize = 2 * HEADER;
const LOG_PAGES: usize = 64;
const FILE_BYTES_MAX: u64 = 1 << 20;

/// A change to a journal in order: a word of the front of a header or record, or of an image.
#[derive(Arbitrary, Debug)]
struct Change {
    page: u8,
    word: u16,
    value: u64,
    /// Whether the checksum of the header or record is made right again.
    is_sealed: bool,
}

#[derive(Arbitrary, Debug)]
struct Input {
    changes: Vec<Change>,
    cut_off: Option<u32>,
    raw: Option<Vec<u8>>,
}

/// Bytes that outlive the journal.
#[derive(Clone, Default)]
struct Bytes(Arc<Mutex<Vec<u8>>>);

impl Bytes {
    fn of(bytes: Vec<u8>) -> Self {
        Bytes(Arc::new(Mutex::new(bytes)))
    }

    fn copy(&self) -> Vec<u8> {
        self.0.lock().unwrap().clone()
    }
}

impl Backing for Bytes {
    fn len(&self) -> u64 {
        self.0.lock().unwrap().len() as u64
    }

    fn access(&self) -> Access {
        Access::ReadWrite
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let bytes = self.0.lock().unwrap();
        let rest = bytes.get(offset as usize..).unwrap_or_default();
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut bytes = self.0.lock().unwrap();
        assert!(offset as usize + data.len() <= bytes.len(), "a write behind the end");
        bytes[offset as usize..][..data.len()].copy_from_slice(data);
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        if len > FILE_BYTES_MAX {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.0.lock().unwrap().resize(len as usize, 0);
        Ok(())
    }

    fn describe(&self) -> String {
        "bytes".into()
    }
}

/// A journal with two commits, a spill of the second before the first ends, deltas in the second, and a spill behind both.
fn journal_in_order() -> &'static [u8] {
    static JOURNAL: OnceLock<Vec<u8>> = OnceLock::new();
    JOURNAL.get_or_init(|| {
        let device = Bytes::of(vec![0; LOG_START + LOG_PAGES * PAGE]);
        let journal = Journal::create(device.clone(), JournalOptions::new().checkpoint_at(1.0)).unwrap();
        let file = journal.join(Bytes::of(vec![0; 8 * PAGE])).unwrap();
        file.write_at(0, &[1; 3 * PAGE]).unwrap();
        let first = journal.commit(|commit| {
            commit.freeze();
            file.write_at(PAGE as u64, &[2; PAGE]).unwrap();
            commit.write(&file, 4 * PAGE as u64, &[3; 2 * PAGE])
        });
        first.unwrap();
        // Deltas over the image, and over the file.
        let changed = |of: u8, at: usize| {
            let mut page = [of; PAGE];
            page[at..at + 40].fill(5);
            page
        };
        let second = journal.commit(|commit| {
            commit.write_changes(&file, 4, &[3; PAGE], &changed(3, 100))?;
            commit.write_changes(&file, 6, &[0; PAGE], &changed(0, 4000))
        });
        second.unwrap();
        file.write_at(0, &[4; PAGE]).unwrap();
        device.copy()
    })
}

/// Makes the checksums of the page right, as the format has them.
fn seal(journal: &mut [u8], page: usize) {
    if page < LOG_START / PAGE {
        let copy = &mut journal[page * PAGE / HEADER * HEADER..][..HEADER];
        let checksum = crc32c::crc32c(&copy[16..]);
        copy[12..16].copy_from_slice(&checksum.to_le_bytes());
    } else {
        let uuid = crc32c::crc32c(&journal[40..56]);
        let page = &mut journal[page * PAGE..][..PAGE];
        let checksum = crc32c::crc32c_append(uuid, &page[8..]);
        page[4..8].copy_from_slice(&checksum.to_le_bytes());
    }
}

fn open(device: &Bytes, file: &Bytes) {
    let inspected = Inspection::of(device.clone());
    let opened = Journal::open(device.clone(), JournalOptions::new(), |_| Ok(Box::new(file.clone())));
    match (inspected, opened) {
        (Ok(inspection), Ok((journal, report))) => {
            assert_eq!(inspection.damaged_at, None);
            assert_eq!((inspection.commits, inspection.pages), (report.commits, report.pages_replayed));
            drop(journal);
            let again = Inspection::of(device.clone()).unwrap();
            assert_eq!((again.commits, again.pages, again.records.len()), (0, 0, 0));
            assert_eq!(again.last_commit, inspection.last_commit);
        }
        (Err(error), Ok(_)) => panic!("opened, but not inspected: {error}"),
        (_, Err(error)) => drop(error.to_string()),
    }
}

fuzz_target!(|input: Input| {
    if let Some(raw) = input.raw {
        open(&Bytes::of(raw), &Bytes::default());
    }
    let mut journal = journal_in_order().to_vec();
    for change in &input.changes {
        let page = usize::from(change.page) % (journal.len() / PAGE);
        let word = usize::from(change.word) % (PAGE / 8);
        journal[page * PAGE + word * 8..][..8].copy_from_slice(&change.value.to_le_bytes());
        if change.is_sealed {
            seal(&mut journal, page);
        }
    }
    if let Some(len) = input.cut_off {
        journal.truncate(len as usize % (journal.len() + 1));
    }
    open(&Bytes::of(journal), &Bytes::of(vec![0; 5 * PAGE]));
});
