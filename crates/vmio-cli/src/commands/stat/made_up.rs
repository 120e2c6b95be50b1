//! Made-up stat pages for tests.

use vmio::PAGE_BYTES;
use vmio::telemetry::Snapshot;

/// Words of the only core's block.
const CORE: usize = PAGE_BYTES / 8;
/// Words of its histograms.
const HISTOGRAMS: usize = CORE + 128;

/// A stat page of a cache with one core, by the words of `docs/formats/stat-page.md`.
pub struct MadeUpPage {
    words: Vec<u64>,
}

impl MadeUpPage {
    /// A cache of 1000 pages without contents or counts.
    pub fn new(process_id: u32, cache_number: u64) -> Self {
        let mut words = vec![0; 2 * CORE];
        let magic = u64::from_le_bytes(*b"vmiostat");
        let (process_id, bytes) = (u64::from(process_id), 2 * PAGE_BYTES as u64);
        let header = [magic, 1, bytes, 4096, process_id, cache_number, 0, 4096, 1000, 1, 6, 29, 4, 90, 8, 8];
        words[..header.len()].copy_from_slice(&header);
        Self { words }.gauge(0, 1000)
    }

    /// Sets a gauge.
    pub fn gauge(mut self, number: usize, value: u64) -> Self {
        self.words[128 + 16 * number] = value;
        self
    }

    /// Sets a counter.
    pub fn counter(mut self, number: usize, value: u64) -> Self {
        self.words[CORE + number] = value;
        self
    }

    /// Sets the resident pages of an eighth of the priorities.
    pub fn resident(mut self, class: usize, pages: u64) -> Self {
        self.words[CORE + 113 + class] = pages;
        self
    }

    /// Adds `count` durations to a bucket of a histogram. The sum of all its durations is then `sum_ns`.
    pub fn durations(mut self, histogram: usize, bucket: usize, count: u64, sum_ns: u64) -> Self {
        let start = HISTOGRAMS + 96 * histogram;
        self.words[start + bucket] += count;
        self.words[start + 90] = sum_ns;
        self.words[start + 91] = u64::MAX;
        self
    }

    /// The snapshot that a reader gets from it.
    pub fn snapshot(&self) -> Snapshot {
        let bytes: Vec<u8> = self.words.iter().flat_map(|word| word.to_le_bytes()).collect();
        Snapshot::parse(&bytes).expect("it is in order")
    }
}
