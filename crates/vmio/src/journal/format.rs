//! The format of the journal on its device: docs/formats/journal.md in code.

use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::backing::Identity;
use crate::journal::delta::{Delta, deltas};
use crate::journal::place::{FILE_PAGES_MAX, Place};
use crate::sys::PAGE_BYTES;

/// The version of the format that vmio writes.
pub(crate) const VERSION: u32 = 2;
/// The oldest version that vmio reads. It has all of the present one but deltas.
const VERSION_OLDEST: u32 = 1;
/// The length of one of the two copies of the header.
pub(crate) const HEADER_BYTES: usize = 64 << 10;
/// The number of copies of the header.
pub(crate) const HEADER_COPIES: u64 = 2;
/// The byte at which the log begins, behind both copies of the header.
pub(crate) const LOG_START_BYTES: u64 = HEADER_COPIES * HEADER_BYTES as u64;
/// Files that a journal may hold at a time.
pub(crate) const FILES_MAX: usize = (HEADER_BYTES - PAGE_BYTES) / size_of::<FileRow>();
/// The longest path of a file, in bytes.
pub(crate) const PATH_BYTES_MAX: usize = 960;
/// The most page images in one record.
pub(crate) const RECORD_PAGES_MAX: usize = (PAGE_BYTES - size_of::<RecordFields>()) / size_of::<PageRow>();

const HEADER_MAGIC: [u8; 8] = *b"vmiojrnl";
const RECORD_MAGIC: [u8; 4] = *b"vmjr";
/// Bytes of the header in front of those that its checksum covers.
const HEADER_UNCHECKED: usize = 16;
/// Bytes of a record in front of those that its checksum covers.
const RECORD_UNCHECKED: usize = 8;
/// The limit of positions and numbers. No journal lasts long enough to reach it.
const NUMBER_MAX: u64 = 1 << 52;

/// A page of memory that direct I/O can use.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(4096))]
pub(crate) struct Page(pub(crate) [u8; PAGE_BYTES]);

impl Page {
    /// All zeros.
    pub(crate) const ZERO: Page = Page([0; PAGE_BYTES]);
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct HeaderFields {
    magic: [u8; 8],
    version: U32,
    checksum: U32,
    sequence: U64,
    incompatible: U64,
    compatible: U64,
    uuid: [u8; 16],
    page_bytes: U32,
    files: U32,
    capacity_pages: U64,
    incarnation: U64,
    tail: U64,
    applied: U64,
    commit: U64,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct FileRow {
    file: U32,
    path_bytes: U32,
    device: U64,
    inode: U64,
    reserved: [u8; 40],
    path: [u8; PATH_BYTES_MAX],
}

/// The front of a record's first page.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RecordFields {
    magic: [u8; 4],
    checksum: U32,
    incarnation: U64,
    position: U64,
    commit: U64,
    durable: U64,
    pages: U32,
    rows: U32,
    kind: u8,
    reserved: [u8; 15],
}

/// A page image in a record: its page, and its checksum.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct PageRow {
    place: U64,
    checksum: U32,
}

/// A file in a commit record.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct CommitRow {
    file: U32,
    reserved: U32,
    len: U64,
    since: U64,
}

/// Bytes in front of the rows or deltas of a record.
pub(crate) const RECORD_FRONT_BYTES: usize = size_of::<RecordFields>();

const _: () = assert!(size_of::<HeaderFields>() == 104);
const _: () = assert!(size_of::<FileRow>() == 1024 && FILES_MAX == 60);
const _: () = assert!(size_of::<RecordFields>() == 64);
const _: () = assert!(size_of::<PageRow>() == 12 && RECORD_PAGES_MAX == 336);
const _: () = assert!(size_of::<CommitRow>() == 24);
const _: () = assert!(size_of::<RecordFields>() + FILES_MAX * size_of::<CommitRow>() <= PAGE_BYTES);
const _: () = assert!(size_of::<Page>() == PAGE_BYTES && align_of::<Page>() == PAGE_BYTES);

/// Identifies a journal. It is part of every checksum, so that no record of another journal passes for one of this
/// journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Uuid(pub(crate) [u8; 16]);

impl Uuid {
    /// A random UUID (version 4).
    pub(crate) fn random() -> std::io::Result<Self> {
        let mut bytes = [0; 16];
        rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
        bytes[6] = bytes[6] & 0x0f | 0x40;
        bytes[8] = bytes[8] & 0x3f | 0x80;
        Ok(Uuid(bytes))
    }

