//! The masks of signals that some system calls have a thread wait with: the kernel gets them without SIGSEGV.

use crate::calls::memory::{Call, value_at};
use crate::calls::numbers;
use crate::signals::Signals;

/// Read by the kernel in place of the program's mask, while such a call waits.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Replacement {
    /// The program's argument.
    argument: u64,
    set: Signals,
    structure: Structure,
}

/// Where a mask is, in two of the calls beside other things: its address, its length, and a time that io_uring_enter(2) has.
type Structure = [u64; 3];

/// How an argument leads to a mask.
#[derive(Clone, Copy)]
enum Form {
    /// It is the mask's address.
    Mask,
    /// It is the address of a structure with this number of words.
    Structure(usize),
}

impl Replacement {
    /// The replacement for a call whose mask has SIGSEGV. It is to lie at the address; the argument of that index becomes the one that is returned.
    pub(crate) fn of(call: &Call, place: u64) -> Option<(usize, u64, Replacement)> {
        let (index, form) = argument_of(call)?;
        let argument = call.arguments[index];
        let mut structure = Structure::default();
        let mask = match form {
            Form::Mask => argument,
            Form::Structure(words) => {
                for (index, word) in structure[..words].iter_mut().enumerate() {
                    *word = value_at((argument as usize).wrapping_add(index * size_of::<u64>()))?;
                }
                structure[0]
            }
        };
        let set = value_at::<Signals>(mask as usize)?;
        if set == set.of_program() {
            return None;
        }
        let replaced = place + std::mem::offset_of!(Replacement, set) as u64;
        structure[0] = replaced;
        let becomes = match form {
            Form::Mask => replaced,
            Form::Structure(_) => place + std::mem::offset_of!(Replacement, structure) as u64,
        };
        Some((index, becomes, Replacement { argument, set: set.of_program(), structure }))
    }

    /// The index of the argument that had the kernel look here, and the program's. None if the call has no mask, or its own.
    pub(crate) fn of_program(&self, call: &Call) -> Option<(usize, u64)> {
        let (index, _) = argument_of(call)?;
        let own = (&raw const *self).addr() as u64;
        let is_here = (own..own + size_of::<Replacement>() as u64).contains(&call.arguments[index]);
        is_here.then_some((index, self.argument))
    }
}

/// The argument that leads to a call's mask.
fn argument_of(call: &Call) -> Option<(usize, Form)> {
    /// Of io_uring_enter(2): the argument is a structure, or where one is that the kernel has already.
    const HAS_STRUCTURE: u64 = 1 << 3;
    const IS_REGISTERED: u64 = 1 << 6;
    Some(match call.number as i64 {
        libc::SYS_rt_sigsuspend => (0, Form::Mask),
        libc::SYS_ppoll => (3, Form::Mask),
        libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 => (4, Form::Mask),
        libc::SYS_pselect6 | numbers::SYS_io_pgetevents => (5, Form::Structure(2)),
        libc::SYS_io_uring_enter if call.arguments[3] & IS_REGISTERED != 0 => return None,
        libc::SYS_io_uring_enter if call.arguments[3] & HAS_STRUCTURE != 0 => (4, Form::Structure(3)),
        libc::SYS_io_uring_enter => (4, Form::Mask),
        _ => return None,
    })
}
