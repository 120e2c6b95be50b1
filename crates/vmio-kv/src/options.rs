//! How a store is opened.

use std::ops::RangeInclusive;
use std::time::Duration;

use vmio::{Cache, Engine};

use crate::device::PageObserver;
use crate::durability::Durability;
use crate::error::{Error, Result};
use crate::format::geometry::{ALLOCATION_UNIT_BYTES, VOLUME_UNITS_MIN};
use crate::keyspace::Limits;
use crate::keyspace::arena::ARENA_BYTES_MAX;
use crate::keyspace::memtable::BEGUN_BYTES;
use crate::volume::UNITS_MAX;

/// How a store is opened or created.
///
/// # Examples
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("store");
/// use std::time::Duration;
/// use vmio_kv::{Db, Durability, Options};
///
/// let options = Options::new()
///     .memory_bytes(128 << 20)
///     .max_volume_bytes(4 << 30)
///     .durability(Durability::Periodic(Duration::from_secs(1)));
/// let db = Db::create(&path, options)?;
/// db.put(b"key", b"value")?;
/// # db.close()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Options {
    memory_bytes: u64,
    memtable_bytes: Option<u64>,
    filter_bytes: u64,
    growth_factor: u64,
    durability: Durability,
    volume_bytes: Option<u64>,
    max_volume_bytes: Option<u64>,
    max_space_amplification: f64,
    max_recovery_log_bytes: u64,
    discard: Option<bool>,
    compaction_threads: Option<usize>,
    page_observer: Option<PageObserver>,
    take_over: bool,
    overwrite: bool,
    read_only: bool,
    reorganize_scanned: bool,
    values_in_leaves: bool,
    bottom_entries_min: u64,
    fenced: bool,
    engine: Engine,
    polls_submissions: bool,
}

/// The least limit on the log that an opening reads back: a few chunks besides those being written.
const RECOVERY_LOG_MIN: u64 = 16 << 20;
/// Fewer entries are not worth a move into leaves.
const BOTTOM_ENTRIES_MIN: u64 = 16 << 10;
/// The length of a new volume, unless options say otherwise.
const VOLUME_BYTES: u64 = 1 << 30;
/// The shortest volume.
const VOLUME_BYTES_MIN: u64 = VOLUME_UNITS_MIN * ALLOCATION_UNIT_BYTES;
/// The longest volume: its table of segments has no more rows.
const VOLUME_BYTES_MAX: u64 = UNITS_MAX * ALLOCATION_UNIT_BYTES;
const _: () = assert!(VOLUME_BYTES_MAX == 8_490_068_213_760);
/// The chunks of a log that are in memory.
const TAIL_BYTES: u64 = 8 << 20;
/// A memtable is no larger than this share of the volume, since it is flushed into about as many bytes of nodes.
const VOLUME_SHARE: u64 = 16;
/// The least cache.
const CACHE_BYTES_MIN: u64 = 8 << 20;

/// The most compaction threads.
const COMPACTION_THREADS_MAX: usize = 64;
/// The most compaction threads, unless options say otherwise.
const COMPACTION_THREADS: usize = 4;

const MEMORY_BYTES_MIN: u64 = *Options::MEMORY_BYTES.start();
const _: () = assert!(MEMORY_BYTES_MIN - MEMORY_BYTES_MIN / 4 - TAIL_BYTES >= CACHE_BYTES_MIN);

impl Options {
    /// The range of [`Self::memory_bytes`]: 32 MiB to 16 TiB.
    pub const MEMORY_BYTES: RangeInclusive<u64> = 32 << 20..=16 << 40;

