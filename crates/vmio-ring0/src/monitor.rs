//! The host's side of a virtual processor: runs it, and does what it asks for.
//!
//! Runs on a stack of its own, with the program's thread-local storage: it calls the kernel by itself ([`crate::raw`]), so that errno stays the
//! program's. Signals are blocked in it, and let through while guest code runs. One that comes has the thread leave the machine, with its
//! own registers, stack and mask: the kernel calls the handler then, which returns by [`crate::restore`].

use std::sync::atomic::Ordering;

use kvm_bindings::{KVM_EXIT_INTR, KVM_EXIT_IO, KVM_SYNC_X86_REGS, kvm_regs};

use crate::address_space::USER_END;
use crate::block::{Block, ReturnFrame, leave, state};
use crate::calls::held::{self, Turn};
use crate::calls::masks::Replacement;
use crate::calls::memory::{Call, value_at};
use crate::counters::Counters;
use crate::forward;
use crate::level::Level;
use crate::native::{EXTENDED_BYTES, Extended, PLAIN_FLAGS, set_general};
use crate::outside_call::{self, CallFrame, RED_ZONE_BYTES};
use crate::raw;
use crate::resume::{self, Context, Frame, State};
use crate::signals::{self, Signals};
use crate::stubs::{
    self, BREAKPOINT, CALL_32, INVALID_INSTRUCTION, LEAVE_PORT, PAGE_FAULT, Progress, SYSTEM_CALL_PORT, TRAP_PORT,
    TrapFrame,
};

const RUN: u64 = 0xae80;
const GET_XSAVE: u64 = 0x9000_aea4;
const SET_XSAVE: u64 = 0x5000_aea5;
const SET_SIGNAL_MASK: u64 = 0x4004_ae8b;
/// In the error code of a page fault: the page is there, and the access is not allowed.
const FAULT_OF_RIGHTS: u64 = 1;

/// Runs the calling thread's program in the machine, from where [`crate::native::enter`] has noted.
///
/// # Safety
/// The block is the calling thread's, and the stack is the block's.
pub(crate) unsafe extern "C" fn run(block: *mut Block) -> ! {
    // SAFETY: the caller vouches that the block is the thread's. References to it end before it runs.
    let mut monitor = Monitor { block: unsafe { &mut *block } };
    let [rsp, rbx, rbp, r12, r13, r14, r15] = monitor.block.kept;
    let rip = monitor.block.start;
    monitor.begin(kvm_regs { rip, rflags: PLAIN_FLAGS, rsp, rbx, rbp, r12, r13, r14, r15, ..Default::default() })
}

/// As [`run`], from where a signal has interrupted the program.
///
/// # Safety
/// As for [`run`]; and the block has the registers and the extended state.
pub(crate) unsafe extern "C" fn run_interrupted(block: *mut Block) -> ! {
    // SAFETY: the caller vouches that the block is the thread's.
    let mut monitor = Monitor { block: unsafe { &mut *block } };
    let registers = monitor.block.interrupted;
    monitor.begin(registers)
}

/// Goes on after a call that was made outside.
///
/// # Safety
/// As for [`run`]. The frame is the call's, on the program's stack; the block has the mask of signals.
pub(crate) unsafe extern "C" fn come_back(block: *mut Block, frame: *const CallFrame) -> ! {
    // SAFETY: the caller vouches for both.
    let (mut monitor, frame) = unsafe { (Monitor { block: &mut *block }, &*frame) };
    let registers = frame.registers();
    monitor.block.blocked = monitor.block.blocked.of_program();
    *monitor.registers() = registers;
    monitor.bases_come_in();
    monitor.give_call_its_extended(registers.rsp);
    forward::end(&mut monitor, registers.rax);
    monitor.go_on()
}

/// Of one thread in the machine.
pub(crate) struct Monitor<'a> {
    pub(crate) block: &'a mut Block,
}

