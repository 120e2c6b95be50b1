//! The layout of an empty segment.

use crate::device::Device;
use crate::error::{Error, FullPlace, Result};
use crate::format::block::Block;
use crate::format::chunk::ChunkHeader;
use crate::format::geometry::{ALLOCATION_UNIT_BYTES, unit_of, units_of};
use crate::format::superblock::{AllocatorEpochs, FEATURES, Superblock};
use crate::format::volume_header::SegmentEntry;
use crate::volume::allocator::Allocator;
use crate::volume::segment::{EPOCH_FIRST, first_group};
use crate::volume::space::{give_chunks_space, give_own_units_space};

/// Lays out an empty segment: a log of one chunk, and the next chunk taken.
pub(super) fn format(device: &Device, entry: &SegmentEntry) -> Result<()> {
    give_own_units_space(device, &entry.groups)?;
    let mut allocator = Allocator::new(&entry.groups);
    allocator.set_write_fence(allocator.next_write_fence(true));
    give_chunks_space(device, &mut allocator, 2)?;
    let full = || {
        let volume = device.name().to_owned();
        Error::Full { volume, wanted: 2 * ALLOCATION_UNIT_BYTES, place: FullPlace::Volume }
    };
    let chunk = allocator.take_chunk(|_| 0).ok_or_else(full)? * ALLOCATION_UNIT_BYTES;
    let next = allocator.take_chunk(|_| 0).ok_or_else(full)? * ALLOCATION_UNIT_BYTES;
    let header = ChunkHeader {
        segment: entry.uuid,
        offset: chunk,
        generation: 0,
        first_sequence: 1,
        previous: 0,
        next,
        begins_anew: true,
    };
    let mut front = Box::new(Block::ZERO);
    front.0[..header.to_bytes().len()].copy_from_slice(&header.to_bytes());
    device.write(chunk, &front.0)?;
    allocator.set_write_fence(unit_of(next) + 1);
    let write_fence = allocator.next_write_fence(true);
    let changed = allocator.changed(entry.uuid, EPOCH_FIRST, write_fence);
    changed.blocks.iter().try_for_each(|(offset, block)| device.write(*offset, &block.0))?;
    changed.unused.iter().try_for_each(|unused| unused.write(device))?;
    device.flush()?;
    let superblock = Superblock {
        incompatible: FEATURES,
        owner_epoch: 0,
        log_first_chunk: chunk,
        log_replay_from: chunk + header.to_bytes().len() as u64,
        log_replay_sequence: 1,
        log_generation: 0,
        log_durable: 1,
        free_log: 0,
        next_keyspace: 1,
        allocator_epochs: AllocatorEpochs::of(allocator.epochs(write_fence)),
        units: units_of(&entry.groups),
        write_fence,
        catalogue: Vec::new(),
    };
    let copies = first_group(device, entry)?.superblocks();
    for (copy, offset) in copies.into_iter().enumerate() {
        // The other copy is void, whatever was there.
        let block = if copy as u64 == EPOCH_FIRST % 2 {
            superblock.to_block(entry.uuid, offset, EPOCH_FIRST)
        } else {
            Block::ZERO
        };
        device.write(offset, &block.0)?;
    }
    device.flush()
}
