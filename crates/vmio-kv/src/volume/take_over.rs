//! Takeover of a volume's segments from an owner that may still be running, and may finish writes that it has begun at any time.
//!
//! The new owner writes a *claim*, durably, before it reads anything of a segment that counts. From then on the former owner acknowledges
//! nothing. The new owner claims all segments before it does anything else.
//!
//! Then each segment goes on beyond the former owner's write fence: its groups' own units (superblocks, bitmaps, unit tables), its log and
//! its nodes. When the new superblock is durable, the claim becomes a record in force, with two copies. From then on the former owner's
//! places are not read, and its late writes have no effect.

use std::collections::BTreeMap;

use crate::device::Device;
use crate::error::{Damage, Error, FullPlace, Result};
use crate::format::block::{Block, Uuid, random_uuid};
use crate::format::geometry::{
    ALLOCATION_UNIT_BLOCKS, ALLOCATION_UNIT_BYTES, Group, first_units, unit_behind, units_from,
};
use crate::format::owner::{OWN_UNITS_MAX, OWNER_RECORDS, OwnerRecord, owner_records};
use crate::format::volume_header::{SEGMENTS_A_TABLE, SegmentEntry, segment_tables};
use crate::volume::Volume;
use crate::volume::committed::Changes;
use crate::volume::free_reserve::OWN_UNITS;
use crate::volume::ownership::{Standing, in_force, read_records};
use crate::volume::segment::{Segment, read_superblock};

use zerocopy::IntoBytes;

/// How many units a claim fences besides the groups' own, until the first superblock moves the fence.
const CLAIM_UNITS: u64 = 8;
/// The least growth of a volume that has no space for a new owner.
const GROWTH_UNITS_MIN: u64 = 32;

/// A claim to a segment.
pub(crate) struct Claim {
    record: OwnerRecord,
    /// The half of the records that has it: the record in force is in the other.
    half: usize,
    /// Other owners may write to units below.
    pub(crate) first_unit: u64,
}

impl Claim {
    /// The least epoch of the new owner.
    pub(crate) fn owner_epoch(&self) -> u64 {
        self.record.owner_epoch
    }
}

impl SegmentEntry {
    /// Finds the groups' own units, where the record in force says that they are.
    pub(super) fn find_own_units(&mut self, device: &Device) -> Result<()> {
        let table = segment_tables(0)[0];
        if self.number as usize >= SEGMENTS_A_TABLE {
            let damage = Damage::Value { what: "the number of a segment", found: u64::from(self.number) };
            return Err(device.damaged("the table of segments", table, damage));
        }
        let records = read_records(device, self.number, self.uuid)?;
        let Some((place, record)) = in_force(&records) else { return Ok(()) };
        let is_own = |unit: &u64| self.groups.iter().any(|group| group.contains(*unit));
        if let Some(found) = record.own_units.iter().copied().find(|unit| !is_own(unit)) {
            let damage = Damage::Value { what: "a group's own unit", found };
            return Err(device.damaged("an owner's record", owner_records(self.number)[*place], damage));
        }
        for (group, own_unit) in self.groups.iter_mut().zip(&record.own_units) {
            group.own_unit = *own_unit;
        }
        Ok(())
    }

    /// Writes the second copy of the record in force again, if it is damaged or torn.
    pub(super) fn mend_owner(&self, device: &Device, may_write: &dyn Fn() -> Result<()>) -> Result<()> {
        let records = read_records(device, self.number, self.uuid)?;
        let Some((place, record)) = in_force(&records) else { return Ok(()) };
        let other = place ^ 1;
        if records.iter().any(|(place, found)| *place == other && found == record) {
            return Ok(());
        }
        may_write()?;
        write_record(device, self, record, other)
    }
}

fn write_record(device: &Device, segment: &SegmentEntry, record: &OwnerRecord, place: usize) -> Result<()> {
    let offset = owner_records(segment.number)[place];
    device.write(offset, &record.to_block(segment.uuid, offset).0)?;
    device.flush()
}

/// The owners of a segment, as a claim finds them.
struct Owners {
    /// Where a claim goes: the half of the records without the one in force.
    half: usize,
    /// Other owners may write to units below.
    first_unit: u64,
    /// The highest epoch of another owner.
    newest_epoch: u64,
    keyspaces: usize,
}

