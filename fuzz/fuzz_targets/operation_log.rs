//! Whatever lies where an operation log should be: an error at worst, never a panic, and no entry that nobody wrote.
#![no_main]

use std::fs;
use std::io::IoSlice;
use std::sync::OnceLock;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use operation_log::{Contents, Entry, EntryKind, FileIdentity, Log, LogOptions};

const UNIT: usize = 64;
const HEADER: usize = 4096;
const ENTRIES_START: usize = 2 * HEADER;

/// A change to a log in order: a word of a header or of an entry.
#[derive(Arbitrary, Debug)]
struct Change {
    unit: u16,
    word: u8,
    value: u64,
    /// Whether the checksum of the header or front is made right again.
    is_sealed: bool,
}

/// A unit that stands at another place as well, as data that are a copy of the log would have it.
#[derive(Arbitrary, Debug)]
struct Copy {
    from: u16,
    to: u16,
}

#[derive(Arbitrary, Debug)]
struct Input {
    copies: Vec<Copy>,
    changes: Vec<Change>,
    cut_off: Option<u32>,
    raw: Option<Vec<u8>>,
}

/// A log of 64 KiB of the second generation, with two files, and data that are a copy of the log's own front.
fn log_in_order() -> &'static (Vec<u8>, Contents) {
    static LOG: OnceLock<(Vec<u8>, Contents)> = OnceLock::new();
    LOG.get_or_init(|| {
        let folder = std::env::temp_dir().join(format!("vmio-fuzz-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let log = Log::create(&folder, LogOptions::new().capacity_bytes(64 << 10)).unwrap();
        let [first, second] = [1, 2].map(|inode| {
            let identity = FileIdentity { device: 1, inode, birth: None };
            log.file(identity, &folder.join(inode.to_string())).unwrap()
        });
        let write = |file, offset, data: &[u8]| {
            drop(log.write(file, offset, offset / 2, &[IoSlice::new(data)]).unwrap());
        };
        write(first, 0, &[1; 1000]);
        log.checkpoint(|_| Ok(())).unwrap();
        write(first, 100, &[2; 700]);
        write(second, 0, &fs::read(log.path()).unwrap()[ENTRIES_START..][..1024]);
        log.retire(first, || Ok(())).unwrap();
        write(first, 1 << 40, b"last");
        let bytes = fs::read(log.path()).unwrap();
        drop(log);
        fs::remove_dir_all(&folder).unwrap();
        let contents = Contents::read(&bytes[..]).unwrap().unwrap();
        assert_eq!((contents.entries.len(), contents.torn), (6, 0));
        (bytes, contents)
    })
}

/// Makes the checksum of the header or front right, as the format has it.
fn seal(log: &mut [u8], at: usize) {
    let (start, len, checksum_at, covered_from) =
        if at < ENTRIES_START { (at / HEADER * HEADER, HEADER, 12, 16) } else { (at / UNIT * UNIT, UNIT, 4, 8) };
    let Some(part) = log.get_mut(start..start + len) else { return };
    let checksum = crc32c::crc32c(&part[covered_from..]);
    part[checksum_at..checksum_at + 4].copy_from_slice(&checksum.to_le_bytes());
}

fn read(bytes: &[u8]) -> Option<Contents> {
    match Contents::read(bytes).expect("memory can be read") {
        Ok(contents) => Some(contents),
        Err(damage) => {
            drop(damage.to_string());
            None
        }
    }
}

/// Entries stand one behind the other, within the log, and could have been written.
fn check_order(contents: &Contents, bytes: &[u8]) {
    assert!(contents.file_bytes <= bytes.len() as u64);
    let mut free = ENTRIES_START as u64;
    for Entry { position, data_bytes, kind, .. } in &contents.entries {
        assert!(*position >= free && position % UNIT as u64 == 0);
        free = position + UNIT as u64 + u64::from(*data_bytes).next_multiple_of(UNIT as u64);
        assert!(position + UNIT as u64 + u64::from(*data_bytes) <= contents.file_bytes);
        match kind {
            EntryKind::Write { offset, .. } => assert!(offset + u64::from(*data_bytes) <= i64::MAX as u64),
            EntryKind::File(file) => assert!(file.path.as_os_str().len() <= 4096),
            EntryKind::Retire { .. } => assert_eq!(*data_bytes, 0),
        }
    }
}

fuzz_target!(|input: Input| {
    if let Some(raw) = input.raw
        && let Some(contents) = read(&raw)
    {
        check_order(&contents, &raw);
    }
    let (sound, original) = log_in_order();
    let mut log = sound.clone();
    for copy in &input.copies {
        let [from, to] = [copy.from, copy.to].map(|unit| usize::from(unit) % (log.len() / UNIT) * UNIT);
        if to >= ENTRIES_START {
            log.copy_within(from..from + UNIT, to);
        }
    }
    let mut has_forged = false;
    for change in &input.changes {
        // Most of a log is empty: half of the changes are to be where something is.
        let units = if change.unit & 1 == 0 { log.len() / UNIT } else { 50 };
        let base = if change.unit & 1 == 0 { 0 } else { ENTRIES_START };
        let at = base + usize::from(change.unit / 2) % units * UNIT + usize::from(change.word % 8) * 8;
        log[at..at + 8].copy_from_slice(&change.value.to_le_bytes());
        if change.is_sealed {
            seal(&mut log, at);
            has_forged = true;
        }
    }
    if let Some(len) = input.cut_off {
        log.truncate(len as usize % (log.len() + 1));
    }
    if let Some(contents) = read(&log) {
        check_order(&contents, &log);
        // Without forged checksums nothing stands there that was not written, in whatever pieces the log is.
        if !has_forged && contents.generation == original.generation {
            assert!(contents.entries.iter().all(|entry| original.entries.contains(entry)));
        }
    }
});
