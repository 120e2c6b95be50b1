//! What a read and a write of 4 KiB cost the processor, each way to a device that vmio has, and the usual ones.
//!
//! **It overwrites the NVMe drive that it is given**, all over and without asking: give it one that holds nothing.
//!
//!     cargo xtask vm-instructions
//!
//! runs it in a guest of one core whose clock counts instructions, with `/dev/ng0n1` and a file on persistent memory. A
//! thread of the lowest priority counts beside them, so that the core is never idle: what is missing of its count is
//! what they took, with system calls, interrupts and the switches to whoever waits and back.
//!
//! Who polls would count the time of the device, too. So those commands are submitted, left alone until they have ended,
//! and asked for then, once or twice; what leaving them alone takes is subtracted. If the device takes longer than that it says so, for then
//! the figure is of something else.

use std::arch::asm;
use std::error::Error;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use io_uring::{IoUring, cqueue, opcode, squeue, types};
use vmio::backing::{Backing, DaxBacking, FileBacking, NvmeBacking, Submission};
use vmio::{Access, Cache, Mapping, MappingOptions};

const TURNS: u64 = 50;
/// The same where each is left alone for long.
const PATIENT_TURNS: u64 = 15;
/// How often each is counted: the least is what counts, since other threads of the system only ever add to it.
const COUNTS: usize = 3;
const PAGE: usize = 4096;
/// Of a long write: what is one command for most devices.
const RUN_PAGES: usize = 32;
/// Longer than the device takes, also where a busy host emulates it: the guest's clock goes by instructions, the device's by the host's.
const LEFT_ALONE: Duration = Duration::from_millis(20);
/// Commands that are under way at once, where it is not one.
const DEPTH: usize = 8;
/// How often the device is, at most: what a command that is passed through has come to may only be told the next time.
const ASKED: usize = 2;
/// Of io_uring_enter.
const IORING_ENTER_GETEVENTS: u32 = 1;
/// How long the count by itself is looked at.
const LOOK: Duration = Duration::from_millis(200);

#[repr(align(4096))]
struct Page([u8; PAGE]);

#[repr(align(4096))]
struct Run([u8; RUN_PAGES * PAGE]);

type Outcome = Result<(), Box<dyn Error>>;

fn main() -> Outcome {
    let meter = Meter::start()?;
    println!("{:<72} {:>8.2}", "ns for an instruction (1.00 where they are counted)", meter.round_ns / 4.0);
    let nothing = meter.cost(PATIENT_TURNS, |_| {
        thread::sleep(LEFT_ALONE);
        Ok(())
    })?;
    let bench = Bench { meter, left_alone: nothing };
    for argument in std::env::args_os().skip(1) {
        let path = Path::new(&argument);
        match path.to_str() {
            Some(name) if name.starts_with("/dev/ng") => bench.nvme(path, Path::new(&name.replace("/ng", "/nvme")))?,
            _ => bench.dax(path)?,
        }
    }
    Ok(())
}

/// A thread that counts whenever the core has nothing else to do.
struct Meter {
    rounds: Arc<AtomicU64>,
    /// A round of its loop, four instructions, with its share of timer interrupts.
    round_ns: f64,
}

