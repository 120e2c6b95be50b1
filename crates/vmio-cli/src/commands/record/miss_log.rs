//! The places of a cache's misses in its files, over time: counts in a grid of bounded size, which becomes coarser if necessary.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use serde_big_array::BigArray;
use vmio::PAGE_BYTES;
use vmio::telemetry::{Miss, PublishedMapping};
use vmio_report::randomness::{Access, Distances};

/// Mappings of a cache with a grid of their own; misses of further ones only have a total.
const MAPPINGS_MAX: usize = 8;
/// Rows of a mapping's grid, which have the same number of pages, a power of two.
pub const ROWS: usize = 64;
/// The most periods of time; beyond this number the log merges neighbouring periods.
const PERIODS_MAX: usize = 160;

/// The misses that a [`Distances`] counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Kind {
    /// Every miss.
    All,
    /// Misses of loads.
    Loads,
    /// Misses of stores.
    Stores,
}

/// The misses of a cache. `docs/formats/recording.md` describes their saved form.
#[derive(Serialize, Deserialize)]
pub struct MissLog {
    /// The mappings that had misses or were opened, in the order of their pages.
    pub mappings: Vec<MappingLog>,
    /// Misses that the cache overwrote before they were read.
    pub lost: u64,
    /// Misses of further mappings.
    pub left_out: u64,
    /// When each period ended, in seconds; the first began at `began`.
    #[serde(rename = "ends_s")]
    ends: Vec<f64>,
    #[serde(rename = "began_s")]
    began: f64,
}

/// The misses of a mapping.
#[derive(Serialize, Deserialize)]
pub struct MappingLog {
    /// Its number in misses.
    #[serde(skip)]
    pages: Range<u64>,
    /// The known pages of the file.
    file_pages: u64,
    /// The pages of a row.
    pages_per_row: u64,
    /// One for each period, and one for the present period.
    periods: Vec<Period>,
    /// The last miss of each [`Kind`].
    #[serde(skip)]
    previous: [Option<u64>; 3],
}

/// The misses of a mapping in a period of time.
#[derive(Clone, Serialize, Deserialize)]
struct Period {
    #[serde(with = "BigArray")]
    misses: [u64; ROWS],
    distances: [Distances; 3],
}

impl Period {
    const NONE: Self = Self { misses: [0; ROWS], distances: [Distances::NONE; 3] };

    fn add(&mut self, other: &Self) {
        self.misses.iter_mut().zip(other.misses).for_each(|(sum, misses)| *sum += misses);
        self.distances.iter_mut().zip(other.distances).for_each(|(sum, distances)| *sum += distances);
    }
}

impl MissLog {
    /// The log of a cache that was built at this time.
    pub fn new(began: f64) -> Self {
        Self { mappings: Vec::new(), lost: 0, left_out: 0, ends: Vec::new(), began }
    }

    /// Adds the mappings that exist by now.
    pub fn know_mappings(&mut self, mappings: Vec<PublishedMapping>) {
        for PublishedMapping { pages, len } in mappings {
            let has_room = self.mappings.len() < MAPPINGS_MAX;
            match self.mappings.iter_mut().find(|known| known.pages.end == pages.end) {
                Some(known) => known.pages = pages,
                None if has_room => self.mappings.push(MappingLog::new(pages, len, self.ends.len() + 1)),
                None => {}
            }
        }
        self.mappings.sort_by_key(|mapping| mapping.pages.start);
    }

    /// Counts a miss in the present period.
    pub fn add(&mut self, miss: Miss) {
        match self.mappings.iter_mut().find(|mapping| mapping.pages.contains(&miss.page)) {
            Some(mapping) => mapping.add(miss.page - mapping.pages.start, miss.store),
            None => self.left_out += 1,
        }
    }

    /// Ends a period.
    pub fn end_period(&mut self, at: f64) {
        self.ends.push(at);
        self.mappings.iter_mut().for_each(|mapping| mapping.periods.push(Period::NONE));
        if self.ends.len() == PERIODS_MAX {
            self.ends = self.ends.chunks(2).filter_map(|pair| pair.last()).copied().collect();
            self.mappings.iter_mut().for_each(MappingLog::join_periods);
        }
    }

