//! The pages of the managed files that are in memory, and the order in which they go.
//!
//! A page leaves in two steps. First, a stretch of neighbouring pages is *unmapped*, with one TLB shootdown, and the
//! writes of its dirty pages begin. The stretch then waits *in line*. When its turn comes, the pages that nobody has
//! touched meanwhile are dropped from the page cache. A touched page has been mapped again by a minor fault, and stays.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use crate::backing::Access;
use crate::managed::ahead::{Ahead, Request};
use crate::managed::arrivals::Known;
use crate::managed::counts::Counts;
use crate::managed::read_ahead::{Stay, WINDOW_BYTES};
use crate::managed::region::ManagedRegion;
use crate::managed::survey::Survey;
use crate::sys::PAGE_BYTES;
use crate::sys::mapped_pages::MappedPages;
use crate::sys::page_cache;
use crate::sys::page_scan::PageScan;

/// While the first stretch in line is being written, one that needs no write is sought among this many.
const LOOK_AHEAD: usize = 64;

/// One look at the page cache covers this many stretches, and tells whether any of their pages is in memory.
const PART_STRETCHES: u64 = 512;

/// The totals from which readers get the number of resident pages without a lock.
#[derive(Default)]
pub(super) struct Totals {
    /// Mapped file pages of the process that do not belong to managed files.
    pub(super) foreign: AtomicI64,
    /// Pages in line.
    pub(super) in_line: AtomicU64,
    /// Pages that the kernel has read and nobody has mapped.
    pub(super) cached_only: AtomicU64,
}

impl Totals {
    /// Resident pages, approximately: our mapped pages, those in line, and those read ahead. (Pages in line that the
    /// program has touched again count twice until they are dropped, and pages read ahead until the next count.)
    pub(super) fn resident(&self, mapped: u64) -> u64 {
        let ours = mapped as i64 - self.foreign.load(Ordering::Relaxed);
        ours.max(0) as u64 + self.in_line() + self.cached_only.load(Ordering::Relaxed)
    }

    pub(super) fn in_line(&self) -> u64 {
        self.in_line.load(Ordering::Relaxed)
    }
}

/// A stretch with mapped pages, as of the last count.
pub(super) struct Victim {
    pub(super) priority: u8,
    pub(super) age: u32,
    pub(super) region: Arc<ManagedRegion>,
    pub(super) stretch: u64,
}

/// Pages that are in memory and no longer in our page tables.
pub(super) struct Unmapped {
    pub(super) region: Arc<ManagedRegion>,
    /// The byte range in which they lie, among others.
    pub(super) bytes: Range<u64>,
    pub(super) pages: u64,
    /// How many of them are being written.
    pub(super) dirty: u64,
    /// Whether their writes have begun, or are not needed.
    pub(super) is_written: bool,
}

/// The ledger: what the engine knows of the pages of all files of a cache.
pub(super) struct Ledger {
    pub(super) scan: Arc<PageScan>,
    pub(super) mapped: Arc<MappedPages>,
    pub(super) totals: Arc<Totals>,
    counts: Arc<Counts>,
    pub(super) stretch_pages: u64,
    /// After this many pages are unmapped, pages of a priority that goes first may have come in.
    class_pages: u64,
    pub(super) regions: Vec<Arc<ManagedRegion>>,
    /// The stretches that go next; the first of them is last.
    pub(super) queue: Vec<Victim>,
    pub(super) line: VecDeque<Unmapped>,
    /// The ledger's time: grows by one with each stretch that is unmapped.
    pub(super) time: u32,
    /// The priority of the pages that go at present.
    pub(super) class: Option<u8>,
    pub(super) unmapped_since_count: u64,
    /// When the last stretch in which the kernel read ahead was unmapped, in the ledger's time; 0 if never.
    read_ahead: u32,
    pub(super) ahead: Ahead,
    /// Requests for the thread that reads ahead.
    pub(super) requests: Vec<Request>,
    pub(super) survey: Survey,
}

impl Ledger {
    pub(super) fn new(
        (scan, mapped): (Arc<PageScan>, Arc<MappedPages>),
        (totals, counts): (Arc<Totals>, Arc<Counts>),
        stretch_pages: u64,
        capacity_pages: u32,
    ) -> Self {
        Ledger {
            scan,
            mapped,
            totals,
            counts,
            stretch_pages,
            class_pages: class_pages(capacity_pages),
            regions: Vec::new(),
            queue: Vec::new(),
            line: VecDeque::new(),
            time: 1,
            class: None,
            unmapped_since_count: 0,
            read_ahead: 0,
            ahead: Ahead::default(),
            requests: Vec::new(),
            survey: Survey::new(),
        }
    }

