//! Where a program reads on in a file, found from how many pages of each stretch have come in.
//!
//! Where accesses are scattered, the kernel should read one page at a miss. Many pages of a stretch that come in within
//! a short time show that the program goes through it. The kernel then reads the rest of the stretch, and a growing
//! number of those that follow, before the program comes to them. Such a series of stretches is a *stream*.
//!
//! If the program is faster than the reader thread, a miss in a stream reads a whole stretch. Files that are mapped for
//! loads alone begin that way, until scattered accesses show.

use std::iter;
use std::ops::Range;

/// The least number of pages of a stretch that come in within a period if the program goes through it. (For a small
/// stretch: a quarter of it.)
const DENSE: u64 = 8;
/// The stretch must also exceed the average stretch by this factor.
const DENSER: u64 = 4;
/// Streams of a file that are followed at the same time.
const STREAMS_MAX: usize = 8;
/// Stretches before a stream in which a miss reads a whole stretch: enough for the time that the reclaimer may be away
/// on busy cores.
const COURSE: u64 = 32;
/// Neighbouring stretches that make a stream for certain, at first; and at most, after streams that turned out to be
/// chance.
const LENGTH_SURE: u32 = 3;
const LENGTH_SURE_MAX: u32 = 96;
/// Looks at a stream that must have found whole stretches worthwhile.
const WORTHWHILE_SURE: u32 = 2;
/// Stretches that came in whole and beside no other, after which a miss reads one page again.
const SCATTERED_MAX: u32 = 8;
/// Ranges of a file in which a miss reads a whole stretch. Each may cost the kernel two areas, of which a process has
/// 65,530.
const WHOLE_RANGES_MAX: usize = 1024;
/// After this many misses for each stretch that is not in memory, a file that fits is read as a whole. Page by page it
/// would soon have cost as much.
const MISSES_A_STRETCH: u64 = 2;

/// A stretch in which pages have come in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grown {
    pub(super) stretch: u64,
    /// Pages that came in during this period.
    pub(super) pages: u64,
    /// The longest run of neighbours that are mapped.
    pub(super) run: u64,
    /// Whether the program has advised that accesses go upwards.
    pub(super) is_sequential: bool,
}

/// The state of the file and the cache at a look.
#[derive(Clone, Copy, Debug)]
pub(super) struct Surroundings {
    pub(super) stretch_pages: u64,
    /// Stretches that the file has.
    pub(super) stretches: u64,
    /// How many whole stretches are not in memory.
    pub(super) absent: u64,
    /// The most stretches that may be read ahead of a stream.
    pub(super) window_max: u64,
    /// Stretches for which there is space without giving anything up.
    pub(super) room: u64,
}

/// Stretches that the program goes through one after the other.
#[derive(Debug)]
struct Stream {
    last: u64,
    /// How many stretches it went through.
    length: u32,
    /// How often enough of a stretch came in to make reading all of it worthwhile.
    worthwhile: u32,
    is_downward: bool,
    window: u64,
    /// Stretches up to this one (or down to it) have been asked for.
    asked: u64,
    /// The look at which it last went on.
    used: u64,
}

/// The reads and settings that follow from a look.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    /// Stretches to read now.
    pub(super) read: Vec<Range<u64>>,
    /// Stretches in which a miss is to read the whole stretch.
    pub(super) whole: Vec<Range<u64>>,
    /// Whether a miss is to read one page again, everywhere in the file.
    pub(super) by_page: bool,
    /// `Some(true)`: the kernel is to read around misses as usual from now on; `Some(false)`: no longer.
    pub(super) usual: Option<bool>,
}

impl Plan {
    /// Takes a stretch out of those that a miss is to read as a whole.
    pub(super) fn keep_from_whole(&mut self, stretch: u64) {
        self.whole = without(self.whole.drain(..), &(stretch..stretch + 1));
    }
}

/// The pattern of accesses to a file.
#[derive(Debug)]
pub(super) struct Pattern {
    streams: Vec<Stream>,
    looks: u64,
    /// Pages that came in since the file was last read as a whole.
    misses: u64,
    /// Whether the kernel reads around misses.
    is_usual: bool,
    /// Whether a miss may read a whole stretch.
    may_be_whole: bool,
    /// The stretches that a miss reads as a whole, in ascending ranges that do not touch.
    whole: Vec<Range<u64>>,
    /// Stretches that came in whole and alone, less those that came in beside another, since misses read whole
    /// stretches.
    scattered: u32,
    /// Neighbouring stretches after which misses read whole stretches.
    sure: u32,
    /// Pages of a stretch that a program must need to make reading all of it worthwhile.
    break_even_pages: u64,
}

