//! A store: a volume's segments, each with its log and its regions, and the threads that spill.

mod collector;
mod creation;
mod found_records;
mod growth;
mod large_values;
mod memory_balance;
mod open_segment;
mod reading;
mod recovery;
mod region_handle;
mod reorganization;
mod scan;
mod segment_handle;
mod segments;
mod snapshot;
mod spiller;
mod stats;
mod value_reader;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

use vmio::Cache;
use vmio::backing::{Access, Backing, FileBacking};

use crate::db::memory_balance::MemoryBalance;
use crate::db::reorganization::ScannedRecords;
use crate::db::segments::Segments;
use crate::db::spiller::Spiller;
use crate::device::{Beside, Device};
use crate::error::{Error, Result};
use crate::format::extents::LARGE_BYTES_MAX;
use crate::format::geometry::UNIT_BYTES;
use crate::log::LogWriter;
use crate::options::{Durability, Options};
use crate::region::{LevelMemory, Limits, Region};
use crate::tree::MergeThreads;
use crate::volume::Volume;
use crate::volume::unit_lives::UnitLives;
use crate::write_batch::WriteBatch;
pub(crate) use open_segment::OpenSegment;
pub use recovery::Recovery;
pub use region_handle::RegionHandle;
pub use scan::{Keys, Readers, Scan};
pub use segment_handle::SegmentHandle;
pub use snapshot::{RegionSnapshot, Snapshot};
pub use stats::{SegmentStats, Stats};
pub use value_reader::ValueReader;

/// The region that is there from the start.
pub const DEFAULT_REGION: &str = "default";

/// The longest key, in bytes: 64 KiB.
pub const KEY_BYTES_MAX: usize = crate::format::record::KEY_BYTES_MAX;

/// The longest value, in bytes: 1 GiB.
pub const VALUE_LENGTH_MAX: u64 = LARGE_BYTES_MAX;

/// A persistent key-value store.
///
/// Any threads may use it. Writers to one region take turns; readers wait for nobody but the device.
pub struct Db {
    segments: Arc<Segments>,
    default: RegionHandle,
    recovery: Recovery,
    // In the order in which they have to end: what spills appends nothing, but syncs the logs.
    spiller: Spiller,
    /// Of each segment. Who creates one holds them.
    writers: Mutex<Vec<LogWriter>>,
    _memory: MemoryBalance,
}

/// What all segments of a store share.
pub(crate) struct Store {
    device: Arc<Device>,
    /// Whoever makes it longer, or creates a segment, holds it.
    volume: Mutex<Volume>,
    lives: UnitLives,
    /// Those of all segments.
    regions: RwLock<BTreeMap<String, Arc<Region>>>,
    /// How many segments there are.
    segments: AtomicU64,
    level_memory: Arc<LevelMemory>,
    options: Options,
    spills: spiller::Queue,
    collector: collector::Wake,
    scanned: ScannedRecords,
    merge_threads: MergeThreads,
    /// Whether room that comes free is given back.
    discards: AtomicBool,
    /// Whether each flush of a log is followed by a look whether somebody has taken the store over.
    looks_after_flushes: Arc<AtomicBool>,
}

impl Store {
    fn new(volume: Volume, options: Options) -> Store {
        let device = Arc::clone(&volume.device);
        Store {
            lives: UnitLives::new(device.units_max()),
            device,
            volume: Mutex::new(volume),
            regions: RwLock::default(),
            segments: AtomicU64::new(0),
            level_memory: Arc::new(LevelMemory::new(options.level_bytes(), options.memory_step_bytes())),
            spills: spiller::Queue::default(),
            collector: collector::Wake::default(),
            scanned: ScannedRecords::new(),
            merge_threads: MergeThreads::new(options.merge_threads()),
            discards: AtomicBool::new(options.discards()),
            looks_after_flushes: Arc::new(AtomicBool::new(options.is_fenced())),
            options,
        }
    }

    fn volume(&self) -> MutexGuard<'_, Volume> {
        self.volume.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn regions(&self) -> RwLockReadGuard<'_, BTreeMap<String, Arc<Region>>> {
        self.regions.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn add_region(&self, region: Region) -> Arc<Region> {
        let region = Arc::new(region);
        let mut regions = self.regions.write().unwrap_or_else(PoisonError::into_inner);
        regions.insert(region.name.clone(), Arc::clone(&region));
        region
    }

    /// There is one more segment, whose log has its end in memory.
    fn add_segment(&self) {
        self.segments.fetch_add(1, Ordering::Relaxed);
        self.level_memory.add_beside(self.options.tail_bytes());
    }

