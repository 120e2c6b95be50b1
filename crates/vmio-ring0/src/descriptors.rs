//! Segments, the task state and the gates of traps. The selectors are Linux's, so that a program that looks sees those that it knows, with the
//! ring as the only difference.

use std::mem::offset_of;

use kvm_bindings::{kvm_dtable, kvm_segment};

use crate::level::Level;
use crate::stubs;

/// Code and data of ring 0.
const CODE_0: u16 = 0x10;
const DATA_0: u16 = 0x18;
/// SYSRET's data is 8 after it, code 16.
const SYSRET_BASE: u16 = 0x23;
/// Code and data of ring 3.
const CODE_3: u16 = 0x33;
const DATA_3: u16 = 0x2b;
const TASK: u16 = 0x40;
/// Where the vDSO's getcpu finds the number of the core, as the limit of a segment.
const CORE_NUMBER: u16 = 0x78;

/// Descriptors, 8 bytes each; those from `TASK` on are of system segments.
const FLAT_CODE: u64 = 0x00a0_9b00_0000_0000;
const FLAT_DATA: u64 = 0x00c0_9300_0000_0000;
const RING_3: u64 = 3 << 45;
const READABLE_DATA: u64 = 0x0040_f100_0000_0000;
const TASK_BUSY: u64 = 0x0000_8b00_0000_0000;

/// The interrupt stack of traps.
pub(crate) const TRAP_STACK: u8 = 1;
/// That of shootdowns, which may come while a trap is being handled.
pub(crate) const SHOOTDOWN_STACK: u8 = 2;

/// Sent to a virtual processor whose TLB holds what is no longer in the page tables.
pub(crate) const SHOOTDOWN_VECTOR: u8 = 0xf0;
/// A local interrupt controller answers it when an interrupt is gone by the time it is asked.
pub(crate) const SPURIOUS_VECTOR: u8 = 0xff;
/// How a program of 32 bits calls the kernel.
const CALL_32_VECTOR: u8 = 0x80;

/// The registers of segments that a thread has in the machine.
pub(crate) struct Segments {
    pub(crate) code: kvm_segment,
    pub(crate) data: kvm_segment,
}

impl Segments {
    /// Flat ones.
    pub(crate) fn of(level: Level) -> Segments {
        let (code, data, ring) = match level {
            Level::Ring0 => (CODE_0, DATA_0, 0),
            Level::Ring3 => (CODE_3, DATA_3, 3),
        };
        let flat = kvm_segment { limit: u32::MAX, present: 1, dpl: ring, s: 1, g: 1, ..Default::default() };
        Segments {
            code: kvm_segment { selector: code, type_: 0xb, l: 1, ..flat },
            data: kvm_segment { selector: data, type_: 0x3, db: 1, ..flat },
        }
    }
}

/// The selector of ring 0's code, by which code tells where it runs.
pub(crate) const RING0_CODE: u16 = CODE_0;

/// The model-specific register that says which selectors SYSCALL and SYSRET load.
pub(crate) const STAR: u64 = (SYSRET_BASE as u64) << 48 | (CODE_0 as u64) << 32;

/// The task state of one virtual processor: of all that it could hold, the stacks for traps.
#[repr(C, packed(4))]
#[derive(Clone, Copy)]
pub(crate) struct TaskState {
    reserved: u32,
    ring_stacks: [u64; 3],
    reserved_too: u64,
    trap_stacks: [u64; 7],
    reserved_as_well: [u16; 5],
    ports_at: u16,
    /// A bit for each port that ring 3 may not use, and one byte of ones behind them.
    ports: [u8; PORT_BYTES + 1],
    padding: [u8; 3],
}

/// Of the bits for the first 256 ports.
const PORT_BYTES: usize = 32;

const _: () = assert!(size_of::<TaskState>() == 104 + PORT_BYTES + 4);

impl TaskState {
    /// With the tops of the two stacks.
    pub(crate) fn new(trap_stack: u64, shootdown_stack: u64) -> TaskState {
        let mut trap_stacks = [0; 7];
        trap_stacks[usize::from(TRAP_STACK) - 1] = trap_stack;
        trap_stacks[usize::from(SHOOTDOWN_STACK) - 1] = shootdown_stack;
        let mut ports = [u8::MAX; PORT_BYTES + 1];
        // Where ring 0 is emulated, the stub of system calls runs in ring 3.
        ports[usize::from(stubs::SYSTEM_CALL_PORT) / 8] = !(1 << (stubs::SYSTEM_CALL_PORT % 8));
        TaskState {
            reserved: 0,
            ring_stacks: [0; 3],
            reserved_too: 0,
            trap_stacks,
            reserved_as_well: [0; 5],
            ports_at: offset_of!(TaskState, ports) as u16,
            ports,
            padding: [0; 3],
        }
    }
}

/// The descriptors of one virtual processor.
#[repr(C, align(64))]
pub(crate) struct Descriptors([u64; 16]);

