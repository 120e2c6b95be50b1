//! A system call with pointers to managed memory: the program keeps the pages while the host makes it.
//!
//! It runs in the machine, on the handler's stack, as the fault handler does. Its own system calls are forwarded as they are.

use std::mem::MaybeUninit;
use std::ops::{ControlFlow, Range};

use crate::address_space::AddressSpace;
use crate::block::Block;
use crate::calls::memory::{Call, Len, Piece, Use};
use crate::machine::Machine;
use crate::memory::PAGE_BYTES;
use crate::raw;

/// The program's part in system calls with pointers to managed memory.
///
/// Both run in the thread that makes the call, as far as the fault handler's rules allow: a thread that calls the kernel may be anywhere in the program,
/// but it holds none of the allocator's locks. They must not touch managed memory that they do not hold.
pub trait Holder: Sync {
    /// Makes pages resident, for stores if so, and exposes them ([`Pages::expose`](crate::Pages::expose)) until [`Self::release`]. The addresses are whole
    /// pages of managed memory.
    ///
    /// # Errors
    ///
    /// The errno with which the call fails; then nothing is held.
    fn hold(&self, addresses: Range<usize>, for_stores: bool) -> Result<(), i32>;

    /// Ends one [`Self::hold`] with the same arguments.
    fn release(&self, addresses: Range<usize>, for_stores: bool);

    /// How many bytes around an address one call may hold. A longer read or write is made in parts of this size.
    fn bytes_max(&self, address: usize) -> usize;
}

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

/// Called by the stub, on the handler's stack: makes the call that the block has.
pub(crate) extern "C" fn on_held_call(block: &Block) -> u64 {
    let registers = &block.called;
    let call = Call {
        number: registers.rax,
        arguments: [registers.rdi, registers.rsi, registers.rdx, registers.r10, registers.r8, registers.r9],
    };
    // SAFETY: the word is the thread's own.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above. The holder may change it, and the program does not expect that of a call that succeeds.
    let kept = unsafe { errno.read() };
    let answer = make(block.machine, call);
    // SAFETY: as above.
    unsafe { errno.write(kept) };
    answer
}

fn make(machine: &Machine, call: Call) -> u64 {
    let Some(holder) = machine.holder.get() else { return failed(libc::EFAULT) };
    // The kernel goes on to read what such a call has sent, after its end.
    let flags = match call.number as i64 {
        libc::SYS_sendto | libc::SYS_sendmmsg => call.arguments[3],
        libc::SYS_sendmsg => call.arguments[2],
        _ => 0,
    };
    if flags & libc::MSG_ZEROCOPY as u64 != 0 {
        return failed(libc::ENOBUFS);
    }
    match call.number as i64 {
        libc::SYS_read | libc::SYS_write | libc::SYS_pread64 | libc::SYS_pwrite64 => in_parts(machine, *holder, call),
        _ => made_once(machine, *holder, &call),
    }
}

fn failed(errno: i32) -> u64 {
    -i64::from(errno) as u64
}

/// How a read or write of a descriptor may be made in parts.
enum Parts {
    /// A call for each part, as far as it comes.
    All,
    /// A call for the first part: a second one might wait for more than the program does.
    First,
    /// One call for all of it: it is a message.
    None,
}

impl Parts {
    fn of(call: &Call) -> Parts {
        let mut stat = MaybeUninit::<libc::stat>::uninit();
        // SAFETY: the kernel writes the structure, if the descriptor is open.
        let kind = unsafe {
            let told = raw::call(libc::SYS_fstat as u64, [call.arguments[0], stat.as_mut_ptr() as u64, 0, 0, 0, 0]);
            if told == 0 { stat.assume_init().st_mode & libc::S_IFMT } else { 0 }
        };
        match kind {
            libc::S_IFREG | libc::S_IFBLK => Parts::All,
            libc::S_IFIFO | libc::S_IFCHR if call.number as i64 == libc::SYS_write => Parts::All,
            libc::S_IFIFO | libc::S_IFCHR => Parts::First,
            _ => Parts::None,
        }
    }
}

