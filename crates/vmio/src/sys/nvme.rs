//! NVMe commands to a namespace, past the block layer, through its character device (`/dev/ng0n1`).

use std::cell::UnsafeCell;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};

use io_uring::cqueue::Entry32;
use io_uring::squeue::Entry128;
use io_uring::types::Fixed;
use io_uring::{IoUring, opcode};

use crate::sys::cpu;
use crate::sys::fork::Generation;
use crate::sys::futex_lock::FutexLock;
use crate::sys::signal::SignalsBlocked;

/// `_IO('N', 0x40)`: answers with the namespace's number.
const NVME_IOCTL_ID: libc::c_ulong = 0x4E40;
/// `_IOWR('N', 0x41, struct nvme_passthru_cmd)`
const NVME_IOCTL_ADMIN_CMD: libc::c_ulong = 0xC048_4E41;
/// `_IOWR('N', 0x43, struct nvme_passthru_cmd)`
const NVME_IOCTL_IO_CMD: libc::c_ulong = 0xC048_4E43;
/// `_IOWR('N', 0x80, struct nvme_uring_cmd)`
const NVME_URING_CMD_IO: u32 = 0xC048_4E80;

const IDENTIFY: u8 = 0x06;
const FLUSH: u8 = 0x00;
/// In a status: the same command would fail again.
const DO_NOT_RETRY: i32 = 0x4000;
/// As often as the driver tries requests by default.
const TRIES_MAX: u32 = 6;
/// What Identify returns.
const IDENTIFY_BYTES: usize = 4096;
/// Commands that a ring has under way at most.
const COMMANDS_MAX: usize = 16;

/// A command as the kernel takes it, by ioctl (`struct nvme_passthru_cmd`) and by io_uring (`struct nvme_uring_cmd`): they
/// differ in the last field alone, which is the answer's there and nothing here.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Command {
    opcode: u8,
    flags: u8,
    reserved: u16,
    namespace: u32,
    dword_2: u32,
    dword_3: u32,
    metadata: u64,
    address: u64,
    metadata_bytes: u32,
    data_bytes: u32,
    dwords_10_to_15: [u32; 6],
    timeout_ms: u32,
    result: u32,
}

const _: () = assert!(size_of::<Command>() == 72);

/// What bytes are read into, or written from: whole blocks.
pub(crate) enum Memory<'a> {
    /// From the device.
    Into(&'a mut [u8]),
    /// To the device.
    From(&'a [u8]),
}

impl Memory<'_> {
    fn opcode(&self) -> u8 {
        match self {
            Memory::Into(_) => 0x02,
            Memory::From(_) => 0x01,
        }
    }

    /// Where it is, and how long.
    fn place(&self) -> (u64, usize) {
        match self {
            Memory::Into(bytes) => (bytes.as_ptr() as u64, bytes.len()),
            Memory::From(bytes) => (bytes.as_ptr() as u64, bytes.len()),
        }
    }
}

/// How a namespace is laid out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Geometry {
    number: u32,
    /// Of a logical block.
    pub(crate) block_bytes: u64,
    /// In all.
    pub(crate) bytes: u64,
    /// That one command can move at most; a multiple of the block's.
    pub(crate) transfer_bytes: usize,
    /// What the logical blocks have beside their bytes; vmio does without.
    pub(crate) metadata_bytes: u16,
}

/// A namespace's most by our own choice: what a run of neighbouring pages is read with.
const TRANSFER_BYTES_MAX: usize = 128 << 10;

impl Geometry {
    /// Asks the device.
    pub(crate) fn of(device: BorrowedFd<'_>) -> io::Result<Geometry> {
        // SAFETY: the request takes no argument.
        let number = unsafe { libc::ioctl(device.as_raw_fd(), NVME_IOCTL_ID) };
        let number = u32::try_from(number).map_err(|_| io::Error::last_os_error())?;
        let controller = identify(device, 0, 1)?;
        let namespace = identify(device, number, 0)?;
        Self::parse(number, &controller, &namespace)
    }

