//! NVMe commands to a namespace through its character device (`/dev/ng0n1`), past the block layer.

mod buffers;
mod rings;

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use buffers::Buffers;
pub(crate) use rings::CommandRings;
pub use rings::Commands;

/// `_IO('N', 0x40)`: returns the number of the namespace.
const NVME_IOCTL_ID: libc::c_ulong = 0x4E40;
/// `_IOWR('N', 0x41, struct nvme_passthru_cmd)`
const NVME_IOCTL_ADMIN_CMD: libc::c_ulong = 0xC048_4E41;
/// `_IOWR('N', 0x43, struct nvme_passthru_cmd)`
const NVME_IOCTL_IO_CMD: libc::c_ulong = 0xC048_4E43;

const IDENTIFY: u8 = 0x06;
const FLUSH: u8 = 0x00;
/// In a status: the same command would fail again.
const DO_NOT_RETRY: i32 = 0x4000;
/// The driver tries requests as often by default.
const TRIES_MAX: u32 = 6;
/// The length of an answer to Identify.
const IDENTIFY_BYTES: usize = 4096;

/// A command as the kernel takes it, by ioctl (`struct nvme_passthru_cmd`) and by io_uring (`struct nvme_uring_cmd`).
/// They differ in the last field alone: for the ioctl it is the answer, for io_uring it has no meaning.
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

/// The memory of a transfer, in whole blocks.
pub(crate) enum Memory<'a> {
    /// For bytes read from the device.
    Into(&'a mut [u8]),
    /// With bytes to write to the device.
    From(&'a [u8]),
}

impl Memory<'_> {
    fn opcode(&self) -> u8 {
        match self {
            Memory::Into(_) => 0x02,
            Memory::From(_) => 0x01,
        }
    }

    /// The address and the length of the memory.
    fn place(&self) -> (u64, usize) {
        match self {
            Memory::Into(bytes) => (bytes.as_ptr() as u64, bytes.len()),
            Memory::From(bytes) => (bytes.as_ptr() as u64, bytes.len()),
        }
    }
}

/// The layout of a namespace.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Geometry {
    number: u32,
    /// The size of a logical block.
    pub(crate) block_bytes: u64,
    /// The size of the namespace.
    pub(crate) bytes: u64,
    /// The most bytes that one command can move, a multiple of the block size.
    pub(crate) transfer_bytes: usize,
    /// Metadata of each logical block beside its bytes. vmio does not support any.
    pub(crate) metadata_bytes: u16,
}

/// vmio's own limit for a command: the size of the reads of neighbouring pages.
const TRANSFER_BYTES_MAX: usize = 128 << 10;

impl Geometry {
    /// Asks the device for its layout.
    pub(crate) fn of(device: BorrowedFd<'_>) -> io::Result<Geometry> {
        // SAFETY: the request takes no argument.
        let number = unsafe { libc::ioctl(device.as_raw_fd(), NVME_IOCTL_ID) };
        let number = u32::try_from(number).map_err(|_| io::Error::last_os_error())?;
        let controller = identify(device, 0, 1)?;
        let namespace = identify(device, number, 0)?;
        Self::parse(number, &controller, &namespace)
    }

    /// Reads the layout from the answers to Identify for the controller and for the namespace (NVM Express Base 2.0,
    /// figures 275 and 97).
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
        // The limit is in units of the controller's smallest page, which is 4 KiB in all controllers in use; 0 stands
        // for no limit.
        let limit = if (1..5).contains(&shift) { 4096 << shift } else { TRANSFER_BYTES_MAX };
        Ok(Geometry {
            number,
            block_bytes: 1 << block_shift,
            bytes: blocks << block_shift,
            transfer_bytes: limit.min(TRANSFER_BYTES_MAX),
            metadata_bytes: u16::from_le_bytes([low, high]),
        })
    }

    /// The commands that move bytes between the device and memory. A command that begins in a buffer ends there.
    fn transfers<'b>(
        &self,
        offset: u64,
        memory: &Memory<'_>,
        buffers: &'b Buffers,
    ) -> impl Iterator<Item = Command> + use<'b> {
        let (geometry, opcode, (address, bytes)) = (*self, memory.opcode(), memory.place());
        debug_assert!((offset | bytes as u64).is_multiple_of(self.block_bytes));
        let mut at = 0;
        std::iter::from_fn(move || {
            let left = Some(bytes - at).filter(|&bytes| bytes > 0)?;
            let address = address + at as u64;
            let in_buffer = buffers.find(address as usize).map(|(_, buffer)| buffer.end - address as usize);
            let in_buffer =
                in_buffer.map(|bytes| bytes - bytes % geometry.block_bytes as usize).filter(|&bytes| bytes > 0);
            let part = geometry.transfer_bytes.min(left).min(in_buffer.unwrap_or(left));
            let first = (offset + at as u64) / geometry.block_bytes;
            at += part;
            let last = (part as u64 / geometry.block_bytes) as u32 - 1;
            let mut command = Command { opcode, namespace: geometry.number, ..Command::default() };
            (command.address, command.data_bytes) = (address, part as u32);
            command.dwords_10_to_15[..3].copy_from_slice(&[first as u32, (first >> 32) as u32, last]);
            Some(command)
        })
    }
}
fn identify(device: BorrowedFd<'_>, namespace: u32, what: u32) -> io::Result<Box<[u8]>> {
    let mut answer = vec![0_u8; IDENTIFY_BYTES].into_boxed_slice();
    let mut command = Command { opcode: IDENTIFY, namespace, ..Command::default() };
    command.address = answer.as_mut_ptr() as u64;
    command.data_bytes = IDENTIFY_BYTES as u32;
    command.dwords_10_to_15[0] = what;
    // SAFETY: the answer has the length that the command gives, and lives until the call returns.
    unsafe { call(device, NVME_IOCTL_ADMIN_CMD, &mut command)? };
    Ok(answer)
}

