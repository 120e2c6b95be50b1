//! A device in memory that outlives its mapping, counts what is done to it, and fails where it is told to.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use vmio::backing::{Access, Backing};

use super::PAGE;

/// Reading the page gives EIO.
pub const READ_EIO: u8 = 1 << 0;
/// Reading stops in the middle of the page, as if the device ended there.
pub const READ_SHORT: u8 = 1 << 1;
/// Writing the page gives EIO.
pub const WRITE_EIO: u8 = 1 << 2;
/// Writing the page gives ENOSPC.
pub const WRITE_ENOSPC: u8 = 1 << 3;
/// Both ways of failing to read.
pub const READS: u8 = READ_EIO | READ_SHORT;
/// Both ways of failing to write.
pub const WRITES: u8 = WRITE_EIO | WRITE_ENOSPC;

/// The device. Nothing in it allocates or locks once it is built, so all of it may run in the trap path.
pub struct Device {
    words: Box<[AtomicU64]>,
    pages: Box<[Page]>,
    len: AtomicU64,
    read_delay_us: AtomicU64,
    reads_are_held: AtomicBool,
    write_delay_us: AtomicU64,
    flush_fails: AtomicBool,
    flushes: AtomicU64,
    writes_begun: AtomicU64,
}

#[derive(Default)]
struct Page {
    faults: AtomicU8,
    reads: AtomicU32,
    writes: AtomicU32,
}

impl Device {
    /// `len` bytes of zeros.
    pub fn new(len: u64) -> Arc<Self> {
        let pages = len.div_ceil(PAGE);
        Arc::new(Device {
            words: (0..pages * PAGE / 8).map(|_| AtomicU64::new(0)).collect(),
            pages: (0..pages).map(|_| Page::default()).collect(),
            len: AtomicU64::new(len),
            read_delay_us: AtomicU64::new(0),
            reads_are_held: AtomicBool::new(false),
            write_delay_us: AtomicU64::new(0),
            flush_fails: AtomicBool::new(false),
            flushes: AtomicU64::new(0),
            writes_begun: AtomicU64::new(0),
        })
    }

    /// `pages` pages of zeros.
    pub fn of_pages(pages: u64) -> Arc<Self> {
        Self::new(pages * PAGE)
    }

    /// What a mapping is opened over.
    pub fn backing(self: &Arc<Self>) -> DeviceBacking {
        DeviceBacking(Arc::clone(self))
    }

    /// The word at a byte offset.
    pub fn word(&self, offset: u64) -> u64 {
        self.words[(offset / 8) as usize].load(Ordering::SeqCst)
    }

    /// Changes the word at a byte offset behind everybody's back.
    pub fn set_word(&self, offset: u64, value: u64) {
        self.words[(offset / 8) as usize].store(value, Ordering::SeqCst);
    }

    /// All bytes.
    pub fn contents(&self) -> Vec<u8> {
        let mut bytes: Vec<u8> = self.words.iter().flat_map(|word| word.load(Ordering::SeqCst).to_le_bytes()).collect();
        bytes.truncate(self.len.load(Ordering::SeqCst) as usize);
        bytes
    }

    /// Switches exactly these faults on for a page.
    pub fn set_faults(&self, page: u64, faults: u8) {
        self.pages[page as usize].faults.store(faults, Ordering::SeqCst);
    }

    /// The faults that are on for a page.
    pub fn faults(&self, page: u64) -> u8 {
        self.pages[page as usize].faults.load(Ordering::SeqCst)
    }

    /// Switches these faults on for all pages, or all off with 0.
    pub fn set_all_faults(&self, faults: u8) {
        self.pages.iter().for_each(|page| page.faults.store(faults, Ordering::SeqCst));
    }

    /// Makes every read take that long before it looks at the device.
    pub fn slow_reads(&self, delay: Duration) {
        self.read_delay_us.store(delay.as_micros() as u64, Ordering::SeqCst);
    }

    /// Makes every read wait until they are let go.
    pub fn hold_reads(&self, hold: bool) {
        self.reads_are_held.store(hold, Ordering::SeqCst);
    }

    /// Makes every write take that long before its bytes land.
    pub fn slow_writes(&self, delay: Duration) {
        self.write_delay_us.store(delay.as_micros() as u64, Ordering::SeqCst);
    }

