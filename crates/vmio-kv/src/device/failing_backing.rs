//! A backing for tests, that is told which reads fail and which wait.

use std::io;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use vmio::backing::{Access, Backing, MemoryBacking};

use crate::format::geometry::UNIT_BYTES;

const NO_UNIT: u64 = u64::MAX;

/// Memory, of which reads of one unit fail, and the next read of another waits.
pub(crate) struct FailingBacking {
    memory: MemoryBacking,
    failing: AtomicU64,
    held: AtomicU64,
    hold: AtomicU8,
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
        }
    }

    /// Has reads of a unit fail, or of none.
    pub(crate) fn fail(&self, unit: Option<u64>) {
        self.failing.store(unit.unwrap_or(NO_UNIT), Ordering::SeqCst);
    }

    /// Has the next read of a unit wait for [`Self::go_on`].
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
        let unit = offset / UNIT_BYTES;
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
        self.memory.write_at(offset, data)
    }

    fn flush(&self) -> io::Result<()> {
        self.memory.flush()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.memory.set_len(len)
    }

    fn describe(&self) -> String {
        "memory that fails".to_owned()
    }
}
