//! The memory of one virtual processor: its stacks, its tables, and the words that stubs and monitor share.

use std::marker::PhantomPinned;
use std::ops::Range;
use std::ptr::addr_of_mut;
use std::sync::atomic::{AtomicU32, AtomicU64};

use kvm_bindings::{kvm_regs, kvm_run};

use crate::bases::Bases;
use crate::calls::held::Held;
use crate::counters::Counters;
use crate::deferral::Deferral;
use crate::descriptors::{Descriptors, Segments, TaskState};
use crate::error::Result;
use crate::level::Level;
use crate::machine::Machine;
use crate::memory::{Memory, PAGE_BYTES};
use crate::native::Extended;
use crate::outside_call::Interrupted;
use crate::signals::Signals;
use crate::stubs::TrapFrame;

/// Stacks, from the lowest address on, each with a page before it that faults.
const TRAP_STACK_BYTES: usize = 2 * PAGE_BYTES;
const SHOOTDOWN_STACK_BYTES: usize = PAGE_BYTES;
/// The program's fault handler has it.
const HANDLER_STACK_BYTES: usize = 128 << 10;
const MONITOR_STACK_BYTES: usize = 256 << 10;

/// Handlers of signals that a thread may be in, each having interrupted the one before, and return into the machine from.
const DEPARTED: usize = 8;

/// The states of a virtual processor.
pub(crate) mod state {
    /// No thread has it.
    pub(crate) const FREE: u32 = 0;
    /// A thread has it, and runs outside the machine: in the monitor, in a system call, or because it has left.
    pub(crate) const OUTSIDE: u32 = 1;
    /// Its thread may be running guest code.
    pub(crate) const INSIDE: u32 = 2;
}

/// Whether a stub, the fault handler or a deferral tells the monitor of its end.
pub(crate) mod leave {
    pub(crate) const NOT_WANTED: u32 = 0;
    /// A signal waits for that.
    pub(crate) const WANTED: u32 = 1;
    /// So does a SIGBUS that is not for a touch of bad memory.
    pub(crate) const WANTED_FOR_SIGBUS: u32 = 2;
    /// A signal waits for the end of a deferral.
    pub(crate) const WANTED_OF_DEFERRAL: u32 = 3;
}

/// Of one virtual processor. Stubs and [`crate::native`] know the offsets of what they use.
///
/// Its thread changes it, in the monitor by a mutable reference, while others look at the atomic words. So it is no [`Unpin`]: such a reference is
/// not taken for the only one.
#[repr(C)]
pub(crate) struct Block {
    /// Where the program goes on in the machine.
    pub(crate) start: u64,
    /// Registers that a call preserves: RSP, RBX, RBP, R12 to R15.
    pub(crate) kept: [u64; 7],
    /// Whether a shootdown is under way to it that it has not begun with.
    pub(crate) shootdown_sent: AtomicU32,
    pub(crate) state: AtomicU32,
    /// How many shootdowns others have asked of it, and up to which one its TLB is empty.
    pub(crate) shootdowns_wanted: AtomicU64,
    pub(crate) shootdowns_done: AtomicU64,
    /// Set while the program's fault handler runs: it may not fault on managed memory itself.
    pub(crate) in_handler: AtomicU32,
    /// Where a page fault puts its frame: the handler's stack is below.
    pub(crate) handler_frame: u64,
    /// The mask of extended states, in halves as XSAVE takes it.
    pub(crate) extended_low: u32,
    pub(crate) extended_high: u32,
    /// The address of a fault that nobody could resolve, for which the thread has left the machine; or 0.
    pub(crate) refused: AtomicU64,
    /// One of [`leave`]; set while a signal waits for the end of a stub, of the fault handler or of a deferral, which leaves for the monitor then.
    pub(crate) leave_wanted: AtomicU32,
    /// Whether signals wait for the end of what the program does.
    pub(crate) deferral: Deferral,
    /// The signals that the program has blocked.
    pub(crate) blocked: Signals,
    /// Those with which KVM_RUN was told to run, if it was.
    pub(crate) blocked_in_guest: Option<Signals>,
    /// Where the thread goes on that enters from a context of a signal.
    pub(crate) interrupted: kvm_regs,
    /// The stack pointers with which signals and traps have had the thread leave, in a ring.
    pub(crate) departed: [u64; DEPARTED],
    pub(crate) departures: usize,
    /// Extended states of calls that handlers have interrupted.
    pub(crate) interrupted_calls: Interrupted,
    /// The program's registers while its holder is at work.
    pub(crate) called: kvm_regs,
    /// Managed memory of the system call that the thread makes.
    pub(crate) held: Held,
    /// The end of the monitor's stack, of the stack of shootdowns.
    pub(crate) monitor_stack: usize,
    pub(crate) shootdown_stack: u64,
    pub(crate) machine: &'static Machine,
    pub(crate) run: *mut kvm_run,
    pub(crate) descriptor: i32,
    pub(crate) number: u32,
    pub(crate) counters: Counters,
    /// The bases of FS and GS that the thread has outside, and whether the program may have changed the processor's by itself.
    pub(crate) bases: Bases,
    pub(crate) are_bases_free: bool,
    /// By which the program returns to ring 3 from a system call.
    pub(crate) return_frame: ReturnFrame,
    /// The program's, while its fault handler runs, and when the thread enters.
    pub(crate) extended: Extended,
    /// The fault handler's, while its thread is outside because of an access that the host refuses.
    pub(crate) extended_of_handler: Extended,
    pub(crate) task: TaskState,
    pub(crate) descriptors: Descriptors,
    shared: PhantomPinned,
}