    /// The defaults: 256 MiB of memory, levels ten times as large as the one above, and writes that are durable when they return.
    pub fn new() -> Self {
        Options {
            memory_bytes: 256 << 20,
            memtable_bytes: None,
            filter_bytes: 0,
            growth_factor: 10,
            durability: Durability::Sync,
            volume_bytes: None,
            max_volume_bytes: None,
            max_space_amplification: 1.5,
            max_recovery_log_bytes: 1 << 30,
            discard: None,
            compaction_threads: None,
            page_observer: None,
            take_over: false,
            overwrite: false,
            read_only: false,
            reorganize_scanned: true,
            values_in_leaves: false,
            bottom_entries_min: BOTTOM_ENTRIES_MIN,
            fenced: false,
            engine: Engine::Auto,
            polls_submissions: false,
        }
    }

    /// How much memory the store may take, in bytes.
    ///
    /// The store divides it like this:
    ///
    /// - 8 MiB for the end of each segment's log;
    /// - a quarter for all memtables together, half of that for memtables being flushed. Each keyspace has 32 KiB of it at least;
    /// - the rest for the cache of nodes and records: at least 8 MiB, and as much more as memtables do not take at the moment.
    ///
    /// An opening fails if the store has more keyspaces or segments than that allows, and so does the creation of a further one.
    ///
    /// Writers wait where memtables would exceed their quarter. A larger batch is admitted once memtables hold nothing else. An opening
    /// keeps to the quarter as well, and so does a check. A read-only opening has memtables for the newest records of the log; they fit in
    /// the `memory_bytes` of the store's writer.
    ///
    /// # Default
    ///
    /// 256 MiB. The least is 32 MiB.
    pub fn memory_bytes(mut self, bytes: u64) -> Self {
        self.memory_bytes = bytes;
        self
    }

    /// Which engine serves the cache's faults.
    ///
    /// [`Engine::Kernel`] needs a file or a block device with direct I/O; the cache's memory is then the kernel module's. The store refuses
    /// [`Engine::Managed`], which shows pages before the store has verified them.
    ///
    /// # Default
    ///
    /// [`Engine::Auto`]: vmio chooses.
    pub fn engine(mut self, engine: Engine) -> Self {
        self.engine = engine;
        self
    }

    /// Has a thread of the kernel submit reads and writes of the volume: [`vmio::CacheBuilder::poll_submissions`]. For [`Engine::Ring0`], where
    /// each system call leaves the machine.
    ///
    /// Off by default.
    pub fn poll_submissions(mut self, on: bool) -> Self {
        self.polls_submissions = on;
        self
    }

    /// The size at which a keyspace's memtable is flushed, in bytes.
    ///
    /// # Default
    ///
    /// An eighth of the memory, or a sixteenth of the longest volume if that is less. It cannot be larger.
    pub fn memtable_bytes(mut self, bytes: u64) -> Self {
        self.memtable_bytes = Some(bytes);
        self
    }

    /// Memory for filters, in bytes. A filter remembers keys that a look-up has not found in a leaf, so that the next look-up need not read
    /// that leaf.
    ///
    /// Set it for stores that are often asked for keys that they do not have: 192 bytes serve a leaf of 168 keys. The filters are taken
    /// from the cache.
    ///
    /// # Default
    ///
    /// 0. The most is an eighth of the memory.
    pub fn filter_bytes(mut self, bytes: u64) -> Self {
        self.filter_bytes = bytes;
        self
    }

    /// How many times more entries each level has than the one above.
    ///
    /// # Default
    ///
    /// 10. It may be 2 to 100.
    pub fn growth_factor(mut self, factor: u64) -> Self {
        self.growth_factor = factor;
        self
    }

    /// When writes are durable, unless a write says otherwise.
    ///
    /// # Default
    ///
    /// [`Durability::Sync`].
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// How long the file of a new volume is, in bytes. The file is sparse: unused parts take no space. Only the space reserved for
    /// compactions, deletions and garbage collection is allocated.
    ///
    /// # Default
    ///
    /// [`Self::max_volume_bytes`], or 1 GiB if that is not set either.
    pub fn volume_bytes(mut self, bytes: u64) -> Self {
        self.volume_bytes = Some(bytes);
        self
    }

