//! Rings for commands, with several commands under way at a time.

use std::cell::UnsafeCell;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::slice;

use io_uring::cqueue::Entry32;
use io_uring::squeue::Entry128;
use io_uring::types::Fixed;
use io_uring::{IoUring, opcode};
use rustix::io::Errno;
use vmio_core::futex_lock::FutexLock;

use super::buffers::Buffers;
use super::{Command, Geometry, Memory, refused, transfer};
use crate::sys::PAGE_BYTES;
use crate::sys::cpu;
use crate::sys::fork::{Generation, OfProcess};
use crate::sys::reservation::Reservation;
use crate::sys::signal::SignalsBlocked;

/// `_IOWR('N', 0x80, struct nvme_uring_cmd)`
const NVME_URING_CMD_IO: u32 = 0xC048_4E80;
/// The most commands that a ring has under way.
const COMMANDS_MAX: usize = 16;

/// How many commands the rings of a device have completed. Commands by ioctl do not count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Commands {
    /// Commands on memory registered with the ring: a cache's own buffers, while a mapping uses the device.
    pub registered: u64,
    /// Commands on other memory. The kernel looked up and held its pages for each of them.
    pub unregistered: u64,
}

/// A ring for one user at a time, in the trap path too. It has several commands under way, and waits for them together.
struct CommandRing {
    uring: OfProcess<IoUring<Entry128, Entry32>>,
    /// Memory whose pages the kernel need not look up for each command.
    registered: Buffers,
    /// The commands that have succeeded.
    done: Commands,
}

impl CommandRing {
    /// Makes a ring for a device. With `polls` the end of a command interrupts nobody: a waiting thread polls the
    /// device's queue, if its driver has queues for polling.
    fn new(device: BorrowedFd<'_>, polls: bool) -> io::Result<Self> {
        let mut builder = IoUring::<Entry128, Entry32>::builder();
        builder.dontfork();
        if polls {
            builder.setup_iopoll();
        }
        let uring = builder.build(COMMANDS_MAX as u32)?;
        uring.submitter().register_files(&[device.as_raw_fd()])?;
        Ok(CommandRing { uring: OfProcess::new(uring)?, registered: Buffers::default(), done: Commands::default() })
    }

    /// Registers buffers in place of the earlier ones.
    ///
    /// # Safety
    /// The addresses are of memory that stays what it is until others or none are registered.
    unsafe fn register(&mut self, buffers: Buffers) -> io::Result<()> {
        let uring = self.uring.get().ok_or(Errno::FAULT)?;
        if !std::mem::take(&mut self.registered).0.is_empty() {
            uring.submitter().unregister_buffers()?;
        }
        if !buffers.0.is_empty() {
            let vector =
                |buffer: &Range<usize>| libc::iovec { iov_base: buffer.start as *mut _, iov_len: buffer.len() };
            let vectors: Vec<_> = buffers.0.iter().map(vector).collect();
            // SAFETY: the caller vouches that the memory stays what it is. Commands are under way only while a transfer
            // waits for them.
            unsafe { uring.submitter().register_buffers(&vectors)? };
            self.registered = buffers;
        }
        Ok(())
    }

    /// The longest buffer whose parts commands may name; `None` if such commands do not reach the device. To find out,
    /// reads the first block into a buffer.
    fn registered_bytes_max(&mut self, geometry: &Geometry) -> Option<usize> {
        // Linux 6.1 counts all pages from the start of a command to the end of its buffer as the command's own. It
        // refuses more than the device takes at once, and no driver of Linux gives a device this many.
        [(256 * PAGE_BYTES, usize::MAX), (geometry.transfer_bytes, geometry.transfer_bytes)]
            .into_iter()
            .find(|&(bytes, _)| {
                let read = self.reads_into_registered(geometry, bytes);
                read.inspect_err(|error| tracing::debug!(%error, bytes, "no registered buffer for NVMe commands"))
                    .is_ok()
            })
            .map(|(_, most)| most)
    }

