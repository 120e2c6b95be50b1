//! How a thread goes on outside the machine: by the kernel's return from a signal, which loads all registers and the mask of signals at once.

use std::arch::{asm, naked_asm};
use std::mem::{offset_of, size_of};

use kvm_bindings::kvm_regs;

use crate::native::{PLAIN_FLAGS, PROGRAM_FLAGS};
use crate::raw;
use crate::signals::Signals;

/// Below the stack pointer, where functions keep data all the same.
const RED_ZONE_BYTES: usize = 128;
/// The extended state of a frame begins at a multiple of this.
const ALIGNMENT: usize = 64;
/// For x87 and SSE, with the header.
pub(crate) const BASIC_BYTES: usize = 576;
/// x87 and SSE, in a mask of extended states.
pub(crate) const BASIC: u64 = 0b11;
/// Behind the extended state: the kernel's mark that all of it is there.
const MARK_BYTES: usize = 4;
const MARK: u32 = 0x4650_5845;
/// In the extended state: the kernel's notes on it.
const NOTES: usize = 464;
const NOTES_BYTES: usize = 48;
const NOTES_MARK: u32 = 0x4650_5853;
/// The stack's segment is the one in the context.
const FLAGS: u64 = 0b110;
/// There is extended state.
const HAS_EXTENDED: u64 = 0b001;
/// No stack has such flags, so that the kernel leaves the thread's alternate stack as it is.
const NO_STACK: u64 = 0x7fff_ffff;

/// A context of a signal, as the kernel makes and reads it.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Context {
    flags: u64,
    link: u64,
    stack: [u64; 3],
    /// R8 to R15, RDI, RSI, RBP, RBX, RDX, RAX, RCX, RSP, RIP.
    registers: [u64; 17],
    rflags: u64,
    /// CS, GS, FS, SS.
    segments: [u16; 4],
    /// Error, trap, old mask, CR2.
    trap: [u64; 4],
    extended: u64,
    reserved: [u64; 8],
    pub(crate) blocked: Signals,
}

impl Context {
    /// The registers, as a virtual processor has them.
    pub(crate) fn registers(&self) -> kvm_regs {
        let [r8, r9, r10, r11, r12, r13, r14, r15, rdi, rsi, rbp, rbx, rdx, rax, rcx, rsp, rip] = self.registers;
        let rflags = self.rflags & PROGRAM_FLAGS | PLAIN_FLAGS;
        kvm_regs { rax, rbx, rcx, rdx, rsi, rdi, rsp, rbp, r8, r9, r10, r11, r12, r13, r14, r15, rip, rflags }
    }

    /// Where the extended state is.
    pub(crate) fn extended(&self) -> *const u8 {
        self.extended as *const u8
    }

    /// Gives the thread the alternate stack back that the kernel has taken for the handler's time, if the program wants that.
    pub(crate) fn give_alternate_stack_back(&self) {
        const AUTODISARM: u64 = 1 << 31;
        if self.stack[1] & AUTODISARM != 0 {
            let stack = &raw const self.stack as u64;
            // SAFETY: the kernel reads the structure, which it has made.
            unsafe { raw::call(libc::SYS_sigaltstack as u64, [stack, 0, 0, 0, 0, 0]) };
        }
    }
}

const _: () = assert!(size_of::<Context>() == 304);
const _: () = assert!(offset_of!(Context, blocked) == offset_of!(libc::ucontext_t, uc_sigmask));

/// A context with extended state of at most `BYTES`, and the mark behind it.
#[repr(C, align(64))]
pub(crate) struct Frame<const BYTES: usize> {
    context: Context,
    extended: Extended<BYTES>,
}

#[repr(C, align(64))]
struct Extended<const BYTES: usize>([u8; BYTES], [u8; MARK_BYTES]);

