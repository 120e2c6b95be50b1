//! A virtual processor: one thread at a time has it.

use std::sync::atomic::Ordering;

use kvm_bindings::{
    CpuId, KVM_MAX_CPUID_ENTRIES, KVM_MP_STATE_RUNNABLE, KVM_SYNC_X86_REGS, kvm_cpuid_entry2, kvm_mp_state,
    kvm_msr_entry, kvm_sregs, kvm_xcr, kvm_xcrs,
};
use kvm_ioctls::VcpuFd;
use rustix::thread::sched_getcpu;

use crate::bases::{Bases, CR4_FS_GS_BASE};
use crate::block::{Block, Place, state};
use crate::descriptors::{Descriptors, SPURIOUS_VECTOR, STAR, Segments};
use crate::error::{Error, Result};
use crate::level::Level;
use crate::machine::Machine;
use crate::resume::Context;
use crate::signals::Signals;
use crate::{bases, monitor, native, raw, stubs};

const MSR_STAR: u32 = 0xc000_0081;
const MSR_LSTAR: u32 = 0xc000_0082;
const MSR_SYSCALL_MASK: u32 = 0xc000_0084;
const MSR_TSC_AUX: u32 = 0xc000_0103;
const MSR_SPURIOUS_INTERRUPT: u32 = 0x80f;
/// Flags that SYSCALL clears: as Linux has it, interrupts, direction, single steps and so on.
const SYSCALL_MASK: u64 = 0x4_7700;
/// The local interrupt controller takes interrupts.
const INTERRUPTS_ENABLED: u64 = 1 << 8;

const CR0: u64 = 0x8005_0033;
const CR4_PHYSICAL_ADDRESS_EXTENSION: u64 = 1 << 5;
const CR4_SSE: u64 = 0b11 << 9;
const CR4_XSAVE: u64 = 1 << 18;
const EFER: u64 = 1 | 1 << 8 | 1 << 10 | 1 << 11;
/// x2APIC, by which processors address each other in one store to a register.
const APIC_BASE: u64 = 0xfee0_0000 | 1 << 11 | 1 << 10;
const APIC_BOOT_PROCESSOR: u64 = 1 << 8;

const CPUID_LEGACY_FEATURES: u32 = 1;
const CPUID_TOPOLOGY: u32 = 0xb;
const CPUID_TOPOLOGY_2: u32 = 0x1f;
const SET_CPUID: u64 = 0x4008_ae90;
const SET_DEVICE_ATTR: u64 = 0x4018_aee1;
const SET_MSRS: u64 = 0x4008_ae89;

/// One of a machine's.
pub(crate) struct Vcpu {
    machine: &'static Machine,
    place: Place,
    descriptor: VcpuFd,
}

// SAFETY: the block is shared through its atomic words; the rest of it, and the descriptor's state, belong to the thread that has the processor.
unsafe impl Send for Vcpu {}
// SAFETY: as above.
unsafe impl Sync for Vcpu {}

impl Vcpu {
    /// Makes one of a descriptor that nobody has used, taken by the caller. Allocates nothing: threads take one in handlers of signals, too.
    pub(crate) fn create(machine: &'static Machine, number: u32, mut descriptor: VcpuFd) -> Result<Vcpu> {
        let failed = "making a virtual processor";
        let place = Place::reserve()?;
        machine.space.add_gigabytes_of(place.addresses())?;
        place.write_tables();
        let run = &raw mut *descriptor.get_kvm_run();
        let block = place.block;
        // SAFETY: the block's memory is ours alone, and all of its fields may be zeros but those that are written here.
        unsafe {
            (&raw mut (*block).machine).write(machine);
            (*block).run = run;
            (*block).descriptor = std::os::fd::AsRawFd::as_raw_fd(&descriptor);
            (*block).number = number;
            (*block).blocked_in_guest = None;
            (*block).are_bases_free = bases::are_free_at_first(machine.level);
            (*block).handler_frame = place.handler_frame;
            (*block).monitor_stack = place.monitor_stack;
            (*block).shootdown_stack = place.shootdown_stack;
            (*block).extended_low = machine.extended_states as u32;
            (*block).extended_high = (machine.extended_states >> 32) as u32;
            (*block).state.store(state::OUTSIDE, Ordering::Relaxed);
            // General registers come and go with each KVM_RUN, without calls of their own.
            (*run).kvm_valid_regs = u64::from(KVM_SYNC_X86_REGS);
        }
        let vcpu = Vcpu { machine, place, descriptor };
        vcpu.set_features(&machine.cpuid).map_err(Error::kvm(failed))?;
        vcpu.set_up(machine).map_err(Error::kvm(failed))?;
        vcpu.set_clock()?;
        Ok(vcpu)
    }

