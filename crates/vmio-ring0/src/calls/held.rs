//! A system call with pointers to managed memory: the program's [`Holder`] keeps the pages while the host makes it.
//!
//! The holder is at work in the machine, on the handler's stack, as the fault handler is, and no signal interrupts it. A call that cannot wait is made
//! there, too, and its own system calls are forwarded as they are. One that may wait is made between two turns of the holder.

use std::ops::{ControlFlow, Range};

use crate::address_space::AddressSpace;
use crate::block::Block;
use crate::calls::memory::{Call, Len, Piece, Use, ends_in};
use crate::calls::parts::{self, Vectors};
use crate::calls::waits;
use crate::machine::Machine;
use crate::memory::PAGE_BYTES;
use crate::raw;

/// The program's part in system calls with pointers to managed memory.
///
/// All run in the thread that makes the call, in the machine, as far as the fault handler's rules allow: a thread that calls the kernel may be anywhere
/// in the program, but it holds none of the allocator's locks. They must not touch managed memory. A thread that ends amid a call releases outside.
pub trait Holder: Sync {
    /// Makes pages resident, for stores if so, and exposes them ([`Pages::expose`](crate::Pages::expose)) until [`Self::release`]. The addresses are whole
    /// pages of managed memory. A call that may wait may do so for ever: others need memory meanwhile.
    ///
    /// # Errors
    ///
    /// The errno with which the call fails; then nothing is held.
    fn hold(&self, addresses: Range<usize>, for_stores: bool, may_wait: bool) -> Result<(), i32>;

    /// Ends one [`Self::hold`] of the same pages.
    fn release(&self, addresses: Range<usize>, for_stores: bool);

    /// How many bytes around an address one call may hold. A longer read or write is made in parts of this size.
    fn bytes_max(&self, address: usize) -> usize;
}

/// Parts of memory that one call may use. Vectors of the most parts that the kernel takes have room.
const PARTS_MAX: usize = 1100;
/// A call holds this much of a piece at least, if it can: a message comes as a whole. One that may wait holds no more.
const PIECE_BYTES: usize = 256 << 10;
/// A call that waits for the bytes of a stream holds no more, which is what a pipe has. It gets what is there, and its next call gets the rest.
const STREAM_BYTES: usize = 64 << 10;

impl Machine {
    /// Has calls with pointers to managed memory succeed. Without it they fail with EFAULT, unless the memory is exposed already. Later calls of this
    /// change nothing.
    pub fn hold_for_calls(&self, holder: &'static dyn Holder) {
        let _ = self.holder.set(holder);
    }
}

/// Whether a call needs memory held.
pub(crate) fn is_needed(machine: &Machine, call: &Call) -> bool {
    let space = &machine.space;
    if machine.holder.get().is_none() || !space.has_managed() {
        return false;
    }
    // Nearly all calls have no managed address among their arguments, and lead to none.
    if !call.arguments.iter().any(|argument| space.is_managed(*argument as usize)) && !call.has_nested_pointers() {
        return false;
    }
    call.memory(&mut |piece| match managed_part(space, piece.addresses()) {
        Some(_) => ControlFlow::Break(()),
        None => ControlFlow::Continue(()),
    })
    .is_break()
}

/// Why a call that needs memory held cannot be made.
pub(crate) fn refusal_of(call: &Call) -> Option<u64> {
    // The kernel goes on to read what such a call has sent, after its end.
    let flags = match call.number as i64 {
        libc::SYS_sendto | libc::SYS_sendmmsg => call.arguments[3],
        libc::SYS_sendmsg => call.arguments[2],
        _ => 0,
    };
    (flags & libc::MSG_ZEROCOPY as u64 != 0).then_some(failed(libc::ENOBUFS))
}

fn failed(errno: i32) -> u64 {
    -i64::from(errno) as u64
}

/// A turn of the holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Turn {
    /// To make the call in the block's registers, or to hold its memory.
    Begin,
    /// To end the hold after the call, whose answer is kept.
    End,
    /// To end the hold of a call that a signal has interrupted.
    Lose,
    /// To hold the memory of the call in the block's registers, which begins again after a signal, instead of what is held now.
    Again,
}

