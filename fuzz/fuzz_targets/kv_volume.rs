//! Any contents of a vmio-kv volume: they cause an error at worst, never a panic, and a volume found sound can be used.
#![no_main]

mod small_volume;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use small_volume::{BLOCK, in_order, seal};

/// A change to a sound volume: a word of a block, or a copy of another block.
#[derive(Arbitrary, Debug)]
struct Change {
    block: u16,
    word: u16,
    value: u64,
    /// Number of the value's bytes that count, so that numbers may change a little.
    bytes: u8,
    copy_of: Option<u16>,
    /// Whether the block's checksum is corrected.
    is_sealed: bool,
}

fuzz_target!(|changes: Vec<Change>| {
    let mut volume = in_order().clone();
    let offsets: Vec<u64> = volume.0.keys().copied().collect();
    let place = |index: u16| offsets[usize::from(index) % offsets.len()];
    for change in &changes {
        if let Some(other) = change.copy_of {
            let other = volume.0[&place(other)];
            volume.0.insert(place(change.block), other);
        }
        let Some(block) = volume.0.get_mut(&place(change.block)) else { continue };
        let bytes = 1 + usize::from(change.bytes % 8);
        let at = (usize::from(change.word) * 4 % BLOCK).min(BLOCK - bytes);
        block[at..at + bytes].copy_from_slice(&change.value.to_le_bytes()[..bytes]);
        if change.is_sealed {
            seal(block);
        }
    }
    volume.use_all();
});