impl Volume {
    /// Claims all segments. When this returns, the former owner acknowledges nothing more, and all that it has acknowledged can be
    /// read. `may_open` may refuse the numbers of segments and keyspaces before any claim.
    pub(crate) fn claim(&mut self, may_open: impl Fn(usize, usize) -> Result<()>) -> Result<BTreeMap<u32, Claim>> {
        let failed =
            |source| Error::Device { volume: self.device.name().to_owned(), action: "naming", offset: 0, source };
        let name = random_uuid().map_err(failed)?;
        let mut claims: BTreeMap<u32, Claim> = BTreeMap::new();
        loop {
            // The former owner may have added to the layout after we read it, before our claims.
            self.layout = Self::read_again(&self.device)?;
            let mut all_stand = true;
            let segments = self.layout.segments.clone();
            let owners: Vec<Owners> =
                segments.iter().map(|entry| self.owners(entry, name)).collect::<Result<Vec<_>>>()?;
            self.may_write()()?;
            // Before any claim, so that no owner is fenced in vain.
            may_open(segments.len(), owners.iter().map(|owners| owners.keyspaces).sum())?;
            self.check_space(segments.iter().zip(&owners))?;
            for (entry, Owners { half, first_unit, newest_epoch, .. }) in segments.iter().zip(owners) {
                let own = claims.get(&entry.number);
                if own.is_some_and(|own| own.first_unit >= first_unit && own.half == half) {
                    continue;
                }
                all_stand = false;
                // An owner that commits while we claim may have moved its fence further than we saw. The next epoch is left
                // out, for an opening or a creation that comes late.
                let owner_epoch = own.map_or(newest_epoch + 2, |own| own.record.owner_epoch);
                let write_fence = unit_behind(&entry.groups, first_unit, units_needed(entry)).unwrap_or(first_unit);
                let record = OwnerRecord { owner_epoch, claim: name, write_fence, own_units: Vec::new() };
                write_record(&self.device, entry, &record, 2 * half)?;
                claims.insert(entry.number, Claim { record, half, first_unit });
                self.standing.retain(|standing| standing.number != entry.number);
                let (number, uuid) = (entry.number, entry.uuid);
                self.standing.push(Standing { number, uuid, epoch: owner_epoch, claim: Some(name) });
            }
            if all_stand {
                break;
            }
        }
        // A block of header or table that the former owner was about to write has the next epoch, and may come late.
        self.mend()?;
        self.layout.epoch += 2;
        self.layout.write(&self.device, &self.may_write())?;
        // It may be laying out a segment in units that it has made the volume longer by.
        self.unused_from = self.layout.header.units;
        let lacking = |volume: &Self, (number, claim): (&u32, &Claim)| -> Result<u64> {
            Ok(units_lacking(volume.segment(*number)?, claim.first_unit))
        };
        let mut lacking_in_all = claims.iter().map(|claim| lacking(self, claim)).sum::<Result<u64>>()?;
        for (number, claim) in &mut claims {
            lacking_in_all -= lacking(self, (number, claim))?;
            self.find_space(*number, claim, lacking_in_all)?;
        }
        Ok(claims)
    }

    /// The owners of a segment, without the one that has claimed it by that `name`.
    fn owners(&self, entry: &SegmentEntry, name: Uuid) -> Result<Owners> {
        let records = read_records(&self.device, entry.number, entry.uuid)?;
        let half = in_force(&records).map_or(0, |(place, _)| 1 - place / 2);
        let (.., superblock) = read_superblock(&self.device, entry)?;
        let groups = first_units(&entry.groups, superblock.units).unwrap_or_else(|| entry.groups.clone());
        let others = || records.iter().map(|(_, record)| record).filter(|record| record.claim != name);
        let write_fence = others().map(|record| record.write_fence).max().unwrap_or(0);
        let newest_epoch = others().map(|record| record.owner_epoch).max().unwrap_or(0);
        // No number of a keyspace is used twice.
        let keyspaces = superblock.next_keyspace.saturating_sub(1) as usize;
        Ok(Owners {
            half,
            first_unit: superblock.write_fence_end(&groups).max(write_fence),
            newest_epoch: newest_epoch.max(superblock.owner_epoch),
            keyspaces,
        })
    }

