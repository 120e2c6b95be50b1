//! The language of the table of calls: which arguments are pointers, and what they point to.

use crate::calls::memory::Use;

/// The pointers of a call: the arguments that are one, and what they point to.
pub(super) type Pointers = &'static [(usize, Pointer)];

/// The memory to which an argument points.
#[derive(Clone, Copy, Debug)]
pub(super) enum Pointer {
    /// This many bytes.
    Bytes(Use, usize),
    /// As many elements as an argument says, of this many bytes each.
    Counted(Use, Number, usize),
    /// A header of this many bytes, and behind it as many as an argument says.
    Headed(Use, Number, usize),
    /// A byte for each page of as many bytes as an argument says.
    ByPage(Use, Number),
    /// A set of as many descriptors as an argument says, a bit each.
    Descriptors(Use, Number),
    /// A set of memory nodes: a bit each, and one less than an argument says.
    Nodes(Use, Number),
    /// As many bytes as the word says to which an argument points.
    Sized(Use, usize),
    /// As many bytes as the beginning of the structure says.
    Tailed(Use, Tail),
    /// As much as the number of the ioctl says, which is in an argument.
    Request(usize),
    /// Something that this table does not know: a guess.
    Unknown,
    /// A text that ends with a zero: a path, or something shorter.
    Text,
    /// The same, as long as an argument of a program.
    LongText,
    /// An array of pointers to such texts.
    Texts,
    /// A structure with pointers of its own.
    Structure(&'static Layout),
    /// An array of such structures, as many as an argument says.
    Structures(&'static Layout, Number),
    /// The same, whose pointers are into the process of that number, in an argument.
    OfProcess(&'static Layout, Number, usize),
    /// A number of 16 bits for each semaphore of a set, which is in an argument.
    Semaphores(Use, usize),
}

/// An argument that is a number, as the kernel sees it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Number {
    /// All of the register.
    Long(usize),
    /// An unsigned int: the lower half of the register.
    Unsigned(usize),
    /// An int. A negative one is an error, and the call uses no memory.
    Int(usize),
    /// No argument, but this number.
    Fixed(usize),
}

impl Number {
    /// The number in a call.
    pub(super) fn of(self, arguments: &[u64; 6]) -> usize {
        match self {
            Number::Long(argument) => arguments[argument] as usize,
            Number::Unsigned(argument) => arguments[argument] as u32 as usize,
            Number::Int(argument) => (arguments[argument] as i32).max(0) as usize,
            Number::Fixed(number) => number,
        }
    }
}

/// A structure that says itself how long it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tail {
    /// It is never shorter, and its number of elements is in there.
    pub(super) least: usize,
    /// The bytes before the elements.
    pub(super) head: usize,
    /// Their number.
    pub(super) count: At,
    /// The bytes of each.
    pub(super) size: usize,
}

/// A structure with pointers to more memory.
#[derive(Debug)]
pub(super) struct Layout {
    /// Its length.
    pub(super) bytes: usize,
    /// The call's use of the structure itself.
    pub(super) usage: Use,
    /// Where its pointers are, and what they point to.
    pub(super) fields: &'static [(usize, Target)],
}

/// The memory to which a pointer in a structure points.
#[derive(Clone, Copy, Debug)]
pub(super) enum Target {
    /// This many bytes.
    Bytes(Use, usize),
    /// As many elements as the structure says, of this many bytes each.
    Counted(Use, At, usize),
    /// As many structures as the structure says.
    Structures(&'static Layout, At),
}

/// A number in a structure.
#[derive(Clone, Copy, Debug)]
pub(super) struct At {
    pub(super) offset: usize,
    /// Its length in bytes.
    pub(super) len: usize,
}

impl At {
    pub(super) const fn bytes(offset: usize, len: usize) -> At {
        At { offset, len }
    }

    /// The number in a structure's bytes.
    pub(super) fn of(self, structure: &[u8]) -> usize {
        let mut word = [0; size_of::<usize>()];
        word[..self.len].copy_from_slice(&structure[self.offset..self.offset + self.len]);
        usize::from_le_bytes(word)
    }
}
