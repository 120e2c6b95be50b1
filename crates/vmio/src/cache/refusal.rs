//! Refused accesses: where faulting threads sleep, an engine refuses a page, as it has no signal to decline.

use vmio_core::page::snapshot::{Snapshot, State};
use vmio_core::page::visit::Visit;

use crate::backing::Access;
use crate::cache::fault_error::FaultError;
use crate::cache::read_failures::ReadFailure;
use crate::cache::region::REGIONS;
use crate::cache::region::Region;
use crate::sys::unmap::UnmapList;
use crate::sys::{PAGE_BYTES, cpu, own_memory};
use crate::telemetry::counters::Counter;

/// A byte of a mapping that is not available, and why.
///
/// For libraries on top of vmio that have a handler of SIGBUS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unavailable {
    /// The first address of the mapping.
    pub mapping: usize,
    /// The offset in the mapping of the byte's page.
    pub offset: u64,
    /// Why the page is not available.
    pub why: WhyUnavailable,
}

/// Why a page of a mapping is not available.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WhyUnavailable {
    /// The page lies behind the end of the mapping, or of the file.
    BehindEnd,
    /// The page could not be read.
    NotRead,
    /// The cache is full of pages that cannot be written: the system's error number, or 0 if there is none.
    NotWritten(i32),
    /// Another reason.
    Other,
}

/// Tries a refused access again, in the calling thread.
///
/// Returns why the page is not available, if it still is not. Returns `None` if the address lies in no mapping whose faults vmio
/// handles in this process.
///
/// Async-signal-safe: for handlers of SIGBUS ([`crate::on_unresolved_sigbus`]) in processes whose cache has reader threads. Reader
/// threads refuse a page for a while without reading it again.
pub fn fault_again(address: usize, is_store: bool) -> Option<Result<(), Unavailable>> {
    let region = REGIONS.find(address)?;
    let place = region.views.place_of(address)?;
    if !region.shared.generation.is_current() {
        return None;
    }
    let is_there = || own_memory::load(address, &mut [0]).is_ok();
    let outcome = match place.page < region.table.pages() {
        false => Err(FaultError::BeyondEnd),
        true => region.fault_run(place, 1, is_store && region.access == Access::ReadWrite),
    };
    let why = match outcome {
        Ok(()) if is_there() => return Some(Ok(())),
        // The memory is bad.
        Ok(()) => WhyUnavailable::Other,
        Err(FaultError::BeyondEnd | FaultError::Unreadable(ReadFailure::Kind(std::io::ErrorKind::UnexpectedEof))) => {
            WhyUnavailable::BehindEnd
        }
        Err(FaultError::Unreadable(_) | FaultError::Poisoned) => WhyUnavailable::NotRead,
        Err(FaultError::Exhausted(_)) => WhyUnavailable::NotWritten(region.shared.write_back.last_error()),
        Err(FaultError::ReadOnly | FaultError::Refused(_)) => WhyUnavailable::Other,
    };
    Some(Err(Unavailable { mapping: region.table.base() as usize, offset: place.page * PAGE_BYTES as u64, why }))
}

/// Runs `change` while the page at an address is absent and no thread can bring it in. If the page is in memory, returns false without
/// running `change`. A page that holds poison is evicted first: the refused access was a store to it.
pub(crate) fn while_absent(address: usize, change: &mut dyn FnMut()) -> bool {
    let Some(region) = REGIONS.find(address) else { return false };
    // Pages behind the end of the mapping have words too.
    let Some(place) = region.views.place_of(address) else { return false };
    region.shared.generation.is_current() && region.while_absent(place.page, change)
}

impl Region {
    fn while_absent(&self, page: u64, change: &mut dyn FnMut()) -> bool {
        let word = self.table.word(page);
        loop {
            let seen = word.load();
            match seen.state() {
                State::Absent => {
                    if self.begin_load(page).is_ok() {
                        change();
                        self.fail_load(page);
                        return true;
                    }
                }
                State::Clean if seen.is_poisoned() => {
                    if !self.give_up_poison(page) {
                        return false;
                    }
                }
                State::Clean | State::Dirty => return false,
                State::Loading | State::Upgrading | State::Protecting | State::Evicting => {
                    word.wait_while(Snapshot::is_busy);
                }
            }
        }
    }

    fn give_up_poison(&self, page: u64) -> bool {
        let shared = &*self.shared;
        if !self.table.word(page).begin_evict(Visit::LAST) {
            return false;
        }
        let mut list = UnmapList::with_capacity(1);
        list.push_page(self.table.address(page));
        // SAFETY: the page's word says Evicting, by us.
        let shootdowns = unsafe { shared.paging.frames.unmap(&mut list) };
        shared.telemetry.count(cpu::current(), Counter::ShootdownsEvict, shootdowns);
        if list.has_failed(self.table.address(page)) {
            self.table.word(page).fail_evict(State::Clean);
            return false;
        }
        self.finish_evict(page, shared.eviction_time());
        shared.telemetry.count(cpu::current(), Counter::EvictedClean, 1);
        shared.release_evicted(1);
        true
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::backing::MemoryBacking;
    use crate::{Cache, Mapping, MappingOptions};

    /// While the memory of a span's words is given back, the refusal of a page must not change its word: the change would be lost.
    #[test]
    fn no_page_is_refused_in_a_span_that_is_being_given_back() {
        let cache = Cache::builder().capacity(6 << 20).build().unwrap();
        let map = Mapping::open(&cache, MemoryBacking::new(1 << 20).unwrap(), MappingOptions::new()).unwrap();
        let region = REGIONS.find(map.as_ptr() as usize).unwrap();
        assert!(region.table.span(0).try_close());
        thread::scope(|scope| {
            let refuser = scope.spawn(|| {
                let mut has_run = false;
                let page = map.as_ptr() as usize + 5 * crate::PAGE_BYTES;
                assert!(while_absent(page, &mut || has_run = region.table.word(5).load().is_busy()));
                has_run
            });
            while !region.table.span(0).is_awaited() && !refuser.is_finished() {
                thread::yield_now();
            }
            let seen = region.table.word(5).load();
            region.table.span(0).open();
            assert!(refuser.join().unwrap());
            assert!(seen.is_untouched(), "{seen:?}");
        });
        assert_eq!(region.table.span(0).resident(), 0);
    }
}
