//! Any contents at the end of a volume's log, with valid or invalid checksums: they cause an error at worst, never a panic.
#![no_main]

mod small_volume;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use small_volume::{BLOCK, UNIT, Volume, in_order};

#[derive(Arbitrary, Debug)]
struct Record {
    kind: u8,
    flags: u8,
    /// Lengths in the record's header; that many bytes are there.
    key_bytes: u16,
    value_bytes: u32,
    keyspace: u32,
    /// Added to the next sequence number.
    sequence: i8,
    value: u64,
    is_sealed: bool,
}

#[derive(Arbitrary, Debug)]
struct Input {
    /// How many of the existing records stay.
    kept: u16,
    records: Vec<Record>,
    raw: Vec<u8>,
}

/// The newest chunk with its first block, and the seed of its records' checksums.
fn newest_chunk(volume: &Volume) -> (u64, u32) {
    let chunks = volume.0.iter().filter(|(_, block)| block.starts_with(b"vmkl"));
    let generation = |block: &[u8; BLOCK]| u64::from_le_bytes(block[32..40].try_into().unwrap());
    let (offset, block) = chunks.max_by_key(|(_, block)| generation(block)).unwrap();
    (*offset, crc32c::crc32c_append(crc32c::crc32c(&block[8..24]), &generation(block).to_le_bytes()))
}

fn word(bytes: &[u8], at: usize) -> usize {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize
}

fuzz_target!(|input: Input| {
    let mut volume = in_order().clone();
    let (chunk, seed) = newest_chunk(&volume);
    let mut bytes = vec![0; UNIT as usize];
    for (offset, block) in volume.0.range(chunk..chunk + UNIT) {
        bytes[(offset - chunk) as usize..][..BLOCK].copy_from_slice(block);
    }
    // Over the records that stay.
    let (mut at, mut sequence) = (128, u64::from_le_bytes(bytes[40..48].try_into().unwrap()));
    for _ in 0..input.kept {
        let (kind, key_bytes) = (bytes[at + 4], usize::from(u16::from_le_bytes([bytes[at + 6], bytes[at + 7]])) + 1);
        if kind == 0 {
            break;
        }
        at += (24 + if matches!(kind, 3..=5) { 0 } else { key_bytes } + word(&bytes, at + 8)).next_multiple_of(8);
        sequence += 1;
    }
    for record in &input.records {
        let has_key = !matches!(record.kind, 3..=5);
        let length = 24 + if has_key { usize::from(record.key_bytes) + 1 } else { 0 } + record.value_bytes as usize;
        // Longer ones end with the chunk.
        let end = (at + length.next_multiple_of(8)).min(bytes.len());
        if end < at + 32 {
            break;
        }
        let place = &mut bytes[at..end];
        place.fill(0);
        place[4] = record.kind;
        place[5] = record.flags;
        place[6..8].copy_from_slice(&record.key_bytes.to_le_bytes());
        place[8..12].copy_from_slice(&record.value_bytes.to_le_bytes());
        place[12..16].copy_from_slice(&record.keyspace.to_le_bytes());
        place[16..24].copy_from_slice(&sequence.wrapping_add_signed(i64::from(record.sequence)).to_le_bytes());
        if place.len() >= 32 {
            place[24..32].copy_from_slice(&record.value.to_le_bytes());
        }
        if record.is_sealed {
            let checksum = crc32c::crc32c_append(seed, &place[4..]);
            place[..4].copy_from_slice(&checksum.to_le_bytes());
        }
        at = end;
        sequence += 1;
    }
    let raw = input.raw.len().min(bytes.len() - at);
    bytes[at..at + raw].copy_from_slice(&input.raw[..raw]);
    for (index, block) in bytes.as_chunks::<BLOCK>().0.iter().enumerate() {
        volume.0.insert(chunk + (index * BLOCK) as u64, *block);
    }
    volume.use_all();
});
