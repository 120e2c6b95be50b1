//! A pool of page frames for managed memory. It grows as frames are taken: neither a part of it that nobody needs has memory, nor has the machine
//! a gigabyte of it that is not in use.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use vmio_core::free_frames::{self, FreeFrames, List};

use crate::block::state;
use crate::cores;
use crate::error::Result;
use crate::exposures::Exposures;
use crate::fresh_frames::{Part, RUN};
use crate::machine::Machine;
use crate::memory::{GIB, LARGE_PAGE_BYTES, Memory, PAGE_BYTES, Words};
use crate::raw;
use crate::vcpu::Vcpu;

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
    machine: &'static Machine,
    memory: Memory,
    /// The same frames, where nobody can store to them.
    for_reading: Memory,
    /// Guest-physical addresses of its gigabytes, 0 for those that are not in the machine yet.
    gigabytes: Vec<AtomicU64>,
    frames: u32,
    /// Those that are free, were in use and have memory.
    free: FreeFrames<Words>,
    /// Those that were in use and have none: the next touch takes the host's time, so it does not matter that all cores meet here.
    empty: List,
    /// Those that were never in use, by node.
    parts: Box<[Part]>,
    /// How many frames have memory, free or not, and how many may have.
    with_memory: AtomicU32,
    limit: AtomicU32,
    exposures: Exposures,
    /// Which nobody runs, for KVM to map the pool. None where it cannot.
    mapper: Option<&'static Vcpu>,
}

impl FramePool {
    /// A pool of this many frames, all of them free, of which `limit` may have memory. They take it some at a time, as frames are taken; and the
    /// machine maps it then where KVM can (Linux 6.11), so that no later touch takes the host's time.
    ///
    /// # Errors
    ///
    /// Those of the host, and of the machine.
    pub fn new(machine: &'static Machine, frames: u32, limit: u32) -> Result<FramePool> {
        let len = (frames as usize * PAGE_BYTES).next_multiple_of(LARGE_PAGE_BYTES);
        let memory = Memory::reserve_shared(len, GIB)?;
        memory.prefer_huge_pages();
        let can_map = machine.vm.check_extension_raw(PRE_FAULT_EXTENSION) > 0;
        // Of a pool as large as the host's memory few frames may ever be used, and so few words.
        let free = FreeFrames::new(Words::zeros(frames as usize)?, &cores::nodes());
        Ok(FramePool {
            machine,
            for_reading: memory.again_for_reading()?,
            memory,
            gigabytes: (0..len.div_ceil(GIB)).map(|_| AtomicU64::new(0)).collect(),
            frames,
            empty: List::default(),
            parts: Part::all(frames, free.nodes()),
            free,
            with_memory: AtomicU32::new(0),
            limit: AtomicU32::new(limit),
            exposures: Exposures::none(frames)?,
            mapper: if can_map { Some(machine.take()?) } else { None },
        })
    }

    /// A free frame, with whatever it held before. None if there is none, or the machine has no address for it.
    pub fn take(&self) -> Option<Frame> {
        let core = cores::current();
        self.free.take(core).map(Frame).or_else(|| self.take_elsewhere(core))
    }

    /// Looks for a frame further and further from the core.
    #[cold]
    fn take_elsewhere(&self, core: usize) -> Option<Frame> {
        let look = || {
            let mut nodes = self.nodes_from(core);
            let own = nodes.next()?;
            self.take_at(own, core)
                // Memory of the node is worth more than what is free at others.
                .or_else(|| (self.parts.len() > 1 && self.has_room_for_run()).then(|| self.take_grown(own))?)
                .or_else(|| nodes.find_map(|node| self.take_at(node, core)))
                // A frame that a thread is about to move, before the host makes memory for another beyond the limit.
                .or_else(|| self.is_at_limit().then(|| self.free.take_anywhere().map(Frame))?)
                .or_else(|| self.take_empty())
                .or_else(|| self.nodes_from(core).find_map(|node| self.take_grown(node)))
                .or_else(|| self.free.take_anywhere().map(Frame))
        };
        free_frames::search(|| self.changes(), look)
    }

    /// All nodes, the core's first.
    fn nodes_from(&self, core: usize) -> impl Iterator<Item = usize> + use<> {
        let own = self.free.node_of(core);
        (own..self.parts.len()).chain(0..own)
    }

    /// A free frame of a node that has memory.
    fn take_at(&self, node: usize, core: usize) -> Option<Frame> {
        self.parts[node].take().or_else(|| self.free.take_at(node, core)).map(Frame)
    }

    /// A free frame without memory, which it gets at the first touch.
    fn take_empty(&self) -> Option<Frame> {
        let frame = self.empty.pop(self.free.words())?;
        self.with_memory.fetch_add(1, Ordering::Relaxed);
        Some(Frame(frame))
    }

    /// A frame of a node that was never in use, for which the pool grows if it can.
    fn take_grown(&self, node: usize) -> Option<Frame> {
        loop {
            if let Some(frame) = self.parts[node].take() {
                return Some(Frame(frame));
            }
            if !self.grow(&self.parts[node]) {
                return None;
            }
        }
    }

    /// Counts what makes a frame free, and never backwards.
    fn changes(&self) -> u64 {
        let grown: u64 = self.parts.iter().map(|part| u64::from(part.grown())).sum();
        self.free.changes().wrapping_add(self.empty.changes()).wrapping_add(grown)
    }

