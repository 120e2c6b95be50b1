//! The virtual machine of a process.

use std::arch::asm;
use std::cell::Cell;
use std::os::fd::RawFd;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use kvm_bindings::{
    CpuId, KVM_CAP_SPLIT_IRQCHIP, KVM_CAP_X2APIC_API, KVM_CAP_X86_DISABLE_EXITS, KVM_MAX_CPUID_ENTRIES,
    KVM_X2APIC_API_DISABLE_BROADCAST_QUIRK, KVM_X2APIC_API_USE_32BIT_IDS, KVM_X86_DISABLE_EXITS_HLT, kvm_cpuid_entry2,
    kvm_enable_cap, kvm_regs,
};
use kvm_ioctls::{Cap, Kvm, VmFd};
use rustix::process::{Pid, getpid};

use crate::address_space::AddressSpace;
use crate::block::state;
use crate::calls::Holder;
use crate::counters::Counts;
use crate::deferral;
use crate::descriptors::{Gates, RING0_CODE};
use crate::error::{Error, Result};
use crate::faults::FaultHandler;
use crate::forward;
use crate::level::Level;
use crate::lock::Lock;
use crate::memory::{Memory, PAGE_BYTES};
use crate::native::{self, EXTENDED_BYTES};
use crate::outside_call;
use crate::program;
use crate::raw;
use crate::resume::{BASIC_BYTES, Context};
use crate::signals;
use crate::vcpu::Vcpu;

/// Threads that can be in a machine at a time, at most.
const THREADS_MAX: usize = 1024;
const ENTRY_STACK_BYTES: usize = 64 << 10;
/// Protection keys, which belong to the host's page tables.
const PROTECTION_KEYS: u64 = 1 << 9;
/// x87 and SSE, which every state has.
const LEGACY_STATES: u64 = 0b11;
const CPUID_EXTENDED_STATES: u32 = 0xd;
const CPUID_ADDRESS_SIZES: u32 = 0x8000_0008;

/// Of this process; a forked child has none at first.
static MACHINE: AtomicPtr<Machine> = AtomicPtr::new(ptr::null_mut());
static STARTING: Lock = Lock::new();

thread_local! {
    /// The virtual processor that the thread had when it was last in the machine, for when it enters again. Without a destructor, which would allocate when
    /// a thread takes a processor in a handler.
    static OWN: Cell<Option<&'static Vcpu>> = const { Cell::new(None) };
}

/// Its destructor frees the processor of a thread that ends. The C library stores values of a process's first 32 keys in the thread itself.
static AT_THREAD_END: OnceLock<libc::pthread_key_t> = OnceLock::new();

/// The machine of a process: it has the process's memory, and a virtual processor for each thread in it.
///
/// # Examples
///
/// ```
/// # if let Ok(machine) = vmio_ring0::Machine::start(vmio_ring0::Level::Ring0) {
/// machine.enter()?;
/// println!("the same program, in ring 0");
/// vmio_ring0::leave();
/// # }
/// # Ok::<(), vmio_ring0::Error>(())
/// ```
pub struct Machine {
    pub(crate) level: Level,
    pub(crate) vm: VmFd,
    pub(crate) space: AddressSpace,
    pub(crate) gates: Box<Gates>,
    /// Those of XCR0.
    pub(crate) extended_states: u64,
    /// How long they are, in the form of XSAVE.
    pub(crate) extended_bytes: usize,
    pub(crate) handler: OnceLock<FaultHandler>,
    pub(crate) holder: OnceLock<&'static dyn Holder>,
    pub(crate) shootdowns: AtomicU64,
    /// Whoever prepares a processor in a handler of a signal has this stack: alternate stacks of signals are small.
    entry_stack: Memory,
    entry_lock: Lock,
    pub(crate) cpuid: CpuId,
    vcpus: Box<[OnceLock<Vcpu>]>,
    /// How many of them there are.
    made: AtomicUsize,
    making: Mutex<()>,
    process: Pid,
}