/// Executes a command and waits for it. Async-signal-safe.
///
/// # Safety
/// The command points to memory that it may read or write.
unsafe fn call(device: BorrowedFd<'_>, request: libc::c_ulong, command: &mut Command) -> io::Result<()> {
    let mut tries = 1;
    loop {
        // SAFETY: the caller vouches for the memory that the command points to; the command has the layout that the request
        // asks for.
        let status = unsafe { libc::ioctl(device.as_raw_fd(), request, std::ptr::from_mut(command)) };
        let (is_passing, error) = match status {
            0 => return Ok(()),
            status if status > 0 => (status & DO_NOT_RETRY == 0, refused()),
            _ => {
                let error = io::Error::last_os_error();
                (error.kind() == io::ErrorKind::Interrupted, error)
            }
        };
        // The driver repeats ordinary requests by itself, after a reset of the controller for example. It does not
        // repeat ours.
        if !is_passing || tries == TRIES_MAX {
            return Err(error);
        }
        tries += 1;
    }
}

/// The error for a status other than success.
fn refused() -> io::Error {
    io::Error::from_raw_os_error(libc::EIO)
}

/// Makes earlier writes durable. Async-signal-safe.
pub(crate) fn flush(device: BorrowedFd<'_>, geometry: &Geometry) -> io::Result<()> {
    let mut command = Command { opcode: FLUSH, namespace: geometry.number, ..Command::default() };
    // SAFETY: the command points to no memory.
    unsafe { call(device, NVME_IOCTL_IO_CMD, &mut command) }
}

/// Moves whole blocks between the device and memory, one command at a time. Async-signal-safe.
pub(crate) fn transfer(
    device: BorrowedFd<'_>,
    geometry: &Geometry,
    offset: u64,
    memory: &Memory<'_>,
) -> io::Result<()> {
    geometry.transfers(offset, memory, &Buffers::default()).try_for_each(|mut command| {
        // SAFETY: the command names a part of the memory, which the caller has lent until we return.
        unsafe { call(device, NVME_IOCTL_IO_CMD, &mut command) }
    })
}
#[cfg(test)]
mod tests {
    use super::*;

    /// The layout from a device's answers: blocks, format, its shift and metadata, and the controller's limit.
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
        let none = Buffers::default();
        let commands: Vec<Command> = geometry.transfers(5 << 44, &Memory::From(&memory), &none).collect();
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

    #[test]
    fn commands_that_begin_in_a_registered_buffer_end_there() {
        let geometry = answers(1 << 40, 0, (12, 0), 3).unwrap();
        let memory = vec![0_u8; 80 << 10];
        let start = memory.as_ptr() as usize;
        let page = |page: usize| start + (page << 12);
        // Less than a block in a buffer is no reason to cut.
        let buffers = Buffers::new(&[page(17)..page(19) + 100, page(2)..page(12)], 5 << 12);
        let commands: Vec<Command> = geometry.transfers(0, &Memory::From(&memory), &buffers).collect();
        let pages = |one: &Command| ((one.address as usize - start) >> 12, one.data_bytes >> 12);
        assert_eq!(commands.iter().map(pages).collect::<Vec<_>>(), [(0, 8), (8, 4), (12, 8)]);
        let found: Vec<_> = (0..20).map(|at| buffers.find(page(at)).map(|(index, _)| index)).collect();
        let (none, first, second, third) = ([None; 2], [Some(0); 5], [Some(1); 5], [Some(2); 3]);
        assert_eq!(found, [&none[..], &first, &second, &[None; 5], &third].concat());
        let from_third = Memory::From(&memory[12 << 10..]);
        let commands: Vec<Command> = geometry.transfers(3 << 12, &from_third, &buffers).collect();
        assert_eq!(commands.iter().map(pages).collect::<Vec<_>>(), [(3, 4), (7, 5), (12, 8)]);
    }
}