    /// Fails if the volume cannot grow enough to give each segment space beyond other owners' fences.
    fn check_space<'entry>(&self, owners: impl Iterator<Item = (&'entry SegmentEntry, &'entry Owners)>) -> Result<()> {
        let lacking: u64 = owners.map(|(entry, owners)| units_lacking(entry, owners.first_unit)).sum();
        if self.layout.header.units + lacking <= self.units_max() {
            return Ok(());
        }
        let volume = self.device.name().to_owned();
        Err(Error::Full { volume, wanted: lacking * ALLOCATION_UNIT_BYTES, place: FullPlace::Volume })
    }

    /// Gives a segment space beyond other owners' fences, and notes in the claim how far its own fence reaches. `left` units stay for
    /// other segments.
    fn find_space(&mut self, number: u32, claim: &mut Claim, left: u64) -> Result<()> {
        let lacking = units_lacking(self.segment(number)?, claim.first_unit);
        if lacking == 0 {
            return Ok(());
        }
        let least = self.unused_from + lacking;
        let end = self.units_max().saturating_sub(left).min(least + GROWTH_UNITS_MIN);
        if end < least {
            let volume = self.device.name().to_owned();
            return Err(Error::Full { volume, wanted: lacking * ALLOCATION_UNIT_BYTES, place: FullPlace::Volume });
        }
        let may_write = self.may_write();
        self.change(self.layout.grown(number, self.unused_from..end), &may_write)?;
        let entry = self.segment(number)?;
        let write_fence = unit_behind(&entry.groups, claim.first_unit, units_needed(entry));
        claim.record.write_fence = write_fence.unwrap_or(claim.first_unit);
        may_write()?;
        write_record(&self.device, entry, &claim.record, 2 * claim.half)
    }
}

/// How many units a new owner needs before its first superblock moves the fence: two for each group and for one group more, and those of a
/// claim.
fn units_needed(segment: &SegmentEntry) -> u64 {
    2 * (segment.groups.len() as u64 + 1) + CLAIM_UNITS
}

/// How many of these units a segment lacks from a unit on. They may have to be a group of their own.
fn units_lacking(segment: &SegmentEntry, first_unit: u64) -> u64 {
    let needed = units_needed(segment);
    if units_from(&segment.groups, first_unit) >= needed {
        return 0;
    }
    needed + 2 - units_from(&segment.groups, first_unit)
}

impl Segment {
    /// Keeps off units that other owners may write to, but for reading; `groups` may be more than it had.
    pub(crate) fn keep_off(&self, claim: &Claim, groups: &[Group]) {
        let mut allocator = self.allocator();
        let new_units = allocator.extend(groups);
        allocator.use_units(new_units);
        allocator.keep_off(claim.first_unit);
        allocator.set_write_fence(claim.record.write_fence);
    }

    /// Commits the state in places of the new owner's own, and puts its record in force.
    pub(crate) fn establish(&self, volume: &mut Volume, claim: Claim, owner_epoch: u64) -> Result<()> {
        // One more for the commit.
        self.make_ready(volume.segment(self.number)?.groups.len() as u64 + 2 * OWN_UNITS)?;
        let own_units = self.allocator().move_own_units().ok_or_else(|| self.full(ALLOCATION_UNIT_BYTES))?;
        if own_units.len() > OWN_UNITS_MAX {
            let volume = self.device.name().to_owned();
            return Err(Error::Option {
                option: "take_over",
                value: own_units.len() as u64,
                why: "a volume with so many groups cannot be taken over",
            })
            .inspect_err(|_| tracing::error!(volume, "it has too many groups to be taken over"));
        }
        let zeros = vec![Block::ZERO; ALLOCATION_UNIT_BLOCKS as usize];
        for unit in &own_units {
            self.device.write(unit * ALLOCATION_UNIT_BYTES, zeros.as_slice().as_bytes())?;
        }
        let mut groups = volume.segment(self.number)?.groups.clone();
        groups.iter_mut().zip(&own_units).for_each(|(group, unit)| group.own_unit = *unit);
        self.move_superblocks(groups[0].superblocks());
        self.ownership.own(owner_epoch);
        let changes = Changes { owner_epoch: Some(owner_epoch), groups: Some(groups.clone()), ..Changes::default() };
        self.commit(changes, &[])?;
        volume.set_groups(self.number, &groups);
        let record = OwnerRecord { owner_epoch, own_units, ..claim.record };
        volume.say_that_own_units_moved()?;
        let (entry, may_write) = (volume.segment(self.number)?, volume.may_write());
        for place in [2 * claim.half, 2 * claim.half + 1] {
            may_write()?;
            write_record(&self.device, entry, &record, place)?;
        }
        may_write()
    }
}

const _: () = assert!(OWNER_RECORDS == 4);
