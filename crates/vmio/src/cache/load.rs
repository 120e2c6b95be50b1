//! The second half of a miss: reads the missed page, with the neighbours that are wanted along with it, and makes them
//! visible. Everything here is async-signal-safe.
//!
//! Some functions are kept out of line, so that their stack is in use only while they run: under [`Region::load`] an evictor may
//! have to write, and all of it stands on a signal stack of 8 KiB.

use std::ops::Range;
use std::time::Instant;

use vmio_core::page::new_pages::NewPages;
use vmio_core::page::reuse::Reuse;
use vmio_core::page::sequence::Sequence;
use vmio_core::page::snapshot::{Snapshot, State};
use vmio_core::page::visit::FifoQueue;
use vmio_core::page::word::Loaded;
use vmio_core::page::{SPAN_PAGES, span_of};

use crate::cache::contents::{Contents, ReadTarget};
use crate::cache::fault_error::FaultError;
use crate::cache::page_buffers::WINDOW_PAGES_MAX;
use crate::cache::read_failures::ReadFailure;
use crate::cache::region::Region;
use crate::cache::region::views::Place;
use crate::options::OnReadError;
use crate::sys::{PAGE_BYTES, cpu};
use crate::telemetry::counters::{Counter, Timed};
use crate::telemetry::layout::Latency;

static ZEROS: [u8; PAGE_BYTES] = [0; PAGE_BYTES];

/// Neighbouring pages that one read brings in. Their words are Loading, by us, and they are charged.
struct Run {
    pages: Range<u64>,
    missed: u64,
    /// The view at which they are mapped.
    view: usize,
    /// Pages from here up to `unit_end` belong to the missed page's unit; pages below are read ahead, going down.
    unit_start: u64,
    unit_end: u64,
    /// Pages from here on are read ahead: nobody has asked for them yet.
    ahead: u64,
}

impl Run {
    /// The missed page alone.
    fn alone(missed: Place) -> Self {
        let page = missed.page;
        Run {
            pages: page..page + 1,
            missed: page,
            view: missed.view,
            unit_start: page,
            unit_end: page + 1,
            ahead: page + 1,
        }
    }

    fn len(&self) -> u64 {
        self.pages.end - self.pages.start
    }

    /// Where the bytes of some of its pages lie in the buffer that holds them all.
    fn bytes_of(&self, pages: Range<u64>) -> Range<usize> {
        let at = |page: u64| (page - self.pages.start) as usize * PAGE_BYTES;
        at(pages.start)..at(pages.end)
    }
}

/// The frequency of pages that come in.
#[derive(Clone, Copy)]
enum Frequency {
    /// The frequency that the word of each page gives.
    OfEach,
    /// The same frequency for all pages.
    Same(u8),
}

/// The kernel would not install a page, nor the pages behind it.
struct Refused {
    from: u64,
    code: i32,
}

impl Region {
    /// Fetches a page whose word we have made Loading, with the rest of its unit. Also fetches pages behind it that are wanted,
    /// or likely to be since the program reads in sequence. The page may have its budget already.
    pub(super) fn load(
        &self,
        place: Place,
        wanted: u64,
        before: Snapshot,
        store: bool,
        is_charged: bool,
    ) -> Result<(), FaultError> {
        debug_assert_eq!(self.table.word(place.page).load().state(), State::Loading);
        let shared = &*self.shared;
        let page = place.page;
        let _timed = Timed::since(Instant::now(), &shared.telemetry.counters, Latency::Miss);
        let core = cpu::current();
        shared.telemetry.count(core, if store { Counter::StoreMisses } else { Counter::LoadMisses }, 1);
        self.publish_misses(page..page + 1, store);
        if self.load_huge_page(core, page, wanted) {
            return Ok(());
        }
        let fresh = self.is_fresh(page, before);
        let timed = shared.telemetry.measures_misses.then(Instant::now);
        let spare =
            self.take_for_unit(core, page, if fresh { 0 } else { self.table.unit.pages() as u32 - 1 }, is_charged);
        let spare = spare.map_err(|why| {
            self.fail_load(page);
            FaultError::Exhausted(why)
        })?;
        if let Some(started) = timed {
            shared.telemetry.count(core, Counter::BudgetNs, started.elapsed().as_nanos() as u64);
        }
        let loaded = if fresh {
            self.fill(core, place, store)
        } else {
            let run = self.claim_run(core, place, wanted, spare, store);
            let guesses = wanted == 1 && !store && self.window_to_read(page).is_none();
            let strided = if guesses { self.begin_strided(core, page) } else { None };
            let loaded = self.read_and_install(core, run, before, store);
            if let Some(strided) = strided {
                self.end_strided(core, strided);
            }
            loaded
        };
        if loaded.is_ok() && store {
            shared.slow_down_for_dirty(core);
        }
        loaded
    }

