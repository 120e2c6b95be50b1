//! The files of the aged file system: Agrawal's profile, as Geriatrix has its figures.

use rand::Rng;
use rand::rngs::SmallRng;

/// Files of this many bytes and more are large: a huge page maps a part of them.
pub const LARGE_BYTES: u64 = 2 << 20;
/// All sizes are multiples of this.
pub const BLOCK_BYTES: u64 = 4096;

/// Middles of the buckets of sizes, in bytes, and how frequent files of each are. The last weight has 56 % of the bytes be in large files.
const SIZES: [(u64, u32); 11] = [
    (8, 4),
    (32, 28),
    (128, 64),
    (512, 160),
    (2 << 10, 200),
    (8 << 10, 184),
    (32 << 10, 140),
    (128 << 10, 80),
    (512 << 10, 40),
    (2 << 20, 16),
    (8 << 20, 5),
];

/// Middles of the buckets of ages, in minutes, and how frequent each is.
const AGES: [(f64, u32); 10] = [
    (10.74, 1),
    (31.0, 2),
    (85.98, 8),
    (240.0, 20),
    (687.87, 44),
    (1945.59, 75),
    (5502.98, 144),
    (15768.0, 146),
    (44023.9, 23),
    (122_640.0, 1),
];

/// For each depth from 1 on, how frequent files are there, and how many directories there are.
pub const DEPTHS: [(u32, usize); 15] = [
    (1, 1),
    (2, 5),
    (14, 13),
    (15, 19),
    (23, 30),
    (24, 36),
    (42, 32),
    (22, 26),
    (15, 22),
    (12, 17),
    (7, 8),
    (4, 5),
    (3, 2),
    (2, 1),
    (1, 1),
];

/// One of some values, by their weights.
fn weighted<T: Copy>(random: &mut SmallRng, values: impl Iterator<Item = (T, u32)> + Clone) -> Option<T> {
    let all: u32 = values.clone().map(|(_, weight)| weight).sum();
    let mut left = random.random_range(0..all.max(1));
    for (value, weight) in values {
        if left < weight {
            return Some(value);
        }
        left -= weight;
    }
    None
}

/// A number around the middle of a bucket that begins at half of it and ends at twice as much; all magnitudes are as frequent.
fn around(random: &mut SmallRng, middle: f64) -> f64 {
    middle * random.random_range(-1.0_f64..1.0).exp2()
}

/// The size of a new file, in whole blocks.
pub fn size(random: &mut SmallRng) -> u64 {
    let middle = weighted(random, SIZES.into_iter()).unwrap_or(BLOCK_BYTES);
    (around(random, middle as f64) as u64).max(1).next_multiple_of(BLOCK_BYTES)
}

/// How long a new file lives, in minutes.
pub fn lifetime(random: &mut SmallRng) -> f64 {
    let middle = weighted(random, AGES.into_iter()).unwrap_or(1.0);
    around(random, middle)
}

/// The depth of a new file, less one.
pub fn depth(random: &mut SmallRng) -> usize {
    weighted(random, DEPTHS.iter().map(|(weight, _)| *weight).enumerate()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn large_files_have_the_share_of_bytes_that_the_profile_says() {
        let mut random = SmallRng::seed_from_u64(1);
        let (mut all, mut large) = (0, 0);
        for size in (0..300_000).map(|_| size(&mut random)) {
            all += size;
            large += if size >= LARGE_BYTES { size } else { 0 };
        }
        let share = large as f64 / all as f64;
        assert!((0.54..0.58).contains(&share), "{share}");
    }
}
