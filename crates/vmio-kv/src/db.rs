//! A store: a volume's segment, its log, its regions, and the thread that spills.

mod collector;
mod memory_balance;
mod reading;
mod recovery;
mod scan;
mod snapshot;
mod spiller;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};

use vmio::backing::{Access, Backing, FileBacking};

use crate::db::collector::{Collected, Upkeep};
use crate::db::memory_balance::MemoryBalance;
use crate::db::reading::Reading;
use crate::db::spiller::Spiller;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::format::catalogue::{NAME_BYTES_MAX, REGIONS, RegionEntry};
use crate::format::geometry::UNIT_BYTES;
use crate::format::record::{RecordKind, VALUE_BYTES_MAX};
use crate::format::superblock::CATALOGUE_BLOCKS_MAX;
use crate::format::unit_table::{Purpose, Unit};
use crate::key_range::KeyRange;
use crate::log::{Append, Appended, Log, LogWriter};
use crate::options::{Durability, Options};
use crate::region::memory_level::NEWEST;
use crate::region::{LevelMemory, Region, Version, View, WriteTurn};
use crate::volume::Volume;
use crate::volume::commit::Changes;
use crate::volume::reserve::Claim;
use crate::volume::segment::Segment;
use crate::write_batch::WriteBatch;
pub use recovery::Recovery;
pub use scan::{Keys, Scan};
pub use snapshot::{RegionSnapshot, Snapshot};

/// The region that is there from the start.
pub const DEFAULT_REGION: &str = "default";

/// The longest key at present, in bytes: what separates two keys has to fit an inner node. (The format has room for 64 KiB.)
pub const KEY_BYTES_MAX: usize = 1000;

/// A persistent key-value store.
///
/// Any threads may use it. Writers to one region take turns; readers wait for nobody but the device.
pub struct Db {
    store: Arc<Store>,
    default: RegionHandle,
    recovery: Recovery,
    // In the order in which they have to end: what spills appends nothing, but syncs the log.
    spiller: Spiller,
    writer: LogWriter,
    _memory: MemoryBalance,
}

/// What regions' handles share.
pub(crate) struct Store {
    pub(crate) segment: Arc<Segment>,
    pub(crate) log: Arc<Log>,
    regions: RwLock<BTreeMap<String, Arc<Region>>>,
    level_memory: Arc<LevelMemory>,
    options: Options,
    /// The number of the next region; whoever creates one holds it.
    next_region: Mutex<u32>,
    spills: spiller::Queue,
    upkeep: Mutex<Upkeep>,
    collected: Collected,
}

/// A region of a store: a name space of keys.
#[derive(Clone)]
pub struct RegionHandle {
    store: Arc<Store>,
    region: Arc<Region>,
}

/// How much there is of what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Bytes of units that are taken.
    pub space_bytes: u64,
    /// Bytes of the log's chunks.
    pub log_bytes: u64,
    /// Bytes of it that are known to be garbage: records that nothing points to any longer, each an eighth too long at most, and
    /// what chunks lack that ended early. Of what was overwritten a part is known only when the levels that have it meet.
    pub garbage_bytes: u64,
    /// The rest of it; chunks that are written to, and the one that comes next, count as live.
    pub live_bytes: u64,
    /// Chunks of the log whose garbage was collected since the store was opened.
    pub collected_chunks: u64,
    /// Bytes of records that were moved for that.
    pub moved_bytes: u64,
    /// Entries of the levels on the device, over all regions; a key counts once for each level that has it.
    pub level_entries: u64,
    /// Bytes of the levels in memory, about.
    pub memory_level_bytes: u64,
    /// Bytes that cached pages of nodes and records may take at present.
    pub cache_bytes: u64,
}

impl Db {
    /// Creates a store in a file that is not there yet, or in a block device or a file that holds none.
    pub fn create(path: impl AsRef<Path>, options: Options) -> Result<Db> {
        let path = path.as_ref();
        let wanted = options.volume_bytes() / UNIT_BYTES * UNIT_BYTES;
        crate::volume::check_length(wanted)?;
        let backing = if path.exists() {
            let backing = FileBacking::open(path, Access::ReadWrite)?;
            if backing.len() < wanted && path.is_file() {
                Self::refuse_volume(&backing)?;
                backing.set_len(wanted).map_err(|source| Error::Device {
                    volume: backing.describe(),
                    action: "lengthening",
                    offset: wanted,
                    source,
                })?;
            }
            backing
        } else {
            FileBacking::create(path, wanted)?
        };
        Self::create_on(backing, options)
    }