    /// Adapts to a changed capacity.
    pub(super) fn set_capacity(&mut self, pages: u32) {
        self.class_pages = class_pages(pages);
    }

    // ---- files

    pub(super) fn insert(&mut self, region: Arc<ManagedRegion>) -> io::Result<()> {
        if self.regions.is_empty() {
            self.totals.foreign.store(self.mapped.read()? as i64, Ordering::Relaxed);
        }
        self.regions.push(region);
        Ok(())
    }

    /// Forgets a region; its pages leave the count as they are unmapped.
    pub(super) fn remove(&mut self, region: &Arc<ManagedRegion>) {
        self.regions.retain(|other| !Arc::ptr_eq(other, region));
        self.queue.retain(|victim| !Arc::ptr_eq(&victim.region, region));
        self.line.retain(|unmapped| !Arc::ptr_eq(&unmapped.region, region));
        self.ahead.remove_region(region);
        self.requests.retain(|request| !Arc::ptr_eq(&request.region, region));
        self.count_line();
    }

    pub(super) fn regions(&self) -> &[Arc<ManagedRegion>] {
        &self.regions
    }

    /// Forgets the order, so that the next eviction counts anew.
    pub(super) fn reorder(&mut self) {
        self.queue.clear();
    }

    // ---- giving up

    /// Unmaps the stretch that goes next and begins to write it. Returns how many of its pages are dirty; `None` if
    /// there is nothing to unmap.
    pub(super) fn unmap_next(&mut self, budget: u64) -> io::Result<Option<u64>> {
        let mut counted = false;
        loop {
            let next = self.queue.last();
            let class_ends = next.is_some_and(|next| self.class.is_some_and(|class| next.priority < class));
            if next.is_none() || (class_ends && self.unmapped_since_count > self.class_pages) {
                if counted && next.is_none() {
                    return Ok(None);
                }
                self.count(budget)?;
                counted = true;
            }
            let Some(victim) = self.queue.pop() else { return Ok(None) };
            self.class = Some(victim.priority);
            if let Some(dirty) = self.unmap(&victim)? {
                return Ok(Some(dirty));
            }
        }
    }

    /// Counts anew; returns the place at which [`Self::write_next`] begins.
    pub(super) fn recount(&mut self, budget: u64) -> io::Result<usize> {
        self.count(budget)?;
        Ok(self.queue.len())
    }

    /// Unmaps the next stretch with dirty pages before `place` in the queue, and begins to write it. Returns how many
    /// pages are being written; `None` if there is no such stretch.
    pub(super) fn write_next(&mut self, place: &mut usize) -> io::Result<Option<u64>> {
        while let Some(index) = (*place).min(self.queue.len()).checked_sub(1) {
            *place = index;
            let Victim { region, stretch, .. } = &self.queue[index];
            let first = stretch * self.stretch_pages * PAGE_BYTES as u64;
            let bytes = first..first + self.stretch_pages * PAGE_BYTES as u64;
            let is_dirty = || page_cache::look(region.file(), &bytes).is_some_and(|cached| cached.dirty > 0);
            if region.access == Access::ReadWrite && is_dirty() {
                let victim = self.queue.remove(index);
                if let Some(begun) = self.unmap(&victim)? {
                    return Ok(Some(begun));
                }
            }
        }
        Ok(None)
    }

    /// Whether the kernel has read ahead within the last turnover of a cache of this many pages.
    pub(super) fn reads_ahead(&self, capacity_pages: u64) -> bool {
        self.read_ahead > 0 && u64::from(self.time.wrapping_sub(self.read_ahead)) <= capacity_pages / self.stretch_pages
    }

