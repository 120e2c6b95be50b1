//! Random operations at the several addresses of a file do to its bytes what they do to a `Vec<u8>`, with a cache that is
//! smaller than the file, and with views that come and go.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU8, Ordering};

use proptest::prelude::*;
use vmio::backing::FileBacking;
use vmio::{Access, Advice, Cache, Error, Mapping, Pin, View};

use crate::support::views::{available_for_files, options};
use crate::support::{PAGE, check_budget, check_empty, minimal_cache, read};

/// Two spans and a part, where the cache has 256 pages.
const LEN: u64 = 1100 * PAGE + 123;
const PAGES_MAX: u64 = 1300;
const VIEWS: usize = 3;
const PINS_MAX: usize = 3;

/// A place in the file, as a share of its length, and a length in bytes.
#[derive(Clone, Copy, Debug)]
struct Part {
    start: u16,
    bytes: u32,
}

impl Part {
    fn within(self, len: u64) -> Range<u64> {
        let start = len * u64::from(self.start) / (u64::from(u16::MAX) + 1);
        start..len.min(start + u64::from(self.bytes))
    }
}

#[derive(Clone, Copy, Debug)]
enum Operation {
    Load(usize, Part),
    Store(usize, Part, u8),
    /// A byte in each of the pages, loaded first: then the store does not trap.
    Touch(usize, Part, u8),
    Read(Part),
    Write(Part, u8),
    OpenView(usize),
    DropView(usize),
    Sync,
    Flush(Part),
    Advise(Part, Advice),
    Pin(usize, Part, bool),
    Unpin(usize),
    SetLen(u64),
    Reopen,
}

fn operation() -> impl Strategy<Value = Operation> {
    use Operation::*;
    let bytes = prop_oneof![3 => 0..200_u32, 2 => 0..40_000_u32, 1 => 0..1_500_000_u32];
    let part = (any::<u16>(), bytes).prop_map(|(start, bytes)| Part { start, bytes });
    let which = 0..=VIEWS;
    let advice = prop_oneof![
        3 => Just(Advice::DontNeed),
        1 => Just(Advice::WillNeed),
        1 => Just(Advice::Normal),
        1 => (0..200_000_u32).prop_map(|window_bytes| Advice::Sequential { window_bytes }),
        1 => Just(Advice::Free),
    ];
    prop_oneof![
        4 => (which.clone(), part.clone()).prop_map(|(which, part)| Load(which, part)),
        5 => (which.clone(), part.clone(), any::<u8>()).prop_map(|(which, part, seed)| Store(which, part, seed)),
        5 => (which.clone(), part.clone(), any::<u8>()).prop_map(|(which, part, seed)| Touch(which, part, seed)),
        1 => part.clone().prop_map(Read),
        1 => (part.clone(), any::<u8>()).prop_map(|(part, seed)| Write(part, seed)),
        3 => (0..VIEWS).prop_map(OpenView),
        2 => (0..VIEWS).prop_map(DropView),
        1 => Just(Sync),
        1 => part.clone().prop_map(Flush),
        2 => (part.clone(), advice).prop_map(|(part, advice)| Advise(part, advice)),
        1 => (which, part, any::<bool>())
            .prop_map(|(which, part, write)| Pin(which, Part { bytes: part.bytes % 120_000, ..part }, write)),
        1 => (0..PINS_MAX).prop_map(Unpin),
        1 => (1..PAGES_MAX * PAGE).prop_map(SetLen),
        1 => Just(Reopen),
    ]
}

/// The file beside what it must hold: `None` is a byte of which nothing is known.
struct Modelled {
    map: Option<Mapping>,
    views: [Option<View>; VIEWS],
    pins: Vec<(Range<u64>, Pin)>,
    path: PathBuf,
    bytes: Vec<Option<u8>>,
}

impl Modelled {
    fn map(&self) -> &Mapping {
        self.map.as_ref().unwrap()
    }

    fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// The first byte at the view of that number, or at the mapping's own addresses if it is not open.
    fn base(&self, which: usize) -> *mut u8 {
        let view = which.checked_sub(1).and_then(|view| self.views[view].as_ref());
        view.map_or_else(|| self.map().as_mut_ptr(), View::as_mut_ptr)
    }

    fn byte(&self, which: usize, offset: u64) -> &AtomicU8 {
        assert!(offset < self.len());
        // SAFETY: within a range that lives as long as the reference; only accessed as atomic.
        unsafe { AtomicU8::from_ptr(self.base(which).add(offset as usize)) }
    }

    fn expect(&self, start: u64, found: impl Iterator<Item = u8>, how: &str) {
        for (offset, found) in (start..).zip(found) {
            let expected = self.bytes[offset as usize];
            let right = expected.is_none_or(|expected| expected == found);
            assert!(right, "{how}: byte {} of page {} is {found}, not {expected:?}", offset % PAGE, offset / PAGE);
        }
    }

    fn check_file(&self) {
        let found = std::fs::read(&self.path).unwrap();
        assert_eq!(found.len() as u64, self.len(), "the file's length");
        self.expect(0, found.into_iter(), "the file");
    }