impl Machine {
    /// The machine of this process, which is made at the first call. It stays as long as the process.
    ///
    /// # Errors
    ///
    /// Says what the host lacks, or that the machine has another level.
    pub fn start(level: Level) -> Result<&'static Machine> {
        free_in_children();
        // A handler that touches managed memory would wait for the lock.
        deferral::with_signals_deferred(|| Machine::start_or_find(level))
    }

    fn start_or_find(level: Level) -> Result<&'static Machine> {
        let _starting = STARTING.take();
        make_key()?;
        let machine = match of_process() {
            Some(machine) => machine,
            None => {
                let made = Box::into_raw(Box::new(Machine::make(level)?));
                // SAFETY: it lives as long as the process if it begins.
                let begun = unsafe { &*made }.begin();
                // SAFETY: it has not begun, and has no thread and no virtual processor: nobody else knows of it.
                let machine = begun.inspect_err(|_| drop(unsafe { Box::from_raw(made) }))?;
                MACHINE.store(made, Ordering::Release);
                machine
            }
        };
        if machine.level != level {
            return Err(Error::OtherLevel { present: machine.level });
        }
        Ok(machine)
    }

    fn make(level: Level) -> Result<Machine> {
        let kvm = Kvm::new().map_err(|error| match error.errno() {
            libc::EACCES | libc::EPERM => Error::Denied(std::io::Error::from_raw_os_error(error.errno())),
            libc::ENOENT | libc::ENODEV | libc::ENXIO => Error::NoKvm,
            _ => Error::kvm("opening /dev/kvm")(error),
        })?;
        let lacks = |what| Error::Lacks { what, remedy: "run Linux 5.16 or later" };
        if !kvm.check_extension(Cap::SyncRegs) {
            return Err(lacks("hand over registers (KVM_CAP_SYNC_REGS)"));
        }
        if !kvm.check_extension(Cap::Xsave) || !kvm.check_extension(Cap::Xcrs) {
            return Err(lacks("keep the extended state of a guest (KVM_CAP_XSAVE)"));
        }
        let failed = "making a virtual machine";
        let vm = loop {
            match kvm.create_vm() {
                // The kernel had to tell the thread of something, such as the end of an io_uring request. It has now.
                Err(error) if error.errno() == libc::EINTR => {}
                made => break made.map_err(Error::kvm(failed))?,
            }
        };
        let cpuid = kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES).map_err(Error::kvm(failed))?;
        // Interrupt controllers of the processors, in the kernel; none beside them.
        let enable = |cap, argument| {
            let cap = kvm_enable_cap { cap, args: [argument, 0, 0, 0], ..Default::default() };
            vm.enable_cap(&cap)
        };
        enable(KVM_CAP_SPLIT_IRQCHIP, 1).map_err(|_| lacks("keep interrupt controllers (KVM_CAP_SPLIT_IRQCHIP)"))?;
        let flags = KVM_X2APIC_API_USE_32BIT_IDS | KVM_X2APIC_API_DISABLE_BROADCAST_QUIRK;
        enable(KVM_CAP_X2APIC_API, u64::from(flags)).map_err(|_| lacks("number processors above 255"))?;
        // KVM would have another thread bring in a file's page, and a halted processor try again, for ever if the host refuses the page. Where guests may
        // halt by themselves it does not. Nobody halts here, so nothing else changes.
        enable(KVM_CAP_X86_DISABLE_EXITS, u64::from(KVM_X86_DISABLE_EXITS_HLT))
            .map_err(|_| lacks("bring in pages in the thread that touches them (KVM_CAP_X86_DISABLE_EXITS)"))?;
        let address_bits = of_leaf(&cpuid, CPUID_ADDRESS_SIZES, 0).map_or(36, |leaf| leaf.eax & 0xff);
        let slots = kvm.get_nr_memslots() as u32;
        let threads = kvm.get_max_vcpus().min(THREADS_MAX);
        Ok(Machine {
            level,
            space: AddressSpace::new(std::os::fd::AsRawFd::as_raw_fd(&vm), address_bits, slots)?,
            vm,
            gates: Box::new(Gates::new(level)),
            extended_states: extended_states(&cpuid),
            extended_bytes: bytes_of(&cpuid, extended_states(&cpuid)),
            handler: OnceLock::new(),
            holder: OnceLock::new(),
            shootdowns: AtomicU64::new(0),
            entry_stack: Memory::reserve(ENTRY_STACK_BYTES, PAGE_BYTES)?,
            entry_lock: Lock::default(),
            cpuid,
            vcpus: std::iter::repeat_with(OnceLock::new).take(threads).collect(),
            made: AtomicUsize::new(0),
            making: Mutex::new(()),
            process: getpid(),
        })
    }

    /// Makes the first virtual processor, and has it show that ring 0 works if that is wanted.
    fn begin(&'static self) -> Result<&'static Machine> {
        // The gates must be there when the first trap comes; and so must all that code in the machine touches while it holds a lock that the
        // monitor needs to bring in a gigabyte.
        let gates = &raw const *self.gates as usize;
        let machine = ptr::from_ref(self).addr();
        self.space.add_gigabytes_of(gates..gates + size_of::<Gates>())?;
        self.space.add_gigabytes_of(machine..machine + size_of::<Machine>())?;
        self.space.own_addresses().into_iter().try_for_each(|own| self.space.add_gigabytes_of(own))?;
        program::each_part(&mut |part| self.space.add_gigabytes_of(part))?;
        let descriptor = self.vm.create_vcpu(0).map_err(Error::kvm("making a virtual processor"))?;
        let mut first = Vcpu::create(self, 0, descriptor)?;
        if self.level == Level::Ring0 && !first.runs_ring_0()? {
            return Err(Error::Ring0Emulated);
        }
        first.block().state.store(state::FREE, Ordering::Release);
        let _ = self.vcpus[0].set(first);
        self.made.store(1, Ordering::Release);
        Ok(self)
    }

    /// Runs the calling thread in the machine from here on, until [`leave`]. Nothing happens if it is there already.
    ///
    /// Threads and processes that it starts are outside; a thread may enter by itself.
    ///
    /// # Errors
    ///
    /// The thread stays outside, because the machine has no virtual processor for it, or is that of a parent.
    pub fn enter(&'static self) -> Result<()> {
        if is_inside() {
            return Ok(());
        }
        self.check_process()?;
        signals::come_back_after_all();
        let blocked = signals::block();
        let entered = self.own_or_take().and_then(|vcpu| vcpu.enter(blocked));
        // In the machine they are the monitor's.
        if entered.is_err() {
            signals::set(blocked);
        }
        entered
    }

    /// As [`Self::enter`], from a handler of a signal, with the registers that it interrupted. Returns if that is impossible.
    ///
    /// # Safety
    /// The context is the one that the kernel has passed to the handler, and all signals are blocked.
    pub(crate) unsafe fn enter_from(&'static self, context: *const Context) {
        let mut entry = EntryFromHandler { machine: self, context, vcpu: None };
        let taken = self.entry_lock.take();
        let stack = self.entry_stack.base() + self.entry_stack.len();
        // SAFETY: whoever holds the lock has the stack, and the argument is what the function expects.
        unsafe { native::call_on((&raw mut entry).cast(), prepare_entry, stack) };
        drop(taken);
        if let Some(vcpu) = entry.vcpu {
            // SAFETY: it is prepared, in this handler.
            unsafe { vcpu.enter_prepared() };
        }
    }

    /// The calling thread's virtual processor.
    fn own_or_take(&'static self) -> Result<&'static Vcpu> {
        if let Some(vcpu) = self.own() {
            return Ok(vcpu);
        }
        let vcpu = self.take()?;
        vcpu.block().deferral.end();
        OWN.set(Some(vcpu));
        free_at_thread_end(vcpu);
        Ok(vcpu)
    }

    /// Whether the calling thread, outside at the end of a handler, goes on in the machine: the signal has interrupted it there, with these registers.
    /// The handler may have set others since, but the stack's. Or it has interrupted a call that begins again, whose hold has ended meanwhile.
    pub(crate) fn must_come_back(&self, registers: &kvm_regs) -> bool {
        let Some(block) = self.own().map(Vcpu::block) else { return false };
        match outside_call::stack_before(registers) {
            Some(rsp) => !block.interrupted_calls.is_present(rsp),
            None => !outside_call::is_at(registers.rip) && block.departed.contains(&registers.rsp),
        }
    }

    /// The calling thread's virtual processor, unless it is of a parent's machine.
    pub(crate) fn own(&self) -> Option<&'static Vcpu> {
        own().filter(|vcpu| ptr::eq(vcpu.machine(), self))
    }

    /// The events in all threads.
    pub fn counts(&self) -> Counts {
        let mut sum = Counts::default();
        self.all().for_each(|vcpu| sum += &vcpu.block().counters);
        sum.shootdowns = self.shootdowns.load(Ordering::Relaxed);
        sum
    }

    /// The events in the calling thread, and in those that had its virtual processor before.
    pub fn counts_of_thread(&self) -> Counts {
        let mut counts = Counts::default();
        if let Some(vcpu) = self.own() {
            counts += &vcpu.block().counters;
        }
        counts
    }

    /// The descriptors of the machine and of its virtual processors so far. A program that closes all descriptors that it finds must spare these.
    pub fn descriptors(&self) -> Vec<RawFd> {
        let own = std::iter::once(self.space.machine());
        own.chain(self.all().map(|vcpu| vcpu.block().descriptor)).collect()
    }

    /// The ring that entered threads have.
    pub fn level(&self) -> Level {
        self.level
    }

    /// A virtual processor that no thread has.
    pub(crate) fn take(&'static self) -> Result<&'static Vcpu> {
        let take = |vcpu: &&Vcpu| {
            let word = &vcpu.block().state;
            word.compare_exchange(state::FREE, state::OUTSIDE, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        if let Some(vcpu) = self.all().find(take) {
            return Ok(vcpu);
        }
        let _making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        self.make_vcpu(self.made.load(Ordering::Relaxed))
    }

    /// Makes a virtual processor of the first number from this one on that KVM does not have: it keeps those of attempts that failed.
    fn make_vcpu(&'static self, first: usize) -> Result<&'static Vcpu> {
        let failed = Error::kvm("making a virtual processor");
        let mut number = first;
        let (place, descriptor) = loop {
            let place = self.vcpus.get(number).ok_or(Error::TooManyThreads { limit: self.vcpus.len() })?;
            match self.vm.create_vcpu(number as u64) {
                Ok(descriptor) => break (place, descriptor),
                Err(error) if error.errno() == libc::EEXIST => number += 1,
                Err(error) => return Err(failed(error)),
            }
        };
        let made = Vcpu::create(self, number as u32, descriptor)?;
        let vcpu = place.get_or_init(|| made);
        self.made.store(number + 1, Ordering::Release);
        Ok(vcpu)
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Vcpu> {
        self.vcpus[..self.made.load(Ordering::Acquire)].iter().filter_map(OnceLock::get)
    }

    /// Whether it is not that of a parent.
    pub(crate) fn is_of_process(&self) -> bool {
        // A thread at ring 0 is in the machine of its own processor; a child may hold its parent's, too.
        is_at_ring_0() && self.own().is_some() || self.process == getpid()
    }

    fn check_process(&self) -> Result<()> {
        if self.is_of_process() { Ok(()) } else { Err(Error::Forked) }
    }
}

/// Has forks wait for a machine that is being made, so that children can make theirs.
fn free_in_children() {
    static IS_DONE: AtomicBool = AtomicBool::new(false);
    extern "C" fn before() {
        std::mem::forget(STARTING.take());
    }
    extern "C" fn after() {
        STARTING.free();
    }
    if !IS_DONE.swap(true, Ordering::Relaxed) {
        // SAFETY: the three are functions without arguments. If it fails, a child may have to wait for its own machine.
        unsafe { libc::pthread_atfork(Some(before), Some(after), Some(after)) };
    }
}

/// The machine of this process, if it has one.
pub(crate) fn of_process() -> Option<&'static Machine> {
    // SAFETY: a machine that has begun is never freed. A child has its parent's memory of it.
    unsafe { MACHINE.load(Ordering::Acquire).as_ref() }.filter(|machine| machine.is_of_process())
}

/// Whether the calling thread has left the machine because nobody could resolve its fault at this address. The next time it has not.
pub(crate) fn take_refusal(machine: &Machine, address: usize) -> bool {
    machine.own().is_some_and(|vcpu| {
        let word = &vcpu.block().refused;
        let is_refused = word.load(Ordering::Relaxed) == address as u64;
        word.store(0, Ordering::Relaxed);
        is_refused
    })
}

/// The calling thread's virtual processor, in the machine or not.
pub(crate) fn own() -> Option<&'static Vcpu> {
    OWN.get()
}

/// Whether the calling thread is in the machine, at ring 0: a look at a register.
#[inline]
pub fn is_at_ring_0() -> bool {
    let code: u64;
    // SAFETY: reads a register.
    unsafe { asm!("mov {}, cs", out(reg) code, options(nomem, nostack, preserves_flags)) };
    code & 0xffff == u64::from(RING0_CODE)
}

/// Has the calling thread go on outside the machine. Nothing happens if it is there already.
pub fn leave() {
    if is_inside() {
        // SAFETY: the monitor takes it; it does not touch memory.
        unsafe { raw::call(forward::LEAVE, [0; 6]) };
    }
}

/// Has the monitor take signals that wait for the calling thread, which is in the machine.
pub(crate) fn look_for_signals() {
    // SAFETY: the monitor takes it; it does not touch memory.
    unsafe { raw::call(forward::IS_INSIDE, [0; 6]) };
}

/// Whether the calling thread is in the machine.
pub fn is_inside() -> bool {
    if is_at_ring_0() {
        return true;
    }
    // In ring 3 both sides look alike, so the monitor is asked, which the kernel is not. A child may have forbidden itself such calls.
    // SAFETY: as in `of_process`.
    unsafe { MACHINE.load(Ordering::Acquire).as_ref() }
        .is_some_and(|machine| machine.level == Level::Ring3 && machine.is_of_process())
        // SAFETY: the call touches no memory; Linux does not have it.
        && unsafe { raw::call(forward::IS_INSIDE, [0; 6]) } == 1
}

/// A thread that enters from a handler of a signal.
struct EntryFromHandler {
    machine: &'static Machine,
    context: *const Context,
    /// Its virtual processor, if that is prepared.
    vcpu: Option<&'static Vcpu>,
}

/// Called with an [`EntryFromHandler`].
unsafe extern "C" fn prepare_entry(entry: *mut libc::c_void) {
    // SAFETY: the caller passes one, which nobody else uses meanwhile.
    let entry = unsafe { &mut *entry.cast::<EntryFromHandler>() };
    // SAFETY: the word is the thread's own.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above. The interrupted code may be about to read it.
    let kept = unsafe { errno.read() };
    // SAFETY: the context is that of the handler that waits for this.
    let prepare = |vcpu: &&'static Vcpu| unsafe { vcpu.prepare_from(entry.context) }.is_ok();
    entry.vcpu = entry.machine.own_or_take().ok().filter(prepare);
    // SAFETY: as above.
    unsafe { errno.write(kept) };
}

/// Prepares [`free_at_thread_end`].
fn make_key() -> Result<()> {
    if AT_THREAD_END.get().is_none() {
        let mut key = 0;
        // SAFETY: the C library writes the key. The destructor gets values of this key.
        let failed = unsafe { libc::pthread_key_create(&raw mut key, Some(thread_ends)) };
        if failed != 0 {
            let source = std::io::Error::from_raw_os_error(failed);
            return Err(Error::System { operation: "having the machine notice the ends of threads", source });
        }
        let _ = AT_THREAD_END.set(key);
    }
    Ok(())
}

/// Has the calling thread's virtual processor be free when the thread ends, outside; the monitor sees the end of one that is inside.
fn free_at_thread_end(vcpu: &'static Vcpu) {
    if let Some(key) = AT_THREAD_END.get() {
        // SAFETY: the key exists. A thread for which this fails keeps its processor for good if it ends outside.
        unsafe { libc::pthread_setspecific(*key, ptr::from_ref(vcpu).cast()) };
    }
}

/// Called with a thread's virtual processor, amid other destructors of the thread's, some of which may enter.
unsafe extern "C" fn thread_ends(vcpu: *mut libc::c_void) {
    // SAFETY: the value that `free_at_thread_end` has set; processors are never freed.
    let vcpu = unsafe { &*vcpu.cast_const().cast::<Vcpu>() };
    if !vcpu.machine().is_of_process() {
        return;
    }
    if is_inside() {
        // The next round of destructors may find it outside.
        return free_at_thread_end(vcpu);
    }
    // SAFETY: the processor is the calling thread's, which is outside and ends.
    signals::blocked(|| unsafe { vcpu.end_hold() });
    OWN.set(None);
    vcpu.block().state.store(state::FREE, Ordering::Release);
}

fn of_leaf(cpuid: &CpuId, function: u32, index: u32) -> Option<&kvm_cpuid_entry2> {
    cpuid.as_slice().iter().find(|leaf| (leaf.function, leaf.index) == (function, index))
}

/// The extended states that both the process and a guest may have, but protection keys, and those that need more memory than KVM hands out.
fn extended_states(cpuid: &CpuId) -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: reads a register, which every processor has that runs KVM with extended states.
    unsafe { asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") high, options(nomem, nostack, preserves_flags)) };
    let supported = of_leaf(cpuid, CPUID_EXTENDED_STATES, 0)
        .map_or(LEGACY_STATES, |leaf| u64::from(leaf.eax) | u64::from(leaf.edx) << 32);
    let mut states = (u64::from(low) | u64::from(high) << 32) & supported & !PROTECTION_KEYS;
    for state in 2..64 {
        let fits = of_leaf(cpuid, CPUID_EXTENDED_STATES, state)
            .is_some_and(|leaf| (leaf.ebx + leaf.eax) as usize <= EXTENDED_BYTES);
        if !fits {
            states &= !(1 << state);
        }
    }
    states
}

/// How long these extended states are, in the form of XSAVE.
fn bytes_of(cpuid: &CpuId, states: u64) -> usize {
    let end = |state: &u32| of_leaf(cpuid, CPUID_EXTENDED_STATES, *state).map(|leaf| (leaf.ebx + leaf.eax) as usize);
    let present = (2..64).filter(|state| states & 1 << state != 0);
    present.filter_map(|state| end(&state)).max().unwrap_or(BASIC_BYTES)
}
