//! How a store is opened.

use std::ops::RangeInclusive;
use std::time::Duration;

use vmio::{Cache, Engine};

use crate::device::PageObserver;
use crate::error::{Error, Result};
use crate::format::geometry::UNIT_BYTES;
use crate::region::Limits;
use crate::region::arena::ARENA_BYTES_MAX;
use crate::region::memory_level::BEGUN_BYTES;
use crate::volume::UNITS_MAX;

/// When a write is durable. What is lost is always the end of a segment's log: of what was written there all up to some point is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Durability {
    /// When the log is next written and flushed: at the latest when the store is closed. What is in this process's memory
    /// by then, 8 MiB at most, is lost if it is killed; unlike a log in the page cache, which only a power cut takes. That takes
    /// what was written since the last flush: another write's, a close, or the end of a spill.
    None,
    /// At the latest after this time, and as soon as the device has taken what came before: a kill and a power cut lose what is newer. Given with
    /// a write it holds for that write, whatever the store's default is.
    Periodic(Duration),
    /// When the call returns: neither a kill nor a power cut loses it. Writers that wait at the same time share a flush.
    Sync,
}

/// How a store is opened: see the methods.
#[derive(Clone, Debug)]
pub struct Options {
    memory_bytes: u64,
    memory_level_bytes: Option<u64>,
    filter_bytes: u64,
    growth_factor: u64,
    durability: Durability,
    volume_bytes: Option<u64>,
    max_volume_bytes: Option<u64>,
    max_space_amplification: f64,
    max_recovery_log_bytes: u64,
    discard: Option<bool>,
    spill_threads: Option<usize>,
    page_observer: Option<PageObserver>,
    take_over: bool,
    overwrite: bool,
    read_only: bool,
    reorganize_scanned: bool,
    fenced: bool,
    engine: Engine,
}

/// The least that the log may hold for opening: a few chunks beside those that are written to.
const RECOVERY_LOG_MIN: u64 = 16 << 20;
/// How long a volume is if nobody says.
const VOLUME_BYTES: u64 = 1 << 30;
/// The longest that one may become: its table of segments has no more rows.
const VOLUME_BYTES_MAX: u64 = UNITS_MAX * UNIT_BYTES;
const _: () = assert!(VOLUME_BYTES_MAX == 8_490_068_213_760);
/// The log's chunks in memory.
const TAIL_BYTES: u64 = 8 << 20;
/// A level in memory is no larger than this share of the volume: the nodes that it is spilled to take about as much.
const VOLUME_SHARE: u64 = 16;
/// What the cache keeps in any case.
const CACHE_BYTES_MIN: u64 = 8 << 20;

/// The most threads that spill.
const SPILL_THREADS_MAX: usize = 64;
/// How many spill at most if nobody says.
const SPILL_THREADS: usize = 4;

const MEMORY_BYTES_MIN: u64 = *Options::MEMORY_BYTES.start();
const _: () = assert!(MEMORY_BYTES_MIN - MEMORY_BYTES_MIN / 4 - TAIL_BYTES >= CACHE_BYTES_MIN);

impl Options {
    /// What [`Self::memory_bytes`] may be: 32 MiB to 16 TiB.
    pub const MEMORY_BYTES: RangeInclusive<u64> = 32 << 20..=16 << 40;

    /// 256 MiB of memory, levels ten times as large as the one above, writes durable when they return.
    pub fn new() -> Self {
        Options {
            memory_bytes: 256 << 20,
            memory_level_bytes: None,
            filter_bytes: 0,
            growth_factor: 10,
            durability: Durability::Sync,
            volume_bytes: None,
            max_volume_bytes: None,
            max_space_amplification: 1.5,
            max_recovery_log_bytes: 1 << 30,
            discard: None,
            spill_threads: None,
            page_observer: None,
            take_over: false,
            overwrite: false,
            read_only: false,
            reorganize_scanned: true,
            fenced: false,
            engine: Engine::Auto,
        }
    }

    /// The memory that the store may take, in bytes: 32 MiB at least. 8 MiB are for the end of each segment's log, a quarter for
    /// the levels in memory of all regions together, half of that for those that are being spilled; the cache of nodes and records has
    /// the rest, and what the levels do not take at the moment. Of the quarter each region has 32 KiB at least, and the cache has 8 MiB
    /// at least: a store with more regions or segments than that allows is not opened, nor is a further one created.
    ///
    /// Who writes waits where levels would take more than their quarter. A batch that is larger is let in when they have nothing else. An
    /// opening takes no more either, nor does a check; one for reading alone has in levels what the newest records of the log need, which is
    /// the same with the `memory_bytes` of who wrote it.
    pub fn memory_bytes(mut self, bytes: u64) -> Self {
        self.memory_bytes = bytes;
        self
    }