    /// By what Identify has returned of the controller and of the namespace (NVM Express Base 2.0, figures 275 and 97).
    fn parse(number: u32, controller: &[u8], namespace: &[u8]) -> io::Result<Geometry> {
        let wrong = |why: &str| io::Error::new(io::ErrorKind::InvalidData, format!("the NVMe device says {why}"));
        let (Some(blocks), Some(&formatted), Some(&shift)) =
            (namespace.first_chunk().map(|bytes| u64::from_le_bytes(*bytes)), namespace.get(26), controller.get(77))
        else {
            return Err(wrong("too little of itself"));
        };
        let format = usize::from(formatted & 0xF | (formatted >> 1) & 0x30);
        let Some(&[low, high, block_shift, _]) = namespace.get(128 + 4 * format..).and_then(|rest| rest.first_chunk())
        else {
            return Err(wrong("that it has a format which it does not list"));
        };
        if !(9..=63).contains(&block_shift) || blocks.leading_zeros() < u32::from(block_shift) {
            return Err(wrong(&format!("that it has {blocks} blocks of 2^{block_shift} bytes")));
        }
        // In units of the controller's smallest page, which no controller in use has other than 4 KiB; 0 says no limit.
        let limit = if (1..5).contains(&shift) { 4096 << shift } else { TRANSFER_BYTES_MAX };
        Ok(Geometry {
            number,
            block_bytes: 1 << block_shift,
            bytes: blocks << block_shift,
            transfer_bytes: limit.min(TRANSFER_BYTES_MAX),
            metadata_bytes: u16::from_le_bytes([low, high]),
        })
    }

    /// The commands that move bytes between their place and memory.
    fn transfers(&self, offset: u64, memory: &Memory<'_>) -> impl Iterator<Item = Command> + use<> {
        let (geometry, opcode, (address, bytes)) = (*self, memory.opcode(), memory.place());
        debug_assert!((offset | bytes as u64).is_multiple_of(self.block_bytes));
        (0..bytes).step_by(self.transfer_bytes).map(move |at| {
            let part = geometry.transfer_bytes.min(bytes - at) as u32;
            let first = (offset + at as u64) / geometry.block_bytes;
            let mut command = Command { opcode, namespace: geometry.number, ..Command::default() };
            command.address = address + at as u64;
            command.data_bytes = part;
            let last = part / geometry.block_bytes as u32 - 1;
            command.dwords_10_to_15[..3].copy_from_slice(&[first as u32, (first >> 32) as u32, last]);
            command
        })
    }
}

fn identify(device: BorrowedFd<'_>, namespace: u32, what: u32) -> io::Result<Box<[u8]>> {
    let mut answer = vec![0_u8; IDENTIFY_BYTES].into_boxed_slice();
    let mut command = Command { opcode: IDENTIFY, namespace, ..Command::default() };
    command.address = answer.as_mut_ptr() as u64;
    command.data_bytes = IDENTIFY_BYTES as u32;
    command.dwords_10_to_15[0] = what;
    // SAFETY: the answer has the length that the command says, and lives until it is there.
    unsafe { call(device, NVME_IOCTL_ADMIN_CMD, &mut command)? };
    Ok(answer)
}

/// Has a command done and waits for it. Async-signal-safe.
///
/// # Safety
/// What the command points to is memory that it may read or write.
unsafe fn call(device: BorrowedFd<'_>, request: libc::c_ulong, command: &mut Command) -> io::Result<()> {
    let mut tries = 1;
    loop {
        // SAFETY: by the caller; the command has the layout that the request asks for.
        let status = unsafe { libc::ioctl(device.as_raw_fd(), request, std::ptr::from_mut(command)) };
        let (is_passing, error) = match status {
            0 => return Ok(()),
            status if status > 0 => (status & DO_NOT_RETRY == 0, refused()),
            _ => {
                let error = io::Error::last_os_error();
                (error.kind() == io::ErrorKind::Interrupted, error)
            }
        };
        // The driver tries ordinary requests again, after it has reset the controller for one, and those of ours not.
        if !is_passing || tries == TRIES_MAX {
            return Err(error);
        }
        tries += 1;
    }
}

/// The device has answered with a status other than success.
fn refused() -> io::Error {
    io::Error::from_raw_os_error(libc::EIO)
}

/// Makes durable what was written. Async-signal-safe.
pub(crate) fn flush(device: BorrowedFd<'_>, geometry: &Geometry) -> io::Result<()> {
    let mut command = Command { opcode: FLUSH, namespace: geometry.number, ..Command::default() };
    // SAFETY: it points to nothing.
    unsafe { call(device, NVME_IOCTL_IO_CMD, &mut command) }
}

/// Moves whole blocks between the device and memory, one command at a time. Async-signal-safe.
pub(crate) fn transfer(
    device: BorrowedFd<'_>,
    geometry: &Geometry,
    offset: u64,
    memory: &Memory<'_>,
) -> io::Result<()> {
    geometry.transfers(offset, memory).try_for_each(|mut command| {
        // SAFETY: the command names a part of the memory, which is the caller's until we return.
        unsafe { call(device, NVME_IOCTL_IO_CMD, &mut command) }
    })
}

/// A ring for one user at a time, in the trap path too: several commands at once, waited for together.
struct CommandRing {
    uring: IoUring<Entry128, Entry32>,
    /// The addresses of the buffer that is registered, whose pages the kernel need not look up for each command; or none.
    registered: Range<usize>,
}