impl<const BYTES: usize> Extended<BYTES> {
    /// Becomes a state as the kernel puts it on a stack; returns where it is.
    fn set(&mut self, state: State<'_>) -> u64 {
        let len = state.bytes.len();
        let Extended(bytes, _) = self;
        bytes[..len].copy_from_slice(state.bytes);
        let notes = &mut bytes[NOTES..NOTES + NOTES_BYTES];
        notes.fill(0);
        notes[..4].copy_from_slice(&NOTES_MARK.to_ne_bytes());
        notes[4..8].copy_from_slice(&((len + MARK_BYTES) as u32).to_ne_bytes());
        notes[8..16].copy_from_slice(&state.states.to_ne_bytes());
        notes[16..20].copy_from_slice(&(len as u32).to_ne_bytes());
        let place = (&raw mut *self).cast::<u8>();
        // SAFETY: the state is at most as long as its field, and the mark has room behind that.
        unsafe { place.wrapping_add(len).copy_from_nonoverlapping(MARK.to_ne_bytes().as_ptr(), MARK_BYTES) };
        place.addr() as u64
    }
}

/// Extended state in the form of XSAVE, and which states are in it.
#[derive(Clone, Copy)]
pub(crate) struct State<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) states: u64,
}

impl<const BYTES: usize> Frame<BYTES> {
    /// Where a frame may lie on the program's stack: below the red zone.
    pub(crate) fn place(stack_pointer: u64) -> *mut Frame<BYTES> {
        let top = stack_pointer - (RED_ZONE_BYTES + size_of::<Self>()) as u64;
        (top & !(ALIGNMENT as u64 - 1)) as *mut Frame<BYTES>
    }

    /// Writes a frame that has the thread go on with these registers, and with this extended state, or the one that a thread begins with.
    ///
    /// # Safety
    /// The place is aligned and nobody else's. The extended state is one that KVM or XSAVE has written.
    pub(crate) unsafe fn write(place: *mut Self, registers: &kvm_regs, blocked: Signals, state: Option<State<'_>>) {
        // SAFETY: the caller vouches for the place; zeros are valid in all fields.
        let frame = unsafe {
            (&raw mut (*place).context).write_bytes(0, 1);
            &mut *place
        };
        let kvm_regs { r8, r9, r10, r11, r12, r13, r14, r15, .. } = *registers;
        let kvm_regs { rdi, rsi, rbp, rbx, rdx, rax, rcx, rsp, rip, .. } = *registers;
        let context = &mut frame.context;
        context.flags = FLAGS;
        context.stack[1] = NO_STACK;
        context.registers = [r8, r9, r10, r11, r12, r13, r14, r15, rdi, rsi, rbp, rbx, rdx, rax, rcx, rsp, rip];
        context.rflags = registers.rflags & PROGRAM_FLAGS;
        context.segments = segments();
        context.blocked = blocked;
        if let Some(state) = state {
            context.flags |= HAS_EXTENDED;
            context.extended = frame.extended.set(state);
        }
    }

    /// The argument of [`resume`].
    pub(crate) fn context(place: *const Self) -> *const Context {
        place.cast()
    }
}

/// Those of the calling thread, which is outside.
fn segments() -> [u16; 4] {
    let (code, stack): (u16, u16);
    // SAFETY: reads registers.
    unsafe {
        asm!("mov {0:x}, cs", "mov {1:x}, ss", out(reg) code, out(reg) stack, options(nomem, nostack, preserves_flags));
    }
    [code, 0, 0, stack]
}

/// Goes on with a context: that of a [`Frame`], or one that the kernel has made. Outside if the thread is outside; in the machine the monitor decides.
///
/// # Safety
/// The context is of the calling thread's program.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn resume(context: *const Context) -> ! {
    // The kernel finds it at the stack pointer.
    naked_asm!("mov rsp, rdi", "mov eax, {number}", "syscall", "ud2", number = const libc::SYS_rt_sigreturn)
}

/// The registers that a new thread or process begins with, on its own stack.
pub(crate) type ChildFrame = Frame<BASIC_BYTES>;

/// clone(2) whose child goes on outside the machine from its frame. Answers the parent.
///
/// # Safety
/// The frame is written, and the flags and pointers are the program's own.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn clone(
    flags: u64,
    frame: *const ChildFrame,
    parent_thread: u64,
    child_thread: u64,
    thread_data: u64,
) -> u64 {
    naked_asm!(
        "mov r10, rcx",
        "mov eax, {clone}",
        "syscall",
        "test rax, rax",
        "jz 2f",
        "ret",
        // The child, whose stack begins with its frame.
        "2:",
        "mov rdi, rsp",
        "jmp {resume}",
        clone = const libc::SYS_clone,
        resume = sym resume,
    )
}