/// Called by the stub, on the handler's stack. The block is the thread's; the answer counts if the call was made.
pub(crate) unsafe extern "C" fn on_held_call(block: *mut Block) -> u64 {
    // SAFETY: the caller vouches for the block. The monitor runs at each exit meanwhile, and uses neither field before the turn's end.
    let (held, machine, call) = unsafe { (&mut (*block).held, (*block).machine, Call::of(&(*block).called)) };
    let Some(holder) = machine.holder.get().copied() else { return failed(libc::EFAULT) };
    // SAFETY: the word is the thread's own.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above. The holder may change it, and the program does not expect that of a call that succeeds.
    let kept = unsafe { errno.read() };
    let answer = match held.turn {
        Turn::Begin => held.begin(machine, holder, &call),
        Turn::End | Turn::Lose => {
            held.release(holder);
            0
        }
        Turn::Again => {
            held.release(holder);
            held.hold(machine, holder, &call, true);
            0
        }
    };
    // SAFETY: as above.
    unsafe { errno.write(kept) };
    answer
}

/// How a call holds memory.
struct Terms<'a> {
    holder: &'a dyn Holder,
    may_wait: bool,
    /// Of one piece.
    most: usize,
}

impl Terms<'_> {
    fn hold(&self, addresses: Range<usize>, for_stores: bool) -> Result<(), i32> {
        self.holder.hold(addresses, for_stores, self.may_wait)
    }

    /// How many bytes of a piece the call holds.
    fn bytes_max(&self, address: usize) -> usize {
        self.holder.bytes_max(address).max(PIECE_BYTES).min(self.most)
    }
}

/// The managed memory that a thread's call holds. One call at a time: a thread that makes another one is in a handler of a signal, so the kernel does
/// not make the first one meanwhile.
#[repr(C)]
pub(crate) struct Held {
    pub(crate) turn: Turn,
    /// Whether the holder has made the call.
    pub(crate) is_made: bool,
    /// The answer to a call that was made, while the holder ends the hold.
    pub(crate) answer: u64,
    /// Why not all was held; 0 if it was.
    refusal: i32,
    /// Whether there was no memory for any page of some piece.
    is_bare: bool,
    count: usize,
    parts: [Part; PARTS_MAX],
    /// Of a read or write of a file.
    pub(super) vectors: Vectors,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Part {
    start: usize,
    end: usize,
    for_stores: bool,
}

impl Held {
    /// Makes a call that cannot wait; of another one only holds the memory.
    fn begin(&mut self, machine: &Machine, holder: &dyn Holder, call: &Call) -> u64 {
        self.is_made = true;
        if let Some(answer) = parts::make(machine, holder, self, call) {
            return answer;
        }
        let may_wait = waits::may_wait(call);
        self.hold(machine, holder, call, may_wait);
        if may_wait && self.is_bare {
            // A message would have no place.
            self.release(holder);
            return failed(libc::ENOMEM);
        }
        if may_wait || waits::is_the_monitors(call) {
            self.is_made = false;
            return 0;
        }
        // SAFETY: the call and its arguments are the program's own, which may do all that its process may.
        let answer = unsafe { raw::call(call.number, call.arguments) };
        let answer = self.explain(answer);
        self.release(holder);
        answer
    }

    /// Holds all memory of a call that can be held. Whether it needs the rest is for the kernel to say: an argument may be one that the call does not
    /// use, and a length a guess.
    pub(super) fn hold(&mut self, machine: &Machine, holder: &dyn Holder, call: &Call, may_wait: bool) {
        debug_assert_eq!(self.count, 0);
        (self.refusal, self.is_bare) = (0, false);
        let most = match may_wait {
            false => usize::MAX,
            true if waits::is_for_a_stream(call) => STREAM_BYTES,
            true => PIECE_BYTES,
        };
        let holder = &Terms { holder, may_wait, most };
        let _ = call.memory(&mut |piece| {
            let before = self.count;
            if let Err(errno) = self.hold_piece(&machine.space, holder, piece) {
                self.refusal = errno;
                self.is_bare |= errno == libc::ENOMEM && self.count == before && piece.usage != Use::Any;
            }
            ControlFlow::Continue(())
        });
    }

    /// Holds the array of vectors alone that a call has.
    pub(super) fn hold_vectors(&mut self, machine: &Machine, holder: &dyn Holder, call: &Call) {
        let terms = &Terms { holder, may_wait: false, most: usize::MAX };
        // The first piece. What is not there of it the kernel will say.
        let _ = call.memory(&mut |piece| {
            let _ = self.hold_piece(&machine.space, terms, piece);
            ControlFlow::Break(())
        });
    }

    /// Whether all was held.
    pub(super) fn is_whole(&self) -> bool {
        self.refusal == 0
    }

    /// The answer to the call, where the kernel lacks memory that could not be held.
    pub(crate) fn explain(&mut self, answer: u64) -> u64 {
        match std::mem::take(&mut self.refusal) {
            refusal if refusal != 0 && raw::error_of(answer) == Some(libc::EFAULT) => failed(refusal),
            _ => answer,
        }
    }