    fn is_at_limit(&self) -> bool {
        self.with_memory.load(Ordering::Relaxed) >= self.limit.load(Ordering::Relaxed)
    }

    fn has_room_for_run(&self) -> bool {
        self.with_memory.load(Ordering::Relaxed).saturating_add(RUN) <= self.limit.load(Ordering::Relaxed)
    }

    /// Adds frames to those that are free; false if there are none, or the machine has no address for them. Frames that have no memory yet take it at
    /// the first touch: so another thread may use them before this returns.
    fn grow(&self, part: &Part) -> bool {
        let Some((start, most)) = part.next().filter(|(start, _)| self.has_gigabyte_of(Frame(*start))) else {
            return false;
        };
        let mut count = 0;
        let _ = self.with_memory.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |before| {
            // One in any case: the caller needs it.
            count = most.min(self.limit.load(Ordering::Relaxed).saturating_sub(before).max(1));
            Some(before + count)
        });
        if !part.grow(start, count) {
            self.with_memory.fetch_sub(count, Ordering::Relaxed);
        } else if count > 1 {
            self.populate(Frame(start), count);
        }
        true
    }

    /// Whether the machine has the gigabyte of a frame, after bringing it in if need be.
    fn has_gigabyte_of(&self, frame: Frame) -> bool {
        let place = &self.gigabytes[frame.0 as usize * PAGE_BYTES / GIB];
        if place.load(Ordering::Acquire) == 0 {
            let address = self.address(frame) as usize / GIB * GIB;
            if self.machine.space.add_gigabyte_of(address).is_err() {
                return false;
            }
            place.store(self.machine.space.physical(address).unwrap_or(0), Ordering::Release);
        }
        place.load(Ordering::Acquire) != 0
    }

    /// Gives frames memory, which the machine maps. Where either fails, that happens as frames are touched. Frames that others have used and emptied
    /// meanwhile get memory that nobody counts, until they are used again: a run's at most for each thread that is stopped here.
    fn populate(&self, first: Frame, count: u32) {
        let len = count as usize * PAGE_BYTES;
        let arguments = [self.address(first) as u64, len as u64, libc::MADV_POPULATE_WRITE as u64, 0, 0, 0];
        // SAFETY: the pages are the pool's; the advice changes no byte of them.
        let populated = unsafe { raw::call(libc::SYS_madvise as u64, arguments) };
        let Some(mapper) = self.mapper.filter(|_| raw::error_of(populated).is_none()) else { return };
        let mut range =
            kvm_bindings::kvm_pre_fault_memory { gpa: self.physical(first), size: len as u64, ..Default::default() };
        // The call counts the range down as it goes.
        while range.size > 0 {
            // SAFETY: KVM reads and writes the structure. It maps memory that the machine has.
            let answer = unsafe { raw::ioctl(mapper.block().descriptor, PRE_FAULT, &raw mut range as u64) };
            match raw::error_of(answer) {
                None | Some(libc::EINTR | libc::EAGAIN) => {}
                // Not with the page tables that this host has for its guests.
                Some(_) => break,
            }
        }
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
            self.put(frame);
        }
    }

    /// Puts a frame that has memory to those that are free: at the caller's core, or at one of the node that the frame belongs to. Where the caller's node
    /// gets no more memory, frames of others stay with it: else it would have to fetch each from there again.
    fn put(&self, frame: Frame) {
        let core = cores::current();
        let core = if self.parts.len() > 1 && self.has_room_for_run() { self.core_near(frame, core) } else { core };
        self.free.put(core, frame.0);
    }

    /// This core, or one of the node that the frame belongs to.
    #[cold]
    fn core_near(&self, frame: Frame, core: usize) -> usize {
        self.free.core_at(core, Part::of(&self.parts, frame.0))
    }

    /// Limits how many frames have memory. The host gets back the memory of free frames beyond that, now and as they become free.
    pub fn set_limit(&self, frames: u32) {
        self.limit.store(frames, Ordering::Relaxed);
        let core = cores::current();
        let filled = || {
            let of_nodes = || self.nodes_from(core).find_map(|node| self.take_at(node, core));
            of_nodes().or_else(|| self.free.take_anywhere().map(Frame))
        };
        while self.with_memory.load(Ordering::Relaxed) > frames
            && let Some(frame) = free_frames::search(|| self.changes(), filled)
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
            self.empty.push(self.free.words(), frame.0);
        } else {
            self.put(frame);
        }
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

    /// The frame's address in the machine, of a frame that was taken.
    pub(crate) fn physical(&self, frame: Frame) -> u64 {
        let offset = frame.0 as usize * PAGE_BYTES;
        self.gigabytes[offset / GIB].load(Ordering::Acquire) + (offset % GIB) as u64
    }

    /// The other way round.
    pub(crate) fn frame_at(&self, physical: u64) -> Option<Frame> {
        let has = |start: u64| start != 0 && (start..start + GIB as u64).contains(&physical);
        let starts = || self.gigabytes.iter().map(|start| start.load(Ordering::Acquire));
        let (index, start) = (0..).zip(starts()).find(|(_, start)| has(*start))?;
        let offset = index * GIB + (physical - start) as usize;
        Some(Frame((offset / PAGE_BYTES) as u32))
    }
}

impl Drop for FramePool {
    fn drop(&mut self) {
        if let Some(mapper) = self.mapper.filter(|_| self.machine.is_of_process()) {
            mapper.block().state.store(state::FREE, Ordering::Release);
        }
    }
}
