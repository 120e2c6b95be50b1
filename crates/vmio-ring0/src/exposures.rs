//! How often the frames of a pool are exposed, and at which addresses. A system call may use an exposed frame for longer than its page has it, so a
//! frame that is given back meanwhile becomes free at the end of its last exposure.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::Result;
use crate::frames::Frame;
use crate::managed::Rights;
use crate::memory::{Memory, PAGE_BYTES, Words};

/// Bits of a count.
const COUNT_BITS: u32 = 24;
const COUNT_MAX: u64 = (1 << COUNT_BITS) - 1;
/// The page has given the frame back.
const GIVEN_BACK: u64 = 1 << 63;

/// A word for each frame, zeros at first.
pub(crate) struct Exposures {
    words: Words,
    /// Locked while exposures begin and end, so that the process sees what this says. By threads that have signals blocked.
    seen: Mutex<Seen>,
}

/// Addresses at which the process sees pages outside the machine: a hash table that never allocates, for calls that come from anywhere. Pages beside each
/// other have places beside each other, so little of it has memory.
pub(crate) struct Seen {
    places: Memory,
    count: usize,
}

/// Exposures at an address; free without any.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Uses {
    page: usize,
    loads: u32,
    stores: u32,
}

impl Seen {
    /// For as many pages.
    fn none(pages: usize) -> Result<Seen> {
        // Half of the places stay free, so that a search is short.
        let len = ((pages * 2).next_power_of_two() * size_of::<Uses>()).next_multiple_of(PAGE_BYTES);
        Ok(Seen { places: Memory::reserve(len, PAGE_BYTES)?, count: 0 })
    }

    fn places(&self) -> &[Uses] {
        // SAFETY: the memory is as long, its zeros are valid, and it lives as long as this.
        unsafe { std::slice::from_raw_parts(self.places.base() as *const Uses, self.len()) }
    }

    fn place(&mut self, index: usize) -> &mut Uses {
        assert!(index < self.len());
        // SAFETY: as in `places`, and nobody else has a reference.
        unsafe { &mut *(self.places.base() as *mut Uses).add(index) }
    }

    /// A power of two.
    fn len(&self) -> usize {
        self.places.len() / size_of::<Uses>()
    }

    fn after(&self, index: usize) -> usize {
        (index + 1) & (self.len() - 1)
    }

    /// Where an address is, or would be.
    fn find(&self, address: usize) -> usize {
        let (page, places) = (address / PAGE_BYTES, self.places());
        let mut index = page & (self.len() - 1);
        while !matches!(places[index], Uses { loads: 0, stores: 0, .. }) && places[index].page != page {
            index = self.after(index);
        }
        index
    }

    /// The rights that the process has at an address.
    pub(crate) fn rights(&self, address: usize) -> Option<Rights> {
        match self.places()[self.find(address)] {
            Uses { loads: 0, stores: 0, .. } => None,
            Uses { stores: 0, .. } => Some(Rights::Read),
            Uses { .. } => Some(Rights::ReadWrite),
        }
    }

    /// Notes one more. False if there is no room for another address.
    pub(crate) fn begin(&mut self, address: usize, rights: Rights) -> bool {
        let index = self.find(address);
        let is_new = self.rights(address).is_none();
        if is_new && self.count * 2 == self.len() {
            return false;
        }
        self.count += usize::from(is_new);
        let uses = self.place(index);
        uses.page = address / PAGE_BYTES;
        *uses.with(rights) += 1;
        true
    }

    /// Notes one less; returns how many that is.
    pub(crate) fn end(&mut self, address: usize, rights: Rights) -> u64 {
        let index = self.find(address);
        let uses = self.place(index);
        let left = uses.with(rights).checked_sub(1);
        debug_assert!(left.is_some(), "{address:#x} is not exposed so");
        let Some(left) = left else { return 0 };
        *uses.with(rights) = left;
        if (uses.loads, uses.stores) == (0, 0) {
            self.free(index);
        }
        1
    }

    /// Notes that all are over; returns how many that is.
    pub(crate) fn end_all(&mut self, address: usize) -> u64 {
        let index = self.find(address);
        let Uses { loads, stores, .. } = std::mem::take(self.place(index));
        let all = u64::from(loads) + u64::from(stores);
        if all > 0 {
            self.free(index);
        }
        all
    }

