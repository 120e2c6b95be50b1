//! The records of the stores: keys by number, and incompressible values that name their keys.

use std::io::Write;

use rand::rngs::SmallRng;
use rand::{Rng, RngCore, SeedableRng};
use serde::{Deserialize, Serialize};

use crate::content::mix64;

/// The shortest key: `user` and sixteen digits.
pub const KEY_BYTES_MIN: u32 = 20;
/// The shortest value: the mark that names its key.
pub const VALUE_BYTES_MIN: u32 = MARK_BYTES as u32;

const MARK_BYTES: usize = 8;
/// Place of the hash in a key, after `user`.
const HASH_AT: usize = 4;
/// Values are cut from this many random bytes, more than the window of any compressor here.
const POOL_BYTES: usize = 1 << 20;

/// The lengths of keys and values.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct RecordShape {
    /// Bytes per key.
    pub key_bytes: u32,
    /// Bytes per value.
    pub value_bytes: u32,
    /// Further bytes at the beginning of each key, the same for all.
    pub prefix_bytes: u32,
    /// Keys are in the order of their records' numbers, so that records are put in key order.
    pub in_order: bool,
}

impl RecordShape {
    /// Bytes of a key and its value.
    pub fn bytes(self) -> u64 {
        u64::from(self.prefix_bytes) + u64::from(self.key_bytes) + u64::from(self.value_bytes)
    }
}

/// Random bytes for values.
pub struct ValuePool {
    bytes: Vec<u8>,
}

impl ValuePool {
    /// The bytes for values of this shape.
    pub fn new(shape: RecordShape) -> Self {
        let mut bytes = vec![0; POOL_BYTES + shape.value_bytes as usize];
        SmallRng::seed_from_u64(0x706f_6f6c).fill_bytes(&mut bytes);
        Self { bytes }
    }
}

/// A thread's buffers for one record.
pub struct RecordBuffer<'pool> {
    pool: &'pool ValuePool,
    prefix_bytes: usize,
    in_order: bool,
    key: Vec<u8>,
    value: Vec<u8>,
}

impl<'pool> RecordBuffer<'pool> {
    /// The buffers for records of this shape.
    pub fn new(pool: &'pool ValuePool, shape: RecordShape) -> Self {
        let prefix_bytes = shape.prefix_bytes as usize;
        let mut key = vec![b'.'; prefix_bytes + shape.key_bytes as usize];
        key[..prefix_bytes].fill(b'/');
        Self { pool, prefix_bytes, in_order: shape.in_order, key, value: vec![0; shape.value_bytes as usize] }
    }

    /// The key of a record by its number. It contains a hash of the number, so that records put one after the other are not neighbours,
    /// unless the shape is in order.
    pub fn key(&mut self, number: u64) -> &[u8] {
        self.write_key(if self.in_order { number } else { mix64(number) })
    }

    /// The least possible key: the beginning of the [lower half](is_in_lower_half).
    pub fn first_key(&mut self) -> &[u8] {
        self.write_key(0)
    }

    fn write_key(&mut self, hash: u64) -> &[u8] {
        // The buffer is longer than the text, so this cannot fail.
        let _ = write!(&mut self.key[self.prefix_bytes..], "user{hash:016x}");
        &self.key
    }

    /// Whether a key is beyond the lower half.
    pub fn is_in_upper_half(&self, key: &[u8]) -> bool {
        key.get(self.prefix_bytes + HASH_AT).is_some_and(|digit| *digit >= b'8')
    }

    /// The key that was made last.
    pub fn last_key(&self) -> &[u8] {
        &self.key
    }

    /// The key, and a value for it that differs each time.
    pub fn record(&mut self, number: u64, random: &mut SmallRng) -> (&[u8], &[u8]) {
        self.key(number);
        let (mark, rest) = self.value.split_at_mut(MARK_BYTES);
        mark.copy_from_slice(&mark_of(&self.key[self.prefix_bytes..]));
        let start = random.random_range(0..POOL_BYTES);
        rest.copy_from_slice(&self.pool.bytes[start..][..rest.len()]);
        (&self.key, &self.value)
    }

    /// Whether a value has the right length and belongs to the key.
    pub fn is_value_of(&self, key: &[u8], value: &[u8]) -> bool {
        key.len() == self.key.len()
            && value.len() == self.value.len()
            && value[..MARK_BYTES] == mark_of(&key[self.prefix_bytes..])
    }
}

/// Whether a record's key is in the lower half of all keys: about every second one is, and these keys are adjacent.
pub fn is_in_lower_half(number: u64) -> bool {
    mix64(number) >> 63 == 0
}

/// The first bytes of a value, from the key without its prefix.
fn mark_of(key: &[u8]) -> [u8; MARK_BYTES] {
    let mut digits = [0; 16];
    digits.copy_from_slice(&key[HASH_AT..][..16]);
    let number = u128::from_le_bytes(digits);
    mix64(number as u64 ^ mix64((number >> 64) as u64)).to_le_bytes()
}

/// Reads every byte.
pub fn sum(value: &[u8]) -> u64 {
    let (words, rest) = value.as_chunks::<8>();
    let sum = words.iter().fold(0_u64, |sum, word| sum.wrapping_add(u64::from_le_bytes(*word)));
    rest.iter().fold(sum, |sum, byte| sum.wrapping_add(u64::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_name_their_keys() {
        let shape = RecordShape { key_bytes: 24, value_bytes: 100, prefix_bytes: 64, in_order: false };
        let pool = ValuePool::new(shape);
        let mut random = SmallRng::seed_from_u64(1);
        let mut record = RecordBuffer::new(&pool, shape);
        let other = record.key(8).to_vec();
        let (key, value) = record.record(7, &mut random);
        let (key, value) = (key.to_vec(), value.to_vec());
        assert_eq!((key.len(), value.len()), (64 + 24, 100));
        assert!(key.starts_with(&other[..64]) && record.first_key() < &key[..] && record.first_key() < &other[..]);
        assert!(record.is_value_of(&key, &value));
        assert!(!record.is_value_of(&other, &value) && !record.is_value_of(&key, &value[..99]));
        let (_, again) = record.record(7, &mut random);
        assert_ne!(again, value);
    }

    #[test]
    fn number_and_key_tell_the_same_half() {
        let shape = RecordShape { key_bytes: 24, value_bytes: 8, prefix_bytes: 3, in_order: false };
        let pool = ValuePool::new(shape);
        let mut record = RecordBuffer::new(&pool, shape);
        let mut lower = 0;
        for number in 0..1000 {
            let key = record.key(number).to_vec();
            assert_eq!(record.is_in_upper_half(&key), !is_in_lower_half(number), "{number}");
            lower += u32::from(is_in_lower_half(number));
        }
        assert!((400..600).contains(&lower), "{lower}");
    }

    #[test]
    fn every_byte_counts() {
        let value = [1; 13];
        assert_eq!(sum(&value), 0x0101_0101_0101_0101 + 5);
    }
}
