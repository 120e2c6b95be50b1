//! Page tables against a model, without a machine.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize};

use super::*;

const PHYSICAL: u64 = 4 << 30;
const TABLES_MAX: usize = GIB / PAGE_BYTES;

impl PageTables {
    /// Leaves no table that was never in use; returns where they begin.
    pub(crate) fn use_up(&self) -> usize {
        let _taken = self.lock.take();
        // SAFETY: the lock is held.
        let spare = unsafe { &mut *self.spare.get() };
        std::mem::replace(&mut spare.fresh, self.memory.len())
    }

    /// Ends that.
    pub(crate) fn give_back(&self, fresh: usize) {
        let _taken = self.lock.take();
        // SAFETY: the lock is held.
        unsafe { &mut *self.spare.get() }.fresh = fresh;
    }

    /// Tables in use, and tables that wait for a shootdown.
    fn in_use(&self) -> (usize, usize) {
        let _taken = self.lock.take();
        // SAFETY: the lock is held.
        let spare = unsafe { &*self.spare.get() };
        let length = |mut table: usize| {
            let mut tables = 0;
            while table != 0 {
                table = self.table(table)[0].load(Ordering::Relaxed) as usize;
                tables += 1;
                assert!(tables < TABLES_MAX, "a list goes in a circle");
            }
            tables
        };
        let (free, detached) = (length(spare.free), length(spare.detached));
        assert_eq!((free, detached), (spare.kept, spare.waiting));
        let free = free + spare.empty;
        (spare.fresh / PAGE_BYTES - free - detached, detached)
    }
}

/// A generator of numbers that look random (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end as u64) as usize
    }
}

#[test]
fn entries_of_a_range_are_those_of_its_tables() {
    let tables = PageTables::new(PHYSICAL).unwrap();
    let start = 3 * GIB - 2 * LARGE_PAGE_BYTES;
    tables.manage(start..start + 4 * LARGE_PAGE_BYTES, Rights::ReadWrite).unwrap();
    // Of the second and third large page, on both sides of a gigabyte's end.
    for large in [1, 2] {
        let first = start + large * LARGE_PAGE_BYTES;
        for page in 0..512 {
            let place = tables.make_page_entry(first + page * PAGE_BYTES).unwrap();
            place.store(((large * 512 + page) as u64) << 12, Ordering::Relaxed);
        }
    }
    let numbers = |pages: Range<usize>| -> Vec<u64> {
        let entries = tables.page_entries(start + pages.start * PAGE_BYTES..start + pages.end * PAGE_BYTES);
        entries.map(|place| place.load(Ordering::Relaxed) >> 12).collect()
    };
    assert_eq!(numbers(0..2048), (512..1536).collect::<Vec<_>>());
    assert_eq!(numbers(1000..1030), (1000..1030).collect::<Vec<_>>());
    assert_eq!(numbers(510..513), [512]);
    assert_eq!(numbers(700..700), []);
}

#[test]
fn eight_tebibytes_take_sixteen_tables_until_they_are_touched() {
    let tables = PageTables::new(PHYSICAL).unwrap();
    let (start, len) = (GIB << 9, 8 << 40);
    tables.manage(start..start + len, Rights::ReadWrite).unwrap();
    assert_eq!(tables.in_use(), (1 + 16, 0));
    assert_eq!(tables.with_page_table(start..start + len).next(), None);
    for number in 0..100 {
        let address = start + number * 79 * GIB + number * PAGE_BYTES;
        assert_eq!(tables.responsible(address), entry::MANAGED);
        tables.make_page_entry(address).unwrap().store(1, Ordering::Relaxed);
        // Its neighbours in the gigabyte are managed as before.
        assert_eq!(tables.responsible(address + 8 * LARGE_PAGE_BYTES), entry::MANAGED);
    }
    assert_eq!(tables.in_use(), (1 + 16 + 2 * 100, 0));
    assert_eq!(tables.with_page_table(start..start + len).count(), 100);
    tables.release(start..start + len, |_| None);
    assert_eq!(tables.in_use().1, 100);
    tables.free_detached(1, || ());
    // The directories stay.
    assert_eq!(tables.in_use(), (1 + 16 + 100, 0));
    assert_eq!(tables.responsible(start), 0);
}

