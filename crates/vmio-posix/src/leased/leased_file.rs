//! A leased file: its mapping, and which parts of it are worth copying from and to.

use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use vmio::{Access, ProgramMap, SharedMap};

use super::append_turns::{AppendTurns, WithoutAppends};
use super::cached_file::CachedFile;
use super::mode::is_strict;
use super::strict::Logged;
use crate::files_kept_open::MapFile;
use crate::own_descriptors;

/// The bytes that are checked and mapped at a time: a huge page.
const CHUNK_BYTES: u64 = 2 << 20;
/// The least address space that a file gets.
const MAP_BYTES_MIN: u64 = 64 << 20;
/// The same for a file without a page cache.
const DIRECT_BYTES_MIN: u64 = 16 << 30;
/// A chunk that was not in the page cache is checked again after this number of calls.
const CALLS_BEFORE_ANOTHER_CHECK: u8 = 64;

/// The mapping of a file that the process has a lease on, its chunks, and the counts of its transfers.
pub(crate) struct LeasedFile {
    data: Data,
    /// The descriptor of a file that this process maps by its extents. Dropped after the map.
    #[allow(dead_code, reason = "it closes the descriptor")]
    file: Option<MapFile>,
    access: Access,
    appends: bool,
    /// Whether this process maps the medium of a vmio-pmfs itself. Then other processes may use the file meanwhile.
    has_extents: bool,
    turns: AppendTurns,
    logged: Option<Logged>,
    chunks: Box<[Chunk]>,
    syncs: AtomicU32,
    stores_after_bytes: u32,
    has_stored: AtomicBool,
    /// None without `--stats`: two atomic additions take a tenth of a read's time.
    counts: Option<Counts>,
}

/// Where the bytes of the file are.
enum Data {
    /// In the kernel's page cache, which this shared mapping shows.
    Shared(SharedMap),
    /// In the cache of this process. Linux has only the bytes written back.
    Cached(CachedFile),
    /// In the page cache alone: the descriptor is open for writing only, and nothing is mapped.
    Unmapped,
}

/// Calls served without a system call, and the bytes that they copied.
#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) reads: AtomicU64,
    pub(crate) read_bytes: AtomicU64,
    pub(crate) writes: AtomicU64,
    pub(crate) written_bytes: AtomicU64,
}

/// A part of the file.
struct Chunk {
    /// 0 before it is checked, [`MAPPED`] once its pages are in the page table, else the calls since the last check.
    state: AtomicU8,
    /// The file's number of syncs when the chunk was last written to.
    syncs: AtomicU32,
    /// Bytes written to it since that sync.
    written_bytes: AtomicU32,
}

const MAPPED: u8 = u8::MAX;

impl Chunk {
    const fn new() -> Self {
        Chunk { state: AtomicU8::new(0), syncs: AtomicU32::new(0), written_bytes: AtomicU32::new(0) }
    }

    /// Whether writes since the last sync have brought enough bytes here to expect more. A page's first store after a sync costs a fault,
    /// and the next sync a TLB shootdown: together as much as several writes by the kernel.
    fn is_written_often(&self, bytes: usize, syncs: u32, enough: u32) -> bool {
        // Not by one atomic exchange: if two threads are first after a sync, a write may be counted twice, or not at all.
        if self.syncs.load(Ordering::Relaxed) != syncs {
            self.syncs.store(syncs, Ordering::Relaxed);
            self.written_bytes.store(0, Ordering::Relaxed);
        }
        let written = self.written_bytes.load(Ordering::Relaxed);
        if written >= enough {
            return true;
        }
        self.written_bytes.store(written.saturating_add(bytes as u32), Ordering::Relaxed);
        false
    }
}

impl LeasedFile {
    /// Maps a file of a mounted vmio-pmfs by its extents; `None` if this process may not open the medium.
    pub(super) fn of_extents(fd: BorrowedFd<'_>, file_bytes: u64, access: Access) -> std::io::Result<Option<Self>> {
        let file = MapFile::of(fd)?;
        let len = file_bytes.saturating_mul(2).max(DIRECT_BYTES_MIN);
        let Some(map) = SharedMap::by_extents(file.descriptor()?, len, access)? else { return Ok(None) };
        if let Some((_, shared)) = map.descriptors() {
            shared.iter().for_each(|fd| _ = own_descriptors::insert(fd.as_raw_fd()));
        }
        Ok(Some(LeasedFile { file: Some(file), ..Self::of(Data::Shared(map), 0, access, 0) }))
    }

