//! A pool of page frames for managed memory.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::block::state;
use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::memory::{GIB, LARGE_PAGE_BYTES, Memory, PAGE_BYTES};
use crate::raw;

/// KVM's extension that maps memory of a guest before it is touched, and its call.
const PRE_FAULT_EXTENSION: u64 = kvm_bindings::KVM_CAP_PRE_FAULT_MEMORY as u64;
const PRE_FAULT: u64 = 0xc040_aed5;

/// A frame of a pool, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame(pub(crate) u32);

/// Frames of memory, which lie at addresses of the process as well: inside and outside the machine, mapped or not.
pub struct FramePool {
    memory: Memory,
    /// Guest-physical addresses of its gigabytes.
    gigabytes: Vec<u64>,
    /// Of each free frame, the next free one: its number and 1, or 0 for none.
    next: Box<[AtomicU32]>,
    /// The first free one in the same way, and above it a count that makes every change another.
    first: AtomicU64,
}

impl FramePool {
    /// A pool of this many frames, all of them free. The first of them, `populated` frames, take their memory at once; and the machine maps it where
    /// KVM can (Linux 6.11), so that no later touch takes the host's time. Others take theirs when they are first touched. A frame that was
    /// in use comes again before a fresh one.
    ///
    /// # Errors
    ///
    /// Those of the host, and of the machine.
    pub fn new(machine: &'static Machine, frames: u32, populated: u32) -> Result<FramePool> {
        let len = (frames as usize * PAGE_BYTES).next_multiple_of(LARGE_PAGE_BYTES);
        let memory = Memory::reserve_shared(len, GIB)?;
        let addresses = memory.base()..memory.base() + len;
        machine.space.add_gigabytes_of(addresses.clone())?;
        let of_gigabyte = |address| machine.space.physical(address).ok_or(Error::NotManaged { address });
        let gigabytes = addresses.step_by(GIB).map(of_gigabyte).collect::<Result<Vec<_>>>()?;
        memory.populate(populated as usize * PAGE_BYTES)?;
        let pool = FramePool {
            memory,
            gigabytes,
            next: (1..=frames).map(|next| AtomicU32::new(if next == frames { 0 } else { next + 1 })).collect(),
            first: AtomicU64::new(u64::from(frames > 0)),
        };
        pool.pre_fault(machine, populated as usize * PAGE_BYTES)?;
        Ok(pool)
    }

    /// Has KVM map the pool for the machine. Where it cannot, that happens as frames are touched.
    fn pre_fault(&self, machine: &'static Machine, len: usize) -> Result<()> {
        if machine.vm.check_extension_raw(PRE_FAULT_EXTENSION) <= 0 {
            return Ok(());
        }
        // A processor that nobody runs: a call of one that runs would wait for it.
        let vcpu = machine.take()?;
        for (index, physical) in self.gigabytes.iter().enumerate().take(len.div_ceil(GIB)) {
            let mut range = kvm_bindings::kvm_pre_fault_memory {
                gpa: *physical,
                size: GIB.min(len - index * GIB) as u64,
                ..Default::default()
            };
            // The call counts the range down as it goes.
            while range.size > 0 {
                // SAFETY: KVM reads and writes the structure. It maps memory that the machine has.
                let answer = unsafe { raw::ioctl(vcpu.block().descriptor, PRE_FAULT, &raw mut range as u64) };
                match raw::error_of(answer) {
                    None | Some(libc::EINTR | libc::EAGAIN) => {}
                    // Not with the page tables that this host has for its guests.
                    Some(_) => break,
                }
            }
        }
        vcpu.block().state.store(state::FREE, Ordering::Release);
        Ok(())
    }

    /// A free frame, with whatever it held before.
    pub fn take(&self) -> Option<Frame> {
        let mut seen = self.first.load(Ordering::Acquire);
        loop {
            let number = (seen as u32).checked_sub(1)?;
            let next = u64::from(self.next[number as usize].load(Ordering::Relaxed));
            let new = (seen >> 32).wrapping_add(1) << 32 | next;
            match self.first.compare_exchange_weak(seen, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(Frame(number)),
                Err(now) => seen = now,
            }
        }
    }

    /// Makes a taken frame free again, which no page has any more.
    pub fn give_back(&self, frame: Frame) {
        let mut seen = self.first.load(Ordering::Relaxed);
        loop {
            self.next[frame.0 as usize].store(seen as u32, Ordering::Relaxed);
            let new = (seen >> 32).wrapping_add(1) << 32 | u64::from(frame.0 + 1);
            match self.first.compare_exchange_weak(seen, new, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }

    /// How many frames it has, free or not.
    pub fn len(&self) -> usize {
        self.next.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.next.is_empty()
    }

    /// The frame's memory, one page.
    pub fn address(&self, frame: Frame) -> *mut u8 {
        (self.memory.base() + frame.0 as usize * PAGE_BYTES) as *mut u8
    }

    /// The frame's address in the machine.
    pub(crate) fn physical(&self, frame: Frame) -> u64 {
        let offset = frame.0 as usize * PAGE_BYTES;
        self.gigabytes[offset / GIB] + (offset % GIB) as u64
    }

    /// The other way round.
    pub(crate) fn frame_at(&self, physical: u64) -> Option<Frame> {
        let index = self.gigabytes.iter().position(|start| (*start..start + GIB as u64).contains(&physical))?;
        let offset = index * GIB + (physical - self.gigabytes[index]) as usize;
        Some(Frame((offset / PAGE_BYTES) as u32))
    }
}