/// A read or write of any length, as far as it comes.
fn in_parts(machine: &Machine, holder: &dyn Holder, mut call: Call) -> u64 {
    let is_positioned = matches!(call.number as i64, libc::SYS_pread64 | libc::SYS_pwrite64);
    let [_, start, len, offset, ..] = call.arguments;
    if i64::try_from(len).is_err() {
        // SAFETY: the kernel refuses such a length before it looks at memory.
        return unsafe { raw::call(call.number, call.arguments) };
    }
    let parts = Parts::of(&call);
    if matches!(parts, Parts::None) {
        return made_once(machine, holder, &call);
    }
    let mut done = 0;
    while done < len || len == 0 {
        let at = start.saturating_add(done);
        let most = holder.bytes_max(at as usize).max(PAGE_BYTES) as u64;
        // Up to a multiple of the part's size, so that no page is held twice, and direct I/O stays aligned.
        let part = (len - done).min(most - at % most.min(PAGE_BYTES as u64));
        (call.arguments[1], call.arguments[2]) = (at, part);
        if is_positioned {
            call.arguments[3] = offset.wrapping_add(done);
        }
        let answer = made_once(machine, holder, &call);
        match raw::error_of(answer) {
            // What was transferred so far is transferred.
            Some(_) if done > 0 => break,
            Some(_) => return answer,
            None => done += answer,
        }
        if answer < part || len == 0 || matches!(parts, Parts::First) {
            break;
        }
    }
    done
}

/// Makes the call with all of its memory held that can be. Whether it needs the rest is for the kernel to say: an argument may be one that the call
/// does not use, and a length a guess.
fn made_once(machine: &Machine, holder: &dyn Holder, call: &Call) -> u64 {
    let mut held = Held { holder, ranges: Vec::new() };
    let mut refusal = libc::EFAULT;
    let _ = call.memory(&mut |piece| {
        if let Err(errno) = hold(&machine.space, &mut held, piece) {
            refusal = errno;
        }
        ControlFlow::Continue(())
    });
    // SAFETY: the call and its arguments are the program's own, which may do all that its process may.
    let answer = unsafe { raw::call(call.number, call.arguments) };
    if raw::error_of(answer) == Some(libc::EFAULT) { failed(refusal) } else { answer }
}

/// Memory that is held until the drop of this.
struct Held<'a> {
    holder: &'a dyn Holder,
    ranges: Vec<(Range<usize>, bool)>,
}

impl Held<'_> {
    fn hold(&mut self, addresses: Range<usize>, usage: Use) -> Result<(), i32> {
        let mut for_stores = usage != Use::Read;
        let mut held = self.holder.hold(addresses.clone(), for_stores);
        if held.is_err() && usage == Use::Any {
            for_stores = false;
            held = self.holder.hold(addresses.clone(), false);
        }
        held.map(|()| self.ranges.push((addresses, for_stores)))
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        for (addresses, for_stores) in self.ranges.drain(..) {
            self.holder.release(addresses, for_stores);
        }
    }
}

/// Holds what is managed of a piece.
fn hold(space: &AddressSpace, held: &mut Held<'_>, piece: Piece) -> Result<(), i32> {
    match piece.len {
        Len::Bytes(_) => {
            let mut rest = piece.addresses();
            while let Some(part) = managed_part(space, rest.clone()) {
                rest.start = part.end;
                // The length of such a piece may be a guess: a page that is not there says nothing about those before it.
                if piece.usage == Use::Any {
                    for page in part.step_by(PAGE_BYTES) {
                        held.hold(page..page + PAGE_BYTES, piece.usage)?;
                    }
                } else {
                    held.hold(part, piece.usage)?;
                }
            }
            Ok(())
        }
        Len::Text => {
            let mut at = piece.start;
            while space.is_managed(at) {
                let page = at / PAGE_BYTES * PAGE_BYTES;
                held.hold(page..page + PAGE_BYTES, Use::Read)?;
                for byte in at..page + PAGE_BYTES {
                    // SAFETY: the page is held, so it is there; other threads may store to it, and any byte will do.
                    if unsafe { (byte as *const u8).read_volatile() } == 0 {
                        return Ok(());
                    }
                }
                at = page + PAGE_BYTES;
            }
            Ok(())
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