    /// Who takes the cache's faults: vmio's choice by default. With [`Engine::Kernel`] the volume is a file or a block device with direct
    /// I/O, and the memory of the cache is the kernel module's. [`Engine::Managed`] is refused: it shows pages before they are
    /// verified.
    pub fn engine(mut self, engine: Engine) -> Self {
        self.engine = engine;
        self
    }

    /// Bytes of a region's level in memory, from which on it is spilled; an eighth of the memory, and a sixteenth of what the volume may
    /// become, unless this says otherwise, which is the most.
    pub fn memory_level_bytes(mut self, bytes: u64) -> Self {
        self.memory_level_bytes = Some(bytes);
        self
    }

    /// Bytes of the memory that remember which keys are not in leaves where look-ups found nothing, so that the next ones need not look: 0
    /// by default, an eighth of the memory at most. For stores that are often asked for keys that they do not have: 192 bytes
    /// stand for a leaf of 168 keys. They are taken from the cache.
    pub fn filter_bytes(mut self, bytes: u64) -> Self {
        self.filter_bytes = bytes;
        self
    }

    /// How many times more entries each level has than the one above: 2 to 100.
    pub fn growth_factor(mut self, factor: u64) -> Self {
        self.growth_factor = factor;
        self
    }

    /// When writes are durable, unless a write says otherwise.
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// How long the file of a volume is that is created: as long as it may become unless this says otherwise, and 1 GiB if that is not
    /// said either. It is sparse: what is not used takes no room, but for what
    /// is kept free for spills, deletions and collections, which is allocated.
    pub fn volume_bytes(mut self, bytes: u64) -> Self {
        self.volume_bytes = Some(bytes);
        self
    }

    /// How long the volume may become at most. Up to that its file grows by itself when puts find no room, and by [`crate::Db::grow`];
    /// without, it stays as long as it is. 7.7 TiB at most. Growth needs address space, and no memory before it comes to that.
    pub fn max_volume_bytes(mut self, bytes: u64) -> Self {
        self.max_volume_bytes = Some(bytes);
        self
    }

    /// How many times as large as what is live in it the log may be, beside 64 MiB: 1.1 to 100, 1.5 by default. Writers are slowed where
    /// garbage is not collected as fast as they make it. The log may be longer where snapshots hold what was overwritten, and what a
    /// chunk could not be filled with counts as live.
    pub fn max_space_amplification(mut self, factor: f64) -> Self {
        self.max_space_amplification = factor;
        self
    }

    /// Bytes of the log that an opening may have to read back: 16 MiB at least, 1 GiB by default. From half of it on levels in memory
    /// are spilled before they are full, those with the oldest records first, and writers are slowed as it is approached. Several
    /// segments have equal parts of it, of 16 MiB at least.
    pub fn max_recovery_log_bytes(mut self, bytes: u64) -> Self {
        self.max_recovery_log_bytes = bytes;
        self
    }

    /// Whether room that comes free in the volume is given back: as holes of a file, or by having a block device forget it. Files do so
    /// by default, block devices do not.
    pub fn discard(mut self, discard: bool) -> Self {
        self.discard = Some(discard);
        self
    }

    /// Threads that spill: 1 to 64; half as many as there are processors, 1 to 4, unless this says otherwise. With one, spills
    /// come one after the other. More spill several regions and levels at once, and divide a level that is large among those that
    /// have nothing else to do. For each, a volume keeps some more MiB free.
    pub fn spill_threads(mut self, threads: usize) -> Self {
        self.spill_threads = Some(threads);
        self
    }

    /// Has `observe` called for each page of 4 KiB that the store looks at or stores to, hits among them, by the threads that do: with
    /// its number in the volume, and whether it is stored to. `vmio sim` takes a list of them, to tell what other sizes of the cache
    /// and other policies would make of it. It must not call the store. The log is written past the cache and not told of.
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