    /// Frees a place whose uses are over. Whatever was put behind it, for want of this place, moves up.
    fn free(&mut self, index: usize) {
        self.count -= 1;
        let mask = self.len() - 1;
        let mut free = index;
        let mut next = self.after(index);
        *self.place(free) = Uses::default();
        loop {
            let uses = self.places()[next];
            if (uses.loads, uses.stores) == (0, 0) {
                return;
            }
            // How far it is from where it would be, and from the free place.
            if next.wrapping_sub(uses.page) & mask >= next.wrapping_sub(free) & mask {
                *self.place(free) = uses;
                *self.place(next) = Uses::default();
                free = next;
            }
            next = self.after(next);
        }
    }
}

impl Uses {
    fn with(&mut self, rights: Rights) -> &mut u32 {
        match rights {
            Rights::Read => &mut self.loads,
            Rights::ReadWrite => &mut self.stores,
        }
    }
}

/// The exposures of a frame: at any address, and of those that are nowhere any more, but have not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Counts(u64);

impl Counts {
    fn seen(self) -> u64 {
        self.0 & COUNT_MAX
    }

    fn withdrawn(self) -> u64 {
        self.0 >> COUNT_BITS & COUNT_MAX
    }

    fn with(self, seen: Option<u64>, withdrawn: Option<u64>) -> Counts {
        let fits = |count: &u64| *count <= COUNT_MAX;
        let (seen, withdrawn) = (seen.filter(fits), withdrawn.filter(fits));
        debug_assert!(seen.is_some() && withdrawn.is_some(), "{self:?}");
        let (seen, withdrawn) = (seen.unwrap_or(self.seen()), withdrawn.unwrap_or(self.withdrawn()));
        Counts(self.0 & GIVEN_BACK | withdrawn << COUNT_BITS | seen)
    }

    fn is_none(self) -> bool {
        self.0 & !GIVEN_BACK == 0
    }
}

impl Exposures {
    /// Of a pool of this many frames.
    pub(crate) fn none(frames: u32) -> Result<Exposures> {
        Ok(Exposures { words: Words::zeros(frames as usize)?, seen: Mutex::new(Seen::none(frames as usize)?) })
    }

    /// The addresses where the process sees pages. Exposures begin and end while this is locked.
    pub(crate) fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a frame is exposed at any address.
    pub(crate) fn is_any(&self, frame: Frame) -> bool {
        Counts(self.word(frame).load(Ordering::Acquire)).seen() > 0
    }

    /// Counts one more.
    pub(crate) fn begin(&self, frame: Frame) {
        self.change(frame, |counts| counts.with(counts.seen().checked_add(1), Some(counts.withdrawn())));
    }

    /// Counts one less.
    pub(crate) fn end(&self, frame: Frame) {
        self.change(frame, |counts| counts.with(counts.seen().checked_sub(1), Some(counts.withdrawn())));
    }

    /// Counts some as withdrawn.
    pub(crate) fn withdraw(&self, frame: Frame, count: u64) {
        self.change(frame, |counts| {
            counts.with(counts.seen().checked_sub(count), counts.withdrawn().checked_add(count))
        });
    }

    /// Counts one withdrawn exposure less. True if it was the last one of a frame that was given back: that is free now.
    pub(crate) fn let_go(&self, frame: Frame) -> bool {
        let ended = |counts: Counts| {
            let left = counts.with(Some(counts.seen()), counts.withdrawn().checked_sub(1));
            if left.is_none() { Counts(left.0 & !GIVEN_BACK) } else { left }
        };
        let (before, after) = self.change(frame, ended);
        before.0 & GIVEN_BACK != 0 && after.0 & GIVEN_BACK == 0
    }

    /// Notes that a page has given its frame back. False if the frame is not exposed, and free at once.
    pub(crate) fn keep(&self, frame: Frame) -> bool {
        // Nearly always.
        if self.word(frame).load(Ordering::Acquire) == 0 {
            return false;
        }
        let noted = |counts: Counts| if counts.is_none() { Counts(0) } else { Counts(counts.0 | GIVEN_BACK) };
        self.change(frame, noted).1.0 & GIVEN_BACK != 0
    }

