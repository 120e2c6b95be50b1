//! Strides: misses that are a constant distance apart, such as those of a column of a matrix. A region keeps them in a few
//! cache lines, each for the threads that hash to it: a thread that misses at random looks at a line that it has mostly to
//! itself.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// Lines; threads that share one may end each other's streams.
const LINES: usize = 16;
/// The number of misses that a line remembers, enough to find two streams that alternate.
const RECENT: usize = 8;
/// Misses at equal distances that make a stream. Of random misses in 8 MiB, fewer than one in 100 000 ends such a row by chance.
const ROW: usize = 5;
/// Streams of a line.
const STREAMS: usize = 3;
/// Pages, the longest distance: 16 MiB.
const STRIDE_MAX: u64 = 4096;
/// Pages to read ahead at the misses of a stream.
const WINDOWS: [u64; 5] = [2, 4, 8, 16, 31];

/// The streams of a region; all zeros is none.
#[derive(Default)]
pub struct Strides {
    lines: [Line; LINES],
}

/// The streams of the threads that hash to it. A hint: of two misses at the same time, the line may forget one.
#[derive(Default)]
#[repr(align(64))]
struct Line {
    streams: [AtomicU64; STREAMS],
    /// Page number plus one of the last misses that continued no stream; 0 is none.
    recent: [AtomicU32; RECENT],
    next: AtomicU32,
}

const _: () = assert!(size_of::<Line>() == 64 && STRIDE_MAX < 1 << (STRIDE_BITS - 1));

const STRIDE_BITS: u32 = 16;
const GROWN_BITS: u32 = 3;

/// A stream that a miss continues.
#[derive(Clone, Copy, Debug)]
pub struct Stride {
    /// From each page to the next.
    pub pages: i64,
    /// How many to read ahead.
    pub window: u64,
    line: usize,
    stream: usize,
    grown: u64,
}

impl Strides {
    /// The stream that a miss continues. The number `thread` tells the threads apart. The caller says with [`Self::keep`] how
    /// far it got.
    pub fn missed(&self, thread: usize, page: u64) -> Option<Stride> {
        let hash = thread.wrapping_mul(0x9e37_79b9_7f4a_7c15_usize) >> 32;
        let line = hash % LINES;
        let at = &self.lines[line];
        for (stream, word) in at.streams.iter().enumerate() {
            let (expected, pages, grown) = unpacked(word.load(Relaxed));
            if pages != 0 && expected == page {
                let window = WINDOWS[(grown as usize).min(WINDOWS.len() - 1)];
                return Some(Stride { pages, window, line, stream, grown: (grown + 1).min(WINDOWS.len() as u64 - 1) });
            }
        }
        let pages = at.stride_to(page);
        let next = at.next.load(Relaxed);
        at.next.store(next.wrapping_add(1), Relaxed);
        at.recent[next as usize % RECENT].store((page as u32).wrapping_add(1), Relaxed);
        let pages = pages?;
        Some(Stride { pages, window: WINDOWS[0], line, stream: next as usize % STREAMS, grown: 1 })
    }

    /// Notes that the pages of a stream up to this one have come, or need not come.
    pub fn keep(&self, stride: Stride, last: u64) {
        let word = &self.lines[stride.line].streams[stride.stream];
        let next = last.checked_add_signed(stride.pages);
        word.store(next.map_or(0, |next| packed(next, stride.pages, stride.grown)), Relaxed);
    }
}

impl Line {
    /// The distance between the misses of a row that ends with this one.
    fn stride_to(&self, page: u64) -> Option<i64> {
        let recent: [u32; RECENT] = std::array::from_fn(|at| self.recent[at].load(Relaxed));
        let end = (page as u32).wrapping_add(1);
        let is_row = |distance: u32| {
            (2..ROW as u32).all(|times| {
                let before = end.wrapping_sub(distance.wrapping_mul(times));
                before != 0 && recent.contains(&before)
            })
        };
        let distances = recent.into_iter().filter(|before| *before != 0).map(|before| end.wrapping_sub(before));
        let strides = distances.map(|distance| distance as i32);
        let rows = strides
            .filter(|stride| (1..=STRIDE_MAX).contains(&u64::from(stride.unsigned_abs())) && is_row(*stride as u32));
        // Every other page of a row is a row as well.
        rows.min_by_key(|stride| stride.unsigned_abs()).map(i64::from)
    }
}

