//! The memory that a system call uses.

use std::mem::MaybeUninit;
use std::ops::{ControlFlow, Range};

use kvm_bindings::kvm_regs;

use crate::calls::pointers::{At, Layout, Number, Pointer, Tail, Target};
use crate::calls::table;
use crate::memory::PAGE_BYTES;
use crate::raw;

/// A call's use of some memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// It reads it.
    Read,
    /// It stores there.
    Store,
    /// It may do both. Memory that only may be read will do.
    Any,
}

/// A use of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) start: usize,
    pub(crate) len: Len,
    pub(crate) usage: Use,
}

/// How long a piece is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Len {
    Bytes(usize),
    /// Up to a zero byte, but no longer than this, with which the kernel refuses it.
    Text(usize),
}

/// A system call, as the program makes it.
#[derive(Clone, Copy)]
pub(crate) struct Call {
    pub(crate) number: u64,
    pub(crate) arguments: [u64; 6],
}

/// The kernel takes no more elements of an array of structures in one call: of vectors, messages and futexes.
const STRUCTURES_MAX: usize = 1024;
/// The size of what a call uses of which nothing else is known. Structures of calls are smaller.
const UNKNOWN_BYTES: usize = 256;
/// More descriptors than that a process rarely has (the default of `fs.nr_open`).
const DESCRIPTORS_MAX: usize = 1 << 20;
/// The longest path, with its end. Other texts are shorter yet.
const TEXT_BYTES: usize = libc::PATH_MAX as usize;
/// The longest argument of a program, with its end. More parameters than that no module has.
const LONG_TEXT_BYTES: usize = 128 << 10;
/// Structures are looked up in parts of this size.
const PART_BYTES: usize = 512;

/// Gets each piece of memory, until it breaks off.
type Each<'a> = &'a mut dyn FnMut(Piece) -> ControlFlow<()>;

impl Call {
    /// The call in the registers of a virtual processor.
    pub(crate) fn of(registers: &kvm_regs) -> Call {
        let kvm_regs { rdi, rsi, rdx, r10, r8, r9, .. } = *registers;
        Call { number: registers.rax, arguments: [rdi, rsi, rdx, r10, r8, r9] }
    }

    /// The register of an argument.
    pub(crate) fn argument_in(registers: &mut kvm_regs, index: usize) -> &mut u64 {
        let kvm_regs { rdi, rsi, rdx, r10, r8, r9, .. } = registers;
        [rdi, rsi, rdx, r10, r8, r9][index]
    }

    /// Passes each piece of memory that the call uses to `each`, until that breaks off. Leaves out pointers that are wrong, such as that of an array of
    /// vectors where there is none: the kernel will say so. A structure comes before what it points to, and is looked up after `each` has had it.
    ///
    /// Allocates nothing.
    pub(crate) fn memory(&self, each: Each<'_>) -> ControlFlow<()> {
        let Some(pointers) = table::pointers_of(self) else {
            // A call that Linux 6.18 does not have.
            return self.arguments.iter().try_for_each(|start| each(Piece::unknown(*start as usize)));
        };
        pointers.iter().try_for_each(|(index, pointer)| self.at(self.arguments[*index] as usize, *pointer, each))
    }

    /// Whether [`Self::memory`] may have pieces where no argument points: those that structures lead to, and pieces that reach beyond the page in
    /// which they begin.
    pub(crate) fn has_nested_pointers(&self) -> bool {
        let reaches_beyond = |(index, pointer): &(usize, Pointer)| {
            let start = self.arguments[*index] as usize;
            match pointer {
                Pointer::Texts
                | Pointer::Structure(_)
                | Pointer::Structures(..)
                | Pointer::OfProcess(..)
                | Pointer::Sized(..)
                | Pointer::Tailed(..)
                | Pointer::Semaphores(..) => true,
                pointer => {
                    let is_within = |piece: Piece| start % PAGE_BYTES + piece.addresses().len() <= PAGE_BYTES;
                    let mut look =
                        |piece| if is_within(piece) { ControlFlow::Continue(()) } else { ControlFlow::Break(()) };
                    self.at(start, *pointer, &mut look).is_break()
                }
            }
        };
        match table::pointers_of(self) {
            Some(pointers) => pointers.iter().any(reaches_beyond),
            None => true,
        }
    }