impl Default for Pattern {
    fn default() -> Self {
        Pattern {
            streams: Vec::new(),
            looks: 0,
            misses: 0,
            is_usual: false,
            may_be_whole: false,
            whole: Vec::new(),
            scattered: 0,
            sure: LENGTH_SURE,
            break_even_pages: 0,
        }
    }
}

impl Pattern {
    /// The pattern of a new file. Stretches before `whole_until` are read as a whole at first; with `None`, no stretch
    /// ever is. A program that needs `break_even_pages` of a stretch is served best by all of it.
    pub(super) fn new(whole_until: Option<u64>, break_even_pages: u64) -> Self {
        let whole = whole_until.filter(|until| *until > 0).map(|until| 0..until).into_iter().collect();
        Pattern { may_be_whole: whole_until.is_some(), whole, break_even_pages, ..Pattern::default() }
    }

    /// Takes in the arrivals since the last look; `period_pages` is all arrivals since the period began. A store to a
    /// huge page makes all of it dirty, so a stretch that the program has stored to must not come in as one.
    pub(super) fn look(
        &mut self,
        grown: &[Grown],
        period_pages: u64,
        around: Surroundings,
        is_stored: impl Fn(u64) -> bool,
    ) -> Plan {
        self.looks += 1;
        let dense = least_dense(around.stretch_pages) + period_pages * DENSER / around.stretches.max(1);
        let mut plan = Plan::default();
        for grown in grown {
            let mut is_whole = self.reads_whole(grown.stretch);
            if is_whole && is_stored(grown.stretch) {
                is_whole = false;
                self.read_by_page(&mut plan);
            }
            if is_whole || grown.pages >= dense || grown.is_sequential {
                self.go_on(*grown, (is_whole, &is_stored), around, &mut plan);
            }
        }
        plan
    }

    /// Whether this many pages in a stretch may belong to a stream.
    pub(super) fn is_dense(pages: u64, stretch_pages: u64) -> bool {
        pages >= least_dense(stretch_pages)
    }

    fn go_on(
        &mut self,
        grown: Grown,
        (is_whole, is_stored): (bool, &impl Fn(u64) -> bool),
        around: Surroundings,
        plan: &mut Plan,
    ) {
        let (at, looks) = (grown.stretch, self.looks);
        if let Some(stream) = self.streams.iter_mut().find(|stream| at.abs_diff(stream.last) <= 1) {
            stream.used = looks;
            if at != stream.last {
                stream.set_direction(at);
            }
            // A stretch that came in alone because a miss reads all of it says nothing.
            stream.worthwhile += u32::from(is_whole || grown.pages.max(grown.run) >= self.break_even_pages);
            if at == stream.last {
                return;
            }
            (stream.last, stream.length) = (at, stream.length + 1);
            stream.window = (stream.window * 2).min(around.window_max).max(1);
            plan.read.extend(stream.ask(around.stretches));
            let (length, is_worthwhile) = (stream.length, stream.worthwhile >= WORTHWHILE_SURE);
            let ahead = stream.course(around.stretches);
            if length >= 2 * self.sure {
                self.sure = (self.sure / 2).max(LENGTH_SURE);
            }
            if length >= self.sure {
                // Two neighbours may be chance.
                self.scattered = self.scattered.saturating_sub(1);
                if is_worthwhile && self.may_be_whole && !is_stored(at) {
                    self.read_whole(ahead, plan);
                }
            }
            return;
        }
        let window = if grown.is_sequential { around.window_max.max(1) } else { 1 };
        let mut stream =
            Stream { last: at, length: 1, worthwhile: 0, is_downward: false, window, asked: at, used: looks };
        if grown.is_sequential || (!is_whole && grown.run >= least_dense(around.stretch_pages)) {
            // The rest of its first stretch comes in, too.
            plan.read.push(at..stream.ask(around.stretches).map_or(at + 1, |ahead| ahead.end));
        } else if is_whole {
            self.scattered += 1;
            if self.scattered >= SCATTERED_MAX {
                self.scattered = 0;
                self.read_by_page(plan);
                // Of many stretches that come in at random, some are neighbours by chance.
                self.sure = (2 * self.sure).min(LENGTH_SURE_MAX);
            }
        }
        if self.streams.len() == STREAMS_MAX
            && let Some(oldest) = (0..STREAMS_MAX).min_by_key(|index| self.streams[*index].used)
        {
            self.streams.swap_remove(oldest);
        }
        self.streams.push(stream);
    }

