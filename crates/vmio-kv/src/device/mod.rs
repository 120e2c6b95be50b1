//! The bytes of a volume. Loads through a mapping read published bytes. New bytes are stored through the mapping, or written past it.

mod admission;
mod bypass_batch;
mod bypass_look;
mod clone;
#[cfg(test)]
pub(crate) mod failing_backing;
pub(crate) mod leaf_filters;
mod page_observer;
mod takeover;
mod verifier;
mod volume_file;

use std::io;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use vmio::backing::{Access, Backing, BatchReader, Identity};
use vmio::{Advice, Cache, Mapping, MappingOptions, OfProcess, OnReadError, Pin};

use crate::error::{Damage, Error, FullPlace, Result};
use crate::format::block::{Block, Kind, Sealed, unseal, unseal_checked};
use crate::format::geometry::{ALLOCATION_UNIT_BYTES, BLOCK_BYTES};
use crate::volume::content::Content;
use admission::Admission;
pub(crate) use bypass_batch::BypassBatch;
pub(crate) use clone::ClonedVolume;
use leaf_filters::LeafFilters;
pub(crate) use page_observer::PageObserver;
pub(crate) use takeover::TakeoverBacking;
pub(crate) use verifier::NodeUnits;
use verifier::NodeVerifier;
pub(crate) use volume_file::VolumeFile;

/// Contents of a page that could not be read: no block begins like this.
const POISON: [u8; 8] = *b"!vmiokv!";

/// A node's name in messages.
pub(crate) fn structure_of(kind: Kind) -> &'static str {
    match kind {
        Kind::Leaf => "a leaf",
        Kind::Pivot => "a piece of a long pivot",
        _ => "an inner node",
    }
}

/// The valid copy of a block that is stored twice.
pub(crate) struct Newest {
    pub(crate) copy: usize,
    pub(crate) block: Box<Block>,
    /// The other copy belongs to a commit that never completed: it has to be overwritten before that epoch comes again.
    pub(crate) other_is_newer: bool,
}

/// A volume's bytes.
pub(crate) struct Device {
    mapping: Mapping,
    cache: Cache,
    backing: Arc<dyn Backing>,
    bytes_max: u64,
    node_units: Arc<NodeUnits>,
    /// Which pages of records come into the cache.
    admission: Admission,
    leaf_filters: LeafFilters,
    batches: BatchReader,
    observer: Option<PageObserver>,
    /// Why written bytes may be lost: the system reports that to one caller only.
    lost: OnceLock<String>,
    name: String,
    /// No write from a forked child may reach the device, least of all if it was forked during a call.
    process: OfProcess<()>,
}

impl Device {
    /// Maps a backing, which may grow to `bytes_max` bytes.
    pub(crate) fn open(cache: &Cache, backing: Arc<dyn Backing>, bytes_max: u64) -> Result<Self> {
        let name = backing.describe();
        let bytes_max = bytes_max.max(backing.len());
        let node_units = Arc::new(NodeUnits::new(bytes_max / ALLOCATION_UNIT_BYTES));
        let options = MappingOptions::new()
            .access(backing.access())
            .reserve(bytes_max)
            .verifier(NodeVerifier(Arc::clone(&node_units)))
            .on_read_error(OnReadError::Poison(POISON));
        let mapping = Mapping::open(cache, Arc::clone(&backing), options)?;
        mapping.advise(0..mapping.len(), Advice::Random)?;
        let admission = Admission::new(cache.capacity_bytes() / BLOCK_BYTES as u64);
        Ok(Device {
            mapping,
            cache: cache.clone(),
            backing,
            bytes_max,
            node_units,
            admission,
            leaf_filters: LeafFilters::new(0),
            batches: BatchReader::new(),
            observer: None,
            lost: OnceLock::new(),
            process: OfProcess::new(()).map_err(|source| Error::Device {
                volume: name.clone(),
                action: "marking the process",
                offset: 0,
                source,
            })?,
            name,
        })
    }

