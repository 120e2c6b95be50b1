//! The host's side of a virtual processor: runs it, and does what it asks for.
//!
//! Runs on a stack of its own, with the program's thread-local storage: it calls the kernel by itself ([`crate::raw`]), so that errno stays the
//! program's. Handlers of signals run on this stack, outside the machine.

use std::sync::atomic::Ordering;

use kvm_bindings::{KVM_EXIT_INTR, KVM_EXIT_IO, KVM_SYNC_X86_REGS, kvm_regs};

use crate::address_space::USER_END;
use crate::block::{Block, ReturnFrame, state};
use crate::counters::Counters;
use crate::forward;
use crate::level::Level;
use crate::native::{self, EXTENDED_BYTES, Extended, PLAIN_FLAGS, Registers, set_general};
use crate::raw;
use crate::stubs::{self, BREAKPOINT, CALL_32, PAGE_FAULT, SYSTEM_CALL_PORT, TRAP_PORT, TrapFrame};

const RUN: u64 = 0xae80;
const GET_XSAVE: u64 = 0x9000_aea4;
/// In the error code of a page fault: the page is there, and the access is not allowed.
const FAULT_OF_RIGHTS: u64 = 1;

/// Runs the calling thread's program in the machine, from where [`native::enter`] has noted.
///
/// # Safety
/// The block is the calling thread's, and the stack is the block's.
pub(crate) unsafe extern "C" fn run(block: *mut Block) -> ! {
    // SAFETY: the caller vouches that the block is the thread's. References to it end before it runs.
    let mut monitor = Monitor { block: unsafe { &mut *block } };
    monitor.block.is_active.store(true, Ordering::Relaxed);
    // A handler of a signal may have jumped out of it.
    monitor.block.in_handler.store(0, Ordering::Relaxed);
    let [rsp, rbx, rbp, r12, r13, r14, r15] = monitor.block.kept;
    *monitor.registers() = kvm_regs {
        rip: stubs::of_start(),
        rdi: block as u64,
        rflags: PLAIN_FLAGS,
        rsp,
        rbx,
        rbp,
        r12,
        r13,
        r14,
        r15,
        ..Default::default()
    };
    loop {
        monitor.run_once();
    }
}

/// As [`run`], from where a signal has interrupted the program.
///
/// # Safety
/// As for [`run`]; and the block has the registers, and the virtual processor the extended state.
pub(crate) unsafe extern "C" fn run_interrupted(block: *mut Block) -> ! {
    // SAFETY: the caller vouches that the block is the thread's.
    let mut monitor = Monitor { block: unsafe { &mut *block } };
    monitor.block.is_active.store(true, Ordering::Relaxed);
    // A handler of a signal may have jumped out of it.
    monitor.block.in_handler.store(0, Ordering::Relaxed);
    *monitor.registers() = monitor.block.interrupted;
    let blocked = &raw const monitor.block.blocked_signals as u64;
    let set = [libc::SIG_SETMASK as u64, blocked, 0, size_of::<u64>() as u64, 0, 0];
    // SAFETY: the handler of the signal does not return, so its thread's signals are set as they were before.
    unsafe { raw::call(libc::SYS_rt_sigprocmask as u64, set) };
    loop {
        monitor.run_once();
    }
}

/// Of one thread in the machine.
pub(crate) struct Monitor<'a> {
    pub(crate) block: &'a mut Block,
}