fn packed(expected: u64, pages: i64, grown: u64) -> u64 {
    expected << (STRIDE_BITS + GROWN_BITS) | u64::from(pages as u16) << GROWN_BITS | grown
}

fn unpacked(word: u64) -> (u64, i64, u64) {
    let pages = (word >> GROWN_BITS) as u16 as i16;
    (word >> (STRIDE_BITS + GROWN_BITS), i64::from(pages), word & ((1 << GROWN_BITS) - 1))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The windows of the misses of a thread that touches these pages, if each miss reads ahead as far as it should.
    fn windows(strides: &Strides, thread: usize, pages: impl IntoIterator<Item = u64>) -> Vec<u64> {
        let mut present = std::collections::HashSet::new();
        let mut windows = Vec::new();
        for page in pages.into_iter() {
            if !present.insert(page) {
                continue;
            }
            windows.push(strides.missed(thread, page).map_or(0, |stride| {
                let ahead = |times: u64| page.checked_add_signed(stride.pages * times as i64);
                present.extend((1..=stride.window).filter_map(ahead));
                strides.keep(stride, ahead(stride.window).unwrap_or(page));
                stride.window
            }));
        }
        windows
    }

    #[test]
    fn the_window_grows_along_a_stream_up_and_down() {
        for stride in [1, 2, 4, 16, 512, 4096] {
            let up = (0..200).map(|step| 7 + step * stride);
            let down = (0..200).map(|step| 4096 * 200 - step * stride);
            let expected = [0, 0, 0, 0, 2, 4, 8, 16, 31, 31, 31, 31, 31, 31];
            assert_eq!(windows(&Strides::default(), 5, up), expected, "{stride}");
            assert_eq!(windows(&Strides::default(), 5, down), expected, "-{stride}");
        }
    }

    #[test]
    fn leaps_and_the_same_page_are_no_strides() {
        for stride in [4097, 1 << 20] {
            let pages = (0..100).map(|step| step * stride);
            assert!(windows(&Strides::default(), 5, pages).iter().all(|window| *window == 0), "{stride}");
        }
        assert!(windows(&Strides::default(), 5, [9; 50]).iter().all(|window| *window == 0));
    }

    #[test]
    fn two_streams_of_a_thread_and_those_of_two_threads_are_told_apart() {
        let pages = || (0..200).flat_map(|step| [7 + step * 16, 100_000 - step * 100]);
        let of_one = windows(&Strides::default(), 5, pages());
        assert!(of_one.len() <= 30, "{of_one:?}");
        let strides = Strides::default();
        let mut misses = 0;
        let mut ends = [0; 2];
        for step in 0..200_u64 {
            for (thread, page) in [(5, 50 + step * 16), (9, 51 + step * 16)] {
                if step >= ends[thread / 8] {
                    misses += 1;
                    let stride = strides.missed(thread, page);
                    ends[thread / 8] = step + 1 + stride.map_or(0, |stride| stride.window);
                    let last = |stride: Stride| page + (stride.window * 16);
                    stride.into_iter().for_each(|stride| strides.keep(stride, last(stride)));
                }
            }
        }
        assert!(misses <= 30, "{misses}");
    }

    #[test]
    fn a_stream_that_has_ended_is_replaced() {
        let strides = Strides::default();
        for start in 0..10 {
            let found = windows(&strides, 5, (0..100).map(|step| start * 10_000_000 + step * (3 + start)));
            assert!(found.len() <= 12, "{found:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_kept_is_what_was_found(expected in 0..1_u64 << 40, pages in -4096..=4096_i64, grown in 0..5_u64) {
            prop_assert_eq!(unpacked(packed(expected, pages, grown)), (expected, pages, grown));
        }
    }
}
