//! Sequences: misses that follow one another, and how far to read ahead of them. The span where the last miss ended keeps the
//! sequence in 16 bits. So a random miss costs a load and a store to a cache line that it owns already, and sequences need to
//! know nothing of threads.

/// Where the pages of a span's last miss ended (or began, if they go down), and how many misses in a row have gone on where the
/// miss before had stopped. All zeros is no sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sequence(u16);

/// Pages to read at a miss that follows none, one, two others, and so on. Two in a row may be chance: one in 512 random misses
/// of a span follows the one before.
const WINDOWS: [u64; 7] = [1, 1, 2, 4, 8, 16, 32];
/// A long sequence counts the spans that came in whole, up to this many.
const SPANS_MAX: usize = 5;
const FULL: usize = WINDOWS.len() - 1;
const END_BITS: u32 = 10;
const DOWN: u16 = 1 << END_BITS;
const FOLLOWED_SHIFT: u32 = END_BITS + 1;

const _: () = assert!(super::SPAN_PAGES < 1 << END_BITS && FULL + SPANS_MAX < 1 << (u16::BITS - FOLLOWED_SHIFT));

impl Sequence {
    /// A sequence that has gone through many spans.
    pub const LONGEST: Self = Self::up(FULL + SPANS_MAX);

    /// The inverse of [`Self::bits`].
    #[inline]
    pub fn from_bits(bits: u16) -> Self {
        Sequence(bits)
    }

    /// The sequence in 16 bits, for the span to keep.
    #[inline]
    pub fn bits(self) -> u16 {
        self.0
    }

    /// The sequence after a miss of the page with this number within the span; the number behind the last page means the next
    /// span's first.
    #[inline]
    pub fn missed_at(self, place: u64) -> Self {
        // Of a single miss nobody knows the direction.
        let reverses = self.followed() == 0 && !self.goes_down() && self.end() == place + 2;
        if reverses || self.goes_down() && self.end() == place + 1 {
            Sequence(self.once_more().0 | DOWN)
        } else if self.ends_at(place) {
            self.once_more()
        } else {
            Sequence::default()
        }
    }

    /// The sequence after a miss of the last page of the span below.
    #[inline]
    pub fn missed_below(self) -> Self {
        if self.goes_down() && self.end() == 0 { Sequence(self.once_more().0 | DOWN) } else { Sequence::default() }
    }

    /// The number of pages to read at its last miss.
    #[inline]
    pub fn window(self) -> u64 {
        WINDOWS[self.followed().min(FULL)]
    }

    /// Whether its window has grown as far as it does.
    #[inline]
    pub fn is_long(self) -> bool {
        self.followed() >= FULL
    }

    /// The sequence after a whole span has come in for it.
    #[inline]
    pub fn with_span(self) -> Self {
        Self::up((self.followed().max(FULL) + 1).min(FULL + SPANS_MAX))
    }

    /// How many spans to read ahead of it: hardly more than it has gone through.
    #[inline]
    pub fn spans_ahead(self) -> u64 {
        1 << self.followed().saturating_sub(FULL) >> 2
    }

    /// Whether its last miss, going up, ended here. At a span's start none has.
    #[inline]
    pub fn ends_at(self, place: u64) -> bool {
        !self.goes_down() && self.end() == place && place > 0
    }

    /// Whether each miss is of the page before those of the last one.
    #[inline]
    pub fn goes_down(self) -> bool {
        self.0 & DOWN != 0
    }

    /// Whether there was a miss before the last one.
    #[inline]
    pub fn is_row(self) -> bool {
        self.followed() > 0
    }

    /// The same sequence, whose last page is the one before this; going down, this is its first page.
    #[inline]
    pub fn ending_at(self, place: u64) -> Self {
        Sequence(self.0 >> END_BITS << END_BITS | place as u16)
    }

    fn end(self) -> u64 {
        u64::from(self.0 & ((1 << END_BITS) - 1))
    }

    fn followed(self) -> usize {
        usize::from(self.0 >> FOLLOWED_SHIFT)
    }

    /// The sequence with one miss more, as far as that matters.
    fn once_more(self) -> Self {
        Self::up((self.followed() + 1).min(self.followed().max(FULL)))
    }

    const fn up(followed: usize) -> Self {
        Sequence((followed as u16) << FOLLOWED_SHIFT)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::page::SPAN_PAGES;

    #[test]
    fn the_window_grows_while_misses_follow_and_is_one_page_again_when_they_do_not() {
        let mut sequence = Sequence::default();
        let mut at = 7;
        for window in [1, 1, 2, 4, 8, 16, 32, 32, 32] {
            sequence = Sequence::from_bits(sequence.missed_at(at).bits());
            assert_eq!(sequence.window(), window);
            at += sequence.window();
            sequence = sequence.ending_at(at);
        }
        for elsewhere in [at + 1, at - 1, 0] {
            assert_eq!(sequence.missed_at(elsewhere).window(), 1);
        }
        assert_eq!(Sequence::default().missed_at(0), Sequence::default());
    }

    #[test]
    fn the_window_grows_going_down_as_well() {
        let mut sequence = Sequence::default().missed_at(40).ending_at(41);
        let mut start = 40;
        for window in [1, 2, 4, 8, 16] {
            sequence = sequence.missed_at(start - 1);
            assert_eq!((sequence.window(), sequence.goes_down()), (window, true));
            start -= window;
            sequence = sequence.ending_at(start);
        }
        assert_eq!(sequence.missed_at(start), Sequence::default());
        assert_eq!(sequence.missed_below(), Sequence::default());
        assert_eq!(sequence.ending_at(0).missed_below().window(), 32);
    }

    #[test]
    fn a_long_sequence_counts_spans() {
        let mut sequence = Sequence::default();
        assert!(!sequence.is_long());
        for ahead in [0, 1, 2, 4, 8, 8] {
            sequence = sequence.with_span();
            assert_eq!((sequence.spans_ahead(), sequence.window()), (ahead, 32));
            assert_eq!(sequence.ending_at(7).missed_at(7), sequence, "small windows are no spans");
        }
        assert_eq!(sequence, Sequence::LONGEST);
    }

    proptest! {
        /// Whatever is missed, and however much of what was asked for has come.
        #[test]
        fn only_who_follows_twice_reads_ahead(misses in prop::collection::vec((0..512_u64, 1..=32_u64), 1..50), follow in 0..8_u8) {
            let mut sequence = Sequence::default();
            let mut end = None;
            let mut followed = 0_u32;
            for (number, (page, came)) in misses.into_iter().enumerate() {
                let page = match end {
                    Some(end) if number % 8 >= usize::from(follow) => end,
                    _ => page,
                };
                if followed == 0 && end == Some(page + 2) {
                    return Ok(()); // It goes down from here.
                }
                followed = if end == Some(page) { followed + 1 } else { 0 };
                sequence = sequence.missed_at(page);
                prop_assert_eq!(sequence.window(), (1_u64 << followed.saturating_sub(1).min(5)).max(1));
                let last = (page + came.min(sequence.window())).min(SPAN_PAGES as u64);
                sequence = sequence.ending_at(last);
                end = (last < SPAN_PAGES as u64).then_some(last);
                if end.is_none() {
                    sequence = Sequence::default();
                }
            }
        }
    }
}