impl Monitor<'_> {
    /// Runs guest code until there is something to do, and does it.
    fn run_once(&mut self) {
        let Block { run, descriptor, .. } = *self.block;
        // SAFETY: the structure is KVM's and this thread's, and stays mapped.
        unsafe { (*run).kvm_dirty_regs = u64::from(KVM_SYNC_X86_REGS) };
        self.block.state.store(state::INSIDE, Ordering::SeqCst);
        self.block.catch_up();
        // SAFETY: runs guest code, which is the program.
        let answer = unsafe { raw::ioctl(descriptor, RUN, 0) };
        self.block.state.store(state::OUTSIDE, Ordering::SeqCst);
        Counters::count(&self.block.counters.exits);
        match raw::error_of(answer) {
            None => {}
            Some(libc::EINTR) => {
                self.regain();
                return Counters::count(&self.block.counters.interruptions);
            }
            Some(libc::EAGAIN) => return,
            // The process may not touch that memory, either. Outside it gets the host's answer: a signal, most likely.
            Some(libc::EFAULT) => self.depart(),
            Some(error) => raw::die("KVM_RUN failed, errno", error as u64),
        }
        // SAFETY: KVM has written the structure, and for an exit by I/O this part of it.
        let (reason, port) = unsafe { ((*run).exit_reason, (*run).__bindgen_anon_1.io.port) };
        match (reason, port) {
            (KVM_EXIT_IO, SYSTEM_CALL_PORT) => forward::system_call(self),
            (KVM_EXIT_IO, TRAP_PORT) => self.trap(),
            (KVM_EXIT_INTR, _) => {
                self.regain();
                Counters::count(&self.block.counters.interruptions);
            }
            (reason, _) => raw::die("KVM cannot run the program; the exit's number is", u64::from(reason)),
        }
    }

    /// After a call in which handlers of signals may have run.
    pub(crate) fn regain(&self) {
        self.block.machine.regain(self.block.number);
    }

    /// The program's general registers.
    pub(crate) fn registers(&mut self) -> &mut kvm_regs {
        // SAFETY: the structure is KVM's and, outside KVM_RUN, this thread's. Its registers are synchronised.
        unsafe { &mut (*self.block.run).s.regs.regs }
    }

    /// A trap that no stub has handled.
    fn trap(&mut self) {
        let place = self.registers().rsp;
        // SAFETY: the stub has put a frame where the stack pointer is, on a stack of the block's.
        let frame = unsafe { (place as *const TrapFrame).read() };
        if place == self.block.handler_frame {
            self.block.in_handler.store(0, Ordering::Relaxed);
        }
        if frame.vector == PAGE_FAULT {
            let address = frame.address as usize;
            let is_managed = self.block.machine.space.is_managed(address);
            if !is_managed && self.bring_in(address, frame.error) {
                return self.return_to(&frame);
            }
            // At ring 0 the handler was asked there, or faults itself.
            if is_managed
                && self.block.machine.level == Level::Ring3
                && self.block.in_handler.load(Ordering::Relaxed) == 0
            {
                return self.ask_handler(&frame);
            }
        }
        self.depart_from(&frame)
    }

    /// At ring 3, has the program's handler run in the machine; [`Self::handled`] comes next.
    fn ask_handler(&mut self, frame: &TrapFrame) {
        let place = self.block.handler_frame;
        // SAFETY: the place is on the handler's stack, which is not in use.
        unsafe { (place as *mut TrapFrame).write(*frame) };
        self.block.in_handler.store(1, Ordering::Relaxed);
        self.registers().rbx = &raw const *self.block as u64;
        self.return_to_ring_3(ReturnFrame::to_ring_3(stubs::of_ring_3_fault(), PLAIN_FLAGS, place));
    }

    /// The handler has run at ring 3.
    pub(crate) fn handled(&mut self, is_resolved: bool) {
        // SAFETY: the frame that `ask_handler` has written.
        let frame = unsafe { (self.block.handler_frame as *const TrapFrame).read() };
        self.block.in_handler.store(0, Ordering::Relaxed);
        if !is_resolved {
            self.depart_from(&frame);
        }
        set_general(self.registers(), &frame.general);
        self.return_to_ring_3(ReturnFrame::to_ring_3(frame.rip, frame.rflags, frame.rsp));
    }

    pub(crate) fn is_in_handler(&self) -> bool {
        self.block.in_handler.load(Ordering::Relaxed) != 0
    }

    /// Has the program's holder make the call in the program's registers; [`Self::call_was_made`] comes next.
    pub(crate) fn have_call_made(&mut self) {
        self.block.called = *self.registers();
        self.block.in_handler.store(1, Ordering::Relaxed);
        let (block, place) = (&raw const *self.block as u64, self.block.handler_frame);
        let level = self.block.machine.level;
        let registers = self.registers();
        registers.rbx = block;
        match level {
            Level::Ring0 => {
                (registers.rip, registers.rflags, registers.rsp) = (stubs::of_held_call(), PLAIN_FLAGS, place);
            }
            Level::Ring3 => {
                self.return_to_ring_3(ReturnFrame::to_ring_3(stubs::of_held_call(), PLAIN_FLAGS, place));
            }
        }
    }

    /// The holder has made it. The program's registers are those of the call again; the answer is to be returned from it.
    pub(crate) fn call_was_made(&mut self, answer: u64) -> u64 {
        self.block.in_handler.store(0, Ordering::Relaxed);
        *self.registers() = self.block.called;
        answer
    }

    fn return_to_ring_3(&mut self, frame: ReturnFrame) {
        self.block.return_frame = frame;
        let place = &raw const self.block.return_frame as u64;
        let registers = self.registers();
        registers.rsp = place;
        registers.rip = stubs::of_return();
    }

    /// Has the program go on outside at a trap.
    fn depart_from(&mut self, frame: &TrapFrame) -> ! {
        if frame.vector == PAGE_FAULT && self.block.machine.space.is_managed(frame.address as usize) {
            self.block.refused.store(frame.address, Ordering::Relaxed);
        }
        let registers = self.registers();
        set_general(registers, &frame.general);
        // What traps after the instruction is executed again, outside.
        let executed = match frame.vector {
            BREAKPOINT => 1,
            CALL_32 => 2,
            _ => 0,
        };
        (registers.rip, registers.rsp, registers.rflags) = (frame.rip - executed, frame.rsp, frame.rflags);
        self.depart()
    }

    /// Has the machine map a gigabyte that was touched. Whether there is a reason to try again.
    fn bring_in(&mut self, address: usize, error: u64) -> bool {
        if address >= USER_END || error & FAULT_OF_RIGHTS != 0 {
            return false;
        }
        match self.block.machine.space.add_gigabyte_of(address) {
            Ok(true) => Counters::count(&self.block.counters.gigabytes),
            // Another thread was faster.
            Ok(false) => {}
            Err(_) => return false,
        }
        true
    }

    /// Has the program go on in the machine where it trapped.
    fn return_to(&mut self, frame: &TrapFrame) {
        let level = self.block.machine.level;
        let registers = self.registers();
        match level {
            Level::Ring0 => {
                (registers.rip, registers.rsp, registers.rflags) = (frame.rip, frame.rsp, frame.rflags);
            }
            Level::Ring3 => {
                // What IRETQ takes is in the frame.
                registers.rsp += std::mem::offset_of!(TrapFrame, rip) as u64;
                registers.rip = stubs::of_return();
            }
        }
        set_general(registers, &frame.general);
    }

    /// Has the program go on after a system call, with its answer.
    pub(crate) fn return_from_call(&mut self, answer: u64) {
        let level = self.block.machine.level;
        let registers = self.registers();
        registers.rax = answer;
        match level {
            // As SYSCALL has noted both.
            Level::Ring0 => (registers.rip, registers.rflags) = (registers.rcx, registers.r11),
            Level::Ring3 => {
                let frame = ReturnFrame::to_ring_3(registers.rcx, registers.r11, registers.rsp);
                self.return_to_ring_3(frame);
            }
        }
    }

    /// Has the program go on outside the machine, with all of its registers.
    pub(crate) fn depart(&mut self) -> ! {
        Counters::count(&self.block.counters.departures);
        self.leave()
    }

    /// As [`Self::depart`], because the program wants to.
    pub(crate) fn leave(&mut self) -> ! {
        let mut registers = Registers::of(self.registers());
        let extended = self.extended();
        self.block.is_active.store(false, Ordering::Relaxed);
        // SAFETY: the registers are the program's, and KVM has written the extended state. Both are on the monitor's stack, which this thread alone
        // uses until it enters again.
        unsafe { native::resume(&raw mut registers, extended.0.as_ptr(), self.block.machine.extended_states) }
    }

    /// The program's extended state.
    pub(crate) fn extended(&mut self) -> Extended {
        let mut extended = Extended([0; EXTENDED_BYTES]);
        let place = extended.0.as_mut_ptr() as u64;
        // SAFETY: KVM writes as many bytes as there are.
        let answer = unsafe { raw::ioctl(self.block.descriptor, GET_XSAVE, place) };
        if let Some(error) = raw::error_of(answer) {
            raw::die("KVM_GET_XSAVE failed, errno", error as u64);
        }
        extended
    }
}