impl Monitor<'_> {
    /// Runs the program from these registers, with the extended state in the block. Nothing of an earlier stay is left: its thread may have ended, or
    /// have jumped away. But a fault handler goes on that was refused memory outside.
    fn begin(&mut self, registers: kvm_regs) -> ! {
        let in_handler = self.block.is_on_handler_stack(registers.rsp);
        let block = &mut *self.block;
        block.in_handler.store(u32::from(in_handler), Ordering::Relaxed);
        block.leave_wanted.store(leave::NOT_WANTED, Ordering::Relaxed);
        block.refused.store(0, Ordering::Relaxed);
        let descriptor = self.block.descriptor;
        if in_handler {
            give_extended(descriptor, &self.block.extended_of_handler);
            *self.registers() = registers;
            self.go_on()
        }
        if let Some(kept) = self.block.interrupted_calls.keep() {
            get_extended(descriptor, kept, self.block.machine.extended_states);
        }
        give_extended(descriptor, &self.block.extended);
        *self.registers() = registers;
        // The thread makes no call now, whatever handler of a signal it is in; or it is at the handler's end.
        let turn = match outside_call::stack_before(&registers) {
            Some(rsp) => Some(self.prepare_to_begin_again(rsp)),
            None => self.block.held.is_any().then(|| self.prepare_turn(Turn::Lose)),
        };
        if let Some((rip, rsp)) = turn {
            let registers = self.registers();
            (registers.rip, registers.rflags, registers.rsp) = (rip, PLAIN_FLAGS, rsp);
        }
        self.go_on()
    }

    /// Before a call outside that a handler of a signal has kept from beginning, or that begins again after it. The call's state is the processor's
    /// then. The handler was in the machine, which has ended the hold: the call gets its memory before it is made, since it may take a message for
    /// which it lacks the place. Returns where the holder's turn begins, and with which stack.
    fn prepare_to_begin_again(&mut self, rsp: u64) -> (u64, u64) {
        self.give_call_its_extended(rsp);
        self.block.interrupted_calls.begin(rsp);
        let registers = *self.registers();
        if !held::is_needed(self.block.machine, &Call::of(&registers)) {
            self.resume(&registers, false)
        }
        self.prepare_turn(Turn::Again)
    }

    fn go_on(&mut self) -> ! {
        loop {
            self.run_once();
        }
    }

    /// Gives the processor the extended state that a call had when it began, if something else has run since.
    fn give_call_its_extended(&mut self, rsp: u64) {
        let descriptor = self.block.descriptor;
        if let Some(extended) = self.block.interrupted_calls.end(rsp) {
            give_extended(descriptor, extended);
        }
    }

    /// Has KVM_RUN let the program's signals through, or none while one waits for the end of a stub.
    fn let_signals_through(&mut self) {
        let blocked = match self.block.leave_wanted.load(Ordering::Relaxed) {
            leave::NOT_WANTED => self.block.blocked,
            // Bad memory is touched again and again until its SIGBUS comes through.
            leave::WANTED if !self.block.blocked.contains(libc::SIGBUS) => Signals::OF_MONITOR.without(libc::SIGBUS),
            leave::WANTED_OF_DEFERRAL => Signals::OF_DEFERRAL,
            _ => Signals::OF_MONITOR,
        };
        if self.block.blocked_in_guest == Some(blocked) {
            return;
        }
        #[repr(C, packed)]
        struct Mask {
            len: u32,
            blocked: Signals,
        }
        let mask = Mask { len: size_of::<Signals>() as u32, blocked };
        // SAFETY: KVM reads the structure, which says how long its set is.
        let answer = unsafe { raw::ioctl(self.block.descriptor, SET_SIGNAL_MASK, &raw const mask as u64) };
        if let Some(error) = raw::error_of(answer) {
            raw::die("KVM_SET_SIGNAL_MASK failed, errno", error as u64);
        }
        self.block.blocked_in_guest = Some(blocked);
    }

    /// Runs guest code until there is something to do, and does it.
    fn run_once(&mut self) {
        self.let_signals_through();
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
            Some(libc::EINTR) => return self.interrupted(),
            Some(libc::EAGAIN) => return,
            Some(libc::EFAULT) if raw::stack_grows_to(self.registers().rsp.wrapping_sub(RED_ZONE_BYTES as u64)) => {
                return;
            }
            // The process may not touch that memory, either. Outside it gets the host's answer: a signal, most likely.
            Some(libc::EFAULT) => self.depart(),
            Some(error) => raw::die("KVM_RUN failed, errno", error as u64),
        }
        // SAFETY: KVM has written the structure, and for an exit by I/O this part of it.
        let (reason, port) = unsafe { ((*run).exit_reason, (*run).__bindgen_anon_1.io.port) };
        if reason == KVM_EXIT_INTR {
            return self.interrupted();
        }
        if !self.is_in_handler() {
            self.block.leave_wanted.store(leave::NOT_WANTED, Ordering::Relaxed);
        }
        match (reason, port) {
            (KVM_EXIT_IO, SYSTEM_CALL_PORT) => forward::system_call(self),
            (KVM_EXIT_IO, TRAP_PORT) => self.trap(),
            (KVM_EXIT_IO, LEAVE_PORT) => self.stub_has_ended(),
            (reason, _) => raw::die("KVM cannot run the program; the exit's number is", u64::from(reason)),
        }
    }

    /// A signal may have come. If the program takes it, the thread leaves; a stub, the fault handler and a deferral come to their end before.
    fn interrupted(&mut self) {
        let is_deferred = self.block.deferral.is_on();
        if !signals::must_be_taken(if is_deferred { Signals::OF_DEFERRAL } else { self.block.blocked }) {
            if is_deferred && signals::wait_but(self.block.blocked) {
                self.block.leave_wanted.store(leave::WANTED_OF_DEFERRAL, Ordering::Relaxed);
            }
            return;
        }
        let registers = *self.registers();
        let rip = registers.rip;
        let progress = stubs::progress(rip);
        if self.is_in_handler() && matches!(progress, Progress::None) && signals::take_bad_memory() {
            self.depart()
        }
        if self.is_in_handler() || matches!(progress, Progress::Working) {
            let wanted = if signals::is_waiting(libc::SIGBUS) { leave::WANTED_FOR_SIGBUS } else { leave::WANTED };
            return self.block.leave_wanted.store(wanted, Ordering::Relaxed);
        }
        match progress {
            Progress::None | Progress::Working => {}
            Progress::PageFaultReturns => self.take_frame(),
            Progress::ShootdownReturns => self.take_shootdown(),
            // SAFETY: the stack pointer is where the stub's instruction expects this.
            Progress::Returns => self.take_return(unsafe { (registers.rsp as *const ReturnFrame).read() }),
        }
        Counters::count(&self.block.counters.interruptions);
        self.depart_into_handler()
    }

    /// A stub says that it has ended, since a signal waits for that.
    fn stub_has_ended(&mut self) {
        if !stubs::is_of_shootdown(self.registers().rip) {
            // The page fault's, whose frame has the program's registers.
            self.take_frame();
        } else if self.is_in_handler() {
            // It has interrupted the fault handler, which goes on.
            self.registers().rip = stubs::of_shootdown_pops();
        } else {
            self.take_shootdown();
        }
    }

    /// The program's registers are those in the frame of the page fault.
    fn take_frame(&mut self) {
        // SAFETY: the stub has written the frame, and only takes from it what is its own.
        let frame = unsafe { (self.block.handler_frame as *const TrapFrame).read() };
        let registers = self.registers();
        set_general(registers, &frame.general);
        (registers.rip, registers.rsp, registers.rflags) = (frame.rip, frame.rsp, frame.rflags);
    }

    /// The program's registers are those that the stub of shootdowns has saved.
    fn take_shootdown(&mut self) {
        const SAVED: usize = 3;
        let frame = self.block.shootdown_stack - size_of::<ReturnFrame>() as u64;
        // SAFETY: the processor has put the frame at the end of the stack, and the stub three registers below it.
        let [rdx, rcx, rax] = unsafe { ((frame as *const u64).sub(SAVED)).cast::<[u64; SAVED]>().read() };
        let registers = self.registers();
        (registers.rdx, registers.rcx, registers.rax) = (rdx, rcx, rax);
        // SAFETY: as above.
        self.take_return(unsafe { (frame as *const ReturnFrame).read() });
    }

    fn take_return(&mut self, frame: ReturnFrame) {
        let registers = self.registers();
        (registers.rip, registers.rsp, registers.rflags) = (frame.rip, frame.rsp, frame.rflags);
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
            self.handler_has_ended();
        }
        if frame.vector == INVALID_INSTRUCTION && self.frees_bases() {
            return self.return_to(&frame);
        }
        if frame.vector == PAGE_FAULT {
            let address = frame.address as usize;
            let is_managed = self.block.machine.space.is_managed(address);
            if !is_managed && self.bring_in(address, frame.error) {
                return self.return_to(&frame);
            }
            if is_managed && self.is_in_handler() {
                // Outside the page may be exposed: the handler would come to its end there.
                raw::die("the fault handler or the holder has touched managed memory, at address", frame.address);
            }
            // At ring 0 the handler was asked there.
            if is_managed && self.block.machine.level == Level::Ring3 {
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
        self.handler_has_ended();
        if !is_resolved {
            self.depart_from(&frame);
        }
        set_general(self.registers(), &frame.general);
        self.return_to_ring_3(ReturnFrame::to_ring_3(frame.rip, frame.rflags, frame.rsp));
    }

    fn handler_has_ended(&mut self) {
        self.block.in_handler.store(0, Ordering::Relaxed);
        self.block.leave_wanted.store(leave::NOT_WANTED, Ordering::Relaxed);
    }

    pub(crate) fn is_in_handler(&self) -> bool {
        self.block.in_handler.load(Ordering::Relaxed) != 0
    }

    /// Gives the program's holder a turn; [`Self::held`] comes next, with the program's registers as they are now.
    pub(crate) fn have_turn(&mut self, turn: Turn) {
        let (rip, rsp) = self.prepare_turn(turn);
        self.go_to(rip, PLAIN_FLAGS, rsp);
    }

    /// Returns where the turn begins, and with which stack.
    fn prepare_turn(&mut self, turn: Turn) -> (u64, u64) {
        self.block.called = *self.registers();
        self.block.held.turn = turn;
        self.block.in_handler.store(1, Ordering::Relaxed);
        let (block, place) = (&raw const *self.block as u64, self.block.handler_frame);
        self.registers().rbx = block;
        (stubs::of_held_call(), place)
    }

    /// The holder has had its turn.
    pub(crate) fn held(&mut self, answer: u64) {
        self.handler_has_ended();
        let registers = self.block.called;
        *self.registers() = registers;
        let held = &mut self.block.held;
        match held.turn {
            Turn::Begin if held.is_made => self.return_from_call(answer),
            Turn::Begin => forward::make_held(self),
            Turn::End => {
                let answer = held.answer;
                self.return_from_call(answer);
            }
            Turn::Lose => self.go_to(registers.rip, registers.rflags, registers.rsp),
            Turn::Again => self.resume(&registers, false),
        }
    }

    /// Has the machine go on at an address, with the general registers that it has.
    fn go_to(&mut self, rip: u64, rflags: u64, rsp: u64) {
        match self.block.machine.level {
            Level::Ring0 => {
                let registers = self.registers();
                (registers.rip, registers.rflags, registers.rsp) = (rip, rflags | PLAIN_FLAGS, rsp);
            }
            Level::Ring3 => self.return_to_ring_3(ReturnFrame::to_ring_3(rip, rflags, rsp)),
        }
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
        if !matches!(stubs::progress(frame.rip), Progress::None) {
            // Outside, these instructions would do anything.
            raw::die("a stub of the machine has trapped; the vector is", frame.vector);
        }
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
            Level::Ring0 => (registers.rip, registers.rflags) = (registers.rcx, registers.r11 | PLAIN_FLAGS),
            Level::Ring3 => {
                let frame = ReturnFrame::to_ring_3(registers.rcx, registers.r11, registers.rsp);
                self.return_to_ring_3(frame);
            }
        }
    }

    /// Has the program go on outside the machine, with all of its registers; or its fault handler, whose access the host refuses.
    pub(crate) fn depart(&mut self) -> ! {
        Counters::count(&self.block.counters.departures);
        [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP]
            .into_iter()
            .for_each(signals::come_back_after);
        self.depart_into_handler()
    }

    /// As [`Self::depart`], where a signal is known to wait. After its handler the thread is in the machine again.
    fn depart_into_handler(&mut self) -> ! {
        let registers = *self.registers();
        let rsp = registers.rsp;
        let block = &mut *self.block;
        block.departed[block.departures % block.departed.len()] = rsp;
        block.departures += 1;
        self.go_on_outside()
    }

    /// As [`Self::depart`], because the program wants to.
    pub(crate) fn leave(&mut self) -> ! {
        self.block.departed.fill(0);
        self.go_on_outside()
    }

    /// Has the thread make the call in the program's registers outside, and then come back.
    pub(crate) fn call_outside(&mut self) -> ! {
        let mut registers = *self.registers();
        let place = registers.rsp.wrapping_sub((RED_ZONE_BYTES + size_of::<Replacement>()) as u64);
        if let Some((index, argument, mask)) = Replacement::of(&Call::of(&registers), place) {
            // SAFETY: below the red zone of the program's stack is a place for it, where the call's frame follows.
            unsafe { (place as *mut Replacement).write(mask) };
            *Call::argument_in(&mut registers, index) = argument;
        }
        let (rip, rflags) = (registers.rcx, registers.r11);
        (registers.rip, registers.rflags) = (outside_call::start(), rflags);
        (registers.rcx, registers.r11) = (rip, &raw const *self.block as u64);
        self.block.interrupted_calls.begin(registers.rsp);
        self.resume(&registers, false)
    }

    fn go_on_outside(&mut self) -> ! {
        let registers = *self.registers();
        self.resume(&registers, true)
    }

    /// Goes on outside with these registers, and with the processor's extended state, or the one that a thread begins with.
    fn resume(&mut self, registers: &kvm_regs, with_extended: bool) -> ! {
        self.bases_go_out();
        let blocked = self.blocked_outside();
        let block = &mut *self.block;
        let state = with_extended.then(|| {
            let (machine, descriptor) = (block.machine, block.descriptor);
            let extended = block.extended_of(registers.rsp);
            get_extended(descriptor, extended, machine.extended_states);
            State { bytes: &extended.0[..machine.extended_bytes], states: machine.extended_states }
        });
        let mut frame = std::mem::MaybeUninit::<Frame<EXTENDED_BYTES>>::uninit();
        // SAFETY: the frame is on the monitor's stack, which this thread alone uses until it enters again. KVM has written the state.
        unsafe {
            Frame::write(frame.as_mut_ptr(), registers, blocked, state);
            resume::resume(Frame::context(frame.as_ptr()))
        }
    }

    /// The signals that are blocked where the thread, or one that it starts, goes on outside.
    pub(crate) fn blocked_outside(&self) -> Signals {
        if self.is_in_handler() {
            Signals::OF_HANDLER
        } else if self.block.deferral.is_on() {
            Signals::OF_DEFERRAL
        } else {
            self.block.blocked
        }
    }

    /// The program returns from a handler of a signal: goes on from its context.
    pub(crate) fn return_from_handler(&mut self, place: u64) {
        let is_over = |registers: &kvm_regs| {
            outside_call::is_at(registers.rip) && outside_call::stack_before(registers).is_none()
        };
        let context = value_at::<Context>(place as usize);
        let Some(context) = context.filter(|context| !is_over(&context.registers())) else {
            // The handler has interrupted the end of a call outside; or there is no context, for which the kernel ends the program.
            // SAFETY: the kernel looks at the context itself.
            unsafe { resume::resume(place as *const Context) }
        };
        context.give_alternate_stack_back();
        if let Some(rsp) = outside_call::stack_before(&context.registers()) {
            self.block.blocked = context.blocked;
            *self.registers() = context.registers();
            let (rip, rsp) = self.prepare_to_begin_again(rsp);
            return self.go_to(rip, PLAIN_FLAGS, rsp);
        }
        let (registers, states, descriptor) =
            (context.registers(), self.block.machine.extended_states, self.block.descriptor);
        let extended = self.block.extended_of(registers.rsp);
        // SAFETY: the context is the kernel's; it says where it has put the state.
        unsafe { extended.set_of_context(context.extended(), states) };
        give_extended(descriptor, extended);
        let in_handler = self.block.is_on_handler_stack(registers.rsp);
        self.block.in_handler.store(u32::from(in_handler), Ordering::Relaxed);
        if !in_handler {
            self.block.blocked = context.blocked.of_program();
        }
        *self.registers() = registers;
        self.go_to(registers.rip, registers.rflags, registers.rsp);
    }

    /// The program's extended state.
    pub(crate) fn extended(&mut self) -> Extended {
        let mut extended = Extended([0; EXTENDED_BYTES]);
        get_extended(self.block.descriptor, &mut extended, self.block.machine.extended_states);
        extended
    }
}

/// The extended state of a processor, as far as the mask has it.
fn get_extended(descriptor: i32, extended: &mut Extended, states: u64) {
    // SAFETY: KVM writes as many bytes as there are.
    let answer = unsafe { raw::ioctl(descriptor, GET_XSAVE, extended.0.as_mut_ptr() as u64) };
    if let Some(error) = raw::error_of(answer) {
        raw::die("KVM_GET_XSAVE failed, errno", error as u64);
    }
    extended.limit_to(states);
}

/// Gives a processor extended state.
fn give_extended(descriptor: i32, extended: &Extended) {
    // SAFETY: KVM reads as many bytes as there are.
    let answer = unsafe { raw::ioctl(descriptor, SET_XSAVE, extended.0.as_ptr() as u64) };
    if let Some(error) = raw::error_of(answer) {
        raw::die("KVM_SET_XSAVE failed, errno", error as u64);
    }
}
