//! The request for a lease, and its grant. Both fit the stack of a signal handler.

use std::ops::Range;

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// The most extents of a grant.
pub const EXTENTS_MAX: usize = 30;

const STORES: u32 = 1;
const FILL: u32 = 2;
const GROW: u32 = 4;
const DURABLE: u32 = 8;

/// The files of a holder that may grow at the same time.
pub const SLOTS: usize = 512;
/// The bytes of a slot: the word that says up to which length the holder has stored what it appends ([`crate::sealed`]).
pub const SLOT_BYTES: usize = 8;

/// A part of a file that a holder wants to map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Request {
    /// The holder's number.
    pub holder: u64,
    first: u32,
    end: u32,
    flags: u32,
    slot: u32,
}

/// Blocks of a file that lie side by side on the medium.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Extent {
    /// The first one in the file.
    pub file_block: u32,
    /// How many there are.
    pub blocks: u32,
    /// The first one on the medium.
    pub start: u64,
}

/// The place of a part of a file, and in front of it the request for it: the kernel copies as many bytes in as out.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Grant {
    /// The length of the file.
    pub size: u64,
    first: u32,
    end: u32,
    count: u32,
    reserved: u32,
    /// 0 for none.
    slot_at: u64,
    extents: [Extent; EXTENTS_MAX],
}

const _: () = assert!(size_of::<Grant>() == 512 && size_of::<Request>() == 24);

impl Request {
    /// A request for blocks: for loads, or for stores too. With `fill`, holes get blocks.
    pub fn new(holder: u64, blocks: Range<u32>, stores: bool, fill: bool) -> Request {
        let flags = if stores { STORES } else { 0 } | if fill { FILL } else { 0 };
        Request { holder, first: blocks.start, end: blocks.end, flags, slot: 0 }
    }

    /// A request for blocks behind the end of the file. The holder stores there what it appends, and then the new length in this slot of its
    /// memory.
    pub fn to_grow(holder: u64, slot: u32) -> Request {
        Request { holder, first: 0, end: 0, flags: STORES | GROW, slot }
    }

    /// The same for appends that are durable without the server: the grant says where on the medium the holder stores the length instead. The slot of its
    /// memory says the length that it knows.
    pub fn to_grow_durably(holder: u64, slot: u32) -> Request {
        Request { flags: STORES | GROW | DURABLE, ..Request::to_grow(holder, slot) }
    }

    /// Whether a request for blocks behind the end is for durable appends.
    pub fn is_durable(&self) -> bool {
        self.flags & DURABLE != 0
    }

    /// The slot of a request for blocks behind the end.
    pub fn growth(&self) -> Option<u32> {
        (self.flags & GROW != 0).then_some(self.slot)
    }

    /// The blocks of the file.
    pub fn blocks(&self) -> Range<u32> {
        self.first..self.end
    }

    /// Whether the holder may store to them.
    pub fn stores(&self) -> bool {
        self.flags & STORES != 0
    }

    /// Whether holes get blocks.
    pub fn fills(&self) -> bool {
        self.flags & FILL != 0
    }

    /// Puts the request in front of the space for its grant, as the process passes both.
    pub fn put(&self, grant: &mut Grant) {
        grant.as_mut_bytes()[..size_of::<Request>()].copy_from_slice(self.as_bytes());
    }

    /// Reads the bytes that a process has passed; `None` if they make no sense.
    pub fn from_bytes(bytes: &[u8]) -> Option<Request> {
        let (request, _) = Request::read_from_prefix(bytes).ok()?;
        let is_known = request.flags & !(STORES | FILL | GROW | DURABLE) == 0;
        // Nobody appends to what he may not store to.
        let is_allowed = request.flags & (GROW | DURABLE) == 0 || request.stores() && request.flags & GROW != 0;
        let is_sound = request.first <= request.end && (request.slot as usize) < SLOTS;
        (is_known && is_allowed && is_sound).then_some(request)
    }
}

