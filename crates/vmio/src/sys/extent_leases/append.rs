//! Appends of a map: bytes stored behind the end of the file, and then its new length.

use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::fsync;
use vmio_pmfs_protocol::{Grant, Request};

use super::growth::Turn;
use super::leased_map::{LeasedMap, Pieces, Placed};
use crate::sys::PAGE_BYTES;
use crate::sys::persistent_memory::{Instructions, Refused};
use crate::sys::signal::SignalsBlocked;

/// How often the bytes to append may be taken away while they are read: they may be in a mapping of extents, too.
const ATTEMPTS_MAX: u32 = 16;

/// The outcome of an attempt.
enum Attempt {
    Appended,
    /// There is no room, or somebody else has appended.
    Not,
    /// The bytes, or the room, are not there now. A touch may bring them.
    NotThere,
}

impl LeasedMap {
    /// Stores parts, one after the other, behind the end of the file, which is `end`, and makes them part of it: all, or none if there is no room. Others
    /// see them from then on. With `durably` they are durable when this returns.
    pub(crate) fn append(&self, end: u64, parts: &[&[u8]], durably: bool, instructions: Instructions) -> bool {
        for _ in 0..ATTEMPTS_MAX {
            match self.try_append(end, parts, durably, instructions) {
                Attempt::Appended => return true,
                Attempt::Not => return false,
                Attempt::NotThere if parts.iter().all(|part| touch(part, instructions).is_ok()) => {}
                Attempt::NotThere => return false,
            }
        }
        false
    }

    fn try_append(&self, end: u64, parts: &[&[u8]], durably: bool, instructions: Instructions) -> Attempt {
        let pieces = &*self.pieces;
        // It costs little there, and then no sync has anything to do.
        let durably = durably || self.is_synchronous();
        let len: usize = parts.iter().map(|part| part.len()).sum();
        if len == 0 || !pieces.is_writable || pieces.is_cached.load(Ordering::Acquire) {
            return Attempt::Not;
        }
        let (Some(turn), Some(offset)) = (pieces.growth.turn(), pieces.offset_of_byte(end, len)) else {
            return Attempt::Not;
        };
        let room = match turn.room(&pieces.holder.slots, end, durably) {
            0 => match pieces.lease_to_grow(&turn, end, durably) {
                Some(room) => room,
                None => {
                    drop(turn);
                    let _signals = SignalsBlocked::new();
                    pieces.leave_to_kernel();
                    return Attempt::Not;
                }
            },
            room => room,
        };
        let len = len as u64;
        if room < len {
            return Attempt::Not;
        }
        let mut to = pieces.range.base().wrapping_add(offset);
        for part in parts {
            // SAFETY: the range has these addresses, mapped for stores. This ends with a fence: no length is durable before its bytes.
            if turn.without_leases(|| unsafe { instructions.store(to, part) }).is_err() {
                return Attempt::NotThere;
            }
            to = to.wrapping_add(part.len());
        }
        // Others may go on without this turn as soon as the bytes count.
        let word = turn.durable_word();
        if !turn.stored(&pieces.holder.slots, end, end + len) {
            return Attempt::Not;
        }
        if let Some(word) = word {
            let word = ptr::from_ref(word) as usize;
            // SAFETY: the word is of the medium, mapped as its persistence wants it.
            let written = unsafe { instructions.write_back(word..word + size_of::<AtomicU64>()) };
            if written.is_err() {
                // The bytes are the file's already. The server makes its length durable otherwise.
                _ = fsync(&pieces.file);
            }
        }
        Attempt::Appended
    }
}

/// Loads a byte of each page. Afterwards they are leased.
fn touch(bytes: &[u8], instructions: Instructions) -> Result<(), Refused> {
    let mut loaded = [0];
    let mut rest = bytes;
    while let Some(byte) = rest.first() {
        // SAFETY: the caller has the bytes.
        unsafe { instructions.load(byte, &mut loaded)? };
        let next = PAGE_BYTES - ptr::from_ref(byte) as usize % PAGE_BYTES;
        rest = rest.get(next..).unwrap_or_default();
    }
    Ok(())
}

impl Pieces {
    /// Asks for blocks behind the end of the file and maps them. Returns how many bytes they have; nothing if the kernel has to serve the map.
    fn lease_to_grow(&self, turn: &Turn<'_>, end: u64, durably: bool) -> Option<u64> {
        let _signals = SignalsBlocked::new();
        let Some(slot) = turn.slot_for(&self.holder.slots, end) else { return Some(0) };
        let (mut grant, holder) = (Grant::empty(), self.holder.number);
        let request = if durably { Request::to_grow_durably(holder, slot) } else { Request::to_grow(holder, slot) };
        let Ok(showing) = self.ask(&request, &mut grant) else { return Some(0) };
        // The server may look at another word from now on, which this process may fail to map.
        turn.has_room_up_to(0);
        // Another length: then it is the kernel that knows better.
        if grant.size != end || !turn.says_lengths_at(&self.holder, grant.slot_at(), end) {
            return Some(0);
        }
        match self.map_extents(&grant, true, &showing) {
            Placed::UpTo(_) => {}
            Placed::Unserved => return None,
            _ => return Some(0),
        }
        let room_end = u64::from(grant.blocks().end) * PAGE_BYTES as u64;
        turn.has_room_up_to(room_end);
        Some(room_end.saturating_sub(end))
    }

    /// Where bytes of the file are in the range, if all of them are.
    fn offset_of_byte(&self, at: u64, len: usize) -> Option<usize> {
        let offset = at.checked_sub(u64::from(self.first_block) * PAGE_BYTES as u64)? as usize;
        (offset.checked_add(len)? <= self.range.len()).then_some(offset)
    }
}
