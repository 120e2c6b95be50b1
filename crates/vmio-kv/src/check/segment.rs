//! Checks a segment: its superblocks, its allocator's blocks, its free log and its catalogue.

use std::collections::BTreeSet;

use crate::check::found::{Found, Structure};
use crate::check::log::Chain;
use crate::check::owners::{Bits, Conflict, Owners};
use crate::check::state::State;
use crate::check::{Check, whole};
use crate::error::Damage;
use crate::format::bitmap::{self, UnitBits};
use crate::format::block::{Block, Kind, Uuid};
use crate::format::catalogue::{self, KeyspaceEntry};
use crate::format::free_log;
use crate::format::geometry::{
    ALLOCATION_UNIT_BLOCKS, ALLOCATION_UNIT_BYTES, BITMAP_UNITS, BLOCK_BYTES, Group, UNIT_TABLE_UNITS, first_units,
    unit_of,
};
use crate::format::superblock::{FEATURES, Superblock};
use crate::format::unit_table::{self, AllocationUnit, Purpose};
use crate::format::volume_header::SegmentEntry;
use crate::volume::segment::EPOCH_FIRST;

const SUPERBLOCK: &str = "a superblock";
const BITMAP: &str = "a bitmap";
const UNIT_TABLE: &str = "the unit table";
const FREE_LOG: &str = "the free log";
const CATALOGUE: &str = "the catalogue of keyspaces";