    fn reads_into_registered(&mut self, geometry: &Geometry, bytes: usize) -> io::Result<()> {
        let mut memory = Reservation::zeroed(bytes, PAGE_BYTES)?;
        memory.leave_out_on_fork()?;
        memory.small_pages_only()?;
        let addresses = memory.addresses();
        // SAFETY: the memory lives until it is unregistered.
        let registered = unsafe { self.register(Buffers::new(&[addresses], usize::MAX)) };
        // SAFETY: the memory is longer than a block, and nobody else uses it.
        let block = unsafe { slice::from_raw_parts_mut(memory.base(), geometry.block_bytes as usize) };
        let read = registered.and_then(|()| self.transfer(geometry, 0, &Memory::Into(block)));
        // SAFETY: this registers no memory.
        let gone = unsafe { self.register(Buffers::default()) };
        read.and(gone)
    }

    /// Like [`transfer`], but with up to 16 commands under way.
    fn transfer(&mut self, geometry: &Geometry, offset: u64, memory: &Memory<'_>) -> io::Result<()> {
        let CommandRing { uring, registered, done } = self;
        let uring = uring.get_mut().ok_or(Errno::FAULT)?;
        let mut commands = geometry.transfers(offset, memory, registered);
        let (mut under_way, mut outcome, mut begun) = (0, Ok(()), Commands::default());
        loop {
            while outcome.is_ok() && under_way < COMMANDS_MAX {
                let Some(command) = commands.next() else { break };
                // SAFETY: the memory is the caller's until we return, and by then all commands have ended.
                match unsafe { push(uring, registered, &command) } {
                    true => begun.registered += 1,
                    false => begun.unregistered += 1,
                }
                under_way += 1;
            }
            if under_way == 0 {
                if outcome.is_ok() {
                    done.registered += begun.registered;
                    done.unregistered += begun.unregistered;
                }
                return outcome;
            }
            if uring.submitter().submit_and_wait(1).is_err() {
                // The wait was interrupted, or the kernel is short of memory. Commands that have begun will end, and we
                // must see that.
                std::thread::yield_now();
            }
            for entry in uring.completion() {
                under_way -= 1;
                match entry.result() {
                    0 => {}
                    status if status > 0 => outcome = Err(refused()),
                    error => outcome = Err(io::Error::from_raw_os_error(-error)),
                }
            }
        }
    }
}

/// Queues a command. Returns whether its memory is registered.
///
/// # Safety
/// The memory that the command points to is the device's until the caller has seen the end of the command.
unsafe fn push(uring: &mut IoUring<Entry128, Entry32>, registered: &Buffers, command: &Command) -> bool {
    let (start, end) = (command.address as usize, command.address as usize + command.data_bytes as usize);
    let index = registered.find(start).filter(|(_, buffer)| end <= buffer.end).map(|(index, _)| index as u16);
    let mut bytes = [0_u8; 80];
    // SAFETY: a command is 72 bytes of integers, without padding.
    let command = unsafe { slice::from_raw_parts(std::ptr::from_ref(command).cast::<u8>(), size_of::<Command>()) };
    bytes[..command.len()].copy_from_slice(command);
    let entry = opcode::UringCmd80::new(Fixed(0), NVME_URING_CMD_IO).cmd(bytes).buf_index(index).build();
    // SAFETY: the caller vouches that the command's memory is the device's until its end. There is a free entry: no
    // more commands are under way than the ring was made for.
    let pushed = unsafe { uring.submission().push(&entry) };
    debug_assert!(pushed.is_ok());
    index.is_some()
}

/// A ring for each core. The thread that holds its lock has it.
pub(crate) struct CommandRings {
    slots: Box<[RingSlot]>,
    /// The longest buffer that can be registered as one; `None` if none can.
    registered_bytes_max: Option<usize>,
    /// A forked child does not have the rings' memory.
    generation: Generation,
}