    /// Nothing is done to a file that holds a volume.
    fn refuse_volume(backing: &FileBacking) -> Result<()> {
        if crate::volume::holds_volume(backing)? {
            return Err(Error::VolumeExists { volume: backing.describe() });
        }
        Ok(())
    }

    /// Opens a store, and brings back what was durable, whatever has happened to it.
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Db> {
        Self::open_on(FileBacking::open(path, Access::ReadWrite)?, options)
    }

    /// Opens the store at a path, or creates one if there is no file.
    pub fn open_or_create(path: impl AsRef<Path>, options: Options) -> Result<Db> {
        if path.as_ref().exists() { Self::open(path, options) } else { Self::create(path, options) }
    }

    /// Creates a store on any backing that holds none.
    pub fn create_on(backing: impl Backing + 'static, options: Options) -> Result<Db> {
        let device = Self::map(backing, &options)?;
        let volume = Volume::create(device)?;
        Self::start(volume, options)
    }

    /// Opens the store on a backing.
    pub fn open_on(backing: impl Backing + 'static, options: Options) -> Result<Db> {
        let device = Self::map(backing, &options)?;
        Self::start(Volume::open(device)?, options)
    }

    fn map(backing: impl Backing + 'static, options: &Options) -> Result<Arc<Device>> {
        options.check()?;
        let cache = vmio::Cache::builder().capacity(options.cache_bytes()).build()?;
        Ok(Arc::new(Device::open(&cache, Arc::new(backing))?))
    }

    fn start(volume: Volume, options: Options) -> Result<Db> {
        let (store, recovery) = Store::recover(volume, options)?;
        let store = Arc::new(store);
        let failed = |source| Error::Device {
            volume: store.segment.device.name().to_owned(),
            action: "starting threads",
            offset: 0,
            source,
        };
        let period = match store.options.default_durability() {
            Durability::Periodic(period) => Some(period),
            _ => None,
        };
        let writer = LogWriter::start(&store.log, period).map_err(failed)?;
        let spiller = Spiller::start(&store).map_err(failed)?;
        let default = RegionHandle::open_or_create(&store, DEFAULT_REGION)?;
        store.spills.collect();
        let memory =
            MemoryBalance::start(&store.level_memory, &store.segment.device, &store.options).map_err(failed)?;
        Ok(Db { store, default, recovery, spiller, writer, _memory: memory })
    }

    /// What opening it has brought back.
    pub fn recovery(&self) -> Recovery {
        self.recovery
    }

    /// The region that is there from the start.
    pub fn default_region(&self) -> &RegionHandle {
        &self.default
    }

    /// A region by its name.
    pub fn region(&self, name: &str) -> Result<RegionHandle> {
        let found = self.store.regions().get(name).cloned();
        let no_region =
            || Error::NoRegion { volume: self.store.segment.device.name().to_owned(), name: name.to_owned() };
        let region = found.ok_or_else(no_region)?;
        Ok(RegionHandle { store: Arc::clone(&self.store), region })
    }

    /// A region by its name; it is created, durably, if it is not there.
    pub fn region_or_create(&self, name: &str) -> Result<RegionHandle> {
        RegionHandle::open_or_create(&self.store, name)
    }

    /// The names of all regions.
    pub fn region_names(&self) -> Vec<String> {
        self.store.regions().keys().cloned().collect()
    }

    /// Writes a batch: after a crash all of it is there, or nothing.
    pub fn write(&self, batch: &WriteBatch) -> Result<()> {
        self.store.write(batch, self.store.options.default_durability())
    }

    /// The same, with a durability of its own.
    pub fn write_with(&self, batch: &WriteBatch, durability: Durability) -> Result<()> {
        self.store.write(batch, durability)
    }