impl Meter {
    fn start() -> Result<Meter, Box<dyn Error>> {
        // SAFETY: takes a set of cores of ours, which has the first one in it; and so do threads that start later.
        unsafe {
            let mut first: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(0, &mut first);
            if libc::sched_setaffinity(0, size_of_val(&first), &raw const first) != 0 {
                return Err(std::io::Error::last_os_error().into());
            }
        }
        let rounds = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&rounds);
        thread::spawn(move || {
            // SAFETY: takes a struct of an integer; the thread is this one.
            unsafe {
                let parameters = libc::sched_param { sched_priority: 0 };
                assert_eq!(libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameters), 0);
            }
            // SAFETY: stores to the word alone, which lives as long as this, and never ends.
            unsafe {
                asm!(
                    "2:",
                    "inc {count}",
                    "mov [{rounds}], {count}",
                    "test {rounds}, {rounds}",
                    "jnz 2b",
                    count = inout(reg) 0_u64 => _,
                    rounds = in(reg) counted.as_ptr(),
                )
            };
        });
        let mut meter = Meter { rounds, round_ns: 0.0 };
        thread::sleep(LOOK);
        let look = || {
            let (before, started) = (meter.rounds(), Instant::now());
            thread::sleep(LOOK);
            started.elapsed().as_nanos() as f64 / (meter.rounds() - before) as f64
        };
        meter.round_ns = (0..COUNTS).map(|_| look()).fold(f64::INFINITY, f64::min);
        Ok(meter)
    }

    fn rounds(&self) -> u64 {
        self.rounds.load(Ordering::Relaxed)
    }

    /// What an action takes of the core, each of many times: nanoseconds, or instructions.
    fn cost(&self, turns: u64, mut action: impl FnMut(u64) -> Outcome) -> Result<f64, Box<dyn Error>> {
        // What is done once, at a first touch.
        (0..turns).try_for_each(&mut action)?;
        let mut least = f64::INFINITY;
        for count in 1..=COUNTS as u64 {
            let (before, started) = (self.rounds(), Instant::now());
            (count * turns..(count + 1) * turns).try_for_each(&mut action)?;
            let counted = (self.rounds() - before) as f64 * self.round_ns;
            least = least.min((started.elapsed().as_nanos() as f64 - counted) / turns as f64);
        }
        Ok(least)
    }
}

struct Bench {
    meter: Meter,
    /// What it takes to leave a read alone.
    left_alone: f64,
}

impl Bench {
    fn nvme(&self, device: &Path, block_device: &Path) -> Outcome {
        let blocks = FileBacking::open(block_device, Access::ReadWrite)?;
        self.read("block device, pread with O_DIRECT", &blocks)?;
        self.write("block device, pwrite with O_DIRECT", &blocks, 1)?;
        self.block_device(&blocks)?;
        for (what, way) in
            [("NvmeBacking, ioctl", Submission::Ioctl), ("NvmeBacking, io_uring, interrupts", Submission::Interrupting)]
        {
            let backing = NvmeBacking::open_with(device, Access::ReadWrite, way)?;
            self.read(&format!("{what}, read"), &backing)?;
            if way != Submission::Ioctl {
                self.read_registered(&format!("{what}, read, registered buffer"), &backing)?;
                self.writes(what, &backing)?;
            }
        }
        self.commands(device, &NvmeBacking::open_with(device, Access::ReadWrite, Submission::Polled)?)?;
        self.write_back(NvmeBacking::open_with(device, Access::ReadWrite, Submission::Interrupting)?)
    }

    fn dax(&self, file: &Path) -> Outcome {
        self.read("file with DAX, pread with O_DIRECT", &FileBacking::open(file, Access::ReadOnly)?)?;
        self.read("file with DAX, DaxBacking", &DaxBacking::open(file, Access::ReadOnly)?)
    }

    fn report(&self, what: &str, cost: f64) {
        println!("{what:<72} {cost:>8.0}");
    }

    fn read(&self, what: &str, backing: &dyn Backing) -> Outcome {
        let mut page = Box::new(Page([0; PAGE]));
        let cost =
            self.meter.cost(TURNS, |turn| Ok(backing.read_at(place(turn, backing.len()), &mut page.0).map(drop)?))?;
        self.report(what, cost);
        Ok(())
    }

    fn read_registered(&self, what: &str, backing: &dyn Backing) -> Outcome {
        let mut page = Box::new(Page([0; PAGE]));
        let start = page.0.as_ptr() as usize;
        backing.prefer_buffers(slice::from_ref(&(start..start + PAGE)));
        let cost =
            self.meter.cost(TURNS, |turn| Ok(backing.read_at(place(turn, backing.len()), &mut page.0).map(drop)?))?;
        backing.prefer_buffers(&[]);
        self.report(what, cost);
        Ok(())
    }

    fn write(&self, what: &str, backing: &dyn Backing, count: usize) -> Outcome {
        let pages = Box::new(Run([7; RUN_PAGES * PAGE]));
        self.write_from(what, backing, &pages.0[..count * PAGE])
    }