    fn unmap(&mut self, victim: &Victim) -> io::Result<Option<u64>> {
        let region = &victim.region;
        if region.has_failed() {
            return Ok(None);
        }
        self.time = self.time.checked_add(1).unwrap_or(1);
        region.ages.get(victim.stretch as usize).store(self.time, Ordering::Relaxed);
        let of_stretch = self.pages_of(region, victim.stretch);
        let mut all_dirty = None;
        for part in region.pins.free_parts(of_stretch.clone()) {
            let is_whole = part == of_stretch;
            let bytes = part.start * PAGE_BYTES as u64..part.end * PAGE_BYTES as u64;
            let pages = self.scan.count(region.map.addresses(&bytes))?;
            // Pages that the program has locked by itself stay.
            if pages == 0 || region.map.unmap(&bytes).is_err() {
                continue;
            }
            self.counts.shootdowns.add(1);
            self.unmapped_since_count += pages;
            let dirty = if region.access == Access::ReadWrite { self.begin_write(region, &bytes, pages) } else { 0 };
            *all_dirty.get_or_insert(0) += dirty;
            if is_whole {
                self.learn(region, victim.stretch, &bytes, (pages, dirty));
            }
            let known = region.arrivals.get(victim.stretch);
            let pages = if is_whole { pages.max(known.read) } else { pages };
            region.arrivals.set(victim.stretch, Known { is_in_line: true, ..known });
            self.put_in_line(Unmapped { region: Arc::clone(region), bytes, pages, dirty, is_written: true });
        }
        Ok(all_dirty)
    }

    /// The pages of a stretch that may be in memory.
    pub(super) fn pages_of(&self, region: &ManagedRegion, stretch: u64) -> Range<u64> {
        let first = stretch * self.stretch_pages;
        let end = (first + self.stretch_pages).min(region.reach().end / PAGE_BYTES as u64);
        first..end.max(first)
    }

    /// Decides after a stay in memory whether the kernel reads ahead in the stretch next time.
    fn learn(&mut self, region: &ManagedRegion, stretch: u64, bytes: &Range<u64>, (mapped, dirty): (u64, u64)) {
        // Where a miss brings in the whole stretch, the number of pages that came in says nothing.
        if region.reads_whole(bytes) {
            return;
        }
        let was_on = region.read_ahead.is_on(stretch);
        let cached =
            if was_on { page_cache::look(region.file(), bytes).map_or(mapped, |cached| cached.pages) } else { mapped };
        let pages = (bytes.end - bytes.start) / PAGE_BYTES as u64;
        let told = match region.read_ahead.end_stay(stretch, Stay { pages, mapped, cached, is_dirty: dirty > 0 }) {
            None => Ok(()),
            Some(true) => region.map.usual_read_ahead(bytes),
            Some(false) => region.map.no_read_ahead(bytes),
        };
        if let Err(error) = told {
            tracing::debug!(%error, "the kernel reads ahead as before");
        }
        if was_on || region.read_ahead.is_on(stretch) {
            self.read_ahead = self.time;
        }
    }

    /// Begins to write the dirty pages of an unmapped range. Since they are unmapped, the kernel need not write-protect
    /// each with a shootdown of its own. Returns how many pages are dirty or being written. If the kernel does not
    /// tell, that is `pages`.
    pub(super) fn begin_write(&self, region: &Arc<ManagedRegion>, bytes: &Range<u64>, pages: u64) -> u64 {
        let before = page_cache::look(region.file(), bytes);
        let dirty = before.map_or(pages, |cached| cached.dirty);
        if dirty > 0 {
            self.counts.writes.add(1);
            self.counts.written_pages.add(before.map_or(0, |cached| cached.dirty));
            if let Err(error) = page_cache::start_write(region.file(), bytes) {
                self.note_failure(region, error);
            }
        }
        dirty + before.map_or(0, |cached| cached.in_write)
    }

    /// Puts a stretch in line that was read ahead in vain.
    pub(super) fn give_up_waiting(&mut self, region: Arc<ManagedRegion>, stretch: u64) {
        let known = region.arrivals.get(stretch);
        region.arrivals.set(stretch, Known { is_in_line: true, ..known });
        let first = stretch * self.stretch_pages * PAGE_BYTES as u64;
        let bytes = first..(first + self.stretch_pages * PAGE_BYTES as u64).min(region.reach().end.max(first));
        self.put_in_line(Unmapped { region, bytes, pages: known.read, dirty: 0, is_written: true });
    }