    /// Whether a miss in the stretch reads all of it.
    pub(super) fn reads_whole(&self, stretch: u64) -> bool {
        let after = self.whole.partition_point(|range| range.start <= stretch);
        after > 0 && self.whole[after - 1].contains(&stretch)
    }

    /// Makes misses read single pages everywhere.
    fn read_by_page(&mut self, plan: &mut Plan) {
        plan.by_page = true;
        plan.whole.clear();
        self.whole.clear();
    }

    /// Stops reading stretches as a whole, since the program advises how it will read them.
    pub(super) fn forget_whole(&mut self, stretches: &Range<u64>) {
        self.whole = without(self.whole.drain(..), stretches);
    }

    /// Makes misses read whole stretches where a stream will come.
    pub(super) fn read_whole(&mut self, ahead: Range<u64>, plan: &mut Plan) {
        let is_far_enough =
            |pattern: &Self| ahead.is_empty() || pattern.reads_whole(ahead.start + (ahead.end - ahead.start) / 2);
        if !self.may_be_whole || self.whole.len() >= WHOLE_RANGES_MAX || is_far_enough(self) {
            return;
        }
        // Merges the range with those that it touches.
        let first = self.whole.partition_point(|range| range.end < ahead.start);
        let last = self.whole.partition_point(|range| range.start <= ahead.end);
        let touched = &self.whole[first..last];
        let start = touched.first().map_or(ahead.start, |range| range.start.min(ahead.start));
        let end = touched.last().map_or(ahead.end, |range| range.end.max(ahead.end));
        self.whole.splice(first..last, iter::once(start..end));
        plan.whole.push(ahead);
    }

    /// Whether the kernel should read around misses, if that has changed. If a file fits, the program will use what the
    /// kernel reads.
    pub(super) fn reads_usually(&mut self, around: Surroundings) -> Option<bool> {
        let is_usual = around.room > if self.is_usual { 0 } else { around.absent };
        (is_usual != self.is_usual).then(|| {
            self.is_usual = is_usual;
            is_usual
        })
    }

    /// Whether the kernel reads around misses.
    pub(super) fn is_usual(&self) -> bool {
        self.is_usual
    }

    /// Takes in pages that came in one by one. Returns whether the file fits and is better read as a whole by now.
    pub(super) fn warms_up(&mut self, misses: u64, around: Surroundings) -> bool {
        self.misses += misses;
        let is_worth_it = misses > 0
            && around.absent > 0
            && around.absent < around.room
            && self.misses > around.absent * MISSES_A_STRETCH;
        if is_worth_it {
            self.misses = 0;
        }
        is_worth_it
    }
}

impl Stream {
    /// Notes that the stream goes to `at` next; a change of direction begins it anew.
    fn set_direction(&mut self, at: u64) {
        let is_downward = at < self.last;
        if is_downward != self.is_downward {
            (self.is_downward, self.window, self.asked, self.length, self.worthwhile) = (is_downward, 1, at, 1, 0);
        }
    }

    /// The stretches to which it comes next if it goes on.
    fn course(&self, stretches: u64) -> Range<u64> {
        match self.is_downward {
            false => self.last + 1..(self.last + 1 + COURSE).min(stretches).max(self.last + 1),
            true => self.last.saturating_sub(COURSE)..self.last,
        }
    }

    /// The stretches of its window that have not been asked for yet.
    fn ask(&mut self, stretches: u64) -> Option<Range<u64>> {
        let ahead = match self.is_downward {
            false => {
                let until = (self.last + 1 + self.window).min(stretches);
                let from = self.asked.max(self.last) + 1;
                self.asked = self.asked.max(until.saturating_sub(1));
                from..until
            }
            true => {
                let from = self.last.saturating_sub(self.window);
                let until = self.asked.min(self.last);
                self.asked = self.asked.min(from);
                from..until
            }
        };
        (!ahead.is_empty()).then_some(ahead)
    }
}

/// `ranges` without the part that `one` covers.
fn without(ranges: impl Iterator<Item = Range<u64>>, one: &Range<u64>) -> Vec<Range<u64>> {
    let parts = ranges.flat_map(|range| [range.start..range.end.min(one.start), range.start.max(one.end)..range.end]);
    parts.filter(|part| !part.is_empty()).collect()
}

fn least_dense(stretch_pages: u64) -> u64 {
    DENSE.min(stretch_pages / 4)
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)] // Plans are lists of ranges.
mod tests {
    use super::*;

    const AROUND: Surroundings =
        Surroundings { stretch_pages: 512, stretches: 1000, absent: 1000, window_max: 4, room: 0 };

    fn dense(stretch: u64) -> Grown {
        Grown { stretch, pages: 20, run: 20, is_sequential: false }
    }