    /// How long the volume may become, in bytes: 7.7 TiB at most. The file grows by itself when puts find no space, and by
    /// [`crate::Db::grow`].
    ///
    /// A larger value takes address space, but no memory before the volume grows.
    ///
    /// # Default
    ///
    /// The volume's length: it does not grow.
    pub fn max_volume_bytes(mut self, bytes: u64) -> Self {
        self.max_volume_bytes = Some(bytes);
        self
    }

    /// How many times its live bytes a segment's log may take, besides 64 MiB: 1.1 to 100.
    ///
    /// The store slows writers that make garbage faster than the collector frees it. The log may be longer while snapshots hold overwritten
    /// records. The unused ends of chunks count as live.
    ///
    /// # Default
    ///
    /// 1.5.
    pub fn max_space_amplification(mut self, factor: f64) -> Self {
        self.max_space_amplification = factor;
        self
    }

    /// How many bytes of the log an opening may have to read back.
    ///
    /// From half of this limit on, the store flushes memtables before they are full, those with the oldest records first. It slows writers
    /// as the log approaches the limit. Segments have equal parts of the limit, of 16 MiB at least.
    ///
    /// # Default
    ///
    /// 1 GiB. The least is 16 MiB.
    pub fn max_recovery_log_bytes(mut self, bytes: u64) -> Self {
        self.max_recovery_log_bytes = bytes;
        self
    }

    /// Whether freed space is given back: as holes in a file, or by discarding it on a block device.
    ///
    /// # Default
    ///
    /// True for files, false for block devices.
    pub fn discard(mut self, discard: bool) -> Self {
        self.discard = Some(discard);
        self
    }

    /// How many threads flush and compact: 1 to 64.
    ///
    /// With one thread, flushes and compactions come one after the other. With more, the store compacts several keyspaces and levels at
    /// once, and idle threads help with a large level. The volume keeps some MiB free for each thread.
    ///
    /// # Default
    ///
    /// Half the number of processors, 1 to 4.
    pub fn compaction_threads(mut self, threads: usize) -> Self {
        self.compaction_threads = Some(threads);
        self
    }

    /// Calls `observe` for each 4 KiB page that the store loads from or stores to, hits included. It gets the page's number in the volume,
    /// and whether the page is stored to.
    ///
    /// The thread that touches the page makes the call; `observe` must not call the store. `vmio sim` takes a list of pages, and reports what
    /// other cache sizes and policies would do. The log bypasses the cache, so its writes are not observed.
    pub fn observe_pages(mut self, observe: impl Fn(u64, bool) + Send + Sync + 'static) -> Self {
        self.page_observer = Some(PageObserver::new(observe));
        self
    }

    pub(crate) fn bytes_of_filters(&self) -> u64 {
        self.filter_bytes
    }

    pub(crate) fn page_observer(&self) -> Option<PageObserver> {
        self.page_observer.clone()
    }

    /// Whether to take the store over from another process or node that may still have it open.
    ///
    /// The new owner has all writes that the former owner has acknowledged as durable. From then on the former owner's writes fail with
    /// [`crate::Error::Fenced`], and its late writes overwrite nothing of the new owner's.
    ///
    /// Space that the former owner could write to stays unused until [`crate::Db::forget_former_owners`], or until an opening without this
    /// option. If there is no space besides it and the volume cannot grow, the opening fails with [`crate::Error::Full`].
    ///
    /// After its last commit the former owner may acknowledge some more writes, which the new owner does not have. [`Options::fenced`] in
    /// the former owner prevents that. Two processes must not take a store over at the same moment.
    ///
    /// # Default
    ///
    /// False.
    pub fn take_over(mut self, take_over: bool) -> Self {
        self.take_over = take_over;
        self
    }

    /// Whether each flush of the log checks for a takeover before any write is acknowledged as durable. Set it for stores that others may
    /// take over.
    ///
    /// The check is an uncached read of 16 KiB for each flush, which costs more than half as much again on devices that flush fast. Commits
    /// always check. Without this option the store may acknowledge writes, up to its next commit, that a new owner does not have.
    ///
    /// # Default
    ///
    /// False.
    pub fn fenced(mut self, fenced: bool) -> Self {
        self.fenced = fenced;
        self
    }