    /// All regions as they are now: what is written later is not seen, and of a batch all or nothing.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::begin(&self.store)
    }

    /// Returns once all writes that have returned are durable.
    pub fn sync(&self) -> Result<()> {
        self.store.log.sync_all()
    }

    /// Spills what is in memory, and returns when that is done and durable: the next opening has nothing to read back.
    pub fn flush(&self) -> Result<()> {
        let regions: Vec<Arc<Region>> = self.store.regions().values().cloned().collect();
        for region in &regions {
            // One may still be frozen, or be left by a spill that found no room: then this one's memory is frozen after it.
            if region.freeze() {
                self.store.spills.put(region);
            }
            region.wait_for_spill()?;
            if region.freeze() {
                self.store.spills.put(region);
            }
        }
        for region in &regions {
            region.wait_for_spill()?;
        }
        self.sync()
    }

    /// Collects garbage of the log until that is within [`Options::max_space_amplification`], or nothing more is to be gained. It
    /// is collected in the background as well; this one is thorough: what is in memory is spilled first, and where garbage may be
    /// known only when levels meet, they are all merged. Chunks that somebody still reads come free when he has ended.
    pub fn collect_garbage(&self) -> Result<()> {
        self.store.collect_all()
    }

    /// How much there is of what.
    pub fn stats(&self) -> Stats {
        self.store.stats()
    }

    /// Makes all writes durable and closes the store; tells what a mere drop could only log.
    pub fn close(self) -> Result<()> {
        let Db { store, default, spiller, writer, .. } = self;
        drop(spiller);
        let synced = store.log.sync_all();
        drop(writer);
        drop(default);
        synced?;
        store.segment.device.sync()
    }
}

impl std::ops::Deref for Db {
    type Target = RegionHandle;

    /// The region that is there from the start: so `db.put` goes there.
    fn deref(&self) -> &RegionHandle {
        &self.default
    }
}

impl Store {
    pub(crate) fn regions(&self) -> RwLockReadGuard<'_, BTreeMap<String, Arc<Region>>> {
        self.regions.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// From where the log has to be read if a crash comes once this region is as it is about to be.
    fn replay_from(&self, changed: &RegionEntry) -> (u64, u64) {
        // First: whatever is written later lies behind it.
        let end = self.log.end();
        let regions = self.regions();
        let others = regions.values().filter(|region| region.number != changed.number);
        let places = others.filter_map(|region| region.oldest_in_memory());
        places
            .chain([(changed.log_offset, changed.log_sequence), end])
            .min_by_key(|(_, sequence)| *sequence)
            .unwrap_or(end)
    }

    /// Writes, and has garbage collected if there is no room.
    fn write_where_room(&self, claim: Claim, write: impl Fn() -> Result<()>) -> Result<()> {
        loop {
            match write() {
                Err(Error::Full { volume, wanted }) => {
                    if !self.make_room(claim, wanted / UNIT_BYTES)? {
                        return Err(Error::Full { volume, wanted });
                    }
                }
                done => break done,
            }
        }?;
        if self.log.take_begun_chunk() {
            self.spills.collect();
        }
        Ok(())
    }

    fn write(&self, batch: &WriteBatch, durability: Durability) -> Result<()> {
        let are_deletions = batch.operations().iter().all(|operation| operation.append().kind == RecordKind::Delete);
        let claim = if are_deletions { Claim::Delete } else { Claim::Put };
        self.write_where_room(claim, || self.try_write(batch, claim, durability))
    }