    /// The checksum (CRC-32C) of some bytes of this journal.
    pub(crate) fn checksum(self, bytes: &[u8]) -> u32 {
        crc32c::crc32c_append(crc32c::crc32c(&self.0), bytes)
    }
}

impl std::fmt::Display for Uuid {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (index, byte) in self.0.iter().enumerate() {
            let dash = if [4, 6, 8, 10].contains(&index) { "-" } else { "" };
            write!(out, "{dash}{byte:02x}")?;
        }
        Ok(())
    }
}

/// A file that has joined a journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournaledFile {
    /// The number of the file in the journal.
    pub(crate) file: u32,
    /// The path of the file when it joined.
    pub path: String,
    /// The identity of the file at that time, if it had one. After a reboot the device number may be another.
    pub identity: Option<Identity>,
}

/// The contents of a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// The version of the format in which it was read. vmio writes [`VERSION`].
    pub(crate) version: u32,
    /// Counts the headers written. The copy with the higher number is in force.
    pub(crate) sequence: u64,
    pub(crate) uuid: Uuid,
    /// Length of the log in pages.
    pub(crate) capacity_pages: u64,
    /// The incarnation to which the records belong: each opening of the journal begins another.
    pub(crate) incarnation: u64,
    /// The position of the first record that is still needed.
    pub(crate) tail: u64,
    /// The files hold all commits whose records lie before this position.
    pub(crate) applied: u64,
    /// The number of the last of these commits.
    pub(crate) commit: u64,
    pub(crate) files: Vec<JournaledFile>,
}

impl Header {
    /// The bytes of a copy of the header.
    pub(crate) fn encode(&self) -> Vec<Page> {
        let mut copy = vec![Page::ZERO; HEADER_BYTES / PAGE_BYTES];
        let bytes = copy.as_mut_bytes();
        for (row, file) in bytes[PAGE_BYTES..].chunks_mut(size_of::<FileRow>()).zip(&self.files) {
            let identity = file.identity.unwrap_or(Identity { device: 0, inode: 0 });
            let mut path = [0; PATH_BYTES_MAX];
            path[..file.path.len()].copy_from_slice(file.path.as_bytes());
            let fields = FileRow {
                file: file.file.into(),
                path_bytes: (file.path.len() as u32).into(),
                device: identity.device.into(),
                inode: identity.inode.into(),
                reserved: [0; 40],
                path,
            };
            row.copy_from_slice(fields.as_bytes());
        }
        let mut fields = HeaderFields {
            magic: HEADER_MAGIC,
            version: VERSION.into(),
            checksum: 0.into(),
            sequence: self.sequence.into(),
            incompatible: 0.into(),
            compatible: 0.into(),
            uuid: self.uuid.0,
            page_bytes: (PAGE_BYTES as u32).into(),
            files: (self.files.len() as u32).into(),
            capacity_pages: self.capacity_pages.into(),
            incarnation: self.incarnation.into(),
            tail: self.tail.into(),
            applied: self.applied.into(),
            commit: self.commit.into(),
        };
        bytes[..size_of::<HeaderFields>()].copy_from_slice(fields.as_bytes());
        fields.checksum = crc32c::crc32c(&bytes[HEADER_UNCHECKED..]).into();
        bytes[..size_of::<HeaderFields>()].copy_from_slice(fields.as_bytes());
        copy
    }

    /// Reads a copy of the header. The error says why it is not valid.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, String> {
        let Ok((fields, _)) = HeaderFields::read_from_prefix(bytes) else { return Err("it is too short".into()) };
        if fields.magic != HEADER_MAGIC || bytes.len() != HEADER_BYTES {
            return Err("it does not begin as a journal does".into());
        }
        if !(VERSION_OLDEST..=VERSION).contains(&fields.version.get()) {
            let known = format!("{VERSION_OLDEST} to {VERSION}");
            return Err(format!("its format has version {}, and this vmio knows {known}", fields.version));
        }
        if fields.checksum != crc32c::crc32c(&bytes[HEADER_UNCHECKED..]) {
            return Err("the checksum of its header is wrong".into());
        }
        if fields.incompatible != 0 {
            return Err(format!("it uses features that this vmio does not know (flags {:#x})", fields.incompatible));
        }
        let capacity_pages = fields.capacity_pages.get();
        let [tail, applied] = [fields.tail.get(), fields.applied.get()];
        let numbers = [applied, fields.commit.get(), fields.incarnation.get(), fields.sequence.get()];
        if fields.page_bytes != PAGE_BYTES as u32 || capacity_pages == 0 || capacity_pages > FILE_PAGES_MAX {
            return Err(format!("it has {capacity_pages} pages of {} bytes", fields.page_bytes));
        }
        if fields.files.get() as usize > FILES_MAX
            || tail > applied
            || numbers.iter().any(|number| *number > NUMBER_MAX)
        {
            return Err("its header holds numbers that cannot be".into());
        }
        let rows = bytes[PAGE_BYTES..].chunks(size_of::<FileRow>()).take(fields.files.get() as usize);
        let files = rows.map(decode_file).collect::<Result<_, _>>()?;
        Ok(Header {
            version: fields.version.get(),
            sequence: fields.sequence.get(),
            uuid: Uuid(fields.uuid),
            capacity_pages,
            incarnation: fields.incarnation.get(),
            tail,
            applied,
            commit: fields.commit.get(),
            files,
        })
    }
}