impl CommandRing {
    /// A ring for a device. With `polls` nobody is interrupted when a command ends: who waits asks the device's queue,
    /// if its driver has queues for that.
    fn new(device: BorrowedFd<'_>, polls: bool) -> io::Result<Self> {
        let mut builder = IoUring::<Entry128, Entry32>::builder();
        builder.dontfork();
        if polls {
            builder.setup_iopoll();
        }
        let uring = builder.build(COMMANDS_MAX as u32)?;
        uring.submitter().register_files(&[device.as_raw_fd()])?;
        Ok(CommandRing { uring, registered: 0..0 })
    }

    /// Registers a buffer in place of the one that was.
    ///
    /// # Safety
    /// The addresses are of memory that stays what it is until another buffer is registered or none.
    unsafe fn register(&mut self, addresses: Range<usize>) -> io::Result<()> {
        if !std::mem::take(&mut self.registered).is_empty() {
            self.uring.submitter().unregister_buffers()?;
        }
        if !addresses.is_empty() {
            let buffer = libc::iovec { iov_base: addresses.start as *mut _, iov_len: addresses.len() };
            // SAFETY: by the caller; commands are under way only while a transfer waits for them.
            unsafe { self.uring.submitter().register_buffers(&[buffer])? };
            self.registered = addresses;
        }
        Ok(())
    }

    /// Whether commands that name a registered buffer get to the device (Linux 6.1): reads the first block into one.
    fn takes_registered(&mut self, geometry: &Geometry, block: &mut [u8]) -> bool {
        let addresses = block.as_ptr_range();
        // SAFETY: the block is borrowed until the registration has gone again.
        let registered = unsafe { self.register(addresses.start as usize..addresses.end as usize) };
        let read = registered.and_then(|()| self.transfer(geometry, 0, &Memory::Into(block)));
        // SAFETY: it registers nothing.
        let gone = unsafe { self.register(0..0) };
        read.and(gone).inspect_err(|error| tracing::debug!(%error, "no registered buffers for NVMe commands")).is_ok()
    }

    /// As [`transfer`], but with up to 16 commands under way.
    fn transfer(&mut self, geometry: &Geometry, offset: u64, memory: &Memory<'_>) -> io::Result<()> {
        let mut commands = geometry.transfers(offset, memory).fuse();
        let (mut under_way, mut outcome) = (0, Ok(()));
        loop {
            while outcome.is_ok() && under_way < COMMANDS_MAX {
                let Some(command) = commands.next() else { break };
                // SAFETY: the memory is the caller's until we return, which is when all commands have ended.
                unsafe { self.push(&command) };
                under_way += 1;
            }
            if under_way == 0 {
                return outcome;
            }
            if self.uring.submitter().submit_and_wait(1).is_err() {
                // Interrupted, or short of memory: whatever has begun ends, and we must see it.
                std::thread::yield_now();
            }
            for entry in self.uring.completion() {
                under_way -= 1;
                match entry.result() {
                    0 => {}
                    status if status > 0 => outcome = Err(refused()),
                    error => outcome = Err(io::Error::from_raw_os_error(-error)),
                }
            }
        }
    }

    /// # Safety
    /// What the command points to is the device's until its end has been seen.
    unsafe fn push(&mut self, command: &Command) {
        let (start, end) = (command.address as usize, command.address as usize + command.data_bytes as usize);
        let buffer = (self.registered.start <= start && end <= self.registered.end).then_some(0);
        let mut bytes = [0_u8; 80];
        // SAFETY: a command is 72 bytes of integers, without padding.
        let command =
            unsafe { std::slice::from_raw_parts(std::ptr::from_ref(command).cast::<u8>(), size_of::<Command>()) };
        bytes[..command.len()].copy_from_slice(command);
        let entry = opcode::UringCmd80::new(Fixed(0), NVME_URING_CMD_IO).cmd(bytes).buf_index(buffer).build();
        // SAFETY: by the caller. There is room: no more are under way than the ring was made for.
        let pushed = unsafe { self.uring.submission().push(&entry) };
        debug_assert!(pushed.is_ok());
    }
}

/// A ring a core, each for whoever has it.
pub(crate) struct CommandRings {
    slots: Box<[RingSlot]>,
    takes_registered: bool,
    /// A forked child has none of the rings' memory.
    generation: Generation,
}

struct RingSlot {
    lock: FutexLock,
    ring: UnsafeCell<CommandRing>,
}

// SAFETY: the ring is reached under the lock alone, and goes from thread to thread as a whole.
unsafe impl Sync for RingSlot {}