    fn close(&mut self) {
        self.pins.clear();
        self.views = Default::default();
        self.map.take().unwrap().close().unwrap();
        self.check_file();
    }

    fn set_len(&mut self, len: u64) {
        let pinned = len < self.len() && self.pins.iter().any(|(pages, _)| pages.end > len.div_ceil(PAGE));
        match self.map().set_len(len) {
            Ok(()) => {
                assert!(!pinned, "pinned pages were cut off");
                self.bytes.resize(len as usize, Some(0));
            }
            Err(error) => assert!(pinned && matches!(error, Error::Resize { .. }), "{error}"),
        }
    }

    fn pin(&mut self, which: usize, range: Range<u64>, access: Access) {
        if self.pins.len() == PINS_MAX || range.is_empty() {
            return;
        }
        let view = which.checked_sub(1).and_then(|view| self.views[view].as_ref());
        let pin = view.map_or_else(|| self.map().pin(range.clone(), access), |view| view.pin(range.clone(), access));
        let pin = pin.unwrap();
        assert_eq!(pin.as_ptr(), self.base(which).wrapping_add(range.start as usize).cast_const());
        self.pins.push((range.start / PAGE..range.end.div_ceil(PAGE), pin));
    }

    fn apply(&mut self, cache: &Cache, operation: Operation) {
        let len = self.len();
        match operation {
            Operation::Load(which, part) => {
                let range = part.within(len);
                let found = range.clone().map(|offset| self.byte(which, offset).load(Ordering::Relaxed));
                self.expect(range.start, found, "a load");
            }
            Operation::Store(which, part, seed) => {
                for offset in part.within(len) {
                    let byte = seed.wrapping_add(offset as u8);
                    self.byte(which, offset).store(byte, Ordering::Relaxed);
                    self.bytes[offset as usize] = Some(byte);
                }
            }
            Operation::Touch(which, part, seed) => {
                for offset in part.within(len).step_by(PAGE as usize) {
                    let before = self.byte(which, offset).load(Ordering::Relaxed);
                    self.expect(offset, [before].into_iter(), "a load before a store");
                    self.byte(which, offset).store(seed, Ordering::Relaxed);
                    self.bytes[offset as usize] = Some(seed);
                }
            }
            Operation::Read(part) => {
                let range = part.within(len);
                self.expect(range.start, read(self.map(), range).unwrap().into_iter(), "read_at");
            }
            Operation::Write(part, seed) => {
                let range = part.within(len);
                let data = vec![seed; (range.end - range.start) as usize];
                self.map().write_at(range.start, &data).unwrap();
                self.bytes[range.start as usize..range.end as usize].fill(Some(seed));
            }
            Operation::OpenView(which) => self.views[which] = Some(self.map().view().unwrap()),
            Operation::DropView(which) => self.views[which] = None,
            Operation::Sync => {
                self.map().sync().unwrap();
                self.check_file();
            }
            Operation::Flush(part) => {
                let range = part.within(len);
                self.map().flush(range.clone()).unwrap();
                let found = std::fs::read(&self.path).unwrap();
                self.expect(range.start, found[range.start as usize..range.end as usize].iter().copied(), "flushed");
            }
            Operation::Advise(part, advice) => {
                let range = part.within(len);
                self.map().advise(range.clone(), advice).unwrap();
                let end = if range.end == len { len } else { range.end / PAGE * PAGE };
                let start = range.start.next_multiple_of(PAGE);
                if advice == Advice::Free && start < end {
                    self.bytes[start as usize..end as usize].fill(None);
                }
            }
            Operation::Pin(which, part, write) => {
                self.pin(which, part.within(len), if write { Access::ReadWrite } else { Access::ReadOnly });
            }
            Operation::Unpin(which) if which < self.pins.len() => drop(self.pins.swap_remove(which)),
            Operation::Unpin(_) => {}
            Operation::SetLen(len) => self.set_len(len),
            Operation::Reopen => {
                self.close();
                self.map = Some(
                    Mapping::open(cache, FileBacking::open(&self.path, Access::ReadWrite).unwrap(), options()).unwrap(),
                );
            }
        }
    }
}

fn run(operations: Vec<Operation>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let cache = minimal_cache();
    let map = Mapping::open(&cache, FileBacking::create(&path, LEN).unwrap(), options()).unwrap();
    let bytes = vec![Some(0); LEN as usize];
    let mut file = Modelled { map: Some(map), views: Default::default(), pins: Vec::new(), path, bytes };
    for operation in operations {
        file.apply(&cache, operation);
        check_budget(&cache, &[file.map()]);
        let pinned = file.pins.iter().flat_map(|(pages, _)| pages.clone());
        pinned.for_each(|page| assert!(file.map().is_resident(page * PAGE), "a pinned page was evicted"));
    }
    file.close();
    check_empty(&cache);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: test_depth::pick(24, 64), max_shrink_iters: 300, ..ProptestConfig::default() })]

    #[test]
    fn a_file_at_several_addresses_behaves_like_one_vector(
        operations in prop::collection::vec(operation(), 1..80),
    ) {
        if available_for_files() {
            run(operations);
        }
    }
}