    fn change(&self, frame: Frame, next: impl Fn(Counts) -> Counts) -> (Counts, Counts) {
        let word = self.word(frame);
        let mut seen = word.load(Ordering::Acquire);
        loop {
            let after = next(Counts(seen));
            match word.compare_exchange_weak(seen, after.0, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return (Counts(seen), after),
                Err(now) => seen = now,
            }
        }
    }

    fn word(&self, frame: Frame) -> &AtomicU64 {
        &self.words[frame.0 as usize]
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_the_most_of_its_rights() {
        const FIRST: usize = 7 * PAGE_BYTES;
        const SECOND: usize = 8 * PAGE_BYTES;
        let mut seen = Seen::none(4).unwrap();
        assert_eq!(seen.rights(FIRST), None);
        assert!(seen.begin(FIRST, Rights::Read) && seen.begin(FIRST, Rights::ReadWrite));
        assert!(seen.begin(SECOND, Rights::Read));
        assert_eq!((seen.rights(FIRST), seen.rights(SECOND)), (Some(Rights::ReadWrite), Some(Rights::Read)));
        assert_eq!((seen.end(FIRST, Rights::ReadWrite), seen.rights(FIRST)), (1, Some(Rights::Read)));
        assert!(seen.begin(FIRST, Rights::Read));
        assert_eq!((seen.end_all(FIRST), seen.rights(FIRST), seen.end_all(FIRST)), (2, None, 0));
        assert_eq!(seen.rights(SECOND), Some(Rights::Read));
    }

    #[test]
    fn addresses_that_share_a_place_are_told_apart() {
        use std::collections::BTreeMap;
        // The table has 256 places: a page of memory.
        let mut seen = Seen::none(1).unwrap();
        let mut expected = BTreeMap::<usize, Vec<Rights>>::new();
        let mut random = 0x9e37_79b9_u64;
        let mut below = |end: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % end
        };
        for _ in 0..test_depth::pick(20_000, 1_000_000) {
            // Runs of neighbours at the same places of the table, also over its end.
            let address = (250 + below(20) as usize + 256 * below(6) as usize) * PAGE_BYTES;
            let rights = if below(2) == 0 { Rights::Read } else { Rights::ReadWrite };
            let uses = expected.entry(address).or_default();
            match below(8) {
                0 => assert_eq!(seen.end_all(address), std::mem::take(uses).len() as u64),
                1..4 => {
                    if let Some(at) = uses.iter().position(|held| *held == rights) {
                        uses.remove(at);
                        assert_eq!(seen.end(address, rights), 1);
                    }
                }
                _ => {
                    assert!(seen.begin(address, rights));
                    uses.push(rights);
                }
            }
            for (address, uses) in &expected {
                let most = uses.iter().copied().max_by_key(|rights| *rights == Rights::ReadWrite);
                assert_eq!(seen.rights(*address), most);
            }
        }
    }

    #[test]
    fn a_full_table_says_so() {
        let mut seen = Seen::none(1).unwrap();
        assert!((1..=128).all(|page| seen.begin(page * PAGE_BYTES, Rights::Read)));
        assert!(!seen.begin(129 * PAGE_BYTES, Rights::Read));
        assert!(seen.begin(128 * PAGE_BYTES, Rights::Read));
        assert_eq!(seen.end_all(5 * PAGE_BYTES), 1);
        assert!(seen.begin(129 * PAGE_BYTES, Rights::Read));
    }

    #[test]
    fn a_frame_is_kept_until_its_last_exposure_has_ended() {
        let (exposures, frame) = (Exposures::none(3).unwrap(), Frame(2));
        assert!(!exposures.keep(frame), "nobody has it");
        exposures.begin(frame);
        exposures.begin(frame);
        exposures.withdraw(frame, 1);
        assert!(exposures.is_any(frame));
        exposures.withdraw(frame, 1);
        assert!(!exposures.is_any(frame));
        assert!(exposures.keep(frame));
        assert!(!exposures.let_go(frame), "another has it");
        assert!(exposures.let_go(frame));
        assert!(!exposures.keep(frame), "it is as at first");
    }

    #[test]
    fn a_frame_whose_page_still_has_it_is_not_free() {
        let (exposures, frame) = (Exposures::none(1).unwrap(), Frame(0));
        exposures.begin(frame);
        exposures.withdraw(frame, 1);
        assert!(!exposures.let_go(frame));
        exposures.begin(frame);
        exposures.end(frame);
        assert!(!exposures.keep(frame));
    }
}