    /// Maps a file of `file_bytes` bytes with address space to grow. The descriptor must be open for that access.
    pub(super) fn new(
        fd: BorrowedFd<'_>,
        file_bytes: u64,
        access: Access,
        stores_after_bytes: u32,
    ) -> std::io::Result<Self> {
        let twice = file_bytes.saturating_mul(2);
        // A direct map has no chunks, so that address space is all it takes to grow.
        if ProgramMap::is_of_pmfs(fd)
            && let Ok(Some(file)) = Self::of_extents(fd, file_bytes, access)
        {
            return Ok(LeasedFile { stores_after_bytes, ..file });
        }
        let direct = SharedMap::open(fd, twice.max(DIRECT_BYTES_MIN), access).ok().filter(SharedMap::is_direct);
        if let Some(map) = direct {
            return Ok(Self::of(Data::Shared(map), 0, access, stores_after_bytes));
        }
        let len = twice.max(MAP_BYTES_MIN).next_multiple_of(CHUNK_BYTES);
        let map = SharedMap::open(fd, len, access)?;
        Ok(Self::of(Data::Shared(map), len, access, stores_after_bytes))
    }

    /// A file in the cache of this process.
    pub(super) fn of_cached(file: CachedFile, access: Access) -> Self {
        Self::of(Data::Cached(file), 0, access, 0)
    }

    /// A file that is open for writing only: its writes are logged, and Linux does them.
    pub(super) fn of_writes_alone() -> Self {
        Self::of(Data::Unmapped, 0, Access::ReadOnly, 0)
    }

    fn of(data: Data, chunked_bytes: u64, access: Access, stores_after_bytes: u32) -> Self {
        // The kernel alone knows what to do at a limit of the length.
        let is_unlimited = || getrlimit(Resource::Fsize).current.is_none();
        let appends = matches!(&data, Data::Shared(map) if map.appends() && (!is_strict() || map.is_persistent()));
        let appends = appends && is_unlimited();
        let has_extents = matches!(&data, Data::Shared(map) if map.descriptors().is_some());
        LeasedFile {
            data,
            file: None,
            has_extents,
            access,
            appends,
            turns: AppendTurns::new(),
            logged: None,
            chunks: (0..chunked_bytes / CHUNK_BYTES).map(|_| Chunk::new()).collect(),
            syncs: AtomicU32::new(0),
            stores_after_bytes,
            has_stored: AtomicBool::new(false),
            counts: None,
        }
    }

    /// Turns on the counts of its transfers.
    pub(super) fn counted(mut self) -> Self {
        self.counts = Some(Counts::default());
        self
    }

    /// The counts of its transfers, with `--stats`.
    pub(super) fn counts(&self) -> Option<&Counts> {
        self.counts.as_ref()
    }

    /// Adds a log for all its writes.
    pub(super) fn with_log(mut self, logged: Logged) -> Self {
        self.logged = Some(logged);
        self
    }

    /// Its log, in strict mode.
    pub(super) fn logged(&self) -> Option<&Logged> {
        self.logged.as_ref()
    }

    /// The file in the cache of this process, if it is there.
    pub(super) fn cached(&self) -> Option<&CachedFile> {
        if let Data::Cached(file) = &self.data { Some(file) } else { None }
    }

    /// Writes the bytes back that the kernel does not have yet.
    pub(super) fn write_back(&self) -> Result<(), Errno> {
        self.cached().map_or(Ok(()), |file| file.write_back(0..u64::MAX))
    }

    /// Copies bytes out of the file, which is at least `file_bytes` long; false if the kernel should read them.
    pub(super) fn read(&self, fd: BorrowedFd<'_>, file_bytes: u64, offset: u64, buffer: &mut [u8]) -> bool {
        let is_copied = match &self.data {
            Data::Cached(file) => file.read(offset, buffer),
            Data::Shared(map) => {
                self.is_worth_copying(map, fd, file_bytes, offset, buffer.len()) && map.read_at(offset, buffer).is_ok()
            }
            Data::Unmapped => false,
        };
        if is_copied && let Some(counts) = &self.counts {
            counts.add_read(buffer.len());
        }
        is_copied
    }

    /// Copies bytes into the file, likewise.
    pub(super) fn write(&self, fd: BorrowedFd<'_>, file_bytes: u64, offset: u64, bytes: &[u8]) -> bool {
        if self.access != Access::ReadWrite {
            return false;
        }
        let is_copied = match &self.data {
            Data::Cached(file) => file.write(offset, bytes),
            Data::Shared(map) => {
                self.is_worth_storing(map, fd, file_bytes, offset, bytes.len()) && map.write_at(offset, bytes).is_ok()
            }
            Data::Unmapped => false,
        };
        if is_copied {
            if !self.has_stored.load(Ordering::Relaxed) {
                self.has_stored.store(true, Ordering::Relaxed);
            }
            if let Some(counts) = &self.counts {
                counts.add_write(bytes.len());
            }
        }
        is_copied
    }

    /// Whether this process maps the medium itself, and others may use the file.
    pub(super) fn has_extents(&self) -> bool {
        self.has_extents
    }

    /// How often such a file may have become shorter: [`SharedMap::cuts`].
    #[inline]
    pub(super) fn cuts(&self) -> Option<u64> {
        if let Data::Shared(map) = &self.data { map.cuts() } else { None }
    }

    /// Whether others may have taken some of these bytes away since [`Self::cuts`] was `before`.
    pub(super) fn has_lost(&self, before: u64, bytes: &Range<u64>) -> bool {
        matches!(&self.data, Data::Shared(map) if map.has_lost(before, bytes))
    }

