//! A backing for tests: it fails and delays reads, limits writes and flushes, and fails a flush, as told.

use std::io;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use vmio::backing::{Access, Backing, MemoryBacking};

use crate::format::geometry::ALLOCATION_UNIT_BYTES;

const NO_UNIT: u64 = u64::MAX;
/// Lengths of a long write, as the log's pieces are. Those of large values are longer.
const LONG_BYTES: RangeInclusive<usize> = (128 << 10) + 1..=256 << 10;

/// A backing in memory: reads of one unit fail, and the next read of another unit waits.
pub(crate) struct FailingBacking {
    memory: MemoryBacking,
    failing: AtomicU64,
    held: AtomicU64,
    hold: AtomicU8,
    flush_fails: AtomicBool,
    /// How many more long writes may pass.
    writes_left: AtomicU64,
    /// Milliseconds that a long write takes.
    write_ms: AtomicU64,
    flushes: AtomicU64,
    /// How many more flushes may pass.
    flushes_left: AtomicU64,
}

const OPEN: u8 = 0;
const ARMED: u8 = 1;
const HOLDS: u8 = 2;

impl FailingBacking {
    pub(crate) fn new(bytes: u64) -> Self {
        FailingBacking {
            memory: MemoryBacking::new(bytes).expect("memory"),
            failing: AtomicU64::new(NO_UNIT),
            held: AtomicU64::new(NO_UNIT),
            hold: AtomicU8::new(OPEN),
            flush_fails: AtomicBool::new(false),
            writes_left: AtomicU64::new(u64::MAX),
            write_ms: AtomicU64::new(0),
            flushes: AtomicU64::new(0),
            flushes_left: AtomicU64::new(u64::MAX),
        }
    }

    /// Makes reads of a unit fail, or of none.
    pub(crate) fn fail(&self, unit: Option<u64>) {
        self.failing.store(unit.unwrap_or(NO_UNIT), Ordering::SeqCst);
    }

    /// Makes the next read of a unit wait for [`Self::go_on`].
    pub(crate) fn hold_next(&self, unit: u64) {
        self.held.store(unit, Ordering::SeqCst);
        self.hold.store(ARMED, Ordering::SeqCst);
    }

    /// Waits until such a read has come, or `is_over` says that none will.
    pub(crate) fn wait_for_read(&self, is_over: impl Fn() -> bool) -> bool {
        while self.hold.load(Ordering::SeqCst) != HOLDS {
            if is_over() {
                return false;
            }
            std::thread::yield_now();
        }
        true
    }

    /// Makes the next flush fail, and only that one, as the system reports a lost write.
    pub(crate) fn fail_next_flush(&self) {
        self.flush_fails.store(true, Ordering::SeqCst);
    }

    /// Lets `writes` more long writes pass; later ones wait until the next call.
    pub(crate) fn let_through(&self, writes: u64) {
        self.writes_left.store(writes, Ordering::SeqCst);
    }

    /// The same for flushes.
    pub(crate) fn let_flushes_through(&self, flushes: u64) {
        self.flushes_left.store(flushes, Ordering::SeqCst);
    }

    /// Makes each long write take this long.
    pub(crate) fn slow_down(&self, milliseconds: u64) {
        self.write_ms.store(milliseconds, Ordering::SeqCst);
    }

    /// How often it was flushed.
    pub(crate) fn flushes(&self) -> u64 {
        self.flushes.load(Ordering::SeqCst)
    }

    pub(crate) fn go_on(&self) {
        self.hold.store(OPEN, Ordering::SeqCst);
    }
}

impl Backing for FailingBacking {
    fn len(&self) -> u64 {
        self.memory.len()
    }

    fn access(&self) -> Access {
        self.memory.access()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let unit = offset / ALLOCATION_UNIT_BYTES;
        if unit == self.held.load(Ordering::SeqCst)
            && self.hold.compare_exchange(ARMED, HOLDS, Ordering::SeqCst, Ordering::SeqCst).is_ok()
        {
            while self.hold.load(Ordering::SeqCst) == HOLDS {
                std::thread::yield_now();
            }
        }
        if unit == self.failing.load(Ordering::SeqCst) {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        self.memory.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        if LONG_BYTES.contains(&data.len()) {
            take_one(&self.writes_left);
            std::thread::sleep(Duration::from_millis(self.write_ms.load(Ordering::SeqCst)));
        }
        self.memory.write_at(offset, data)
    }

    fn flush(&self) -> io::Result<()> {
        take_one(&self.flushes_left);
        if self.flush_fails.swap(false, Ordering::SeqCst) {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        self.flushes.fetch_add(1, Ordering::SeqCst);
        self.memory.flush()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.memory.set_len(len)
    }

    fn describe(&self) -> String {
        "memory that fails".to_owned()
    }
}

/// Waits until there is one left.
fn take_one(left: &AtomicU64) {
    while left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_err() {
        std::thread::yield_now();
    }
}