impl Grant {
    /// Of nothing.
    pub fn empty() -> Grant {
        Grant::new_zeroed()
    }

    /// The grant of some blocks; of the extents there are [`EXTENTS_MAX`] at most.
    pub fn new(size: u64, blocks: Range<u32>, extents: &[Extent]) -> Grant {
        let count = extents.len().min(EXTENTS_MAX);
        let mut all = [Extent::default(); EXTENTS_MAX];
        all[..count].copy_from_slice(&extents[..count]);
        Grant { size, first: blocks.start, end: blocks.end, count: count as u32, reserved: 0, slot_at: 0, extents: all }
    }

    /// The blocks of the file that it is about. There may be fewer than were asked for; those in no extent are holes.
    pub fn blocks(&self) -> Range<u32> {
        self.first..self.end.max(self.first)
    }

    /// The same grant with a place of the medium for the length, by its byte, where appends are durable.
    pub fn with_slot(self, at: Option<u64>) -> Grant {
        Grant { slot_at: at.unwrap_or_default(), ..self }
    }

    /// The byte of the medium at which the holder stores the length, a word of 8 bytes; `None` if that goes into the slot of its memory.
    pub fn slot_at(&self) -> Option<u64> {
        Some(self.slot_at).filter(|at| *at != 0 && at.is_multiple_of(size_of::<u64>() as u64))
    }

    /// Where they are, in the order of the file.
    pub fn extents(&self) -> &[Extent] {
        &self.extents[..(self.count as usize).min(EXTENTS_MAX)]
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_request_and_a_grant_come_back() {
        for (stores, fills) in [(false, false), (true, false), (true, true)] {
            let request = Request::new(7, 3..9, stores, fills);
            let mut grant = Grant::empty();
            request.put(&mut grant);
            let read = Request::from_bytes(grant.as_bytes()).unwrap();
            assert_eq!(read, request);
            assert_eq!((read.blocks(), read.stores(), read.fills()), (3..9, stores, fills));
        }
        let extents = [Extent { file_block: 3, blocks: 6, start: 100 }; 70];
        let grant = Grant::new(5, 3..9, &extents);
        assert_eq!((grant.blocks(), grant.extents().len(), grant.slot_at()), (3..9, EXTENTS_MAX, None));
        assert_eq!(grant.with_slot(Some(640)).slot_at(), Some(640));
        assert_eq!(grant.with_slot(Some(641)).slot_at(), None);
    }

    #[test]
    fn nonsense_is_refused() {
        assert_eq!(Request::from_bytes(&[0; 23]), None);
        let turned = Request { first: 2, end: 1, ..Request::new(0, 0..0, false, false) };
        assert_eq!(Request::from_bytes(turned.as_bytes()), None);
        let far = Request::to_grow(0, SLOTS as u32);
        assert_eq!(Request::from_bytes(far.as_bytes()), None);
        assert_eq!(Request::from_bytes(Request::to_grow(1, 9).as_bytes()).unwrap().growth(), Some(9));
        let durably = Request::from_bytes(Request::to_grow_durably(1, 9).as_bytes()).unwrap();
        assert!(durably.is_durable() && durably.growth() == Some(9) && !Request::to_grow(1, 9).is_durable());
        let no_growth = Request { flags: STORES | DURABLE, ..Request::to_grow(0, 0) };
        assert_eq!(Request::from_bytes(no_growth.as_bytes()), None);
        let for_loads = Request { flags: GROW, ..Request::to_grow(0, 0) };
        assert_eq!(Request::from_bytes(for_loads.as_bytes()), None);
        let unknown = Request { flags: 16, ..Request::new(0, 0..0, false, false) };
        assert_eq!(Request::from_bytes(unknown.as_bytes()), None);
        let many = Grant { count: 1000, ..Grant::new(0, 0..0, &[]) };
        assert_eq!(many.extents().len(), EXTENTS_MAX);
    }
}