    /// The supported features, as the processor of that number has them.
    fn set_features(&self, supported: &CpuId) -> Result<(), kvm_ioctls::Error> {
        #[repr(C)]
        struct Features {
            count: u32,
            padding: u32,
            leaves: [kvm_cpuid_entry2; KVM_MAX_CPUID_ENTRIES],
        }
        let leaves = [kvm_cpuid_entry2::default(); KVM_MAX_CPUID_ENTRIES];
        let supported = supported.as_slice();
        let mut features = Features { count: supported.len() as u32, padding: 0, leaves };
        let number = self.block().number;
        for (leaf, supported) in features.leaves.iter_mut().zip(supported) {
            *leaf = *supported;
            match leaf.function {
                CPUID_LEGACY_FEATURES => leaf.ebx = leaf.ebx & 0x00ff_ffff | number << 24,
                CPUID_TOPOLOGY | CPUID_TOPOLOGY_2 => leaf.edx = number,
                _ => {}
            }
        }
        // SAFETY: KVM reads the structure, which has as many entries as it says.
        let set = unsafe { raw::ioctl(self.block().descriptor, SET_CPUID, &raw const features as u64) };
        raw::error_of(set).map_or(Ok(()), |error| Err(kvm_ioctls::Error::new(error)))
    }

    /// Sets all that stays as it is. Segments come at each entry.
    fn set_up(&self, machine: &Machine) -> Result<(), kvm_ioctls::Error> {
        let sregs = self.special_registers(machine.level)?;
        self.descriptor.set_sregs(&sregs)?;
        let mut xcrs = kvm_xcrs { nr_xcrs: 1, ..Default::default() };
        xcrs.xcrs[0] = kvm_xcr { xcr: 0, value: machine.extended_states, ..Default::default() };
        self.descriptor.set_xcrs(&xcrs)?;
        self.set_msrs(&[
            (MSR_STAR, STAR),
            (MSR_LSTAR, stubs::of_system_call()),
            (MSR_SYSCALL_MASK, SYSCALL_MASK),
            (MSR_SPURIOUS_INTERRUPT, INTERRUPTS_ENABLED | u64::from(SPURIOUS_VECTOR)),
        ])?;
        self.descriptor.set_mp_state(kvm_mp_state { mp_state: KVM_MP_STATE_RUNNABLE })
    }

    fn special_registers(&self, level: Level) -> Result<kvm_sregs, kvm_ioctls::Error> {
        let block = self.block();
        let mut sregs = self.descriptor.get_sregs()?;
        let Segments { code, data } = Segments::of(level);
        sregs.cs = code;
        (sregs.ss, sregs.ds, sregs.es) = (data, data, data);
        sregs.tr = Descriptors::task_register(&raw const block.task as u64);
        sregs.gdt = block.descriptors.register();
        sregs.idt = block.machine.gates.register();
        sregs.cr0 = CR0;
        sregs.cr3 = block.machine.space.root();
        sregs.cr4 = CR4_PHYSICAL_ADDRESS_EXTENSION | CR4_SSE | CR4_XSAVE;
        if block.are_bases_free {
            sregs.cr4 |= CR4_FS_GS_BASE;
        }
        sregs.efer = EFER;
        sregs.apic_base = APIC_BASE | if block.number == 0 { APIC_BOOT_PROCESSOR } else { 0 };
        Ok(sregs)
    }

    /// Without an allocation: threads enter from handlers of signals, too.
    fn set_msrs(&self, values: &[(u32, u64)]) -> Result<(), kvm_ioctls::Error> {
        #[repr(C)]
        struct OneMsr {
            count: u32,
            padding: u32,
            entry: kvm_msr_entry,
        }
        for &(index, data) in values {
            let one = OneMsr { count: 1, padding: 0, entry: kvm_msr_entry { index, data, ..Default::default() } };
            // SAFETY: KVM reads the structure, which has as many entries as it says. The registers are the guest's.
            let answer = unsafe { raw::ioctl(self.block().descriptor, SET_MSRS, &raw const one as u64) };
            if answer != 1 {
                return Err(kvm_ioctls::Error::new(raw::error_of(answer).unwrap_or(libc::EINVAL)));
            }
        }
        Ok(())
    }

    /// The clock that the program reads in the machine is the one outside: the vDSO computes with it.
    fn set_clock(&self) -> Result<()> {
        let offset = 0_u64;
        let attribute = kvm_bindings::kvm_device_attr {
            group: kvm_bindings::KVM_VCPU_TSC_CTRL,
            attr: u64::from(kvm_bindings::KVM_VCPU_TSC_OFFSET),
            addr: &raw const offset as u64,
            flags: 0,
        };
        let descriptor = self.block().descriptor;
        // SAFETY: KVM reads the structure and the number that it points to, which live meanwhile.
        let answer = unsafe { raw::ioctl(descriptor, SET_DEVICE_ATTR, &raw const attribute as u64) };
        match raw::error_of(answer) {
            None => Ok(()),
            Some(_) => Err(Error::Lacks {
                what: "give a guest its host's clock (KVM_VCPU_TSC_OFFSET)",
                remedy: "run Linux 5.16 or later",
            }),
        }
    }