fn decode_file(row: &[u8]) -> Result<JournaledFile, String> {
    let fields = FileRow::read_from_bytes(row).map_err(|_| "it is too short".to_owned())?;
    let path = fields.path.get(..fields.path_bytes.get() as usize).and_then(|path| std::str::from_utf8(path).ok());
    let path = path.ok_or("the path of one of its files is no text")?.to_owned();
    let identity = Identity { device: fields.device.get(), inode: fields.inode.get() };
    let identity = (identity != Identity { device: 0, inode: 0 }).then_some(identity);
    Ok(JournaledFile { file: fields.file.get(), path, identity })
}

/// The kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind {
    /// Pages that had to leave memory before their commit.
    Spill,
    /// Pages written by their commit.
    Batch,
    /// The end of a commit. From here on all pages before it that belong to this commit or an earlier one count.
    Commit,
    /// Space where a write failed. Recovery skips it.
    Void,
    /// Changes of pages by their commit.
    Delta,
}

impl RecordKind {
    fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(RecordKind::Spill),
            2 => Some(RecordKind::Batch),
            3 => Some(RecordKind::Commit),
            4 => Some(RecordKind::Void),
            5 => Some(RecordKind::Delta),
            _ => None,
        }
    }

    fn code(self) -> u8 {
        match self {
            RecordKind::Spill => 1,
            RecordKind::Batch => 2,
            RecordKind::Commit => 3,
            RecordKind::Void => 4,
            RecordKind::Delta => 5,
        }
    }
}

/// The first page of a record, without its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordHead {
    pub(crate) kind: RecordKind,
    pub(crate) incarnation: u64,
    /// Its place in the log: positions count pages, and never begin again.
    pub(crate) position: u64,
    /// The commit that its pages belong to.
    pub(crate) commit: u64,
    /// At the time of its write, everything before this position was durable.
    pub(crate) durable: u64,
    /// Pages that follow the first one.
    pub(crate) pages: u32,
}

/// Pages of a file, which need not be neighbours.
#[derive(Clone, Copy)]
pub(crate) struct Pages<'a> {
    pub(crate) file: u32,
    /// The page number of each of them, by index.
    pub(crate) number: &'a dyn Fn(usize) -> u64,
}

/// A file as a commit record has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CommittedFile {
    pub(crate) file: u32,
    /// Its length in bytes.
    pub(crate) len: u64,
    /// The position of the log when the file joined. The commit drops pages of the file at earlier positions, unless an
    /// earlier commit took them: the file was closed without a commit.
    pub(crate) since: u64,
}

impl RecordHead {
    /// Makes `page` the first page of a record with images of these pages.
    pub(crate) fn encode_pages(&self, uuid: Uuid, of: Pages<'_>, images: &[u8], tail: Option<&Page>, page: &mut Page) {
        let images = images.chunks_exact(PAGE_BYTES).chain(tail.map(|tail| &tail.0[..]));
        let rows = &mut page.0[RECORD_FRONT_BYTES..];
        let mut count = 0;
        for (row, image) in rows.chunks_exact_mut(size_of::<PageRow>()).zip(images) {
            let place = Place { file: of.file, page: (of.number)(count as usize) };
            row.copy_from_slice(
                PageRow { place: place.number().into(), checksum: uuid.checksum(image).into() }.as_bytes(),
            );
            count += 1;
        }
        assert!(count == self.pages, "a record of {} pages with {count} images", self.pages);
        self.seal(uuid, count, count as usize * size_of::<PageRow>(), page);
    }

