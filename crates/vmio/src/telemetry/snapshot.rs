//! The reader's side of a stat page: bytes in, numbers out. The bytes are another process's, and the reader trusts none
//! of them.

use crate::sys::PAGE_BYTES;
use crate::telemetry::counters::{Counter, NAMES, PageCounts, Stats};
use crate::telemetry::histogram::Histogram;
use crate::telemetry::layout::{self, Gauge, Header, Latency, WORD_BYTES};

/// The state and the counters of a cache at one moment.
///
/// The cache goes on while the reader takes the numbers one after the other, so they may differ by what happened in
/// between.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Snapshot {
    /// The ID of the process that the cache belongs to, in its own PID namespace.
    pub process_id: u32,
    /// The number of the cache in its process: 1 for the first one built. No number is used twice.
    pub cache_number: u64,
    /// When the cache was built, in nanoseconds since 1970.
    pub started_unix_ns: u64,
    /// Open mappings.
    pub mappings: u64,
    /// The sum of the mappings' lengths in bytes.
    pub mapped_bytes: u64,
    /// The statistics that [`crate::Cache::stats`] returns in the process itself.
    pub stats: Stats,
    /// Every miss, from the claim of its page until the page is mapped.
    ///
    /// This leaves out the trap itself (1 to 2 µs), and waiting for another thread's miss of the same page.
    pub miss: Histogram,
    /// Read requests to the backings; each core times one in [`Self::read_sampling`].
    pub read: Histogram,
    /// Write requests to the backings.
    pub write: Histogram,
    /// Syncs of a mapping or of a part of it, with the flush of the device.
    pub sync: Histogram,
    /// One in this many reads is timed.
    pub read_sampling: u64,
    counters: [u64; NAMES.len()],
}

/// The reason why bytes are not a readable stat page.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PageError {
    /// The cache is not built yet: it is writing the page at this moment.
    #[error("the stat page is still being written: try again")]
    Unfinished,
    /// The bytes are something else.
    #[error("not a stat page: it begins with {magic:#018x}")]
    NotAStatPage {
        /// The first word.
        magic: u64,
    },
    /// The process uses a vmio with another layout of the page.
    #[error("the process writes version {found} of the stat page, this reads version {known}: use its own `vmio`")]
    UnknownVersion {
        /// The version that the page names.
        found: u64,
        /// The version that this library reads.
        known: u64,
    },
    /// The length of the page is not the one in its header, or is impossible.
    #[error("the stat page has {found} bytes where {expected} are expected")]
    WrongLength {
        /// The length in bytes.
        found: u64,
        /// The expected length.
        expected: u64,
    },
    /// A field of the header contradicts another or has an impossible value.
    #[error("the stat page says {field} = {value}: {expected}")]
    BadField {
        /// The name of the field.
        field: &'static str,
        /// Its value.
        value: u64,
        /// The values that it may have.
        expected: &'static str,
    },
}

impl Snapshot {
    /// Reads a whole stat page.
    ///
    /// # Errors
    ///
    /// Each of [`PageError`].
    pub fn parse(bytes: &[u8]) -> Result<Snapshot, PageError> {
        let words = Words::check(bytes)?;
        let counted = words.header(Header::Counters) as usize;
        let counters: [u64; NAMES.len()] = std::array::from_fn(|counter| match counter < counted {
            true => words.sum(|core| layout::counter(core, counter)),
            // A cache of an earlier version does not count it.
            false => 0,
        });
        let capacity = words.header(Header::CapacityPages);
        let dirty = words.gauge(Gauge::DirtyPages) as i64;
        let free = words.gauge(Gauge::PooledPages).saturating_add(words.sum(layout::free_pages));
        let pages = PageCounts {
            capacity,
            // While the cache shrinks, more is resident than the page tells.
            owed: 0,
            free: free.min(capacity),
            dirty: dirty.max(0) as u64,
            pinned: words.gauge(Gauge::PinnedPages),
            tables: words.gauge(Gauge::TablePages),
            by_priority: std::array::from_fn(|class| match words.header(Header::PriorityClasses) {
                0 => 0,
                _ => (words.sum(|core| layout::resident(core, class)) as i64).max(0) as u64,
            }),
        };
        Ok(Snapshot {
            process_id: words.header(Header::ProcessId) as u32,
            cache_number: words.header(Header::CacheNumber),
            started_unix_ns: words.header(Header::StartedUnixNs),
            mappings: words.gauge(Gauge::Mappings),
            mapped_bytes: words.gauge(Gauge::MappedBytes),
            stats: Stats::gather(pages, |counter: Counter| counters[counter as usize]),
            miss: words.histogram(Latency::Miss),
            read: words.histogram(Latency::Read),
            write: words.histogram(Latency::Write),
            sync: words.histogram(Latency::Sync),
            read_sampling: words.header(Header::ReadSampling),
            counters,
        })
    }