    fn at(&self, start: usize, pointer: Pointer, each: Each<'_>) -> ControlFlow<()> {
        let number = |number: Number| number.of(&self.arguments);
        let mut bytes = |len: usize, usage| each(Piece { start, len: Len::Bytes(len), usage });
        match pointer {
            Pointer::Bytes(usage, len) => bytes(len, usage),
            Pointer::Counted(usage, count, size) => bytes(number(count).saturating_mul(size), usage),
            Pointer::Headed(usage, count, header) => bytes(number(count).saturating_add(header), usage),
            Pointer::ByPage(usage, len) => bytes(number(len).div_ceil(PAGE_BYTES), usage),
            Pointer::Descriptors(usage, count) => bytes(words_of_bits(number(count).min(DESCRIPTORS_MAX)), usage),
            Pointer::Nodes(usage, count) => bytes(words_of_bits(number(count).saturating_sub(1)), usage),
            Pointer::Sized(usage, len) => sized(start, self.arguments[len] as usize, usage, each),
            Pointer::Tailed(usage, tail) => tailed(start, tail, usage, each),
            Pointer::Request(request) => {
                // _IOC_SIZE of an ioctl's number.
                let len = self.arguments[request] >> 16 & 0x3fff;
                bytes(if len == 0 { UNKNOWN_BYTES } else { len as usize }, Use::Any)
            }
            Pointer::Unknown => each(Piece::unknown(start)),
            Pointer::Text => each(Piece::text(start, TEXT_BYTES)),
            Pointer::LongText => each(Piece::text(start, LONG_TEXT_BYTES)),
            Pointer::Texts => texts(start, each),
            Pointer::Structure(layout) => structures(start, 1, layout, each),
            Pointer::Structures(layout, count) => structures(start, number(count), layout, each),
            Pointer::OfProcess(layout, count, process) => {
                let count = number(count).min(STRUCTURES_MAX);
                if self.arguments[process] as u32 == own_process() as u32 {
                    structures(start, count, layout, each)
                } else {
                    bytes(count * layout.bytes, layout.usage)
                }
            }
            Pointer::Semaphores(usage, set) => bytes(2 * semaphores_of(self.arguments[set]), usage),
        }
    }
}

/// As many bytes as the word says that lies elsewhere.
fn sized(start: usize, word: usize, usage: Use, each: Each<'_>) -> ControlFlow<()> {
    let mut len = [0; size_of::<u32>()];
    each(Piece { start: word, len: Len::Bytes(len.len()), usage: Use::Any })?;
    if copied(word, &mut len) < len.len() {
        return ControlFlow::Continue(());
    }
    each(Piece { start, len: Len::Bytes(u32::from_le_bytes(len) as usize), usage })
}

/// A structure that says itself how long it is.
fn tailed(start: usize, tail: Tail, usage: Use, each: Each<'_>) -> ControlFlow<()> {
    let mut least = [0; PART_BYTES];
    let least = &mut least[..tail.least];
    each(Piece { start, len: Len::Bytes(tail.least), usage })?;
    if copied(start, least) < tail.least {
        return ControlFlow::Continue(());
    }
    let len = tail.head.saturating_add(tail.count.of(least).saturating_mul(tail.size));
    if len <= tail.least { ControlFlow::Continue(()) } else { each(Piece { start, len: Len::Bytes(len), usage }) }
}

/// Structures one behind the other, and what they point to.
fn structures(start: usize, count: usize, layout: &Layout, each: Each<'_>) -> ControlFlow<()> {
    let count = count.min(STRUCTURES_MAX);
    let mut part = [0; PART_BYTES];
    let of_part = PART_BYTES / layout.bytes;
    each(Piece { start, len: Len::Bytes(count * layout.bytes), usage: layout.usage })?;
    for first in (0..count).step_by(of_part) {
        let part = &mut part[..(count - first).min(of_part) * layout.bytes];
        let found = copied(start.wrapping_add(first * layout.bytes), part);
        for structure in part[..found].chunks_exact(layout.bytes) {
            fields(structure, layout, each)?;
        }
        if found < part.len() {
            break;
        }
    }
    ControlFlow::Continue(())
}

/// Passes the memory to which a structure points.
fn fields(structure: &[u8], layout: &Layout, each: Each<'_>) -> ControlFlow<()> {
    layout.fields.iter().try_for_each(|(offset, target)| {
        let start = At::bytes(*offset, size_of::<usize>()).of(structure);
        match target {
            Target::Bytes(usage, len) => each(Piece { start, len: Len::Bytes(*len), usage: *usage }),
            Target::Counted(usage, count, size) => {
                let len = count.of(structure).saturating_mul(*size);
                each(Piece { start, len: Len::Bytes(len), usage: *usage })
            }
            Target::Structures(inner, count) => structures(start, count.of(structure), inner, each),
        }
    })
}

