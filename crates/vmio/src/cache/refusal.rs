//! Pages whose access is refused: what an engine whose faulting threads sleep does in place of declining a signal.

use crate::cache::fault::REGIONS;
use crate::cache::region::Region;
use crate::page::visit::Visit;
use crate::page::word::{Snapshot, State};
use crate::sys::cpu;
use crate::sys::unmap::UnmapList;
use crate::telemetry::counters::Counter;

/// Runs `change` while the page at an address is absent and nobody can bring it in. Returns false, without having run
/// it, if the page is in memory. A page that holds poison makes way: it was a store to it that failed.
pub(crate) fn while_absent(address: usize, change: &mut dyn FnMut()) -> bool {
    let Some(region) = REGIONS.find(address) else { return false };
    // Pages behind the end of the mapping have words too.
    let Some(place) = region.place_of(address) else { return false };
    region.shared.generation.is_current() && region.while_absent(place.page, change)
}

impl Region {
    fn while_absent(&self, page: u64, change: &mut dyn FnMut()) -> bool {
        let word = self.word(page);
        loop {
            let seen = word.load();
            match seen.state() {
                State::Absent => {
                    if self.begin_load(page).is_ok() {
                        change();
                        self.forget_load(page);
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
        if !self.word(page).begin_evict(Visit::LAST) {
            return false;
        }
        let mut list = UnmapList::with_capacity(1);
        list.push_page(self.address(page));
        // SAFETY: the page's word says Evicting, by us.
        let shootdowns = unsafe { shared.frames.unmap(&mut list) };
        shared.count(cpu::current(), Counter::ShootdownsEvict, shootdowns);
        if list.has_failed(self.address(page)) {
            self.word(page).fail_evict(State::Clean);
            return false;
        }
        self.finish_evict(page, shared.eviction_time());
        shared.count(cpu::current(), Counter::EvictedClean, 1);
        shared.release(1, true);
        true
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::thread;

    use super::*;
    use crate::backing::MemoryBacking;
    use crate::{Cache, Mapping, MappingOptions};

    /// While the memory of a span's words is given back, a page that is to be refused must not change its word: it would be
    /// forgotten.
    #[test]
    fn no_page_is_refused_in_a_span_that_is_being_given_back() {
        let cache = Cache::builder().capacity(6 << 20).build().unwrap();
        let map = Mapping::open(&cache, MemoryBacking::new(1 << 20).unwrap(), MappingOptions::new()).unwrap();
        let region = REGIONS.find(map.as_ptr() as usize).unwrap();
        assert!(region.span(0).try_close());
        thread::scope(|scope| {
            let refuser = scope.spawn(|| {
                let mut has_run = false;
                let page = map.as_ptr() as usize + 5 * crate::PAGE_BYTES;
                assert!(while_absent(page, &mut || has_run = region.word(5).load().is_busy()));
                has_run
            });
            while !region.span(0).is_awaited() && !refuser.is_finished() {
                thread::yield_now();
            }
            let seen = region.word(5).load();
            region.span(0).open();
            assert!(refuser.join().unwrap());
            assert!(seen.is_untouched(), "{seen:?}");
        });
        assert_eq!(region.span(0).resident(), 0);
    }
}