    fn look(pattern: &mut Pattern, stretch: u64) -> Vec<Range<u64>> {
        pattern.look(&[dense(stretch)], 20, AROUND, |_| false).read
    }

    #[test]
    fn more_and_more_is_read_ahead_of_who_goes_up() {
        let mut pattern = Pattern::default();
        assert_eq!(look(&mut pattern, 10), [10..12]);
        assert_eq!(look(&mut pattern, 10), []);
        assert_eq!(look(&mut pattern, 11), [12..14]);
        assert_eq!(look(&mut pattern, 12), [14..17]);
        assert_eq!(look(&mut pattern, 13), [17..18]);
        assert_eq!(look(&mut pattern, 14), [18..19]);
        assert_eq!(look(&mut pattern, 15), [19..20]);
        assert_eq!(pattern.look(&[dense(16), dense(17)], 40, AROUND, |_| false).read, [20..21, 21..22]);
    }

    #[test]
    fn who_goes_down_is_followed() {
        let mut pattern = Pattern::default();
        assert_eq!(look(&mut pattern, 10), [10..12]);
        assert_eq!(look(&mut pattern, 9), [7..9]);
        assert_eq!(look(&mut pattern, 8), [4..7]);
        assert_eq!(look(&mut pattern, 7), [3..4]);
    }

    #[test]
    fn nothing_is_read_beyond_either_end() {
        let mut pattern = Pattern::default();
        assert_eq!(look(&mut pattern, 999), [999..1000]);
        let mut pattern = Pattern::default();
        assert_eq!(look(&mut pattern, 1), [1..3]);
        assert_eq!(look(&mut pattern, 0), []);
    }

    #[test]
    fn accesses_that_jump_about_bring_nothing_else() {
        let mut pattern = Pattern::default();
        let scattered: Vec<_> =
            (0..300).map(|index| Grown { stretch: index * 3, pages: 7, run: 2, is_sequential: false }).collect();
        assert_eq!(pattern.look(&scattered, 2100, AROUND, |_| false), Plan::default());
        // Many pages, but not more than in any other stretch.
        let busy: Vec<_> =
            (0..1000).map(|stretch| Grown { stretch, pages: 30, run: 30, is_sequential: false }).collect();
        assert_eq!(pattern.look(&busy, 30_000, AROUND, |_| false), Plan::default());
    }

    #[test]
    fn a_stretch_that_is_much_used_is_no_stream_yet() {
        let mut pattern = Pattern::default();
        let busy = |stretch| Grown { run: 3, ..dense(stretch) };
        assert_eq!(pattern.look(&[busy(7)], 20, AROUND, |_| false), Plan::default());
        // A stretch beside another is: the program may read at equal distances.
        assert_eq!(pattern.look(&[busy(8)], 20, AROUND, |_| false).read, [9..11]);
    }

    #[test]
    fn who_was_promised_to_go_up_is_believed() {
        let mut pattern = Pattern::default();
        let first = Grown { stretch: 3, pages: 1, run: 1, is_sequential: true };
        assert_eq!(pattern.look(&[first], 1, AROUND, |_| false).read, [3..8]);
    }

    #[test]
    fn eight_streams_at_a_time() {
        let mut pattern = Pattern::default();
        for stream in 0..=STREAMS_MAX as u64 {
            assert_eq!(look(&mut pattern, stream * 50), [stream * 50..stream * 50 + 2]);
        }
        // The first stream is forgotten, the second is not.
        assert_eq!(look(&mut pattern, 51), [52..54]);
        assert_eq!(look(&mut pattern, 1), [1..3]);
    }

    #[test]
    fn misses_read_whole_stretches_before_a_stream() {
        let mut pattern = Pattern::new(Some(0), 0);
        let mut whole = |stretch| pattern.look(&[dense(stretch)], 20, AROUND, |_| false).whole;
        assert_eq!((whole(10), whole(11), whole(12)), (vec![], vec![], vec![13..45]));
        assert!((13..=27).all(|stretch| whole(stretch).is_empty()));
        assert_eq!(whole(28), [29..61]);
        assert_eq!(pattern.whole, [13..61]);
    }

    #[test]
    fn a_file_read_in_whole_stretches_is_not_if_accesses_jump_about() {
        let mut pattern = Pattern::new(Some(1000), 0);
        let mut look = |stretch| pattern.look(&[Grown { pages: 512, ..dense(stretch) }], 512, AROUND, |_| false);
        // The first says nothing yet.
        assert_eq!(look(0), Plan::default());
        assert_eq!(look(1), Plan { read: vec![2..4], ..Plan::default() });
        for jump in 2..SCATTERED_MAX.into() {
            assert_eq!(look(100 + 10 * jump), Plan::default());
        }
        assert_eq!(look(500), Plan { by_page: true, ..Plan::default() });
        assert_eq!(pattern.whole, []);
    }

