//! /dev/vmio: how programs reach the kernel module, as `kernel/uapi/vmio.h` says.

use std::io;
use std::mem::MaybeUninit;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::ioctl::{Opcode, opcode};

use crate::sys::PAGE_BYTES;

/// The version of the interface that is written down here: the module must have it, or a newer one.
pub(crate) const ABI: u32 = 4;
/// The most pages that are read ahead of a missed one.
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

/// Page numbers that one call lists.
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

/// Identifies one arrival of a page in memory: the page may have been evicted since, and come again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrival(NonZeroU64);

/// What a pool or an attachment has, in pages: `struct vmio_usage`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct ModuleUsage {
    /// That may be in memory.
    pub(crate) pages: u64,
    /// In memory, or on their way in.
    pub(crate) resident: u64,
    /// Of these, newer than the backing.
    pub(crate) dirty: u64,
    /// Held by pins.
    pub(crate) pinned: u64,
    /// Of an attachment, the first dirty page if there is one.
    pub(crate) first_dirty: u64,
    /// Of an attachment, not 0 if a flush has failed: all syncs fail then.
    pub(crate) flush_failed: u64,
}

/// What was done for a pool since it was reserved: `struct vmio_counts`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct ModuleCounts {
    /// Loads that found their page absent, fresh ones among them.
    pub(crate) loads_missed: u64,
    /// Stores that did.
    pub(crate) stores_missed: u64,
    /// Of both, those that were answered with zeros.
    pub(crate) fresh: u64,
    /// Minor faults: touches of an inactive page.
    pub(crate) found: u64,
    /// Stores to a page that was mapped for loads, or was brought in by them.
    pub(crate) made_writable: u64,
    /// Requests.
    pub(crate) reads: u64,
    /// Of these.
    pub(crate) pages_read: u64,
    /// Of these, those beside a missed one.
    pub(crate) pages_read_ahead: u64,
    /// Requests.
    pub(crate) read_errors: u64,
    /// Each with a TLB shootdown.
    pub(crate) spans_unmapped: u64,
    /// Those that were discarded, too.
    pub(crate) pages_evicted: u64,
    /// Requests.
    pub(crate) writes: u64,
    /// Of these.
    pub(crate) pages_written: u64,
    /// Requests.
    pub(crate) write_errors: u64,
}

/// An open /dev/vmio, which has memory for files once some is reserved.
pub(crate) struct ModulePool {
    device: OwnedFd,
}

impl ModulePool {
    /// Opens the device.
    pub(crate) fn open() -> io::Result<Self> {
        Ok(ModulePool { device: rustix::fs::open(c"/dev/vmio", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())? })
    }

    /// The version of the interface that the module has; ENOTTY if it is older than versions are.
    pub(crate) fn version(&self) -> io::Result<u32> {
        let mut version = 0_u32;
        // SAFETY: the request writes a u32.
        unsafe { ioctl(&self.device, VERSION, &raw mut version)? };
        Ok(version)
    }

    /// Takes memory for this many pages, once.
    pub(crate) fn reserve(&self, pages: u64) -> io::Result<()> {
        let mut reserve = Reserve { pages };
        // SAFETY: the request reads this structure.
        unsafe { ioctl(&self.device, RESERVE, &raw mut reserve).map(drop) }
    }

    /// Changes that. A failure may leave any size between.
    pub(crate) fn resize(&self, pages: u64) -> io::Result<()> {
        let mut reserve = Reserve { pages };
        // SAFETY: the request reads this structure.
        unsafe { ioctl(&self.device, RESIZE, &raw mut reserve).map(drop) }
    }

    /// What it has, and what is attached to it.
    pub(crate) fn usage(&self) -> io::Result<ModuleUsage> {
        usage(&self.device)
    }

    /// What was done for it.
    pub(crate) fn counts(&self) -> io::Result<ModuleCounts> {
        let mut counts = ModuleCounts::default();
        // SAFETY: the request writes this structure.
        unsafe { ioctl(&self.device, COUNTS, &raw mut counts)? };
        Ok(counts)
    }

    /// Attaches a file or device that was opened for direct I/O. With `verify_before_map` no page of it
    /// is mapped before [`Attachment::allow_mapping`].
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

/// A file or device that the module has attached: what is mapped. Ranges are of its bytes.
pub(crate) struct Attachment {
    descriptor: OwnedFd,
}

impl Attachment {
    /// What the pages that lie in a range as a whole are worth, 0 (evicted last) to 255.
    pub(crate) fn prioritize(&self, bytes: &Range<u64>, priority: u8) -> io::Result<()> {
        let length = bytes.end - bytes.start;
        let mut request = Priority { offset: bytes.start, length, priority: priority.into(), reserved: 0 };
        // SAFETY: the request reads this structure.
        unsafe { ioctl(&self.descriptor, PRIORITIZE, &raw mut request).map(drop) }
    }