    /// Puts pages in line that a process of the family left in memory when it ended, in files that both processes have
    /// mapped.
    pub(super) fn take_over(&mut self) -> io::Result<()> {
        let stretch_bytes = self.stretch_pages * PAGE_BYTES as u64;
        for region in self.regions.clone() {
            let reach = region.reach();
            let mut from = 0;
            while from < reach.end {
                // One look at a large part finds that all of it is absent.
                let part = from..(from + PART_STRETCHES * stretch_bytes).min(reach.end);
                from = part.end;
                if page_cache::look(region.file(), &part).is_some_and(|cached| cached.pages == 0) {
                    continue;
                }
                for start in part.clone().step_by(stretch_bytes as usize) {
                    self.take_over_at(&region, &(start..(start + stretch_bytes).min(part.end)))?;
                }
            }
        }
        Ok(())
    }

    fn take_over_at(&mut self, region: &Arc<ManagedRegion>, bytes: &Range<u64>) -> io::Result<()> {
        let stretch = bytes.start / (self.stretch_pages * PAGE_BYTES as u64);
        let known = region.arrivals.get(stretch);
        // If the kernel does not let this process look, the last count must serve.
        let cached = page_cache::look(region.file(), bytes).map_or(known.read, |cached| cached.pages);
        if known.is_in_line || region.has_failed() || cached <= known.read.max(known.mapped) {
            return Ok(());
        }
        let dirty = if region.access == Access::ReadWrite { self.begin_write(region, bytes, 0) } else { 0 };
        region.arrivals.set(stretch, Known { is_in_line: true, ..known });
        // No process counts these pages, or a third one does that has them mapped: hence 0.
        self.put_in_line(Unmapped {
            region: Arc::clone(region),
            bytes: bytes.clone(),
            pages: 0,
            dirty,
            is_written: true,
        });
        Ok(())
    }

    fn put_in_line(&mut self, unmapped: Unmapped) {
        self.totals.in_line.fetch_add(unmapped.pages, Ordering::Relaxed);
        self.line.push_back(unmapped);
    }

    pub(super) fn count_line(&self) {
        let in_line = self.line.iter().map(|unmapped| unmapped.pages).sum();
        self.totals.in_line.store(in_line, Ordering::Relaxed);
    }

    /// Drops the first stretch in line. While that is being written, drops instead the first one that had nothing to
    /// write; `false` if there is none.
    pub(super) fn drop_next(&mut self) -> io::Result<bool> {
        let Some(first) = self.line.front() else { return Ok(false) };
        let in_write = |unmapped: &Unmapped| {
            unmapped.dirty > 0
                && page_cache::look(unmapped.region.file(), &unmapped.bytes).is_some_and(|now| now.in_write > 0)
        };
        let index = match in_write(first) {
            false => Some(0),
            // Writes end in about the order in which they began.
            true => self.line.iter().take(LOOK_AHEAD).position(|unmapped| unmapped.is_written && unmapped.dirty == 0),
        };
        let Some(index) = index else { return Ok(false) };
        self.drop_at(index)?;
        Ok(true)
    }

    /// Drops the first stretch in line, and waits for its writes; `false` if the line is empty.
    pub(super) fn drop_first(&mut self) -> io::Result<bool> {
        let any = !self.line.is_empty();
        if any {
            self.drop_at(0)?;
        }
        Ok(any)
    }

    fn drop_at(&mut self, index: usize) -> io::Result<()> {
        if self.line.get(index).is_some_and(|unmapped| !unmapped.is_written) {
            self.write_in_line(index);
        }
        let Some(unmapped) = self.line.remove(index) else { return Ok(()) };
        self.totals.in_line.fetch_sub(unmapped.pages, Ordering::Relaxed);
        let Unmapped { region, bytes, pages, dirty, .. } = unmapped;
        if dirty > 0
            && let Err(error) = page_cache::await_write(region.file(), &bytes)
        {
            self.note_failure(&region, error);
        }
        if region.has_failed() {
            return Ok(()); // The pages may be the only copy of some stores.
        }
        let stretch = bytes.start / (self.stretch_pages * PAGE_BYTES as u64);
        let mut around = bytes.clone();
        if region.read_ahead.is_on(stretch) {
            let end = region.reach().end.max(bytes.end);
            // The kernel may have read pages beyond the stretch. Those that nobody uses are in no page table.
            around = bytes.start.saturating_sub(WINDOW_BYTES)..(bytes.end + WINDOW_BYTES).min(end);
        }
        // Drop only unmapped pages: for a page that it cannot drop, the kernel visits every core to look for it.
        let base = region.map.base() as usize;
        let mut mapped_again = 0;
        let mut from = around.start;
        let drop_until = |from: u64, until: u64| page_cache::drop_clean(region.file(), &(from..until));
        let mut dropped = Ok(());
        self.scan.present(region.map.addresses(&around), |run| {
            let (start, end) = ((run.start - base) as u64, (run.end - base) as u64);
            mapped_again += end.min(bytes.end).saturating_sub(start.max(bytes.start)) / PAGE_BYTES as u64;
            if dropped.is_ok() {
                dropped = drop_until(from, start);
            }
            from = end;
        })?;
        dropped.and_then(|()| drop_until(from, around.end))?;
        let left = Known { before: mapped_again, mapped: mapped_again, read: mapped_again, is_in_line: false };
        region.arrivals.set(stretch, left);
        region.read_ahead.begin_stay(stretch, mapped_again * 16 > pages);
        let gone = pages.saturating_sub(mapped_again);
        self.counts.evicted_dirty.add(dirty.min(gone));
        self.counts.evicted_clean.add(gone - dirty.min(gone));
        Ok(())
    }