    fn write_from(&self, what: &str, backing: &dyn Backing, bytes: &[u8]) -> Outcome {
        // Half of it, so that a long one does not pass the end.
        let cost = self.meter.cost(TURNS, |turn| Ok(backing.write_at(place(turn, backing.len() / 2), bytes)?))?;
        self.report(what, cost);
        Ok(())
    }

    /// From memory that is registered, as write-back does, and from other memory.
    fn writes(&self, what: &str, backing: &dyn Backing) -> Outcome {
        let run = Box::new(Run([7; RUN_PAGES * PAGE]));
        let start = run.0.as_ptr() as usize;
        for registered in [false, true] {
            backing.prefer_buffers(registered.then(|| start..start + run.0.len()).as_slice());
            let buffer = if registered { ", registered buffer" } else { "" };
            for count in [1, RUN_PAGES] {
                let what = format!("{what}, write of {count} pages{buffer}");
                self.write_from(&what, backing, &run.0[..count * PAGE])?;
            }
        }
        backing.prefer_buffers(&[]);
        Ok(())
    }

    /// The same through a mapping: stores to pages in memory, which are protected, and their write-back.
    fn write_back(&self, backing: NvmeBacking) -> Outcome {
        let cache = Cache::builder().capacity(16 << 20).build()?;
        let map = Mapping::open(&cache, backing, MappingOptions::new())?;
        let run = vec![7; RUN_PAGES * PAGE];
        let cost = self.meter.cost(TURNS, |_| {
            map.write_at(0, &run)?;
            Ok(map.flush(0..run.len() as u64)?)
        })?;
        self.report(&format!("mapping, stores to {RUN_PAGES} pages and their flush"), cost);
        Ok(map.close()?)
    }

    /// As a program would that reads and writes pages by io_uring, with and without interrupts.
    fn block_device(&self, blocks: &FileBacking) -> Outcome {
        let file = blocks.direct_reads().ok_or("no direct reads")?;
        for polls in [false, true] {
            let mut ring = Ring::<squeue::Entry, cqueue::Entry>::new(file.as_raw_fd(), polls)?;
            let what = "block device, O_DIRECT, registered buffer";
            let read = |offset, page: *mut u8| {
                opcode::ReadFixed::new(types::Fixed(0), page, PAGE as u32, 0).offset(offset).build()
            };
            self.ring(&format!("{what}, read"), &mut ring, blocks.len(), PAGE as i32, read)?;
            let write = |offset, page: *mut u8| {
                opcode::WriteFixed::new(types::Fixed(0), page, PAGE as u32, 0).offset(offset).build()
            };
            self.ring(&format!("{what}, write"), &mut ring, blocks.len(), PAGE as i32, write)?;
        }
        Ok(())
    }

    /// What NvmeBacking does, without what is around it.
    fn commands(&self, device: &Path, backing: &NvmeBacking) -> Outcome {
        /// `_IO('N', 0x40)`
        const NVME_IOCTL_ID: libc::c_ulong = 0x4E40;
        /// `_IOWR('N', 0x80, struct nvme_uring_cmd)`
        const NVME_URING_CMD_IO: u32 = 0xC048_4E80;
        let file = std::fs::File::open(device)?;
        // SAFETY: the request takes no argument.
        let namespace = unsafe { libc::ioctl(file.as_raw_fd(), NVME_IOCTL_ID) };
        let (read, write) = (("read", 0x02), ("write", 0x01));
        for (polls, registered, (verb, command)) in [
            (false, None, read),
            (false, Some(0), read),
            (false, Some(0), write),
            (true, None, read),
            (true, Some(0), read),
            (true, Some(0), write),
        ] {
            let mut ring = Ring::<squeue::Entry128, cqueue::Entry32>::new(file.as_raw_fd(), polls)?;
            let entry = |offset: u64, page: *mut u8| {
                let block = offset / backing.block_bytes();
                let words = [
                    command,
                    namespace as u32,
                    0,
                    0,
                    0,
                    0,
                    page as u64 as u32,
                    (page as u64 >> 32) as u32,
                    0,
                    PAGE as u32,
                    block as u32,
                    (block >> 32) as u32,
                    (PAGE as u64 / backing.block_bytes()) as u32 - 1,
                ];
                let mut bytes_of_command = [0; 80];
                for (place, word) in bytes_of_command.chunks_exact_mut(4).zip(words) {
                    place.copy_from_slice(&word.to_le_bytes());
                }
                opcode::UringCmd80::new(types::Fixed(0), NVME_URING_CMD_IO)
                    .cmd(bytes_of_command)
                    .buf_index(registered)
                    .build()
            };
            let buffer = if registered.is_some() { ", registered buffer" } else { "" };
            self.ring(&format!("NVMe commands{buffer}, {verb}"), &mut ring, backing.len(), 0, entry)?;
        }
        Ok(())
    }