    /// Whether the store is taken over from another process, or another node, that may still have it open and is not to be waited for.
    /// What that one has acknowledged as durable is there; from then on all of its writes fail with [`crate::Error::Fenced`], and what it
    /// still writes hits nothing. Units that it could write to are given to nobody before [`crate::Db::forget_former_owners`] or an opening
    /// without this: without room beside them, and leave to grow, it is [`crate::Error::Full`]. Two must not take over at the
    /// same moment. What the other one acknowledges after its last commit is there, and not acknowledged any more, only if it was
    /// opened with [`Options::fenced`]. See docs/design/kv.md.
    pub fn take_over(mut self, take_over: bool) -> Self {
        self.take_over = take_over;
        self
    }

    /// Whether the store looks after each flush of its log, before anything is acknowledged as durable, if somebody has taken it over. For
    /// stores that others may take over; it costs a read of 16 KiB past all caches for each flush, which is more than half as much again on devices
    /// that flush fast. Commits always look: without this, writes are acknowledged up to the next one that the new owner does not have.
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

    /// Whether a store may be created over whatever a file or device holds, another store among it, which is lost. By default it is
    /// refused.
    pub fn overwrite(mut self, overwrite: bool) -> Self {
        self.overwrite = overwrite;
        self
    }

    pub(crate) fn overwrites(&self) -> bool {
        self.overwrite
    }