    /// Ends the hold, in the thread that has begun it.
    pub(crate) fn release(&mut self, holder: &dyn Holder) {
        self.parts[..self.count].iter().for_each(|part| holder.release(part.start..part.end, part.for_stores));
        (self.count, self.refusal) = (0, 0);
    }

    /// Whether something is held.
    pub(crate) fn is_any(&self) -> bool {
        self.count > 0
    }

    fn add(&mut self, holder: &Terms<'_>, addresses: Range<usize>, usage: Use) -> Result<(), i32> {
        // Many texts may lie in one page, and many pointers to them.
        let has = |part: &Part| part.start <= addresses.start && addresses.end <= part.end;
        let is_enough = |part: &Part| has(part) && (part.for_stores || usage == Use::Read);
        if self.parts[..self.count].iter().rev().any(is_enough) {
            return Ok(());
        }
        let place = self.parts.get_mut(self.count).ok_or(libc::ENOMEM)?;
        let mut for_stores = usage != Use::Read;
        let mut done = holder.hold(addresses.clone(), for_stores);
        if done.is_err() && usage == Use::Any {
            for_stores = false;
            done = holder.hold(addresses.clone(), for_stores);
        }
        done?;
        *place = Part { start: addresses.start, end: addresses.end, for_stores };
        self.count += 1;
        Ok(())
    }

    /// As [`Self::add`]; where there is no room for all of it, for the first half, and so on: the kernel transfers as much as is there. Where not all of
    /// it is there, as behind the end of a mapping, up to the page that is not.
    fn add_beginning(&mut self, holder: &Terms<'_>, addresses: Range<usize>, usage: Use) -> Result<(), i32> {
        let mut rest = addresses;
        let mut len = rest.len();
        let mut why = 0;
        loop {
            match self.add(holder, rest.start..rest.start + len, usage) {
                Ok(()) if len == rest.len() => return Ok(()),
                // More would be all that is left, of which others need some.
                Ok(()) if why == libc::ENOMEM => return Err(why),
                Ok(()) => rest.start += len,
                Err(errno) if len > PAGE_BYTES => (why, len) = (errno, (len / 2).next_multiple_of(PAGE_BYTES)),
                Err(errno) => return Err(errno),
            }
            len = len.min(rest.len());
        }
    }

    /// Holds what is managed of a piece.
    fn hold_piece(&mut self, space: &AddressSpace, holder: &Terms<'_>, piece: Piece) -> Result<(), i32> {
        match piece.len {
            Len::Bytes(_) => {
                let mut rest = piece.addresses();
                while let Some(mut part) = managed_part(space, rest.clone()) {
                    rest.start = part.end;
                    // The length of such a piece may be a guess: a page that is not there says nothing about those before it.
                    if piece.usage == Use::Any {
                        for page in part.step_by(PAGE_BYTES) {
                            self.add(holder, page..page + PAGE_BYTES, piece.usage)?;
                        }
                        continue;
                    }
                    let most = holder.bytes_max(part.start).next_multiple_of(PAGE_BYTES);
                    let is_all = part.len() <= most;
                    part.end = part.end.min(part.start.saturating_add(most));
                    self.add_beginning(holder, part, piece.usage)?;
                    if !is_all {
                        return Err(libc::ENOMEM);
                    }
                }
                Ok(())
            }
            Len::Text(most) => {
                let end = piece.start.saturating_add(most);
                let mut at = piece.start;
                while at < end && space.is_managed(at) {
                    let page = at / PAGE_BYTES * PAGE_BYTES;
                    self.add(holder, page..page + PAGE_BYTES, Use::Read)?;
                    let rest = at..end.min(page + PAGE_BYTES);
                    // In the machine the page may be absent at this address: the kernel's eyes are those that count.
                    if ends_in(rest.clone()) {
                        return Ok(());
                    }
                    at = rest.end;
                }
                Ok(())
            }
        }
    }
}

/// The first managed part of some addresses, in whole pages.
fn managed_part(space: &AddressSpace, addresses: Range<usize>) -> Option<Range<usize>> {
    if addresses.is_empty() {
        return None;
    }
    let first = space.managed_in(addresses.clone())?;
    let start = first.start.max(addresses.start) / PAGE_BYTES * PAGE_BYTES;
    // The end of a piece may be as far away as addresses go.
    Some(start..first.end.min(addresses.end).next_multiple_of(PAGE_BYTES))
}
