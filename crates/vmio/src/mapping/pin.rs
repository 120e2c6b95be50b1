//! Pins: ranges that stay in memory, for system calls and for code that must not miss.

use std::ops::Range;
use std::sync::Arc;

use vmio_core::page::snapshot::State;
use vmio_core::page::{SPAN_PAGES, span_of};

use crate::backing::Access;
use crate::cache::pins::{charge, pin_until, uncharge};
use crate::cache::region::Region;
use crate::cache::region::views::Place;
use crate::cache::shared::memory::Purpose;
use crate::cache::tables::TABLE_PAGES;
use crate::error::{Error, Result, UnsupportedBy};
use crate::mapped_file::opened::Opened;
use crate::mapped_file::{HeldPages, touched_pages};
use crate::mapping::Mapping;
use crate::mapping::cached_file::CachedFile;
use crate::mapping::cached_region::CachedRegion;
use crate::sys::PAGE_BYTES;
use crate::sys::signal::SignalsBlocked;

impl Mapping {
    /// Makes a range resident and keeps it so until the drop of the pin.
    ///
    /// System calls accept pointers into the range. With [`Access::ReadWrite`] they may write there too. The pages of such a pin
    /// stay dirty until its end: a sync meanwhile writes their present contents, and a later sync writes them again.
    ///
    /// [`crate::Engine::Managed`] locks the pages (mlock), within RLIMIT_MEMLOCK. With [`crate::Engine::Kernel`] each pin takes a
    /// file descriptor, and the access to a pinned page may take a fault without I/O.
    ///
    /// # Errors
    ///
    /// - [`Error::Read`] or [`Error::Corrupt`] for a page that cannot be read.
    /// - [`Error::TooManyPins`] if pins would hold more than three quarters of the cache (half with [`crate::Engine::Kernel`]) or
    ///   of the mapping's ceiling. With [`crate::Engine::Sigbus`] and [`crate::Engine::ReaderThread`], every span of 2 MiB that a
    ///   pin touches counts as two pages more.
    /// - [`Error::Unsupported`] for a pin for writing on an atomic mapping.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> vmio::Result<()> {
    /// # use vmio::backing::MemoryBacking;
    /// # use vmio::{Cache, Mapping, MappingOptions};
    /// # let cache = Cache::builder().capacity(16 << 20).build()?;
    /// # if cache.engine() == vmio::Engine::Managed { return Ok(()) }
    /// # let map = Mapping::open(&cache, MemoryBacking::new(1 << 20)?, MappingOptions::new())?;
    /// use std::fs::File;
    /// use std::io::Read;
    /// use vmio::Access;
    ///
    /// let pin = map.pin(0..4096, Access::ReadWrite)?;
    /// let place = pin.as_mut_ptr().unwrap();
    /// // SAFETY: the range is pinned for writing, and no other thread accesses it.
    /// let bytes = unsafe { std::slice::from_raw_parts_mut(place, pin.len()) };
    /// File::open("/dev/zero").unwrap().read_exact(bytes).unwrap();
    /// # Ok(())
    /// # }
    /// ```
    pub fn pin(&self, range: Range<u64>, access: Access) -> Result<Pin> {
        self.check_range(&range)?;
        let pages = touched_pages(&range);
        let held = self.file().pin(pages, access)?;
        Ok(Pin::new(held, self.as_ptr(), range, access))
    }
}

impl CachedFile {
    /// Pins pages for as long as the user holds them, mapped at one of the mapping's views.
    pub(super) fn pin_for_user(&self, pages: Range<u64>, access: Access, view: usize) -> Result<PinnedPages> {
        let spans = pages.end.div_ceil(SPAN_PAGES as u64) - span_of(pages.start);
        let charge = self.charge_pins(pages.end - pages.start + spans * u64::from(TABLE_PAGES))?;
        self.pin_pages(pages, access, view, charge, Held::ByTheProgram)
    }

    /// Charges a pin of the user and its page tables against the limit.
    fn charge_pins(&self, pages: u64) -> Result<PinCharge> {
        charge(self.region(), pages, Purpose::Any)?;
        Ok(PinCharge { opened: Arc::clone(&self.opened), pages: pages as u32 })
    }

    /// Pins a page for one access of vmio's own: outside the limit, since the pin is short.
    pub(super) fn pin_page(&self, page: u64, access: Access) -> Result<PinnedPages> {
        let charge = PinCharge { opened: Arc::clone(&self.opened), pages: 0 };
        self.pin_pages(page..page + 1, access, 0, charge, Held::ForAnInstant)
    }

    /// Pins whole pages.
    fn pin_pages(
        &self,
        pages: Range<u64>,
        access: Access,
        view: usize,
        charge: PinCharge,
        held: Held,
    ) -> Result<PinnedPages> {
        let region = self.region();
        if access == Access::ReadWrite && region.access == Access::ReadOnly {
            return Err(Error::ReadOnly { backing: region.backing.describe() });
        }
        if access == Access::ReadWrite && region.journaled.is_some() {
            let why = "a commit could not tell what system calls store; pin for reading, or use Mapping::write_at";
            return Err(Error::Unsupported { by: UnsupportedBy::AtomicMapping, what: "a pin for writing", why });
        }
        // Blocks signals until refused pins are given back: a thread that shortens the mapping waits for them.
        let _signals = SignalsBlocked::new();
        // From here on, dropping `held` gives back the pins so far.
        let first = pages.start;
        let noted = (held == Held::ByTheProgram).then(|| pages.clone());
        if let Some(pages) = &noted {
            self.opened.pinned.add(pages.clone());
        }
        let mut held = PinnedPages { charge, pages: first..first, view, noted, exposed: None };
        pin_until(region, &mut held.pages, pages.end, access).map_err(|why| why.into_error(region))?;
        if region.views.shares_addresses {
            map_pinned(region, &held.pages, view, access)?;
        }
        // A mapping that is being shortened looks for pins after it has set its new length.
        if held.pages.end > region.table.pages() {
            let bytes = pages.start * PAGE_BYTES as u64..pages.end * PAGE_BYTES as u64;
            return Err(Error::OutOfRange { range: bytes, len: region.table.len() });
        }
        if held.noted.is_some() && !held.pages.is_empty() {
            held.expose(access)?;
        }
        Ok(held)
    }