    /// Whether the store is opened for reading alone: nothing is written to the volume, and each write is [`crate::Error::ReadOnly`]. So any
    /// number of processes may have it open at a time, and one that lies on a full disk, or on one that takes no writes, is read as well;
    /// nobody else may have it open for writing meanwhile. What no level has yet is read back from the log, as at each opening.
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.read_only = read_only;
        self
    }

    pub(crate) fn reads_only(&self) -> bool {
        self.read_only
    }

    /// Whether small records that scans go through again and again, and for which they read many blocks of the device, are written anew
    /// side by side (Kreon, §3.2.3); by default they are. It is done in the background, where there is room
    /// enough, and costs a put for each record, and again when writes have taken its neighbours elsewhere.
    pub fn reorganize_scanned(mut self, reorganize: bool) -> Self {
        self.reorganize_scanned = reorganize;
        self
    }

    pub(crate) fn reorganizes_scanned(&self) -> bool {
        self.reorganize_scanned && !self.read_only
    }

    fn check(&self) -> Result<()> {
        let wrong = |option, value, why| Err(Error::Option { option, value, why });
        if !Self::MEMORY_BYTES.contains(&self.memory_bytes) {
            return wrong("memory_bytes", self.memory_bytes, "a store works in 32 MiB to 16 TiB");
        }
        if self.filter_bytes > self.memory_bytes / 8 {
            return wrong("filter_bytes", self.filter_bytes, "it is an eighth of the memory at most");
        }
        if !(2..=100).contains(&self.growth_factor) {
            return wrong("growth_factor", self.growth_factor, "it is 2 to 100");
        }
        if !(1.1..=100.0).contains(&self.max_space_amplification) {
            let percent = (self.max_space_amplification * 100.0) as u64;
            return wrong("max_space_amplification, in hundredths,", percent, "it is 1.1 to 100");
        }
        if self.max_recovery_log_bytes < RECOVERY_LOG_MIN {
            return wrong("max_recovery_log_bytes", self.max_recovery_log_bytes, "it is 16 MiB at least");
        }
        if !(1..=SPILL_THREADS_MAX).contains(&self.merge_threads()) {
            return wrong("spill_threads", self.merge_threads() as u64, "there are 1 to 64");
        }
        if self.volume_bytes_max() > VOLUME_BYTES_MAX {
            let why = "a volume has 8490068213760 bytes (7.7 TiB) at most";
            return wrong("max_volume_bytes", self.volume_bytes_max(), why);
        }
        if self.durability == Durability::Periodic(Duration::ZERO) {
            return wrong("durability, a period in seconds,", 0, "it is longer; Durability::Sync is at once");
        }
        if self.read_only && self.take_over {
            return wrong("read_only", 1, "who takes a store over writes to it");
        }
        Ok(())
    }

    /// Fails if no store can be created with them.
    pub(crate) fn check_creates(&self) -> Result<()> {
        match self.read_only {
            true => Err(Error::Option { option: "read_only", value: 1, why: "a store that is created is written to" }),
            false => Ok(()),
        }
    }

    /// In a volume that may become so long: of a short one, what a spill may take must not be all of it.
    pub(crate) fn limits(&self, volume_bytes: u64) -> Limits {
        // What is replayed may be two levels in one.
        let most = (self.memory_bytes / 8).min(ARENA_BYTES_MAX / 4).min(volume_bytes / VOLUME_SHARE);
        let memory_level_bytes = self.memory_level_bytes.unwrap_or(most).min(most);
        Limits { memory_level_bytes, growth_factor: self.growth_factor }
    }

    /// What the levels in memory of all regions may take, those that are being spilled among them.
    pub(crate) fn level_bytes(&self) -> u64 {
        self.memory_bytes / 4
    }

    /// Fails if there are more regions than their levels can be begun for: that takes half of what is for those that are written to at most.
    pub(crate) fn check_regions(&self, regions: usize) -> Result<()> {
        if regions as u64 * BEGUN_BYTES <= self.level_bytes() / 4 {
            return Ok(());
        }
        let why = "a sixteenth of it has to hold 8 KiB for the level in memory of each region";
        Err(Error::Option { option: "memory_bytes", value: self.memory_bytes, why })
    }

    /// Fails if there are more segments than the ends of their logs have room for beside levels in memory and the least cache.
    pub(crate) fn check_segments(&self, segments: usize) -> Result<()> {
        if self.memory_bytes - self.level_bytes() - self.filter_bytes >= segments as u64 * TAIL_BYTES + CACHE_BYTES_MIN
        {
            return Ok(());
        }
        let why =
            "three quarters of it have to hold 8 MiB for the end of each segment's log, filters, and 8 MiB of cache";
        Err(Error::Option { option: "memory_bytes", value: self.memory_bytes, why })
    }

    /// What the end of a segment's log may take.
    pub(crate) fn tail_bytes(&self) -> u64 {
        TAIL_BYTES
    }

    /// The cache as it is at first, if these are options for a store.
    pub(crate) fn cache(&self) -> Result<Cache> {
        self.check()?;
        let cache = Cache::builder().engine(self.engine).capacity(self.cache_bytes()).build()?;
        // Engine::Auto becomes it where no other can be had.
        if cache.engine() == Engine::Managed {
            let why = "it shows pages before they are verified: use another engine (`vmio doctor` says what there is)";
            return Err(
                vmio::Error::Unsupported { by: vmio::UnsupportedBy::ManagedEngine, what: "a store", why }.into()
            );
        }
        Ok(cache)
    }

    /// What the cache has as long as levels in memory keep to their sum, and there is one segment.
    pub(crate) fn cache_bytes(&self) -> u64 {
        self.cache_bytes_beside(self.level_bytes() + TAIL_BYTES)
    }

    /// What it has where levels in memory, and the ends of logs, take so much. Where snapshots hold levels beyond their sum, that is the
    /// cache's loss.
    pub(crate) fn cache_bytes_beside(&self, bytes: u64) -> u64 {
        self.memory_bytes - (bytes + self.filter_bytes).min(self.memory_bytes - CACHE_BYTES_MIN)
    }

    /// By how much levels in memory have to change before the cache does.
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

    /// Other backings say by themselves what they can.
    pub(crate) fn discards(&self) -> bool {
        self.discard.unwrap_or(true)
    }

    pub(crate) fn merge_threads(&self) -> usize {
        let processors = || std::thread::available_parallelism().map_or(1, |processors| processors.get());
        self.spill_threads.unwrap_or_else(|| (processors() / 2).clamp(1, SPILL_THREADS))
    }

    /// Of one segment of so many.
    pub(crate) fn recovery_log_bytes(&self, segments: u64) -> u64 {
        (self.max_recovery_log_bytes / segments.max(1)).max(RECOVERY_LOG_MIN)
    }

    pub(crate) fn default_durability(&self) -> Durability {
        self.durability
    }

    /// How long a volume is that is created.
    pub(crate) fn new_volume_bytes(&self) -> u64 {
        let most = self.max_volume_bytes.unwrap_or(VOLUME_BYTES);
        self.volume_bytes.map_or(most, |bytes| bytes.min(self.max_volume_bytes.unwrap_or(bytes)))
    }

    /// How long it may become; 0 for as long as it is.
    pub(crate) fn volume_bytes_max(&self) -> u64 {
        self.max_volume_bytes.unwrap_or(0)
    }
}

impl Default for Options {
    fn default() -> Self {
        Self::new()
    }
}
