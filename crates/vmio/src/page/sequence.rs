//! Misses that follow one another: how far to read ahead of them. Kept in 16 bits of the span where the last one ended, so it
//! costs a random miss a load and a store to a cache line that it owns already, and needs to know nothing of threads.

/// Where the pages of a span's last miss ended, and how many misses in a row have begun where the one before had ended. All
/// zeros is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sequence(u16);

/// Pages to read at a miss that follows none, one, two others, and so on. Two in a row may be chance: one in 512 random misses
/// of a span follows the one before.
const WINDOWS: [u64; 7] = [1, 1, 2, 4, 8, 16, 32];
/// What a long sequence counts are the spans that came in whole, up to so many.
const SPANS_MAX: usize = 5;
const FULL: usize = WINDOWS.len() - 1;
const END_BITS: u32 = 10;

const _: () = assert!(super::SPAN_PAGES < 1 << END_BITS && FULL + SPANS_MAX < 1 << (u16::BITS - END_BITS));

impl Sequence {
    /// One that has gone through many spans.
    pub(crate) const LONGEST: Self = Sequence(((FULL + SPANS_MAX) as u16) << END_BITS);

    /// As [`Self::bits`] gave it.
    pub(crate) fn from_bits(bits: u16) -> Self {
        Sequence(bits)
    }

    /// To be kept.
    pub(crate) fn bits(self) -> u16 {
        self.0
    }

    /// What a miss makes of it, at the page with this number within the span; behind its last page is the next span's first.
    pub(crate) fn missed_at(self, place: u64) -> Self {
        let followed = if self.has_passed(place) { (self.followed() + 1).min(self.followed().max(FULL)) } else { 0 };
        Sequence((followed as u16) << END_BITS)
    }

    /// How many pages to read at that miss.
    pub(crate) fn window(self) -> u64 {
        WINDOWS[self.followed().min(FULL)]
    }

    /// Whether its window has grown as far as it does.
    pub(crate) fn is_long(self) -> bool {
        self.followed() >= FULL
    }

    /// The same when a whole span comes in for it.
    pub(crate) fn with_span(self) -> Self {
        Sequence(((self.followed().max(FULL) + 1).min(FULL + SPANS_MAX) as u16) << END_BITS)
    }

    /// How many spans to read ahead of it: hardly more than it has gone through.
    pub(crate) fn spans_ahead(self) -> u64 {
        1 << self.followed().saturating_sub(FULL) >> 2
    }

    /// Whether its last miss ended here; at a span's start no sequence has.
    pub(crate) fn has_passed(self, place: u64) -> bool {
        self.end() == place && place > 0
    }

    /// The same, of whose pages the last came just before this one.
    pub(crate) fn ending_at(self, place: u64) -> Self {
        Sequence(self.0 >> END_BITS << END_BITS | place as u16)
    }

    fn end(self) -> u64 {
        u64::from(self.0 & ((1 << END_BITS) - 1))
    }

    fn followed(self) -> usize {
        usize::from(self.0 >> END_BITS)
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