    /// Pins one page for reading, so that a store to it does not miss: resident, and already dirty where possible.
    pub(super) fn pin_page_for_store(&self, page: u64) -> Result<PinnedPages> {
        let region = self.region();
        if region.access == Access::ReadOnly {
            return Err(Error::ReadOnly { backing: region.backing.describe() });
        }
        if region.table.word(page).load().state() != State::Dirty {
            let _signals = SignalsBlocked::new();
            region.fault(page, true).map_err(|failure| failure.into_error(region, page))?;
        }
        self.pin_page(page, Access::ReadOnly)
    }
}

/// Maps pinned pages at a view. They are in memory, but perhaps not mapped at every address yet; an existing mapping stays.
fn map_pinned(region: &Region, pinned: &Range<u64>, view: usize, access: Access) -> Result<()> {
    pinned.clone().try_for_each(|page| {
        let mapped = region.fault_run(Place { view, page }, 1, access == Access::ReadWrite);
        mapped.map_err(|failure| failure.into_error(region, page))
    })
}

/// A charge against the limit of pinned pages. It keeps the mapping open.
struct PinCharge {
    opened: Arc<Opened<CachedRegion>>,
    pages: u32,
}

impl Drop for PinCharge {
    fn drop(&mut self) {
        let region = &self.opened.region;
        if region.shared.generation.is_current() {
            uncharge(region, self.pages.into());
        }
    }
}

/// The duration of a pin.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Held {
    /// As long as the program likes.
    ByTheProgram,
    /// For one copy: a thread that wants to take the page waits for its end.
    ForAnInstant,
}

/// Pages with a pin each.
pub(super) struct PinnedPages {
    charge: PinCharge,
    pages: Range<u64>,
    /// Where they are mapped.
    view: usize,
    /// The range that it has noted among the program's pins.
    noted: Option<Range<u64>>,
    /// How system calls see the pages, if the engine has made them do so.
    exposed: Option<Access>,
}

impl PinnedPages {
    fn expose(&mut self, access: Access) -> Result<()> {
        let (address, len) = self.place();
        let frames = self.charge.opened.region.frames();
        // SAFETY: the pages are pinned, for stores if those are exposed, and concealed before the pins end.
        unsafe { frames.expose(address, len, access == Access::ReadWrite) }
            .map_err(Error::system("giving system calls access to pinned pages (vm.max_map_count limits how many)"))?;
        self.exposed = Some(access);
        Ok(())
    }

    /// The address and the length in bytes.
    fn place(&self) -> (usize, usize) {
        let len = (self.pages.end - self.pages.start) as usize * PAGE_BYTES;
        let place = Place { view: self.view, page: self.pages.start };
        (self.charge.opened.region.views.address_at(place), len)
    }
}

impl Drop for PinnedPages {
    fn drop(&mut self) {
        let region = &*self.charge.opened.region;
        if region.shared.generation.is_current() {
            // A signal handler of the program may wait for a thread that wants the list of pins.
            let _signals = self.noted.is_some().then(SignalsBlocked::new);
            if let Some(access) = self.exposed {
                let (address, len) = self.place();
                region.frames().conceal(address, len, access == Access::ReadWrite);
            }
            // Before `unpin`: a thread that it wakes counts as the program's only the pins in the list.
            self.noted.iter().for_each(|pages| self.charge.opened.pinned.remove(pages));
            self.pages.clone().for_each(|page| region.table.word(page).unpin());
        }
    }
}

/// A range that stays in memory until the drop of this pin: see [`Mapping::pin`]. It keeps the mapping open.
pub struct Pin {
    _held: HeldPages,
    pages: u64,
    address: usize,
    len: usize,
    access: Access,
}

impl Pin {
    /// A pin of a range of bytes of a mapping or view that begins at `base`.
    pub(super) fn new(held: HeldPages, base: *const u8, range: Range<u64>, access: Access) -> Self {
        let pages = touched_pages(&range);
        let address = base as usize + range.start as usize;
        let len = (range.end - range.start) as usize;
        Pin { _held: held, pages: pages.end - pages.start, address, len, access }
    }

    /// Returns the address of the range's first byte.
    pub fn as_ptr(&self) -> *const u8 {
        self.address as *const u8
    }

    /// Returns the address of the range's first byte, for stores; `None` if the range is pinned for reading only.
    pub fn as_mut_ptr(&self) -> Option<*mut u8> {
        (self.access == Access::ReadWrite).then_some(self.address as *mut u8)
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the range is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the number of pages held. The first and the last may be only partly in the range.
    pub fn pages(&self) -> u64 {
        self.pages
    }
}
