//! A file on persistent memory that may grow without end, as pieces of address space that never move.

use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::OnceLock;

use crate::sys::persistent_map::PersistentMap;
use crate::sys::persistent_memory::Refused;

/// The first piece is a multiple of this: most files stay within it.
const ROOM_BYTES: u64 = 1 << 30;
/// Pieces after the first one. Each doubles what is mapped, so that the last one ends at 2^62 at least.
const LATER_PIECES_MAX: usize = 32;

/// The file from its first byte, mapped in pieces. Each piece is made before the file first grows into it, and stays. So
/// those who read meanwhile need no lock.
pub(crate) struct GrowingMap {
    pieces: Pieces,
    first: PersistentMap,
    later: [OnceLock<PersistentMap>; LATER_PIECES_MAX],
    is_writable: bool,
}

impl GrowingMap {
    /// Maps the first `len` bytes, and room behind them; EOPNOTSUPP (before Linux 4.15 EINVAL) if the file is not on
    /// persistent memory.
    pub(crate) fn new(file: BorrowedFd<'_>, len: u64, is_writable: bool) -> io::Result<Self> {
        let first_bytes = len.max(1).checked_next_multiple_of(ROOM_BYTES).ok_or(io::ErrorKind::FileTooLarge)?;
        let mapped = usize::try_from(first_bytes).map_err(|_| io::ErrorKind::FileTooLarge)?;
        let first = PersistentMap::new(file, mapped, is_writable)?;
        let later = [const { OnceLock::new() }; LATER_PIECES_MAX];
        Ok(GrowingMap { pieces: Pieces { first_bytes }, first, later, is_writable })
    }

    /// Maps what is missing of the same file's first `len` bytes. After an error the map is as before.
    pub(crate) fn grow(&self, file: BorrowedFd<'_>, len: u64) -> io::Result<()> {
        let mut made = Vec::new();
        for number in 1..=self.pieces.last_of(len) {
            let later = self.later.get(number - 1).ok_or(io::ErrorKind::FileTooLarge)?;
            if later.get().is_none() {
                let range = self.pieces.range(number).ok_or(io::ErrorKind::FileTooLarge)?;
                let bytes = usize::try_from(range.end - range.start).map_err(|_| io::ErrorKind::FileTooLarge)?;
                made.push((later, PersistentMap::of_part(file, range.start, bytes, self.is_writable)?));
            }
        }
        for (later, piece) in made {
            // Another thread may have been first: its piece shows the same bytes.
            let _ = later.set(piece);
        }
        Ok(())
    }

    /// Copies bytes out. It refuses bytes that were never mapped.
    #[inline]
    pub(crate) fn load(&self, offset: u64, to: &mut [u8]) -> Result<(), Refused> {
        if offset + to.len() as u64 <= self.pieces.first_bytes {
            return self.first.load(offset, to);
        }
        self.pieces
            .split(offset, to.len())
            .try_for_each(|part| self.piece(part.piece)?.load(part.offset, &mut to[part.bytes]))
    }

    /// Copies bytes in, like [`Self::load`]. They are durable when this returns.
    #[inline]
    pub(crate) fn store(&self, offset: u64, from: &[u8]) -> Result<(), Refused> {
        if offset + from.len() as u64 <= self.pieces.first_bytes {
            return self.first.store(offset, from);
        }
        self.pieces
            .split(offset, from.len())
            .try_for_each(|part| self.piece(part.piece)?.store(part.offset, &from[part.bytes]))
    }

    /// Whether stores are durable when [`Self::store`] returns.
    pub(crate) fn is_synchronous(&self) -> bool {
        let mut later = self.later.iter().filter_map(OnceLock::get);
        self.first.is_synchronous() && later.all(PersistentMap::is_synchronous)
    }

    fn piece(&self, number: usize) -> Result<&PersistentMap, Refused> {
        match number.checked_sub(1) {
            None => Ok(&self.first),
            Some(later) => self.later.get(later).and_then(OnceLock::get).ok_or(Refused),
        }
    }
}

/// The instructions for copies and for write-back.
impl fmt::Display for GrowingMap {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.first.fmt(out)
    }
}

/// Where pieces begin and end: each is as long as all before it together.
#[derive(Clone, Copy)]
struct Pieces {
    first_bytes: u64,
}

/// Bytes of a copy that lie in one piece.
#[derive(Debug, PartialEq)]
struct Part {
    piece: usize,
    /// Where they begin in the piece.
    offset: u64,
    /// Where they are in the caller's buffer.
    bytes: Range<usize>,
}

impl Pieces {
    /// The piece that a byte is in.
    fn number(self, offset: u64) -> usize {
        (offset / self.first_bytes).checked_ilog2().map_or(0, |doubled| doubled as usize + 1)
    }

    /// The last piece of a file of `len` bytes.
    fn last_of(self, len: u64) -> usize {
        self.number(len.saturating_sub(1))
    }

    /// The bytes of a piece, or `None` if it ends where no file can.
    fn range(self, number: usize) -> Option<Range<u64>> {
        let end = self.first_bytes.checked_mul(1_u64.checked_shl(number.try_into().ok()?)?)?;
        let start = if number == 0 { 0 } else { end / 2 };
        (end <= i64::MAX as u64).then_some(start..end)
    }

    /// Splits bytes at the ends of pieces.
    fn split(self, offset: u64, len: usize) -> impl Iterator<Item = Part> {
        let mut done = 0_usize;
        std::iter::from_fn(move || {
            let at = offset + done as u64;
            let piece = self.number(at);
            // A piece that no file has is refused as a whole.
            let range = self.range(piece).unwrap_or(at..u64::MAX);
            let bytes = done..len.min(done.saturating_add((range.end - at) as usize));
            done = bytes.end;
            (!bytes.is_empty()).then_some(Part { piece, offset: at - range.start, bytes })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_follow_one_another_and_double() {
        for first_bytes in [ROOM_BYTES, 3 * ROOM_BYTES] {
            let pieces = Pieces { first_bytes };
            let mut end = 0;
            for (number, range) in (0..).map_while(|number| Some((number, pieces.range(number)?))) {
                assert_eq!((range.start, range.end), (end, if number == 0 { first_bytes } else { 2 * end }));
                assert_eq!((pieces.number(range.start), pieces.number(range.end - 1)), (number, number));
                assert_eq!((pieces.last_of(range.start + 1), pieces.last_of(range.end)), (number, number));
                assert!(number <= LATER_PIECES_MAX, "there is a place for each");
                end = range.end;
            }
            assert!(end > i64::MAX as u64 / 2, "they end at {end}");
        }
        assert_eq!(Pieces { first_bytes: ROOM_BYTES }.last_of(0), 0);
    }

    #[test]
    fn copies_are_split_at_the_ends_of_pieces() {
        let split = |offset, len| Vec::from_iter(Pieces { first_bytes: 4096 }.split(offset, len));
        assert_eq!(split(4000, 0), []);
        assert_eq!(split(4000, 96), [Part { piece: 0, offset: 4000, bytes: 0..96 }]);
        assert_eq!(split(8192, 8192), [Part { piece: 2, offset: 0, bytes: 0..8192 }]);
        let through = [
            Part { piece: 0, offset: 4000, bytes: 0..96 },
            Part { piece: 1, offset: 0, bytes: 96..4192 },
            Part { piece: 2, offset: 0, bytes: 4192..12384 },
            Part { piece: 3, offset: 0, bytes: 12384..12400 },
        ];
        assert_eq!(split(4000, 12400), through);
    }
}
