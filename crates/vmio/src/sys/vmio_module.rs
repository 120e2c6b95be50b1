//! /dev/vmio: the interface of the kernel module, as in `kernel/uapi/vmio.h`.

use std::io;
use std::mem::MaybeUninit;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::ioctl::{Opcode, opcode};

use crate::sys::PAGE_BYTES;

/// The version of the interface in this file. The module must have this one or a newer one.
pub(crate) const ABI: u32 = 4;
/// The most pages read ahead after a miss.
pub(crate) const READ_AHEAD_PAGES_MAX: u32 = 31;

const MAGIC: u8 = 0xbe;
const RESERVE: Opcode = opcode::write::<Reserve>(MAGIC, 1);
const ATTACH: Opcode = opcode::write::<Attach>(MAGIC, 2);
const PRIORITIZE: Opcode = opcode::write::<Priority>(MAGIC, 3);
const FRESH: Opcode = opcode::write::<ByteRange>(MAGIC, 4);
const READ_AHEAD: Opcode = opcode::write::<u32>(MAGIC, 5);
const RESIZE: Opcode = opcode::write::<Reserve>(MAGIC, 6);
const VERSION: Opcode = opcode::read::<u32>(MAGIC, 7);
const USAGE: Opcode = opcode::read::<ModuleUsage>(MAGIC, 8);
const RESIDENT: Opcode = opcode::write::<Resident>(MAGIC, 9);
const EVICT: Opcode = opcode::write::<ByteRange>(MAGIC, 10);
const DISCARD: Opcode = opcode::write::<ByteRange>(MAGIC, 11);
const PIN: Opcode = opcode::write::<Pin>(MAGIC, 12);
const INSPECT: Opcode = opcode::read_write::<Inspect>(MAGIC, 13);
const ADMIT: Opcode = opcode::write::<Admit>(MAGIC, 14);
const POISON: Opcode = opcode::write::<Poison>(MAGIC, 15);
const COUNTS: Opcode = opcode::read::<ModuleCounts>(MAGIC, 16);
const PIN_WRITE: u32 = 1;
const ATTACH_VETTED: u32 = 1;

/// The most page numbers that one call lists.
const NUMBERS: usize = 512;

/// `struct vmio_reserve`.
#[repr(C)]
struct Reserve {
    pages: u64,
}

/// `struct vmio_attach`.
#[repr(C)]
struct Attach {
    fd: i32,
    flags: u32,
    limit_pages: u64,
}

/// `struct vmio_priority`.
#[repr(C)]
struct Priority {
    offset: u64,
    length: u64,
    priority: u32,
    reserved: u32,
}

/// `struct vmio_byte_range`.
#[repr(C)]
struct ByteRange {
    offset: u64,
    length: u64,
}

impl ByteRange {
    fn of(bytes: &Range<u64>) -> Self {
        ByteRange { offset: bytes.start, length: bytes.end - bytes.start }
    }
}

/// `struct vmio_resident`.
#[repr(C)]
struct Resident {
    offset: u64,
    length: u64,
    numbers: u64,
    room: u64,
}

/// `struct vmio_pin`.
#[repr(C)]
struct Pin {
    address: u64,
    length: u64,
    flags: u32,
    reserved: u32,
}

/// `struct vmio_inspect`.
#[repr(C)]
struct Inspect {
    offset: u64,
    contents: u64,
    arrival: u64,
}

/// `struct vmio_admit`.
#[repr(C)]
struct Admit {
    offset: u64,
    arrival: u64,
}

/// `struct vmio_poison`.
#[repr(C)]
struct Poison {
    offset: u64,
    pattern: [u8; 8],
}

/// Identifies one arrival of a page in memory. Since then the page may have been evicted and come again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrival(NonZeroU64);

/// The pages of a pool or an attachment: `struct vmio_usage`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct ModuleUsage {
    /// The most pages that may be in memory.
    pub(crate) pages: u64,
    /// Pages in memory, or on their way in.
    pub(crate) resident: u64,
    /// Of these, pages that are newer than the backing.
    pub(crate) dirty: u64,
    /// Pages held by pins.
    pub(crate) pinned: u64,
    /// For an attachment: the first dirty page, if there is one.
    pub(crate) first_dirty: u64,
    /// For an attachment: not 0 if a flush has failed. All syncs fail then.
    pub(crate) flush_failed: u64,
}