    /// Runs the calling thread in the machine from here on. Returns there. The thread has its signals blocked, and before it blocked these.
    ///
    /// # Errors
    ///
    /// Then the thread goes on outside, with its signals still blocked.
    pub(crate) fn enter(&self, blocked: Signals) -> Result<()> {
        self.prepare(blocked)?;
        // SAFETY: the processor is the calling thread's, which runs outside the machine: nobody else uses its stack.
        unsafe { native::enter(self.place.block, monitor::run, self.place.monitor_stack) };
        Ok(())
    }

    /// Runs the calling thread in the machine from where a signal has interrupted it.
    ///
    /// # Safety
    /// [`Self::prepare_from`] has succeeded in the handler of the signal, in which this is called.
    pub(crate) unsafe fn enter_prepared(&self) -> ! {
        // SAFETY: the processor is the calling thread's, which runs outside. Nothing needs the handler's stack any more: the thread goes on in
        // the machine.
        unsafe { native::go_to(self.place.block, monitor::run_interrupted, self.place.monitor_stack) }
    }

    /// Gives the processor all that the calling thread had when a signal interrupted it.
    ///
    /// # Safety
    /// The context is the one that the kernel has passed to the handler of the signal, in which this is called, with all signals blocked.
    pub(crate) unsafe fn prepare_from(&self, context: *const Context) -> Result<()> {
        // SAFETY: the caller vouches for the context.
        let context = unsafe { &*context };
        let registers = context.registers();
        // The program's mask is that from before the fault.
        let in_handler = self.block().is_on_handler_stack(registers.rsp);
        self.prepare(if in_handler { self.block().blocked } else { context.blocked })?;
        context.give_alternate_stack_back();
        // SAFETY: the processor is the calling thread's, which runs outside, so nobody else touches the fields that change here.
        let block = unsafe { &mut *self.place.block };
        block.interrupted = registers;
        let states = block.machine.extended_states;
        // SAFETY: the caller vouches for the context, which says where the kernel has put the state.
        unsafe { block.extended_of(registers.rsp).set_of_context(context.extended(), states) };
        Ok(())
    }

    /// Gives back the memory of a call that the thread has jumped out of, or in which it was cancelled.
    ///
    /// # Safety
    /// The processor is the calling thread's, which is outside and makes no such call any more. All signals are blocked.
    pub(crate) unsafe fn end_hold(&self) {
        // SAFETY: nobody but the thread touches the field, and the caller vouches for that.
        let held = unsafe { &mut (*self.place.block).held };
        if let Some(holder) = self.machine.holder.get() {
            held.release(*holder);
        }
    }

    /// Gives the processor what belongs to the calling thread, but for its registers.
    fn prepare(&self, blocked: Signals) -> Result<()> {
        let failed = "preparing a virtual processor for a thread";
        let bases = Bases::of_thread();
        let mut sregs = self.special_registers(self.block().machine.level).map_err(Error::kvm(failed))?;
        for (segment, base) in [(&mut sregs.fs, bases.fs), (&mut sregs.gs, bases.gs)] {
            *segment = kvm_bindings::kvm_segment { selector: 0, base, ..sregs.ds };
        }
        self.descriptor.set_sregs(&sregs).map_err(Error::kvm(failed))?;
        let core = sched_getcpu() as u32;
        // A hint alone, and not every processor has the register.
        let _ = self.set_msrs(&[(MSR_TSC_AUX, u64::from(core))]);
        // SAFETY: the processor is the calling thread's, which runs outside the machine: nobody else touches these fields.
        unsafe {
            let block = self.place.block;
            (*block).descriptors.set_core(core);
            (*block).blocked = blocked.of_program();
            (*block).bases = bases;
        }
        Ok(())
    }

    /// Whether ring 0 of this machine is the processor's: an emulator knows the instructions that kernels have, and no multiplication of vectors.
    pub(crate) fn runs_ring_0(&mut self) -> Result<bool> {
        let failed = "trying a virtual processor";
        let mut regs = self.descriptor.get_regs().map_err(Error::kvm(failed))?;
        regs.rip = stubs::of_probe();
        regs.rflags = native::PLAIN_FLAGS;
        self.descriptor.set_regs(&regs).map_err(Error::kvm(failed))?;
        loop {
            match self.descriptor.run() {
                Ok(kvm_ioctls::VcpuExit::IoOut(stubs::PROBE_PORT, _)) => return Ok(true),
                Ok(_) => return Ok(false),
                // As for the machine itself: the kernel had to tell the thread of something.
                Err(error) if error.errno() == libc::EINTR => {}
                Err(error) => return Err(Error::kvm(failed)(error)),
            }
        }
    }

    /// The machine that it belongs to.
    pub(crate) fn machine(&self) -> &'static Machine {
        self.machine
    }

    /// The block of the calling thread's own processor.
    pub(crate) fn own_block(&self) -> *mut Block {
        self.place.block
    }

    /// Its block. Only atomic fields of it may change while others look.
    pub(crate) fn block(&self) -> &Block {
        // SAFETY: written when this was made, and never freed.
        unsafe { &*self.place.block }
    }
}
