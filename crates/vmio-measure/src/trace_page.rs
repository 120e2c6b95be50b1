//! A page of the kernel's trace buffers, as `trace_pipe_raw` gives it: the format of the kernel's `ring_buffer.h`.

/// Room for a page.
pub struct TracePage {
    bytes: Box<[u8; PAGE_BYTES]>,
}

const PAGE_BYTES: usize = 4096;
/// The bytes of the time and the length at the beginning.
const HEADER_BYTES: usize = 16;
/// The bits of the length in its word; other bits say that events were lost.
const LENGTH_MASK: u64 = 0xf_ffff;

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event<'a> {
    /// Its time by the trace's clock.
    pub time_ns: u64,
    /// Its fields.
    pub bytes: &'a [u8],
}

impl TracePage {
    /// An empty page.
    pub fn new() -> Self {
        Self { bytes: Box::new([0; PAGE_BYTES]) }
    }

    /// The buffer to read a page into.
    pub fn buffer(&mut self) -> &mut [u8] {
        &mut self.bytes[..]
    }

    /// The events in the page, of which a read has returned `bytes`.
    pub fn events(&self, bytes: usize) -> Events<'_> {
        let page = &self.bytes[..bytes.min(PAGE_BYTES)];
        let word =
            |at: usize| page.get(at..).and_then(|rest| rest.first_chunk().copied()).map_or(0, u64::from_ne_bytes);
        let length = (word(8) & LENGTH_MASK) as usize;
        let data = page.get(HEADER_BYTES..).unwrap_or_default();
        Events { time_ns: word(0), data: &data[..length.min(data.len())] }
    }
}

/// The events of a page in their order, without those that are cut off.
pub struct Events<'a> {
    time_ns: u64,
    data: &'a [u8],
}

impl<'a> Iterator for Events<'a> {
    type Item = Event<'a>;

    fn next(&mut self) -> Option<Event<'a>> {
        const LONG: u32 = 0;
        const PADDING: u32 = 29;
        const TIME_EXTEND: u32 = 30;
        const TIME_STAMP: u32 = 31;
        const LENGTH_BITS: u32 = 5;
        const DELTA_BITS: u32 = 27;
        loop {
            let head = self.word(0)?;
            let (kind, delta) = (head & ((1 << LENGTH_BITS) - 1), u64::from(head >> LENGTH_BITS));
            match kind {
                TIME_EXTEND | TIME_STAMP => {
                    let time = (u64::from(self.word(4)?) << DELTA_BITS) + delta;
                    self.time_ns = if kind == TIME_EXTEND { self.time_ns.wrapping_add(time) } else { time };
                    self.data = self.data.get(8..)?;
                }
                // Padding without a length: no event follows.
                PADDING if delta == 0 => return None,
                PADDING => {
                    self.time_ns = self.time_ns.wrapping_add(delta);
                    self.data = self.data.get(4 + self.word(4)? as usize..)?;
                }
                _ => {
                    // A long event has its length in a word of its own, which the length counts.
                    let (begin, end) =
                        if kind == LONG { (8, 4 + self.word(4)? as usize) } else { (4, 4 + 4 * kind as usize) };
                    let bytes = self.data.get(begin..end)?;
                    self.data = &self.data[end..];
                    self.time_ns = self.time_ns.wrapping_add(delta);
                    return Some(Event { time_ns: self.time_ns, bytes });
                }
            }
        }
    }
}

impl Events<'_> {
    fn word(&self, at: usize) -> Option<u32> {
        self.data.get(at..)?.first_chunk().copied().map(u32::from_ne_bytes)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn whatever_bytes_are_no_panic(time_ns: u64, words: Vec<(u8, u32)>, length: u64, bytes in 0..5000_usize) {
            // Makes every kind of event and every length frequent.
            let words: Vec<u32> = words.iter().map(|(kind, rest)| rest << 5 | u32::from(kind & 31)).collect();
            let (mut page, _) = page(time_ns, 0, &words[..words.len().min(1000)]);
            page.events(PAGE_BYTES).for_each(drop);
            page.buffer()[8..16].copy_from_slice(&length.to_ne_bytes());
            prop_assert!(page.events(bytes).all(|event| event.bytes.len() < PAGE_BYTES));
        }
    }

    fn page(time_ns: u64, flags: u64, words: &[u32]) -> (TracePage, usize) {
        let mut page = TracePage::new();
        let data: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let bytes = [&time_ns.to_ne_bytes()[..], &(data.len() as u64 | flags).to_ne_bytes(), &data].concat();
        page.buffer()[..bytes.len()].copy_from_slice(&bytes);
        (page, PAGE_BYTES)
    }

    #[test]
    fn events_have_their_times_and_bytes() {
        let words = [
            // Eight bytes, 5 ns later.
            5 << 5 | 2,
            1,
            2,
            // The clock goes on by 1 << 27 and 3.
            3 << 5 | 30,
            1,
            // A long event of four bytes.
            7 << 5,
            8,
            9,
            // A discarded event: eight bytes after its head.
            1 << 5 | 29,
            8,
            0,
            // The value of the clock.
            4 << 5 | 31,
            2,
            1,
        ];
        // The iterator leaves out an event without its bytes; the bits that say that events were lost are no length.
        let (page, bytes) = page(100, 1 << 31, &words);
        let found: Vec<_> = page.events(bytes).map(|event| (event.time_ns, event.bytes.to_vec())).collect();
        let one = [1_u32.to_ne_bytes(), 2_u32.to_ne_bytes()].concat();
        assert_eq!(found, [(105, one), ((1 << 27) + 115, 9_u32.to_ne_bytes().to_vec())]);
    }

    #[test]
    fn a_page_that_ends_early_has_no_more_events() {
        let (page, bytes) = page(0, 0, &[1, 7, 29]);
        assert_eq!(page.events(bytes).count(), 1);
        assert_eq!((page.events(0).count(), page.events(18).count()), (0, 0));
    }
}