    /// Returns a stat page with the same numbers for a cache with one core, to keep and parse later.
    pub fn page(&self) -> Vec<u8> {
        let mut words = vec![0; layout::file_bytes(1) / WORD_BYTES];
        let header = [
            (Header::Magic, layout::MAGIC),
            (Header::Version, layout::VERSION),
            (Header::FileBytes, layout::file_bytes(1) as u64),
            (Header::BlockBytes, layout::BLOCK_BYTES as u64),
            (Header::ProcessId, self.process_id.into()),
            (Header::CacheNumber, self.cache_number),
            (Header::StartedUnixNs, self.started_unix_ns),
            (Header::PageBytes, PAGE_BYTES as u64),
            (Header::CapacityPages, self.stats.capacity_pages),
            (Header::Cores, 1),
            (Header::Gauges, layout::GAUGES as u64),
            (Header::Counters, NAMES.len() as u64),
            (Header::Histograms, layout::LATENCIES as u64),
            (Header::Buckets, layout::BUCKETS as u64),
            (Header::ReadSampling, self.read_sampling),
            (Header::PriorityClasses, layout::PRIORITY_CLASSES as u64),
        ];
        header.into_iter().for_each(|(field, value)| words[field as usize] = value);
        let gauges = [
            (Gauge::PooledPages, self.stats.free_pages),
            (Gauge::DirtyPages, self.stats.dirty_pages),
            (Gauge::PinnedPages, self.stats.pinned_pages),
            (Gauge::Mappings, self.mappings),
            (Gauge::MappedBytes, self.mapped_bytes),
            (Gauge::TablePages, self.stats.table_pages),
        ];
        gauges.into_iter().for_each(|(gauge, value)| words[layout::gauge(gauge)] = value);
        self.counters.iter().enumerate().for_each(|(counter, value)| words[layout::counter(0, counter)] = *value);
        let by_priority = self.stats.resident_by_priority.into_iter().enumerate();
        by_priority.for_each(|(class, pages)| words[layout::resident(0, class)] = pages);
        for (number, histogram) in [&self.miss, &self.read, &self.write, &self.sync].into_iter().enumerate() {
            let start = layout::histogram(0, number);
            histogram.buckets().enumerate().for_each(|(bucket, (_, count))| words[start + bucket] = count);
            words[start + layout::SUM_NS] = histogram.sum_ns();
            words[start + layout::MAX_NS] = histogram.max_ns();
        }
        words.into_iter().flat_map(u64::to_le_bytes).collect()
    }

    /// Returns every counter with its name, in the order of the page.
    pub fn counters(&self) -> impl Iterator<Item = (&'static str, u64)> {
        NAMES.iter().copied().zip(self.counters)
    }
}

/// The words of a page whose header is valid: every word that the functions below ask for lies in the page.
struct Words<'a> {
    bytes: &'a [u8],
    cores: usize,
}