/// The counts of a pool since it was reserved: `struct vmio_counts`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct ModuleCounts {
    /// Loads that found their page absent; fresh pages count too.
    pub(crate) loads_missed: u64,
    /// Stores that found their page absent.
    pub(crate) stores_missed: u64,
    /// Loads and stores among these that got zeros without a read.
    pub(crate) fresh: u64,
    /// Minor faults: touches of an inactive page.
    pub(crate) found: u64,
    /// Stores that made a page writable: one that was mapped for loads, or one that the store itself brought in.
    pub(crate) made_writable: u64,
    /// Read requests.
    pub(crate) reads: u64,
    /// Pages that these requests read.
    pub(crate) pages_read: u64,
    /// Of these pages, those read ahead of a miss.
    pub(crate) pages_read_ahead: u64,
    /// Read requests that failed.
    pub(crate) read_errors: u64,
    /// Spans unmapped, each with a TLB shootdown.
    pub(crate) spans_unmapped: u64,
    /// Pages evicted, discarded ones included.
    pub(crate) pages_evicted: u64,
    /// Write requests.
    pub(crate) writes: u64,
    /// Pages that these requests wrote.
    pub(crate) pages_written: u64,
    /// Write requests that failed.
    pub(crate) write_errors: u64,
}

/// An open /dev/vmio. It has memory for files once some is reserved.
pub(crate) struct ModulePool {
    device: OwnedFd,
}

impl ModulePool {
    /// Opens the device.
    pub(crate) fn open() -> io::Result<Self> {
        Ok(ModulePool { device: rustix::fs::open(c"/dev/vmio", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())? })
    }

    /// The version of the module's interface. ENOTTY if the module is older than version numbers.
    pub(crate) fn version(&self) -> io::Result<u32> {
        let mut version = 0_u32;
        // SAFETY: the request writes a u32.
        unsafe { ioctl(&self.device, VERSION, &raw mut version)? };
        Ok(version)
    }

    /// Reserves memory for this many pages, once.
    pub(crate) fn reserve(&self, pages: u64) -> io::Result<()> {
        let mut reserve = Reserve { pages };
        // SAFETY: the request reads this structure.
        unsafe { ioctl(&self.device, RESERVE, &raw mut reserve).map(drop) }
    }

    /// Changes the number of reserved pages. A failure may leave any size in between.
    pub(crate) fn resize(&self, pages: u64) -> io::Result<()> {
        let mut reserve = Reserve { pages };
        // SAFETY: the request reads this structure.
        unsafe { ioctl(&self.device, RESIZE, &raw mut reserve).map(drop) }
    }

    /// The pages of the pool and its attachments.
    pub(crate) fn usage(&self) -> io::Result<ModuleUsage> {
        usage(&self.device)
    }

    /// The counts of the pool.
    pub(crate) fn counts(&self) -> io::Result<ModuleCounts> {
        let mut counts = ModuleCounts::default();
        // SAFETY: the request writes this structure.
        unsafe { ioctl(&self.device, COUNTS, &raw mut counts)? };
        Ok(counts)
    }

    /// Attaches a file or device that was opened for direct I/O. With `verify_before_map` the module maps no page of it
    /// before [`Attachment::allow_mapping`].
    pub(crate) fn attach(&self, backing: BorrowedFd<'_>, verify_before_map: bool) -> io::Result<Attachment> {
        let flags = if verify_before_map { ATTACH_VETTED } else { 0 };
        let mut attach = Attach { fd: backing.as_raw_fd(), flags, limit_pages: 0 };
        // SAFETY: the request reads this structure.
        let descriptor = unsafe { ioctl(&self.device, ATTACH, &raw mut attach)? };
        // SAFETY: the call has returned a new descriptor, which nobody else owns.
        Ok(Attachment { descriptor: unsafe { OwnedFd::from_raw_fd(descriptor) } })
    }
}

impl AsFd for ModulePool {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}

/// A file or device that the module has attached. Its descriptor is mapped. Ranges are in bytes of the file or device.
pub(crate) struct Attachment {
    descriptor: OwnedFd,
}

impl Attachment {
    /// Sets the eviction priority of the pages that lie wholly in a range: 0 (evicted last) to 255.
    pub(crate) fn prioritize(&self, bytes: &Range<u64>, priority: u8) -> io::Result<()> {
        let length = bytes.end - bytes.start;
        let mut request = Priority { offset: bytes.start, length, priority: priority.into(), reserved: 0 };
        // SAFETY: the request reads this structure.
        unsafe { ioctl(&self.descriptor, PRIORITIZE, &raw mut request).map(drop) }
    }

    /// Marks a range as fresh: its contents in the backing do not matter.
    pub(crate) fn mark_fresh(&self, bytes: &Range<u64>) -> io::Result<()> {
        self.of_range(FRESH, bytes).map(drop)
    }

    /// Writes the dirty pages of a range, and evicts those that nobody holds. Returns how many pages stay because they
    /// are held.
    pub(crate) fn evict(&self, bytes: &Range<u64>) -> io::Result<u64> {
        self.of_range(EVICT, bytes)
    }

    /// Evicts the pages of a range that nobody holds, without writing them. Returns how many pages stay because they
    /// are held.
    pub(crate) fn discard(&self, bytes: &Range<u64>) -> io::Result<u64> {
        self.of_range(DISCARD, bytes)
    }

