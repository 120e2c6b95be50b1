//! What a read of 4 KiB costs the thread that waits for it, each way that vmio has to a device.
//!
//!     cargo build --release -p vmio --example io_instructions
//!     cargo xtask vm --accelerator counted --cores 1 -- target/release/examples/io_instructions /dev/ng0n1 /run/dax/file
//!
//! It is the thread's CPU time: nanoseconds on a machine, and in a guest with that accelerator instructions, the kernel's
//! among them. What interrupts do while the thread sleeps is not in it. The first line tells which it is.

use std::arch::asm;
use std::error::Error;
use std::os::fd::AsRawFd;
use std::path::Path;

use io_uring::{IoUring, opcode, types};
use vmio::Access;
use vmio::backing::{Backing, DaxBacking, FileBacking, NvmeBacking, Submission};

const READS: u64 = 2000;
const PAGE: usize = 4096;

#[repr(align(4096))]
struct Page([u8; PAGE]);

fn main() -> Result<(), Box<dyn Error>> {
    println!("{:<44} {:>8.2}", "one instruction", spin() as f64 / 2e7);
    for argument in std::env::args_os().skip(1) {
        let path = Path::new(&argument);
        match path.to_str() {
            Some(name) if name.starts_with("/dev/ng") => nvme(path, Path::new(&name.replace("/ng", "/nvme")))?,
            _ => dax(path)?,
        }
    }
    Ok(())
}

fn nvme(device: &Path, block_device: &Path) -> Result<(), Box<dyn Error>> {
    let blocks = FileBacking::open(block_device, Access::ReadOnly)?;
    read("pread, O_DIRECT", &blocks)?;
    uring("io_uring, O_DIRECT", &blocks)?;
    for (what, way) in [
        ("NvmeBacking, one command by ioctl", Submission::Ioctl),
        ("NvmeBacking, io_uring with interrupts", Submission::Interrupting),
        ("NvmeBacking, io_uring polled (with the wait)", Submission::Polled),
    ] {
        read(what, &NvmeBacking::open_with(device, Access::ReadOnly, way)?)?;
        if way == Submission::Interrupting {
            read_registered(
                "  into a registered buffer, as misses do",
                &NvmeBacking::open_with(device, Access::ReadOnly, way)?,
            )?;
        }
    }
    Ok(())
}

fn dax(file: &Path) -> Result<(), Box<dyn Error>> {
    read("pread of a file with DAX, O_DIRECT", &FileBacking::open(file, Access::ReadOnly)?)?;
    read("DaxBacking", &DaxBacking::open(file, Access::ReadOnly)?)
}

fn read(what: &str, backing: &dyn Backing) -> Result<(), Box<dyn Error>> {
    let mut page = Box::new(Page([0; PAGE]));
    measure(what, backing.len(), |offset| Ok(backing.read_at(offset, &mut page.0).map(drop)?))
}

fn read_registered(what: &str, backing: &dyn Backing) -> Result<(), Box<dyn Error>> {
    let mut page = Box::new(Page([0; PAGE]));
    let start = page.0.as_ptr() as usize;
    backing.prefer_buffers(Some(start..start + PAGE));
    measure(what, backing.len(), |offset| Ok(backing.read_at(offset, &mut page.0).map(drop)?))?;
    backing.prefer_buffers(None);
    Ok(())
}

/// As a program would that reads a page at a time: with a registered file and a registered buffer.
fn uring(what: &str, device: &FileBacking) -> Result<(), Box<dyn Error>> {
    let mut page = Box::new(Page([0; PAGE]));
    let mut ring = IoUring::new(1)?;
    let file = device.direct_reads().ok_or("no direct reads")?;
    ring.submitter().register_files(&[file.as_raw_fd()])?;
    let buffer = libc::iovec { iov_base: page.0.as_mut_ptr().cast(), iov_len: PAGE };
    // SAFETY: the page lives longer than the ring.
    unsafe { ring.submitter().register_buffers(&[buffer])? };
    measure(what, device.len(), |offset| {
        let entry = opcode::ReadFixed::new(types::Fixed(0), page.0.as_mut_ptr(), PAGE as u32, 0);
        // SAFETY: the page is the kernel's until the completion below.
        unsafe { ring.submission().push(&entry.offset(offset).build())? };
        ring.submit_and_wait(1)?;
        let read = ring.completion().next().ok_or("no completion")?.result();
        if read == PAGE as i32 { Ok(()) } else { Err(format!("read {read}").into()) }
    })
}

/// Reads pages far from each other and prints the CPU time of each.
fn measure(
    what: &str,
    len: u64,
    mut read: impl FnMut(u64) -> Result<(), Box<dyn Error>>,
) -> Result<(), Box<dyn Error>> {
    let pages = len / PAGE as u64;
    let mut offsets = (0..).map(|at: u64| at * 7919 % pages * PAGE as u64);
    // Maps what is mapped at a first touch.
    offsets.by_ref().take(READS as usize).try_for_each(&mut read)?;
    let before = cpu_time_ns();
    offsets.take(READS as usize).try_for_each(&mut read)?;
    println!("{what:<44} {:>8}", (cpu_time_ns() - before) / READS);
    Ok(())
}

fn cpu_time_ns() -> u64 {
    // SAFETY: fills a struct of integers of ours.
    let time = unsafe {
        let mut time: libc::timespec = std::mem::zeroed();
        libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time);
        time
    };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The CPU time of 20 million instructions.
fn spin() -> u64 {
    let before = cpu_time_ns();
    // SAFETY: counts a register down.
    unsafe { asm!("2:", "dec {0}", "jnz 2b", inout(reg) 10_000_000_u64 => _) };
    cpu_time_ns() - before
}
