//! Checks an entry of a leaf against its record.

use crate::check::Check;
use crate::check::state::State;
use crate::check::tree::Walk;
use crate::error::Damage;
use crate::format::chunk::{CHUNK_BYTES, RECORDS_AT};
use crate::format::geometry::{ALLOCATION_UNIT_BYTES, unit_of};
use crate::format::leaf::{Leaf, key_hash};
use crate::format::pointer::{Pointer, PointerKind};
use crate::format::record::{ALIGNMENT, FRONT_BYTES, Record, RecordKind};
use crate::format::unit_table::{AllocationUnit, Purpose};

impl Check<'_> {
    /// Checks an entry; returns its key, or `None` if its record belongs to a generation of the chunk that has ended.
    pub(super) fn entry(
        &mut self,
        state: &mut State,
        walk: &Walk<'_>,
        leaf: &Leaf<'_>,
        index: usize,
        (leaf_offset, leaf_epoch): (u64, u64),
    ) -> Result<Option<Vec<u8>>, String> {
        let pointer = leaf.pointer(index);
        if pointer.kind() == PointerKind::Extents {
            return self.large_entry(state, walk, leaf, index, leaf_epoch).map(Some);
        }
        if pointer.kind() == PointerKind::Inline {
            return inline_entry(leaf, leaf_offset, index).map(Some);
        }
        let unit = state.owners.get(unit_of(pointer.offset())).ok_or("its record lies outside of the segment")?;
        if state.retired.contains(&unit_of(pointer.offset())) || is_superseded(&unit.row, leaf_epoch) {
            self.report.superseded_entries += 1;
            return Ok(None);
        }
        let seed = walk
            .chain
            .seed(pointer.offset())
            .ok_or_else(|| format!("its record, at byte {}, lies in no chunk of the log", pointer.offset()))?;
        let bytes = self.record(pointer.offset())?;
        let record = Record::read(seed, &bytes).map_err(damaged_at(pointer.offset()))?;
        check_record(&record, walk, pointer)
            .map_err(|why| format!("its record, at byte {}: {why}", pointer.offset()))?;
        check_key(leaf, index, record.key)?;
        Ok(Some(record.key.to_vec()))
    }

    /// The same for an entry with a large value.
    fn large_entry(
        &mut self,
        state: &mut State,
        walk: &Walk<'_>,
        leaf: &Leaf<'_>,
        index: usize,
        leaf_epoch: u64,
    ) -> Result<Vec<u8>, String> {
        let pointer = leaf.pointer(index);
        let at = |why: String| format!("its head, at byte {}: {why}", pointer.offset());
        let head = self.head(state.uuid, pointer.offset(), pointer.head_number()).map_err(at)?;
        if pointer.record() != head.pointer(pointer.offset(), pointer.head_number()) {
            return Err(at(format!("it has {} bytes, which the entry does not say", head.bytes)));
        }
        if head.keyspace != walk.keyspace.number {
            return Err(at(format!("it is of keyspace {}", head.keyspace)));
        }
        if head.epoch > leaf_epoch {
            return Err(at(format!("it is of epoch {}, and its leaf of epoch {leaf_epoch}", head.epoch)));
        }
        check_key(leaf, index, &head.key)?;
        self.large_in_tree(state, pointer.offset(), &head);
        Ok(head.key)
    }

    /// The bytes of a record, whose length its front states.
    fn record(&self, offset: u64) -> Result<Vec<u8>, String> {
        let damaged = damaged_at(offset);
        let at = (offset % ALLOCATION_UNIT_BYTES) as usize;
        if !at.is_multiple_of(ALIGNMENT) || !(RECORDS_AT..=CHUNK_BYTES - FRONT_BYTES).contains(&at) {
            return Err(damaged(Damage::Value { what: "its place in the chunk", found: at as u64 }));
        }
        let front = self.bytes(offset, FRONT_BYTES)?;
        let length = front.first_chunk().ok_or(Damage::Length).and_then(Record::length).map_err(&damaged)?;
        if at + length > CHUNK_BYTES {
            return Err(damaged(Damage::Length));
        }
        self.bytes(offset, length)
    }
}

/// Checks an entry whose record the leaf holds; returns its key.
fn inline_entry(leaf: &Leaf<'_>, leaf_offset: u64, index: usize) -> Result<Vec<u8>, String> {
    let pointer = leaf.pointer(index);
    let inline = leaf.inline(index).map_err(|damage| format!("its record: {damage}"))?;
    let inline = inline.ok_or("its record is not in the leaf")?;
    let place = leaf_offset + pointer.place_in_block() as u64;
    if pointer.record() != Pointer::new(PointerKind::Inline, place, inline.bytes() as u32) {
        return Err(format!(
            "its record is at byte {place} and has {} bytes, which the entry does not say",
            inline.bytes()
        ));
    }
    let key = leaf.inline_key(&inline);
    check_key(leaf, index, &key)?;
    Ok(key)
}

fn damaged_at(offset: u64) -> impl Fn(Damage) -> String {
    move |damage| format!("its record, at byte {offset}: {damage}")
}

/// Whether a unit became free, and perhaps got a new use, after the write of a leaf. The leaf's entries into the unit are superseded then.
fn is_superseded(unit: &AllocationUnit, leaf_epoch: u64) -> bool {
    unit.purpose != Purpose::Log || leaf_epoch <= unit.former_epoch
}

fn check_record(record: &Record<'_>, walk: &Walk<'_>, pointer: Pointer) -> Result<(), String> {
    let kind = match record.kind {
        RecordKind::Put | RecordKind::Relocation => PointerKind::Value,
        RecordKind::Delete => PointerKind::Tombstone,
        other => return Err(format!("it is of kind {other:?}")),
    };
    if pointer.record() != Pointer::new(kind, pointer.offset(), record.bytes() as u32) {
        return Err(format!(
            "it is of kind {:?} with {} bytes, which the entry does not say",
            record.kind,
            record.bytes()
        ));
    }
    if record.keyspace != walk.keyspace.number {
        return Err(format!("it is of keyspace {}", record.keyspace));
    }
    if record.sequence >= walk.keyspace.log_sequence {
        let what = "while the keyspace's records from";
        return Err(format!(
            "its number is {}, {what} {} on are in no tree",
            record.sequence, walk.keyspace.log_sequence
        ));
    }
    Ok(())
}

/// Checks the parts of an entry by which a search finds its key.
fn check_key(leaf: &Leaf<'_>, index: usize, key: &[u8]) -> Result<(), String> {
    let known = leaf.key(index);
    if leaf.hash(index) != key_hash(key) {
        return Err("its hash is not that of its record's key".to_owned());
    }
    if !key.starts_with(&known.bytes) || known.complete != (known.bytes.len() == key.len()) {
        return Err("what it says of its key is not its record's".to_owned());
    }
    if !leaf.candidates(key).contains(&index) || leaf.is_key(index, key, key_hash(key)) == Some(false) {
        return Err("a search for its key skips it".to_owned());
    }
    Ok(())
}