    /// Makes `page` a record of its deltas: `count` of them, in `bytes` bytes, are in it already.
    pub(crate) fn encode_deltas(&self, uuid: Uuid, count: u32, bytes: usize, page: &mut Page) {
        self.seal(uuid, count, bytes, page);
    }

    /// Makes `page` a commit record.
    pub(crate) fn encode_commit(&self, uuid: Uuid, files: &[CommittedFile], page: &mut Page) {
        let rows = page.0[RECORD_FRONT_BYTES..].chunks_exact_mut(size_of::<CommitRow>());
        for (row, file) in rows.zip(files) {
            let (len, since) = (file.len.into(), file.since.into());
            row.copy_from_slice(CommitRow { file: file.file.into(), reserved: 0.into(), len, since }.as_bytes());
        }
        self.seal(uuid, files.len() as u32, files.len() * size_of::<CommitRow>(), page);
    }

    /// Makes `page` the first page of a void.
    pub(crate) fn encode_void(&self, uuid: Uuid, page: &mut Page) {
        self.seal(uuid, 0, 0, page);
    }

    fn seal(&self, uuid: Uuid, rows: u32, bytes: usize, page: &mut Page) {
        page.0[RECORD_FRONT_BYTES + bytes..].fill(0);
        let mut fields = RecordFields {
            magic: RECORD_MAGIC,
            checksum: 0.into(),
            incarnation: self.incarnation.into(),
            position: self.position.into(),
            commit: self.commit.into(),
            durable: self.durable.into(),
            pages: self.pages.into(),
            rows: rows.into(),
            kind: self.kind.code(),
            reserved: [0; 15],
        };
        page.0[..size_of::<RecordFields>()].copy_from_slice(fields.as_bytes());
        fields.checksum = uuid.checksum(&page.0[RECORD_UNCHECKED..]).into();
        page.0[..size_of::<RecordFields>()].copy_from_slice(fields.as_bytes());
    }

    /// The head of a record and its number of rows, from its first page. `None` if the page is not one of that journal.
    pub(crate) fn decode(uuid: Uuid, page: &Page) -> Option<(Self, usize)> {
        let (fields, _) = RecordFields::ref_from_prefix(&page.0).ok()?;
        let is_whole = fields.magic == RECORD_MAGIC && fields.checksum == uuid.checksum(&page.0[RECORD_UNCHECKED..]);
        if is_whole { Self::fields(page) } else { None }
    }

    /// As [`Self::decode`], for a page whose checksum is right.
    pub(crate) fn fields(page: &Page) -> Option<(Self, usize)> {
        let (fields, rest) = RecordFields::ref_from_prefix(&page.0).ok()?;
        let kind = RecordKind::from_code(fields.kind)?;
        let (pages, rows) = (fields.pages.get(), fields.rows.get() as usize);
        let row_bytes = match kind {
            RecordKind::Spill | RecordKind::Batch if rows == pages as usize => size_of::<PageRow>(),
            RecordKind::Commit if pages == 0 => size_of::<CommitRow>(),
            RecordKind::Void if rows == 0 && pages as usize <= RECORD_PAGES_MAX => 0,
            RecordKind::Delta if pages == 0 && deltas(rest, rows, fields.position.get()).count() == rows => 0,
            _ => return None,
        };
        let numbers = [fields.position.get(), fields.commit.get(), fields.durable.get()];
        if rows * row_bytes > rest.len() || numbers.iter().any(|number| *number > NUMBER_MAX) {
            return None;
        }
        let head = RecordHead {
            kind,
            incarnation: fields.incarnation.get(),
            position: fields.position.get(),
            commit: fields.commit.get(),
            durable: fields.durable.get(),
            pages,
        };
        Some((head, rows))
    }
}

/// The first page of a record that was read back with a right checksum.
pub(crate) struct RecordPage {
    pub(crate) head: RecordHead,
    page: Page,
    rows: usize,
}

impl RecordPage {
    /// Reads the first page of a record. `None` if it is none of that journal.
    pub(crate) fn decode(uuid: Uuid, page: &Page) -> Option<Self> {
        let (head, rows) = RecordHead::decode(uuid, page)?;
        Some(RecordPage { head, page: *page, rows })
    }

