//! Reading a log: all whole entries of its present incarnation, whatever a crash has left between them.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use zerocopy::FromBytes;

use crate::entry::{ENTRY_ALIGN_BYTES, FILE_FRONT_BYTES, Front, Incarnation, Kind, entry_bytes};
use crate::error::Damage;
use crate::file_number::FileNumber;
use crate::header::{ENTRIES_START_BYTES, HEADER_BYTES, Header, newest};
use crate::identity::{FileIdentity, IdentityFields};

/// How much of a log is read at a time.
const WINDOW_BYTES: usize = 1 << 20;

/// Where a log can be read from.
pub trait Source {
    /// Its length.
    fn len_bytes(&self) -> io::Result<u64>;
    /// Fills `buffer` from an offset on. The source must have that many bytes.
    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;
}

impl Source for File {
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        FileExt::read_exact_at(self, buffer, offset)
    }
}

impl Source for [u8] {
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.len() as u64)
    }

    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let rest = usize::try_from(offset).ok().and_then(|offset| self.get(offset..)).unwrap_or_default();
        let bytes = rest.get(..buffer.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        buffer.copy_from_slice(bytes);
        Ok(())
    }
}

/// The contents of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Contents {
    /// The process that wrote it, by its number.
    pub owner: u32,
    /// The number of its checkpoints.
    pub generation: u64,
    /// Length of its file.
    pub file_bytes: u64,
    /// Its entries, in the order in which they are replayed.
    pub entries: Vec<Entry>,
    /// Entries whose front is whole and whose data are not. Their writes had not ended, and nobody has acknowledged them as durable.
    pub torn: u64,
    pub(crate) log: FileIdentity,
}

/// A whole entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Where in the log it begins.
    pub position: u64,
    /// Length of its data.
    pub data_bytes: u32,
    /// The file that it is about.
    pub file: FileNumber,
    /// Its kind.
    pub kind: EntryKind,
}

/// The kind of an entry, with its fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// The number stands for this file.
    File(Box<FileEntry>),
    /// Bytes were written at `offset`, when the file was `len_before` bytes long.
    Write {
        /// The offset in the file.
        offset: u64,
        /// The length of the file.
        len_before: u64,
    },
    /// The file has its operations before position `until` of the log, durably.
    Retire {
        /// The position.
        until: u64,
    },
}

/// A file as a log introduces it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileEntry {
    /// The identity of the file.
    pub identity: FileIdentity,
    /// The path of the file at the time.
    pub path: PathBuf,
}

/// The operations to replay into one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileWork {
    pub(crate) file: FileEntry,
    /// Indices of entries, in order.
    pub(crate) writes: Vec<usize>,
    pub(crate) bytes: u64,
}

impl Contents {
    /// Reads a log. The inner error is damage of its contents.
    pub fn read(source: &(impl Source + ?Sized)) -> io::Result<Result<Self, Damage>> {
        let len_bytes = source.len_bytes()?;
        if len_bytes < ENTRIES_START_BYTES {
            return Ok(Err(Damage::TooShort { bytes: len_bytes }));
        }
        let mut copies = [[0; HEADER_BYTES]; 2];
        source.read_exact_at(0, &mut copies[0])?;
        source.read_exact_at(HEADER_BYTES as u64, &mut copies[1])?;
        let (header, are_both_whole) = match newest([&copies[0], &copies[1]]) {
            Ok(found) => found,
            Err(damage) => return Ok(Err(damage)),
        };
        if len_bytes < header.file_bytes {
            return Ok(Err(Damage::Cut { found_bytes: len_bytes, expected_bytes: header.file_bytes }));
        }
        let scan = Scan::of(source, &header)?;
        // A copy that is not whole is that of a checkpoint which the crash has cut short. Then nothing was written after it.
        if !are_both_whole && scan.newest_generation > header.incarnation.generation {
            let (found, known) = (scan.newest_generation, header.incarnation.generation);
            return Ok(Err(Damage::HeaderLost { found, known }));
        }
        Ok(Ok(Contents {
            owner: header.owner,
            generation: header.incarnation.generation,
            file_bytes: header.file_bytes,
            entries: scan.entries,
            torn: scan.torn,
            log: header.log,
        }))
    }