    fn note_failure(&self, region: &Arc<ManagedRegion>, error: io::Error) {
        self.counts.write_errors.add(1);
        tracing::error!(backing = region.backing.describe(), %error, "writing dirty pages failed");
        region.note_failure(error);
    }
}

/// How many pages of one priority go before a new count looks for pages that should go first.
fn class_pages(capacity_pages: u32) -> u64 {
    u64::from(capacity_pages) / 8
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::backing::FileBacking;
    use crate::managed::read_ahead::ReadAhead;
    use crate::options::MappingOptions;

    const STRETCH: u64 = 16;

    /// Whether the kernel reads ahead in a stretch, from the flags of its area in /proc/self/smaps.
    fn reads_ahead(region: &ManagedRegion, stretch: u64) -> bool {
        let address = region.map.base() as usize + (stretch * STRETCH) as usize * PAGE_BYTES;
        let areas = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut lines = areas.lines().skip_while(|line| {
            let bounds = line.split(' ').next().and_then(|bounds| bounds.split_once('-'));
            let bounds = bounds.map(|(start, end)| (usize::from_str_radix(start, 16), usize::from_str_radix(end, 16)));
            !matches!(bounds, Some((Ok(start), Ok(end))) if (start..end).contains(&address))
        });
        let flags = lines.find(|line| line.starts_with("VmFlags:")).unwrap();
        !flags.split(' ').any(|flag| flag == "rr" || flag == "sr")
    }

    #[test]
    fn the_kernel_reads_ahead_where_all_came_in_and_nothing_was_stored() {
        let folder = tempfile::tempdir().unwrap();
        // Stretches far apart: no read-ahead window reaches from one to the next.
        let [second, last] = [500, 1000];
        let backing = FileBacking::create(folder.path().join("file"), 1024 * STRETCH * PAGE_BYTES as u64).unwrap();
        let mut region = ManagedRegion::new(Box::new(backing), &MappingOptions::new(), STRETCH, None).unwrap();
        // Independent of the window of the device here.
        region.read_ahead = ReadAhead::new(1024, Some(WINDOW_BYTES)).unwrap();
        let region = Arc::new(region);
        let looks = (Arc::new(PageScan::open().unwrap()), Arc::new(MappedPages::open().unwrap()));
        let mut ledger = Ledger::new(looks, (Arc::default(), Arc::default()), STRETCH, 1024);
        ledger.insert(Arc::clone(&region)).unwrap();
        let read = |pages: Range<u64>| pages.for_each(|page| _ = region.map.first_word(page));
        let mut evict = || {
            while ledger.unmap_next(1024).unwrap().is_some() {}
            while ledger.drop_first().unwrap() {}
            ledger.reads_ahead(1024)
        };

        read(0..STRETCH);
        read(second * STRETCH..second * STRETCH + 1);
        assert!(evict());
        assert_eq!([0, 1, second, last].map(|stretch| reads_ahead(&region, stretch)), [true, false, false, false]);

        read(0..STRETCH);
        region.map.store(0, &[1]).unwrap();
        assert!(evict());
        assert!(!reads_ahead(&region, 0));

        // A whole turnover without read-ahead.
        for _ in 0..1024 / STRETCH {
            read(last * STRETCH..last * STRETCH + 1);
            evict();
        }
        read(last * STRETCH..last * STRETCH + 1);
        assert!(!evict());
    }
}