    fn of_range(&self, request: Opcode, bytes: &Range<u64>) -> io::Result<u64> {
        let mut range = ByteRange::of(bytes);
        // SAFETY: all requests of ranges read this structure. They change contents of mapped memory only in a way that
        // their callers ask for.
        unsafe { ioctl(&self.descriptor, request, &raw mut range).map(|answer| answer as u64) }
    }

    /// Sets how many pages are read ahead after a miss that continues a sequence: 0 to [`READ_AHEAD_PAGES_MAX`].
    pub(crate) fn read_ahead(&self, mut pages: u32) -> io::Result<()> {
        // SAFETY: the request reads a u32.
        unsafe { ioctl(&self.descriptor, READ_AHEAD, &raw mut pages).map(drop) }
    }

    /// The pages of the attachment.
    pub(crate) fn usage(&self) -> io::Result<ModuleUsage> {
        usage(&self.descriptor)
    }

    /// Calls `each` with the numbers of the resident pages of a range, in ascending order.
    pub(crate) fn for_each_resident(&self, bytes: &Range<u64>, each: &mut dyn FnMut(u64)) -> io::Result<()> {
        // Left uninitialized: callers ask for single pages often.
        let mut numbers = [MaybeUninit::<u64>::uninit(); NUMBERS];
        let mut offset = bytes.start;
        while offset < bytes.end {
            let room = numbers.len() as u64;
            let mut request =
                Resident { offset, length: bytes.end - offset, numbers: numbers.as_mut_ptr() as u64, room };
            // SAFETY: the request reads this structure, and writes no more numbers than `room`.
            let listed = unsafe { ioctl(&self.descriptor, RESIDENT, &raw mut request)? } as usize;
            for number in &numbers[..listed] {
                // SAFETY: this many were written.
                let page = unsafe { number.assume_init() };
                each(page);
                offset = (page + 1) * PAGE_BYTES as u64;
            }
            if listed < NUMBERS {
                break;
            }
        }
        Ok(())
    }

    /// Brings pages into memory, and keeps them there until the descriptor is closed. `addresses` is the place at which
    /// the attachment is mapped.
    pub(crate) fn pin(&self, addresses: &Range<usize>, for_stores: bool) -> io::Result<OwnedFd> {
        let mut request = Pin {
            address: addresses.start as u64,
            length: addresses.len() as u64,
            flags: if for_stores { PIN_WRITE } else { 0 },
            reserved: 0,
        };
        // SAFETY: the request reads this structure.
        let descriptor = unsafe { ioctl(&self.descriptor, PIN, &raw mut request)? };
        // SAFETY: the call has returned a new descriptor, which nobody else owns.
        Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
    }

    /// Brings in a page and copies it for verification. `None` if the page may be mapped already.
    pub(crate) fn inspect(&self, offset: u64, contents: &mut [u8]) -> io::Result<Option<Arrival>> {
        assert_eq!(contents.len(), PAGE_BYTES, "a page is what is copied");
        let mut request = Inspect { offset, contents: contents.as_mut_ptr() as u64, arrival: 0 };
        // SAFETY: the request reads and writes this structure, and writes a page to where it says, which is borrowed.
        unsafe { ioctl(&self.descriptor, INSPECT, &raw mut request)? };
        Ok(NonZeroU64::new(request.arrival).map(Arrival))
    }

    /// Allows the module to map a verified page. False if it has left memory since, even if it has come again.
    pub(crate) fn allow_mapping(&self, offset: u64, Arrival(arrival): Arrival) -> io::Result<bool> {
        let mut request = Admit { offset, arrival: arrival.get() };
        // SAFETY: the request reads this structure.
        match unsafe { ioctl(&self.descriptor, ADMIT, &raw mut request) } {
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => Ok(false),
            allowed => allowed.map(|_| true),
        }
    }

    /// Fills an unverified page with a pattern, until it is evicted.
    pub(crate) fn poison(&self, offset: u64, pattern: [u8; 8]) -> io::Result<()> {
        let mut request = Poison { offset, pattern };
        // SAFETY: the request reads this structure, and changes a page that nobody has mapped.
        unsafe { ioctl(&self.descriptor, POISON, &raw mut request).map(drop) }
    }

    /// Writes all dirty pages, and flushes the backing.
    pub(crate) fn sync(&self) -> io::Result<()> {
        Ok(rustix::fs::fdatasync(&self.descriptor)?)
    }
}

