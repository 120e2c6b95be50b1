//! Repairs of single inodes and of their blocks.

use std::collections::BTreeMap;
use std::ops::Range;

use super::Work;
use super::survey::Survey;
use crate::data;
use crate::directories;
use crate::error::Result;
use crate::format::geometry::{BLOCK_BYTES, Geometry};
use crate::format::inode::{DIRECTORY_BYTES_MAX, Kind};
use crate::fs::Fs;
use crate::inodes::loaded::Loaded;
use crate::inodes::volume::Volume;

/// The bits of a mode that mean something.
const MODE: u32 = 0o7777;

/// The most blocks behind its end that a directory is read for.
const BLOCKS_BEHIND_MAX: usize = 1024;

/// A part of the medium that an inode has.
struct Claim {
    blocks: Range<u64>,
    ino: u64,
    /// The first block in the file; nothing for blocks of the chain and of extended attributes. These have checksums with the inode's
    /// number: they are its.
    file_block: Option<u32>,
}

/// Does all that is provable. Whatever fails is left.
pub(super) fn repair(fs: &Fs, mut survey: Survey, work: &mut Work) {
    let volume = &fs.volume;
    for loaded in survey.inodes.values_mut() {
        let (ino, at) = (loaded.ino, volume.geometry.inode_at(loaded.ino));
        let mode = loaded.inode.mode;
        if mode & !MODE != 0 {
            loaded.inode.mode &= MODE;
            if store(volume, loaded).is_ok() {
                work.add(at, format!("inode {ino} had mode {mode:#o}: it is {:#o} now", loaded.inode.mode));
            }
        }
        let behind = behind_the_end(volume, loaded);
        if !behind.is_empty() && cut(volume, loaded, &behind).is_ok() {
            let (kind, Range { start, end }) = (loaded.inode.kind, behind);
            work.add(
                at,
                format!("inode {ino}, a {kind:?}, had blocks {start} to {end} behind its end: they are free now"),
            );
        }
    }
    for (ino, blocks, owner) in contested(&volume.geometry, &survey) {
        let Some(loaded) = survey.inodes.get_mut(&ino) else { continue };
        let Some(first) = loaded.map.runs_of(blocks.clone()).first().map(|run| run.start) else { continue };
        let copied = volume
            .take(u64::from(blocks.end - blocks.start))
            .and_then(|to| data::relocate_shared(volume, loaded, blocks.clone(), to));
        let count = blocks.end - blocks.start;
        match copied {
            Ok(()) => work.add(
                first * BLOCK_BYTES,
                format!(
                    "{count} blocks from {first} on were inode {owner}'s and inode {ino}'s: inode {ino} has a copy now, at byte {} of its contents. \
                     At least one of them has wrong contents there",
                    u64::from(blocks.start) * BLOCK_BYTES
                ),
            ),
            // The map in memory is not that of the medium.
            Err(_) => _ = survey.inodes.remove(&ino),
        }
    }
}

fn store(volume: &Volume, loaded: &mut Loaded) -> Result<()> {
    let mut transaction = volume.journals.begin(volume.home());
    loaded.store(volume, &mut transaction, None);
    transaction.commit()
}

/// The blocks of an inode that is no file behind its end. Of a directory there are none if an entry is in them: its length may be wrong.
fn behind_the_end(volume: &Volume, loaded: &Loaded) -> Range<u32> {
    let first = match loaded.inode.kind {
        Kind::File => return 0..0,
        _ => loaded.inode.size.div_ceil(BLOCK_BYTES) as u32,
    };
    let behind = first..loaded.map.end().max(first);
    let has_entry = |block| {
        // What is no entry at all may be one that is damaged.
        directories::scan_block(&*volume.medium, loaded, block).is_ok_and(|found| !found.is_empty())
    };
    let is_directory = loaded.inode.kind == Kind::Directory;
    // Each block is looked at: there may not be any number of them. Nor can entries lie behind the greatest length.
    let is_far = behind.len() > BLOCKS_BEHIND_MAX || u64::from(behind.end) > DIRECTORY_BYTES_MAX / BLOCK_BYTES;
    let is_unclear = is_directory && (is_far || behind.clone().any(has_entry));
    if is_unclear { 0..0 } else { behind }
}

fn cut(volume: &Volume, loaded: &mut Loaded, blocks: &Range<u32>) -> Result<()> {
    let remapped = loaded.remap(volume, &[(blocks.clone(), Vec::new())])?;
    let mut transaction = volume.journals.begin(volume.home());
    loaded.store(volume, &mut transaction, Some(&remapped));
    transaction.commit()?;
    // Another one may have them, too. The next survey finds out.
    remapped.settle_shared();
    Ok(())
}

/// The blocks of files that others have before them: inode, blocks of it, the other inode.
fn contested(geometry: &Geometry, survey: &Survey) -> Vec<(u64, Range<u32>, u64)> {
    let mut claims: Vec<Claim> = survey.inodes.values().flat_map(claims_of).collect();
    claims.retain(|claim| is_in_pool(geometry, &claim.blocks));
    claims.sort_unstable_by_key(|claim| (claim.file_block.is_some(), claim.ino, claim.file_block));
    let mut owners: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    let mut contested = Vec::new();
    for Claim { blocks, ino, file_block } in claims {
        let mut next = blocks.start;
        while next < blocks.end {
            let before = owners.range(..=next).next_back().filter(|(_, (end, _))| *end > next);
            if let Some((_, (end, owner))) = before {
                let end = blocks.end.min(*end);
                if let Some(first) = file_block {
                    let in_file = |block: u64| first + (block - blocks.start) as u32;
                    contested.push((ino, in_file(next)..in_file(end), *owner));
                }
                next = end;
            } else {
                let end = owners.range(next..).next().map_or(blocks.end, |(start, _)| blocks.end.min(*start));
                owners.insert(next, (end, ino));
                next = end;
            }
        }
    }
    contested
}

fn claims_of(loaded: &Loaded) -> Vec<Claim> {
    let ino = loaded.ino;
    let data = loaded.map.extents().map(|extent| Claim {
        blocks: extent.start..extent.start + u64::from(extent.count),
        ino,
        file_block: Some(extent.file_block),
    });
    let own = loaded.map.chain().iter().copied().chain(loaded.attributes_run().map(|run| run.start));
    let own = own.map(|block| Claim { blocks: block..block + 1, ino, file_block: None });
    data.chain(own).collect()
}

fn is_in_pool(geometry: &Geometry, blocks: &Range<u64>) -> bool {
    let pool = if blocks.start < geometry.blocks { geometry.pool(geometry.area_of(blocks.start)) } else { 0..0 };
    pool.contains(&blocks.start) && blocks.end <= pool.end
}
