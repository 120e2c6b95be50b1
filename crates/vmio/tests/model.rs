//! Random operations on several mappings of one tiny cache do to the bytes what they do to a `Vec<u8>`, never take
//! more memory than the budget, and leave files of exactly the right length and contents.

use std::ops::Range;
use std::path::{Path, PathBuf};

use futures::executor::block_on;
use proptest::prelude::*;
use vmio::backing::{Access, FileBacking, MemoryBacking};
use vmio::{Advice, Cache, Error, Mapping, MappingOptions, Pin, Unit};

use crate::support::{PAGE, check_budget, check_empty, is_managed, load_bytes, read, store_bytes, tiny_cache};

/// The mappings reach beyond the cache's 640 pages together, not alone.
const PAGES_MAX: u64 = 420;
const LENGTHS: [u64; 3] = [300 * PAGE + 123, 350 * PAGE - 1, 250 * PAGE + 512];
const PINS_MAX: usize = 4;

/// A place in a mapping, as a share of its length, and a length in bytes.
#[derive(Clone, Copy, Debug)]
struct Span {
    start: u16,
    bytes: u32,
}

impl Span {
    fn within(self, len: u64) -> Range<u64> {
        let start = len * u64::from(self.start) / (u64::from(u16::MAX) + 1);
        start..len.min(start + u64::from(self.bytes))
    }
}

#[derive(Clone, Copy, Debug)]
enum Operation {
    Read(Span),
    Write(Span, u8),
    Load(Span),
    Store(Span, u8),
    StoreBehindTheEnd(u8),
    Sync,
    SyncInBackground,
    Flush(Span),
    Advise(Span, Advice),
    AdviseAll(Advice),
    Pin(Span, bool),
    Unpin(usize),
    SetLen(u64),
    Residency(Span),
    Ensure(Span),
    Fetch(Span, Span),
    FetchAndForget(Span, Span),
    Prefetch(Span, Span),
    Reopen,
}

fn span() -> impl Strategy<Value = Span> {
    let bytes = prop_oneof![3 => 0..200_u32, 2 => 0..40_000_u32, 1 => 0..1_000_000_u32];
    (any::<u16>(), bytes).prop_map(|(start, bytes)| Span { start, bytes })
}

fn advice() -> impl Strategy<Value = Advice> {
    prop_oneof![
        Just(Advice::Normal),
        Just(Advice::Random),
        (0..200_000_u32).prop_map(|window_bytes| Advice::Sequential { window_bytes }),
        Just(Advice::WillNeed),
        Just(Advice::DontNeed),
        Just(Advice::Fresh),
        Just(Advice::Free),
        Just(Advice::Invalidate),
        any::<u8>().prop_map(Advice::Priority),
    ]
}

fn operation() -> impl Strategy<Value = Operation> {
    use Operation::*;
    let len = prop_oneof![
        (1..PAGES_MAX * PAGE).prop_map(|len| len),
        (1..PAGES_MAX).prop_map(|pages| pages * PAGE),
        (LENGTHS[0] - 2 * PAGE..LENGTHS[0] + 2 * PAGE).prop_map(|len| len),
    ];
    prop_oneof![
        3 => span().prop_map(Read),
        5 => (span(), any::<u8>()).prop_map(|(span, seed)| Write(span, seed)),
        4 => span().prop_map(Load),
        5 => (span(), any::<u8>()).prop_map(|(span, seed)| Store(span, seed)),
        1 => any::<u8>().prop_map(StoreBehindTheEnd),
        1 => Just(Sync),
        1 => Just(SyncInBackground),
        2 => span().prop_map(Flush),
        4 => (span(), advice()).prop_map(|(span, advice)| Advise(span, advice)),
        1 => advice().prop_map(AdviseAll),
        2 => (span(), any::<bool>()).prop_map(|(span, write)| Pin(Span { bytes: span.bytes % 120_000, ..span }, write)),
        2 => (0..PINS_MAX).prop_map(Unpin),
        2 => len.prop_map(SetLen),
        1 => span().prop_map(Residency),
        2 => span().prop_map(Ensure),
        2 => (span(), span()).prop_map(|(first, second)| Fetch(first, second)),
        2 => (span(), span()).prop_map(|(first, second)| FetchAndForget(first, second)),
        1 => (span(), span()).prop_map(|(first, second)| Prefetch(first, second)),
        1 => Just(Reopen),
    ]
}