impl CommandRings {
    /// Rings for a device, if commands get there by them: the first block is read.
    pub(crate) fn new(device: BorrowedFd<'_>, geometry: &Geometry, polls: bool) -> io::Result<Self> {
        let slot = |_| {
            let ring = UnsafeCell::new(CommandRing::new(device, polls)?);
            Ok(RingSlot { lock: FutexLock::default(), ring })
        };
        let generation = Generation::of_this_process()?;
        let mut slots = (0..cpu::count()).map(slot).collect::<io::Result<Box<[_]>>>()?;
        let mut takes_registered = false;
        if let Some(slot) = slots.first_mut() {
            let mut block = vec![0_u8; geometry.block_bytes as usize];
            slot.ring.get_mut().transfer(geometry, 0, &Memory::Into(&mut block))?;
            takes_registered = slot.ring.get_mut().takes_registered(geometry, &mut block);
        }
        Ok(CommandRings { slots, takes_registered, generation })
    }

    /// Registers buffers with all rings, in place of those that were: see [`crate::backing::Backing::prefer_buffers`]. Not for the
    /// trap path.
    pub(crate) fn register_buffers(&self, addresses: Option<Range<usize>>) {
        if !self.takes_registered || !self.generation.is_current() {
            return;
        }
        let addresses = addresses.unwrap_or(0..0);
        let _signals = SignalsBlocked::new();
        for slot in &self.slots {
            slot.lock.acquire();
            // SAFETY: by the lock nobody else has the ring; the memory is whose who calls, who says when it goes.
            let registered = unsafe { (*slot.ring.get()).register(addresses.clone()) };
            slot.lock.release();
            if let Err(error) = registered {
                tracing::debug!(%error, "buffers are not registered with the NVMe device");
            }
        }
    }

    /// As [`transfer`]. Where all rings are with others it is that: a signal handler may have interrupted one of them, so
    /// that nobody waits; and where a command has failed, which may only have to be done again.
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
            // SAFETY: by the lock nobody else has it.
            let outcome = unsafe { (*slot.ring.get()).transfer(geometry, offset, memory) };
            slot.lock.release();
            if outcome.is_ok() {
                return Ok(());
            }
        }
        transfer(device, geometry, offset, memory)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// What a device would answer: blocks, format, its shift and metadata, the controller's limit.
    fn answers(blocks: u64, formatted: u8, format: (u8, u16), limit: u8) -> io::Result<Geometry> {
        let (mut controller, mut namespace) = (vec![0_u8; IDENTIFY_BYTES], vec![0_u8; IDENTIFY_BYTES]);
        controller[77] = limit;
        namespace[..8].copy_from_slice(&blocks.to_le_bytes());
        namespace[26] = formatted;
        let place = 128 + 4 * usize::from(formatted & 0xF);
        namespace[place..place + 2].copy_from_slice(&format.1.to_le_bytes());
        namespace[place + 2] = format.0;
        Geometry::parse(1, &controller, &namespace)
    }

    #[test]
    fn a_namespace_is_as_large_as_its_blocks_say() {
        let geometry = answers(2_097_152, 0, (9, 0), 7).unwrap();
        assert_eq!((geometry.block_bytes, geometry.bytes, geometry.transfer_bytes), (512, 1 << 30, 128 << 10));
        let geometry = answers(1000, 4, (12, 8), 2).unwrap();
        assert_eq!((geometry.block_bytes, geometry.bytes, geometry.transfer_bytes), (4096, 4_096_000, 16 << 10));
        assert_eq!(geometry.metadata_bytes, 8);
        for no_limit in [0, 52, 63, 255] {
            assert_eq!(answers(1, 0, (9, 0), no_limit).unwrap().transfer_bytes, 128 << 10);
        }
    }

    #[test]
    fn an_answer_that_cannot_be_is_an_error() {
        for (blocks, shift) in [(1, 0), (1, 8), (1, 64), (u64::MAX, 9), (1 << 55, 12)] {
            let error = answers(blocks, 0, (shift, 0), 7).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
            println!("{error}");
        }
        assert!(Geometry::parse(1, &[], &[0; 100]).is_err());
    }

    #[test]
    fn commands_name_blocks_and_split_at_the_limit() {
        let geometry = answers(1 << 40, 0, (12, 0), 3).unwrap();
        let memory = vec![0_u8; 80 << 10];
        let commands: Vec<Command> = geometry.transfers(5 << 44, &Memory::From(&memory)).collect();
        let address = |at: u64| memory.as_ptr() as u64 + at;
        let named: Vec<_> = commands.iter().map(|one| (one.address, one.data_bytes, one.dwords_10_to_15)).collect();
        let place = |block: u32, blocks: u32| [block, 5, blocks - 1, 0, 0, 0];
        let (first, second, third) = (place(0, 8), place(8, 8), place(16, 4));
        assert_eq!(
            named,
            [
                (address(0), 32 << 10, first),
                (address(32 << 10), 32 << 10, second),
                (address(64 << 10), 16 << 10, third),
            ]
        );
        assert!(commands.iter().all(|one| (one.opcode, one.namespace) == (1, 1)));
    }
}
