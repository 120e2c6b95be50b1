//! The memory that a system call uses.

use std::mem::MaybeUninit;
use std::ops::{ControlFlow, Range};

use kvm_bindings::kvm_regs;

use crate::calls::table::{self, Pointer};
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
    /// Up to a zero byte.
    Text,
}

/// A system call, as the program makes it.
#[derive(Clone, Copy)]
pub(crate) struct Call {
    pub(crate) number: u64,
    pub(crate) arguments: [u64; 6],
}

/// iovec of readv(2).
#[derive(Clone, Copy)]
#[repr(C)]
struct Vector {
    start: usize,
    len: usize,
}

/// msghdr of sendmsg(2), and the length that the calls for many messages have behind it.
#[derive(Clone, Copy)]
#[repr(C)]
struct Message {
    name: usize,
    name_len: u32,
    vectors: usize,
    count: usize,
    control: usize,
    control_len: usize,
    flags: i32,
}

/// The size of a [`Message`] with the length behind it.
const COUNTED_MESSAGE_BYTES: usize = size_of::<Message>() + 8;
/// The kernel takes no more vectors, nor messages, in one call.
const VECTORS_MAX: usize = 1024;
/// The size of what a call uses of which nothing else is known. Structures of calls are smaller.
const UNKNOWN_BYTES: usize = 256;

impl Call {
    /// The call in the registers of a virtual processor.
    pub(crate) fn of(registers: &kvm_regs) -> Call {
        let kvm_regs { rdi, rsi, rdx, r10, r8, r9, .. } = *registers;
        Call { number: registers.rax, arguments: [rdi, rsi, rdx, r10, r8, r9] }
    }

    /// Passes each piece of memory that the call uses to `each`, until that breaks off. Leaves out pointers that are wrong, such as that of an array of
    /// vectors where there is none: the kernel will say so.
    pub(crate) fn memory(&self, each: &mut dyn FnMut(Piece) -> ControlFlow<()>) -> ControlFlow<()> {
        let Some(pointers) = table::pointers_of(self.number) else {
            let of_any =
                |start: &u64| Piece { start: *start as usize, len: Len::Bytes(UNKNOWN_BYTES), usage: Use::Any };
            return self.arguments.iter().map(of_any).try_for_each(each);
        };
        pointers.iter().try_for_each(|(index, pointer)| self.at(self.arguments[*index] as usize, *pointer, each))
    }

    /// Whether [`Self::memory`] has pieces at other places than the arguments say.
    pub(crate) fn has_nested_pointers(&self) -> bool {
        let is_nested = |(_, pointer): &(usize, Pointer)| {
            matches!(pointer, Pointer::Vectors(..) | Pointer::Message(_) | Pointer::Messages(..) | Pointer::Texts)
        };
        table::pointers_of(self.number).is_some_and(|pointers| pointers.iter().any(is_nested))
    }

    fn count(&self, argument: usize) -> usize {
        self.arguments[argument] as usize
    }

    fn at(&self, start: usize, pointer: Pointer, each: &mut dyn FnMut(Piece) -> ControlFlow<()>) -> ControlFlow<()> {
        let piece = |len: usize, usage| Piece { start, len: Len::Bytes(len), usage };
        match pointer {
            Pointer::Bytes(usage, len) => each(piece(len, usage)),
            Pointer::Counted(usage, count, size) => each(piece(self.count(count).saturating_mul(size), usage)),
            Pointer::Headed(usage, count, header) => each(piece(self.count(count).saturating_add(header), usage)),
            Pointer::ByPage(usage, len) => each(piece(self.count(len).div_ceil(4096), usage)),
            Pointer::Sized(usage, len) => {
                let at = self.count(len);
                each(Piece { start: at, len: Len::Bytes(size_of::<u32>()), usage: Use::Any })?;
                copied::<u32>(at).map_or(ControlFlow::Continue(()), |len| each(piece(len as usize, usage)))
            }
            Pointer::Request(request) => {
                // _IOC_SIZE of an ioctl's number.
                let len = self.arguments[request] >> 16 & 0x3fff;
                each(piece(if len == 0 { UNKNOWN_BYTES } else { len as usize }, Use::Any))
            }
            Pointer::Text => each(Piece { start, len: Len::Text, usage: Use::Read }),
            Pointer::Texts => texts(start, each),
            Pointer::Vectors(usage, count) => vectors(start, self.count(count), usage, each),
            Pointer::Message(usage) => message(start, size_of::<Message>(), usage, each),
            Pointer::Messages(usage, count) => (0..self.count(count).min(VECTORS_MAX)).try_for_each(|index| {
                message(start.wrapping_add(index * COUNTED_MESSAGE_BYTES), COUNTED_MESSAGE_BYTES, usage, each)
            }),
        }
    }
}

