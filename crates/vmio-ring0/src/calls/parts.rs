//! Reads and writes of files, with memory of any length: in parts, as far as they come.

use crate::address_space::AddressSpace;
use crate::calls::held::{Held, Holder};
use crate::calls::memory::{Call, copied};
use crate::calls::waits::{self, Kind};
use crate::machine::Machine;
use crate::memory::PAGE_BYTES;
use crate::raw;

/// The kernel takes no more vectors in one call.
const VECTORS_MAX: usize = 1024;
/// Of pwritev2: all or nothing.
const RWF_ATOMIC: u64 = 0x40;

/// A piece of memory, as readv(2) and writev(2) take it.
#[derive(Clone, Copy)]
#[repr(C)]
struct Vector {
    start: usize,
    len: usize,
}

/// The memory that is left of a call. It lies in the block: stacks are short.
#[repr(C)]
pub(crate) struct Vectors {
    all: [Vector; VECTORS_MAX],
    first: usize,
    count: usize,
    /// The bytes of its last vector that the part under way lacks.
    cut: usize,
}

/// A part of a call's memory.
struct Part {
    /// Its vectors.
    count: usize,
    bytes: usize,
}

impl Vectors {
    /// Becomes the memory of a read or write. False, with no call made, where the kernel is to say what is wrong, or there is nothing to do.
    fn set(&mut self, call: &Call) -> bool {
        let [_, start, count, ..] = call.arguments.map(|argument| argument as usize);
        self.first = 0;
        match is_of_vectors(call) {
            false => {
                self.all[0] = Vector { start, len: count };
                self.count = 1;
            }
            true if count > VECTORS_MAX => return false,
            true => {
                let len = count * size_of::<Vector>();
                // SAFETY: the vectors are ours, and any bytes will do for their numbers.
                let bytes = unsafe { std::slice::from_raw_parts_mut(self.all.as_mut_ptr().cast::<u8>(), len) };
                if copied(start, bytes) < len {
                    return false;
                }
                self.count = count;
            }
        }
        let sum = |sum: i64, vector: &Vector| sum.checked_add(i64::try_from(vector.len).ok()?);
        self.left().iter().try_fold(0, sum).is_some_and(|len| len > 0)
    }

    fn left(&self) -> &[Vector] {
        &self.all[self.first..self.count]
    }

    /// Ends a part, of which the call has transferred this many bytes.
    fn end(&mut self, part: &Part, mut bytes: usize) {
        self.all[self.first + part.count - 1].len += self.cut;
        while self.first < self.count && bytes >= self.all[self.first].len {
            bytes -= self.all[self.first].len;
            self.first += 1;
        }
        if self.first < self.count {
            let next = &mut self.all[self.first];
            (next.start, next.len) = (next.start + bytes, next.len - bytes);
        }
    }

    /// Begins a part that can be held; `None` at the end.
    fn begin(&mut self, space: &AddressSpace, holder: &dyn Holder) -> Option<Part> {
        let managed = |vector: &Vector| {
            let found = space.managed_in(vector.start..vector.start.saturating_add(vector.len));
            found.map(|found| found.start.max(vector.start))
        };
        let most = self.left().iter().find_map(managed).map_or(usize::MAX, |at| holder.bytes_max(at).max(PAGE_BYTES));
        let mut part = Part { count: 0, bytes: 0 };
        self.cut = 0;
        for vector in &mut self.all[self.first..self.count] {
            let room = most - part.bytes;
            if room == 0 {
                break;
            }
            part.count += 1;
            if vector.len > room {
                // Up to a multiple of the page's size, so that no page is held twice, and direct I/O stays aligned.
                let beyond = (vector.start.wrapping_add(room)) % PAGE_BYTES;
                let len = if beyond < room { room - beyond } else { room };
                (self.cut, vector.len) = (vector.len - len, len);
                part.bytes += len;
                break;
            }
            part.bytes += vector.len;
        }
        (part.count > 0).then_some(part)
    }
}

/// Whether the memory of a read or write is an array of vectors.
fn is_of_vectors(call: &Call) -> bool {
    !matches!(call.number as i64, libc::SYS_read | libc::SYS_write | libc::SYS_pread64 | libc::SYS_pwrite64)
}

/// Makes a read or write of a file. `None` for what is not one, or is to be made as it is.
pub(super) fn make(machine: &Machine, holder: &dyn Holder, held: &mut Held, call: &Call) -> Option<u64> {
    let [descriptor, _, _, offset, _, flags] = call.arguments;
    let has_offset = match call.number as i64 {
        libc::SYS_read | libc::SYS_write | libc::SYS_readv | libc::SYS_writev => false,
        libc::SYS_pread64 | libc::SYS_pwrite64 | libc::SYS_preadv | libc::SYS_pwritev => true,
        // From where the file is.
        libc::SYS_preadv2 | libc::SYS_pwritev2 if flags & RWF_ATOMIC == 0 => offset != u64::MAX,
        _ => return None,
    };
    if waits::kind_of(descriptor) != Kind::File || !set(machine, holder, held, call) {
        return None;
    }
    let mut done = 0_u64;
    while let Some(part) = held.vectors.begin(&machine.space, holder) {
        let mut call = *call;
        let first = &held.vectors.all[held.vectors.first];
        (call.arguments[1], call.arguments[2]) = match is_of_vectors(&call) {
            true => (&raw const *first as u64, part.count as u64),
            false => (first.start as u64, first.len as u64),
        };
        if has_offset {
            call.arguments[3] = offset.wrapping_add(done);
        }
        held.hold(machine, holder, &call, false);
        // SAFETY: the call and its arguments are the program's own, which may do all that its process may; the vectors are those, too.
        let answer = unsafe { raw::call(call.number, call.arguments) };
        let is_whole = held.is_whole();
        let answer = held.explain(answer);
        held.release(holder);
        match raw::error_of(answer) {
            // The parts so far are transferred.
            Some(_) if done > 0 => break,
            Some(_) => return Some(answer),
            None => done += answer,
        }
        // A part may come short because not all of it could be held.
        if answer == 0 || is_whole && (answer as usize) < part.bytes {
            break;
        }
        held.vectors.end(&part, answer as usize);
    }
    Some(done)
}

/// Looks the memory of a read or write up, as [`Vectors::set`].
fn set(machine: &Machine, holder: &dyn Holder, held: &mut Held, call: &Call) -> bool {
    if is_of_vectors(call) {
        held.hold_vectors(machine, holder, call);
    }
    let is_set = held.vectors.set(call);
    held.release(holder);
    is_set
}