/// An array of texts that ends with a null pointer.
fn texts(start: usize, each: Each<'_>) -> ControlFlow<()> {
    let places = std::iter::successors(Some(start), |place| place.checked_add(size_of::<usize>()));
    for place in places {
        let mut text = [0; size_of::<usize>()];
        each(Piece { start: place, len: Len::Bytes(text.len()), usage: Use::Read })?;
        match (copied(place, &mut text), usize::from_le_bytes(text)) {
            (size, text) if size == size_of::<usize>() && text != 0 => {
                each(Piece::text(text, LONG_TEXT_BYTES))?;
            }
            _ => break,
        }
    }
    ControlFlow::Continue(())
}

/// The length in bytes of a set of this many bits, in whole words.
fn words_of_bits(bits: usize) -> usize {
    bits.div_ceil(64) * 8
}

/// Copies from the program's memory, as much as there is at the address that the kernel reads; returns how much.
pub(super) fn copied(address: usize, target: &mut [u8]) -> usize {
    let to = [target.as_mut_ptr() as usize, target.len()];
    let from = [address, target.len()];
    let arguments = [own_process(), to.as_ptr() as u64, 1, from.as_ptr() as u64, 1, 0];
    // SAFETY: the kernel reads this process's memory, where it is there, and writes the target.
    let read = unsafe { raw::call(libc::SYS_process_vm_readv as u64, arguments) };
    raw::error_of(read).map_or(read as usize, |_| 0)
}

/// Whether a text ends in these bytes, or the kernel finds no memory there.
pub(super) fn ends_in(addresses: Range<usize>) -> bool {
    let mut part = [0; PART_BYTES];
    addresses.clone().step_by(PART_BYTES).any(|at| {
        let part = &mut part[..(addresses.end - at).min(PART_BYTES)];
        let found = copied(at, part);
        found < part.len() || part.contains(&0)
    })
}

fn own_process() -> u64 {
    // SAFETY: takes no pointers.
    unsafe { raw::call(libc::SYS_getpid as u64, [0; 6]) }
}

/// How many semaphores a set has; 0 if there is no such set.
fn semaphores_of(set: u64) -> usize {
    let mut state = MaybeUninit::<libc::semid_ds>::zeroed();
    let arguments = [set, 0, libc::IPC_STAT as u64, state.as_mut_ptr() as u64, 0, 0];
    // SAFETY: the kernel writes the structure, which consists of integers.
    let state = unsafe {
        raw::call(libc::SYS_semctl as u64, arguments);
        state.assume_init()
    };
    state.sem_nsems as usize
}

/// A value in the program's memory, if there is memory at the address that the kernel reads. It consists of integers.
pub(crate) fn value_at<T: Copy>(address: usize) -> Option<T> {
    let mut value = MaybeUninit::<T>::zeroed();
    // SAFETY: zeros are bytes, and the slice covers them.
    let bytes = unsafe { std::slice::from_raw_parts_mut(value.as_mut_ptr().cast::<u8>(), size_of::<T>()) };
    // SAFETY: all of it was written, and every T here consists of integers.
    (copied(address, bytes) == size_of::<T>()).then(|| unsafe { value.assume_init() })
}

/// Writes a word to the program's memory, if there is memory at the address to which the kernel may write.
pub(crate) fn put_word(address: usize, word: u64) -> bool {
    let from = [&raw const word as usize, size_of::<u64>()];
    let to = [address, size_of::<u64>()];
    let arguments = [own_process(), from.as_ptr() as u64, 1, to.as_ptr() as u64, 1, 0];
    // SAFETY: the kernel reads the word, and writes this process's memory, where it is there, as the program asks it to.
    let written = unsafe { raw::call(libc::SYS_process_vm_writev as u64, arguments) };
    written == size_of::<u64>() as u64
}

impl Piece {
    /// A guess of the memory at an address of which nothing is known.
    fn unknown(start: usize) -> Piece {
        Piece { start, len: Len::Bytes(UNKNOWN_BYTES), usage: Use::Any }
    }

    fn text(start: usize, most: usize) -> Piece {
        Piece { start, len: Len::Text(most), usage: Use::Read }
    }

    /// Its addresses, if their number is known.
    pub(crate) fn addresses(&self) -> Range<usize> {
        match self.len {
            Len::Bytes(len) => self.start..self.start.saturating_add(len),
            Len::Text(_) => self.start..self.start.saturating_add(1),
        }
    }
}

#[cfg(test)]
mod tests;