    fn try_write(&self, batch: &WriteBatch, claim: Claim, durability: Durability) -> Result<()> {
        let operations = batch.operations();
        if operations.is_empty() {
            return Ok(());
        }
        // In order, so that no two writers wait for each other.
        let mut regions: Vec<&Arc<Region>> = operations.iter().map(|operation| &operation.region).collect();
        regions.sort_unstable_by_key(|region| region.number);
        regions.dedup_by_key(|region| region.number);
        let turns = Self::begin_writes(&regions)?;
        let records: Vec<Append<'_>> = operations.iter().map(|operation| operation.append()).collect();
        let mut appended: Vec<Appended> = Vec::with_capacity(records.len());
        self.log.append(&records, claim, &mut appended)?;
        // All levels at once: who begins a view sees all of it, or nothing.
        let mut levels: Vec<_> = turns.iter().map(WriteTurn::fill).collect();
        let mut replaced = Vec::new();
        for (record, at) in records.iter().zip(&appended) {
            let place = regions.binary_search_by_key(&record.region, |region| region.number);
            let Ok(place) = place else { unreachable!("each operation's region is in the list") };
            replaced.extend(levels[place].insert(record.key, at.sequence, at.pointer));
        }
        drop(levels);
        replaced.into_iter().for_each(|pointer| self.segment.count_garbage(pointer));
        let full: Vec<bool> = turns.iter().map(WriteTurn::is_full).collect();
        drop(turns);
        for (region, _) in regions.iter().zip(full).filter(|(_, is_full)| *is_full) {
            if region.freeze() {
                self.spills.put(region);
            }
        }
        match (durability, appended.last()) {
            (Durability::Sync, Some(last)) => self.log.sync(last.sequence + 1),
            _ => Ok(()),
        }
    }

    /// Turns of all these regions. Who has to wait for a spill of one holds none meanwhile: the spill may need them.
    fn begin_writes<'region>(regions: &[&'region Arc<Region>]) -> Result<Vec<WriteTurn<'region>>> {
        loop {
            let mut turns = Vec::with_capacity(regions.len());
            let mut full = None;
            for region in regions {
                match region.try_begin_write()? {
                    Some(turn) => turns.push(turn),
                    None => {
                        full = Some(region);
                        break;
                    }
                }
            }
            let Some(full) = full else { return Ok(turns) };
            drop(turns);
            drop(full.begin_write()?);
        }
    }

    fn stats(&self) -> Stats {
        let allocator = self.segment.allocator();
        let is_taken = |unit: &Unit| unit.purpose != Purpose::Free;
        let units = allocator.units().filter(|(_, unit)| is_taken(unit)).count() as u64;
        drop(allocator);
        let log = self.log_space(&BTreeSet::new());
        let versions: Vec<_> = self.regions().values().map(|region| region.version()).collect();
        let memory = versions.iter().flat_map(|version| std::iter::once(&version.memory).chain(&version.frozen));
        Stats {
            space_bytes: units * UNIT_BYTES,
            log_bytes: log.bytes,
            garbage_bytes: log.garbage_bytes,
            live_bytes: log.bytes - log.garbage_bytes,
            collected_chunks: self.collected.chunks.load(Ordering::Relaxed),
            moved_bytes: self.collected.moved_bytes.load(Ordering::Relaxed),
            level_entries: versions
                .iter()
                .flat_map(|version| version.roots())
                .fold(0, |sum: u64, root| sum.saturating_add(root.entries)),
            memory_level_bytes: memory.map(|level| level.bytes()).sum(),
            cache_bytes: self.segment.device.cache_bytes(),
        }
    }
}