    /// Checks whether it is consistent, since it may come from a file.
    pub fn check(&self) -> Result<(), &'static str> {
        let bounds: Vec<f64> = std::iter::once(self.began).chain(self.ends.iter().copied()).collect();
        let is_whole = |mapping: &MappingLog| mapping.periods.len() == bounds.len();
        if !bounds.iter().all(|at| at.is_finite()) || !bounds.is_sorted() {
            Err("the periods do not follow each other")
        } else if self.ends.len() >= PERIODS_MAX || self.mappings.len() > MAPPINGS_MAX {
            Err("it has too many periods or mappings")
        } else if !self.mappings.iter().all(is_whole) {
            Err("a mapping has the wrong number of periods")
        } else if !self.mappings.iter().all(MappingLog::has_rows_for_its_file) {
            Err("the rows of a mapping do not match its file")
        } else {
            Ok(())
        }
    }

    /// The beginning and end of each period.
    pub fn periods(&self) -> impl Iterator<Item = (f64, f64)> {
        std::iter::once(self.began).chain(self.ends.iter().copied()).zip(self.ends.iter().copied())
    }
}

impl MappingLog {
    fn new(pages: Range<u64>, len: u64, periods: usize) -> Self {
        let file_pages = len.div_ceil(PAGE_BYTES as u64).max(1);
        let pages_per_row = file_pages.div_ceil(ROWS as u64).next_power_of_two();
        Self { pages, file_pages, pages_per_row, periods: vec![Period::NONE; periods], previous: [None; 3] }
    }

    fn add(&mut self, page: u64, is_store: bool) {
        // A file may grow.
        self.file_pages = self.file_pages.max(page + 1);
        while page / self.pages_per_row >= ROWS as u64 {
            self.join_rows();
        }
        let row = (page / self.pages_per_row) as usize;
        let Some(period) = self.periods.last_mut() else { return };
        period.misses[row] += 1;
        for kind in [Kind::All, if is_store { Kind::Stores } else { Kind::Loads }] {
            if let Some(previous) = self.previous[kind as usize].replace(page) {
                let access = |page| Access { page, pages: 1 };
                period.distances[kind as usize] += Distances::between(access(previous), access(page));
            }
        }
    }

    fn join_rows(&mut self) {
        self.pages_per_row *= 2;
        for period in &mut self.periods {
            let misses = period.misses;
            let joined = |row: usize| misses.get(2 * row..2 * row + 2).map_or(0, |pair| pair.iter().sum());
            period.misses = std::array::from_fn(joined);
        }
    }

    fn join_periods(&mut self) {
        let Some(under_way) = self.periods.pop() else { return };
        let pairs = self.periods.chunks(2).map(|pair| {
            let mut sum = Period::NONE;
            pair.iter().for_each(|period| sum.add(period));
            sum
        });
        self.periods = pairs.chain([under_way]).collect();
    }

    fn has_rows_for_its_file(&self) -> bool {
        const PAGES_MAX: u64 = u64::MAX / PAGE_BYTES as u64 / ROWS as u64 / 2;
        let rows = self.pages_per_row.is_power_of_two().then(|| self.file_pages.div_ceil(self.pages_per_row));
        (1..=PAGES_MAX).contains(&self.file_pages)
            && rows.is_some_and(|rows| rows <= ROWS as u64)
            && self.pages_per_row <= PAGES_MAX
    }

    /// The length of the file in bytes, to the page.
    pub fn file_bytes(&self) -> u64 {
        self.file_pages * PAGE_BYTES as u64
    }

    /// The bytes of the file in each row.
    pub fn row_bytes(&self) -> u64 {
        self.pages_per_row * PAGE_BYTES as u64
    }

    /// The misses of each row, for each period that has ended.
    pub fn misses(&self) -> impl Iterator<Item = &[u64; ROWS]> {
        self.ended().map(|period| &period.misses)
    }

    /// The metric R of each ended period; `None` if it had too few misses.
    pub fn randomness(&self, kind: Kind) -> impl Iterator<Item = Option<f64>> {
        const MISSES_MIN: u64 = 10;
        self.ended().map(move |period| {
            let distances = period.distances[kind as usize];
            if distances.accessed_pages() < MISSES_MIN { None } else { distances.randomness(self.file_pages) }
        })
    }

