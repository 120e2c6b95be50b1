//! The word in which a process says how long a file is that it appends to: in memory that it shares with the server, or on the medium.
//!
//! Bits 0 to 43 are the length, bits 44 to 62 a check of it, and bit 63 is [`CLOSED`]. The check finds each word of which a bit has changed, but for
//! that last one, and of other words all but one in 2¹⁹.

/// The bit of a word by which its holder, or the server, keeps a late thread from storing a length there. The length still counts.
pub const CLOSED: u64 = 1 << 63;
/// The word that says no length. No process that comes late takes it for one.
pub const FREE: u64 = u64::MAX;
/// The seed of words in shared memory. On the medium it is the checksum of the rest of the slot, which knows the file and the place.
pub const SEED_OF_MEMORY: u32 = 0;

const LENGTH_BITS: u32 = 44;
const LENGTH: u64 = (1 << LENGTH_BITS) - 1;
/// 19 bits, below [`CLOSED`].
const CHECK_BITS: u32 = 63 - LENGTH_BITS;
/// 2⁶⁴ by the golden ratio. No 19 of its bits in a row are the same, so each bit of a length or a seed changes the upper 19 of the product.
const MULTIPLIER: u64 = 0x9E37_79B9_7F4A_7C15;

/// The word that says a length.
#[inline]
pub const fn sealed(length: u64, seed: u32) -> u64 {
    let mixed = (length ^ ((seed as u64) << 32)).wrapping_mul(MULTIPLIER);
    (length & LENGTH) | ((mixed >> (u64::BITS - CHECK_BITS)) << LENGTH_BITS)
}

/// The length in a word, whether its check fits or not: to show it.
pub const fn length_in(word: u64) -> u64 {
    word & LENGTH
}

/// The length that a word says, closed or not; nothing if it says none, or its check does not fit.
#[inline]
pub const fn length_of(word: u64, seed: u32) -> Option<u64> {
    let length = length_in(word);
    match word != FREE && word & !CLOSED == sealed(length, seed) {
        true => Some(length),
        false => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTHS: [u64; 8] = [0, 1, 4095, 4096, 70_000, 1 << 32, (1 << 44) - 8192, (1 << 44) - 1];
    const SEEDS: [u32; 5] = [SEED_OF_MEMORY, 1, 0x8000_0000, 0xDEAD_BEEF, u32::MAX];

    #[test]
    fn a_length_comes_back_closed_or_not() {
        for (length, seed) in LENGTHS.iter().flat_map(|length| SEEDS.map(|seed| (*length, seed))) {
            let word = sealed(length, seed);
            assert_eq!((length_of(word, seed), length_of(word | CLOSED, seed)), (Some(length), Some(length)));
        }
        assert!(SEEDS.iter().all(|seed| length_of(FREE, *seed).is_none()));
    }

    #[test]
    fn each_changed_bit_is_found_and_a_word_of_another_seed() {
        for (length, seed) in LENGTHS.iter().flat_map(|length| SEEDS.map(|seed| (*length, seed))) {
            for bit in 0..63 {
                assert_eq!(length_of(sealed(length, seed) ^ 1 << bit, seed), None, "{length}, {seed}, bit {bit}");
            }
            for bit in 0..32 {
                assert_eq!(length_of(sealed(length, seed), seed ^ 1 << bit), None, "{length}, {seed}, bit {bit}");
            }
        }
    }

    #[test]
    fn a_length_that_does_not_fit_is_no_other_one() {
        for length in [1 << 44, (1 << 44) + 4096, u64::MAX >> 1] {
            assert_eq!(length_of(sealed(length, 0), 0), None);
        }
    }
}