impl RegionHandle {
    fn open_or_create(store: &Arc<Store>, name: &str) -> Result<RegionHandle> {
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            return Err(Error::RegionName { name: name.to_owned(), most: NAME_BYTES_MAX });
        }
        let mut next_region = store.next_region.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(region) = store.regions().get(name) {
            return Ok(RegionHandle { store: Arc::clone(store), region: Arc::clone(region) });
        }
        let number = *next_region;
        let most = REGIONS * CATALOGUE_BLOCKS_MAX;
        if store.regions().len() == most {
            return Err(Error::Option { option: "regions", value: most as u64 + 1, why: "a segment has 1400 at most" });
        }
        let (log_offset, log_sequence) = store.log.end();
        // Numbers of records that a crash loses are given again: those of the region have to be higher.
        store.log.sync(log_sequence)?;
        let entry = Region::empty_entry(number, name, log_offset, log_sequence);
        let region = Arc::new(Region::new(&store.log, store.options.limits(), &store.level_memory, &entry));
        let changes = Changes { regions: vec![entry], next_region: Some(number + 1), ..Changes::default() };
        store.segment.commit(changes, &[])?;
        *next_region = number + 1;
        let mut regions = store.regions.write().unwrap_or_else(PoisonError::into_inner);
        regions.insert(name.to_owned(), Arc::clone(&region));
        drop(regions);
        store.keep_reserve();
        Ok(RegionHandle { store: Arc::clone(store), region })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.region.name
    }

    pub(crate) fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Sets a key's value.
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.put_with(key, value, self.store.options.default_durability())
    }

    /// The same, with a durability of its own.
    pub fn put_with(&self, key: &[u8], value: &[u8], durability: Durability) -> Result<()> {
        check_key(key)?;
        check_value(value)?;
        self.write_one(RecordKind::Put, key, value, durability)
    }

    /// Has a key have no value. It is no error if it has none.
    pub fn delete(&self, key: &[u8]) -> Result<()> {
        check_key(key)?;
        self.write_one(RecordKind::Delete, key, &[], self.store.options.default_durability())
    }

    fn write_one(&self, kind: RecordKind, key: &[u8], value: &[u8], durability: Durability) -> Result<()> {
        let claim = if kind == RecordKind::Delete { Claim::Delete } else { Claim::Put };
        let record = Append { kind, region: self.region.number, key, value };
        self.store.write_where_room(claim, || self.try_write_one(&record, claim, durability))
    }

    fn try_write_one(&self, record: &Append<'_>, claim: Claim, durability: Durability) -> Result<()> {
        let store = &self.store;
        let turn = self.region.begin_write()?;
        let at = store.log.append_one_record(record, claim)?;
        let is_full = turn.put(record.key, at.sequence, at.pointer);
        drop(turn);
        if is_full && self.region.freeze() {
            store.spills.put(&self.region);
        }
        if durability == Durability::Sync { store.log.sync(at.sequence + 1) } else { Ok(()) }
    }

    /// The region as it is now: what is written later is not seen.
    pub fn snapshot(&self) -> RegionSnapshot {
        RegionSnapshot::new(self.clone(), View::begin(&self.region))
    }

    /// A key's value.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.newest(&self.region.version()).get(key)
    }

    /// Has `look` see a key's value where it lies, and returns what it answers; it is not called if there is none. The value's pages
    /// are pinned meanwhile: for long values that is cheaper than a copy, for short ones [`Self::get`] is.
    pub fn get_ref<Answer>(&self, key: &[u8], look: impl FnOnce(&[u8]) -> Answer) -> Result<Option<Answer>> {
        self.newest(&self.region.version()).get_ref(key, look)
    }

    /// The values of several keys, in their order, all as they are now. What has to be read for them from the device is
    /// read together.
    pub fn multi_get<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<Vec<u8>>>> {
        self.snapshot().multi_get(keys)
    }

    /// Whether a key has a value.
    pub fn contains(&self, key: &[u8]) -> Result<bool> {
        self.newest(&self.region.version()).contains(key)
    }

    /// Keys and values of a range in order, as they are now: what is written meanwhile is not seen.
    pub fn scan(&self, range: impl Into<KeyRange>) -> Scan<'_> {
        Scan::new(&self.region, Arc::new(View::begin(&self.region)), range.into())
    }

    /// The same of the keys that begin with a prefix.
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Scan<'_> {
        self.scan(KeyRange::prefix(prefix))
    }

    fn newest<'region>(&'region self, version: &'region Version) -> Reading<'region> {
        Reading { region: &self.region, version, before: NEWEST }
    }
}

impl std::fmt::Debug for RegionHandle {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "region {:?} of {}", self.region.name, self.store.segment.device.name())
    }
}

impl std::fmt::Debug for Db {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "store in {}", self.store.segment.device.name())
    }
}

pub(crate) fn check_key(key: &[u8]) -> Result<()> {
    if (1..=KEY_BYTES_MAX).contains(&key.len()) {
        return Ok(());
    }
    Err(Error::KeyLength { bytes: key.len(), most: KEY_BYTES_MAX })
}

pub(crate) fn check_value(value: &[u8]) -> Result<()> {
    if value.len() <= VALUE_BYTES_MAX {
        return Ok(());
    }
    Err(Error::ValueLength { bytes: value.len(), most: VALUE_BYTES_MAX })
}