impl<'a> Words<'a> {
    /// Checks the whole header.
    fn check(bytes: &'a [u8]) -> Result<Self, PageError> {
        let header = |field: Header| word(bytes, field as usize);
        let found = bytes.len() as u64;
        // The magic and the version come first: of another version not even the length is known.
        if found < (2 * WORD_BYTES) as u64 {
            return Err(if found == 0 { PageError::Unfinished } else { wrong_length(found, layout::BLOCK_BYTES) });
        }
        match header(Header::Magic) {
            layout::MAGIC => {}
            0 => return Err(PageError::Unfinished),
            magic => return Err(PageError::NotAStatPage { magic }),
        }
        if header(Header::Version) != layout::VERSION {
            return Err(PageError::UnknownVersion { found: header(Header::Version), known: layout::VERSION });
        }
        if found < layout::BLOCK_BYTES as u64 {
            return Err(wrong_length(found, layout::BLOCK_BYTES));
        }
        for (field, name, range, expected) in FIELDS {
            let value = header(field);
            if !range.contains(&value) {
                return Err(PageError::BadField { field: name, value, expected });
            }
        }
        match header(Header::PriorityClasses) {
            // A cache of an earlier version does not count by priority.
            0 | PRIORITY_CLASSES => {}
            value => return Err(PageError::BadField { field: "priority_classes", value, expected: "0 or 8" }),
        }
        let cores = header(Header::Cores) as usize;
        let expected = layout::file_bytes(cores);
        if header(Header::FileBytes) != expected as u64 {
            let value = header(Header::FileBytes);
            return Err(PageError::BadField { field: "file_bytes", value, expected: "a block, and one more a core" });
        }
        if found != expected as u64 {
            return Err(wrong_length(found, expected));
        }
        Ok(Words { bytes, cores })
    }

    fn header(&self, field: Header) -> u64 {
        word(self.bytes, field as usize)
    }

    /// A gauge; 0 if the page is of an earlier version that does not have it.
    fn gauge(&self, gauge: Gauge) -> u64 {
        if (gauge as u64) < self.header(Header::Gauges) { word(self.bytes, layout::gauge(gauge)) } else { 0 }
    }

    fn sum(&self, index: impl Fn(usize) -> usize) -> u64 {
        (0..self.cores).fold(0, |sum, core| sum.wrapping_add(word(self.bytes, index(core))))
    }

    fn histogram(&self, latency: Latency) -> Histogram {
        let mut histogram = Histogram::default();
        if (latency as u64) < self.header(Header::Histograms) {
            for core in 0..self.cores {
                let start = layout::histogram(core, latency as usize);
                let buckets = (0..layout::BUCKETS).map(|bucket| word(self.bytes, start + bucket));
                let (sum, max) = (start + layout::SUM_NS, start + layout::MAX_NS);
                histogram.add(buckets, word(self.bytes, sum), word(self.bytes, max));
            }
        }
        histogram
    }
}

const PRIORITY_CLASSES: u64 = layout::PRIORITY_CLASSES as u64;

type Field = (Header, &'static str, std::ops::RangeInclusive<u64>, &'static str);

const FIELDS: [Field; 10] = [
    (Header::BlockBytes, "block_bytes", layout::BLOCK_BYTES as u64..=layout::BLOCK_BYTES as u64, "4096 in version 1"),
    (Header::ProcessId, "process_id", 1..=i32::MAX as u64, "a process's number"),
    (Header::PageBytes, "page_bytes", PAGE_BYTES as u64..=PAGE_BYTES as u64, "4096 in version 1"),
    (Header::CapacityPages, "capacity_pages", 1..=u32::MAX as u64, "1 to 2^32 - 1"),
    (Header::Cores, "cores", 1..=layout::CORES_MAX as u64, "1 to 8192"),
    (Header::Gauges, "gauges", 1..=layout::GAUGES_MAX as u64, "1 to 24"),
    (Header::Counters, "counters", 1..=layout::COUNTERS_MAX as u64, "1 to 112"),
    (Header::Histograms, "histograms", 1..=layout::HISTOGRAMS_MAX as u64, "1 to 4"),
    (Header::Buckets, "buckets", layout::BUCKETS as u64..=layout::BUCKETS as u64, "90 in version 1"),
    (Header::ReadSampling, "read_sampling", 1..=u32::MAX as u64, "1 to 2^32 - 1"),
];