fn vectors(start: usize, count: usize, usage: Use, each: &mut dyn FnMut(Piece) -> ControlFlow<()>) -> ControlFlow<()> {
    let count = count.min(VECTORS_MAX);
    each(Piece { start, len: Len::Bytes(count * size_of::<Vector>()), usage: Use::Read })?;
    for index in 0..count {
        let Some(vector) = copied::<Vector>(start.wrapping_add(index * size_of::<Vector>())) else { break };
        each(Piece { start: vector.start, len: Len::Bytes(vector.len), usage })?;
    }
    ControlFlow::Continue(())
}

fn message(start: usize, len: usize, usage: Use, each: &mut dyn FnMut(Piece) -> ControlFlow<()>) -> ControlFlow<()> {
    each(Piece { start, len: Len::Bytes(len), usage: Use::Any })?;
    let Some(message) = copied::<Message>(start) else { return ControlFlow::Continue(()) };
    each(Piece { start: message.name, len: Len::Bytes(message.name_len as usize), usage })?;
    each(Piece { start: message.control, len: Len::Bytes(message.control_len), usage })?;
    vectors(message.vectors, message.count, usage, each)
}

/// An array of texts that ends with a null pointer.
fn texts(start: usize, each: &mut dyn FnMut(Piece) -> ControlFlow<()>) -> ControlFlow<()> {
    let places = std::iter::successors(Some(start), |place| place.checked_add(size_of::<usize>()));
    for place in places {
        each(Piece { start: place, len: Len::Bytes(size_of::<usize>()), usage: Use::Read })?;
        match copied::<usize>(place) {
            None | Some(0) => break,
            Some(text) => each(Piece { start: text, len: Len::Text, usage: Use::Read })?,
        }
    }
    ControlFlow::Continue(())
}

/// A value in the program's memory, if there is memory at the address that the kernel reads.
pub(crate) fn copied<T: Copy>(address: usize) -> Option<T> {
    let mut value = MaybeUninit::<T>::uninit();
    let target = Vector { start: value.as_mut_ptr() as usize, len: size_of::<T>() };
    let source = Vector { start: address, len: size_of::<T>() };
    // SAFETY: the kernel reads this process's memory, if it is there, and writes the value.
    let read = unsafe {
        let process = raw::call(libc::SYS_getpid as u64, [0; 6]);
        let arguments = [process, &raw const target as u64, 1, &raw const source as u64, 1, 0];
        raw::call(libc::SYS_process_vm_readv as u64, arguments)
    };
    // SAFETY: all of it was written, and every T here consists of integers.
    (read == size_of::<T>() as u64).then(|| unsafe { value.assume_init() })
}

/// Writes a value to the program's memory, if there is memory at the address to which the kernel may write.
pub(crate) fn copy_to<T: Copy>(address: usize, value: &T) -> bool {
    let source = Vector { start: &raw const *value as usize, len: size_of::<T>() };
    let target = Vector { start: address, len: size_of::<T>() };
    // SAFETY: the kernel reads the value, and writes this process's memory, if it is there, as the program asks it to.
    let written = unsafe {
        let process = raw::call(libc::SYS_getpid as u64, [0; 6]);
        let arguments = [process, &raw const source as u64, 1, &raw const target as u64, 1, 0];
        raw::call(libc::SYS_process_vm_writev as u64, arguments)
    };
    written == size_of::<T>() as u64
}