    /// What the backing has in a range does not matter.
    pub(crate) fn mark_fresh(&self, bytes: &Range<u64>) -> io::Result<()> {
        self.of_range(FRESH, bytes).map(drop)
    }

    /// Writes what is dirty of a range, and takes from memory what nobody holds. How many pages are held, and stay.
    pub(crate) fn evict(&self, bytes: &Range<u64>) -> io::Result<u64> {
        self.of_range(EVICT, bytes)
    }

    /// Takes from memory what nobody holds of a range, without writing it. How many pages are held, and stay.
    pub(crate) fn discard(&self, bytes: &Range<u64>) -> io::Result<u64> {
        self.of_range(DISCARD, bytes)
    }

    fn of_range(&self, request: Opcode, bytes: &Range<u64>) -> io::Result<u64> {
        let mut range = ByteRange::of(bytes);
        // SAFETY: all requests of ranges read this structure, and change contents of mapped memory in a way that their
        // callers ask for.
        unsafe { ioctl(&self.descriptor, request, &raw mut range).map(|answer| answer as u64) }
    }

    /// How many pages come with a missed one that continues a sequence: 0 to [`READ_AHEAD_PAGES_MAX`].
    pub(crate) fn read_ahead(&self, mut pages: u32) -> io::Result<()> {
        // SAFETY: the request reads a u32.
        unsafe { ioctl(&self.descriptor, READ_AHEAD, &raw mut pages).map(drop) }
    }

    /// What it has.
    pub(crate) fn usage(&self) -> io::Result<ModuleUsage> {
        usage(&self.descriptor)
    }

    /// Calls `each` with the numbers of the pages of a range that are in memory, upwards.
    pub(crate) fn for_each_resident(&self, bytes: &Range<u64>, each: &mut dyn FnMut(u64)) -> io::Result<()> {
        // Not cleared: a caller that asks about one page asks often.
        let mut numbers = [MaybeUninit::<u64>::uninit(); NUMBERS];
        let mut offset = bytes.start;
        while offset < bytes.end {
            let room = numbers.len() as u64;
            let mut request =
                Resident { offset, length: bytes.end - offset, numbers: numbers.as_mut_ptr() as u64, room };
            // SAFETY: the request reads this structure, and writes no more numbers than there is room for.
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

    /// Has pages come into memory, and keeps them there until the descriptor is closed. `addresses` is where they are mapped.
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

    /// Brings in a page of a file whose pages are verified before they are mapped, and copies it; `None` if it may be mapped already.
    pub(crate) fn inspect(&self, offset: u64, contents: &mut [u8]) -> io::Result<Option<Arrival>> {
        assert_eq!(contents.len(), PAGE_BYTES, "a page is what is copied");
        let mut request = Inspect { offset, contents: contents.as_mut_ptr() as u64, arrival: 0 };
        // SAFETY: the request reads and writes this structure, and writes a page to where it says, which is borrowed.
        unsafe { ioctl(&self.descriptor, INSPECT, &raw mut request)? };
        Ok(NonZeroU64::new(request.arrival).map(Arrival))
    }

    /// Lets a page be mapped that was verified; false if it is no longer in memory.
    pub(crate) fn allow_mapping(&self, offset: u64, Arrival(arrival): Arrival) -> io::Result<bool> {
        let mut request = Admit { offset, arrival: arrival.get() };
        // SAFETY: the request reads this structure.
        match unsafe { ioctl(&self.descriptor, ADMIT, &raw mut request) } {
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => Ok(false),
            allowed => allowed.map(|_| true),
        }
    }

    /// Fills a page that was not verified with a pattern, until it is evicted.
    pub(crate) fn poison(&self, offset: u64, pattern: [u8; 8]) -> io::Result<()> {
        let mut request = Poison { offset, pattern };
        // SAFETY: the request reads this structure, and changes a page that nobody has mapped.
        unsafe { ioctl(&self.descriptor, POISON, &raw mut request).map(drop) }
    }

    /// Writes all that is dirty, and flushes the backing.
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
/// `argument` points to what the request reads and writes.
unsafe fn ioctl<T>(descriptor: &OwnedFd, request: Opcode, argument: *mut T) -> io::Result<i32> {
    // SAFETY: the caller vouches for the argument.
    let result = unsafe { libc::ioctl(descriptor.as_raw_fd(), request as _, argument) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

#[cfg(all(test, not(loom)))]
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

    /// What is written down twice, here and in the header that other programs include, is the same.
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