impl Descriptors {
    /// With a task state at this address.
    pub(crate) fn new(task: u64) -> Descriptors {
        let mut table = [0; 16];
        table[usize::from(CODE_0) / 8] = FLAT_CODE | 0xf_0000_0000_ffff;
        table[usize::from(DATA_0) / 8] = FLAT_DATA | 0xf_0000_0000_ffff;
        table[usize::from(CODE_3) / 8] = FLAT_CODE | RING_3 | 0xf_0000_0000_ffff;
        table[usize::from(DATA_3) / 8] = FLAT_DATA | RING_3 | 0xf_0000_0000_ffff;
        let limit = size_of::<TaskState>() as u64 - 1;
        table[usize::from(TASK) / 8] = TASK_BUSY | limit | (task & 0xff_ffff) << 16 | (task >> 24 & 0xff) << 56;
        table[usize::from(TASK) / 8 + 1] = task >> 32;
        table[usize::from(CORE_NUMBER) / 8] = READABLE_DATA;
        Descriptors(table)
    }

    /// Says which core the thread runs on, as a hint for the vDSO.
    pub(crate) fn set_core(&mut self, core: u32) {
        let limit = u64::from(core & 0xfff);
        self.0[usize::from(CORE_NUMBER) / 8] = READABLE_DATA | limit;
    }

    /// The register that points to it.
    pub(crate) fn register(&self) -> kvm_dtable {
        let limit = size_of::<Descriptors>() as u16 - 1;
        kvm_dtable { base: &raw const *self as u64, limit, ..Default::default() }
    }

    /// The register of the task.
    pub(crate) fn task_register(task: u64) -> kvm_segment {
        let limit = size_of::<TaskState>() as u32 - 1;
        kvm_segment { base: task, limit, selector: TASK, type_: 0xb, present: 1, ..Default::default() }
    }
}

/// A gate of a trap.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Gate {
    offset_low: u16,
    selector: u16,
    stack: u8,
    kind: u8,
    offset_middle: u16,
    offset_high: u32,
    reserved: u32,
}

impl Gate {
    /// To code of ring 0, with interrupts off from then on.
    fn to(address: usize, stack: u8, from_ring: u8) -> Gate {
        const PRESENT_INTERRUPT_GATE: u8 = 0x8e;
        Gate {
            offset_low: address as u16,
            selector: CODE_0,
            stack,
            kind: PRESENT_INTERRUPT_GATE | from_ring << 5,
            offset_middle: (address >> 16) as u16,
            offset_high: (address >> 32) as u32,
            reserved: 0,
        }
    }
}

/// The gates of all vectors, for all virtual processors.
#[repr(C, align(4096))]
pub(crate) struct Gates([Gate; 256]);

impl Gates {
    /// Gates of the processor's traps and of what this crate sends; other vectors are general protection faults.
    pub(crate) fn new(level: Level) -> Gates {
        /// INT3 and INTO, which ring 3 may execute.
        const SOFTWARE: [usize; 2] = [3, 4];
        let mut gates = [Gate::default(); 256];
        for (vector, gate) in gates.iter_mut().enumerate().take(stubs::TRAPS) {
            let ring = if SOFTWARE.contains(&vector) { 3 } else { 0 };
            *gate = Gate::to(stubs::of_trap(vector), TRAP_STACK, ring);
        }
        if level == Level::Ring0 {
            gates[stubs::PAGE_FAULT as usize] = Gate::to(stubs::of_page_fault(), TRAP_STACK, 0);
        }
        gates[usize::from(CALL_32_VECTOR)] = Gate::to(stubs::of_32_bit_call(), TRAP_STACK, 3);
        gates[usize::from(SHOOTDOWN_VECTOR)] = Gate::to(stubs::of_shootdown(), SHOOTDOWN_STACK, 0);
        gates[usize::from(SPURIOUS_VECTOR)] = Gate::to(stubs::of_spurious(), SHOOTDOWN_STACK, 0);
        Gates(gates)
    }

    /// The register that points to it.
    pub(crate) fn register(&self) -> kvm_dtable {
        kvm_dtable { base: &raw const *self as u64, limit: size_of::<Gates>() as u16 - 1, ..Default::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_laid_out_as_the_processor_reads_them() {
        assert_eq!(offset_of!(TaskState, trap_stacks), 0x24);
        assert_eq!(offset_of!(TaskState, ports_at), 0x66);
        let table = Descriptors::new(0x1234_5678_9abc_def0);
        assert_eq!(table.0[8..10], [0x9a00_8bbc_def0_008b, 0x1234_5678]);
        assert_eq!(table.0[2], 0x00af_9b00_0000_ffff);
        assert_eq!(table.0[5], 0x00cf_f300_0000_ffff);
        let gate = Gate::to(0x1122_3344_5566_7788, 1, 3);
        assert_eq!((gate.offset_low, gate.offset_middle, gate.offset_high), (0x7788, 0x5566, 0x1122_3344));
        assert_eq!((gate.stack, gate.kind), (1, 0xee));
    }
}
