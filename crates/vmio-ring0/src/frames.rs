//! A pool of page frames for managed memory.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::block::state;
use crate::error::{Error, Result};
use crate::exposures::Exposures;
use crate::machine::Machine;
use crate::memory::{GIB, LARGE_PAGE_BYTES, Memory, PAGE_BYTES};
use crate::raw;

/// KVM's extension that maps memory of a guest before it is touched, and its call.
const PRE_FAULT_EXTENSION: u64 = kvm_bindings::KVM_CAP_PRE_FAULT_MEMORY as u64;
const PRE_FAULT: u64 = 0xc040_aed5;

/// A frame of a pool, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame(pub(crate) u32);

impl Frame {
    /// Its number in the pool.
    pub fn number(self) -> u32 {
        self.0
    }
}

/// Frames of memory, which lie at addresses of the process as well: inside and outside the machine, mapped or not.
pub struct FramePool {
    memory: Memory,
    /// The same frames, where nobody can store to them.
    for_reading: Memory,
    /// Guest-physical addresses of its gigabytes.
    gigabytes: Vec<u64>,
    /// Of each frame in a list, the next one: its number and 1, or 0 for none.
    next: Memory,
    frames: u32,
    /// Frames that were in use and have memory.
    filled: List,
    /// Frames that were in use and have none.
    empty: List,
    /// The first frame that was never in use, and the first of these without memory.
    fresh: AtomicU32,
    populated: u32,
    /// How many frames have memory, free or not, and how many may keep theirs when they are free again.
    with_memory: AtomicU32,
    limit: AtomicU32,
    exposures: Exposures,
}

/// The first frame of a list as in [`FramePool::next`], and above it a count that makes every change another.
struct List(AtomicU64);

impl List {
    fn push(&self, next: &[AtomicU32], frame: Frame) {
        let mut seen = self.0.load(Ordering::Relaxed);
        loop {
            next[frame.0 as usize].store(seen as u32, Ordering::Relaxed);
            let new = (seen >> 32).wrapping_add(1) << 32 | u64::from(frame.0 + 1);
            match self.0.compare_exchange_weak(seen, new, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }

    fn pop(&self, next: &[AtomicU32]) -> Option<Frame> {
        let mut seen = self.0.load(Ordering::Acquire);
        loop {
            let number = (seen as u32).checked_sub(1)?;
            let second = u64::from(next[number as usize].load(Ordering::Relaxed));
            let new = (seen >> 32).wrapping_add(1) << 32 | second;
            match self.0.compare_exchange_weak(seen, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(Frame(number)),
                Err(now) => seen = now,
            }
        }
    }
}

impl FramePool {
    /// A pool of this many frames, all of them free. The first of them, `populated` frames, take their memory at once; and the machine maps it where
    /// KVM can (Linux 6.11), so that no later touch takes the host's time. Others take theirs when they are first touched. A frame that has
    /// memory comes before one that has none.
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
            for_reading: memory.again_for_reading()?,
            memory,
            gigabytes,
            // Of a pool as large as the host's memory few frames may ever be used.
            next: Memory::reserve((frames as usize * 4).next_multiple_of(PAGE_BYTES).max(PAGE_BYTES), PAGE_BYTES)?,
            frames,
            filled: List(AtomicU64::new(0)),
            empty: List(AtomicU64::new(0)),
            fresh: AtomicU32::new(0),
            populated,
            with_memory: AtomicU32::new(populated),
            limit: AtomicU32::new(frames),
            exposures: Exposures::none(frames)?,
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
        if let Some(frame) = self.filled.pop(self.next()) {
            return Some(frame);
        }
        let (frame, has_memory) = match self.take_fresh(self.frames) {
            Some(frame) => (frame, frame.0 < self.populated),
            None => (self.empty.pop(self.next())?, false),
        };
        if !has_memory {
            self.with_memory.fetch_add(1, Ordering::Relaxed);
        }
        Some(frame)
    }

    /// A frame below `end` that was never in use.
    fn take_fresh(&self, end: u32) -> Option<Frame> {
        let next = |fresh: u32| (fresh < end).then(|| fresh + 1);
        self.fresh.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).ok().map(Frame)
    }

    fn next(&self) -> &[AtomicU32] {
        // SAFETY: the memory has a word for each frame, zeros at first, and nothing else.
        unsafe { std::slice::from_raw_parts(self.next.base() as *const AtomicU32, self.frames as usize) }
    }

    /// Makes a taken frame free again, which no page has any more: at once, or when its last exposure ends ([`Pages::let_go`](crate::Pages::let_go)).
    pub fn give_back(&self, frame: Frame) {
        if !self.exposures.keep(frame) {
            self.make_free(frame);
        }
    }

    /// Makes a frame free that neither a page nor a system call has.
    pub(crate) fn make_free(&self, frame: Frame) {
        if self.with_memory.load(Ordering::Relaxed) > self.limit.load(Ordering::Relaxed) {
            self.empty_frame(frame);
        } else {
            self.filled.push(self.next(), frame);
        }
    }

    /// Limits how many frames have memory. The host gets back the memory of free frames beyond that, now and as they become free.
    pub fn set_limit(&self, frames: u32) {
        self.limit.store(frames, Ordering::Relaxed);
        while self.with_memory.load(Ordering::Relaxed) > frames
            && let Some(frame) = self.filled.pop(self.next()).or_else(|| self.take_fresh(self.populated))
        {
            if !self.empty_frame(frame) {
                break;
            }
        }
    }

    /// Gives the host the memory of a frame that nobody has. The frame is free afterwards, also if the host refuses.
    fn empty_frame(&self, frame: Frame) -> bool {
        let arguments = [self.address(frame) as u64, PAGE_BYTES as u64, libc::MADV_REMOVE as u64, 0, 0, 0];
        // SAFETY: the page is the pool's, and its contents are of no use to anybody.
        let removed = unsafe { raw::call(libc::SYS_madvise as u64, arguments) };
        let is_removed = raw::error_of(removed).is_none();
        if is_removed {
            self.with_memory.fetch_sub(1, Ordering::Relaxed);
        }
        let list = if is_removed { &self.empty } else { &self.filled };
        list.push(self.next(), frame);
        is_removed
    }

    /// How many frames it has, free or not.
    pub fn len(&self) -> usize {
        self.frames as usize
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.frames == 0
    }

    /// The frame of that number ([`Frame::number`]).
    pub fn frame(&self, number: u32) -> Option<Frame> {
        (number < self.frames).then_some(Frame(number))
    }

    /// The frame's memory, one page.
    pub fn address(&self, frame: Frame) -> *mut u8 {
        (self.memory.base() + frame.0 as usize * PAGE_BYTES) as *mut u8
    }

    /// The same memory, where nobody can store to it.
    pub(crate) fn address_for_reading(&self, frame: Frame) -> usize {
        self.for_reading.base() + frame.0 as usize * PAGE_BYTES
    }

    /// How often its frames are exposed.
    pub(crate) fn exposures(&self) -> &Exposures {
        &self.exposures
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