/// Units of each length.
fn options(len: u64) -> MappingOptions {
    let units = [Unit::Kib4, Unit::Kib16, Unit::Kib64];
    MappingOptions::new().unit(units[(len % 11 % 3) as usize])
}

/// A mapping beside what it must hold: `None` is a byte of which nothing is known.
struct Modelled {
    map: Option<Mapping>,
    file: Option<PathBuf>,
    bytes: Vec<Option<u8>>,
    pins: Vec<(Range<u64>, Pin)>,
}

impl Modelled {
    fn over_file(cache: &Cache, path: &Path, len: u64) -> Self {
        let backing = FileBacking::create(path, len).unwrap();
        Modelled {
            map: Some(Mapping::open(cache, backing, options(len)).unwrap()),
            file: Some(path.to_owned()),
            bytes: vec![Some(0); len as usize],
            pins: Vec::new(),
        }
    }

    fn over_memory(cache: &Cache, len: u64) -> Self {
        let backing = MemoryBacking::new(len).unwrap();
        Modelled {
            map: Some(Mapping::open(cache, backing, options(len)).unwrap()),
            file: None,
            bytes: vec![Some(0); len as usize],
            pins: Vec::new(),
        }
    }

    fn map(&self) -> &Mapping {
        self.map.as_ref().unwrap()
    }

    fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn expect(&self, range: Range<u64>, found: &[u8], how: &str) {
        let expected = &self.bytes[range.start as usize..range.end as usize];
        let wrong =
            expected.iter().zip(found).position(|(expected, found)| expected.is_some_and(|byte| byte != *found));
        if let Some(wrong) = wrong {
            let (page, byte) = ((range.start + wrong as u64) / PAGE, (range.start + wrong as u64) % PAGE);
            let (found, expected) = (found[wrong], expected[wrong]);
            panic!("{how}: byte {byte} of page {page} of {len} bytes is {found}, not {expected:?}", len = self.len());
        }
    }

    fn put(&mut self, range: Range<u64>, data: &[u8]) {
        for (byte, new) in self.bytes[range.start as usize..range.end as usize].iter_mut().zip(data) {
            *byte = Some(*new);
        }
    }

    /// What lies in the pages wholly within the range becomes unknown.
    fn forget(&mut self, range: &Range<u64>) {
        let start = range.start.next_multiple_of(PAGE);
        let end = if range.end == self.len() { range.end } else { range.end / PAGE * PAGE };
        if start < end {
            self.bytes[start as usize..end as usize].fill(None);
        }
    }

    fn advise(&mut self, range: Range<u64>, advice: Advice) {
        self.map().advise(range.clone(), advice).unwrap();
        if matches!(advice, Advice::Fresh | Advice::Free | Advice::Invalidate) {
            self.forget(&range);
        }
    }

    fn set_len(&mut self, len: u64) {
        let first_cut_off = len.div_ceil(PAGE);
        let pinned = self.pins.iter().any(|(pages, _)| pages.end > first_cut_off && len < self.len());
        match self.map().set_len(len) {
            Ok(()) => {
                assert!(!pinned, "pinned pages were cut off");
                self.bytes.resize(len as usize, Some(0));
            }
            Err(error) => assert!(pinned && matches!(error, Error::Resize { .. }), "{error}"),
        }
        assert_eq!(self.map().len(), self.len());
    }

    /// The file holds exactly what the model does.
    fn check_file(&self) {
        let Some(file) = &self.file else { return };
        let found = std::fs::read(file).unwrap();
        assert_eq!(found.len() as u64, self.len(), "the file's length");
        self.expect(0..self.len(), &found, "the file after a close");
    }

    fn reopen(&mut self, cache: &Cache) {
        self.pins.clear();
        let Some(file) = self.file.clone() else { return self.map().sync().unwrap() };
        self.map.take().unwrap().close().unwrap();
        self.check_file();
        let backing = FileBacking::open(file, Access::ReadWrite).unwrap();
        self.map = Some(Mapping::open(cache, backing, options(self.len())).unwrap());
        assert_eq!(self.map().len(), self.len());
    }

