//! Blocks and records of a volume with valid checksums and any contents: they cause an error at worst, and no read beyond their end.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;

#[allow(dead_code)]
#[path = "../../crates/vmio-kv/src/error.rs"]
mod error;
#[allow(dead_code)]
#[path = "../../crates/vmio-kv/src/format/mod.rs"]
mod format;

use format::block::{Block, HEADER_BYTES, Kind, Label, Uuid, seal, unseal};
use format::branch::Branch;
use format::leaf::{Leaf, key_hash};
use format::leaf_builder::LeafBuilder;
use format::pivot::Piece;
use format::record::{Record, Seed};

const UUID: Uuid = Uuid::from_bytes([1; 16]);

#[derive(Arbitrary, Debug)]
enum Of {
    VolumeHeader,
    SegmentTable,
    Superblock,
    Bitmap,
    UnitTable,
    FreeLog,
    Catalogue,
    Leaf,
    Branch,
    Pivot,
    Owner,
    Chunk,
    Record,
}

#[derive(Arbitrary, Debug)]
struct Input {
    of: Of,
    count: u16,
    /// The block's contents, repeated until the block is full.
    bytes: Vec<u8>,
    repeats: bool,
    key: Vec<u8>,
}

fn leaf(leaf: &Leaf<'_>, key: &[u8]) {
    let (mut builder, mut count) = (LeafBuilder::default(), 0);
    for index in 0..leaf.len() {
        let known = leaf.key(index);
        let _ = (known.compare_to(key), leaf.pointer(index).record_bytes());
        // A leaf that was read can be written.
        let Ok(entry) = leaf.entry(index) else { continue };
        count += usize::from(builder.push(entry).is_ok());
    }
    for index in leaf.candidates(key) {
        let _ = leaf.is_key(index, key, key_hash(key));
    }
    let written = builder.finish(UUID, 1, 8192, 5);
    let sealed = unseal(&written.0, Kind::Leaf, 8192).unwrap();
    assert_eq!(Leaf::from_block(&sealed).unwrap().len(), count);
}

fuzz_target!(|input: Input| {
    let Input { of, count, bytes, repeats, key } = input;
    let kind = match of {
        Of::VolumeHeader => Kind::VolumeHeader,
        Of::SegmentTable => Kind::SegmentTable,
        Of::Superblock => Kind::Superblock,
        Of::Bitmap => Kind::Bitmap,
        Of::UnitTable => Kind::UnitTable,
        Of::FreeLog => Kind::FreeLog,
        Of::Catalogue => Kind::Catalogue,
        Of::Leaf => Kind::Leaf,
        Of::Branch => Kind::Branch,
        Of::Pivot => Kind::Pivot,
        Of::Owner => Kind::Owner,
        Of::Chunk => {
            let _ = format::chunk::ChunkHeader::from_bytes(&bytes);
            return;
        }
        Of::Record => {
            let _ = Record::read(Seed::new(UUID, 1), &bytes);
            if let Some(front) = bytes.first_chunk()
                && let Ok(length) = Record::length(front)
                && length <= bytes.len()
            {
                let mut sealed = bytes.clone();
                let checksum = crc32c::crc32c_append(Seed::new(UUID, 1).to_bits(), &sealed[4..length]);
                sealed[..4].copy_from_slice(&checksum.to_le_bytes());
                assert_eq!(Record::read(Seed::new(UUID, 1), &sealed).unwrap().bytes(), length);
            }
            return;
        }
    };
    let mut block = Block::ZERO;
    let rest = &mut block.0[HEADER_BYTES..];
    let most = if repeats { rest.len() } else { rest.len().min(bytes.len()) };
    for (place, byte) in rest[..most].iter_mut().zip(bytes.iter().cycle()) {
        *place = *byte;
    }
    seal(&mut block.0, UUID, Label { kind, keyspace: 1, offset: 8192, epoch: 5 }, count);
    let sealed = unseal(&block.0, kind, 8192).unwrap();
    match of {
        Of::VolumeHeader => drop(format::volume_header::VolumeHeader::from_block(&sealed)),
        Of::SegmentTable => drop(format::volume_header::segments_from_block(&sealed)),
        Of::Superblock => drop(format::superblock::Superblock::from_block(&sealed)),
        Of::Bitmap => drop(format::bitmap::from_block(&sealed)),
        Of::UnitTable => drop(format::unit_table::from_block(&sealed)),
        Of::FreeLog => drop(format::free_log::from_block(&sealed)),
        Of::Catalogue => drop(format::catalogue::from_block(&sealed)),
        Of::Owner => {
            if let Ok(record) = format::owner::OwnerRecord::from_block(&sealed) {
                let written = record.to_block(UUID, 8192);
                let sealed = unseal(&written.0, kind, 8192).unwrap();
                assert_eq!(format::owner::OwnerRecord::from_block(&sealed), Ok(record));
            }
        }
        Of::Leaf => {
            if let Ok(read) = Leaf::from_block(&sealed) {
                leaf(&read, &key);
            }
        }
        Of::Pivot => {
            // As if this many bytes of the pivot were left.
            if let Ok(piece) = Piece::from_block(&sealed, key.len() + usize::from(count)) {
                assert_eq!(piece.bytes.len(), usize::from(count));
            }
        }
        _ => {
            let find =
                |branch: Branch<'_>| branch.find(&key, |damage| damage, |rest, key| Ok(rest.bytes.cmp(&key.len())));
            let searched = Branch::to_search(&sealed).and_then(find);
            if let Ok(branch) = Branch::from_block(&sealed) {
                let found = searched.expect("all pivots were checked");
                let _ = (branch.child(found).offset(), branch.pivot(found));
                (0..branch.len()).for_each(|index| drop(branch.pivot(index).to_owned()));
            }
        }
    }
});