impl Check<'_> {
    /// Checks the whole segment.
    pub(super) fn segment(&mut self, entry: &SegmentEntry) {
        let Some(first) = entry.groups.first() else {
            self.wrong("the table of segments", 0, format!("segment {} has no units", entry.number));
            return;
        };
        let Some((epoch, superblock)) = self.superblocks(first, entry.uuid) else { return };
        let Some(groups) = first_units(&entry.groups, superblock.units) else {
            let what = format!("segment {} has fewer units than its superblock says", entry.number);
            self.wrong("the table of segments", 0, what);
            return;
        };
        if groups != entry.groups {
            self.note(
                SUPERBLOCK,
                first.superblocks()[epoch as usize % 2],
                "growth was cut short; opening goes on with it",
            );
        }
        let owners = Owners::new(&groups);
        let mut state = State { uuid: entry.uuid, epoch, superblock, owners, retired: BTreeSet::new() };
        let mut epochs = Vec::new();
        let needed = state.superblock.allocator_epochs.needs(state.superblock.write_fence_end(&groups));
        for group in &groups {
            let of_bitmaps = self.bitmaps(&mut state, group);
            epochs.extend(of_bitmaps.into_iter().take(group.bitmaps_below(needed) as usize).flatten());
            let of_tables = self.unit_tables(&mut state, group);
            epochs.extend(of_tables.into_iter().take(group.unit_tables_below(needed) as usize).flatten());
        }
        if !state.superblock.allocator_epochs.allows(epochs.into_iter()) {
            self.wrong("the bitmap or the unit table", first.bitmaps(0)[0], Damage::Stale);
        }
        self.units(&state);
        let keyspaces = self.catalogue(&mut state);
        state.retired = self.retired(&state);
        let mut chain = self.log(&mut state, &keyspaces);
        self.free_log(&mut state, &mut chain);
        self.trees(&mut state, &chain, &keyspaces);
        self.leaks(&state);
    }

    /// Checks both copies; returns the newest that is whole.
    fn superblocks(&mut self, first: &Group, uuid: Uuid) -> Option<(u64, Superblock)> {
        let mut newest: Option<(u64, Superblock)> = None;
        let (mut torn, mut zeros) = (Vec::new(), Vec::new());
        for offset in first.superblocks() {
            let Some(block) = self.copy(SUPERBLOCK, offset) else { continue };
            if is_zero(&block) {
                zeros.push(offset);
                continue;
            }
            let read = whole(&block, Kind::Superblock, offset, uuid)
                .and_then(|sealed| Ok((sealed.epoch, Superblock::from_block(&sealed)?)));
            match read {
                Ok((epoch, superblock)) => {
                    if first.superblocks()[epoch as usize % 2] != offset {
                        self.wrong(SUPERBLOCK, offset, format!("one of epoch {epoch} belongs to the other copy"));
                    }
                    self.found(Structure::Superblock, || found_superblock(offset, epoch, &superblock));
                    if newest.as_ref().is_none_or(|(newest, _)| *newest < epoch) {
                        newest = Some((epoch, superblock));
                    }
                }
                Err(damage) => torn.push((offset, damage)),
            }
        }
        for (offset, damage) in torn {
            if newest.is_some() {
                self.note(SUPERBLOCK, offset, format!("{damage}: a commit was torn, and the one before it counts"));
            } else {
                self.wrong(SUPERBLOCK, offset, damage);
            }
        }
        // The first superblock has no second copy.
        if newest.as_ref().is_some_and(|(epoch, _)| *epoch > EPOCH_FIRST) {
            for offset in zeros {
                self.note(SUPERBLOCK, offset, "it is all zeros, though there has been more than one commit");
            }
        }
        let unknown = newest.as_ref().map_or(0, |(_, superblock)| superblock.incompatible & !FEATURES);
        if unknown != 0 {
            self.wrong(SUPERBLOCK, first.superblocks()[0], format!("features {unknown:#x} are not known"));
            return None;
        }
        if newest.is_none() {
            self.wrong(SUPERBLOCK, first.superblocks()[0], "neither copy is whole");
        }
        newest
    }

    /// Returns the valid copy of a block that is stored twice: the newest that is whole and not newer than the superblock.
    fn newest(
        &mut self,
        state: &State,
        structure: &'static str,
        kind: Kind,
        offsets: [u64; 2],
    ) -> Option<(u64, u64, Box<Block>)> {
        let mut newest: Option<(u64, u64, Box<Block>)> = None;
        for offset in offsets {
            let Some(block) = self.copy(structure, offset).filter(|block| !is_zero(block)) else { continue };
            let epoch = match whole(&block, kind, offset, state.uuid) {
                Ok(sealed) => sealed.epoch,
                Err(damage) => {
                    self.note(structure, offset, format!("{damage}: a commit was torn, or a copy was never written"));
                    continue;
                }
            };
            if epoch <= state.epoch && newest.as_ref().is_none_or(|(newest, ..)| *newest < epoch) {
                newest = Some((epoch, offset, block));
            }
        }
        if newest.is_none() {
            self.wrong(structure, offsets[0], format!("neither copy is whole and of epoch {} or before", state.epoch));
        }
        newest.map(|(epoch, offset, block)| (offset, epoch, block))
    }

    /// Returns the blocks' epochs; `None` for a block of which no copy is whole.
    fn bitmaps(&mut self, state: &mut State, group: &Group) -> Vec<Option<u64>> {
        let mut epochs = Vec::new();
        for index in 0..group.bitmaps_in_use() {
            let found = self.newest(state, BITMAP, Kind::Bitmap, group.bitmaps(index));
            epochs.push(found.as_ref().map(|(_, epoch, _)| *epoch));
            let Some((offset, _, block)) = found else { continue };
            let bits = whole(&block, Kind::Bitmap, offset, state.uuid).and_then(|sealed| bitmap::from_block(&sealed));
            let first = index * BITMAP_UNITS;
            match bits {
                Ok(bits) => {
                    self.count(BITMAP, offset, bits.len() as u64, BITMAP_UNITS.min(group.units - first));
                    let taken = (group.first_unit + first..).zip(bits).filter(|(_, bits)| *bits != UnitBits::default());
                    for (unit, bits) in taken {
                        state.owners.get_mut(unit).into_iter().for_each(|owners| owners.taken = Bits::of(bits));
                    }
                }
                Err(damage) => self.wrong(BITMAP, offset, damage),
            }
        }
        epochs
    }

    fn unit_tables(&mut self, state: &mut State, group: &Group) -> Vec<Option<u64>> {
        let mut epochs = Vec::new();
        for index in 0..group.unit_tables_in_use() {
            let found = self.newest(state, UNIT_TABLE, Kind::UnitTable, group.unit_tables(index));
            epochs.push(found.as_ref().map(|(_, epoch, _)| *epoch));
            let Some((offset, _, block)) = found else { continue };
            let rows =
                whole(&block, Kind::UnitTable, offset, state.uuid).and_then(|sealed| unit_table::from_block(&sealed));
            let first = index * UNIT_TABLE_UNITS;
            match rows {
                Ok(rows) => {
                    self.count(UNIT_TABLE, offset, rows.len() as u64, UNIT_TABLE_UNITS.min(group.units - first));
                    let used =
                        (group.first_unit + first..).zip(rows).filter(|(_, row)| *row != AllocationUnit::default());
                    for (unit, row) in used {
                        state.owners.get_mut(unit).into_iter().for_each(|owners| owners.row = row);
                    }
                }
                Err(damage) => self.wrong(UNIT_TABLE, offset, damage),
            }
        }
        epochs
    }

    fn count(&mut self, structure: &'static str, offset: u64, found: u64, wanted: u64) {
        if found != wanted {
            self.wrong(structure, offset, format!("it describes {found} units, and there are {wanted}"));
        }
    }

    /// Checks the table's rows of units with taken blocks.
    fn units(&mut self, state: &State) {
        self.report.units += state.owners.units_in_all();
        for (unit, owners) in state.owners.units() {
            if !owners.is_taken() {
                continue;
            }
            self.report.units_taken += 1;
            let (offset, row) = (unit * ALLOCATION_UNIT_BYTES, owners.row);
            if row.purpose != Purpose::Group
                && state.superblock.write_fence != 0
                && unit >= state.superblock.write_fence
            {
                self.wrong(BITMAP, offset, "blocks of the unit are taken, and no owner's write fence has reached it");
            }
            if row.purpose == Purpose::Free {
                self.wrong(UNIT_TABLE, offset, "the unit is free, and blocks of it are taken");
            }
            // Sizes of records are exact to an eighth.
            if u64::from(row.garbage) > ALLOCATION_UNIT_BYTES + ALLOCATION_UNIT_BYTES / 8 {
                self.wrong(UNIT_TABLE, offset, format!("{} bytes of garbage are counted in a unit", row.garbage));
            }
            self.found(Structure::Units, || Found {
                what: "unit",
                offset,
                fields: vec![
                    ("purpose", row.purpose.name().into()),
                    ("level", u64::from(row.purpose.level()).into()),
                    ("keyspace", u64::from(row.keyspace).into()),
                    (
                        "blocks",
                        u64::from(owners.taken.words().iter().map(|word| word.count_ones()).sum::<u32>()).into(),
                    ),
                    ("garbage_bytes", u64::from(row.garbage).into()),
                ],
            });
        }
    }

    /// Records that a structure has a block, which must lie in a unit for that purpose.
    pub(super) fn own(
        &mut self,
        state: &mut State,
        structure: &'static str,
        offset: u64,
        purpose: Purpose,
        keyspace: u32,
    ) -> Result<(), Conflict> {
        let owned = state.owners.own(offset);
        if let Err(conflict) = owned {
            self.wrong(structure, offset, conflict);
        }
        if let Some(unit) = state.owners.get(unit_of(offset))
            && (unit.row.purpose != purpose || unit.row.keyspace != keyspace)
        {
            let row = unit.row;
            self.wrong(
                structure,
                offset,
                format!(
                    "its unit is for {} of keyspace {}, level {}",
                    row.purpose.name(),
                    row.keyspace,
                    row.purpose.level()
                ),
            );
        }
        owned
    }

    fn catalogue(&mut self, state: &mut State) -> Vec<KeyspaceEntry> {
        let mut keyspaces: Vec<KeyspaceEntry> = Vec::new();
        let mut numbers = BTreeSet::new();
        for reference in state.superblock.catalogue.clone() {
            let offset = reference.offset;
            let _ = self.own(state, CATALOGUE, offset, Purpose::Segment, 0);
            let block = match self.block(offset) {
                Ok(block) => block,
                Err(why) => {
                    self.wrong(CATALOGUE, offset, why);
                    continue;
                }
            };
            let read = whole(&block, Kind::Catalogue, offset, state.uuid).and_then(|sealed| {
                let wanted = reference.epoch;
                let found = sealed.epoch;
                if found == wanted { catalogue::from_block(&sealed) } else { Err(Damage::Epoch { found, wanted }) }
            });
            match read {
                Ok(read) => {
                    for keyspace in read {
                        if !numbers.insert(keyspace.number) || keyspace.number >= state.superblock.next_keyspace {
                            self.wrong(
                                CATALOGUE,
                                offset,
                                format!("there is a second or future keyspace {}", keyspace.number),
                            );
                        }
                        if keyspace.name.is_empty() || !self.keyspace_names.insert(keyspace.name.clone()) {
                            self.wrong(
                                CATALOGUE,
                                offset,
                                format!("there is a second or nameless keyspace {:?}", keyspace.name),
                            );
                        }
                        self.found(Structure::Keyspaces, || found_keyspace(offset, &keyspace));
                        keyspaces.push(keyspace);
                    }
                }
                Err(damage) => self.wrong(CATALOGUE, offset, damage),
            }
        }
        self.report.keyspaces += keyspaces.len() as u64;
        keyspaces
    }

    /// Units that the last commit freed, as far as its free log is readable. A later step reports problems with that log. The units may be
    /// in use again.
    fn retired(&self, state: &State) -> BTreeSet<u64> {
        let mut retired = BTreeSet::new();
        let mut seen = BTreeSet::new();
        let mut next = state.superblock.free_log;
        while next != 0 && seen.insert(next) {
            let Ok(block) = self.block(next) else { break };
            let rows = whole(&block, Kind::FreeLog, next, state.uuid).and_then(|sealed| free_log::from_block(&sealed));
            let Ok((freed, behind)) = rows else { break };
            let units = freed
                .iter()
                .filter(|freed| freed.blocks == ALLOCATION_UNIT_BLOCKS && freed.offset % ALLOCATION_UNIT_BYTES == 0);
            retired.extend(units.map(|freed| unit_of(freed.offset)));
            next = behind;
        }
        retired
    }

    fn free_log(&mut self, state: &mut State, chain: &mut Chain) {
        let mut next = state.superblock.free_log;
        while next != 0 {
            let offset = next;
            if self.own(state, FREE_LOG, offset, Purpose::Segment, 0) == Err(Conflict::Twice) {
                return;
            }
            let read = self.block(offset).and_then(|block| {
                let sealed = whole(&block, Kind::FreeLog, offset, state.uuid).map_err(|damage| damage.to_string())?;
                if sealed.epoch != state.epoch {
                    return Err(Damage::Epoch { found: sealed.epoch, wanted: state.epoch }.to_string());
                }
                free_log::from_block(&sealed).map_err(|damage| damage.to_string())
            });
            let (freed, behind) = match read {
                Ok(read) => read,
                Err(why) => return self.wrong(FREE_LOG, offset, why),
            };
            for freed in freed {
                let unit = unit_of(freed.offset);
                if freed.blocks == ALLOCATION_UNIT_BLOCKS && chain.contains(unit) {
                    // It was taken again since.
                    chain.reused.remove(&unit);
                    continue;
                }
                for block in 0..freed.blocks {
                    let at = freed.offset.saturating_add(block.saturating_mul(BLOCK_BYTES as u64));
                    // It was taken again since.
                    if chain.is_new(at) || state.owners.is_pending(at) {
                        continue;
                    }
                    if let Err(conflict) = state.owners.own(at) {
                        self.wrong(FREE_LOG, offset, format!("the block at byte {at}, which it names: {conflict}"));
                        break;
                    }
                }
            }
            next = behind;
        }
        for unit in &chain.reused {
            self.wrong("a chunk of the log", unit * ALLOCATION_UNIT_BYTES, Conflict::Twice);
        }
    }

    fn leaks(&mut self, state: &State) {
        for (unit, owners) in state.owners.units() {
            let leaked = owners.leaked();
            let Some(first) = owners.first_leaked() else { continue };
            let offset = unit * ALLOCATION_UNIT_BYTES + first * BLOCK_BYTES as u64;
            if owners.row.purpose == Purpose::Group {
                self.note("a unit", offset, "it was a group's own until the segment was taken over");
                continue;
            }
            self.report.leaked_blocks += u64::from(leaked);
            let what =
                format!("{leaked} blocks of it are taken, and nothing refers to them ({})", owners.row.purpose.name());
            self.note("a unit", offset, what);
            if owners.row.purpose == Purpose::Log {
                self.report.leaked_chunks += 1;
            }
        }
    }
}