    fn apply(&mut self, cache: &Cache, operation: Operation) {
        let len = self.len();
        match operation {
            Operation::Read(span) => {
                let range = span.within(len);
                self.expect(range.clone(), &read(self.map(), range).unwrap(), "read_at");
            }
            Operation::Load(span) => {
                let range = span.within(len);
                self.expect(range.clone(), &load_bytes(self.map(), range), "load");
            }
            Operation::Write(span, seed) => {
                let range = span.within(len);
                let data = pattern(&range, seed);
                self.map().write_at(range.start, &data).unwrap();
                self.put(range, &data);
            }
            Operation::Store(span, seed) => {
                let range = span.within(len);
                let data = pattern(&range, seed);
                store_bytes(self.map(), range.start, &data);
                self.put(range, &data);
            }
            Operation::StoreBehindTheEnd(seed) => {
                let garbage = vec![seed | 1; (len.next_multiple_of(PAGE) - len) as usize];
                store_bytes(self.map(), len, &garbage);
            }
            Operation::Sync => self.map().sync().unwrap(),
            Operation::SyncInBackground => self.map().sync_begin().unwrap().wait().unwrap(),
            Operation::Flush(span) => self.map().flush(span.within(len)).unwrap(),
            Operation::Advise(span, advice) => self.advise(span.within(len), advice),
            Operation::AdviseAll(advice) => self.advise(0..len, advice),
            Operation::Pin(span, write) => {
                let range = span.within(len);
                if self.pins.len() < PINS_MAX && !range.is_empty() {
                    let access = if write { Access::ReadWrite } else { Access::ReadOnly };
                    let pin = self.map().pin(range.clone(), access).unwrap();
                    assert_eq!(pin.as_mut_ptr().is_some(), write);
                    assert_eq!(pin.len() as u64, range.end - range.start);
                    self.pins.push((range.start / PAGE..range.end.div_ceil(PAGE), pin));
                }
            }
            Operation::Unpin(which) => {
                if which < self.pins.len() {
                    self.pins.swap_remove(which);
                }
            }
            Operation::SetLen(len) => self.set_len(len),
            Operation::Residency(span) => {
                let range = span.within(len);
                let residency = self.map().residency(range.clone());
                assert!(residency.resident_pages() <= residency.pages());
                assert!(!residency.is_resident(residency.pages()));
            }
            Operation::Ensure(span) => self.map().ensure(span.within(len)).unwrap(),
            Operation::Fetch(first, second) => {
                block_on(self.map().fetch([first.within(len), second.within(len)])).unwrap();
            }
            // What follows meets it under way.
            Operation::FetchAndForget(first, second) => {
                drop(self.map().fetch([first.within(len), second.within(len)]));
            }
            Operation::Prefetch(first, second) => {
                self.map().prefetch([first.within(len), second.within(len)]).unwrap();
            }
            Operation::Reopen => self.reopen(cache),
        }
        for (pages, _) in &self.pins {
            assert!(pages.clone().all(|page| self.map().is_resident(page * PAGE)), "a pinned page was evicted");
        }
    }
}

fn pattern(range: &Range<u64>, seed: u8) -> Vec<u8> {
    range.clone().map(|at| (at as u8).wrapping_mul(31).wrapping_add(seed) ^ (at >> 8) as u8).collect()
}

fn run(operations: Vec<(usize, Operation)>, over_files: usize) {
    let folder = tempfile::tempdir().unwrap();
    let cache = tiny_cache();
    let mut mappings: Vec<Modelled> = LENGTHS
        .iter()
        .enumerate()
        .map(|(number, len)| {
            if number < over_files || is_managed("a mapping of memory") {
                Modelled::over_file(&cache, &folder.path().join(number.to_string()), *len)
            } else {
                Modelled::over_memory(&cache, *len)
            }
        })
        .collect();
    for (which, operation) in operations {
        let count = mappings.len();
        mappings[which % count].apply(&cache, operation);
        check_budget(&cache, &mappings.iter().map(Modelled::map).collect::<Vec<_>>());
    }
    for modelled in &mut mappings {
        let range = 0..modelled.len();
        modelled.expect(range.clone(), &read(modelled.map(), range).unwrap(), "read_at at the end");
        modelled.pins.clear();
        modelled.map.take().unwrap().close().unwrap();
        modelled.check_file();
    }
    check_empty(&cache);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: test_depth::pick(32, 96), max_shrink_iters: 400, ..ProptestConfig::default() })]

    #[test]
    fn mappings_of_files_behave_like_vectors(
        operations in prop::collection::vec((0..3_usize, operation()), 1..80),
    ) {
        run(operations, 2);
    }

    #[test]
    fn mappings_of_memory_behave_like_vectors(
        operations in prop::collection::vec((0..3_usize, operation()), 1..120),
    ) {
        run(operations, 0);
    }
}