    /// Adds an observer, which hears of each page that is looked at or stored to.
    pub(crate) fn observed_by(self, observer: Option<PageObserver>) -> Self {
        Device { observer, ..self }
    }

    /// With `bytes` bytes for filters of leaves.
    pub(crate) fn with_filters(self, bytes: u64) -> Self {
        Device { leaf_filters: LeafFilters::new(bytes), ..self }
    }

    /// The filters of leaves.
    pub(crate) fn leaf_filters(&self) -> &LeafFilters {
        &self.leaf_filters
    }

    fn touched(&self, bytes: Range<u64>, is_store: bool) {
        if let Some(observer) = &self.observer {
            observer.tell(bytes, is_store);
        }
    }

    /// Identifies the file or device, if others could open it.
    pub(crate) fn identity(&self) -> Option<Identity> {
        self.backing.identity()
    }

    /// Allocation units that the volume may have.
    pub(crate) fn units_max(&self) -> u64 {
        self.bytes_max / ALLOCATION_UNIT_BYTES
    }

    /// Grows to at least `bytes` bytes, durably. New bytes are zero.
    pub(crate) fn grow(&self, bytes: u64) -> Result<()> {
        let old = self.len();
        if bytes > old {
            self.mapping.set_len(bytes)?;
            self.mapping.advise(old..bytes, Advice::Random)?;
        }
        self.flush()
    }

    /// The volume's name in messages.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Limits the cache to `bytes` bytes; returns once it takes no more.
    pub(crate) fn resize_cache(&self, bytes: u64) -> Result<()> {
        Ok(self.cache.resize(bytes)?)
    }

    /// The cache's limit, in bytes.
    pub(crate) fn cache_bytes(&self) -> u64 {
        self.cache.capacity_bytes()
    }