/// Whether a copy was never written.
fn is_zero(block: &Block) -> bool {
    block.0 == Block::ZERO.0
}

fn found_superblock(offset: u64, epoch: u64, superblock: &Superblock) -> Found {
    Found {
        what: "superblock",
        offset,
        fields: vec![
            ("epoch", epoch.into()),
            ("features", superblock.incompatible.into()),
            ("owner_epoch", superblock.owner_epoch.into()),
            ("log_first_chunk", superblock.log_first_chunk.into()),
            ("log_replay_from", superblock.log_replay_from.into()),
            ("log_replay_sequence", superblock.log_replay_sequence.into()),
            ("log_generation", superblock.log_generation.into()),
            ("log_durable", superblock.log_durable.into()),
            ("free_log", superblock.free_log.into()),
            ("next_keyspace", u64::from(superblock.next_keyspace).into()),
            ("units", superblock.units.into()),
            ("write_fence", superblock.write_fence.into()),
            ("catalogue_blocks", (superblock.catalogue.len() as u64).into()),
        ],
    }
}

fn found_keyspace(offset: u64, keyspace: &KeyspaceEntry) -> Found {
    let mut fields = vec![
        ("number", u64::from(keyspace.number).into()),
        ("name", keyspace.name.clone().into()),
        ("log_sequence", keyspace.log_sequence.into()),
        ("log_offset", keyspace.log_offset.into()),
    ];
    for (level, roots) in keyspace.levels.iter().enumerate() {
        for root in [roots.active, roots.compacting].into_iter().flatten() {
            let text = format!(
                "level {level}: root at byte {}, {} entries, height {}, {} nodes",
                root.offset, root.entries, root.height, root.blocks
            );
            fields.push(("tree", text.into()));
        }
    }
    Found { what: "keyspace", offset, fields }
}