struct RingSlot {
    lock: FutexLock,
    ring: UnsafeCell<CommandRing>,
}

// SAFETY: only the owner of the lock reaches the ring, which goes from thread to thread as a whole.
unsafe impl Sync for RingSlot {}

impl CommandRings {
    /// Makes rings for a device. Reads the first block, to find out whether commands reach the device through them.
    pub(crate) fn new(device: BorrowedFd<'_>, geometry: &Geometry, polls: bool) -> io::Result<Self> {
        let slot = |_| {
            let ring = UnsafeCell::new(CommandRing::new(device, polls)?);
            Ok(RingSlot { lock: FutexLock::default(), ring })
        };
        let generation = Generation::of_this_process()?;
        let mut slots = (0..cpu::count()).map(slot).collect::<io::Result<Box<[_]>>>()?;
        let mut registered_bytes_max = None;
        if let Some(slot) = slots.first_mut() {
            let mut block = vec![0_u8; geometry.block_bytes as usize];
            slot.ring.get_mut().transfer(geometry, 0, &Memory::Into(&mut block))?;
            registered_bytes_max = slot.ring.get_mut().registered_bytes_max(geometry);
        }
        Ok(CommandRings { slots, registered_bytes_max, generation })
    }

    /// Registers buffers with all rings, in place of the earlier ones: see [`crate::backing::Backing::prefer_buffers`].
    /// Not for the trap path.
    pub(crate) fn register_buffers(&self, buffers: &[Range<usize>]) {
        let Some(bytes_max) = self.registered_bytes_max.filter(|_| self.generation.is_current()) else { return };
        // Buffers count as locked memory for each ring. A buffer that does not fit the limit for all rings is
        // registered with none.
        for count in (0..=buffers.len()).rev() {
            match self.register_with_all(&buffers[..count], bytes_max) {
                Ok(()) => return,
                Err(error) => tracing::debug!(%error, count, "buffers are not registered with the NVMe device"),
            }
        }
    }

    fn register_with_all(&self, buffers: &[Range<usize>], bytes_max: usize) -> io::Result<()> {
        let _signals = SignalsBlocked::in_miss();
        self.slots.iter().try_for_each(|slot| {
            slot.lock.acquire();
            // SAFETY: by the lock nobody else has the ring. The memory belongs to the caller, who says when it goes.
            let registered = unsafe { (*slot.ring.get()).register(Buffers::new(buffers, bytes_max)) };
            slot.lock.release();
            registered
        })
    }

    /// The sum of the commands of all rings.
    pub(crate) fn done(&self) -> Commands {
        let mut all = Commands::default();
        if self.generation.is_current() {
            let _signals = SignalsBlocked::in_miss();
            for slot in &self.slots {
                slot.lock.acquire();
                // SAFETY: by the lock nobody else has the ring.
                let done = unsafe { (*slot.ring.get()).done };
                slot.lock.release();
                all.registered += done.registered;
                all.unregistered += done.unregistered;
            }
        }
        all
    }

    /// Like the function [`transfer`], through a ring. Falls back to that function if all rings are in use, since a
    /// signal handler may have interrupted the user of one: so nobody waits. Also does so if a command fails, since it
    /// may succeed when repeated.
    pub(crate) fn transfer(
        &self,
        device: BorrowedFd<'_>,
        geometry: &Geometry,
        offset: u64,
        memory: &Memory<'_>,
    ) -> io::Result<()> {
        let slots: &[RingSlot] = if self.generation.is_current() { &self.slots } else { &[] };
        let (before, after) = slots.split_at(cpu::current() % slots.len().max(1));
        if let Some(slot) = after.iter().chain(before).find(|slot| slot.lock.try_acquire()) {
            // SAFETY: by the lock nobody else has the ring.
            let outcome = unsafe { (*slot.ring.get()).transfer(geometry, offset, memory) };
            slot.lock.release();
            if outcome.is_ok() {
                return Ok(());
            }
        }
        transfer(device, geometry, offset, memory)
    }
}