    /// Makes flushes fail.
    pub fn fail_flushes(&self, fail: bool) {
        self.flush_fails.store(fail, Ordering::SeqCst);
    }

    /// How often it was flushed.
    pub fn flushes(&self) -> u64 {
        self.flushes.load(Ordering::SeqCst)
    }

    /// How often a page was read.
    pub fn reads_of(&self, page: u64) -> u32 {
        self.pages[page as usize].reads.load(Ordering::SeqCst)
    }

    /// How often a page was written.
    pub fn writes_of(&self, page: u64) -> u32 {
        self.pages[page as usize].writes.load(Ordering::SeqCst)
    }

    /// How many write requests have begun; those under way are not seen otherwise.
    pub fn writes_begun(&self) -> u64 {
        self.writes_begun.load(Ordering::SeqCst)
    }

    /// How many page writes there were in all.
    pub fn writes(&self) -> u64 {
        self.pages.iter().map(|page| u64::from(page.writes.load(Ordering::SeqCst))).sum()
    }

    fn words_from(&self, offset: u64, bytes: usize) -> &[AtomicU64] {
        &self.words[(offset / 8) as usize..((offset as usize + bytes).div_ceil(8)).min(self.words.len())]
    }
}

fn pause(delay_us: &AtomicU64) {
    let delay = delay_us.load(Ordering::SeqCst);
    if delay > 0 {
        std::thread::sleep(Duration::from_micros(delay));
    }
}

/// A handle to a device for a mapping.
pub struct DeviceBacking(Arc<Device>);

impl Backing for DeviceBacking {
    fn len(&self) -> u64 {
        self.0.len.load(Ordering::SeqCst)
    }

    fn access(&self) -> Access {
        Access::ReadWrite
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let device = &*self.0;
        let mut bytes = self.len().saturating_sub(offset).min(buffer.len() as u64) as usize;
        for page in offset / PAGE..(offset + bytes as u64).div_ceil(PAGE) {
            let state = &device.pages[page as usize];
            state.reads.fetch_add(1, Ordering::SeqCst);
            let faults = state.faults.load(Ordering::SeqCst);
            if faults & READ_EIO != 0 {
                pause(&device.read_delay_us);
                return Err(io::Error::from_raw_os_error(libc::EIO));
            }
            if faults & READ_SHORT != 0 {
                bytes = bytes.min((page * PAGE - offset + PAGE / 2) as usize);
            }
        }
        for (word, chunk) in device.words_from(offset, bytes).iter().zip(buffer[..bytes].chunks_mut(8)) {
            chunk.copy_from_slice(&word.load(Ordering::SeqCst).to_le_bytes()[..chunk.len()]);
        }
        // What it has read is old by the time it arrives.
        pause(&device.read_delay_us);
        while device.reads_are_held.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(bytes)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let device = &*self.0;
        for page in offset / PAGE..(offset + data.len() as u64).div_ceil(PAGE) {
            let faults = device.pages[page as usize].faults.load(Ordering::SeqCst);
            if faults & WRITES != 0 {
                let code = if faults & WRITE_EIO != 0 { libc::EIO } else { libc::ENOSPC };
                return Err(io::Error::from_raw_os_error(code));
            }
        }
        device.writes_begun.fetch_add(1, Ordering::SeqCst);
        pause(&device.write_delay_us);
        for page in offset / PAGE..(offset + data.len() as u64).div_ceil(PAGE) {
            device.pages[page as usize].writes.fetch_add(1, Ordering::SeqCst);
        }
        for (word, chunk) in device.words_from(offset, data.len()).iter().zip(data.as_chunks::<8>().0) {
            word.store(u64::from_le_bytes(*chunk), Ordering::SeqCst);
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        self.0.flushes.fetch_add(1, Ordering::SeqCst);
        if self.0.flush_fails.load(Ordering::SeqCst) {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        Ok(())
    }

    fn set_len(&self, _len: u64) -> io::Result<()> {
        Err(io::Error::from_raw_os_error(libc::ENOSPC))
    }

    fn describe(&self) -> String {
        "test device".to_owned()
    }
}