    fn rows<T: FromBytes>(&self) -> impl Iterator<Item = T> {
        let rows = self.page.0[RECORD_FRONT_BYTES..].chunks_exact(size_of::<T>()).take(self.rows);
        rows.filter_map(|row| T::read_from_bytes(row).ok())
    }

    /// The pages whose images follow, in order, with their checksums.
    pub(crate) fn places(&self) -> impl Iterator<Item = (Place, u32)> {
        let is_pages = matches!(self.head.kind, RecordKind::Spill | RecordKind::Batch);
        self.rows::<PageRow>()
            .filter(move |_| is_pages)
            .map(|row| (Place::of_number(row.place.get()), row.checksum.get()))
    }

    /// The deltas of the record.
    pub(crate) fn deltas(&self) -> impl Iterator<Item = Delta<'_>> {
        let count = if self.head.kind == RecordKind::Delta { self.rows } else { 0 };
        deltas(&self.page.0[RECORD_FRONT_BYTES..], count, self.head.position)
    }

    /// The number of pages of which the record has an image or a delta, or which it skips.
    pub(crate) fn pages(&self) -> u32 {
        if self.head.kind == RecordKind::Delta { self.rows as u32 } else { self.head.pages }
    }

    /// The files of a commit record.
    pub(crate) fn files(&self) -> impl Iterator<Item = CommittedFile> {
        let is_commit = self.head.kind == RecordKind::Commit;
        self.rows::<CommitRow>().filter(move |_| is_commit).map(|row| CommittedFile {
            file: row.file.get(),
            len: row.len.get(),
            since: row.since.get(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        let identity = Some(Identity { device: 1, inode: 2 });
        let files = vec![
            JournaledFile { file: 1, path: "data/a.bin".into(), identity },
            JournaledFile { file: 2, path: "b".repeat(PATH_BYTES_MAX), identity: None },
        ];
        let uuid = Uuid(*b"0123456789abcdef");
        Header {
            version: VERSION,
            sequence: 7,
            uuid,
            capacity_pages: 99,
            incarnation: 3,
            tail: 1234,
            applied: 1250,
            commit: 17,
            files,
        }
    }

    #[test]
    fn a_header_reads_as_it_was_written_and_every_changed_bit_shows() {
        let mut copy = header().encode();
        let bytes = copy.as_mut_bytes();
        assert_eq!(Header::decode(bytes).unwrap(), header());
        for bit in (0..8 * PAGE_BYTES * 2).step_by(37) {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Header::decode(bytes).is_err(), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn the_version_before_is_read_and_others_are_not() {
        for version in 0..4 {
            let mut copy = header().encode();
            let bytes = copy.as_mut_bytes();
            bytes[8] = version;
            match Header::decode(bytes) {
                Ok(read) => assert_eq!(read, Header { version: version.into(), ..header() }),
                Err(wrong) => assert!(wrong.contains(&format!("version {version}")), "{wrong}"),
            }
            assert_eq!(Header::decode(bytes).is_ok(), [1, 2].contains(&version), "version {version}");
        }
    }

    #[test]
    fn a_record_reads_as_it_was_written_and_belongs_to_its_journal_alone() {
        let uuid = header().uuid;
        let head = RecordHead {
            kind: RecordKind::Spill,
            incarnation: 3,
            position: 77,
            commit: 18,
            durable: 60,
            pages: RECORD_PAGES_MAX as u32,
        };
        let images = vec![Page([5; PAGE_BYTES]); RECORD_PAGES_MAX - 1];
        let last = Page([6; PAGE_BYTES]);
        let mut page = Page([0xff; PAGE_BYTES]);
        let number = |at: usize| if at == 7 { 70 } else { FILE_PAGES_MAX - (RECORD_PAGES_MAX - at) as u64 };
        let pages = Pages { file: 9, number: &number };
        head.encode_pages(uuid, pages, images.as_bytes(), Some(&last), &mut page);
        let read = RecordPage::decode(uuid, &page).unwrap();
        assert_eq!(read.head, head);
        let places: Vec<_> = read.places().collect();
        assert_eq!(places.len(), RECORD_PAGES_MAX);
        assert_eq!(places[7].0, Place { file: 9, page: 70 });
        assert_eq!(places[335], (Place { file: 9, page: FILE_PAGES_MAX - 1 }, uuid.checksum(&last.0)));
        assert_eq!(read.files().count(), 0);
        assert!(RecordPage::decode(Uuid([0; 16]), &page).is_none());
        page.0[4000] ^= 1;
        assert!(RecordPage::decode(uuid, &page).is_none());
    }
}
