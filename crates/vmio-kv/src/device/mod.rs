//! The bytes of a volume: what is published is read by loads through a mapping; what is new is stored there, or written past it.

mod admission;
mod takeover;
#[cfg(test)]
pub(crate) mod failing_backing;
pub(crate) mod leaf_filters;
mod page_observer;
mod bypass_batch;
mod bypass_look;
mod verifier;

use std::io;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use vmio::backing::{Access, Backing, BatchReader, Identity};
use vmio::{Advice, Cache, Mapping, MappingOptions, OfProcess, OnReadError, Pin};

use crate::error::{Damage, Error, FullPlace, Result};
use crate::format::block::{Block, Kind, Sealed, unseal, unseal_checked};
use crate::format::geometry::{BLOCK_BYTES, ALLOCATION_UNIT_BYTES};
use crate::volume::content::Content;
use admission::Admission;
pub(crate) use takeover::TakeoverBacking;
use leaf_filters::LeafFilters;
pub(crate) use page_observer::PageObserver;
pub(crate) use bypass_batch::BypassBatch;
pub(crate) use verifier::NodeUnits;
use verifier::NodeVerifier;

/// What a page holds that could not be read: no block begins so.
const POISON: [u8; 8] = *b"!vmiokv!";

/// What a node is called in messages.
pub(crate) fn structure_of(kind: Kind) -> &'static str {
    match kind {
        Kind::Leaf => "a leaf",
        Kind::Pivot => "a piece of a long pivot",
        _ => "an inner node",
    }
}

/// The copy that counts, of a block that lies there twice.
pub(crate) struct Newest {
    pub(crate) copy: usize,
    pub(crate) block: Box<Block>,
    /// The other one is of a commit that never came: it has to be written over before that epoch comes again.
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
    /// Why something may be lost that was written: the system tells that to one caller alone.
    lost: OnceLock<String>,
    name: String,
    /// Nothing reaches the device from a forked child, one of somebody's who was within a call least of all.
    process: OfProcess<()>,
}

impl Device {
    /// Maps a backing, which may grow to so many bytes.
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

    /// Who is told of each page that is looked at or stored to.
    pub(crate) fn observed_by(self, observer: Option<PageObserver>) -> Self {
        Device { observer, ..self }
    }

    /// With so many bytes for filters of leaves.
    pub(crate) fn with_filters(self, bytes: u64) -> Self {
        Device { leaf_filters: LeafFilters::new(bytes), ..self }
    }

    /// What is known of leaves without a look at them.
    pub(crate) fn leaf_filters(&self) -> &LeafFilters {
        &self.leaf_filters
    }

    fn touched(&self, bytes: Range<u64>, is_store: bool) {
        if let Some(observer) = &self.observer {
            observer.tell(bytes, is_store);
        }
    }

    /// Which file or device it is, if anybody else could open it.
    pub(crate) fn identity(&self) -> Option<Identity> {
        self.backing.identity()
    }

    /// How many units it may have.
    pub(crate) fn units_max(&self) -> u64 {
        self.bytes_max / ALLOCATION_UNIT_BYTES
    }

    /// Has at least so many bytes, durably. What is new is zeros.
    pub(crate) fn grow(&self, bytes: u64) -> Result<()> {
        let old = self.len();
        if bytes > old {
            self.mapping.set_len(bytes)?;
            self.mapping.advise(old..bytes, Advice::Random)?;
        }
        self.flush()
    }

    /// What it is, for messages.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Has the cache take so many bytes at most; returns when it does.
    pub(crate) fn resize_cache(&self, bytes: u64) -> Result<()> {
        Ok(self.cache.resize(bytes)?)
    }

    /// How many it may take.
    pub(crate) fn cache_bytes(&self) -> u64 {
        self.cache.capacity_bytes()
    }

