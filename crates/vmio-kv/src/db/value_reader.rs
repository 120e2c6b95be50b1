//! A reader of a value, like a file.

use std::io::{self, Read, Seek, SeekFrom};
use std::sync::Arc;

use crate::db::open_handle::OpenHandle;
use crate::error::Result;
use crate::extents::LargeValue;
use crate::format::extents::PIECE_BYTES;
use crate::keyspace::Version;
use crate::log::Log;

/// How far ahead a sequential reader prefetches.
const AHEAD_BYTES: u64 = 1 << 20;

/// A reader of a key's value, as it was when the reader was made; see [`crate::KeyspaceHandle::reader`] and [`crate::Scan::readers`].
///
/// # Examples
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// use std::io::{Read, Seek, SeekFrom};
/// use vmio_kv::{Db, Options};
///
/// let db = Db::create(folder.path().join("store"), Options::new())?;
/// db.put(b"film", b"beginning, middle, end")?;
/// let mut reader = db.reader(b"film")?.expect("it was put");
/// assert_eq!(reader.len(), 22);
/// reader.seek(SeekFrom::End(-3))?;
/// let mut end = String::new();
/// reader.read_to_string(&mut end)?;
/// assert_eq!(end, "end");
/// # Ok(())
/// # }
/// ```
pub struct ValueReader {
    bytes: u64,
    at: u64,
    handle: OpenHandle<Source>,
}

/// The source of a value.
pub(super) struct Source {
    log: Arc<Log>,
    /// Protects the value's space from reuse.
    _version: Arc<Version>,
    value: Value,
    /// The piece that was read last, and its number.
    piece: Vec<u8>,
    piece_index: usize,
    /// Up to where the value is prefetched.
    ahead: u64,
}

enum Value {
    Small(Vec<u8>),
    Large(LargeValue),
}

impl ValueReader {
    pub(super) fn new(handle: OpenHandle<Source>) -> Result<Self> {
        Ok(ValueReader { bytes: handle.get()?.bytes(), at: 0, handle })
    }

    /// The value's length in bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        self.bytes
    }
}

impl Source {
    pub(super) fn large(log: &Arc<Log>, version: &Arc<Version>, value: LargeValue) -> Self {
        Self::new(log, version, Value::Large(value))
    }

    pub(super) fn small(log: &Arc<Log>, version: &Arc<Version>, value: Vec<u8>) -> Self {
        Self::new(log, version, Value::Small(value))
    }

    fn new(log: &Arc<Log>, version: &Arc<Version>, value: Value) -> Self {
        let (log, _version) = (Arc::clone(log), Arc::clone(version));
        Source { log, _version, value, piece: Vec::new(), piece_index: usize::MAX, ahead: 0 }
    }

    fn bytes(&self) -> u64 {
        match &self.value {
            Value::Small(value) => value.len() as u64,
            Value::Large(value) => value.len(),
        }
    }

    /// Reads from a place on, up to the end of a piece or of the buffer.
    fn read_some(&mut self, at: u64, buffer: &mut [u8]) -> Result<usize> {
        let left = self.bytes().saturating_sub(at);
        let wanted = left.min(buffer.len() as u64) as usize;
        let buffer = &mut buffer[..wanted];
        if buffer.is_empty() {
            return Ok(0);
        }
        let value = match &self.value {
            Value::Large(value) => value,
            Value::Small(value) => {
                buffer.copy_from_slice(&value[at as usize..at as usize + wanted]);
                return Ok(wanted);
            }
        };
        let device = &self.log.segment.device;
        if !(at..=at + AHEAD_BYTES).contains(&self.ahead) {
            self.ahead = at;
        }
        if self.ahead < at + AHEAD_BYTES / 2 {
            let end = (at + AHEAD_BYTES).min(value.len());
            value.prefetch(device, self.ahead..end);
            self.ahead = at + AHEAD_BYTES;
        }
        if wanted >= PIECE_BYTES {
            value.read_at(device, at, buffer)?;
            return Ok(wanted);
        }
        let index = (at / PIECE_BYTES as u64) as usize;
        if self.piece_index != index {
            self.piece_index = usize::MAX;
            self.piece.resize(value.piece_bytes(index), 0);
            value.read_piece(device, index, &mut self.piece)?;
            self.piece_index = index;
        }
        let rest = &self.piece[(at % PIECE_BYTES as u64) as usize..];
        let taken = wanted.min(rest.len());
        buffer[..taken].copy_from_slice(&rest[..taken]);
        Ok(taken)
    }
}

impl Read for ValueReader {
    /// An error has the [`crate::Error`] in it.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let at = self.at;
        let read = self.handle.get_mut().and_then(|source| source.read_some(at, buffer)).map_err(io::Error::other)?;
        self.at += read as u64;
        Ok(read)
    }
}

impl Seek for ValueReader {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.len().checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        self.at =
            at.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "a place before the value's beginning"))?;
        Ok(self.at)
    }
}

impl std::fmt::Debug for ValueReader {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "byte {} of a value of {}", self.at, self.len())
    }
}