impl Piece {
    /// Its addresses, if their number is known.
    pub(crate) fn addresses(&self) -> Range<usize> {
        match self.len {
            Len::Bytes(len) => self.start..self.start.saturating_add(len),
            Len::Text => self.start..self.start.saturating_add(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory_of(number: i64, arguments: [u64; 6]) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let whole = Call { number: number as u64, arguments }.memory(&mut |piece| {
            pieces.push(piece);
            ControlFlow::Continue(())
        });
        assert!(whole.is_continue());
        pieces
    }

    fn bytes(start: usize, len: usize, usage: Use) -> Piece {
        Piece { start, len: Len::Bytes(len), usage }
    }

    #[test]
    fn arguments_say_where_memory_is() {
        assert_eq!(memory_of(libc::SYS_read, [3, 0x1000, 77, 0, 0, 0]), [bytes(0x1000, 77, Use::Store)]);
        assert_eq!(memory_of(libc::SYS_getppid, [1, 2, 3, 4, 5, 6]), []);
        let path = Piece { start: 0x1000, len: Len::Text, usage: Use::Read };
        assert_eq!(memory_of(libc::SYS_openat, [3, 0x1000, 77, 0, 0, 0]), [path]);
        // TCGETS has no size in its number, FS_IOC_GETFLAGS has.
        assert_eq!(memory_of(libc::SYS_ioctl, [3, 0x5401, 0x1000, 0, 0, 0]), [bytes(0x1000, 256, Use::Any)]);
        assert_eq!(memory_of(libc::SYS_ioctl, [3, 0x8008_6601, 0x1000, 0, 0, 0]), [bytes(0x1000, 8, Use::Any)]);
        // A call of the future.
        assert_eq!(memory_of(3000, [0x1000, 0, 0, 0, 0, 0])[0], bytes(0x1000, 256, Use::Any));
    }

    #[test]
    fn vectors_and_messages_lead_on() {
        let vectors = [Vector { start: 0x1000, len: 5 }, Vector { start: 0x2000, len: 6 }];
        let place = vectors.as_ptr() as usize;
        let of_vectors = [bytes(place, 32, Use::Read), bytes(0x1000, 5, Use::Store), bytes(0x2000, 6, Use::Store)];
        assert_eq!(memory_of(libc::SYS_readv, [3, place as u64, 2, 0, 0, 0]), of_vectors);
        let message = Message {
            name: 0x3000,
            name_len: 16,
            vectors: place,
            count: 2,
            control: 0x4000,
            control_len: 64,
            flags: 0,
        };
        let at = &raw const message as usize;
        let whole = [bytes(at, 56, Use::Any), bytes(0x3000, 16, Use::Store), bytes(0x4000, 64, Use::Store)];
        assert_eq!(memory_of(libc::SYS_recvmsg, [3, at as u64, 0, 0, 0, 0]), [&whole[..], &of_vectors].concat());
        // Where there is nothing, the kernel says so itself.
        assert_eq!(memory_of(libc::SYS_readv, [3, 0x10, 2, 0, 0, 0]), [bytes(0x10, 32, Use::Read)]);
    }

    #[test]
    fn lengths_and_texts_are_looked_up() {
        let len = 28_u32;
        let at = &raw const len as usize;
        let pieces = memory_of(libc::SYS_getsockname, [3, 0x1000, at as u64, 0, 0, 0]);
        assert_eq!(pieces, [bytes(at, 4, Use::Any), bytes(0x1000, 28, Use::Store)]);
        let texts = [0x1000_usize, 0x2000, 0];
        let pieces = memory_of(libc::SYS_execve, [0x5000, texts.as_ptr() as u64, 0, 0, 0, 0]);
        let text = |start| Piece { start, len: Len::Text, usage: Use::Read };
        let found: Vec<_> = pieces.into_iter().filter(|piece| piece.len == Len::Text).collect();
        assert_eq!(found, [text(0x5000), text(0x1000), text(0x2000)]);
    }
}