    /// What a transfer by a ring costs, whose entry is made of its place and of its page: one at a time, and several at once.
    fn ring<S: squeue::EntryMarker, C: cqueue::EntryMarker>(
        &self,
        what: &str,
        ring: &mut Ring<S, C>,
        len: u64,
        success: i32,
        entry: impl Fn(u64, *mut u8) -> S,
    ) -> Outcome {
        for depth in [1, DEPTH] {
            let mut late = 0;
            let turns = if ring.polls { PATIENT_TURNS } else { TURNS };
            let cost = self.meter.cost(turns, |turn| {
                for number in 0..depth as u64 {
                    let entry = entry(place(turn * depth as u64 + number, len), ring.page.0.as_mut_ptr());
                    // SAFETY: the page is the kernel's until the completions below, and lives longer than the ring.
                    unsafe { ring.uring.submission().push(&entry)? };
                }
                if ring.polls {
                    ring.uring.submit()?;
                    thread::sleep(LEFT_ALONE);
                    for _ in 0..ASKED {
                        if ring.uring.completion().len() < depth {
                            // Asks the device, and does not wait for it.
                            // SAFETY: there is no argument.
                            unsafe { ring.uring.submitter().enter::<()>(0, 0, IORING_ENTER_GETEVENTS, None)? };
                        }
                    }
                    late += u64::from(ring.uring.completion().len() < depth);
                }
                // Who polls gives up when another thread is to run.
                while ring.uring.completion().len() < depth {
                    ring.uring.submit_and_wait(depth)?;
                }
                for completion in ring.uring.completion() {
                    let result = Into::<cqueue::Entry>::into(completion).result();
                    if result != success {
                        return Err(format!("a command ended with {result}").into());
                    }
                }
                Ok(())
            })?;
            let cost = (cost - if ring.polls { self.left_alone } else { 0.0 }) / depth as f64;
            let how = if ring.polls { "polled" } else { "interrupts" };
            self.report(&format!("io_uring, {how}, {depth} at once: {what}"), cost);
            if late > 0 {
                println!("    the device took longer than {LEFT_ALONE:?} {late} times: this is no count of it");
            }
        }
        Ok(())
    }
}

/// A ring whose registered file is a device, and whose registered buffer a page.
struct Ring<S: squeue::EntryMarker, C: cqueue::EntryMarker> {
    uring: IoUring<S, C>,
    polls: bool,
    page: Box<Page>,
}

impl<S: squeue::EntryMarker, C: cqueue::EntryMarker> Ring<S, C> {
    fn new(device: i32, polls: bool) -> Result<Self, Box<dyn Error>> {
        let mut builder = IoUring::<S, C>::builder();
        if polls {
            builder.setup_iopoll();
        }
        let uring = builder.build(DEPTH as u32)?;
        let mut page = Box::new(Page([0; PAGE]));
        uring.submitter().register_files(&[device])?;
        let buffer = libc::iovec { iov_base: page.0.as_mut_ptr().cast(), iov_len: PAGE };
        // SAFETY: the page lives longer than the ring.
        unsafe { uring.submitter().register_buffers(&[buffer])? };
        Ok(Ring { uring, polls, page })
    }
}

/// Where to transfer: pages far from each other.
fn place(turn: u64, len: u64) -> u64 {
    turn * 7919 % (len / PAGE as u64) * PAGE as u64
}