    /// Length in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.mapping.len()
    }

    /// Fails in a forked child of the process that opened the volume.
    pub(crate) fn check_not_forked(&self) -> Result<()> {
        self.process.get().copied().ok_or(Error::Forked)
    }

    fn failed(&self, action: &'static str, offset: u64, source: std::io::Error) -> Error {
        Error::Device { volume: self.name.clone(), action, offset, source }
    }

    /// An error that names a damaged structure.
    pub(crate) fn damaged(&self, structure: &'static str, offset: u64, damage: Damage) -> Error {
        Error::Damaged { volume: self.name.clone(), structure, offset, damage }
    }

    /// The content of the backing before a volume is created.
    pub(crate) fn content(&self) -> Result<Content> {
        Content::of(&*self.backing)
    }

    /// Reads past the mapping, for bytes that only an opening needs.
    pub(crate) fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.check_not_forked()?;
        let read = self.backing.read_at(offset, buffer).map_err(|source| self.failed("reading", offset, source))?;
        if read == buffer.len() {
            return Ok(());
        }
        Err(self.failed("reading", offset + read as u64, std::io::ErrorKind::UnexpectedEof.into()))
    }

    /// Reads one of the volume's own blocks past the mapping.
    pub(crate) fn read_block(&self, offset: u64) -> Result<Box<Block>> {
        let mut block = Box::new(Block::ZERO);
        self.read(offset, &mut block.0)?;
        Ok(block)
    }

    /// Returns the newest of a block's two copies that is whole and not newer than `epoch_max`.
    pub(crate) fn read_pair(&self, kind: Kind, offsets: [u64; 2], epoch_max: u64) -> Result<Option<Newest>> {
        self.read_best(kind, offsets, epoch_max, |_| Some(0))
    }

    /// The same. Of copies of the same epoch, which two owners may have written, it returns the one with the higher rank; a copy without a
    /// rank does not count.
    pub(crate) fn read_best(
        &self,
        kind: Kind,
        offsets: [u64; 2],
        epoch_max: u64,
        rank: impl Fn(&Sealed<'_>) -> Option<u64>,
    ) -> Result<Option<Newest>> {
        let mut newest: Option<((u64, u64), usize, Box<Block>)> = None;
        let mut other_is_newer = false;
        for (copy, offset) in offsets.into_iter().enumerate() {
            let block = self.read_block(offset)?;
            let ranked = |sealed: Sealed<'_>| Some((sealed.epoch, rank(&sealed)?));
            let Some(found) = unseal(&block.0, kind, offset).ok().and_then(ranked) else { continue };
            other_is_newer |= found.0 > epoch_max;
            if found.0 <= epoch_max && newest.as_ref().is_none_or(|(newer, ..)| found > *newer) {
                newest = Some((found, copy, block));
            }
        }
        Ok(newest.map(|(_, copy, block)| Newest { copy, block, other_is_newer }))
    }

    /// Writes past the mapping. A page that came in before keeps the old bytes: see [`Self::drop_pages`].
    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.check_not_forked()?;
        self.backing.write_at(offset, bytes).map_err(|source| self.failed("writing", offset, source))
    }

    /// Returns once all writes past the mapping are durable. After a failure all later calls fail.
    pub(crate) fn flush(&self) -> Result<()> {
        self.check_not_forked()?;
        if let Some(why) = self.lost.get() {
            return Err(self.failed("flushing", 0, io::Error::other(format!("an earlier flush failed: {why}"))));
        }
        let flushed = self.backing.flush();
        flushed.map_err(|source| self.lose(self.failed("flushing", 0, source)))
    }

    /// Returns once all stores through the mapping are durable.
    pub(crate) fn sync(&self) -> Result<()> {
        self.mapping.sync().map_err(|error| self.lose(error.into()))
    }

    fn lose(&self, error: Error) -> Error {
        self.lost.get_or_init(|| error.with_causes());
        error
    }

    /// Sets whether a unit holds nodes, which are verified on arrival. Nothing reads the unit's former contents again.
    pub(crate) fn begin_unit(&self, unit: u64, holds_nodes: bool, priority: u8) -> Result<()> {
        let range = unit * ALLOCATION_UNIT_BYTES..(unit + 1) * ALLOCATION_UNIT_BYTES;
        self.node_units.set(unit, holds_nodes);
        if holds_nodes {
            self.forget(range.clone())?;
        } else {
            // Nodes without a reference may be in memory or on their way to the device, and some pages may be fresh. From now on the writes
            // past the mapping count.
            self.mapping.advise(range.clone(), Advice::Invalidate)?;
        }
        Ok(self.mapping.advise(range, Advice::Priority(priority))?)
    }

    /// The same on opening, for a unit whose contents stay.
    pub(crate) fn know_unit(&self, unit: u64, holds_nodes: bool, priority: u8) -> Result<()> {
        self.node_units.set(unit, holds_nodes);
        let range = unit * ALLOCATION_UNIT_BYTES..(unit + 1) * ALLOCATION_UNIT_BYTES;
        Ok(self.mapping.advise(range, Advice::Priority(priority))?)
    }

    /// Forgets the contents of units that nothing refers to, in memory and on the device, which takes the space back.
    pub(crate) fn discard(&self, units: Range<u64>) -> Result<()> {
        let range = units.start * ALLOCATION_UNIT_BYTES..units.end * ALLOCATION_UNIT_BYTES;
        // Nodes that were never committed may be in memory only: they must not be written into the hole.
        self.mapping.advise(range.clone(), Advice::Invalidate)?;
        let start = range.start;
        self.backing.discard(range).map_err(|source| self.failed("giving space back", start, source))
    }

    /// Allocates a unit's space on the device, so that no write to it finds the device full.
    pub(crate) fn allocate(&self, unit: u64) -> Result<()> {
        let start = unit * ALLOCATION_UNIT_BYTES;
        self.backing.allocate(start..start + ALLOCATION_UNIT_BYTES).map_err(|source| match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Error::Full { volume: self.name.clone(), wanted: ALLOCATION_UNIT_BYTES, place: FullPlace::FileSystem }
            }
            _ => self.failed("allocating", start, source),
        })
    }

    /// Drops the pages of a range from memory: the next reader reads them again.
    pub(crate) fn drop_pages(&self, offset: u64, bytes: u64) -> Result<()> {
        Ok(self.mapping.advise(offset..offset + bytes, Advice::DontNeed)?)
    }

    /// Forgets the contents of blocks: nothing refers to them, or will before they are stored again.
    pub(crate) fn forget_blocks(&self, offset: u64, blocks: u64) -> Result<()> {
        self.forget(offset..offset + blocks * BLOCK_BYTES as u64)
    }

    fn forget(&self, range: Range<u64>) -> Result<()> {
        match self.mapping.advise(range, Advice::Free) {
            // A page is held, as by a child that was forked during a look-up. Nodes are stored through the mapping only, which has the
            // newest page.
            Err(vmio::Error::System { source, .. }) if source.kind() == io::ErrorKind::ResourceBusy => Ok(()),
            done => Ok(done?),
        }
    }

    /// Stores nodes that nothing refers to yet, one after the other.
    pub(crate) fn store(&self, offset: u64, blocks: &[Block]) -> Result<()> {
        // The device's bytes there are no node, and would not verify. Beginning the unit does not say so for ever: the cache forgets it for
        // a unit whose pages have all left memory.
        let end = offset + size_of_val(blocks) as u64;
        self.mapping.advise(offset..end, Advice::Fresh)?;
        self.touched(offset..end, true);
        for (index, block) in blocks.iter().enumerate() {
            let at = offset + (index * BLOCK_BYTES) as u64;
            self.leaf_filters.forget(at);
            let pin = self.pin_anew(at..at + BLOCK_BYTES as u64)?;
            let Some(target) = pin.as_mut_ptr() else {
                return Err(self.failed("storing", at, std::io::ErrorKind::ReadOnlyFilesystem.into()));
            };
            // SAFETY: the page is pinned for writing, and no reference to it exists: the thread that allocated the block has not published
            // it, and the readers of its previous generation have gone (`volume::epoch`).
            unsafe { std::ptr::copy_nonoverlapping(block.0.as_ptr(), target, BLOCK_BYTES) };
        }
        Ok(())
    }

    /// Pins a page that will be overwritten in full.
    fn pin_anew(&self, page: Range<u64>) -> Result<Pin> {
        loop {
            match self.mapping.pin(page.clone(), Access::ReadWrite) {
                // The page was filled with zeros, written, and evicted before it was pinned: that happens when memory is short.
                Err(vmio::Error::Corrupt { .. }) => self.mapping.advise(page.clone(), Advice::Fresh)?,
                pinned => return Ok(pinned?),
            }
        }
    }

    /// Shows `look` published bytes, which stay as they are while the caller holds the version that refers to them. The answer of `look`
    /// counts unless a page could not be read meanwhile: then `look` may have seen poison, and looks at a copy.
    pub(crate) fn look<Answer>(
        &self,
        offset: u64,
        bytes: usize,
        look: impl Fn(&[u8]) -> Result<Answer>,
    ) -> Result<Answer> {
        let end = offset.checked_add(bytes as u64).filter(|end| *end <= self.len());
        let Some(end) = end else {
            return Err(self.damaged("a reference", offset, Damage::Value { what: "its place", found: offset }));
        };
        self.touched(offset..end, false);
        let failed_reads = self.mapping.failed_reads();
        self.mapping.ensure(offset..end)?;
        // SAFETY: the range is mapped as long as self, and published bytes are not stored to before the versions that refer to them are
        // gone. A page that is evicted meanwhile and cannot be read again holds poison as a whole: that is bytes as well, `look` relies on
        // no two reads being the same, and its answer is dropped.
        let answer = look(unsafe { std::slice::from_raw_parts(self.mapping.as_ptr().add(offset as usize), bytes) });
        if self.mapping.failed_reads() == failed_reads {
            return answer;
        }
        look(&self.copy(offset, bytes)?)
    }

    /// Copies bytes through the mapping.
    pub(crate) fn copy(&self, offset: u64, bytes: usize) -> Result<Vec<u8>> {
        let mut copy = vec![0; bytes];
        self.copy_to(offset, &mut copy)?;
        Ok(copy)
    }

    /// The same, into a buffer of the caller.
    pub(crate) fn copy_to(&self, offset: u64, place: &mut [u8]) -> Result<()> {
        Ok(self.mapping.read_at(offset, place)?)
    }

    /// Shows `look` a published node; see [`Self::look`].
    pub(crate) fn look_at_node<Answer>(
        &self,
        kind: Kind,
        offset: u64,
        look: impl Fn(&Sealed<'_>) -> Result<Answer>,
    ) -> Result<Answer> {
        let structure = structure_of(kind);
        self.look(offset, BLOCK_BYTES, |bytes| {
            let damaged = |damage| self.damaged(structure, offset, damage);
            let block = bytes.first_chunk::<BLOCK_BYTES>().ok_or_else(|| damaged(Damage::Length))?;
            look(&unseal_checked(block, kind, offset).map_err(damaged)?)
        })
    }

    /// Evicts the pages of a unit.
    #[cfg(test)]
    pub(crate) fn evict(&self, unit: u64) {
        let range = unit * ALLOCATION_UNIT_BYTES..(unit + 1) * ALLOCATION_UNIT_BYTES;
        self.mapping.flush(range.clone()).expect("written");
        self.mapping.advise(range, Advice::DontNeed).expect("given up");
    }

    /// Shows `look` published bytes once, in pages that stay in memory meanwhile.
    pub(crate) fn look_pinned<Answer>(
        &self,
        offset: u64,
        bytes: usize,
        look: impl FnOnce(&[u8]) -> Result<Answer>,
    ) -> Result<Answer> {
        let range = offset..offset.saturating_add(bytes as u64);
        self.touched(range.clone(), false);
        match self.mapping.pin(range, Access::ReadOnly) {
            // SAFETY: the pages are pinned, and hold no poison. Published bytes are not stored to before the versions that refer to them
            // are gone, and the caller holds one.
            Ok(pin) => look(unsafe { std::slice::from_raw_parts(pin.as_ptr(), bytes) }),
            Err(vmio::Error::TooManyPins { .. }) => look(&self.copy(offset, bytes)?),
            Err(error) => Err(error.into()),
        }
    }

    /// Begins to read ranges, all at once, that the caller is about to look at: the look waits for them and reports errors.
    pub(crate) fn fetch(&self, ranges: impl Iterator<Item = Range<u64>>) {
        drop(self.mapping.fetch(self.expected(ranges)));
    }

    /// The ranges within the volume, announced to the admission: a bypass look waits until they have arrived.
    fn expected(&self, ranges: impl Iterator<Item = Range<u64>>) -> impl Iterator<Item = Range<u64>> {
        let there = ranges.filter(|range| range.end <= self.len());
        there.inspect(|range| self.admission.expect(range.start / BLOCK_BYTES as u64))
    }

    /// Reads ranges in the background that will be wanted soon.
    pub(crate) fn prefetch(&self, ranges: impl Iterator<Item = Range<u64>>) {
        if let Err(error) = self.mapping.prefetch(self.expected(ranges)) {
            tracing::debug!(%error, "a prefetch failed; the pages are read when they are used");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use vmio::backing::MemoryBacking;

    use super::failing_backing::FailingBacking;
    use super::*;

    /// The next flush may succeed all the same: the system does not report a lost write again.
    #[test]
    fn once_a_flush_has_failed_all_later_ones_fail() {
        for by_mapping in [false, true] {
            let backing = Arc::new(FailingBacking::new(4 * ALLOCATION_UNIT_BYTES));
            let cache = Cache::builder().capacity(8 << 20).build().expect("a cache");
            let device = Device::open(&cache, Arc::clone(&backing) as Arc<dyn Backing>, 0).expect("a device");
            device.flush().expect("nothing has failed yet");
            backing.fail_next_flush();
            if by_mapping { device.sync() } else { device.flush() }.expect_err("it was told to fail");
            let error = device.flush().expect_err("something may be lost");
            assert!(
                std::error::Error::source(&error).is_some_and(|why| why.to_string().contains("earlier")),
                "{error}"
            );
        }
    }

    /// The page under a look is evicted meanwhile, and cannot be read again at first.
    #[test]
    fn the_answer_of_a_look_at_poison_does_not_count() {
        let backing = Arc::new(FailingBacking::new(4 * ALLOCATION_UNIT_BYTES));
        backing.write_at(ALLOCATION_UNIT_BYTES, &[7; BLOCK_BYTES]).expect("memory");
        let cache = Cache::builder().capacity(8 << 20).build().expect("a cache");
        let device = Device::open(&cache, Arc::clone(&backing) as Arc<dyn Backing>, 0).expect("a device");
        let looks = Cell::new(0);
        let saw_poison = Cell::new(false);
        let looked = || {
            device.look(ALLOCATION_UNIT_BYTES, BLOCK_BYTES, |bytes| {
                let first = bytes[0];
                if looks.replace(looks.get() + 1) == 0 {
                    device.evict(1);
                    backing.fail(Some(1));
                    saw_poison.set(bytes[..8] == POISON);
                }
                Ok((first, bytes[1], bytes[BLOCK_BYTES - 1]))
            })
        };
        assert!(matches!(looked(), Err(Error::Io(vmio::Error::Read { .. }))));
        assert!(saw_poison.get() && looks.get() == 1, "{} looks", looks.get());
        backing.fail(None);
        device.evict(1);
        assert_eq!(looked().expect("it is there again"), (7, 7, 7));
    }

    #[test]
    fn a_unit_takes_nodes_long_after_it_was_begun() -> Result<()> {
        let cache = Cache::builder().capacity(8 << 20).build()?;
        let device = Device::open(&cache, Arc::new(MemoryBacking::new(64 * ALLOCATION_UNIT_BYTES)?), 0)?;
        let nodes = vec![Block::ZERO; 64];
        let unit = 4;
        device.begin_unit(unit, true, 200)?;
        device.store(unit * ALLOCATION_UNIT_BYTES, &nodes)?;
        // They leave memory, and the cache forgets which pages of the unit were ever used.
        for other in 8..48 {
            device.begin_unit(other, true, 2)?;
            for run in 0..8 {
                device.store(other * ALLOCATION_UNIT_BYTES + run * (nodes.len() * BLOCK_BYTES) as u64, &nodes)?;
            }
        }
        // The device's bytes after them are no node.
        device.store(unit * ALLOCATION_UNIT_BYTES + (nodes.len() * BLOCK_BYTES) as u64, &nodes)
    }

    #[test]
    fn nodes_are_stored_while_others_take_the_memory() -> Result<()> {
        const WRITERS: u64 = 4;
        const UNITS: u64 = 24;
        let cache = Cache::builder().capacity(6 << 20).build()?;
        let device =
            Device::open(&cache, Arc::new(MemoryBacking::new((WRITERS * UNITS + 8) * ALLOCATION_UNIT_BYTES)?), 0)?;
        let nodes = vec![Block::ZERO; 512];
        std::thread::scope(|scope| {
            let write = |unit: u64| {
                device.begin_unit(unit, true, 2)?;
                device.store(unit * ALLOCATION_UNIT_BYTES, &nodes)
            };
            let writers: Vec<_> = (0..WRITERS)
                .map(|writer| scope.spawn(move || (0..UNITS).try_for_each(|unit| write(1 + writer * UNITS + unit))))
                .collect();
            writers.into_iter().try_for_each(|writer| writer.join().expect("no panic"))
        })
    }
}