impl Block {
    /// Whether the fault handler or the program's holder has this stack pointer.
    pub(crate) fn is_on_handler_stack(&self, rsp: u64) -> bool {
        let end = self.handler_frame + size_of::<TrapFrame>() as u64;
        (end - HANDLER_STACK_BYTES as u64..end).contains(&rsp)
    }

    /// Where the extended state of the code with this stack pointer is while it is not the processor's.
    pub(crate) fn extended_of(&mut self, rsp: u64) -> &mut Extended {
        if self.is_on_handler_stack(rsp) { &mut self.extended_of_handler } else { &mut self.extended }
    }
}

/// The stack of an IRETQ.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ReturnFrame {
    pub(crate) rip: u64,
    cs: u64,
    pub(crate) rflags: u64,
    pub(crate) rsp: u64,
    ss: u64,
}

impl ReturnFrame {
    /// To code in ring 3.
    pub(crate) fn to_ring_3(rip: u64, rflags: u64, rsp: u64) -> ReturnFrame {
        let Segments { code, data } = Segments::of(Level::Ring3);
        ReturnFrame { rip, cs: u64::from(code.selector), rflags, rsp, ss: u64::from(data.selector) }
    }
}

/// The memory of a block and its stacks.
pub(crate) struct Place {
    memory: Memory,
    pub(crate) block: *mut Block,
    pub(crate) trap_stack: u64,
    pub(crate) shootdown_stack: u64,
    pub(crate) handler_frame: u64,
    pub(crate) monitor_stack: usize,
}

impl Place {
    /// Memory of zeros; the tops of the interrupt stacks point to the block already.
    pub(crate) fn reserve() -> Result<Place> {
        let stacks = [TRAP_STACK_BYTES, SHOOTDOWN_STACK_BYTES, HANDLER_STACK_BYTES, MONITOR_STACK_BYTES];
        let len = stacks.iter().map(|len| PAGE_BYTES + len).sum::<usize>() + PAGE_BYTES;
        // A child that a handler forks amid a call finds out by the zeros that the block is its parent's.
        let memory =
            Memory::reserve_zeros_for_children(len + size_of::<Block>().next_multiple_of(PAGE_BYTES), PAGE_BYTES)?;
        let mut end = 0;
        let tops = stacks.map(|len| {
            memory.guard(end)?;
            end += PAGE_BYTES + len;
            Ok(memory.base() + end)
        });
        memory.guard(end)?;
        let block = (memory.base() + len) as *mut Block;
        let [trap_stack, shootdown_stack, handler_stack, monitor_stack] = tops;
        let with_block = |top: usize| {
            // The processor aligns the stack that it takes by 16.
            let top = top - 16;
            // SAFETY: the last two words of a stack of our own that nobody uses yet.
            unsafe { (top as *mut *mut Block).write(block) };
            top as u64
        };
        Ok(Place {
            block,
            trap_stack: with_block(trap_stack?),
            shootdown_stack: with_block(shootdown_stack?),
            // A multiple of 16, as a call of a function wants it.
            handler_frame: (handler_stack? - size_of::<TrapFrame>().next_multiple_of(16)) as u64,
            monitor_stack: monitor_stack?,
            memory,
        })
    }

    /// All of it.
    pub(crate) fn addresses(&self) -> Range<usize> {
        self.memory.base()..self.memory.base() + self.memory.len()
    }

    /// Fills the tables that the processor reads.
    pub(crate) fn write_tables(&self) {
        // SAFETY: the block's memory is ours alone, and zeros are valid in both fields.
        unsafe {
            addr_of_mut!((*self.block).task).write(TaskState::new(self.trap_stack, self.shootdown_stack));
            let task = &raw const (*self.block).task as u64;
            addr_of_mut!((*self.block).descriptors).write(Descriptors::new(task));
        }
    }
}
