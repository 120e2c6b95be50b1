//! Scatters popular numbers: neighbours in popularity are no neighbours in place.

/// A bijection of the numbers below a count.
///
/// A mix of invertible steps permutes the smallest power of two that holds them all. Values not below the count go through the mix again
/// until they are; this cycle walking keeps it a bijection.
pub struct Scatter {
    count: u64,
    bits: u32,
}

impl Scatter {
    /// A bijection of `count` numbers; there must be one at least.
    pub fn new(count: u64) -> Self {
        Self { count, bits: count.next_power_of_two().trailing_zeros().max(1) }
    }

    /// The place of a number. Numbers beyond get the last one's.
    pub fn place_of(&self, number: u64) -> u64 {
        let mut place = number.min(self.count - 1);
        loop {
            place = self.mix(place);
            if place < self.count {
                return place;
            }
        }
    }

    fn mix(&self, value: u64) -> u64 {
        let mask = u64::MAX >> (u64::BITS - self.bits);
        let half = self.bits.div_ceil(2);
        let mut value = value;
        value ^= value >> half;
        value = value.wrapping_add(0x5851_f42d_4c95_7f2d) & mask;
        value = value.wrapping_mul(0x9e37_79b9_7f4a_7c15) & mask;
        value ^= value >> half;
        value = value.wrapping_mul(0xbf58_476d_1ce4_e5b9) & mask;
        value ^ (value >> half)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scatter_is_a_bijection() {
        for count in [1, 2, 3, 5, 64, 1000, 4096, 65_537] {
            let scatter = Scatter::new(count);
            let mut seen = vec![false; count as usize];
            for number in 0..count {
                let place = scatter.place_of(number) as usize;
                assert!(!seen[place], "two numbers of {count} share place {place}");
                seen[place] = true;
            }
        }
    }
}