    pub(crate) fn is_fenced(&self) -> bool {
        self.fenced
    }

    pub(crate) fn takes_over(&self) -> bool {
        self.take_over
    }

    /// Whether [`crate::Db::create`] may overwrite what the file or device holds, even another store, which is then lost.
    ///
    /// # Default
    ///
    /// False: a file or device with content is refused.
    pub fn overwrite(mut self, overwrite: bool) -> Self {
        self.overwrite = overwrite;
        self
    }

    pub(crate) fn overwrites(&self) -> bool {
        self.overwrite
    }

    /// Whether to open the store for reading only. Nothing writes to the volume then, and each write fails with [`crate::Error::ReadOnly`].
    ///
    /// Any number of processes may have the store open read-only, while none has it open for writing. A store on a full disk, or on one
    /// that takes no writes, can be read so. The opening reads records that no level has yet from the log into memory.
    ///
    /// # Default
    ///
    /// False.
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.read_only = read_only;
        self
    }

    pub(crate) fn reads_only(&self) -> bool {
        self.read_only
    }

    /// Whether the store rewrites small records side by side if scans read them again and again from many blocks (Kreon, §3.2.3).
    ///
    /// The store does so in the background where there is enough space. It costs one put for each record, and another once writes have
    /// moved the record's neighbours.
    ///
    /// # Default
    ///
    /// True.
    pub fn reorganize_scanned(mut self, reorganize: bool) -> Self {
        self.reorganize_scanned = reorganize;
        self
    }

    /// Whether small records move into leaves. A scan then finds neighbours side by side, and a look-up reads one block.
    ///
    /// A compaction thread moves them while there are few writes, or once there are as many new records as leaves hold. A record has up to
    /// 600 bytes of key and value, and is written once more. Without this option no more records move, and those in leaves stay.
    ///
    /// A store that has become full with this option may refuse deletions, and needs a longer volume then ([`crate::Db::grow`]).
    ///
    /// # Default
    ///
    /// False.
    pub fn values_in_leaves(mut self, values_in_leaves: bool) -> Self {
        self.values_in_leaves = values_in_leaves;
        self
    }

    /// The fewest entries of a level that are worth a move into leaves: for tests, which have few.
    #[doc(hidden)]
    pub fn values_in_leaves_from(mut self, entries: u64) -> Self {
        self.bottom_entries_min = entries;
        self
    }

    pub(crate) fn reorganizes_scanned(&self) -> bool {
        self.reorganize_scanned && !self.read_only
    }

    fn check(&self) -> Result<()> {
        let wrong = |option, value, why| Err(Error::Option { option, value, why });
        if !Self::MEMORY_BYTES.contains(&self.memory_bytes) {
            return wrong("memory_bytes", self.memory_bytes, "it must be 32 MiB to 16 TiB");
        }
        if self.filter_bytes > self.memory_bytes / 8 {
            return wrong("filter_bytes", self.filter_bytes, "it must be an eighth of the memory or less");
        }
        if !(2..=100).contains(&self.growth_factor) {
            return wrong("growth_factor", self.growth_factor, "it must be 2 to 100");
        }
        if !(1.1..=100.0).contains(&self.max_space_amplification) {
            let percent = (self.max_space_amplification * 100.0) as u64;
            return wrong("max_space_amplification, in hundredths,", percent, "it must be 1.1 to 100");
        }
        if self.max_recovery_log_bytes < RECOVERY_LOG_MIN {
            return wrong("max_recovery_log_bytes", self.max_recovery_log_bytes, "it must be 16 MiB or more");
        }
        if !(1..=COMPACTION_THREADS_MAX).contains(&self.merge_threads()) {
            return wrong("compaction_threads", self.merge_threads() as u64, "it must be 1 to 64");
        }
        if self.volume_bytes_max() > VOLUME_BYTES_MAX {
            let why = "it must be 8490068213760 bytes (7.7 TiB) or less";
            return wrong("max_volume_bytes", self.volume_bytes_max(), why);
        }
        if self.durability == Durability::Periodic(Duration::ZERO) {
            return wrong("durability, a period in seconds,", 0, "it must be longer; use Durability::Sync instead");
        }
        if self.read_only && self.take_over {
            return wrong("read_only", 1, "a takeover writes to the store");
        }
        Ok(())
    }

    /// Fails if these options cannot create a store.
    pub(crate) fn check_creates(&self) -> Result<()> {
        match self.read_only {
            true => Err(Error::Option { option: "read_only", value: 1, why: "a new store is written to" }),
            false => Ok(()),
        }
    }

    /// The limits in a volume of that greatest length. In a short volume one flush must not take all space.
    pub(crate) fn limits(&self, volume_bytes: u64) -> Limits {
        // A replayed memtable may be as large as two.
        let most = (self.memory_bytes / 8).min(ARENA_BYTES_MAX / 4).min(volume_bytes / VOLUME_SHARE);
        let memtable_bytes = self.memtable_bytes.unwrap_or(most).min(most);
        let bottom_entries_min = self.values_in_leaves.then_some(self.bottom_entries_min);
        Limits { memtable_bytes, growth_factor: self.growth_factor, bottom_entries_min }
    }

    /// The memory that the memtables of all keyspaces may take together, immutable ones included.
    pub(crate) fn memtable_budget_bytes(&self) -> u64 {
        self.memory_bytes / 4
    }

    /// Fails if the budget cannot begin a memtable for each keyspace. Begun memtables may take half of the part for mutable memtables.
    pub(crate) fn check_keyspaces(&self, keyspaces: usize) -> Result<()> {
        if keyspaces as u64 * BEGUN_BYTES <= self.memtable_budget_bytes() / 4 {
            return Ok(());
        }
        let why = "a sixteenth of it has to hold 8 KiB for the memtable of each keyspace";
        Err(Error::Option { option: "memory_bytes", value: self.memory_bytes, why })
    }

    /// Fails if memory has no space for the end of each segment's log besides the memtables and the least cache.
    pub(crate) fn check_segments(&self, segments: usize) -> Result<()> {
        if self.memory_bytes - self.memtable_budget_bytes() - self.filter_bytes
            >= segments as u64 * TAIL_BYTES + CACHE_BYTES_MIN
        {
            return Ok(());
        }
        let why =
            "three quarters of it have to hold 8 MiB for the end of each segment's log, filters, and 8 MiB of cache";
        Err(Error::Option { option: "memory_bytes", value: self.memory_bytes, why })
    }

    /// The memory that the end of a segment's log may take.
    pub(crate) fn tail_bytes(&self) -> u64 {
        TAIL_BYTES
    }

    /// The initial cache; fails if the options are wrong.
    pub(crate) fn cache(&self) -> Result<Cache> {
        self.check()?;
        let cache = Cache::builder().engine(self.engine).poll_submissions(self.polls_submissions);
        let cache = cache.capacity(self.cache_bytes()).build()?;
        // Engine::Auto becomes Engine::Managed where no other engine works.
        if cache.engine() == Engine::Managed {
            let why = "it shows pages before they are verified: use another engine (`vmio doctor` lists them)";
            let by = vmio::UnsupportedBy::ManagedEngine;
            return Err(vmio::Error::Unsupported { by, what: "a store", why }.into());
        }
        Ok(cache)
    }

    /// The cache's size while memtables keep to their part and there is one segment.
    pub(crate) fn cache_bytes(&self) -> u64 {
        self.cache_bytes_without(self.memtable_budget_bytes() + TAIL_BYTES)
    }

    /// The cache's size while memtables and the ends of logs take that many bytes. Memtables that snapshots keep alive are taken from the
    /// cache.
    pub(crate) fn cache_bytes_without(&self, bytes: u64) -> u64 {
        self.memory_bytes - (bytes + self.filter_bytes).min(self.memory_bytes - CACHE_BYTES_MIN)
    }

    /// The bytes that the cache can give up beside the memtables' part.
    pub(crate) fn spare_bytes(&self) -> u64 {
        (self.memory_bytes - self.memtable_budget_bytes()).saturating_sub(self.filter_bytes + CACHE_BYTES_MIN)
    }

    /// By how much the memtables have to change before the cache's size does.
    pub(crate) fn memory_step_bytes(&self) -> u64 {
        self.memory_bytes / 64
    }

    pub(crate) fn space_amplification(&self) -> f64 {
        self.max_space_amplification
    }

    pub(crate) fn discard_unless_said(mut self, discard: bool) -> Self {
        self.discard.get_or_insert(discard);
        self
    }

    /// Whether freed space is given back. Other backings than files decide by themselves.
    pub(crate) fn discards(&self) -> bool {
        self.discard.unwrap_or(true)
    }

    pub(crate) fn merge_threads(&self) -> usize {
        let processors = || std::thread::available_parallelism().map_or(1, |processors| processors.get());
        self.compaction_threads.unwrap_or_else(|| (processors() / 2).clamp(1, COMPACTION_THREADS))
    }

    /// One segment's part of the limit on the log that an opening reads back, if there are that many segments.
    pub(crate) fn recovery_log_bytes(&self, segments: u64) -> u64 {
        (self.max_recovery_log_bytes / segments.max(1)).max(RECOVERY_LOG_MIN)
    }

    pub(crate) fn default_durability(&self) -> Durability {
        self.durability
    }

    /// The length of a new volume.
    pub(crate) fn new_volume_bytes(&self) -> u64 {
        let most = self.max_volume_bytes.unwrap_or(VOLUME_BYTES);
        self.volume_bytes.map_or(most, |bytes| bytes.min(self.max_volume_bytes.unwrap_or(bytes)))
    }

    /// Of a copy of a store of that length, with the length that it shall have. Unless options say otherwise the copy becomes as long, and may
    /// become twice as long. It begins with the part of one segment: others need units that the first one does not have.
    pub(crate) fn of_copy(mut self, volume_bytes: u64, segments: u32) -> (Self, u64) {
        if self.volume_bytes.is_none() && self.max_volume_bytes.is_none() {
            self.volume_bytes = Some(volume_bytes);
            self.max_volume_bytes = Some(volume_bytes.saturating_mul(2).min(VOLUME_BYTES_MAX).max(volume_bytes));
        }
        let bytes = self.new_volume_bytes();
        if segments > 1 {
            self.max_volume_bytes.get_or_insert(bytes);
            self.volume_bytes = Some((bytes / u64::from(segments)).max(VOLUME_BYTES_MIN).min(bytes));
        }
        (self, bytes)
    }

    /// Of the store that a checkpoint copies a store of these options to. It has enough memory for as many keyspaces and segments.
    pub(crate) fn of_checkpoint(self, keyspaces: usize, segments: u32) -> Self {
        const MEMORY_BYTES: u64 = 64 << 20;
        let for_keyspaces = 16 * keyspaces as u64 * BEGUN_BYTES;
        let for_segments = (u64::from(segments) * TAIL_BYTES + CACHE_BYTES_MIN).div_ceil(3) * 4;
        let memory_bytes = MEMORY_BYTES.max(for_keyspaces).max(for_segments).min(self.memory_bytes);
        let Options { engine, polls_submissions, growth_factor, compaction_threads, .. } = self;
        Options { memory_bytes, engine, polls_submissions, growth_factor, compaction_threads, ..Options::new() }
    }

    /// The volume's greatest length; 0 if it does not grow.
    pub(crate) fn volume_bytes_max(&self) -> u64 {
        self.max_volume_bytes.unwrap_or(0)
    }
}

impl Default for Options {
    fn default() -> Self {
        Self::new()
    }
}