    fn ended(&self) -> impl Iterator<Item = &Period> {
        self.periods.iter().take(self.periods.len().saturating_sub(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB_PAGES: u64 = 1 << 18;

    /// A log of two files, of 1000 and 64 pages.
    fn log() -> MissLog {
        let mut log = MissLog::new(1.0);
        let mapping = |start, pages: u64| PublishedMapping { pages: start..start + GIB_PAGES, len: pages * 4096 };
        log.know_mappings(vec![mapping(0, 1000), mapping(GIB_PAGES, 64)]);
        log
    }

    fn add(log: &mut MissLog, pages: impl IntoIterator<Item = u64>, store: bool) {
        pages.into_iter().for_each(|page| log.add(Miss { page, store }));
    }

    fn total(mapping: &MappingLog) -> u64 {
        mapping.misses().flatten().sum()
    }

    #[test]
    fn misses_are_counted_where_and_when_they_were() {
        let mut log = log();
        add(&mut log, [0, 15, 16, 999, GIB_PAGES + 3], false);
        log.end_period(2.0);
        add(&mut log, [999], true);
        log.end_period(3.0);
        assert_eq!(log.periods().collect::<Vec<_>>(), [(1.0, 2.0), (2.0, 3.0)]);
        assert_eq!((log.mappings[0].row_bytes(), log.mappings[0].file_bytes()), (16 * 4096, 1000 * 4096));
        let rows: Vec<_> = log.mappings[0].misses().map(|rows| [rows[0], rows[1], rows[62], rows[63]]).collect();
        assert_eq!(rows, [[2, 1, 1, 0], [0, 0, 1, 0]]);
        assert_eq!(log.mappings[1].misses().map(|rows| rows[3]).collect::<Vec<_>>(), [1, 0]);
    }

    #[test]
    fn a_file_that_grows_keeps_what_was_counted() {
        let mut log = log();
        add(&mut log, GIB_PAGES..GIB_PAGES + 64, false);
        log.end_period(2.0);
        add(&mut log, [GIB_PAGES + 64 * 16], false);
        log.end_period(3.0);
        let grown = &log.mappings[1];
        assert_eq!((grown.row_bytes(), grown.file_bytes(), total(grown)), (32 * 4096, (64 * 16 + 1) * 4096, 65));
        assert_eq!(
            grown.misses().map(|rows| [rows[0], rows[1], rows[32]]).collect::<Vec<_>>(),
            [[32, 32, 0], [0, 0, 1]]
        );
    }

    #[test]
    fn time_grows_coarser_and_nothing_is_lost() {
        let mut log = log();
        for period in 0..1000_u64 {
            add(&mut log, [period, period], period % 2 == 1);
            log.end_period(2.0 + period as f64);
        }
        let periods: Vec<_> = log.periods().collect();
        assert!((PERIODS_MAX / 2..PERIODS_MAX).contains(&periods.len()), "{}", periods.len());
        assert!(periods.windows(2).all(|pair| pair[0].1 == pair[1].0 && pair[0].1 > pair[0].0));
        assert_eq!((periods[0].0, periods[periods.len() - 1].1), (1.0, 1001.0));
        assert_eq!((total(&log.mappings[0]), log.mappings[0].misses().count()), (2000, periods.len()));
    }

    #[test]
    fn randomness_tells_loads_from_stores() {
        let mut log = log();
        add(&mut log, 0..500, false);
        // Stores from end to end.
        add(&mut log, (0..20).map(|turn| turn % 2 * 999), true);
        add(&mut log, GIB_PAGES..GIB_PAGES + 5, false);
        log.end_period(2.0);
        let of = |kind| log.mappings[0].randomness(kind).next().flatten().unwrap();
        assert!(of(Kind::Loads) < 0.002 && of(Kind::Stores) > 0.99, "{} {}", of(Kind::Loads), of(Kind::Stores));
        assert!((of(Kind::Loads)..of(Kind::Stores)).contains(&of(Kind::All)));
        assert_eq!(log.mappings[1].randomness(Kind::All).collect::<Vec<_>>(), [None], "too few");
    }

    #[test]
    fn what_is_beyond_the_mappings_that_are_told_apart_is_counted() {
        let mut log = MissLog::new(0.0);
        let mapping = |number: u64| PublishedMapping { pages: number * 10..number * 10 + 10, len: 4096 };
        log.know_mappings((0..20).map(mapping).collect());
        add(&mut log, [5, 195], false);
        assert_eq!((log.mappings.len(), log.left_out), (MAPPINGS_MAX, 1));
    }
}