/// Managed ranges, whole gigabytes or parts, with entries in them.
#[derive(Default)]
struct Model {
    /// By the number of the large page: whether stores are ever allowed.
    managed: BTreeMap<usize, bool>,
    /// By the number of the page.
    entries: BTreeMap<usize, u64>,
    /// The gigabytes that the machine has.
    gigabytes: BTreeSet<usize>,
}

impl Model {
    fn responsible(&self, large: usize) -> (bool, bool, bool) {
        let stores = self.managed.get(&large);
        let is_large = stores.is_none() && self.gigabytes.contains(&(large / 512));
        (stores.is_some(), stores == Some(&false), is_large)
    }

    fn check(&self, tables: &PageTables, large: usize) {
        let held = tables.responsible(large * LARGE_PAGE_BYTES);
        let has = |bits| held & bits == bits;
        let seen = (has(entry::MANAGED), has(entry::READ_ONLY), has(entry::LARGE_PAGE));
        assert_eq!(seen, self.responsible(large), "large page {large}: {held:#x}");
    }
}

#[test]
fn they_say_what_the_model_says() {
    const GIGABYTES: usize = 6;
    let base = 511 * GIB - GIB * 3;
    for seed in test_depth::seeds(20, 400) {
        let mut random = Random(seed * 2 + 1);
        let tables = PageTables::new(PHYSICAL).unwrap();
        let mut model = Model::default();
        let mut ranges: Vec<Range<usize>> = Vec::new();
        for step in 0..400 {
            let large = base / LARGE_PAGE_BYTES + random.below(GIGABYTES * 512);
            match random.below(8) {
                0 => {
                    // Whole gigabytes often, so that they need no directory.
                    let (first, end) = if random.below(2) == 0 {
                        (large / 512 * 512, (large / 512 + 1 + random.below(2)) * 512)
                    } else {
                        (large, large + 1 + random.below(700))
                    };
                    if model.managed.range(first..end).next().is_none() {
                        let (most, stores) = [(Rights::Read, false), (Rights::ReadWrite, true)][random.below(2)];
                        tables.manage(first * LARGE_PAGE_BYTES..end * LARGE_PAGE_BYTES, most).unwrap();
                        model.managed.extend((first..end).map(|large| (large, stores)));
                        ranges.push(first..end);
                    }
                }
                1 if !ranges.is_empty() => {
                    let range = ranges.swap_remove(random.below(ranges.len()));
                    let pages = range.start * 512..range.end * 512;
                    let has = tables.with_page_table(range.start * LARGE_PAGE_BYTES..range.end * LARGE_PAGE_BYTES);
                    let has: BTreeSet<usize> = has.map(|large| large / LARGE_PAGE_BYTES).collect();
                    for (page, _) in model.entries.extract_if(pages, |_, _| true) {
                        assert!(has.contains(&(page / 512)));
                        tables.page_entry(page * PAGE_BYTES).unwrap().store(0, Ordering::Relaxed);
                    }
                    let physical = |address: usize| {
                        model.gigabytes.contains(&(address / GIB)).then_some(address as u64 & entry::ADDRESS)
                    };
                    tables.release(range.start * LARGE_PAGE_BYTES..range.end * LARGE_PAGE_BYTES, physical);
                    range.for_each(|large| _ = model.managed.remove(&large));
                }
                2 => {
                    if model.gigabytes.insert(large / 512) {
                        tables.map_gigabyte(large / 512 * GIB, (large / 512 * GIB) as u64).unwrap();
                    }
                }
                3 => {
                    let [first, end] = [large / 2 * 2, large / 2 * 2 + 2];
                    let tables_there = tables.with_page_table(first * LARGE_PAGE_BYTES..end * LARGE_PAGE_BYTES).count();
                    let used: BTreeSet<_> =
                        model.entries.range(first * 512..end * 512).map(|(page, _)| page / 512).collect();
                    let detached = tables.detach_empty(first * LARGE_PAGE_BYTES..end * LARGE_PAGE_BYTES);
                    assert_eq!(detached, tables_there - used.len());
                }
                4 => _ = tables.free_detached(1, || ()),
                _ => {
                    let page = large * 512 + random.below(512);
                    match tables.make_page_entry(page * PAGE_BYTES) {
                        Ok(place) => {
                            assert!(model.managed.contains_key(&large));
                            assert_eq!(place.load(Ordering::Relaxed), model.entries.get(&page).copied().unwrap_or(0));
                            let value = [0, (seed << 32 | step) * 2 + 1][random.below(2)];
                            place.store(value, Ordering::Relaxed);
                            match value {
                                0 => _ = model.entries.remove(&page),
                                value => _ = model.entries.insert(page, value),
                            }
                        }
                        Err(error) => {
                            assert!(matches!(error, Error::NotManaged { .. }), "{error}");
                            assert!(!model.managed.contains_key(&large));
                        }
                    }
                }
            }
            model.check(&tables, large);
        }
        (base / LARGE_PAGE_BYTES..).take((GIGABYTES + 2) * 512).for_each(|large| model.check(&tables, large));
        for (page, value) in &model.entries {
            assert_eq!(tables.page_entry(page * PAGE_BYTES).unwrap().load(Ordering::Relaxed), *value);
        }
    }
}