impl AsFd for Attachment {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

fn usage(descriptor: &OwnedFd) -> io::Result<ModuleUsage> {
    let mut usage = ModuleUsage::default();
    // SAFETY: the request writes this structure.
    unsafe { ioctl(descriptor, USAGE, &raw mut usage)? };
    Ok(usage)
}

/// # Safety
/// `argument` points to the structure that the request reads and writes.
unsafe fn ioctl<T>(descriptor: &OwnedFd, request: Opcode, argument: *mut T) -> io::Result<i32> {
    // SAFETY: the caller vouches for the argument.
    let result = unsafe { libc::ioctl(descriptor.as_raw_fd(), request as _, argument) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::mem::offset_of;
    use std::path::Path;
    use std::process::Command;

    use super::*;

    /// A line for each request, size and offset, as C and as Rust see them.
    macro_rules! seen {
        ($lines:ident, $c:literal = $value:expr) => {
            $lines.push(($c.to_owned(), u64::from($value as u32)));
        };
        ($lines:ident, $structure:ident is $c:literal: $($field:ident),*) => {
            $lines.push((format!("sizeof(struct {})", $c), size_of::<$structure>() as u64));
            $($lines.push((
                format!("offsetof(struct {}, {})", $c, stringify!($field)),
                offset_of!($structure, $field) as u64,
            ));)*
        };
    }

    /// The definitions here and in the header that other programs include are the same.
    #[test]
    fn the_header_says_the_same() {
        let mut lines: Vec<(String, u64)> = Vec::new();
        seen!(lines, Reserve is "vmio_reserve": pages);
        seen!(lines, Attach is "vmio_attach": fd, flags, limit_pages);
        seen!(lines, Priority is "vmio_priority": offset, length, priority, reserved);
        seen!(lines, ByteRange is "vmio_byte_range": offset, length);
        seen!(lines, ModuleUsage is "vmio_usage": pages, resident, dirty, pinned, first_dirty, flush_failed);
        seen!(lines, Resident is "vmio_resident": offset, length, numbers, room);
        seen!(lines, Pin is "vmio_pin": address, length, flags, reserved);
        seen!(lines, Inspect is "vmio_inspect": offset, contents, arrival);
        seen!(lines, Admit is "vmio_admit": offset, arrival);
        seen!(lines, Poison is "vmio_poison": offset, pattern);
        #[rustfmt::skip]
        seen!(lines, ModuleCounts is "vmio_counts": loads_missed, stores_missed, fresh, found, made_writable, reads, pages_read,
            pages_read_ahead, read_errors, spans_unmapped, pages_evicted, writes, pages_written, write_errors);
        seen!(lines, "VMIO_RESERVE" = RESERVE);
        seen!(lines, "VMIO_ATTACH" = ATTACH);
        seen!(lines, "VMIO_PRIORITIZE" = PRIORITIZE);
        seen!(lines, "VMIO_FRESH" = FRESH);
        seen!(lines, "VMIO_READ_AHEAD" = READ_AHEAD);
        seen!(lines, "VMIO_RESIZE" = RESIZE);
        seen!(lines, "VMIO_VERSION" = VERSION);
        seen!(lines, "VMIO_USAGE" = USAGE);
        seen!(lines, "VMIO_RESIDENT" = RESIDENT);
        seen!(lines, "VMIO_EVICT" = EVICT);
        seen!(lines, "VMIO_DISCARD" = DISCARD);
        seen!(lines, "VMIO_PIN" = PIN);
        seen!(lines, "VMIO_INSPECT" = INSPECT);
        seen!(lines, "VMIO_ADMIT" = ADMIT);
        seen!(lines, "VMIO_POISON" = POISON);
        seen!(lines, "VMIO_COUNTS" = COUNTS);
        seen!(lines, "VMIO_PIN_WRITE" = PIN_WRITE);
        seen!(lines, "VMIO_ATTACH_VETTED" = ATTACH_VETTED);
        seen!(lines, "VMIO_ABI" = ABI);
        let prints = lines.iter().map(|(name, _)| format!("printf(\"%llu\\n\", (unsigned long long)({name}));\n"));
        let program = format!(
            "#include <stddef.h>\n#include <stdio.h>\n#include \"vmio.h\"\nint main(void) {{\n{}return 0;\n}}\n",
            prints.collect::<String>()
        );
        let folder = tempfile::tempdir().unwrap();
        let (source, executable) = (folder.path().join("seen.c"), folder.path().join("seen"));
        fs::write(&source, program).unwrap();
        let header = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernel/uapi");
        let compiled = Command::new("cc").arg("-I").arg(header).arg(&source).arg("-o").arg(&executable).status();
        assert!(compiled.unwrap().success());
        let printed = String::from_utf8(Command::new(&executable).output().unwrap().stdout).unwrap();
        let printed: Vec<u64> = printed.lines().map(|line| line.parse().unwrap()).collect();
        assert_eq!(printed.len(), lines.len());
        for ((name, ours), c) in lines.into_iter().zip(printed) {
            assert_eq!(ours, c, "{name}");
        }
    }
}