    /// Fails if it is open for reading alone.
    fn check_writable(&self) -> Result<()> {
        match self.options.reads_only() {
            true => Err(Error::ReadOnly { volume: self.device.name().to_owned() }),
            false => Ok(()),
        }
    }

    fn limits(&self) -> Limits {
        self.options.limits(self.device.units_max() * UNIT_BYTES)
    }

    fn failed(&self, action: &'static str) -> impl Fn(std::io::Error) -> Error + '_ {
        move |source| Error::Device { volume: self.device.name().to_owned(), action, offset: 0, source }
    }
}

impl Db {
    /// Opens a store, and brings back what was durable, whatever has happened to it.
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Db> {
        let access = if options.reads_only() { Access::ReadOnly } else { Access::ReadWrite };
        let backing = FileBacking::open(path, access)?;
        let options = options.discard_unless_said(!backing.is_device());
        Self::open_on(backing, options)
    }

    /// Opens the store on a backing.
    pub fn open_on(backing: impl Backing + 'static, options: Options) -> Result<Db> {
        let device = Self::map(&options.cache()?, backing, &options)?;
        Self::start(Volume::open(device)?, options)
    }

    fn map(cache: &Cache, backing: impl Backing + 'static, options: &Options) -> Result<Arc<Device>> {
        let backing: Arc<dyn Backing> =
            if options.takes_over() { Arc::new(Beside(backing)) } else { Arc::new(backing) };
        let device = Device::open(cache, backing, options.volume_bytes_max())?;
        Ok(Arc::new(device.with_filters(options.bytes_of_filters()).observed_by(options.page_observer())))
    }

    fn start(volume: Volume, options: Options) -> Result<Db> {
        let (segments, recovery) = Segments::recover(volume, options)?;
        let segments = Arc::new(segments);
        let store = segments.store();
        let writers = segments.all().iter().map(|segment| segment.start_writer()).collect::<Result<_>>()?;
        let spiller = Spiller::start(&segments).map_err(store.failed("starting threads"))?;
        let default = segments.region_or_create(DEFAULT_REGION, None)?;
        if !store.options.reads_only() {
            store.collector.wake();
            // An opening may have found more than they are to hold.
            store.spills.relieve();
        }
        let memory = MemoryBalance::start(&store.level_memory, &store.device, &store.options);
        let memory = memory.map_err(store.failed("starting threads"))?;
        Ok(Db { segments, default, recovery, spiller, writers: Mutex::new(writers), _memory: memory })
    }

    /// What opening it has brought back.
    pub fn recovery(&self) -> Recovery {
        self.recovery
    }

    /// The region that is there from the start.
    pub fn default_region(&self) -> &RegionHandle {
        &self.default
    }

    /// A region by its name, in whichever segment.
    pub fn region(&self, name: &str) -> Result<RegionHandle> {
        let no_region =
            || Error::NoRegion { volume: self.segments.store().device.name().to_owned(), name: name.to_owned() };
        self.segments.region(name).ok_or_else(no_region)
    }

    /// A region by its name; it is created, durably, if it is not there: in the first segment. [`SegmentHandle::region_or_create`] creates
    /// it in another one.
    pub fn region_or_create(&self, name: &str) -> Result<RegionHandle> {
        self.segments.region_or_create(name, None)
    }

    /// Creates a segment, durably: with a log of its own, and room of its own, which grows as it needs it. Regions that must not share a
    /// log with others, or are to move between owners, have one of their own; see [`SegmentHandle`].
    ///
    /// It takes some units that are no segment's: 64 MiB, and what a spill may need. The volume becomes longer by as much; if
    /// [`Options::max_volume_bytes`] does not allow that, it is [`Error::Full`]. Of [`Options::memory_bytes`] it takes 8 MiB.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("store");
    /// use vmio_kv::{Db, Error, Options, WriteBatch};
    ///
    /// let db = Db::create(&path, Options::new().volume_bytes(256 << 20).max_volume_bytes(1 << 30))?;
    /// let archive = db.create_segment()?;
    /// let old = archive.region_or_create("old orders")?;
    /// old.put(b"1", b"paid")?;
    /// assert_eq!(db.region("old orders")?.segment(), archive.number());
    /// assert_eq!(db.segments().len(), 2);
    ///
    /// let mut batch = WriteBatch::new();
    /// batch.delete(&old, b"1")?;
    /// assert!(matches!(batch.put(&db, b"1", b"open"), Err(Error::BatchAcrossSegments { .. })));
    /// # db.close()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn create_segment(&self) -> Result<SegmentHandle> {
        self.segments.store().check_writable()?;
        let mut writers = self.writers.lock().unwrap_or_else(PoisonError::into_inner);
        let segment = self.segments.create()?;
        writers.push(segment.start_writer()?);
        Ok(self.segments.add(segment))
    }