    /// The operations to replay, by file. An operation without an introduction of its file was never acknowledged.
    pub(crate) fn work(&self) -> Result<BTreeMap<FileNumber, FileWork>, Damage> {
        let mut work: BTreeMap<FileNumber, FileWork> = BTreeMap::new();
        let mut retired_until: BTreeMap<FileNumber, u64> = BTreeMap::new();
        for entry in &self.entries {
            match &entry.kind {
                EntryKind::File(file) => {
                    let new = || FileWork { file: (**file).clone(), writes: Vec::new(), bytes: 0 };
                    let known = work.entry(entry.file).or_insert_with(new);
                    if known.file.identity != file.identity {
                        return Err(Damage::TwoFiles { number: entry.file.number() });
                    }
                    // The path of a later one is more likely to be the present one.
                    known.file.path.clone_from(&file.path);
                }
                EntryKind::Retire { until } => {
                    let known = retired_until.entry(entry.file).or_default();
                    *known = (*known).max(*until);
                }
                EntryKind::Write { .. } => {}
            }
        }
        for (index, entry) in self.entries.iter().enumerate() {
            let is_retired = retired_until.get(&entry.file).is_some_and(|until| entry.position < *until);
            if matches!(entry.kind, EntryKind::Write { .. })
                && !is_retired
                && let Some(file) = work.get_mut(&entry.file)
            {
                file.writes.push(index);
                file.bytes += u64::from(entry.data_bytes);
            }
        }
        work.retain(|_, file| !file.writes.is_empty());
        Ok(work)
    }
}

impl Entry {
    /// Where in the log its data begin.
    pub(crate) fn data_position(&self) -> u64 {
        self.position + ENTRY_ALIGN_BYTES
    }
}

/// One pass over the units of a log.
struct Scan {
    incarnation: Incarnation,
    entries: Vec<Entry>,
    torn: u64,
    newest_generation: u64,
}

impl Scan {
    fn of(source: &(impl Source + ?Sized), header: &Header) -> io::Result<Self> {
        let mut scan = Scan { incarnation: header.incarnation, entries: Vec::new(), torn: 0, newest_generation: 0 };
        let mut window = Window::new(source, header.file_bytes);
        let mut position = ENTRIES_START_BYTES;
        while position < header.file_bytes {
            position += scan.look_at(&mut window, position)?;
        }
        Ok(scan)
    }

    /// Looks at the unit at a position; returns how far it is to the next that may be the front of an entry.
    fn look_at(&mut self, window: &mut Window<'_, impl Source + ?Sized>, position: u64) -> io::Result<u64> {
        let found = window.get(position, ENTRY_ALIGN_BYTES as usize)?.and_then(|bytes| Front::decode(bytes, position));
        let Some((incarnation, front)) = found else { return Ok(ENTRY_ALIGN_BYTES) };
        self.newest_generation = self.newest_generation.max(incarnation.generation);
        if incarnation != self.incarnation {
            return Ok(ENTRY_ALIGN_BYTES);
        }
        let Some(data) = window.get(position + ENTRY_ALIGN_BYTES, front.data_bytes as usize)? else {
            return Ok(ENTRY_ALIGN_BYTES);
        };
        // The header is valid, so its data are not searched for entries, be they whole or torn.
        match kind_of(&front, data) {
            Some(kind) if crc32c::crc32c(data) == front.data_checksum => {
                let file = FileNumber::of_number(front.file);
                self.entries.push(Entry { position, data_bytes: front.data_bytes, file, kind });
            }
            _ => self.torn += 1,
        }
        Ok(entry_bytes(front.data_bytes.into()))
    }
}

fn kind_of(front: &Front, data: &[u8]) -> Option<EntryKind> {
    match front.kind {
        Kind::Write => Some(EntryKind::Write { offset: front.offset, len_before: front.len_before }),
        Kind::Retire => Some(EntryKind::Retire { until: front.offset }),
        Kind::File => {
            let (identity, path) = data.split_at_checked(FILE_FRONT_BYTES)?;
            let identity = IdentityFields::read_from_bytes(identity).ok()?.into();
            Some(EntryKind::File(Box::new(FileEntry { identity, path: PathBuf::from(OsStr::from_bytes(path)) })))
        }
    }
}

/// A part of a log in memory, which advances with the reads.
pub(crate) struct Window<'a, S: Source + ?Sized> {
    source: &'a S,
    len_bytes: u64,
    start: u64,
    bytes: Vec<u8>,
}

impl<'a, S: Source + ?Sized> Window<'a, S> {
    pub(crate) fn new(source: &'a S, len_bytes: u64) -> Self {
        Window { source, len_bytes, start: 0, bytes: Vec::new() }
    }

    /// Some bytes of the log; `None` if it is not that long.
    pub(crate) fn get(&mut self, position: u64, bytes: usize) -> io::Result<Option<&[u8]>> {
        let rest = self.len_bytes.saturating_sub(position);
        if rest < bytes as u64 {
            return Ok(None);
        }
        let is_held = position >= self.start && position + bytes as u64 <= self.start + self.bytes.len() as u64;
        if !is_held {
            let more = usize::try_from(rest).unwrap_or(usize::MAX).min(bytes.max(WINDOW_BYTES));
            self.bytes.resize(more, 0);
            self.start = position;
            self.source.read_exact_at(position, &mut self.bytes)?;
        }
        let at = (position - self.start) as usize;
        Ok(self.bytes.get(at..at + bytes))
    }
}
