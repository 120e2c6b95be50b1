//! A backing that stops an owner in the middle of its work, and lets it continue later.

use std::io;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex};

use vmio::backing::{Access, Backing};

/// The place where an owner is stopped.
#[derive(Clone, Default)]
pub struct Gate(Arc<(Mutex<State>, Condvar)>);

#[derive(Default)]
struct State {
    operations: u64,
    stops_at: Option<u64>,
    waiting: u64,
}

impl Gate {
    /// Makes all wait after `after` more writes, flushes and discards.
    pub fn stop_after(&self, operations: u64) {
        let mut state = self.0.0.lock().unwrap();
        state.stops_at = Some(state.operations + operations);
    }

    /// Returns when a thread waits, or when `is_over` says that none will.
    pub fn wait_until_stopped(&self, is_over: impl Fn() -> bool) -> bool {
        loop {
            if self.0.0.lock().unwrap().waiting > 0 {
                return true;
            }
            if is_over() {
                return false;
            }
            std::thread::sleep(std::time::Duration::from_micros(200));
        }
    }

    /// Lets all continue.
    pub fn open(&self) {
        self.0.0.lock().unwrap().stops_at = None;
        self.0.1.notify_all();
    }

    /// Number of operations so far.
    pub fn operations(&self) -> u64 {
        self.0.0.lock().unwrap().operations
    }

    fn pass(&self) {
        let mut state = self.0.0.lock().unwrap();
        state.operations += 1;
        state.waiting += 1;
        while state.stops_at.is_some_and(|stop| state.operations > stop) {
            state = self.0.1.wait(state).unwrap();
        }
        state.waiting -= 1;
    }
}

/// A backing behind a gate.
pub struct Gated<B> {
    pub backing: B,
    pub gate: Gate,
}

impl<B: Backing> Backing for Gated<B> {
    fn len(&self) -> u64 {
        self.backing.len()
    }

    fn access(&self) -> Access {
        self.backing.access()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.backing.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.gate.pass();
        self.backing.write_at(offset, data)
    }

    fn flush(&self) -> io::Result<()> {
        self.gate.pass();
        self.backing.flush()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.gate.pass();
        // Like a file: it may be longer by now, and growing never shortens it.
        if len > self.backing.len() { self.backing.set_len(len) } else { Ok(()) }
    }

    fn discard(&self, range: Range<u64>) -> io::Result<()> {
        self.gate.pass();
        self.backing.discard(range)
    }

    fn describe(&self) -> String {
        self.backing.describe()
    }
}