    /// Whether [`Self::append`] may append.
    pub(super) fn appends(&self) -> bool {
        self.appends
    }

    /// Appends parts, one after the other, to the file, which ends at `end`, without a system call: all or none. Then the kernel has to append them. With `durably` they are
    /// durable when this returns; a crash before leaves all or none.
    pub(super) fn append(&self, end: u64, parts: &[&[u8]], durably: bool) -> bool {
        let Data::Shared(map) = &self.data else { return false };
        let append = || if durably { map.append_durably_at(end, parts) } else { map.append_at(end, parts) };
        let is_appended = self.appends && self.turns.append(append);
        if is_appended {
            self.has_stored.store(true, Ordering::Relaxed);
            if let Some(counts) = &self.counts {
                counts.add_write(parts.iter().map(|part| part.len()).sum());
            }
        }
        is_appended
    }

    /// Until the value is dropped, no thread appends by [`Self::append`]. Nothing if a thread that does so goes on for long: a handler has interrupted it.
    pub(super) fn without_appends(&self) -> Option<WithoutAppends<'_>> {
        self.turns.exclude()
    }

    fn is_worth_storing(&self, map: &SharedMap, fd: BorrowedFd<'_>, file_bytes: u64, offset: u64, len: usize) -> bool {
        let (syncs, enough) = (self.syncs.load(Ordering::Relaxed), self.stores_after_bytes);
        let mut chunks = self.chunks_of(offset, len).iter();
        let is_written_often = chunks.all(|chunk| chunk.is_written_often(len, syncs, enough));
        is_written_often && self.is_worth_copying(map, fd, file_bytes, offset, len)
    }

    /// Whether bytes that [`Self::write`] has copied are durable at once: the file is in persistent memory.
    pub(super) fn is_persistent(&self) -> bool {
        matches!(&self.data, Data::Shared(map) if map.is_persistent())
    }

    /// Whether a sync by the kernel has nothing left to do.
    pub(super) fn is_always_durable(&self) -> bool {
        matches!(&self.data, Data::Shared(map) if map.is_always_durable())
    }

    /// Counts a sync by the program.
    pub(super) fn count_sync(&self) {
        self.syncs.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether there were stores. Only the first of them made the kernel set the file's times.
    pub(super) fn has_stored(&self) -> bool {
        self.has_stored.load(Ordering::Relaxed)
    }

    /// The chunks of a range. There may be fewer than the range needs.
    fn chunks_of(&self, offset: u64, len: usize) -> &[Chunk] {
        let end = (offset + len as u64).div_ceil(CHUNK_BYTES).min(self.chunks.len() as u64);
        &self.chunks[(offset / CHUNK_BYTES).min(end) as usize..end as usize]
    }

    /// Whether the page table has all chunks of a range. Maps the missing ones if that takes no read.
    #[inline]
    fn is_worth_copying(&self, map: &SharedMap, fd: BorrowedFd<'_>, file_bytes: u64, offset: u64, len: usize) -> bool {
        let end = offset + len as u64;
        if end > map.len() || map.is_direct() {
            // Where the kernel serves the map, it alone knows when others cut the file.
            return end <= map.len() && !(self.has_extents && map.cuts().is_none());
        }
        self.has_chunks(map, fd, file_bytes, offset..end)
    }

    fn has_chunks(&self, map: &SharedMap, fd: BorrowedFd<'_>, file_bytes: u64, bytes: Range<u64>) -> bool {
        (bytes.start / CHUNK_BYTES..bytes.end.div_ceil(CHUNK_BYTES)).all(|chunk| {
            let state = &self.chunks[chunk as usize].state;
            match state.load(Ordering::Relaxed) {
                MAPPED => true,
                0 => self.check(map, fd, file_bytes, chunk),
                calls => {
                    state.store(if calls < CALLS_BEFORE_ANOTHER_CHECK { calls + 1 } else { 0 }, Ordering::Relaxed);
                    false
                }
            }
        })
    }

    #[cold]
    fn check(&self, map: &SharedMap, fd: BorrowedFd<'_>, file_bytes: u64, chunk: u64) -> bool {
        let start = chunk * CHUNK_BYTES;
        let is_mapped = map.populate_if_cached(fd, start..(start + CHUNK_BYTES).min(file_bytes));
        self.chunks[chunk as usize].state.store(if is_mapped { MAPPED } else { 1 }, Ordering::Relaxed);
        is_mapped
    }
}

impl Counts {
    pub(super) fn add_read(&self, bytes: usize) {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.read_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn add_write(&self, bytes: usize) {
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.written_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Adds other counts.
    pub(super) fn absorb(&self, others: &Counts) {
        for (own, other) in [
            (&self.reads, &others.reads),
            (&self.read_bytes, &others.read_bytes),
            (&self.writes, &others.writes),
            (&self.written_bytes, &others.written_bytes),
        ] {
            own.fetch_add(other.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }
}