    /// On a fast device whole stretches and single pages came in alternately: Annoy's searches read eight times as much
    /// as plain mmap.
    #[test]
    fn chance_neighbours_bring_whole_stretches_ever_more_seldom() {
        let mut pattern = Pattern::new(Some(1000), 0);
        let mut times_whole = 0;
        let mut random = 88_172_645_463_325_252_u64;
        for _ in 0..3000 {
            let mut grown: Vec<_> = (0..30)
                .map(|_| {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    random % 200
                })
                .collect();
            grown.sort_unstable();
            grown.dedup();
            let grown: Vec<_> = grown.into_iter().map(dense).collect();
            times_whole += usize::from(!pattern.look(&grown, 600, AROUND, |_| false).whole.is_empty());
        }
        assert!(times_whole < 40, "{times_whole} times");
        // In the end a real scan counts as one, and sooner the next time.
        let around = Surroundings { stretches: 100_000, ..AROUND };
        let mut whole_at = |pass: u64| {
            let stretches = (0..900).map(|at| dense(at + pass * 10_000));
            let whole: Vec<_> = stretches.map(|grown| pattern.look(&[grown], 20, around, |_| false).whole).collect();
            whole.iter().position(|ahead| !ahead.is_empty())
        };
        let (first, second) = (whole_at(1), whole_at(2));
        assert!(first.is_some_and(|at| at < 100) && second < first, "{first:?}, then {second:?}");
    }

    #[test]
    fn on_a_fast_device_whole_stretches_come_in_where_most_of_them_is_wanted() {
        let mut pattern = Pattern::new(Some(0), 200);
        for stretch in 10..60 {
            assert!(pattern.look(&[dense(stretch)], 20, AROUND, |_| false).whole.is_empty());
        }
        let full = |stretch| Grown { pages: 300, run: 300, ..dense(stretch) };
        let whole: Vec<_> =
            (100..106).map(|stretch| pattern.look(&[full(stretch)], 20, AROUND, |_| false).whole).collect();
        assert_eq!(whole[..3], [vec![], vec![], vec![103..135]]);
    }

    #[test]
    fn where_the_program_stores_nothing_comes_in_whole() {
        let mut pattern = Pattern::new(Some(0), 0);
        for stretch in 10..20 {
            let plan = pattern.look(&[dense(stretch)], 20, AROUND, |_| true);
            assert!(!plan.read.is_empty() && plan.whole.is_empty() && !plan.by_page, "{plan:?}");
        }
        // The program has only loaded from these so far, and then stores.
        (100..104).for_each(|stretch| _ = pattern.look(&[dense(stretch)], 20, AROUND, |_| false));
        assert!(pattern.reads_whole(104));
        assert!(pattern.look(&[dense(104)], 20, AROUND, |stretch| stretch == 104).by_page);
        assert_eq!(pattern.whole, []);
    }

    #[test]
    fn what_the_program_speaks_of_comes_in_whole_no_more() {
        let mut pattern = Pattern::new(Some(100), 0);
        pattern.forget_whole(&(10..20));
        pattern.forget_whole(&(90..200));
        assert_eq!(pattern.whole, [0..10, 20..90]);
        pattern.forget_whole(&(0..25));
        assert_eq!(pattern.whole, [25..90]);
    }

    #[test]
    fn the_kernel_reads_around_misses_while_there_is_room() {
        let mut pattern = Pattern::default();
        let around = Surroundings { absent: 8, room: 8, ..AROUND };
        assert_eq!(pattern.reads_usually(around), None);
        assert_eq!(pattern.reads_usually(Surroundings { room: 9, ..around }), Some(true));
        assert_eq!(pattern.reads_usually(Surroundings { room: 1, ..around }), None);
        assert_eq!(pattern.reads_usually(Surroundings { room: 0, ..around }), Some(false));
    }

    #[test]
    fn a_file_that_fits_is_read_as_a_whole_after_some_misses() {
        let mut pattern = Pattern::default();
        let around = Surroundings { absent: 8, room: 20, ..AROUND };
        assert!(!pattern.warms_up(8 * MISSES_A_STRETCH, around));
        assert!(!pattern.warms_up(1, Surroundings { room: 8, ..around }));
        assert!(!pattern.warms_up(0, around) && pattern.warms_up(1, around));
        assert!(!pattern.warms_up(1, around) && !pattern.warms_up(100, Surroundings { absent: 0, ..around }));
    }
}