    /// Length in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.mapping.len()
    }

    /// Fails in a forked child of the process that has opened it.
    pub(crate) fn check_not_forked(&self) -> Result<()> {
        self.process.get().copied().ok_or(Error::Forked)
    }

    fn failed(&self, action: &'static str, offset: u64, source: std::io::Error) -> Error {
        Error::Device { volume: self.name.clone(), action, offset, source }
    }

    /// An error that names a damaged thing.
    pub(crate) fn damaged(&self, structure: &'static str, offset: u64, damage: Damage) -> Error {
        Error::Damaged { volume: self.name.clone(), structure, offset, damage }
    }

    /// What there is before a volume is created.
    pub(crate) fn content(&self) -> Result<Content> {
        Content::of(&*self.backing)
    }

    /// Reads past the mapping: what is read once, on opening.
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

    /// Of a block's two copies the newest that is whole and not newer than `epoch_max`.
    pub(crate) fn read_pair(&self, kind: Kind, offsets: [u64; 2], epoch_max: u64) -> Result<Option<Newest>> {
        self.read_best(kind, offsets, epoch_max, |_| Some(0))
    }

    /// The same; of copies of the same epoch the one with the higher rank, and none that has none. Two owners may have written them.
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

    /// Writes past the mapping, where nothing is or will be read through it before the unit is given to another purpose.
    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.check_not_forked()?;
        self.backing.write_at(offset, bytes).map_err(|source| self.failed("writing", offset, source))
    }

    /// Returns once all that was written past the mapping is durable; fails for ever once that was not so.
    pub(crate) fn flush(&self) -> Result<()> {
        self.check_not_forked()?;
        if let Some(why) = self.lost.get() {
            return Err(self.failed("flushing", 0, io::Error::other(format!("an earlier flush failed: {why}"))));
        }
        let flushed = self.backing.flush();
        flushed.map_err(|source| self.lose(self.failed("flushing", 0, source)))
    }

    /// Returns once all that was stored through the mapping is durable.
    pub(crate) fn sync(&self) -> Result<()> {
        self.mapping.sync().map_err(|error| self.lose(error.into()))
    }

    fn lose(&self, error: Error) -> Error {
        self.lost.get_or_init(|| error.with_causes());
        error
    }

    /// Says whether a unit holds nodes, which are verified as they arrive. What it held before is not read again.
    pub(crate) fn begin_unit(&self, unit: u64, holds_nodes: bool, priority: u8) -> Result<()> {
        let range = unit * ALLOCATION_UNIT_BYTES..(unit + 1) * ALLOCATION_UNIT_BYTES;
        self.node_units.set(unit, holds_nodes);
        if holds_nodes {
            self.forget(range.clone())?;
        } else {
            // Nodes that nobody refers to may be in memory, or on their way to the device, and some pages fresh: what is written
            // past the mapping from now on counts.
            self.mapping.advise(range.clone(), Advice::Invalidate)?;
        }
        Ok(self.mapping.advise(range, Advice::Priority(priority))?)
    }

    /// The same for a unit whose contents stay, on opening.
    pub(crate) fn know_unit(&self, unit: u64, holds_nodes: bool, priority: u8) -> Result<()> {
        self.node_units.set(unit, holds_nodes);
        let range = unit * ALLOCATION_UNIT_BYTES..(unit + 1) * ALLOCATION_UNIT_BYTES;
        Ok(self.mapping.advise(range, Advice::Priority(priority))?)
    }

    /// Has what some units hold forgotten, in memory and on the device, which takes their space back: nobody refers to them.
    pub(crate) fn discard(&self, units: Range<u64>) -> Result<()> {
        let range = units.start * ALLOCATION_UNIT_BYTES..units.end * ALLOCATION_UNIT_BYTES;
        // Nodes that no commit came to know may be in memory alone: they must not be written into the hole.
        self.mapping.advise(range.clone(), Advice::Invalidate)?;
        let start = range.start;
        self.backing.discard(range).map_err(|source| self.failed("giving space back", start, source))
    }

    /// Has a unit have space on the device, so that no write to it finds none.
    pub(crate) fn allocate(&self, unit: u64) -> Result<()> {
        let start = unit * ALLOCATION_UNIT_BYTES;
        self.backing.allocate(start..start + ALLOCATION_UNIT_BYTES).map_err(|source| match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Error::Full { volume: self.name.clone(), wanted: ALLOCATION_UNIT_BYTES, place: FullPlace::FileSystem }
            }
            _ => self.failed("allocating", start, source),
        })
    }

    /// Has what is in memory of a range read again by whoever wants it next.
    pub(crate) fn drop_pages(&self, offset: u64, bytes: u64) -> Result<()> {
        Ok(self.mapping.advise(offset..offset + bytes, Advice::DontNeed)?)
    }

    /// Has the blocks' contents forgotten: nobody refers to them, or will before they are stored anew.
    pub(crate) fn forget_blocks(&self, offset: u64, blocks: u64) -> Result<()> {
        self.forget(offset..offset + blocks * BLOCK_BYTES as u64)
    }

    fn forget(&self, range: Range<u64>) -> Result<()> {
        match self.mapping.advise(range, Advice::Free) {
            // Somebody holds a page, as a child does that was forked beside a look-up. Nodes are stored through the mapping alone, which
            // has the newest page.
            Err(vmio::Error::System { source, .. }) if source.kind() == io::ErrorKind::ResourceBusy => Ok(()),
            done => Ok(done?),
        }
    }

    /// Stores nodes that nobody refers to yet, one behind the other.
    pub(crate) fn store(&self, offset: u64, blocks: &[Block]) -> Result<()> {
        // What the device has there is no node, and would not verify. That the unit was begun anew does not say so for ever:
        // the cache forgets it of a unit whose pages have all left memory.
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
            // SAFETY: the page is pinned for writing, and no reference to it exists: whoever allocated the block has not
            // published it, and the readers of its previous generation have gone (`volume::epoch`).
            unsafe { std::ptr::copy_nonoverlapping(block.0.as_ptr(), target, BLOCK_BYTES) };
        }
        Ok(())
    }

    /// Pins a page to be stored to in full.
    fn pin_anew(&self, page: Range<u64>) -> Result<Pin> {
        loop {
            match self.mapping.pin(page.clone(), Access::ReadWrite) {
                // Filled with zeros, and written so and evicted before it was pinned: where memory is short, that happens.
                Err(vmio::Error::Corrupt { .. }) => self.mapping.advise(page.clone(), Advice::Fresh)?,
                pinned => return Ok(pinned?),
            }
        }
    }

    /// Has `look` see published bytes, which stay as they are as long as the caller holds the version that refers to them. What
    /// it answers counts, unless a page could not be read meanwhile: it may have seen poison then, and looks at a copy.
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
        // SAFETY: the range is mapped as long as self, and what is published is not stored to before the versions that refer to
        // it are gone. A page that is evicted meanwhile and cannot be read again holds poison, whole: it is bytes as well,
        // `look` believes none of them twice, and what it made of them is dropped.
        let answer = look(unsafe { std::slice::from_raw_parts(self.mapping.as_ptr().add(offset as usize), bytes) });
        if self.mapping.failed_reads() == failed_reads {
            return answer;
        }
        look(&self.copy(offset, bytes)?)
    }

    /// A copy of bytes, through the mapping.
    pub(crate) fn copy(&self, offset: u64, bytes: usize) -> Result<Vec<u8>> {
        let mut copy = vec![0; bytes];
        self.copy_to(offset, &mut copy)?;
        Ok(copy)
    }

    /// The same, to where somebody wants it.
    pub(crate) fn copy_to(&self, offset: u64, place: &mut [u8]) -> Result<()> {
        Ok(self.mapping.read_at(offset, place)?)
    }

    /// Has `look` see a published node; see [`Self::look`].
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

    /// Gives up the pages of a unit, as an evictor would.
    #[cfg(test)]
    pub(crate) fn evict(&self, unit: u64) {
        let range = unit * ALLOCATION_UNIT_BYTES..(unit + 1) * ALLOCATION_UNIT_BYTES;
        self.mapping.flush(range.clone()).expect("written");
        self.mapping.advise(range, Advice::DontNeed).expect("given up");
    }

    /// Has `look` see published bytes once, in pages that stay in memory meanwhile.
    pub(crate) fn look_pinned<Answer>(
        &self,
        offset: u64,
        bytes: usize,
        look: impl FnOnce(&[u8]) -> Result<Answer>,
    ) -> Result<Answer> {
        let range = offset..offset.saturating_add(bytes as u64);
        self.touched(range.clone(), false);
        match self.mapping.pin(range, Access::ReadOnly) {
            // SAFETY: the pages are pinned, and hold no poison. What is published is not stored to before the versions that refer
            // to it are gone, of which the caller holds one.
            Ok(pin) => look(unsafe { std::slice::from_raw_parts(pin.as_ptr(), bytes) }),
            Err(vmio::Error::TooManyPins { .. }) => look(&self.copy(offset, bytes)?),
            Err(error) => Err(error.into()),
        }
    }

    /// Begins to read ranges, all at once, that somebody is about to look at: he waits for them, and is told of errors.
    pub(crate) fn fetch(&self, ranges: impl Iterator<Item = Range<u64>>) {
        drop(self.mapping.fetch(self.expected(ranges)));
    }

    /// Those that there are: who looks at them in passing waits until they have come.
    fn expected(&self, ranges: impl Iterator<Item = Range<u64>>) -> impl Iterator<Item = Range<u64>> {
        let there = ranges.filter(|range| range.end <= self.len());
        there.inspect(|range| self.admission.expect(range.start / BLOCK_BYTES as u64))
    }

    /// Has ranges read in the background that will be wanted soon.
    pub(crate) fn prefetch(&self, ranges: impl Iterator<Item = Range<u64>>) {
        if let Err(error) = self.mapping.prefetch(self.expected(ranges)) {
            tracing::debug!(%error, "a prefetch failed; who touches the pages reads them");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use vmio::backing::MemoryBacking;

    use super::failing_backing::FailingBacking;
    use super::*;

    /// Who flushes next may have written what was lost, and is not told by the system.
    #[test]
    fn a_flush_that_failed_fails_for_all_that_come_after() {
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

    /// What is looked at is evicted meanwhile, and cannot be read again at first.
    #[test]
    fn what_a_look_has_seen_of_poison_does_not_count() {
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
        // They leave memory, and the cache forgets which pages of the unit were ever touched.
        for other in 8..48 {
            device.begin_unit(other, true, 2)?;
            for run in 0..8 {
                device.store(other * ALLOCATION_UNIT_BYTES + run * (nodes.len() * BLOCK_BYTES) as u64, &nodes)?;
            }
        }
        // What the device has behind them is no node.
        device.store(unit * ALLOCATION_UNIT_BYTES + (nodes.len() * BLOCK_BYTES) as u64, &nodes)
    }

    #[test]
    fn nodes_are_stored_while_others_take_the_memory() -> Result<()> {
        const WRITERS: u64 = 4;
        const UNITS: u64 = 24;
        let cache = Cache::builder().capacity(6 << 20).build()?;
        let device = Device::open(&cache, Arc::new(MemoryBacking::new((WRITERS * UNITS + 8) * ALLOCATION_UNIT_BYTES)?), 0)?;
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