fn wrong_length(found: u64, expected: usize) -> PageError {
    PageError::WrongLength { found, expected: expected as u64 }
}

/// A word; 0 behind the end. No access of a checked page lies there.
fn word(bytes: &[u8], index: usize) -> u64 {
    let start = index * WORD_BYTES;
    let word = bytes.get(start..start + WORD_BYTES).and_then(|word| word.try_into().ok());
    word.map_or(0, u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CORES: usize = 2;

    /// A page of two cores as another program would write it.
    fn page() -> Vec<u8> {
        let mut page = vec![0; 3 * 4096];
        page[..8].copy_from_slice(b"vmiostat");
        let header = [1, 3 * 4096, 4096, 77, 3, 1_000, 4096, 512, CORES as u64, 5, NAMES.len() as u64, 4, 90, 8];
        for (word, value) in (1..).zip(header) {
            set(&mut page, word, value);
        }
        page
    }

    fn set(page: &mut [u8], word: usize, value: u64) {
        page[word * 8..][..8].copy_from_slice(&value.to_le_bytes());
    }

    fn with(word: usize, value: u64) -> Result<Snapshot, PageError> {
        let mut page = page();
        set(&mut page, word, value);
        Snapshot::parse(&page)
    }

    #[test]
    fn every_number_is_found_where_the_document_says() {
        let mut page = page();
        // Gauges: pool, dirty, pinned, mappings, bytes; then the free pages of both cores.
        for (gauge, value) in [100, 20, 30, 2, 1 << 30].into_iter().enumerate() {
            set(&mut page, 128 + 16 * gauge, value);
        }
        set(&mut page, 512 + 112, 5);
        set(&mut page, 1024 + 112, 6);
        for counter in 0..NAMES.len() {
            set(&mut page, 512 + counter, 1 + counter as u64);
            set(&mut page, 1024 + counter, 1000);
        }
        for histogram in 0..4 {
            let start = 512 + 128 + 96 * histogram;
            set(&mut page, start + 1 + histogram, 9);
            set(&mut page, start + 90, 5000);
            set(&mut page, start + 91, 600);
        }
        let snapshot = Snapshot::parse(&page).expect("it is in order");
        assert_eq!((snapshot.process_id, snapshot.cache_number, snapshot.started_unix_ns), (77, 3, 1_000));
        assert_eq!((snapshot.mappings, snapshot.mapped_bytes, snapshot.read_sampling), (2, 1 << 30, 8));
        let stats = &snapshot.stats;
        assert_eq!((stats.capacity_pages, stats.free_pages, stats.resident_pages), (512, 111, 401));
        assert_eq!((stats.dirty_pages, stats.pinned_pages), (20, 30));
        assert_eq!((stats.load_misses, stats.store_misses, stats.miss_time.install_ns), (1001, 1002, 1026));
        assert!(snapshot.counters().map(|(_, value)| value).eq(1001..=1000 + NAMES.len() as u64));
        assert_eq!(snapshot.counters().last(), Some(("fetched_pages", 1029)));
        let ends = [&snapshot.miss, &snapshot.read, &snapshot.write, &snapshot.sync].map(|found| {
            assert_eq!((found.count(), found.sum_ns(), found.max_ns()), (9, 5000, 600));
            found.quantile_ns(0.5)
        });
        assert_eq!(ends, [Some(320), Some(384), Some(448), Some(512)]);
        let kept = Snapshot::parse(&snapshot.page()).expect("it is in order");
        assert_eq!(format!("{kept:?}"), format!("{snapshot:?}"));
    }

    #[test]
    fn resident_pages_are_told_apart_by_priority_where_they_are_counted() {
        let mut page = page();
        set(&mut page, 512 + 113 + 4, 30);
        // One core may give up pages that another has brought in.
        set(&mut page, 1024 + 113 + 4, (-20_i64) as u64);
        set(&mut page, 1024 + 113 + 7, (-1_i64) as u64);
        let earlier = Snapshot::parse(&page).expect("it is in order").stats;
        set(&mut page, 15, 8);
        let now = Snapshot::parse(&page).expect("it is in order");
        assert_eq!((earlier.resident_by_priority, now.stats.resident_by_priority), ([0; 8], [0, 0, 0, 0, 10, 0, 0, 0]));
        assert_eq!(Snapshot::parse(&now.page()).expect("it is in order").stats.resident_by_priority[4], 10);
        assert!(matches!(with(15, 9), Err(PageError::BadField { field: "priority_classes", value: 9, .. })));
    }

    #[test]
    fn what_is_no_page_is_refused() {
        assert_eq!(Snapshot::parse(&[]).err(), Some(PageError::Unfinished));
        assert_eq!(with(0, 0).err(), Some(PageError::Unfinished));
        assert_eq!(with(0, 5).err(), Some(PageError::NotAStatPage { magic: 5 }));
        assert_eq!(with(1, 2).err(), Some(PageError::UnknownVersion { found: 2, known: 1 }));
    }

    #[test]
    fn another_version_is_named_however_short_its_page_is() {
        let mut page = page();
        set(&mut page, 1, 9);
        assert_eq!(Snapshot::parse(&page[..64]).err(), Some(PageError::UnknownVersion { found: 9, known: 1 }));
    }

    #[test]
    fn a_page_that_was_cut_off_or_lengthened_is_refused() {
        let page = page();
        for len in [1, 15, 16, 4095, 4096, 8192, 3 * 4096 - 1] {
            let refused = Snapshot::parse(&page[..len]).err();
            assert!(matches!(refused, Some(PageError::WrongLength { found, .. }) if found == len as u64), "{len}");
        }
        assert!(Snapshot::parse(&[&page[..], &[0; 8]].concat()).is_err());
    }

    #[test]
    fn fields_that_cannot_be_true_are_refused_by_name() {
        let bad = [(2, "file_bytes"), (3, "block_bytes"), (4, "process_id"), (7, "page_bytes"), (8, "capacity_pages")];
        let counts = [
            (9, "cores"),
            (10, "gauges"),
            (11, "counters"),
            (12, "histograms"),
            (13, "buckets"),
            (14, "read_sampling"),
        ];
        for (word, name) in bad.into_iter().chain(counts) {
            for value in [0, u64::MAX] {
                let refused = with(word, value).err();
                assert!(matches!(refused, Some(PageError::BadField { field, .. }) if field == name), "{refused:?}");
            }
        }
    }

    #[test]
    fn more_and_fewer_counters_than_we_know_are_read_as_far_as_they_go() {
        let mut page = page();
        set(&mut page, 11, 1);
        set(&mut page, 512, 4);
        set(&mut page, 513, 5);
        let stats = Snapshot::parse(&page).expect("an earlier one").stats;
        assert_eq!((stats.load_misses, stats.store_misses), (4, 0));
        set(&mut page, 11, 112);
        let stats = Snapshot::parse(&page).expect("a later one").stats;
        assert_eq!((stats.load_misses, stats.store_misses), (4, 5));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(
            changes in proptest::collection::vec((0_usize..3 * 512, any::<u64>()), 0..40),
            len in 0_usize..=3 * 4096,
            share in any::<f64>(),
        ) {
            let mut page = page();
            changes.iter().for_each(|(word, value)| set(&mut page, *word, *value));
            for bytes in [&page[..], &page[..len]] {
                if let Ok(snapshot) = Snapshot::parse(bytes) {
                    prop_assert!(snapshot.stats.free_pages <= snapshot.stats.capacity_pages);
                    for histogram in [&snapshot.miss, &snapshot.read, &snapshot.write, &snapshot.sync] {
                        prop_assert!(histogram.quantile_ns(share).unwrap_or(0) <= histogram.max_ns());
                        prop_assert!(histogram.since(histogram).count() == 0);
                    }
                }
            }
        }
    }
}