/// Threads map pages, and give tables back, each in spans of its own. Entries that another thread changes would show.
#[test]
fn threads_that_give_tables_back_get_no_table_of_others() {
    const THREADS: usize = 3;
    let tables = PageTables::new(PHYSICAL).unwrap();
    let start = 100 * GIB;
    tables.manage(start..start + 2 * GIB, Rights::ReadWrite).unwrap();
    let is_over = AtomicBool::new(false);
    let most = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (tables, most) = (&tables, &most);
                scope.spawn(move || {
                    let mut random = Random(thread as u64 + 1);
                    for round in 1..test_depth::pick(3000, 50_000) {
                        let large = start + (random.below(300) * THREADS + thread) * LARGE_PAGE_BYTES;
                        let value = (round as u64 * THREADS as u64 + thread as u64) * 2 + 1;
                        let pages: Vec<usize> =
                            (0..3).map(|part| large + (part * 170 + random.below(170)) * PAGE_BYTES).collect();
                        for page in &pages {
                            assert_eq!(tables.make_page_entry(*page).unwrap().swap(value, Ordering::Relaxed), 0);
                        }
                        for page in &pages {
                            assert_eq!(tables.page_entry(*page).unwrap().swap(0, Ordering::Relaxed), value);
                        }
                        if random.below(3) > 0 {
                            assert_eq!(tables.detach_empty(large..large + LARGE_PAGE_BYTES), 1);
                            tables.free_detached(1, || ());
                        }
                        most.fetch_max(tables.in_use().0, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        // One that looks at addresses as system calls do.
        scope.spawn(|| {
            let mut random = Random(77);
            while !is_over.load(Ordering::Relaxed) {
                let address = start + random.below(2 * GIB);
                assert_ne!(tables.responsible(address) & entry::MANAGED, 0);
            }
        });
        let ended: Vec<_> = workers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        is_over.store(true, Ordering::Relaxed);
        ended.into_iter().for_each(|ended| ended.unwrap());
    });
    println!("{} tables at most", most.load(Ordering::Relaxed));
    tables.detach_empty(start..start + 2 * GIB);
    tables.free_detached(1, || ());
    assert_eq!(tables.in_use(), (1 + 1 + 2, 0));
}