    /// Makes a Loading page visible that needs no read.
    #[inline(never)]
    pub(super) fn fill(&self, core: usize, place: Place, store: bool) -> Result<(), FaultError> {
        self.shared.telemetry.count(core, Counter::FreshFills, 1);
        let loaded = Loaded { fresh: true, ..Loaded::default() };
        let filled = self.install(core, place, Contents::Copies(&ZEROS), (loaded, Frequency::OfEach), store);
        filled.map_err(|refused| FaultError::Refused(refused.code))
    }

    /// Takes the budget of a missed page, unless the page has it, and that of this many neighbours. Returns the number of
    /// neighbours with budget. In a cache full of pages that stay, the missed page has to do.
    fn take_for_unit(&self, core: usize, page: u64, neighbours: u32, is_charged: bool) -> Result<u32, &'static str> {
        if is_charged {
            // A thread that holds a page does not wait for more.
            let fits = neighbours > 0 && self.at_ceiling(neighbours).is_none();
            let taken = fits && self.shared.memory.budget.take(core, neighbours).is_some();
            return Ok(if taken { neighbours } else { 0 });
        }
        let charge = self.charge_of(page);
        // The page itself is counted already.
        self.make_room(core, charge - 1 + neighbours);
        // Not for ever: a waiting thread is counted in its span, and keeps the span's tables from being given back.
        let all = neighbours > 0 && self.shared.try_take_pages(core, charge + neighbours);
        if !all {
            self.shared.take_pages(core, charge)?;
        }
        self.charge(page, charge);
        Ok(if all { neighbours } else { 0 })
    }

    /// Whether a page comes in without a read, since the device holds garbage there.
    pub(super) fn is_fresh(&self, page: u64, before: Snapshot) -> bool {
        before.is_fresh() || (before.is_untouched() && self.table.untouched_is_fresh(span_of(page)))
    }

    /// The frequency of a page that comes in, by the word that it had before.
    fn frequency(&self, before: Snapshot) -> u8 {
        self.order().policy.frequency(before.frequency(), self.shared.evicted_ago(before.history()))
    }

    /// Makes the absent neighbours of a missed page Loading. First come those of its unit, for which `spare` pages of the budget
    /// are taken. Then come pages behind it, or before it in a sequence that goes down, as far as they are wanted or the window
    /// reaches, and as far as the free budget goes. Waits for nobody.
    #[inline(never)]
    fn claim_run(&self, core: usize, place: Place, wanted: u64, mut spare: u32, store: bool) -> Run {
        let page = place.page;
        let mut run = Run::alone(place);
        let advised = self.window_to_read(page);
        // A caller that wants more pages says how many. Where the first store to each page traps, pages that come in behind a
        // store are dirty: we do not guess those.
        let guesses = advised.is_none() && wanted == 1 && (!store || self.deactivatable().is_some());
        let sequence = guesses.then(|| self.table.sequence_at(page));
        let unit = self.table.unit.around(page);
        while run.pages.start > unit.start && spare > 0 && self.claim_neighbour(run.pages.start - 1) {
            run.pages.start -= 1;
            spare -= 1;
        }
        while run.pages.end < unit.end && spare > 0 && self.claim_neighbour(run.pages.end) {
            run.pages.end += 1;
            spare -= 1;
        }
        self.shared.memory.release(spare);
        (run.unit_start, run.unit_end) = (run.pages.start, run.pages.end);
        let reach = wanted.max(advised.or(sequence.map(Sequence::window)).unwrap_or(1));
        if sequence.is_some_and(Sequence::goes_down) {
            if run.pages.start == unit.start {
                let room = run.pages.end.saturating_sub(WINDOW_PAGES_MAX as u64);
                let mut window = (page + 1).saturating_sub(reach).max(room);
                if self.views.shares_addresses {
                    window = window.max(span_of(page) * SPAN_PAGES as u64);
                }
                while run.pages.start > window && self.claim_ahead(core, run.pages.start - 1) {
                    run.pages.start -= 1;
                }
            }
        } else if run.pages.end == unit.end {
            let mut window = (page + reach).min(run.pages.start + WINDOW_PAGES_MAX as u64).min(self.table.pages());
            if self.views.shares_addresses {
                // The span behind may not have page tables at this view.
                window = window.min((span_of(page) + 1) * SPAN_PAGES as u64);
            }
            while run.pages.end < window && self.claim_ahead(core, run.pages.end) {
                run.pages.end += 1;
            }
        }
        run.ahead = run.pages.end.min(page + wanted).max(run.unit_end);
        self.publish_misses(page + 1..run.ahead.min(page + wanted), store);
        if let Some(sequence) = sequence {
            self.table.keep_sequence(sequence, &run.pages);
        }
        run
    }

    /// Pages to read at a miss, if the cache need not find that out.
    fn window_to_read(&self, page: u64) -> Option<u64> {
        // Touches of pages that came ahead would be missing in the record.
        if self.shared.telemetry.miss_ring.is_some() {
            Some(1)
        } else {
            self.advised.window(self.table.span(span_of(page)))
        }
    }

    /// Makes a page Loading if it is absent and has to be read.
    fn claim_neighbour(&self, page: u64) -> bool {
        let Ok(before) = self.begin_load(page) else { return false };
        // The mapping may have been shortened meanwhile; the thread that shortens it looks at the word after.
        let wanted = !self.is_fresh(page, before) && page < self.table.pages();
        if !wanted {
            self.fail_load(page);
        }
        wanted
    }

    /// Like [`Self::claim_neighbour`], if the budget has room for the page without a wait.
    pub(super) fn claim_ahead(&self, core: usize, page: u64) -> bool {
        if !self.claim_neighbour(page) {
            return false;
        }
        let charge = self.charge_of(page);
        let taken = self.at_ceiling(charge - 1).is_none() && self.shared.memory.budget.take(core, charge).is_some();
        if taken {
            self.charge(page, charge)
        } else {
            self.fail_load(page)
        }
        taken
    }

    /// Reads a run and makes it visible. Returns an error only for the missed page.
    #[inline(never)]
    fn read_and_install(&self, core: usize, mut run: Run, before: Snapshot, store: bool) -> Result<(), FaultError> {
        let shared = &*self.shared;
        let mut target = self.read_target(core, &run);
        let timed = shared.telemetry.measures_misses.then(Instant::now);
        let page = run.missed;
        let mut read = self.read(core, run.pages.start, &mut target.bytes()[..run.len() as usize * PAGE_BYTES]);
        if read.is_err() && run.len() > 1 {
            // Perhaps a neighbour is at fault: the neighbours can wait until somebody wants them.
            self.keep_only(&mut run, page..page + 1);
            read = self.read(core, page, &mut target.bytes()[..PAGE_BYTES]);
        }
        if let Some(started) = timed {
            shared.telemetry.count(core, Counter::ReadNs, started.elapsed().as_nanos() as u64);
        }
        let data = &mut target.bytes()[..run.len() as usize * PAGE_BYTES];
        let mut loaded = Loaded::default();
        let missed = &mut data[run.bytes_of(page..page + 1)];
        if let Err(failure) = read.and_then(|()| self.verify(page, missed)) {
            self.note_read_failure(page, failure);
            match self.on_read_error {
                OnReadError::Poison(pattern) if !store => {
                    missed.chunks_mut(8).for_each(|word| word.copy_from_slice(&pattern));
                    loaded.poisoned = true;
                }
                _ => {
                    // The frame before its charge: somebody else may take both.
                    drop(target);
                    self.fail_charged_loads(run.pages);
                    return Err(FaultError::Unreadable(failure));
                }
            }
        }
        let frequency = self.frequency(before);
        if run.len() > 1 {
            let kept = self.keep_verified(&mut run, data);
            return self.install_run(core, &run, &data[kept], (loaded, frequency), store);
        }
        let contents = match target {
            ReadTarget::Buffer(ref mut buffer) => Contents::Copies(&buffer.bytes()[..PAGE_BYTES]),
            ReadTarget::Frame(frame) => Contents::Frame(frame),
        };
        let place = Place { view: run.view, page };
        let installed = self.install(core, place, contents, (loaded, Frequency::Same(frequency)), store);
        installed.map_err(|refused| FaultError::Refused(refused.code))
    }

    /// Where the bytes of a run go. Those of a single page save a copy where frames can be filled before. A pre-image is a copy of what is in a
    /// buffer, since threads may store to the page by then.
    fn read_target(&self, core: usize, run: &Run) -> ReadTarget<'_> {
        let fills_frames = run.len() == 1 && self.dirty.pre_images.is_none();
        match fills_frames.then(|| self.frames().blank()).flatten() {
            Some(frame) => ReadTarget::Frame(frame),
            None => ReadTarget::Buffer(self.shared.reads.page_buffers.acquire(core)),
        }
    }

    /// Gives up neighbours that do not verify, and the pages beyond them; returns which bytes are left.
    fn keep_verified(&self, run: &mut Run, data: &[u8]) -> Range<usize> {
        let is_good = |page: &u64| self.verify(*page, &data[run.bytes_of(*page..page + 1)]).is_ok();
        let before = (run.pages.start..run.missed).rev().take_while(is_good).count() as u64;
        let behind = (run.missed + 1..run.pages.end).take_while(is_good).count() as u64;
        let good = run.missed - before..run.missed + 1 + behind;
        let kept = run.bytes_of(good.clone());
        self.keep_only(run, good);
        kept
    }

    /// Gives up all pages of a run but these, which include the missed one.
    fn keep_only(&self, run: &mut Run, kept: Range<u64>) {
        self.fail_charged_loads(run.pages.start..kept.start);
        self.fail_charged_loads(kept.end..run.pages.end);
        run.unit_start = run.unit_start.max(kept.start);
        run.unit_end = run.unit_end.min(kept.end);
        run.ahead = run.ahead.min(kept.end);
        run.pages = kept;
    }

    /// Makes a run visible, in a step for each kind of page in it. The missed page gets what `loaded` and `store` say. The others
    /// of its unit stay as long as it, and are protected. Pages behind a store are writable and dirty as well if the caller wants
    /// them, or if advice has set a window: a stream of stores would trap on each.
    fn install_run(
        &self,
        core: usize,
        run: &Run,
        data: &[u8],
        (loaded, frequency): (Loaded, u8),
        store: bool,
    ) -> Result<(), FaultError> {
        let Run { pages, missed, unit_start, unit_end, ahead, view } = run;
        let (page, next) = (*missed, missed + 1);
        let neighbour = (Loaded::default(), Frequency::Same(frequency));
        let advised = self.advised.window(self.table.span(span_of(page)));
        let streams = store && advised.is_some_and(|pages| pages > 1);
        // A guessed page is clean until a store to it, which the kernel notes.
        let dirties_ahead = store && advised.is_some();
        let (unit, behind) =
            if store || loaded.poisoned { (page..next, next..*unit_end) } else { (*unit_start..*unit_end, 0..0) };
        let before = *unit_start..unit.start;
        let parts = [
            (unit, (loaded, Frequency::Same(frequency)), store),
            (before, neighbour, false),
            (behind, neighbour, streams),
            (*unit_end..*ahead, (Loaded::default(), Frequency::OfEach), store),
            (*ahead..pages.end, (Loaded::default(), Frequency::Same(0)), dirties_ahead),
            (pages.start..*unit_start, (Loaded::default(), Frequency::Same(0)), false),
        ];
        let mut outcome = Ok(());
        for (part, arrival, store) in parts.into_iter().filter(|(part, ..)| !part.is_empty()) {
            let place = Place { view: *view, page: part.start };
            let contents = Contents::Copies(&data[run.bytes_of(part.clone())]);
            let installed = self.install(core, place, contents, arrival, store);
            match installed {
                Err(refused) if part.contains(&page) && refused.from <= page => {
                    outcome = Err(FaultError::Refused(refused.code));
                }
                _ => {}
            }
        }
        if run.len() > 1 {
            self.shared.telemetry.count(core, Counter::ReadAheadPages, run.len() - 1);
        }
        outcome
    }

    /// Makes wanted pages visible that are Loading and have been read. On an error, some of them have been given up.
    pub(super) fn install_claimed(&self, core: usize, first: u64, data: &[u8]) -> Result<(), FaultError> {
        let place = Place { view: 0, page: first };
        let installed =
            self.install(core, place, Contents::Copies(data), (Loaded::default(), Frequency::OfEach), false);
        installed.map_err(|refused| FaultError::Refused(refused.code))
    }

    /// Settles a Loading page that was read ahead. `arrived` is the number of bytes, or an error number below zero. False if the
    /// page was not read whole or does not verify; the page is Loading as before.
    pub(super) fn install_read_ahead(&self, core: usize, page: u64, data: &mut [u8], arrived: i32) -> bool {
        // Bytes that others may have appended to the file are no part of the mapping.
        let left = self.backing.len().saturating_sub(page * PAGE_BYTES as u64);
        let Ok(bytes) = u64::try_from(arrived) else { return false };
        // If the file has grown since, a thread that asks for the page reads it again.
        let read = self.accept_read(core, (page, self.table.len()), data, bytes.min(left) as usize);
        if read.and_then(|()| self.verify(page, data)).is_err() {
            return false;
        }
        // A page that the kernel refuses has been given up.
        let arrival = (Loaded::default(), Frequency::Same(0));
        let _ = self.install(core, Place { view: 0, page }, Contents::Copies(data), arrival, false);
        true
    }

    /// Installs neighbouring Loading pages and settles their words. Gives up those that the kernel refuses. While a commit takes
    /// its point in time, installs for a store as for a load: the store traps again, and waits.
    fn install(
        &self,
        core: usize,
        place: Place,
        contents: Contents<'_>,
        (loaded, frequency): (Loaded, Frequency),
        store: bool,
    ) -> Result<(), Refused> {
        let first = place.page;
        let timed = self.shared.telemetry.measures_misses.then(Instant::now);
        let copied = match contents {
            Contents::Copies(data) => Some(data),
            Contents::Frame(_) => None,
        };
        let pages = first..first + copied.map_or(1, |data| (data.len() / PAGE_BYTES) as u64);
        // Where the kernel notes stores, any active page may become dirty. A run touches two spans at most; the epoch
        // is the one after both marks are set.
        let permit = if store { self.permit_store(pages.clone()) } else { None };
        let store = permit.is_some();
        let may_be_dirty = store || self.deactivatable().is_some();
        let epoch = may_be_dirty.then(|| {
            self.announce_dirty(first);
            self.announce_dirty(pages.end - 1)
        });
        let (frames, address) = (self.frames(), self.views.address_at(place));
        // SAFETY: the pages' words say Loading, by us; their addresses lie in an attached range of ours. A frame is one of these frames.
        let installed = unsafe {
            match contents {
                Contents::Copies(data) => frames.install(address, data, !store),
                Contents::Frame(frame) => frames.install_blank(address, frame, !store),
            }
        };
        if let Some(started) = timed {
            self.shared.telemetry.count(core, Counter::InstallNs, started.elapsed().as_nanos() as u64);
        }
        let end = match &installed {
            Ok(()) => pages.end,
            Err(error) => first + (error.installed_bytes / PAGE_BYTES) as u64,
        };
        let loaded = Loaded { dirty_in: epoch.filter(|_| store), ..loaded };
        for page in first..end {
            let pre_images = self.dirty.pre_images.as_ref().filter(|_| store && !loaded.fresh);
            if let Some((pre_images, data)) = pre_images.zip(copied) {
                let start = (page - first) as usize * PAGE_BYTES;
                pre_images.keep(page, |copy| copy.copy_from_slice(&data[start..][..PAGE_BYTES]));
            }
            let frequency = match frequency {
                Frequency::Same(frequency) => frequency,
                // The word of a Loading page still has what was known of the page.
                Frequency::OfEach => self.frequency(self.table.word(page).load()),
            };
            self.finish_load(core, page, Loaded { frequency, ..loaded });
            if store {
                self.count_dirty(page);
            }
        }
        drop(permit);
        self.fail_charged_loads(end..pages.end);
        installed.map_err(|error| Refused { from: end, code: error.source.raw_os_error().unwrap_or(libc::EFAULT) })
    }

    /// Reads whole pages; bytes behind the end of the file are zeros.
    pub(crate) fn read(&self, core: usize, page: u64, data: &mut [u8]) -> Result<(), ReadFailure> {
        let offset = page * PAGE_BYTES as u64;
        // A file that grows meanwhile has zeros there.
        let len = self.table.len();
        let timed = self
            .shared
            .telemetry
            .times_read(core)
            .then(|| Timed::since(Instant::now(), &self.shared.telemetry.counters, Latency::Read));
        let read = self.backing.read_at(offset, data);
        drop(timed);
        let bytes = read.map_err(|error| ReadFailure::from(&error))?;
        self.accept_read(core, (page, len), data, bytes)
    }

    /// Counts a read of whole pages that has brought this many bytes of a file of that length, and fills the bytes behind the end
    /// with zeros. Fails if bytes before the end are missing.
    pub(super) fn accept_read(
        &self,
        core: usize,
        (page, len): (u64, u64),
        data: &mut [u8],
        bytes: usize,
    ) -> Result<(), ReadFailure> {
        let offset = page * PAGE_BYTES as u64;
        let bytes = bytes.min(data.len());
        self.shared.telemetry.count(core, Counter::Reads, 1);
        self.shared.telemetry.count(core, Counter::ReadBytes, bytes as u64);
        let expected = len.min(self.table.len()).saturating_sub(offset).min(data.len() as u64) as usize;
        if bytes < expected {
            // The file has been truncated under us.
            return Err(ReadFailure::Kind(std::io::ErrorKind::UnexpectedEof));
        }
        if bytes < data.len() {
            data[bytes..].fill(0);
        }
        Ok(())
    }

    /// The reason why a page holds poison: reads the page again to find out. If the page is good by now, it has become so since,
    /// and comes back once the poisoned page has been given up.
    pub(crate) fn why_poisoned(&self, page: u64) -> ReadFailure {
        let core = cpu::current();
        let mut buffer = self.shared.reads.page_buffers.acquire(core);
        let data = &mut buffer.bytes()[..PAGE_BYTES];
        let read = self.read(core, page, data).and_then(|()| self.verify(page, data));
        read.err().unwrap_or(ReadFailure::Kind(std::io::ErrorKind::InvalidData))
    }

    pub(crate) fn verify(&self, page: u64, data: &[u8]) -> Result<(), ReadFailure> {
        match &self.verifier {
            Some(verifier) if !verifier.verify(page * PAGE_BYTES as u64, data) => Err(ReadFailure::Corrupt),
            _ => Ok(()),
        }
    }

    /// Ends the loading of a page, which is in memory from now on.
    pub(super) fn finish_load(&self, core: usize, page: u64, loaded: Loaded) {
        let (span, order) = (span_of(page), self.order());
        let frequency = match self.advised.reuse(self.table.span(span)) {
            Reuse::Unknown => loaded.frequency,
            reuse => order.policy.frequency_by_advice(reuse),
        };
        self.table.word(page).finish_load(Loaded { frequency, ..loaded });
        if order.count_page(core, frequency, 1) == FifoQueue::Small {
            self.table.span(span).add_new_pages(NewPages::of(page));
        }
    }

    /// Makes an absent page Loading, counted in its span. Returns the word before.
    pub(crate) fn begin_load(&self, page: u64) -> Result<Snapshot, Snapshot> {
        self.add_resident(span_of(page));
        let begun = self.table.word(page).begin_load().inspect_err(|_| self.remove_resident(span_of(page), 1));
        if begun.is_ok()
            && let Some(tenant) = &self.tenant
        {
            tenant.add(1);
        }
        begun
    }

    /// Makes a Loading page absent again that did not come in.
    pub(crate) fn fail_load(&self, page: u64) {
        self.table.word(page).fail_load();
        if let Some(tenant) = &self.tenant {
            tenant.remove(1);
        }
        self.remove_resident(span_of(page), 1);
    }

    /// Like [`Self::fail_load`], for pages that have their budget, which goes back.
    pub(super) fn fail_charged_loads(&self, pages: Range<u64>) {
        let count = pages.end - pages.start;
        pages.for_each(|page| self.fail_load(page));
        self.shared.memory.release(count as u32);
    }
}