    /// All segments, in the order of their numbers; the first one, 0, is there from the start.
    pub fn segments(&self) -> Vec<SegmentHandle> {
        self.segments.handles()
    }

    /// A segment by its number.
    pub fn segment(&self, number: u32) -> Result<SegmentHandle> {
        let no_segment = || Error::NoSegment { volume: self.segments.store().device.name().to_owned(), number };
        self.segments().into_iter().find(|segment| segment.number() == number).ok_or_else(no_segment)
    }

    /// The names of all regions.
    pub fn region_names(&self) -> Vec<String> {
        self.segments.store().regions().keys().cloned().collect()
    }

    /// Writes a batch: after a crash all of it is there, or nothing.
    pub fn write(&self, batch: &WriteBatch) -> Result<()> {
        self.write_with(batch, self.segments.store().options.default_durability())
    }

    /// The same, with a durability of its own.
    pub fn write_with(&self, batch: &WriteBatch, durability: Durability) -> Result<()> {
        let Some((home, region)) = batch.home() else { return Ok(()) };
        if !Arc::ptr_eq(&home.store, self.segments.store()) {
            let (first, second) = (self.default.name().to_owned(), region.name.clone());
            return Err(Error::BatchAcrossSegments { first, second });
        }
        home.write(batch, durability)
    }

    /// All regions of all segments as they are now: what is written later is not seen, and of a batch all or nothing.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::begin(&self.segments)
    }

    /// Returns once all writes that have returned are durable, those to all segments.
    pub fn sync(&self) -> Result<()> {
        self.segments.sync()
    }

    /// Spills what is in memory by now, and returns when that is done and durable: of what was written before, the next opening has
    /// nothing to read back.
    pub fn flush(&self) -> Result<()> {
        let store = self.segments.store();
        store.check_writable()?;
        let regions: Vec<Arc<Region>> = store.regions().values().cloned().collect();
        let freeze = |region: &Arc<Region>| {
            if region.freeze() {
                store.spills.put(region);
            }
        };
        // What is written from here on is for the next one.
        let targets: Vec<u64> = regions.iter().map(|region| region.memories_so_far()).collect();
        regions.iter().for_each(freeze);
        for (region, target) in regions.iter().zip(targets) {
            loop {
                let spilled = region.spilled_memories();
                if spilled >= target {
                    break;
                }
                // One may still be frozen, or be left by a spill that found no room: then this one's memory is frozen after it.
                freeze(region);
                self.segments.of(region).wait_for_spill_after(region, spilled)?;
            }
        }
        self.sync()
    }

    /// Collects garbage of the logs until that is within [`Options::max_space_amplification`], or nothing more is to be gained. It
    /// is collected in the background as well; this one is thorough: what is in memory is spilled first, and where garbage may be
    /// known only when levels meet, they are all merged. Chunks that somebody still reads come free when he has ended.
    pub fn collect_garbage(&self) -> Result<()> {
        self.segments.all().iter().try_for_each(|segment| segment.collect_all())
    }

    /// Says that no owner is there any more from whom the store was taken over: the room that he could have written to may be used
    /// again. Who opens it without [`Options::take_over`] says the same.
    pub fn forget_former_owners(&self) {
        self.segments.store().volume().forget_former_owners();
        self.segments.all().iter().for_each(|segment| segment.segment.allocator().forget_former_owners());
    }

    /// How much there is of what, over all segments.
    pub fn stats(&self) -> Stats {
        self.segments.stats()
    }

    /// Makes all writes durable and closes the store; tells what a mere drop could only log.
    pub fn close(self) -> Result<()> {
        let Db { segments, default, spiller, writers, .. } = self;
        drop(spiller);
        let synced = segments.sync();
        drop(writers);
        drop(default);
        synced?;
        let store = segments.store();
        if store.options.reads_only() { Ok(()) } else { store.device.sync() }
    }
}

impl std::ops::Deref for Db {
    type Target = RegionHandle;

    /// The region that is there from the start: so `db.put` goes there.
    fn deref(&self) -> &RegionHandle {
        &self.default
    }
}

impl std::fmt::Debug for Db {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "store in {}", self.segments.store().device.name())
    }
}

pub(crate) fn check_key(key: &[u8]) -> Result<()> {
    if (1..=KEY_BYTES_MAX).contains(&key.len()) {
        return Ok(());
    }
    Err(Error::KeyLength { bytes: key.len(), most: KEY_BYTES_MAX })
}

pub(crate) fn check_value_length(bytes: u64) -> Result<()> {
    if bytes <= VALUE_LENGTH_MAX {
        return Ok(());
    }
    Err(Error::ValueLength { bytes, most: VALUE_LENGTH_MAX })
}
